#include "bind.h"

namespace paceline {

void bind_checksum(nb::module_& m) { (void)m; }

}  // namespace paceline
