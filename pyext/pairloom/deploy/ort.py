"""The library of custom operators for ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

ORT_LIBRARY = Path(__file__).resolve().parent.parent / "libpairloom_ort.so"


def ort_library() -> str:
    """Path of the library that gives ONNX Runtime the kernels of ``pairloom.TopKSimilarity`` and ``TopKInt8``.

    It needs neither this package nor torch or Python: the one file can be copied to a serving machine, and
    registered from any language. ONNX Runtime 1.17 or newer.

    Raises:
        ImportError: the library was not built.

    Example:
        >>> import onnxruntime, pairloom.deploy
        >>> options = onnxruntime.SessionOptions()
        >>> options.register_custom_ops_library(pairloom.deploy.ort_library())
    """
    if not ORT_LIBRARY.is_file():
        raise ImportError(
            f"{ORT_LIBRARY.name} is not beside the package; build it with `make build` or "
            "`pip install --no-build-isolation .`"
        )
    return str(ORT_LIBRARY)
