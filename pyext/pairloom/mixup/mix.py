"""Mixtures of pairs of rows: function and record."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor

from pairloom import _checks, reference
from pairloom._device_mix import GRADIENT_BITS
from pairloom._dispatch import needs_reference, scripted_as, without_autocast
from pairloom._registry import OpRecord, Sample, Support, register
from pairloom.mixup._shares import share
from pairloom.reference.similarity import compute_dtype


def _mix_script(
    x: Tensor,
    partner: Tensor,
    lam: Tensor,
    others: Tensor | None = None,
    first: Tensor | None = None,
    normalize: bool = False,
) -> Tensor:
    dtype = x.dtype
    if others is not None:
        dtype = torch.result_type(x, others)
    return torch.ops.pairloom.mix(x, others, first, partner, lam, normalize).to(dtype)


@scripted_as(_mix_script)
def mix(
    x: Tensor,
    partner: Tensor,
    lam: Tensor | float,
    *,
    others: Tensor | None = None,
    first: Tensor | None = None,
    normalize: bool = False,
) -> Tensor:
    r"""Mixtures of pairs of rows, one for each partner.

        mixed_v = lam_v x[first_v] + (1 - lam_v) others[partner_v]

    A partner of -1 is none: mixed_v = x[first_v], whatever lam is. With ``normalize`` each mixture is divided by its
    length; one shorter than 1e-12 becomes 0, without gradient.

    Args:
        x: (N, ...) float32, float64, float16 or bfloat16: embeddings, images, feature maps, targets.
        partner: (V,) int64 rows of ``others``, or -1.
        lam: the share of the rows of x, from 0 to 1: a number, or a tensor, 0-d or (V,).
        others: (M, ...) what the partners are rows of; None: x.
        first: (V,) int64 rows of x; None: every row of x once, V = N.
        normalize: divide by the length; rows must be vectors then.

    Returns:
        (V, ...) in the dtype of x (the wider one, if ``others`` has another); sums are float64 if an input is, else
        float32. Gradients for x, others and lam. lam = 1 and 0 give the bits of a finite row, unless normalised.

    Raises:
        TypeError: embeddings that are not float, indices that are not int64, lam that is no number and no float tensor.
        ValueError: shapes or devices that do not fit, indices that are no row, lam outside [0, 1].

    Cost: one pass over the rows; backward two, without atomic additions, so that gradients have the same bits for any
    number of threads. In TorchScript lam is a tensor and rows are vectors.

    Source: Zhang, Cisse, Dauphin, Lopez-Paz, "mixup: Beyond Empirical Risk Minimization", ICLR 2018.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        >>> pairloom.mixup.mix(x, torch.tensor([1, 0, -1]), 0.75)
        tensor([[0.7500, 0.2500],
                [0.2500, 0.7500],
                [0.6000, 0.8000]])
        >>> pairloom.mixup.mix(x, torch.tensor([2]), 0.5, first=torch.tensor([0]), normalize=True)
        tensor([[0.8944, 0.4472]])
    """
    _checks.flag("normalize", normalize)
    rows = _as_rows("x", x, normalize)
    pool = None if others is None else _as_rows("others", others, normalize)
    if others is not None and others.shape[1:] != x.shape[1:]:
        raise ValueError(f"others has shape {tuple(others.shape)} and x {tuple(x.shape)}; their rows must be alike")
    _checks.embeddings("x", rows, others=pool)
    _checks.row_indices(
        "partner", partner, "x" if pool is None else "others", rows if pool is None else pool, none=True
    )
    if first is not None:
        _checks.row_indices("first", first, "x", rows)
        if first.shape[0] != partner.shape[0]:
            raise ValueError(
                f"first has {first.shape[0]} values and partner {partner.shape[0]}; a mixture has one of each"
            )
    elif partner.shape[0] != x.shape[0]:
        raise ValueError(
            f"partner has {partner.shape[0]} values for {x.shape[0]} rows of x; without first there is one for each"
        )
    part = share("lam", lam, [(), (partner.shape[0],)]).to(x.device)
    if needs_reference(x, "mix"):
        mixed = without_autocast(reference.mix, rows, pool, first, partner, part, normalize)
    else:
        mixed = torch.ops.pairloom.mix(rows, pool, first, partner, part, normalize)
    dtype = x.dtype if others is None else torch.promote_types(x.dtype, others.dtype)
    return mixed.to(dtype).view(partner.shape[0], *x.shape[1:])


def _as_rows(name: str, x: Any, normalize: bool) -> Tensor:
    """(N, ...) -> (N, D)."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; it must be a torch.Tensor")
    if x.dim() == 0 or (normalize and x.dim() != 2):
        allowed = "(rows, dimensions), to be normalised" if normalize else "(rows, ...)"
        raise ValueError(f"{name} has shape {tuple(x.shape)}; expected {allowed}")
    return x if x.dim() == 2 else x.reshape(x.shape[0], prod(x.shape[1:]))


