"""Export of a retriever to ONNX: encoder, top-k against a gallery, ids."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom._arrays import check_array
from pairloom._id_tables import id_table
from pairloom.export._answers import check_file
from pairloom.export._onnx import need
from pairloom.export._retriever_graph import Retrieval, retriever_model, save_model
from pairloom.export._scoring_function import DOMAIN
from pairloom.gallery import Gallery, Int8Gallery

OLDEST_OPSET = 18
"""The first that torch's exporter writes."""
PRECISIONS = ("float32", "float16", "int8")


def to_onnx(
    encoder: nn.Module | None,
    gallery: Tensor | np.ndarray | Gallery | Int8Gallery | None = None,
    *,
    k: int,
    path: str | os.PathLike[str],
    similarity: str = "cosine",
    args: Sequence[Any] | None = None,
    ids: Any = None,
    precision: str = "float32",
    screen: str | None = None,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    opset: int | None = None,
    portable: bool = False,
    external_data: bool | None = None,
    check: bool = True,
    tolerance: float = 1e-5,
) -> Path:
    """Write a retriever as one ONNX graph: items -> encoder -> (normalise) -> score -> top-k -> ids.

    The scoring node is ``pairloom.TopKSimilarity`` with a body of standard operators. ONNX Runtime as it comes runs the
    body. After ``options.register_custom_ops_library(pairloom.deploy.ort_library())`` it runs our kernel in the node's
    place: the same ids, without the matrix of scores.

    Args:
        encoder: module from a batch of items to embeddings (B, D), exported in eval mode; None: the input of the graph,
            ``queries``, are embeddings.
        gallery: (M, D) embeddings to search, which become part of the file: a tensor, an array or memory map, a
            `Gallery` or an `Int8Gallery`. None: they are the last input of the graph, ``gallery``, (M, D) float32.
        k: results per item.
        path: the file to write.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean" (in the body the last two take O(B M D) memory).
        args: example arguments of ``encoder.forward``, with a batch of two or more.
        ids: what is returned for the rows of the gallery, (M,) integers or strings, each once, as
            `pairloom.deploy.Scorer` has them; row numbers by default. What is missing is -1 or the empty string.
            (Rows that share a name, such as a class: map ids to it outside.)
        precision: how the gallery is stored: "float32", "float16" (half the size, scores of the rounded rows) or "int8"
            (a quarter; exact int32 products of codes, as `Int8Gallery`; "cosine" and "dot").
        screen: "int8" adds codes by which our kernel finds the same answers sooner, as `Gallery` does: a quarter more.
        dynamic_shapes: of ``args``, as in `torch.export.export`; by default the first dimension of all tensors is one
            batch of any size.
        input_names: names of the encoder's inputs; the argument names of ``forward`` by default. Those of the scoring
            (scores, ids, indices, gallery) are taken.
        opset: version of the ONNX operators, 18 or later; the exporter's default when None.
        portable: put the body in the node's place: standard operators only, for runtimes that know no functions.
        external_data: write weights and gallery to ``<path>.data``; None: when the file would pass 2 GiB.
        check: run the file in ONNX Runtime, with and without our library, on random inputs and batches of 1 and more.
        tolerance: largest difference of scores, absolute, and relative above 1. Ids must be those of `topk`, but for
            rows whose scores differ by less.

    Returns:
        The path.

    Raises:
        ImportError: onnx, onnxscript or onnxruntime is missing.
        TypeError, ValueError: arguments that do not fit; nothing is written.
        RuntimeError: the file's answers are not those of PyTorch; nothing is written then.

    Metadata of the file: ``pairloom.version``, ``pairloom.similarity``, ``pairloom.normalized`` (whether rows are
    divided by their norm before they are scored), ``pairloom.k``, ``pairloom.gallery`` (the precision, or "input") and
    ``pairloom.dim``. `pairloom.deploy.Scorer.from_onnx` reads the gallery back.

    Example:
        >>> import onnxruntime, pairloom, tempfile, torch
        >>> encoder = torch.nn.Linear(4, 8)
        >>> gallery = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pairloom.export.to_onnx(
        ...         encoder, gallery, k=5, path=folder + "/retriever.onnx", args=(torch.randn(3, 4),)
        ...     )
        ...     scores, ids = onnxruntime.InferenceSession(path).run(None, {"input": torch.randn(2, 4).numpy()})
        >>> ids.shape
        (2, 5)
    """
    for package in ("onnx", "onnxscript", "onnx_ir", *(["onnxruntime"] if check else [])):
        need(package)
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"path is {str(path)!r}, and {str(path.parent)!r} is no folder")
    if path.is_dir():
        raise ValueError(f"path is {str(path)!r}, which is a folder; it must be the file to write")
    _checks.positive_number("tolerance", tolerance)
    _checks.flag("check", check)
    if opset is not None:
        _check_opset(opset)
    rows = _checked(encoder, gallery, k, similarity, args, precision, screen, portable, external_data)
    if external_data is not False and Path(f"{path}.data").is_dir():
        raise ValueError(f"path is {str(path)!r}, and {path.name}.data, the file for its data, is a folder")
    retrieval = Retrieval(
        encoder=encoder,
        args=tuple(args or ()),
        rows=rows,
        names=None if ids is None else _id_table(ids, rows),
        k=int(k),
        similarity=similarity,
        precision=precision,
        screen=screen,
    )
    model = retriever_model(retrieval, dynamic_shapes, input_names, opset)
    if portable:
        need("onnx_ir.passes.common").InlinePass()(model)
        del model.opset_imports[DOMAIN]
    # A file that fails its check takes nobody's place.
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        partial = Path(folder) / path.name
        save_model(model, partial, external_data)
        if check:
            check_file(partial, retrieval, portable, tolerance)
        for written in partial.parent.iterdir():
            written.replace(path.with_name(written.name))
    return path


