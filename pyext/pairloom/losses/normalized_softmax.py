"""Normalised softmax loss: function and module over the operator of `sup_con`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pairloom import _checks
from pairloom._dispatch import not_scripted
from pairloom.losses._proxies import ProxyLoss, classes
from pairloom.losses._translate import ProxyKeywords
from pairloom.losses.sup_con import sup_con
from pairloom.reference.similarity import compute_dtype, unit_rows

if TYPE_CHECKING:
    from typing_extensions import Unpack


@not_scripted
def normalized_softmax(
    embeddings: Tensor,
    labels: Tensor | None,
    proxies: Tensor,
    *,
    temperature: Tensor | float = 0.05,
    similarity: str = "cosine",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    return_stats: bool = False,
) -> Any:
    r"""Normalised softmax: classification by the cosine of every embedding with one proxy per class.

    With z_ic = cos(x_i, proxy_c) / temperature_i and y_i the class of embedding i:

        L_i = log sum_c e^{z_ic} - z_iy

    With another similarity it takes the place of the cosine; proxies have length 1 in all of them. `proxy_nca` is the
    same with temperature = 1 / (2 softmax_scale). Source: Zhai, Wu, "Classification is a Strong Baseline for Deep
    Metric Learning", BMVC 2019. Defaults as in pytorch-metric-learning, whose ``W`` is the transpose of ``proxies``.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides.
        labels: (N,) integer or bool, the class of each embedding, from 0 to C - 1.
        proxies: (C, D), row c is the proxy of class c. Gets a gradient.
        temperature: number above 0, or float tensor: 0-d, or (N,) with one value for each embedding. Gets a gradient.
        similarity: "cosine", "dot" (embeddings keep their length), "euclidean" or "squared_euclidean" (negated).
        normalize: whether embeddings are divided by their length for the two distances, as the proxies are.
        reduction: "mean" and "mean_all" (over all embeddings not ignored), "mean_nonzero", "sum", or "none" (one loss
            for each embedding). With ``weights`` a mean is sum(w L) / sum(w).
        weights: (N,) float, >= 0, one for each embedding. Gets a gradient.
        ignore_index: embeddings of this class leave the loss and every mean, and it has no proxy; None switches it off.
        return_stats: also return `PairStats`, counted in the same pass.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32. With ``return_stats`` the tuple
        (loss, `PairStats`).

    Raises:
        TypeError: embeddings or proxies that are not float, labels that are not integer or bool.
        ValueError: shapes or devices that do not fit, a label without a proxy (looked at on the CPU in eager mode
            only; elsewhere its loss is 0), a setting out of range, an unknown word. Nothing is computed before.

    One proxy: 0. All embeddings ignored, all weights 0, or N = 0: 0. NaN in a row that takes part: NaN.

    Cost: 2 N C D flops forward, 6 N C D with both gradients; O((N + C) D) memory.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> proxies = torch.tensor([[1.0, 0.0], [-0.6, 0.8]])
        >>> y = torch.tensor([0, 0, 1, 1])
        >>> f"{pairloom.functional.normalized_softmax(x, y, proxies, temperature=0.5).item():.4f}"
        '0.1691'
    """
    row_labels, proxy_labels = classes(embeddings, labels, proxies, ignore_index)
    if similarity != "cosine":
        proxies = unit_rows(proxies.to(compute_dtype(embeddings, proxies)))
    loss: Callable[..., Any] = sup_con  # its overloads want a literal return_stats
    return loss(
        embeddings,
        row_labels,
        proxies,
        proxy_labels,
        temperature=temperature,
        similarity=similarity,
        normalize=normalize,
        reduction=reduction,
        weights=weights,
        ignore_index=ignore_index,
        return_stats=return_stats,
    )


class NormalizedSoftmaxLoss(ProxyLoss):
    """Normalised softmax as a module; formula, empty cases and cost: `pairloom.functional.normalized_softmax`.

    It owns ``proxies``, a parameter (num_classes, embedding_size) of normal random numbers.

    Args:
        num_classes: C; labels lie between 0 and C - 1.
        embedding_size: D.
        temperature: number above 0.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".
        normalize: whether embeddings are divided by their length for the two distances.
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".
        ignore_index: embeddings of this class take no part; None switches it off.
        **peer: ``distance``, ``reducer``, ``embedding_regularizer``, ``embedding_reg_weight``, ``collect_stats``,
            ``weight_init_func``, ``weight_regularizer``, ``weight_reg_weight`` as in pytorch-metric-learning, see
            `pairloom.losses.PeerKeywords` and `pairloom.losses.ProxyKeywords`.

    Raises:
        ValueError, TypeError: a setting that is not allowed; in the call, an index tuple.

    Example:
        >>> import torch, pairloom
        >>> loss = pairloom.NormalizedSoftmaxLoss(num_classes=3, embedding_size=4)
        >>> loss(torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])).backward()
        >>> tuple(loss.proxies.grad.shape)
        (3, 4)
    """

    function = staticmethod(normalized_softmax)

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        temperature: float = 0.05,
        *,
        similarity: str = "cosine",
        normalize: bool = True,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[ProxyKeywords],
    ) -> None:
        _checks.positive_number("temperature", temperature)
        distance = peer.get("distance")
        p = getattr(distance, "p", 2)
        if p != 2:
            raise ValueError(f"distance is {type(distance).__name__}(p={p}); proxies of length 1 need p=2")
        own = {"temperature": float(temperature), "normalize": normalize}
        super().__init__(num_classes, embedding_size, own, similarity, reduction, ignore_index, **peer)
