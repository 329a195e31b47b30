"""InfoNCE: function, module, record."""

import math
from collections.abc import Iterator
from typing import Literal, overload

import torch
from torch import Tensor, nn

from pairloom import _checks, reference
from pairloom._dispatch import as_temperature, gradient_bits, pair_loss, scripted_as
from pairloom._labels import operator_labels
from pairloom._registry import OpRecord, Sample, Support, register
from pairloom._stats import PairStats
from pairloom.losses._distances import compared_rows


def _arguments(
    query: Tensor,
    key: Tensor,
    negatives: Tensor | None,
    temperature: Tensor | float,
    ids: Tensor | None,
    negative_ids: Tensor | None,
    similarity: str,
    normalize: bool,
    reduction: str,
    ignore_index: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, int]:
    """From the public arguments: rows, columns, temperature, row_labels, column_labels, needs_grad of the operator."""
    rows, columns = compared_rows(
        query, key if negatives is None else torch.cat([key, negatives]), similarity, normalize
    )
    assert columns is not None
    scale = as_temperature(temperature, query)
    row_labels: Tensor | None = None
    column_labels: Tensor | None = None
    if ids is not None:
        row_labels = operator_labels(ids, ignore_index)
        # Negatives without ids stay beyond the end of the labels: negatives of everybody.
        column_labels = row_labels
        if negative_ids is not None:
            column_labels = torch.cat([row_labels, operator_labels(negative_ids, ignore_index)])
    return rows, columns, scale, row_labels, column_labels, gradient_bits(rows, columns, scale, reduction)


