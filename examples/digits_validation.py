"""How the settings of digits_retrieval.py were chosen, and how far its result depends on luck.

    python examples/digits_validation.py          # validation: inside the training classes only
    python examples/digits_validation.py --test   # the unseen classes, with several seeds

Settings may not be chosen by the classes they are judged on. So validation looks at the training classes 0-4 alone: it
holds out two of them, trains on the other three, and judges retrieval among the two; for all ten pairs of classes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Annotated

import torch
import typer
from digits_retrieval import SEEN, STEPS, UNSEEN, Encoder, distort, embed, judge, load_digits, only, train
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from tqdm import tqdm

Variant = tuple[Callable[[], nn.Module], Callable[[Tensor, torch.Generator], Tensor]]


def with_linear_layer() -> nn.Module:
    """The usual head, which the example leaves out."""
    return nn.Sequential(Encoder(), nn.Linear(1024, 64))


def undistorted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images as they are."""
    return images


VARIANTS: dict[str, Variant] = {
    "as in the example": (Encoder, distort),
    "without distorting the images": (Encoder, undistorted),
    "with a linear layer on top": (with_linear_layer, distort),
}


def map_at_r(classes: tuple[int, ...], held_out: tuple[int, ...], variant: Variant, steps: int, seed: int) -> Tensor:
    """MAP@R among the held-out classes: raw pixels, untrained, trained."""
    encoder_of, augment = variant
    images, labels = load_digits()
    queries, query_labels = only(held_out, images, labels)
    torch.manual_seed(seed)
    encoder = encoder_of()
    untrained = embed(encoder, queries)
    train(encoder, *only(classes, images, labels), steps=steps, seed=seed, augment=augment, show=False)
    embeddings = (queries.flatten(1), untrained, embed(encoder, queries))
    return torch.tensor([judge(rows, query_labels).map_at_r for rows in embeddings], dtype=torch.float64)


def main(
    test: Annotated[
        bool, typer.Option("--test", help="Judge on the unseen classes instead; only the example.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each case.")] = 3,
    steps: Annotated[int, typer.Option(min=4, help="Training steps.")] = STEPS,
) -> None:
    """Table of MAP@R over splits and seeds."""
    torch.set_num_threads(1)  # as in the example
    pairs = [(tuple(c for c in SEEN if c not in held_out), held_out) for held_out in combinations(SEEN, 2)]
    splits = [(SEEN, UNSEEN)] if test else pairs
    variants = {"as in the example": VARIANTS["as in the example"]} if test else VARIANTS
    table = Table(title=f"MAP@R, {'unseen classes' if test else 'held-out training classes'}, {seeds} seeds")
    for column in ("", "raw pixels", "untrained", "trained", "gain over pixels (lowest to highest)", "runs won"):
        table.add_column(column, justify="left" if column == "" else "right")
    for name, variant in variants.items():
        cases = [(split, seed) for split in splits for seed in range(seeds)]
        bar = tqdm(cases, desc=name)
        runs = torch.stack([map_at_r(seen, held_out, variant, steps, seed) for (seen, held_out), seed in bar])
        gains = runs[:, 2] - runs[:, 0]
        table.add_row(
            name,
            *[f"{value:.4f}" for value in runs.mean(dim=0)],
            f"{gains.mean():+.4f} ({gains.min():+.4f} to {gains.max():+.4f})",
            f"{int((runs[:, 2] > runs[:, :2].amax(dim=1)).sum())} of {len(runs)}",
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
