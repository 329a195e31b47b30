"""The `pairloom` command: one file per command. Importing it imports no torch; commands import what they need."""

from __future__ import annotations

from pairloom.cli import bench, export, info, mine, score  # noqa: F401  (each adds its command to `app`)
from pairloom.cli._app import app

__all__ = ["app", "main"]


def main() -> None:
    """Entry point."""
    app(prog_name="pairloom")
