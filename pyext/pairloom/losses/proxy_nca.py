"""ProxyNCA and ProxyNCA++: function and module over the operators of `sup_con` and `dcl`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pairloom import _checks
from pairloom._dispatch import not_scripted
from pairloom.losses._labelled import DISTANCES
from pairloom.losses._proxies import ProxyLoss, classes
from pairloom.losses._translate import ProxyKeywords
from pairloom.losses.dcl import dcl
from pairloom.losses.sup_con import sup_con

if TYPE_CHECKING:
    from typing_extensions import Unpack

FORMS = ("softmax", "classic")


@not_scripted
def proxy_nca(
    embeddings: Tensor,
    labels: Tensor | None,
    proxies: Tensor,
    *,
    softmax_scale: float = 1.0,
    form: str = "softmax",
    similarity: str = "squared_euclidean",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    return_stats: bool = False,
) -> Any:
    r"""ProxyNCA: every embedding is nearer to the proxy of its class than to all other proxies.

    With N(x) = x / ||x||, y_i the class of embedding i and q_ic = softmax_scale ||N(x_i) - N(proxy_c)||^2:

        softmax   L_i = q_iy + log sum_c e^{-q_ic}               over all proxies, as in ProxyNCA++
        classic   L_i = q_iy + log sum_{c != y} e^{-q_ic}        may be negative

    Another similarity s takes the place of the negated square, q = -softmax_scale s. Because ||N(x) - N(p)||^2 =
    2 - 2 cos, this is `sup_con` (classic: `dcl`) on the proxies at temperature 1 / (2 softmax_scale). ProxyNCA++ is
    ``softmax_scale=9``: both vectors three times as long. Source: Movshovitz-Attias et al., "No Fuss Distance Metric
    Learning using Proxies", ICCV 2017 (classic); Teh, DeVries, Taylor, "ProxyNCA++", ECCV 2020. Names and defaults as
    in pytorch-metric-learning.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides.
        labels: (N,) integer or bool, the class of each embedding, from 0 to C - 1.
        proxies: (C, D), row c is the proxy of class c. Gets a gradient.
        softmax_scale: factor of the squared distances, above 0.
        form: "softmax" or "classic".
        similarity: "squared_euclidean" (negated squares), "euclidean" (negated distances), "cosine" or "dot".
        normalize: whether the two distances are those of the rows divided by their length; a row shorter than 1e-12
            becomes 0. "cosine" always divides, "dot" never.
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
        >>> f"{pairloom.functional.proxy_nca(x, torch.tensor([0, 0, 1, 1]), proxies, softmax_scale=9.0).item():.6f}"
        '0.000787'
    """
    row_labels, proxy_labels = classes(embeddings, labels, proxies, ignore_index)
    _check_settings(softmax_scale, form)
    _checks.choice("similarity", similarity, DISTANCES)
    temperature = 1 / softmax_scale
    if similarity == "squared_euclidean" and normalize:  # 2 - 2 cos: one product instead of a distance
        similarity, temperature = "cosine", temperature / 2
    loss: Callable[..., Any] = sup_con if form == "softmax" else dcl
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


def _check_settings(softmax_scale: float, form: str) -> None:
    _checks.positive_number("softmax_scale", softmax_scale)
    _checks.choice("form", form, FORMS)


class ProxyNCALoss(ProxyLoss):
    """ProxyNCA as a module; formula, empty cases and cost: `pairloom.functional.proxy_nca`.

    It owns ``proxies``, a parameter (num_classes, embedding_size) of normal random numbers.

    Args:
        num_classes: C; labels lie between 0 and C - 1.
        embedding_size: D.
        softmax_scale: factor of the squared distances, above 0; 9 is ProxyNCA++.
        form: "softmax" or "classic".
        similarity: "squared_euclidean", "euclidean", "cosine" or "dot".
        normalize: whether the two distances are those of the rows divided by their length.
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".
        ignore_index: embeddings of this class take no part; None switches it off.
        **peer: ``distance``, ``reducer``, ``embedding_regularizer``, ``embedding_reg_weight``, ``collect_stats``,
            ``weight_init_func``, ``weight_regularizer``, ``weight_reg_weight`` as in pytorch-metric-learning, see
            `pairloom.losses.PeerKeywords` and `pairloom.losses.ProxyKeywords`.

    Raises:
        ValueError, TypeError: a setting that is not allowed; in the call, an index tuple.

    Example:
        >>> import torch, pairloom
        >>> loss = pairloom.ProxyNCALoss(num_classes=3, embedding_size=4)
        >>> loss(torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])).backward()
        >>> tuple(loss.proxies.grad.shape)
        (3, 4)
    """

    function = staticmethod(proxy_nca)

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        softmax_scale: float = 1.0,
        form: str = "softmax",
        similarity: str = "squared_euclidean",
        normalize: bool = True,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[ProxyKeywords],
    ) -> None:
        _check_settings(softmax_scale, form)
        own = {"softmax_scale": float(softmax_scale), "form": form, "normalize": normalize}
        super().__init__(num_classes, embedding_size, own, similarity, reduction, ignore_index, **peer)
