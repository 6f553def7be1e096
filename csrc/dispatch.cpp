#include "dispatch.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <nanobind/stl/vector.h>

#include "bind.h"

namespace paceline {

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

}  // namespace

void bind_dispatch(nb::module_& m) {
    m.def("isa", [] { return kIsas[g_isa]; }, "The instruction set in use: one of isas().");
    m.def("isas", &isas, "The instruction sets that this processor has, lowest first: baseline, then avx2 and avx512, or neon.");
    m.def("set_isa", &set_isa, nb::arg("name"), "Use this one from now on. Raises ValueError if the processor lacks it.");
}

}  // namespace paceline
