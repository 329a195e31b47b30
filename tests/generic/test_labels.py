"""Labels are names: any injective renaming, in any integer dtype, leaves every bit of the result alone; ignored rows
leave as if they had never been in the batch."""

import pytest
import torch
from torch import Tensor

from pairloom._registry import Sample
from pairloom.testing import LABEL_DTYPES, evaluate_record, relabelled
from tests.generic.common import every_record, labels_of, some_samples

LABELLED = [parameter for parameter in every_record() if "ignore_index" in parameter.values[0].argument_names]
SHAPE = (24, 31, 6)


def renamed(sample, rename):
    """All labels of a sample renamed together, so that equal ones stay equal across arguments."""
    names = labels_of(sample)
    parts = [sample.arguments[name].to(torch.int64) for name in names]
    renamed_parts = rename(torch.cat(parts)).split([len(part) for part in parts])
    return Sample(
        sample.name, {**sample.arguments, **dict(zip(names, renamed_parts, strict=True))}, sample.differentiable
    )


def labelled_samples(record, **options):
    for sample in some_samples(record, shape=SHAPE, seed=1, **options):
        if labels_of(sample):
            yield sample


def assert_same_bits(record, a, b):
    expected = evaluate_record(record, a)
    for name, value in evaluate_record(record, b).items():
        assert torch.equal(value, expected[name]), (a.name, name)


@pytest.mark.parametrize("dtype", LABEL_DTYPES, ids=str)
@pytest.mark.parametrize("record", LABELLED)
def test_names_of_classes_do_not_matter(record, dtype):
    for sample in labelled_samples(record):
        sample.arguments["ignore_index"] = None
        if dtype == torch.bool:
            sample = renamed(sample, lambda labels: labels % 2)
        assert_same_bits(record, sample, renamed(sample, lambda labels: relabelled(labels, dtype, seed=3)))


@pytest.mark.parametrize("record", LABELLED)
def test_neighbouring_64_bit_ids_differ(record):
    """Names that float64 (2^53) and float32 (2^24) would merge, and the very ends of the range."""
    for start in (2**24, 2**53, 2**62, -(2**63), 2**63 - 2000, -(2**53) - 5):
        for sample in labelled_samples(record):
            sample.arguments["ignore_index"] = None
            assert_same_bits(
                record, sample, renamed(sample, lambda labels, start=start: labels.clamp(min=-1) + 1 + start)
            )


@pytest.mark.parametrize("value", [-100, 0, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("record", LABELLED)
def test_ignored_rows_leave(record, value):
    """The loss and the gradients are those of the batch without the ignored rows, whose gradients are 0."""
    for sample in labelled_samples(record, dtype=torch.float64):
        n = SHAPE[0]
        keep = torch.arange(n) % 4 != 2
        names = labels_of(sample)
        arguments = {**sample.arguments, "ignore_index": value}
        for name in names:
            labels = arguments[name].to(torch.int64) + 7
            arguments[name] = torch.where(keep, labels, value) if len(labels) == n else labels
        if any(len(arguments[name]) == n for name in names):
            fewer = {
                name: argument[keep] if isinstance(argument, Tensor) and argument.shape[:1] == (n,) else argument
                for name, argument in arguments.items()
            }
            ours = evaluate_record(record, Sample(sample.name, arguments, sample.differentiable))
            without = evaluate_record(record, Sample(sample.name, fewer, sample.differentiable))
            for name, wanted in without.items():
                found = ours[name]
                if found.shape[:1] == (n,) and name != "output0":
                    assert not found[~keep].any(), (sample.name, name)
                    found = found[keep]
                elif found.shape == (n,):  # losses of single rows: the upstream gradients differ, the values do not
                    assert not found[~keep].any()
                    torch.testing.assert_close(found[keep], wanted)
                    break
                torch.testing.assert_close(found, wanted, msg=f"{sample.name}: {name}")


@pytest.mark.parametrize("record", LABELLED)
def test_ignore_index_none_switches_it_off(record):
    for sample in labelled_samples(record):
        names = labels_of(sample)
        shifted = renamed(sample, lambda labels: torch.where(labels < 0, 999, labels))
        off = Sample(sample.name, {**sample.arguments, "ignore_index": None}, sample.differentiable)
        assert names
        assert_same_bits(record, off, shifted)


@pytest.mark.parametrize("record", LABELLED)
def test_labels_may_be_views(record):
    for sample in labelled_samples(record):
        views = {name: torch.stack([sample.arguments[name]] * 3, dim=1)[:, 1] for name in labels_of(sample)}
        assert_same_bits(record, sample, Sample(sample.name, {**sample.arguments, **views}, sample.differentiable))


@pytest.mark.parametrize("record", LABELLED)
def test_float_labels_are_refused(record):
    sample = next(labelled_samples(record))
    for name in labels_of(sample):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.complex64):
            with pytest.raises(TypeError, match=name):
                record.function(**{**sample.arguments, name: sample.arguments[name].to(dtype)})


def test_relabelled_keeps_the_partition():
    labels = torch.tensor([3, 3, -100, 5, 0, 5])
    for dtype in LABEL_DTYPES[1:]:
        names = relabelled(labels, dtype).tolist()
        assert [[a == b for a in names] for b in names] == [[a == b for a in labels.tolist()] for b in labels.tolist()]
