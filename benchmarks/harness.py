"""How times are taken: peers in turn inside one process, medians, ratios pair by pair, and what the machine was."""

from __future__ import annotations

import gc
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from pairloom import _native

RESULTS = Path(__file__).parent / "results"


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
    targets: dict[str, float] = field(default_factory=dict)
    peak_extra_mb: float | None = None

    @property
    def met(self) -> dict[str, bool]:
        return {peer: self.ratios[peer] >= bar for peer, bar in self.targets.items()}


def fma_limit(threads: int, seconds: float = 0.3) -> float:
    """GFLOP/s that `threads` threads reach together when they only multiply and add registers."""
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(lambda _: _native.fma_rate(seconds), range(threads)))


def compare(
    workload: dict[str, Any],
    contenders: dict[str, Callable[[], object]],
    *,
    flops: float,
    repeats: int,
    targets: dict[str, float] | None = None,
) -> Comparison:
    """Run each contender once to warm up, then `repeats` rounds of all of them in turn.

    Taking turns lets a slow moment of the machine hit everybody; the ratio of a round compares neighbours in time, and
    the median over rounds ignores the odd ones. The limit is measured before and after, on the same threads; the better
    one counts.
    """
    threads = torch.get_num_threads()
    for run in contenders.values():
        run()
    gc.disable()
    try:
        limit = fma_limit(threads)
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(repeats):
            for name, run in contenders.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
        limit = max(limit, fma_limit(threads))
    finally:
        gc.enable()
    ours, *peers = contenders
    return Comparison(
        workload={**workload, "threads": threads},
        flops=flops,
        timings=[_summary(name, taken) for name, taken in seconds.items()],
        ratios={p: statistics.median(b / a for a, b in zip(seconds[ours], seconds[p], strict=True)) for p in peers},
        fraction_of_limit=flops / statistics.median(seconds[ours]) / 1e9 / limit if flops else None,
        targets=targets or {},
    )


def _summary(name: str, seconds: list[float]) -> Timing:
    ordered = sorted(seconds)
    return Timing(
        name,
        statistics.median(ordered),
        ordered[round(0.2 * (len(ordered) - 1))],
        ordered[round(0.8 * (len(ordered) - 1))],
        seconds,
    )


def peak_extra_mb(script: str) -> float:
    """MiB that `work()` of a script adds to the process, at its peak, beyond inputs and results.

    The script runs in a process of its own. It must define `prepare()`, which allocates the inputs, and
    `work(prepared)`, which returns the results; their size is taken off. `warm()`, if there, gives small inputs for a
    first call.
    """
    probe = f"""
import torch
from pairloom.testing import peak_memory_mb
{script}
prepared = prepare()
work(warm()) if 'warm' in globals() else None
before = peak_memory_mb()
results = work(prepared)
held = sum(t.numel() * t.element_size() for t in results) / 2**20
print(peak_memory_mb() - before - held)
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return max(0.0, float(done.stdout.strip().splitlines()[-1]))


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


def write_results(name: str, comparisons: list[Comparison]) -> Path:
    """The comparisons of one benchmark as benchmarks/results/<name>.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    rows = [{**asdict(c), "met": c.met} for c in comparisons]
    path.write_text(json.dumps({"machine": machine(), "comparisons": rows}, indent=1, default=float) + "\n")
    return path
