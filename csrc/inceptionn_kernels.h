// The kernels of inceptionn.cpp for one instruction set (foreach_isa.h): a chunk of bursts each way. A burst of eight is one
// register of eight lanes, or two of four.
constexpr int kWidth = PACELINE_LEVEL == 1 || PACELINE_LEVEL == 2 ? 8 : 4, kParts = 8 / kWidth;
typedef float F __attribute__((vector_size(4 * kWidth)));
typedef int32_t I __attribute__((vector_size(4 * kWidth)));

PACELINE_INLINE I magnitude(I bits) { return bits & 0x7fffffff; }
PACELINE_INLINE I sign(I bits) { return bits & INT32_MIN; }
PACELINE_INLINE I smaller(I a, I b) { return a < b ? a : b; }
PACELINE_INLINE I larger(I a, I b) { return a > b ? a : b; }

// Through memory of their own: subscripts would keep v itself there, in the loop too.
PACELINE_INLINE int32_t largest(I v) {
    int32_t lane[kWidth];
    store(lane, v);
    return *std::max_element(lane, lane + kWidth);
}

PACELINE_INLINE bool any(I v) {
    int32_t lane[kWidth], bits = 0;
    store(lane, v);
    for (int32_t one : lane) bits |= one;
    return bits != 0;
}

// Values as lanes (bursts.py), and their tags as two masks: bit 0, bit 1.
struct Coded {
    I lanes, bit0, bit1;
};

// One burst.
struct Burst {
    Coded part[kParts];
};

// Algorithms 2 and 3.
struct Faithful {
    using Parameters = FaithfulParameters;
    I lost{}, wrong{};
    int32_t byte_at, half_at;

    PACELINE_INLINE explicit Faithful(const Parameters& p) : byte_at(p.byte_at), half_at(p.half_at) { lost += p.k > 7; }

    PACELINE_INLINE Coded encode(F x) const {
        const I bits = (I)x, a = magnitude(bits);
        const I c1 = a >= byte_at, c2 = a >= half_at, c3 = a >= kOne;
        const I fixed = __builtin_convertvector((F)(a & ~c3) * 0x1p31f, I);
        return {c3 ? bits : fixed | sign(bits), c1 ^ c2 ^ c3, c2};
    }

    PACELINE_INLINE F decode(I lanes, I tag) {
        const F fixed = __builtin_convertvector(magnitude(lanes), F) * 0x1p-31f;
        const I bits = tag == 3 ? lanes : (I)fixed | sign(lanes);
        // Under its own tag? Where one-byte magnitudes can be cut to zero (lost), tags 0 and 1 count as one.
        const I a = magnitude(bits);
        const I passed = (a >= byte_at) + (a >= half_at) + (a >= kOne);
        wrong |= smaller(passed, -lost) + larger(tag, lost);
        return (F)bits;
    }

    PACELINE_INLINE bool fine(uint32_t) const { return !any(wrong); }
};

// One block of inceptionn-scaled. Wide: two-byte payloads occur.
template <bool Wide>
struct Scaled {
    using Parameters = ScaledParameters;
    float lift, up, narrow, unit, half_unit, drop;
    int32_t least_half, most_byte;
    I wrong{}, peak{};

    PACELINE_INLINE explicit Scaled(const ScaledParameters& p)
        : lift(p.lift), up(p.up), narrow(p.narrow), unit(p.unit), half_unit(p.half_unit), drop(p.drop),
          least_half(p.least_half), most_byte(p.most_byte) {}

    PACELINE_INLINE static I rounded(F x) { return (I)(x + 0x1p23f) & 0x7fffff; }  // to nearest even, below 2^23

    PACELINE_INLINE Coded encode(F x) const {
        const I bits = (I)x;
        const F y = (F)magnitude(bits) * lift * up;  // units of 2^-15 of the scale
        const I small = rounded(y * narrow), c1 = small > 0;
        if (!Wide) return {small << 24 | sign(bits), c1, I{}};
        const I c2 = small > 127;
        const I large = smaller(rounded(y), I{} + 32767);
        return {(c2 ? large << 16 : small << 24) | sign(bits), c1 ^ c2, c2};
    }

    PACELINE_INLINE F decode(I lanes, I tag) {
        const I a = magnitude(lanes), half = tag > 1;
        const F units = half ? F{} + half_unit : F{} + unit;
        const F y = __builtin_convertvector(a, F) * (Wide ? units : F{} + unit) * drop;
        const I bits = smaller((I)y, I{} + kMost);
        peak = larger(peak, bits);
        if (Wide)
            wrong |= (a < (half ? I{} + least_half : tag)) | (tag == 3);
        else
            wrong |= (a < tag) | (a > most_byte) | half;
        return (F)(bits | sign(lanes));
    }

    PACELINE_INLINE bool fine(uint32_t half_scale) const {
        return !any(wrong) && uint32_t(largest(peak)) >= half_scale;
    }
};

