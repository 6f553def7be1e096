#include "bind.h"

NB_MODULE(_native, m) {
    nanobind::set_leak_warnings(false);  // kernels of tensors live as long as these, some to the end of the process
    m.doc() = "The native kernels of paceline.codecs, training.optimizers, slimming and market: use them through those.";
    paceline::bind_dispatch(m);
    paceline::bind_pool(m);
    paceline::bind_checksum(m);
    paceline::bind_floats(m);
    paceline::bind_ternary(m);
    paceline::bind_ternary_parts(m);
    paceline::bind_inceptionn(m);
    paceline::bind_integer(m);
    paceline::bind_integer_parts(m);
    paceline::bind_sign(m);
    paceline::bind_fp8(m);
    paceline::bind_bf16_coded(m);
    paceline::bind_topk(m);
    paceline::bind_topk_chunks(m);
    paceline::bind_optimizers(m);
    paceline::bind_sparse_convolution(m);
    paceline::bind_federation(m);
    paceline::bind_queue_futures(m);
}
