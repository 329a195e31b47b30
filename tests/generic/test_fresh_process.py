"""Saved models run in a new process that knows nothing of this package but the operator library: TorchScript,
torch.export and AOTInductor, each loaded after one ``torch.ops.load_library`` and equal to eager."""

import inspect
import subprocess
import sys

import pytest
import torch
from torch import nn

import pairloom
from tests.generic.common import Call, dynamic_shapes, every_sample, outputs_of, sample_named, tensors_of

PROGRAM = """
import sys, torch
if sys.argv[4] == "library":
    torch.ops.load_library(sys.argv[1])
else:
    import pairloom.functional
jobs = torch.load(sys.argv[2])
results = []
for kind, path, tensors, keywords in jobs:
    if kind == "torchscript":
        outputs = torch.jit.load(path)(**keywords)
    elif kind == "export":
        outputs = torch.export.load(path).module()(*tensors)
    else:
        outputs = torch._inductor.aoti_load_package(path)(*tensors)
    results.append([output.detach() for output in (outputs if isinstance(outputs, (tuple, list)) else (outputs,))])
assert sys.argv[4] != "library" or not any(name.split(".")[0] == "pairloom" for name in sys.modules)
torch.save(results, sys.argv[3])
"""
OTHER_SHAPE = (11, 13, 5)


class Calls(nn.Module):
    """Several calls as one module: their tensors one after the other, all outputs."""

    def __init__(self, cases):
        super().__init__()
        self.calls = nn.ModuleList(Call(record, sample_named(record, name)) for record, name in cases)

    def forward(self, *tensors):
        outputs = []
        for call in self.calls:
            count = len(call.places)
            outputs += outputs_of(call(*tensors[:count]))
            tensors = tensors[count:]
        return tuple(outputs)


def program_of(cases):
    """The exported program of several calls, and tensors of another size for it."""
    samples = [sample_named(record, name) for record, name in cases]
    others = [sample_named(record, name, shape=OTHER_SHAPE, seed=1) for record, name in cases]
    module = Calls(cases).eval()
    shapes = (sum((dynamic_shapes(sample)[0] for sample in samples), ()),)
    with torch.no_grad():
        program = torch.export.export(module, sum(map(tensors_of, samples), ()), dynamic_shapes=shapes)
    tensors = sum(map(tensors_of, others), ())
    return program, tensors, module(*tensors)


def run_elsewhere(jobs, folder, loads):
    torch.save(jobs, folder / "jobs.pt")
    arguments = [pairloom.export.library_path(), str(folder / "jobs.pt"), str(folder / "results.pt"), loads]
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "results.pt")


def assert_runs_elsewhere(saved, folder, loads="library"):
    """``saved`` holds (job for the other process, what eager gives)."""
    results = run_elsewhere([job for job, _ in saved], folder, loads)
    for (job, expected), outputs in zip(saved, results, strict=True):
        for output, wanted in zip(outputs, expected, strict=True):
            if job[0] == "aoti":  # for distances, rows are normalised before the operator, by the compiler
                torch.testing.assert_close(output, wanted, rtol=2e-6, atol=2e-6)
            else:
                assert torch.equal(output, wanted), job[1]


@pytest.mark.parametrize("standalone", [True, False])
def test_torchscript(standalone, tmp_path):
    """Operators by a rule in Python need the package in the other process, the others only the library."""
    saved = []
    samples = every_sample(torchscript=True, standalone=standalone, quick=None if standalone else 2)
    for record, name in [parameter.values for parameter in samples if not parameter.marks]:
        path = str(tmp_path / f"{record.name}-{name}.pt")
        torch.jit.save(torch.jit.script(record.function), path)
        arguments = sample_named(record, name, shape=OTHER_SHAPE, seed=1).arguments
        twin = inspect.signature(record.function.__prepare_scriptable__())
        defaults = {name: p.default for name, p in twin.parameters.items()}  # a saved function has lost its own
        saved.append((("torchscript", path, (), {**defaults, **arguments}), outputs_of(record.function(**arguments))))
    assert_runs_elsewhere(saved, tmp_path, "library" if standalone else "package")


@pytest.mark.parametrize("standalone", [True, False])
def test_export(standalone, tmp_path):
    """Operators by a rule in Python need the package in the other process, the others only the library."""
    samples = every_sample(export=True, standalone=standalone, quick=6 if standalone else 2)
    program, tensors, expected = program_of([p.values for p in samples if not p.marks])
    path = str(tmp_path / "all.pt2")
    torch.export.save(program, path)
    loads = "library" if standalone else "package"
    assert_runs_elsewhere([(("export", path, tensors, {}), expected)], tmp_path, loads)


def assert_package_runs_elsewhere(cases, folder, loads):
    program, tensors, expected = program_of(cases)
    path = str(folder / "package.pt2")
    # The wrapper's speed does not matter here, the time to compile it does.
    with torch._inductor.config.patch({"aot_inductor.compile_wrapper_opt_level": "O0"}):
        torch._inductor.aoti_compile_and_package(program, package_path=path)
    assert_runs_elsewhere([(("aoti", path, tensors, {}), expected)], folder, loads)


BOTH = [pytest.param(True, "library", id="library"), pytest.param(False, "package", id="package")]


@pytest.mark.parametrize(("standalone", "loads"), BOTH)
def test_aoti(standalone, loads, tmp_path):
    """The first sample of every operator, in one package. All samples: the slow test below."""
    samples = [p.values for p in every_sample(aoti=True, standalone=standalone, quick=1) if not p.marks]
    assert_package_runs_elsewhere(samples, tmp_path, loads)


@pytest.mark.slow
@pytest.mark.parametrize(("standalone", "loads"), BOTH)
def test_aoti_of_every_sample(standalone, loads, tmp_path):
    """Of rules in Python some: every one of them reaches the package by the same call of an operator."""
    samples = every_sample(aoti=True, standalone=standalone, most=None if standalone else 3)
    assert_package_runs_elsewhere([p.values for p in samples], tmp_path, loads)
