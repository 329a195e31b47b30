"""Metrix over all mixtures of positives and negatives, beside the same mixtures formed, and the identity in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Comparison, Settings, Target, compare
from pairloom.mixup import metrix, multi_similarity_form

EXPLICIT, COMPILED, IDENTITY = "every mixture formed", "compile", "identity in torch"
OF_A_CLASS = 4
CASES = ((256, 128), (512, 128), (512, 512), (2048, 128), (8192, 128))
"""(batch, components)"""
QUICK_CASES = ((64, 16),)
LARGEST_FORMED = 1 << 30
"""Bytes of the mixtures alone; a pass takes some times as many."""
TARGETS = {(512, 128): (Target(EXPLICIT, 100.0),)}
LAM = 0.6
FORM = multi_similarity_form()


def partners(batch: int) -> tuple[Tensor, Tensor]:
    """Columns of the positives (B, 3) and of the negatives (B, B - 4) of every row, where classes are runs of 4."""
    every = torch.arange(batch)
    own = every // OF_A_CLASS
    positive = torch.stack([(every != i) & (own == own[i]) for i in range(batch)])
    negative = own.unsqueeze(1) != own
    return tuple(mask.nonzero()[:, 1].view(batch, -1) for mask in (positive, negative))  # type: ignore[return-value]


def loss_of(s: Tensor) -> Tensor:
    """The Multi-Similarity form on similarities (B, P, N) of all mixtures."""
    halves = []
    for term, weight in ((FORM.positive, LAM), (FORM.negative, 1 - LAM)):
        halves.append(torch.logsumexp((term.scale * (s - term.offset)).flatten(1), 1) + torch.tensor(weight).log())
    return FORM.combine(*halves).mean()


def formed(x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """With every mixture as a vector."""
    unit = torch.nn.functional.normalize(x)
    mixtures = torch.nn.functional.normalize(
        LAM * unit[positive].unsqueeze(2) + (1 - LAM) * unit[negative].unsqueeze(1), dim=3
    )
    return loss_of(torch.einsum("bpnd,bd->bpn", mixtures, unit))


def by_identity(x: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """From three similarities for each mixture, in plain torch."""
    unit = torch.nn.functional.normalize(x)
    s = unit @ unit.T
    among = s[positive.unsqueeze(2), negative.unsqueeze(1)]
    squares = (2 * LAM - 1) ** 2 + 2 * LAM * (1 - LAM) * (1 + among)
    near, far = s.gather(1, positive).unsqueeze(2), s.gather(1, negative).unsqueeze(1)
    return loss_of((LAM * near + (1 - LAM) * far) * squares.rsqrt())


def run(settings: Settings) -> Iterator[Comparison]:
    """Forward and backward; classes of four."""
    cases = QUICK_CASES if settings.quick else CASES
    for batch, dim in cases:
        torch.manual_seed(0)
        x = torch.randn(batch, dim, requires_grad=True)
        labels = torch.arange(batch) // OF_A_CLASS
        positive, negative = partners(batch)

        def step(loss: Callable[[], Tensor], x: Tensor = x) -> tuple[Tensor, Tensor]:
            value = loss()
            (gradient,) = torch.autograd.grad(value, x)
            return value.detach(), gradient

        contenders: dict[str, Any] = {
            "pairloom": lambda x=x, y=labels: step(lambda: metrix(x, y, FORM, lam=LAM).mean(), x),
        }
        left_out = {}
        if batch * 3 * (batch - OF_A_CLASS) * dim * 4 <= LARGEST_FORMED:
            torch._dynamo.reset()
            compiled = torch.compile(formed)
            contenders[EXPLICIT] = lambda x=x, p=positive, n=negative: step(lambda: formed(x, p, n), x)
            contenders[COMPILED] = lambda x=x, p=positive, n=negative, f=compiled: step(lambda: f(x, p, n), x)
        else:
            left_out = dict.fromkeys((EXPLICIT, COMPILED), "its mixtures alone pass 1 GiB")
        if batch <= 2048:
            contenders[IDENTITY] = lambda x=x, p=positive, n=negative: step(lambda: by_identity(x, p, n), x)
        comparison = compare(
            {"op": "metrix", "N": batch, "D": dim, "of a class": OF_A_CLASS, "dtype": "float32"},
            contenders,
            flops=0.0,
            repeats=settings.repeats,
            seconds=settings.max_seconds / len(cases),
            targets=TARGETS.get((batch, dim), ()) if not settings.quick else (),
        )
        comparison.left_out = left_out
        yield comparison