def _fake(
    x: Tensor, others: Tensor | None, first: Tensor | None, partner: Tensor, lam: Tensor, normalize: bool
) -> Tensor:
    dtype = compute_dtype(x) if others is None else compute_dtype(x, others)
    return x.new_empty((partner.shape[0], x.shape[1]), dtype=dtype)


def _gradients_fake(
    d_mixed: Tensor,
    x: Tensor,
    others: Tensor | None,
    first: Tensor | None,
    partner: Tensor,
    lam: Tensor,
    normalize: bool,
    needs_grad: int,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = compute_dtype(x) if others is None else compute_dtype(x, others)
    rows, pool, shares = (bool(needs_grad & bit) for bit in GRADIENT_BITS.values())
    return (
        x.new_empty((x.shape[0] if rows else 0, x.shape[1]), dtype=dtype),
        x.new_empty(((x if others is None else others).shape[0] if pool else 0, x.shape[1]), dtype=dtype),
        x.new_empty((partner.shape[0] if shares else 0,), dtype=dtype),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.normalize = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, d_mixed: Tensor) -> tuple[Tensor | None, ...]:
    x, others, first, partner, lam = ctx.saved_tensors
    needs = dict(zip(("x", "others", "first", "partner", "lam"), ctx.needs_input_grad, strict=False))
    wanted = [name for name in GRADIENT_BITS if needs[name]]
    inputs = {"x": x, "others": others, "lam": lam}
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # a derivative of this is asked for
        found = _second_order(wanted, inputs, first, partner, ctx.normalize, d_mixed)
    else:
        bits = sum(GRADIENT_BITS[name] for name in wanted)
        made = torch.ops.pairloom.mix_gradients(d_mixed, x, others, first, partner, lam, ctx.normalize, bits)
        found = dict(zip(GRADIENT_BITS, made, strict=True))
        if needs["lam"] and lam.dim() == 0:
            found["lam"] = found["lam"].sum()
    d_x, d_others, d_lam = (found[name].to(inputs[name].dtype) if name in wanted else None for name in GRADIENT_BITS)
    return d_x, d_others, None, None, d_lam, None


def _second_order(
    wanted: list[str],
    inputs: dict[str, Tensor],
    first: Tensor | None,
    partner: Tensor,
    normalize: bool,
    d_mixed: Tensor,
) -> dict[str, Tensor]:
    """The gradients as a differentiable function, through the reference."""
    given = {name: None if x is None else x.view_as(x) for name, x in inputs.items()}
    mixed = reference.mix(given["x"], given["others"], first, partner, given["lam"], normalize)
    found = torch.autograd.grad(
        mixed, [given[name] for name in wanted], d_mixed, create_graph=True, materialize_grads=True
    )
    return dict(zip(wanted, found, strict=True))


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    n, m, d = shape
    generator = torch.Generator().manual_seed(seed)
    x, others = (torch.randn(rows, d, generator=generator, dtype=torch.float64).to(dtype) for rows in (n, m))
    partner = torch.randperm(n, generator=generator)
    lam = (0.2 + 0.6 * torch.rand(n, generator=generator, dtype=torch.float64)).to(dtype)
    for normalize in (False, True):
        one_batch = {"x": x, "partner": partner, "lam": lam, "normalize": normalize}
        yield Sample("normalized" if normalize else "plain", one_batch, ("x",))
    count = m if n else 0
    one = torch.tensor(0.3, dtype=torch.float64)
    first = torch.randint(max(n, 1), (count,), generator=generator)
    second = torch.randint(-1, m, (count,), generator=generator)
    tables = {"x": x, "partner": second, "lam": one, "others": others, "first": first}
    yield Sample("others", tables, ("x", "others"))
    yield Sample("others-normalized", {**tables, "normalize": True}, ("x", "others"))
    hub = torch.zeros(n, dtype=torch.int64)
    yield Sample("one-partner", {"x": x, "partner": hub, "lam": one, "normalize": True}, ("x",))
    yield Sample("no-partner", {"x": x, "partner": torch.full((n,), -1), "lam": one}, ("x",))


record = register(
    OpRecord(
        name="mix",
        function=mix,
        reference=reference.mix,
        samples=_samples,
        fake=_fake,
        setup_context=_setup_context,
        backward=_backward,
        support=Support(cuda="kernel"),
    )
)
torch.library.register_fake("pairloom::mix_gradients", _gradients_fake)
