"""Circle loss of every anchor: each pair pulls as strongly as it is far from its optimum; that weight is a constant.

    a_p = sg[1 + m - s_ip]_+,   a_n = sg[s_in + m]_+          sg: no gradient
    L_i = log(1 + sum_{n in N_i} e^{gamma a_n (s_in - m)}  sum_{p in P_i} e^{-gamma a_p (s_ip - 1 + m)})

    The gradient holds a_p and a_n constant, so it is not the derivative of L. No positives or no negatives: L_i = 0.

Source: Sun et al., "Circle Loss: A Unified Perspective of Pair Similarity Optimization", CVPR 2020.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference._rows import labelled_loss, log_sum_exp, softplus


def circle_rule(s: Tensor, positive: Tensor, negative: Tensor, m: float, gamma: float) -> Tensor:
    """(R, M) similarities and masks -> (R,) losses."""
    return circle_of_weights(s, positive, negative, *circle_weights(s.detach(), m), m, gamma)


def circle_weights(s: Tensor, m: float) -> tuple[Tensor, Tensor]:
    """How strongly a similarity pulls as a positive, and as a negative; "not <= 0" keeps NaN."""
    short, over = 1 + m - s, s + m
    return torch.where(short <= 0, 0.0, short), torch.where(over <= 0, 0.0, over)


def circle_of_weights(
    s: Tensor, positive: Tensor, negative: Tensor, as_positive: Tensor, as_negative: Tensor, m: float, gamma: float
) -> Tensor:
    """The loss for given weights: the function whose derivative is the gradient of the circle loss."""
    far, no_positive = log_sum_exp(-gamma * as_positive * (s - (1 - m)), positive)
    near, no_negative = log_sum_exp(gamma * as_negative * (s - m), negative)
    nothing = no_positive | no_negative
    return torch.where(nothing, 0.0, softplus(torch.where(nothing, 0.0, far + near)))


def circle(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    weights: Tensor | None,
    m: float = 0.4,
    gamma: float = 80.0,
    similarity: str = "cosine",
    reduction: str = "mean",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N, D), (M, D) or None -> loss (0-d, or (N,) for "none") in the compute dtype, statistics (13,) float64."""

    def rule(s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return circle_rule(s, positive, negative, m, gamma)

    return labelled_loss(
        rule,
        rows,
        columns,
        row_labels,
        column_labels,
        weights,
        similarity,
        reduction,
        ignore_index,
        want_stats,
        mean="nonzero",
    )
