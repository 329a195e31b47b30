"""How far a result may be from the exact one.

A kernel that sums D products in a floating-point format with unit roundoff u makes each similarity wrong by about
sqrt(D) u |x| |y| (Higham and Mary 2019; D u at the very worst), and each entry of a gradient by the same share of what
it is a sum of. What that means for a loss depends on the loss and on the inputs: low temperatures, cancellation and
nearly equal rows make it more, saturation makes it less. So it is not derived but tried out. The exact result is
computed in float64 for embeddings changed at random, and the largest change of the result over a few trials, times
`SAFETY`, is what such errors may cost. Nothing has to be known of the loss. With g a normal random number, a row x is
changed in three ways:

    its entries              by the relative amount g D u
    a further entry, else 0  to g (D + max |z|) u |x|: the gradient of cosine is a difference of parallel parts; where
                             it cancels (D = 1, a row with itself) this direction shows what it was a difference of
    another one              to g (sqrt(D) u)^(1/2) |x|, whose products move every similarity by about sqrt(D) u |x| |y|

What happens after the similarities are sums over pairs: an exponential e^z is right to 8 u + u |z|, and a sum of M
positive terms to sqrt(M) u, relative to the result: (8 + sqrt(M) + 4 max |z|) u max |result|. (The gradient of a weight
is a difference of losses: there it is relative to the loss, where that is larger.)

Nothing in the bound is fitted to a kernel. Results that are exact by definition (0 for nothing to learn) have bound 0,
but for what underflows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pairloom.testing._evaluate import Evaluation, widen

UNITS = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}
"""Unit roundoff: the largest relative error of rounding one number."""

SAFETY = 4.0
"""The largest of a few random trials is below the largest possible change."""


def rounding_bounds(
    exact: Callable[..., Evaluation],
    arguments: Mapping[str, Any],
    *,
    depth: int,
    terms: int,
    logits: float = 1.0,
    unit: float = UNITS[torch.float32],
    trials: int = 4,
    seed: int = 0,
) -> tuple[Evaluation, dict[str, float]]:
    """The exact results, and for each float result the largest difference that rounding explains.

    Args:
        exact: ``exact(**arguments)`` in float64, with the same keys as the results to judge.
        arguments: float tensors are widened to float64; 2-D ones (embeddings) are changed in the trials.
        depth: D, entries of an embedding.
        terms: the longer of N and M, terms of a sum over pairs.
        logits: the largest |z| that is exponentiated, roughly.
        unit: unit roundoff of the sums to judge.
        trials: changed inputs to try.
        seed: of the changes.
    """
    generator = torch.Generator().manual_seed(seed)
    wide = widen(arguments)
    result = exact(**wide)
    unchanged = exact(**_changed(wide, 0.0, 0.0, 0.0, generator))
    changes = dict.fromkeys(result, 0.0)
    for _ in range(trials):
        changed = exact(**_changed(wide, depth * unit, (depth + logits) * unit, depth**0.5 * unit, generator))
        for name, value in changed.items():
            # The gradient of the last entry is proportional to that entry, so its size says nothing.
            last = name.removeprefix("d_") in _embeddings(wide)
            a, b = (value[:, :-1], unchanged[name][:, :-1]) if last else (value, unchanged[name])
            changes[name] = max(changes[name], _distance(a, b))
    return result, {
        name: SAFETY * changes[name] + (8 + terms**0.5 + SAFETY * logits) * unit * _scale(name, result)
        for name, value in result.items()
        if value.is_floating_point()
    }


def assert_within(
    ours: Evaluation,
    exact: Evaluation,
    bounds: Mapping[str, float],
    *,
    rounded_gradients: bool = True,
) -> None:
    """Every float result is within its bound of the exact one; infinities and NaN stand at the same places.

    With ``rounded_gradients`` a gradient that comes back in half precision may also be off by three roundings to it: a
    tensor with two roles (rows and columns) gets each gradient rounded, and their sum.
    """
    for name, bound in bounds.items():
        value, wanted = ours[name], exact[name]
        assert value.shape == wanted.shape, f"{name} has shape {tuple(value.shape)}, not {tuple(wanted.shape)}"
        assert torch.equal(value.isnan(), wanted.isnan()), f"{name} has NaN at other places than the exact result"
        assert torch.equal(value.isposinf(), wanted.isposinf()), f"{name} has inf at other places"
        assert torch.equal(value.isneginf(), wanted.isneginf()), f"{name} has -inf at other places"
        if rounded_gradients and value.dtype.itemsize == 2:
            bound += 3 * UNITS[value.dtype] * max(_magnitude(wanted), torch.finfo(value.dtype).smallest_normal)
        limits = torch.finfo(torch.float64 if value.dtype == torch.float64 else torch.float32)
        bound += limits.smallest_normal / limits.eps  # exponentials that underflow are 0
        error = _distance(value, wanted)
        assert error <= bound, (
            f"{name} is off by {error:.3g} (largest value {_magnitude(wanted):.3g}); rounding explains {bound:.3g}"
        )


def _embeddings(arguments: Mapping[str, Any]) -> list[str]:
    return [n for n, v in arguments.items() if isinstance(v, Tensor) and v.is_floating_point() and v.dim() == 2]


def _changed(
    arguments: Mapping[str, Any], entries: float, across: float, similarities: float, generator: torch.Generator
) -> dict[str, Any]:
    changed = dict(arguments)
    for name in _embeddings(arguments):
        x = changed[name]
        norm = x.norm(dim=1, keepdim=True)
        amount = torch.cat([entries * x.abs(), across * norm, similarities**0.5 * norm], dim=1)
        share = torch.randn(amount.shape, generator=generator, dtype=x.dtype)
        changed[name] = torch.cat([x, x.new_zeros(len(x), 2)], dim=1) + amount * share
    return changed


def _distance(a: Tensor, b: Tensor) -> float:
    finite = a.isfinite() & b.isfinite()
    return float((a.double() - b.double()).abs()[finite].max()) if bool(finite.any()) else 0.0


def _scale(name: str, result: Evaluation) -> float:
    of_losses = name.startswith("d_") and result[name].dim() < 2
    return max(_magnitude(result[name]), _magnitude(result["output0"]) if of_losses else 0.0)


def _magnitude(x: Tensor) -> float:
    finite = x[x.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
