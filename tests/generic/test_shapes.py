"""Any number of rows and dimensions, any strides, mixed dtypes, every instruction-set level: sizes are drawn at and
beside the edges of tiles, panels and blocks, every tensor gets a layout of its own with poison around it."""

import inspect

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pairloom.testing import (
    LAYOUTS,
    TILE_EDGES,
    UNITS,
    assert_within,
    evaluate_record,
    evaluate_reference,
    isa_levels,
    laid_out,
    rounding_bounds,
    using_isa,
)
from tests.generic.common import (
    DTYPES,
    EVERYTHING,
    chunks_of,
    embeddings_of,
    every_record,
    pair_losses,
    sample_named,
    some_samples,
)

EDGE = st.sampled_from((0, *TILE_EDGES))
SMALL = st.integers(0, 20)


@st.composite
def shapes(draw):
    """(N, M, D): one of them at a large edge, the others smaller, so that the reference stays cheap."""
    large = draw(EDGE)
    n, m, d = draw(st.permutations([large, draw(SMALL), draw(st.sampled_from((1, 3, 16, 17, 65)))]))
    return n, m, max(d, 1)


def with_arguments(sample, change):
    """A sample whose tensors are ``change(tensor)``."""
    arguments = {k: change(v) if isinstance(v, Tensor) else v for k, v in sample.arguments.items()}
    return type(sample)(sample.name, arguments, sample.differentiable)


def arranged(sample, data):
    """Layouts and dtypes drawn for every tensor of a sample."""
    for name, value in sample.arguments.items():
        if isinstance(value, Tensor) and value.dim():
            if name in embeddings_of(sample):
                dtypes = DTYPES[:2] if sample.needs_float64 else DTYPES
                value = value.to(data.draw(st.sampled_from(dtypes), label=f"dtype of {name}"))
            # Equal rows would be near ties for whatever chooses pairs: they have tests of their own.
            layouts = [layout for layout in LAYOUTS if layout != "expanded"]
            value = laid_out(value, data.draw(st.sampled_from(layouts), label=f"layout of {name}"))
        sample.arguments[name] = value
    return sample


@pytest.mark.parametrize("record", every_record())
@settings(max_examples=60 if EVERYTHING else 30, deadline=None, derandomize=True)
@given(data=st.data(), shape=shapes(), level=st.sampled_from(isa_levels()), seed=st.integers(0, 99))
def test_any_shape_layout_dtype_and_level(record, data, shape, level, seed):
    names = [sample.name for sample in some_samples(record)]
    sample = sample_named(record, data.draw(st.sampled_from(names), label="sample"), shape=shape, seed=seed)
    sample = arranged(sample, data)

    n, m, d = shape
    # In one dimension rows of length 1 are +-1: all distances tie, and rounding decides which triplets are semi-hard.
    assume(d > 1 or not (sample.needs_float64 and "normalize" in inspect.signature(record.function).parameters))
    # One row with itself has gradient 0, by cancellation: there is nothing to measure its rounding against.
    assume(n > 1 or len(embeddings_of(sample)) > 1)

    def exact(**arguments):
        return evaluate_reference(record, type(sample)(sample.name, arguments, sample.differentiable))

    with using_isa(level):
        ours = evaluate_record(record, sample)
    wide = all(sample.arguments[name].dtype == torch.float64 for name in embeddings_of(sample))
    unit = 2 * UNITS[torch.float64] if wide else UNITS[torch.float32]
    assert_within(ours, *rounding_bounds(exact, sample.arguments, depth=d, terms=max(n, m), unit=unit))
    for name in sample.differentiable:
        assert ours[f"d_{name}"].dtype == sample.arguments[name].dtype


@pytest.mark.parametrize("shape", [(2050, 30, 3), (300, 6000, 3)], ids=str)
@pytest.mark.parametrize("record", pair_losses())
def test_several_chunks_of_rows(record, shape):
    """More rows than one chunk of the matrix holds, and so many columns that a chunk holds few rows."""
    if not record.support.standalone:  # chunks are as small as wanted there
        shape = tuple(min(size, 300) for size in shape)
    for sample in list(record.samples(shape=shape, seed=3))[::8]:

        def exact(sample=sample, **arguments):
            return evaluate_reference(record, type(sample)(sample.name, arguments, sample.differentiable))

        bounds = rounding_bounds(exact, sample.arguments, depth=3, terms=max(shape), trials=1)
        with chunks_of(record, 1 << 12):
            ours = evaluate_record(record, sample)
        assert_within(ours, *bounds)


@pytest.mark.parametrize("record", every_record())
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_no_bit(record, layout):
    for sample in some_samples(record, shape=(19, 34, 18), seed=1):
        views = with_arguments(sample, lambda value: laid_out(value, layout) if value.dim() else value)
        copies = with_arguments(views, lambda value: value.contiguous())
        ours, expected = evaluate_record(record, views), evaluate_record(record, copies)
        for name, value in ours.items():
            if name.startswith("output"):
                assert torch.equal(value, expected[name]), sample.name
            else:  # some are matrix products of torch
                torch.testing.assert_close(value, expected[name])


@pytest.mark.parametrize("record", every_record())
def test_lazily_negated_and_conjugated_views(record):
    """torch marks `x.conj().imag` as negated instead of negating it: a kernel must not read the plain memory."""
    for sample in some_samples(record, shape=(7, 10, 5), seed=2):
        lazy = with_arguments(sample, lambda x: torch.complex(x, -x).conj().imag if x.dtype == torch.float32 else x)
        assert all(lazy.arguments[name].is_neg() for name in embeddings_of(lazy))
        expected = evaluate_record(record, sample)
        for name, value in evaluate_record(record, lazy).items():
            torch.testing.assert_close(value, expected[name], msg=f"{sample.name}: {name}")
