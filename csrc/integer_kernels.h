// int8 and int4: one block of the codec at a time, within it 64 elements at a time (integer.py has the arithmetic).
#include "blocks_kernels.h"

typedef uint8_t U8 __attribute__((vector_size(4 * PACELINE_LANES)));
typedef uint16_t U16 __attribute__((vector_size(4 * PACELINE_LANES)));
typedef uint64_t U64 __attribute__((vector_size(4 * PACELINE_LANES)));
// The AVX-512 intrinsics are the masked ones, with full masks: GCC 12 warns inside the plain ones (its bug 105593).
constexpr size_t kBytes = 4 * kLanes;  // of a register

// The low bytes of four registers of 32-bit lanes, in order; the lanes are -128 to 127.
PACELINE_INLINE U8 narrow(I32 a, I32 b, I32 c, I32 d) {
#if PACELINE_LEVEL == 2
    const __m512i ab = _mm512_packs_epi32((__m512i)a, (__m512i)b), cd = _mm512_packs_epi32((__m512i)c, (__m512i)d);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return (U8)_mm512_maskz_permutexvar_epi32(0xffff, order, _mm512_packs_epi16(ab, cd));
#elif PACELINE_LEVEL == 1
    const __m256i ab = _mm256_packs_epi32((__m256i)a, (__m256i)b), cd = _mm256_packs_epi32((__m256i)c, (__m256i)d);
    return (U8)_mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
#elif PACELINE_LEVEL == 3
    return (U8)low_bytes((U32)a, (U32)b, (U32)c, (U32)d);
#elif PACELINE_X86
    return (U8)_mm_packs_epi16(_mm_packs_epi32((__m128i)a, (__m128i)b), _mm_packs_epi32((__m128i)c, (__m128i)d));
#else
    U8 out;
    for (size_t i = 0; i < kLanes; i++) {
        out[i] = static_cast<uint8_t>(a[i]), out[kLanes + i] = static_cast<uint8_t>(b[i]);
        out[2 * kLanes + i] = static_cast<uint8_t>(c[i]), out[3 * kLanes + i] = static_cast<uint8_t>(d[i]);
    }
    return out;
#endif
}

// Pairs of bytes as one byte of two halves, the first byte in the lower one: kBytes / 2 bytes to `to`.
PACELINE_INLINE void store_halves(uint8_t* to, U8 codes) {
    const U16 pairs = (U16)codes;
    [[maybe_unused]] const U16 halves = (pairs & 0x000f) | ((pairs >> 4) & 0x00f0);
#if PACELINE_LEVEL == 2
    store(to, _mm512_maskz_cvtepi16_epi8(0xffffffffu, (__m512i)halves));
#elif PACELINE_LEVEL == 1
    const __m256i packed = _mm256_packus_epi16((__m256i)halves, (__m256i)halves);
    store(to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
#elif PACELINE_LEVEL == 3
    vst1_u8(to, vmovn_u16(vsliq_n_u16((uint16x8_t)pairs, vshrq_n_u16((uint16x8_t)pairs, 8), 4)));
#elif PACELINE_X86
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16((__m128i)halves, (__m128i)halves));
#else
    for (size_t i = 0; i < kBytes / 2; i++) to[i] = static_cast<uint8_t>(halves[i]);
#endif
}

#if PACELINE_LEVEL == 3
PACELINE_INLINE void widen_bytes(int8x16_t bytes, I32* codes) {
    const int16x8_t first = vmovl_s8(vget_low_s8(bytes)), second = vmovl_high_s8(bytes);
    codes[0] = (I32)vmovl_s16(vget_low_s16(first));
    codes[1] = (I32)vmovl_high_s16(first);
    codes[2] = (I32)vmovl_s16(vget_low_s16(second));
    codes[3] = (I32)vmovl_high_s16(second);
}

