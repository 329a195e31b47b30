"""One shape function and one gradient formula for all pair losses, whatever their arguments.

Every pair loss returns ``(loss, stats, d_<x>...)``: the gradients of the reduced loss for the upstream gradient 1 were
made in the forward pass, for the inputs whose bit in ``needs_grad`` was set. What is left for backward is one product.
Argument names are looked up in the operator's schema, so that a new loss needs no line here.

The saved gradients are outputs of the operator. Differentiating the backward pass therefore comes back to this formula
with a gradient *for them*: a Hessian-vector product, which the plain-torch reference gives. A second derivative is
exact and costs what the reference costs (O(N M) memory); it is never silently zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pairloom.reference._rows import NUM_STATS
from pairloom.reference.similarity import compute_dtype

GRADIENT_BITS = {"rows": 1, "columns": 2, "temperature": 4, "bias": 8, "boundary": 16, "weights": 32}
"""Bits of ``needs_grad``, named by the argument that gets a gradient; output ``d_<name>`` holds it."""


class PairLossFormula:
    """Fake and autograd of one pair loss, given its operator and its reference."""

    def __init__(self, op: torch._ops.OpOverload, reference: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self.op = op
        self.reference = reference
        self.arguments = [argument.name for argument in op._schema.arguments]
        outputs = [output.name for output in op._schema.returns]
        self.gradients = [name.removeprefix("d_") for name in outputs if name.startswith("d_")]
        self.tensors = [a.name for a in op._schema.arguments if "Tensor" in str(a.type)]
        assert outputs[:2] == ["loss", "stats"], outputs
        assert set(self.gradients) <= GRADIENT_BITS.keys(), outputs

    def register(self) -> None:
        torch.library.register_fake(self.op, self.fake)
        torch.library.register_autograd(self.op, self.backward, setup_context=self.setup_context)

    def fake(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Shapes and dtypes of the outputs."""
        named = dict(zip(self.arguments, inputs, strict=True))
        rows, columns = named["rows"], named["columns"]
        dtype = compute_dtype(rows) if columns is None else compute_dtype(rows, columns)
        loss = rows.new_empty(rows.shape[:1] if named["reduction"] == "none" else (), dtype=dtype)
        stats = rows.new_empty(NUM_STATS, dtype=torch.float64)
        gradients = []
        for name in self.gradients:
            if self._made(named, name):
                shape = named[name].shape
            else:
                shape = (0, rows.shape[1]) if name in ("rows", "columns") else (0,)
            gradients.append(rows.new_empty(shape, dtype=dtype))
        return loss, stats, *gradients

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Keep the inputs (references, no copies) and the gradients that the forward pass made."""
        named = dict(zip(self.arguments, inputs, strict=True))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*(named[name] for name in self.tensors), *output[2:])
        ctx.options = {name: value for name, value in named.items() if name not in self.tensors}

    def backward(self, ctx: Any, grad_loss: Tensor | None, _: None, *grad_gradients: Tensor | None) -> tuple[Any, ...]:
        """Gradients of all arguments, by position."""
        saved = ctx.saved_tensors
        named = {**dict(zip(self.tensors, saved, strict=False)), **ctx.options}
        made = dict(zip(self.gradients, saved[len(self.tensors) :], strict=True))
        wanted = {
            name
            for name, needed in zip(self.arguments, ctx.needs_input_grad, strict=True)
            if needed and name in (*self.gradients, "weights")
        }
        found: dict[str, Tensor] = {}
        if grad_loss is not None:
            found = self._first_order(named, made, wanted, grad_loss)
        incoming = {
            name: grad
            for name, grad in zip(self.gradients, grad_gradients, strict=True)
            if grad is not None and self._made(named, name)
        }
        if incoming:
            for name, grad in self._second_order(named, incoming, wanted).items():
                found[name] = found[name] + grad if name in found else grad
        return tuple(found[name].to(named[name].dtype) if name in found else None for name in self.arguments)

    def _made(self, named: dict[str, Any], name: str) -> bool:
        """Whether the forward pass made the gradient of argument ``name``."""
        bit = named["needs_grad"] & GRADIENT_BITS[name]
        return bool(bit) and named["reduction"] != "none" and named[name] is not None

    def _first_order(
        self, named: dict[str, Any], made: dict[str, Tensor], wanted: set[str], grad_loss: Tensor
    ) -> dict[str, Tensor]:
        # Sums are linear in the weights: what their gradient needs is the losses of the rows.
        by_row = "weights" in wanted and ("weights" not in self.gradients or named["reduction"] in ("none", "sum"))
        inputs = [name for name in self.gradients if name in wanted and not (by_row and name == "weights")]
        found = {}
        if named["reduction"] == "none":
            # sum_i grad_i w_i l_i is a "sum" with other weights: the operator recomputes its tiles for it.
            weights = named["weights"]
            weights = grad_loss if weights is None else weights.to(grad_loss.dtype) * grad_loss
            if inputs:
                made = self._call(named, weights=weights, reduction="sum", needs_grad=self._bits(inputs))
            found = {name: made[name] for name in inputs}
        else:
            missing = [name for name in inputs if not self._made(named, name)]
            if missing:
                again = self._call(named, needs_grad=self._bits(missing))
                made = {**made, **{name: again[name] for name in missing}}
            found = {name: made[name] * grad_loss for name in inputs}
        if by_row:
            found["weights"] = self._weights_gradient(named, grad_loss)
        return found

    def _weights_gradient(self, named: dict[str, Any], grad_loss: Tensor) -> Tensor:
        """d (sum w l / sum w) / d w_i = (l_i - L) / sum w over the anchors that count.

        For losses with one term in each row; others make this gradient themselves.
        """
        row_loss = self._call(named, weights=None, reduction="none", needs_grad=0)["loss"]
        reduction = named["reduction"]
        if reduction in ("none", "sum"):
            return row_loss * grad_loss
        weights = named["weights"].to(row_loss.dtype)
        counts = torch.ones_like(row_loss, dtype=torch.bool)
        if reduction == "mean_nonzero":
            counts = ~(row_loss <= 0)
        if named["row_labels"] is not None and named["ignore_index"] is not None:
            counts = counts & (named["row_labels"] != named["ignore_index"])
        weights = torch.where(counts, weights, 0.0)
        total = weights.sum()
        nothing = total == 0
        total = torch.where(nothing, 1.0, total)
        mean = (weights * row_loss).sum() / total
        return torch.where(counts & ~nothing, (row_loss - mean) / total, 0.0) * grad_loss

    def _second_order(self, named: dict[str, Any], incoming: dict[str, Tensor], wanted: set[str]) -> dict[str, Tensor]:
        """Gradient of sum_x <incoming_x, d loss / d x> in every wanted argument, through the reference."""
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            # Views: the same tensor may be given as rows and as columns, and each role needs its own derivative.
            inputs = {name: named[name].view_as(named[name]) for name in sorted(wanted)}
            # A gradient may be asked for (needs_grad) and used although its input does not require one.
            inputs |= {name: named[name].detach().requires_grad_() for name in incoming if name not in wanted}
            arguments = {**named, **inputs, "want_stats": False}
            loss, _ = self.reference(*(arguments[name] for name in self.arguments if name != "needs_grad"))
            if not loss.requires_grad:
                return {}
            first = torch.autograd.grad(
                loss, [inputs[name] for name in incoming], create_graph=True, allow_unused=True, materialize_grads=True
            )
            products = [(vector * grad).sum() for vector, grad in zip(incoming.values(), first, strict=True)]
            product = torch.stack([value.to(loss.dtype) for value in products]).sum()
            if not product.requires_grad:  # the loss is linear in these inputs
                return {}
            second = torch.autograd.grad(product, list(inputs.values()), create_graph=create_graph, allow_unused=True)
        return {n: grad for n, grad in zip(inputs, second, strict=True) if grad is not None and n in wanted}

    def _bits(self, names: Sequence[str]) -> int:
        return sum(GRADIENT_BITS[name] for name in names)

    def _call(self, named: dict[str, Any], **changed: Any) -> dict[str, Tensor]:
        """Call the operator again with some arguments changed: its loss, and the gradients by the name of the input."""
        arguments = {**named, "want_stats": False, **changed}
        loss, _, *gradients = self.op(*(arguments[name] for name in self.arguments))
        return {"loss": loss, **dict(zip(self.gradients, gradients, strict=True))}
