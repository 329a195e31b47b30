"""`pairloom export`: a gallery, with an encoder before it or not, as one ONNX file."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from pairloom.cli._app import Similarity, app
from pairloom.cli._results import check_output
from pairloom.cli._tables import existing, read_ids, read_matrix


class Precision(str, Enum):
    """How a gallery is stored."""

    float32 = "float32"
    float16 = "float16"
    int8 = "int8"


class StoredScreen(str, Enum):
    """Codes that a file can hold."""

    int8 = "int8"


EPILOG = """\
Examples:

\b
  pairloom export --gallery gallery.npy --ids ids.csv -k 10 -o retriever.onnx
  pairloom export --gallery gallery.npy --encoder encoder.pt2 \\
    --precision int8 -o small.onnx
"""


@app.command(short_help="Write a gallery, or encoder and gallery, as one ONNX file.", epilog=EPILOG)
def export(
    gallery: Annotated[
        Path,
        typer.Option(
            help="Embeddings to search, one row each: .npy (memory-mapped), .npz with one array, .csv of numbers or "
            ".parquet (a column of lists, or columns of numbers)."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write (.onnx).")],
    k: Annotated[int, typer.Option("-k", min=1, help="Results per query.")] = 10,
    similarity: Annotated[Similarity, typer.Option(help="Larger is better.")] = Similarity.cosine,
    ids: Annotated[
        Path | None,
        typer.Option(
            help="An id for each row, integers or strings; .npy, .csv or .parquet with one column.",
            show_default="row numbers from 0",
        ),
    ] = None,
    precision: Annotated[
        Precision,
        typer.Option(help="How the gallery is stored: 4, 2 or 1 bytes a number. int8 takes cosine and dot."),
    ] = Precision.float32,
    screen: Annotated[
        StoredScreen | None,
        typer.Option(
            help="Store codes too, by which pairloom's kernel finds the same answers sooner: 1 byte more a number.",
            show_default="none",
        ),
    ] = None,
    encoder: Annotated[
        Path | None,
        typer.Option(
            help="From items to embeddings: a program with a dynamic batch, saved with torch.export.save (.pt2).",
            show_default="none: queries are embeddings",
        ),
    ] = None,
    portable: Annotated[
        bool, typer.Option("--portable", help="Standard ONNX operators only, for runtimes that know no functions.")
    ] = False,
    opset: Annotated[
        int | None, typer.Option(min=1, help="Version of the ONNX operators.", show_default="the exporter's")
    ] = None,
    external_data: Annotated[
        bool | None,
        typer.Option(
            "--external-data/--no-external-data",
            help="Write weights and gallery to OUTPUT.data.",
            show_default="only above 2 GiB",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Write a gallery, and an encoder before it, as one ONNX file that answers queries."""
    check_output(output, (".onnx",))
    if encoder is not None:
        existing("--encoder", encoder, ".pt2")
    rows = read_matrix("--gallery", gallery)
    names = None if ids is None else read_ids("--ids", ids, len(rows))

    from pairloom.export import to_onnx

    module, args, inputs = (None, None, None) if encoder is None else load_program(encoder)
    try:
        to_onnx(
            module, rows, k=k, path=output, similarity=similarity.value, args=args, ids=names,
            precision=precision.value, screen=None if screen is None else screen.value, input_names=inputs,
            opset=opset, portable=portable, external_data=external_data,
        )  # fmt: skip
    except RuntimeError as error:  # the file was run and answers otherwise
        raise ValueError(str(error)) from error
    data = output.with_name(f"{output.name}.data")
    files = [output, *([data] if external_data or (external_data is None and data.is_file()) else [])]
    facts = {
        "files": {str(path): path.stat().st_size for path in files},
        "k": k,
        "similarity": similarity.value,
        "precision": precision.value,
        "screen": None if screen is None else screen.value,
        "rows": len(rows),
        "dim": rows.shape[1],
        "encoder": None if encoder is None else str(encoder),
        "ids": None if ids is None else str(ids),
        "portable": portable,
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        show(facts)


def load_program(path: Path) -> tuple[Any, tuple[Any, ...], list[str]]:
    """A saved program as a module, its example arguments, and the names of its inputs."""
    import torch

    try:
        program = torch.export.load(path)
    except Exception as error:  # whatever a file that is something else leads to
        raise ValueError(f"--encoder {path} cannot be read as a program of torch.export.save: {error}") from None
    args, keywords = program.example_inputs or ((), {})
    if not args or keywords:
        raise ValueError(f"--encoder {path} has no example inputs, or some by keyword; export it with positional ones")
    inputs = list(program.graph_signature.user_inputs)
    sizes = {node.name: node.meta["val"].shape[0] for node in program.graph.nodes if node.name in inputs}
    fixed = [f"{name} ({size})" for name, size in sizes.items() if isinstance(size, int)]
    if fixed:
        raise ValueError(
            f"--encoder {path} has inputs of a fixed batch, {', '.join(fixed)}; export it with "
            'torch.export.export(..., dynamic_shapes=({0: torch.export.Dim("batch")},))'
        )
    module = program.module()
    for part in module.modules():
        part.training = False
    # A program has the mode that it was exported in, and refuses to be asked for another.
    module.eval = lambda: module  # type: ignore[method-assign]
    return module, args, inputs


def show(facts: dict[str, Any]) -> None:
    """The same as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for path, size in facts["files"].items():
        table.add_row("written", f"{path} ({megabytes(size)})")
    stored = facts["precision"] + (f", with {facts['screen']} codes" if facts["screen"] else "")
    table.add_row("gallery", f"{facts['rows']:,} rows x {facts['dim']} dimensions, {stored}")
    table.add_row("ids", facts["ids"] or "row numbers")
    table.add_row("encoder", facts["encoder"] or "none: queries are embeddings")
    table.add_row("answers", f"the best {facts['k']} by {facts['similarity']}")
    runs = "standard operators only" if facts["portable"] else "ONNX Runtime; sooner with pairloom's library"
    table.add_row("runs in", runs)
    Console(soft_wrap=False, highlight=False).print(table)


def megabytes(size: int) -> str:
    """Bytes, readable."""
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"
