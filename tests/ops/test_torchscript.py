"""Every loss in TorchScript: saved and loaded it gives the value and the gradient of eager mode, or it says in one
sentence that it has no such form and what to do instead; which of the two, docs/support.md says."""

from __future__ import annotations

import inspect
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pairloom
from pairloom import functional, losses
from pairloom._dispatch import no_torchscript, twin_of
from pairloom._registry import COMPOSED, records

MODULES = [name for name in losses.__all__ if name.endswith("Loss")]
FUNCTIONS: dict[str, Any] = {record.module.__name__: record.function for record in records() if record.module}
FUNCTIONS |= {module: getattr(functional, function) for function, module, _ in COMPOSED}
LEARN = {"MarginLoss", "ProxyAnchorLoss", "SigLIPLoss"}
"""Modules of functions that script, which give them what they have learned in a way that TorchScript does not know."""
SCRIPTED = {name for name, function in FUNCTIONS.items() if twin_of(function) is not None} - LEARN
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "InfoNCELoss": [{"learn_temperature": True}, {"same_id": "positive"}],
    "MoCoLoss": [{"temperature": 0.2, "similarity": "dot", "reduction": "sum"}, {"reduction": "none"}],
    "MultipleNegativesRankingLoss": [
        {"scale": 5, "symmetric": True},
        {"similarity": "dot", "reduction": "none"},
        {"ignore_index": None, "symmetric": True},
        {"reduction": "mean_nonzero", "ignore_index": 1},
    ],
    "NTXentLoss": [{"average": "anchors"}],
}
SENTENCE = "{} has no TorchScript form, because part of it is computed in Python; save it with torch.export instead"


def rows(n: int, seed: int) -> Tensor:
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(seed))


def module_of(name: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    loss = getattr(pairloom, name)
    required = (4, 5) if "num_classes" in inspect.signature(loss).parameters and name != "MarginLoss" else ()
    return loss(*required, **options)


def calls(name: str) -> list[tuple[Any, ...]]:
    """Positional arguments of every kind that a module takes; the first is one that gets a gradient."""
    x, y, z, labels = rows(8, 1), rows(8, 2), rows(6, 3), torch.arange(8) // 2
    if name == "MoCoLoss":
        return [(x, y, z), (x, y, None)]
    if name == "MultipleNegativesRankingLoss":
        return [(x, y), (x, y, z), (x, y, [z, z + 1]), (x, y, None, labels), (x, y, z, labels)]
    if name == "GISTEmbedLoss":
        guide = [rows(8, 4), rows(8, 5), rows(6, 6)]  # torch.export takes one tensor in two places for one input
        return [(x, y, *guide[:2]), (x, y, *guide[:2], z, guide[2])]
    if name == "InfoNCELoss":
        return [(x, y), (x, y, z), (x, y, z, labels, labels[:6])]
    if name in ("CLIPLoss", "DHELLoss"):
        return [(x, y)]
    if name == "SigLIPLoss":
        return [(x, y), (x, y, z), (x, y, z, labels)]
    return [(x, labels)]


def value_and_gradient(loss: Any, arguments: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    first = arguments[0].clone().requires_grad_()
    value = loss(first, *arguments[1:])
    return value.detach(), torch.autograd.grad(value.sum(), first)[0]


CASES = [(name, options) for name in MODULES for options in ({}, *OPTIONS.get(name, []))]


@pytest.mark.parametrize(("name", "options"), CASES, ids=[f"{name}-{'-'.join(map(str, o))}" for name, o in CASES])
def test_a_module_scripts_or_says_why_not(name: str, options: dict[str, Any]) -> None:
    module = module_of(name, **options)
    if name not in SCRIPTED:
        with pytest.raises(RuntimeError) as caught:
            torch.jit.script(module)
        assert str(caught.value) == SENTENCE.format(name)
        return
    scripted = torch.jit.script(module)
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    for arguments in calls(name):
        for _ in range(3):  # the profiling executor changes its mind after the first calls
            torch.testing.assert_close(value_and_gradient(loaded, arguments), value_and_gradient(module, arguments))


@pytest.mark.parametrize("name", sorted(set(MODULES) - SCRIPTED))
def test_the_way_out_is_one(name: str) -> None:
    """torch.export saves and loads each of those that TorchScript refuses, with the value and the gradient."""
    module, arguments = module_of(name), calls(name)[0]
    program = torch.export.export(module, arguments)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    loaded = torch.export.load(buffer).module()
    torch.testing.assert_close(value_and_gradient(loaded, arguments), value_and_gradient(module, arguments))


@pytest.mark.parametrize("name", functional.__all__)
def test_functions_say_it_too(name: str) -> None:
    """Scripted themselves, or called by what is scripted."""
    function = getattr(functional, name)
    if twin_of(function) is not None:
        torch.jit.script(function)
        return

    class Calls(nn.Module):
        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return function(x, labels)

    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = function

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            return self.loss(x, labels)

    for it in (function, Calls()):
        with pytest.raises(RuntimeError) as caught:
            torch.jit.script(it)
        assert str(caught.value) == SENTENCE.format(name)
    with pytest.raises(RuntimeError) as caught:  # in torch's own words on attributes
        torch.jit.script(Holds())
    assert SENTENCE.format(name) in str(caught.value)


@pytest.mark.parametrize("name", ["DHELLoss", "SigLIPLoss", "ProxyAnchorLoss"])
def test_a_model_that_holds_one_says_it(name: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.jit.script(nn.Sequential(nn.Linear(3, 3), module_of(name)))
    assert str(caught.value) == SENTENCE.format(name)
    with pytest.raises(RuntimeError, match="Mine has no TorchScript form"):
        raise no_torchscript("Mine")


@pytest.mark.parametrize("name", [name for name in functional.__all__ if twin_of(getattr(functional, name))])
def test_twins_take_the_arguments_of_the_function(name: str) -> None:
    """All but what only eager mode has: same order, same defaults."""
    function = getattr(functional, name)
    public = dict(inspect.signature(function).parameters)
    for only_eager in ("return_stats", "indices_tuple"):
        public.pop(only_eager, None)
    twin = inspect.signature(twin_of(function)).parameters
    assert {n: p.default for n, p in public.items()} == {n: p.default for n, p in twin.items()}
    assert list(public) == list(twin)


def test_none_is_lost() -> None:
    """What scripted when this was written: giving one up is a decision, not an accident."""
    once = "CLIP InfoNCE MoCo MultiSimilarity MultipleNegativesRanking NTXent SupCon TripletMargin DCL HCL Circle"
    once += " BatchHardTriplet BinomialDeviance Contrastive GeneralizedLiftedStructure"
    assert {f"{name}Loss" for name in once.split()} <= SCRIPTED


def test_the_page_knows_every_loss_and_tells_the_truth() -> None:
    """Every module and function stands in docs/support.md, in one of its tables, with what TorchScript does with it."""
    found = {record.module.__name__: record.support.torchscript for record in records() if record.module is not None}
    own = {record.function.__name__ for record in records()}
    page = (Path(__file__).parents[2] / "docs" / "support.md").read_text(encoding="utf-8")
    for function, module, operators in COMPOSED:
        found[module] = module in SCRIPTED
        own.add(function)
        (line,) = (line for line in page.splitlines() if f"| `{module}` |" in line)
        assert line.endswith("| yes |" if found[module] else "| no |")
        assert set(operators) <= {record.name for record in records()}
    assert sorted(found) == sorted(MODULES)
    assert set(functional.__all__) <= own
    assert {name for name, scripts in found.items() if scripts} == SCRIPTED | LEARN
