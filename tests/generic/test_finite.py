"""Values and gradients stay finite and right where exponentials are extreme: temperature 1e-3, logits of 1e3, zero
rows, equal rows, in every dtype and on every instruction-set level."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pairloom._registry import Sample
from pairloom.testing import (
    ROW_KINDS,
    assert_within,
    embedding_rows,
    evaluate_record,
    evaluate_reference,
    isa_levels,
    rounding_bounds,
    using_isa,
)
from tests.generic.common import DTYPES, EVERYTHING, embeddings_of, every_record, sample_named, some_samples

N, M, D = 9, 13, 8


def extreme(record, name, kind, dtype, logit, seed):
    """A sample with rows of one kind, the lowest temperature, and dot products up to ``logit``."""
    sample = sample_named(record, name, shape=(N, M, D), dtype=dtype, seed=seed)
    arguments = dict(sample.arguments)
    for i, embedding in enumerate(embeddings_of(sample)):
        x = embedding_rows(kind, *arguments[embedding].shape, dtype=torch.float64, seed=seed + i)
        longest = x.norm(dim=1).max().clamp(min=1e-9) if len(x) else 1.0
        arguments[embedding] = (x / longest * logit**0.5).to(dtype)
    if "temperature" in arguments:
        cosine = arguments.get("similarity", "cosine") == "cosine"
        temperature = torch.as_tensor(1e-3 if cosine else 1.0, dtype=torch.float64)
        old = arguments["temperature"]
        arguments["temperature"] = temperature.expand_as(old) if isinstance(old, torch.Tensor) else temperature.item()
    return Sample(sample.name, arguments, sample.differentiable, sample.needs_float64)


def steepness(record, arguments):
    """The largest factor between a similarity and what is exponentiated."""
    settings_ = {name: p.default for name, p in inspect.signature(record.function).parameters.items()} | arguments
    names = [name for name in ("alpha", "beta", "scale") if name in settings_]
    factors = [float(torch.as_tensor(settings_[name]).max()) for name in names]
    if "temperature" in settings_:
        factors.append(1 / float(torch.as_tensor(settings_["temperature"]).min()))
    return max(factors, default=0.0)


@pytest.mark.parametrize("record", every_record())
@settings(max_examples=120 if EVERYTHING else 60, deadline=None, derandomize=True)
@given(
    data=st.data(),
    kind=st.sampled_from(ROW_KINDS),
    dtype=st.sampled_from(DTYPES),
    logit=st.sampled_from((1.0, 1e3)),
    level=st.sampled_from(isa_levels()),
    seed=st.integers(0, 9),
)
def test_extreme_inputs(record, data, kind, dtype, logit, level, seed):
    name = data.draw(st.sampled_from([sample.name for sample in some_samples(record)]), label="sample")
    sample = extreme(record, name, kind, dtype, logit, seed)
    with using_isa(level):
        ours = evaluate_record(record, sample)

    def exact(**arguments):
        return evaluate_reference(record, Sample(name, arguments, sample.differentiable))

    logits = logit * steepness(record, sample.arguments)
    wanted, bounds = rounding_bounds(exact, sample.arguments, depth=D, terms=N + M, logits=logits)
    for key, value in ours.items():
        if value.is_floating_point():
            assert not value.isnan().any(), key
            # The gradient of a very short row may be larger than float16 holds.
            fits = wanted[key].abs() <= torch.finfo(value.dtype).max / 2
            assert torch.equal(value.isinf() & fits, wanted[key].isinf() & fits), key
            if not fits[wanted[key].isfinite()].all():
                del bounds[key]
    # Where pairs are chosen, equal rows are ties; which losses are "non-zero" depends on where e^-x becomes 0.
    if not sample.needs_float64 and sample.arguments.get("reduction") != "mean_nonzero":
        assert_within(ours, wanted, bounds)
