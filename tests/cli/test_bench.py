"""`pairloom bench`: both sides compute the same, and what is printed says what it depends on."""

import json

import pytest
import torch

from pairloom import _native
from pairloom.cli import bench
from tests.cli.common import pairloom


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(bench, "QUICK", bench.Sizes(rows=300, dim=16, pairs=(32,), seconds=0.01))


@pytest.mark.usefixtures("small")
def test_table_names_machine_and_tasks():
    out = pairloom("bench", "--quick", COLUMNS="80").stdout
    for word in ("pairloom", "plain torch", "top-10, 1 query", "256 queries", "InfoNCE", _native.isa(), "threads"):
        assert word in out
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.usefixtures("small")
def test_json_holds_the_same():
    told = json.loads(pairloom("bench", "--quick", "--json").stdout)
    assert told["threads"] == torch.get_num_threads()
    assert [task["rounds"] >= bench.FEWEST and task["pairloom"] > 0 for task in told["tasks"]] == [True] * 3


def test_a_difference_is_an_error():
    task = bench.Task("odd", lambda: (torch.ones(1),), lambda: (torch.zeros(1),))
    with pytest.raises(ValueError, match="odd: pairloom and plain torch differ"):
        bench.run(task, 0.01)
