"""How times are taken: peers in turn inside one process, medians, ratios pair by pair, and what the machine was."""

from __future__ import annotations

import gc
import json
import math
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.limits import fma_limit
from pairloom import _native

RESULTS = Path(__file__).parent / "results"

LIMIT = "of the FMA limit"
PEAK = "peak extra MiB"
JIT = ("compile", "keops")  # their first call compiles
FEWEST = 3  # rounds, unless a single call is already too slow


@dataclass(frozen=True)
class Settings:
    """What one run may cost."""

    quick: bool = False
    repeats: int = 9
    max_seconds: float = 130.0
    """Of one benchmark: its workloads share them."""
    max_call_seconds: float = 60.0
    max_memory_mb: float = 8192.0


@dataclass(frozen=True)
class Target:
    """A number to reach: a ratio against the peer `what`, or the measure of that name; at least, or at most, `bar`."""

    what: str
    bar: float
    at_most: bool = False


@dataclass
class Timing:
    """Seconds of one contender: median, 20th and 80th percentile, and every repeat."""

    name: str
    median: float
    p20: float
    p80: float
    seconds: list[float] = field(repr=False)


@dataclass
class Comparison:
    """One workload: who took how long, and how many times faster the first contender was (median of paired ratios)."""

    workload: dict[str, Any]
    flops: float
    timings: list[Timing]
    ratios: dict[str, float]
    fraction_of_limit: float | None = None
    targets: list[Target] = field(default_factory=list)
    peak_extra_mb: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Peers that did not take part, and why."""
    measures: dict[str, float] = field(default_factory=dict)
    """Further numbers of this workload, by name."""

    def reached(self, target: Target) -> float | None:
        """What the target's number came to; None if it was not measured (the peer is missing, say)."""
        if target.what == LIMIT:
            return self.fraction_of_limit
        if target.what == PEAK:
            return self.peak_extra_mb.get(self.timings[0].name)
        return self.ratios.get(target.what, self.measures.get(target.what))

    def met(self, target: Target) -> bool | None:
        """Whether the number is on the right side of the bar; None if it was not measured."""
        reached = self.reached(target)
        if reached is None:
            return None
        return reached <= target.bar if target.at_most else reached >= target.bar


def as_tensors(output: Any) -> list[Tensor]:
    """What a contender returned, to be compared with what ours returned."""
    return [torch.as_tensor(t) for t in output]


def check_equal(outputs: dict[str, list[Tensor]], tolerance: float, workload: dict[str, Any]) -> None:
    """Every contender computed what the first did, or there is nothing to compare.

    For each tensor: |peer - ours| <= tolerance |ours| in the Euclidean norm.
    """
    (ours, expected), *peers = outputs.items()
    for peer, found in peers:
        for position, (a, b) in enumerate(zip(expected, found, strict=True)):
            a, b = a.detach().double(), b.detach().double()
            error = (b - a).norm() / a.norm().clamp(min=1e-30)
            if not (error <= tolerance or (b == a).all()):
                raise AssertionError(
                    f"{peer} and {ours} do not compute the same for {workload}: relative error {error:.1e} in output "
                    f"{position} (0 is the loss), allowed {tolerance:.0e}"
                )


def compare(
    workload: dict[str, Any],
    contenders: dict[str, Callable[[], Any]],
    *,
    flops: float,
    repeats: int,
    seconds: float = math.inf,
    tolerance: float = 1e-3,
    compared: Callable[[Any], list[Tensor]] = as_tensors,
    targets: Sequence[Target] = (),
    limit: Callable[[int], float | None] = fma_limit,
) -> Comparison:
    """Run each contender once and compare results, then up to `repeats` rounds of all of them in turn.

    Taking turns lets a slow moment of the machine hit everybody; the ratio of a round compares neighbours in time, and
    the median over rounds ignores the odd ones. As many rounds are run as fit into `seconds`. Where fewer than 3
    would, the slowest contender is not run again: its first call counts, so long that warming up matters little. The
    limit is measured before and after, on the same threads; the better one counts.
    """
    threads = torch.get_num_threads()
    first, outputs = {}, {}
    for name, run in contenders.items():
        first[name], outputs[name] = _timed(run)
        if name in JIT:
            first[name], outputs[name] = _timed(run)
    check_equal({name: compared(output) for name, output in outputs.items()}, tolerance, workload)
    del outputs

    taken: dict[str, list[float]] = {name: [] for name in contenders}
    fast = list(contenders)
    while fast and FEWEST * sum(first[name] for name in fast) > seconds:
        slowest = max(fast, key=first.__getitem__)
        fast.remove(slowest)
        taken[slowest] = [first[slowest]]
    rounds = int(min(repeats, max(FEWEST, seconds / sum(first[name] for name in fast)))) if fast else 0
    gc.collect()
    gc.disable()
    try:
        limits = [limit(threads)]
        for _ in range(rounds):
            for name in fast:
                taken[name].append(_timed(contenders[name])[0])
        limits.append(limit(threads))
    finally:
        gc.enable()

    best = max((found for found in limits if found is not None), default=None)
    ours, *peers = contenders
    return Comparison(
        workload={**workload, "threads": threads},
        flops=flops,
        timings=[_summary(name, times) for name, times in taken.items()],
        ratios={p: statistics.median(b / a for a, b in zip(taken[ours], taken[p], strict=False)) for p in peers},
        fraction_of_limit=flops / statistics.median(taken[ours]) / 1e9 / best if flops and best else None,
        targets=list(targets),
    )


def _timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    output = run()
    return time.perf_counter() - start, output


def _summary(name: str, seconds: list[float]) -> Timing:
    ordered = sorted(seconds)
    return Timing(
        name,
        statistics.median(ordered),
        ordered[round(0.2 * (len(ordered) - 1))],
        ordered[round(0.8 * (len(ordered) - 1))],
        seconds,
    )


def machine() -> dict[str, Any]:
    """What the numbers depend on, without names of hosts or paths."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = next(
            (line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line), model
        )
    sha = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RESULTS.parent)
    return {
        "cpu": model,
        "isa": _native.isa(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "compiler": _native.build_info()["compiler"],
        "git": sha.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }


def write_results(name: str, comparisons: list[Comparison], complete: bool, folder: Path = RESULTS) -> Path:
    """The comparisons of one benchmark as benchmarks/results/<name>.json."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    rows = [
        {
            **asdict(c),
            "targets": [{**asdict(target), "reached": c.reached(target), "met": c.met(target)} for target in c.targets],
        }
        for c in comparisons
    ]
    text = json.dumps({"machine": machine(), "complete": complete, "comparisons": rows}, indent=1, default=float)
    path.write_text(text + "\n")
    return path


def read_results(path: Path) -> tuple[dict[str, Any], bool, list[Comparison]]:
    """Machine, whether the run came to its end, and the comparisons of a file that `write_results` wrote."""
    stored = json.loads(path.read_text())
    comparisons = [
        Comparison(
            **{
                **row,
                "timings": [Timing(**timing) for timing in row["timings"]],
                "targets": [Target(t["what"], t["bar"], t["at_most"]) for t in row["targets"]],
            }
        )
        for row in stored["comparisons"]
    ]
    return stored["machine"], stored["complete"], comparisons
