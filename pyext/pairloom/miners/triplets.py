"""Triplets by the order of their two distances: all that violate a margin, hard, semi-hard, easy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pairloom import _checks
from pairloom.miners._miner import Miner

KINDS = ("all", "hard", "semihard", "easy")

ENTRIES = 1 << 21
"""Of the triplets looked at together: 2 MiB of a mask."""


class TripletMarginMiner(Miner):
    """Triplets (anchor, positive, negative) by how much nearer the positive is than the negative.

    With d = s_ap - s_an, which is D_an - D_ap for a distance:

        all       d <= margin              hard    d <= min(margin, 0)
        semihard  0 < d <= margin          easy    d > margin

    Triplets are looked at some positive pairs at a time and never listed but for those that are returned; there may be
    O(N^3) of these. A loss that mines inside, `TripletMarginLoss(triplets=...)`, lists none.

    Args:
        margin: in units of the distance or similarity.
        type_of_triplets: "all", "hard", "semihard" or "easy".
        similarity, normalize, ignore_index, distance: as in `Miner`; "euclidean" by default.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> miner = pairloom.TripletMarginMiner(margin=0.2, type_of_triplets="hard")
        >>> [indices.tolist() for indices in miner(x, torch.tensor([0, 0, 1, 1]))]
        [[1, 2], [0, 3], [2, 1]]
    """

    entries = 3

    def __init__(self, margin: float = 0.2, type_of_triplets: str = "all", **common: Any) -> None:
        super().__init__(**common)
        _checks.finite_number("margin", margin)
        _checks.choice("type_of_triplets", type_of_triplets, KINDS)
        self.margin, self.type_of_triplets = float(margin), type_of_triplets

    def choose(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, ...]:
        """Those of some rows, in order of anchor, positive, negative."""
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for pairs in positive.nonzero().split(max(ENTRIES // max(s.shape[1], 1), 1)):
            anchors, positives = pairs.unbind(1)
            taken = negative[anchors] & self._wanted(s[anchors, positives].unsqueeze(1) - s[anchors])
            number, negatives = taken.nonzero().unbind(1)
            found.append((anchors[number], positives[number], negatives))
        if not found:
            nothing = torch.empty(0, dtype=torch.int64, device=s.device)
            return nothing, nothing, nothing
        return tuple(torch.cat(parts) for parts in zip(*found, strict=True))

    def _wanted(self, nearer: Tensor) -> Tensor:
        if self.type_of_triplets == "easy":
            return nearer > self.margin
        wanted = nearer <= self.margin
        if self.type_of_triplets == "hard":
            wanted &= nearer <= 0
        elif self.type_of_triplets == "semihard":
            wanted &= nearer > 0
        return wanted
