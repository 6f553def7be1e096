// One bit an element and a mean magnitude for each block (sign.py has the arithmetic).
#include "blocks_kernels.h"

// Sum of trunc(|x| * lift * unit), each below 2**24, and the sign bits to `planes`.
PACELINE_INLINE uint64_t sum_and_signs(const float* x, size_t n, F32 lift, F32 unit, uint8_t* planes) {
    constexpr size_t kPart = 1024;  // 256 values to a lane of the narrowest register: their sum is below 2**32
    uint64_t total = 0;
    for (size_t first = 0; first < n; first += kPart) {
        U32 sums[kRegisters] = {};
        groups_of(x + first, n - first < kPart ? n - first : kPart,
                  [&](const float* from, size_t i, size_t count) __attribute__((always_inline)) {
                      for (size_t r = 0; r < kRegisters; r++)
                          sums[r] += (U32)__builtin_convertvector(abs(load<F32>(from + r * kLanes)) * lift * unit, I32);
                      const uint64_t word = sign_word(from);
                      uint8_t* to = planes + (first + i) / 8;
                      if (count == 64)
                          std::memcpy(to, &word, 8);
                      else
                          std::memcpy(to, &word, (count + 7) / 8);
                  });
        for (size_t r = 0; r < kRegisters; r++)
            for (size_t lane = 0; lane < kLanes; lane++) total += sums[r][lane];
    }
    return total;
}

// n elements from the start of a block on. Returns the bits of their largest magnitude.
inline uint32_t sign_encode(const float* x, size_t n, size_t block, uint8_t* scales, uint8_t* planes) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; i += block) {
        const size_t count = n - i < block ? n - i : block;
        const uint32_t peak = block_peak(x + i, count);
        most = peak > most ? peak : most;
        if (peak >= kInfinityBits) return most;
        const Mean mean(peak);
        const uint64_t total = sum_and_signs(x + i, count, splat(mean.lift), splat(mean.unit), planes + i / 8);
        const float scale = mean.of(total, count);
        std::memcpy(scales + i / block * 4, &scale, 4);
    }
    return most;
}

PACELINE_INLINE void sign_values(uint64_t word, U32 scale, F32* values) {
    for (size_t r = 0; r < kRegisters; r++) values[r] = (F32)or_where(scale, word, r, 0x80000000u);
}

template <int kMode>
inline void sign_decode(const uint8_t* scales, const uint8_t* planes, size_t block, float* out, size_t n) {
    F32 values[kRegisters];
    size_t i = 0;
    while (i + 64 <= n) {
        const U32 scale = (U32)splat(load<float>(scales + i / block * 4));
        const size_t whole = (n - i < block ? n - i : block) / 64 * 64;
        for (const size_t end = i + whole; i < end; i += 64) {
            sign_values(load<uint64_t>(planes + i / 8), scale, values);
            put_block<kMode>(out + i, values);
        }
    }
    if (i < n) {
        uint64_t word = 0;
        std::memcpy(&word, planes + i / 8, (n - i + 7) / 8);
        sign_values(word, (U32)splat(load<float>(scales + i / block * 4)), values);
        put_rest<kMode>(out + i, values, n - i);
    }
}
