"""The CUDA kernels, proven without a GPU: their unmodified sources run on the host, a thread of the system for each of
theirs (on_host.h), and equal the definition; sanitizers find nothing, and find a barrier that was taken away; the loop
around them equals the CPU operators. What a GPU adds - its compiler and its memory - `make test-gpu` is for."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from pairloom import _device_loss, _device_mix, _stream
from pairloom._autograd import GRADIENT_BITS
from pairloom._registry import records
from tests.packaging.build_tree import ROOT

HERE = Path(__file__).parent
THREADS = 64  # of a block: two warps
COMPILER = shutil.which("c++") or shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


def compiled(target: Path, source: Path, *flags: str, sources: Path = ROOT / "csrc") -> Path:
    command = [
        COMPILER, "-std=c++20", "-x", "c++", f"-DPAIRLOOM_CUDA_THREADS={THREADS}", "-pthread", *flags,
        f"-I{sources}", f"-I{ROOT / 'csrc'}", "-include", str(HERE / "on_host.h"), str(source), "-o", str(target),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=900)


# --- the kernel -------------------------------------------------------------------------------------------------------
def test_rows_equal_the_definition(tmp_path):
    """A few sizes; `make test-cuda-host` runs all of them."""
    program = compiled(tmp_path / "rows", HERE / "pair_rows_against_naive.cpp", "-O2", "-Wall", "-Wextra", "-Werror")
    done = run(program, "some")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "all equal\n"


@pytest.mark.slow
def test_rows_of_every_size_equal_the_definition(tmp_path):
    program = compiled(tmp_path / "rows", HERE / "pair_rows_against_naive.cpp", "-O2")
    done = run(program)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizer, tmp_path):
    flags = ("-O1", "-g", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    done = run(compiled(tmp_path / "rows", HERE / "pair_rows_against_naive.cpp", *flags), "few")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_barrier_is_found(which, tmp_path):
    """The proof would see it: with one of the two barriers of a block's sum taken away, threads race."""
    shutil.copytree(ROOT / "csrc" / "cuda", tmp_path / "csrc" / "cuda")
    header = tmp_path / "csrc" / "cuda" / "block.h"
    parts = header.read_text().split("  __syncthreads();\n")
    assert len(parts) == 3
    header.write_text(parts[0] + parts[1] + "  __syncthreads();\n" * (which == 0) + parts[2] if which == 0 else
                      parts[0] + "  __syncthreads();\n" + parts[1] + parts[2])  # fmt: skip
    flags = ("-O1", "-g", "-fsanitize=thread")
    program = compiled(tmp_path / "rows", HERE / "pair_rows_against_naive.cpp", *flags, sources=tmp_path / "csrc")
    done = run(program, "few")
    assert done.returncode != 0
    assert "data race" in done.stderr


# --- the loop around it -----------------------------------------------------------------------------------------------
def load_on_host(folder: Path, stem: str) -> None:
    """The operators of csrc/torch/<stem>.cu for CPU tensors, compiled for the host."""
    of_torch = Path(torch.__file__).parent
    library = compiled(
        folder / f"lib{stem}.so", ROOT / "csrc" / "torch" / f"{stem}.cu",
        "-O2", "-shared", "-fPIC",
        "-DTORCH_TARGET_VERSION=0x020a000000000000", "-DTORCH_STABLE_ONLY", f"-isystem{of_torch / 'include'}",
        f"-L{of_torch / 'lib'}", "-Wl,--no-as-needed", "-ltorch_cpu", "-ltorch", "-lc10",
    )  # fmt: skip
    torch.ops.load_library(str(library))


@pytest.fixture(scope="module")
def rows_on_host(tmp_path_factory) -> None:
    load_on_host(tmp_path_factory.mktemp("cuda_host"), "pair_rows")


@pytest.fixture(scope="module")
def mix_on_host(tmp_path_factory) -> None:
    load_on_host(tmp_path_factory.mktemp("cuda_host"), "mix_rows")


def cases():
    for record in records():
        if record.name in _device_loss.OPERATORS:
            for sample in record.samples():
                yield pytest.param(record, sample.name, id=f"{record.name}-{sample.name}")


