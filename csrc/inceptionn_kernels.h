// The kernels of inceptionn.cpp for one instruction set (foreach_isa.h): a chunk of groups each way. Eight lanes everywhere, the
// width of a group; the compiler splits them where registers have four.
typedef float F8 __attribute__((vector_size(32)));
typedef uint32_t U8 __attribute__((vector_size(32)));
typedef int32_t I8 __attribute__((vector_size(32)));

PACELINE_INLINE I8 as_int(F8 v) { return (I8)v; }
PACELINE_INLINE F8 as_float(I8 v) { return (F8)v; }
PACELINE_INLINE I8 magnitude(I8 bits) { return bits & 0x7fffffff; }
PACELINE_INLINE I8 sign(I8 bits) { return bits & INT32_MIN; }
PACELINE_INLINE I8 smaller(I8 a, I8 b) { return a < b ? a : b; }
PACELINE_INLINE I8 larger(I8 a, I8 b) { return a > b ? a : b; }
PACELINE_INLINE int any(I8 v) { return v[0] | v[1] | v[2] | v[3] | v[4] | v[5] | v[6] | v[7]; }

// Values between -1 and 1 and their tags, as two masks a lane: bit 0, bit 1 of the tag.
struct Coded {
    I8 lanes, bit0, bit1;
};

// Algorithms 2 and 3.
struct Faithful {
    using Parameters = FaithfulParameters;
    I8 lost{}, wrong{};
    int32_t byte_at, half_at;

    PACELINE_INLINE explicit Faithful(const Parameters& p) : byte_at(p.byte_at), half_at(p.half_at) { lost += p.k > 7; }

    PACELINE_INLINE Coded encode(F8 x) const {
        const I8 bits = as_int(x), a = magnitude(bits);
        const I8 c1 = a >= byte_at, c2 = a >= half_at, c3 = a >= kOne;
        const I8 fixed = __builtin_convertvector(as_float(a & ~c3) * 0x1p31f, I8);
        return {c3 ? bits : fixed | sign(bits), c1 ^ c2 ^ c3, c2};
    }

    PACELINE_INLINE F8 decode(I8 lanes, I8 tag) {
        const F8 fixed = __builtin_convertvector(magnitude(lanes), F8) * 0x1p-31f;
        const I8 bits = tag == 3 ? lanes : as_int(fixed) | sign(lanes);
        // Under its own tag? Where one-byte magnitudes can be cut to zero (lost), tags 0 and 1 count as one.
        const I8 a = magnitude(bits);
        const I8 passed = (a >= byte_at) + (a >= half_at) + (a >= kOne);
        wrong |= smaller(passed, -lost) + larger(tag, lost);
        return as_float(bits);
    }

    PACELINE_INLINE bool fine(uint32_t) const { return !any(wrong); }
};

// One block of inceptionn-scaled. Wide: two-byte payloads occur.
template <bool Wide>
struct Scaled {
    using Parameters = ScaledParameters;
    float lift, up, narrow, unit, half_unit, drop;
    int32_t least_half, most_byte;
    I8 wrong{}, peak{};

    PACELINE_INLINE explicit Scaled(const ScaledParameters& p)
        : lift(p.lift), up(p.up), narrow(p.narrow), unit(p.unit), half_unit(p.half_unit), drop(p.drop),
          least_half(p.least_half), most_byte(p.most_byte) {}

    PACELINE_INLINE static I8 rounded(F8 x) { return as_int(x + 0x1p23f) & 0x7fffff; }  // to nearest even, below 2^23

    PACELINE_INLINE Coded encode(F8 x) const {
        const I8 bits = as_int(x);
        const F8 y = as_float(magnitude(bits)) * lift * up;  // units of 2^-15 of the scale
        const I8 small = rounded(y * narrow), c1 = small > 0;
        if (!Wide) return {small << 24 | sign(bits), c1, I8{}};
        const I8 c2 = small > 127;
        const I8 large = smaller(rounded(y), I8{} + 32767);
        return {(c2 ? large << 16 : small << 24) | sign(bits), c1 ^ c2, c2};
    }

    PACELINE_INLINE F8 decode(I8 lanes, I8 tag) {
        const I8 a = magnitude(lanes), half = tag > 1;
        const F8 units = half ? F8{} + half_unit : F8{} + unit;
        const F8 y = __builtin_convertvector(a, F8) * (Wide ? units : F8{} + unit) * drop;
        const I8 bits = smaller(as_int(y), I8{} + kMost);
        peak = larger(peak, bits);
        if (Wide)
            wrong |= (a < (half ? I8{} + least_half : tag)) | (tag == 3);
        else
            wrong |= (a < tag) | (a > most_byte) | half;
        return as_float(bits | sign(lanes));
    }

