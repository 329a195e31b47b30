"""Proves that a source distribution is whole: what is built of it installs, works elsewhere, and goes away again; an
editable installation too. And that the workflow builds wheels for every supported Python."""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.packaging.build_tree import ROOT

WORKFLOW = (ROOT / ".github" / "workflows" / "wheels.yml").read_text(encoding="utf-8")


def run(*command, **options) -> str:
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "setup.py", "-q", "sdist", "-d", folder, cwd=ROOT)
    (path,) = folder.glob("*.tar.gz")
    return path


def test_contents(sdist: Path) -> None:
    """Everything that git has of the sources, nothing that was built."""
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    tracked = run("git", "ls-files", "csrc", "cmake", "pyext", cwd=ROOT).split()
    missing = sorted(set(tracked) - names)
    assert not missing
    assert {"setup.py", "pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md"} <= names
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc")) or name.startswith(("build/", ".venv/"))]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A fresh environment that sees the packages of this one, but not this checkout."""
    place = tmp_path / "env"
    run(sys.executable, "-m", "venv", "--without-pip", place)
    (packages,) = place.glob("lib/python*/site-packages")
    ours = next(path for path in sys.path if path.endswith("site-packages"))
    (packages / "packages.pth").write_text(ours + "\n")
    return place


def installed(environment: Path, *arguments, **options) -> str:
    """What its Python prints, somewhere else; editable installations of this environment are not seen."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return run(environment / "bin" / "python", *arguments, env={**kept, **options.pop("env", {})}, **options)


SMOKE = (
    "import torch, pairloom; x = torch.eye(3); print(pairloom.topk(x, x, 1)[1].flatten().tolist(), pairloom.__file__)"
)


@pytest.mark.slow
@pytest.mark.parametrize("editable", [False, True])
def test_install_use_uninstall(sdist: Path, editable: bool, environment: Path, tmp_path: Path) -> None:
    pip = ("-m", "pip", "--disable-pip-version-check", "-q")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("pairloom-*")
    what = ["-e", source] if editable else [sdist]
    installed(
        environment, *pip, "install", "--no-build-isolation", "--no-deps", "--ignore-installed", *what, cwd=tmp_path
    )
    there = installed(environment, "-c", SMOKE, cwd=tmp_path)
    assert there.startswith("[0, 1, 2] ")
    assert str(source / "pyext" if editable else environment) in there
    assert "instruction set" in installed(environment, "-m", "pairloom.cli", "info", cwd=tmp_path)
    if editable:
        (source / "pyext" / "pairloom" / "fresh.py").write_text("value = 4711\n")
        assert installed(environment, "-c", "import pairloom.fresh as f; print(f.value)", cwd=tmp_path) == "4711\n"
    installed(environment, *pip, "uninstall", "-y", "pairloom", cwd=tmp_path)
    left = [path for path in environment.rglob("*pairloom*") if "__pycache__" not in path.parts]
    assert left == []


def test_workflow_names_every_python() -> None:
    supported = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert supported is not None
    assert re.findall(r'"cp3(\d+)"', WORKFLOW) == [str(minor) for minor in range(int(supported.group(1)), 15)]
    assert "\t" not in WORKFLOW
