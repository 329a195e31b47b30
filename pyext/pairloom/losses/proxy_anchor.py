"""Proxy-Anchor loss: function, module, record. Its rule is plain torch, streamed (`pairloom._stream`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pairloom import _checks, reference
from pairloom._dispatch import gradient_bits, scripted_as
from pairloom._registry import OpRecord, Sample, register
from pairloom._stream import STREAMED, define_streamed
from pairloom.losses._distances import is_distance
from pairloom.losses._labelled import labelled_loss, scripted_pairs
from pairloom.losses._proxies import ProxyLoss, classes
from pairloom.losses._samples import labelled_samples
from pairloom.losses._translate import ProxyKeywords, reduction_of
from pairloom.reference.proxy_anchor import proxy_anchor_rule

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _proxy_anchor_script(
    embeddings: Tensor,
    labels: Tensor | None,
    proxies: Tensor,
    proxy_labels: Tensor | None = None,
    margin: float = 0.1,
    alpha: float = 32.0,
    similarity: str = "cosine",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    if similarity == "euclidean" or similarity == "squared_euclidean":
        margin = -margin
    own = torch.arange(proxies.shape[0], device=proxies.device) if proxy_labels is None else proxy_labels
    rows, columns, row_labels, column_labels = scripted_pairs(
        proxies, own, embeddings, labels, similarity, normalize, ignore_index
    )
    bits = gradient_bits(rows, columns, None, reduction, weights=weights)
    return torch.ops.pairloom.proxy_anchor(
        rows, columns, row_labels, column_labels, weights, margin, alpha,
        similarity, reduction, ignore_index, bits, False,
    )[0]  # fmt: skip


@scripted_as(_proxy_anchor_script)
def proxy_anchor(
    embeddings: Tensor,
    labels: Tensor | None,
    proxies: Tensor,
    proxy_labels: Tensor | None = None,
    *,
    margin: float = 0.1,
    alpha: float = 32.0,
    similarity: str = "cosine",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    return_stats: bool = False,
) -> Any:
    r"""Proxy-Anchor: every proxy pulls the embeddings of its class and pushes all others, hard ones most.

    With s_ci the similarity of proxy c and embedding i, P_c the embeddings of its class, N_c the others and C+ the
    proxies with a positive in the batch:

        L = mean_{c in C+} log(1 + sum_{p in P_c} e^{-alpha (s_cp - margin)})
            + mean_c log(1 + sum_{n in N_c} e^{alpha (s_cn + margin)})

    For the two distances D = -s the margin is one too: e^{alpha (D_cp - margin)} and e^{alpha (-margin - D_cn)}.
    Source: Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020; defaults as in pytorch-metric-learning.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides.
        labels: (N,) integer or bool, the class of each embedding, from 0 to C - 1.
        proxies: (C, D), row c is the proxy of class c. Gets a gradient.
        proxy_labels: (C,) the class of each proxy instead of its number; classes may have several proxies or none.
        margin: positives are pulled above it, negatives pushed below its negative.
        alpha: factor in the exponents, above 0.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean" (negated).
        normalize: whether the two distances are those of the rows divided by their length; a row shorter than 1e-12
            becomes 0. "cosine" always divides, "dot" never.
        reduction: "mean" and "mean_all" (the formula), "mean_nonzero" (both means over terms above 0), "sum", or "none"
            (both terms of each proxy added). With ``weights`` a mean is sum(w t) / sum(w).
        weights: (C,) float, >= 0, one for each proxy. Gets a gradient.
        ignore_index: embeddings of this class leave the loss, and a proxy of it all means; None switches it off.
        return_stats: also return `PairStats`, counted in the same pass; the anchors are the proxies.

    Returns:
        The loss: 0-d, or (C,) for "none"; float64 if an embedding is, else float32. With ``return_stats`` the tuple
        (loss, `PairStats`).

    Raises:
        TypeError: embeddings or proxies that are not float, labels that are not integer or bool.
        ValueError: shapes or devices that do not fit, a label without a proxy (looked at on the CPU in eager mode
            only; elsewhere it is a negative of all), a setting out of range, an unknown word. Nothing is computed
            before.

    No embedding of any proxy's class: the first mean is 0. All embeddings ignored, all weights 0, or N = 0: 0.
    NaN in a row that takes part: NaN.

    Cost: 2 N C D flops forward, 8 N C D with gradients (both divisors are known only after a first pass), and some
    passes of plain torch over each chunk; O((N + C) D) memory. Second derivatives and devices without a kernel compute
    `pairloom.reference.proxy_anchor` instead, with O(N C) memory.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> proxies = torch.tensor([[1.0, 0.0], [-0.6, 0.8]])
        >>> f"{pairloom.functional.proxy_anchor(x, torch.tensor([0, 0, 1, 1]), proxies).item():.4f}"
        '7.7000'
    """
    _check_settings(margin, alpha)
    if proxy_labels is None:
        labels, proxy_labels = classes(embeddings, labels, proxies, ignore_index)
    _checks.embeddings("embeddings", embeddings, proxies=proxies)
    _checks.labelled_pairs(embeddings, labels, None, None, ignore_index)
    _checks.weights(weights, "proxies", proxies)
    _checks.labels("proxy_labels", proxy_labels, "proxies", proxies, multi_hot=True)
    _checks.multi_hot_entries("proxy_labels", proxy_labels, ignore_index)
    _checks.same_label_kind("labels", labels, "proxy_labels", proxy_labels)
    assert labels is not None
    if is_distance(similarity):  # a distance is a similarity with the sign turned, and so is its margin
        margin = -margin
    return labelled_loss(
        "proxy_anchor",
        proxies,
        proxy_labels,
        embeddings,
        labels,
        (margin, alpha),
        similarity=similarity,
        reduction=reduction,
        weights=weights,
        ignore_index=ignore_index,
        return_stats=return_stats,
        allowed=_checks.SIMILARITIES,
        normalize=normalize,
    )


def _check_settings(margin: float, alpha: float) -> None:
    _checks.finite_number("margin", margin)
    _checks.positive_number("alpha", alpha)


class ProxyAnchorLoss(ProxyLoss):
    """Proxy-Anchor as a module; formula, empty cases and cost: `pairloom.functional.proxy_anchor`.

    It owns ``proxies``, a parameter (num_classes, embedding_size) of normal random numbers with variance 2 /
    num_classes. The paper gives it a learning rate 100 times that of the encoder.

    Args:
        num_classes: C; labels lie between 0 and C - 1.
        embedding_size: D.
        margin: positives are pulled above it, negatives pushed below its negative.
        alpha: factor in the exponents, above 0.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".
        normalize: whether the two distances are those of the rows divided by their length.
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none"; ``weights`` in the call are those of proxies.
        ignore_index: embeddings of this class take no part; None switches it off.
        **peer: ``distance``, ``embedding_regularizer``, ``embedding_reg_weight``, ``collect_stats``,
            ``weight_init_func``, ``weight_regularizer``, ``weight_reg_weight`` as in pytorch-metric-learning, see
            `pairloom.losses.PeerKeywords` and `pairloom.losses.ProxyKeywords`. Of the reducers AvgNonZeroReducer,
            SumReducer, DoNothingReducer, and DivisorReducer, which is "mean".

    Raises:
        ValueError, TypeError: a setting that is not allowed; in the call, an index tuple.

    Example:
        >>> import torch, pairloom
        >>> loss = pairloom.ProxyAnchorLoss(num_classes=3, embedding_size=4)
        >>> loss(torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])).backward()
        >>> tuple(loss.proxies.grad.shape)
        (3, 4)
    """

    function = staticmethod(proxy_anchor)
    similarities = _checks.SIMILARITIES

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 0.1,
        alpha: float = 32,
        *,
        similarity: str = "cosine",
        normalize: bool = True,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[ProxyKeywords],
    ) -> None:
        _check_settings(margin, alpha)
        own = {"margin": float(margin), "alpha": float(alpha), "normalize": normalize}
        reducer = peer.get("reducer")
        if type(reducer).__name__ == "DivisorReducer":
            peer["reducer"] = None
        elif reducer is not None and reduction_of(reducer) not in ("mean_nonzero", "sum", "none"):
            raise ValueError(
                f"reducer is a {type(reducer).__name__}, but this loss has two terms for each proxy, each with its own "
                "mean; allowed: DivisorReducer, AvgNonZeroReducer, SumReducer, DoNothingReducer"
            )
        super().__init__(num_classes, embedding_size, own, similarity, reduction, ignore_index, **peer)

    def first_proxies(self, proxies: Tensor) -> None:
        """Fill new proxies."""
        nn.init.kaiming_normal_(proxies, mode="fan_out")


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    """Those of all losses on labelled embeddings, with proxies for the anchors and embeddings for the references."""
    names = {"embeddings": "proxies", "labels": "proxy_labels", "ref_emb": "embeddings", "ref_labels": "labels"}
    settings = {"alpha": 8.0}
    samples = {s.name: s for s in labelled_samples(settings, dtype=dtype, shape=shape, seed=seed, distances=True)}
    columns = {name: samples["references"].arguments[name] for name in ("ref_emb", "ref_labels")}
    for name, sample in samples.items():
        arguments = {names.get(key, key): value for key, value in {**sample.arguments, **columns}.items()}
        differentiable = {names.get(key, key): None for key in (*sample.differentiable, "ref_emb")}
        yield Sample(name, arguments, tuple(differentiable))
        if name == "references":
            yield Sample("steep", {**arguments, "alpha": 32.0, "margin": 0.3}, tuple(differentiable), True)


define_streamed("proxy_anchor", proxy_anchor_rule, ("float margin", "float alpha"), parts=2)
record = register(
    OpRecord(
        name="proxy_anchor",
        function=proxy_anchor,
        module=ProxyAnchorLoss,
        reference=reference.proxy_anchor,
        samples=_samples,
        support=STREAMED,
    )
)
