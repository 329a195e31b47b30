"""InfoNCE: every row has its positive at the column of the same number, all other columns are its negatives.

    z_ij = s(rows_i, columns_j) / temperature_i
    L_i  = mean_{p in P_i} softplus( lse_{n in N_i} z_in - z_ip )    (one positive: -log softmax)

    no labels, or same_id="ignore"    P_i = {i};  N_i = all other columns without the label of row i
    same_id="positive"                P_i = {i} and the columns with the label of row i;  N_i = all other columns
    same_id="only"                    P_i = the columns with the label of row i;  N_i = all other columns. Without
                                      columns: one batch against itself, (i, i) is no pair.

Columns beyond the length of the labels have none. A row labelled ignore_index leaves the loss, a column so labelled is
in no P or N. No negatives, or no positive left: L_i = 0.

Source: van den Oord et al., "Representation Learning with Contrastive Predictive Coding", 2018; several positives as in
the mean over positive pairs of NT-Xent (Sohn 2016; Chen et al. 2020), other positives outside the denominator.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference._rows import (
    by_row,
    diagonal,
    labelled_pairs,
    labels_equal,
    log_sum_exp,
    reduce_rows,
    same_label,
    softplus,
    statistics,
)
from pairloom.reference.similarity import pairwise_similarity


def info_nce_rule(s: Tensor, positive: Tensor, negative: Tensor, temperature: Tensor | float) -> Tensor:
    """(R, M) similarities and masks -> (R,) losses."""
    z = s / by_row(temperature, s)
    lse, no_negative = log_sum_exp(z, negative)
    term = positive & ~no_negative.unsqueeze(1)
    terms = torch.where(term, softplus(torch.where(term, lse.unsqueeze(1) - z, 0.0)), 0.0)
    return terms.sum(dim=1) / positive.sum(dim=1).clamp(min=1)


def info_nce(
    rows: Tensor,
    columns: Tensor | None,
    temperature: Tensor | float,
    row_labels: Tensor | None = None,
    column_labels: Tensor | None = None,
    weights: Tensor | None = None,
    similarity: str = "cosine",
    reduction: str = "mean",
    same_id: str = "ignore",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N, D), (M, D) or None -> loss (0-d, or (N,) for "none") in the compute dtype, statistics (13,) float64."""
    if same_id not in ("ignore", "positive", "only"):
        raise ValueError(f"same_id is {same_id!r}; allowed: ignore, positive, only")
    if same_id == "only":
        assert row_labels is not None
        columns, keep, positive, negative = labelled_pairs(rows, columns, row_labels, column_labels, ignore_index)
    else:
        assert columns is not None
        keep, positive, negative = _own_and_labelled(rows, columns, row_labels, column_labels, same_id, ignore_index)
    s = pairwise_similarity(rows, columns, similarity)
    row_loss = info_nce_rule(s, positive, negative, temperature)
    loss = reduce_rows(row_loss, keep, weights, reduction)
    return loss, statistics(s, positive, negative, positive, negative, row_loss, keep, want_stats)


def _own_and_labelled(
    rows: Tensor,
    columns: Tensor,
    row_labels: Tensor | None,
    column_labels: Tensor | None,
    same_id: str,
    ignore_index: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Which rows take part, and the masks of positives and negatives when column i is a positive of row i."""
    own = diagonal(rows, columns)
    keep = ~labels_equal(row_labels, ignore_index, rows)
    usable = ~labels_equal(column_labels, ignore_index, columns).unsqueeze(0)
    if row_labels is None or column_labels is None:
        related = own
    else:
        related = own | same_label(row_labels, column_labels, columns.shape[0])
    return keep, (related if same_id == "positive" else own) & usable, ~related & usable
