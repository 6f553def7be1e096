// One chunk of bursts of inceptionn and inceptionn-scaled each way: what the codecs (inceptionn.cpp) and the card (nic/) share.
// Nothing of Python, no threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paceline {

constexpr int kBurstMost = 34;  // bytes: a tag vector and eight whole values
constexpr size_t kBlock = 1024;  // values that share a scale

// encode writes the bursts of n values at `to`, nothing from `end` on, and of each block its exponent; decode reads them and sets out,
// adds to it or subtracts from it (Mode). Both return where the bursts end, or nullptr: no room, no form (NaN and infinity where
// they have none), or nothing that an encoder wrote. Floats need no alignment.
struct FaithfulFormat {
    static constexpr size_t kExponentBytes = 0;
    static constexpr int kMostK = 15;
    int k;

    explicit FaithfulFormat(int k_) : k(k_) {}
    uint8_t* encode(const float* x, size_t n, uint8_t* exponents, uint8_t* to, uint8_t* end) const;
    const uint8_t* decode(const uint8_t* from, const uint8_t* end, const uint8_t* exponents, float* out, size_t n, int mode) const;
};

struct ScaledFormat {
    static constexpr size_t kExponentBytes = 2;
    static constexpr int kMostK = 14;
    int k;

    explicit ScaledFormat(int k_) : k(k_) {}
    uint8_t* encode(const float* x, size_t n, uint8_t* exponents, uint8_t* to, uint8_t* end) const;
    const uint8_t* decode(const uint8_t* from, const uint8_t* end, const uint8_t* exponents, float* out, size_t n, int mode) const;
};

}  // namespace paceline
