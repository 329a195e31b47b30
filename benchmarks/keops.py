"""Pairs for KeOps, which like ours never holds the matrix: it compiles a loop over pairs for every formula it meets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NOT_A_PAIR = 1e4  # taken off a similarity that must not count; beyond what exp() in float32 tells from nothing


def _lazy(tensor: Tensor) -> Any:
    import pykeops

    pykeops.set_verbose(False)
    from pykeops.torch import LazyTensor

    return LazyTensor(tensor)


def rows(tensor: Tensor) -> Any:
    """(N, D) as index i; a vector (N,) as numbers of row i."""
    return _lazy(tensor.reshape(len(tensor), 1, -1))


def columns(tensor: Tensor) -> Any:
    """(M, D) as index j; a vector (M,) as numbers of column j."""
    return _lazy(tensor.reshape(1, len(tensor), -1))


def dot(a: Tensor, b: Tensor) -> Any:
    """Symbolic (N, M) products of rows."""
    return rows(a) | columns(b)


def differ(a: Tensor, b: Tensor) -> Any:
    """Symbolic (N, M): 1 where whole numbers below 2^24 differ, else 0."""
    return (rows(a.float()) - columns(b.float())).abs().sign()


def other_rows(x: Tensor) -> Any:
    """Symbolic (N, N): 1 but on the diagonal."""
    places = torch.arange(len(x))
    return differ(places, places)
