"""Triplet margin loss with semi-hard mining, classes of four rows, Euclidean distances of normalised rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pairloom.functional
from benchmarks import keops
from benchmarks.family import PASSES, Family, ladder, sweep
from benchmarks.harness import Comparison, Settings, Target
from benchmarks.sup_con import CLASS_SIZE, classes

MARGIN = 0.2
SMALL, LARGE, DIM = 512, 4096, 128
GROWTH = "growth of peak memory from N = 512, over that of N"
TARGETS = {SMALL: (Target("pytorch-metric-learning", 100.0),), LARGE: (Target(GROWTH, 1.25, at_most=True),)}


def missing() -> str | None:
    """Why it cannot run."""
    return None if hasattr(pairloom.functional, "triplet_margin") else "pairloom.functional has no triplet_margin yet"


def ours(x: Tensor, labels: Tensor) -> Tensor:
    function: Any = pairloom.functional
    return function.triplet_margin(x, labels, margin=MARGIN, triplets="semihard")


def positive_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Anchors and positives of all pairs, from the layout of `classes`."""
    anchors = torch.arange(len(labels)).repeat_interleave(CLASS_SIZE - 1)
    step = torch.arange(1, CLASS_SIZE).repeat(len(labels))
    return anchors, anchors // CLASS_SIZE * CLASS_SIZE + (anchors + step) % CLASS_SIZE


def dense(x: Tensor, labels: Tensor) -> Tensor:
    """All positive pairs against all columns: no cube."""
    x = F.normalize(x)
    anchors, positives = positive_pairs(labels)
    distances = torch.cdist(x, x)
    near, far = distances[anchors, positives][:, None], distances[anchors]
    semihard = (labels[anchors][:, None] != labels) & (far > near) & (far <= near + MARGIN)
    hinge = torch.where(semihard, (near - far + MARGIN).relu(), 0.0)
    return hinge.sum() / (hinge > 0).sum().clamp(min=1)


def metric_learning(x: Tensor, labels: Tensor) -> Tensor:
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.miners import TripletMarginMiner

    mined = TripletMarginMiner(MARGIN, type_of_triplets="semihard")(x, labels)
    return TripletMarginLoss(MARGIN)(x, labels, mined)


def streamed(x: Tensor, labels: Tensor) -> Tensor:
    x = F.normalize(x)
    anchors, positives = positive_pairs(labels)
    near = (x[anchors] - x[positives]).norm(dim=1)
    # The largest square keeps the root's slope finite on the diagonal, which the labels leave out.
    differ = keops.differ(labels[anchors], labels)
    far = (((keops.rows(x[anchors]) - keops.columns(x)) ** 2).sum(-1) + (1 - differ)).sqrt()
    gap = keops.rows(near) - far
    semihard = differ * (1 - gap.step()) * (gap + MARGIN).step()
    hinge = semihard * (gap + MARGIN).relu()
    return hinge.sum(dim=1).sum() / hinge.sign().sum(dim=1).sum().detach().clamp(min=1)


FAMILY = Family(
    "triplet",
    classes,
    {"pairloom": ours, "eager": dense, "pytorch-metric-learning": metric_learning, "keops": streamed},
    flops=(2.0, 6.0),
    facts={"class size": CLASS_SIZE, "mining": "semihard"},
    tolerance=1e-2,  # of triplets at the edge of the margin, rounding decides
    growth={"pytorch-metric-learning": 3},  # all triplets
)


def run(settings: Settings) -> Iterator[Comparison]:
    """All workloads, one by one."""
    peak = {}
    for result in sweep(FAMILY, ladder(settings, TARGETS, sizes=(256, SMALL, LARGE, 16384), dim=DIM), settings):
        n = result.workload["N"]
        if result.workload["pass"] == PASSES[True] and "pairloom" in result.peak_extra_mb:
            peak[n] = result.peak_extra_mb["pairloom"]
            if n > SMALL:
                result.measures[GROWTH] = peak[n] / peak[SMALL] / (n / SMALL)
        yield result
