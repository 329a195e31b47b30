# The CMake package that C++ programs find: setup.py puts the files of this folder into the Python package, as pairloom/cmake.
set(PAIRLOOM_PACKAGE_DIRECTORY "${CMAKE_BINARY_DIR}/package")
configure_file(
  "${PROJECT_SOURCE_DIR}/cmake/PairloomConfig.cmake.in" "${PAIRLOOM_PACKAGE_DIRECTORY}/pairloomConfig.cmake" @ONLY)

# Until 1.0 a minor version may break.
include(CMakePackageConfigHelpers)
write_basic_package_version_file(
  "${PAIRLOOM_PACKAGE_DIRECTORY}/pairloomConfigVersion.cmake"
  VERSION "${PAIRLOOM_VERSION}"
  COMPATIBILITY SameMinorVersion)
