"""What losses of positive pairs share: means over pairs, or over anchors after a mean over the pairs of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pairloom import _checks
from pairloom._dispatch import needs_reference
from pairloom._labels import operator_labels
from pairloom.losses._labelled import LabelledLoss
from pairloom.losses._mined import MinedPairs
from pairloom.losses._translate import Called, PeerKeywords, averages_pairs_of_anchors
from pairloom.reference._rows import diagonal, labels_equal, pair_masks

if TYPE_CHECKING:
    from typing_extensions import Unpack

AVERAGES = ("pairs", "anchors")


def positives_per_anchor(row_labels: Tensor, column_labels: Tensor | None, ignore_index: int | None) -> Tensor:
    """float64 (N,): how many columns carry the label of each row, itself not counted; 0 for rows that are ignored.

    The labels are those of the operators. O((N + M) log M) time for ids, O(N M) for multi-hot rows; O(N + M) memory.
    TorchScript compiles this.
    """
    if row_labels.dim() == 2:
        return _sharing_per_anchor(row_labels, column_labels, ignore_index)
    columns = row_labels if column_labels is None else column_labels
    ordered = torch.sort(columns).values
    first = torch.searchsorted(ordered, row_labels)
    count = torch.searchsorted(ordered, row_labels, right=True) - first
    if column_labels is None:
        count = count - 1
    if ignore_index is not None:
        count = torch.where(row_labels == ignore_index, 0, count)
    return count.to(torch.float64)


def _sharing_per_anchor(row_words: Tensor, column_words: Tensor | None, ignore_index: int | None) -> Tensor:
    """The same for multi-hot rows: the positives are counted by the operator of `multi_similarity`.

    Where all similarities are 0, its loss is log(1 + |P|) / alpha + log(1 + |N|) / beta, and beta can be so large that
    the second is nothing.
    """
    if not torch.jit.is_scripting():  # noqa: SIM102 - TorchScript skips the body only of this very condition
        if needs_reference(row_words):
            own = diagonal(row_words, row_words) if column_words is None else None
            positive, _ = pair_masks(row_words, row_words if column_words is None else column_words, ignore_index, own)
            ignored = labels_equal(row_words, ignore_index, row_words)
            return torch.where(ignored, 0.0, positive.sum(1).to(torch.float64))
    rows = torch.zeros([row_words.shape[0], 1], dtype=torch.float64, device=row_words.device)
    columns: Tensor | None = None
    if column_words is not None:
        columns = torch.zeros([column_words.shape[0], 1], dtype=torch.float64, device=row_words.device)
    logarithm = torch.ops.pairloom.multi_similarity(
        rows, columns, row_words, column_words, None, 1.0, 1e300, 0.0, None, "dot", "none", ignore_index, 0, False
    )[0]
    return torch.round(torch.expm1(logarithm))


class PairMeanLoss(LabelledLoss):
    """A loss of labelled embeddings with a setting ``average``."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        similarity: str,
        reduction: str,
        ignore_index: int | None,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        _checks.choice("average", settings["average"], AVERAGES)
        if averages_pairs_of_anchors(peer.get("reducer")):
            settings = {**settings, "average": "anchors"}
        super().__init__(settings, similarity, reduction, ignore_index, **peer)
        if settings["average"] == "pairs" and isinstance(self.reducer, Called):
            kind = type(self.reducer.reducer).__name__
            raise ValueError(
                f"reducer is a {kind}, which needs the losses of single pairs; this loss adds them up: "
                "wrap it in PerAnchorReducer, or pass average='anchors'"
            )

    def terms(self, labels: Tensor, ref_labels: Tensor | None, keep: Tensor) -> Tensor:
        """How many losses a mean is taken over: positive pairs, or anchors."""
        if self.average == "anchors":
            return super().terms(labels, ref_labels, keep)
        columns = None if ref_labels is None else operator_labels(ref_labels, self.ignore_index)
        return positives_per_anchor(operator_labels(labels, self.ignore_index), columns, self.ignore_index).sum()

    def named_terms(self, pairs: MinedPairs) -> Tensor:
        """The same for the pairs of an index tuple."""
        return super().named_terms(pairs) if self.average == "anchors" else pairs.positives().sum()
