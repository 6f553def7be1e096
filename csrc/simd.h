// Registers of PACELINE_LANES 32-bit lanes. Included by foreach_isa.h inside each level's namespace; no guard, no includes.
typedef float F32 __attribute__((vector_size(4 * PACELINE_LANES)));
typedef uint32_t U32 __attribute__((vector_size(4 * PACELINE_LANES)));
typedef int32_t I32 __attribute__((vector_size(4 * PACELINE_LANES)));
constexpr size_t kLanes = PACELINE_LANES;

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

PACELINE_INLINE F32 splat(float x) { return F32{} + x; }
PACELINE_INLINE U32 splat(uint32_t x) { return U32{} + x; }
