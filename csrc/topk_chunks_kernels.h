// topk's passes over one chunk, which stays in a core's cache.
#include "blocks_kernels.h"

// How many of n elements have a magnitude of `least` (its bits) or more.
inline size_t count_at_least(const float* x, size_t n, uint32_t least_) {
    const I32 least = (I32)splat(least_);
    I32 found[kRegisters] = {};
    size_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (size_t r = 0; r < kRegisters; r++) found[r] -= (I32)((load<I32>(x + i + r * kLanes) & 0x7fffffff) >= least);
    for (size_t r = 1; r < kRegisters; r++) found[0] += found[r];
    size_t total = 0;
    for (size_t lane = 0; lane < kLanes; lane++) total += static_cast<size_t>(found[0][lane]);
    for (; i < n; i++) total += magnitude_at(x, i) >= least_;
    return total;
}

// The upper bits of the kept-th largest magnitude of n elements, bit by bit from the highest; `found` elements reach them.
inline uint32_t upper_bits(const float* x, size_t n, size_t kept, uint32_t peak, size_t& found) {
    uint32_t least = 0;
    found = n;
    for (uint32_t bit = 1u << 30; bit >= kLowestCounted && found > kept; bit >>= 1) {
        if ((least | bit) > peak) continue;
        const size_t reached = count_at_least(x, n, least | bit);
        if (reached >= kept) least |= bit, found = reached;
    }
    return least;
}

// The indices and the bits of the `kept` largest of n elements, in order; of equal ones the first. False for NaN and infinity.
// The arrays have room for n.
inline bool largest_of(const float* x, size_t n, size_t kept, uint32_t* index, uint32_t* words, uint32_t* room) {
    const uint32_t peak = block_peak(x, n);
    if (peak >= kInfinityBits) return false;
    size_t found = 0, seen = 0;
    const uint32_t least = upper_bits(x, n, kept, peak, found);
    const I32 threshold = (I32)splat(least);
    for (size_t i = 0; i < n && seen < found; i += 64) {
        uint64_t word = 0;
        if (i + 64 <= n) {
            word = word_of([=](size_t r) __attribute__((always_inline)) {
                return at_least_bits(load<I32>(x + i + r * kLanes) & 0x7fffffff, threshold);
            });
        } else {
            for (size_t k = i; k < n; k++) word |= static_cast<uint64_t>(magnitude_at(x, k) >= least) << (k - i);
        }
        for (; word; word &= word - 1, seen++) {
            index[seen] = static_cast<uint32_t>(i + static_cast<size_t>(__builtin_ctzll(word)));
            words[seen] = bits_at(x, index[seen]);
        }
    }
    if (found > kept) keep_largest(found, kept, index, words, room);
    return true;
}
