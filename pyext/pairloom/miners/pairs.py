"""Miners of pairs, of which each is judged by the extremes of its row: multi-similarity, pair-margin, batch-hard."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pairloom import _checks
from pairloom.miners._miner import PairMiner, margin_as_similarity


class MultiSimilarityMiner(PairMiner):
    r"""Pairs that are nearly as hard as the hardest of the other kind.

        positives with s_ip - epsilon < max_n s_in,      negatives with s_in + epsilon > min_p s_ip

    Anchors without positives or without negatives have no pair. Source: Wang et al., "Multi-Similarity Loss with
    General Pair Weighting for Deep Metric Learning", CVPR 2019. `MultiSimilarityLoss(epsilon=...)` does it inside.

    Args:
        epsilon: how much harder than allowed a pair may look, in units of the similarity.
        similarity, normalize, ignore_index, distance: as in `Miner`; "cosine" by default.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> miner = pairloom.MultiSimilarityMiner(epsilon=0.1)
        >>> [indices.tolist() for indices in miner(x, torch.tensor([0, 0, 1, 1]))]
        [[1, 2], [0, 3], [1, 2], [2, 1]]
    """

    def __init__(self, epsilon: float = 0.1, *, similarity: str = "cosine", **common: Any) -> None:
        super().__init__(similarity=similarity, **common)
        _checks.finite_number("epsilon", epsilon)
        self.epsilon = float(epsilon)

    def masks(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """The pairs of the rule above."""
        easiest = s.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
        hardest = s.masked_fill(~negative, -torch.inf).amax(1, keepdim=True)
        # An anchor that lacks either kind: nothing is below -infinity or above infinity.
        return positive & (s - self.epsilon < hardest), negative & (s + self.epsilon > easiest)


class PairMarginMiner(PairMiner):
    """Positives that are farther apart than a margin, negatives that are nearer than another.

    Args:
        pos_margin: distance (similarity) that positives must pass to be taken.
        neg_margin: distance (similarity) that negatives must stay under to be taken.
        similarity, normalize, ignore_index, distance: as in `Miner`; "euclidean" by default. With "cosine" and "dot"
            the margins are similarities: positives below, negatives above.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> miner = pairloom.PairMarginMiner(pos_margin=0.9, neg_margin=0.7)
        >>> [indices.tolist() for indices in miner(x, torch.tensor([0, 0, 1, 1]))]
        [[], [], [1, 2], [2, 1]]
    """

    def __init__(self, pos_margin: float = 0.2, neg_margin: float = 0.8, **common: Any) -> None:
        super().__init__(**common)
        _checks.finite_number("pos_margin", pos_margin)
        _checks.finite_number("neg_margin", neg_margin)
        self.pos_margin, self.neg_margin = float(pos_margin), float(neg_margin)

    def masks(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """The pairs of the rule above."""
        low, high = (margin_as_similarity(margin, self.similarity) for margin in (self.pos_margin, self.neg_margin))
        return positive & (s < low), negative & (s > high)


class BatchHardMiner(PairMiner):
    """The least similar positive and the most similar negative of every anchor that has both; the first of equals.

    Returns triplets (anchors, positives, negatives). Source: Hermans, Beyer, Leibe, "In Defense of the Triplet Loss for
    Person Re-Identification", 2017. `BatchHardTripletLoss` does the same inside.

    Args:
        similarity, normalize, ignore_index, distance: as in `Miner`; "euclidean" by default.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> [indices.tolist() for indices in pairloom.BatchHardMiner()(x, torch.tensor([0, 0, 1, 1]))]
        [[0, 1, 2, 3], [1, 0, 3, 2], [2, 2, 1, 1]]
    """

    entries = 3

    def choose(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, ...]:
        """The triplet of each row that has one."""
        anchors = (positive.any(1) & negative.any(1)).nonzero().squeeze(1)
        if len(anchors) == 0:
            return anchors, anchors, anchors
        farthest = s.masked_fill(~positive, torch.inf).argmin(1)
        nearest = s.masked_fill(~negative, -torch.inf).argmax(1)
        return anchors, farthest[anchors], nearest[anchors]

    def masks(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """The same pairs as masks."""
        anchors, farthest, nearest = self.choose(s, positive, negative)
        nothing = torch.zeros_like(positive)
        yes = torch.ones((), dtype=torch.bool, device=s.device)
        return nothing.index_put((anchors, farthest), yes), nothing.index_put((anchors, nearest), yes)
