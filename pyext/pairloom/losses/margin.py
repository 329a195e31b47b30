"""Margin loss: function, module, record. Its rule is plain torch, streamed (`pairloom._stream`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pairloom import _checks, reference
from pairloom._dispatch import as_temperature, gradient_bits, no_torchscript, scripted_as
from pairloom._registry import OpRecord, Sample, register
from pairloom._stream import STREAMED, define_streamed
from pairloom.losses._labelled import DISTANCES, LabelledLoss, labelled_loss, scripted_pairs
from pairloom.losses._samples import labelled_samples
from pairloom.losses._translate import PeerKeywords
from pairloom.reference.margin import margin_of_triplets, margin_rule

if TYPE_CHECKING:
    from typing_extensions import Unpack


def _margin_script(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    margin: float = 0.2,
    beta: Tensor | float = 1.2,
    similarity: str = "euclidean",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    boundary = as_temperature(beta, embeddings)
    if similarity == "cosine" or similarity == "dot":
        boundary = -boundary
    rows, columns, own, others = scripted_pairs(
        embeddings, labels, ref_emb, ref_labels, similarity, normalize, ignore_index
    )
    bits = gradient_bits(rows, columns, None, reduction, None, boundary, weights)
    return torch.ops.pairloom.margin(
        rows, columns, own, others, weights, boundary, margin, similarity, reduction, ignore_index, bits, False
    )[0]


@scripted_as(_margin_script)
def margin(
    embeddings: Tensor,
    labels: Tensor | None = None,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    *,
    margin: float = 0.2,
    beta: Tensor | float = 1.2,
    similarity: str = "euclidean",
    normalize: bool = True,
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
    indices_tuple: Any = None,
    return_stats: bool = False,
) -> Any:
    r"""Margin loss: positives nearer than a boundary, negatives farther, by a margin.

    With D = -s a distance, the mean, over both halves of all triplets (anchor i, positive p, negative n), above 0:

        [D_ip - beta_i + margin]_+    and    [beta_i - D_in + margin]_+

    With "cosine" and "dot" beta is a similarity, as in pytorch-metric-learning. Source: Wu et al., "Sampling Matters in
    Deep Embedding Learning", ICCV 2017; defaults as in pytorch-metric-learning.

    Args:
        embeddings: (N, D) float32, float64, float16 or bfloat16, any strides; the anchors. Dtypes of the two may
            differ; half inputs are summed in float32, and each gradient comes back in the dtype of its input.
        labels: (N,) integer or bool, the class of each anchor (exact up to 64 bits).
            Or (N, L) of 0 and 1, multi-hot: whoever shares any label with an anchor is its positive.
        ref_emb: (M, D) columns to compare with instead of the batch itself; no pair is left out then.
        ref_labels: (M,) the class of each reference row.
        margin: by how much pairs are to keep off the boundary.
        beta: the boundary: finite number, or float tensor: 0-d, or (N,), one for each anchor (for one per class pass
            ``beta[labels]``). Gets a gradient.
        similarity: "euclidean" (D is the distance), "squared_euclidean" (its square), "cosine" or "dot" (D is the
            negated similarity).
        normalize: whether the two distances are those of the rows divided by their length; a row shorter than 1e-12
            becomes 0. "cosine" always divides, "dot" never.
        reduction: "mean" and "mean_nonzero" (over the halves above 0), "mean_all" (over all), "sum", or "none" (the sum
            over the triplets of each anchor). With ``weights`` every triplet counts as much as its anchor.
        weights: (N,) float, >= 0, one for each anchor. Gets a gradient.
        ignore_index: anchors and columns of this class are in no pair; None switches it off.
        indices_tuple: of a miner, 3 index tensors (anchors, positives, negatives): these triplets and no others, one
            that is named twice counts twice; or 4 (anchors, positives, anchors of negatives, negatives): all triplets
            of these pairs. ``labels`` may be None. Gradients are then made in backward. Or a miner of
            pairs (`pairloom.miners`), which chooses in the pass of the loss.
        return_stats: also return `PairStats`, counted in the same pass.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32. With ``return_stats`` the tuple
        (loss, `PairStats`).

    Raises:
        TypeError: embeddings that are not float, labels that are not integer or bool.
        ValueError: labels missing, shapes or devices that do not fit, a setting out of range, an unknown word. Nothing
            is computed before.

    No triplets, or none above 0: 0, with gradient 0. Equal rows: gradient 0.
    All anchors ignored, all weights 0, or N = 0: 0. NaN in a row that takes part: NaN.

    Cost: 2 N M D flops forward, 6 N M D with both gradients, and some passes of plain torch over each chunk of the
    N x M similarities, no list of triplets; O((N + M) D) memory. Second derivatives and devices without a kernel
    compute `pairloom.reference.margin` instead, with O(N M) memory.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> y = torch.tensor([0, 0, 1, 1])
        >>> f"{pairloom.functional.margin(x, y).item():.4f}"
        '0.7675'
    """
    _checks.finite_number("margin", margin)
    _checks.embeddings("embeddings", embeddings)
    _checks.learned("beta", beta, "embeddings", embeddings)
    if similarity in _checks.LOSS_SIMILARITIES:  # the sign is turned: a distance
        beta = -beta
    return labelled_loss(
        "margin",
        embeddings,
        labels,
        ref_emb,
        ref_labels,
        (margin,),
        similarity=similarity,
        reduction=reduction,
        weights=weights,
        ignore_index=ignore_index,
        return_stats=return_stats,
        allowed=DISTANCES,
        normalize=normalize,
        boundary=beta,
        indices_tuple=indices_tuple,
    )


class MarginLoss(LabelledLoss):
    """Margin loss as a module; all about it stands at `pairloom.functional.margin`.

    Args:
        margin: by how much pairs are to keep off the boundary.
        nu: weight of the boundary in the loss, so that a learned one does not grow without end.
        beta: the boundary, or where it starts.
        triplets_per_anchor: "all"; nothing else, since triplets are not listed here.
        learn_beta: own ``beta`` as a parameter.
        num_classes: one boundary for each of so many classes; labels are then 0 to num_classes - 1.
        similarity: "euclidean", "squared_euclidean", "cosine" or "dot".
        normalize: whether the two distances are those of the rows divided by their length.
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".
        ignore_index: anchors and columns of this class take no part; None switches it off.
        **peer: ``distance``, ``reducer``, ``embedding_regularizer``, ``embedding_reg_weight``, ``collect_stats`` as in
            pytorch-metric-learning, see `pairloom.losses.PeerKeywords`.

    Raises:
        ValueError, TypeError: a setting that is not allowed; in the call, what the function refuses.

    Example:
        >>> import torch, pairloom
        >>> loss = pairloom.MarginLoss(learn_beta=True)
        >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).backward()
        >>> loss.beta.grad is not None
        True
    """

    function = staticmethod(margin)
    similarities = DISTANCES
    means_over = "triplets"

    def __init__(
        self,
        margin: float = 0.2,
        nu: float = 0.0,
        beta: float = 1.2,
        triplets_per_anchor: str = "all",
        learn_beta: bool = False,
        num_classes: int | None = None,
        *,
        similarity: str = "euclidean",
        normalize: bool = True,
        reduction: str = "mean",
        ignore_index: int | None = -100,
        **peer: Unpack[PeerKeywords],
    ) -> None:
        for name, value in (("margin", margin), ("nu", nu), ("beta", beta)):
            _checks.finite_number(name, value)
        _checks.flag("learn_beta", learn_beta)
        if triplets_per_anchor != "all":
            raise ValueError(f"triplets_per_anchor is {triplets_per_anchor!r}; this loss counts all triplets: 'all'")
        own = {"margin": float(margin), "normalize": normalize}
        super().__init__(own, similarity, reduction, ignore_index, **peer)
        self.nu = float(nu)
        if num_classes is not None:
            _checks.count("num_classes", num_classes)
        start = torch.full((num_classes or 1,), float(beta))
        if learn_beta:
            self.beta = nn.Parameter(start)
        else:
            self.register_buffer("beta", start)

    def __prepare_scriptable__(self) -> LabelledLoss:
        """The function scripts; the choice of a boundary for each anchor does not."""
        raise no_torchscript(type(self).__name__)

    def arguments_for(self, labels: Tensor | None) -> dict[str, Any]:
        """The settings and the boundary of each anchor."""
        return {**self.arguments(), "beta": self.beta[0] if len(self.beta) == 1 else self._of_class(labels)}

    def _loss_and_stats(self, embeddings: Tensor, labels: Tensor | None, *others: Any) -> Any:
        """(loss, statistics or None), with the boundaries weighed in."""
        value, stats = super()._loss_and_stats(embeddings, labels, *others)
        if self.nu == 0 or embeddings.shape[0] == 0:
            return value, stats
        boundary: Tensor = self.arguments_for(labels)["beta"]
        return value + self.nu * boundary.mean(), stats

    def _of_class(self, labels: Tensor | None) -> Tensor:
        if labels is None or labels.dim() != 1:
            raise ValueError("labels must be (N,) classes where every class has a boundary of its own")
        classes = labels.to(torch.int64)
        if _checks.values_readable(classes):
            known = (classes >= 0) & (classes < len(self.beta))
            if self.ignore_index is not None:
                known = known | (classes == self.ignore_index)
            if not bool(known.all()):
                raise ValueError(
                    f"labels holds {int(classes[~known][0])}; with num_classes {len(self.beta)} they must lie between "
                    f"0 and {len(self.beta) - 1}"
                )
        return self.beta[classes.clamp(0, len(self.beta) - 1)]


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    for sample in labelled_samples({}, dtype=dtype, shape=shape, seed=seed):
        if sample.name != "dot":
            yield Sample(sample.name, sample.arguments, sample.differentiable, needs_float64=True)
        if sample.name in ("one-batch", "references"):
            for similarity in ("cosine", "dot", "squared_euclidean"):
                other = {**sample.arguments, "similarity": similarity, "beta": 0.3}
                yield Sample(f"{similarity}-{sample.name}", other, sample.differentiable, needs_float64=True)
            learned = {**sample.arguments, "beta": torch.linspace(0.8, 1.4, shape[0], dtype=torch.float64)}
            yield Sample(f"row-beta-{sample.name}", learned, (*sample.differentiable, "beta"), needs_float64=True)


define_streamed(
    "margin", margin_rule, ("Tensor boundary", "float margin"), mean="nonzero", triplet_rule=margin_of_triplets
)
record = register(
    OpRecord(
        name="margin",
        function=margin,
        module=MarginLoss,
        reference=reference.margin,
        samples=_samples,
        support=STREAMED,
    )
)
