"""The engine's tile products alone, S = rows columns^T, beside torch.mm and the limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from benchmarks.harness import LIMIT, Comparison, Settings, Target, as_tensors, compare
from pairloom import _native
from pairloom.testing import using_isa

TARGETS = (Target(LIMIT, 0.85),)


def products(n: int, dim: int, level: str) -> Callable[[], None]:
    """All products of n rows with n columns, the rows shared out; blocks of S are thrown away."""
    threads = torch.get_num_threads()

    def run() -> None:
        with using_isa(level), ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda _: _native.product_seconds(n // threads, n, dim), range(threads)))

    return run


def run(settings: Settings) -> Iterator[Comparison]:
    """Three depths; the level in use, and the one below without a matrix unit where there is one."""
    n = 1024 if settings.quick else 8192
    levels = [_native.isa(), *(level for level in ("avx512",) if _native.isa() == "amx")]
    for dim in (128, 256, 768):
        a, b, out = torch.randn(n, dim), torch.randn(dim, n), torch.empty(n, n)
        contenders: dict[str, Callable[[], object]] = {"pairloom": products(n, dim, levels[0])}
        contenders |= {f"level {level}": products(n, dim, level) for level in levels[1:]}
        contenders["torch"] = lambda a=a, b=b, out=out: torch.mm(a, b, out=out)
        yield compare(
            {"op": "products", "N": n, "D": dim, "dtype": "float32"},
            contenders,
            flops=2.0 * n * n * dim,
            repeats=settings.repeats,
            seconds=settings.max_seconds / 3,
            compared=lambda output: as_tensors(()),  # nothing is kept
            targets=() if settings.quick else TARGETS,
        )
