// One bit an element and a mean magnitude for each block (src/paceline/codecs/reference/sign.py is the specification).
#include "means.h"
#include "pool.h"

namespace paceline {
namespace {

#define PACELINE_KERNELS "sign_kernels.h"
#include "foreach_isa.h"

int encode(const ConstFloats& x, const Bytes& body, int log2, int threads) {
    const size_t n = x.size(), block = block_of(log2), at = scale_bytes(n, block);
    need_bytes(body.size(), at + (n + 7) / 8);
    const float* from = x.data();
    uint8_t *scales = body.data(), *planes = scales + at;
    std::atomic<bool> finite{true};
    nb::gil_scoped_release release;
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        const uint32_t top =
            PACELINE_CALL(sign_encode)(from + first, last - first, block, scales + first / block * 4, planes + first / 8);
        if (top >= kInfinityBits) finite.store(false, std::memory_order_relaxed);
    });
    return finite ? kFine : kBadValue;
}

int decode(const ConstBytes& body, const Floats& out, int log2, int mode, int threads) {
    const size_t n = out.size(), block = block_of(log2), at = scale_bytes(n, block);
    if (body.size() != at + (n + 7) / 8) return kWrongSize;
    const uint8_t *scales = body.data(), *planes = scales + at;
    float* to = out.data();
    nb::gil_scoped_release release;
    if (!legal_scales(scales, at)) return kBadScale;
    if (n % 8 && planes[n / 8] >> (n % 8)) return kBadPadding;
    const auto kernel = mode == kSet   ? PACELINE_CALL(sign_decode<kSet>)
                        : mode == kAdd ? PACELINE_CALL(sign_decode<kAdd>)
                                       : PACELINE_CALL(sign_decode<kSubtract>);
    parallel_ranges(n, threads, [&](size_t first, size_t last) {
        kernel(scales + first / block * 4, planes + first / 8, block, to + first, last - first);
    });
    return kFine;
}

}  // namespace

void bind_sign(nb::module_& m) {
    m.def("sign_encode", &encode, nb::arg("x").noconvert(), nb::arg("body").noconvert(), nb::arg("log2_block"), nb::arg("threads"),
          "Scales and sign bits; not 0 when x has NaN or infinity.");
    m.def("sign_decode", &decode, nb::arg("body").noconvert(), nb::arg("out").noconvert(), nb::arg("log2_block"), nb::arg("mode"),
          nb::arg("threads"), "0, or a status that says what is wrong with the body; out is then unchanged.");
}

}  // namespace paceline
