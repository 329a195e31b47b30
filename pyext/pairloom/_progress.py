"""A progress bar on stderr, for work that reads a whole corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(shown: bool, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how much of ``total`` was done; it does nothing unless ``shown``."""
    if not shown:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress, TimeElapsedColumn

    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.advance(task, done)
