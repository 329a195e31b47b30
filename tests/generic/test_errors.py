"""Bad input raises ValueError or TypeError whose message names the argument, the value that came, and what is allowed;
nothing has been computed by then. Which values are bad follows from the type of the argument, not from the operator."""

import inspect

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.generic.common import every_record, labels_of, some_samples

SETTINGS_ABOVE_ZERO = ("temperature", "alpha", "beta", "scale")


def richest(record):
    """The sample with most tensors, so that every kind of argument occurs."""
    return max(record.samples(), key=lambda sample: sum(isinstance(v, Tensor) for v in sample.arguments.values()))


def bad_tensors(name, value, labels):
    """(what is wrong, bad value, exception, words of the message besides the name of the argument)."""
    if name == "gallery":  # arrays are galleries
        yield "a list", value.tolist(), TypeError, "list"
    else:
        yield "an array", value.numpy(), TypeError, "array"
    yield "complex", value.to(torch.complex64), TypeError, "complex64"
    yield "one dimension more", value.unsqueeze(0), ValueError, str(tuple(value.unsqueeze(0).shape))
    if labels:
        yield "float labels", value.float(), TypeError, "float32"
        yield "one label more", torch.cat([value, value[:1]]), ValueError, str(len(value) + 1)
        yield "no labels", value[:0], ValueError, "0"
    elif value.dim() == 2:
        yield "integers", value.long(), TypeError, "int64"
        yield "float8", value.to(torch.float8_e4m3fn), TypeError, "float8"
        yield "other dimension", torch.cat([value, value], dim=1), ValueError, str(2 * value.shape[1])
        yield "no dimension", value[:, :0], ValueError, "0"
        yield "meta device", value.to("meta"), (ValueError, TypeError), "meta"
    else:
        yield "integers", value.long(), TypeError, "int64"
        if name not in ("bias", "beta"):
            yield "negative", -value - 1, ValueError, "-"
        yield "NaN", value * torch.nan, ValueError, "nan"
        yield "infinite", value * torch.inf, ValueError, "inf"
        if value.dim() == 1:
            yield "one value more", torch.cat([value, value[:1]]), ValueError, str(len(value) + 1)


def bad_numbers(name):
    for value in (float("nan"), float("inf"), -float("inf")):
        yield "not finite", value, ValueError, str(value)
    yield "a word", "0.5", TypeError, "0.5"
    yield "bool", True, TypeError, "True"
    if name in SETTINGS_ABOVE_ZERO:
        yield "zero", 0.0, ValueError, "0"
        yield "negative", -1.5, ValueError, "-1.5"
        yield "nothing", None, TypeError, "None"


def bad_values(record):
    """Every bad value of every argument of a public function, judged by its annotation and its name."""
    sample = richest(record)
    labels = labels_of(sample)
    for name, parameter in inspect.signature(record.function).parameters.items():
        value = sample.arguments.get(name, parameter.default)
        if isinstance(value, Tensor):
            for wrong in bad_tensors(name, value, name in labels):
                yield name, *wrong
        elif isinstance(parameter.default, str):
            yield name, "unknown word", "nonsense", ValueError, "nonsense"
            yield name, "not a word", 3, ValueError, "3"
        elif isinstance(parameter.default, float) or name == "epsilon":
            for wrong in bad_numbers(name):
                yield name, *wrong
        elif name == "k":
            yield name, "negative", -1, ValueError, "-1"
            yield name, "float", 2.0, TypeError, "2.0"
            yield name, "bool", True, TypeError, "True"
            yield name, "nothing", None, TypeError, "None"
        elif name == "ignore_index":
            yield name, "float", 0.5, TypeError, "0.5"
            yield name, "word", "none", TypeError, "none"
            yield name, "bool", False, TypeError, "False"
            yield name, "beyond int64", 2**63, ValueError, str(2**63)


CASES = [
    pytest.param(record.values[0], *bad, id=f"{record.id}-{bad[0]}-{bad[1]}".replace(" ", "_"))
    for record in every_record()
    for bad in bad_values(record.values[0])
]


class NoWork(TorchDispatchMode):
    """Fails when an operator of the package runs."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert "pairloom" not in str(func), f"{func} ran before the check"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("record", "argument", "what", "value", "exception", "words"), CASES)
def test_bad_input_is_refused_in_words(record, argument, what, value, exception, words):
    arguments = {**richest(record).arguments, argument: value}
    with NoWork(), pytest.raises(exception) as caught:
        record.function(**arguments)
    message = str(caught.value)
    assert argument in message
    assert words in message
    assert "\n" not in message
    assert len(message) < 300


@pytest.mark.parametrize("record", every_record())
def test_the_operator_itself_refuses_what_would_read_outside_memory(record):
    """Callers of torch.ops get one sentence too, never a crash: wrong sizes of every tensor, unknown words."""
    for sample in some_samples(record):
        arguments = dict(zip(record.argument_names, record.op_arguments(sample), strict=False))
        for name, value in arguments.items():
            wrong = []
            if isinstance(value, Tensor):
                wrong = [value.unsqueeze(0).unsqueeze(0)]
                if value.dim():
                    wrong += [torch.cat([value] * 4), value.to(torch.complex64)]
            elif isinstance(value, str):
                wrong = ["nonsense"]
            for bad in wrong:
                if (
                    name in ("columns", "gallery", "b", "a", "queries", "rows", "x", "others")
                    and bad.shape[1:] == value.shape[1:]
                ):
                    continue  # more rows are fine, or reported under another name
                with pytest.raises(RuntimeError) as caught:
                    record.op(*{**arguments, name: bad}.values())
                assert "\n" not in str(caught.value).split("Exception raised")[0].strip(), (name, str(caught.value))
