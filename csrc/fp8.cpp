// e4m3 with a power of two for each block and stochastic rounding (src/paceline/codecs/reference/fp8.py is the specification).
#include "counter.h"
#include "integer.h"
#include "pool.h"

namespace paceline {
namespace {

constexpr uint32_t kFp8LargestField = 247;

// The exponent field of the scale of a block with this largest magnitude (its bits).
inline uint32_t fp8_field(uint32_t peak) {
    const int field = static_cast<int>(peak >> 23) - 8 + ((peak & 0x7fffffu) > 0x600000u);
    return static_cast<uint32_t>(field < 1 ? 1 : field);
}

#define PACELINE_KERNELS "fp8_kernels.h"
#include "foreach_isa.h"

int encode(const ConstFloats& x, const Bytes& body, int log2, uint32_t low, uint32_t high, uint64_t start, int threads) {
    const size_t n = x.size(), block = block_of(log2), at = scale_bytes(n, block);
    need_bytes(body.size(), at + n);
    const float* from = x.data();
    uint8_t *scales = body.data(), *codes = scales + at;
    std::atomic<bool> finite{true};
    nb::gil_scoped_release release;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        for (size_t i = first; i < last; i += block) {
            const size_t count = last - i < block ? last - i : block;
            const uint32_t top = PACELINE_CALL(fp8_encode_block)(from + i, count, scales + i / block * 4, codes + i,
                                                                 Stream{low, high}, start + i);
            if (top >= kInfinityBits) finite.store(false, std::memory_order_relaxed);
        }
    });
    return finite ? kFine : kBadValue;
}

int decode(const ConstBytes& body, const Floats& out, int log2, int mode, int threads) {
    const size_t n = out.size(), block = block_of(log2), at = scale_bytes(n, block);
    if (body.size() != at + n) return kWrongSize;
    const uint8_t *scales = body.data(), *codes = scales + at;
    float* to = out.data();
    std::atomic<bool> illegal{false};
    nb::gil_scoped_release release;
    for (size_t i = 0; i < at; i += 4) {
        uint32_t bits;
        std::memcpy(&bits, scales + i, 4);
        if (!bits || bits & 0x7fffffu || bits > kFp8LargestField << 23) return kBadScale;
    }
    const auto scale_at = [&](size_t i) {
        float scale;
        std::memcpy(&scale, scales + i / block * 4, 4);
        return scale;
    };
    // First, so that a refused body leaves out as it was. Of 2^120 the codes above 240 (0x77) decode to infinity.
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        for (size_t i = first; i < last; i += block) {
            const size_t count = last - i < block ? last - i : block;
            if (PACELINE_CALL(fp8_illegal)(codes + i, count, scale_at(i) < 0x1p120f ? 0x7e : 0x77))
                illegal.store(true, std::memory_order_relaxed);
        }
    });
    if (illegal) return kIllegalCode;
    const auto kernel = mode == kSet   ? PACELINE_CALL(fp8_decode_block<kSet>)
                        : mode == kAdd ? PACELINE_CALL(fp8_decode_block<kAdd>)
                                       : PACELINE_CALL(fp8_decode_block<kSubtract>);
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        for (size_t i = first; i < last; i += block) kernel(scale_at(i), codes + i, to + i, last - i < block ? last - i : block);
    });
    return kFine;
}

}  // namespace

void bind_fp8(nb::module_& m) {
    m.def("fp8_encode", &encode, nb::arg("x").noconvert(), nb::arg("body").noconvert(), nb::arg("log2_block"), nb::arg("low"),
          nb::arg("high"), nb::arg("start"), nb::arg("threads"), "Scales and codes; not 0 when x has NaN or infinity.");
    m.def("fp8_decode", &decode, nb::arg("body").noconvert(), nb::arg("out").noconvert(), nb::arg("log2_block"), nb::arg("mode"),
          nb::arg("threads"), "0, or a status that says what is wrong with the body; out is then unchanged.");
}

}  // namespace paceline
