// int8 and int4 with a scale for each block and stochastic rounding (src/paceline/codecs/reference/integer.py is the specification).
#include "integer.h"

#include "counter.h"
#include "pool.h"

namespace paceline {
namespace {

#define PACELINE_KERNELS "integer_kernels.h"
#include "foreach_isa.h"

template <int kLevels>
int encode(const ConstFloats& x, const Bytes& body, int log2, uint32_t low, uint32_t high, uint64_t start, int threads) {
    const size_t n = x.size(), block = block_of(log2), at = scale_bytes(n, block);
    need_bytes(body.size(), at + code_bytes(n, kLevels));
    const float* from = x.data();
    uint8_t *scales = body.data(), *codes = scales + at;
    std::atomic<bool> finite{true};
    nb::gil_scoped_release release;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        const uint32_t top = PACELINE_CALL(integer_encode<kLevels>)(from + first, last - first, block, scales + first / block * 4,
                                                                    codes + code_bytes(first, kLevels), Stream{low, high}, start + first);
        if (top >= kInfinityBits) finite.store(false, std::memory_order_relaxed);
    });
    return finite ? kFine : kBadValue;
}

template <int kLevels>
int decode(const ConstBytes& body, const Floats& out, int log2, int mode, int threads) {
    const size_t n = out.size(), block = block_of(log2), at = scale_bytes(n, block), bytes = code_bytes(n, kLevels);
    if (body.size() != at + bytes) return kWrongSize;
    const uint8_t *scales = body.data(), *codes = scales + at;
    float* to = out.data();
    std::atomic<bool> illegal{false};
    nb::gil_scoped_release release;
    // First, so that a refused body leaves out as it was.
    if (!legal_scales(scales, at)) return kBadScale;
    if (kLevels == 7 && n % 2 && codes[bytes - 1] >> 4) return kBadPadding;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        if (PACELINE_CALL(integer_illegal<kLevels>)(codes + code_bytes(first, kLevels), code_bytes(last - first, kLevels)))
            illegal.store(true, std::memory_order_relaxed);
    });
    if (illegal) return kIllegalCode;
    const auto kernel = mode == kSet   ? PACELINE_CALL(integer_decode<kLevels, kSet>)
                        : mode == kAdd ? PACELINE_CALL(integer_decode<kLevels, kAdd>)
                                       : PACELINE_CALL(integer_decode<kLevels, kSubtract>);
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        kernel(scales + first / block * 4, codes + code_bytes(first, kLevels), block, to + first, last - first);
    });
    return kFine;
}

template <int kLevels>
void bind(nb::module_& m, const char* encoder, const char* decoder) {
    m.def(encoder, &encode<kLevels>, nb::arg("x").noconvert(), nb::arg("body").noconvert(), nb::arg("log2_block"), nb::arg("low"),
          nb::arg("high"), nb::arg("start"), nb::arg("threads"), "Scales and codes; not 0 when x has NaN or infinity.");
    m.def(decoder, &decode<kLevels>, nb::arg("body").noconvert(), nb::arg("out").noconvert(), nb::arg("log2_block"), nb::arg("mode"),
          nb::arg("threads"), "0, or a status that says what is wrong with the body; out is then unchanged.");
}

}  // namespace

void bind_integer(nb::module_& m) {
    bind<127>(m, "int8_encode", "int8_decode");
    bind<7>(m, "int4_encode", "int4_decode");
}

}  // namespace paceline
