"""Proves that the sources are in house style and that types hold: every check of tools/lint.py is a test."""

import pytest

from tools import lint


@pytest.mark.parametrize("name", lint.checks())
def test_check_passes(name: str) -> None:
    result = lint.run(lint.checks()[name])
    assert result.returncode == 0, f"`make format` repairs style:\n{result.stdout}"
