"""Random triplets: negatives by the inverse density of their distance, or every triplet equally likely.

Random numbers come from one `torch.Generator` on the CPU and are drawn in the order of the anchors, so a seed gives the
same triplets on every device and for any number of threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pairloom import _checks
from pairloom._stream import chunks
from pairloom.losses._mined import LabelledPairs
from pairloom.miners._miner import Miner


class DistanceWeightedMiner(Miner):
    r"""For every positive pair one negative of its anchor, drawn so that all distances are about equally frequent.

    On the unit sphere in D dimensions distances crowd around sqrt(2); with d = max(D_an, cutoff), negatives are drawn
    with a weight of the inverse density,

        w = d^(2 - D) (1 - d^2 / 4)^((3 - D) / 2)     for D_an < nonzero_loss_cutoff,      else 0.

    Where no negative of an anchor is nearer than nonzero_loss_cutoff, all of its negatives are equally likely
    (pytorch-metric-learning leaves such anchors out, and draws positives at random instead of taking each once).
    Source: Wu et al., "Sampling Matters in Deep Embedding Learning", ICCV 2017.

    Args:
        cutoff: distances below count as this one, above 0; it bounds the variance.
        nonzero_loss_cutoff: no negative from here on.
        generator: where random numbers come from; None: torch's own.
        ignore_index, distance: as in `Miner`. Distances are those of rows divided by their length.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> miner = pairloom.DistanceWeightedMiner(generator=torch.Generator().manual_seed(0))
        >>> anchors, positives, negatives = miner(x, torch.tensor([0, 0, 1, 1]))
        >>> anchors.tolist(), positives.tolist()
        ([0, 1, 2, 3], [1, 0, 3, 2])
    """

    similarities = ("euclidean",)
    entries = 3

    def __init__(
        self,
        cutoff: float = 0.5,
        nonzero_loss_cutoff: float = 1.4,
        *,
        generator: torch.Generator | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        _checks.positive_number("cutoff", cutoff)
        _checks.positive_number("nonzero_loss_cutoff", nonzero_loss_cutoff)
        if not self.normalize:
            raise ValueError("normalize is False; the density of distances is that of rows of length 1")
        self.cutoff, self.nonzero_loss_cutoff = float(cutoff), float(nonzero_loss_cutoff)
        self.generator = generator

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The triplets; arguments as in `Miner`."""
        self._dimension = embeddings.shape[-1]
        return super().forward(embeddings, labels, ref_emb, ref_labels)

    def weights(self, distances: Tensor, negative: Tensor, dimension: int) -> Tensor:
        """(R, M) distances and mask of negatives -> weights, the largest of a row 1."""
        d = distances.double().clamp(min=self.cutoff)
        logarithm = (2 - dimension) * d.log() - (dimension - 3) / 2 * (1 - d * d / 4).clamp(min=1e-8).log()
        allowed = negative & (d < self.nonzero_loss_cutoff)
        logarithm = logarithm.masked_fill(~allowed, -torch.inf)
        some = allowed.any(1, keepdim=True)
        largest = torch.where(some, logarithm.amax(1, keepdim=True), 0.0)
        return torch.where(some, (logarithm - largest).exp(), negative.double())

    def choose(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, ...]:
        """One negative for each positive pair."""
        anchors, positives = (positive & negative.any(1, keepdim=True)).nonzero().unbind(1)
        uniform = torch.rand(len(anchors), dtype=torch.float64, generator=self.generator).to(s.device)
        if len(anchors) == 0:
            return anchors, positives, anchors
        sums = self.weights(-s, negative, self._dimension).cumsum(1)
        negatives = torch.empty_like(anchors)
        for some in torch.arange(len(anchors), device=s.device).split(max((1 << 20) // s.shape[1], 1)):
            of_anchor = sums[anchors[some]]
            at = uniform[some].unsqueeze(1) * of_anchor[:, -1:]
            # The first column whose sum is above the number; of all of it, rounded up, the last one with a weight.
            last = torch.searchsorted(of_anchor, of_anchor[:, -1:].contiguous())
            negatives[some] = torch.searchsorted(of_anchor, at, right=True).minimum(last).squeeze(1)
        return anchors, positives, negatives


class UniformTripletMiner(Miner):
    """Some of all triplets (anchor, positive, negative), each equally likely, none twice.

    Args:
        cap: at most so many triplets; None: no bound.
        fraction: this part of all triplets, in (0, 1], rounded; None: all, up to the cap.
        generator: where random numbers come from; None: torch's own.
        ignore_index: rows of this class are in no triplet; None switches it off.

    Labels alone are looked at: O(N M) time, memory of one chunk of masks and of the triplets.

    Example:
        >>> import torch, pairloom
        >>> x, labels = torch.randn(6, 4), torch.tensor([0, 0, 0, 1, 1, 1])
        >>> miner = pairloom.UniformTripletMiner(cap=10, generator=torch.Generator().manual_seed(0))
        >>> len(miner(x, labels)[0]), len(pairloom.UniformTripletMiner(fraction=0.5)(x, labels)[0])
        (10, 18)
    """

    entries = 3

    def __init__(
        self,
        cap: int | None = None,
        fraction: float | None = None,
        *,
        generator: torch.Generator | None = None,
        ignore_index: int | None = -100,
    ) -> None:
        super().__init__(ignore_index=ignore_index)
        if cap is None and fraction is None:
            raise ValueError("cap and fraction are both None; one must say how many triplets there are to be")
        if cap is not None:
            _checks.count("cap", cap)
        if fraction is not None:
            _checks.positive_number("fraction", fraction)
            if fraction > 1:
                raise ValueError(f"fraction is {fraction}; it must be above 0 and at most 1")
        self.cap, self.fraction, self.generator = cap, fraction, generator

    @torch.no_grad()
    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The triplets, in order; arguments as in `Miner`."""
        _checks.labelled_pairs(embeddings, labels, ref_emb, ref_labels, self.ignore_index)
        pairs = LabelledPairs(embeddings, labels, ref_labels, self.ignore_index)
        n, m = embeddings.shape[0], (embeddings if ref_emb is None else ref_emb).shape[0]

        def masks(chunk: slice) -> tuple[Tensor, Tensor]:
            return pairs.of_rows(torch.arange(chunk.start, chunk.stop, device=embeddings.device))

        counts = [torch.zeros(2, 0, dtype=torch.int64, device=embeddings.device)]
        counts += [torch.stack([mask.sum(1) for mask in masks(chunk)]) for chunk in chunks(n, m)]
        negatives_of = torch.cat(counts, dim=1)[1]
        ends = torch.cat(counts, dim=1).prod(0).cumsum(0)  # of the numbers of the triplets of each anchor
        total = int(ends[-1]) if n else 0
        numbers = self._some_of(total).to(embeddings.device)
        anchors = torch.searchsorted(ends, numbers, right=True)
        first = torch.cat([ends.new_zeros(1), ends])[anchors]
        ranks = numbers - first
        ranks_of_positives, ranks_of_negatives = ranks // negatives_of[anchors], ranks % negatives_of[anchors]
        positives, negatives = torch.empty_like(anchors), torch.empty_like(anchors)
        for chunk in chunks(n, m):
            mine = slice(*torch.searchsorted(anchors, anchors.new_tensor([chunk.start, chunk.stop])).tolist())
            if mine.start == mine.stop:
                continue
            rows = anchors[mine] - chunk.start
            for mask, ranked, into in zip(
                masks(chunk), (ranks_of_positives, ranks_of_negatives), (positives, negatives), strict=True
            ):
                into[mine] = _of_rank(mask, rows, ranked[mine])
        self.num_triplets = len(anchors)
        return anchors, positives, negatives

    def _some_of(self, total: int) -> Tensor:
        """Sorted numbers below ``total``, all different, each set equally likely."""
        wanted = total if self.fraction is None else round(self.fraction * total)
        if self.cap is not None:
            wanted = min(wanted, self.cap)
        if 2 * wanted >= total:  # draw those that are left out
            left_out = self._different(total - wanted, total)
            keep = torch.ones(total, dtype=torch.bool)
            keep[left_out] = False
            return keep.nonzero().squeeze(1)
        return self._different(wanted, total)

    def _different(self, wanted: int, total: int) -> Tensor:
        """By drawing again what was drawn before; at most half of all are wanted, so few rounds are enough."""
        found = torch.empty(0, dtype=torch.int64)
        while len(found) < wanted:
            more = torch.randint(total, (wanted - len(found),), generator=self.generator)
            found = torch.cat([found, more]).unique()
        return found


def _of_rank(mask: Tensor, rows: Tensor, ranks: Tensor) -> Tensor:
    """Column of the rank-th True (from 0) in each of some rows of a mask."""
    columns = mask.nonzero()[:, 1]
    before = torch.cat([mask.new_zeros(1, dtype=torch.int64), mask.sum(1).cumsum(0)])
    return columns[before[rows] + ranks]
