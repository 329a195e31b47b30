"""`pairloom bench`: a short look at this machine; the full comparison is `make bench` in the sources."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairloom.cli._app import app

if TYPE_CHECKING:
    from torch import Tensor

TEMPERATURE = 0.07
FEWEST, MOST = 3, 51
"""Rounds of one task."""

EPILOG = """\
Example:

\b
  pairloom bench --quick
"""


@dataclass(frozen=True)
class Task:
    """The same result computed twice."""

    name: str
    ours: Callable[[], Any]
    plain: Callable[[], Any]


@dataclass(frozen=True)
class Measured:
    """Medians in seconds, and the median over rounds of plain / ours."""

    name: str
    rounds: int
    pairloom: float
    plain_torch: float
    ratio: float


@app.command(short_help="Time top-k and InfoNCE on this machine.", epilog=EPILOG)
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Smaller tasks, under 5 s instead of under 20 s.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, times in seconds.")] = False,
) -> None:
    """Time top-k and InfoNCE on this machine, beside the same formulas in plain torch."""
    import torch

    from pairloom import _native

    sizes = QUICK if quick else FULL
    measured = [run(task, sizes.seconds) for task in tasks(sizes)]
    facts = {
        "threads": torch.get_num_threads(),
        "isa": _native.isa(),
        "torch": str(torch.__version__),
        "dtype": "float32",
        "tasks": [asdict(one) for one in measured],
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        show(facts, measured)


@dataclass(frozen=True)
class Sizes:
    """Of the tasks."""

    rows: int
    dim: int
    pairs: tuple[int, ...]
    seconds: float
    """For each task."""


FULL = Sizes(rows=50_000, dim=256, pairs=(1024, 4096), seconds=3.0)
QUICK = Sizes(rows=20_000, dim=128, pairs=(1024,), seconds=0.4)


def tasks(sizes: Sizes) -> list[Task]:
    """Random rows of length 1; every task is computed both ways once and compared."""
    import torch
    import torch.nn.functional as F

    import pairloom

    generator = torch.Generator().manual_seed(0)

    def rows(count: int) -> Tensor:
        return F.normalize(torch.randn(count, sizes.dim, generator=generator), dim=1)

    gallery = rows(sizes.rows)
    found = []
    for count in (1, 256):
        queries = rows(count)
        name = f"top-10, {count} {'query' if count == 1 else 'queries'}, {sizes.rows:,} x {sizes.dim}"
        ours = partial(pairloom.topk, queries, gallery, 10, similarity="dot")
        found.append(Task(name, ours, partial(dense_topk, queries, gallery)))
    loss = partial(pairloom.functional.info_nce, temperature=TEMPERATURE)
    for count in sizes.pairs:
        pair = rows(count).requires_grad_(), rows(count).requires_grad_()
        name = f"InfoNCE + gradients, {count:,} pairs x {sizes.dim}"
        found.append(Task(name, partial(with_gradients, loss, pair), partial(with_gradients, dense_info_nce, pair)))
    return found


def dense_topk(queries: Tensor, gallery: Tensor) -> tuple[Tensor, Tensor]:
    """By the matrix of scores."""
    scores, indices = (queries @ gallery.T).topk(10)
    return scores, indices


def dense_info_nce(queries: Tensor, keys: Tensor) -> Tensor:
    """By the matrix of logits."""
    import torch
    import torch.nn.functional as F

    logits = F.normalize(queries, dim=1) @ F.normalize(keys, dim=1).T / TEMPERATURE
    return F.cross_entropy(logits, torch.arange(len(logits)))


def with_gradients(loss: Callable[..., Tensor], pair: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Forward and backward."""
    import torch

    value = loss(*pair)
    return value, *torch.autograd.grad(value, pair)


def run(task: Task, seconds: float) -> Measured:
    """Both in turn, so that a slow moment of the machine meets both; their first calls warm up and are compared."""
    import torch

    for found, wanted in zip(task.ours(), task.plain(), strict=True):
        if wanted.is_floating_point() and not torch.allclose(found, wanted, rtol=1e-3, atol=1e-5):
            raise ValueError(f"{task.name}: pairloom and plain torch differ; please report it with `pairloom info`")
    rounds = int(min(MOST, max(FEWEST, seconds / (timed(task.ours) + timed(task.plain)))))
    ours, plain = [], []
    for _ in range(rounds):
        ours.append(timed(task.ours))
        plain.append(timed(task.plain))
    ratio = statistics.median(b / a for a, b in zip(ours, plain, strict=True))
    return Measured(task.name, rounds, statistics.median(ours), statistics.median(plain), ratio)


def timed(function: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def show(facts: dict[str, Any], measured: list[Measured]) -> None:
    """A table for 80 columns."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("float32", no_wrap=True)
    for title in ("pairloom", "plain torch", "ratio", "rounds"):
        table.add_column(title, justify="right", no_wrap=True)
    for one in measured:
        times = (f"{1e3 * seconds:,.2f} ms" for seconds in (one.pairloom, one.plain_torch))
        table.add_row(one.name, *times, f"{one.ratio:.2f}", str(one.rounds))
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"\n{facts['threads']} threads, {facts['isa']}, torch {facts['torch']}. Times are medians of rounds in turn; "
        "ratio is plain torch / pairloom, above 1 where pairloom took less. Other sizes and a busy machine give other "
        "numbers."
    )
