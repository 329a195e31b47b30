"""SelecMix: mix with the item that contradicts the bias, as a biased network sees it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom._stream import ChunkedSimilarity, chunks
from pairloom.mixup._draws import beta
from pairloom.mixup._two_targets import reduced
from pairloom.mixup.mix import mix
from pairloom.streaming import RowContext, stream_rows

KINDS = ("intra", "inter")
REDUCTIONS = ("mean", "sum", "none")


@torch.no_grad()
def selecmix_partners(embeddings: Tensor, labels: Tensor, kind: str, *, public_code: bool = False) -> Tensor:
    """Partners that contradict the bias: the least similar item of the same label, or the most similar of another.

        intra:  argmin_{j != i, y_j = y_i} s_ij            inter:  argmax_{y_j != y_i} s_ij

    Args:
        embeddings: (B, D) float, of the biased network.
        labels: (B,) integer or bool.
        kind: "intra" or "inter".
        public_code: choose as the code beside the paper does, which multiplies similarities by a mask: what is no
            candidate has similarity 1 ("intra") or 0 ("inter"), and so is chosen where all candidates are worse; the
            first item is that of a row without candidates.

    Returns:
        (B,) int64; the lowest index among equals; -1 where there is no candidate (or only NaN).

    Raises:
        TypeError, ValueError: arguments that do not fit.

    Cost: 2 B B D flops; O(B D) memory and one chunk.

    Source: Hwang et al., "SelecMix: Debiased Learning by Contradicting-pair Sampling", NeurIPS 2022.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> pairloom.mixup.selecmix_partners(x, labels, "inter").tolist()
        [2, 2, 1, 1]
        >>> pairloom.mixup.selecmix_partners(x, labels, "intra").tolist()
        [1, 0, 3, 2]
    """
    _checks.embeddings("embeddings", embeddings)
    _checks.labels("labels", labels, "embeddings", embeddings)
    _checks.choice("kind", kind, KINDS)
    _checks.flag("public_code", public_code)
    count = embeddings.shape[0]
    matrix = ChunkedSimilarity(embeddings, None, "cosine", needs_grad=0)
    found = torch.full((count,), -1, device=embeddings.device)
    sign = 1 if kind == "inter" else -1  # of what is sought, the largest
    for chunk in chunks(count, count):
        s = sign * matrix.block(chunk)
        same = labels[chunk].unsqueeze(1) == labels
        rows = torch.arange(chunk.start, chunk.stop, device=s.device)
        same_others = same.clone()
        same_others[rows - chunk.start, rows] = False
        candidates = (~same if kind == "inter" else same_others) & ~s.isnan()
        s = torch.where(candidates, s, (0.0 if kind == "inter" else -1.0) if public_code else -torch.inf)
        best = s.argmax(1)
        found[chunk] = best if public_code else torch.where(candidates.any(1), best, -1)
    return found


def biased_contrastive(
    embeddings: Tensor,
    labels: Tensor,
    *,
    q: float = 0.7,
    temperature: float = 0.1,
    reduction: str = "mean",
) -> Tensor:
    r"""Generalised supervised contrastive loss, which dwells on easy pairs: it trains the biased network of SelecMix.

        L_i = -1/|P_i| sum_{j in P_i} q sg(p_ij)^q log p_ij,      p_ij = e^{s_ij/t} / sum_{k != i} e^{s_ik/t}

    P_i: the other items with the label of i; sg: no gradient. q = 0 would be no loss, q = 1 weighs by the probability.

    Args:
        embeddings: (N, D) float.
        labels: (N,) integer or bool.
        q: from above 0 to 1.
        temperature: above 0.
        reduction: "mean", "sum" or "none".

    Returns:
        0-d, or (N,); an anchor without positives is 0 and counts in the mean.

    Raises:
        TypeError, ValueError: arguments that do not fit.

    Cost: 2 N N D flops forward, 4 N N D with the gradient; O(N D) memory.

    Source: as `selecmix_partners`.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> f"{pairloom.mixup.biased_contrastive(x, torch.tensor([0, 0, 1, 1]), temperature=0.5).item():.4f}"
        '0.2623'
    """
    _checks.embeddings("embeddings", embeddings)
    _checks.labels("labels", labels, "embeddings", embeddings)
    _checks.positive_number("temperature", temperature)
    _checks.positive_number("q", q)
    if q > 1:
        raise ValueError(f"q is {q}; it must be above 0 and at most 1")
    _checks.choice("reduction", reduction, REDUCTIONS)
    names = labels.to(torch.int64)

    def rule(s: Tensor, ctx: RowContext) -> Tensor:
        (own,), (every,) = ctx.row_args, ctx.column_args
        # Not -inf: of a single item it would leave nothing that a gradient could go through.
        log_p = torch.where(ctx.self_mask, torch.finfo(s.dtype).min, s / temperature).log_softmax(1)
        positive = (own.unsqueeze(1) == every) & ~ctx.self_mask
        log_p = torch.where(positive, log_p, 0.0)
        weights = torch.where(positive, q * (q * log_p.detach()).exp(), 0.0)
        return -(weights * log_p).sum(1) / positive.sum(1).clamp(min=1)

    losses = stream_rows(rule, embeddings, row_args=(names,), column_args=(names,))
    return reduced(losses, reduction)


class SelectedMixtures(NamedTuple):
    """A batch that SelecMix mixed."""

    items: Tensor
    """(B, ...)"""
    targets: Tensor
    """(B,): the labels of the partners, which are the larger part; of an item without a partner its own."""
    partner: Tensor
    """(B,), -1 for none."""


class SelecMix(nn.Module):
    """Mixes a batch with contradicting partners.

        items, targets, _ = selecmix(images, labels, biased(images))
        loss = cross_entropy(model(items), targets)

    One coin for each batch decides between "intra" and "inter" partners; a share lam ~ Beta(alpha, alpha) of each item
    is halved, so that the partner is the larger part and gives the label.

    Args:
        alpha: of the shares' distribution.
        public_code: partners as of `selecmix_partners`.
        generator: of the draws, on the CPU.

    Example:
        >>> import torch, pairloom
        >>> selecmix = pairloom.mixup.SelecMix(generator=torch.Generator().manual_seed(0))
        >>> images, labels = torch.randn(6, 4), torch.arange(6) % 2
        >>> mixed = selecmix(images, labels, torch.randn(6, 3))
        >>> mixed.items.shape, mixed.targets.shape
        (torch.Size([6, 4]), torch.Size([6]))
    """

    def __init__(
        self, alpha: float = 1.0, *, public_code: bool = False, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        _checks.positive_number("alpha", alpha)
        _checks.flag("public_code", public_code)
        self.alpha = alpha
        self.public_code = public_code
        self.generator = generator

    def forward(self, items: Tensor, labels: Tensor, embeddings: Tensor) -> SelectedMixtures:
        """(B, ...), (B,), embeddings (B, D) of the biased network -> mixed items and their labels."""
        _checks.labels("labels", labels, "items", items)
        kind = KINDS[int(torch.randint(2, (), generator=self.generator))]
        partner = selecmix_partners(embeddings, labels, kind, public_code=self.public_code)
        lam = beta(self.alpha, self.alpha, (items.shape[0],), self.generator) / 2
        targets = torch.where(partner < 0, labels, labels[partner.clamp(min=0)])
        return SelectedMixtures(mix(items, partner, lam), targets, partner)

    def extra_repr(self) -> str:
        """The settings."""
        return f"alpha={self.alpha}, public_code={self.public_code}"
