# Facts of this build, compiled into _native.build_info(). They live in a generated source of their own, so that a new commit
# recompiles ten lines and not the module.
cmake_path(GET PROJECT_SOURCE_DIR PARENT_PATH pairloom_parent)  # sources unpacked inside another repository are not of it
execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env "GIT_CEILING_DIRECTORIES=${pairloom_parent}" git -C "${PROJECT_SOURCE_DIR}" describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE PAIRLOOM_GIT_SHA ERROR_QUIET RESULT_VARIABLE pairloom_git_result OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT pairloom_git_result EQUAL 0 OR PAIRLOOM_GIT_SHA STREQUAL "")
  set(PAIRLOOM_GIT_SHA "unknown")
endif()

string(JOIN " " PAIRLOOM_FLAGS_TEXT ${PAIRLOOM_COMMON_FLAGS})
string(JOIN " " PAIRLOOM_LEVELS_TEXT ${PAIRLOOM_ISA_LEVELS})
set(PAIRLOOM_COMPILER_TEXT "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")

set(PAIRLOOM_BUILD_INFO_SOURCE "${CMAKE_BINARY_DIR}/generated/build_info.cpp")
configure_file("${PROJECT_SOURCE_DIR}/cmake/build_info.cpp.in" "${PAIRLOOM_BUILD_INFO_SOURCE}" @ONLY)