// 64 codes.
template <int kLevels>
PACELINE_INLINE void load_codes(const uint8_t* from, I32* codes) {
    for (size_t q = 0; q < 4; q++) {
        if (kLevels == 127) {
            widen_bytes(vld1q_s8(reinterpret_cast<const int8_t*>(from) + 16 * q), codes + 4 * q);
        } else {
            const int8x8_t pairs = vld1_s8(reinterpret_cast<const int8_t*>(from) + 8 * q);
            const int8x8_t first = vshr_n_s8(vshl_n_s8(pairs, 4), 4), second = vshr_n_s8(pairs, 4);
            widen_bytes(vcombine_s8(vzip1_s8(first, second), vzip2_s8(first, second)), codes + 4 * q);
        }
    }
}
#else
// kLanes codes of a byte each.
PACELINE_INLINE I32 load_bytes(const uint8_t* from) {
#if PACELINE_LEVEL == 2
    return (I32)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif PACELINE_LEVEL == 1
    return (I32)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#elif PACELINE_X86
    const __m128i v = _mm_cvtsi32_si128(load<int32_t>(from));
    const __m128i twice = _mm_unpacklo_epi8(v, v);
    return (I32)_mm_srai_epi32(_mm_unpacklo_epi16(twice, twice), 24);
#else
    I32 v;
    for (size_t i = 0; i < kLanes; i++) v[i] = static_cast<int8_t>(from[i]);
    return v;
#endif
}

// kLanes codes of half a byte each.
PACELINE_INLINE I32 load_halves(const uint8_t* from) {
#if PACELINE_LEVEL == 2
    const U64 v = (U64)_mm512_maskz_cvtepu8_epi64(0xff, _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
    return (I32)((v << 28) | (v << 56)) >> 28;
#elif PACELINE_LEVEL == 1
    const U64 v = (U64)_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(load<int32_t>(from)));
    return (I32)((v << 28) | (v << 56)) >> 28;
#else
    I32 v;
    for (size_t i = 0; i < kLanes / 2; i++) {
        v[2 * i] = static_cast<int8_t>(from[i] << 4) >> 4;
        v[2 * i + 1] = static_cast<int8_t>(from[i]) >> 4;
    }
    return v;
#endif
}

// 64 codes.
template <int kLevels>
PACELINE_INLINE void load_codes(const uint8_t* from, I32* codes) {
    for (size_t r = 0; r < kRegisters; r++)
        codes[r] = kLevels == 127 ? load_bytes(from + r * kLanes) : load_halves(from + r * kLanes / 2);
}
#endif

// Bytes of 64 codes.
constexpr size_t group_bytes(int levels) { return levels == 127 ? 64 : 32; }

// 64 codes; code(r) gives those of register r.
template <int kLevels, class F>
PACELINE_INLINE void store_codes(uint8_t* to, F&& code) {
    for (size_t r = 0; r < kRegisters; r += 4) {
        const U8 bytes = narrow(code(r), code(r + 1), code(r + 2), code(r + 3));
        if (kLevels == 127)
            store(to + r * kLanes, bytes);
        else
            store_halves(to + r * kLanes / 2, bytes);
    }
}

// The groups of 64 elements of one block, each with its random draws: group(from, index, low, high, to) writes the codes of one.
template <int kLevels, class F>
PACELINE_INLINE void encode_groups(const float* x, size_t n, uint8_t* to, const Stream& key, uint64_t start, F&& group) {
    const U32 low = splat(key.low), lanes = iota();
    U32 high[kRegisters];
    for (size_t r = 0; r < kRegisters; r++) high[r] = splat(key.high_at(start));
    groups_of(x, n, [&](const float* from, size_t i, size_t count) __attribute__((always_inline)) {
        const uint64_t index = start + i;
        const U32 at = static_cast<uint32_t>(index) + lanes;
        if ((static_cast<uint32_t>(index) & 0xffffffc0u) == 0xffffffc0u || static_cast<uint32_t>(index) < 64)
            for (size_t r = 0; r < kRegisters; r++)
                for (size_t lane = 0; lane < kLanes; lane++) high[r][lane] = key.high_at(index + r * kLanes + lane);
        uint8_t* out = to + i / 64 * group_bytes(kLevels);
        if (count == 64) {
            fetch_block(x + n + i);  // of the next block: this one is in a cache since its peak was sought
            group(from, at, low, high, out);
        } else {
            uint8_t rest[64];  // the zeros behind the last element have code 0, whatever the draw
            group(from, at, low, high, rest);
            std::memcpy(out, rest, kLevels == 127 ? count : (count + 1) / 2);
        }
    });
}

