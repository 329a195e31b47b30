"""InfoNCE between queries and keys, in float32 and bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import keops
from benchmarks.family import PASSES, Family, ladder, sweep
from benchmarks.harness import LIMIT, PEAK, Comparison, Settings, Target
from pairloom.functional import info_nce

TEMPERATURE = 0.07
PER_PAIR = "pairs per second, as part of those at N = 4096"
TARGETS = {
    8192: (Target("eager", 3.8), Target("compile", 2.5), Target(LIMIT, 0.8)),
    16384: (Target("eager", 5.0), Target("compile", 2.5), Target(PER_PAIR, 0.9)),
    65536: (Target(PEAK, 400.0, at_most=True),),
}
BF16_TARGETS = {8192: (Target("compile", 1.4), Target(LIMIT, 0.7))}


def pairs(n: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    """Queries and keys."""
    torch.manual_seed(0)
    return [torch.randn(n, dim).to(dtype).requires_grad_() for _ in range(2)]


def ours(query: Tensor, key: Tensor) -> Tensor:
    return info_nce(query, key, temperature=TEMPERATURE)


def dense(query: Tensor, key: Tensor) -> Tensor:
    logits = F.normalize(query) @ F.normalize(key).T / TEMPERATURE
    return F.cross_entropy(logits, torch.arange(len(query)))


def metric_learning(query: Tensor, key: Tensor) -> Tensor:
    from pytorch_metric_learning.losses import NTXentLoss

    queries, keys = torch.arange(len(query)), torch.arange(len(key))  # one tensor for both would drop the diagonal
    return NTXentLoss(TEMPERATURE)(query, queries, ref_emb=key, ref_labels=keys)


def streamed(query: Tensor, key: Tensor) -> Tensor:
    query, key = F.normalize(query) / TEMPERATURE, F.normalize(key)
    every = keops.dot(query, key).logsumexp(dim=1).reshape(-1)
    return (every - (query * key).sum(dim=1)).mean()


FAMILY = Family(
    "info_nce",
    pairs,
    {"pairloom": ours, "eager": dense, "pytorch-metric-learning": metric_learning, "keops": streamed},
    flops=(2.0, 6.0),
    growth={"pytorch-metric-learning": 3},  # all negative pairs for every positive pair
)
BF16 = Family("info_nce", pairs, {"pairloom": ours, "eager": dense}, flops=(2.0, 6.0))


def run(settings: Settings) -> Iterator[Comparison]:
    """All workloads, one by one."""
    per_pair = {}
    for result in sweep(FAMILY, ladder(settings, TARGETS), settings):
        n = result.workload["N"]
        if result.workload["pass"] == PASSES[True]:
            per_pair[n] = result.timings[0].median / n**2
            if n > 4096:
                result.measures[PER_PAIR] = per_pair[4096] / per_pair[n]
        yield result
    halves = ladder(settings, BF16_TARGETS, sizes=(1024, 8192))
    yield from sweep(BF16, [replace(work, dtype=torch.bfloat16) for work in halves if work.backward], settings)
