// The operator SparseConv of the domain paceline, for SessionOptions.register_custom_ops_library. Inputs: x, then as constants the
// rows' first entries, taps, values (sparse_convolution.h) and biases. Attributes: channels, group, relu, and two integers each of
// kernel_shape, strides, pads and dilations.
#include <stdexcept>
#include <string>
#include <utility>

#include "../sparse_convolution.h"
#include "abi.h"

namespace paceline::ort {
namespace {

struct Failed {
    Status* status;
};

void check(Status* status) {
    if (status) throw Failed{status};
}

template <class Work>
Status* guarded(const Api& api, Work&& work) {
    try {
        work();
        return nullptr;
    } catch (const Failed& failed) {
        return failed.status;
    } catch (const std::invalid_argument& error) {
        return api.call(kCreateStatus, kInvalidArgument, error.what());
    } catch (const std::exception& error) {
        return api.call(kCreateStatus, kFail, error.what());
    }
}

struct Tensor {
    std::vector<int64_t> shape;
    void* data;

    size_t size() const {
        size_t product = 1;
        for (const int64_t each : shape) product *= static_cast<size_t>(each);
        return product;
    }
};

Tensor tensor_of(const Api& api, const void* value) {
    Tensor tensor{};
    void* info = nullptr;
    check(api.call(kGetTensorTypeAndShape, value, &info));
    size_t count = 0;
    Status* status = api.call(kGetDimensionsCount, static_cast<const void*>(info), &count);
    tensor.shape.resize(count);
    if (!status) status = api.call(kGetDimensions, static_cast<const void*>(info), tensor.shape.data(), count);
    api.call<void>(kReleaseTensorTypeAndShapeInfo, info);
    check(status);
    check(api.call(kGetTensorMutableData, const_cast<void*>(value), &tensor.data));
    return tensor;
}

template <class T>
std::vector<T> constant(const Api& api, const void* info, size_t index) {
    int is_constant = 0;
    const void* value = nullptr;
    check(api.call(kGetConstantInput, info, index, &is_constant, &value));
    if (!is_constant || !value) throw std::invalid_argument("SparseConv needs its weights as initializers of the model");
    const Tensor tensor = tensor_of(api, value);
    const T* data = static_cast<const T*>(tensor.data);
    return {data, data + tensor.size()};
}

size_t number(const Api& api, const void* info, const char* name) {
    int64_t value = 0;
    check(api.call(kGetAttributeInt, info, name, &value));
    if (value < 0) throw std::invalid_argument(std::string("SparseConv's ") + name + " is negative");
    return static_cast<size_t>(value);
}

void pair(const Api& api, const void* info, const char* name, size_t* out) {
    int64_t values[2];
    size_t count = 2;
    check(api.call(kGetAttributeInts, info, name, &values[0], &count));
    if (count != 2 || values[0] < 0 || values[1] < 0) throw std::invalid_argument(std::string("SparseConv's ") + name + " are two numbers");
    for (int dim = 0; dim < 2; dim++) out[dim] = static_cast<size_t>(values[dim]);
}

struct Kernel {
    const Api& api;
    SparseConvolution convolution;
};

Status* create(const CustomOp*, const Api* api, const void* info, void** kernel) {
    return guarded(*api, [&] {
        SparseWeights weights{constant<uint32_t>(*api, info, 1), constant<uint32_t>(*api, info, 2), constant<float>(*api, info, 3),
                              constant<float>(*api, info, 4)};
        Window window{};
        window.channels = number(*api, info, "channels");
        window.out_channels = weights.bias.size();
        window.groups = number(*api, info, "group");
        window.relu = number(*api, info, "relu") != 0;
        pair(*api, info, "kernel_shape", window.kernel);
        pair(*api, info, "strides", window.stride);
        pair(*api, info, "pads", window.padding);
        pair(*api, info, "dilations", window.dilation);
        *kernel = new Kernel{*api, {window, std::move(weights)}};
    });
}

struct Pool {
    const Api& api;
    const void* context;
    Status* status;
};

// On the session's own threads.
void for_each(void* self, size_t count, void (*task)(void*, size_t), void* context) {
    Pool& pool = *static_cast<Pool*>(self);
    if (count < 2) return task(context, 0);
    pool.status = pool.api.call(kParallelFor, pool.context, task, count, size_t{0}, context);
}

Status* compute(void* self, void* context) {
    const Kernel& kernel = *static_cast<const Kernel*>(self);
    const Api& api = kernel.api;
    return guarded(api, [&] {
        const void* value = nullptr;
        check(api.call(kGetInput, static_cast<const void*>(context), size_t{0}, &value));
        const Tensor x = tensor_of(api, value);
        const SparseConvolution& convolution = kernel.convolution;
        if (x.shape.size() != 4 || static_cast<size_t>(x.shape[1]) != convolution.window.channels)
            throw std::invalid_argument("SparseConv needs images of " + std::to_string(convolution.window.channels) + " channels");
        const auto height = static_cast<size_t>(x.shape[2]), width = static_cast<size_t>(x.shape[3]);
        const int64_t shape[4] = {x.shape[0], static_cast<int64_t>(convolution.window.out_channels),
                                  static_cast<int64_t>(convolution.out_size(height, 0)), static_cast<int64_t>(convolution.out_size(width, 1))};
        void *made = nullptr, *out = nullptr;
        check(api.call(kGetOutput, context, size_t{0}, &shape[0], size_t{4}, &made));
        check(api.call(kGetTensorMutableData, made, &out));
        Pool pool{api, context, nullptr};
        // One: how many threads the session has cannot be asked, and parts of an image would each lower it again.
        convolution.run(static_cast<const float*>(x.data), static_cast<size_t>(x.shape[0]), height, width, static_cast<float*>(out),
                        {1, for_each, &pool});
        check(pool.status);
    });
}

constexpr int kInputs[] = {kFloat, kInt32, kInt32, kFloat, kFloat};

const CustomOp kSparseConv = [] {
    CustomOp op{};
    op.version = kVersion;
    op.GetName = [](const CustomOp*) { return "SparseConv"; };
    op.GetExecutionProviderType = [](const CustomOp*) -> const char* { return nullptr; };  // the CPU's
    op.GetInputType = [](const CustomOp*, size_t index) { return kInputs[index]; };
    op.GetInputTypeCount = [](const CustomOp*) { return sizeof kInputs / sizeof *kInputs; };
    op.GetOutputType = [](const CustomOp*, size_t) { return kFloat; };
    op.GetOutputTypeCount = [](const CustomOp*) { return size_t{1}; };
    op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
    op.GetInputCharacteristic = [](const CustomOp*, size_t) { return kRequired; };
    op.GetOutputCharacteristic = [](const CustomOp*, size_t) { return kRequired; };
    op.GetInputMemoryType = [](const CustomOp*, size_t) { return kMemoryDefault; };
    op.CreateKernelV2 = &create;
    op.KernelComputeV2 = &compute;
    op.GetStartVersion = [](const CustomOp*) { return 1; };
    op.GetEndVersion = [](const CustomOp*) { return 2147483647; };
    return op;
}();

}  // namespace
}  // namespace paceline::ort

// What ONNX Runtime calls. The domain stays as long as the process: sessions use it.
extern "C" __attribute__((visibility("default"))) paceline::ort::Status* RegisterCustomOps(void* options,
                                                                                         const paceline::ort::ApiBase* base) {
    using namespace paceline::ort;
    const Api* api = base->GetApi(kVersion);
    if (!api) {
        const Api* oldest = base->GetApi(1);
        const std::string text = std::string("paceline's operators need ONNX Runtime 1.17 or newer; this is ") + base->GetVersionString();
        return oldest->call(kCreateStatus, kFail, text.c_str());
    }
    return guarded(*api, [&] {
        void* domain = nullptr;
        check(api->call(kCreateCustomOpDomain, "paceline", &domain));
        check(api->call(kCustomOpDomainAdd, domain, &kSparseConv));
        check(api->call(kAddCustomOpDomain, options, domain));
    });
}
