"""Galleries of any size, NumPy arrays and memory maps: a block of rows at a time, with the answers of one call.

Answers of a block join the best so far by a stable sort: earlier blocks hold lower indices and stand first, so ties go
to the lowest index, and a score has the same bits wherever its row stands (tests/generic/test_topk.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pairloom._id_lists import IdLists

Search = Callable[[Tensor, Tensor, int, str, "IdLists | None"], tuple[Tensor, Tensor]]
"""(queries, gallery, k, similarity, exclude) -> scores, indices: top-k of a tensor."""


def rows_of(matrix: Tensor | np.ndarray, rows: slice | np.ndarray) -> Tensor:
    """Some rows as a tensor: without a copy where that is possible, with one where memory is read-only.

    A tensor cannot be read-only, and torch warns of memory that is.
    """
    part = matrix[rows]
    if isinstance(part, Tensor):
        return part
    native = np.require(part, part.dtype.newbyteorder("="), ["C", "W", "A"])
    return torch.from_numpy(native if has_tensor_strides(native) else native.copy())


def has_tensor_strides(array: np.ndarray) -> bool:
    """Whether torch takes the strides: not below 0, whole numbers. One row, or none, passes for contiguous with any."""
    return all(stride >= 0 and stride % array.itemsize == 0 for stride in array.strides)


def block_rows(gallery: Tensor | np.ndarray, nbytes: float) -> int:
    """How many rows fit in so many bytes; at least one."""
    return max(int(nbytes / (gallery.shape[1] * gallery.dtype.itemsize)), 1)


def topk_in_blocks(
    search: Search,
    queries: Tensor,
    gallery: Tensor | np.ndarray,
    k: int,
    similarity: str,
    exclude: IdLists | None,
    *,
    rows_per_block: int,
    on_block: Callable[[int], None],
) -> tuple[Tensor, Tensor]:
    """`pairloom.topk` without its checks. ``on_block`` is told the number of rows of every block that is done."""

    def answers(first: int, last: int, k: int) -> tuple[Tensor, Tensor]:
        block = rows_of(gallery, slice(first, last)).to(queries.device)  # gone before the next one is read
        excluded = None if exclude is None else exclude.of_rows(first, last)
        scores, indices = search(queries, block, k, similarity, excluded)
        return scores, torch.where(indices < 0, -1, indices + first)

    best = answers(0, 0, k)  # all missing
    for first in range(0, len(gallery), rows_per_block):
        last = min(first + rows_per_block, len(gallery))
        best = _join(best, answers(first, last, min(k, last - first)))
        on_block(last - first)
    return best


def _join(best: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The k best of k and of others with higher indices."""
    k = best[0].shape[1]
    scores, order = torch.cat([best[0], other[0]], dim=1).sort(dim=1, descending=True, stable=True)
    return scores[:, :k].contiguous(), torch.cat([best[1], other[1]], dim=1).gather(1, order[:, :k])
