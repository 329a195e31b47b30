"""`python -m benchmarks`: run them, keep JSON, write the report; `python -m benchmarks report`: only the report."""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from benchmarks import NAMES
from benchmarks.harness import RESULTS, Comparison, Settings, write_results
from benchmarks.report import number, target_text, verdict, workload_text, write_report

# A dense peer at N = 16384 fits, and a small machine is not filled.
MEMORY_GIB = min(8.0, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**31)
CACHE = Path(__file__).resolve().parent.parent / "build" / "keops"


def show(name: str, comparisons: list[Comparison]) -> None:
    """One table on the terminal."""
    table = Table(title=f"{name}: times faster than each peer (median of paired rounds)")
    for column in ("workload", "ms", "of the FMA limit", "peers", "targets", "peak extra MiB"):
        table.add_column(column)
    for c in comparisons:
        ours = c.timings[0]
        limit = f"{100 * c.fraction_of_limit:.0f} %" if c.fraction_of_limit else ""
        peers = [f"{number(ratio)}x {peer}" for peer, ratio in c.ratios.items()]
        peers += [f"{peer}: {reason}" for peer, reason in c.left_out.items()]
        targets = [f"{target_text(t)}: {verdict(c, t)}" for t in c.targets]
        memory = [f"{number(peak)} {peer}" for peer, peak in c.peak_extra_mb.items()]
        cells = ("\n".join(lines) for lines in (peers, targets, memory))
        table.add_row(workload_text(c), f"{1000 * ours.median:.2f}", limit, *cells)
    Console().print(table)


def set_up(threads: int) -> None:
    """Threads for everybody, and where KeOps keeps what it compiles; before any of them starts."""
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # read by the OpenMP of KeOps when it is first loaded
    os.environ.setdefault("KEOPS_CACHE_FOLDER", str(CACHE))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of processes beside what is timed
    Path(os.environ["KEOPS_CACHE_FOLDER"]).mkdir(parents=True, exist_ok=True)


def results_of(name: str, settings: Settings) -> Iterator[Comparison]:
    """The comparisons of one benchmark, none if it cannot run yet."""
    module = importlib.import_module(f"benchmarks.{name}")
    reason = module.missing() if hasattr(module, "missing") else None
    if reason is not None:
        tqdm.write(f"{name} is left out: {reason}")
        return iter(())
    return module.run(settings)


def run_one(name: str, settings: Settings) -> None:
    """Time one benchmark; its file holds what is finished, also after an interrupt."""
    comparisons: list[Comparison] = []
    progress = tqdm(results_of(name, settings), desc=name, unit=" workloads", leave=False)
    for comparison in progress:
        comparisons.append(comparison)
        progress.set_postfix_str(workload_text(comparison))
        if not settings.quick:
            write_results(name, comparisons, complete=False)
    if comparisons and not settings.quick:
        write_results(name, comparisons, complete=True)
    if comparisons:
        show(name, comparisons)


def main(
    names: Annotated[
        list[str] | None,
        typer.Argument(help=f"Which ones; all of {', '.join(NAMES)} when left out. 'report' only rewrites the report."),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads for everybody.")] = torch.get_num_threads(),
    repeats: Annotated[int, typer.Option(help="Rounds per workload, at most.", min=1)] = 9,
    max_seconds: Annotated[float, typer.Option(help="Seconds that one benchmark should take.")] = 130.0,
    max_call_seconds: Annotated[float, typer.Option(help="A peer that needs more for one call drops out.")] = 60.0,
    max_memory_gib: Annotated[float, typer.Option(help="A peer that needs more drops out.")] = MEMORY_GIB,
    quick: Annotated[bool, typer.Option(help="One small size each, to see that it runs; writes nothing.")] = False,
) -> None:
    """Time pairloom beside its peers; write benchmarks/results/<name>.json, and from all of these the report."""
    chosen = names or list(NAMES)
    for name in chosen:
        if name not in (*NAMES, "report"):
            raise typer.BadParameter(f"'{name}' is no benchmark; there are {', '.join(NAMES)}, and report")
    set_up(threads)
    settings = Settings(
        quick, min(repeats, 3) if quick else repeats, max_seconds, max_call_seconds, 1024 * max_memory_gib
    )
    failed = []
    try:
        for name in chosen:
            if name == "report":
                continue
            try:
                run_one(name, settings)
            except Exception:  # the others are still worth their time
                traceback.print_exc()
                failed.append(name)
    except KeyboardInterrupt:
        print("stopped; what was finished is kept")
        raise typer.Exit(130) from None
    finally:
        if not quick:
            print(f"written: {os.path.relpath(write_report(RESULTS))}")
    if failed:
        print(f"failed: {', '.join(failed)}")
        raise typer.Exit(1)


if __name__ == "__main__":
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(main)
    app()