@pytest.mark.usefixtures("rows_on_host")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("record", "name"), list(cases()))
def test_the_loop_equals_the_operator(record, name, dtype, monkeypatch):
    """Loss, statistics and all gradients, in chunks of a few rows and by the products of another device."""
    monkeypatch.setattr(_stream, "is_elsewhere", lambda x: True)
    monkeypatch.setattr(_stream, "DEVICE_CHUNK_ENTRIES", 30)
    sample = next(s for s in record.samples(dtype=dtype, shape=(7, 10, 5), seed=3) if s.name == name)
    arguments = dict(zip(record.argument_names, record.op_arguments(sample), strict=True))
    tensors = {k for k, v in arguments.items() if isinstance(v, torch.Tensor)}
    bits = sum(bit for gradient, bit in GRADIENT_BITS.items() if gradient in tensors and gradient != "weights")
    for needs_grad in (0, bits):
        given = {**arguments, "needs_grad": needs_grad, "want_stats": True}
        ours = _device_loss.OPERATORS[record.name](*given.values())
        expected = record.op(*given.values())
        for output, (a, b) in zip(record.op._schema.returns, zip(ours, expected, strict=True), strict=True):
            if output.name == "stats":
                a, b = a[:11], b[:11]  # then tiles, a matter of the CPU kernels
            tolerance = 1e-10 if dtype == torch.float64 else 3e-5
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=lambda m, o=output: f"{o.name}: {m}")


@pytest.mark.usefixtures("rows_on_host")
def test_the_operator_refuses_what_would_read_outside():
    s = torch.randn(3, 4)

    def call(**changed):
        given = {
            "s": s, "slopes": None, "rule": "info_nce", "alpha": 1.0, "beta": 1.0, "base": 0.0, "epsilon": None,
            "inside": False, "first_row": 0, "row_labels": None, "column_labels": None, "self_pairs": False,
            "target_is_row": True, "same_label_is_positive": False, "ignore_index": None, "temperature": None,
            "weights": None, "want_temperature": False, "want_stats": False,
        }  # fmt: skip
        return torch.ops.pairloom.pair_rows(*{**given, **changed}.values())

    assert call()[0].shape == (3,)
    labels = torch.arange(5)
    for changed, words in (
        ({"rule": "nonsense"}, "rule is 'nonsense'"),
        ({"s": s.half()}, "s must be rows of float32 or float64"),
        ({"s": s.T}, "s must be rows"),
        ({"slopes": torch.empty(2, 4)}, "slopes must be of the shape"),
        ({"slopes": torch.empty(3, 4, dtype=torch.float64)}, "slopes must be of the shape"),
        ({"row_labels": labels[:2]}, "row_labels has 2 values for rows up to 3"),
        ({"row_labels": labels, "first_row": 4}, "row_labels has 5 values for rows up to 7"),
        ({"row_labels": labels.int()}, "row_labels must be contiguous int64"),
        ({"row_labels": labels, "column_labels": labels}, "column_labels must be labels of columns"),
        ({"column_labels": labels[:4]}, "column_labels is given without row_labels"),
        ({"temperature": torch.ones(2)}, "temperature must be one value"),
        ({"temperature": torch.ones(3).double()}, "temperature must be contiguous, of the type of s"),
        ({"weights": torch.ones(2)}, "weights must have one value for each row"),
        ({"first_row": -1}, "first_row is -1"),
    ):
        with pytest.raises(RuntimeError, match=re.escape(words)):
            call(**changed)


