"""MoCHi: momentum contrast with synthetic hard negatives."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom._dispatch import in_transform
from pairloom.losses.moco import moco
from pairloom.mixup._two_targets import reduced
from pairloom.mixup.mix import mix
from pairloom.reference.similarity import compute_dtype, unit_rows
from pairloom.scoring import topk

CHUNK_ENTRIES = 1 << 20
"""Numbers of the synthetic negatives that exist at a time."""
REDUCTIONS = ("mean", "sum", "none")


class HardMixtures(NamedTuple):
    """Which synthetic negatives every query gets: mixtures of its hard negatives, and of the query with these."""

    first: Tensor
    """(B, S) rows of the queue, or -1: no mixture."""
    second: Tensor
    """(B, S) rows of the queue."""
    share: Tensor
    """(B, S) of ``first``."""
    partner: Tensor
    """(B, S') rows of the queue that the query itself is mixed with, or -1: no mixture."""
    query_share: Tensor
    """(B, S') of the query."""


@torch.no_grad()
def draw_hard_mixtures(
    query: Tensor,
    queue: Tensor,
    *,
    hardest: int = 1024,
    synthetic: int = 1024,
    harder: int = 128,
    generator: torch.Generator | None = None,
) -> HardMixtures:
    """Pairs of every query's hardest negatives, at random.

    Args:
        query: (B, D) float.
        queue: (M, D) negatives.
        hardest: the most similar rows of the queue that pairs are drawn from; all of it where it is shorter.
        synthetic: mixtures of two of these for each query, with a share uniform on [0, 1).
        harder: mixtures of one of these with the query, whose share is uniform on [0, 1/2).
        generator: of the draws, on the CPU.

    Returns:
        Row numbers and shares. A query without any hard negative (empty queue, NaN) gets no mixture.

    Raises:
        TypeError, ValueError: arguments that do not fit.

    Cost: `pairloom.topk` with k = hardest; O(B (hardest + synthetic + harder)) memory.

    Example:
        >>> import torch, pairloom
        >>> query, queue = torch.eye(3)[:2], torch.eye(3)
        >>> drawn = pairloom.mixup.draw_hard_mixtures(query, queue, hardest=2, synthetic=5, harder=4)
        >>> drawn.first.shape, drawn.partner.shape
        (torch.Size([2, 5]), torch.Size([2, 4]))
    """
    _checks.embeddings("query", query, queue=queue)
    _count_settings(hardest, synthetic, harder)
    _, hard = topk(query, queue, min(hardest, queue.shape[0]))
    found = (hard >= 0).sum(1, keepdim=True)  # those with NaN stand at the end, as -1

    def uniform(columns: int) -> Tensor:
        return torch.rand(query.shape[0], columns, generator=generator, dtype=torch.float64).to(query.device)

    def pick(columns: int) -> Tensor:
        place = (uniform(columns) * found).long()
        if hard.shape[1] == 0:
            return torch.full_like(place, -1)
        return torch.where(found > 0, hard.gather(1, place.clamp(max=hard.shape[1] - 1)), -1)

    return HardMixtures(
        first=pick(synthetic),
        second=pick(synthetic),
        share=uniform(synthetic),
        partner=pick(harder),
        query_share=uniform(harder) / 2,
    )


def mochi(
    query: Tensor,
    key: Tensor,
    queue: Tensor,
    mixtures: HardMixtures,
    *,
    temperature: float = 0.2,
    reduction: str = "mean",
) -> Tensor:
    r"""Momentum contrast, with synthetic negatives beside the queue.

        L_i = -log( e^{z(k_i)} / ( e^{z(k_i)} + sum_j e^{z(n_j)} + sum_v e^{z(v)} ) ),      z = s(query_i, .) / t
        v = N(a n_f + (1 - a) n_g)  and  v = N(b q_i + (1 - b) n_g)    over the mixtures of query i

    Synthetic negatives are constants, the query inside them too: the gradient goes to the queries, as in MoCo.

    Args:
        query: (B, D) float, normalised here.
        key: (B, D) of the momentum encoder.
        queue: (M, D) earlier keys.
        mixtures: what `draw_hard_mixtures` draws, or a choice of your own.
        temperature: above 0.
        reduction: "mean", "sum" or "none".

    Returns:
        0-d, or (B,); float64 if an embedding is, else float32. 0 for B = 0.

    Raises:
        TypeError, ValueError: arguments that do not fit, rows that the queue does not have.

    Cost: that of `pairloom.functional.moco`, and 6 D flops for each mixture, twice with the gradient; O(B (S + S'))
    memory: mixtures exist some at a time.

    Source: Kalantidis et al., "Hard Negative Mixing for Contrastive Learning", NeurIPS 2020. A public re-implementation
    indexes the hard negatives of the first query for all; here each query has its own.

    Example:
        >>> import torch, pairloom
        >>> query, queue = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.8, -0.6], [0.6, 0.8]])
        >>> zero, one = torch.tensor([[0]]), torch.tensor([[1]])
        >>> half = torch.tensor([[0.5]])
        >>> mixtures = pairloom.mixup.HardMixtures(zero, one, half, zero, half / 2)
        >>> f"{pairloom.mixup.mochi(query, query, queue, mixtures).item():.4f}"
        '1.1031'
    """
    _checks.embeddings("query", query, key=key, queue=queue)
    _checks.positive_number("temperature", temperature)
    _checks.choice("reduction", reduction, REDUCTIONS)
    _check_mixtures(mixtures, query, queue)
    losses: Tensor = moco(query, key, queue, temperature=temperature, reduction="none")
    count = mixtures.first.shape[1] + mixtures.partner.shape[1]
    if count == 0 or query.shape[0] == 0 or queue.shape[0] == 0:
        return reduced(losses, reduction)
    dtype = compute_dtype(query, key, queue)
    unit = unit_rows(query.to(dtype))
    own = (unit * unit_rows(key.detach().to(dtype))).sum(1) / temperature
    rows = unit_rows(queue.detach().to(dtype))
    if in_transform():  # torch.func knows no loop with a gradient of its own
        logits = _similarities(unit, rows, unit.detach(), mixtures, slice(0, query.shape[0]))
    else:
        logits = _SyntheticSimilarities.apply(unit, rows, mixtures)
    # A query without any mixture has nothing to add, and no gradient through it.
    some = ((mixtures.first >= 0).any(1) | (mixtures.partner >= 0).any(1)).unsqueeze(1)
    synthetic = (torch.where(some, logits, 0.0) / temperature).logsumexp(1)
    # log( e^own + others + synthetic ) - own = l + log(1 + e^(synthetic - own - l)) with l the loss without them.
    more = torch.nn.functional.softplus(synthetic - own - losses)
    return reduced(losses + torch.where(some.squeeze(1), more, 0.0), reduction)


class _SyntheticSimilarities(torch.autograd.Function):
    """(B, D) unit queries, (M, D) unit rows -> (B, S + S') similarities with the mixtures, -inf where there is none."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, queue: Tensor, mixtures: HardMixtures) -> Tensor:
        ctx.save_for_backward(query, queue)
        ctx.mixtures = mixtures
        logits = query.new_empty(query.shape[0], mixtures.first.shape[1] + mixtures.partner.shape[1])
        for chunk in _chunks(query, logits.shape[1]):
            logits[chunk] = _similarities(query, queue, query, mixtures, chunk)
        return logits

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        """Linear in ``upstream``, and constant otherwise: it can be differentiated again as it stands."""
        query, queue = (x.detach() for x in ctx.saved_tensors)
        parts = [
            (_made(query, queue, ctx.mixtures, chunk) * upstream[chunk].unsqueeze(2)).sum(1)
            for chunk in _chunks(query, upstream.shape[1])
        ]
        return torch.cat(parts), None, None


def _similarities(query: Tensor, queue: Tensor, parents: Tensor, mixtures: HardMixtures, chunk: slice) -> Tensor:
    """(R, S + S') of some queries with their mixtures, whose parents are ``parents`` and the queue."""
    missing = torch.cat([mixtures.first[chunk] < 0, mixtures.partner[chunk] < 0], dim=1)
    made = _made(parents, queue, mixtures, chunk)
    # No product that autocast would round.
    return (made * query[chunk].unsqueeze(1)).sum(2).masked_fill(missing, -torch.inf)


def _chunks(query: Tensor, count: int) -> list[slice]:
    size = max(CHUNK_ENTRIES // (count * query.shape[1]), 1)
    return [slice(first, min(first + size, len(query))) for first in range(0, len(query), size)]


def _made(query: Tensor, queue: Tensor, mixtures: HardMixtures, chunk: slice) -> Tensor:
    """(R, S + S', D): the mixtures of some queries; what is no mixture has similarity 0 to all."""
    first, second, part, partner, query_share = (field[chunk] for field in mixtures)
    there = first >= 0
    rows, dim = first.shape[0], query.shape[1]
    of_queue = mix(
        queue,
        torch.where(there, second, 0).flatten(),
        part.flatten(),
        first=first.clamp(min=0).flatten(),
        normalize=True,
    )
    own = torch.arange(chunk.start, chunk.stop, device=query.device).repeat_interleave(partner.shape[1])
    of_query = mix(
        query, partner.clamp(min=0).flatten(), query_share.flatten(), others=queue, first=own, normalize=True
    )
    made = torch.cat([of_queue.view(rows, -1, dim), of_query.view(rows, -1, dim)], dim=1)
    return made.masked_fill(~torch.cat([there, partner >= 0], dim=1).unsqueeze(2), 0.0)


def _count_settings(hardest: int, synthetic: int, harder: int) -> None:
    for name, value in (("hardest", hardest), ("synthetic", synthetic), ("harder", harder)):
        _checks.count(name, value)


def _check_mixtures(mixtures: Any, query: Tensor, queue: Tensor) -> None:
    if not isinstance(mixtures, HardMixtures):
        raise TypeError(
            f"mixtures is a {type(mixtures).__name__}; it must be HardMixtures, as draw_hard_mixtures makes"
        )
    for rows, part in (("first", "share"), ("second", "share"), ("partner", "query_share")):
        places, shares = getattr(mixtures, rows), getattr(mixtures, part)
        if places.dim() != 2 or places.shape[0] != query.shape[0] or places.shape != shares.shape:
            raise ValueError(
                f"mixtures.{rows} has shape {tuple(places.shape)} and mixtures.{part} {tuple(shares.shape)}; "
                f"both must be ({query.shape[0]}, mixtures)"
            )
        _checks.row_indices(f"mixtures.{rows}", places.flatten(), "queue", queue, none=True)


class MoCHiLoss(nn.Module):
    """Draws synthetic hard negatives and gives the loss; all about them stands at `draw_hard_mixtures` and `mochi`.

    Args:
        temperature: above 0.
        hardest: rows of the queue that mixtures are made of, for each query.
        synthetic: mixtures of two of them.
        harder: mixtures of one of them with the query.
        generator: of the draws, on the CPU.

    The paper's settings vary between 128 and 1024 mixtures of either kind, over a queue of 16,384.

    Example:
        >>> import torch, pairloom
        >>> loss = pairloom.mixup.MoCHiLoss(hardest=4, synthetic=8, harder=2)
        >>> query = torch.randn(3, 6, requires_grad=True)
        >>> loss(query, torch.randn(3, 6), torch.randn(20, 6)).backward()
        >>> tuple(query.grad.shape)
        (3, 6)
    """

    def __init__(
        self,
        temperature: float = 0.2,
        *,
        hardest: int = 1024,
        synthetic: int = 1024,
        harder: int = 128,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.positive_number("temperature", temperature)
        _count_settings(hardest, synthetic, harder)
        self.temperature = temperature
        self.counts = {"hardest": hardest, "synthetic": synthetic, "harder": harder}
        self.generator = generator

    def forward(self, query: Tensor, key: Tensor, queue: Tensor) -> Tensor:
        """(B, D), (B, D), (M, D) -> 0-d."""
        mixtures = draw_hard_mixtures(query, queue, generator=self.generator, **self.counts)
        return mochi(query, key, queue, mixtures, temperature=self.temperature)

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join(f"{name}={value}" for name, value in {"temperature": self.temperature, **self.counts}.items())
