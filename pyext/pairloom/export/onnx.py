"""Export of a retriever to ONNX: encoder, top-k against a gallery, ids; in one file that also runs faster with our library."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pairloom
from pairloom import _checks
from pairloom._gallery_blocks import check_array
from pairloom.export._answers import check_answers
from pairloom.export._common import batch_shapes, inference
from pairloom.export._onnx import less_noise, need, onnx_runtime, without_traces
from pairloom.export._scoring_function import DOMAIN, TOPK, TOPK_INT8, coded_topk_function, topk_function
from pairloom.gallery import Codes, Gallery, Int8Gallery, as_tensor
from pairloom.scoring import topk

PRECISIONS = ("float32", "float16", "int8")
LARGEST_FILE = 2**31 - 2**24
"""Bytes of a file without a second one for its data: protobuf ends at 2 GiB, and the graph needs some of it."""
LARGEST_NODE_CONSTANT = 1024
"""Bytes of a weight that stays in the graph when there is a second file."""


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
        ids: what is returned for the rows of the gallery, (M,) integers or strings; row numbers by default. What is
            missing is -1 or the empty string.
        precision: how the gallery is stored: "float32", "float16" (half the size, scores of the rounded rows) or "int8"
            (a quarter; exact int32 products of codes, as `Int8Gallery`; "cosine" and "dot").
        screen: "int8" adds codes by which our kernel finds the same answers sooner, as `Gallery` does: a quarter more.
        dynamic_shapes: of ``args``, as in `torch.export.export`; by default the first dimension of all tensors is one
            batch of any size.
        input_names: names of the encoder's inputs; the argument names of ``forward`` by default.
        opset: version of the ONNX operators, the exporter's default when None.
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
        RuntimeError: the file's answers are not those of PyTorch.

    Metadata of the file: ``pairloom.version``, ``pairloom.similarity``, ``pairloom.normalized`` (whether rows are divided
    by their norm before they are scored), ``pairloom.k``, ``pairloom.gallery`` (the precision, or "input") and
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
    rows = _checked(encoder, gallery, k, similarity, args, precision, screen, portable, external_data)
    names = None if ids is None else _id_table(ids, rows)
    examples = () if args is None else tuple(args)
    if encoder is None:
        model, embeddings = _model_of_embeddings(rows, opset)
        expected_dim = None if rows is None else rows.shape[1]
    else:
        model, embeddings, expected_dim = _model_of_encoder(encoder, examples, dynamic_shapes, input_names, opset)
    if rows is not None and expected_dim != rows.shape[1]:
        raise ValueError(
            f"gallery has rows of {rows.shape[1]} numbers, and the encoder gives {expected_dim}; they must be equal"
        )
    version = model.opset_imports[""]
    stored = _stored(rows, precision, screen, expected_dim)
    _append_scoring(model, embeddings, stored, k, similarity, rows, expected_dim, version)
    if names is not None:
        _append_ids(model, names)
    if portable:
        need("onnx_ir.passes.common").InlinePass()(model)
        del model.opset_imports[DOMAIN]
    model.metadata_props.update(_metadata(k, similarity, precision if rows is not None else "input", expected_dim))
    _save(model, path, external_data)
    if check:
        _check(path, encoder, rows, names, k, similarity, precision, examples, expected_dim, portable, tolerance)
    return path


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


# --- the graph --------------------------------------------------------------------------------------------------------
def _model_of_embeddings(rows: Any, opset: int | None) -> tuple[Any, Any]:
    """A model that gives back its input."""
    ir = need("onnx_ir")
    queries = ir.Value(
        name="queries",
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape(["batch", "dim" if rows is None else rows.shape[1]]),
    )
    graph = ir.Graph([queries], [], nodes=[], opset_imports={"": opset or 20}, name="retriever")
    return ir.Model(graph, ir_version=10, producer_name="pairloom", producer_version=pairloom.__version__), queries


def _model_of_encoder(
    encoder: nn.Module, args: tuple[Any, ...], dynamic_shapes: Any, input_names: Any, opset: int | None
) -> tuple[Any, Any, int]:
    """The encoder's model without outputs, its embeddings in float32, and their dimensions."""
    ir = need("onnx_ir")
    if dynamic_shapes is None:
        dynamic_shapes = batch_shapes(args)
    with inference(encoder), less_noise():
        outputs = encoder(*args)
        if not isinstance(outputs, Tensor) or outputs.dim() != 2:
            what = (
                f"a tensor of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            )
            raise ValueError(f"encoder gives {what}; it must give embeddings (batch, dimensions)")
        program = torch.onnx.export(
            encoder,
            args,
            dynamo=True,
            dynamic_shapes=dynamic_shapes,
            input_names=input_names,
            opset_version=opset,
            verbose=False,
        )
    assert program is not None
    model = program.model
    without_traces(model.graph)
    (embeddings,) = model.graph.outputs
    model.graph.outputs.clear()
    if embeddings.dtype != ir.DataType.FLOAT:
        embeddings = _append(model, ir.node("Cast", [embeddings], {"to": ir.DataType.FLOAT}))
        embeddings.type = ir.TensorType(ir.DataType.FLOAT)
    return model, embeddings, outputs.shape[1]


def _stored(rows: Any, precision: str, screen: str | None, dim: int | None) -> dict[str, Any]:
    """Name and array of what the file holds of a gallery."""
    if rows is None:
        return {}
    if precision == "int8":
        codes = rows._codes if isinstance(rows, Int8Gallery) else Int8Gallery(rows)._codes
        return {"gallery_codes": codes.codes.numpy(), "gallery_records": codes.records.numpy()}
    array = _as_array(rows, precision)
    if screen is None:
        return {"gallery": array}
    codes = Gallery(array, screen=screen)._codes
    assert codes is not None
    return {"gallery": array, "gallery_codes": codes.codes.numpy(), "gallery_records": codes.records.numpy()}


def _as_array(rows: Tensor | np.ndarray, precision: str) -> np.ndarray:
    """Rows in the precision; a memory map stays one where it has it."""
    if isinstance(rows, Tensor):
        rows = rows.to(getattr(torch, precision)).contiguous().numpy()
    return np.ascontiguousarray(rows, dtype=precision)


def _append_scoring(
    model: Any, embeddings: Any, stored: dict[str, Any], k: int, similarity: str, rows: Any, dim: Any, opset: int
) -> None:
    ir = need("onnx_ir")
    values = {name: _initializer(model, name, array) for name, array in stored.items()}
    if rows is None:
        gallery = ir.Value(
            name="gallery", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["rows", dim or "dim"])
        )
        model.graph.inputs.append(gallery)
        function = topk_function(k, similarity, None, dim, torch.float32, opset)
        operator, inputs = TOPK, [embeddings, gallery]
    elif "gallery" in stored:
        dtype = getattr(torch, stored["gallery"].dtype.name)
        function = topk_function(k, similarity, *stored["gallery"].shape, dtype, opset)
        operator, inputs = TOPK, [embeddings, *values.values()]
    else:
        codes = Codes(*(torch.from_numpy(array) for array in stored.values()))
        function = coded_topk_function(k, similarity, *codes, dim, opset)
        operator, inputs = TOPK_INT8, [embeddings, *values.values()]
    attributes = {"k": k, "similarity": similarity}
    node = ir.node(operator, inputs, attributes, domain=DOMAIN, num_outputs=2, name="scoring")
    for output, name, kind in zip(node.outputs, ("scores", "ids"), (ir.DataType.FLOAT, ir.DataType.INT64), strict=True):
        output.name, output.type, output.shape = name, ir.TensorType(kind), ir.Shape(["batch", k])
    _append(model, node)
    model.graph.outputs.extend(node.outputs)
    model.functions[function.identifier()] = function
    model.opset_imports[DOMAIN] = 1


