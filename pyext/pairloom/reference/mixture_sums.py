"""Sums over all mixtures of every anchor, from similarities of unit rows alone.

A mixture of unit rows x1 and x2 is v = l x1 + m x2 with m = 1 - l, divided by its length:

    s(a, v) = (l s(a, x1) + m s(a, x2)) / |v|,      |v|^2 = (l - m)^2 + 2 l m (1 + s(x1, x2))
    sums_a = ( sum_v l f+(s(a, v)),  sum_v m f-(s(a, v)) )

over x1 the positives of the anchor ("positive_negative"), the anchor itself ("anchor_negative") or both, and x2 all
its negatives. A term f is t, max(t, 0), log(1 + e^t) or e^t with t = scale (s - offset); of exponential terms the sum
is its logarithm, -inf for no mixture. Where |v| is below 1e-12, s(a, v) is 0 without gradient.

Source: Venkataramanan et al., "It Takes Two to Tango: Mixup for Deep Metric Learning", ICLR 2022: the general form.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom.reference._rows import log_sum_exp, softplus
from pairloom.reference.similarity import NORM_FLOOR


def mixture_sums(
    s: Tensor,
    among: Tensor,
    among_first: int,
    begin: Tensor,
    end: Tensor,
    own: Tensor,
    lam: Tensor,
    pairs: str,
    positive_term: str,
    positive_scale: float,
    positive_offset: float,
    negative_term: str,
    negative_scale: float,
    negative_offset: float,
) -> Tensor:
    """(R, M), (K, M): similarities of R anchors, and of the columns from ``among_first`` on, with M columns -> (R, 2).

    Columns [begin, end) (R,) have the anchor's class; ``own`` (R,) is the column that is the anchor itself, or -1.
    ``lam`` is the share of x1: 0-d, (R,), or of every pair, (K, M), with "anchor_negative" (R, M). Memory O(R K M).
    """
    rows, columns = s.shape
    column = torch.arange(columns, device=s.device)
    negative = ((column < begin.unsqueeze(1)) | (column >= end.unsqueeze(1))).unsqueeze(1)  # (R, 1, M)
    firsts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    share = lam if lam.dim() == 0 else lam.view(rows, 1, 1) if lam.dim() == 1 else lam
    if pairs != "anchor_negative":
        number = among_first + torch.arange(among.shape[0], device=s.device)
        positive = (number >= begin.unsqueeze(1)) & (number < end.unsqueeze(1)) & (number != own.unsqueeze(1))
        similar = s.narrow(1, among_first, among.shape[0]).unsqueeze(2)
        firsts.append((similar, among.unsqueeze(0), positive.unsqueeze(2) & negative, share))
    if pairs != "positive_negative":
        similar = torch.ones_like(begin, dtype=s.dtype)
        if columns:
            itself = s.detach().gather(1, own.clamp(min=0).unsqueeze(1)).squeeze(1)
            similar = torch.where((own >= 0) & ~(itself > 0.5), itself, similar)  # a zero row is not similar to itself
        by_anchor = share.unsqueeze(1) if lam.dim() == 2 else share
        firsts.append((similar.view(rows, 1, 1), s.unsqueeze(1), negative, by_anchor))
    mixtures = [_mixed(first, met, s.unsqueeze(1), mask, own_lam) for first, met, mask, own_lam in firsts]
    mixed, weight, mask = (torch.cat(parts, dim=1) for parts in zip(*mixtures, strict=True))
    positive = term_sum(mixed, weight, mask, positive_term, positive_scale, positive_offset)
    return torch.stack([positive, term_sum(mixed, 1 - weight, mask, negative_term, negative_scale, negative_offset)], 1)


def _mixed(first: Tensor, among: Tensor, second: Tensor, mask: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Similarities of the mixtures, the shares of x1, and which mixtures there are: (R, K M) each."""
    other = 1 - lam
    squares = (lam - other) ** 2 + 2 * lam * other * (1 + among)
    nothing = squares.detach() < NORM_FLOOR**2
    inverse = torch.where(nothing, 0.0, torch.where(nothing, 1.0, squares).rsqrt())
    mixed = (lam * first + other * second) * inverse
    shape = torch.broadcast_shapes(mixed.shape, mask.shape)
    share = lam.to(mixed.dtype).expand(shape)
    return tuple(x.expand(shape).flatten(1) for x in (mixed, share, mask))  # type: ignore[return-value]


def term_sum(s: Tensor, weight: Tensor, mask: Tensor, term: str, scale: float, offset: float) -> Tensor:
    """(R, V) similarities, weights, and which of them count -> (R,) sums; of exponential terms the logarithm."""
    t = scale * (torch.where(mask, s, offset) - offset)
    if term == "exponential":
        counts = mask & (weight > 0)
        value, empty = log_sum_exp(t + torch.where(counts, weight, 1.0).log(), counts)
        return torch.where(empty, -torch.inf, value)
    if term == "hinge":
        t = t.clamp(min=0)
    elif term == "softplus":
        t = softplus(t)
    return torch.where(mask, weight * t, 0.0).sum(1)
