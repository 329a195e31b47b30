"""`pairloom mine`: hard negatives of every query in a corpus."""

from __future__ import annotations

import warnings
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from pairloom.cli import _results
from pairloom.cli._app import Screen, Similarity, app, usage_error
from pairloom.cli._tables import check_dimensions, read_id_lists, read_matrix


class Strategy(str, Enum):
    """Which of the candidates that pass are taken."""

    top = "top"
    random = "random"


EPILOG = """\
Examples:

\b
  pairloom mine --queries queries.npy --corpus corpus.npy \\
    --positives positives.csv -k 5 --relative-margin 0.05 -o negatives.npz
  pairloom mine --queries queries.npy --corpus corpus.npy \\
    --positives positives.csv --strategy random --seed 0 \\
    --checkpoint mined.npz -o negatives.csv
"""

MATRIX = ".npy (memory-mapped), .npz with one array, .csv of numbers or .parquet (a column of lists, or of numbers)"


@app.command(short_help="Mine hard negatives in a corpus.", epilog=EPILOG)
def mine(
    queries: Annotated[Path, typer.Option(help=f"Embeddings of the queries, one row each: {MATRIX}.")],
    corpus: Annotated[Path, typer.Option(help="Embeddings to mine in, in the same formats.")],
    positives: Annotated[
        Path,
        typer.Option(
            help="Rows of the corpus that are right. .csv: a line for each query, with row numbers (from 0) separated "
            "by commas or spaces, empty for none; or .npy (queries,) or (queries, n), -1 for none; or .parquet."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help=_results.HELP)],
    k: Annotated[int, typer.Option("-k", min=1, help="Negatives per query.")] = 5,
    similarity: Annotated[
        Similarity, typer.Option(help="Larger is better; margins and bounds are on its scale.")
    ] = Similarity.cosine,
    range_min: Annotated[
        int, typer.Option(min=0, help="Ranks to skip: the very best are often unknown positives.")
    ] = 0,
    range_max: Annotated[
        int | None, typer.Option(min=1, help="Rank to stop before.", show_default="range-min + max(10 k, 100)")
    ] = None,
    absolute_margin: Annotated[
        float | None, typer.Option(help="Keep scores this far below that of the lowest positive.", show_default="none")
    ] = None,
    relative_margin: Annotated[
        float | None,
        typer.Option(help="The same, as a share of the positive's score: 0.05 is 5 %.", show_default="none"),
    ] = None,
    max_score: Annotated[float | None, typer.Option(help="Keep scores up to this.", show_default="none")] = None,
    min_score: Annotated[float | None, typer.Option(help="Keep scores from this.", show_default="none")] = None,
    strategy: Annotated[
        Strategy, typer.Option(help="Take the best of what was kept, or draw evenly from it.")
    ] = Strategy.top,
    seed: Annotated[
        int | None, typer.Option(help="Of --strategy random.", show_default="another one each time")
    ] = None,
    screen: Annotated[
        Screen | None,
        typer.Option(help="Find the same negatives sooner by codes of few bits, made first.", show_default="none"),
    ] = None,
    memory_mib: Annotated[
        float, typer.Option(help="MiB to work in, beside inputs and results; these do not depend on it.")
    ] = 256.0,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="File (.npz) of finished queries: the same command goes on there.", show_default="none"),
    ] = None,
) -> None:
    """Mine the hardest negatives of every query in a corpus, and say what was filtered."""
    if output != _results.STDOUT:
        _results.check_output(output)
    if checkpoint is not None and checkpoint.resolve() == output.resolve():
        usage_error("--checkpoint and --output are the same file")
    rows, searched = read_matrix("--queries", queries), read_matrix("--corpus", corpus)
    check_dimensions("--queries", rows, "--corpus", searched)
    lists = read_id_lists("--positives", positives, len(rows))

    from pairloom import Gallery, mine_hard_negatives

    shown = _results.progress_wanted(output)
    gallery = None if screen is None else Gallery(searched, screen=screen.value, progress=shown)
    with warnings.catch_warnings(record=True) as remarks:
        warnings.simplefilter("always", UserWarning)
        mined = mine_hard_negatives(
            rows, searched if gallery is None else gallery, lists, k=k, range_min=range_min, range_max=range_max,
            absolute_margin=absolute_margin, relative_margin=relative_margin, max_score=max_score, min_score=min_score,
            strategy=strategy.value, generator=seed, similarity=similarity.value, memory_mib=memory_mib,
            checkpoint=checkpoint, progress=shown,
        )  # fmt: skip
    with _results.results(output) as write:
        write(mined.scores.numpy(), mined.indices.numpy())
    typer.echo(str(mined.report), err=output == _results.STDOUT)
    for remark in remarks:
        typer.echo(f"note: {remark.message}", err=True)
