"""Proxy-Anchor loss: every proxy is the anchor of all embeddings. Rows are proxies, columns are embeddings.

    L = mean_{c in C+} log(1 + sum_{p in P_c} e^{-alpha (s_cp - margin)})
        + mean_c log(1 + sum_{n in N_c} e^{alpha (s_cn + margin)})

    C+ are the proxies with a positive; the second mean is over all proxies. Without positives, or without negatives,
    that term of a proxy is 0.

Source: Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference._rows import Terms, labelled_loss, log_one_plus_sum_exp


def proxy_anchor_rule(
    s: Tensor, positive: Tensor, negative: Tensor, margin: float, alpha: float
) -> tuple[Terms, Terms]:
    """(R, M) similarities and masks -> the terms of positives and of negatives, one of each in a row."""
    pull = log_one_plus_sum_exp(-alpha * (s - margin), positive)
    push = log_one_plus_sum_exp(alpha * (s + margin), negative)
    return (
        Terms(pull, ~(pull.detach() <= 0), positive.any(dim=1)),  # "not <= 0", so that NaN counts
        Terms(push, ~(push.detach() <= 0), torch.ones_like(push, dtype=torch.bool)),
    )


def proxy_anchor(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    weights: Tensor | None,
    margin: float = 0.1,
    alpha: float = 32.0,
    similarity: str = "cosine",
    reduction: str = "mean",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(C, D), (N, D) -> loss (0-d, or (C,) for "none") in the compute dtype, statistics (11,) float64."""

    def rule(s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Terms, Terms]:
        return proxy_anchor_rule(s, positive, negative, margin, alpha)

    return labelled_loss(
        rule, rows, columns, row_labels, column_labels, weights, similarity, reduction, ignore_index, want_stats
    )
