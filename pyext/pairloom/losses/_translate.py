"""Distances and reducers of pytorch-metric-learning in the words of this package, so that its code runs here.

They are known by the name of their class: nothing is imported that the user has not imported. An object of another
class, a user's own subclass for example, may compute anything: as a distance it is refused, as a reducer it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypedDict

import torch
from torch import Tensor, nn

PACKAGE = "pytorch_metric_learning"

WRITTEN_THERE = {
    "cosine": "CosineSimilarity()",
    "dot": "DotProductSimilarity(normalize_embeddings=False)",
    "euclidean": "LpDistance(p=2)",
    "squared_euclidean": "LpDistance(p=2, power=2)",
}
"""Every ``similarity`` as its distance."""

SAME_MEANING = {
    "MeanReducer": "mean_all",
    "AvgNonZeroReducer": "mean_nonzero",
    "SumReducer": "sum",
    "DoNothingReducer": "none",
}
"""Reducers that a ``reduction`` stands for."""


class PeerKeywords(TypedDict, total=False):
    """Keywords that every loss of pytorch-metric-learning takes; all losses on labelled embeddings take them too.

    distance: CosineSimilarity, DotProductSimilarity or LpDistance instead of ``similarity`` (and ``normalize``).
    reducer: MeanReducer, AvgNonZeroReducer, SumReducer, DoNothingReducer (which makes the vector of losses here, not a
        dictionary) or ClassWeightedReducer instead of ``reduction``; or any object that is called as they are, with the
        losses of the anchors that are not ignored (their gradients are then made in backward, at twice the cost).
    embedding_regularizer: called with the embeddings, returns a 0-d tensor that is added to the loss.
    embedding_reg_weight: what it is multiplied with.
    collect_stats: keep the `PairStats` of the last call as ``pair_stats``.
    """

    distance: Any
    reducer: Any
    embedding_regularizer: Callable[[Tensor], Tensor] | None
    embedding_reg_weight: float
    collect_stats: bool | None


def similarity_of(distance: Any, allowed: Sequence[str]) -> tuple[str, bool]:
    """The ``similarity`` and ``normalize`` that a distance stands for."""
    name = _class_there(distance)
    word = None
    if name in ("CosineSimilarity", "DotProductSimilarity"):
        if distance.power == 1 and (distance.p == 2 or not distance.normalize_embeddings):
            word = "cosine" if distance.normalize_embeddings else "dot"
    elif name == "LpDistance" and distance.p == 2:
        word = {1: "euclidean", 2: "squared_euclidean"}.get(distance.power)
    if word is not None and word in allowed:
        return word, bool(distance.normalize_embeddings)
    settings = ", ".join(f"{key}={getattr(distance, key)}" for key in ("p", "power") if name and hasattr(distance, key))
    possible = ", ".join(WRITTEN_THERE[word] for word in allowed)
    raise ValueError(
        f"distance is {type(distance).__name__}({settings}), which this loss has no similarity for; "
        f"allowed: {possible} of pytorch-metric-learning, or similarity={allowed[0]!r}"
    )


class ProxyKeywords(PeerKeywords, total=False):
    """What losses with proxies take besides.

    weight_init_func: called with the new (num_classes, embedding_size) proxies, which it fills.
    weight_regularizer: called with the proxies, returns a 0-d tensor that is added to the loss.
    weight_reg_weight: what it is multiplied with.
    """

    weight_init_func: Callable[[Tensor], Any] | None
    weight_regularizer: Callable[[Tensor], Tensor] | None
    weight_reg_weight: float


class Reducer(Protocol):
    """What a reducer does that is not a mere ``reduction``."""

    reduction: str
    """How the function is to reduce."""

    def weights(self, labels: Tensor, keep: Tensor) -> Tensor | None:
        """Weights (N,) of the anchors; ``keep`` (N,) marks those not ignored."""

    def finish(
        self, value: Tensor, terms: Tensor, embeddings: Tensor, labels: Tensor, keep: Tensor | None, indices: Tensor
    ) -> Tensor:
        """The loss, from what the function returned and the number of terms of a mean.

        ``keep`` marks the entries of ``value`` that count; ``indices`` are the embeddings that all of them belong to.
        """


class ClassWeights(nn.Module):
    """ClassWeightedReducer: sum of w_class L over the number of terms, made as a weighted sum."""

    reduction = "sum"

    def __init__(self, reducer: Any) -> None:
        super().__init__()
        self.reducer = reducer

    def weights(self, labels: Tensor, keep: Tensor) -> Tensor:
        """The weight of the class of each anchor."""
        if labels.dim() > 1:
            raise ValueError("reducer weights classes, but labels are multi-hot; pass weights in the call instead")
        of_class = self.reducer.weights.to(labels.device)
        return of_class[torch.where(keep, labels.to(torch.int64), 0)]

    def finish(
        self, value: Tensor, terms: Tensor, embeddings: Tensor, labels: Tensor, keep: Tensor | None, indices: Tensor
    ) -> Tensor:
        """The mean over the terms, 0 for none."""
        return value / terms.clamp(min=1).to(value.dtype)


class Called(nn.Module):
    """Any other reducer, called as in pytorch-metric-learning with the losses of the anchors."""

    reduction = "none"

    def __init__(self, reducer: Callable[..., Any]) -> None:
        super().__init__()
        self.reducer = reducer

    def weights(self, labels: Tensor, keep: Tensor) -> None:
        """None: reducers weight the losses themselves."""

    def finish(
        self, value: Tensor, terms: Tensor, embeddings: Tensor, labels: Tensor, keep: Tensor | None, indices: Tensor
    ) -> Tensor:
        """What the reducer makes of the losses; 0 without anchors, which no reducer has an answer for."""
        if keep is not None:
            value, indices = value[keep], indices[keep]
        if value.shape[0] == 0:
            return value.sum()
        losses = {"losses": value, "indices": indices, "reduction_type": "element"}
        reduced: Tensor = self.reducer({"loss": losses}, embeddings, labels)
        return reduced


def reduction_of(reducer: Any) -> str | Reducer:
    """The ``reduction`` that a reducer of losses of anchors stands for, or what is to be done instead."""
    name = _class_there(reducer)
    if name in SAME_MEANING:
        return SAME_MEANING[name]
    if name == "ClassWeightedReducer":
        return ClassWeights(reducer)
    if name == "MultipleReducers":
        return reduction_of(_of_the_loss(reducer))
    if name == "PerAnchorReducer":  # each anchor has one loss already
        return reduction_of(reducer.reducer)
    if name == "DivisorReducer" or not callable(reducer):
        raise ValueError(
            f"reducer is a {type(reducer).__name__}, which this loss has no use for; allowed: MeanReducer, "
            "AvgNonZeroReducer, SumReducer, DoNothingReducer, ClassWeightedReducer, ThresholdReducer, PerAnchorReducer "
            "of pytorch-metric-learning, or reduction='mean'"
        )
    return Called(reducer)


def averages_pairs_of_anchors(reducer: Any) -> bool:
    """Whether a reducer first takes the mean over the pairs of each anchor."""
    if _class_there(reducer) == "MultipleReducers":
        return averages_pairs_of_anchors(_of_the_loss(reducer))
    if _class_there(reducer) != "PerAnchorReducer":
        return False
    if reducer.aggregation_func.__module__.split(".")[0] != PACKAGE:
        raise ValueError("reducer has its own aggregation_func; allowed: that of pytorch-metric-learning, a mean")
    return True


def _of_the_loss(reducers: Any) -> Any:
    """Which of several reducers is for the loss; regularisers come reduced."""
    return dict(reducers.reducers.items()).get("loss", reducers.default_reducer)


def _class_there(thing: Any) -> str:
    """The name of the class of an object of pytorch-metric-learning itself, else nothing."""
    kind = type(thing)
    return kind.__name__ if kind.__module__.split(".")[0] == PACKAGE else ""
