"""Loss of momentum contrast: function and module over the operator of `info_nce`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom._dispatch import scripted_as
from pairloom._stats import PairStats
from pairloom.losses.info_nce import info_nce


def _moco_script(
    query: Tensor,
    key: Tensor,
    queue: Tensor | None,
    temperature: Tensor | float = 0.07,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
) -> Tensor:
    return info_nce(
        query,
        key.detach(),
        None if queue is None else queue.detach(),
        temperature=temperature,
        ids=torch.zeros(query.shape[0], dtype=torch.int64, device=query.device),
        similarity=similarity,
        reduction=reduction,
        weights=weights,
        ignore_index=None,
    )


@scripted_as(_moco_script)
def moco(
    query: Tensor,
    key: Tensor,
    queue: Tensor | None,
    *,
    temperature: Tensor | float = 0.07,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    return_stats: bool = False,
) -> Any:
    r"""Momentum contrast (MoCo): pick the own key among it and a queue of earlier keys.

    With k_i the key of query i, n_1 ... n_M the queue and z(x) = s(query_i, x) / temperature_i:

        L_i = -log( e^{z(k_i)} / ( e^{z(k_i)} + sum_j e^{z(n_j)} ) )

    The other keys of the batch are no negatives (that is `info_nce`). Keys and queue are detached: the gradient goes
    to the queries. Put the keys into the queue after this call. Source: He et al., "Momentum Contrast for Unsupervised
    Visual Representation Learning", CVPR 2020; MoCo v2 takes temperature 0.2.

    Args:
        query: (N, D) float32, float64, float16 or bfloat16, any strides.
        key: (N, D), row i is the positive of query i: another view, encoded by the momentum encoder.
        queue: (M, D) earlier keys, or None for an empty queue.
        temperature: number above 0, or float tensor: 0-d, or (N,) with one value for each query. Gets a gradient.
        similarity: "cosine" or "dot".
        reduction: "mean" and "mean_all" (over all queries), "mean_nonzero" (over those with a loss other than 0),
            "sum", or "none" (one loss for each query). With ``weights`` a mean is sum(w L) / sum(w).
        weights: (N,) float, >= 0, one for each query. Gets a gradient.
        return_stats: also return `PairStats`, counted in the same pass.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32. With ``return_stats`` the tuple
        (loss, `PairStats`).

    Raises:
        TypeError: embeddings that are not float.
        ValueError: shapes or devices that do not fit, a setting out of range, an unknown word. Nothing is computed
            before.

    Empty queue, all weights 0, or N = 0: 0 with gradient 0. NaN in a row that takes part: NaN.

    Cost: 2 N (N + M) D flops forward, 4 N (N + M) D with the gradient; O((N + M) D) memory.

    Example:
        >>> import torch, pairloom
        >>> query = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> key = torch.tensor([[0.8, 0.6], [0.28, 0.96], [-0.28, 0.96], [-1.0, 0.0]])
        >>> queue = torch.tensor([[0.0, -1.0], [0.8, -0.6], [-0.6, -0.8]])
        >>> f"{pairloom.functional.moco(query, key, queue, temperature=0.5).item():.4f}"
        '0.3369'
    """
    _checks.embeddings("query", query, key=key, queue=queue)
    loss: Callable[..., Any] = info_nce  # its overloads want a literal return_stats
    # Queries and keys all have one id, so that other keys are left out; the queue has none, so that it stays.
    ids = torch.zeros(query.shape[0], dtype=torch.int64, device=query.device)
    return loss(
        query,
        key.detach(),
        None if queue is None else queue.detach(),
        temperature=temperature,
        ids=ids,
        same_id="ignore",
        similarity=similarity,
        reduction=reduction,
        weights=weights,
        ignore_index=None,
        return_stats=return_stats,
    )


class MoCoLoss(nn.Module):
    """Loss of momentum contrast as a module; all about it stands at `pairloom.functional.moco`.

    Args:
        temperature: number above 0.
        similarity: "cosine" or "dot".
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".

    Raises:
        ValueError, TypeError: a setting that is not allowed.

    Example:
        >>> import torch, pairloom
        >>> query, key, queue = torch.eye(3, requires_grad=True), torch.eye(3), torch.randn(8, 3)
        >>> pairloom.MoCoLoss(0.2)(query, key, queue).backward()
        >>> tuple(query.grad.shape)
        (3, 3)
    """

    def __init__(self, temperature: float = 0.07, *, similarity: str = "cosine", reduction: str = "mean") -> None:
        super().__init__()
        _checks.positive_number("temperature", temperature)
        _checks.choice("similarity", similarity, _checks.LOSS_SIMILARITIES)
        _checks.choice("reduction", reduction, _checks.REDUCTIONS)
        self.temperature = float(temperature)
        self.similarity = similarity
        self.reduction = reduction

    def forward(self, query: Tensor, key: Tensor, queue: Tensor | None) -> Tensor:
        """The loss; arguments as in `pairloom.functional.moco`."""
        value: Tensor = moco(
            query, key, queue, temperature=self.temperature, similarity=self.similarity, reduction=self.reduction
        )
        return value

    def with_stats(self, query: Tensor, key: Tensor, queue: Tensor | None) -> tuple[Tensor, PairStats]:
        """The loss and the statistics of its pairs, from the same pass."""
        value, stats = moco(
            query,
            key,
            queue,
            temperature=self.temperature,
            similarity=self.similarity,
            reduction=self.reduction,
            return_stats=True,
        )
        return value, stats

    def extra_repr(self) -> str:
        """The settings."""
        return f"temperature={self.temperature}, similarity={self.similarity!r}, reduction={self.reduction!r}"
