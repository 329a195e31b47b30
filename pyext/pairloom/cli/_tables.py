"""Files with embeddings and ids, read: .npy, .npz, .csv and .parquet; results are written by `_results`.

``name`` is the option that the file came with; messages begin with it.
"""

from __future__ import annotations

import csv
import warnings
import zipfile
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

FLOATS = ("float16", "float32", "float64")
LARGEST_ID = 2**63 - 1


def need_pyarrow() -> Any:
    """pyarrow with its Parquet part, or one sentence on how to get it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise ImportError(
            "Parquet files need pyarrow, which is not installed; run `pip install pairloom[tables]`"
        ) from None
    return pyarrow


def existing(name: str, path: Path, *suffixes: str) -> str:
    """The suffix of a file that is there and of a known kind."""
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        raise ValueError(f"{name} is {path}; it must be a file of {either(suffixes)}")
    if not path.is_file():
        raise ValueError(f"{name} is {path}, and there is no such file")
    return suffix


def read_array(name: str, path: Path, csv_dtype: type = np.float64) -> np.ndarray:
    """Numbers of any shape; a .npy is memory-mapped."""
    suffix = existing(name, path, ".npy", ".npz", ".csv", ".parquet")
    if suffix == ".csv":
        return _csv_numbers(name, path, csv_dtype)
    array = _parquet_matrix(name, path) if suffix == ".parquet" else _numpy_file(name, path)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} {path} holds {array.dtype}; it must hold numbers")
    return array


def read_matrix(name: str, path: Path) -> np.ndarray:
    """(rows, dimensions) of float16, float32 or float64; text and the integers of a Parquet file become float32."""
    array = read_array(name, path, np.float32)
    if path.suffix.lower() == ".parquet" and array.dtype.kind != "f":
        array = array.astype(np.float32)
    if array.dtype.name not in FLOATS:
        raise ValueError(f"{name} {path} holds {array.dtype}; embeddings must be {', '.join(FLOATS)}")
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(f"{name} {path} has shape {array.shape}; it must be (rows, dimensions)")
    return array


def check_dimensions(name: str, matrix: np.ndarray, other_name: str, other: np.ndarray) -> None:
    """Two matrices whose rows can be compared."""
    if matrix.shape[1] != other.shape[1]:
        raise ValueError(
            f"{name} has rows of {matrix.shape[1]} numbers and {other_name} of {other.shape[1]}; they must be equal"
        )


def read_ids(name: str, path: Path, rows: int) -> np.ndarray:
    """(rows,) int64 or strings: one id for each row of a gallery."""
    suffix = existing(name, path, ".npy", ".csv", ".parquet")
    if suffix == ".csv":
        texts = _one_column(name, path)
        if len(texts) == rows + 1:  # one line more than rows: a header
            del texts[0]
        ids = _as_ids(texts)
    elif suffix == ".parquet":
        column = _only_column(name, path)
        if column.null_count:
            raise ValueError(f"{name} {path} has {column.null_count} rows without an id; every row must have one")
        ids = np.array(column.to_pylist())
    else:
        ids = _numpy_file(name, path)
    if ids.shape != (rows,):
        raise ValueError(f"{name} {path} has ids of shape {ids.shape}; it must be ({rows},), one for each row")
    if rows and ids.dtype.kind not in "iuU":
        raise ValueError(f"{name} {path} holds {ids.dtype}; ids must be integers or strings")
    return ids


def read_id_lists(name: str, path: Path, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers per query as CSR: indptr (queries + 1,) and indices; -1 stands for none."""
    suffix = existing(name, path, ".npy", ".csv", ".parquet")
    if suffix == ".npy":
        array = _numpy_file(name, path)
        if array.ndim not in (1, 2):
            raise ValueError(f"{name} {path} has shape {array.shape}; it must be (queries,) or (queries, ids)")
        counts, ids = np.full(len(array), 1 if array.ndim == 1 else array.shape[1]), array.reshape(-1)
    else:
        lists = _csv_lists(name, path, queries) if suffix == ".csv" else _parquet_lists(name, path)
        counts = np.array([len(one) for one in lists], np.int64)
        ids = np.array(list(chain.from_iterable(lists)) or np.empty(0, np.int64))
    if len(counts) != queries:
        raise ValueError(f"{name} {path} has ids for {len(counts)} queries; there are {queries}")
    if ids.dtype.kind not in "iu":
        raise ValueError(f"{name} {path} holds {ids.dtype}; ids must be integers, the numbers of rows")
    some = ids != -1
    before, ends = np.concatenate([[0], some.cumsum()]), np.concatenate([[0], counts.cumsum()])
    return before[ends], ids[some].astype(np.int64)


