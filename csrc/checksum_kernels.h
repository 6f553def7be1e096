// Sums over little-endian 32-bit words w_0 .. w_{n-1}: sum of w_i and sum of (i + 1) w_i, both modulo 2**32.
// Additions only: with running sums a += w, b += a (the old a), b holds the sum of (T - 1 - t) w_t.
inline Sums sums_of(const uint8_t* words, size_t n) {
    constexpr size_t kUnroll = 4, kStep = kUnroll * kLanes;
    U32 a[kUnroll] = {}, b[kUnroll] = {};
    const size_t steps = n / kStep;
    for (size_t t = 0; t < steps; t++)
        for (size_t r = 0; r < kUnroll; r++) {
            b[r] += a[r];
            a[r] += load<U32>(words + 4 * (t * kStep + r * kLanes));
        }
    Sums total{0, 0};
    for (size_t r = 0; r < kUnroll; r++)
        for (size_t lane = 0; lane < kLanes; lane++) {
            const uint32_t first = static_cast<uint32_t>(r * kLanes + lane + 1);
            const uint32_t later = (static_cast<uint32_t>(steps) - 1) * a[r][lane] - b[r][lane];
            total.s1 += a[r][lane];
            total.s2 += first * a[r][lane] + static_cast<uint32_t>(kStep) * later;
        }
    for (size_t i = steps * kStep; i < n; i++) {
        uint32_t w;
        std::memcpy(&w, words + 4 * i, 4);
        total.s1 += w;
        total.s2 += static_cast<uint32_t>(i + 1) * w;
    }
    return total;
}
