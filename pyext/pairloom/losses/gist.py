"""GISTEmbed loss: function and module, streamed over rows by `pairloom.stream_rows`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom._dispatch import as_temperature, not_scripted
from pairloom.losses._pairs import paired_similarity
from pairloom.reference._rows import log_sum_exp, reduce_rows, softplus
from pairloom.reference.similarity import compute_dtype, unit_rows
from pairloom.streaming import RowContext, stream_rows

MARGINS = ("absolute", "relative")


@not_scripted
def gist(
    anchor: Tensor,
    positive: Tensor,
    guide_anchor: Tensor,
    guide_positive: Tensor,
    negatives: Tensor | None = None,
    guide_negatives: Tensor | None = None,
    *,
    temperature: Tensor | float = 0.01,
    margin: float = 0.0,
    margin_kind: str = "absolute",
    contrast_anchors: bool = True,
    contrast_positives: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
) -> Tensor:
    r"""GISTEmbed: multiple negatives ranking without the candidates that a guide model takes for positives.

    With anchors a, positives p, hard negatives h, g the cosine of the guide's embeddings, and the threshold
    t_i = g(a_i, p_i) - margin, or g(a_i, p_i) (1 - margin) if the margin is "relative":

        L_i = -log( e^{z(a_i, p_i)} / ( e^{z(a_i, p_i)} + sum e^{z} ) )        z = s / temperature_i

    where the sum runs over the pairs (a_i, p_j), (a_i, a_j), (p_i, p_j) with j != i and all (a_i, h_j), as far as their
    g is not above t_i; equal up to rounding is not above. The guide and what it filters have no gradient. Source:
    Solatorio, "GISTEmbed: Guided In-sample Selection of Training Negatives for Text Embedding Fine-tuning", 2024;
    defaults as in sentence-transformers.

    Args:
        anchor: (N, D) float32, float64, float16 or bfloat16, any strides.
        positive: (N, D), row i is the positive of anchor i.
        guide_anchor: (N, G), the same anchors embedded by the guide; G may differ from D.
        guide_positive: (N, G).
        negatives: (M, D) hard negatives, candidates of every anchor.
        guide_negatives: (M, G), needed with ``negatives``.
        temperature: number above 0, or float tensor: 0-d, or (N,) with one value for each anchor. Gets a gradient.
        margin: how far below the similarity of the pair itself the guide begins to filter.
        margin_kind: "absolute" or "relative".
        contrast_anchors: whether other anchors are candidates.
        contrast_positives: whether other positives are candidates of the positive.
        similarity: "cosine" or "dot", of the trained embeddings.
        reduction: "mean" and "mean_all" (over all anchors), "mean_nonzero" (over those with a loss other than 0),
            "sum", or "none" (one loss for each anchor). With ``weights`` a mean is sum(w L) / sum(w).
        weights: (N,) float, >= 0, one for each anchor. Gets a gradient.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32.

    Raises:
        TypeError: embeddings that are not float.
        ValueError: shapes or devices that do not fit, a setting out of range, an unknown word. Nothing is computed
            before.

    No candidate left for an anchor: L_i = 0. All weights 0, or N = 0: 0. NaN in a row that takes part: NaN.

    Cost: 2 N (3 N + M) D flops forward, about four times as many with gradients, and some passes of plain torch over
    each chunk of rows; O((N + M) (D + G)) memory.

    Example:
        >>> import torch, pairloom
        >>> a = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> p = torch.tensor([[0.8, 0.6], [0.28, 0.96], [-0.28, 0.96], [-1.0, 0.0]])
        >>> guide = torch.tensor([[0.96, 0.28], [0.8, 0.6], [0.28, 0.96], [-0.6, 0.8]])
        >>> f"{pairloom.functional.gist(a, p, guide, p, temperature=0.1).item():.4f}"
        '0.4494'
    """
    _check(anchor, positive, guide_anchor, guide_positive, negatives, guide_negatives)
    _checks.temperature(temperature, "anchor", anchor)
    _check_settings(margin, margin_kind)
    _checks.choice("similarity", similarity, _checks.LOSS_SIMILARITIES)
    _checks.choice("reduction", reduction, _checks.REDUCTIONS)
    _checks.weights(weights, "anchor", anchor)
    hard = [] if negatives is None else [negatives]
    columns = torch.cat([positive, *([anchor] if contrast_anchors else []), *hard])
    dtype = compute_dtype(anchor, columns)
    scale = as_temperature(temperature, anchor).to(dtype).expand(anchor.shape[0])

    with torch.no_grad():
        of_anchor, of_positive, *of_hard = (
            unit_rows(x.to(compute_dtype(guide_anchor, guide_positive)))
            for x in (guide_anchor, guide_positive, *([] if guide_negatives is None else [guide_negatives]))
        )
        threshold = (of_anchor * of_positive).sum(1)
        threshold = threshold * (1 - margin) if margin_kind == "relative" else threshold - margin
        # Equal similarities (duplicates) stay, however the two sums were rounded.
        threshold = threshold + 16 * torch.finfo(threshold.dtype).eps
        of_columns = torch.cat([of_positive, *([of_anchor] if contrast_anchors else []), *of_hard])

    count = anchor.shape[0]

    def candidates(s: Tensor, ctx: RowContext) -> Tensor:
        """(R, M) -> (R,) log of the sum over the candidates that the guide lets pass; -inf for none."""
        own_guide, limit, own_scale = ctx.row_args
        (guide,) = ctx.column_args
        column = torch.arange(s.shape[1], device=s.device)
        row = ctx.rows.unsqueeze(1)
        # Column i is the positive, or a row with itself; column N + i is the anchor itself.
        own = (column == row) | ((column == row + count) & contrast_anchors)
        kept = ~own & ~(own_guide @ guide.T > limit.unsqueeze(1))
        total, nothing = log_sum_exp(s / own_scale.unsqueeze(1), kept)
        return torch.where(nothing, -torch.inf, total)

    parts = [
        stream_rows(
            candidates,
            anchor,
            columns,
            similarity=similarity,
            row_args=(of_anchor, threshold, scale),
            column_args=(of_columns,),
        )
    ]
    if contrast_positives:
        parts.append(
            stream_rows(
                candidates,
                positive,
                positive,
                similarity=similarity,
                row_args=(of_positive, threshold, scale),
                column_args=(of_positive,),
            )
        )
    sums = torch.stack(parts, dim=1)
    total, nothing = log_sum_exp(sums, sums != -torch.inf)
    own = paired_similarity(anchor, positive, similarity) / scale
    row_loss = torch.where(nothing, 0.0, softplus(torch.where(nothing, 0.0, total - own)))
    return reduce_rows(row_loss, torch.ones_like(row_loss, dtype=torch.bool), weights, reduction)


def _check(
    anchor: Tensor,
    positive: Tensor,
    guide_anchor: Tensor,
    guide_positive: Tensor,
    negatives: Tensor | None,
    guide_negatives: Tensor | None,
) -> None:
    _checks.embeddings("anchor", anchor, positive=positive, negatives=negatives)
    _checks.embeddings("guide_anchor", guide_anchor, guide_positive=guide_positive, guide_negatives=guide_negatives)
    _checks.given_together("negatives", negatives, "guide_negatives", guide_negatives, "the guide judges all pairs")
    _checks.given_together("guide_negatives", guide_negatives, "negatives", negatives, "there is nothing to judge")
    _same_rows("positive", positive, "anchor", anchor)
    _same_rows("guide_anchor", guide_anchor, "anchor", anchor)
    _same_rows("guide_positive", guide_positive, "anchor", anchor)
    if negatives is not None and guide_negatives is not None:
        _same_rows("guide_negatives", guide_negatives, "negatives", negatives)
    _checks.same_device("guide_anchor", guide_anchor, "anchor", anchor)


def _same_rows(name: str, value: Tensor, of: str, other: Tensor) -> None:
    if value.shape[0] != other.shape[0]:
        raise ValueError(f"{name} has {value.shape[0]} rows and {of} has {other.shape[0]}; row i belongs to row i")


def _check_settings(margin: float, margin_kind: str) -> None:
    _checks.finite_number("margin", margin)
    _checks.choice("margin_kind", margin_kind, MARGINS)


@not_scripted
class GISTEmbedLoss(nn.Module):
    """GISTEmbed as a module; all about it stands at `pairloom.functional.gist`. The guide's embeddings are arguments.

    Args:
        temperature: number above 0.
        margin: how far below the similarity of the pair itself the guide begins to filter.
        margin_kind: "absolute" or "relative".
        contrast_anchors: whether other anchors are candidates.
        contrast_positives: whether other positives are candidates of the positive.
        similarity: "cosine" or "dot".
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".

    Raises:
        ValueError, TypeError: a setting that is not allowed.

    Example:
        >>> import torch, pairloom
        >>> anchor, guide = torch.eye(3, requires_grad=True), torch.eye(3)
        >>> pairloom.GISTEmbedLoss()(anchor, torch.randn(3, 3), guide, guide).backward()
        >>> tuple(anchor.grad.shape)
        (3, 3)
    """

    def __init__(
        self,
        temperature: float = 0.01,
        *,
        margin: float = 0.0,
        margin_kind: str = "absolute",
        contrast_anchors: bool = True,
        contrast_positives: bool = True,
        similarity: str = "cosine",
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        _checks.positive_number("temperature", temperature)
        _check_settings(margin, margin_kind)
        _checks.choice("similarity", similarity, _checks.LOSS_SIMILARITIES)
        _checks.choice("reduction", reduction, _checks.REDUCTIONS)
        self.settings: dict[str, Any] = {
            "temperature": temperature,
            "margin": margin,
            "margin_kind": margin_kind,
            "contrast_anchors": contrast_anchors,
            "contrast_positives": contrast_positives,
            "similarity": similarity,
            "reduction": reduction,
        }

    def forward(
        self,
        anchor: Tensor,
        positive: Tensor,
        guide_anchor: Tensor,
        guide_positive: Tensor,
        negatives: Tensor | None = None,
        guide_negatives: Tensor | None = None,
    ) -> Tensor:
        """The loss; arguments as in `pairloom.functional.gist`."""
        return gist(anchor, positive, guide_anchor, guide_positive, negatives, guide_negatives, **self.settings)

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
