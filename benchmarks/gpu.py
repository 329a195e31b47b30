"""Pair losses on a GPU beside torch and torch.compile: time, peak memory, and the share of the GPU's rate of products.

    python -m benchmarks.gpu [--minutes 8] [--device cuda]

Peers are taken in turn, medians are of five rounds, a peer that runs out of memory is noted as such. Without a GPU
``--device cpu`` runs one small case, to see that the script works; nothing is written then.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

import pairloom
from pairloom._dispatch import DEVICE_KERNELS

RESULT = Path(__file__).parent / "results" / "gpu.json"
SIZES = ((4096, 512), (16384, 512), (32768, 512), (65536, 512), (32768, 1024))
DTYPES = (torch.bfloat16, torch.float32)
PRODUCTS = {"info_nce": 6, "sup_con": 6, "multi_similarity": 6, "clip": 8}
"""N M D flops of a forward and backward pass that makes each product once (CLIP: the way back of both)."""
ROUNDS = 5


def dense_info_nce(x: Tensor, y: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy over the whole matrix."""
    s = F.normalize(x) @ F.normalize(y).T / 0.07
    return F.cross_entropy(s.float(), torch.arange(len(x), device=x.device))


def dense_clip(x: Tensor, y: Tensor, labels: Tensor) -> Tensor:
    """Both ways."""
    s = (F.normalize(x) @ F.normalize(y).T / 0.07).float()
    target = torch.arange(len(x), device=x.device)
    return (F.cross_entropy(s, target) + F.cross_entropy(s.T, target)) / 2


def dense_sup_con(x: Tensor, y: Tensor, labels: Tensor) -> Tensor:
    """One batch against itself."""
    s = (F.normalize(x) @ F.normalize(x).T / 0.1).float()
    own = torch.eye(len(x), dtype=torch.bool, device=x.device)
    positive = (labels.unsqueeze(1) == labels) & ~own
    log_p = s - torch.where(own, -torch.inf, s).logsumexp(1, keepdim=True)
    return -(torch.where(positive, log_p, 0.0).sum(1) / positive.sum(1).clamp(min=1)).mean()


def dense_multi_similarity(x: Tensor, y: Tensor, labels: Tensor) -> Tensor:
    """With its mining."""
    s = (F.normalize(x) @ F.normalize(x).T).float()
    own = torch.eye(len(x), dtype=torch.bool, device=x.device)
    same = labels.unsqueeze(1) == labels
    positive, negative = same & ~own, ~same
    nearest = torch.where(negative, s, -torch.inf).amax(1, keepdim=True)
    farthest = torch.where(positive, s, torch.inf).amin(1, keepdim=True)
    positive, negative = positive & (s - 0.1 < nearest), negative & (s + 0.1 > farthest)
    zero = s.new_zeros(len(x), 1)
    pull = torch.cat([torch.where(positive, -2 * (s - 0.5), -torch.inf), zero], 1).logsumexp(1) / 2
    push = torch.cat([torch.where(negative, 50 * (s - 0.5), -torch.inf), zero], 1).logsumexp(1) / 50
    return (pull + push).mean()


LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "info_nce": (lambda x, y, labels: pairloom.functional.info_nce(x, y, temperature=0.07), dense_info_nce),
    "clip": (lambda x, y, labels: pairloom.functional.clip(x, y, temperature=0.07), dense_clip),
    "sup_con": (lambda x, y, labels: pairloom.functional.sup_con(x, labels, temperature=0.1), dense_sup_con),
    "multi_similarity": (
        lambda x, y, labels: pairloom.functional.multi_similarity(x, labels, alpha=2, beta=50, base=0.5, epsilon=0.1),
        dense_multi_similarity,
    ),
}


class Clock:
    """Seconds and peak memory of a step, on any device."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")

    def __call__(self, step: Callable[[], Any]) -> tuple[float, float]:
        if not self.cuda:
            begin = time.perf_counter()
            step()
            return time.perf_counter() - begin, float("nan")
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3, (torch.cuda.max_memory_allocated() - held) / 2**20


def product_rate(clock: Clock, device: str, dtype: torch.dtype, size: int) -> float:
    """FLOP/s of a square product, the best of ten."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / min(clock(lambda: a @ b)[0] for _ in range(10))


