// Prints the places of everything that csrc/ort uses, from whichever header it is compiled with: ours, or ONNX Runtime's own.
#include HEADER

#include <cstddef>
#include <cstdio>

#define SLOT(name) std::printf("OrtApi." #name " %zu\n", offsetof(OrtApi, name) / sizeof(void*));
#define FIELD(name) std::printf("OrtCustomOp." #name " %zu\n", offsetof(OrtCustomOp, name));
#define VALUE(name) std::printf(#name " %d\n", static_cast<int>(name));

int main() {
  std::printf("OrtApiBase.GetApi %zu\nOrtApiBase.GetVersionString %zu\n", offsetof(OrtApiBase, GetApi),
              offsetof(OrtApiBase, GetVersionString));
  SLOT(CreateStatus)
  SLOT(CreateCustomOpDomain)
  SLOT(CustomOpDomain_Add)
  SLOT(AddCustomOpDomain)
  SLOT(GetTensorMutableData)
  SLOT(GetTensorElementType)
  SLOT(GetDimensionsCount)
  SLOT(GetDimensions)
  SLOT(GetTensorTypeAndShape)
  SLOT(KernelInfoGetAttribute_int64)
  SLOT(KernelInfoGetAttribute_string)
  SLOT(KernelContext_GetInputCount)
  SLOT(KernelContext_GetInput)
  SLOT(KernelContext_GetOutput)
  SLOT(ReleaseStatus)
  SLOT(ReleaseTensorTypeAndShapeInfo)
  SLOT(KernelInfoGetConstantInput_tensor)
  SLOT(KernelContext_ParallelFor)
  FIELD(version)
  FIELD(CreateKernel)
  FIELD(GetName)
  FIELD(GetExecutionProviderType)
  FIELD(GetInputType)
  FIELD(GetInputTypeCount)
  FIELD(GetOutputType)
  FIELD(GetOutputTypeCount)
  FIELD(KernelCompute)
  FIELD(KernelDestroy)
  FIELD(GetInputCharacteristic)
  FIELD(GetOutputCharacteristic)
  FIELD(GetInputMemoryType)
  FIELD(CreateKernelV2)
  FIELD(KernelComputeV2)
  FIELD(InferOutputShapeFn)
  FIELD(GetStartVersion)
  FIELD(GetEndVersion)
  VALUE(ORT_FAIL)
  VALUE(ORT_INVALID_ARGUMENT)
  VALUE(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)
  VALUE(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8)
  VALUE(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64)
  VALUE(ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16)
  VALUE(ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE)
  VALUE(INPUT_OUTPUT_REQUIRED)
  VALUE(INPUT_OUTPUT_OPTIONAL)
}
