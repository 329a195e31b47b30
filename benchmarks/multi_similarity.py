"""Multi-Similarity loss with its mining, one batch against itself, classes of four rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import keops
from benchmarks.family import Family, Workload, ladder, sweep
from benchmarks.harness import Comparison, Settings, Target
from benchmarks.sup_con import CLASS_SIZE, classes
from pairloom.functional import multi_similarity

ALPHA, BETA, BASE, EPSILON = 2.0, 50.0, 0.5, 0.1
TARGETS = {8192: (Target("compile", 3.0),)}
NARROW_TARGETS = (Target("compile", 3.0), Target("pytorch-metric-learning", 35.0))


def ours(x: Tensor, labels: Tensor) -> Tensor:
    return multi_similarity(x, labels, alpha=ALPHA, beta=BETA, base=BASE, epsilon=EPSILON)


def dense(x: Tensor, labels: Tensor) -> Tensor:
    x = F.normalize(x)
    s = x @ x.T
    same = labels[:, None] == labels
    positive = same & ~torch.eye(len(x), dtype=torch.bool)
    hardest_positive = s.masked_fill(~positive, torch.inf).amin(1, keepdim=True)
    hardest_negative = s.masked_fill(same, -torch.inf).amax(1, keepdim=True)
    keep_positive = positive & (s - EPSILON < hardest_negative)
    keep_negative = ~same & (s + EPSILON > hardest_positive)
    pull = torch.where(keep_positive, torch.exp(-ALPHA * (s - BASE)), 0).sum(1).log1p() / ALPHA
    push = torch.where(keep_negative, torch.exp(BETA * (s - BASE)), 0).sum(1).log1p() / BETA
    return (pull + push).mean()


def metric_learning(x: Tensor, labels: Tensor) -> Tensor:
    from pytorch_metric_learning.losses import MultiSimilarityLoss
    from pytorch_metric_learning.miners import MultiSimilarityMiner

    return MultiSimilarityLoss(ALPHA, BETA, BASE)(x, labels, MultiSimilarityMiner(EPSILON)(x, labels))


def streamed(x: Tensor, labels: Tensor) -> Tensor:
    x = F.normalize(x)
    s = keops.dot(x, x)
    differ = keops.differ(labels, labels)
    positive = (1 - differ) * keops.other_rows(x)
    with torch.no_grad():
        fixed = keops.dot(x, x)
        hardest_positive = (fixed + (1 - positive) * keops.NOT_A_PAIR).min(dim=1)
        hardest_negative = (fixed - (1 - differ) * keops.NOT_A_PAIR).max(dim=1)
    # step() is 1 from 0 on: what the miner leaves out is what reaches the other side.
    keep_positive = positive * (1 - (fixed - EPSILON - keops.rows(hardest_negative)).step())
    keep_negative = differ * (1 - (keops.rows(hardest_positive) - fixed - EPSILON).step())
    pull = (keep_positive * (-ALPHA * (s - BASE)).exp()).sum(dim=1).reshape(-1).log1p() / ALPHA
    push = (keep_negative * (BETA * (s - BASE)).exp()).sum(dim=1).reshape(-1).log1p() / BETA
    return (pull + push).mean()


FAMILY = Family(
    "multi_similarity",
    classes,
    {"pairloom": ours, "eager": dense, "pytorch-metric-learning": metric_learning, "keops": streamed},
    flops=(2.0, 6.0),
    facts={"class size": CLASS_SIZE, "mining": True},
)


def run(settings: Settings) -> Iterator[Comparison]:
    """All workloads, one by one."""
    yield from sweep(FAMILY, ladder(settings, TARGETS), settings)
    if not settings.quick:  # without KeOps, which would compile for another D
        narrow = replace(FAMILY, losses={name: loss for name, loss in FAMILY.losses.items() if name != "keops"})
        yield from sweep(narrow, [Workload(4096, 128, targets=NARROW_TARGETS)], settings)
