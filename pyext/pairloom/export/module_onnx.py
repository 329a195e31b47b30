"""Export of any module to ONNX, in standard operators only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pairloom._registry import records
from pairloom.export._common import as_tuple, batch_shapes, compare, inference
from pairloom.export._onnx import less_noise, need, onnx_runtime, own_errors, without_traces
from pairloom.reference._rows import standard_log1p
from pairloom.reference.triplet_margin import standard_searchsorted

STANDARD_DOMAINS = {"", "ai.onnx"}


def module_to_onnx(
    module: nn.Module,
    args: Sequence[Any],
    path: str | Path,
    *,
    dynamic_batch: bool = True,
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int | None = None,
    check: bool = True,
    tolerance: float = 1e-5,
) -> Path:
    """Write ``module`` as one ONNX file of standard operators, and check it in ONNX Runtime.

    The module may call every function and loss of this package: they become the formulas of `pairloom.reference`. It is
    exported in eval mode. Weights are inside the file (ONNX files end at 2 GB).

    Args:
        module: what to export.
        args: example arguments of ``module.forward``; two or more rows when the batch is dynamic.
        path: the file to write.
        dynamic_batch: whether the first dimension of all tensor arguments is one batch of any size.
        dynamic_shapes: instead of ``dynamic_batch``, as in `torch.export.export`.
        input_names: names of the inputs; the argument names of ``forward`` by default.
        output_names: names of the outputs.
        opset: version of the ONNX operators; the exporter's default when None.
        check: whether to run the file in ONNX Runtime on ``args`` (and on one row of it, when the batch is dynamic).
        tolerance: largest difference of float outputs, absolute and relative; integer outputs must be equal.

    Returns:
        The path.

    Raises:
        ImportError: onnx, onnxscript or onnxruntime is missing.
        ValueError, TypeError: the arguments cannot be one dynamic batch, or a function of this package refuses what
            the module hands it.
        RuntimeError: the graph holds other than standard operators, or its outputs differ from the module's.

    Example:
        >>> import tempfile, torch, pairloom
        >>> gallery = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
        >>> retriever = pairloom.export.Retriever(torch.nn.Linear(4, 8), gallery, k=5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pairloom.export.module_to_onnx(retriever, (torch.randn(3, 4),), folder + "/retriever.onnx").name
        'retriever.onnx'
    """
    onnx = need("onnx")
    need("onnxscript")
    if check:
        need("onnxruntime")
    path = Path(path)
    args = tuple(args)
    if dynamic_shapes is None and dynamic_batch:
        dynamic_shapes = batch_shapes(args)
    with inference(module), less_noise(), own_errors():
        program = torch.onnx.export(
            module,
            args,
            dynamo=True,
            dynamic_shapes=dynamic_shapes,
            input_names=input_names,
            output_names=output_names,
            opset_version=opset,
            verbose=False,
        )
        assert program is not None
        without_traces(program.model.graph)
        program.save(path, external_data=False)
        onnx.checker.check_model(str(path))
        strange = {f"{node.domain}::{node.op_type}" for node in _nodes(onnx.load(str(path)).graph)}
        strange = {name for name in strange if name.split("::")[0] not in STANDARD_DOMAINS}
        if strange:
            raise RuntimeError(f"{path} holds operators that stock ONNX Runtime does not have: {sorted(strange)}")
        if check:
            _check(path, module, args, tolerance)
            if dynamic_batch and any(isinstance(argument, Tensor) for argument in args):
                one = tuple(a[:1] if isinstance(a, Tensor) and a.dim() > 0 else a for a in args)
                _check(path, module, one, tolerance)
    return path


def onnx_decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """Table for programs that already hold pairloom operators: the plain-torch body of each of them, log1p and
    searchsorted.

    `torch.onnx.export` of a module needs no table. A saved `torch.export.ExportedProgram` does:

        program = torch.export.load("loss.pt2").run_decompositions(pairloom.export.onnx_decompositions())
        torch.onnx.export(program, args, "loss.onnx")
    """
    return {
        **{record.op: record.without_kernel for record in records()},
        torch.ops.aten.log1p.default: standard_log1p,
        torch.ops.aten.searchsorted.Tensor: standard_searchsorted,
    }


def _check(path: Path, module: nn.Module, args: tuple[Any, ...], tolerance: float) -> None:
    """Run the file and the module on the same arguments."""
    tensors = [argument for argument in args if isinstance(argument, Tensor)]
    session = onnx_runtime(path)
    names = [node.name for node in session.get_inputs()]
    if len(names) != len(tensors):
        raise RuntimeError(f"{path} has inputs {names} for {len(tensors)} tensors: some argument is not used")
    feed = {name: tensor.detach().numpy() for name, tensor in zip(names, tensors, strict=True)}
    outputs = [torch.as_tensor(output) for output in session.run(None, feed)]
    compare(str(path), outputs, as_tuple(module(*args)), tolerance)


def _nodes(graph: Any) -> list[Any]:
    """All nodes, those inside control flow included."""
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                found += _nodes(body)
    return found
