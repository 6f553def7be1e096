// Registers of PACELINE_LANES 32-bit lanes and what kernels do with them. Included by foreach_isa.h in each level's namespace:
// no guard, no includes. Vector types instead of intrinsics wherever the compiler lowers them well.
typedef float F32 __attribute__((vector_size(4 * PACELINE_LANES)));
typedef uint32_t U32 __attribute__((vector_size(4 * PACELINE_LANES)));
typedef int32_t I32 __attribute__((vector_size(4 * PACELINE_LANES)));
constexpr size_t kLanes = PACELINE_LANES;
constexpr size_t kRegisters = 64 / kLanes;  // of one block of bit planes

template <class V, class T>
PACELINE_INLINE V load(const T* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

template <class V, class T>
PACELINE_INLINE void store(T* to, V v) {
    std::memcpy(to, &v, sizeof v);
}

PACELINE_INLINE F32 splat(float x) { return x - F32{}; }  // x - 0 is x, its sign too
PACELINE_INLINE U32 splat(uint32_t x) { return x - U32{}; }

PACELINE_INLINE U32 iota() {
    U32 v;
    for (size_t i = 0; i < kLanes; i++) v[i] = static_cast<uint32_t>(i);
    return v;
}

PACELINE_INLINE F32 abs(F32 x) { return (F32)((U32)x & 0x7fffffffu); }
PACELINE_INLINE F32 to_float(U32 below_2_31) { return __builtin_convertvector((I32)below_2_31, F32); }

// x, or the bound where that is smaller; what a NaN becomes does not matter.
#if PACELINE_LEVEL == 3
PACELINE_INLINE F32 at_most(F32 x, F32 bound) { return (F32)vminnmq_f32((float32x4_t)x, (float32x4_t)bound); }
#else
PACELINE_INLINE F32 at_most(F32 x, F32 bound) { return x < bound ? x : bound; }
#endif

// Bits of a register's lanes, as word_of takes them: one bit per lane, lane 0 lowest; with NEON the lanes themselves, whose
// highest bits count, because moving a register's bits into a general one takes as long there as moving 64 lanes'.
#if PACELINE_LEVEL == 3
typedef U32 Bits;
PACELINE_INLINE Bits sign_bits(U32 v) { return v; }
PACELINE_INLINE bool any_sign(U32 v) { return vmaxvq_u32((uint32x4_t)v) >> 31; }
#else
typedef uint64_t Bits;
#if PACELINE_LEVEL == 2
PACELINE_INLINE Bits sign_bits(U32 v) { return _mm512_movepi32_mask((__m512i)v); }
#elif PACELINE_LEVEL == 1
PACELINE_INLINE Bits sign_bits(U32 v) { return static_cast<uint32_t>(_mm256_movemask_ps((__m256)v)); }
#elif PACELINE_X86
PACELINE_INLINE Bits sign_bits(U32 v) { return static_cast<uint32_t>(_mm_movemask_ps((__m128)v)); }
#else
PACELINE_INLINE Bits sign_bits(U32 v) {
    uint64_t bits = 0;
    for (size_t i = 0; i < kLanes; i++) bits |= static_cast<uint64_t>(v[i] >> 31) << i;
    return bits;
}
#endif
PACELINE_INLINE bool any_sign(U32 v) { return sign_bits(v) != 0; }
#endif

#if PACELINE_LEVEL == 2
PACELINE_INLINE Bits less_bits(F32 a, F32 b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ); }
PACELINE_INLINE Bits at_least_bits(I32 a, I32 b) { return _mm512_cmpge_epi32_mask((__m512i)a, (__m512i)b); }
#else
PACELINE_INLINE Bits less_bits(F32 a, F32 b) { return sign_bits((U32)(a < b)); }
PACELINE_INLINE Bits at_least_bits(I32 a, I32 b) { return sign_bits((U32)(a >= b)); }
#endif

#if PACELINE_LEVEL == 3
// Bytes of 1, 2, 4 .. 128, twice: which bit of its byte of a word a lane is.
PACELINE_INLINE uint8x16_t bit_places() { return (uint8x16_t)vdupq_n_u64(0x8040201008040201u); }

// One word from the bits that are set in 64 bytes: bytes(q) gives 16 of them, each with its own place's bit or zero.
template <class F>
PACELINE_INLINE uint64_t word_of_bytes(F&& bytes) {
    const uint8x16_t fours = vpaddq_u8(vpaddq_u8(bytes(0), bytes(1)), vpaddq_u8(bytes(2), bytes(3)));
    return vgetq_lane_u64((uint64x2_t)vpaddq_u8(fours, fours), 0);
}

// The low bytes of 16 lanes, in order, and their highest bytes.
PACELINE_INLINE uint8x16_t low_bytes(U32 a, U32 b, U32 c, U32 d) {
    return vuzp1q_u8((uint8x16_t)vuzp1q_u16((uint16x8_t)a, (uint16x8_t)b), (uint8x16_t)vuzp1q_u16((uint16x8_t)c, (uint16x8_t)d));
}
PACELINE_INLINE uint8x16_t high_bytes(U32 a, U32 b, U32 c, U32 d) {
    return vuzp2q_u8((uint8x16_t)vuzp2q_u16((uint16x8_t)a, (uint16x8_t)b), (uint8x16_t)vuzp2q_u16((uint16x8_t)c, (uint16x8_t)d));
}
#endif

