"""Proves that the Python in README.md runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.build_tree import ROOT

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_example_runs(block: str, tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_there_is_an_example() -> None:
    assert BLOCKS
