// One block of 64 elements at a time: a 64-bit word of each bit plane. The public loops also take a last block of r < 64
// elements, whose words have ceil(r / 8) bytes, by way of a padded copy.

struct Words {
    uint64_t nonzero, negative;
};

// From a magnitude to what is compared with a draw: clipped at the own bound, times 2**24 / scale.
struct OneScale {
    F32 bound, multiplier;
    PACELINE_INLINE F32 operator()(F32 magnitude) const { return at_most(magnitude, bound) * multiplier; }
};

// The same of a tensor that was multiplied by 1 / scale before: two products, since the first may underflow.
struct TwoScales {
    F32 bound, factor;
    PACELINE_INLINE F32 operator()(F32 magnitude) const { return at_most(magnitude, bound) * factor * splat(0x1p24f); }
};

// Draws decide |x| * multiplier > u. The comparison must see exactly the reference's roundings: no fused operation.
template <class Scaling>
PACELINE_INLINE Words ternary_words(const float* x, U32 index, U32 low, U32 high, const Scaling& scaling, U32& top) {
    const uint64_t nonzero = word_of([&](size_t r) __attribute__((always_inline)) {
        const F32 magnitude = abs(load<F32>(x + r * kLanes));
        const U32 bits = (U32)magnitude;  // by which a NaN is refused afterwards
        top = (U32)((I32)bits > (I32)top ? (I32)bits : (I32)top);
        const U32 u = draw24(index + static_cast<uint32_t>(r * kLanes), low, high);
        return less_bits(to_float(u), scaling(magnitude));
    });
    return {nonzero, nonzero & sign_word(x)};
}

// The same for a block in which the upper half of the index may change.
template <class Scaling>
PACELINE_INLINE Words ternary_block(const float* x, uint64_t index, const Stream& key, const Scaling& scaling, U32& top) {
    const U32 lanes = static_cast<uint32_t>(index) + iota(), low = splat(key.low);
    const Words words = ternary_words(x, lanes, low, splat(key.high_at(index)), scaling, top);
    const uint64_t before = (uint64_t{1} << 32) - (index & 0xffffffffu);  // elements with this upper half
    if (before >= 64) return words;
    const Words later = ternary_words(x, lanes, low, splat(key.high_at(index + 63)), scaling, top);
    const uint64_t mask = (uint64_t{1} << before) - 1;
    return {(words.nonzero & mask) | (later.nonzero & ~mask), (words.negative & mask) | (later.negative & ~mask)};
}

// Calls put(element, words) for every whole block of x and then last(element, words) for what is left. Returns the bits of max |x|.
template <class Scaling, class Put, class Last>
PACELINE_INLINE uint32_t ternary_blocks(const float* x, size_t n, const Stream& key, uint64_t start, const Scaling& scaling, Put&& put,
                                        Last&& last) {
    const U32 low = splat(key.low);
    U32 top = {};
    size_t i = 0;
    while (i + 64 <= n) {
        const uint64_t index = start + i, left = (uint64_t{1} << 32) - (index & 0xffffffffu);
        if (left < 64) {
            put(i, ternary_block(x + i, index, key, scaling, top));
            i += 64;
            continue;
        }
        const U32 high = splat(key.high_at(index));
        U32 lanes = static_cast<uint32_t>(index) + iota();
        const size_t run = n - i < left ? n - i : static_cast<size_t>(left), end = i + run / 64 * 64;
        for (; i < end; i += 64, lanes += 64) {
            fetch_block(x + i + kAhead);
            put(i, ternary_words(x + i, lanes, low, high, scaling, top));
        }
    }
    if (i < n) {
        float rest[64] = {};
        std::memcpy(rest, x + i, 4 * (n - i));
        last(i, ternary_block(rest, start + i, key, scaling, top));
    }
    uint32_t most = 0;
    for (size_t lane = 0; lane < kLanes; lane++) most = top[lane] > most ? top[lane] : most;
    return most;
}

inline uint32_t ternary_encode(const float* x, size_t n, uint8_t* body, const Stream& key, uint64_t start, float bound,
                               float multiplier) {
    return ternary_blocks(
        x, n, key, start, OneScale{splat(bound), splat(multiplier)},
        [=](size_t i, Words words) __attribute__((always_inline)) { std::memcpy(body + i / 4, &words, 16); },
        [=](size_t i, Words words) {
            const size_t bytes = (n - i + 7) / 8;
            std::memcpy(body + i / 4, &words.nonzero, bytes);
            std::memcpy(body + i / 4 + bytes, &words.negative, bytes);
        });
}

// A block of -s, 0, +s.
PACELINE_INLINE void ternary_values(const Words& words, U32 scale, F32* values) {
    for (size_t r = 0; r < kRegisters; r++)
        values[r] = (F32)(lanes_of(words.nonzero, r) & (scale ^ (lanes_of(words.negative, r) & 0x80000000u)));
}

