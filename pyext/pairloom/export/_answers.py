"""Whether the answers of an exported file are those of `pairloom.topk`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pairloom import reference
from pairloom.deploy.ort import ort_library
from pairloom.export._common import inference
from pairloom.export._onnx import onnx_runtime, reason
from pairloom.export._retriever_graph import Retrieval
from pairloom.gallery import Int8Gallery, as_tensor
from pairloom.scoring import topk


def check_file(path: Path, retrieval: Retrieval, portable: bool, tolerance: float) -> None:
    """Run a file on random inputs, with and without our library, and compare with `topk`."""
    generator = torch.Generator().manual_seed(0)
    gallery = _searched(retrieval, generator)
    batches = _batches(retrieval, gallery, generator)
    for library in [(), (ort_library(),)][: 1 if portable else 2]:
        try:
            session = onnx_runtime(path, *library)
        except Exception as error:  # the runtime's errors have no common base
            raise RuntimeError(f"ONNX Runtime does not take the file: {reason(error)}; nothing was written") from error
        for batch in batches:
            tensors = [argument for argument in batch if isinstance(argument, Tensor)]
            if retrieval.rows is None:
                assert isinstance(gallery, Tensor)
                tensors.append(gallery)
            names = [node.name for node in session.get_inputs()]
            if len(names) != len(tensors):
                raise RuntimeError(
                    f"{path.name} has inputs {names} for {len(tensors)} tensors: some argument is not used"
                )
            feed = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
            found = session.run(None, feed)
            embeddings = _embeddings(retrieval.encoder, batch)
            expected = topk(embeddings, gallery, retrieval.k, similarity=retrieval.similarity)
            what = f"{path.name} ({'with' if library else 'without'} our library, batch of {len(found[0])})"
            similarity = retrieval.similarity
            check_answers(what, found, expected, retrieval.names, embeddings, gallery, similarity, tolerance)


def _searched(retrieval: Retrieval, generator: torch.Generator) -> Tensor | Int8Gallery:
    """The gallery as the file has it."""
    if retrieval.rows is None:
        dim = 16
        if retrieval.encoder is not None:
            dim = _embeddings(retrieval.encoder, retrieval.args).shape[1]
        return torch.randn(50, dim, generator=generator)
    return retrieval.coded() if retrieval.precision == "int8" else as_tensor(retrieval.array())


def _batches(retrieval: Retrieval, gallery: Any, generator: torch.Generator) -> list[tuple[Any, ...]]:
    """Inputs: the example, one item of it, and the example with random numbers where it holds floats."""
    if retrieval.encoder is None:
        return [(torch.randn(size, gallery.shape[1], generator=generator),) for size in (3, 1)]

    def drawn(argument: Any) -> Any:
        if isinstance(argument, Tensor) and argument.dtype.is_floating_point and argument.dim() > 0:
            return torch.randn(argument.shape, generator=generator).to(argument.dtype)
        return argument

    one = tuple(a[:1] if isinstance(a, Tensor) and a.dim() > 0 else a for a in retrieval.args)
    return [retrieval.args, one, tuple(drawn(argument) for argument in retrieval.args)]


def _embeddings(encoder: nn.Module | None, batch: tuple[Any, ...]) -> Tensor:
    if encoder is None:
        (embeddings,) = batch
        return embeddings
    with inference(encoder):
        return encoder(*batch).float()


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

    def close() -> bool:
        return bool(((scores == wanted_scores) | ((scores - wanted_scores).abs() <= allowed)).all())

    if scores.shape != wanted_scores.shape or not close():
        raise RuntimeError(
            f"{what}: scores differ from PyTorch's{_by(scores, wanted_scores)}, allowed is {tolerance:g}; "
            "nothing was written"
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
        raise RuntimeError(f"{what}: {int(other.sum())} of {ids.size} ids differ from PyTorch's; nothing was written")


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
