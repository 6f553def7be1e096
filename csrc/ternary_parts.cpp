// TernGrad's codes between messages and the gradients of several tensors: no buffer of fp32 in between, and exact sums of
// messages without decoding them. The bytes are those of ternary.cpp's kernels on scaled and packed gradients.
#include <nanobind/stl/vector.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "bind.h"
#include "counter.h"
#include "dispatch.h"
#include "pool.h"

namespace paceline {
namespace {

// Elements start to stop of a message, and where they are in memory.
struct EncodedPart {
    const float* data;
    size_t start, stop;
    float bound, factor;  // clipped at +-bound, then multiplied
};

struct DecodedPart {
    float* data;
    size_t start, stop;
    float scale;
};

// One message of a sum: `workers` 0 for the ternaries of one worker, else sums of so many.
struct Summand {
    const uint8_t* body;
    int workers, width;
};

#define PACELINE_KERNELS "ternary_parts_kernels.h"
#include "foreach_isa.h"

constexpr uint32_t kInfinity = 0x7f800000u;

size_t packed_bytes(size_t n, int width) { return (n + 7) / 8 * static_cast<size_t>(width); }

void same_size(size_t is, size_t should, const char* what) {
    if (is != should) throw std::invalid_argument(std::string(what) + " of size " + std::to_string(is) + ", not " + std::to_string(should));
}

int sum_width(int workers) {
    if (workers < 1 || workers > 32767) throw std::invalid_argument("1 to 32767 workers");
    int width = 0;
    for (int most = 2 * workers; most; most >>= 1) width++;
    return width;
}

int parts_encode(const std::vector<ConstFloats>& x, const Bytes& body, const ConstFloats& bounds, const ConstFloats& factors,
                 uint32_t low, uint32_t high, uint64_t start, int threads) {
    same_size(bounds.size(), x.size(), "bounds");
    same_size(factors.size(), x.size(), "factors");
    std::vector<EncodedPart> parts;
    size_t n = 0;
    for (size_t i = 0; i < x.size(); n += x[i].size(), i++)
        parts.push_back({x[i].data(), n, n + x[i].size(), bounds.data()[i], factors.data()[i]});
    same_size(body.size(), packed_bytes(n, 2), "a body");
    uint8_t* to = body.data();
    std::atomic<bool> finite{true};
    nb::gil_scoped_release release;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        if (PACELINE_CALL(parts_encode)(parts.data(), first, last, to, Stream{low, high}, start) >= kInfinity)
            finite.store(false, std::memory_order_relaxed);
    });
    return finite ? kFine : kIllegalCode;
}

int planes_sum(const std::vector<ConstBytes>& bodies, const std::vector<int>& workers, const Bytes& out, size_t n, int threads) {
    same_size(workers.size(), bodies.size(), "workers");
    std::vector<Summand> from;
    int total = 0;
    for (size_t i = 0; i < bodies.size(); i++) {
        const int width = workers[i] ? sum_width(workers[i]) : 2;
        if (bodies[i].size() != packed_bytes(n, width)) return kWrongSize;
        from.push_back({bodies[i].data(), workers[i], width});
        total += workers[i] ? workers[i] : 1;
    }
    const int width = sum_width(total);
    same_size(out.size(), packed_bytes(n, width), "a sum");
    uint8_t* to = out.data();
    std::atomic<bool> legal{true};
    nb::gil_scoped_release release;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        for (const auto& m : from) {
            const uint8_t* body = m.body + first / 8 * static_cast<size_t>(m.width);
            const bool good = m.workers ? PACELINE_CALL(sum_legal)(body, last - first, m.workers, m.width)
                                        : !PACELINE_CALL(ternary_illegal)(body, last - first);
            if (!good) legal.store(false, std::memory_order_relaxed);
        }
        PACELINE_CALL(planes_sum)(from.data(), from.size(), to, first, last, width);
    });
    return legal ? kFine : kIllegalCode;
}

int parts_decode(const ConstBytes& body, const std::vector<Floats>& out, const ConstFloats& scales, int workers, bool past,
                 int threads) {
    same_size(scales.size(), out.size(), "scales");
    std::vector<DecodedPart> parts;
    size_t n = 0;
    for (size_t i = 0; i < out.size(); n += out[i].size(), i++) parts.push_back({out[i].data(), n, n + out[i].size(), scales.data()[i]});
    const int width = sum_width(workers);
    if (body.size() != packed_bytes(n, width)) return kWrongSize;
    const uint8_t* from = body.data();
    std::atomic<bool> legal{true};
    nb::gil_scoped_release release;
    // First, so that a refused body leaves the parts as they were.
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        if (!PACELINE_CALL(sum_legal)(from + first / 8 * static_cast<size_t>(width), last - first, workers, width))
            legal.store(false, std::memory_order_relaxed);
    });
    if (!legal) return kIllegalCode;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        PACELINE_CALL(parts_decode)(from, parts.data(), first, last, workers, width, past);
    });
    return kFine;
}

}  // namespace

void bind_ternary_parts(nb::module_& m) {
    m.def("parts_encode", &parts_encode, nb::arg("x").noconvert(), nb::arg("body").noconvert(), nb::arg("bounds").noconvert(),
          nb::arg("factors").noconvert(), nb::arg("low"), nb::arg("high"), nb::arg("start"), nb::arg("threads"),
          "Ternary codes of several tensors one after the other, each clipped and multiplied; 1 when one has NaN or infinity.");
    m.def("planes_sum", &planes_sum, nb::arg("bodies").noconvert(), nb::arg("workers"), nb::arg("out").noconvert(), nb::arg("n"),
          nb::arg("threads"), "The sum of bodies of n elements, ternaries (workers 0) or sums; 0, or a status. out is not one of them.");
    m.def("parts_decode", &parts_decode, nb::arg("body").noconvert(), nb::arg("out").noconvert(), nb::arg("scales").noconvert(),
          nb::arg("workers"), nb::arg("past"), nb::arg("threads"),
          "A sum, times the scale of each of several tensors, past the caches if so; 0, or a status and all unchanged.");
}

}  // namespace paceline
