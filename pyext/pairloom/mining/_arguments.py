"""Arguments of `mine_hard_negatives`: every one is checked before anything is computed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pairloom import _checks
from pairloom._arrays import check_array
from pairloom.mining._rules import Rules

STRATEGIES = ("top", "random")


def check_matrices(queries: Any, corpus: Any) -> None:
    """Float matrices in the memory of the CPU, or arrays, with the same D."""
    for name, matrix in (("queries", queries), ("corpus", corpus)):
        if isinstance(matrix, np.ndarray):
            check_array(name, matrix)
        else:
            _checks.embeddings(name, matrix)
            if matrix.device.type != "cpu":
                raise ValueError(f"{name} is on {matrix.device}; mining reads the CPU's memory: pass {name}.cpu()")
    _checks.same_dimensions("corpus", corpus, "queries", queries)


def checked_rules(
    k: int,
    range_min: int,
    range_max: int | None,
    absolute_margin: float | None,
    relative_margin: float | None,
    max_score: float | None,
    min_score: float | None,
    strategy: str,
    generator: torch.Generator | int | None,
) -> Rules:
    """The settings that decide about a candidate, with the seed of the draw."""
    _checks.count("k", k)
    if k < 1:
        raise ValueError(f"k is {k}; it must be 1 or more")
    _checks.count("range_min", range_min)
    if range_max is None:
        range_max = range_min + max(10 * k, 100)
    _checks.count("range_max", range_max)
    if range_max - range_min < k:
        raise ValueError(
            f"range_max - range_min is {range_max - range_min} and k is {k}; the window of ranks must hold k or more"
        )
    bounds = {
        "absolute_margin": absolute_margin,
        "relative_margin": relative_margin,
        "max_score": max_score,
        "min_score": min_score,
    }
    for name, bound in bounds.items():
        if bound is not None:
            _checks.finite_number(name, bound)
    if min_score is not None and max_score is not None and min_score > max_score:
        raise ValueError(f"min_score is {min_score} and max_score is {max_score}; no score is between them")
    _checks.choice("strategy", strategy, STRATEGIES)
    seed = _seed(generator)
    return Rules(
        k, range_min, range_max, seed=seed() if strategy == "random" else None,
        **{name: None if bound is None else float(bound) for name, bound in bounds.items()},
    )  # fmt: skip


def _seed(generator: Any) -> Callable[[], int]:
    """The seed, drawn only when it is asked for."""
    if generator is not None and not isinstance(generator, torch.Generator):
        if isinstance(generator, bool) or not isinstance(generator, (int, np.integer)):
            raise TypeError(f"generator is {generator!r}; it must be a torch.Generator, an integer seed or None")
        return lambda: int(generator)
    return lambda: int(torch.randint(2**63 - 1, (), generator=generator))


def checked_checkpoint(
    checkpoint: str | os.PathLike[str] | None, strategy: str, generator: torch.Generator | int | None
) -> Path | None:
    """The file, in a folder that exists."""
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    if not path.parent.is_dir():
        raise ValueError(f"checkpoint is {str(path)!r}; there is no folder {str(path.parent)!r}")
    if strategy == "random" and generator is None:
        raise ValueError("generator is None; a random draw that can be resumed needs a seed: pass an integer")
    return path
