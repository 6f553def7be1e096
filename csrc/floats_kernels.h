// Passes over fp32: the largest magnitude, moments, plain copies, bfloat16.

// Bits of the largest |x|: as integers magnitudes order like the numbers, infinity above all of them and NaN above it.
inline uint32_t peak_bits(const float* x, size_t n) {
    constexpr size_t kUnroll = 4, kStep = kUnroll * kLanes;
    I32 top[kUnroll] = {};
    size_t i = 0;
    for (; i + kStep <= n; i += kStep) {
        if (i % 64 == 0) fetch_block(x + i + kAhead);
        for (size_t r = 0; r < kUnroll; r++) {
            const I32 v = load<I32>(x + i + r * kLanes) & 0x7fffffff;
            top[r] = v > top[r] ? v : top[r];
        }
    }
    int32_t most = 0;
    for (size_t r = 0; r < kUnroll; r++)
        for (size_t lane = 0; lane < kLanes; lane++) most = top[r][lane] > most ? top[r][lane] : most;
    for (; i < n; i++) {
        int32_t v;
        std::memcpy(&v, x + i, 4);
        v &= 0x7fffffff;
        most = v > most ? v : most;
    }
    return static_cast<uint32_t>(most);
}

// One block (up to kMomentsBlock elements) of the summation order of ternary.py: element k goes to lane k mod 16, the lanes are
// added in order. d is x - shift in fp64; sums of d and of d * d, and the bits of max |x|, the shift's among them.
inline BlockSums block_sums(const float* x, size_t n, double shift) {
    typedef double F64 __attribute__((vector_size(4 * PACELINE_LANES)));  // a register: wider ones are converted number by number
    typedef float Half __attribute__((vector_size(sizeof(F64) / 2)));
    constexpr size_t kDoubles = sizeof(F64) / 8, kCount = 16 / kDoubles;
    typedef int32_t HalfInt __attribute__((vector_size(sizeof(F64) / 2)));
    F64 first[kCount] = {}, second[kCount] = {};
    HalfInt top[kCount] = {};
    float padded[16];
    for (size_t i = 0; i < n; i += 16) {
        const float* from = x + i;
        if (n - i < 16) {  // what is missing counts as the shift: d = 0 changes no sum
            for (size_t k = 0; k < 16; k++) padded[k] = k < n - i ? from[k] : static_cast<float>(shift);
            from = padded;
        }
        __builtin_prefetch(x + i + kAhead);
        for (size_t r = 0; r < kCount; r++) {
            const F64 d = __builtin_convertvector(load<Half>(from + r * kDoubles), F64) - shift;
            const HalfInt magnitude = load<HalfInt>(from + r * kDoubles) & 0x7fffffff;
            first[r] += d;
            second[r] += d * d;
            top[r] = magnitude > top[r] ? magnitude : top[r];
        }
    }
    BlockSums total{0, 0, 0};
    for (size_t r = 0; r < kCount; r++)
        for (size_t lane = 0; lane < kDoubles; lane++) {
            const uint32_t magnitude = static_cast<uint32_t>(top[r][lane]);
            total.first += first[r][lane];
            total.second += second[r][lane];
            total.top = magnitude > total.top ? magnitude : total.top;
        }
    return total;
}

template <int kMode>
PACELINE_INLINE void combine_at(float* out, F32 value) {
    store(out, kMode == kSet ? value : kMode == kAdd ? load<F32>(out) + value : load<F32>(out) - value);
}

template <int kMode>
PACELINE_INLINE void combine_at(float* out, float value) {
    *out = kMode == kSet ? value : kMode == kAdd ? *out + value : *out - value;
}

template <int kMode>
inline void combine(float* out, const uint8_t* body, size_t n) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) combine_at<kMode>(out + i, load<F32>(body + 4 * i));
    for (; i < n; i++) combine_at<kMode>(out + i, load<float>(body + 4 * i));
}

PACELINE_INLINE U32 bf16_bits(U32 v) {
    const U32 rounded = (v + 0x7fffu + ((v >> 16) & 1u)) >> 16;
    const U32 nan = (U32)((I32)(v & 0x7fffffffu) > 0x7f800000);
    return (rounded & ~nan) | (nan & kBf16Nan);
}

inline void bf16_encode(const float* x, uint8_t* body, size_t n) {
    typedef uint16_t U16 __attribute__((vector_size(2 * PACELINE_LANES)));
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(body + 2 * i, __builtin_convertvector(bf16_bits(load<U32>(x + i)), U16));
    for (; i < n; i++) {
        U32 v = {};
        std::memcpy(&v, x + i, 4);
        const uint16_t word = static_cast<uint16_t>(bf16_bits(v)[0]);
        std::memcpy(body + 2 * i, &word, 2);
    }
}

// The upper half of x, whose lower half is the chance of the next larger magnitude: draw k is that of element index + k, all of
// which have one upper half.
inline void bf16_draw(const float* x, uint16_t* out, size_t n, uint32_t index, uint32_t low, uint32_t high) {
    typedef uint16_t U16 __attribute__((vector_size(2 * PACELINE_LANES)));
    U32 at = index + iota();
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes, at += static_cast<uint32_t>(kLanes))
        store(out + i, __builtin_convertvector((load<U32>(x + i) + (draw24(at, splat(low), splat(high)) >> 8)) >> 16, U16));
    if (i < n) {
        U32 v = {};
        std::memcpy(&v, x + i, 4 * (n - i));
        v = (v + (draw24(at, splat(low), splat(high)) >> 8)) >> 16;
        for (size_t k = 0; i + k < n; k++) out[i + k] = static_cast<uint16_t>(v[k]);
    }
}

template <int kMode>
inline void bf16_decode(const uint8_t* body, float* out, size_t n) {
    typedef uint16_t U16 __attribute__((vector_size(2 * PACELINE_LANES)));
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
        combine_at<kMode>(out + i, (F32)(__builtin_convertvector(load<U16>(body + 2 * i), U32) << 16));
    for (; i < n; i++) {
        const uint32_t bits = static_cast<uint32_t>(load<uint16_t>(body + 2 * i)) << 16;
        combine_at<kMode>(out + i, load<float>(&bits));
    }
}