    PACELINE_INLINE bool fine(uint32_t half_scale) const {
        uint32_t most = 0;
        for (int i = 0; i < 8; i++) most = uint32_t(peak[i]) > most ? uint32_t(peak[i]) : most;
        return !any(wrong) && most >= half_scale;
    }
};

#if PACELINE_X86
PACELINE_INLINE __m128i low(I8 v) { __m128i half; std::memcpy(&half, &v, 16); return half; }
PACELINE_INLINE __m128i high(I8 v) { __m128i half; std::memcpy(&half, reinterpret_cast<char*>(&v) + 16, 16); return half; }
#endif

PACELINE_INLINE uint32_t tag_vector(const Coded& c) {
#if PACELINE_X86
    const I8 pairs = c.bit0 ^ ((c.bit0 ^ c.bit1) & int32_t(0xffff0000));  // 16 bits each: bit 0, bit 1, lane after lane
    return uint32_t(_mm_movemask_epi8(_mm_packs_epi16(low(pairs), high(pairs))));
#else
    uint32_t tags = 0;
    for (int i = 0; i < 8; i++) tags |= ((c.bit0[i] & 1) | (c.bit1[i] & 2)) << 2 * i;
    return tags;
#endif
}

// Writes one group, 2 to 34 bytes, and whatever up to kGroupMost. Returns its bytes.
PACELINE_INLINE size_t put(uint8_t* to, const Coded& c) {
    const uint32_t tags = tag_vector(c);
    std::memcpy(to, &tags, 2);
#if PACELINE_LEVEL > 0
    const uint32_t first = tags & 255, second = tags >> 8;
    const size_t n = kTables.bytes[first];
    const __m128i one = _mm_shuffle_epi8(low(c.lanes), load<__m128i>(kTables.pack[first]));
    const __m128i two = _mm_shuffle_epi8(high(c.lanes), load<__m128i>(kTables.pack[second]));
    store(to + 2, one);
    store(to + 2 + n, two);
    return 2 + n + kTables.bytes[second];
#else
    size_t at = 2;
    for (int i = 0; i < 8; i++) {
        const uint32_t n = 0x4210 >> 4 * (tags >> 2 * i & 3) & 7;
        const uint32_t payload = uint32_t(uint64_t(uint32_t(c.lanes[i])) >> (32 - 8 * n));
        std::memcpy(to + at, &payload, 4);
        at += n;
    }
    return at;
#endif
}

// Reads one group from kGroupMost readable bytes. Returns its bytes.
PACELINE_INLINE size_t get(const uint8_t* from, I8& lanes, I8& tag) {
    uint16_t tags;
    std::memcpy(&tags, from, 2);
#if PACELINE_LEVEL > 0
    const uint32_t first = tags & 255, second = tags >> 8;
    const size_t n = kTables.bytes[first];
    const __m128i one = _mm_shuffle_epi8(load<__m128i>(from + 2), load<__m128i>(kTables.unpack[first]));
    const __m128i two = _mm_shuffle_epi8(load<__m128i>(from + 2 + n), load<__m128i>(kTables.unpack[second]));
    lanes = (I8)_mm256_inserti128_si256(_mm256_castsi128_si256(one), two, 1);
    tag = (I8{} + int32_t(tags)) >> I8{0, 2, 4, 6, 8, 10, 12, 14} & 3;
    return 2 + n + kTables.bytes[second];
#else
    size_t at = 2;
    for (int i = 0; i < 8; i++) {
        const uint32_t t = tags >> 2 * i & 3, n = 0x4210 >> 4 * t & 7;
        uint32_t payload;
        std::memcpy(&payload, from + at, 4);
        lanes[i] = int32_t(uint32_t(uint64_t(payload) << (32 - 8 * n)));
        tag[i] = int32_t(t);
        at += n;
    }
    return at;
#endif
}

PACELINE_INLINE void deliver(float* out, F8 v, int mode) {
    const F8 old = mode == 0 ? F8{} : load<F8>(out);
    store(out, mode == 0 ? v : mode == 1 ? old + v : old - v);
}

