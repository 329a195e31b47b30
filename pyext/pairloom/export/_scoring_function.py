"""The scoring operators as ONNX functions: bodies of standard operators for runtimes without our library.

    pairloom.TopKSimilarity <k, similarity> (queries, gallery, codes?, records?) -> (scores, indices)
    pairloom.TopKInt8       <k, similarity> (queries, codes, records)            -> (scores, indices)

A body is what the exporter makes of the reference (decision 8), so there is no second definition. It is made for one k,
one similarity and, where it is known, one size of the gallery; the attributes are for the kernels of csrc/ort.
``codes`` and ``records`` of TopKSimilarity help only these: the body does without.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pairloom.export._onnx import less_noise, need, without_traces
from pairloom.gallery import Int8Gallery
from pairloom.reference.coded_topk import coded_topk_standard
from pairloom.reference.topk import topk_standard

DOMAIN = "pairloom"
TOPK, TOPK_INT8 = "TopKSimilarity", "TopKInt8"
OUTPUTS = ("scores", "indices")


class _Topk(nn.Module):
    def __init__(self, k: int, similarity: str) -> None:
        super().__init__()
        self.k = k
        self.similarity = similarity

    def forward(self, queries: Tensor, gallery: Tensor) -> tuple[Tensor, Tensor]:
        return topk_standard(queries, gallery, self.k, self.similarity)


class _CodedTopk(_Topk):
    def forward(self, queries: Tensor, codes: Tensor, records: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return coded_topk_standard(queries, codes, records, self.k, self.similarity)


def topk_function(
    k: int, similarity: str, rows: int | None, dim: int | None, dtype: torch.dtype, opset: int | None
) -> Any:
    """TopKSimilarity as an `onnx_ir.Function`, for a gallery of some rows and dimensions, or of any (None)."""
    rows = rows or None  # the exporter has no constant size of 0
    gallery = torch.empty(1, 1, dtype=dtype).expand(rows or 7, dim or 5)  # takes no memory
    queries = torch.empty(3, dim or 5)
    dimension = {} if dim is not None else {1: torch.export.Dim("dim")}
    shapes = (
        {0: torch.export.Dim("batch"), **dimension},
        {**({} if rows is not None else {0: torch.export.Dim("rows")}), **dimension},
    )
    function = _function(TOPK, _Topk(k, similarity), (queries, gallery), shapes, ["queries", "gallery"], opset)
    ir = need("onnx_ir")
    function.inputs.extend([ir.Value(name="codes"), ir.Value(name="records")])
    return function


def coded_topk_function(k: int, similarity: str, gallery: Int8Gallery, opset: int | None) -> Any:
    """TopKInt8 as an `onnx_ir.Function`, for a gallery of this size."""
    shapes = ({0: torch.export.Dim("batch")}, None, None)
    example = (torch.empty(3, gallery.shape[1]), *gallery._codes)
    return _function(TOPK_INT8, _CodedTopk(k, similarity), example, shapes, ["queries", "codes", "records"], opset)


def _function(
    name: str, body: _Topk, args: tuple[Tensor, ...], shapes: Any, inputs: list[str], opset: int | None
) -> Any:
    ir = need("onnx_ir")
    with torch.no_grad(), less_noise():
        program = torch.onnx.export(
            body.eval(),
            args,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=inputs,
            output_names=list(OUTPUTS),
            opset_version=opset,
            verbose=False,
        )
    assert program is not None
    graph = program.model.graph
    without_traces(graph)
    # A function has no initializers.
    constants = []
    for value in list(graph.initializers.values()):
        constant = ir.node("Constant", [], {"value": value.const_value}, name=f"{value.name}_constant")
        value.replace_all_uses_with(constant.outputs[0])
        constant.outputs[0].name = value.name
        constants.append(constant)
    graph.initializers.clear()
    if constants:
        graph.insert_before(graph[0], constants)
    attributes = [ir.AttrInt64("k", body.k), ir.AttrString("similarity", body.similarity)]
    return ir.Function(DOMAIN, name, graph=graph, attributes=attributes)
