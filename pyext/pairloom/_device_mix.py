"""Mixtures of pairs of rows on a GPU, by the kernels of csrc/cuda/mix_rows.h; nothing is read back or atomic."""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom import _library
from pairloom._dispatch import DEVICE_KERNELS
from pairloom.reference.similarity import compute_dtype

GRADIENT_BITS = {"x": 1, "others": 2, "lam": 4}
"""Bits of ``needs_grad`` of the operator ``mix_gradients``."""


def mix(
    x: Tensor, others: Tensor | None, first: Tensor | None, partner: Tensor, lam: Tensor, normalize: bool
) -> Tensor:
    """The operator of this name."""
    return torch.ops.pairloom.mix_rows(*_prepared(x, others, first, partner, lam), normalize)


def mix_gradients(
    d_mixed: Tensor,
    x: Tensor,
    others: Tensor | None,
    first: Tensor | None,
    partner: Tensor,
    lam: Tensor,
    normalize: bool,
    needs_grad: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The operator of this name."""
    rows, pool, first, partner, share = given = _prepared(x, others, first, partner, lam)
    wants = {name: bool(needs_grad & bit) for name, bit in GRADIENT_BITS.items()}
    g, d_lam = torch.ops.pairloom.mix_through(d_mixed.to(rows.dtype).contiguous(), *given, normalize, wants["lam"])
    nothing = rows.new_empty(0, rows.shape[1])
    d_x = d_others = nothing
    of_partners = _lists(partner, pool.shape[0])
    if wants["x"]:
        of_firsts = (None, None) if first is None else _lists(first, rows.shape[0])
        second = of_partners if others is None else (None, None)
        d_x = torch.ops.pairloom.sum_parents(g, rows.shape[0], partner, share, first is None, *of_firsts, *second)
    if wants["others"]:
        d_others = torch.ops.pairloom.sum_parents(g, pool.shape[0], partner, share, False, None, None, *of_partners)
    return d_x, d_others, d_lam


def _prepared(
    x: Tensor, others: Tensor | None, first: Tensor | None, partner: Tensor, lam: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor]:
    """As the kernels take it: contiguous, of one type."""
    dtype = compute_dtype(x) if others is None else compute_dtype(x, others)
    rows = x.to(dtype).contiguous()
    pool = rows if others is None else others.to(dtype).contiguous()
    share = lam.to(torch.float64).contiguous()
    return rows, pool, None if first is None else first.contiguous(), partner.contiguous(), share


def _lists(parent: Tensor, parents: int) -> tuple[Tensor, Tensor]:
    """(parents + 1,), (count,): the mixtures of every parent, rising; those without one stand before all."""
    named, order = parent.sort(stable=True)
    return torch.searchsorted(named, torch.arange(parents + 1, device=parent.device)), order


def _fake_mix_rows(
    x: Tensor, others: Tensor, first: Tensor | None, partner: Tensor, lam: Tensor, normalize: bool
) -> Tensor:
    return x.new_empty(partner.shape[0], x.shape[1])


def _fake_mix_through(
    d_mixed: Tensor,
    x: Tensor,
    others: Tensor,
    first: Tensor | None,
    partner: Tensor,
    lam: Tensor,
    normalize: bool,
    want_lambda: bool,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(d_mixed), d_mixed.new_empty(partner.shape[0] if want_lambda else 0)


def _fake_sum_parents(
    g: Tensor, parents: int, partner: Tensor, lam: Tensor, in_order: bool, *lists: Tensor | None
) -> Tensor:
    return g.new_empty(parents, g.shape[1])


def register_on(key: str = "CUDA") -> torch.library.Library:
    """Make these the operators' implementation for a dispatch key; keep what is returned as long as they shall be."""
    library = torch.library.Library("pairloom", "IMPL")
    library.impl("mix", mix, key)
    library.impl("mix_gradients", mix_gradients, key)
    DEVICE_KERNELS.add("mix")
    return library


_library.load()
torch.library.register_fake("pairloom::mix_rows", _fake_mix_rows)
torch.library.register_fake("pairloom::mix_through", _fake_mix_through)
torch.library.register_fake("pairloom::sum_parents", _fake_sum_parents)
_registration = register_on("CUDA") if _library.load_cuda() == "loaded" else None
