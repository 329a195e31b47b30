# torch of the active Python, as the interface target torch_stable_abi.
#
# Its own CMake package is not used: it drags in the CUDA toolkit, libtorch_python and absolute run paths. The stable ABI
# needs only the headers and three libraries. --no-as-needed keeps all three in the list of needed libraries, without which
# loading outside Python fails on aoti_torch_dtype_float32.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/cmake/find_torch.py"
  OUTPUT_VARIABLE pairloom_torch_found
  ERROR_VARIABLE pairloom_torch_error
  RESULT_VARIABLE pairloom_torch_result
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
if(NOT pairloom_torch_result EQUAL 0)
  message(FATAL_ERROR "${pairloom_torch_error}")
endif()
list(GET pairloom_torch_found 0 PAIRLOOM_TORCH_VERSION)
list(GET pairloom_torch_found 1 PAIRLOOM_TORCH_DIR)
list(GET pairloom_torch_found 2 pairloom_pybind11_dir)
if(NOT pybind11_DIR)
  set(pybind11_DIR "${pairloom_pybind11_dir}")
endif()

# The oldest torch the operators may run on; raising it needs a line in CHANGELOG.md. Byte 1 major, byte 2 minor: 2.10.
set(PAIRLOOM_TORCH_TARGET 0x020a000000000000)
set(PAIRLOOM_TORCH_MINIMUM 2.10)

add_library(torch_stable_abi INTERFACE)
target_compile_definitions(torch_stable_abi INTERFACE TORCH_TARGET_VERSION=${PAIRLOOM_TORCH_TARGET} TORCH_STABLE_ONLY)
target_compile_options(torch_stable_abi INTERFACE "-fmacro-prefix-map=${PAIRLOOM_TORCH_DIR}/include/=")
target_include_directories(torch_stable_abi SYSTEM INTERFACE "${PAIRLOOM_TORCH_DIR}/include")
target_link_directories(torch_stable_abi INTERFACE "${PAIRLOOM_TORCH_DIR}/lib")
target_link_options(torch_stable_abi INTERFACE LINKER:--no-as-needed)
target_link_libraries(torch_stable_abi INTERFACE torch_cpu torch c10)
