// Direct sparse convolution (Park et al., ICLR 2017): the weights that are not zero, each with its offset into a lowered input.
// Nothing of Python here: both the extension and the library of ONNX Runtime's operator use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace paceline {

// Of a two-dimensional convolution; pairs are of rows and columns.
struct Window {
    size_t channels, out_channels, groups;
    size_t kernel[2], stride[2], padding[2], dilation[2];
    bool relu;
};

// Rows of an output channel's weights: entries first[o] to first[o + 1] of taps and values.
struct SparseWeights {
    std::vector<uint32_t> first;
    std::vector<uint32_t> taps;  // (channel within its group * kernel rows + row) * kernel columns + column, ascending in a row
    std::vector<float> values, bias;
};

// Who calls task(context, i) for every i below count, on about this many threads.
struct Workers {
    size_t threads;
    void (*for_each)(void* self, size_t count, void (*task)(void* context, size_t i), void* context);
    void* self;
};

struct SparseBaked;

class SparseConvolution {
  public:
    // Raises std::invalid_argument for what is no convolution.
    SparseConvolution(const Window& window, SparseWeights weights);

    // Rows or columns of the output. Raises std::invalid_argument where the kernel is larger than the padded input.
    size_t out_size(size_t size, int dim) const;

    // x: (batch, channels, height, width). out: (batch, out_channels, ...).
    // A warm call of the last size allocates nothing. Raises std::bad_alloc.
    void run(const float* x, size_t batch, size_t height, size_t width, float* out, const Workers& workers) const;

    const Window window;

  private:
    std::shared_ptr<const SparseBaked> baked(size_t height, size_t width) const;

    const SparseWeights weights_;
    mutable std::mutex mutex_;
    mutable std::shared_ptr<const SparseBaked> last_;
};

}  // namespace paceline
