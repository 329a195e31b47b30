"""What miners share: the call of pytorch-metric-learning, and the loop over chunks of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom._stream import ChunkedSimilarity, chunks
from pairloom.losses._distances import compared_rows
from pairloom.losses._labelled import DISTANCES
from pairloom.losses._mined import LabelledPairs
from pairloom.losses._translate import similarity_of


class Miner(nn.Module):
    """``miner(embeddings, labels, ref_emb=None, ref_labels=None)`` -> index tuple, as in pytorch-metric-learning.

    A subclass says in `choose` what it takes of some rows of the similarity matrix. Gradients are not followed; memory
    is O((N + M) D), one chunk of the matrix, and the tuple. The same call gives the same tuple, in order of the
    anchors, for any number of threads.

    Args:
        similarity: "euclidean", "squared_euclidean", "cosine" or "dot"; margins are distances for the first two.
        normalize: whether the two distances are those of the rows divided by their length.
        ignore_index: rows of this class are in no pair; None switches it off.
        distance: CosineSimilarity, DotProductSimilarity or LpDistance of pytorch-metric-learning instead of both.
        collect_stats: taken and not needed: sizes are always kept, as ``num_pos_pairs``, ``num_neg_pairs`` (tuples of
            4) or ``num_triplets`` (of 3).
    """

    similarities: ClassVar[Sequence[str]] = DISTANCES
    entries: ClassVar[int] = 4
    """Of the tuple: 4 (anchors, positives, anchors, negatives) or 3 (anchors, positives, negatives)."""

    def __init__(
        self,
        *,
        similarity: str = "euclidean",
        normalize: bool = True,
        ignore_index: int | None = -100,
        distance: Any = None,
        collect_stats: bool | None = None,
    ) -> None:
        super().__init__()
        _checks.choice("similarity", similarity, self.similarities)
        _checks.flag("normalize", normalize)
        _checks.label_value("ignore_index", ignore_index)
        if distance is not None:
            similarity, normalize = similarity_of(distance, self.similarities)
        self.similarity = similarity
        self.normalize = normalize
        self.ignore_index = ignore_index
        self.num_pos_pairs = self.num_neg_pairs = self.num_triplets = 0

    @torch.no_grad()
    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The index tuple, int64.

        Args:
            embeddings: (N, D) float32, float64, float16 or bfloat16; the anchors.
            labels: (N,) integer or bool, or (N, L) multi-hot.
            ref_emb: (M, D) to take positives and negatives from instead of the batch; no pair is left out then.
            ref_labels: (M,) or (M, L).

        Raises:
            TypeError, ValueError: what losses on labelled embeddings refuse.
        """
        _checks.labelled_pairs(embeddings, labels, ref_emb, ref_labels, self.ignore_index)
        rows, columns = compared_rows(embeddings, ref_emb, self.similarity, self.normalize)
        matrix = ChunkedSimilarity(rows, columns, self.similarity, needs_grad=0)
        pairs = LabelledPairs(embeddings, labels, ref_labels, self.ignore_index)
        m = matrix.columns.shape[0]
        found: list[list[Tensor]] = [[] for _ in range(self.entries)]
        for chunk in chunks(matrix.rows.shape[0], m):
            positive, negative = pairs.of_rows(torch.arange(chunk.start, chunk.stop, device=embeddings.device))
            chosen = self.choose(matrix.block(chunk), positive, negative)
            for number, (into, indices) in enumerate(zip(found, chosen, strict=True)):
                anchors = number == 0 or (self.entries == 4 and number == 2)
                into.append(indices + chunk.start if anchors else indices)
        nothing = torch.empty(0, dtype=torch.int64, device=embeddings.device)
        result = tuple(torch.cat(parts) if parts else nothing for parts in found)
        if self.entries == 4:
            self.num_pos_pairs, self.num_neg_pairs = len(result[0]), len(result[2])
        else:
            self.num_triplets = len(result[0])
        return result

    def choose(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, ...]:
        """From similarities (R, M) of some rows and masks of their pairs: the tuple, anchors counted from row 0."""
        raise NotImplementedError


def margin_as_similarity(margin: float, similarity: str) -> float:
    """A bound of a distance as one of s = -distance."""
    return -margin if similarity in ("euclidean", "squared_euclidean") else margin


class PairMiner(Miner):
    """A miner that says of every pair whether it is taken; a loss can ask it in its own pass."""

    def masks(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Bool (R, M) each, parts of ``positive`` and ``negative``: the pairs that are taken."""
        raise NotImplementedError

    def choose(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, ...]:
        """The pairs of `masks`, row by row."""
        positive, negative = self.masks(s, positive, negative)
        # Copied while they are in cache: what `nonzero` returns is a view with a stride.
        return tuple(indices.contiguous() for mask in (positive, negative) for indices in mask.nonzero().unbind(1))
