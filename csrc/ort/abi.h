// The part of ONNX Runtime's C ABI that a library of custom operators uses, declared by hand: the onnxruntime wheel ships no headers. The
// table of functions only grows, so a place in it is the same in every version from the one that added it on. tests/cpp/ort_abi.cpp
// compares the places with the official headers where those are at hand.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtShapeInferContext;
struct OrtCustomOp;

enum OrtErrorCode { ORT_OK, ORT_FAIL, ORT_INVALID_ARGUMENT };

enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED = 0,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 = 3,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE = 11,
};

enum OrtCustomOpInputOutputCharacteristic { INPUT_OUTPUT_REQUIRED, INPUT_OUTPUT_OPTIONAL };

struct OrtApi {
  OrtStatus* (*CreateStatus)(OrtErrorCode code, const char* message);
  void* unused_1[25];
  OrtStatus* (*CreateCustomOpDomain)(const char* name, OrtCustomOpDomain** out);
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain* domain, const OrtCustomOp* op);
  OrtStatus* (*AddCustomOpDomain)(OrtSessionOptions* options, OrtCustomOpDomain* domain);
  void* unused_29[22];
  OrtStatus* (*GetTensorMutableData)(OrtValue* value, void** out);
  void* unused_52[8];
  OrtStatus* (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo* info, ONNXTensorElementDataType* out);
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo* info, size_t* out);
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo* info, int64_t* sizes, size_t count);
  void* unused_63[2];
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue* value, OrtTensorTypeAndShapeInfo** out);
  void* unused_66[20];
  OrtStatus* (*KernelInfoGetAttribute_int64)(const OrtKernelInfo* info, const char* name, int64_t* out);
  OrtStatus* (*KernelInfoGetAttribute_string)(const OrtKernelInfo* info, const char* name, char* out, size_t* size);
  OrtStatus* (*KernelContext_GetInputCount)(const OrtKernelContext* context, size_t* out);
  void* unused_89;
  OrtStatus* (*KernelContext_GetInput)(const OrtKernelContext* context, size_t index, const OrtValue** out);
  OrtStatus* (*KernelContext_GetOutput)(OrtKernelContext* context, size_t index, const int64_t* sizes, size_t count, OrtValue** out);
  void* unused_92;
  void (*ReleaseStatus)(OrtStatus* status);
  void* unused_94[5];
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo* info);
  void* unused_100[149];
  OrtStatus* (*KernelInfoGetConstantInput_tensor)(const OrtKernelInfo* info, size_t index, int* is_constant, const OrtValue** out);
  void* unused_250[24];
  // Since 1.17, as is what follows OrtCustomOp::KernelDestroy below.
  OrtStatus* (*KernelContext_ParallelFor)(const OrtKernelContext* context, void (*run)(void* data, size_t index), size_t total,
                                          size_t batches, void* data);
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);  // null for a version above the runtime's own
  const char* (*GetVersionString)();
};

// A runtime reads as many fields as `version` promises; runtimes up to 1.24 refuse a version above their own.
struct OrtCustomOp {
  uint32_t version;
  void* CreateKernel;
  const char* (*GetName)(const OrtCustomOp* op);
  const char* (*GetExecutionProviderType)(const OrtCustomOp* op);
  ONNXTensorElementDataType (*GetInputType)(const OrtCustomOp* op, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp* op);
  ONNXTensorElementDataType (*GetOutputType)(const OrtCustomOp* op, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp* op);
  void* KernelCompute;
  void (*KernelDestroy)(void* kernel);
  OrtCustomOpInputOutputCharacteristic (*GetInputCharacteristic)(const OrtCustomOp* op, size_t index);
  OrtCustomOpInputOutputCharacteristic (*GetOutputCharacteristic)(const OrtCustomOp* op, size_t index);
  int (*GetInputMemoryType)(const OrtCustomOp* op, size_t index);
  void* variadic[4];
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext* context);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp* op, OrtShapeInferContext* context);
  int (*GetStartVersion)(const OrtCustomOp* op);
  int (*GetEndVersion)(const OrtCustomOp* op);
  void* in_place[4];
};

}  // extern "C"

namespace pairloom {

constexpr uint32_t kOrtApiVersion = 17;

#define PAIRLOOM_ORT_SLOT(name, place) static_assert(offsetof(OrtApi, name) == (place) * sizeof(void*))
PAIRLOOM_ORT_SLOT(CreateCustomOpDomain, 26);
PAIRLOOM_ORT_SLOT(AddCustomOpDomain, 28);
PAIRLOOM_ORT_SLOT(GetTensorMutableData, 51);
PAIRLOOM_ORT_SLOT(GetTensorElementType, 60);
PAIRLOOM_ORT_SLOT(GetTensorTypeAndShape, 65);
PAIRLOOM_ORT_SLOT(KernelInfoGetAttribute_int64, 86);
PAIRLOOM_ORT_SLOT(KernelContext_GetInputCount, 88);
PAIRLOOM_ORT_SLOT(KernelContext_GetInput, 90);
PAIRLOOM_ORT_SLOT(ReleaseStatus, 93);
PAIRLOOM_ORT_SLOT(ReleaseTensorTypeAndShapeInfo, 99);
PAIRLOOM_ORT_SLOT(KernelInfoGetConstantInput_tensor, 249);
PAIRLOOM_ORT_SLOT(KernelContext_ParallelFor, 274);
#undef PAIRLOOM_ORT_SLOT
static_assert(offsetof(OrtCustomOp, KernelDestroy) == 72 && offsetof(OrtCustomOp, CreateKernelV2) == 136 &&
              offsetof(OrtCustomOp, GetStartVersion) == 160 && sizeof(OrtCustomOp) == 208);

}  // namespace pairloom