// `high` has the upper key word of each of the 64 elements, whose indices may cross a multiple of 2**32.
template <int kLevels>
PACELINE_INLINE void encode_group(const float* x, U32 index, U32 low, const U32* high, F32 lift, F32 rate, uint8_t* to) {
    const F32 top = splat(static_cast<float>(kLevels) * 0x1p24f);
    store_codes<kLevels>(to, [&](size_t r) __attribute__((always_inline)) {
        const F32 v = load<F32>(x + r * kLanes);
        const U32 whole = (U32)__builtin_convertvector(at_most(abs(v) * lift * rate, top), I32);
        const I32 code = (I32)((whole + draw24(index + static_cast<uint32_t>(r * kLanes), low, high[r])) >> 24);
        const I32 sign = (I32)v >> 31;
        return (code ^ sign) - sign;
    });
}

// One block: the bits of its largest magnitude into `scale`, its codes to `to`. Returns those bits; from infinity's up there are no codes.
template <int kLevels>
PACELINE_INLINE uint32_t encode_block(const float* x, size_t n, uint8_t* scale, uint8_t* to, const Stream& key, uint64_t start) {
    const uint32_t peak = block_peak(x, n);
    if (peak >= kInfinityBits) return peak;
    std::memcpy(scale, &peak, 4);
    const Quantizer q = quantizer(peak, kLevels);
    const F32 lift = splat(q.lift), rate = splat(q.rate);
    encode_groups<kLevels>(x, n, to, key, start,
                           [&](const float* from, U32 index, U32 low, const U32* high, uint8_t* out) __attribute__((always_inline)) {
                               encode_group<kLevels>(from, index, low, high, lift, rate, out);
                           });
    return peak;
}

// n elements from the start of a block on. Returns the bits of their largest magnitude.
template <int kLevels>
inline uint32_t integer_encode(const float* x, size_t n, size_t block, uint8_t* scales, uint8_t* to, const Stream& key,
                               uint64_t start) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; i += block) {
        const size_t count = n - i < block ? n - i : block;
        const uint32_t peak =
            encode_block<kLevels>(x + i, count, scales + i / block * 4, to + i / 64 * group_bytes(kLevels), key, start + i);
        most = peak > most ? peak : most;
    }
    return most;
}

// Whether the code that no encoder writes is among these bytes.
template <int kLevels>
inline bool integer_illegal(const uint8_t* codes, size_t bytes) {
    U8 wrong = {};
    const auto look = [&](U8 v) __attribute__((always_inline)) {
        if (kLevels == 127)
            wrong |= (U8)(v == 0x80);
        else
            wrong |= (U8)((v & 0xf0) == 0x80) | (U8)((v & 0x0f) == 0x08);
    };
    size_t i = 0;
    for (; i + kBytes <= bytes; i += kBytes) look(load<U8>(codes + i));
    U8 rest = {};
    std::memcpy(&rest, codes + i, bytes - i);
    look(rest);
    bool any = false;
    for (size_t lane = 0; lane < kBytes / 8; lane++) any |= ((U64)wrong)[lane] != 0;
    return any;
}

template <int kLevels>
PACELINE_INLINE void load_values(const uint8_t* from, F32 scale, F32* values) {
    I32 codes[kRegisters];
    load_codes<kLevels>(from, codes);
    for (size_t r = 0; r < kRegisters; r++) values[r] = __builtin_convertvector(codes[r], F32) * (1.0f / kLevels) * scale;
}

template <int kLevels, int kMode>
inline void integer_decode(const uint8_t* scales, const uint8_t* codes, size_t block, float* out, size_t n) {
    F32 values[kRegisters];
    size_t i = 0;
    while (i + 64 <= n) {
        const F32 scale = splat(load<float>(scales + i / block * 4));
        const size_t whole = (n - i < block ? n - i : block) / 64 * 64;
        for (const size_t end = i + whole; i < end; i += 64) {
            load_values<kLevels>(codes + i / 64 * group_bytes(kLevels), scale, values);
            put_block<kMode>(out + i, values);
        }
    }
    if (i < n) {
        uint8_t rest[64] = {};
        std::memcpy(rest, codes + i / 64 * group_bytes(kLevels), kLevels == 127 ? n - i : (n - i + 1) / 2);
        load_values<kLevels>(rest, splat(load<float>(scales + i / block * 4)), values);
        put_rest<kMode>(out + i, values, n - i);
    }
}
