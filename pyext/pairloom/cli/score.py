"""`pairloom score`: the best rows of a gallery for every query, by an exported file or by a gallery; without torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from pairloom._progress import progress_bar
from pairloom.cli import _results
from pairloom.cli._app import Screen, Similarity, app, usage_error
from pairloom.cli._tables import check_dimensions, read_array, read_id_lists, read_ids, read_matrix

Search = Callable[[slice], "tuple[np.ndarray, np.ndarray]"]
"""Some of the queries -> scores and ids."""

EPILOG = """\
Examples:

\b
  pairloom score --model retriever.onnx --queries queries.npy -o found.csv
  pairloom score --gallery gallery.npy --queries queries.npy -k 10 -o -
"""


@app.command(short_help="Find the best rows for every query; needs no torch.", epilog=EPILOG)
def score(
    queries: Annotated[
        Path,
        typer.Option(
            help="What to search for, one row each: .npy (memory-mapped), .npz with one array, .csv of numbers or "
            ".parquet (a column of lists, or columns of numbers). With --model, what its encoder takes."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help=_results.HELP)],
    model: Annotated[Path | None, typer.Option(help="File that `pairloom export` or to_onnx wrote (.onnx).")] = None,
    gallery: Annotated[
        Path | None, typer.Option(help="Embeddings to search, one row each, in the formats of --queries.")
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "-k",
            min=1,
            help="Results per query. With --model at most those of the file.",
            show_default="10, or all of the file's",
        ),
    ] = None,
    similarity: Annotated[
        Similarity | None, typer.Option(help="With --gallery: larger is better.", show_default="cosine")
    ] = None,
    screen: Annotated[
        Screen | None,
        typer.Option(
            help="With --gallery: find the same answers sooner by codes of few bits, kept beside a .npy.",
            show_default="none",
        ),
    ] = None,
    ids: Annotated[
        Path | None,
        typer.Option(
            help="With --gallery: an id for each row, integers or strings; .npy, .csv or .parquet with one column.",
            show_default="row numbers from 0",
        ),
    ] = None,
    exclude: Annotated[
        Path | None,
        typer.Option(
            help="With --gallery: rows that are no answer. .csv: a line for each query, with row numbers (from 0) "
            "separated by commas or spaces, empty for none; or .npy (queries,) or (queries, n), -1 for none."
        ),
    ] = None,
    stock: Annotated[bool, typer.Option("--stock", help="With --model: run it without pairloom's kernels.")] = False,
    batch: Annotated[int, typer.Option(min=1, help="Queries at a time; more take more memory.")] = 1024,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads to use.", show_default="all cores")] = None,
) -> None:
    """Find the best rows of a gallery, or of a model's, for every query. Needs no torch."""
    if (model is None) == (gallery is None):
        usage_error("pass one of --model and --gallery")
    if output != _results.STDOUT:
        _results.check_output(output)
    if model is not None:
        of_gallery = {"--similarity": similarity, "--screen": screen, "--ids": ids, "--exclude": exclude}
        for name, value in of_gallery.items():
            if value is not None:
                usage_error(f"{name} goes with --gallery; a model has its own")
        count, search = _by_model(model, queries, k, stock, threads)
    else:
        assert gallery is not None
        if stock:
            usage_error("--stock goes with --model")
        chosen = Similarity.cosine if similarity is None else similarity
        count, search = _by_gallery(gallery, queries, k or 10, chosen, screen, ids, exclude, threads)
    _run(search, count, batch, output)


def _run(search: Search, count: int, batch: int, output: Path) -> None:
    shown = _results.progress_wanted(output)
    with _results.results(output) as write, progress_bar(shown, "scoring", count) as advance:
        for first in range(0, max(count, 1), batch):  # no queries: the search still says what kind ids have
            last = min(first + batch, count)
            write(*search(slice(first, last)))
            advance(last - first)


