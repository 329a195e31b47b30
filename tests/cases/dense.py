"""Dense float64 formulas, written apart from the package: the right values of the cases."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """(N, M) cosine similarities in float64."""
    return F.normalize(a.double(), dim=1) @ F.normalize(b.double(), dim=1).T


def info_nce_rows(similarities: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """(N,) losses from (N, M) similarities and masks: the mean over positives of log(1 + sum_n e^{z_n - z_p})."""
    z = similarities / temperature
    losses = []
    for row, is_positive, is_negative in zip(z, positive, negative, strict=True):
        terms = [
            torch.logsumexp(torch.cat([row[p : p + 1], row[is_negative]]), 0) - row[p] for p in is_positive.nonzero()
        ]
        losses.append(torch.stack(terms).mean() if terms else row.new_zeros(()))
    return torch.stack(losses).reshape(len(z))


def multi_similarity_rows(
    similarities: Tensor, positive: Tensor, negative: Tensor, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5
) -> Tensor:
    """(N,) losses without mining."""
    zero = similarities.new_zeros(len(similarities), 1)
    up = torch.where(positive, -alpha * (similarities - base), -torch.inf)
    down = torch.where(negative, beta * (similarities - base), -torch.inf)
    return torch.logsumexp(torch.cat([zero, up], 1), 1) / alpha + torch.logsumexp(torch.cat([zero, down], 1), 1) / beta
