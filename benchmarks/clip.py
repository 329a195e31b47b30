"""Symmetric InfoNCE of CLIP: every image picks its text, every text its image."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import keops
from benchmarks.family import Family, ladder, sweep
from benchmarks.harness import LIMIT, Comparison, Settings, Target
from benchmarks.info_nce import TEMPERATURE, pairs
from pairloom.functional import clip

TARGETS = {8192: (Target("eager", 4.5), Target("compile", 2.2), Target(LIMIT, 0.8))}


def ours(image: Tensor, text: Tensor) -> Tensor:
    return clip(image, text, temperature=TEMPERATURE)


def dense(image: Tensor, text: Tensor) -> Tensor:
    logits = F.normalize(image) @ F.normalize(text).T / TEMPERATURE
    own = torch.arange(len(image))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def metric_learning(image: Tensor, text: Tensor) -> Tensor:
    from pytorch_metric_learning.losses import NTXentLoss

    loss = NTXentLoss(TEMPERATURE)
    images, texts = torch.arange(len(image)), torch.arange(len(text))  # one tensor for both would drop the diagonal
    return (
        loss(image, images, ref_emb=text, ref_labels=texts) + loss(text, texts, ref_emb=image, ref_labels=images)
    ) / 2


def streamed(image: Tensor, text: Tensor) -> Tensor:
    image, text = F.normalize(image) / TEMPERATURE, F.normalize(text)
    logits = keops.dot(image, text)
    texts, images = logits.logsumexp(dim=1).reshape(-1), logits.logsumexp(dim=0).reshape(-1)
    return ((texts + images) / 2 - (image * text).sum(dim=1)).mean()


# One product forward; backward makes it again, because the sums of columns are not known before the end, and two more.
FAMILY = Family(
    "clip",
    pairs,
    {"pairloom": ours, "eager": dense, "pytorch-metric-learning": metric_learning, "keops": streamed},
    flops=(2.0, 8.0),
    growth={"pytorch-metric-learning": 3},  # all negative pairs for every positive pair
)


def run(settings: Settings) -> Iterator[Comparison]:
    """All workloads, one by one."""
    return sweep(FAMILY, ladder(settings, TARGETS), settings)
