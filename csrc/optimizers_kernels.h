// LARS and LAMB on ranges of fp32 elements. Sums have sixteen lanes at every level, so that all of them give the same bits.
constexpr size_t kGroup = 16, kRegs = kGroup / kLanes;

#if PACELINE_LEVEL == 2
PACELINE_INLINE F32 root(F32 x) { return (F32)_mm512_maskz_sqrt_ps(0xffff, (__m512)x); }
#elif PACELINE_LEVEL == 1
PACELINE_INLINE F32 root(F32 x) { return (F32)_mm256_sqrt_ps((__m256)x); }
#elif PACELINE_LEVEL == 3
PACELINE_INLINE F32 root(F32 x) { return (F32)vsqrtq_f32((float32x4_t)x); }
#elif PACELINE_X86
PACELINE_INLINE F32 root(F32 x) { return (F32)_mm_sqrt_ps((__m128)x); }
#else
PACELINE_INLINE F32 root(F32 x) {
    for (size_t i = 0; i < kLanes; i++) x[i] = __builtin_sqrtf(x[i]);
    return x;
}
#endif

// Sums of squares: fp32 lanes within a block, fp64 beyond.
template <size_t kCount>
struct Squares {
    F32 lanes[kCount][kRegs] = {};
    double* totals;

    PACELINE_INLINE explicit Squares(double* to) : totals(to) {}
    PACELINE_INLINE void add(size_t which, size_t reg, F32 x) { lanes[which][reg] += x * x; }
    PACELINE_INLINE void flush() {
        for (size_t k = 0; k < kCount; k++) {
            double sum = 0;
            for (size_t r = 0; r < kRegs; r++) {
                for (size_t i = 0; i < kLanes; i++) sum += static_cast<double>(lanes[k][r][i]);
                lanes[k][r] = F32{};
            }
            totals[k] += sum;
        }
    }
};

// Calls body(first, sums) for whole groups, and rest(first, count) for what is left, which calls body on padded copies.
template <size_t kCount, class Body>
PACELINE_INLINE void in_blocks(size_t n, double* totals, Body&& body) {
    Squares<kCount> sums(totals);
    size_t i = 0;
    while (i + kGroup <= n) {
        const size_t end = n - i < kSquaresBlock ? i + (n - i) / kGroup * kGroup : i + kSquaresBlock;
        for (; i < end; i += kGroup) body(i, kGroup, sums);
        sums.flush();
    }
    if (i < n) {
        body(i, n - i, sums);
        sums.flush();
    }
}

// The elements of one group; those beyond `count` are `pad`.
struct Group {
    float padded[kGroup];
    const float* from;

    PACELINE_INLINE Group(const float* at, size_t count, float pad = 0.0f) : from(at) {
        if (count == kGroup) return;
        for (size_t k = 0; k < kGroup; k++) padded[k] = k < count ? at[k] : pad;
        from = padded;
    }
    PACELINE_INLINE F32 operator[](size_t reg) const { return load<F32>(from + reg * kLanes); }
};

inline void squares(const float* x, size_t n, double* totals) {
    in_blocks<1>(n, totals, [=](size_t i, size_t count, Squares<1>& sums) __attribute__((always_inline)) {
        const Group values(x + i, count);
        for (size_t r = 0; r < kRegs; r++) sums.add(0, r, values[r]);
    });
}

// Squares of w and of g * scale + w * decay, which without decay is g up to its sign.
template <bool kDecay>
inline void lars_sums(const float* w, const float* g, size_t n, float scale_, float decay_, double* totals) {
    const F32 scale = splat(scale_), decay = splat(decay_);
    in_blocks<2>(n, totals, [=](size_t i, size_t count, Squares<2>& sums) __attribute__((always_inline)) {
        const Group ws(w + i, count), gs(g + i, count);
        for (size_t r = 0; r < kRegs; r++) {
            const F32 weight = ws[r];
            sums.add(0, r, weight);
            sums.add(1, r, kDecay ? gs[r] * scale + weight * decay : gs[r]);
        }
    });
}

template <bool kNesterov>
PACELINE_INLINE void lars_at(float* w, const float* g, float* v, const LarsStep& s) {
    const F32 weight = load<F32>(w);
    const F32 change = (load<F32>(g) * splat(s.scale) + weight * splat(s.decay)) * splat(s.gain);
    const F32 buffer = load<F32>(v) * splat(s.momentum) + change;
    store(v, buffer);
    store(w, weight - (kNesterov ? change + buffer * splat(s.momentum) : buffer) * splat(s.rate));
}

template <bool kNesterov>
inline void lars_step(float* w, const float* g, float* v, size_t n, const LarsStep& s) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) lars_at<kNesterov>(w + i, g + i, v + i, s);
    if (i == n) return;
    float rest[3][kLanes] = {};
    const size_t bytes = 4 * (n - i);
    std::memcpy(rest[0], w + i, bytes);
    std::memcpy(rest[1], g + i, bytes);
    std::memcpy(rest[2], v + i, bytes);
    lars_at<kNesterov>(rest[0], rest[1], rest[2], s);
    std::memcpy(w + i, rest[0], bytes);
    std::memcpy(v + i, rest[2], bytes);
}

struct Moments {
    F32 first, second, update;
};

PACELINE_INLINE Moments lamb_at(F32 w, F32 g, F32 m, F32 v, const LambStep& s) {
    g *= splat(s.scale);
    m = m * splat(s.beta1) + g * splat(s.rest1);
    v = v * splat(s.beta2) + g * g * splat(s.rest2);
    return {m, v, (m * splat(s.correct1)) / (root(v) * splat(s.correct2) + splat(s.eps)) + w * splat(s.decay)};
}

// Squares of w, of the update and of g.
inline void lamb_sums(const float* w, const float* g, const float* m, const float* v, size_t n, const LambStep& s,
                      double* totals) {
    in_blocks<3>(n, totals, [=, &s](size_t i, size_t count, Squares<3>& sums) __attribute__((always_inline)) {
        const Group ws(w + i, count), gs(g + i, count), ms(m + i, count), vs(v + i, count, 1.0f);  // no 0 / 0 beyond the end
        for (size_t r = 0; r < kRegs; r++) {
            const F32 weight = ws[r], gradient = gs[r];
            sums.add(0, r, weight);
            sums.add(1, r, lamb_at(weight, gradient, ms[r], vs[r], s).update);
            sums.add(2, r, gradient * splat(s.scale));
        }
    });
}

PACELINE_INLINE void lamb_write(float* w, const float* g, float* m, float* v, const LambStep& s) {
    const F32 weight = load<F32>(w);
    const Moments made = lamb_at(weight, load<F32>(g), load<F32>(m), load<F32>(v), s);
    store(m, made.first);
    store(v, made.second);
    store(w, weight - made.update * splat(s.rate));
}

inline void lamb_step(float* w, const float* g, float* m, float* v, size_t n, const LambStep& s) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) lamb_write(w + i, g + i, m + i, v + i, s);
    if (i == n) return;
    float rest[4][kLanes] = {};
    const size_t bytes = 4 * (n - i);
    std::memcpy(rest[0], w + i, bytes);
    std::memcpy(rest[1], g + i, bytes);
    std::memcpy(rest[2], m + i, bytes);
    std::memcpy(rest[3], v + i, bytes);
    lamb_write(rest[0], rest[1], rest[2], rest[3], s);
    std::memcpy(w + i, rest[0], bytes);
    std::memcpy(m + i, rest[2], bytes);
    std::memcpy(v + i, rest[3], bytes);
}
