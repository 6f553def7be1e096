// Shared by the kernels of codecs with a scale for each block.

// Calls f(values, first, count) for each group of 64 elements; behind the last elements of a short group there are zeros.
template <class F>
PACELINE_INLINE void groups_of(const float* x, size_t n, F&& f) {
    size_t i = 0;
    for (; i + 64 <= n; i += 64) f(x + i, i, size_t{64});
    if (i < n) {
        float rest[64] = {};
        std::memcpy(rest, x + i, 4 * (n - i));
        f(rest, i, n - i);
    }
}

// Bits of the largest |x|.
PACELINE_INLINE uint32_t block_peak(const float* x, size_t n) {
    I32 top[kRegisters] = {};
    groups_of(x, n, [&](const float* from, size_t, size_t) __attribute__((always_inline)) {
        for (size_t r = 0; r < kRegisters; r++) {
            const I32 v = load<I32>(from + r * kLanes) & 0x7fffffff;
            top[r] = v > top[r] ? v : top[r];
        }
    });
    for (size_t r = 1; r < kRegisters; r++) top[0] = top[r] > top[0] ? top[r] : top[0];
    int32_t most = 0;
    for (size_t lane = 0; lane < kLanes; lane++) most = top[0][lane] > most ? top[0][lane] : most;
    return static_cast<uint32_t>(most);
}
