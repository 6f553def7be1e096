#include "bind.h"

namespace paceline {

void bind_ternary(nb::module_& m) { (void)m; }

}  // namespace paceline
