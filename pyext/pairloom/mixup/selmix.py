"""SelMix: mix the classes whose mixtures raise a metric that is no mean of losses."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom.mixup.mix import mix

SMALLEST_ENTRY = 1e-7
"""Of a confusion matrix, whose logarithm is what the classifier moves."""
SMALLEST_PROBABILITY = 1e-10
"""Of a pair of classes, before all are brought to the sum 1."""


def mean_recall_gradient(confusion: Tensor) -> Tensor:
    r"""Derivative of the mean recall by the unconstrained entries of a confusion matrix.

        D_ii = C_ii - K C_ii^2,      D_ij = -K C_ij C_ii

    Args:
        confusion: (K, K) float: C_ij is the share of all items that are of class i and predicted as j. Sum 1.

    Returns:
        (K, K) float64.

    Raises:
        TypeError, ValueError: no square matrix of shares with sum 1.

    Source: Ramasubramanian et al., "Selective Mixup Fine-Tuning for Optimizing Non-Decomposable Metrics", ICLR 2024.

    Example:
        >>> import torch, pairloom
        >>> pairloom.mixup.mean_recall_gradient(torch.tensor([[0.4, 0.1], [0.2, 0.3]]))
        tensor([[ 0.0800, -0.0800],
                [-0.1200,  0.1200]], dtype=torch.float64)
    """
    c = _confusion(confusion)
    right = c.diagonal()
    return torch.diag(right) - len(c) * c * right.unsqueeze(1)


def worst_recall_gradient(confusion: Tensor, weights: Tensor) -> Tensor:
    r"""The same for a weighted recall: row i of `mean_recall_gradient` times K w_i.

    With weights that follow the lowest recall (`worst_recall_weights`) the worst class counts most.

    Args:
        confusion: (K, K), as there.
        weights: (K,) of the classes, sum 1.

    Returns:
        (K, K) float64.

    Example:
        >>> import torch, pairloom
        >>> confusion = torch.tensor([[0.4, 0.1], [0.2, 0.3]])
        >>> pairloom.mixup.worst_recall_gradient(confusion, torch.tensor([0.0, 1.0]))[1]
        tensor([-0.2400,  0.2400], dtype=torch.float64)
    """
    c = _confusion(confusion)
    if weights.shape != c.shape[:1]:
        raise ValueError(f"weights has shape {tuple(weights.shape)}; it must be ({len(c)},), one for each class")
    return mean_recall_gradient(c) * (len(c) * weights.to(torch.float64)).unsqueeze(1)


def worst_recall_weights(confusion: Tensor, weights: Tensor, rate: float) -> Tensor:
    """One step of the weights: w_i proportional to w_i e^{-rate recall_i}. (K, K), (K,) -> (K,), sum 1."""
    c = _confusion(confusion)
    _checks.positive_number("rate", rate)
    recall = c.diagonal() / c.sum(1)
    return (weights.to(torch.float64).log() - rate * recall).softmax(0)


def coverage_gradient(confusion: Tensor, multipliers: Tensor) -> Tensor:
    r"""Derivative of sum_j m_j coverage_j, coverage_j = sum_i C_ij the share of predictions of class j.

        D_ij = C_ij ( m_j - K sum_l m_l C_il )

    Add it to the gradient of a metric to have predictions of every class (`coverage_multipliers`).

    Args:
        confusion: (K, K), as of `mean_recall_gradient`, with classes of equal size.
        multipliers: (K,).

    Returns:
        (K, K) float64.
    """
    c = _confusion(confusion)
    if multipliers.shape != c.shape[:1]:
        raise ValueError(
            f"multipliers has shape {tuple(multipliers.shape)}; it must be ({len(c)},), one for each class"
        )
    m = multipliers.to(torch.float64)
    return c * (m - len(c) * (c @ m).unsqueeze(1))


def coverage_multipliers(confusion: Tensor, *, least: float, largest: float, temperature: float) -> Tensor:
    """max(0, largest (1 - e^{(coverage_j - least / K) / temperature})): above 0 for classes predicted too seldom."""
    c = _confusion(confusion)
    _checks.positive_number("temperature", temperature)
    short = (c.sum(0) - least / len(c)) / temperature
    return (-largest * short.expm1()).clamp(min=0)


def selmix_gain(
    metric_gradient: Tensor,
    prototypes: Tensor,
    classifier: Tensor,
    *,
    lam: float = 0.8,
    label_term: str = "prototype",
) -> Tensor:
    r"""What one step on a mixture of two classes is expected to win in a metric.

        v_ij = l z_i + (1 - l) z_j,      p(v) = softmax(v W^T)
        G_ij = sum_{q,c} D_qc R_qc,      R_qc = -(v_ij.z_q) p_c(v_ij) + [c = i] (z_i.z_q)

    Args:
        metric_gradient: (K, K) float D: derivative of the metric (`mean_recall_gradient` and its neighbours).
        prototypes: (K, d) mean features z of the classes, on validation data.
        classifier: (K, d) weight W of the last layer.
        lam: l, the mean of the range that shares are drawn from.
        label_term: "prototype": z_i.z_q in the second term, as the code beside the paper has it; "mixture": v_ij.z_q,
            which the derivation gives.

    Returns:
        (K, K) float64: the class whose label is used by the class mixed in.

    Raises:
        TypeError, ValueError: arguments that do not fit.

    Cost: 2 K^4 flops; O(K^2) memory.

    Source: as `mean_recall_gradient`.

    Example:
        >>> import torch, pairloom
        >>> metric = pairloom.mixup.mean_recall_gradient(torch.tensor([[0.4, 0.1], [0.2, 0.3]]))
        >>> pairloom.mixup.selmix_gain(metric, torch.eye(2), torch.eye(2))
        tensor([[0.0430, 0.0683],
                [0.0967, 0.0645]], dtype=torch.float64)
    """
    _checks.embeddings("prototypes", prototypes, classifier=classifier)
    _checks.choice("label_term", label_term, ("prototype", "mixture"))
    _checks.finite_number("lam", lam)
    if not 0 <= lam <= 1:
        raise ValueError(f"lam is {lam}; it must be from 0 to 1")
    k = prototypes.shape[0]
    for name, matrix, shape in (
        ("classifier", classifier, prototypes.shape),
        ("metric_gradient", metric_gradient, (k, k)),
    ):
        if tuple(matrix.shape) != tuple(shape):
            raise ValueError(f"{name} has shape {tuple(matrix.shape)}; it must be {tuple(shape)}")
    z, w, d = (x.detach().to(torch.float64) for x in (prototypes, classifier, metric_gradient))
    similar, logits = z @ z.T, z @ w.T
    gains = []
    for i in range(k):
        mixed = lam * similar[i] + (1 - lam) * similar  # (j, q): v_ij.z_q
        predicted = (lam * logits[i] + (1 - lam) * logits).softmax(1)  # (j, c)
        target = mixed if label_term == "mixture" else similar[i]
        gains.append((target * d[:, i]).sum(-1) - (mixed * (predicted @ d.T)).sum(1))
    return torch.stack(gains) if gains else similar


def selmix_probabilities(gain: Tensor, *, temperature: float = 0.1) -> Tensor:
    """How often each pair of classes is mixed: softmax of the gains over all pairs, 0 where there is nothing to win.

    Args:
        gain: (K, K) float.
        temperature: above 0.

    Returns:
        (K, K) float64, sum 1. Where no pair wins anything all are equally likely.

    Raises:
        ValueError: a temperature that is not above 0.

    Source: as `mean_recall_gradient`.

    Example:
        >>> import torch, pairloom
        >>> pairloom.mixup.selmix_probabilities(torch.tensor([[0.1, 0.3], [0.2, 0.2]])).round(decimals=4)
        tensor([[0.0723, 0.5344],
                [0.1966, 0.1966]], dtype=torch.float64)
    """
    _checks.positive_number("temperature", temperature)
    gain = gain.to(torch.float64)
    p = (gain / temperature).flatten().softmax(0).view(gain.shape)
    p = torch.where(gain > 0, p, 0.0) + SMALLEST_PROBABILITY
    return p / p.sum()


class SelectedPairs(NamedTuple):
    """Pairs of items that SelMix draws."""

    first: Tensor
    """(V,) items whose label is used."""
    second: Tensor
    """(V,) items mixed in."""
    lam: Tensor
    """(V,) shares of the first."""


class SelMix(nn.Module):
    """Fine-tuning of a classifier for a metric, such as the mean recall, on mixtures of chosen classes.

        selmix.refresh(features, labels, classifier.weight)                     every 50 steps, on validation data
        pairs = selmix.draw(batch_labels, partner_labels, count)
        mixed = selmix.mix(features, partner_features, pairs)
        loss = cross_entropy(classifier(mixed), batch_labels[pairs.first])      the first label alone

    Args:
        classes: K.
        metric: "mean_recall" or "worst_recall".
        temperature: of the choice of pairs.
        lowest_share: shares are uniform from here to 1.
        rate: of the weights of "worst_recall" (`worst_recall_weights`).
        patience: `finished` when the largest gain moved by less than ``least_change`` in so many refreshments.
        least_change: relative, as 0.05 for five percent.
        generator: of the draws, on the CPU.

    Confusion matrix, probabilities, weights of the classes and largest gains are buffers: a training goes on from a
    ``state_dict``.

    Source: as `mean_recall_gradient`.

    Example:
        >>> import torch, pairloom
        >>> selmix = pairloom.mixup.SelMix(2, generator=torch.Generator().manual_seed(0))
        >>> features, labels = torch.randn(20, 3), torch.arange(20) % 2
        >>> selmix.refresh(features, labels, torch.randn(2, 3))
        >>> pairs = selmix.draw(labels, labels, 4)
        >>> selmix.mix(features, features, pairs).shape
        torch.Size([4, 3])
    """

    confusion: Tensor
    probabilities: Tensor
    class_weights: Tensor
    largest_gains: Tensor
    refreshments: Tensor

    def __init__(
        self,
        classes: int,
        *,
        metric: str = "mean_recall",
        temperature: float = 0.1,
        lowest_share: float = 0.6,
        rate: float = 1.0,
        patience: int = 10,
        least_change: float = 0.05,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _checks.count("classes", classes)
        if classes < 2:
            raise ValueError(f"classes is {classes}; it must be 2 or more")
        _checks.choice("metric", metric, ("mean_recall", "worst_recall"))
        for name, value in (("temperature", temperature), ("rate", rate), ("least_change", least_change)):
            _checks.positive_number(name, value)
        _checks.finite_number("lowest_share", lowest_share)
        if not 0 <= lowest_share <= 1:
            raise ValueError(f"lowest_share is {lowest_share}; it must be from 0 to 1")
        _checks.count("patience", patience)
        self.settings: dict[str, Any] = {
            "metric": metric,
            "temperature": temperature,
            "lowest_share": lowest_share,
            "rate": rate,
            "least_change": least_change,
        }
        self.generator = generator
        even = torch.full((classes, classes), 1 / classes**2, dtype=torch.float64)
        self.register_buffer("confusion", even)
        self.register_buffer("probabilities", even.clone())
        self.register_buffer("class_weights", even.sum(1))
        self.register_buffer("largest_gains", torch.zeros(patience + 1, dtype=torch.float64))
        self.register_buffer("refreshments", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def refresh(self, features: Tensor, labels: Tensor, classifier: Tensor) -> None:
        """Choose pairs of classes anew, from validation features (N, d), their classes, and the classifier (K, d).

        Raises:
            TypeError, ValueError: arguments that do not fit; a class without an item, which has no prototype.
        """
        k = self.confusion.shape[0]
        _checks.embeddings("features", features, classifier=classifier)
        _checks.labels("labels", labels, "features", features)
        if classifier.shape[0] != k:
            raise ValueError(f"classifier has {classifier.shape[0]} rows; it must have {k}, one for each class")
        labels = labels.to(torch.int64)
        if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < k:
            raise ValueError(f"labels holds {int(labels.min())} to {int(labels.max())}; classes are 0 to {k - 1}")
        sizes = torch.bincount(labels, minlength=k)
        if bool((sizes == 0).any()):
            raise ValueError(f"labels holds no item of class {int((sizes == 0).nonzero()[0])}; each needs a prototype")
        for name, given in (("features", features), ("classifier", classifier)):
            if not bool(given.isfinite().all()):
                raise ValueError(f"{name} holds numbers that are not finite; pairs of classes would be drawn blindly")
        wide = features.to(torch.float64)
        prototypes = torch.zeros(k, wide.shape[1], dtype=torch.float64, device=wide.device).index_add(0, labels, wide)
        prototypes /= sizes.unsqueeze(1)
        predicted = (wide @ classifier.to(torch.float64).T).argmax(1)
        # Classes of equal weight, whatever their sizes: what a metric of recalls looks at.
        counts = torch.bincount(labels * k + predicted, minlength=k * k).view(k, k).to(torch.float64)
        confusion = (counts / (sizes.unsqueeze(1) * k)).clamp(min=SMALLEST_ENTRY)
        confusion /= confusion.sum()
        self.confusion.copy_(confusion)
        if self.settings["metric"] == "worst_recall":
            self.class_weights.copy_(worst_recall_weights(confusion, self.class_weights, self.settings["rate"]))
            metric = worst_recall_gradient(confusion, self.class_weights)
        else:
            metric = mean_recall_gradient(confusion)
        gain = selmix_gain(
            metric, prototypes, classifier.to(torch.float64), lam=(1 + self.settings["lowest_share"]) / 2
        )
        self.probabilities.copy_(selmix_probabilities(gain, temperature=self.settings["temperature"]))
        self.largest_gains.copy_(self.largest_gains.roll(-1))
        self.largest_gains[-1] = gain.max()
        self.refreshments += 1

    @property
    def finished(self) -> bool:
        """Whether the largest gain hardly moved for a while: fine-tuning may stop."""
        if int(self.refreshments) < len(self.largest_gains):
            return False
        gains = self.largest_gains
        return float(gains.max() - gains.min()) <= self.settings["least_change"] * float(gains.abs().max())

    def draw(self, labels: Tensor, partner_labels: Tensor, count: int) -> SelectedPairs:
        """Pairs of an item of (N,) labels and one of (M,) partner labels, of classes that win; all on the CPU.

        Raises:
            TypeError, ValueError: labels that are no classes; no item at all.
        """
        _checks.count("count", count)
        k = self.confusion.shape[0]
        pools = []
        for name, given in (("labels", labels), ("partner_labels", partner_labels)):
            _checks.labels(name, given, name, given.unsqueeze(1) if isinstance(given, Tensor) else given)
            names = given.cpu().to(torch.int64)
            if names.numel() == 0:
                raise ValueError(f"{name} is empty; there is nothing to draw")
            if not 0 <= int(names.min()) <= int(names.max()) < k:
                raise ValueError(f"{name} holds {int(names.min())} to {int(names.max())}; classes are 0 to {k - 1}")
            pools.append(names)
        sizes = [torch.bincount(names, minlength=k) for names in pools]
        there = (sizes[0] > 0).unsqueeze(1) & (sizes[1] > 0)
        # Not torch.multinomial, which knows 2^24 outcomes: K = 4,096 classes.
        sums = torch.where(there, self.probabilities.cpu(), 0.0).flatten().cumsum(0)
        at = torch.rand(count, generator=self.generator, dtype=torch.float64) * sums[-1]
        pairs = torch.searchsorted(sums, at, right=True)
        chosen = torch.stack([pairs // k, pairs % k])
        rows = [self._member(names, size, one) for names, size, one in zip(pools, sizes, chosen, strict=True)]
        low = self.settings["lowest_share"]
        lam = low + (1 - low) * torch.rand(count, generator=self.generator, dtype=torch.float64)
        return SelectedPairs(rows[0], rows[1], lam)

    def _member(self, names: Tensor, sizes: Tensor, chosen: Tensor) -> Tensor:
        """A random item of each chosen class."""
        order = names.argsort(stable=True)
        begin = sizes.cumsum(0) - sizes
        place = (torch.rand(len(chosen), generator=self.generator, dtype=torch.float64) * sizes[chosen]).long()
        return order[begin[chosen] + place.minimum(sizes[chosen] - 1)]

    @staticmethod
    def mix(features: Tensor, partner_features: Tensor, pairs: SelectedPairs) -> Tensor:
        """(N, d), (M, d) -> (V, d)."""
        device = features.device
        return mix(features, pairs.second.to(device), pairs.lam, others=partner_features, first=pairs.first.to(device))

    def extra_repr(self) -> str:
        """The settings."""
        given = {"classes": self.confusion.shape[0], **self.settings}
        return ", ".join(f"{name}={value!r}" for name, value in given.items())


def _confusion(confusion: Any) -> Tensor:
    """(K, K) float64."""
    if not isinstance(confusion, Tensor):
        raise TypeError(f"confusion is a {type(confusion).__name__}; it must be a torch.Tensor")
    if not confusion.dtype.is_floating_point:
        raise TypeError(f"confusion has dtype {str(confusion.dtype).removeprefix('torch.')}; it must be float, shares")
    if confusion.dim() != 2 or confusion.shape[0] != confusion.shape[1] or confusion.shape[0] == 0:
        raise ValueError(f"confusion has shape {tuple(confusion.shape)}; it must be (classes, classes)")
    c = confusion.detach().to(torch.float64)
    if bool((c < 0).any()) or abs(float(c.sum()) - 1) > 1e-3:
        raise ValueError(f"confusion has the sum {float(c.sum()):g}; it must be shares of all items, with sum 1")
    return c
