"""How well embeddings cover the space where queries lie."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pairloom import _checks
from pairloom.reference.similarity import compute_dtype, unit_rows
from pairloom.scoring import topk


def utilization(queries: Tensor, clean: Tensor, mixed: Tensor | None = None) -> float:
    """Mean squared distance of a query to the nearest embedding; lower is better covered.

        u = mean_q min_{f in F} || N(q) - N(f) ||^2

    with F the clean embeddings of training, or these and mixtures: what mixtures win is the difference of the two.

    Args:
        queries: (Q, D) float embeddings, of classes or images not seen in training.
        clean: (M, D) embeddings of training.
        mixed: (V, D) mixtures of them.

    Returns:
        A number from 0 to 4; NaN without a query or without an embedding, and where a query has NaN.

    Raises:
        TypeError: embeddings that are not float.
        ValueError: shapes or devices that do not fit.

    Cost: that of `pairloom.topk` with k = 1; the Q x M matrix is never held.

    Source: Venkataramanan et al., "It Takes Two to Tango: Mixup for Deep Metric Learning", ICLR 2022.

    Example:
        >>> import torch, pairloom
        >>> clean = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> middle = torch.tensor([[0.6, 0.8]])
        >>> f"{pairloom.mixup.utilization(middle, clean):.4f}, {pairloom.mixup.utilization(middle, clean, middle):.4f}"
        '0.4000, 0.0000'
    """
    _checks.embeddings("queries", queries, clean=clean, mixed=mixed)
    sets = [clean] if mixed is None else [clean, mixed]
    if len(queries) == 0 or not any(len(rows) for rows in sets):
        return math.nan
    dtype = compute_dtype(queries, *sets)
    with torch.no_grad():
        unit = unit_rows(queries.to(dtype))
        nearest = [topk(unit, unit_rows(rows.to(dtype)), 1, similarity="squared_euclidean")[0] for rows in sets]
        distances = -torch.cat(nearest, dim=1).amax(dim=1).to(torch.float64)
        return float(torch.where(distances.isfinite(), distances, torch.nan).mean())
