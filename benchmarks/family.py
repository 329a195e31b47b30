"""One loss and everybody who computes it; the sweep over batch sizes, during which the slow and the large drop out."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import Comparison, Settings, Target, compare
from benchmarks.limits import bf16_limit, fma_limit

OURS = "pairloom"
REQUIRES = {"pytorch-metric-learning": "pytorch_metric_learning", "keops": "pykeops"}
SIZES = (256, 1024, 4096, 8192, 16384, 65536)
FEW_ROWS = 64  # enough to load and start everything
PASSES = {False: "forward", True: "forward + backward"}

Run = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Workload:
    """One size of one loss."""

    n: int
    dim: int = 256
    backward: bool = True
    dtype: torch.dtype = torch.float32
    targets: tuple[Target, ...] = ()

    @property
    def weight(self) -> float:
        """Its part of the time, beside others: claims are worth more rounds."""
        return 4.0 if self.targets else 1.0


@dataclass(frozen=True)
class Family:
    """A loss as several programs compute it.

    `losses` maps names to functions of what `inputs(n, dim, dtype)` returns; "pairloom" comes first, and "compile" is
    made from "eager". Tensors that require a gradient get one.
    """

    name: str
    inputs: Callable[[int, int, torch.dtype], list[Tensor]]
    losses: dict[str, Callable[..., Tensor]]
    flops: tuple[float, float]
    """Useful flops of the forward pass and of both passes, in N N D."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What else to know about the workload."""
    tolerance: float = 1e-3
    growth: dict[str, int] = field(default_factory=dict)
    """Exponent of N in time and memory of a contender, where it is not 2 (ours: time only)."""

    def contenders(self) -> list[str]:
        """Everybody, in the order of the tables."""
        names = list(self.losses)
        return [*names[:2], "compile", *names[2:]] if "eager" in names else names

    def step(self, contender: str, tensors: Sequence[Tensor], backward: bool) -> Run:
        """A call of one contender: the loss, and with `backward` the gradients."""
        loss = self.losses["eager" if contender == "compile" else contender]
        if contender == "compile":
            # A graph of its own for every shape: the best that torch.compile can do.
            torch._dynamo.reset()
            loss = torch.compile(loss, dynamic=False)
        leaves = [tensor for tensor in tensors if tensor.requires_grad]

        def run() -> tuple[Tensor, ...]:
            with torch.set_grad_enabled(backward):
                value = loss(*tensors)
            return (value, *torch.autograd.grad(value, leaves)) if backward else (value,)

        return run


def ladder(
    settings: Settings, targets: Mapping[int, tuple[Target, ...]], sizes: Sequence[int] = SIZES, dim: int = 256
) -> list[Workload]:
    """Both passes of every size, or one small size when it is only to be seen that all runs."""
    if settings.quick:
        return [Workload(256, 64)]
    return [
        Workload(n, dim, backward=backward, targets=targets.get(n, ()) if backward else ())
        for n in sizes
        for backward in (False, True)
    ]


def sweep(family: Family, workloads: Sequence[Workload], settings: Settings) -> Iterator[Comparison]:
    """The workloads in the order given, which should be from small to large.

    A contender drops out of a workload when what it took before, scaled by N^2, exceeds the memory, the time of one
    call, or what is left of the benchmark's time.
    """
    from benchmarks.memory import peak_extra_mb

    if not settings.quick and unavailable("keops") is None:
        _compile_keops(family, workloads)
    deadline = time.monotonic() + settings.max_seconds
    past = _Past(family)
    for index, work in enumerate(workloads):
        share = work.weight / sum(w.weight for w in workloads[index:])
        seconds = max(1.0, (deadline - time.monotonic()) * share)
        left_out = {}
        peaks = {}
        for contender in family.contenders():
            reason = past.why_not(contender, work, settings, seconds)
            if reason is None and work.backward and not settings.quick:
                peak, reason = peak_extra_mb(family.name, contender, work, settings)
                if peak is not None:
                    peaks[contender] = past.megabytes[contender, work.dtype] = peak
                    past.size[contender, work.dtype] = work.n
            if reason is not None:
                left_out[contender] = reason
        taking_part = [name for name in family.contenders() if name not in left_out]
        if OURS not in taking_part:
            raise RuntimeError(f"pairloom itself failed at {work}: {left_out[OURS]}")

        tensors = family.inputs(work.n, work.dim, work.dtype)
        comparison = compare(
            {"op": family.name, "N": work.n, "D": work.dim, **family.facts, "dtype": str(work.dtype).split(".")[1],
             "pass": PASSES[work.backward]},
            {name: family.step(name, tensors, work.backward) for name in taking_part},
            flops=family.flops[work.backward] * work.n * work.n * work.dim,
            repeats=settings.repeats,
            seconds=seconds,
            tolerance=family.tolerance if work.dtype == torch.float32 else 0.1,
            targets=work.targets,
            limit=bf16_limit if work.dtype == torch.bfloat16 else fma_limit,
        )  # fmt: skip
        past.note(work, comparison)
        comparison.peak_extra_mb, comparison.left_out = peaks, left_out
        yield comparison


def unavailable(contender: str) -> str | None:
    """Why a contender cannot run here at all."""
    module = REQUIRES.get(contender)
    if module is not None and importlib.util.find_spec(module) is None:
        return "not installed"
    return "needs g++" if contender == "keops" and shutil.which("g++") is None else None


def _compile_keops(family: Family, workloads: Sequence[Workload]) -> None:
    """Have KeOps compile its formulas, which depend on D but not on N; they stay on disk."""
    for dim, dtype, backward in dict.fromkeys((work.dim, work.dtype, work.backward) for work in workloads):
        if "keops" in family.losses:
            family.step("keops", family.inputs(FEW_ROWS, dim, dtype), backward)()


class _Past:
    """What each contender took last, and what it would take now."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.seconds: dict[tuple[str, torch.dtype, bool], tuple[Workload, float]] = {}
        self.megabytes: dict[tuple[str, torch.dtype], float] = {}
        self.size: dict[tuple[str, torch.dtype], int] = {}

    def note(self, work: Workload, comparison: Comparison) -> None:
        for timing in comparison.timings:
            self.seconds[timing.name, work.dtype, work.backward] = (work, min(timing.seconds))

    def why_not(self, contender: str, work: Workload, settings: Settings, seconds: float) -> str | None:
        """Why the contender is left out of a workload; None if it takes part."""
        if contender == OURS:
            return None
        reason = unavailable(contender)
        if reason is not None:
            return reason
        if contender == "keops" and settings.quick:
            return "not with --quick: compiles for a minute"
        power = self.family.growth.get(contender, 2)
        if (contender, work.dtype) in self.megabytes:
            growth = (work.n / self.size[contender, work.dtype]) ** power
            expected = self.megabytes[contender, work.dtype] * growth
            if expected > settings.max_memory_mb:
                gib = expected / 1024
                return f"needs about {gib:.0f} GiB" if gib < 1024 else f"needs about {gib / 1024:,.0f} TiB"
        before = self.seconds.get((contender, work.dtype, work.backward))
        if before is not None:
            past, took = before
            expected = took * (work.n / past.n) ** power * work.dim / past.dim
            if expected > min(settings.max_call_seconds, seconds):
                return f"about {expected:.0f} s a call"
        return None