def _by_gallery(
    path: Path,
    queries_path: Path,
    k: int,
    similarity: Similarity,
    screen: Screen | None,
    ids_path: Path | None,
    exclude_path: Path | None,
    threads: int | None,
) -> tuple[int, Search]:
    from pairloom.deploy import Scorer

    queries, gallery = read_matrix("--queries", queries_path), read_matrix("--gallery", path)
    check_dimensions("--queries", queries, "--gallery", gallery)
    ids = None if ids_path is None else read_ids("--ids", ids_path, len(gallery))
    excluded = None if exclude_path is None else read_id_lists("--exclude", exclude_path, len(queries))
    if excluded is not None and excluded[1].size and not 0 <= excluded[1].min() <= excluded[1].max() < len(gallery):
        raise ValueError(
            f"--exclude {exclude_path} has the rows {excluded[1].min()} to {excluded[1].max()}; "
            f"--gallery has the rows 0 to {len(gallery) - 1}"
        )
    if excluded is not None and ids is not None:  # a scorer knows its rows by their ids
        excluded = excluded[0], np.asarray(ids)[excluded[1]]
    settings: dict[str, Any] = {
        "similarity": similarity.value,
        "ids": ids,
        "screen": None if screen is None else screen.value,
        "threads": threads,
    }
    # Codes of a memory-mapped file are kept beside it.
    scorer = Scorer.open(path, **settings) if path.suffix.lower() == ".npy" else Scorer(gallery, **settings)

    def search(some: slice) -> tuple[np.ndarray, np.ndarray]:
        if excluded is None:
            return scorer(queries[some], k)
        ends = excluded[0][some.start : some.stop + 1]
        return scorer(queries[some], k, exclude=(ends - ends[0], excluded[1][ends[0] : ends[-1]]))

    return len(queries), search


def _by_model(path: Path, queries_path: Path, k: int | None, stock: bool, threads: int | None) -> tuple[int, Search]:
    queries, session = read_array("--queries", queries_path), _session(path, stock, threads)
    stored = int(session.get_modelmeta().custom_metadata_map["pairloom.k"])
    if k is not None and k > stored:
        raise ValueError(
            f"-k is {k}, and {path} was exported with k = {stored}; pass {stored} or less, or export again"
        )
    inputs = session.get_inputs()
    if len(inputs) != 1:
        names = ", ".join(node.name for node in inputs)
        raise ValueError(f"--model {path} has {len(inputs)} inputs ({names}); `pairloom score` serves models of one")
    (node,) = inputs
    wanted = node.shape[1:]
    if queries.ndim != len(node.shape) or any(
        isinstance(size, int) and size != there for size, there in zip(wanted, queries.shape[1:], strict=True)
    ):
        shapes = ", ".join(map(str, ["queries", *wanted]))
        raise ValueError(f"--queries {queries_path} has shape {queries.shape}; --model {path} takes ({shapes})")
    dtype = _numpy_type(node.type)
    if dtype.kind in "iu" and queries.dtype.kind == "f" and bool((queries != np.trunc(queries)).any()):
        raise ValueError(f"--queries {queries_path} holds {queries.dtype}; --model {path} takes {dtype}")

    def search(some: slice) -> tuple[np.ndarray, np.ndarray]:
        try:
            scores, ids = session.run(["scores", "ids"], {node.name: np.asarray(queries[some], dtype, order="C")})
        except Exception as error:  # the runtime's errors have no common base of their own
            raise ValueError(f"--model {path} fails on queries {some.start} to {some.stop - 1}: {error}") from None
        return scores[:, :k], ids[:, :k]

    return len(queries), search


def _numpy_type(name: str) -> np.dtype[Any]:
    """Of "tensor(float)" and its like."""
    word = name.removeprefix("tensor(").removesuffix(")")
    kind = {"float": "float32", "double": "float64"}.get(word, word)
    try:
        return np.dtype(kind)
    except TypeError:
        raise ValueError(f"--model takes a {name}; `pairloom score` feeds tensors of numbers") from None


def _session(path: Path, stock: bool, threads: int | None) -> Any:
    from pairloom.deploy import ort_library

    if not path.is_file():
        raise ValueError(f"--model is {path}, and there is no such file")
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise ImportError("--model needs onnxruntime, which is not installed; run `pip install onnxruntime`") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised too
    if threads is not None:
        options.intra_op_num_threads = threads
    if not stock:
        options.register_custom_ops_library(ort_library())
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ValueError(f"--model {path} does not load: {error}") from None
    outputs = [node.name for node in session.get_outputs()]
    if outputs != ["scores", "ids"] or "pairloom.k" not in session.get_modelmeta().custom_metadata_map:
        raise ValueError(f"--model {path} is no retriever that pairloom exported: its outputs are {', '.join(outputs)}")
    return session
