"""What losses with one learned proxy per class share: the checks, and the module that owns the proxies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom._stats import PairStats


def classes(embeddings: Tensor, labels: Tensor, proxies: Tensor, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """int64 class of each embedding (N,) and of each proxy (C,): proxy c stands for class c. Checks all of them.

    That every label has a proxy is looked at on the CPU in eager mode only.
    """
    _checks.embeddings("embeddings", embeddings, proxies=proxies)
    _checks.labels("labels", labels, "embeddings", embeddings)
    _checks.label_value("ignore_index", ignore_index)
    row_labels, count = labels.to(torch.int64), proxies.shape[0]
    if _checks.values_readable(row_labels):
        missing = (row_labels < 0) | (row_labels >= count)
        if ignore_index is not None:
            missing = missing & (row_labels != ignore_index)
        if bool(missing.any()):
            raise ValueError(
                f"labels holds {int(row_labels[missing][0])}; with {count} proxies labels must lie between 0 and "
                f"{count - 1}, or be ignore_index ({ignore_index})"
            )
    return row_labels, torch.arange(count, device=proxies.device)


class ProxyLoss(nn.Module):
    """``loss(embeddings, labels)`` with a learned proxy for every class; give ``parameters()`` to an optimiser.

    A subclass names its ``function`` and hands its settings to ``__init__``.
    """

    function: ClassVar[Callable[..., Any]]

    def __init__(self, num_classes: int, embedding_size: int, **settings: Any) -> None:
        super().__init__()
        for name, value in (("num_classes", num_classes), ("embedding_size", embedding_size)):
            _checks.count(name, value)
            if value == 0:
                raise ValueError(f"{name} is 0; it must be 1 or more")
        self.proxies = nn.Parameter(torch.randn(num_classes, embedding_size))
        self.settings = settings

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: None = None) -> Tensor:
        """The loss of (N, D) embeddings of classes (N,); positions as in pytorch-metric-learning."""
        _checks.no_indices(indices_tuple)
        value: Tensor = self.function(embeddings, labels, self.proxies, **self.settings)
        return value

    def with_stats(self, embeddings: Tensor, labels: Tensor, indices_tuple: None = None) -> tuple[Tensor, PairStats]:
        """The loss and the statistics of its pairs, from the same pass."""
        _checks.no_indices(indices_tuple)
        value, stats = self.function(embeddings, labels, self.proxies, return_stats=True, **self.settings)
        return value, stats

    def extra_repr(self) -> str:
        """The settings."""
        settings = "".join(f", {name}={value!r}" for name, value in self.settings.items())
        return f"num_classes={self.proxies.shape[0]}, embedding_size={self.proxies.shape[1]}{settings}"
