"""torch.compile: one graph for every size, equal to eager; torch.export holds the operator and keeps sizes dynamic."""

import pytest
import torch

from pairloom.testing import evaluate
from tests.generic.common import Call, dynamic_shapes, every_sample, outputs_of, sample_named, tensors_of

SHAPES = [(16, 24, 8), (17, 25, 8), (1000, 1003, 8)]


def assert_close(ours, expected, what):
    """A compiler may sum in another order: entries that cancel are off by roundings of the largest ones."""
    for name, value in expected.items():
        largest = float(value[value.isfinite()].abs().max()) if value.isfinite().any() else 0.0
        torch.testing.assert_close(
            ours[name],
            value,
            rtol=2e-6,
            atol=2e-6 * max(largest, 1e-3),
            msg=lambda text, name=name: f"{what} {name}: {text}",
        )


def compiled_equals_eager(record, name, backend):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    module = Call(record, sample_named(record, name, shape=SHAPES[0]))
    compiled = torch.compile(module, backend=backend, fullgraph=True, dynamic=True)

    def run(function, sample):
        return evaluate(lambda **arguments: function(*arguments.values()), named_tensors(sample), sample.differentiable)

    for number, shape in enumerate(SHAPES):
        sample = sample_named(record, name, shape=shape, seed=number)
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            assert_close(run(compiled, sample), run(module, sample), shape)
    # aot_autograd counts the graphs it was given: one, whatever the sizes.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def named_tensors(sample):
    return {name: value for name, value in sample.arguments.items() if isinstance(value, torch.Tensor)}


@pytest.mark.parametrize(("record", "name"), every_sample(compile=True, quick=3, most=6))
def test_compile_makes_one_graph_for_all_sizes(record, name):
    compiled_equals_eager(record, name, "aot_eager")


@pytest.mark.parametrize(("record", "name"), every_sample(compile=True, quick=1, most=2))
def test_inductor_equals_eager(record, name):
    compiled_equals_eager(record, name, "inductor")


@pytest.mark.parametrize(("record", "name"), every_sample(export=True))
def test_export_holds_the_operator_and_takes_other_sizes(record, name):
    sample = sample_named(record, name)
    program = torch.export.export(Call(record, sample), tensors_of(sample), dynamic_shapes=dynamic_shapes(sample))
    assert any(f"pairloom.{record.name}" in str(node.target) for node in program.graph.nodes)
    for shape in ((7, 10, 5), (31, 44, 5)):
        other = sample_named(record, name, shape=shape, seed=1)
        exported = outputs_of(program.module()(*tensors_of(other)))
        eager = outputs_of(Call(record, sample)(*tensors_of(other)))
        for value, wanted in zip(exported, eager, strict=True):
            assert torch.equal(value, wanted)
