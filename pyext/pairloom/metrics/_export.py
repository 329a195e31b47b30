"""Metrics in exported graphs: the formula on the whole matrix in place of the walk in blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Metric = TypeVar("Metric", bound=Callable[..., Any])


def exported_as(dense: Callable[..., Any]) -> Callable[[Metric], Metric]:
    """While ``torch.onnx.export`` traces, the metric is ``dense``: 0-d float64 tensors, O(Q M) memory."""

    def decorate(metric: Metric) -> Metric:
        @functools.wraps(metric)
        def either(*args: Any, **kwargs: Any) -> Any:
            return (dense if torch.onnx.is_in_onnx_export() else metric)(*args, **kwargs)

        return either  # type: ignore[return-value]

    return decorate
