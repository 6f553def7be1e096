// What the codecs int8 and int4 share with their fused passes: the arithmetic of a block's scale, and bytes of codes.
#pragma once

#include "blocks.h"

namespace paceline {

struct Quantizer {
    float lift, rate;  // |x| * lift * rate is the code in steps of 2**-24
};

inline Quantizer quantizer(uint32_t peak, int levels) {
    if (!peak) return {1.0f, 0.0f};
    const float lift = lift_of(peak), top = static_cast<float>(levels) * 0x1p24f;
    const float lifted = float_of(peak) * lift;
    float rate = top / lifted;
    if (lifted * rate < top) rate = float_of(bits_of(rate) + 1);
    return {lift, rate};
}

inline size_t code_bytes(size_t n, int levels) { return levels == 127 ? n : (n + 1) / 2; }

}  // namespace paceline