def cases(device: str) -> Iterator[tuple[str, int, int, torch.dtype]]:
    """Small ones first, so that a budget cuts off the large."""
    if not device.startswith("cuda"):
        yield from ((loss, 128, 32, torch.float32) for loss in LOSSES)
        return
    for n, dim in SIZES:
        for dtype in DTYPES:
            for loss in LOSSES:
                yield loss, n, dim, dtype


def measure(device: str, loss: str, n: int, dim: int, dtype: torch.dtype, clock: Clock) -> dict[str, Any]:
    """Medians of the contenders, in turn."""
    torch.manual_seed(0)
    x, y = (torch.randn(n, dim, device=device).to(dtype).requires_grad_() for _ in range(2))
    labels = torch.arange(n, device=device) // 4
    ours, dense = LOSSES[loss]
    torch._dynamo.reset()
    contenders = {"pairloom": ours, "torch": dense, "compile": torch.compile(dense)}
    inputs = [x, y] if loss in ("info_nce", "clip") else [x]
    times: dict[str, list[float]] = {name: [] for name in contenders}
    memory: dict[str, float] = {}
    failed: dict[str, str] = {}
    for turn in range(ROUNDS + 1):
        for name, function in contenders.items():
            if name in failed:
                continue
            try:
                seconds, peak = clock(lambda f=function: torch.autograd.grad(f(x, y, labels), inputs))
            except torch.OutOfMemoryError:
                failed[name] = "out of memory"
                torch.cuda.empty_cache()
                continue
            if turn:  # the first warms up, and compiles
                times[name].append(seconds)
                memory[name] = peak
    return {
        "loss": loss, "N": n, "D": dim, "dtype": str(dtype).removeprefix("torch."),
        "seconds": {name: statistics.median(values) for name, values in times.items() if values},
        "peak_mib": memory, "failed": failed,
    }  # fmt: skip


def main(
    minutes: Annotated[float, typer.Option(help="When no further case is begun.")] = 8.0,
    device: Annotated[str, typer.Option(help="cuda, or cpu to try the script.")] = "cuda",
) -> None:
    """Measure, print a table, keep a JSON file beside the others."""
    console = Console()
    clock = Clock(device)
    cuda = device.startswith("cuda")
    rates = {dtype: product_rate(clock, device, dtype, 8192 if cuda else 256) for dtype in DTYPES}
    table = Table(title=f"forward and backward on {torch.cuda.get_device_name() if cuda else device}")
    columns = (
        "loss",
        "N",
        "D",
        "dtype",
        "ms",
        "of the product rate",
        "against torch",
        "against compile",
        "peak MiB",
        "torch MiB",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("loss", "dtype") else "right")
    begin = time.monotonic()
    found = []
    for loss, n, dim, dtype in cases(device):
        if time.monotonic() - begin > 60 * minutes:
            console.print("time is up; larger cases were left out")
            break
        row = measure(device, loss, n, dim, dtype, clock)
        seconds = row["seconds"]
        row["share"] = PRODUCTS[loss] * n * n * dim / seconds["pairloom"] / rates[dtype]
        found.append(row)
        ratios = [
            f"{seconds[peer] / seconds['pairloom']:.2f}" if peer in seconds else row["failed"][peer]
            for peer in ("torch", "compile")
        ]
        peaks = [f"{row['peak_mib'][peer]:.0f}" if peer in row["peak_mib"] else "" for peer in ("pairloom", "torch")]
        table.add_row(
            loss,
            str(n),
            str(dim),
            row["dtype"],
            f"{seconds['pairloom'] * 1e3:.2f}",
            f"{row['share']:.0%}",
            *ratios,
            *peaks,
        )
    console.print(table)
    if cuda:
        facts = {
            "device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"),
            "kernels": sorted(DEVICE_KERNELS), "tf32": torch.backends.cuda.matmul.allow_tf32,
            "product_tflops": {str(dtype).removeprefix("torch."): rate / 1e12 for dtype, rate in rates.items()},
        }  # fmt: skip
        RESULT.write_text(json.dumps({"facts": facts, "cases": found}, indent=1) + "\n")
        console.print(f"kept in {RESULT.name}")


if __name__ == "__main__":
    typer.run(main)
