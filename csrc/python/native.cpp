// pairloom._native: what Python may ask without importing torch - facts of the build, the instruction-set level, and top-k of arrays.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/isa.h"
#include "python/build_info.h"
#include "python/scoring.h"

namespace py = pybind11;

namespace {

std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> words;
  std::size_t start = 0;
  while (start < text.size()) {
    const std::size_t end = std::min(text.find(' ', start), text.size());
    if (end > start) words.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return words;
}

py::dict build_info() {
  const pairloom::BuildInfo& info = pairloom::kBuildInfo;
  py::dict facts;
  facts["version"] = info.version;
  facts["git_sha"] = info.git_sha;
  facts["compiler"] = info.compiler;
  facts["flags"] = split_words(info.flags);
  facts["isa_levels"] = split_words(info.isa_levels);
  facts["sanitizer"] = info.sanitizer;
  facts["torch_version"] = info.torch_version;
  facts["torch_target"] = info.torch_target;
  facts["cuda"] = info.cuda;
  facts["cuda_reason"] = info.cuda_reason;
  return facts;
}

std::vector<std::string> isa_available() {
  std::vector<std::string> levels;
  for (int i = 0; i < pairloom::isa_count(); ++i) levels.emplace_back(pairloom::isa_level(i));
  return levels;
}

void set_isa(const std::string& name) {
  if (pairloom::set_isa(name.c_str())) return;
  std::string allowed;
  for (const std::string& level : isa_available()) allowed += (allowed.empty() ? "'" : ", '") + level + "'";
  throw py::value_error("name is '" + name + "'; this build on this processor has " + allowed);
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "Build facts and instruction-set control of libpairloom; does not need torch.";
  m.def("build_info", &build_info, "Facts of the build: version, compiler, flags, ISA levels, torch built against, CUDA.");
  m.def("isa", [] { return std::string(pairloom::isa_name()); }, "Instruction-set level in use.");
  m.def("isa_available", &isa_available, "Levels that are compiled in and that this processor runs, weakest first.");
  m.def("fma_rate", &pairloom::fma_rate, py::arg("seconds") = 0.1, py::call_guard<py::gil_scoped_release>(),
        "GFLOP/s (float32) of one thread that only multiplies and adds registers: the limit that benchmarks are compared with.");
  m.def("product_seconds", &pairloom::product_seconds, py::arg("n"), py::arg("m"), py::arg("dim"), py::call_guard<py::gil_scoped_release>(),
        "Seconds of one thread for the float32 products of n rows with m columns of random numbers, which are thrown away.");
  pairloom::define_scoring(m);
  m.def("set_isa", &set_isa, py::arg("name"),
        "Run the kernels of another level from now on, in every thread; ValueError when it is not available.");
}