// Writes the groups of n values at `to`; nothing from `end` on. Returns where they end, or nullptr if they do not fit.
template <class Format>
PACELINE_INLINE uint8_t* encode_groups(const typename Format::Parameters& p, const float* x, size_t n, uint8_t* to, uint8_t* end) {
    const Format format(p);
    size_t i = 0;
    for (; i + 8 <= n && end - to >= kGroupMost; i += 8) to += put(to, format.encode(load<F8>(x + i)));
    for (; i < n; i += 8) {  // the last values, or too little room to write carelessly
        float rest[8] = {};
        uint8_t group[kGroupMost];
        std::memcpy(rest, x + i, 4 * (n - i < 8 ? n - i : 8));
        const size_t bytes = put(group, format.encode(load<F8>(rest)));
        if (size_t(end - to) < bytes) return nullptr;
        std::memcpy(to, group, bytes);
        to += bytes;
    }
    return to;
}

// Reads the groups of n values at `from`; nothing from `end` on. Returns where they end, or nullptr if no encoder wrote them.
template <class Format, int Mode>
PACELINE_INLINE const uint8_t* decode_groups(const typename Format::Parameters& p, const uint8_t* from, const uint8_t* end, float* out,
                                             size_t n) {
    Format format(p);
    I8 lanes, tag;
    size_t i = 0;
    for (; i + 8 <= n && end - from >= kGroupMost; i += 8) {
        from += get(from, lanes, tag);
        deliver(out + i, format.decode(lanes, tag), Mode);
    }
    for (; i < n; i += 8) {
        uint8_t group[kGroupMost] = {};
        const size_t there = size_t(end - from), values = n - i < 8 ? n - i : 8;
        std::memcpy(group, from, there < size_t(kGroupMost) ? there : size_t(kGroupMost));
        const size_t bytes = get(group, lanes, tag);
        if (there < bytes) return nullptr;
        from += bytes;
        for (size_t j = values; j < 8; j++)
            if (tag[j]) return nullptr;  // values behind the last one
        float rest[8] = {};
        std::memcpy(rest, out + i, 4 * values);
        const F8 v = format.decode(lanes, tag);
        deliver(rest, v, Mode);
        std::memcpy(out + i, rest, 4 * values);
    }
    return format.fine(p.half_scale) ? from : nullptr;
}

// The largest magnitude's bits. NaN and infinity are the largest.
uint32_t peak_bits(const float* x, size_t n) {
    I8 most{};
    size_t i = 0;
    for (; i + 8 <= n; i += 8) most = larger(most, magnitude(load<I8>(x + i)));
    for (; i < n; i++) most[i % 8] = std::max(most[i % 8], int32_t(load<uint32_t>(x + i) & 0x7fffffff));
    int32_t peak = 0;
    for (int j = 0; j < 8; j++) peak = std::max(peak, most[j]);
    return uint32_t(peak);
}

uint8_t* encode_faithful(const FaithfulParameters& p, const float* x, size_t n, uint8_t* to, uint8_t* end) {
    return encode_groups<Faithful>(p, x, n, to, end);
}

const uint8_t* decode_faithful(const FaithfulParameters& p, const uint8_t* from, const uint8_t* end, float* out, size_t n, int mode) {
    if (mode == 0) return decode_groups<Faithful, 0>(p, from, end, out, n);
    if (mode == 1) return decode_groups<Faithful, 1>(p, from, end, out, n);
    return decode_groups<Faithful, 2>(p, from, end, out, n);
}

uint8_t* encode_scaled(const ScaledParameters& p, const float* x, size_t n, uint8_t* to, uint8_t* end) {
    return p.wide ? encode_groups<Scaled<true>>(p, x, n, to, end) : encode_groups<Scaled<false>>(p, x, n, to, end);
}

template <bool Wide>
const uint8_t* decode_scaled_as(const ScaledParameters& p, const uint8_t* from, const uint8_t* end, float* out, size_t n, int mode) {
    if (mode == 0) return decode_groups<Scaled<Wide>, 0>(p, from, end, out, n);
    if (mode == 1) return decode_groups<Scaled<Wide>, 1>(p, from, end, out, n);
    return decode_groups<Scaled<Wide>, 2>(p, from, end, out, n);
}

const uint8_t* decode_scaled(const ScaledParameters& p, const uint8_t* from, const uint8_t* end, float* out, size_t n, int mode) {
    return p.wide ? decode_scaled_as<true>(p, from, end, out, n, mode) : decode_scaled_as<false>(p, from, end, out, n, mode);
}
