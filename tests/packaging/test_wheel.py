"""Proves what a wheel holds: package, libraries, CMake files, neither sources nor anybody else's libraries."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.packaging.build_tree import LIBRARIES, ROOT

CUDA_LIBRARY = LIBRARIES["core"].with_name("libpairloom_cuda.so")  # where nvcc is


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout; CMake's objects are reused, so this takes seconds."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", str(folder), str(ROOT)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"pairloom/{path.name}" for path in LIBRARIES.values()} <= set(names)
    assert sorted(name for name in names if ".so" in name) == sorted(
        f"pairloom/{path.name}" for path in (*LIBRARIES.values(), CUDA_LIBRARY) if path.is_file()
    )
    package = ROOT / "pyext" / "pairloom"
    sources = {str(path.relative_to(package.parent)) for path in package.rglob("*.py*") if path.suffix != ".pyc"}
    in_wheel = {name for name in names if name.endswith((".py", ".pyi"))}
    assert in_wheel == sources
    cmake = {f"pairloom/cmake/pairloomConfig{part}.cmake" for part in ("", "Version")}
    assert {name for name in names if name.endswith(".cmake")} == cmake
    assert "pairloom/py.typed" in names
    assert not [name for name in names if not name.startswith("pairloom/") and ".dist-info/" not in name]
    assert not [name for name in names if name.endswith((".cpp", ".h", ".cu", ".o"))]


def test_cmake_files_name_no_place_of_the_building_machine(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    for name in archive.namelist():
        if name.endswith(".cmake"):
            text = archive.read(name).decode()
            assert str(ROOT) not in text
            assert sys.prefix not in text


def test_wheel_is_marked_for_this_python_and_small(wheel: Path) -> None:
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in wheel.name
    assert "-none-any" not in wheel.name
    assert wheel.stat().st_size < 8 << 20


def test_wheel_names_its_command_and_requirements(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "pairloom = pairloom.cli:main" in archive.read(entry_points).decode()
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    assert "Requires-Dist: torch>=2.10" in archive.read(metadata).decode()
