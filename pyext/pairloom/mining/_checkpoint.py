"""Finished queries on disk, so that a long run can be interrupted: one .npz file, replaced as a whole."""

from __future__ import annotations

import json
import os
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


@dataclass
class Mined:
    """Negatives of the queries that are done."""

    scores: Tensor
    """(Q, k)"""
    indices: Tensor
    """(Q, k) int64"""
    done: int = 0
    """How many queries, from the first."""
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Checkpoint:
    """A file, and what must be equal for its content to be used."""

    path: Path
    fingerprint: dict[str, str]

    def load(self, mined: Mined) -> None:
        """Go on where the file ends; nothing happens when there is none.

        Raises:
            ValueError: a file of another call, or no checkpoint at all.
        """
        if not self.path.exists():
            return
        try:
            with np.load(self.path) as file:
                there: dict[str, str] = json.loads(str(file["fingerprint"]))
                scores, indices, done = file["scores"], file["indices"], int(file["done"])
                counts: Counter[str] = Counter(json.loads(str(file["counts"])))
        except (KeyError, ValueError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(f"checkpoint {self.path} cannot be read as one: {error}") from None
        for name, here in self.fingerprint.items():
            if there.get(name) != here:
                raise ValueError(
                    f"checkpoint {self.path} was made with {name} = {there.get(name)}, this call has {here}; "
                    "pass another path, or delete the file"
                )
        mined.scores[:done], mined.indices[:done] = torch.from_numpy(scores), torch.from_numpy(indices)
        mined.done, mined.counts = done, counts

    def save(self, mined: Mined) -> None:
        """Write beside the file, then take its place: whenever this is interrupted, a whole file is there."""
        partial = self.path.with_name(f"{self.path.name}.{os.getpid()}.partial")
        try:
            with partial.open("wb") as file:
                np.savez(
                    file,
                    fingerprint=json.dumps(self.fingerprint),
                    counts=json.dumps(mined.counts),
                    done=mined.done,
                    scores=mined.scores[: mined.done].numpy(),
                    indices=mined.indices[: mined.done].numpy(),
                )
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self.path)
        finally:
            partial.unlink(missing_ok=True)
