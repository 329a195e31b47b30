# Whether CUDA kernels are built, and why. The answer is a fact of the build (nvcc, request), never of the GPU in the machine
# that builds. There are no CUDA kernels yet, so the request is only recorded and the reason says so.
if(NOT PAIRLOOM_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "PAIRLOOM_CUDA is '${PAIRLOOM_CUDA}'; allowed are AUTO, ON and OFF")
endif()
set(PAIRLOOM_WITH_CUDA false)
if(PAIRLOOM_CUDA STREQUAL "ON")
  message(FATAL_ERROR "PAIRLOOM_CUDA=ON was asked for, but this version of pairloom has no CUDA kernels; use AUTO or OFF")
elseif(PAIRLOOM_CUDA STREQUAL "OFF")
  set(PAIRLOOM_CUDA_REASON "switched off at build time (PAIRLOOM_CUDA=OFF)")
else()
  set(PAIRLOOM_CUDA_REASON "no CUDA kernels in this version")
endif()