// Whether a code (0, 1) is among n elements.
inline bool ternary_illegal(const uint8_t* body, size_t n) {
    uint64_t wrong = 0;
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        Words words;
        std::memcpy(&words, body + i / 4, 16);
        wrong |= words.negative & ~words.nonzero;
    }
    if (i < n) {
        Words words{0, 0};
        const size_t bytes = (n - i + 7) / 8;
        std::memcpy(&words.nonzero, body + i / 4, bytes);
        std::memcpy(&words.negative, body + i / 4 + bytes, bytes);
        wrong |= words.negative & ~words.nonzero & ((uint64_t{1} << (n - i)) - 1);
    }
    return wrong != 0;
}

template <int kMode>
inline void ternary_decode(const uint8_t* body, float* out, size_t n, float scale_) {
    const U32 scale = (U32)splat(scale_);
    F32 values[kRegisters];
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        Words words;
        std::memcpy(&words, body + i / 4, 16);
        ternary_values(words, scale, values);
        put_block<kMode>(out + i, values);
    }
    if (i < n) {
        Words words{0, 0};
        const size_t bytes = (n - i + 7) / 8;
        std::memcpy(&words.nonzero, body + i / 4, bytes);
        std::memcpy(&words.negative, body + i / 4 + bytes, bytes);
        ternary_values(words, scale, values);
        put_rest<kMode>(out + i, values, n - i);
    }
}

#if PACELINE_LEVEL == 3
// 16 lanes from their low bytes and the bytes above those.
PACELINE_INLINE void widen_bytes(uint8x16_t low, uint8x16_t high, U32* lanes) {
    const uint16x8_t first = (uint16x8_t)vzip1q_u8(low, high), second = (uint16x8_t)vzip2q_u8(low, high);
    lanes[0] = (U32)vmovl_u16(vget_low_u16(first));
    lanes[1] = (U32)vmovl_high_u16(first);
    lanes[2] = (U32)vmovl_u16(vget_low_u16(second));
    lanes[3] = (U32)vmovl_high_u16(second);
}
#endif

// A plane's word for up to 64 elements: nearly always of eight bytes, for which no function is called.
PACELINE_INLINE uint64_t load_word(const uint8_t* from, size_t bytes) {
    if (bytes == 8) return load<uint64_t>(from);
    uint64_t word = 0;
    std::memcpy(&word, from, bytes);
    return word;
}
PACELINE_INLINE void store_word(uint8_t* to, uint64_t word, size_t bytes) {
    if (bytes == 8)
        store(to, word);
    else
        std::memcpy(to, &word, bytes);
}

// 64 integers as bit planes, lowest bit first, and back.
template <int kWidth>
PACELINE_INLINE void to_planes(const U32* sums, uint64_t* planes) {
#if PACELINE_LEVEL == 3
    constexpr int kHalves = kWidth > 8 ? 2 : 1;
    uint8x16_t bytes[kHalves][4];
    for (int half = 0; half < kHalves; half++)
        for (size_t q = 0; q < 4; q++) {
            const U32* from = sums + 4 * q;
            bytes[half][q] = low_bytes(from[0] >> 8 * half, from[1] >> 8 * half, from[2] >> 8 * half, from[3] >> 8 * half);
        }
    for (int k = 0; k < kWidth; k++) {
        const uint8x16_t bit = vdupq_n_u8(static_cast<uint8_t>(1u << k % 8));
        planes[k] = word_of_bytes([&](size_t q) __attribute__((always_inline)) {
            return vandq_u8(vtstq_u8(bytes[k / 8][q], bit), bit_places());
        });
    }
#else
    for (int k = 0; k < kWidth; k++) planes[k] = 0;
    for (size_t r = 0; r < kRegisters; r++)
        for (int k = 0; k < kWidth; k++) planes[k] |= sign_bits(sums[r] << (31 - k)) << (r * kLanes);
#endif
}

template <int kWidth>
PACELINE_INLINE void from_planes(const uint64_t* planes, U32* sums) {
#if PACELINE_LEVEL == 3
    for (size_t q = 0; q < 4; q++) {
        const uint8_t a = static_cast<uint8_t>(2 * q), b = static_cast<uint8_t>(2 * q + 1);
        const uint8x16_t pick = vcombine_u8(vdup_n_u8(a), vdup_n_u8(b));  // the byte of a word in which a lane's bit is
        uint8x16_t half[2] = {vdupq_n_u8(0), vdupq_n_u8(0)};
#pragma GCC unroll 16
        for (int k = 0; k < kWidth; k++) {
            const uint8x16_t set = vtstq_u8(vqtbl1q_u8((uint8x16_t)vdupq_n_u64(planes[k]), pick), bit_places());
            half[k / 8] = vorrq_u8(half[k / 8], vandq_u8(set, vdupq_n_u8(static_cast<uint8_t>(1u << k % 8))));
        }
        widen_bytes(half[0], half[1], sums + 4 * q);
    }
#else
    for (size_t r = 0; r < kRegisters; r++) {
        sums[r] = U32{};
        for (int k = 0; k < kWidth; k++) sums[r] = or_where(sums[r], planes[k], r, 1u << k);
    }
#endif
}

