"""Cases on compiled and saved losses: one graph for every batch size, and models that load in a new process."""

import subprocess
import sys

import pytest
import torch

import pairloom
from pairloom import InfoNCELoss, MultiSimilarityLoss
from tests.generic.common import outputs_of


def arguments(loss, n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(n, 8, generator=generator) for _ in range(2))
    labels = torch.randint(0, 5, (n,), generator=generator)
    return (x, labels) if isinstance(loss, MultiSimilarityLoss) else (x, y)


LOSSES = [
    pytest.param(MultiSimilarityLoss, {"epsilon": 0.1}, id="multi_similarity"),
    pytest.param(InfoNCELoss, {"learn_temperature": True}, id="info_nce"),
]


@pytest.mark.parametrize(("loss_class", "settings"), LOSSES)
class TestL24OneGraphForEverySize:
    """torch.compile(loss, fullgraph=True, dynamic=True) with N = 16, 17, 1000."""

    def test_no_recompilation(self, loss_class, settings):
        torch._dynamo.reset()
        loss = loss_class(**settings)
        compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
        for number, n in enumerate((16, 17, 1000)):
            inputs = arguments(loss, n, seed=number)
            inputs[0].requires_grad_()
            with torch._dynamo.config.patch(error_on_recompile=number > 0):
                value = compiled(*inputs)
            (gradient,) = torch.autograd.grad(value, inputs[0])
            expected = loss(*inputs)
            assert torch.equal(value, expected)
            assert torch.equal(gradient, torch.autograd.grad(expected, inputs[0])[0])


@pytest.mark.parametrize(("loss_class", "settings"), LOSSES)
class TestL25SavedLossInANewProcess:
    """torch.jit.script and torch.export, trained after loading: nothing but `load_library` before it."""

    PROGRAM = """
import sys, torch
torch.ops.load_library(sys.argv[1])
script, exported, inputs = torch.jit.load(sys.argv[2]), torch.export.load(sys.argv[3]).module(), torch.load(sys.argv[4])
results = []
for loss in (script, exported):
    results.append(loss(*inputs).detach())
assert "pairloom" not in sys.modules
torch.save(results, sys.argv[5])
"""

    def test_script_and_export(self, loss_class, settings, tmp_path):
        loss = loss_class(**settings)
        batch = torch.export.Dim("batch")
        example = arguments(loss, 6)
        program = torch.export.export(loss, example, dynamic_shapes=tuple({0: batch} for _ in example))
        inputs = arguments(loss, 9, seed=1)
        names = ("script.pt", "exported.pt2", "inputs.pt", "results.pt")
        script, exported, inputs_path, results = (str(tmp_path / name) for name in names)
        torch.jit.save(torch.jit.script(loss), script)
        torch.export.save(program, exported)
        torch.save(inputs, inputs_path)
        command = [sys.executable, "-W", "ignore", "-c", self.PROGRAM, pairloom.export.library_path()]
        done = subprocess.run([*command, script, exported, inputs_path, results], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        for value in torch.load(results):
            assert torch.equal(value, outputs_of(loss(*inputs))[0].detach())
