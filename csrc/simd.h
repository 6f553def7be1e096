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

// One bit per lane, lane 0 lowest.
#if PACELINE_LEVEL == 2
PACELINE_INLINE uint64_t less_bits(F32 a, F32 b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ); }
PACELINE_INLINE uint64_t sign_bits(U32 v) { return _mm512_movepi32_mask((__m512i)v); }
PACELINE_INLINE U32 lanes_of(uint64_t bits) { return (U32)_mm512_movm_epi32(static_cast<__mmask16>(bits)); }
PACELINE_INLINE U32 or_where(U32 v, uint64_t bits, uint32_t more) {
    return (U32)_mm512_mask_or_epi32((__m512i)v, static_cast<__mmask16>(bits), (__m512i)v, (__m512i)splat(more));
}
#else
#if PACELINE_LEVEL == 1
PACELINE_INLINE uint64_t sign_bits(U32 v) { return static_cast<uint32_t>(_mm256_movemask_ps((__m256)v)); }
#elif PACELINE_X86
PACELINE_INLINE uint64_t sign_bits(U32 v) { return static_cast<uint32_t>(_mm_movemask_ps((__m128)v)); }
#else
PACELINE_INLINE uint64_t sign_bits(U32 v) {
    uint64_t bits = 0;
    for (size_t i = 0; i < kLanes; i++) bits |= static_cast<uint64_t>(v[i] >> 31) << i;
    return bits;
}
#endif
PACELINE_INLINE uint64_t less_bits(F32 a, F32 b) { return sign_bits((U32)(a < b)); }
// All ones in the lanes whose bit is set; bits from kLanes up do not matter.
PACELINE_INLINE U32 lanes_of(uint64_t bits) {
    const U32 lane = 1u << iota();
    return (U32)((splat(static_cast<uint32_t>(bits)) & lane) == lane);
}
// v with `more` or-ed into the lanes whose bit is set.
PACELINE_INLINE U32 or_where(U32 v, uint64_t bits, uint32_t more) { return v | (lanes_of(bits) & more); }
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

// Puts 64 values into out, adds or subtracts them.
template <int kMode>
PACELINE_INLINE void put_block(float* out, const F32* values) {
    for (size_t r = 0; r < kRegisters; r++) {
        float* to = out + r * kLanes;
        if (kMode == kSet) store(to, values[r]);
        if (kMode == kAdd) store(to, load<F32>(to) + values[r]);
        if (kMode == kSubtract) store(to, load<F32>(to) - values[r]);
    }
}

// The first n < 64 elements of a block.
template <int kMode>
PACELINE_INLINE void put_rest(float* out, const F32* values, size_t n) {
    float rest[64] = {};
    if (kMode != kSet) std::memcpy(rest, out, 4 * n);
    put_block<kMode>(rest, values);
    std::memcpy(out, rest, 4 * n);
}