def _append_ids(model: Any, names: np.ndarray) -> None:
    """Row numbers become ids; -1 counts from the end, where the id of what is missing stands."""
    ir = need("onnx_ir")
    scores, indices = model.graph.outputs
    indices.name = "indices"
    ids = _append(model, ir.node("Gather", [_initializer(model, "gallery_ids", names), indices], {"axis": 0}))
    kind = ir.DataType.STRING if names.dtype == object else ir.DataType.INT64
    ids.name, ids.type, ids.shape = "ids", ir.TensorType(kind), indices.shape
    model.graph.outputs[1] = ids


def _append(model: Any, node: Any) -> Any:
    model.graph.append(node)
    return node.outputs[0]


def _initializer(model: Any, name: str, array: np.ndarray) -> Any:
    ir = need("onnx_ir")
    if array.dtype == object:
        tensor = ir.StringTensor([text.encode() for text in array], shape=ir.Shape(array.shape), name=name)
    else:
        tensor = ir.Tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    model.graph.register_initializer(value)
    return value


def _id_table(ids: Any, rows: Any) -> np.ndarray:
    """(M + 1,) int64 or strings, the id of what is missing at the end."""
    if rows is None:
        raise ValueError("ids are given for a gallery that is an input of the graph; map its row numbers outside")
    table = np.asarray(ids.detach().cpu() if isinstance(ids, Tensor) else ids)
    if table.shape != (rows.shape[0],):
        raise ValueError(f"ids have shape {table.shape}; it must be ({rows.shape[0]},), one id for each row of gallery")
    if table.dtype.kind in "iu":
        return np.append(table.astype(np.int64), -1)
    if table.dtype.kind in "UT" or (table.dtype == object and all(isinstance(one, str) for one in table)):
        return np.array([*map(str, table), ""], dtype=object)
    raise TypeError(f"ids are {table.dtype}; they must be integers or strings")


