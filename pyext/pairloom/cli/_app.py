"""The application that commands add themselves to, and what it makes of errors.

0  done    1  an error with a known reason, one sentence on stderr    2  wrong usage    130  interrupted
"""

from __future__ import annotations

import os
import sys
from enum import Enum
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended: 128 + SIGINT


class Similarity(str, Enum):
    """How a query and a row are compared; larger is better."""

    cosine = "cosine"
    dot = "dot"
    euclidean = "euclidean"
    squared_euclidean = "squared_euclidean"


class Screen(str, Enum):
    """Codes of few bits that find the exact answers sooner."""

    int8 = "int8"
    bf16 = "bf16"


class Commands(TyperGroup):
    """Errors of all commands, however they are started: by the entry point, by `python -m`, by a test."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("pairloom: interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # `pairloom score ... | head`: the reader has what it wanted
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except (ImportError, OSError, ValueError) as error:
            typer.echo(f"pairloom: {sentence(error)}", err=True)
            raise typer.Exit(1) from None


def sentence(error: Exception) -> str:
    """One line."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    return " ".join(text.split())


def usage_error(message: str) -> NoReturn:
    """Options that do not go together."""
    raise typer.BadParameter(message)


app = typer.Typer(
    cls=Commands,
    epilog="Example: pairloom score --help",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def root() -> None:
    """Similarity, losses and retrieval from pairs of embeddings."""
