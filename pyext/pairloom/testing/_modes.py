"""Ways to run the same call: instruction-set level and number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pairloom import _native


def isa_levels() -> list[str]:
    """Instruction-set levels that this processor has and the kernels were compiled for, weakest first."""
    return list(_native.isa_available())


@contextmanager
def using_isa(level: str) -> Iterator[None]:
    """Kernels of one level inside, the level from before afterwards. Process-wide."""
    before = _native.isa()
    _native.set_isa(level)
    try:
        yield
    finally:
        _native.set_isa(before)


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """``torch.set_num_threads(count)`` inside, the number from before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
