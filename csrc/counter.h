// Randomness that is a function of (key, element index): counter.py. The hash itself is draw24 in simd.h.
#pragma once

#include <cstdint>

namespace paceline {

inline uint64_t splitmix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

struct Stream {
    uint32_t low, high;

    // The high word of the key for one element index: the index's upper half enters it.
    uint32_t high_at(uint64_t index) const {
        return index >> 32 ? high ^ static_cast<uint32_t>(splitmix64(index >> 32)) : high;
    }
};

}  // namespace paceline
