"""What the exporters to ONNX share: packages that may be missing, a quieter exporter, and the runtime."""

from __future__ import annotations

import importlib
import logging
import os
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def need(package: str) -> Any:
    """An optional package, or one sentence on how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"export to ONNX needs {package}, which is not installed; run `pip install pairloom[onnx]`"
        ) from error


def onnx_runtime(path: str | os.PathLike[str], *libraries: str) -> Any:
    """A session of ONNX Runtime on the CPU, with libraries of custom operators."""
    runtime = need("onnxruntime")
    options = runtime.SessionOptions()
    for library in libraries:
        options.register_custom_ops_library(library)
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def reason(error: BaseException) -> str:
    """The first line of what lies at the bottom of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def less_noise() -> Iterator[None]:
    """Without the exporter's remarks on torchvision, on names of axes and on itself; its errors stay."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, message=".*LeafSpec.*")
            warnings.filterwarnings("ignore", category=UserWarning, message=".*(axis name|dynamic axes).*")
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def own_errors() -> Iterator[None]:
    """What this package refused while torch traced a module, as it was said: the exporter hides it in a long report."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not _is_own(cause):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause from None


def _is_own(error: BaseException) -> bool:
    """Whether a function of this package refused an argument."""
    if not isinstance(error, (TypeError, ValueError)):
        return False
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return modules[-1:] != [] and modules[-1].split(".")[0] == "pairloom"


def without_traces(graph: Any) -> None:
    """Take away what the exporter notes at every node and value: stack traces with the paths of this machine."""
    for node in graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    graph.metadata_props.clear()
    for value in [*graph.inputs, *graph.outputs]:
        value.metadata_props.clear()
