# Flags that every translation unit of pairloom shares, as one interface target.
#
# Never -march=native (the binary must run on other machines) and never -ffast-math (infinities and NaN have meaning here).
# What is allowed: contraction to FMA, and forgetting errno and floating-point traps, neither of which changes a value that
# anyone can rely on.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 11)
  message(FATAL_ERROR "pairloom needs GCC 11 or newer (found ${CMAKE_CXX_COMPILER_VERSION}); choose another compiler with CXX=...")
elseif(CMAKE_CXX_COMPILER_ID MATCHES "^(Clang|AppleClang)$" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  message(FATAL_ERROR "pairloom needs Clang 14 or newer (found ${CMAKE_CXX_COMPILER_VERSION}); choose another compiler with CXX=...")
elseif(NOT CMAKE_CXX_COMPILER_ID MATCHES "^(GNU|Clang|AppleClang)$")
  message(FATAL_ERROR "pairloom needs GCC or Clang, because its kernels use their vector types (found ${CMAKE_CXX_COMPILER_ID})")
endif()

set(PAIRLOOM_COMMON_FLAGS
    -O3
    -ffp-contract=fast
    -fno-math-errno
    -fno-trapping-math
    -fvisibility=hidden
    -fvisibility-inlines-hidden)

add_library(pairloom_flags INTERFACE)
target_compile_options(pairloom_flags INTERFACE ${PAIRLOOM_COMMON_FLAGS} -Wall -Wextra)
# __FILE__ (torch's headers put it into messages) without the folders of the building machine.
target_compile_options(pairloom_flags INTERFACE "-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC notes that vectors wider than the enabled ISA changed their calling convention once; we pass none across objects.
  target_compile_options(pairloom_flags INTERFACE -Wno-psabi)
endif()

# A library with an unresolved symbol must fail here and not on the user's machine. Sanitizer runtimes come from the
# executable, so their symbols are left open.
set(PAIRLOOM_NO_UNDEFINED "")
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT PAIRLOOM_SANITIZE)
  set(PAIRLOOM_NO_UNDEFINED "LINKER:--no-undefined")
endif()
