#include <nanobind/stl/array.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <stdexcept>
#include <vector>

#include "bind.h"
#include "pool.h"
#include "sparse_convolution.h"

namespace paceline {
namespace {

using Images = nb::ndarray<float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using ConstImages = nb::ndarray<const float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T, class Array>
std::vector<T> copy_of(const Array& from) {
    return {from.data(), from.data() + from.size()};
}

// window: channels, output channels, groups; rows and columns of the kernel, stride, padding, dilation.
SparseConvolution* make(const std::array<size_t, 11>& w, bool relu, const Numbers& first, const Numbers& taps, const ConstFloats& values,
                        const ConstFloats& bias) {
    const Window window{w[0], w[1], w[2], {w[3], w[4]}, {w[5], w[6]}, {w[7], w[8]}, {w[9], w[10]}, relu};
    return new SparseConvolution(window, {copy_of<uint32_t>(first), copy_of<uint32_t>(taps), copy_of<float>(values), copy_of<float>(bias)});
}

void run(const SparseConvolution& self, const ConstImages& x, const Images& out, int threads) {
    const size_t shape[4] = {x.shape(0), self.window.out_channels, self.out_size(x.shape(2), 0), self.out_size(x.shape(3), 1)};
    for (size_t dim = 0; dim < 4; dim++)
        if (out.shape(dim) != shape[dim]) throw std::invalid_argument("an output of another shape");
    if (x.shape(1) != self.window.channels) throw std::invalid_argument("an input of other channels");
    const auto for_each = [](void* count, size_t chunks, Task task, void* context) {
        run_team(chunks, *static_cast<int*>(count), task, context);
    };
    nb::gil_scoped_release release;
    self.run(x.data(), x.shape(0), x.shape(2), x.shape(3), out.data(), {static_cast<size_t>(threads > 1 ? threads : 1), for_each, &threads});
}

}  // namespace

void bind_sparse_convolution(nb::module_& m) {
    nb::class_<SparseConvolution>(m, "SparseConvolution", "Weights that are not zero, ready for inputs of any size.")
        .def(nb::new_(&make), nb::arg("window"), nb::arg("relu"), nb::arg("first").noconvert(), nb::arg("taps").noconvert(),
             nb::arg("values").noconvert(), nb::arg("bias").noconvert())
        .def("out_size", &SparseConvolution::out_size, nb::arg("size"), nb::arg("dim"))
        .def("run", &run, nb::arg("x").noconvert(), nb::arg("out").noconvert(), nb::arg("threads"));
}

}  // namespace paceline
