"""i-Mix: instances are classes, so mixed instances have mixed labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom.mixup._shares import share
from pairloom.mixup._two_targets import reduced, two_target_info_nce
from pairloom.mixup.batch_mixup import BatchMixup, Mixed
from pairloom.mixup.mix import mix
from pairloom.reference.similarity import compute_dtype, unit_rows

REDUCTIONS = ("mean", "sum", "none")


def imix(
    query: Tensor,
    keys: Tensor,
    partner: Tensor,
    lam: Tensor | float,
    *,
    queue: Tensor | None = None,
    temperature: float = 0.2,
    reduction: str = "mean",
) -> Tensor:
    r"""i-Mix on an N-pair or MoCo basis: pick both parents of every mixed query among the keys.

        L_i = -lam_i log p_i(i) - (1 - lam_i) log p_i(partner_i),    p_i = softmax over [keys; queue] of s_ij / t

    Args:
        query: (N, D) float: the encoder's embeddings of the mixed items ``mix(items, partner, lam)``.
        keys: (N, D) embeddings of the items themselves, which are not mixed; detach them where the basis does (MoCo).
        partner: (N,) int64: with which item each was mixed; itself is harmless.
        lam: the share of the first, a number or (N,) (`IMix` draws it).
        queue: (M, D) earlier keys.
        temperature: above 0.
        reduction: "mean", "sum" or "none".

    Returns:
        0-d, or (N,); float64 if an embedding is, else float32. 0 for N = 0.

    Raises:
        TypeError, ValueError: arguments that do not fit.

    Cost: that of `pairloom.info_nce`; O((N + M) D) memory.

    Source: Lee et al., "i-Mix: A Domain-Agnostic Strategy for Contrastive Representation Learning", ICLR 2021. The
    paper's MoCo has the queue alone for negatives; its code, like this, has the keys of the batch as well.

    Example:
        >>> import torch, pairloom
        >>> items, partner = torch.eye(4), torch.tensor([1, 2, 3, 0])
        >>> mixed = pairloom.mixup.mix(items, partner, 0.7)
        >>> f"{pairloom.mixup.imix(mixed, items, partner, 0.7).item():.4f}"
        '0.8764'
    """
    _checks.embeddings("query", query, keys=keys, queue=queue)
    if keys.shape[0] != query.shape[0]:
        raise ValueError(f"keys has {keys.shape[0]} rows and query {query.shape[0]}; each query has a key")
    _checks.row_indices("partner", partner, "keys", keys)
    if partner.shape[0] != query.shape[0]:
        raise ValueError(f"partner has {partner.shape[0]} values for {query.shape[0]} queries; each has one")
    _checks.positive_number("temperature", temperature)
    _checks.choice("reduction", reduction, REDUCTIONS)
    part = share("lam", lam, [(), (query.shape[0],)]).detach().to(query.device)
    return reduced(two_target_info_nce(query, keys, queue, partner, part, temperature), reduction)


def imix_byol(
    predictions: Tensor, targets: Tensor, partner: Tensor, lam: Tensor | float, *, reduction: str = "mean"
) -> Tensor:
    r"""i-Mix on a BYOL basis: predictions of mixed items near the targets of both parents.

        L_i = 2 - 2 ( lam_i s(p_i, t_i) + (1 - lam_i) s(p_i, t_{partner_i}) ),     s the cosine

    Args:
        predictions: (N, D) float: of the mixed items.
        targets: (N, D) of the items themselves; detached here, as BYOL has it.
        partner: (N,) int64.
        lam: a number or (N,).
        reduction: "mean", "sum" or "none".

    Returns:
        0-d, or (N,), from 0 to 4.

    Raises:
        TypeError, ValueError: arguments that do not fit.

    Source: as `imix`.

    Example:
        >>> import torch, pairloom
        >>> x = torch.eye(2)
        >>> pairloom.mixup.imix_byol(x, x, torch.tensor([1, 0]), 0.75).item()
        0.5
    """
    _checks.embeddings("predictions", predictions, targets=targets)
    if targets.shape[0] != predictions.shape[0]:
        raise ValueError(f"targets has {targets.shape[0]} rows and predictions {predictions.shape[0]}; they must agree")
    _checks.row_indices("partner", partner, "targets", targets)
    if partner.shape[0] != predictions.shape[0]:
        raise ValueError(f"partner has {partner.shape[0]} values for {predictions.shape[0]} predictions; each has one")
    _checks.choice("reduction", reduction, REDUCTIONS)
    dtype = compute_dtype(predictions, targets)
    part = share("lam", lam, [(), (predictions.shape[0],)]).detach().to(predictions.device, dtype)
    # Twice the share of both targets is one product: the cosine is linear in the targets.
    both = mix(unit_rows(targets.detach().to(dtype)), partner, part)
    return reduced(2 - 2 * (unit_rows(predictions.to(dtype)) * both).sum(1), reduction)


class IMix(nn.Module):
    """Draws for i-Mix, and its loss.

        items, partner, lam = imix.mix(images)
        loss = imix(encoder(items), keys, partner, lam)

    Args:
        temperature: above 0.
        alpha: lam is drawn from Beta(alpha, alpha) for each item; max(lam, 1 - lam) is the item's.
        generator: of the draws, on the CPU.

    Example:
        >>> import torch, pairloom
        >>> imix = pairloom.mixup.IMix(generator=torch.Generator().manual_seed(0))
        >>> images = torch.randn(6, 8)
        >>> items, partner, lam = imix.mix(images)
        >>> bool((lam >= 0.5).all()), imix(items, images, partner, lam).dim()
        (True, 0)
    """

    def __init__(
        self, temperature: float = 0.2, *, alpha: float = 1.0, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        _checks.positive_number("temperature", temperature)
        self.temperature = temperature
        self.draws = BatchMixup(alpha, draw="item", larger_first=True, generator=generator)

    def mix(self, items: Tensor) -> Mixed:
        """(N, ...) -> mixed items (N, ...), partner (N,), lam (N,)."""
        mixed: Mixed = self.draws(items)
        return mixed

    def forward(self, query: Tensor, keys: Tensor, partner: Tensor, lam: Tensor, queue: Tensor | None = None) -> Tensor:
        """0-d: `imix` of embeddings."""
        return imix(query, keys, partner, lam, queue=queue, temperature=self.temperature)

    def extra_repr(self) -> str:
        """The settings."""
        return f"temperature={self.temperature}"
