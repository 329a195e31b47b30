"""Where the build put things, for tests that look at objects and libraries."""

import subprocess
import sys
from pathlib import Path

import pytest

import pairloom._build_info as info

ROOT = Path(__file__).resolve().parents[2]
TREE = ROOT / "build" / str(sys.implementation.cache_tag)
LIBRARIES = info.LIBRARIES


def require_tree() -> Path:
    """CMake's folder; the test is skipped where the installed package was not built in this checkout."""
    if not (TREE / "build.ninja").is_file():
        pytest.skip(f"{TREE} does not exist: this checkout was not built with this Python")
    return TREE


def output(*command: str) -> str:
    """What a program prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
