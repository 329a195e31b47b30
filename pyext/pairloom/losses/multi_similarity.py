"""Multi-Similarity loss: function, module, record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from pairloom import _checks, reference
from pairloom._checks import SIMILARITIES
from pairloom._dispatch import gradient_bits, pair_loss, scripted_as
from pairloom._labels import operator_labels
from pairloom._registry import OpRecord, Sample, Support, register
from pairloom._stats import PairStats
from pairloom.losses._distances import compared_rows, is_distance
from pairloom.losses._labelled import LabelledLoss, check_labelled
from pairloom.losses._mined import mined_loss, mined_pairs
from pairloom.losses._samples import labelled_samples
from pairloom.losses._translate import PeerKeywords
from pairloom.reference.multi_similarity import multi_similarity_rule

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _multi_similarity_script(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    alpha: float = 2.0,
    beta: float = 50.0,
    base: float = 0.5,
    epsilon: float | None = None,
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    if labels is None:
        raise ValueError("labels is None; pass the class of each embedding, an integer tensor of shape (N,)")
    row_labels = operator_labels(labels, ignore_index)
    column_labels = None if ref_labels is None else operator_labels(ref_labels, ignore_index)
    if is_distance(similarity):  # a distance is a similarity with the sign turned, and so is its base
        base = -base
    embeddings, ref_emb = compared_rows(embeddings, ref_emb, similarity, normalize)
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
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
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
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
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
    normalize: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: bool = False,
) -> Tensor | tuple[Tensor, PairStats]:
    r"""Multi-Similarity loss, with its miner inside when ``epsilon`` is given.

    With s_ij the similarity of anchor i and column j, P_i the columns of its class and N_i the others:

        L_i = 1/alpha log( 1 + sum_{p in P_i} e^{-alpha (s_ip - base)} )
              + 1/beta log( 1 + sum_{n in N_i} e^{beta (s_in - base)} )

    The columns are the batch itself without the anchor, or ``ref_emb``. With ``epsilon`` only hard pairs stay, judged
    against all pairs of the other kind: negatives with s + epsilon > min_P s and positives with s - epsilon < max_N s.
    Source: Wang et al., "Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning", CVPR 2019.
    Defaults are those of pytorch-metric-learning; its MultiSimilarityMiner(epsilon) and loss together are ``epsilon``
    here, and so is the authors' code, except that it takes positives with s >= 1 - 1e-5 (duplicates) for the anchor.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides; the anchors. Dtypes of the two may
            differ; half inputs are summed in float32, and each gradient comes back in the dtype of its input.
        labels: (N,) integer or bool, the class of each anchor (exact up to 64 bits).
            Or (N, L) of 0 and 1, multi-hot: whoever shares any label with an anchor is its positive.
        ref_emb: (M, D) columns to compare with instead of the batch itself; no pair is left out then, so pass the batch
            again only if an anchor is to be its own positive.
        ref_labels: (M,) the class of each reference row.
        alpha: weight of positives in the exponent, above 0.
        beta: weight of negatives in the exponent, above 0.
        base: similarity from which pairs begin to count; for the two distances a distance, s + base in the formula.
        epsilon: margin of the miner; None takes all pairs.
        similarity: "cosine" (rows are normalised; a row shorter than 1e-12 has similarity 0), "dot", "euclidean" (s is
            the negated distance, with gradient 0 between equal rows) or "squared_euclidean" (its square).
        normalize: whether the two distances are those of the rows divided by their length; a row shorter than 1e-12
            becomes 0. "cosine" always divides, "dot" never.
        reduction: "mean" and "mean_all" (over all anchors not ignored), "mean_nonzero" (over those with a loss other
            than 0), "sum", or "none" (one loss for each anchor; gradients are then made in backward, at twice the
            cost). With ``weights`` a mean is sum(w L) / sum(w), a sum is sum(w L), and "none" is w L.
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
        ValueError: labels missing, shapes or devices that do not fit, a setting out of range, weights below 0 (looked
            at on the CPU in eager mode only), an unknown word. Nothing is computed before.

    ==========================================  ====================  =========
    case                                        loss                  gradient
    ==========================================  ====================  =========
    anchor without positives                    its negative term     of it
    anchor without negatives                    its positive term     of it
    either of them, with ``epsilon``            L_i = 0               0
    all anchors ignored, or N = 0               0                     0
    all weights 0                               0                     0
    mean_nonzero, every loss 0                  0                     0
    NaN in a row that takes part                NaN                   NaN
    ==========================================  ====================  =========

    Cost for M columns (N against itself): 2 N M D flops forward, 6 N M D with both gradients, less when most pairs
    have no weight; O((N + M) D) bytes beside the inputs, never the N x M matrix. Second derivatives, `torch.func`
    transforms and devices without a kernel compute `pairloom.reference.multi_similarity` instead, with O(N M) memory.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> y = torch.tensor([0, 0, 1, 1])
        >>> f"{pairloom.functional.multi_similarity(x, y).item():.4f}"
        '0.4491'
        >>> loss, stats = pairloom.functional.multi_similarity(x, y, beta=40.0, epsilon=0.1, return_stats=True)
        >>> f"{loss.item():.4f}, {int(stats.mined_negatives)} of {int(stats.negatives)} negatives"
        '0.2995, 2 of 8 negatives'
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
    _check_settings(alpha, beta, base, epsilon)
    if indices_tuple is not None:
        embeddings, ref_emb = compared_rows(embeddings, ref_emb, similarity, normalize)
        pairs = mined_pairs(indices_tuple, embeddings, ref_emb, labels, ref_labels, ignore_index, similarity, normalize)
        return mined_loss(
            multi_similarity_rule,
            {"alpha": alpha, "beta": beta, "base": -base if is_distance(similarity) else base, "epsilon": epsilon},
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
    if is_distance(similarity):  # a distance is a similarity with the sign turned, and so is its base
        base = -base
    embeddings, ref_emb = compared_rows(embeddings, ref_emb, similarity, normalize)
    bits = gradient_bits(embeddings, ref_emb, None, reduction)
    return pair_loss(
        torch.ops.pairloom.multi_similarity, reference.multi_similarity,
        embeddings, ref_emb, row_labels, column_labels, weights, alpha, beta, base, epsilon,
        similarity, reduction, ignore_index, bits, return_stats,
    )  # fmt: skip


def _check_settings(alpha: float, beta: float, base: float, epsilon: float | None) -> None:
    _checks.positive_number("alpha", alpha)
    _checks.positive_number("beta", beta)
    _checks.finite_number("base", base)
    if epsilon is not None:
        _checks.finite_number("epsilon", epsilon)


class MultiSimilarityLoss(LabelledLoss):
    """Multi-Similarity loss as a module; formula, shapes, empty cases and cost: `pairloom.functional.multi_similarity`.

    Called like the loss of pytorch-metric-learning: ``loss(embeddings, labels, ref_emb=..., ref_labels=...)``.
    It takes the index tuple of a miner; ``epsilon`` instead mines the pairs inside, in the same pass, and is faster.

    Args:
        alpha: weight of positives in the exponent, above 0.
        beta: weight of negatives in the exponent, above 0.
        base: similarity, or distance, from which pairs begin to count.
        epsilon: margin of the miner; None takes all pairs.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".
        normalize: whether the two distances are those of the rows divided by their length.
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".
        ignore_index: anchors and columns of this class take no part; None switches it off.
        **peer: ``distance``, ``reducer``, ``embedding_regularizer``, ``embedding_reg_weight``, ``collect_stats`` as in
            pytorch-metric-learning, see `pairloom.losses.PeerKeywords`.

    Raises:
        ValueError, TypeError: a setting that is not allowed; in the call, what the function refuses.

    Example:
        >>> import torch, pairloom
        >>> loss = pairloom.MultiSimilarityLoss(epsilon=0.1)
        >>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]], requires_grad=True)
        >>> value, stats = loss.with_stats(x, torch.tensor([0, 0, 1, 1]))
        >>> value.backward()
        >>> int(stats.active_anchors), int(stats.mined_negatives)
        (2, 2)
    """

    function = staticmethod(multi_similarity)
    similarities = SIMILARITIES

    def __init__(
        self,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 0.5,
        *,
        epsilon: float | None = None,
        similarity: str = "cosine",
        normalize: bool = True,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        _check_settings(alpha, beta, base, epsilon)
        own = {
            "alpha": float(alpha),
            "beta": float(beta),
            "base": float(base),
            "epsilon": None if epsilon is None else float(epsilon),
            "normalize": normalize,
        }
        super().__init__(own, similarity, reduction, ignore_index, **peer)


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    for sample in labelled_samples({}, dtype=dtype, shape=shape, seed=seed, distances=True):
        arguments = {**sample.arguments, "beta": 4.0} if sample.name == "dot" else sample.arguments
        yield Sample(sample.name, arguments, sample.differentiable)
        if sample.name in ("one-batch", "references"):
            mined = {**arguments, "epsilon": 0.1}
            yield Sample(f"mining-{sample.name}", mined, sample.differentiable, needs_float64=True)
        if sample.name == "no-positive":
            yield Sample("nothing-mined", {**arguments, "epsilon": 0.1}, sample.differentiable)


record = register(
    OpRecord(
        name="multi_similarity",
        function=multi_similarity,
        module=MultiSimilarityLoss,
        reference=reference.multi_similarity,
        samples=_samples,
        support=Support(cuda="kernel"),
    )
)
