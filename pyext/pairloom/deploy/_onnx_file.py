"""The gallery inside an ONNX file that `pairloom.export.to_onnx` wrote."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pairloom._codes import Codes


class StoredGallery(NamedTuple):
    """What the file holds."""

    embeddings: np.ndarray | None
    codes: Codes | None
    ids: np.ndarray | None
    similarity: str
    k: int
    dim: int


def read_gallery(path: str | os.PathLike[str]) -> StoredGallery:
    """Arrays beside the graph are memory-mapped.

    Raises:
        ImportError: onnx is missing.
        ValueError: another file, or one whose gallery is an input.
    """
    try:
        import onnx
    except ImportError as error:
        raise ImportError("Scorer.from_onnx needs onnx, which is not installed; run `pip install onnx`") from error
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"path {path} does not exist")
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's errors have no common base
        raise ValueError(f"path {path} is no ONNX file: {error}") from None
    facts = {entry.key: entry.value for entry in model.metadata_props}
    kind = facts.get("pairloom.gallery")
    if kind is None:
        raise ValueError(f"path {path} has no gallery: it was not written by pairloom.export.to_onnx")
    if kind == "input":
        raise ValueError(f"path {path} has no gallery: it is an input of the graph; pass the array to Scorer instead")
    stored = {tensor.name: tensor for tensor in model.graph.initializer if tensor.name.startswith("gallery")}
    arrays = {name: _array(tensor, path, onnx) for name, tensor in stored.items()}
    codes = None
    if "gallery_codes" in arrays:
        codes = Codes(arrays["gallery_codes"], arrays["gallery_records"])
    ids = arrays.get("gallery_ids")
    return StoredGallery(
        embeddings=arrays.get("gallery"),
        codes=codes,
        ids=None if ids is None else ids[:-1],
        similarity=facts["pairloom.similarity"],
        k=int(facts["pairloom.k"]),
        dim=int(facts["pairloom.dim"]),
    )


def _array(tensor: Any, path: Path, onnx: Any) -> np.ndarray:
    if tensor.data_type == onnx.TensorProto.STRING:
        return np.array([text.decode() for text in tensor.string_data], dtype=object)
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return onnx.numpy_helper.to_array(tensor)
    where = {entry.key: entry.value for entry in tensor.external_data}
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if Path(where["location"]).name != where["location"]:
        raise ValueError(f"path {path} keeps its gallery in {where['location']!r}; it must be a file beside it")
    file = path.parent / where["location"]
    if not file.is_file():
        raise FileNotFoundError(f"path {path} keeps its gallery in {file.name}, which is not beside it")
    return np.memmap(file, dtype, "r", offset=int(where.get("offset", 0)), shape=tuple(tensor.dims))
