"""Exports: one file that runs without this package's Python.

    to_onnx          encoder + top-k against a gallery, for ONNX Runtime with or without our library
    module_to_onnx   any module, in standard ONNX operators: losses, metrics, your own
    to_torchscript   torch.jit.load, after loading the operator library
    to_aoti          AOTInductor package, after loading the operator library
    Retriever        encoder + top-k against a gallery: embeddings in, scores and ids out
    library_path     the operator library, for other Python processes
    cmake_path       folder of the CMake package, for C++ programs

Every function runs what it wrote and compares it with the module before it returns.
"""

from pairloom.export.aoti import to_aoti
from pairloom.export.module_onnx import module_to_onnx, onnx_decompositions
from pairloom.export.onnx import to_onnx
from pairloom.export.retriever import Retriever
from pairloom.export.torchscript import cmake_path, library_path, to_torchscript

__all__ = [
    "Retriever",
    "cmake_path",
    "library_path",
    "module_to_onnx",
    "onnx_decompositions",
    "to_aoti",
    "to_onnx",
    "to_torchscript",
]
