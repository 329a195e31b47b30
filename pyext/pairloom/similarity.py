"""Similarity of every row of one batch with every row of another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pairloom import _checks, reference
from pairloom._dispatch import needs_reference, scripted_as, without_autocast
from pairloom._registry import OpRecord, Sample, register
from pairloom.reference.similarity import compute_dtype, inverse_norms, unit_rows


def _pairwise_similarity_script(a: Tensor, b: Tensor | None = None, similarity: str = "cosine") -> Tensor:
    return torch.ops.pairloom.pairwise_similarity(a, a if b is None else b, similarity)


@scripted_as(_pairwise_similarity_script)
def pairwise_similarity(a: Tensor, b: Tensor | None = None, *, similarity: str = "cosine") -> Tensor:
    """Similarity of every row of ``a`` with every row of ``b``; larger is more alike.

        dot                 a_i . b_j
        cosine              a_i . b_j / (||a_i|| ||b_j||), and 0 for a row shorter than 1e-12
        euclidean           -||a_i - b_j||, with gradient 0 where the rows are equal
        squared_euclidean   -||a_i - b_j||^2

    Args:
        a: (N, D) float32, float64, float16 or bfloat16, any strides.
        b: (M, D); ``a`` itself when None. Dtypes may differ; half inputs are summed in float32.
        similarity: one of the four words above.

    Returns:
        (N, M), float64 if an input is, else float32. Differentiable as often as you like; gradients come back in the
        dtype of their input.

    Raises:
        TypeError: an input that is not float.
        ValueError: shapes or devices that do not fit, an unknown word.

    Empty inputs give an empty matrix. NaN in a row gives NaN in its scores.

    Cost: 2 N M D flops, 4 N M bytes (8 in float64): this function exists to *look at* the matrix; losses and `topk`
    never hold it. Under `torch.func` and on devices without a kernel the Euclidean ones take O(N M D) memory.

    Example:
        >>> import torch, pairloom
        >>> pairloom.pairwise_similarity(torch.tensor([[3.0, 0.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        tensor([[1., 0.], [0., 0.]])
    """
    _checks.embeddings("a", a, b=b)
    _checks.choice("similarity", similarity, _checks.SIMILARITIES)
    other = a if b is None else b
    if needs_reference(a):
        return without_autocast(reference.pairwise_similarity, a, other, similarity)
    return torch.ops.pairloom.pairwise_similarity(a, other, similarity)


def _fake(a: Tensor, b: Tensor, similarity: str) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[0]), dtype=compute_dtype(a, b))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, b, ctx.similarity = inputs
    ctx.save_for_backward(a, b, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    """Plain differentiable torch, so that every further derivative follows from it. O(N M + (N + M) D) memory."""
    a, b, scores = ctx.saved_tensors
    dtype = grad.dtype
    wide_a, wide_b = a.to(dtype), b.to(dtype)
    if ctx.similarity in ("cosine", "dot"):
        cosine = ctx.similarity == "cosine"
        unit_a, unit_b = (unit_rows(wide_a), unit_rows(wide_b)) if cosine else (wide_a, wide_b)
        d_a = grad @ unit_b if ctx.needs_input_grad[0] else None
        d_b = grad.T @ unit_a if ctx.needs_input_grad[1] else None
        if cosine:
            d_a = None if d_a is None else through_unit_rows(wide_a, d_a)
            d_b = None if d_b is None else through_unit_rows(wide_b, d_b)
    else:
        # ds_ij / da_i = -2 (a_i - b_j) for the square, (a_i - b_j) / s_ij for the distance (0 where s_ij = 0).
        pull = distance_pull(grad, scores, ctx.similarity)
        d_a = pull.sum(1, keepdim=True) * wide_a - pull @ wide_b if ctx.needs_input_grad[0] else None
        d_b = pull.sum(0).unsqueeze(1) * wide_b - pull.T @ wide_a if ctx.needs_input_grad[1] else None
    return None if d_a is None else d_a.to(a.dtype), None if d_b is None else d_b.to(b.dtype), None


def distance_pull(grad: Tensor, scores: Tensor, similarity: str) -> Tensor:
    """Factor of (a_i - b_j) in the gradient of a_i."""
    if similarity == "squared_euclidean":
        return -2.0 * grad
    same = scores == 0
    return torch.where(same, 0.0, grad / torch.where(same, 1.0, scores))


def through_unit_rows(x: Tensor, grad: Tensor) -> Tensor:
    """Gradient of x from the gradient of `unit_rows(x)`: its part across x, divided by the norm; 0 for zero rows."""
    inverse_norm, zero = inverse_norms(x)
    unit = x * inverse_norm
    return torch.where(zero, 0.0, inverse_norm * (grad - unit * (unit * grad).sum(dim=-1, keepdim=True)))


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    n, m, d = shape
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)
    b = torch.randn(m, d, generator=generator, dtype=torch.float64).to(dtype)
    for similarity in _checks.SIMILARITIES:
        yield Sample(similarity, {"a": a, "b": b, "similarity": similarity}, ("a", "b"))
        yield Sample(f"{similarity}-self", {"a": a, "similarity": similarity}, ("a",))
    zero = torch.cat([a[:1] * 0, a[1:]])
    yield Sample("zero-row", {"a": zero, "b": b}, ("b",))
    yield Sample("strided", {"a": a.repeat(1, 2)[:, ::2], "b": b.T.contiguous().T}, ("a", "b"))


record = register(
    OpRecord(
        name="pairwise_similarity",
        function=pairwise_similarity,
        reference=reference.pairwise_similarity,
        samples=_samples,
        fake=_fake,
        setup_context=_setup_context,
        backward=_backward,
    )
)
