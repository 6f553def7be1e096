// One build, several instruction sets. A codec writes its kernels once, in a file without includes or guards, and its
// .cpp file includes them through foreach_isa.h: once for each level, in a namespace of that name. PACELINE_CALL picks at run time.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__)
#define PACELINE_X86 1
#include <immintrin.h>
#else
#define PACELINE_X86 0
#endif

#if defined(__aarch64__) && defined(__GNUC__) && !defined(__AARCH64EB__)
#define PACELINE_ARM 1
#include <arm_neon.h>
#else
#define PACELINE_ARM 0
#endif

#define PACELINE_INLINE inline __attribute__((always_inline))

namespace paceline {

// Of this kind of processor, lowest first. Every aarch64 processor has NEON; baseline is there what any other would run.
#if PACELINE_ARM
enum Isa : int { kBaseline = 0, kNeon = 1 };
constexpr const char* kIsas[] = {"baseline", "neon"};
#else
enum Isa : int { kBaseline = 0, kAvx2 = 1, kAvx512 = 2 };
constexpr const char* kIsas[] = {"baseline", "avx2", "avx512"};
#endif

// The level in use: the machine's, or a lower one by set_isa or the environment variable PACELINE_ISA.
extern int g_isa;

int machine_isa();

// What decoding does to out: codec.py's SET, ADD, SUBTRACT.
enum Mode : int { kSet = 0, kAdd = 1, kSubtract = 2 };

}  // namespace paceline

// Takes a template's name with commas too.
#if PACELINE_X86
#define PACELINE_CALL(...)                                         \
    (::paceline::g_isa == ::paceline::kAvx512 ? avx512::__VA_ARGS__ \
     : ::paceline::g_isa == ::paceline::kAvx2 ? avx2::__VA_ARGS__   \
                                              : baseline::__VA_ARGS__)
#elif PACELINE_ARM
#define PACELINE_CALL(...) (::paceline::g_isa == ::paceline::kNeon ? neon::__VA_ARGS__ : baseline::__VA_ARGS__)
#else
#define PACELINE_CALL(...) (baseline::__VA_ARGS__)
#endif
