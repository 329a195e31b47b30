"""RegMixup: mixup beside the clean batch, not in its place."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom.mixup._logits import between, check_logits, class_labels, class_losses, mean
from pairloom.mixup._shares import share
from pairloom.mixup.batch_mixup import BatchMixup, Mixed


def regmixup(
    clean_logits: Tensor,
    mixed_logits: Tensor,
    labels: Tensor,
    partner_labels: Tensor,
    lam: Tensor | float,
    *,
    eta: float = 1.0,
    public_code: bool = False,
) -> Tensor:
    r"""Cross-entropy of the clean batch, plus that of its mixtures with both labels.

        L = mean_i CE(f(x_i), y_i) + eta mean_i ( lam_i CE(f(v_i), y_i) + (1 - lam_i) CE(f(v_i), y'_i) )

    Args:
        clean_logits: (B, K) float: of the batch.
        mixed_logits: (B, K) of its mixtures.
        labels: (B,) integer classes y.
        partner_labels: (B,) classes y' of the partners.
        lam: the share of the item itself, a number or (B,).
        eta: weight of the mixtures, 0 or more.
        public_code: the mean over the clean and the mixed items together, as in the code beside the paper: half of the
            formula for eta = 1.

    Returns:
        0-d; 0 for B = 0. Gradients for both logits.

    Raises:
        TypeError, ValueError: arguments that do not fit, labels that are no class.

    Source: Pinto et al., "RegMixup: Mixup as a Regularizer Can Surprisingly Improve Accuracy and Out Distribution
    Robustness", NeurIPS 2022. Their commands take Beta(20, 20) for CIFAR-10 and Beta(10, 10) for CIFAR-100.

    Example:
        >>> import torch, pairloom
        >>> clean, mixed = torch.tensor([[2, 0.5, -1], [0.2, 0.1, 0.4]]), torch.tensor([[1, 0.3, 0.2], [0.3, 0.2, 0.9]])
        >>> labels = torch.tensor([0, 2])
        >>> f"{pairloom.mixup.regmixup(clean, mixed, labels, labels.flip(0), 0.55).item():.6f}"
        '1.596233'
    """
    check_logits("clean_logits", clean_logits, mixed_logits=mixed_logits)
    own = class_labels("labels", labels, "clean_logits", clean_logits)
    other = class_labels("partner_labels", partner_labels, "clean_logits", clean_logits)
    _checks.finite_number("eta", eta)
    if eta < 0:
        raise ValueError(f"eta is {eta}; it must be 0 or more")
    _checks.flag("public_code", public_code)
    part = share("lam", lam, [(), (clean_logits.shape[0],)]).detach().to(clean_logits.device)
    of_own, of_other = class_losses(mixed_logits, own), class_losses(mixed_logits, other)
    part = part.to(of_own.dtype)
    loss = mean(class_losses(clean_logits, own)) + eta * mean(between(part, of_own, of_other))
    return loss / 2 if public_code else loss


class RegMixup(nn.Module):
    """Draws for RegMixup, and its loss.

        mixed, partner, lam = regmixup.mix(images)
        loss = regmixup(model(images), model(mixed), labels, labels[partner], lam)

    Args:
        alpha: one share for a batch, from Beta(alpha, alpha).
        eta: weight of the mixtures.
        generator: of the draws, on the CPU.

    Example:
        >>> import torch, pairloom
        >>> model, regmixup = torch.nn.Linear(4, 3), pairloom.mixup.RegMixup()
        >>> images, labels = torch.randn(6, 4), torch.arange(6) % 3
        >>> mixed, partner, lam = regmixup.mix(images)
        >>> regmixup(model(images), model(mixed), labels, labels[partner], lam).dim()
        0
    """

    def __init__(self, alpha: float = 20.0, eta: float = 1.0, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        _checks.finite_number("eta", eta)
        if eta < 0:
            raise ValueError(f"eta is {eta}; it must be 0 or more")
        self.eta = eta
        self.draws = BatchMixup(alpha, generator=generator)

    def mix(self, items: Tensor) -> Mixed:
        """(B, ...) -> mixed items, partners, share."""
        mixed: Mixed = self.draws(items)
        return mixed

    def forward(
        self, clean_logits: Tensor, mixed_logits: Tensor, labels: Tensor, partner_labels: Tensor, lam: Tensor
    ) -> Tensor:
        """0-d: `regmixup`."""
        return regmixup(clean_logits, mixed_logits, labels, partner_labels, lam, eta=self.eta)

    def extra_repr(self) -> str:
        """The settings."""
        return f"eta={self.eta}"
