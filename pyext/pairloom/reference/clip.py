"""Symmetric InfoNCE of two batches: row i and column i belong together.

    L_i = ( info_nce of row i among all columns + info_nce of column i among all rows ) / 2

    Labels, ignored pairs and ``same_id`` as in `info_nce`; both batches have the same labels. The reduction acts on L.

Source: Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021.
"""

from __future__ import annotations

from torch import Tensor

from pairloom.reference._rows import labels_equal, reduce_rows
from pairloom.reference.info_nce import info_nce


def clip(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | float,
    row_labels: Tensor | None = None,
    weights: Tensor | None = None,
    similarity: str = "cosine",
    reduction: str = "mean",
    same_id: str = "ignore",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N, D), (N, D) -> loss (0-d, or (N,) for "none") in the compute dtype, statistics (13,) float64 of both ways."""
    settings = (temperature, row_labels, row_labels, None, similarity, "none", same_id, ignore_index, want_stats)
    to_columns, stats = info_nce(rows, columns, *settings)
    to_rows, other_stats = info_nce(columns, rows, *settings)
    keep = ~labels_equal(row_labels, ignore_index, rows)
    return reduce_rows((to_columns + to_rows) / 2, keep, weights, reduction), stats + other_stats
