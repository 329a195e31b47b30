"""Multi-Similarity loss: function, module, record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

import torch
from torch import Tensor, nn

from pairloom import _checks, reference
from pairloom._dispatch import gradient_bits, pair_loss, scripted_as
from pairloom._registry import OpRecord, Sample, register
from pairloom._stats import PairStats


def _multi_similarity_script(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float | None = None,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    if labels is None:
        raise ValueError("labels is None; pass the class of each embedding, an integer tensor of shape (N,)")
    row_labels = labels.to(torch.int64)
    column_labels = None if ref_labels is None else ref_labels.to(torch.int64)
    bits = gradient_bits(embeddings, ref_emb, None, reduction)
    return torch.ops.pairloom.multi_similarity(
        embeddings, ref_emb, row_labels, column_labels, weights, alpha, beta, base, epsilon,
        similarity, reduction, ignore_index, bits, False,
    )[0]  # fmt: skip


@overload
def multi_similarity(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float | None = None,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    return_stats: Literal[False] = False,
) -> Tensor: ...
@overload
def multi_similarity(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float | None = None,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    return_stats: Literal[True],
) -> tuple[Tensor, PairStats]: ...
@scripted_as(_multi_similarity_script)
def multi_similarity(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float | None = None,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, PairStats]:
    """Multi-Similarity loss, with its miner fused when ``epsilon`` is given."""
    if labels is None:
        raise ValueError("labels is None; pass the class of each embedding, an integer tensor of shape (N,)")
    _check(embeddings, labels, ref_emb, ref_labels, alpha, beta, base, epsilon, similarity, reduction, weights)
    _checks.label_value("ignore_index", ignore_index)
    row_labels = labels.to(torch.int64)
    column_labels = None if ref_labels is None else ref_labels.to(torch.int64)
    bits = gradient_bits(embeddings, ref_emb, None, reduction)
    return pair_loss(
        torch.ops.pairloom.multi_similarity, reference.multi_similarity,
        embeddings, ref_emb, row_labels, column_labels, weights, alpha, beta, base, epsilon,
        similarity, reduction, ignore_index, bits, return_stats,
    )  # fmt: skip


def _check(
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    alpha: float,
    beta: float,
    base: float,
    epsilon: float | None,
    similarity: str,
    reduction: str,
    weights: Tensor | None,
) -> None:
    _checks.embeddings("embeddings", embeddings, ref_emb=ref_emb)
    _checks.labels("labels", labels, "embeddings", embeddings)
    _checks.given_together("ref_emb", ref_emb, "ref_labels", ref_labels, "pass the class of each reference row")
    _checks.given_together("ref_labels", ref_labels, "ref_emb", ref_emb, "there is nothing to label")
    if ref_emb is not None and ref_labels is not None:
        _checks.labels("ref_labels", ref_labels, "ref_emb", ref_emb)
        _checks.same_label_kind("labels", labels, "ref_labels", ref_labels)
    _check_settings(alpha, beta, base, epsilon, similarity, reduction)
    _checks.weights(weights, "embeddings", embeddings)


def _check_settings(
    alpha: float, beta: float, base: float, epsilon: float | None, similarity: str, reduction: str
) -> None:
    _checks.positive_number("alpha", alpha)
    _checks.positive_number("beta", beta)
    _checks.finite_number("base", base)
    if epsilon is not None:
        _checks.finite_number("epsilon", epsilon)
    _checks.choice("similarity", similarity, _checks.LOSS_SIMILARITIES)
    _checks.choice("reduction", reduction, _checks.REDUCTIONS)


class MultiSimilarityLoss(nn.Module):
    """Multi-Similarity loss as a module."""

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 0.5,
        *,
        epsilon: float | None = None,
        similarity: str = "cosine",
        reduction: str = "mean",
        ignore_index: int | None = -100,
    ) -> None:
        super().__init__()
        _check_settings(alpha, beta, base, epsilon, similarity, reduction)
        _checks.label_value("ignore_index", ignore_index)
        self.alpha = float(alpha)
        self.beta = float(beta)
        self.base = float(base)
        self.epsilon = None if epsilon is None else float(epsilon)
        self.similarity = similarity
        self.reduction = reduction
        self.ignore_index = ignore_index

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        """The loss; arguments as in `pairloom.functional.multi_similarity`, at the positions of pytorch-metric-learning."""
        _refuse_indices(indices_tuple)
        return multi_similarity(
            embeddings,
            labels,
            ref_emb,
            ref_labels,
            alpha=self.alpha,
            beta=self.beta,
            base=self.base,
            epsilon=self.epsilon,
            similarity=self.similarity,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
        )

    def with_stats(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> tuple[Tensor, PairStats]:
        """The loss and the statistics of its pairs, from the same pass."""
        _refuse_indices(indices_tuple)
        return multi_similarity(
            embeddings,
            labels,
            ref_emb,
            ref_labels,
            alpha=self.alpha,
            beta=self.beta,
            base=self.base,
            epsilon=self.epsilon,
            similarity=self.similarity,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            return_stats=True,
        )

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"alpha={self.alpha}, beta={self.beta}, base={self.base}, epsilon={self.epsilon}, "
            f"similarity={self.similarity!r}, reduction={self.reduction!r}, ignore_index={self.ignore_index}"
        )


def _refuse_indices(indices_tuple: None) -> None:
    if indices_tuple is not None:
        raise ValueError(
            "indices_tuple is given; this loss mines inside: pass epsilon=... to the module instead of the output of a miner"
        )


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    n, m, d = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    embeddings, ref_emb = normal(n, d).to(dtype), normal(m, d).to(dtype)
    labels = torch.randint(0, max(n // 2, 1), (n,), generator=generator)
    ref_labels = torch.randint(0, max(n // 2, 1), (m,), generator=generator)
    ignored = torch.where(torch.arange(n) % 3 == 1, -100, labels)
    one = {"embeddings": embeddings, "labels": labels}
    two = {**one, "ref_emb": ref_emb, "ref_labels": ref_labels}
    both = ("embeddings", "ref_emb")
    yield Sample("one-batch", one, ("embeddings",))
    yield Sample("references", two, both)
    yield Sample("mining", {**one, "epsilon": 0.1}, ("embeddings",), needs_float64=True)
    yield Sample("mining-references", {**two, "epsilon": 0.1}, both, needs_float64=True)
    yield Sample("dot", {**one, "similarity": "dot", "beta": 4.0}, ("embeddings",))
    yield Sample("ignored", {**two, "labels": ignored}, both)
    yield Sample("ignored-one-batch", {**one, "labels": ignored}, ("embeddings",))
    yield Sample("no-positive", {**one, "labels": torch.arange(n)}, ("embeddings",))
    yield Sample("no-negative", {**one, "labels": torch.zeros(n, dtype=torch.uint8)}, ("embeddings",))
    yield Sample("nothing-mined", {**one, "labels": torch.arange(n), "epsilon": 0.1}, ("embeddings",))
    weights = torch.rand(n, generator=generator)
    for reduction in _checks.REDUCTIONS:
        weighted = {**one, "labels": ignored, "weights": weights, "reduction": reduction}
        yield Sample(f"{reduction}-weights", weighted, ("embeddings",))
    yield Sample("learned-weights", {**one, "weights": weights.double()}, ("embeddings", "weights"))
    yield Sample("strided", {**one, "embeddings": embeddings.repeat(1, 2)[:, ::2]}, ("embeddings",))


record = register(
    OpRecord(
        name="multi_similarity",
        function=multi_similarity,
        module=MultiSimilarityLoss,
        reference=reference.multi_similarity,
        samples=_samples,
    )
)
