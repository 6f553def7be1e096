#include "dispatch.h"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <nanobind/stl/vector.h>

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
#elif PACELINE_ARM
    return kNeon;
#else
    return kBaseline;
#endif
}

namespace {

std::vector<std::string> isas() { return {kIsas, kIsas + machine_isa() + 1}; }

std::string set_isa(const std::string& name) {
    std::string names;
    for (int level = kBaseline; level <= machine_isa(); level++) {
        if (name == kIsas[level]) {
            g_isa = level;
            return kIsas[level];
        }
        names += (level == kBaseline ? "" : level == machine_isa() ? " or " : ", ") + std::string(kIsas[level]);
    }
    throw std::invalid_argument("this processor has no instruction set '" + name + "'; give " + names);
}

int first_isa() {
    const char* wanted = std::getenv("PACELINE_ISA");
    const int machine = machine_isa();
    for (int level = kBaseline; wanted && level < machine; level++)
        if (!std::strcmp(wanted, kIsas[level])) return level;
    return machine;
}

}  // namespace

int g_isa = first_isa();

void bind_dispatch(nb::module_& m) {
    m.def("isa", [] { return kIsas[g_isa]; }, "The instruction set in use: one of isas().");
    m.def("isas", &isas, "The instruction sets that this processor has, lowest first: baseline, then avx2 and avx512, or neon.");
    m.def("set_isa", &set_isa, nb::arg("name"), "Use this one from now on. Raises ValueError if the processor lacks it.");
}

}  // namespace paceline