// A word of 64 lanes' bits; bits(r) gives those of register r and is called in order.
template <class F>
PACELINE_INLINE uint64_t word_of(F&& bits) {
#if PACELINE_LEVEL == 3
    return word_of_bytes([&](size_t q) __attribute__((always_inline)) {
        const U32 a = bits(4 * q), b = bits(4 * q + 1), c = bits(4 * q + 2), d = bits(4 * q + 3);
        return vandq_u8(vcltzq_s8((int8x16_t)high_bytes(a, b, c, d)), bit_places());
    });
#else
    uint64_t word = 0;
    for (size_t r = 0; r < kRegisters; r++) word |= bits(r) << (r * kLanes);
    return word;
#endif
}

// The sign bits of 64 values.
PACELINE_INLINE uint64_t sign_word(const float* x) {
    return word_of([x](size_t r) __attribute__((always_inline)) { return sign_bits(load<U32>(x + r * kLanes)); });
}

// All ones in those of register r's lanes whose bit of the word is set, and v with `more` or-ed into those lanes.
#if PACELINE_LEVEL == 2
PACELINE_INLINE U32 lanes_of(uint64_t word, size_t r) { return (U32)_mm512_movm_epi32(static_cast<__mmask16>(word >> (r * kLanes))); }
PACELINE_INLINE U32 or_where(U32 v, uint64_t word, size_t r, uint32_t more) {
    return (U32)_mm512_mask_or_epi32((__m512i)v, static_cast<__mmask16>(word >> (r * kLanes)), (__m512i)v, (__m512i)splat(more));
}
#else
PACELINE_INLINE U32 lanes_of(uint64_t word, size_t r) {
#if PACELINE_LEVEL == 3  // a half of the word serves eight registers
    const U32 lane = (1u << iota()) << (r % 8 * kLanes);
    return (U32)vtstq_u32((uint32x4_t)splat(static_cast<uint32_t>(word >> (r / 8 * 32))), (uint32x4_t)lane);
#else
    const U32 lane = 1u << iota();
    return (U32)((splat(static_cast<uint32_t>(word >> (r * kLanes))) & lane) == lane);
#endif
}
PACELINE_INLINE U32 or_where(U32 v, uint64_t word, size_t r, uint32_t more) { return v | (lanes_of(word, r) & more); }
#endif

// Draws of counter.py for element indices whose upper half is already in `high`: integers below 2**24.
PACELINE_INLINE U32 draw24(U32 index, U32 low, U32 high) {
    U32 x = index ^ low;
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= high;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    x ^= x >> 16;
    return x >> 8;
}

// Asks for 64 values that will be read soon; they may lie behind the last one. Kernels that compute between their loads ask
// themselves: where pages of memory are far away, processors do not look far enough ahead on their own.
constexpr size_t kAhead = 512;  // elements
PACELINE_INLINE void fetch_block(const float* x) {
    for (size_t line = 0; line < 64; line += 16) __builtin_prefetch(x + line);
}

// A mode of kernels beside those of decoding: stores that pass the caches by, which need no read of what they overwrite. The
// address is a multiple of a register's bytes; who stores so calls flush_stores before another thread may read.
constexpr int kStream = 3;
PACELINE_INLINE bool streamable(const float* to) { return reinterpret_cast<uintptr_t>(to) % sizeof(F32) == 0; }
#if PACELINE_LEVEL == 2
PACELINE_INLINE void stream(float* to, F32 v) { _mm512_stream_ps(to, (__m512)v); }
#elif PACELINE_LEVEL == 1
PACELINE_INLINE void stream(float* to, F32 v) { _mm256_stream_ps(to, (__m256)v); }
#elif PACELINE_X86
PACELINE_INLINE void stream(float* to, F32 v) { _mm_stream_ps(to, (__m128)v); }
#else
PACELINE_INLINE void stream(float* to, F32 v) { store(to, v); }
#endif
PACELINE_INLINE void flush_stores() {
#if PACELINE_X86
    _mm_sfence();
#endif
}

// Puts 64 values into out, adds or subtracts them.
template <int kMode>
PACELINE_INLINE void put_block(float* out, const F32* values) {
    for (size_t r = 0; r < kRegisters; r++) {
        float* to = out + r * kLanes;
        if (kMode == kSet) store(to, values[r]);
        if (kMode == kStream) stream(to, values[r]);
        if (kMode == kAdd) store(to, load<F32>(to) + values[r]);
        if (kMode == kSubtract) store(to, load<F32>(to) - values[r]);
    }
}

// The first n < 64 elements of a block.
template <int kMode>
PACELINE_INLINE void put_rest(float* out, const F32* values, size_t n) {
    constexpr bool kReplaces = kMode == kSet || kMode == kStream;
    float rest[64] = {};
    if (!kReplaces) std::memcpy(rest, out, 4 * n);
    put_block<kReplaces ? static_cast<int>(kSet) : kMode>(rest, values);
    std::memcpy(out, rest, 4 * n);
}
