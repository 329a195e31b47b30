"""Export to an AOTInductor package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pairloom.export._common import as_tuple, batch_shapes, compare, inference


def to_aoti(
    module: nn.Module,
    args: Sequence[Any],
    path: str | Path,
    *,
    dynamic_batch: bool = True,
    dynamic_shapes: Any = None,
    tolerance: float = 1e-5,
) -> Path:
    """Compile ``module`` ahead of time into a ``.pt2`` package, in eval mode; needs a C++ compiler.

    To load it elsewhere, load the operators first (``torch.ops.load_library(library_path())``), then use
    ``torch._inductor.aoti_load_package`` in Python or ``AOTIModelPackageLoader`` in C++.

    Args:
        module: what to export.
        args: example arguments of ``module.forward``; two or more rows when the batch is dynamic.
        path: the file to write; its name ends in .pt2.
        dynamic_batch: whether the first dimension of all tensor arguments is one batch of any size.
        dynamic_shapes: instead of ``dynamic_batch``, as in `torch.export.export`.
        tolerance: largest difference of float outputs, absolute and relative, when the package is loaded and compared.

    Returns:
        The path.

    Raises:
        ValueError: the name of the file, or arguments that cannot be one dynamic batch.
        RuntimeError: the outputs of the loaded package differ from the module's.
    """
    path = Path(path)
    if path.suffix != ".pt2":
        raise ValueError(f"path is {str(path)!r}; the name of an AOTInductor package ends in .pt2")
    args = tuple(args)
    if dynamic_shapes is None and dynamic_batch:
        dynamic_shapes = batch_shapes(args)
    with inference(module):
        program = torch.export.export(module, args, dynamic_shapes=dynamic_shapes)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))
        loaded = torch._inductor.aoti_load_package(str(path))
        compare(str(path), as_tuple(loaded(*args)), as_tuple(module(*args)), tolerance)
    return path
