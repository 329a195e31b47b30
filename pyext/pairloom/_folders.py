"""Folders that are written as a whole: nobody finds a half-made one, also where several write at once."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

ABOUT = "about.json"
"""The file that says what a folder is; written last."""


def beside(folder: Path, kind: str) -> Path:
    """A name that no other process or thread takes."""
    return folder.with_name(f"{folder.name}.{os.getpid()}-{secrets.token_hex(4)}.{kind}")


@contextlib.contextmanager
def new_folder(folder: Path, names: Sequence[str], what: str) -> Iterator[Path]:
    """A partial folder to fill, which takes the place of ``folder`` at the end and is removed after an error.

    Raises:
        FileExistsError: where it goes stands a file, or a folder with other files than ``names``.
    """
    _refuse_others_files(folder, names, what)
    partial = beside(folder, "partial")
    partial.mkdir()
    try:
        yield partial
        for path in partial.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        take_place(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _refuse_others_files(folder: Path, names: Sequence[str], what: str) -> None:
    """Nothing is replaced that is not of the same kind."""
    if folder.is_dir():
        foreign = sorted(entry.name for entry in folder.iterdir() if entry.name not in names)
        if foreign:
            raise FileExistsError(f"{folder} is where the {what} goes, and holds {foreign[0]!r}; move it away")
    elif folder.exists():
        raise FileExistsError(f"{folder} is where the {what} goes, and is a file; move it away")


def take_place(partial: Path, folder: Path) -> None:
    """Rename a folder to ``folder``. Others may do the same at this moment: the last one stays."""
    while True:
        try:
            partial.rename(folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        replaced = beside(folder, "replaced")
        with contextlib.suppress(FileNotFoundError):  # someone else was faster
            folder.rename(replaced)
        shutil.rmtree(replaced, ignore_errors=True)
