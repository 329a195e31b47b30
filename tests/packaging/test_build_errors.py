"""Proves that a build which cannot work says so in one readable sentence, before any work."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.packaging.build_tree import ROOT

BUILD_TOOLS = ("setuptools", "_distutils_hack")


def build(python: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Try to build; never gets as far as compiling."""
    kept = {name: value for name, value in os.environ.items() if name not in {"CXX", "PYTHONPATH"}}
    command = [str(python), "setup.py", "-q", "build_ext"]
    return subprocess.run(command, cwd=ROOT, env={**kept, **environment}, capture_output=True, text=True)


def sentence(result: subprocess.CompletedProcess[str]) -> str:
    """The one sentence that the build ended with."""
    assert result.returncode != 0
    lines = (result.stdout + result.stderr).strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("pairloom cannot be built: ")
    return lines[0]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python that has setuptools and nothing else; test bodies add packages by linking them."""
    venv.create(tmp_path / "venv", with_pip=False)
    provide(tmp_path / "venv", *BUILD_TOOLS)
    return tmp_path / "venv"


def provide(environment: Path, *packages: str) -> None:
    """Link packages of the running Python into another environment."""
    target = environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for package in packages:
        source = Path(sysconfig.get_path("purelib")) / package
        if source.exists():
            (target / package).symlink_to(source)


def test_missing_torch(bare: Path) -> None:
    text = sentence(build(bare / "bin" / "python"))
    assert "torch is not installed" in text
    assert "--no-build-isolation" in text


def test_missing_pybind11(bare: Path) -> None:
    provide(bare, "torch")
    assert "pybind11 is not installed" in sentence(build(bare / "bin" / "python"))


def test_missing_compiler(tmp_path: Path) -> None:
    assert "no C++ compiler" in sentence(build(sys.executable, PATH=str(tmp_path)))


def test_compiler_that_does_not_exist() -> None:
    text = sentence(build(sys.executable, CXX="no-such-compiler"))
    assert "no-such-compiler" in text
    assert "CXX" in text


@pytest.mark.parametrize("tool", ["cmake", "ninja"])
def test_missing_tool(bare: Path, tmp_path: Path, tool: str) -> None:
    provide(bare, "torch", "pybind11")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in {"cmake", "ninja", "c++"} - {tool}:
        (programs / name).write_text("#!/bin/sh\nexit 1\n")
        (programs / name).chmod(0o755)
    assert f"{tool} was not found" in sentence(build(bare / "bin" / "python", PATH=str(programs)))


def path_without_nvcc(folder: Path) -> str:
    """A folder with all programs of PATH but nvcc."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            target = folder / program.name
            if not program.name.startswith("nvcc") and not target.exists() and not target.is_symlink():
                target.symlink_to(program)
    return str(folder)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("PAIRLOOM_SANITIZE=everything", "allowed are address, thread and undefined"),
        ("PAIRLOOM_CUDA=maybe", "allowed are AUTO, ON (or 1) and OFF (or 0)"),
        ("PAIRLOOM_CUDA=ON", "nvcc was not found; put it on PATH, or set CUDA_HOME"),
    ],
)
def test_bad_option(tmp_path: Path, option: str, expected: str) -> None:
    scripts = sysconfig.get_path("scripts")
    command = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(tmp_path), f"-DPython_EXECUTABLE={sys.executable}"]
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}"}
    if option == "PAIRLOOM_CUDA=ON":
        environment["PATH"] = f"{scripts}:{path_without_nvcc(tmp_path / 'programs')}"
        environment = {name: value for name, value in environment.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
    result = subprocess.run([*command, f"-D{option}"], env=environment, capture_output=True, text=True)
    assert result.returncode != 0
    assert expected in " ".join(result.stderr.split())
