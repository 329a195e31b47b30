"""What losses with one learned proxy per class share: the checks, and the module that owns the proxies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom._dispatch import no_torchscript
from pairloom.losses._labelled import DISTANCES, LabelledLoss, check_regularizer, regularization
from pairloom.losses._translate import PeerKeywords

if TYPE_CHECKING:
    from typing_extensions import Unpack


def classes(
    embeddings: Tensor, labels: Tensor | None, proxies: Tensor, ignore_index: int | None
) -> tuple[Tensor, Tensor]:
    """int64 class of each embedding (N,) and of each proxy (C,): proxy c stands for class c. Checks all of them.

    That every label has a proxy is looked at on the CPU in eager mode only.
    """
    _checks.embeddings("embeddings", embeddings, proxies=proxies)
    _checks.labelled_pairs(embeddings, labels, None, None, ignore_index, multi_hot=False)
    assert labels is not None
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


class ProxyLoss(LabelledLoss):
    """``loss(embeddings, labels)`` with a learned proxy for every class; give ``parameters()`` to an optimiser.

    A subclass names its ``function(embeddings, labels, proxies, ...)``.
    """

    similarities = DISTANCES
    instead_of_indices = "it compares every embedding with all proxies"

    def __prepare_scriptable__(self) -> LabelledLoss:
        """The function scripts, but a module that owns proxies does not."""
        raise no_torchscript(type(self).__name__)

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        settings: Mapping[str, Any],
        similarity: str,
        reduction: str,
        ignore_index: int | None,
        *,
        weight_init_func: Callable[[Tensor], Any] | None = None,
        weight_regularizer: Callable[[Tensor], Tensor] | None = None,
        weight_reg_weight: float = 1.0,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        for name, value in (("num_classes", num_classes), ("embedding_size", embedding_size)):
            _checks.count(name, value)
            if value == 0:
                raise ValueError(f"{name} is 0; it must be 1 or more")
        super().__init__(settings, similarity, reduction, ignore_index, **peer)
        check_regularizer("weight_init_func", weight_init_func, "proxies")
        check_regularizer("weight_regularizer", weight_regularizer, "proxies")
        _checks.finite_number("weight_reg_weight", weight_reg_weight)
        if self.reduction == "none" and weight_regularizer is not None:
            raise ValueError("weight_regularizer is given, but reduction is 'none'; there is no loss to add it to")
        self.weight_regularizer = weight_regularizer
        self.weight_reg_weight = weight_reg_weight
        self.proxies = nn.Parameter(torch.empty(num_classes, embedding_size))
        with torch.no_grad():
            (weight_init_func or self.first_proxies)(self.proxies)

    def first_proxies(self, proxies: Tensor) -> None:
        """Fill new proxies."""
        nn.init.normal_(proxies)

    def call(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        ref_emb: Tensor | None,
        ref_labels: Tensor | None,
        **others: Any,
    ) -> Any:
        """The function, with the proxies instead of reference rows."""
        no_references(ref_emb, ref_labels, "it compares embeddings with its proxies")
        return self.function(embeddings, labels, self.proxies, **others)

    def regularized(self, value: Tensor, embeddings: Tensor) -> Tensor:
        """The loss and what regularizers of embeddings and of proxies add to it."""
        value = super().regularized(value, embeddings)
        if self.weight_regularizer is None:
            return value
        return value + self.weight_reg_weight * regularization(
            "weight_regularizer", self.weight_regularizer, self.proxies
        )

    def extra_repr(self) -> str:
        """The settings."""
        return f"num_classes={self.proxies.shape[0]}, embedding_size={self.proxies.shape[1]}, {super().extra_repr()}"


def no_references(ref_emb: Any, ref_labels: Any, instead: str) -> None:
    """Losses are called like all on labelled embeddings, but have no reference rows."""
    for name, value in (("ref_emb", ref_emb), ("ref_labels", ref_labels)):
        if value is not None:
            raise ValueError(f"{name} is given, but this loss takes no reference rows: {instead}")
