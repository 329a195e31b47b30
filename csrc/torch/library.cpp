// The namespace of the operators. Each file of this folder adds its own schemas and kernels to it.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(pairloom, library) { (void)library; }
