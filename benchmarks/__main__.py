"""`python -m benchmarks`: run them, print tables, keep JSON."""

from __future__ import annotations

import importlib
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Comparison, write_results

NAMES = ("info_nce", "multi_similarity", "topk")


def show(name: str, comparisons: list[Comparison]) -> None:
    table = Table(title=f"{name}: times faster than each peer (median of paired rounds)")
    for column in ("workload", "ms", "of the FMA limit", "peers", "peak extra MiB"):
        table.add_column(column)
    for c in comparisons:
        workload = " ".join(f"{key}={value}" for key, value in c.workload.items() if key != "op")
        peers = []
        for peer, ratio in c.ratios.items():
            bar = f" (target {c.targets[peer]:g}x: {'met' if c.met[peer] else 'MISSED'})" if peer in c.targets else ""
            peers.append(f"{ratio:.2f}x {peer}{bar}")
        limit = f"{100 * c.fraction_of_limit:.0f} %" if c.fraction_of_limit else ""
        memory = f"{c.peak_extra_mb:.0f}" if c.peak_extra_mb is not None else ""
        table.add_row(workload, f"{1000 * c.timings[0].median:.2f}", limit, "\n".join(peers), memory)
    Console().print(table)


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"Which ones; all of {', '.join(NAMES)} when left out.")
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads for everybody.")] = torch.get_num_threads(),
    repeats: Annotated[int, typer.Option(help="Rounds per workload.", min=1)] = 9,
    quick: Annotated[bool, typer.Option(help="One small workload each, to see that it runs; writes no JSON.")] = False,
) -> None:
    """Time pairloom beside its peers and write benchmarks/results/<name>.json."""
    torch.set_num_threads(threads)
    for name in names or NAMES:
        if name not in NAMES:
            raise typer.BadParameter(f"'{name}' is no benchmark; there are {', '.join(NAMES)}")
        comparisons = importlib.import_module(f"benchmarks.{name}").run(quick=quick, repeats=repeats)
        show(name, comparisons)
        if not quick:
            print(f"written: benchmarks/results/{write_results(name, comparisons).name}")


if __name__ == "__main__":
    typer.run(main)
