"""Types of the compiled module csrc/python/native.cpp."""

from typing import Any

import numpy as np

def build_info() -> dict[str, Any]: ...
def isa() -> str: ...
def isa_available() -> list[str]: ...
def set_isa(name: str) -> None: ...
def fma_rate(seconds: float = 0.1) -> float: ...
def product_seconds(n: int, m: int, dim: int) -> float: ...
def topk(
    queries: np.ndarray,
    gallery: np.ndarray,
    k: int,
    similarity: str,
    exclude_indptr: np.ndarray | None = None,
    exclude_indices: np.ndarray | None = None,
    inverse_norms: np.ndarray | None = None,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray]: ...
def inverse_norms(rows: np.ndarray, wide: bool = False, threads: int = 1) -> np.ndarray: ...
def code_rows(rows: np.ndarray, format: str, threads: int = 1) -> tuple[np.ndarray, np.ndarray]: ...
def screened_topk(
    queries: np.ndarray,
    gallery: np.ndarray,
    codes: np.ndarray,
    records: np.ndarray,
    k: int,
    similarity: str,
    exclude_indptr: np.ndarray | None = None,
    exclude_indices: np.ndarray | None = None,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]: ...
def coded_topk(
    queries: np.ndarray,
    codes: np.ndarray,
    records: np.ndarray,
    k: int,
    similarity: str,
    exclude_indptr: np.ndarray | None = None,
    exclude_indices: np.ndarray | None = None,
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray]: ...
