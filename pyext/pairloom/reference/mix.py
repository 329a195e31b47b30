"""Mixtures of pairs of rows.

    v = l x[first] + (1 - l) others[partner],      mixed = v, or N(v) = v / ||v||

where the partner -1 is none: v = x[first]. Without ``others`` partners are rows of x; without ``first`` every row of x
is mixed once. N(v) = 0 without gradient where ||v|| < 1e-12.

Source: Zhang, Cisse, Dauphin, Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference.similarity import compute_dtype, unit_rows


def mix(
    x: Tensor, others: Tensor | None, first: Tensor | None, partner: Tensor, lam: Tensor, normalize: bool
) -> Tensor:
    """(N, D), (M, D), (V,), (V,), 0-d or (V,) -> (V, D) in the compute dtype."""
    dtype = compute_dtype(x) if others is None else compute_dtype(x, others)
    rows = x.to(dtype) if first is None else x.to(dtype).index_select(0, first)
    pool = x.to(dtype) if others is None else others.to(dtype)
    # Shares are rounded after 1 - l, so that they are right in float32 too.
    share = lam.to(torch.float64).expand(rows.shape[:1]).unsqueeze(1)
    first_share, second_share = share.to(dtype), (1 - share).to(dtype)
    if pool.shape[0] == 0:  # no row that anyone could have for a partner
        mixed = rows
    else:
        alone = (partner < 0).unsqueeze(1)
        seconds = pool.index_select(0, partner.clamp(min=0))
        mixed = torch.where(alone, rows, first_share * rows + second_share * torch.where(alone, 0.0, seconds))
    return unit_rows(mixed) if normalize else mixed
