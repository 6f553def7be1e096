#include "bind.h"

NB_MODULE(_native, m) {
    m.doc() = "The codecs' native kernels. Use them through paceline.codecs.";
    paceline::bind_dispatch(m);
    paceline::bind_pool(m);
    paceline::bind_checksum(m);
    paceline::bind_floats(m);
    paceline::bind_ternary(m);
    paceline::bind_inceptionn(m);
    paceline::bind_integer(m);
    paceline::bind_sign(m);
    paceline::bind_topk(m);
}
