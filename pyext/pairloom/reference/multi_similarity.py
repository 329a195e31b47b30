"""Multi-Similarity loss, and its miner inside (``epsilon``).

    L_i = 1/alpha log( 1 + sum_{p in P_i} e^{-alpha (s_ip - base)} )
          + 1/beta log( 1 + sum_{n in N_i} e^{beta (s_in - base)} )

    P_i: columns with the label of row i, N_i: the others. Without columns: one batch against itself, (i, i) is no pair.
    With epsilon only the hard pairs stay, both judged against the unmined opposite set:
        negative n stays when s_in + epsilon > min_P s_ip,    positive p stays when s_ip - epsilon < max_N s_in
    and a row without positives or without negatives keeps nothing (L_i = 0, counted in the mean).
    The choice of pairs has no gradient. A row labelled ignore_index leaves the loss, a column so labelled is no pair.

Source: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019; the mean
over all rows as in its code and in pytorch-metric-learning.
"""

from __future__ import annotations

from torch import Tensor

from pairloom.reference._rows import labelled_pairs, log_one_plus_sum_exp, reduce_rows, row_max, statistics
from pairloom.reference.similarity import pairwise_similarity


def hard_pairs(s: Tensor, positive: Tensor, negative: Tensor, epsilon: float | None) -> tuple[Tensor, Tensor]:
    """Masks of the pairs that the miner keeps; all of them without ``epsilon``."""
    if epsilon is None:
        return positive, negative
    both = (positive.any(dim=1) & negative.any(dim=1)).unsqueeze(1)
    hardest_positive = -row_max(-s, positive).unsqueeze(1)
    hardest_negative = row_max(s, negative).unsqueeze(1)
    # "not <=" instead of ">": pairs with NaN stay, so that NaN input is never hidden by the miner.
    mined_negative = negative & both & ~(s.detach() + epsilon <= hardest_positive)
    mined_positive = positive & both & ~(s.detach() - epsilon >= hardest_negative)
    return mined_positive, mined_negative


def multi_similarity_rule(
    s: Tensor,
    positive: Tensor,
    negative: Tensor,
    alpha: float,
    beta: float,
    base: float,
    epsilon: float | None = None,
) -> Tensor:
    """(R, M) similarities and masks -> (R,) losses."""
    positive, negative = hard_pairs(s, positive, negative, epsilon)
    positive_term = log_one_plus_sum_exp(-alpha * (s - base), positive) / alpha
    return positive_term + log_one_plus_sum_exp(beta * (s - base), negative) / beta


def multi_similarity(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None = None,
    weights: Tensor | None = None,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float | None = None,
    similarity: str = "cosine",
    reduction: str = "mean",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N, D), (M, D) or None -> loss (0-d, or (N,) for "none") in the compute dtype, statistics (13,) float64."""
    columns, keep, positive, negative = labelled_pairs(rows, columns, row_labels, column_labels, ignore_index)
    s = pairwise_similarity(rows, columns, similarity)

    mined_positive, mined_negative = hard_pairs(s, positive, negative, epsilon)
    row_loss = multi_similarity_rule(s, mined_positive, mined_negative, alpha, beta, base)

    loss = reduce_rows(row_loss, keep, weights, reduction)
    return loss, statistics(s, positive, negative, mined_positive, mined_negative, row_loss, keep, want_stats)
