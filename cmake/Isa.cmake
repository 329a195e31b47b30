# Instruction-set levels. Each csrc/cpu/kernels_<family>.cpp is compiled once per level, with
#   -DPAIRLOOM_ISA=<level>   so that its code lives in namespace pairloom::<level>,
# and csrc/cpu/dispatch.cpp is told which levels exist by -DPAIRLOOM_HAVE_<LEVEL>=1.
#
# An ISA object must export no weak symbol outside its own namespace: the linker keeps one copy of a weak symbol for the
# whole library, and if that is the AVX-512 one, every older machine dies of an illegal instruction. So kernels use no
# std:: templates that are not inlined away; tests/packaging/test_isa_symbols.py checks the objects.
set(PAIRLOOM_ISA_LEVELS baseline)
set(PAIRLOOM_ISA_FLAGS_baseline "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  list(APPEND PAIRLOOM_ISA_LEVELS avx2 avx512 amx)
  set(PAIRLOOM_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi2)
  # 512-bit vectors even where the compiler's cost model would rather stay at 256: the tile loops keep the unit busy.
  set(PAIRLOOM_ISA_FLAGS_avx512 ${PAIRLOOM_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  # Matrix unit: float32 products in three bfloat16 parts (csrc/engine/matrix_unit.h).
  set(PAIRLOOM_ISA_FLAGS_amx ${PAIRLOOM_ISA_FLAGS_avx512} -mamx-tile -mamx-bf16 -mamx-int8)
endif()

set(PAIRLOOM_HAVE_LEVELS "")
foreach(level IN LISTS PAIRLOOM_ISA_LEVELS)
  string(TOUPPER ${level} upper)
  list(APPEND PAIRLOOM_HAVE_LEVELS PAIRLOOM_HAVE_${upper}=1)
endforeach()

# pairloom_add_isa_objects(<out-variable> <source>...): object libraries pairloom_isa_<level>, their objects in the variable.
function(pairloom_add_isa_objects out)
  set(objects "")
  foreach(level IN LISTS PAIRLOOM_ISA_LEVELS)
    add_library(pairloom_isa_${level} OBJECT ${ARGN})
    target_include_directories(pairloom_isa_${level} PRIVATE "${PROJECT_SOURCE_DIR}/csrc")
    target_link_libraries(pairloom_isa_${level} PRIVATE pairloom_flags)
    target_compile_definitions(pairloom_isa_${level} PRIVATE PAIRLOOM_ISA=${level})
    target_compile_options(pairloom_isa_${level} PRIVATE ${PAIRLOOM_ISA_FLAGS_${level}})
    list(APPEND objects $<TARGET_OBJECTS:pairloom_isa_${level}>)
  endforeach()
  set(${out} "${objects}" PARENT_SCOPE)
endfunction()
