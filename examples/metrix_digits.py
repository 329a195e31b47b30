"""Metrix on handwritten digits: does the same loss on mixtures of embeddings help where classes are unseen?

    alone   `pairloom.MultiSimilarityLoss` on a batch, as in digits_retrieval.py
    metrix  the same, plus that loss on every mixture of a positive with a negative of every anchor
            (`pairloom.mixup.MetrixLoss`): 80 x 15 x 64 mixtures in a batch, none of which is formed

Both see the same weights at first, the same batches and the same distortions; seeds differ in all three. Judged on the
classes 5-9, which neither sees: MAP@R, and how well the training embeddings cover the space where the unseen ones lie
(utilization: mean squared distance to the nearest of them; less is better covered).

    python examples/metrix_digits.py --help
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
import typer
from digits_retrieval import (
    LEARNING_RATE,
    PER_CLASS,
    SEEN,
    STEPS,
    UNSEEN,
    Encoder,
    balanced_batch,
    distort,
    embed,
    load_digits,
    only,
)
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from tqdm import tqdm

import pairloom
from pairloom.mixup import MetrixLoss, mix, utilization

WEIGHT = 0.4  # of the loss on mixtures; lam is drawn from Beta(2, 2). Both from the paper


class Digits(NamedTuple):
    """The images of the example, and their classes."""

    seen: Tensor
    seen_labels: Tensor
    unseen: Tensor
    unseen_labels: Tensor


class Result(NamedTuple):
    """What a trained encoder is worth on the unseen classes."""

    map_at_r: float
    utilization: float
    """By the embeddings of the training images,"""
    utilization_with_mixtures: float
    """and by those and as many mixtures of them."""


def losses(seed: int) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """The two contenders."""
    alone = pairloom.MultiSimilarityLoss(epsilon=0.1)
    generator = torch.Generator().manual_seed(seed)
    return {"MS": alone, "MS + Metrix": MetrixLoss(alone, weight=WEIGHT, generator=generator)}


def train(encoder: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], digits: Digits, steps: int, seed: int) -> None:
    """As in digits_retrieval.py, with the loss as an argument."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(encoder.parameters(), weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    encoder.train()
    for _ in range(steps):
        batch = balanced_batch(digits.seen_labels, PER_CLASS, generator)
        embeddings = encoder(distort(digits.seen[batch], generator))
        optimizer.zero_grad()
        loss(embeddings, digits.seen_labels[batch]).backward()
        optimizer.step()
        schedule.step()


def judge(encoder: nn.Module, digits: Digits, seed: int) -> Result:
    """Retrieval among the unseen classes, and how the training embeddings cover them."""
    seen, unseen = embed(encoder, digits.seen), embed(encoder, digits.unseen)
    generator = torch.Generator().manual_seed(seed)
    partner = torch.randperm(len(seen), generator=generator)
    mixed = mix(seen, partner, torch.rand(len(seen), generator=generator), normalize=True)
    return Result(
        pairloom.metrics.map_at_r(unseen, digits.unseen_labels),
        float(utilization(unseen, seen)),
        float(utilization(unseen, seen, mixed)),
    )


def main(
    steps: Annotated[int, typer.Option(min=4, help="Training steps.")] = STEPS,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of either kind.")] = 5,
) -> None:
    """Train with and without mixtures, compare on unseen classes."""
    torch.set_num_threads(1)  # as in digits_retrieval.py
    images, labels = load_digits()
    digits = Digits(*only(SEEN, images, labels), *only(UNSEEN, images, labels))
    found: dict[str, list[Result]] = {}
    with tqdm(total=2 * seeds, desc="training", unit="run") as bar:
        for seed in range(seeds):
            torch.manual_seed(seed)
            start = Encoder()
            found.setdefault("untrained", []).append(judge(start, digits, seed))
            for name, loss in losses(seed).items():
                encoder = copy.deepcopy(start)
                train(encoder, loss, digits, steps, seed)
                found.setdefault(name, []).append(judge(encoder, digits, seed))
                bar.update()

    console = Console()
    table = Table(title=f"unseen digits, mean and standard deviation of {seeds} seeds")
    for column in ("", "MAP@R", "utilization", "with mixtures"):
        table.add_column(column, justify="left" if not column else "right")
    for name, results in found.items():
        table.add_row(name, *(spread([result[i] for result in results]) for i in range(3)))
    console.print(table)
    gains = [mixed.map_at_r - alone.map_at_r for alone, mixed in zip(found["MS"], found["MS + Metrix"], strict=True)]
    better = sum(gain > 0 for gain in gains)
    console.print(
        f"Seed by seed, Metrix moves MAP@R by {spread(gains, sign='+')}: better in {better} of {seeds} runs.",
        soft_wrap=True,
    )


def spread(values: list[float], sign: str = "") -> str:
    """Mean, and standard deviation if there are several."""
    mean = f"{statistics.mean(values):{sign}.4f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.4f}"


if __name__ == "__main__":
    typer.run(main)
