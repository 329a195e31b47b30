"""Supervised contrastive loss: function, module, record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from pairloom import _checks, reference
from pairloom._checks import SIMILARITIES
from pairloom._dispatch import as_temperature, gradient_bits, pair_loss, scripted_as
from pairloom._labels import operator_labels
from pairloom._registry import OpRecord, Sample, Support, register
from pairloom._stats import PairStats
from pairloom.losses._distances import compared_rows
from pairloom.losses._labelled import LabelledLoss, check_labelled
from pairloom.losses._mined import mined_loss, mined_pairs
from pairloom.losses._samples import labelled_samples
from pairloom.losses._translate import PeerKeywords
from pairloom.reference.sup_con import sup_con_rule

if TYPE_CHECKING:
    from typing_extensions import Unpack

FORMS = ("out", "in")


def _sup_con_script(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    temperature: Tensor | float = 0.1,
    form: str = "out",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean_nonzero",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    if labels is None:
        raise ValueError("labels is None; pass the class of each embedding, an integer tensor of shape (N,)")
    row_labels = operator_labels(labels, ignore_index)
    column_labels = None if ref_labels is None else operator_labels(ref_labels, ignore_index)
    scale = as_temperature(temperature, embeddings)
    embeddings, ref_emb = compared_rows(embeddings, ref_emb, similarity, normalize)
    bits = gradient_bits(embeddings, ref_emb, scale, reduction)
    return torch.ops.pairloom.sup_con(
        embeddings, ref_emb, scale, row_labels, column_labels, weights,
        form, similarity, reduction, ignore_index, bits, False,
    )[0]  # fmt: skip


@overload
def sup_con(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    temperature: Tensor | float = 0.1,
    form: str = "out",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean_nonzero",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: Literal[False] = False,
) -> Tensor: ...
@overload
def sup_con(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    temperature: Tensor | float = 0.1,
    form: str = "out",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean_nonzero",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: Literal[True],
) -> tuple[Tensor, PairStats]: ...
@scripted_as(_sup_con_script)
def sup_con(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    temperature: Tensor | float = 0.1,
    form: str = "out",
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean_nonzero",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, PairStats]:
    r"""Supervised contrastive loss (SupCon): every column of the anchor's class is to stand out from all columns.

    With z_ij = s(anchor i, column j) / temperature_i, P_i the columns of the class of i, and A_i all its columns:

        out:  L_i = mean_{p in P_i} log( sum_{a in A_i} e^{z_ia - z_ip} )
        in:   L_i = -log( mean_{p in P_i} e^{z_ip} / sum_{a in A_i} e^{z_ia} )

    The columns are the batch itself without the anchor, or ``ref_emb``. Positives are in the denominator; by Jensen
    "in" is at most "out", and with one positive they are equal. Several views of one sample are rows with the same
    label; with the number of the sample as label this is NT-Xent of SimCLR. Source: Khosla et al., "Supervised
    Contrastive Learning", NeurIPS 2020, without its factor temperature / base temperature; defaults are those of
    pytorch-metric-learning.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides; the anchors. Dtypes of the two may
            differ; half inputs are summed in float32, and each gradient comes back in the dtype of its input.
        labels: (N,) integer or bool, the class of each anchor (exact up to 64 bits).
            Or (N, L) of 0 and 1, multi-hot: whoever shares any label with an anchor is its positive.
        ref_emb: (M, D) columns to compare with instead of the batch itself; no pair is left out then.
        ref_labels: (M,) the class of each reference row.
        temperature: number above 0, or float tensor: 0-d, or (N,) with one value for each anchor. Gets a gradient.
        form: "out" (mean of logarithms, the better one in the paper) or "in" (logarithm of the mean).
        similarity: "cosine" (rows are normalised; a row shorter than 1e-12 has similarity 0), "dot", "euclidean" (s is
            the negated distance, with gradient 0 between equal rows) or "squared_euclidean" (its square).
        normalize: whether the two distances are those of the rows divided by their length; a row shorter than 1e-12
            becomes 0. "cosine" always divides, "dot" never.
        reduction: "mean_nonzero" (over anchors with a loss other than 0: those without a positive do not dilute the
            mean), "mean" and "mean_all" (over all anchors not ignored, as in the authors' code), "sum", or "none" (one
            loss for each anchor; gradients are then made in backward, at twice the cost). With ``weights`` a mean is
            sum(w L) / sum(w), a sum is sum(w L), and "none" is w L.
        weights: (N,) float, >= 0, one for each anchor. Gets a gradient.
        ignore_index: anchors of this class leave the loss and every mean, columns of it are no pair for anybody; None
            switches it off.
        indices_tuple: pairs of a miner, 3 index tensors (anchors, positives, negatives) or 4 (anchors, positives,
            anchors of negatives, negatives): only these count, each once, and ``labels`` may be None. Gradients are
            then made in backward. Or a miner of pairs (`pairloom.miners`), which chooses in the pass of the loss.
        return_stats: also return `PairStats`, counted in the same pass.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32. With ``return_stats`` the tuple
        (loss, `PairStats`).

    Raises:
        TypeError: embeddings that are not float, labels that are not integer or bool.
        ValueError: labels missing, shapes or devices that do not fit, a temperature not above 0 or weights below 0
            (looked at on the CPU in eager mode only), an unknown word. Nothing is computed before.

    ==========================================  =====================================  ==========
    case                                        loss                                   gradient
    ==========================================  =====================================  ==========
    anchor without positives                    L_i = 0                                0
    anchor without negatives, one positive      L_i = 0                                0
    all anchors ignored, or N = 0               0                                      0
    all weights 0                               0                                      0
    mean_nonzero, every loss 0                  0                                      0
    NaN in a row that takes part                NaN                                    NaN
    ==========================================  =====================================  ==========

    Cost for M columns (N against itself): 2 N M D flops forward, 6 N M D with both gradients; O((N + M) D) bytes beside
    the inputs, never the N x M matrix. Second derivatives, `torch.func` transforms and devices without a kernel compute
    `pairloom.reference.sup_con` instead, with O(N M) memory.

    Example:
        >>> import torch, pairloom
        >>> first = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> second = torch.tensor([[0.8, 0.6], [0.28, 0.96], [-0.28, 0.96], [-1.0, 0.0]])
        >>> views, y = torch.cat([first, second]), torch.tensor([0, 0, 1, 1, 0, 0, 1, 1])
        >>> f"{pairloom.functional.sup_con(views, y, temperature=0.5).item():.4f}"
        '1.6656'
        >>> f"{pairloom.functional.sup_con(views, y, temperature=0.5, form='in').item():.4f}"
        '1.5477'
    """
    check_labelled(
        embeddings,
        labels,
        ref_emb,
        ref_labels,
        similarity,
        reduction,
        weights,
        ignore_index,
        SIMILARITIES,
        normalize,
        indices_tuple,
    )
    _checks.temperature(temperature, "embeddings", embeddings)
    _checks.choice("form", form, FORMS)
    if indices_tuple is not None:
        embeddings, ref_emb = compared_rows(embeddings, ref_emb, similarity, normalize)
        pairs = mined_pairs(indices_tuple, embeddings, ref_emb, labels, ref_labels, ignore_index, similarity, normalize)
        return mined_loss(
            sup_con_rule,
            {"temperature": temperature, "form": form},
            pairs,
            embeddings,
            ref_emb,
            similarity=similarity,
            reduction=reduction,
            weights=weights,
            return_stats=return_stats,
        )
    assert labels is not None
    row_labels = operator_labels(labels, ignore_index)
    column_labels = None if ref_labels is None else operator_labels(ref_labels, ignore_index)
    scale = as_temperature(temperature, embeddings)
    embeddings, ref_emb = compared_rows(embeddings, ref_emb, similarity, normalize)
    bits = gradient_bits(embeddings, ref_emb, scale, reduction)
    return pair_loss(
        torch.ops.pairloom.sup_con, reference.sup_con,
        embeddings, ref_emb, scale, row_labels, column_labels, weights,
        form, similarity, reduction, ignore_index, bits, return_stats,
    )  # fmt: skip


class SupConLoss(LabelledLoss):
    """Supervised contrastive loss as a module; formula, shapes, empty cases and cost: `pairloom.functional.sup_con`.

    Called like the loss of pytorch-metric-learning: ``loss(embeddings, labels, ref_emb=..., ref_labels=...)``.

    Args:
        temperature: number above 0.
        form: "out" or "in", where the mean over positives stands.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".
        normalize: whether the two distances are those of the rows divided by their length.
        reduction: "mean_nonzero", "mean", "mean_all", "sum" or "none".
        ignore_index: anchors and columns of this class take no part; None switches it off.
        **peer: ``distance``, ``reducer``, ``embedding_regularizer``, ``embedding_reg_weight``, ``collect_stats`` as in
            pytorch-metric-learning, see `pairloom.losses.PeerKeywords`.

    Raises:
        ValueError, TypeError: a setting that is not allowed; in the call, what the function refuses.

    Example:
        >>> import torch, pairloom
        >>> loss = pairloom.SupConLoss(temperature=0.1)
        >>> x = torch.eye(4, requires_grad=True)
        >>> loss(x, torch.tensor([0, 0, 1, 1])).backward()
        >>> tuple(x.grad.shape)
        (4, 4)
    """

    function = staticmethod(sup_con)
    similarities = SIMILARITIES

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        form: str = "out",
        similarity: str = "cosine",
        normalize: bool = True,
        reduction: str = "mean_nonzero",
        ignore_index: int | None = -100,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        _checks.positive_number("temperature", temperature)
        _checks.choice("form", form, FORMS)
        own = {"temperature": float(temperature), "form": form, "normalize": normalize}
        super().__init__(own, similarity, reduction, ignore_index, **peer)


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    n = shape[0]
    settings = {"temperature": 0.2, "reduction": "mean"}
    for sample in labelled_samples(settings, dtype=dtype, shape=shape, seed=seed, distances=True):
        yield sample
        if sample.name not in ("one-batch", "references", "ignored", "mean_nonzero-weights"):
            continue
        yield Sample(f"in-{sample.name}", {**sample.arguments, "form": "in"}, sample.differentiable)
        scale = torch.linspace(0.1, 1.0, n, dtype=torch.float64)
        learned = {**sample.arguments, "temperature": scale}
        yield Sample(f"row-temperature-{sample.name}", learned, (*sample.differentiable, "temperature"))
    one = next(labelled_samples(settings, dtype=dtype, shape=shape, seed=seed)).arguments
    learned = {**one, "temperature": torch.tensor(0.3, dtype=torch.float64), "form": "in"}
    yield Sample("learned-temperature", learned, ("embeddings", "temperature"))
    yield Sample("low-temperature", {**one, "temperature": 0.01}, ("embeddings",), needs_float64=True)


record = register(
    OpRecord(
        name="sup_con",
        function=sup_con,
        module=SupConLoss,
        reference=reference.sup_con,
        samples=_samples,
        support=Support(cuda="kernel"),
    )
)
