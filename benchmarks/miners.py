"""Miners beside those of pytorch-metric-learning, on one batch with classes of four rows."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import pairloom
from benchmarks.harness import Comparison, Settings, as_tensors, compare
from benchmarks.sup_con import CLASS_SIZE, classes

DIM = 128
CASES: tuple[tuple[str, tuple[Any, ...], dict[str, Any], int], ...] = (
    ("MultiSimilarityMiner", (0.1,), {}, 4096),
    ("PairMarginMiner", (0.2, 0.8), {}, 4096),
    ("BatchHardMiner", (), {}, 4096),
    ("TripletMarginMiner", (0.2,), {"type_of_triplets": "semihard"}, 512),
)
"""Name, arguments, settings and batch size; theirs lists every triplet, so that N = 512 is its limit here."""


def missing() -> str | None:
    """Why it cannot run."""
    found = importlib.util.find_spec("pytorch_metric_learning") is not None
    return None if found else "pytorch-metric-learning is not installed"


def entries(mined: Any) -> list[Tensor]:
    """How many indices of each kind, and their sums: orders may differ."""
    return as_tensors([value for part in mined for value in (float(len(part)), float(part.sum()))])


def run(settings: Settings) -> Iterator[Comparison]:
    """Four miners of pairs and triplets."""
    from pytorch_metric_learning import miners as theirs

    torch.manual_seed(0)
    for name, arguments, options, size in CASES:
        n = 128 if settings.quick else size
        x, labels = classes(n, DIM, torch.float32)
        x = x.detach()
        ours, peer = (getattr(module, name)(*arguments, **options) for module in (pairloom.miners, theirs))
        yield compare(
            {"op": "mining", "miner": name, "N": n, "D": DIM, "class size": CLASS_SIZE, "dtype": "float32"},
            {
                "pairloom": lambda mine=ours, x=x, labels=labels: mine(x, labels),
                "pytorch-metric-learning": lambda mine=peer, x=x, labels=labels: mine(x, labels),
            },
            flops=0.0,
            repeats=settings.repeats,
            seconds=settings.max_seconds / len(CASES),
            compared=entries,
        )
