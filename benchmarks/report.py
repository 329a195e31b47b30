"""From the JSON files to Markdown tables and pictures: what was claimed, what was reached, and everything behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import NAMES
from benchmarks.harness import PEAK, Comparison, Target, read_results

HEAD = """# Results

Written by `python -m benchmarks report` from the JSON files beside it; [how it was measured](../README.md). "3.1x" says
that ours took 1/3.1 of the peer's time, side by side in one run. Absolute times are this machine's.
"""
# Facts of a workload that every row of its table has anyway.
KNOWN = ("op", "threads")


def number(value: float) -> str:
    """Three figures that matter, no more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def workload_text(c: Comparison) -> str:
    """The workload in words."""
    facts = [f"{key} {value}" for key, value in c.workload.items() if key not in (*KNOWN, "pass", "dtype")]
    return ", ".join([*facts, *(str(c.workload[key]) for key in ("dtype", "pass") if key in c.workload)])


def target_text(target: Target) -> str:
    """What is to be reached."""
    sign = "at most" if target.at_most else "at least"
    if target.what.startswith("of the "):
        return f"{sign} {100 * target.bar:.0f} % {target.what}"
    return f"{target.what}: {sign} {number(target.bar)}"


def reached_text(c: Comparison, target: Target) -> str:
    """What came out."""
    reached = c.reached(target)
    if reached is None:
        return f"not measured ({c.left_out.get(target.what, 'no such number here')})"
    return f"{100 * reached:.0f} %" if target.what.startswith("of the ") else number(reached)


def verdict(c: Comparison, target: Target) -> str:
    """met, MISSED, or why it is not known."""
    met = c.met(target)
    return "not measured" if met is None else "met" if met else "MISSED"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table; a last line that is empty."""
    lines = [header, ["---"] * len(header), *rows]
    return [*("| " + " | ".join(line) + " |" for line in lines), ""]


def targets_table(results: dict[str, list[Comparison]]) -> list[str]:
    """Every target of every benchmark."""
    rows = [
        [name, workload_text(c), target_text(target), reached_text(c, target), f"**{verdict(c, target)}**"]
        for name, comparisons in results.items()
        for c in comparisons
        for target in c.targets
    ]
    return table(["benchmark", "workload", "target", "reached", ""], rows)


def everything_table(comparisons: list[Comparison]) -> list[str]:
    """One benchmark, all its workloads; a column for each peer that ever took part or was left out."""
    peers = list(dict.fromkeys(peer for c in comparisons for peer in (*c.ratios, *c.left_out)))
    rows = []
    for c in comparisons:
        ours, *_ = c.timings
        seconds = {timing.name: timing.median for timing in c.timings}
        cells = [
            f"{number(c.ratios[peer])}x ({number(1000 * seconds[peer])} ms)" if peer in c.ratios
            else c.left_out.get(peer, "")
            for peer in peers
        ]  # fmt: skip
        spread = f"{number(1000 * ours.median)} ({number(1000 * ours.p20)} - {number(1000 * ours.p80)})"
        limit = f"{100 * c.fraction_of_limit:.0f} %" if c.fraction_of_limit else ""
        memory = ", ".join(f"{who} {number(peak)}" for who, peak in c.peak_extra_mb.items())
        rows.append([workload_text(c), spread, *cells, limit, str(len(ours.seconds)), memory])
    header = ["workload", "ours, ms (p20 - p80)", *peers, "of the limit", "rounds", PEAK]
    return table(header, rows)


def measures_lines(comparisons: list[Comparison]) -> list[str]:
    """Further numbers, one a line."""
    lines = [
        f"* {workload_text(c)}: {name}: {number(value)}" for c in comparisons for name, value in c.measures.items()
    ]
    return [*lines, ""] if lines else []


def machine_line(machine: dict[str, Any], complete: bool, threads: int) -> str:
    """What the numbers depend on."""
    stopped = "" if complete else " **The run was stopped before its end.**"
    return (
        f"{machine['cpu']}, {threads} threads, instruction set {machine['isa']}, torch {machine['torch']}, "
        f"Python {machine['python']}, {machine['compiler']}, commit {machine['git']}, {machine['date']}.{stopped}"
    )


def write_report(folder: Path) -> Path:
    """README.md and pictures in the folder of the JSON files; returns the path of README.md."""
    from benchmarks.plots import draw

    stored = {name: read_results(folder / f"{name}.json") for name in NAMES if (folder / f"{name}.json").exists()}
    lines = [HEAD, "## Targets", "", *targets_table({name: found[2] for name, found in stored.items()})]
    for name, (machine, complete, comparisons) in stored.items():
        lines += [f"## {name}", "", machine_line(machine, complete, comparisons[0].workload["threads"]), ""]
        picture = draw(name, comparisons, folder)
        if picture is not None:
            lines += [f"![{name}: time and memory over the batch size]({picture.name})", ""]
        lines += [*everything_table(comparisons), *measures_lines(comparisons)]
    path = folder / "README.md"
    path.write_text("\n".join(lines).rstrip() + "\n")
    return path
