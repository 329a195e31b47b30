"""Proves that a C++ program without Python finds the installed libraries and computes what eager Python computes."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from filelock import FileLock  # comes with torch
from torch import Tensor, nn

import pairloom
from tests.packaging.build_tree import LIBRARIES, ROOT, output

TORCH_CMAKE = Path(torch.utils.cmake_prefix_path) / "Torch"


def cmake(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run CMake with the build tools that stand beside the running Python."""
    environment = {**os.environ, "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"}
    return subprocess.run(["cmake", *arguments], env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What C++ programs need of the package, in a folder where it was not built; one for all processes of a run."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "another place"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            shutil.copytree(pairloom.export.cmake_path(), folder / "cmake")
            for name in ("core", "operators"):
                shutil.copy(LIBRARIES[name], folder)
    return folder


@pytest.fixture(scope="module")
def program(moved: Path) -> Path:
    """The program of cmake/consumer, compiled by the process that comes first."""
    tree = moved / "consumer"
    with FileLock(f"{tree}.lock"):
        if not (tree / "run_model").exists():
            compile_program(moved, tree)
    return tree / "run_model"


def compile_program(moved: Path, tree: Path) -> None:
    """Configure and build cmake/consumer."""
    found = [f"-DTorch_DIR={TORCH_CMAKE}", f"-Dpairloom_DIR={moved / 'cmake'}"]
    # Linkers of some distributions drop unused libraries by default, ours only when asked to.
    linker = "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--as-needed"
    configured = cmake("-S", str(ROOT / "cmake" / "consumer"), "-B", str(tree), "-G", "Ninja", linker, *found)
    assert configured.returncode == 0, configured.stdout + configured.stderr
    built = cmake("--build", str(tree))
    assert built.returncode == 0, built.stdout + built.stderr


def run(program: Path, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """Run the program in an environment that names neither libraries nor Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_", "VIRTUAL_ENV"))}
    return subprocess.run([str(program), *map(str, arguments)], env=kept, capture_output=True, text=True)


def assert_equal_to_eager(program: Path, model: Path, module: nn.Module, *inputs: Tensor) -> None:
    """The program's outputs have the bits of the module's."""
    inputs_path, outputs_path = model.with_name("inputs.pt"), model.with_name("outputs.pt")
    torch.save(list(inputs), inputs_path)
    done = run(program, model, inputs_path, outputs_path)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        expected = module(*inputs)
    outputs = torch.load(outputs_path)
    assert len(outputs) == len(expected)
    for value, wanted in zip(outputs, expected, strict=True):
        assert value.dtype == wanted.dtype
        assert torch.equal(value, wanted)


class Evaluation(nn.Module):
    """Retrieval and losses of a batch, as a deployed evaluation would compute them."""

    def __init__(self) -> None:
        super().__init__()
        self.info_nce = pairloom.InfoNCELoss(temperature=0.1)
        self.multi_similarity = pairloom.MultiSimilarityLoss()
        self.hardest = pairloom.TripletMarginLoss()

    def forward(self, x: Tensor, y: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """(N, D), (N, D), (N,) -> scores, ids, similarities and three losses."""
        scores, ids = pairloom.topk(x, y, 3, similarity="dot")
        similarities = pairloom.pairwise_similarity(x, y)
        losses = self.info_nce(x, y), self.multi_similarity(x, labels), self.hardest(x, labels)
        return scores, ids, similarities, losses[0], losses[1], losses[2]


def rows(n: int, seed: int, dim: int = 8) -> Tensor:
    """(n, dim) embeddings."""
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


def retriever() -> nn.Module:
    """A small retriever with random weights."""
    torch.manual_seed(0)
    return pairloom.export.Retriever(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), rows(50, 1), k=5).eval()


def test_torchscript_of_operators(program: Path, tmp_path: Path) -> None:
    path = pairloom.export.to_torchscript(Evaluation(), tmp_path / "model.pt")
    labels = torch.arange(17) % 5
    assert_equal_to_eager(program, path, Evaluation(), rows(17, 2), rows(17, 3), labels)


def test_torchscript_of_a_retriever(program: Path, tmp_path: Path) -> None:
    module = retriever()
    path = pairloom.export.to_torchscript(module, tmp_path / "model.pt")
    assert_equal_to_eager(program, path, module, rows(7, 4, dim=4))


def test_aoti_package_of_a_retriever(program: Path, tmp_path: Path) -> None:
    module = retriever()
    path = pairloom.export.to_aoti(module, (rows(3, 4, dim=4),), tmp_path / "model.pt2")
    assert_equal_to_eager(program, path, module, rows(7, 5, dim=4))


def test_without_a_file_the_outputs_are_printed(program: Path, tmp_path: Path) -> None:
    path = pairloom.export.to_torchscript(retriever(), tmp_path / "model.pt")
    torch.save([rows(2, 4, dim=4)], tmp_path / "inputs.pt")
    done = run(program, path, tmp_path / "inputs.pt")
    assert done.returncode == 0, done.stderr
    assert "CPUFloatType{2,5}" in done.stdout
    assert "CPULongType{2,5}" in done.stdout


def test_a_missing_file_is_one_sentence(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path / "no.pt", tmp_path / "no-inputs.pt")
    assert done.returncode == 1
    assert done.stderr.startswith("run_model: ")
    assert str(tmp_path / "no.pt") in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_python_is_loaded(program: Path, moved: Path) -> None:
    """Of all libraries that the loader finds for the program, torch's included; ours come from the package."""
    for path in (program, moved / "libpairloom.so", moved / "libpairloom_torch.so"):
        assert "python" not in output("readelf", "-d", str(path)).replace(str(TORCH_CMAKE.parents[2]), "")
    loaded = output("ldd", str(program))
    assert "python" not in " ".join(re.findall(r"^\s*(\S+)", loaded, re.MULTILINE))
    for name in ("libpairloom.so", "libpairloom_torch.so"):
        assert re.search(rf"{re.escape(name)} => {re.escape(str(moved))}/", loaded), loaded


def find_package(folder: Path, package: Path, *before: str, version: str = "") -> str:
    """What CMake says when a project without any language looks for the package; nothing when it is found."""
    lines = ["cmake_minimum_required(VERSION 3.22)", "project(test LANGUAGES NONE)", *before]
    lines.append(f"find_package(pairloom {version} REQUIRED)")
    folder.mkdir()
    (folder / "CMakeLists.txt").write_text("\n".join(lines), encoding="utf-8")
    result = cmake("-S", str(folder), "-B", str(folder / "build"), "-G", "Ninja", f"-Dpairloom_DIR={package / 'cmake'}")
    return "" if result.returncode == 0 else " ".join(result.stderr.split())


def test_what_does_not_fit_is_said(moved: Path, tmp_path: Path) -> None:
    incomplete = tmp_path / "incomplete"
    shutil.copytree(moved / "cmake", incomplete / "cmake")
    assert "libpairloom_torch.so is not in" in find_package(tmp_path / "missing", incomplete)

    def torch_of(version: str) -> tuple[str, str]:
        return "set(Torch_FOUND TRUE)", f"set(Torch_VERSION {version})"

    assert not find_package(tmp_path / "first", moved, *torch_of("2.10.0"))
    assert "torch 2.10 or newer, this is 2.9.1" in find_package(tmp_path / "older", moved, *torch_of("2.9.1"))
    assert not find_package(tmp_path / "same", moved, version=pairloom.__version__)
    assert "version" in find_package(tmp_path / "newer", moved, version="1000.0")


def test_both_ways_to_the_folder_agree() -> None:
    folder = output(sys.executable, "-m", "pairloom.cli", "info", "--cmake").strip()
    assert folder == pairloom.export.cmake_path()
    assert (Path(folder) / "pairloomConfig.cmake").is_file()
