"""Metrics in exported graphs: the formula on the whole matrix in place of the walk in blocks; one check for both."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Metric = TypeVar("Metric", bound=Callable[..., Any])


def exported_as(dense: Callable[..., Any], check: Callable[..., None]) -> Callable[[Metric], Metric]:
    """While ``torch.onnx.export`` traces, the metric is ``dense``: 0-d float64 tensors, O(Q M) memory.

    ``check`` sees the arguments first, by name and with defaults: what eager mode refuses is in no exported file.
    """

    def decorate(metric: Metric) -> Metric:
        signature = inspect.signature(metric)

        @functools.wraps(metric)
        def either(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            check(**given.arguments)
            return (dense if torch.onnx.is_in_onnx_export() else metric)(*args, **kwargs)

        return either  # type: ignore[return-value]

    return decorate
