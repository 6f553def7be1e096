// topk's pass over all of x: which elements may be among the largest.

// Marks the elements of magnitude `least` (its bits) or more, one bit each; n elements, words up to a multiple of 64.
// Their bits go to `words` in order while there is room, and their magnitudes' upper bits are counted.
inline Marked mark(const float* x, size_t n, uint32_t least_, uint64_t* marks, uint32_t* words, uint32_t room, uint32_t* counts) {
    const I32 least = (I32)splat(least_);
    Marked marked{0, 0};
    for (size_t i = 0; i < n; i += 64) {
        uint64_t word = 0;
        if (i + 64 <= n) {
            word = word_of([=](size_t r) __attribute__((always_inline)) {
                return at_least_bits(load<I32>(x + i + r * kLanes) & 0x7fffffff, least);
            });
        } else {
            for (size_t k = i; k < n; k++) word |= static_cast<uint64_t>(magnitude_at(x, k) >= least_) << (k - i);
        }
        marks[i / 64] = word;
        for (; word; word &= word - 1, marked.found++) {
            const uint32_t bits = bits_at(x, i + static_cast<size_t>(__builtin_ctzll(word)));
            const uint32_t magnitude = bits & kMagnitude;
            if (marked.found < room) words[marked.found] = bits;
            if (magnitude > marked.most) marked.most = magnitude;
            counts[magnitude >> kCoarseShift]++;
        }
    }
    return marked;
}
