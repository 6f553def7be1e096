// The part of ONNX Runtime's C interface that one operator needs, because its wheel brings no headers.
//
// OrtApi is a table of function pointers that is only ever appended to: "the ordering of these fields MUST not change after that
// version has shipped" (onnxruntime/core/session/onnxruntime_c_api.cc, ort_api_1_to_25, whose static_asserts hold the sizes that the
// comments below count from: version 1 ends at entry 101, 8 at 169, 14 at 238, 15 at 254, 16 at 265, 17 at 275). OrtCustomOp is the
// struct of onnxruntime_c_api.h as of version 18, of which ONNX Runtime reads as much as `version` says. All functions that give
// an OrtStatus* give null where nothing is wrong. Types that are only pointed to are void here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace paceline::ort {

constexpr uint32_t kVersion = 17;  // ONNX Runtime 1.17: the first with all of these

struct Status;
struct Api;

struct ApiBase {
    const Api* (*GetApi)(uint32_t version);  // null where this ONNX Runtime is older
    const char* (*GetVersionString)();
};

// Places in the table.
enum Entry : size_t {
    kCreateStatus = 0,                      // (int code, const char*)
    kCreateCustomOpDomain = 26,             // (const char* domain, void** out)
    kCustomOpDomainAdd = 27,                // (void* domain, const CustomOp*)
    kAddCustomOpDomain = 28,                // (void* session options, void* domain)
    kGetTensorMutableData = 51,             // (void* value, void** out)
    kGetDimensionsCount = 61,               // (const void* info, size_t* out)
    kGetDimensions = 62,                    // (const void* info, int64_t* out, size_t count)
    kGetTensorTypeAndShape = 65,            // (const void* value, void** out)
    kGetAttributeInt = 86,                  // (const void* info, const char* name, int64_t* out)
    kGetInput = 90,                         // (const void* context, size_t index, const void** value)
    kGetOutput = 91,                        // (void* context, size_t index, const int64_t* shape, size_t count, void** value)
    kReleaseTensorTypeAndShapeInfo = 99,    // (void*), no status
    kGetAttributeInts = 163,                // (const void* info, const char* name, int64_t* out, size_t* size)
    kGetConstantInput = 249,                // (const void* info, size_t index, int* is_constant, const void** value)
    kParallelFor = 274,                     // (const void* context, void (*)(void*, size_t), size_t total, size_t batches, void*)
};

struct Api {
    void* entries[276];

    template <class Result = Status*, class... Arguments>
    Result call(Entry entry, Arguments... arguments) const {
        return reinterpret_cast<Result (*)(Arguments...)>(entries[entry])(arguments...);
    }
};

constexpr int kFail = 1, kInvalidArgument = 2;                                     // OrtErrorCode
constexpr int kFloat = 1, kInt32 = 6;                                              // ONNXTensorElementDataType
constexpr int kRequired = 0;                                                       // OrtCustomOpInputOutputCharacteristic
constexpr int kMemoryDefault = 0;                                                  // OrtMemType

struct CustomOp {
    uint32_t version;
    void* (*CreateKernel)(const CustomOp*, const Api*, const void* info);
    const char* (*GetName)(const CustomOp*);
    const char* (*GetExecutionProviderType)(const CustomOp*);
    int (*GetInputType)(const CustomOp*, size_t index);
    size_t (*GetInputTypeCount)(const CustomOp*);
    int (*GetOutputType)(const CustomOp*, size_t index);
    size_t (*GetOutputTypeCount)(const CustomOp*);
    void (*KernelCompute)(void* kernel, void* context);
    void (*KernelDestroy)(void* kernel);
    int (*GetInputCharacteristic)(const CustomOp*, size_t index);
    int (*GetOutputCharacteristic)(const CustomOp*, size_t index);
    int (*GetInputMemoryType)(const CustomOp*, size_t index);
    int (*GetVariadicInputMinArity)(const CustomOp*);
    int (*GetVariadicInputHomogeneity)(const CustomOp*);
    int (*GetVariadicOutputMinArity)(const CustomOp*);
    int (*GetVariadicOutputHomogeneity)(const CustomOp*);
    Status* (*CreateKernelV2)(const CustomOp*, const Api*, const void* info, void** kernel);
    Status* (*KernelComputeV2)(void* kernel, void* context);
    Status* (*InferOutputShapeFn)(const CustomOp*, void* context);
    int (*GetStartVersion)(const CustomOp*);
    int (*GetEndVersion)(const CustomOp*);
    size_t (*GetMayInplace)(int** inputs, int** outputs);
    void (*ReleaseMayInplace)(int* inputs, int* outputs);
    size_t (*GetAliasMap)(int** inputs, int** outputs);
    void (*ReleaseAliasMap)(int* inputs, int* outputs);
};

}  // namespace paceline::ort
