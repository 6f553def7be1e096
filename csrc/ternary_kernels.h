// One block of 64 elements at a time: a 64-bit word of each bit plane. The public loops also take a last block of r < 64
// elements, whose words have ceil(r / 8) bytes, by way of a padded copy.

struct Words {
    uint64_t nonzero, negative;
};

// Draws decide |x| * multiplier > u. The comparison must see exactly the reference's two roundings: no fused operation.
PACELINE_INLINE Words ternary_words(const float* x, U32 index, U32 low, U32 high, F32 bound, F32 multiplier, U32& top) {
    Words words{0, 0};
    for (size_t r = 0; r < kRegisters; r++) {
        const F32 v = load<F32>(x + r * kLanes);
        F32 magnitude = abs(v);
        const U32 bits = (U32)magnitude;
        top = (U32)((I32)bits > (I32)top ? (I32)bits : (I32)top);
        magnitude = magnitude < bound ? magnitude : bound;  // a NaN is refused afterwards, by top
        const U32 u = draw24(index + static_cast<uint32_t>(r * kLanes), low, high);
        const uint64_t nonzero = less_bits(to_float(u), magnitude * multiplier);
        words.nonzero |= nonzero << (r * kLanes);
        words.negative |= sign_bits((U32)v) << (r * kLanes);
    }
    words.negative &= words.nonzero;
    return words;
}

// The same for a block in which the upper half of the index may change.
PACELINE_INLINE Words ternary_block(const float* x, uint64_t index, const Stream& key, F32 bound, F32 multiplier, U32& top) {
    const U32 lanes = static_cast<uint32_t>(index) + iota(), low = splat(key.low);
    const Words words = ternary_words(x, lanes, low, splat(key.high_at(index)), bound, multiplier, top);
    const uint64_t before = (uint64_t{1} << 32) - (index & 0xffffffffu);  // elements with this upper half
    if (before >= 64) return words;
    const Words later = ternary_words(x, lanes, low, splat(key.high_at(index + 63)), bound, multiplier, top);
    const uint64_t mask = (uint64_t{1} << before) - 1;
    return {(words.nonzero & mask) | (later.nonzero & ~mask), (words.negative & mask) | (later.negative & ~mask)};
}

// Calls put(element, words) for every whole block of x and then last(element, words) for what is left. Returns the bits of max |x|.
template <class Put, class Last>
PACELINE_INLINE uint32_t ternary_blocks(const float* x, size_t n, const Stream& key, uint64_t start, float bound_, float multiplier_,
                                        Put&& put, Last&& last) {
    const F32 bound = splat(bound_), multiplier = splat(multiplier_);
    const U32 low = splat(key.low);
    U32 top = {};
    size_t i = 0;
    while (i + 64 <= n) {
        const uint64_t index = start + i, left = (uint64_t{1} << 32) - (index & 0xffffffffu);
        if (left < 64) {
            put(i, ternary_block(x + i, index, key, bound, multiplier, top));
            i += 64;
            continue;
        }
        const U32 high = splat(key.high_at(index));
        U32 lanes = static_cast<uint32_t>(index) + iota();
        const size_t run = n - i < left ? n - i : static_cast<size_t>(left), end = i + run / 64 * 64;
        for (; i < end; i += 64, lanes += 64) put(i, ternary_words(x + i, lanes, low, high, bound, multiplier, top));
    }
    if (i < n) {
        float rest[64] = {};
        std::memcpy(rest, x + i, 4 * (n - i));
        last(i, ternary_block(rest, start + i, key, bound, multiplier, top));
    }
    uint32_t most = 0;
    for (size_t lane = 0; lane < kLanes; lane++) most = top[lane] > most ? top[lane] : most;
    return most;
}

inline uint32_t ternary_encode(const float* x, size_t n, uint8_t* body, const Stream& key, uint64_t start, float bound,
                               float multiplier) {
    return ternary_blocks(
        x, n, key, start, bound, multiplier,
        [=](size_t i, Words words) __attribute__((always_inline)) { std::memcpy(body + i / 4, &words, 16); },
        [=](size_t i, Words words) {
            const size_t bytes = (n - i + 7) / 8;
            std::memcpy(body + i / 4, &words.nonzero, bytes);
            std::memcpy(body + i / 4 + bytes, &words.negative, bytes);
        });
}

// One register of -s, 0, +s.
PACELINE_INLINE F32 ternary_values(uint64_t nonzero, uint64_t negative, U32 scale) {
    return (F32)(lanes_of(nonzero) & (scale ^ (lanes_of(negative) & 0x80000000u)));
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
        for (size_t r = 0; r < kRegisters; r++)
            values[r] = ternary_values(words.nonzero >> (r * kLanes), words.negative >> (r * kLanes), scale);
        put_block<kMode>(out + i, values);
    }
    if (i < n) {
        Words words{0, 0};
        const size_t bytes = (n - i + 7) / 8;
        std::memcpy(&words.nonzero, body + i / 4, bytes);
        std::memcpy(&words.negative, body + i / 4 + bytes, bytes);
        for (size_t r = 0; r < kRegisters; r++)
            values[r] = ternary_values(words.nonzero >> (r * kLanes), words.negative >> (r * kLanes), scale);
        put_rest<kMode>(out + i, values, n - i);
    }
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
        uint64_t planes[kWidth] = {};
        for (size_t r = 0; r < kRegisters; r++) {
            const F32 v = load<F32>(from + r * kLanes);
            const I32 good = abs(v) <= most;
            bad |= ~good;
            const U32 sum = (U32)__builtin_convertvector((F32)((I32)v & good), I32) + static_cast<uint32_t>(workers);
            for (int k = 0; k < kWidth; k++) planes[k] |= sign_bits(sum << (31 - k)) << (r * kLanes);
        }
        if (count < 64)  // what pads the block must not be seen
            for (int k = 0; k < kWidth; k++) planes[k] &= (uint64_t{1} << count) - 1;
        uint8_t* to = body + i / 8 * kWidth;
        for (int k = 0; k < kWidth; k++) std::memcpy(to + k * bytes, &planes[k], bytes);
    }
    return sign_bits((U32)bad) == 0;
}

PACELINE_INLINE U32 sum_register(const uint64_t* planes, int width, size_t r) {
    U32 sum = {};
    for (int k = 0; k < width; k++) sum = or_where(sum, planes[k] >> (r * kLanes), 1u << k);
    return sum;
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
            uint64_t plane = 0;
            std::memcpy(&plane, body + i / 8 * kWidth + k * bytes, bytes);
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
        uint64_t planes[kWidth] = {};
        for (int k = 0; k < kWidth; k++) std::memcpy(&planes[k], body + i / 8 * kWidth + k * bytes, bytes);
        for (size_t r = 0; r < kRegisters; r++)
            values[r] = __builtin_convertvector((I32)sum_register(planes, kWidth, r) - workers, F32) * unit;
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
