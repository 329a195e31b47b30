"""Tells the generic tests whether slow tests run too."""

import pytest

from tests.generic import common


def pytest_configure(config: pytest.Config) -> None:
    common.EVERYTHING = config.getoption("markexpr") == ""
