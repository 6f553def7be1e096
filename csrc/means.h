// Means of magnitudes from sums of integers, which do not depend on an order (src/paceline/codecs/reference/sign.py).
#pragma once

#include "blocks.h"

namespace paceline {

// How a block's mean is summed: magnitudes as integers below 2**24.
struct Mean {
    float lift, unit;

    explicit Mean(uint32_t peak) : lift(lift_of(peak)) {
        const uint32_t exponent = bits_of(float_of(peak) * lift) >> 23;
        unit = float_of((277u - (exponent < 23 ? 23 : exponent)) << 23);
    }

    // Of a magnitude's bits.
    uint64_t whole(uint32_t magnitude) const { return static_cast<uint64_t>(float_of(magnitude) * lift * unit); }

    float of(uint64_t total, size_t count) const {
        return static_cast<float>(static_cast<double>(total) / static_cast<double>(count) / (static_cast<double>(unit) * lift));
    }
};

}  // namespace paceline
