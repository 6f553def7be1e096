// What codecs with a scale for each block share (src/paceline/codecs/reference/blocks.py is the specification).
#pragma once

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

#include "bind.h"
#include "dispatch.h"

namespace paceline {

constexpr uint32_t kInfinityBits = 0x7f800000u;

// The power of two that takes a block clear of denormals, from the bits of its largest magnitude.
inline float lift_of(uint32_t peak) { return peak < 0x1f800000u ? 0x1p64f : 1.0f; }

inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

inline size_t block_of(int log2) {
    if (log2 < 6 || log2 > 16) throw std::invalid_argument("blocks have 2**6 to 2**16 elements");
    return size_t{1} << log2;
}

inline size_t scale_bytes(size_t n, size_t block) { return (n + block - 1) / block * 4; }

inline void need_bytes(size_t is, size_t should) {
    if (is != should) throw std::invalid_argument("the body has " + std::to_string(is) + " bytes, not " + std::to_string(should));
}

// Whether all of these fp32 scales are finite and none has its sign bit set.
inline bool legal_scales(const uint8_t* scales, size_t bytes) {
    bool bad = false;
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t bits;
        std::memcpy(&bits, scales + i, 4);
        bad |= bits >= kInfinityBits;
    }
    return !bad;
}

}  // namespace paceline
