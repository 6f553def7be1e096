#include "dispatch.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "bind.h"

namespace paceline {

int machine_isa() {
#if PACELINE_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                      __builtin_cpu_supports("popcnt");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 && avx512 ? kAvx512 : avx2 ? kAvx2 : kBaseline;
#else
    return kBaseline;
#endif
}

namespace {

constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};

std::string set_isa(const std::string& name) {
    for (int level = kBaseline; level <= kAvx512; level++)
        if (name == kNames[level]) {
            if (level > machine_isa())
                throw std::invalid_argument("this processor has no " + name + "; it has up to " + kNames[machine_isa()]);
            g_isa = level;
            return kNames[level];
        }
    throw std::invalid_argument("no instruction set '" + name + "'; give baseline, avx2 or avx512");
}

int first_isa() {
    const char* wanted = std::getenv("PACELINE_ISA");
    const int machine = machine_isa();
    for (int level = kBaseline; wanted && level < machine; level++)
        if (!std::strcmp(wanted, kNames[level])) return level;
    return machine;
}

}  // namespace

int g_isa = first_isa();

void bind_dispatch(nb::module_& m) {
    m.def("isa", [] { return kNames[g_isa]; }, "The instruction set in use: baseline, avx2 or avx512.");
    m.def("machine_isa", [] { return kNames[machine_isa()]; }, "The highest instruction set that this processor has.");
    m.def("set_isa", &set_isa, nb::arg("name"), "Use this one from now on. Raises ValueError if the processor lacks it.");
}

}  // namespace paceline
