"""Multiple negatives ranking loss: function and module over the operator of `info_nce`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom._dispatch import scripted_as
from pairloom.losses.info_nce import info_nce

if TYPE_CHECKING:
    Negatives = Tensor | Sequence[Tensor] | None
else:
    Negatives = Tensor | list[Tensor] | None  # TorchScript knows no other sequence


def _multiple_negatives_ranking_script(
    anchor: Tensor,
    positive: Tensor,
    negatives: Tensor | list[Tensor] | None = None,
    scale: float = 20.0,
    symmetric: bool = False,
    ids: Tensor | None = None,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    candidates: Tensor | None = None
    if negatives is not None:
        if isinstance(negatives, Tensor):
            candidates = negatives
        elif len(negatives) > 0:
            candidates = torch.cat(negatives)
    loss = info_nce(
        anchor, positive, candidates, temperature=1 / scale, ids=ids, similarity=similarity, reduction=reduction,
        weights=weights, ignore_index=ignore_index,
    )  # fmt: skip
    if not symmetric:
        return loss
    back = info_nce(
        positive, anchor, temperature=1 / scale, ids=ids, similarity=similarity, reduction=reduction,
        weights=weights, ignore_index=ignore_index,
    )  # fmt: skip
    return (loss + back) / 2


@scripted_as(_multiple_negatives_ranking_script)
def multiple_negatives_ranking(
    anchor: Tensor,
    positive: Tensor,
    negatives: Tensor | Sequence[Tensor] | None = None,
    *,
    scale: float = 20.0,
    symmetric: bool = False,
    ids: Tensor | None = None,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
    ignore_index: int | None = -100,
) -> Tensor:
    r"""Multiple negatives ranking (MNRL): pick the positive of every anchor among all positives and hard negatives.

    With candidates c = [positive; negatives] and z_ij = scale s(anchor_i, c_j):

        L_i = log sum_j e^{z_ij} - z_ii        symmetric: ( L_i + the same from positive i to all anchors ) / 2

    This is `info_nce` at temperature 1 / scale, in the words of sentence encoders. Source: Henderson et al., "Efficient
    Natural Language Response Suggestion for Smart Reply", 2017; defaults as in sentence-transformers.

    Args:
        anchor: (N, D) float32, float64, float16 or bfloat16, any strides.
        positive: (N, D), row i is the positive of anchor i.
        negatives: hard negatives, candidates of every anchor: one tensor (M, D) or a list of them (one per column of a
            data set). They take part in the direction from the anchors only.
        scale: factor of the similarities, above 0: 1 / temperature.
        symmetric: the mean of both directions.
        ids: (N,) integer or bool, the identity of each pair: a text that occurs twice in the batch is not its own
            negative.
        similarity: "cosine" or "dot".
        reduction: "mean" and "mean_all" (over all anchors not ignored), "mean_nonzero", "sum", or "none" (one loss for
            each anchor). With ``weights`` a mean is sum(w L) / sum(w).
        weights: (N,) float, >= 0, one for each anchor. Gets a gradient.
        ignore_index: pairs with this id take no part; None switches it off.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32.

    Raises:
        TypeError: embeddings that are not float, ids that are not integer or bool.
        ValueError: shapes or devices that do not fit, a setting out of range, an unknown word. Nothing is computed
            before.

    One pair without hard negatives, all pairs ignored, all weights 0, or N = 0: 0. NaN in a row that takes part: NaN.

    Cost: 6 N (N + M) D flops with all gradients, and 6 N N D more if symmetric; O((N + M) D) memory.

    Example:
        >>> import torch, pairloom
        >>> anchor = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> positive = torch.tensor([[0.8, 0.6], [0.28, 0.96], [-0.28, 0.96], [-1.0, 0.0]])
        >>> f"{pairloom.functional.multiple_negatives_ranking(anchor, positive).item():.4f}"
        '0.5872'
    """
    _checks.positive_number("scale", scale)
    _checks.embeddings("anchor", anchor, positive=positive)
    if anchor.shape[0] != positive.shape[0]:
        raise ValueError(
            f"positive has {positive.shape[0]} rows and anchor has {anchor.shape[0]}; row i of positive belongs to "
            "anchor i (pass further candidates as negatives)"
        )
    if negatives is None or isinstance(negatives, Tensor):
        _checks.embeddings("anchor", anchor, negatives=negatives)
    else:
        for i, one in enumerate(negatives):
            _checks.embeddings("anchor", anchor, **{f"negatives[{i}]": one})
        negatives = torch.cat(list(negatives)) if negatives else None
    options: dict[str, Any] = {
        "temperature": 1 / scale,
        "ids": ids,
        "similarity": similarity,
        "reduction": reduction,
        "weights": weights,
        "ignore_index": ignore_index,
    }
    loss = info_nce(anchor, positive, negatives, **options)
    return (loss + info_nce(positive, anchor, **options)) / 2 if symmetric else loss


class MultipleNegativesRankingLoss(nn.Module):
    """Multiple negatives ranking as a module; all about it stands at `pairloom.functional.multiple_negatives_ranking`.

    Args:
        scale: factor of the similarities, above 0.
        symmetric: the mean of both directions.
        similarity: "cosine" or "dot".
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".
        ignore_index: pairs with this id take no part; None switches it off.

    Raises:
        ValueError, TypeError: a setting that is not allowed.

    Example:
        >>> import torch, pairloom
        >>> anchor = torch.eye(3, requires_grad=True)
        >>> pairloom.MultipleNegativesRankingLoss()(anchor, torch.eye(3), [torch.randn(3, 3)]).backward()
        >>> tuple(anchor.grad.shape)
        (3, 3)
    """

    def __init__(
        self,
        scale: float = 20.0,
        *,
        symmetric: bool = False,
        similarity: str = "cosine",
        reduction: str = "mean",
        ignore_index: int | None = -100,
    ) -> None:
        super().__init__()
        _checks.positive_number("scale", scale)
        _checks.loss_settings(similarity, reduction, ignore_index)
        _checks.flag("symmetric", symmetric)
        self.scale = float(scale)
        self.symmetric = symmetric
        self.similarity = similarity
        self.reduction = reduction
        self.ignore_index = ignore_index

    def forward(
        self,
        anchor: Tensor,
        positive: Tensor,
        negatives: Negatives = None,
        ids: Tensor | None = None,
    ) -> Tensor:
        """The loss; arguments as in `pairloom.functional.multiple_negatives_ranking`."""
        return multiple_negatives_ranking(
            anchor,
            positive,
            negatives,
            scale=self.scale,
            symmetric=self.symmetric,
            ids=ids,
            similarity=self.similarity,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
        )

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"scale={self.scale}, symmetric={self.symmetric}, similarity={self.similarity!r}, "
            f"reduction={self.reduction!r}, ignore_index={self.ignore_index}"
        )
