"""NT-Xent of SimCLR: two views of every sample in one batch, compared with itself."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import keops
from benchmarks.family import Family, ladder, sweep
from benchmarks.harness import Comparison, Settings, Target
from pairloom.functional import nt_xent

TEMPERATURE = 0.07
TARGETS = {8192: (Target("eager", 7.0), Target("compile", 3.5))}


def views(n: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    """One batch, rows i and i + N/2 are views of the same sample; and the numbers of the samples."""
    torch.manual_seed(0)
    return [torch.randn(n, dim).to(dtype).requires_grad_(), torch.arange(n) % (n // 2)]


def ours(x: Tensor, labels: Tensor) -> Tensor:
    return nt_xent(x, labels, temperature=TEMPERATURE)


def dense(x: Tensor, labels: Tensor) -> Tensor:
    x = F.normalize(x)
    logits = (x @ x.T / TEMPERATURE).fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(len(x)).roll(len(x) // 2))


def metric_learning(x: Tensor, labels: Tensor) -> Tensor:
    from pytorch_metric_learning.losses import NTXentLoss

    return NTXentLoss(TEMPERATURE)(x, labels)


def streamed(x: Tensor, labels: Tensor) -> Tensor:
    x = F.normalize(x)
    logits = keops.dot(x / TEMPERATURE, x) - (1 - keops.other_rows(x)) * keops.NOT_A_PAIR
    every = logits.logsumexp(dim=1).reshape(-1)
    return (every - (x * x.roll(len(x) // 2, 0)).sum(dim=1) / TEMPERATURE).mean()


# S is its own transpose: half of it is enough for both sums, and W + W^T needs one product instead of two.
FAMILY = Family(
    "nt_xent",
    views,
    {"pairloom": ours, "eager": dense, "pytorch-metric-learning": metric_learning, "keops": streamed},
    flops=(1.0, 4.0),
    growth={"pytorch-metric-learning": 3},  # all negative pairs for every positive pair
)


def run(settings: Settings) -> Iterator[Comparison]:
    """All workloads, one by one."""
    return sweep(FAMILY, ladder(settings, TARGETS), settings)
