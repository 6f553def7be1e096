// What every file of kernels shares: array types, and the list of bind_* functions that module.cpp calls.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>

namespace paceline {

namespace nb = nanobind;

// C-contiguous 1-D arrays on the CPU, NumPy's or torch's. Bind them as nb::arg("x").noconvert(): a copy would hide writes.
using Floats = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Words16 = nb::ndarray<uint16_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// What a kernel found wrong with a body; the Python side turns it into PayloadError.
enum Status : int { kFine = 0, kIllegalCode = 1, kWrongSize = 2, kBadScale = 3, kBadPadding = 4, kBadMarks = 5, kBadIndex = 6, kBadValue = 7 };

void bind_dispatch(nb::module_& m);
void bind_pool(nb::module_& m);
void bind_checksum(nb::module_& m);
void bind_floats(nb::module_& m);
void bind_ternary(nb::module_& m);
void bind_ternary_parts(nb::module_& m);
void bind_inceptionn(nb::module_& m);
void bind_integer(nb::module_& m);
void bind_integer_parts(nb::module_& m);
void bind_sign(nb::module_& m);
void bind_fp8(nb::module_& m);
void bind_bf16_coded(nb::module_& m);
void bind_topk(nb::module_& m);
void bind_topk_chunks(nb::module_& m);
void bind_optimizers(nb::module_& m);
void bind_sparse_convolution(nb::module_& m);
void bind_federation(nb::module_& m);
void bind_queue_futures(nb::module_& m);

}  // namespace paceline
