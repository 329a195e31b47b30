"""SupReMix: supervised contrastive regression with mixtures for positives and negatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom.mixup._draws import beta
from pairloom.mixup._shares import share
from pairloom.mixup._two_targets import reduced
from pairloom.reference._rows import log_sum_exp
from pairloom.reference.similarity import compute_dtype, unit_rows
from pairloom.streaming import RowContext, stream_rows

DISTANCE_WEIGHTS = {
    "l1_inv": lambda distance: distance + 1,
    "l1": lambda distance: distance,
    "l2": lambda distance: distance.square(),
    "l2_inv": lambda distance: distance.square() + 1,
    "none": torch.ones_like,
}
REDUCTIONS = ("mean", "sum", "none")
CHUNK_ENTRIES = 1 << 20
"""Mixtures and pairs that are looked at together."""


def supremix(
    embeddings: Tensor,
    targets: Tensor,
    *,
    lam: Tensor | float,
    window: float = 5.0,
    temperature: float = 0.3,
    distance_weights: str = "l1_inv",
    partners: Tensor | None = None,
    detach: bool = True,
    reduction: str = "mean",
) -> Tensor:
    r"""Contrastive regression in which every anchor also meets mixtures.

        negatives   v = l z_i + (1 - l) z_k  for every k with y_k != y_i:  label l y_i + (1 - l) y_k
        positives   v = a z_j + (1 - a) z_k  for y_j < y_i < y_k, both in the window, a = (y_k - y_i) / (y_k - y_j)
        L_i = -1/|P_i| sum_{p in P_i} log( e^{z_i.p/t} / sum_a w(|y_i - y_a|) e^{z_i.a/t} )

    P_i: rows with the label of i, and all its mixed positives; a: all other rows and all mixtures, under one shift.
    Mixtures are not normalised again, so that their similarities are those of their parents, mixed: none is formed.

    Args:
        embeddings: (N, D) float, normalised here; both views of a batch, one behind the other.
        targets: (N,) float or integer labels y, finite.
        lam: the anchor's share of the negative mixtures: a number, (N,) for each anchor, or (N, N) for each pair.
        window: how near labels of a positive's parents must be, above 0.
        temperature: above 0.
        distance_weights: w of a label distance d: "l1_inv" d + 1, "l1" d, "l2" d^2, "l2_inv" d^2 + 1, or "none" 1.
        partners: (N, P) int64 rows that the anchor is mixed with, -1 for none; None: all of another label.
        detach: mixtures are constants, as in the public code: gradients reach the anchor and the other rows, but no
            parent through a mixture. False: they reach all.
        reduction: "mean", "sum" or "none".

    Returns:
        0-d, or (N,); float64 if embeddings are, else float32. 0 for an anchor without a positive.

    Raises:
        TypeError, ValueError: arguments that do not fit, labels that are not finite.

    Cost: 2 N N D flops (4 when detached), and some 20 for each mixture: N for the negatives of an anchor, J K for its
    positives, J and K the rows of its window below and above. O(N D) memory and one chunk.

    Source: Wu et al., "Mixup Your Own Pairs: Supervised Contrastive Regression", 2023. The public code shifts the
    exponents of rows and of mixtures by maxima of their own, which weighs one block against the other; keeps only
    mixtures that every row has; and sorts labels apart from the mixtures they belong to. Here is the paper's formula.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [-0.6, 0.8]])
        >>> y = torch.tensor([2.0, 2.0, 4.0, 1.0])
        >>> partners = torch.tensor([[2], [-1], [-1], [-1]])
        >>> losses = pairloom.mixup.supremix(x, y, lam=0.2, partners=partners, reduction="none")
        >>> f"{losses[0].item():.6f}"
        '2.468405'
    """
    _checks.embeddings("embeddings", embeddings)
    n = embeddings.shape[0]
    y = _labels(targets, embeddings)
    for name, value in (("window", window), ("temperature", temperature)):
        _checks.positive_number(name, value)
    _checks.choice("distance_weights", distance_weights, tuple(DISTANCE_WEIGHTS))
    _checks.flag("detach", detach)
    _checks.choice("reduction", reduction, REDUCTIONS)
    part = share("lam", lam, [(), (n,), (n, n)]).detach().to(embeddings.device)
    if partners is not None:
        _check_partners(partners, embeddings)
    # In the order of their labels, the rows of a window lie side by side.
    order = y.argsort(stable=True)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(n, device=order.device))
    y = y[order]
    dtype = compute_dtype(embeddings)
    z = unit_rows(embeddings.to(dtype))[order]
    sorted_part = part[order][:, order] if part.dim() == 2 else part[order] if part.dim() else part.expand(n)
    own_first, own_last = torch.searchsorted(y, y), torch.searchsorted(y, y, right=True)
    # Where float64 has no numbers within the window, it holds the own label alone.
    low = torch.searchsorted(y, y - window, right=True).minimum(own_first)
    high = torch.searchsorted(y, y + window).maximum(own_last)
    row_args = [y, sorted_part, low, own_first, own_last, high]
    if partners is not None:
        own = partners[order]
        row_args.append(torch.where(own < 0, -1, place[own.clamp(min=0)]))
    rule = _Rule(temperature, distance_weights, detach)
    below, above = (int((stop - start).max()) if n else 0 for start, stop in (row_args[2:4], row_args[4:6]))
    columns = torch.cat([z, z.detach()]) if detach else z
    row_bytes = z.element_size() * columns.shape[0]
    rows = max(CHUNK_ENTRIES // max(below * above + 2 * columns.shape[0], 1), 1)
    losses = stream_rows(
        rule, z, columns, similarity="dot", row_args=tuple(row_args), column_args=(y.repeat(2) if detach else y,),
        chunk_bytes=rows * max(row_bytes, 1),
    )  # fmt: skip
    return reduced(losses[place], reduction)


class _Rule:
    """The losses of some anchors from their similarities with all rows, in the order of the labels."""

    def __init__(self, temperature: float, distance_weights: str, detach: bool) -> None:
        self.temperature = temperature
        self.weight = DISTANCE_WEIGHTS[distance_weights]
        self.detach = detach

    def __call__(self, s: Tensor, ctx: RowContext) -> Tensor:
        y, part, *window = ctx.row_args
        partners = window[4] if len(window) > 4 else None
        (labels,) = ctx.column_args
        z = s / self.temperature
        n = z.shape[1] // 2 if self.detach else z.shape[1]
        # Similarities with rows, and with rows as the constants that mixtures are made of.
        real, parents = (z[:, :n], z[:, n:]) if self.detach else (z, z)
        distance = (y.unsqueeze(1) - labels[:n]).abs().to(z.dtype)
        others = torch.arange(n, device=z.device) != ctx.rows.unsqueeze(1)
        positive = others & (distance == 0)
        terms = [(real, self.weight(distance), others)]
        itself = parents.gather(1, ctx.rows.unsqueeze(1))
        own = part if part.dim() == 2 else part.unsqueeze(1)
        if partners is None:
            second, apart, mixed = parents, distance, distance > 0
        else:
            at = partners.clamp(min=0)
            second, apart = parents.gather(1, at), distance.gather(1, at)
            mixed = (partners >= 0) & (apart > 0)
            own = own.gather(1, at) if part.dim() == 2 else own
        own = own.to(z.dtype)
        terms.append((own * itself + (1 - own) * second, self.weight((1 - own) * apart), mixed))
        between, there = self._between(parents, y, labels[:n], *window[:4])
        terms.append((between, self.weight(torch.zeros_like(between)), there))
        logits, weights, masks = (torch.cat(columns, dim=1) for columns in zip(*terms, strict=True))
        counts = masks & (weights > 0)
        total, empty = log_sum_exp(logits + torch.where(counts, weights, 1.0).log(), counts)
        wanted = torch.where(positive, real, 0.0).sum(1) + torch.where(there, between, 0.0).sum(1)
        size = positive.sum(1) + there.sum(1)
        loss = torch.where(empty, 0.0, total) - wanted / size.clamp(min=1)
        return torch.where(size > 0, loss, 0.0)

    def _between(
        self, parents: Tensor, y: Tensor, labels: Tensor, low: Tensor, own: Tensor, above: Tensor, high: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(R, J K) mixed positives: of a row below the anchor's label and one above, in proportion."""
        lower, is_lower = _run(low, own)
        upper, is_upper = _run(above, high)
        y = y.unsqueeze(1)
        gap_below, gap_above = y - labels[lower], labels[upper] - y  # above 0 where they count
        first = parents.gather(1, lower).unsqueeze(2)
        second = parents.gather(1, upper).unsqueeze(1)
        there = is_lower.unsqueeze(2) & is_upper.unsqueeze(1)
        span = torch.where(there, gap_below.unsqueeze(2) + gap_above.unsqueeze(1), 1.0)
        share = (torch.where(there, gap_above.unsqueeze(1), 0.0) / span).to(parents.dtype)
        return (share * first + (1 - share) * second).flatten(1), there.flatten(1)


