"""One picture for each loss: time and memory over the batch size, both axes logarithmic, lines named where they end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.family import OURS, PASSES
from benchmarks.harness import Comparison

FMA = "FMA limit"
GREY = "#6b7280"
COLOURS = {
    OURS: "#c8102e",
    "eager": "#374151",
    "compile": "#1d4ed8",
    "pytorch-metric-learning": "#b45309",
    "keops": "#047857",
}
LABELS = {
    "eager": "eager torch",
    "compile": "torch.compile",
    "pytorch-metric-learning": "pytorch-\nmetric-learning",
    "keops": "KeOps",
}
FEWEST_SIZES = 3  # below, a table says it better
SMALLEST_MIB = 0.1  # a logarithm has no 0
LINE_HEIGHT = 0.055  # of the panel
ROOM_FOR_NAMES = 0.5  # of the width, right of the last point
LEADER = 0.06  # the same, of the line from a last point to its name

Line = list[tuple[float, float]]


def widest_sweep(comparisons: list[Comparison]) -> list[Comparison]:
    """The comparisons that differ in N alone, from small to large: the longest such list, of both passes."""
    sweeps: dict[tuple[object, object], list[Comparison]] = {}
    for c in comparisons:
        if c.workload.get("pass") == PASSES[True] and "N" in c.workload:
            sweeps.setdefault((c.workload["D"], c.workload.get("dtype")), []).append(c)
    return sorted(max(sweeps.values(), key=len, default=[]), key=lambda c: c.workload["N"])


def draw(name: str, comparisons: list[Comparison], folder: Path) -> Path | None:
    """<name>.png in the folder; None when there are too few sizes to draw a line."""
    chosen = widest_sweep(comparisons)
    if len(chosen) < FEWEST_SIZES:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    times: dict[str, Line] = {}
    memory: dict[str, Line] = {}
    limit: Line = []
    for c in chosen:
        n = c.workload["N"]
        for timing in c.timings:
            times.setdefault(timing.name, []).append((n, 1000 * timing.median))
        for who, peak in c.peak_extra_mb.items():
            memory.setdefault(who, []).append((n, max(peak, SMALLEST_MIB)))
        if c.fraction_of_limit:
            limit.append((n, 1000 * c.timings[0].median * c.fraction_of_limit))

    figure = Figure(figsize=(8, 3.7), dpi=200)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.065, right=0.995, top=0.84, bottom=0.13, wspace=0.17)
    _panel(left, {**times, FMA: limit} if limit else times, "time, ms")
    _panel(right, memory, "peak memory beside inputs and gradients, MiB")
    title = f"{name}: forward + backward, D = {chosen[0].workload['D']}"
    figure.text(0.01, 0.945, title, fontsize=11, fontweight="bold")
    path = folder / f"{name}.png"
    figure.savefig(path, metadata={"Software": None})
    return path


def _panel(axes: Any, lines: dict[str, Line], title: str) -> None:
    axes.set_title(title, loc="left", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    if not lines:
        axes.set_axis_off()
        axes.text(0, 0.9, "not measured", transform=axes.transAxes, fontsize=9, color=GREY)
        return
    from matplotlib.ticker import LogLocator

    points = [point for line in lines.values() for point in line]
    sizes = sorted({n for n, _ in points})
    low, high = min(y for _, y in points) / 2, max(y for _, y in points) * 3
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(sizes[0] / 1.3, sizes[-1] * (sizes[-1] / sizes[0]) ** ROOM_FOR_NAMES)
    axes.set_ylim(low, high)
    axes.set_xlabel("N", fontsize=9)
    axes.grid(axis="y", color="#e5e7eb", linewidth=0.6)
    axes.tick_params(labelsize=8)
    shown: list[float] = []
    for n in sizes:  # those an octave apart would touch
        if not shown or n / shown[-1] > 2:
            shown.append(n)
    axes.set_xticks(shown, [f"{int(n):,}" for n in shown])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 300 else (1,), numticks=12))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axes.minorticks_off()
    for who, line in lines.items():
        style: dict[str, Any] = {"linewidth": 1.4, "marker": "o", "markersize": 3, "zorder": 2}
        if who == OURS:
            style = {"linewidth": 2.4, "marker": "o", "markersize": 4, "zorder": 3}
        if who == FMA:
            style = {"linewidth": 1.2, "linestyle": ":", "zorder": 1}
        axes.plot(*zip(*line, strict=True), color=COLOURS.get(who, GREY), **style)
    _name_lines(axes, lines, sizes[0], sizes[-1], low, high)


def _name_lines(axes: Any, lines: dict[str, Line], smallest: float, largest: float, low: float, high: float) -> None:
    """Names right of the last size, in the order of the lines' ends, moved apart, with a thin line to each end."""
    height = math.log(high / low)
    ends = sorted((line[-1][1], line[-1][0], who) for who, line in lines.items())
    rooms = [LINE_HEIGHT * (1 + LABELS.get(who, who).count("\n")) for _, _, who in ends]
    places: list[float] = []
    for k, (y, _, _) in enumerate(ends):
        lowest = places[-1] + (rooms[k - 1] + rooms[k]) / 2 if places else 0.0
        places.append(max(math.log(y / low) / height, lowest))
    top = 1.0
    for k in reversed(range(len(places))):  # what was pushed out at the top comes down again
        places[k] = min(places[k], top - rooms[k] / 2)
        top = places[k] - rooms[k] / 2
    beyond = largest * (largest / smallest) ** LEADER
    for (y, n, who), place in zip(ends, places, strict=True):
        colour = COLOURS.get(who, GREY)
        beside = low * math.exp(place * height)
        axes.plot([n, beyond], [y, beside], color=colour, linewidth=0.5, alpha=0.6, zorder=0)
        axes.annotate(
            LABELS.get(who, who), (beyond, beside), (2, 0), textcoords="offset points", va="center", fontsize=8,
            linespacing=0.9, color=colour, fontweight="bold" if who == OURS else "normal",
        )  # fmt: skip
