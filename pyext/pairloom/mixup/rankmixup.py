"""RankMixup: a mixture should be predicted with less confidence than a clean item, and less the more it is mixed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pairloom import _checks
from pairloom.mixup._logits import check_logits, class_labels, class_losses, mean
from pairloom.mixup._shares import share


def rankmixup_mrl(
    clean_logits: Tensor,
    mixed_logits: Tensor,
    labels: Tensor,
    partner_labels: Tensor,
    *,
    margin: float = 2.0,
    weight: float = 0.1,
) -> Tensor:
    r"""RankMixup with the mixup ranking loss: the largest logit of a mixture stays below that of the item by a margin.

        L = mean_i CE(f(x_i), y_i) + w mean_i [y_i != y'_i] max(0, max_c f(v_i)_c - max_c f(x_i)_c + m)

    Args:
        clean_logits: (B, K) float.
        mixed_logits: (B, K) of a mixture of each item.
        labels: (B,) integer classes.
        partner_labels: (B,) of the partners: a mixture within one class is not ranked, and counts with 0 in the mean.
        margin: m.
        weight: w, 0 or more.

    Returns:
        0-d; 0 for B = 0. Gradients for both logits.

    Raises:
        TypeError, ValueError: arguments that do not fit, labels that are no class.

    Source: Noh et al., "RankMixup: Ranking-Based Mixup Training for Network Calibration", ICCV 2023. The paper says
    confidence, its code ranks logits, as here; margin 2 is for CIFAR, 1 for Tiny-ImageNet.

    Example:
        >>> import torch, pairloom
        >>> clean, mixed = torch.tensor([[2, 0.5, -1], [0.2, 0.1, 0.4]]), torch.tensor([[1, 0.3, 0.2], [0.3, 0.2, 0.9]])
        >>> labels = torch.tensor([0, 2])
        >>> f"{pairloom.mixup.rankmixup_mrl(clean, mixed, labels, labels.flip(0)).item():.6f}"
        '0.765571'
    """
    check_logits("clean_logits", clean_logits, mixed_logits=mixed_logits)
    own = class_labels("labels", labels, "clean_logits", clean_logits)
    other = class_labels("partner_labels", partner_labels, "clean_logits", clean_logits)
    _checks.finite_number("margin", margin)
    _check_weight(weight)
    losses = class_losses(clean_logits, own)
    gap = mixed_logits.to(losses.dtype).amax(1) - clean_logits.to(losses.dtype).amax(1) + margin
    return mean(losses) + weight * mean(torch.where(own != other, gap.clamp(min=0), 0.0))


def rankmixup_ndcg(
    clean_logits: Tensor,
    mixed_logits: Sequence[Tensor] | Tensor,
    labels: Tensor,
    lam: Tensor | Sequence[float],
    *,
    weight: float = 0.1,
) -> Tensor:
    r"""RankMixup with M-NDCG: confidences of several mixtures of an item fall as the mixtures get more even.

        p_0 = max softmax f(x),  p_j = max softmax f(v_j);      rel_0 = 1,  rel_j = max(lam_j, 1 - lam_j), falling
        DCG = sum_r p_r / log2(r + 2),  IDCG = sum_r rel_r / log2(r + 2)
        L = mean_i CE(f(x_i), y_i) + w mean_i ( 1 - min(DCG / IDCG, IDCG / DCG) )

    Args:
        clean_logits: (B, K) float.
        mixed_logits: (J, B, K), or J tensors (B, K): of J mixtures of each item.
        labels: (B,) integer classes.
        lam: the items' shares in the mixtures, (J,) or (J, B). The order of the mixtures follows from them and is no
            part of the gradient.
        weight: w, 0 or more.

    Returns:
        0-d; 0 for B = 0. Gradients for all logits.

    Raises:
        TypeError, ValueError: arguments that do not fit, labels that are no class.

    Source: as `rankmixup_mrl`; J = 3.

    Example:
        >>> import torch, pairloom
        >>> clean, first = torch.tensor([[2, 0.5, -1], [0.2, 0.1, 0.4]]), torch.tensor([[1, 0.3, 0.2], [0.3, 0.2, 0.9]])
        >>> second = torch.tensor([[0.8, 0.1, 0.6], [0.6, 0.2, 0.8]])
        >>> f"{pairloom.mixup.rankmixup_ndcg(clean, [first, second], torch.tensor([0, 2]), [0.9, 0.6]).item():.6f}"
        '0.630712'
    """
    mixtures = list(mixed_logits)
    check_logits("clean_logits", clean_logits, **{f"mixed_logits[{j}]": one for j, one in enumerate(mixtures)})
    own = class_labels("labels", labels, "clean_logits", clean_logits)
    _check_weight(weight)
    batch = clean_logits.shape[0]
    if not isinstance(lam, Tensor):
        lam = torch.tensor(list(lam), dtype=torch.float64)
    part = share("lam", lam, [(len(mixtures),), (len(mixtures), batch)]).detach().to(clean_logits.device)
    losses = class_losses(clean_logits, own)
    relevance = torch.maximum(part, 1 - part).to(losses.dtype)
    relevance = relevance.unsqueeze(1).expand(-1, batch) if relevance.dim() == 1 else relevance
    relevance, order = relevance.sort(dim=0, descending=True, stable=True)
    every = [one.to(losses.dtype).softmax(1).amax(1) for one in (clean_logits, *mixtures)]
    clean, confidence = every[0].unsqueeze(0), torch.stack(every[1:]) if mixtures else every[0].new_empty(0, batch)
    confidence = torch.cat([clean, confidence.gather(0, order)])
    relevance = torch.cat([torch.ones_like(clean), relevance])
    discount = torch.arange(2, len(mixtures) + 3, device=clean.device, dtype=losses.dtype).log2().unsqueeze(1)
    ratio = (confidence / discount).sum(0) / (relevance / discount).sum(0)
    return mean(losses) + weight * mean(1 - torch.minimum(ratio, 1 / ratio))


def _check_weight(weight: float) -> None:
    _checks.finite_number("weight", weight)
    if weight < 0:
        raise ValueError(f"weight is {weight}; it must be 0 or more")