def _info_nce_script(
    query: Tensor,
    key: Tensor,
    negatives: Tensor | None = None,
    temperature: Tensor | float = 0.07,
    ids: Tensor | None = None,
    negative_ids: Tensor | None = None,
    same_id: str = "ignore",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    rows, columns, scale, row_labels, column_labels, bits = _arguments(
        query, key, negatives, temperature, ids, negative_ids, similarity, normalize, reduction, ignore_index
    )
    return torch.ops.pairloom.info_nce(
        rows, columns, scale, row_labels, column_labels, weights,
        similarity, reduction, same_id, ignore_index, bits, False,
    )[0]  # fmt: skip


@overload
def info_nce(
    query: Tensor,
    key: Tensor,
    negatives: Tensor | None = None,
    *,
    temperature: Tensor | float = 0.07,
    ids: Tensor | None = None,
    negative_ids: Tensor | None = None,
    same_id: str = "ignore",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    return_stats: Literal[False] = False,
) -> Tensor: ...
@overload
def info_nce(
    query: Tensor,
    key: Tensor,
    negatives: Tensor | None = None,
    *,
    temperature: Tensor | float = 0.07,
    ids: Tensor | None = None,
    negative_ids: Tensor | None = None,
    same_id: str = "ignore",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    return_stats: Literal[True],
) -> tuple[Tensor, PairStats]: ...
@scripted_as(_info_nce_script)
def info_nce(
    query: Tensor,
    key: Tensor,
    negatives: Tensor | None = None,
    *,
    temperature: Tensor | float = 0.07,
    ids: Tensor | None = None,
    negative_ids: Tensor | None = None,
    same_id: str = "ignore",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, PairStats]:
    r"""InfoNCE: pick the key of every query among all keys and the extra negatives.

    With columns c = [key; negatives], the similarity s and z_ij = s(query_i, c_j) / temperature_i:

        L_i = mean_{p in P_i} log( 1 + sum_{n in N_i} e^{z_in - z_ip} )

    Without ``ids``: P_i = {i}, N_i = all other columns, so L_i is the cross-entropy of picking column i. With
    ``ids``, other columns that carry the id of query i are left out of both (``same_id="ignore"``) or are further
    positives, averaged, and not in each other's denominator (``same_id="positive"``). Source: van den Oord et al.,
    "Representation Learning with Contrastive Predictive Coding", 2018.

    Args:
        query: (N, D) float32, float64, float16 or bfloat16, any strides. Dtypes of the three may differ; half inputs
            are summed in float32, and each gradient comes back in the dtype of its input.
        key: (N, D). Row i is the positive of query i.
        negatives: (M, D) further negatives of every query, for example a queue.
        temperature: number above 0, or float tensor: 0-d, or (N,) with one value for each query. Gets a gradient.
        ids: (N,) integer or bool, the identity of each query and its key (exact up to 64 bits). No two queries with the
            same id are negatives of each other.
            Or (N, L) of 0 and 1, multi-hot: rows that share any label are like rows with one id.
        negative_ids: (M,) the same for ``negatives``; without it they are negatives of every query.
        same_id: "ignore" or "positive", what other columns with the id of the query are.
        similarity: "cosine" (rows are normalised; a row shorter than 1e-12 has similarity 0), "dot", "euclidean" (s is
            the negated distance, with gradient 0 between equal rows) or "squared_euclidean" (its square).
        normalize: whether the two distances are those of the rows divided by their length; a row shorter than 1e-12
            becomes 0. "cosine" always divides, "dot" never.
        reduction: "mean" and "mean_all" (over all queries not ignored), "mean_nonzero" (over those with a loss other
            than 0), "sum", or "none" (one loss for each query; gradients are then made in backward, at twice the
            cost). With ``weights`` a mean is sum(w L) / sum(w), a sum is sum(w L), and "none" is w L.
        weights: (N,) float, >= 0, one for each query. Gets a gradient.
        ignore_index: queries with this id leave the loss and every mean, and their keys are nobody's negatives; None
            switches it off.
        return_stats: also return `PairStats`, counted in the same pass.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32. With ``return_stats`` the tuple
        (loss, `PairStats`).

    Raises:
        TypeError: embeddings that are not float, ids that are not integer or bool.
        ValueError: shapes or devices that do not fit, a temperature not above 0 or weights below 0 (looked at on the
            CPU in eager mode only), an unknown word. Nothing is computed before.

    ==========================================  =========  =========
    case                                        loss       gradient
    ==========================================  =========  =========
    no negatives left for a query               L_i = 0    0
    all queries ignored, or N = 0               0          0
    all weights 0                               0          0
    mean_nonzero, every loss 0                  0          0
    NaN in a row that takes part                NaN        NaN
    ==========================================  =========  =========

    Cost: 2 N (N + M) D flops forward, 6 N (N + M) D with both gradients; O((N + M) D) bytes beside the inputs, never
    the N x (N + M) matrix. Second derivatives, `torch.func` transforms and devices without a kernel compute
    `pairloom.reference.info_nce` instead, with O(N (N + M)) memory.

    Example:
        >>> import torch, pairloom
        >>> query = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> key = torch.tensor([[0.8, 0.6], [0.28, 0.96], [-0.28, 0.96], [-1.0, 0.0]])
        >>> f"{pairloom.functional.info_nce(query, key, temperature=0.5).item():.4f}"
        '0.8137'
        >>> same_object = torch.tensor([7, 8, 8, 9])  # queries 1 and 2 are not negatives of each other
        >>> loss, stats = pairloom.functional.info_nce(query, key, ids=same_object, return_stats=True)
        >>> int(stats.positives), int(stats.negatives)
        (4, 10)
    """
    _checks.loss_settings(similarity, reduction, ignore_index, normalize=normalize, allowed=_checks.SIMILARITIES)
    _check(query, key, negatives, temperature, ids, negative_ids, same_id, ignore_index)
    _checks.weights(weights, "query", query)
    rows, columns, scale, row_labels, column_labels, bits = _arguments(
        query, key, negatives, temperature, ids, negative_ids, similarity, normalize, reduction, ignore_index
    )
    return pair_loss(
        torch.ops.pairloom.info_nce, reference.info_nce,
        rows, columns, scale, row_labels, column_labels, weights,
        similarity, reduction, same_id, ignore_index, bits, return_stats,
    )  # fmt: skip


def _check(
    query: Tensor,
    key: Tensor,
    negatives: Tensor | None,
    temperature: Tensor | float,
    ids: Tensor | None,
    negative_ids: Tensor | None,
    same_id: str,
    ignore_index: int | None,
) -> None:
    _checks.embeddings("query", query, key=key, negatives=negatives)
    if query.shape[0] != key.shape[0]:
        raise ValueError(
            f"key has {key.shape[0]} rows and query has {query.shape[0]}; row i of key is the positive of row i of "
            "query (pass further keys as negatives)"
        )
    _checks.temperature(temperature, "query", query)
    if ids is not None:
        _checks.labels("ids", ids, "query", query, multi_hot=True)
        _checks.multi_hot_entries("ids", ids, ignore_index)
    if negative_ids is not None:
        _checks.given_together("negative_ids", negative_ids, "ids", ids, "ids are compared with the ids of the queries")
        _checks.given_together("negative_ids", negative_ids, "negatives", negatives, "there is nothing to identify")
        assert negatives is not None
        _checks.labels("negative_ids", negative_ids, "negatives", negatives, multi_hot=True)
        _checks.multi_hot_entries("negative_ids", negative_ids, ignore_index)
        _checks.same_label_kind("ids", ids, "negative_ids", negative_ids)
    _checks.choice("same_id", same_id, ("ignore", "positive"))


class InfoNCELoss(nn.Module):
    """InfoNCE as a module; formula, shapes, empty cases and cost stand at `pairloom.functional.info_nce`.

    Args:
        temperature: number above 0; the starting value when it is learned.
        learn_temperature: own ``log_scale`` = log(1 / temperature) as a parameter, learned with the encoder. It is not
            bounded: clamp it yourself (CLIP keeps the scale below 100).
        same_id: "ignore" or "positive", what other columns with the id of the query are.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".
        normalize: whether the two distances are those of the rows divided by their length.
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".
        ignore_index: queries with this id leave the loss; None switches it off.

    Raises:
        ValueError, TypeError: a setting that is not allowed.

    Example:
        >>> import torch, pairloom
        >>> loss = pairloom.InfoNCELoss(0.1, learn_temperature=True)
        >>> query = torch.eye(3, requires_grad=True)
        >>> loss(query, torch.eye(3)).backward()
        >>> tuple(query.grad.shape), loss.log_scale.grad is not None
        ((3, 3), True)
    """

    # TorchScript reads this annotation: it must not be a string, so no `from __future__ import annotations` here.
    log_scale: Tensor | None

    def __init__(
        self,
        temperature: float = 0.07,
        *,
        learn_temperature: bool = False,
        same_id: str = "ignore",
        similarity: str = "cosine",
        normalize: bool = True,
        reduction: str = "mean",
        ignore_index: int | None = -100,
    ) -> None:
        super().__init__()
        _checks.positive_number("temperature", temperature)
        _checks.choice("same_id", same_id, ("ignore", "positive"))
        _checks.loss_settings(similarity, reduction, ignore_index, normalize=normalize, allowed=_checks.SIMILARITIES)
        self.temperature = float(temperature)
        self.same_id = same_id
        self.similarity = similarity
        self.normalize = normalize
        self.reduction = reduction
        self.ignore_index = ignore_index
        if learn_temperature:
            self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))
        else:
            self.register_parameter("log_scale", None)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        negatives: Tensor | None = None,
        ids: Tensor | None = None,
        negative_ids: Tensor | None = None,
    ) -> Tensor:
        """The loss; arguments as in `pairloom.functional.info_nce`."""
        return info_nce(
            query,
            key,
            negatives,
            temperature=self.current_temperature(),
            ids=ids,
            negative_ids=negative_ids,
            same_id=self.same_id,
            similarity=self.similarity,
            normalize=self.normalize,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
        )

    def with_stats(
        self,
        query: Tensor,
        key: Tensor,
        negatives: Tensor | None = None,
        ids: Tensor | None = None,
        negative_ids: Tensor | None = None,
    ) -> tuple[Tensor, PairStats]:
        """The loss and the statistics of its pairs, from the same pass."""
        return info_nce(
            query,
            key,
            negatives,
            temperature=self.current_temperature(),
            ids=ids,
            negative_ids=negative_ids,
            same_id=self.same_id,
            similarity=self.similarity,
            normalize=self.normalize,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            return_stats=True,
        )

    def current_temperature(self) -> Tensor | float:
        """The temperature: the given number, or e^(-log_scale) when it is learned."""
        log_scale = self.log_scale
        if log_scale is None:
            return self.temperature
        return torch.exp(-log_scale)

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"temperature={self.temperature}, learn_temperature={self.log_scale is not None}, "
            f"same_id={self.same_id!r}, similarity={self.similarity!r}, normalize={self.normalize}, "
            f"reduction={self.reduction!r}, ignore_index={self.ignore_index}"
        )


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    n, m, d = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    query, key, negatives = normal(n, d).to(dtype), normal(n, d).to(dtype), normal(m, d).to(dtype)
    ids = torch.randint(0, max(n // 2, 1), (n,), generator=generator)
    negative_ids = torch.randint(0, max(n // 2, 1), (m,), generator=generator)
    ignored = torch.where(torch.arange(n) % 3 == 1, -100, ids)
    pair = {"query": query, "key": key, "temperature": 0.2}
    triple = {**pair, "negatives": negatives}
    both, all_three = ("query", "key"), ("query", "key", "negatives")
    yield Sample("pairs", pair, both)
    yield Sample("dot", {**pair, "similarity": "dot", "temperature": 1.0}, both)
    yield Sample("euclidean", {**triple, "similarity": "euclidean"}, all_three)
    yield Sample("squared_euclidean", {**pair, "similarity": "squared_euclidean", "normalize": False}, both)
    yield Sample("negatives", triple, all_three)
    yield Sample("low-temperature", {**pair, "temperature": 0.01}, both, needs_float64=True)
    scalar, per_row = torch.tensor(0.3, dtype=torch.float64), torch.linspace(0.1, 1.0, n, dtype=torch.float64)
    yield Sample("learned-temperature", {**triple, "temperature": scalar}, (*all_three, "temperature"))
    yield Sample("row-temperature", {**triple, "temperature": per_row}, (*all_three, "temperature"))
    for same_id in ("ignore", "positive"):
        yield Sample(f"ids-{same_id}", {**pair, "ids": ids, "same_id": same_id}, both)
        with_ids = {**triple, "ids": ids, "negative_ids": negative_ids, "same_id": same_id}
        yield Sample(f"negative-ids-{same_id}", with_ids, all_three)
        yield Sample(f"plain-negatives-{same_id}", {**triple, "ids": ids, "same_id": same_id}, all_three)
    yield Sample("ignored", {**triple, "ids": ignored, "negative_ids": negative_ids}, all_three)
    weights = torch.rand(n, generator=generator)
    for reduction in _checks.REDUCTIONS:
        yield Sample(f"{reduction}-weights", {**pair, "ids": ignored, "weights": weights, "reduction": reduction}, both)
    yield Sample("learned-weights", {**pair, "weights": weights.double()}, (*both, "weights"))
    yield Sample("zero-row", {**pair, "key": torch.cat([key[:1] * 0, key[1:]])}, ("query",))
    yield Sample("strided", {**pair, "query": query.repeat(1, 2)[:, ::2], "key": key.T.contiguous().T}, both)


record = register(
    OpRecord(
        name="info_nce",
        function=info_nce,
        module=InfoNCELoss,
        reference=reference.info_nce,
        samples=_samples,
        support=Support(cuda="kernel"),
    )
)
