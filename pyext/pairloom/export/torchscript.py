"""Export to TorchScript."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pairloom import _build_info, _library
from pairloom.export._common import as_tuple, compare, inference


def to_torchscript(
    module: nn.Module, path: str | Path, *, args: Sequence[Any] | None = None, tolerance: float = 1e-6
) -> Path:
    """Write ``module`` as TorchScript, in eval mode.

    To load it elsewhere, load the operators first: ``torch.ops.load_library(library_path())`` in Python,
    ``dlopen`` or linking of the same library in C++. No Python of this package is needed to run it.

    Args:
        module: what to export; it must be scriptable; docs/support.md says which losses are.
        path: the file to write.
        args: example arguments; when given, the written file is loaded and compared with the module.
        tolerance: largest difference of float outputs, absolute and relative.

    Returns:
        The path.

    Raises:
        RuntimeError: a loss of this package without a TorchScript form (`torch.export` saves it), or the outputs of the
            loaded file differ from the module's.

    Example:
        >>> import tempfile, torch, pairloom
        >>> embeddings, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     loss = pairloom.MultiSimilarityLoss()
        ...     path = pairloom.export.to_torchscript(loss, folder + "/loss.pt", args=(embeddings, labels))
        ...     bool(torch.jit.load(path)(embeddings, labels) == loss(embeddings, labels))
        True
    """
    path = Path(path)
    with inference(module):
        torch.jit.save(torch.jit.script(module), str(path))
        if args is not None:
            compare(str(path), as_tuple(torch.jit.load(str(path))(*args)), as_tuple(module(*args)), tolerance)
    return path


def library_path() -> str:
    """The operator library, for ``torch.ops.load_library`` in a process that does not import this package."""
    return str(_library.LIBRARY)


def cmake_path() -> str:
    """Folder of the CMake package, for ``find_package(pairloom)`` in a C++ program: its ``pairloom_DIR``.

    The target ``pairloom::torch`` is the operator library. The command `pairloom info --cmake` prints the same folder.
    """
    return str(_build_info.cmake_folder())
