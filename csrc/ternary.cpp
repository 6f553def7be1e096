// TernGrad's codes: ternaries, and sums of several workers' (src/paceline/codecs/reference/ternary.py is the specification).
#include <atomic>
#include <stdexcept>

#include "bind.h"
#include "counter.h"
#include "dispatch.h"
#include "pool.h"

namespace paceline {
namespace {

#define PACELINE_KERNELS "ternary_kernels.h"
#include "foreach_isa.h"

constexpr float kTinyScale = 0x1p-100f;  // below it 2**24 / scale overflows: all codes are zero
constexpr uint32_t kInfinity = 0x7f800000u;

size_t packed_bytes(size_t n, int width) { return (n + 7) / 8 * width; }

void same_size(size_t is, size_t should) {
    if (is != should) throw std::invalid_argument("the body has " + std::to_string(is) + " bytes, not " + std::to_string(should));
}

int ternary_encode(const ConstFloats& x, const Bytes& body, float bound, float scale, uint32_t low, uint32_t high, uint64_t start,
                   int threads) {
    const size_t n = x.size();
    same_size(body.size(), packed_bytes(n, 2));
    const float* from = x.data();
    uint8_t* to = body.data();
    const float multiplier = scale < kTinyScale ? 0.0f : 0x1p24f / scale;
    std::atomic<bool> finite{true};
    nb::gil_scoped_release release;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        const uint32_t top = PACELINE_CALL(ternary_encode)(from + first, last - first, to + first / 4, Stream{low, high}, start + first,
                                                           bound, multiplier);
        if (top >= kInfinity) finite.store(false, std::memory_order_relaxed);
    });
    return finite ? kFine : kIllegalCode;
}

int ternary_decode(const ConstBytes& body, const Floats& out, float scale, int mode, int threads) {
    const size_t n = out.size();
    if (body.size() != packed_bytes(n, 2)) return kWrongSize;
    const uint8_t* from = body.data();
    float* to = out.data();
    std::atomic<bool> illegal{false};
    nb::gil_scoped_release release;
    // First, so that a refused body leaves out as it was; it reads 1 / 16 of what decoding writes.
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        if (PACELINE_CALL(ternary_illegal)(from + first / 4, last - first)) illegal.store(true, std::memory_order_relaxed);
    });
    if (illegal) return kIllegalCode;
    const auto decode = mode == kSet   ? PACELINE_CALL(ternary_decode<kSet>)
                        : mode == kAdd ? PACELINE_CALL(ternary_decode<kAdd>)
                                       : PACELINE_CALL(ternary_decode<kSubtract>);
    parallel_ranges(n, threads, [&](size_t first, size_t last) { decode(from + first / 4, to + first, last - first, scale); });
    return kFine;
}

int sum_width(int workers) {
    if (workers < 1 || workers > 32767) throw std::invalid_argument("1 to 32767 workers");
    int width = 0;
    for (int most = 2 * workers; most; most >>= 1) width++;
    return width;
}

int sum_encode(const ConstFloats& x, const Bytes& body, int workers, int threads) {
    const size_t n = x.size();
    const int width = sum_width(workers);
    same_size(body.size(), packed_bytes(n, width));
    const float* from = x.data();
    uint8_t* to = body.data();
    std::atomic<bool> legal{true};
    nb::gil_scoped_release release;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        if (!PACELINE_CALL(sum_encode)(from + first, last - first, to + first / 8 * width, workers, width))
            legal.store(false, std::memory_order_relaxed);
    });
    return legal ? kFine : kIllegalCode;
}

int sum_decode(const ConstBytes& body, const Floats& out, int workers, float unit, int mode, int threads) {
    const size_t n = out.size();
    const int width = sum_width(workers);
    if (body.size() != packed_bytes(n, width)) return kWrongSize;
    const uint8_t* from = body.data();
    float* to = out.data();
    std::atomic<bool> legal{true};
    nb::gil_scoped_release release;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        if (!PACELINE_CALL(sum_legal)(from + first / 8 * width, last - first, workers, width))
            legal.store(false, std::memory_order_relaxed);
    });
    if (!legal) return kIllegalCode;
    const auto decode = mode == kSet   ? PACELINE_CALL(sum_decode<kSet>)
                        : mode == kAdd ? PACELINE_CALL(sum_decode<kAdd>)
                                       : PACELINE_CALL(sum_decode<kSubtract>);
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        decode(from + first / 8 * width, to + first, last - first, workers, width, unit);
    });
    return kFine;
}

}  // namespace

void bind_ternary(nb::module_& m) {
    m.def("ternary_encode", &ternary_encode, nb::arg("x").noconvert(), nb::arg("body").noconvert(), nb::arg("bound"), nb::arg("scale"),
          nb::arg("low"), nb::arg("high"), nb::arg("start"), nb::arg("threads"), "Two bit planes; 1 when x has NaN or infinity.");
    m.def("ternary_decode", &ternary_decode, nb::arg("body").noconvert(), nb::arg("out").noconvert(), nb::arg("scale"), nb::arg("mode"),
          nb::arg("threads"), "0, or a status that says what is wrong with the body; out is then unchanged.");
    m.def("sum_encode", &sum_encode, nb::arg("x").noconvert(), nb::arg("body").noconvert(), nb::arg("workers"), nb::arg("threads"),
          "Bit planes of x + workers; 1 when a value is out of range.");
    m.def("sum_decode", &sum_decode, nb::arg("body").noconvert(), nb::arg("out").noconvert(), nb::arg("workers"), nb::arg("unit"),
          nb::arg("mode"), nb::arg("threads"), "As ternary_decode; the value of a sum is sum * unit.");
}

}  // namespace paceline