// Four lanes as a processor's 16 bytes, of a burst's lanes 0 to 3 or 4 to 7, and these bytes in another order, by indices of which
// 0x80 means zero.
#if PACELINE_LEVEL == 3
typedef uint8x16_t Four;
PACELINE_INLINE Four half(const I* parts, int which) { return (Four)parts[which]; }
PACELINE_INLINE Four shuffle(Four bytes, const uint8_t* order) { return vqtbl1q_u8(bytes, vld1q_u8(order)); }
#elif PACELINE_X86
typedef __m128i Four;
PACELINE_INLINE Four half(const I* parts, int which) { return load<Four>(reinterpret_cast<const int32_t*>(parts) + 4 * which); }
#if PACELINE_LEVEL > 0
PACELINE_INLINE Four shuffle(Four bytes, const uint8_t* order) { return _mm_shuffle_epi8(bytes, load<Four>(order)); }
#endif
#endif

PACELINE_INLINE uint32_t tag_vector(const Burst& g) {
#if PACELINE_X86
    I pairs[kParts];  // 16 bits each: bit 0, bit 1, lane after lane
    for (int i = 0; i < kParts; i++) {
        const Coded& c = g.part[i];
        pairs[i] = c.bit0 ^ ((c.bit0 ^ c.bit1) & int32_t(0xffff0000));
    }
    return uint32_t(_mm_movemask_epi8(_mm_packs_epi16(half(pairs, 0), half(pairs, 1))));
#elif PACELINE_LEVEL == 3  // each lane's two bits at their place, then their sum
    I tags{};
    for (int i = 0; i < kParts; i++) {
        const I place = I{1, 4, 16, 64} << 8 * i;
        tags |= (g.part[i].bit0 & place) | (g.part[i].bit1 & place << 1);
    }
    return vaddvq_u32((uint32x4_t)tags);
#else
    uint32_t tags = 0;
    for (int i = 0; i < 8; i++) {
        const Coded& c = g.part[i / kWidth];
        tags |= ((c.bit0[i % kWidth] & 1) | (c.bit1[i % kWidth] & 2)) << 2 * i;
    }
    return tags;
#endif
}

// Writes one burst, 2 to 34 bytes, and whatever up to kBurstMost. Returns its bytes.
PACELINE_INLINE size_t put(uint8_t* to, const Burst& g) {
    const uint32_t tags = tag_vector(g);
    I lanes[kParts];
    for (int i = 0; i < kParts; i++) lanes[i] = g.part[i].lanes;
    std::memcpy(to, &tags, 2);
#if PACELINE_LEVEL > 0
    const uint32_t first = tags & 255, second = tags >> 8;
    const size_t n = kTables.bytes[first];
    store(to + 2, shuffle(half(lanes, 0), kTables.pack[first]));
    store(to + 2 + n, shuffle(half(lanes, 1), kTables.pack[second]));
    return 2 + n + kTables.bytes[second];
#else
    size_t at = 2;
    for (int i = 0; i < 8; i++) {
        const uint32_t n = 0x4210 >> 4 * (tags >> 2 * i & 3) & 7;
        const uint32_t payload = uint32_t(uint64_t(uint32_t(lanes[i / kWidth][i % kWidth])) >> (32 - 8 * n));
        std::memcpy(to + at, &payload, 4);
        at += n;
    }
    return at;
#endif
}

// Reads one burst from kBurstMost readable bytes. Returns its bytes.
PACELINE_INLINE size_t get(const uint8_t* from, I* lanes, I* tag) {
    uint16_t tags;
    std::memcpy(&tags, from, 2);
#if PACELINE_LEVEL > 0
    const uint32_t first = tags & 255, second = tags >> 8;
    const size_t n = kTables.bytes[first];
    const Four four = shuffle(load<Four>(from + 2), kTables.unpack[first]);
    const Four next = shuffle(load<Four>(from + 2 + n), kTables.unpack[second]);
#if PACELINE_LEVEL == 3
    lanes[0] = (I)four, lanes[1] = (I)next;
    tag[0] = load<I>(kTables.tags[first]), tag[1] = load<I>(kTables.tags[second]);
#else
    *lanes = (I)_mm256_inserti128_si256(_mm256_castsi128_si256(four), next, 1);
    *tag = (I{} + int32_t(tags)) >> I{0, 2, 4, 6, 8, 10, 12, 14} & 3;
#endif
    return 2 + n + kTables.bytes[second];
#else
    size_t at = 2;
    int32_t words[8];
    for (int i = 0; i < 8; i++) {
        const uint32_t n = 0x4210 >> 4 * (tags >> 2 * i & 3) & 7;
        uint32_t payload;
        std::memcpy(&payload, from + at, 4);
        words[i] = int32_t(uint32_t(uint64_t(payload) << (32 - 8 * n)));
        at += n;
    }
    for (int i = 0; i < kParts; i++) {
        lanes[i] = I{words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]};
        tag[i] = load<I>(kTables.tags[tags >> 8 * i & 255]);
    }
    return at;
#endif
}

