"""`pairloom mine`: the negatives of `mine_hard_negatives`, in every form of output, with its report."""

import csv
import io

import numpy as np
import pytest

from pairloom import mine_hard_negatives
from tests.cli.common import QUERIES, ROWS, error, matrices, pairloom, table_of

MINE = ("mine", "--queries", "queries.npy", "--corpus", "corpus.npy", "--positives", "positives.csv")


@pytest.mark.parametrize(
    "options",
    [
        {"k": 3},
        {"k": 4, "range_min": 2, "range_max": 50, "similarity": "dot"},
        {"k": 4, "absolute_margin": 0.1, "max_score": 0.6, "min_score": 0.2},
        {"k": 4, "relative_margin": 0.3, "memory_mib": 1.0},
        {"k": 4, "strategy": "random", "seed": 7},
        {"k": 4, "screen": "int8"},
    ],
    ids=str,
)
def test_the_same_negatives(options, here):
    arguments = [
        part for name, value in options.items()
        for part in ("-k" if name == "k" else f"--{name.replace('_', '-')}", value)
    ]  # fmt: skip
    result = pairloom(*MINE, *arguments, "-o", "negatives.npz")
    options = {"generator" if name == "seed" else name: value for name, value in options.items() if name != "screen"}
    wanted = mine_hard_negatives(*matrices(here), list(range(QUERIES)), **options)
    with np.load("negatives.npz") as found:
        np.testing.assert_array_equal(found["ids"], wanted.indices)
        np.testing.assert_array_equal(found["scores"], wanted.scores)
    assert result.stdout == f"{wanted.report}\n"
    assert result.stderr == ""


def test_tables_and_the_report_beside_them(here):
    wanted = mine_hard_negatives(*matrices(here), list(range(QUERIES)), k=2)
    result = pairloom(*MINE, "-k", 2, "-o", "-")
    assert result.stderr == f"{wanted.report}\n"
    pairloom(*MINE, "-k", 2, "-o", "negatives.csv")
    assert (here / "negatives.csv").read_text() == result.stdout
    rows = list(csv.reader(io.StringIO(result.stdout)))[1:]
    found = [(int(q), int(r), int(i), float(np.float32(s))) for q, r, i, s in rows]
    assert found == table_of(wanted.scores.numpy(), wanted.indices.tolist())


def test_positives_in_other_formats(here):
    pairloom(*MINE, "-o", "a.npz")
    np.save("positives.npy", np.arange(QUERIES))
    pairloom(
        "mine", "--queries", "queries.npy", "--corpus", "corpus.npy", "--positives", "positives.npy", "-o", "b.npz"
    )
    np.testing.assert_array_equal(np.load("a.npz")["ids"], np.load("b.npz")["ids"])


def test_few_negatives_are_remarked_on(here):
    result = pairloom(*MINE, "--max-score", -2, "-o", "negatives.npz")
    assert result.stderr.startswith("note: 30 of 30 queries have fewer")
    assert result.stderr.count("\n") == 1


def test_a_checkpoint_is_used_again(here):
    for output in ("a.npz", "b.npz"):
        pairloom(*MINE, "--checkpoint", "mined.npz", "-o", output)
    np.testing.assert_array_equal(np.load("a.npz")["ids"], np.load("b.npz")["ids"])
    assert "checkpoint mined.npz was made with k = 5" in error(
        *MINE, "--checkpoint", "mined.npz", "-k", 3, "-o", "c.npz"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*MINE, "-o", "it.txt"), "--output is it.txt"),
        ((*MINE, "-o", "no/it.npz"), "no folder no"),
        ((*MINE, "-o", "it.npz", "--checkpoint", "no/it.npz"), "no folder 'no'"),
        ((*MINE, "-o", "it.npz", "--range-max", 2), "must hold k or more"),
        ((*MINE, "-o", "it.npz", "--positives", "ids.csv"), "there are 30 queries"),
        ((*MINE, "-o", "it.npz", "--positives", "far.npy"), f"[0, {ROWS})"),
        ((*MINE, "-o", "it.npz", "--corpus", "narrow.npy"), "--queries has rows of 16 numbers and --corpus of 3"),
        ((*MINE, "-o", "it.npz", "--memory-mib", 0), "memory_mib is 0"),
    ],
    ids=str,
)
def test_known_errors(arguments, message, here):
    np.save("narrow.npy", np.ones((ROWS, 3), np.float32))
    np.save("far.npy", np.full(QUERIES, ROWS))
    assert message in error(*arguments)
    assert not (here / "it.npz").exists()


def test_the_checkpoint_is_not_the_output(here):
    pairloom(*MINE, "--checkpoint", "it.npz", "-o", here / "it.npz", code=2)