def _run(begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Columns [begin, end) of every row, (R, longest), and which of them are there."""
    longest = int((end - begin).max()) if begin.numel() else 0
    columns = begin.unsqueeze(1) + torch.arange(longest, device=begin.device)
    there = columns < end.unsqueeze(1)
    return torch.where(there, columns, 0), there


def _labels(targets: Any, embeddings: Tensor) -> Tensor:
    """(N,) float64."""
    if not isinstance(targets, Tensor):
        raise TypeError(f"targets is a {type(targets).__name__}; it must be a torch.Tensor")
    if targets.dtype == torch.bool or targets.is_complex():
        raise TypeError(f"targets has dtype {str(targets.dtype).removeprefix('torch.')}; labels are real numbers")
    if targets.shape != embeddings.shape[:1]:
        raise ValueError(f"targets has shape {tuple(targets.shape)}; it must be ({embeddings.shape[0]},)")
    _checks.same_device("targets", targets, "embeddings", embeddings)
    y = targets.detach().to(torch.float64)
    if _checks.values_readable(y) and not bool(y.isfinite().all()):
        raise ValueError("targets holds values that are not finite; labels have distances")
    return y


def _check_partners(partners: Any, embeddings: Tensor) -> None:
    n = embeddings.shape[0]
    if not isinstance(partners, Tensor):
        raise TypeError(f"partners is a {type(partners).__name__}; it must be a torch.Tensor")
    if partners.dim() != 2 or partners.shape[0] != n:
        raise ValueError(f"partners has shape {tuple(partners.shape)}; it must be ({n}, partners)")
    _checks.row_indices("partners", partners.flatten(), "embeddings", embeddings, none=True)


class SupReMixLoss(nn.Module):
    """`supremix` that draws the anchors' shares from Beta(2, 8), one for each anchor: small shares, hard negatives.

    Args:
        window: how near labels of a positive's parents must be.
        temperature: above 0.
        alpha: the shares' distribution is Beta(alpha, beta).
        beta: see alpha.
        distance_weights: as of `supremix`.
        detach: as of `supremix`.
        generator: of the draws, on the CPU.

    Example:
        >>> import torch, pairloom
        >>> loss = pairloom.mixup.SupReMixLoss(window=3.0)
        >>> embeddings = torch.randn(8, 4, requires_grad=True)
        >>> loss(embeddings, torch.arange(8) // 2).backward()
        >>> bool(embeddings.grad.isfinite().all())
        True
    """

    def __init__(
        self,
        window: float = 5.0,
        temperature: float = 0.3,
        *,
        alpha: float = 2.0,
        beta: float = 8.0,
        distance_weights: str = "l1_inv",
        detach: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("window", window), ("temperature", temperature), ("alpha", alpha), ("beta", beta)):
            _checks.positive_number(name, value)
        _checks.choice("distance_weights", distance_weights, tuple(DISTANCE_WEIGHTS))
        _checks.flag("detach", detach)
        self.alpha, self.beta = alpha, beta
        self.settings: dict[str, Any] = {
            "window": window,
            "temperature": temperature,
            "distance_weights": distance_weights,
            "detach": detach,
        }
        self.generator = generator

    def forward(self, embeddings: Tensor, targets: Tensor) -> Tensor:
        """(N, D), (N,) -> 0-d."""
        lam = beta(self.alpha, self.beta, (len(embeddings),), self.generator)
        return supremix(embeddings, targets, lam=lam, **self.settings)

    def extra_repr(self) -> str:
        """The settings."""
        given = {"alpha": self.alpha, "beta": self.beta, **self.settings}
        return ", ".join(f"{name}={value!r}" for name, value in given.items())
