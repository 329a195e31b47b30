"""Small files for commands, and commands inside this process."""

from pathlib import Path

import numpy as np
import torch
from typer.testing import CliRunner

from pairloom.cli import app

ROWS, QUERIES, DIM, K = 400, 30, 16, 4


def pairloom(*arguments, code=0, **environment):
    """Run a command here; its result has stdout and stderr apart."""
    result = CliRunner().invoke(app, [str(one) for one in arguments], prog_name="pairloom", env=environment)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def error(*arguments):
    """What a command says that fails for a known reason: one line."""
    result = pairloom(*arguments, code=1)
    assert result.stdout == ""
    assert result.stderr.startswith("pairloom: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def write_inputs(folder: Path) -> None:
    """The files that examples in the help name; every query is a row with noise."""
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((ROWS, DIM), np.float32)
    queries = rows[:QUERIES] + 0.3 * generator.standard_normal((QUERIES, DIM), np.float32)
    for name, array in {"gallery": rows, "corpus": rows, "queries": queries}.items():
        np.save(folder / f"{name}.npy", array)
    (folder / "ids.csv").write_text("id\n" + "".join(f"item {row}\n" for row in range(ROWS)))
    (folder / "positives.csv").write_text("".join(f"{row}\n" for row in range(QUERIES)))
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(torch.nn.Linear(DIM, 8), torch.nn.Tanh(), torch.nn.Linear(8, DIM)).eval()
    torch.save(encoder, folder / "encoder.pt")
    batch = ({0: torch.export.Dim("batch")},)
    torch.export.save(
        torch.export.export(encoder, (torch.randn(3, DIM),), dynamic_shapes=batch), folder / "encoder.pt2"
    )


def matrices(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and gallery."""
    return torch.from_numpy(np.load(folder / "queries.npy")), torch.from_numpy(np.load(folder / "gallery.npy"))


def table_of(scores, ids):
    """The rows that a table of these results has."""
    return [
        (query, rank + 1, ids[query][rank], float(scores[query][rank]))
        for query in range(len(scores))
        for rank in range(len(scores[query]))
        if scores[query][rank] > -np.inf
    ]
