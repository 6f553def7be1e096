// Includes PACELINE_KERNELS once for each instruction set. Each time PACELINE_LEVEL is 0 (baseline), 1 (AVX2), 2 (AVX-512)
// or 3 (NEON) and PACELINE_LANES the number of 32-bit lanes of a register. No guard: several files of kernels can share one .cpp file.
#define PACELINE_LEVEL 0
#define PACELINE_LANES 4
namespace baseline {
#include "simd.h"
#include PACELINE_KERNELS
}  // namespace baseline
#undef PACELINE_LEVEL
#undef PACELINE_LANES

#if PACELINE_X86
#define PACELINE_LEVEL 1
#define PACELINE_LANES 8
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,fma,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,fma,popcnt")
#endif
namespace avx2 {
#include "simd.h"
#include PACELINE_KERNELS
}  // namespace avx2
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef PACELINE_LEVEL
#undef PACELINE_LANES

#define PACELINE_LEVEL 2
#define PACELINE_LANES 16
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,bmi,bmi2,fma,popcnt,avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,fma,popcnt,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif
namespace avx512 {
#include "simd.h"
#include PACELINE_KERNELS
}  // namespace avx512
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef PACELINE_LEVEL
#undef PACELINE_LANES
#endif

#if PACELINE_ARM
#define PACELINE_LEVEL 3
#define PACELINE_LANES 4
namespace neon {
#include "simd.h"
#include PACELINE_KERNELS
}  // namespace neon
#undef PACELINE_LEVEL
#undef PACELINE_LANES
#endif
#undef PACELINE_KERNELS
