#include <cstdlib>

#include "dispatch.h"

namespace paceline {

int machine_isa() {
#if PACELINE_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                      __builtin_cpu_supports("fma") && __builtin_cpu_supports("popcnt");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 && avx512 ? kAvx512 : avx2 ? kAvx2 : kBaseline;
#elif PACELINE_ARM
    return kNeon;
#else
    return kBaseline;
#endif
}

namespace {

int first_isa() {
    const char* wanted = std::getenv("PACELINE_ISA");
    const int machine = machine_isa();
    for (int level = kBaseline; wanted && level < machine; level++)
        if (!std::strcmp(wanted, kIsas[level])) return level;
    return machine;
}

}  // namespace

int g_isa = first_isa();

}  // namespace paceline
