"""One picture for each loss: time and memory over the batch size, both axes logarithmic, lines named where they end."""

from __future__ import annotations

from pathlib import Path

from benchmarks.family import OURS, PASSES
from benchmarks.harness import Comparison

COLOURS = {
    OURS: "#c8102e",
    "eager": "#6b7280",
    "compile": "#1d4ed8",
    "pytorch-metric-learning": "#b45309",
    "keops": "#047857",
}
LABELS = {"eager": "eager torch", "compile": "torch.compile", "pytorch-metric-learning": "pytorch-\nmetric-learning",
          "keops": "KeOps"}  # fmt: skip
FEWEST_SIZES = 3  # below, a table says it better
LINE_HEIGHT = 0.062  # of the panel, for a name at the end of a line

Line = list[tuple[float, float]]


def lines_of(comparisons: list[Comparison]) -> tuple[dict[str, Line], dict[str, Line], Line]:
    """Milliseconds and MiB over N for each contender, and the milliseconds the FMA limit allows: the widest sweep."""
    sweeps: dict[tuple[object, object], list[Comparison]] = {}
    for c in comparisons:
        if c.workload.get("pass") == PASSES[True] and "N" in c.workload:
            sweeps.setdefault((c.workload["D"], c.workload.get("dtype")), []).append(c)
    chosen = max(sweeps.values(), key=len, default=[])
    times: dict[str, Line] = {}
    memory: dict[str, Line] = {}
    limit: Line = []
    for c in sorted(chosen, key=lambda c: c.workload["N"]):
        n = c.workload["N"]
        for timing in c.timings:
            times.setdefault(timing.name, []).append((n, 1000 * timing.median))
        for who, peak in c.peak_extra_mb.items():
            memory.setdefault(who, []).append((n, max(peak, 0.1)))
        if c.fraction_of_limit:
            limit.append((n, 1000 * c.timings[0].median * c.fraction_of_limit))
    return times, memory, limit


def draw(name: str, comparisons: list[Comparison], folder: Path) -> Path | None:
    """<name>.png in the folder; None when there are too few sizes to draw a line."""
    times, memory, limit = lines_of(comparisons)
    if len(times.get(OURS, ())) < FEWEST_SIZES:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.9), dpi=200, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _panel(left, times, "time, ms")
    if limit:
        left.plot(*zip(*limit, strict=True), color="#9ca3af", linestyle=":", linewidth=1.2, zorder=1)
        middle = limit[len(limit) // 2]
        left.annotate("FMA limit", middle, (6, -8), textcoords="offset points", fontsize=8, color="#6b7280")
    _panel(right, memory, "peak memory beside inputs and gradients, MiB")
    dim = next(c.workload["D"] for c in comparisons if "D" in c.workload)
    figure.suptitle(f"{name}, forward + backward, D = {dim}", x=0.01, ha="left", fontsize=11, fontweight="bold")
    path = folder / f"{name}.png"
    figure.savefig(path, metadata={"Software": None})
    return path


def _panel(axes, lines: dict[str, Line], title: str) -> None:  # type: ignore[no-untyped-def]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_xlabel("N", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e7eb", linewidth=0.6)
    axes.tick_params(labelsize=8)
    sizes = sorted({n for line in lines.values() for n, _ in line})
    if not sizes:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", fontsize=9, color="#6b7280")
        return
    axes.set_xticks(sizes[::-2][::-1], [f"{int(n):,}" for n in sizes[::-2][::-1]])
    axes.minorticks_off()
    for who, line in lines.items():
        ours = who == OURS
        axes.plot(*zip(*line, strict=True), color=COLOURS.get(who, "#374151"), linewidth=2.4 if ours else 1.4,
                  marker="o", markersize=4 if ours else 3, zorder=3 if ours else 2)  # fmt: skip
    axes.set_xlim(sizes[0] / 1.3, sizes[-1] * 6)
    _name_ends(axes, lines)


def _name_ends(axes, lines: dict[str, Line]) -> None:  # type: ignore[no-untyped-def]
    """Names beside the last points, moved apart where they would overlap."""
    to_panel = axes.transAxes.inverted()
    axes.figure.canvas.draw()
    ends = {who: to_panel.transform(axes.transData.transform(line[-1])) for who, line in lines.items()}
    taken: list[tuple[float, float, int]] = []
    for who, (x, y) in sorted(ends.items(), key=lambda end: end[1][1]):
        text = LABELS.get(who, who)
        height = 1 + text.count("\n")
        for other_x, other_y, other_height in taken:
            if abs(x - other_x) < 0.3:
                y = max(y, other_y + LINE_HEIGHT * (height + other_height) / 2)
        taken.append((x, y, height))
        axes.text(x + 0.02, y, text, transform=axes.transAxes, fontsize=8, va="center", linespacing=0.9,
                  color=COLOURS.get(who, "#374151"), fontweight="bold" if who == OURS else "normal")  # fmt: skip
