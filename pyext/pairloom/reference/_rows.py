"""What the pair losses share: sums over the pairs of a row, the reduction over rows, the statistics.

A masked pair never reaches an exponential or a division: masks are applied *before* the function whose value could be
infinite, because 0 * inf = NaN in a (second) derivative. No function looks at values, so all of them work under vmap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairloom.reference.similarity import pairwise_similarity

NUM_STATS = 13


@dataclass(frozen=True, eq=False)
class Terms:
    """One part of a loss whose means run over pairs or triplets: for each of R rows, what its terms add up to.

    No term is below 0. Means of several parts are added (positive and negative pairs, each with their own mean).
    """

    total: Tensor
    """(R,) sums of the terms; differentiable."""
    active: Tensor
    """(R,) how many terms are above 0; a NaN term counts."""
    count: Tensor
    """(R,) how many terms there are."""


RowLosses = Tensor | Sequence[Terms]
"""What a rule about rows returns: (R,) losses, or one or several parts."""


def as_terms(losses: RowLosses) -> tuple[Terms, ...]:
    """The parts of a loss; a loss for each row is one part, with one term in each row."""
    if not isinstance(losses, Tensor):
        return tuple(losses)
    # "not <= 0" instead of "> 0": a NaN loss counts, so that NaN input is never hidden.
    return (Terms(losses, ~(losses.detach() <= 0), torch.ones_like(losses, dtype=torch.bool)),)


def row_totals(parts: Sequence[Terms]) -> Tensor:
    """(R,) losses of the rows: the totals of all parts together."""
    losses = parts[0].total
    for part in parts[1:]:
        losses = losses + part.total
    return losses


def reduction_of(reduction: str, mean: str) -> str:
    """The reduction that "mean" stands for in this loss, whose default mean is over "all" or over "nonzero" terms."""
    return f"mean_{mean}" if reduction == "mean" else reduction


def labels_equal(labels: Tensor | None, value: int | None, like: Tensor) -> Tensor:
    """Bool (rows of ``like``,): which rows carry the label ``value`` (nobody without labels or without a value).

    Words of multi-hot labels have no value to compare: they are -1 where the row was full of it (`pairloom._labels`).
    """
    count = like.shape[0]
    if labels is None or value is None:
        return torch.zeros(count, dtype=torch.bool, device=like.device)
    found = labels == value if labels.dim() == 1 else labels[:, 0] == -1
    if found.shape[0] == count:
        return found
    return torch.cat([found, found.new_zeros(count - found.shape[0])])


def shared_label(row_labels: Tensor, column_labels: Tensor) -> Tensor:
    """Bool (N, M): equal ids, or any bit set in both of two rows of words."""
    if row_labels.dim() == 1:
        return row_labels.unsqueeze(1) == column_labels.unsqueeze(0)
    shared = (row_labels[:, :1] & column_labels[:, 0]) != 0
    for word in range(1, row_labels.shape[1]):  # one after the other: no (N, M, W) tensor
        shared = shared | ((row_labels[:, word : word + 1] & column_labels[:, word]) != 0)
    return shared


def same_label(row_labels: Tensor, column_labels: Tensor, columns: int) -> Tensor:
    """Bool (N, columns); columns beyond the length of ``column_labels`` have no label and equal nobody."""
    same = shared_label(row_labels, column_labels)
    missing = columns - column_labels.shape[0]
    return torch.cat([same, same.new_zeros((same.shape[0], missing))], dim=1) if missing else same


def diagonal(rows: Tensor, columns: Tensor) -> Tensor:
    """Bool (N, M): True where the row number equals the column number."""
    row = torch.arange(rows.shape[0], device=rows.device)
    column = torch.arange(columns.shape[0], device=rows.device)
    return row.unsqueeze(1) == column.unsqueeze(0)


def labelled_pairs(
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    ignore_index: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Columns, which rows take part (N,), and the masks (N, M) of positives and negatives.

    Same label: positive, other label: negative. Without columns: one batch against itself, where (i, i) is no pair.
    """
    own = diagonal(rows, rows) if columns is None else None
    columns = rows if columns is None else columns
    column_labels = row_labels if column_labels is None else column_labels
    positive, negative = pair_masks(row_labels, column_labels, ignore_index, own)
    return columns, ~labels_equal(row_labels, ignore_index, rows), positive, negative


