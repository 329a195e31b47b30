"""Benchmarks of pairloom beside its peers; see README.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.family import Family

NAMES = (
    "info_nce",
    "clip",
    "nt_xent",
    "sup_con",
    "multi_similarity",
    "triplet",
    "sparse",
    "products",
    "topk",
    "screening",
    "onnx_runtime",
    "metrix",
    "mix",
    "miners",
)


def family_of(name: str) -> Family:
    """The family that the file of this name defines."""
    return importlib.import_module(f"benchmarks.{name}").FAMILY
