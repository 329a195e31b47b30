# Whether CUDA kernels are built, and why. The answer is a fact of the build (nvcc, request), never of the GPU in the machine
# that builds: kernels are compiled for every listed architecture, against a torch with or without CUDA.
string(TOUPPER "${PAIRLOOM_CUDA}" pairloom_cuda_wanted)
if(pairloom_cuda_wanted STREQUAL "1")
  set(pairloom_cuda_wanted ON)
elseif(pairloom_cuda_wanted STREQUAL "0")
  set(pairloom_cuda_wanted OFF)
elseif(NOT pairloom_cuda_wanted MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "PAIRLOOM_CUDA is '${PAIRLOOM_CUDA}'; allowed are AUTO, ON (or 1) and OFF (or 0)")
endif()
set(PAIRLOOM_WITH_CUDA false)
if(pairloom_cuda_wanted STREQUAL "OFF")
  set(PAIRLOOM_CUDA_REASON "switched off at build time (PAIRLOOM_CUDA=OFF)")
  return()
endif()
find_program(PAIRLOOM_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS ENV PATH PATH_SUFFIXES bin NO_DEFAULT_PATH)
if(NOT PAIRLOOM_NVCC)
  if(pairloom_cuda_wanted STREQUAL "ON")
    message(FATAL_ERROR "PAIRLOOM_CUDA=ON was asked for, and nvcc was not found; put it on PATH, or set CUDA_HOME")
  endif()
  set(PAIRLOOM_CUDA_REASON "nvcc was not found when this was built")
  return()
endif()
execute_process(COMMAND "${PAIRLOOM_NVCC}" --version OUTPUT_VARIABLE pairloom_nvcc_version ERROR_QUIET)
string(REGEX MATCH "release ([0-9]+\\.[0-9]+)" _ "${pairloom_nvcc_version}")
set(pairloom_nvcc_version "${CMAKE_MATCH_1}")
if(pairloom_nvcc_version VERSION_LESS 12.8)
  if(pairloom_cuda_wanted STREQUAL "ON")
    message(FATAL_ERROR "PAIRLOOM_CUDA=ON was asked for, and nvcc is ${pairloom_nvcc_version}; the kernels need 12.8 or newer")
  endif()
  set(PAIRLOOM_CUDA_REASON "nvcc ${pairloom_nvcc_version} was found when this was built; the kernels need 12.8")
  return()
endif()
# Ampere, Ada, Hopper, Blackwell; what comes later compiles the code of the last one itself.
set(PAIRLOOM_CUDA_ARCHITECTURES 80 86 89 90 100 120)
set(PAIRLOOM_WITH_CUDA true)
list(JOIN PAIRLOOM_CUDA_ARCHITECTURES ", " pairloom_architectures)
set(PAIRLOOM_CUDA_REASON "built with nvcc ${pairloom_nvcc_version} for architectures ${pairloom_architectures}")

# pairloom_add_cuda_library(<name> <source>...): lib<name>.so of .cu files, compiled and linked by nvcc. By hand and not as a language
# of CMake, whose search for a toolkit takes longer than compiling these files.
function(pairloom_add_cuda_library name)
  set(code "")
  foreach(architecture IN LISTS PAIRLOOM_CUDA_ARCHITECTURES)
    list(APPEND code -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  list(GET PAIRLOOM_CUDA_ARCHITECTURES -1 last)
  list(APPEND code -gencode arch=compute_${last},code=compute_${last})
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/csrc/*.h")
  set(objects "")
  foreach(source IN LISTS ARGN)
    get_filename_component(stem ${source} NAME_WE)
    set(object "${CMAKE_BINARY_DIR}/cuda/${stem}.o")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND "${PAIRLOOM_NVCC}" -ccbin "${CMAKE_CXX_COMPILER}" -std=c++20 -O3 --threads 2 --expt-relaxed-constexpr ${code}
              -Xcompiler -fPIC,-fvisibility=hidden,-fvisibility-inlines-hidden "-Xcompiler=-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/="
              -DUSE_CUDA -DTORCH_TARGET_VERSION=${PAIRLOOM_TORCH_TARGET} -DTORCH_STABLE_ONLY
              -isystem "${PAIRLOOM_TORCH_DIR}/include" "-I${PROJECT_SOURCE_DIR}/csrc" -c "${PROJECT_SOURCE_DIR}/${source}" -o "${object}"
      DEPENDS "${PROJECT_SOURCE_DIR}/${source}" ${headers}
      COMMENT "Building CUDA object ${stem}.o"
      VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/cuda")
  set(library "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/lib${name}.so")
  # torch's CUDA library, which is not here to link with, gives the rest of the symbols when this one is loaded.
  add_custom_command(
    OUTPUT "${library}"
    COMMAND "${PAIRLOOM_NVCC}" -ccbin "${CMAKE_CXX_COMPILER}" -shared --cudart static ${code} -o "${library}" ${objects}
            "-L${PAIRLOOM_TORCH_DIR}/lib" -Xlinker --no-as-needed -ltorch_cpu -ltorch -lc10
    DEPENDS ${objects}
    COMMENT "Linking CUDA library lib${name}.so"
    VERBATIM)
  add_custom_target(${name} ALL DEPENDS "${library}")
endfunction()
