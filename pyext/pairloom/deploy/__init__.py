"""Serving without torch.

    Scorer        top-k of NumPy arrays, memory maps and exported files, with the kernels of `pairloom.topk`
    ort_library   our kernels for ONNX Runtime

Nothing here imports torch.
"""

from pairloom.deploy.ort import ort_library
from pairloom.deploy.scorer import Scorer

__all__ = ["Scorer", "ort_library"]
