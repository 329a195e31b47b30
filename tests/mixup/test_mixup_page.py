"""docs/mixup.md tells the truth: its blocks run, and what its table names exists."""

import re

import pytest

import pairloom.mixup
from tests.packaging.build_tree import ROOT

PAGE = (ROOT / "docs" / "mixup.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"## ([^\n]+)\n(?:(?!\n## ).)*?```python\n(.*?)```", PAGE, re.DOTALL)
ELSEWHERE = {"generator", "topk"}


@pytest.mark.parametrize("block", [block for _, block in BLOCKS], ids=[title for title, _ in BLOCKS])
def test_blocks_run(block):
    exec(compile(block, "docs/mixup.md", "exec"), {})


def test_names_exist():
    text = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    named = set(re.findall(r"`(\w+)`", text)) - ELSEWHERE
    assert named <= set(pairloom.mixup.__all__)
    assert len(named) > 20
