"""Metrix: losses over all mixtures of positives and negatives of every anchor, without forming a mixture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom.losses._proxies import ProxyLoss, classes
from pairloom.losses.proxy_nca import ProxyNCALoss
from pairloom.mixup._draws import beta
from pairloom.mixup._forms import GeneralForm, check_form, form_of
from pairloom.mixup._mixtures import PAIRS, mixture_sums
from pairloom.mixup._shares import share
from pairloom.reference.similarity import compute_dtype, unit_rows
from pairloom.streaming import RowContext, stream_rows

DRAWS = ("batch", "anchor", "pair")


def metrix(
    anchors: Tensor,
    anchor_labels: Tensor,
    form: GeneralForm,
    *,
    lam: Tensor | float,
    columns: Tensor | None = None,
    column_labels: Tensor | None = None,
    pairs: str = "positive_negative",
) -> Tensor:
    r"""The losses of anchors over their mixtures: embedding-level Metrix.

        v = N(lam x1 + (1 - lam) x2),      y = lam
        L_a = combine( sum_v y f+(s(a, v)),  sum_v (1 - y) f-(s(a, v)) )

    over all pairs of a positive x1 and a negative x2 of the anchor ("positive_negative"), of the anchor itself as x1
    ("anchor_negative"), or "both"; rows are divided by their length first, N(x) = x / ||x||. f+, f- and combine are
    those of a loss (`multi_similarity_form` and its neighbours): label weights stand inside the sums, as in the paper.

    A mixture's similarity follows from three similarities of rows, so none is formed: N P M numbers are looked at for
    P positives and M negatives of each of N anchors, instead of N P M D.

    Args:
        anchors: (N, D) float32, float64, float16 or bfloat16.
        anchor_labels: (N,) integer or bool.
        form: the terms of a loss.
        lam: the share of x1, from 0 to 1: a number, a tensor (N,) with one for each anchor, or one for each pair: (M,
            M) by the columns x1 and x2, with "anchor_negative" (N, M). No gradient.
        columns: (M, D) rows that are mixed; None: the anchors.
        column_labels: (M,) their classes.
        pairs: "positive_negative", "anchor_negative" or "both".

    Returns:
        (N,) losses; 0 for an anchor without mixtures. Gradients for anchors and columns.

    Raises:
        TypeError, ValueError: arguments that do not fit, lam outside [0, 1].

    Parents that cancel (antipodal, lam = 1/2): a mixture of length below 1e-12 has similarity 0 and no gradient. In
    float32 similarities of rows are known to 1e-7, and so the similarity of a mixture of length l to 1e-7 / l^2:
    for parents nearer to antipodal than that allows, take float64. lam = 1 and 0 give the terms of the parents
    exactly, once for each partner. NaN in a row: NaN in all that meet it.

    Cost: 2 N M D flops and about 40 for each mixture, three times that with gradients; O((N + M) D) memory and one
    block of similarities, of whole classes. Second derivatives and compiled graphs: plain torch, O(N M M).

    Source: Venkataramanan et al., "It Takes Two to Tango: Mixup for Deep Metric Learning", ICLR 2022. The code beside
    the paper has the contrastive loss alone, on distances, one mixture an anchor: `metrix_public_code`.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])
        >>> form = pairloom.mixup.multi_similarity_form()
        >>> losses = pairloom.mixup.metrix(x[:1], torch.tensor([0]), form, lam=0.7,
        ...                                columns=x[1:], column_labels=torch.tensor([0, 1]))
        >>> f"{losses.item():.6f}"
        '0.311554'
    """
    _checks.embeddings("anchors", anchors, columns=columns)
    _checks.labels("anchor_labels", anchor_labels, "anchors", anchors)
    _checks.given_together("columns", columns, "column_labels", column_labels, "pass the class of each column")
    _checks.given_together("column_labels", column_labels, "columns", columns, "there is nothing to label")
    _checks.choice("pairs", pairs, PAIRS)
    check_form("form", form)
    if columns is not None and column_labels is not None:
        _checks.labels("column_labels", column_labels, "columns", columns)
        column_labels = column_labels.to(torch.int64)
    n, m = len(anchors), len(anchors if columns is None else columns)
    by_pair = [(n if pairs == "anchor_negative" else m, m)] if pairs != "both" and m else []
    part = share("lam", lam, [(), (n,), *by_pair]).detach()
    sums = mixture_sums(anchors, anchor_labels.to(torch.int64), columns, column_labels, part, pairs, form.terms)
    return form.losses(sums)


def metrix_of_mixtures(
    anchors: Tensor,
    anchor_labels: Tensor,
    mixed: Tensor,
    first_labels: Tensor,
    second_labels: Tensor,
    form: GeneralForm,
    *,
    lam: Tensor | float,
) -> Tensor:
    """The same over mixtures that exist: of images or feature maps, embedded after they were mixed.

        y_av = lam_v [first_v = label_a] + (1 - lam_v) [second_v = label_a]

    over the mixtures in which exactly one parent has the anchor's class.

    Args:
        anchors: (N, D) embeddings, anchor_labels (N,) their classes.
        anchor_labels: (N,) integer or bool.
        mixed: (V, D) embeddings of mixtures.
        first_labels: (V,) the class of the parent with share lam.
        second_labels: (V,) the class of the other.
        form: the terms of a loss.
        lam: a number, or (V,).

    Returns:
        (N,) losses; 0 for an anchor without mixtures. Gradients for anchors and mixtures. O((N + V) D) memory.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0]])
        >>> mixed = torch.nn.functional.normalize(torch.tensor([[0.42, 0.86]]))
        >>> zero, one = torch.tensor([0]), torch.tensor([1])
        >>> form = pairloom.mixup.multi_similarity_form()
        >>> f"{pairloom.mixup.metrix_of_mixtures(x, zero, mixed, zero, one, form, lam=0.7).item():.6f}"
        '0.311554'
    """
    _checks.embeddings("anchors", anchors, mixed=mixed)
    _checks.labels("anchor_labels", anchor_labels, "anchors", anchors)
    for name, labels in (("first_labels", first_labels), ("second_labels", second_labels)):
        _checks.labels(name, labels, "mixed", mixed)
    check_form("form", form)
    part = share("lam", lam, [(), (len(mixed),)]).detach().expand(len(mixed))
    row_args = (anchor_labels.to(torch.int64),)
    column_args = (first_labels.to(torch.int64), second_labels.to(torch.int64), part)

    def rule(s: Tensor, ctx: RowContext) -> Tensor:
        (label,), (first, second, lam) = ctx.row_args, ctx.column_args
        is_first, is_second = first == label.unsqueeze(1), second == label.unsqueeze(1)
        weight = torch.where(is_first, lam, 1 - lam).to(s.dtype)
        counts = is_first ^ is_second
        positive = form.positive.sum(s, weight, counts)
        return form.combine(positive, form.negative.sum(s, 1 - weight, counts))

    return stream_rows(rule, anchors, mixed, row_args=row_args, column_args=column_args)


def metrix_public_code(anchors: Tensor, mixed: Tensor, *, lam: Tensor | float, margin: float = 0.5) -> Tensor:
    """The contrastive loss of the code beside the paper: each anchor with its own mixture, on distances.

        D_i = ||N(a_i) - N(v_i)||,    L = avg+( lam_i D_i ) + avg+( (1 - lam_i) [margin - D_i]_+ )

    avg+ is the mean over terms above 0 (0 where there are none). Unlike the formula: a distance, one mixture for each
    anchor, means over non-zero terms. With one lam for the batch it is lam avg+(D) + (1 - lam) avg+([margin - D]_+).

    Args:
        anchors: (N, D).
        mixed: (N, D), the mixture of each anchor.
        lam: a number, or (N,).
        margin: of the distances.

    Returns:
        0-d.

    Example:
        >>> import torch, pairloom
        >>> mixed = torch.nn.functional.normalize(torch.tensor([[0.42, 0.86]]))
        >>> f"{pairloom.mixup.metrix_public_code(torch.tensor([[1.0, 0.0]]), mixed, lam=0.7).item():.6f}"
        '0.741580'
    """
    _checks.embeddings("anchors", anchors, mixed=mixed)
    if len(anchors) != len(mixed):
        raise ValueError(f"mixed has {len(mixed)} rows for {len(anchors)} anchors; each anchor has one mixture")
    part = share("lam", lam, [(), (len(anchors),)]).detach()
    dtype = compute_dtype(anchors, mixed)
    part = part.to(dtype)
    squares = (unit_rows(anchors.to(dtype)) - unit_rows(mixed.to(dtype))).square().sum(1)
    equal = squares == 0
    distance = torch.where(equal, 0.0, torch.where(equal, 1.0, squares).sqrt())
    return _mean_above_zero(part * distance) + _mean_above_zero((1 - part) * (margin - distance).clamp(min=0))


def _mean_above_zero(terms: Tensor) -> Tensor:
    count = (~(terms <= 0)).sum()  # NaN is not passed over
    return torch.where(count == 0, 0.0, terms.sum() / count.clamp(min=1))


class MetrixLoss(nn.Module):
    """A loss on the clean embeddings plus the same loss on their mixtures: `metrix` beside ``loss``.

        L = loss(embeddings, labels) + weight mean_a L_a(mixtures)

    Args:
        loss: `MultiSimilarityLoss`, `ContrastiveLoss`, `GeneralizedLiftedStructureLoss` or `BinomialDevianceLoss` with
            similarity "cosine"; `ProxyAnchorLoss` (anchors are proxies, what is mixed are embeddings); `ProxyNCALoss`
            (anchors are embeddings, what is mixed are proxies).
        pairs: "positive_negative", "anchor_negative" or "both".
        alpha: lam is drawn from Beta(alpha, alpha).
        weight: of the mixtures, 0 or more.
        lam: fixes the coefficient instead: a number or a tensor as in `metrix`.
        draw: "batch" draws one lam for a batch, as the public code does; "anchor" one for each anchor; "pair" one for
            each pair of rows (not with "both"), which ProxyNCA needs (`proxy_nca_form`).
        generator: of the draws, on the CPU.
        form: another `GeneralForm` for the mixtures; None: that of the loss.

    The mean is over anchors that are not ignored, with proxies over those of classes in the batch; an anchor without
    mixtures counts with 0. Settings of the clean loss (mining, weights, reduction) stay with it.

    Example:
        >>> import torch, pairloom
        >>> loss = pairloom.mixup.MetrixLoss(pairloom.MultiSimilarityLoss(18, 75, 0.77), lam=0.5)
        >>> embeddings = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
        >>> loss(embeddings, torch.arange(8) // 2).backward()
        >>> bool(embeddings.grad.isfinite().all())
        True
    """

    def __init__(
        self,
        loss: nn.Module,
        *,
        pairs: str = "positive_negative",
        alpha: float = 2.0,
        weight: float = 0.4,
        lam: Tensor | float | None = None,
        draw: str = "batch",
        generator: torch.Generator | None = None,
        form: GeneralForm | None = None,
    ) -> None:
        super().__init__()
        _checks.choice("pairs", pairs, PAIRS)
        _checks.positive_number("alpha", alpha)
        _checks.finite_number("weight", weight)
        _checks.choice("draw", draw, DRAWS)
        if draw == "pair" and pairs == "both":
            raise ValueError("draw is 'pair' with pairs='both', whose pairs are of two kinds; draw by anchor or batch")
        if weight < 0:
            raise ValueError(f"weight is {weight}; it must be 0 or more")
        if form is not None:
            check_form("form", form)
        if lam is not None:
            share("lam", lam, [tuple(lam.shape)] if isinstance(lam, Tensor) else [])
        self.form = form_of(loss) if form is None else form
        self.loss = loss
        self.pairs = pairs
        self.alpha = alpha
        self.weight = weight
        self.lam = lam
        self.draw = draw
        self.generator = generator

    def forward(self, embeddings: Tensor, labels: Tensor, **others: Any) -> Tensor:
        """(N, D), (N,) -> 0-d; further arguments go to the clean loss."""
        clean = self.loss(embeddings, labels, **others)
        return clean + self.weight * self.mixed(embeddings, labels)

    def mixed(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean over anchors of the loss on mixtures alone, 0-d."""
        ignore_index = getattr(self.loss, "ignore_index", None)
        _checks.embeddings("embeddings", embeddings)
        _checks.labels("labels", labels, "embeddings", embeddings)
        keep = torch.ones_like(labels, dtype=torch.bool) if ignore_index is None else labels != ignore_index
        anchors, anchor_labels = embeddings[keep], labels[keep].to(torch.int64)
        columns: Tensor | None = None
        column_labels: Tensor | None = None
        if isinstance(self.loss, ProxyLoss):
            _, every = classes(embeddings, labels, self.loss.proxies, ignore_index)
            proxies: Tensor = self.loss.proxies
            if isinstance(self.loss, ProxyNCALoss):
                columns, column_labels = proxies, every
            else:
                present = anchor_labels.unique()
                columns, column_labels = anchors, anchor_labels
                anchors, anchor_labels = proxies[present], every[present]
        if len(anchors) == 0:
            return embeddings[:0].sum()
        lam = self.lam
        if lam is None:
            m = len(anchors if columns is None else columns)
            first = len(anchors) if self.pairs == "anchor_negative" else m
            shape = {"batch": (), "anchor": (len(anchors),), "pair": (first, m)}[self.draw]
            lam = beta(self.alpha, self.alpha, shape, self.generator)
        losses = metrix(
            anchors, anchor_labels, self.form,
            lam=lam, columns=columns, column_labels=column_labels, pairs=self.pairs,
        )  # fmt: skip
        return losses.mean()

    def extra_repr(self) -> str:
        """The settings."""
        return f"pairs={self.pairs!r}, alpha={self.alpha}, weight={self.weight}, lam={self.lam}, draw={self.draw!r}"
