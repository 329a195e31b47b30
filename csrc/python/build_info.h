// Facts of the build, fixed when CMake configures (cmake/build_info.cpp.in fills them in).
#pragma once

namespace pairloom {

struct BuildInfo {
  const char* version;
  const char* git_sha;        // of the checkout, "-dirty" when it had changes, "unknown" outside git
  const char* compiler;       // "GNU 12.2.0"
  const char* flags;          // common to all objects, without those of an ISA level
  const char* isa_levels;     // compiled levels, separated by spaces, weakest first
  const char* sanitizer;      // "" for none
  const char* torch_version;  // of the headers built against
  const char* torch_target;   // oldest torch the operators run on: TORCH_TARGET_VERSION
  bool cuda;
  const char* cuda_reason;
};

extern const BuildInfo kBuildInfo;

}  // namespace pairloom
