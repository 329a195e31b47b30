"""Intra-Cluster Mixup: only items of one cluster are mixed, for labels that say what an item is not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom.mixup._logits import between, check_logits, class_labels, mean
from pairloom.mixup._shares import share
from pairloom.mixup.batch_mixup import BatchMixup, Mixed


def intra_cluster_partners(clusters: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A random other member of its cluster for every item; each is the partner of one.

    Args:
        clusters: (B,) integer: the cluster of each item, such as k-means finds among self-supervised embeddings.
        generator: of the draws, on the CPU.

    Returns:
        (B,) int64, -1 for an item that is alone in its cluster.

    Raises:
        TypeError, ValueError: clusters that are no integers (B,).

    Example:
        >>> import torch, pairloom
        >>> pairloom.mixup.intra_cluster_partners(torch.tensor([7, 3, 7, 5])).tolist()
        [2, -1, 0, -1]
    """
    _checks.labels(
        "clusters", clusters, "clusters", clusters.unsqueeze(1) if isinstance(clusters, Tensor) else clusters
    )
    clusters = clusters.to(torch.int64)
    count = clusters.shape[0]
    shuffled = torch.randperm(count, generator=generator).to(clusters.device)
    # In a random order within each cluster, everyone takes the next one, and the last one the first.
    order = shuffled[clusters[shuffled].argsort(stable=True)]
    kept = clusters[order]
    first = torch.searchsorted(kept, kept)
    place = torch.arange(count, device=clusters.device)
    following = torch.where(place + 1 < torch.searchsorted(kept, kept, right=True), place + 1, first)
    partner = torch.where(following == place, -1, order[following.clamp(max=max(count - 1, 0))] if count else following)
    return torch.empty_like(order).scatter_(0, order, partner)


def complementary_mixup(logits: Tensor, labels: Tensor, partner_labels: Tensor, lam: Tensor | float) -> Tensor:
    r"""The loss of complementary labels on mixtures: what both parents are not gets little probability.

        L = mean_i ( -lam_i log(1 - p_i(y_i)) - (1 - lam_i) log(1 - p_i(y'_i)) ),      p_i = softmax of the logits

    Args:
        logits: (B, K) float: of the mixtures.
        labels: (B,) complementary labels of the items: a class that each is not of.
        partner_labels: (B,) those of their partners.
        lam: the items' shares, a number or (B,).

    Returns:
        0-d; 0 for B = 0. log(1 - p) is found from the other logits: it does not lose digits as p nears 1.

    Raises:
        TypeError, ValueError: arguments that do not fit, labels that are no class.

    Source: Mai and Lin, "Intra-Cluster Mixup: An Effective Data Augmentation Technique for Complementary-Label
    Learning", 2025, as its abstract and review tell it; no code is known.

    Example:
        >>> import torch, pairloom
        >>> logits, label = torch.tensor([[1.0, 0.3, 0.2]]), torch.tensor([1])
        >>> f"{pairloom.mixup.complementary_mixup(logits, label, label + 1, 0.6).item():.6f}"
        '0.281797'
    """
    check_logits("logits", logits)
    own = class_labels("labels", labels, "logits", logits)
    other = class_labels("partner_labels", partner_labels, "logits", logits)
    if logits.shape[1] < 2:
        raise ValueError("logits has one class; what is not of it is of none")
    part = share("lam", lam, [(), (logits.shape[0],)]).detach().to(logits.device)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    part = part.to(wide.dtype)
    return mean(between(part, _complementary(wide, own), _complementary(wide, other)))


def _complementary(logits: Tensor, labels: Tensor) -> Tensor:
    """(B,): -log(1 - p_label)."""
    others = torch.ones_like(logits, dtype=torch.bool).scatter_(1, labels.unsqueeze(1), False)
    return logits.logsumexp(1) - torch.where(others, logits, -torch.inf).logsumexp(1)


class IntraClusterMixup(nn.Module):
    """Draws for Intra-Cluster Mixup, and its loss.

        mixed, partner, lam = mixup.mix(images, clusters)
        loss = mixup(model(mixed), labels, partner, lam)

    Args:
        alpha: one share for each item, from Beta(alpha, alpha). The paper's value is not known to us.
        generator: of the draws, on the CPU.

    Example:
        >>> import torch, pairloom
        >>> mixup, model = pairloom.mixup.IntraClusterMixup(), torch.nn.Linear(4, 3)
        >>> mixed, partner, lam = mixup.mix(torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 1, 2]))
        >>> mixup(model(mixed), torch.arange(6) % 3, partner, lam).dim()
        0
    """

    def __init__(self, alpha: float = 1.0, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.draws = BatchMixup(alpha, draw="item", generator=generator)

    def mix(self, items: Tensor, clusters: Tensor) -> Mixed:
        """(B, ...), (B,) -> mixed items, partners (-1: alone and unmixed), shares."""
        mixed: Mixed = self.draws(items, intra_cluster_partners(clusters, self.draws.generator).to(items.device))
        return mixed

    def forward(self, logits: Tensor, labels: Tensor, partner: Tensor, lam: Tensor) -> Tensor:
        """0-d: `complementary_mixup`, with the complementary labels (B,) of the items."""
        alone = partner < 0
        return complementary_mixup(logits, labels, torch.where(alone, labels, labels[partner.clamp(min=0)]), lam)
