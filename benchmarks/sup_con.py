"""Supervised contrastive loss, classes of four rows, one batch against itself."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import keops
from benchmarks.family import Family, ladder, sweep
from benchmarks.harness import Comparison, Settings, Target
from pairloom.functional import sup_con

TEMPERATURE = 0.1
CLASS_SIZE = 4
TARGETS = {8192: (Target("eager", 7.0), Target("compile", 3.5))}


def classes(n: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    """One batch, four rows of each class, and the classes."""
    torch.manual_seed(0)
    return [torch.randn(n, dim).to(dtype).requires_grad_(), torch.arange(n) // CLASS_SIZE]


def ours(x: Tensor, labels: Tensor) -> Tensor:
    return sup_con(x, labels, temperature=TEMPERATURE)


def dense(x: Tensor, labels: Tensor) -> Tensor:
    x = F.normalize(x)
    itself = torch.eye(len(x), dtype=torch.bool)
    positive = (labels[:, None] == labels) & ~itself
    logits = x @ x.T / TEMPERATURE
    every = logits.masked_fill(itself, -torch.inf).logsumexp(dim=1)
    return (every - (logits * positive).sum(dim=1) / positive.sum(dim=1)).mean()


def metric_learning(x: Tensor, labels: Tensor) -> Tensor:
    from pytorch_metric_learning.losses import SupConLoss

    return SupConLoss(TEMPERATURE)(x, labels)


def streamed(x: Tensor, labels: Tensor) -> Tensor:
    # The mean over positives is linear in the columns: their sum per class does it, without pairs.
    x = F.normalize(x)
    logits = keops.dot(x / TEMPERATURE, x) - (1 - keops.other_rows(x)) * keops.NOT_A_PAIR
    every = logits.logsumexp(dim=1).reshape(-1)
    sums = torch.zeros(len(x) // CLASS_SIZE, x.shape[1]).index_add(0, labels, x)
    return (every - (x * (sums[labels] - x)).sum(dim=1) / (CLASS_SIZE - 1) / TEMPERATURE).mean()


# S is its own transpose: half of it is enough for both sums, and W + W^T needs one product instead of two.
FAMILY = Family(
    "sup_con",
    classes,
    {"pairloom": ours, "eager": dense, "pytorch-metric-learning": metric_learning, "keops": streamed},
    flops=(1.0, 4.0),
    facts={"class size": CLASS_SIZE},
)


def run(settings: Settings) -> Iterator[Comparison]:
    """All workloads, one by one."""
    return sweep(FAMILY, ladder(settings, TARGETS), settings)