@pytest.mark.usefixtures("rows_on_host")
def test_slopes_in_bfloat16():
    """Rounded to nearest: what the products of a half-precision call take."""
    x, y = torch.randn(6, 8), torch.randn(9, 8)
    s = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(y).T
    slopes = [torch.empty(6, 9, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
    for out in slopes:
        torch.ops.pairloom.pair_rows(
            s,
            out,
            "info_nce",
            0.0,
            0.0,
            0.0,
            None,
            False,
            0,
            None,
            None,
            False,
            True,
            False,
            None,
            None,
            None,
            False,
            False,
        )
    assert torch.equal(slopes[0].bfloat16(), slopes[1])


@pytest.mark.usefixtures("rows_on_host")
@pytest.mark.parametrize("name", list(_device_loss.OPERATORS))
def test_half_precision_products(name, monkeypatch):
    """bfloat16 rows: products of bfloat16 with sums in float32, whose rounding is all that differs."""
    monkeypatch.setattr(_stream, "is_elsewhere", lambda x: True)
    monkeypatch.setattr(_stream, "DEVICE_CHUNK_ENTRIES", 300)
    record = next(record for record in records() if record.name == name)
    sample = next(record.samples(dtype=torch.bfloat16, shape=(24, 40, 16), seed=1))
    given = dict(zip(record.argument_names, record.op_arguments(sample), strict=True))
    given |= {"needs_grad": 3, "want_stats": False}
    wide = {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in given.items()}
    loss, _, d_rows, d_columns, *_ = _device_loss.OPERATORS[name](*given.values())
    expected, _, *gradients = record.op(*wide.values())
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=2e-2, atol=1e-2)
    for ours, wanted in zip((d_rows, d_columns), gradients, strict=False):
        assert ours.shape == wanted.shape
        if ours.numel() == 0:  # one batch
            continue
        assert (ours.double() - wanted).abs().max() <= 3e-2 * wanted.abs().max().clamp(min=1e-3)


# --- mixtures ---------------------------------------------------------------------------------------------------------
MIX = next(record for record in records() if record.name == "mix")


@pytest.mark.usefixtures("mix_on_host")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [sample.name for sample in MIX.samples()])
def test_mixtures_equal_the_operator(name, dtype):
    """Values, and the gradients of rows, partners and shares, over rows shorter and longer than a block."""
    for shape in ((5, 7, 3), (2, 3, THREADS + 5), (0, 3, 2)):
        sample = next(s for s in MIX.samples(dtype=dtype, shape=shape, seed=4) if s.name == name)
        given = MIX.op_arguments(sample)
        mixed, expected = _device_mix.mix(*given), MIX.op(*given)
        tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(mixed, expected, **tolerance)
        upstream = torch.linspace(-1, 2, mixed.numel(), dtype=mixed.dtype).view(mixed.shape)
        for bits in (1, 2, 4, 7) if dtype == torch.float64 else (7,):
            ours = _device_mix.mix_gradients(upstream, *given, bits)
            wanted = torch.ops.pairloom.mix_gradients(upstream, *given, bits)
            for a, b in zip(ours, wanted, strict=True):
                torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.usefixtures("mix_on_host")
def test_mixtures_of_odd_rows():
    """Antipodal, zero, NaN, huge; and one row that is everybody's partner."""
    huge = torch.finfo(torch.float64).max / 4
    x = torch.tensor([[3.0, -4.0], [-3.0, 4.0], [0.0, 0.0], [torch.nan, 1.0], [huge, huge]], dtype=torch.float64)
    partner, lam = torch.tensor([1, 2, 2, 0, 4]), torch.tensor([0.5, 0.25, 0.5, 0.5, 0.5], dtype=torch.float64)
    for normalize in (False, True):
        given = (x, None, None, partner, lam, normalize)
        torch.testing.assert_close(_device_mix.mix(*given), MIX.op(*given), equal_nan=True)
    hub = (x[:3], None, None, torch.zeros(3, dtype=torch.int64), torch.tensor(0.3, dtype=torch.float64), True)
    ours = _device_mix.mix_gradients(torch.ones(3, 2, dtype=torch.float64), *hub, 7)
    wanted = torch.ops.pairloom.mix_gradients(torch.ones(3, 2, dtype=torch.float64), *hub, 7)
    for a, b in zip(ours, wanted, strict=True):
        torch.testing.assert_close(a, b)


# --- what nvcc makes of it --------------------------------------------------------------------------------------------
RESOURCES = HERE / "resources.txt"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize("architecture", ["90"])
def test_registers_spills_and_shared_memory(architecture, tmp_path):
    """As kept in resources.txt: a change there is seen in review. No kernel spills."""
    found = resources(architecture, tmp_path)
    kept = RESOURCES.read_text()
    assert "spill 0" in found
    assert not re.search(r"spill [1-9]", found)
    assert found == kept, f"run this to keep it: python -m tests.cuda_host.resources > {RESOURCES.name}"


def resources(architecture: str, folder: Path) -> str:
    from tests.cuda_host.resources import report

    return report(architecture, folder)
