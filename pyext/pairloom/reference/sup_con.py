"""Supervised contrastive loss, with the mean over positives outside or inside the logarithm.

    z_ij = s(rows_i, columns_j) / temperature_i,  A_i = P_i and N_i together
    out    L_i = mean_{p in P_i} ( lse_{a in A_i} z_ia - z_ip )
    in     L_i = lse_{a in A_i} z_ia - ( lse_{p in P_i} z_ip - log |P_i| )

    P_i: columns with the label of row i, N_i: the others. Without columns: one batch against itself, (i, i) is no pair.
    No positives: L_i = 0. A row labelled ignore_index leaves the loss, a column so labelled is no pair.

Source: Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020 (L_out and L_in). By Jensen L_in <= L_out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference._rows import by_row, labelled_pairs, log_sum_exp, reduce_rows, softplus, statistics
from pairloom.reference.similarity import pairwise_similarity


def sup_con_rule(s: Tensor, positive: Tensor, negative: Tensor, temperature: Tensor | float, form: str) -> Tensor:
    """(R, M) similarities and masks -> (R,) losses."""
    z = s / by_row(temperature, s)
    log_positives, no_positive = log_sum_exp(z, positive)
    log_negatives, no_negative = log_sum_exp(z, negative)
    count = positive.sum(dim=1).clamp(min=1)
    # log |P| + softplus(lse_N - lse_P) instead of a difference of large numbers: exact when the loss is near 0.
    some = ~no_positive & ~no_negative
    ratio = torch.where(some, log_negatives - log_positives, 0.0)
    inside = count.to(z.dtype).log() + torch.where(some, softplus(ratio), 0.0)
    if form == "in":
        return torch.where(no_positive, 0.0, inside)
    # Mean of lse_A - z_p = (lse_A - lse_P) + mean of (lse_P - z_p); the second is 0 for one positive.
    spread = torch.where(positive & (count > 1).unsqueeze(1), log_positives.unsqueeze(1) - z, 0.0).sum(dim=1) / count
    return torch.where(no_positive, 0.0, torch.where(some, softplus(ratio), 0.0) + spread)


def sup_con(
    rows: Tensor,
    columns: Tensor | None,
    temperature: Tensor | float,
    row_labels: Tensor,
    column_labels: Tensor | None = None,
    weights: Tensor | None = None,
    form: str = "out",
    similarity: str = "cosine",
    reduction: str = "mean",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N, D), (M, D) or None -> loss (0-d, or (N,) for "none") in the compute dtype, statistics (13,) float64."""
    if form not in ("out", "in"):
        raise ValueError(f"form is {form!r}; allowed: out, in")
    columns, keep, positive, negative = labelled_pairs(rows, columns, row_labels, column_labels, ignore_index)
    s = pairwise_similarity(rows, columns, similarity)
    row_loss = sup_con_rule(s, positive, negative, temperature, form)
    loss = reduce_rows(row_loss, keep, weights, reduction)
    return loss, statistics(s, positive, negative, positive, negative, row_loss, keep, want_stats)
