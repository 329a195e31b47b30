"""Every combination of options at once, on the operators of the pair losses themselves: similarity, reduction, weights
with zeros, ignored labels, labels for some columns only, any bits of needs_grad, any upstream gradient. In float64,
equal to the reference and its gradients, those of weights and temperature included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.generic.common import pair_losses, sample_named, some_samples

LEAVES = ("rows", "columns", "temperature", "weights")


def drawn_arguments(record, data, n, m, seed):
    """Arguments of the operator by name, from a sample, with options drawn."""
    names = [sample.name for sample in some_samples(record)]
    sample = sample_named(
        record, data.draw(st.sampled_from(names), label="sample"), shape=(n, m, 4), dtype=torch.float64, seed=seed
    )
    arguments = dict(zip(record.argument_names, record.op_arguments(sample), strict=True))
    generator = torch.Generator().manual_seed(seed)
    arguments["similarity"] = data.draw(st.sampled_from(("cosine", "dot")), label="similarity")
    arguments["reduction"] = data.draw(
        st.sampled_from(("mean", "mean_all", "mean_nonzero", "sum", "none")), label="reduction"
    )
    arguments["needs_grad"] = data.draw(st.integers(0, 7), label="needs_grad")
    arguments["want_stats"] = data.draw(st.booleans(), label="want_stats")
    arguments["ignore_index"] = data.draw(st.sampled_from((None, -100, 0, 1)), label="ignore_index")
    kind = data.draw(st.sampled_from((None, "ones", "random", "some zero", "zeros")), label="weights")
    if kind is None:
        arguments["weights"] = None
    else:
        weights = torch.rand(n, generator=generator, dtype=torch.float64) + 0.1
        keep = {"some zero": torch.arange(n) % 2 == 0, "zeros": torch.zeros(n)}.get(kind, torch.ones(n))
        arguments["weights"] = torch.ones(n).double() if kind == "ones" else weights * keep
    if "temperature" in arguments and data.draw(st.booleans(), label="temperature per row"):
        arguments["temperature"] = torch.rand(n, generator=generator, dtype=torch.float64) + 0.2
    if "same_id" in arguments:
        arguments["same_id"] = data.draw(st.sampled_from(("ignore", "positive")), label="same_id")
        if arguments.get("column_labels") is not None:
            some = data.draw(st.integers(0, len(arguments["column_labels"])), label="labelled columns")
            arguments["column_labels"] = arguments["column_labels"][:some]
    return arguments


@pytest.mark.parametrize("record", pair_losses())
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    data=st.data(), n=st.sampled_from((0, 1, 2, 5, 9, 18)), m=st.sampled_from((0, 1, 7, 20)), seed=st.integers(0, 999)
)
def test_any_combination(record, data, n, m, seed):
    arguments = drawn_arguments(record, data, n, m, seed)
    leaves = {k: arguments[k].detach().double().requires_grad_() for k in LEAVES if arguments.get(k) is not None}
    wanted = [name for name in leaves if data.draw(st.booleans(), label=f"differentiate {name}")]
    arguments |= {name: leaves[name] if name in wanted else leaves[name].detach() for name in leaves}

    loss, stats, *_ = record.op(*arguments.values())
    expected, expected_stats = record.reference(*record.reference_arguments(tuple(arguments.values())))
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(stats[:11], expected_stats[:11], rtol=1e-9, atol=1e-9)  # tiles: kernels only
    if wanted:
        upstream = torch.linspace(-1, 2, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
        inputs = [leaves[name] for name in wanted]
        ours = torch.autograd.grad(loss, inputs, upstream)
        right = torch.autograd.grad(expected, inputs, upstream, allow_unused=True, materialize_grads=True)
        for name, gradient, exact in zip(wanted, ours, right, strict=True):
            torch.testing.assert_close(gradient, exact, rtol=1e-8, atol=1e-11, msg=lambda t, name=name: f"{name}: {t}")
