"""The ONNX graph of a retriever: encoder, scoring node, ids; and the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pairloom
from pairloom._arrays import narrowed
from pairloom.export._common import batch_shapes, inference
from pairloom.export._onnx import less_noise, need, reason, without_traces
from pairloom.export._scoring_function import DOMAIN, TOPK, TOPK_INT8, coded_topk_function, topk_function
from pairloom.gallery import Gallery, Int8Gallery

LARGEST_FILE = 2**31 - 2**24
"""Bytes of a file without a second one for its data: protobuf ends at 2 GiB, and the graph needs some of it."""
LARGEST_NODE_CONSTANT = 1024
"""Bytes of a weight that stays in the graph when there is a second file."""
OUR_NAMES = ("scores", "ids", "indices", "gallery", "gallery_codes", "gallery_records", "gallery_ids")
"""Values of the scoring: what the rest of a graph must not be called."""


@dataclass(frozen=True)
class Retrieval:
    """What a file answers: the arguments of `pairloom.export.to_onnx`, checked."""

    encoder: nn.Module | None
    args: tuple[Any, ...]
    rows: Tensor | np.ndarray | Int8Gallery | None
    names: np.ndarray | None
    """(M + 1,) int64 or strings: ids of the rows, that of what is missing at the end."""
    k: int
    similarity: str
    precision: str
    screen: str | None

    def array(self) -> np.ndarray:
        """The rows in the precision; a memory map stays one where it has it."""
        rows = self.rows
        if isinstance(rows, Tensor):
            rows = (rows.float() if rows.dtype == torch.bfloat16 else rows).numpy()
        assert isinstance(rows, np.ndarray)
        return narrowed("gallery", rows, np.dtype(self.precision), f"it is to be stored as {self.precision}")

    def coded(self) -> Int8Gallery:
        """The rows as int8 alone."""
        assert self.rows is not None
        return self.rows if isinstance(self.rows, Int8Gallery) else Int8Gallery(self.rows)


def retriever_model(retrieval: Retrieval, dynamic_shapes: Any, input_names: Any, opset: int | None) -> Any:
    """The model, an `onnx_ir.Model`."""
    if retrieval.encoder is None:
        model, embeddings = _model_of_embeddings(retrieval.rows, opset)
    else:
        model, embeddings = _model_of_encoder(retrieval.encoder, retrieval.args, dynamic_shapes, input_names, opset)
    size = embeddings.shape[1]
    dim = size if isinstance(size, int) else None
    if retrieval.rows is not None and dim != retrieval.rows.shape[1]:
        raise ValueError(
            f"gallery has rows of {retrieval.rows.shape[1]} numbers, and the encoder gives {dim}; they must be equal"
        )
    _append_scoring(model, embeddings, retrieval, dim)
    if retrieval.names is not None:
        _append_ids(model, retrieval.names)
    model.metadata_props.update(_metadata(retrieval, dim))
    return model


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
) -> tuple[Any, Any]:
    """The encoder's model without outputs, and its embeddings in float32."""
    ir = need("onnx_ir")
    any_batch = dynamic_shapes is None
    if any_batch:
        dynamic_shapes = batch_shapes(args)
    with inference(encoder), less_noise():
        outputs = encoder(*args)
        if not isinstance(outputs, Tensor) or outputs.dim() != 2:
            what = (
                f"a tensor of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else type(outputs).__name__
            )
            raise ValueError(f"encoder gives {what}; it must give embeddings (batch, dimensions)")
        if outputs.dtype == torch.bfloat16:
            raise ValueError("encoder gives bfloat16, for which ONNX Runtime has no kernels; export encoder.float()")
        try:
            program = torch.onnx.export(
                encoder,
                args,
                dynamo=True,
                dynamic_shapes=dynamic_shapes,
                input_names=input_names,
                opset_version=opset,
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise ValueError(
                f"encoder cannot be exported for batches of any size; torch's exporter says: {reason(error)}"
            ) from error
    assert program is not None
    model: Any = program.model
    without_traces(model.graph)
    (embeddings,) = model.graph.outputs
    if any_batch and isinstance(embeddings.shape[0], int):
        raise ValueError(
            f"encoder takes a batch of {embeddings.shape[0]} alone, as torch.export sees it: something in it depends "
            "on that number; make it independent, or pass dynamic_shapes"
        )
    model.graph.outputs.clear()
    _settle_names(model, embeddings)
    shape = ir.Shape([embeddings.shape[0], outputs.shape[1]])
    if embeddings.dtype != ir.DataType.FLOAT:
        embeddings = _append(model, ir.node("Cast", [embeddings], {"to": ir.DataType.FLOAT}))
        embeddings.type = ir.TensorType(ir.DataType.FLOAT)
    embeddings.shape = shape
    return model, embeddings


def _settle_names(model: Any, embeddings: Any) -> None:
    """Inputs are called what the encoder calls them, and nothing else as we call what is to come."""
    for value in model.graph.inputs:
        # An encoder that gives back its input: the exporter lets the output have the name.
        own = value.name.removesuffix("_orig")
        if own != value.name and own == embeddings.name:
            embeddings.name = f"{own}_embeddings"
            value.name = own
        if value.name in OUR_NAMES:
            raise ValueError(
                f"encoder has an input called {value.name!r}, as something else in the file is called; pass input_names"
            )
    values = [*model.graph.initializers.values(), *(out for node in model.graph for out in node.outputs)]
    for value in values:
        if value.name in OUR_NAMES:
            value.name = f"encoder_{value.name}"


def _append_scoring(model: Any, embeddings: Any, retrieval: Retrieval, dim: int | None) -> None:
    ir = need("onnx_ir")
    k, similarity, opset = retrieval.k, retrieval.similarity, model.opset_imports[""]
    if retrieval.rows is None:
        shape = ir.Shape(["rows", dim or "dim"])
        stored = [ir.Value(name="gallery", type=ir.TensorType(ir.DataType.FLOAT), shape=shape)]
        model.graph.inputs.extend(stored)
        operator, function = TOPK, topk_function(k, similarity, None, dim, torch.float32, opset)
    elif retrieval.precision == "int8":
        gallery = retrieval.coded()
        stored = _codes_of(model, gallery)
        operator, function = TOPK_INT8, coded_topk_function(k, similarity, gallery, opset)
    else:
        array = retrieval.array()
        stored = [_initializer(model, "gallery", array)]
        if retrieval.screen is not None:
            stored += _codes_of(model, Gallery(array, screen=retrieval.screen))
        dtype = getattr(torch, array.dtype.name)
        operator, function = TOPK, topk_function(k, similarity, len(array), dim, dtype, opset)
    attributes = {"k": k, "similarity": similarity}
    node = ir.node(operator, [embeddings, *stored], attributes, domain=DOMAIN, num_outputs=2, name="scoring")
    for output, name, kind in zip(node.outputs, ("scores", "ids"), (ir.DataType.FLOAT, ir.DataType.INT64), strict=True):
        output.name, output.type, output.shape = name, ir.TensorType(kind), ir.Shape([embeddings.shape[0], k])
    _append(model, node)
    model.graph.outputs.extend(node.outputs)
    model.functions[function.identifier()] = function
    model.opset_imports[DOMAIN] = 1


def _codes_of(model: Any, gallery: Gallery | Int8Gallery) -> list[Any]:
    assert gallery._codes is not None
    codes, records = gallery._codes
    return [
        _initializer(model, "gallery_codes", codes.numpy()),
        _initializer(model, "gallery_records", records.numpy()),
    ]


def _append_ids(model: Any, names: np.ndarray) -> None:
    """Row numbers become ids; -1 counts from the end, where the id of what is missing stands."""
    ir = need("onnx_ir")
    indices = model.graph.outputs[1]
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


def _metadata(retrieval: Retrieval, dim: int | None) -> dict[str, str]:
    return {
        "pairloom.version": pairloom.__version__,
        "pairloom.similarity": retrieval.similarity,
        "pairloom.normalized": str(retrieval.similarity == "cosine").lower(),
        "pairloom.k": str(retrieval.k),
        "pairloom.gallery": "input" if retrieval.rows is None else retrieval.precision,
        "pairloom.dim": "any" if dim is None else str(dim),
    }


def save_model(model: Any, path: Path, external_data: bool | None) -> None:
    """Write, and have the checker read it: structure, types and shapes."""
    ir, onnx = need("onnx_ir"), need("onnx")
    # Strings have no bytes of their own: protobuf holds them in every file.
    values = [value for value in model.graph.initializers.values() if value.dtype != ir.DataType.STRING]
    if external_data is None:
        external_data = sum(value.const_value.nbytes for value in values) > LARGEST_FILE
    if external_data:
        moved = [value for value in values if value.const_value.nbytes > LARGEST_NODE_CONSTANT]
        tensors = [value.const_value for value in moved]
        outside = ir.external_data.convert_tensors_to_external(tensors, path.parent, f"{path.name}.data")
        for value, tensor in zip(moved, outside, strict=True):
            value.const_value = tensor
    ir.save(model, path)
    onnx.checker.check_model(str(path), full_check=True)
