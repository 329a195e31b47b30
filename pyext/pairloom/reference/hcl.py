"""Contrastive loss with debiased, hard-weighted negatives of every anchor (HCL); debiased only with concentration = 0.

    z_ij = s_ij / temperature_i,  w_n = e^{concentration z_in} / mean_{k in N_i} e^{concentration z_ik}
    g_ip = max( (sum_{n in N_i} w_n e^{z_in} - tau_plus |N_i| e^{z_ip}) / (1 - tau_plus), |N_i| e^{-1 / temperature_i} )
    L_i  = mean_{p in P_i} log(1 + g_ip e^{-z_ip})

    The weights have a gradient, as in the authors' code. No positives or no negatives: L_i = 0.

Source: Robinson et al., "Contrastive Learning with Hard Negative Samples", ICLR 2021; Chuang et al., "Debiased
Contrastive Learning", NeurIPS 2020 (concentration = 0).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pairloom.reference._rows import by_row, labelled_loss, log_sum_exp, softplus


def hcl_rule(
    s: Tensor, positive: Tensor, negative: Tensor, temperature: Tensor | float, concentration: float, tau_plus: float
) -> Tensor:
    """(R, M) similarities and masks -> (R,) losses."""
    scale = by_row(temperature, s)
    z = s / scale
    count = negative.sum(1)
    # All in logarithms: log sum w e^z = lse (1 + concentration) z - lse concentration z + log |N|.
    steep, no_negative = log_sum_exp((1 + concentration) * z, negative)
    flat, _ = log_sum_exp(concentration * z, negative)
    log_count = count.clamp(min=1).to(z.dtype).log()
    hard = (steep - flat + log_count).unsqueeze(1)
    pair = positive & ~no_negative.unsqueeze(1)
    own = torch.where(pair, z, 0.0)
    # log of g e^{-z_p} throughout: with a = hard - z_p it is a + log(1 - tau_plus |N| e^{-a}) - log(1 - tau_plus).
    ahead = torch.where(pair, hard - own, 0.0)
    expected = tau_plus * count.unsqueeze(1)
    negative_mass = ahead.detach() <= torch.log(expected.to(z.dtype))  # nothing is left after the subtraction
    ahead = torch.where(negative_mass, 0.0, ahead)
    left = torch.where(negative_mass, 0.0, expected * torch.exp(-ahead))
    log_g = ahead + torch.log1p(-left) - math.log1p(-tau_plus)
    log_floor = torch.where(pair, log_count.unsqueeze(1) - 1 / scale - own, 0.0)
    exponent = torch.where(negative_mass | (log_g <= log_floor), log_floor, log_g)
    terms = torch.where(pair, softplus(exponent), 0.0)
    return terms.sum(1) / positive.sum(1).clamp(min=1)


def hcl(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    weights: Tensor | None,
    temperature: Tensor | float = 0.5,
    concentration: float = 1.0,
    tau_plus: float = 0.1,
    similarity: str = "cosine",
    reduction: str = "mean",
    ignore_index: int | None = -100,
    want_stats: bool = False,
) -> tuple[Tensor, Tensor]:
    """(N, D), (M, D) or None -> loss (0-d, or (N,) for "none") in the compute dtype, statistics (13,) float64."""

    def rule(s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return hcl_rule(s, positive, negative, temperature, concentration, tau_plus)

    return labelled_loss(
        rule, rows, columns, row_labels, column_labels, weights, similarity, reduction, ignore_index, want_stats
    )
