"""TorchScript, torch.compile and torch.export: the operator is in the graph, one graph for all sizes, same results."""

import io
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import pairloom
from pairloom import InfoNCELoss, MultiSimilarityLoss
from pairloom._registry import records
from pairloom.functional import info_nce, multi_similarity


class Both(nn.Module):
    """An encoder with both losses, as a user would write it."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(5, 4)
        self.multi_similarity = MultiSimilarityLoss(epsilon=0.1)
        self.info_nce = InfoNCELoss(learn_temperature=True)
        self.plain = InfoNCELoss(same_id="positive", reduction="sum")

    def forward(self, x, labels):
        z = self.encoder(x)
        pairs = self.info_nce(z, z.flip(0)) + self.plain(z, z.flip(0), z, labels, labels)
        return self.multi_similarity(z, labels) + self.multi_similarity(z, labels, None, z, labels) + pairs


def pair(n=8):
    torch.manual_seed(n)
    return torch.randn(n, 5, requires_grad=True), torch.arange(n) // 2


def gradients(function, x, labels):
    value = function(x, labels)
    return value.detach(), *torch.autograd.grad(value, x)


def test_script_saved_and_loaded():
    module = Both()
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module), buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    for n in (8, 8, 8, 12):  # the profiling executor changes its mind after the first calls
        torch.testing.assert_close(gradients(loaded, *pair(n)), gradients(module, *pair(n)))


@pytest.mark.parametrize("function", [info_nce, multi_similarity, pairloom.topk, pairloom.pairwise_similarity])
def test_script_of_a_function(function):
    x, labels = pair()
    arguments = {info_nce: (x, x + 1), multi_similarity: (x, labels), pairloom.topk: (x, x, 3)}.get(function, (x,))
    torch.testing.assert_close(torch.jit.script(function)(*arguments), function(*arguments))


def test_script_may_pass_keywords():
    @torch.jit.script
    def scripted(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        scores, _ = pairloom.topk(x, x, 2, similarity="dot")
        return info_nce(x, x, temperature=torch.tensor(0.5), ids=ids, similarity="dot") + scores.sum()

    x, ids = pair()
    expected = (
        info_nce(x, x, temperature=0.5, ids=ids, similarity="dot") + pairloom.topk(x, x, 2, similarity="dot")[0].sum()
    )
    torch.testing.assert_close(scripted(x, ids), expected)


def test_scripted_twins_take_the_same_arguments():
    """All but what only eager mode has or TorchScript has no type for: same order, same defaults."""
    import inspect

    for record in (record for record in records() if record.support.torchscript):
        public = dict(inspect.signature(record.function).parameters)
        for name in ("return_stats", "indices_tuple", "screen", "memory_mib", "progress"):
            public.pop(name, None)
        twin = inspect.signature(record.function.__prepare_scriptable__()).parameters
        assert list(public) == list(twin)
        assert [p.default for p in public.values()] == [p.default for p in twin.values()]


GRAPHS = {
    "info_nce": lambda x, labels: info_nce(x, x.flip(0), ids=labels),
    "multi_similarity": lambda x, labels: multi_similarity(x, labels, epsilon=0.1),
    "topk": lambda x, labels: pairloom.topk(x, x, 3)[0].sum(),
    "pairwise_similarity": lambda x, labels: pairloom.pairwise_similarity(x).sum(),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_compile_makes_one_graph_with_the_operator(name):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(GRAPHS[name], backend=counter, fullgraph=True, dynamic=True)
    for n in (16, 17, 1000):
        torch.testing.assert_close(gradients(compiled, *pair(n)), gradients(GRAPHS[name], *pair(n)))
    graphs = [graph for graph in counter.graphs if any(node.op == "placeholder" for node in graph.graph.nodes)]
    assert len(graphs) == 1
    assert any(f"pairloom.{name}" in str(node.target) for node in graphs[0].graph.nodes)


def test_compile_with_statistics():
    torch._dynamo.reset()
    x, labels = pair()
    compiled = torch.compile(MultiSimilarityLoss().with_stats, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, labels), MultiSimilarityLoss().with_stats(x, labels), equal_nan=True)


def test_compile_of_a_transform_takes_the_reference():
    torch._dynamo.reset()
    x, key = torch.randn(2, 6, 4)
    compiled = torch.compile(torch.func.grad(info_nce), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, key), torch.func.grad(info_nce)(x, key))


@pytest.mark.parametrize("strict", [False, True])
def test_export_saved_and_loaded(strict, tmp_path):
    module = Both()
    x, labels = pair()
    batch = torch.export.Dim("batch")
    program = torch.export.export(module, (x, labels), dynamic_shapes=({0: batch}, {0: batch}), strict=strict)
    assert sum("pairloom" in str(node.target) for node in program.graph.nodes) == 4
    torch.export.save(program, tmp_path / "both.pt2")
    loaded = torch.export.load(tmp_path / "both.pt2").module()
    for n in (8, 11):
        torch.testing.assert_close(gradients(loaded, *pair(n)), gradients(module, *pair(n)))


def test_script_runs_in_a_process_without_our_python(tmp_path):
    x, labels = torch.randn(6, 4), torch.arange(6) // 2
    path = pairloom.export.to_torchscript(MultiSimilarityLoss(), tmp_path / "loss.pt", args=(x, labels))
    torch.save((x, labels), tmp_path / "args.pt")
    program = f"""
import sys, torch
torch.ops.load_library({pairloom.export.library_path()!r})
loss = torch.jit.load({str(path)!r})
print(loss(*torch.load({str(tmp_path / "args.pt")!r})).item())
assert not any(name.split(".")[0] == "pairloom" for name in sys.modules)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert float(done.stdout) == pytest.approx(multi_similarity(x, labels).item())