def _check_opset(opset: Any) -> None:
    _checks.count("opset", opset)
    newest = need("onnx").defs.onnx_opset_version()
    if not OLDEST_OPSET <= opset <= newest:
        raise ValueError(f"opset is {opset}; allowed: {OLDEST_OPSET} to {newest}, what this onnx knows")


def _checked(
    encoder: nn.Module | None,
    gallery: Any,
    k: int,
    similarity: str,
    args: Sequence[Any] | None,
    precision: str,
    screen: str | None,
    portable: bool,
    external_data: bool | None,
) -> Any:
    """What of the gallery is stored: a tensor, an array, an `Int8Gallery` or None."""
    _checks.count("k", k)
    _checks.choice("similarity", similarity, _checks.SIMILARITIES)
    _checks.choice("precision", precision, PRECISIONS)
    _checks.flag("portable", portable)
    if external_data is not None:
        _checks.flag("external_data", external_data)
    if encoder is not None and not isinstance(encoder, nn.Module):
        raise TypeError(f"encoder is a {type(encoder).__name__}; it must be a torch.nn.Module, or None")
    if args is not None and not isinstance(args, (tuple, list)):
        raise TypeError(
            f"args is a {type(args).__name__}; pass a tuple of the encoder's arguments by position, (tensor,) for one"
        )
    if any(isinstance(argument, Tensor) and argument.dtype == torch.bfloat16 for argument in args or ()):
        raise TypeError("args holds bfloat16, for which ONNX Runtime has no kernels; export encoder.float()")
    if encoder is not None and not args:
        raise ValueError("args is missing; pass example arguments of the encoder, a batch of two or more")
    if encoder is None and args:
        raise ValueError("args is given without an encoder; the input of the graph is then embeddings")
    if isinstance(gallery, Gallery):
        gallery = gallery.embeddings
    if isinstance(gallery, Int8Gallery):
        if precision != "int8":
            raise ValueError(f"precision is {precision!r}, and the gallery has int8 alone; pass precision='int8'")
    elif isinstance(gallery, np.ndarray):
        check_array("gallery", gallery)
    elif gallery is not None:
        _checks.embeddings("gallery", gallery)
        gallery = gallery.detach().cpu()
    if gallery is None and precision != "float32":
        raise ValueError(f"precision is {precision!r}, and a gallery that is an input of the graph is float32")
    if precision == "int8" and similarity not in _checks.LOSS_SIMILARITIES:
        raise ValueError(f"similarity is {similarity!r}; an int8 gallery has 'cosine' and 'dot'")
    if screen is not None:
        _checks.choice("screen", screen, ("int8",))
        if gallery is None or precision == "int8":
            raise ValueError("screen is given for a gallery that is an input of the graph, or int8 itself; pass None")
        if portable:
            raise ValueError("screen is given with portable=True; codes are for our kernel, which that file cannot use")
    return gallery


def _id_table(ids: Any, rows: Any) -> np.ndarray:
    """(M + 1,) int64 or strings, the id of what is missing at the end."""
    if rows is None:
        raise ValueError("ids are given for a gallery that is an input of the graph; map its row numbers outside")
    table = id_table(ids.detach().cpu().numpy() if isinstance(ids, Tensor) else ids, rows.shape[0])
    return np.array([*table, ""], dtype=object) if table.dtype == object else np.append(table, -1)
