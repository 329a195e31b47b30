"""Whether the answers of an exported file are those of `pairloom.topk`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pairloom import reference
from pairloom.gallery import Int8Gallery


def check_answers(
    what: str,
    found: tuple[np.ndarray, np.ndarray],
    expected: tuple[Tensor, Tensor],
    names: np.ndarray | None,
    embeddings: Tensor,
    gallery: Tensor | Int8Gallery,
    similarity: str,
    tolerance: float,
) -> None:
    """Scores within the tolerance; ids equal, or those of rows whose own scores are within it.

    Two rows whose scores differ by a rounding may change places: every runtime adds in an order of its own.
    """
    scores, ids = torch.from_numpy(found[0]), found[1]
    wanted_scores, wanted = expected
    allowed = tolerance * wanted_scores.abs().clamp(min=1.0)
    equal_scores = (scores == wanted_scores) | ((scores - wanted_scores).abs() <= allowed)
    if scores.shape != wanted_scores.shape or not bool(equal_scores.all()):
        raise RuntimeError(
            f"{what}: scores differ from PyTorch's{_by(scores, wanted_scores)}, allowed is {tolerance:g}; the file was "
            "written, do not use it"
        )
    wanted_ids = wanted.numpy() if names is None else names[wanted.numpy()]
    other = torch.from_numpy(np.asarray(ids != wanted_ids))
    if not bool(other.any()):
        return
    rows = _row_numbers(ids, names)
    queries, ranks = other.nonzero(as_tuple=True)
    at = rows[queries, ranks]
    distinct = all(len(set(row[row >= 0].tolist())) == int((row >= 0).sum()) for row in rows)
    own = _scores_of(embeddings[queries], gallery, at, similarity)
    if not distinct or not bool(((own - wanted_scores[queries, ranks]).abs() <= 2 * allowed[queries, ranks]).all()):
        raise RuntimeError(
            f"{what}: {int(other.sum())} of {ids.size} ids differ from PyTorch's; the file was written, do not use it"
        )


def _by(scores: Tensor, wanted: Tensor) -> str:
    if scores.shape != wanted.shape:
        return f" in shape, {tuple(scores.shape)} instead of {tuple(wanted.shape)}"
    return f" by up to {float((scores - wanted).abs().nan_to_num(torch.inf).max()):.3g}"


def _row_numbers(ids: np.ndarray, names: np.ndarray | None) -> Tensor:
    if names is None:
        return torch.from_numpy(ids)
    number = {name: row for row, name in enumerate(names[:-1].tolist())}
    return torch.tensor([[number.get(name, -1) for name in row] for row in ids.tolist()]).reshape(ids.shape)


def _scores_of(queries: Tensor, gallery: Tensor | Int8Gallery, rows: Tensor, similarity: str) -> Tensor:
    """(P,) scores of P queries with one row each; NaN where there is no row."""
    safe = rows.clamp(min=0)
    if isinstance(gallery, Int8Gallery):
        records = gallery._codes.records[:, safe]
        one = [
            reference.coded_topk(
                queries[i : i + 1], gallery._codes.codes[safe[i : i + 1]], records[:, i : i + 1], 1, similarity
            )
            for i in range(len(safe))
        ]
        scores = torch.stack([answer[0][0, 0] for answer in one])
    else:
        own = [
            reference.pairwise_similarity(q[None], g[None], similarity)
            for q, g in zip(queries, gallery[safe], strict=True)
        ]
        scores = torch.stack([value[0, 0] for value in own])
    return torch.where(rows < 0, torch.nan, scores)
