"""Retrieval: the k most similar gallery rows of every query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairloom import _checks, reference
from pairloom._dispatch import needs_reference, scripted_as, without_autocast
from pairloom._gallery_blocks import block_rows, check_array, topk_in_blocks
from pairloom._id_lists import IdLists, id_lists, id_lists_in_graph
from pairloom._progress import progress_bar
from pairloom._registry import OpRecord, Sample, register
from pairloom.reference.similarity import compute_dtype, unit_rows
from pairloom.reference.topk import topk_standard
from pairloom.similarity import distance_pull, through_unit_rows


def _topk_script(
    queries: Tensor,
    gallery: Tensor,
    k: int,
    similarity: str = "cosine",
    exclude: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    indptr: Tensor | None = None
    indices: Tensor | None = None
    if exclude is not None:
        indptr, indices = exclude
    return torch.ops.pairloom.topk(queries, gallery, k, similarity, indptr, indices)


@scripted_as(_topk_script)
def topk(
    queries: Tensor,
    gallery: Tensor | np.ndarray,
    k: int,
    *,
    similarity: str = "cosine",
    exclude: Any = None,
    memory_mib: float = 256.0,
    progress: bool = False,
) -> tuple[Tensor, Tensor]:
    """The k most similar gallery rows of every query, best first; ties go to the lowest index.

        indices[q, 0..k) = the first k of sorted(range(M) - exclude[q], key=lambda j: (-s(queries_q, gallery_j), j))

    An index is returned only for a score above -inf and not NaN. Every other place holds index -1 and score -inf: so
    for k > M, for an empty gallery, and for rows with NaN on either side. The order is the same in eager mode, in
    compiled graphs and in exported ONNX, for any number of threads. Excluded rows are left out inside the selection:
    k others come whenever they exist.

    A gallery that is a NumPy array or memory map (``np.load(path, mmap_mode="r")``) is read block by block and may be
    larger than memory; scores and indices have the same bits as for a tensor. Only in eager mode, without gradients.

    Args:
        queries: (Q, D) float32, float64, float16 or bfloat16, any strides.
        gallery: (M, D). Dtypes may differ; half inputs are summed in float32. Arrays: float16, float32 or float64.
        k: results per query, 0 or more; a constant in compiled and exported graphs.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean", as in `pairwise_similarity`: larger is better.
        exclude: gallery rows that are no answer to a query: integers (Q,), -1 for none; a list with the ids of each
            query; or CSR, a tuple (indptr (Q + 1,), indices). In compiled and exported graphs a tensor (Q,)
            or the tuple, whose ids nobody checks: what is no row excludes nothing. In TorchScript the tuple.
        memory_mib: MiB of an array that are held at a time.
        progress: show a bar on stderr while an array is read.

    Returns:
        scores (Q, k), float64 if an input is, else float32, differentiable; indices (Q, k) int64.

    Raises:
        TypeError: embeddings that are not float, k or ids that are not integers.
        ValueError: shapes or devices that do not fit, k below 0, ids that are no row, an unknown word, gradients asked
            for through an array.

    Cost: 2 Q M D flops; O(Q k) bytes beside the inputs, never the Q x M matrix. Backward takes O(Q k D) memory. Under
    `torch.func`, in ONNX and on devices without a kernel: O(Q M), for the Euclidean ones O(Q M D).

    Example:
        >>> import torch, pairloom
        >>> gallery = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
        >>> scores, indices = pairloom.topk(torch.tensor([[5.0, 0.0]]), gallery, k=4)
        >>> scores, indices
        (tensor([[1., 1., 0., -inf]]), tensor([[ 0, 2, 1, -1]]))
        >>> pairloom.topk(torch.tensor([[5.0, 0.0]]), gallery.numpy(), k=2, exclude=[[0]])[1]
        tensor([[2, 1]])
    """
    if isinstance(gallery, np.ndarray):
        _check_array(queries, gallery)
    else:
        _checks.embeddings("queries", queries, gallery=gallery)
    _checks.count("k", k)
    _checks.choice("similarity", similarity, _checks.SIMILARITIES)
    _checks.positive_number("memory_mib", memory_mib)
    _checks.flag("progress", progress)
    lists = None if exclude is None else _exclusions(exclude, queries, gallery)
    if not isinstance(gallery, np.ndarray):
        return search(queries, gallery, k, similarity, lists)
    with progress_bar(progress, "topk", len(gallery)) as advance:
        return topk_in_blocks(
            search, queries, gallery, k, similarity, lists,
            rows_per_block=block_rows(gallery, memory_mib * 2**20), on_block=advance,
        )  # fmt: skip


def search(queries: Tensor, gallery: Tensor, k: int, similarity: str, exclude: IdLists | None) -> tuple[Tensor, Tensor]:
    """`topk` of a tensor, without the checks: the kernel or the reference."""
    indptr, indices = (None, None) if exclude is None else exclude
    if needs_reference(queries):
        formula = topk_standard if torch.onnx.is_in_onnx_export() else reference.topk
        return without_autocast(formula, queries, gallery, k, similarity, indptr, indices)
    return torch.ops.pairloom.topk(queries, gallery, k, similarity, indptr, indices)


def _check_array(queries: Tensor, gallery: np.ndarray) -> None:
    _checks.embeddings("queries", queries)
    check_array("gallery", gallery)
    _checks.same_dimensions("gallery", gallery, "queries", queries)
    if queries.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "queries requires gradients, which a gallery that is an array does not give; pass queries.detach(), or the "
            "gallery as a tensor"
        )


def _exclusions(exclude: Any, queries: Tensor, gallery: Tensor | np.ndarray) -> IdLists:
    if torch.compiler.is_compiling():
        return id_lists_in_graph("exclude", exclude, queries.shape[0])
    return id_lists("exclude", exclude, queries.shape[0], gallery.shape[0], of="gallery").to(queries.device)


def _fake(
    queries: Tensor,
    gallery: Tensor,
    k: int,
    similarity: str,
    exclude_indptr: Tensor | None = None,
    exclude_indices: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    shape = (queries.shape[0], k)
    return (
        queries.new_empty(shape, dtype=compute_dtype(queries, gallery)),
        queries.new_empty(shape, dtype=torch.int64),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    queries, gallery, _, ctx.similarity, *_ = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(queries, gallery, *output)


def _backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    """Plain differentiable torch over the pairs that were returned: O(Q k D) memory."""
    queries, gallery, scores, indices = ctx.saved_tensors
    others = (None,) * 4  # k, similarity and the exclusions
    if grad is None or indices.numel() == 0:
        return None, None, *others
    dtype = grad.dtype
    missing = indices < 0
    grad = torch.where(missing, 0.0, grad)
    index = indices.clamp(min=0).flatten()
    wide_queries, wide_gallery = queries.to(dtype), gallery.to(dtype)
    if gallery.shape[0] == 0:  # nothing was returned; there is no row to gather
        return torch.zeros_like(queries), torch.zeros_like(gallery), *others
    if ctx.similarity in ("cosine", "dot"):
        cosine = ctx.similarity == "cosine"
        left, right = (unit_rows(wide_queries), unit_rows(wide_gallery)) if cosine else (wide_queries, wide_gallery)
        picked = right[index].view(*indices.shape, -1)
        d_left = (grad.unsqueeze(2) * picked).sum(1)
        d_right = torch.zeros_like(right).index_add(0, index, (grad.unsqueeze(2) * left.unsqueeze(1)).flatten(0, 1))
        d_queries = through_unit_rows(wide_queries, d_left) if cosine else d_left
        d_gallery = through_unit_rows(wide_gallery, d_right) if cosine else d_right
    else:
        picked = wide_gallery[index].view(*indices.shape, -1)
        pull = distance_pull(grad, torch.where(missing, 0.0, scores), ctx.similarity).unsqueeze(2)
        moves = pull * (wide_queries.unsqueeze(1) - picked)
        d_queries = moves.sum(1)
        d_gallery = torch.zeros_like(wide_gallery).index_add(0, index, -moves.flatten(0, 1))
    return d_queries.to(queries.dtype), d_gallery.to(gallery.dtype), *others


def _samples(
    *, dtype: torch.dtype = torch.float32, shape: tuple[int, int, int] = (6, 9, 5), seed: int = 0
) -> Iterator[Sample]:
    n, m, d = shape
    generator = torch.Generator().manual_seed(seed)
    queries = torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)
    gallery = torch.randn(m, d, generator=generator, dtype=torch.float64).to(dtype)
    for similarity in _checks.SIMILARITIES:
        yield Sample(
            similarity,
            {"queries": queries, "gallery": gallery, "k": min(4, m), "similarity": similarity},
            ("queries", "gallery"),
            needs_float64=True,
        )
    # Integers: sums are exact in any order, so equal rows tie on every backend, and no others do.
    whole, tied = (16 * queries).round(), (16 * gallery).round()[torch.arange(m) // 3]
    ties = {"queries": whole, "gallery": tied, "k": min(5, m), "similarity": "dot"}
    yield Sample("ties", ties, ("queries",), needs_float64=True)
    yield Sample("all", {"queries": queries, "gallery": gallery, "k": m}, ("queries", "gallery"), needs_float64=True)
    yield Sample("k-above-m", {"queries": queries, "gallery": gallery, "k": m + 3}, ("queries",), needs_float64=True)
    # As many ids as queries: two for the first query, none for the last.
    ids = torch.arange(n if m else 0) % max(m, 1)
    excluded = ((torch.arange(n + 1) + (torch.arange(n + 1) > 0)).clamp(max=len(ids)), ids)
    without = {"queries": queries, "gallery": gallery, "k": min(4, m), "exclude": excluded}
    yield Sample("exclude", without, ("queries", "gallery"), needs_float64=True)
    yield Sample("k-zero", {"queries": queries, "gallery": gallery, "k": 0}, ())
    yield Sample("empty-gallery", {"queries": queries, "gallery": gallery[:0], "k": 2}, ())


record = register(
    OpRecord(
        name="topk",
        function=topk,
        reference=reference.topk,
        standard=topk_standard,
        samples=_samples,
        fake=_fake,
        setup_context=_setup_context,
        backward=_backward,
    )
)
