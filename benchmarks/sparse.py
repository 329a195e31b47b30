"""How much of W is alive on trained embeddings at temperature 0.05, and whether the gradient costs less for it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness import Comparison, Settings, Target, as_tensors, compare
from pairloom.functional import info_nce

TEMPERATURE = 0.05
DIM = 256
TILE = 64  # of W, rows and columns; the unit in which work can be saved
SHARE = "share of live tiles of W"
PAIRS = "share of live pairs of W"
GRADIENT = "gradient time, as part of that on random rows"
SAVED = "the same, beyond the share of live tiles"
ROUNDING = 2.0**-24
# A pass over W remains, whatever is skipped.
TARGETS = (Target(SAVED, 0.1, at_most=True),)


def digits() -> Tensor:
    from sklearn.datasets import load_digits

    return torch.from_numpy(load_digits().images).float() / 16


def view(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each image moved by up to a pixel, with noise: (N, 64)."""
    padded = F.pad(images, (1, 1, 1, 1))
    down, right = torch.randint(0, 3, (2, len(images), 1, 1), generator=generator)
    rows, columns = torch.arange(8).view(8, 1) + down, torch.arange(8) + right
    moved = padded[torch.arange(len(images)).view(-1, 1, 1), rows, columns]
    return (moved + 0.05 * torch.randn(moved.shape, generator=generator)).flatten(1)


def trained_pairs(n: int, steps: int) -> list[Tensor]:
    """Two views each of n digits, encoded by a small network that InfoNCE trained for so many steps."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    images = digits()
    encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, DIM))
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    for _ in range(steps):
        batch = images[torch.randperm(len(images), generator=generator)[:512]]
        query, key = (encoder(view(batch, generator)) for _ in range(2))
        optimizer.zero_grad()
        info_nce(query, key, temperature=TEMPERATURE).backward()
        optimizer.step()
    chosen = images[torch.arange(n) % len(images)]
    with torch.no_grad():
        return [encoder(view(chosen, generator)).requires_grad_() for _ in range(2)]


@torch.no_grad()
def live_shares(query: Tensor, key: Tensor) -> tuple[float, float]:
    """Tiles and pairs of W above the rounding of float32 beside the largest weight of their row, as shares of all."""
    query, key = F.normalize(query), F.normalize(key)
    live_tiles = live_pairs = 0
    for start in range(0, len(query), TILE):
        weights = (query[start : start + TILE] @ key.T / TEMPERATURE).softmax(dim=1)
        own = torch.arange(len(weights))
        weights[own, start + own] -= 1
        live = weights.abs() > ROUNDING * weights.abs().amax(dim=1, keepdim=True)
        live_pairs += int(live.sum())
        live_tiles += int(live.unflatten(1, (-1, TILE)).any(dim=2).any(dim=0).sum())
    return live_tiles / (len(query) // TILE) ** 2, live_pairs / len(query) ** 2


def run(settings: Settings) -> Iterator[Comparison]:
    """Both passes on trained and on random rows; the difference to the forward pass is the gradient."""
    n, steps = (256, 20) if settings.quick else (8192, 400)
    trained = trained_pairs(n, steps)
    random = [torch.randn_like(x).requires_grad_() for x in trained]

    def step(tensors: list[Tensor], backward: bool) -> Any:
        def run() -> tuple[Tensor, ...]:
            with torch.set_grad_enabled(backward):
                loss = info_nce(*tensors, temperature=TEMPERATURE)
            return (loss, *torch.autograd.grad(loss, tensors)) if backward else (loss,)

        return run

    result = compare(
        {"op": "info_nce", "N": n, "D": DIM, "rows": "digits, trained", "temperature": TEMPERATURE,
         "pass": "forward + backward"},
        {
            "pairloom": step(trained, True),
            "forward alone": step(trained, False),
            "random rows": step(random, True),
            "random rows, forward alone": step(random, False),
        },
        flops=6.0 * n * n * DIM,
        repeats=settings.repeats,
        seconds=settings.max_seconds,
        compared=lambda output: as_tensors(()),  # other inputs, other numbers
        targets=() if settings.quick else TARGETS,
    )  # fmt: skip
    both, forward, random_both, random_forward = (timing.seconds for timing in result.timings)
    gradient = statistics.median(
        (a - b) / (c - d) for a, b, c, d in zip(both, forward, random_both, random_forward, strict=False)
    )
    tiles, pairs = live_shares(*trained)
    result.measures = {SHARE: tiles, PAIRS: pairs, GRADIENT: gradient, SAVED: gradient - tiles}
    yield result