def pair_masks(
    row_labels: Tensor, column_labels: Tensor, ignore_index: int | None, own: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Masks (N, M) of positives and negatives; ``own`` marks what is no pair: rows that meet themselves."""
    same = shared_label(row_labels, column_labels)
    pair = torch.ones_like(same) if own is None else ~own
    if ignore_index is not None:
        pair = pair & ~labels_equal(column_labels, ignore_index, column_labels).unsqueeze(0)
    return same & pair, ~same & pair


def labelled_loss(
    rule: Callable[[Tensor, Tensor, Tensor], RowLosses],
    rows: Tensor,
    columns: Tensor | None,
    row_labels: Tensor,
    column_labels: Tensor | None,
    weights: Tensor | None,
    similarity: str,
    reduction: str,
    ignore_index: int | None,
    want_stats: bool,
    mean: str = "all",
) -> tuple[Tensor, Tensor]:
    """Loss and statistics of a rule about rows, ``rule(s, positive, negative)``, on the whole matrix.

    The rule returns (N,) losses or parts (`Terms`); ``mean`` says what the reduction "mean" is.
    """
    columns, keep, positive, negative = labelled_pairs(rows, columns, row_labels, column_labels, ignore_index)
    s = pairwise_similarity(rows, columns, similarity)
    parts = as_terms(rule(s, positive, negative))
    loss = reduce_rows(parts, keep, weights, reduction, mean)
    return loss, statistics(s, positive, negative, positive, negative, row_totals(parts), keep, want_stats)


def row_max(x: Tensor, mask: Tensor) -> Tensor:
    """Largest masked entry of each row, -inf for none (so rows of length 0 work too). No gradient."""
    masked = torch.where(mask, x.detach(), -torch.inf)
    return torch.cat([masked, masked.new_full((x.shape[0], 1), -torch.inf)], dim=1).amax(dim=1)


def log_sum_exp(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """log sum_{masked} e^x of each row, and where the sum is empty (the value there is 0, its gradient too)."""
    peak = row_max(x, mask)
    peak = torch.where(peak == -torch.inf, 0.0, peak)
    total = torch.where(mask, x - peak.unsqueeze(1), -torch.inf).exp().sum(dim=1)
    empty = ~mask.any(dim=1)
    return peak + torch.where(empty, 1.0, total).log(), empty


def by_row(value: Tensor | float, s: Tensor) -> Tensor:
    """A setting in the dtype of s, as a column where there is one value for each row."""
    value = torch.as_tensor(value, dtype=s.dtype, device=s.device)
    return value.unsqueeze(1) if value.dim() == 1 else value


def log1p(x: Tensor) -> Tensor:
    """log(1 + x). ONNX has no operator for it, and exporters write log(1 + x): a loss of 1e-9 would become 0."""
    return standard_log1p(x) if torch.onnx.is_in_onnx_export() else torch.log1p(x)


def standard_log1p(x: Tensor) -> Tensor:
    """log(1 + x) to a few units in the last place from additions and log: with u = 1 + x rounded, log(u) x / (u - 1).

    The rounding of u changes log(u) and u - 1 by nearly the same factor. Source: Kahan, in Goldberg, "What Every
    Computer Scientist Should Know About Floating-Point Arithmetic", 1991, theorem 4. For forward passes only.
    """
    step = (1 + x) - 1
    plain = (step == 0) | (x == torch.inf)
    return torch.where(plain, x, torch.log(1 + x) * (x / torch.where(plain, 1.0, step)))


def log_one_plus_sum_exp(x: Tensor, mask: Tensor) -> Tensor:
    """log(1 + sum_{masked} e^x) of each row: 0 for no entry, and exact also when the sum is tiny."""
    peak = row_max(x, mask).clamp(min=0.0)
    total = torch.where(mask, x - peak.unsqueeze(1), -torch.inf).exp().sum(dim=1)
    return peak + log1p(torch.expm1(-peak) + total)


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), with all its derivatives, also at 0.

    Not F.softplus (the identity above 20: an error of 2e-9 that float64 sees), nor logsigmoid (overflows in ONNX
    Runtime).
    """
    magnitude = torch.where(x > 0, x, -x)  # abs, but with a slope of -1 at 0: there the two kinks must cancel
    return torch.where(x > 0, x, 0.0) + log1p(torch.exp(-magnitude))


def terms_by_row(s: Tensor, rows: Tensor, over: Tensor, valid: Tensor) -> Terms:
    """(k T,) hinges before they are cut off at 0, the first of each of T triplets and so on, summed by (T,) rows."""
    times = over.shape[0] // max(rows.shape[0], 1) if rows.shape[0] else 1
    rows, valid = rows.repeat(times), valid.repeat(times)
    active = valid & ~(over <= 0)  # "not <= 0", so that NaN is kept
    total = s.new_zeros(s.shape[0]).index_add(0, rows, torch.where(active, over, 0.0))
    nothing = torch.zeros(s.shape[0], dtype=torch.int64, device=s.device)
    return Terms(total, *(nothing.index_add(0, rows, mask.to(torch.int64)) for mask in (active, valid)))


def reduce_rows(losses: RowLosses, keep: Tensor, weights: Tensor | None, reduction: str, mean: str = "all") -> Tensor:
    """Losses of N rows -> scalar (or (N,) for "none"). Rows not kept count nowhere; nothing to average is exactly 0.

    With l_i the total of row i, and t_ip, a_ip and c_ip the total, active and count of its part p (`Terms`):

        none           w_i l_i
        sum            sum_i w_i l_i
        mean_all       sum_p ( sum_i w_i t_ip / sum_i w_i c_ip )
        mean_nonzero   sum_p ( sum_i w_i t_ip / sum_i w_i a_ip )
        mean           the one of these two that ``mean`` names
    """
    parts = as_terms(losses)
    weight = row_weights(parts[0].total, keep, weights)
    reduction = reduction_of(reduction, mean)
    if reduction in ("none", "sum"):
        weighted = weight * torch.where(keep, row_totals(parts), 0.0)
        return weighted if reduction == "none" else weighted.sum()
    if reduction not in ("mean_all", "mean_nonzero"):
        raise ValueError(f"reduction is {reduction!r}; allowed: mean, mean_all, mean_nonzero, sum, none")
    value: Tensor | None = None
    for part in parts:
        weighted = weight * torch.where(counts(part, keep, reduction), part.total, 0.0)
        total = divided_by(part, weight, reduction).sum()
        nothing = total == 0
        quotient = torch.where(nothing, 0.0, weighted.sum() / torch.where(nothing, 1.0, total))
        value = quotient if value is None else value + quotient
    assert value is not None
    return value


def row_weights(like: Tensor, keep: Tensor, weights: Tensor | None) -> Tensor:
    """(N,) weights of the rows in the dtype of ``like``; 0 for those not kept."""
    weight = torch.ones_like(like) if weights is None else weights.to(like.dtype)
    return torch.where(keep, weight, 0.0)


def counts(part: Terms, keep: Tensor, reduction: str) -> Tensor:
    """(N,) which rows have a say in a part: those kept, and with an active term where the mean is over these."""
    return keep & (part.active != 0) if reduction == "mean_nonzero" else keep


def divided_by(part: Terms, weight: Tensor, reduction: str) -> Tensor:
    """(N,) what each row adds to the divisor of a part."""
    number = part.active if reduction == "mean_nonzero" else part.count
    return torch.where(number == 0, 0.0, weight * number.to(weight.dtype))


def inverse_divisor(part: Terms, weight: Tensor, reduction: str) -> Tensor:
    """0-d: what the gradient of the weighted sum of a part is multiplied with."""
    if reduction in ("sum", "none"):
        return torch.ones((), dtype=weight.dtype, device=weight.device)
    total = divided_by(part, weight, reduction).sum()
    return torch.where(total == 0, 0.0, 1.0 / torch.where(total == 0, 1.0, total))


def weights_gradient(parts: Sequence[Terms], keep: Tensor, weight: Tensor, reduction: str) -> Tensor:
    """(N,) derivative of the reduced loss in the weights of the rows: d (sum w t / sum w c) = (t_i - mean c_i) / sum.

    Where the divisor is 0, the loss is 0 by definition, and so is its derivative.
    """
    gradient = torch.zeros_like(weight)
    for part in parts:
        took_part = counts(part, keep, reduction)
        total = torch.where(took_part, part.total, 0.0)
        if reduction not in ("sum", "none"):
            inverse = inverse_divisor(part, weight, reduction)
            mean = (weight * total).sum() * inverse
            number = divided_by(part, torch.ones_like(weight), reduction)
            total = (total - mean * torch.where(took_part, number, 0.0)) * inverse
        gradient = gradient + total
    return gradient


def statistics(
    similarity: Tensor,
    positive: Tensor,
    negative: Tensor,
    mined_positive: Tensor,
    mined_negative: Tensor,
    row_loss: Tensor,
    keep: Tensor,
    want: bool,
) -> Tensor:
    """The float64 vector that `pairloom.PairStats` names, over kept rows; zeros unless wanted. Masks are (N, M)."""
    if not want:
        return torch.zeros(NUM_STATS, dtype=torch.float64, device=similarity.device)
    similarity, row_loss = similarity.detach(), row_loss.detach()
    row = keep.unsqueeze(1)
    positive, negative = positive & row, negative & row
    best_is_positive = row_max(similarity, positive) > row_max(similarity, negative)
    values = [
        keep.sum(),
        positive.sum(),
        negative.sum(),
        (mined_positive & row).sum(),
        (mined_negative & row).sum(),
        (keep & ~positive.any(dim=1)).sum(),
        (keep & ~negative.any(dim=1)).sum(),
        best_is_positive.sum(),
        torch.where(positive, similarity, 0.0).sum(dtype=torch.float64),
        torch.where(negative, similarity, 0.0).sum(dtype=torch.float64),
        (keep & (row_loss > 0)).sum(),
    ]
    counted = torch.stack([value.to(torch.float64) for value in values])
    return torch.cat([counted, counted.new_zeros(NUM_STATS - len(values))])  # tiles are a matter of the kernels