def _metadata(k: int, similarity: str, kind: str, dim: int | None) -> dict[str, str]:
    return {
        "pairloom.version": pairloom.__version__,
        "pairloom.similarity": similarity,
        "pairloom.normalized": str(similarity == "cosine").lower(),
        "pairloom.k": str(k),
        "pairloom.gallery": kind,
        "pairloom.dim": "any" if dim is None else str(dim),
    }


def _save(model: Any, path: Path, external_data: bool | None) -> None:
    """Write, and have the checker read it: structure, types and shapes."""
    ir, onnx = need("onnx_ir"), need("onnx")
    if external_data is None:
        tensors = (value.const_value for value in model.graph.initializers.values())
        external_data = sum(tensor.nbytes for tensor in tensors if tensor.dtype != ir.DataType.STRING) > LARGEST_FILE
    beside = f"{path.name}.data" if external_data else None
    ir.save(model, path, external_data=beside, size_threshold_bytes=LARGEST_NODE_CONSTANT)
    onnx.checker.check_model(str(path), full_check=True)


# --- the check --------------------------------------------------------------------------------------------------------
def _check(
    path: Path,
    encoder: nn.Module | None,
    rows: Any,
    names: np.ndarray | None,
    k: int,
    similarity: str,
    precision: str,
    args: tuple[Any, ...],
    dim: int | None,
    portable: bool,
    tolerance: float,
) -> None:
    """Run the file on random inputs, with and without our library, and compare with `topk`."""
    from pairloom.deploy import ort_library

    generator = torch.Generator().manual_seed(0)
    searched: Any = rows
    if rows is None:
        searched = torch.randn(50, dim or 16, generator=generator)
    elif not isinstance(rows, Int8Gallery):
        searched = Int8Gallery(rows) if precision == "int8" else as_tensor(_as_array(rows, precision))
    batches = [args, *_random_batches(args, searched, generator)] if encoder is not None else None
    if batches is None:
        batches = [(torch.randn(size, searched.shape[1], generator=generator),) for size in (3, 1)]
    for library in [(), (ort_library(),)][: 1 if portable else 2]:
        session = onnx_runtime(path, *library)
        for batch in batches:
            tensors = [argument for argument in batch if isinstance(argument, Tensor)]
            if rows is None:
                tensors.append(searched)
            inputs = [node.name for node in session.get_inputs()]
            if len(inputs) != len(tensors):
                raise RuntimeError(f"{path} has inputs {inputs} for {len(tensors)} tensors: some argument is not used")
            feed = {name: tensor.numpy() for name, tensor in zip(inputs, tensors, strict=True)}
            scores, ids = session.run(None, feed)
            if encoder is None:
                (embeddings,) = batch
            else:
                with inference(encoder):
                    embeddings = encoder(*batch).float()
            expected = topk(embeddings, searched, k, similarity=similarity)
            what = f"{path} ({'with' if library else 'without'} our library, batch of {len(scores)})"
            check_answers(what, (scores, ids), expected, names, embeddings, searched, similarity, tolerance)


def _random_batches(args: tuple[Any, ...], searched: Any, generator: torch.Generator) -> list[tuple[Any, ...]]:
    """One item of the example, and the example with random numbers where it holds floats."""

    def drawn(argument: Any) -> Any:
        if isinstance(argument, Tensor) and argument.dtype.is_floating_point and argument.dim() > 0:
            return torch.randn(argument.shape, generator=generator).to(argument.dtype)
        return argument

    one = tuple(a[:1] if isinstance(a, Tensor) and a.dim() > 0 else a for a in args)
    return [one, tuple(drawn(argument) for argument in args)]