def either(words: tuple[str, ...]) -> str:
    """In a sentence: a, b or c."""
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _numpy_file(name: str, path: Path) -> np.ndarray:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found
        with found:
            if len(found.files) != 1:
                raise ValueError(f"it holds {len(found.files)} arrays, and must hold one")
            return found[found.files[0]]
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{name} {path} cannot be read as an array of numbers: {error}") from None


def _csv_numbers(name: str, path: Path, dtype: type) -> np.ndarray:
    with path.open(encoding="utf-8-sig") as file:
        first = file.readline()
    if not first.strip():
        raise ValueError(f"{name} {path} is empty, or begins with an empty line")
    header = not all(_is_number(text) for text in first.split(","))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*no data", category=UserWarning)
            numbers: np.ndarray = np.loadtxt(
                path, dtype, comments=None, delimiter=",", skiprows=int(header), encoding="utf-8-sig", ndmin=2
            )
    except ValueError as error:
        raise ValueError(f"{name} {path} is no table of numbers: {error}") from None
    return numbers if numbers.size else np.empty((0, first.count(",") + 1), dtype)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _one_column(name: str, path: Path) -> list[str]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = list(csv.reader(file))
    while lines and not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        if len(line) != 1:
            raise ValueError(f"{name} {path} has {len(line)} columns in line {number}; it must be one id a line")
    return [line[0] for line in lines]


def _as_ids(texts: list[str]) -> np.ndarray:
    """Integers if all of them are, written as Python writes them: 007 stays a string."""
    try:
        if all(text == str(int(text)) and abs(int(text)) <= LARGEST_ID for text in texts):
            return np.array([int(text) for text in texts], np.int64)
    except ValueError:
        pass
    return np.array(texts)


def _csv_lists(name: str, path: Path, queries: int) -> list[list[int]]:
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    if lines[-1] == "":  # what stands behind the last end of line
        lines.pop()
    header = len(lines) == queries + 1 and _integers(lines[0]) is None
    if len(lines) - header != queries:
        raise ValueError(f"{name} {path} has {len(lines)} lines; there are {queries} queries, and each has one")
    lists = []
    for number, line in enumerate(lines[header:], 1 + header):
        ids = _integers(line)
        if ids is None:
            raise ValueError(
                f"{name} {path} has {line.strip()!r} in line {number}; it must be row numbers with commas or spaces"
            )
        lists.append(ids)
    return lists


def _integers(line: str) -> list[int] | None:
    try:
        return [int(text) for text in line.replace(",", " ").replace('"', " ").split()]
    except ValueError:
        return None


def _parquet_lists(name: str, path: Path) -> list[list[Any]]:
    values = _only_column(name, path).to_pylist()
    return [[] if one is None else one if isinstance(one, list) else [one] for one in values]


def _only_column(name: str, path: Path) -> Any:
    table = _parquet(name, path)
    if table.num_columns != 1:
        raise ValueError(f"{name} {path} has the columns {', '.join(table.column_names)}; it must have one")
    return table.column(0)


def _parquet(name: str, path: Path) -> Any:
    pyarrow = need_pyarrow()
    try:
        return pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{name} {path} cannot be read as Parquet: {error}") from None


def _parquet_matrix(name: str, path: Path) -> np.ndarray:
    """One column of lists of the same length, or numeric columns side by side."""
    pyarrow, table = need_pyarrow(), _parquet(name, path)
    types, fields = pyarrow.types, list(table.schema)
    if len(fields) == 1 and (
        types.is_list(fields[0].type) or types.is_large_list(fields[0].type) or types.is_fixed_size_list(fields[0].type)
    ):
        column = table.column(0).combine_chunks()
        lengths = pyarrow.compute.unique(pyarrow.compute.list_value_length(column)).to_pylist()
        values = pyarrow.compute.list_flatten(column)
        if len(lengths) > 1 or None in lengths or values.null_count:
            raise ValueError(f"{name} {path} has lists of different lengths, or nulls; they must be rows of numbers")
        return values.to_numpy(zero_copy_only=False).reshape(len(column), max(lengths, default=0))
    for field, column in zip(fields, table.columns, strict=True):
        if not (types.is_floating(field.type) or types.is_integer(field.type)) or column.null_count:
            raise ValueError(
                f"{name} {path} has a column {field.name!r} of {field.type} or with nulls; pass a file with one column "
                "of lists, or with nothing but columns of numbers"
            )
    if not fields:
        raise ValueError(f"{name} {path} has no columns")
    return np.column_stack([column.to_numpy() for column in table.columns])
