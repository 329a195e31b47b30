"""What losses on labelled embeddings share whose operator is a streamed rule: the call, and the module around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pairloom import _checks, reference
from pairloom._dispatch import as_temperature, gradient_bits, pair_loss
from pairloom._labels import operator_labels
from pairloom._stats import PairStats

DISTANCES = ("euclidean", "squared_euclidean", "cosine", "dot")


def labelled_loss(
    name: str,
    embeddings: Tensor,
    labels: Tensor | None,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    settings: Sequence[Any],
    *,
    similarity: str,
    reduction: str,
    weights: Tensor | None,
    ignore_index: int | None,
    return_stats: bool,
    allowed: Sequence[str] = _checks.LOSS_SIMILARITIES,
    temperature: Tensor | float | None = None,
    bias: Tensor | float | None = None,
    boundary: Tensor | float | None = None,
) -> Any:
    """Check what all of these losses take, and call operator ``name``.

    ``settings`` are its own, in their order and checked before; learned ones come before them: temperature, bias,
    boundary, as far as the loss has them. Each is a number or a float tensor, 0-d or (N,).
    """
    _checks.labelled_pairs(embeddings, labels, ref_emb, ref_labels, ignore_index)
    if temperature is not None:
        _checks.temperature(temperature, "embeddings", embeddings)
    _checks.learned("bias", bias, "embeddings", embeddings)
    _checks.learned("boundary", boundary, "embeddings", embeddings)
    learned = [None if value is None else as_temperature(value, embeddings) for value in (temperature, bias, boundary)]
    settings = (*(value for value in learned if value is not None), *settings)
    _checks.choice("similarity", similarity, allowed)
    _checks.choice("reduction", reduction, _checks.REDUCTIONS)
    _checks.label_value("ignore_index", ignore_index)
    _checks.weights(weights, "embeddings", embeddings)
    assert labels is not None
    return pair_loss(
        getattr(torch.ops.pairloom, name),
        getattr(reference, name),
        embeddings,
        ref_emb,
        operator_labels(labels, ignore_index),
        None if ref_labels is None else operator_labels(ref_labels, ignore_index),
        weights,
        *settings,
        similarity,
        reduction,
        ignore_index,
        gradient_bits(embeddings, ref_emb, learned[0], reduction, learned[1], learned[2], weights),
        return_stats,
    )


class LabelledLoss(nn.Module):
    """``loss(embeddings, labels, ref_emb=..., ref_labels=...)``, as in pytorch-metric-learning.

    A subclass names its ``function`` and hands its settings to ``__init__``.
    """

    function: ClassVar[Callable[..., Any]]

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss; arguments as in the function, positions as in pytorch-metric-learning."""
        _checks.no_indices(indices_tuple)
        value: Tensor = self.function(embeddings, labels, ref_emb, ref_labels, **self.arguments())
        return value

    def with_stats(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> tuple[Tensor, PairStats]:
        """The loss and the statistics of its pairs, from the same pass."""
        _checks.no_indices(indices_tuple)
        value, stats = self.function(embeddings, labels, ref_emb, ref_labels, return_stats=True, **self.arguments())
        return value, stats

    def arguments(self) -> dict[str, Any]:
        """The settings, as the function takes them."""
        return self.settings

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