template <class Format>
PACELINE_INLINE Burst coded(const Format& format, const float* x) {
    Burst g;
    for (int i = 0; i < kParts; i++) g.part[i] = format.encode(load<F>(x + i * kWidth));
    return g;
}

// Sets, adds or subtracts (mode 0, 1, 2) the values of one burst.
template <int Mode, class Format>
PACELINE_INLINE void deliver(Format& format, const I* lanes, const I* tag, float* out) {
    for (int i = 0; i < kParts; i++, out += kWidth) {
        const F v = format.decode(lanes[i], tag[i]), old = Mode == 0 ? F{} : load<F>(out);
        store(out, Mode == 0 ? v : Mode == 1 ? old + v : old - v);
    }
}

// Writes the bursts of n values at `to`; nothing from `end` on. Returns where they end, or nullptr if they do not fit.
template <class Format>
PACELINE_INLINE uint8_t* encode_bursts(const typename Format::Parameters& p, const float* x, size_t n, uint8_t* to, uint8_t* end) {
    const Format format(p);
    size_t i = 0;
    for (; i + 8 <= n && end - to >= kBurstMost; i += 8) to += put(to, coded(format, x + i));
    for (; i < n; i += 8) {  // the last values, or too little room to write carelessly
        float rest[8] = {};
        uint8_t burst[kBurstMost];
        std::memcpy(rest, x + i, 4 * (n - i < 8 ? n - i : 8));
        const size_t bytes = put(burst, coded(format, rest));
        if (size_t(end - to) < bytes) return nullptr;
        std::memcpy(to, burst, bytes);
        to += bytes;
    }
    return to;
}

// Reads the bursts of n values at `from`; nothing from `end` on. Returns where they end, or nullptr if no encoder wrote them.
template <class Format, int Mode>
PACELINE_INLINE const uint8_t* decode_bursts(const typename Format::Parameters& p, const uint8_t* from, const uint8_t* end, float* out,
                                             size_t n) {
    Format format(p);
    I lanes[kParts], tag[kParts];
    size_t i = 0;
    for (; i + 8 <= n && end - from >= kBurstMost; i += 8) {
        from += get(from, lanes, tag);
        deliver<Mode>(format, lanes, tag, out + i);
    }
    for (; i < n; i += 8) {
        uint8_t burst[kBurstMost] = {};
        const size_t there = size_t(end - from), values = n - i < 8 ? n - i : 8;
        std::memcpy(burst, from, there < size_t(kBurstMost) ? there : size_t(kBurstMost));
        const size_t bytes = get(burst, lanes, tag);
        if (there < bytes) return nullptr;
        from += bytes;
        for (size_t j = values; j < 8; j++)
            if (tag[j / kWidth][j % kWidth]) return nullptr;  // values behind the last one
        float rest[8] = {};
        std::memcpy(rest, out + i, 4 * values);
        deliver<Mode>(format, lanes, tag, rest);
        std::memcpy(out + i, rest, 4 * values);
    }
    return format.fine(p.half_scale) ? from : nullptr;
}

// The largest magnitude's bits. NaN and infinity are the largest.
uint32_t peak_bits(const float* x, size_t n) {
    int32_t peak = 0;
    for (size_t i = 0; i < n; i++) peak = std::max(peak, load<int32_t>(x + i) & 0x7fffffff);
    return uint32_t(peak);
}

uint8_t* encode_faithful(const FaithfulParameters& p, const float* x, size_t n, uint8_t* to, uint8_t* end) {
    return encode_bursts<Faithful>(p, x, n, to, end);
}

const uint8_t* decode_faithful(const FaithfulParameters& p, const uint8_t* from, const uint8_t* end, float* out, size_t n, int mode) {
    if (mode == 0) return decode_bursts<Faithful, 0>(p, from, end, out, n);
    if (mode == 1) return decode_bursts<Faithful, 1>(p, from, end, out, n);
    return decode_bursts<Faithful, 2>(p, from, end, out, n);
}

uint8_t* encode_scaled(const ScaledParameters& p, const float* x, size_t n, uint8_t* to, uint8_t* end) {
    return p.wide ? encode_bursts<Scaled<true>>(p, x, n, to, end) : encode_bursts<Scaled<false>>(p, x, n, to, end);
}

template <bool Wide>
const uint8_t* decode_scaled_as(const ScaledParameters& p, const uint8_t* from, const uint8_t* end, float* out, size_t n, int mode) {
    if (mode == 0) return decode_bursts<Scaled<Wide>, 0>(p, from, end, out, n);
    if (mode == 1) return decode_bursts<Scaled<Wide>, 1>(p, from, end, out, n);
    return decode_bursts<Scaled<Wide>, 2>(p, from, end, out, n);
}

const uint8_t* decode_scaled(const ScaledParameters& p, const uint8_t* from, const uint8_t* end, float* out, size_t n, int mode) {
    return p.wide ? decode_scaled_as<true>(p, from, end, out, n, mode) : decode_scaled_as<false>(p, from, end, out, n, mode);
}
