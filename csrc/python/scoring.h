// Top-k for NumPy arrays, without torch.
#pragma once

#include <pybind11/pybind11.h>

namespace pairloom {

void define_scoring(pybind11::module_& m);

}  // namespace pairloom