// Sums of up to `workers` ternaries, held as fp32, as `width` bit planes of sum + workers. Returns whether all were in range.
template <int kWidth>
inline bool sum_encode_width(const float* x, size_t n, uint8_t* body, int workers) {
    const F32 most = splat(static_cast<float>(workers));
    I32 bad = {};
    float rest[64] = {};
    for (size_t i = 0; i < n; i += 64) {
        const float* from = x + i;
        const size_t count = n - i < 64 ? n - i : 64, bytes = (count + 7) / 8;
        if (count < 64) std::memcpy(rest, from, 4 * count), from = rest;
        uint64_t planes[kWidth];
        U32 sums[kRegisters];
        for (size_t r = 0; r < kRegisters; r++) {
            const F32 v = load<F32>(from + r * kLanes);
            const I32 good = abs(v) <= most;
            bad |= ~good;
            sums[r] = (U32)__builtin_convertvector((F32)((I32)v & good), I32) + static_cast<uint32_t>(workers);
        }
        to_planes<kWidth>(sums, planes);
        if (count < 64)  // what pads the block must not be seen
            for (int k = 0; k < kWidth; k++) planes[k] &= (uint64_t{1} << count) - 1;
        uint8_t* to = body + i / 8 * kWidth;
        for (int k = 0; k < kWidth; k++) store_word(to + k * bytes, planes[k], bytes);
    }
    return !any_sign((U32)bad);
}

// Whether no integer of the planes is above 2 * workers: compared bit by bit from the highest, 64 elements at once.
template <int kWidth>
inline bool sum_legal_width(const uint8_t* body, size_t n, int workers) {
    const unsigned most = 2u * static_cast<unsigned>(workers);
    uint64_t wrong = 0;
    for (size_t i = 0; i < n; i += 64) {
        const size_t count = n - i < 64 ? n - i : 64, bytes = (count + 7) / 8;
        uint64_t above = 0, equal = count < 64 ? (uint64_t{1} << count) - 1 : ~uint64_t{0};
        for (int k = kWidth - 1; k >= 0; k--) {
            const uint64_t plane = load_word(body + i / 8 * kWidth + k * bytes, bytes);
            if (most >> k & 1u) {
                equal &= plane;
            } else {
                above |= equal & plane;
                equal &= ~plane;
            }
        }
        wrong |= above;
    }
    return wrong == 0;
}

template <int kWidth, int kMode>
inline void sum_decode_width(const uint8_t* body, float* out, size_t n, int workers, float unit_) {
    const F32 unit = splat(unit_);
    F32 values[kRegisters];
    for (size_t i = 0; i < n; i += 64) {
        const size_t count = n - i < 64 ? n - i : 64, bytes = (count + 7) / 8;
        uint64_t planes[kWidth];
        for (int k = 0; k < kWidth; k++) planes[k] = load_word(body + i / 8 * kWidth + k * bytes, bytes);
        U32 sums[kRegisters];
        from_planes<kWidth>(planes, sums);
        for (size_t r = 0; r < kRegisters; r++) values[r] = __builtin_convertvector((I32)sums[r] - workers, F32) * unit;
        if (count == 64)
            put_block<kMode>(out + i, values);
        else
            put_rest<kMode>(out + i, values, count);
    }
}

// The width as a constant, so that the loops over planes unroll.
#define PACELINE_WIDTHS(X) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)

inline bool sum_encode(const float* x, size_t n, uint8_t* body, int workers, int width) {
    switch (width) {
#define X(w) case w: return sum_encode_width<w>(x, n, body, workers);
        PACELINE_WIDTHS(X)
#undef X
    }
    return false;
}

inline bool sum_legal(const uint8_t* body, size_t n, int workers, int width) {
    switch (width) {
#define X(w) case w: return sum_legal_width<w>(body, n, workers);
        PACELINE_WIDTHS(X)
#undef X
    }
    return false;
}

template <int kMode>
inline void sum_decode(const uint8_t* body, float* out, size_t n, int workers, int width, float unit) {
    switch (width) {
#define X(w) case w: return sum_decode_width<w, kMode>(body, out, n, workers, unit);
        PACELINE_WIDTHS(X)
#undef X
    }
}
#undef PACELINE_WIDTHS
