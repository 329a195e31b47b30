"""Mixtures of a batch with a permutation of itself, as a training step makes them, beside the same lines in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.harness import Comparison, Settings, Target, compare
from pairloom.mixup import mix

COMPILED = "compile"
CASES = ((512, 128, True), (4096, 256, True), (4096, 256, False), (8192, 768, True), (32768, 256, False))
"""(rows, components, normalised)"""
QUICK_CASES = ((64, 16, True),)


def plain(x: Tensor, partner: Tensor, lam: Tensor, normalize: bool) -> Tensor:
    """What everyone writes."""
    share = lam.unsqueeze(1)
    mixed = share * x + (1 - share) * x[partner]
    return torch.nn.functional.normalize(mixed) if normalize else mixed


def run(settings: Settings) -> Iterator[Comparison]:
    """Forward and backward."""
    cases = QUICK_CASES if settings.quick else CASES
    for rows, dim, normalize in cases:
        torch.manual_seed(0)
        x = torch.randn(rows, dim, requires_grad=True)
        partner, lam, upstream = torch.randperm(rows), torch.rand(rows), torch.randn(rows, dim)

        def step(mixed: Tensor, x: Tensor = x, upstream: Tensor = upstream) -> tuple[Tensor, Tensor]:
            return mixed.detach(), torch.autograd.grad(mixed, x, upstream)[0]

        torch._dynamo.reset()
        compiled = torch.compile(plain)
        arguments = (x, partner, lam)
        contenders: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
            "pairloom": lambda a=arguments, n=normalize: step(mix(*a, normalize=n)),
            COMPILED: lambda a=arguments, n=normalize, f=compiled: step(f(*a, n)),
            "torch": lambda a=arguments, n=normalize: step(plain(*a, n)),
        }
        yield compare(
            {"op": "mix", "N": rows, "D": dim, "normalized": normalize, "dtype": "float32"},
            contenders,
            flops=0.0,
            repeats=settings.repeats,
            seconds=settings.max_seconds / len(cases),
            targets=(Target(COMPILED, 1.0),) if not settings.quick else (),
        )
