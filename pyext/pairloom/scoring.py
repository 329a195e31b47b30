"""Retrieval: the k most similar gallery rows of every query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from pairloom import _checks, reference
from pairloom._arrays import check_array
from pairloom._codes import SCREENS
from pairloom._dispatch import in_transform, needs_reference, scripted_as, without_autocast
from pairloom._gallery_blocks import block_rows, topk_in_blocks
from pairloom._id_lists import IdLists, id_lists, id_lists_in_graph
from pairloom._progress import progress_bar
from pairloom._registry import OpRecord, Sample, Support, register
from pairloom._stream import DEVICE_CHUNK_ENTRIES
from pairloom.gallery import Gallery, Int8Gallery
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


class TopkStats(NamedTuple):
    """What a search did, of `topk` with ``return_stats``."""

    rescored: Tensor
    """(Q,) int64: gallery rows that were scored in full precision; none in an `Int8Gallery`, all of them in a gallery
    without codes, where what the kernel leaves out by itself is not counted."""


@overload
def topk(
    queries: Tensor,
    gallery: Tensor | np.ndarray | Gallery | Int8Gallery,
    k: int,
    *,
    similarity: str = "cosine",
    exclude: Any = None,
    screen: str | None = None,
    memory_mib: float = 256.0,
    progress: bool = False,
    return_stats: Literal[False] = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def topk(
    queries: Tensor,
    gallery: Tensor | np.ndarray | Gallery | Int8Gallery,
    k: int,
    *,
    similarity: str = "cosine",
    exclude: Any = None,
    screen: str | None = None,
    memory_mib: float = 256.0,
    progress: bool = False,
    return_stats: Literal[True],
) -> tuple[Tensor, Tensor, TopkStats]: ...
@scripted_as(_topk_script)
def topk(
    queries: Tensor,
    gallery: Tensor | np.ndarray | Gallery | Int8Gallery,
    k: int,
    *,
    similarity: str = "cosine",
    exclude: Any = None,
    screen: str | None = None,
    memory_mib: float = 256.0,
    progress: bool = False,
    return_stats: bool = False,
) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, TopkStats]:
    """The k most similar gallery rows of every query, best first; ties go to the lowest index.

        indices[q, 0..k) = the first k of sorted(range(M) - exclude[q], key=lambda j: (-s(queries_q, gallery_j), j))

    An index is returned only for a score above -inf and not NaN. Every other place holds index -1 and score -inf: so
    for k > M, for an empty gallery, and for rows with NaN on either side. The order is the same in eager mode, in
    compiled graphs and in exported ONNX, for any number of threads. Excluded rows are left out inside the selection:
    k others come whenever they exist.

    A gallery that is a NumPy array or memory map (``np.load(path, mmap_mode="r")``) is read block by block and may be
    larger than memory; scores and indices have the same bits as for a tensor. A `Gallery` finds the same bits sooner
    by screening, an `Int8Gallery` has approximate scores. These three only in eager mode, without gradients.

    Args:
        queries: (Q, D) float32, float64, float16 or bfloat16, any strides.
        gallery: (M, D). Dtypes may differ; half inputs are summed in float32. Arrays: float16, float32 or float64.
            Or a `pairloom.Gallery` or `pairloom.Int8Gallery`, for searches that come again.
        k: results per query, 0 or more; a constant in compiled and exported graphs.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean", as in `pairwise_similarity`: larger is better.
        exclude: gallery rows that are no answer to a query: integers (Q,), -1 for none; a list with the ids of each
            query; or CSR, a tuple (indptr (Q + 1,), indices). In compiled and exported graphs a tensor (Q,)
            or the tuple, whose ids nobody checks, as nobody does on another device: what is no row excludes nothing.
            In TorchScript the tuple.
        screen: "int8" or "bf16": screen a tensor or array as `Gallery` does, with a copy that is made for this call; it
            pays for some hundred queries.
        memory_mib: MiB of an array that are held at a time.
        progress: show a bar on stderr while an array is read.
        return_stats: also return `TopkStats`.

    Returns:
        scores (Q, k), float64 if an input is, else float32, differentiable; indices (Q, k) int64. With ``return_stats``
        (scores, indices, `TopkStats`).

    Raises:
        TypeError: embeddings that are not float, k or ids that are not integers.
        ValueError: shapes or devices that do not fit, k below 0, ids that are no row, an unknown word, gradients asked
            for through an array or a gallery, distances of an `Int8Gallery`.

    Cost: 2 Q M D flops; O(Q k) bytes beside the inputs, and up to 96 MiB in all; never the Q x M matrix. From 256
    queries and 8,192 rows on (D 64 to 4,096, k up to 64) rows are screened in int8 on the way, as `Gallery` does it.
    Backward takes O(Q k D) memory. Under `torch.func`, in ONNX and on devices without a kernel: O(Q M), for the
    Euclidean ones O(Q M D).

    Example:
        >>> import torch, pairloom
        >>> gallery = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
        >>> scores, indices = pairloom.topk(torch.tensor([[5.0, 0.0]]), gallery, k=4)
        >>> scores, indices
        (tensor([[1., 1., 0., -inf]]), tensor([[ 0, 2, 1, -1]]))
        >>> pairloom.topk(torch.tensor([[5.0, 0.0]]), gallery.numpy(), k=2, exclude=[[0]])[1]
        tensor([[2, 1]])
    """
    if isinstance(gallery, Tensor):
        _checks.embeddings("queries", queries, gallery=gallery)
    if not isinstance(gallery, Tensor) or screen is not None:
        _check_without_gradients(queries, gallery)
    _checks.count("k", k)
    _checks.choice("similarity", similarity, _checks.SIMILARITIES)
    if screen is not None:
        _checks.choice("screen", screen, SCREENS)
        if isinstance(gallery, (Gallery, Int8Gallery)):
            raise ValueError(f"screen is {screen!r}, and {gallery!r} was made with its own; pass one of the two")
    _checks.positive_number("memory_mib", memory_mib)
    _checks.flag("progress", progress)
    _checks.flag("return_stats", return_stats)
    lists = None if exclude is None else _exclusions(exclude, queries, gallery)
    rescored: Tensor | None = None
    if isinstance(gallery, Tensor) and screen is None:
        scores, indices = search(queries, gallery, k, similarity, lists)
    elif isinstance(gallery, Int8Gallery):
        if similarity not in _checks.LOSS_SIMILARITIES:
            raise ValueError(f"similarity is {similarity!r}; an Int8Gallery has 'cosine' and 'dot', a Gallery has all")
        scores, indices = gallery.search(queries.detach(), k, similarity, lists)
        rescored = indices.new_zeros(indices.shape[0])
    elif screen is not None or isinstance(gallery, Gallery):
        screened = gallery if isinstance(gallery, Gallery) else Gallery(gallery, screen=screen, progress=progress)
        scores, indices, rescored = screened.search(queries.detach(), k, similarity, lists)
    else:
        with progress_bar(progress, "topk", len(gallery)) as advance:
            scores, indices = topk_in_blocks(
                search, queries, gallery, k, similarity, lists,
                rows_per_block=block_rows(gallery, memory_mib * 2**20), on_block=advance,
            )  # fmt: skip
    if not return_stats:
        return scores, indices
    return (
        scores,
        indices,
        TopkStats(indices.new_full(indices.shape[:1], len(gallery)) if rescored is None else rescored),
    )


def search(queries: Tensor, gallery: Tensor, k: int, similarity: str, exclude: IdLists | None) -> tuple[Tensor, Tensor]:
    """`topk` of a tensor, without the checks: the kernel or the reference."""
    indptr, indices = (None, None) if exclude is None else exclude
    if needs_reference(queries):
        formula = topk_standard if torch.onnx.is_in_onnx_export() else reference.topk
        if queries.device.type != "cpu" and not (torch.compiler.is_compiling() or in_transform()):
            return _by_queries(formula, queries, gallery, k, similarity, exclude)
        return without_autocast(formula, queries, gallery, k, similarity, indptr, indices)
    return torch.ops.pairloom.topk(queries, gallery, k, similarity, indptr, indices)


def _by_queries(
    formula: Any, queries: Tensor, gallery: Tensor, k: int, similarity: str, exclude: IdLists | None
) -> tuple[Tensor, Tensor]:
    """The formula on some queries at a time: without gradients no Q x M matrix is held on another device either."""
    width = gallery.shape[0] * (1 if similarity in ("cosine", "dot") else gallery.shape[1])
    count = max(DEVICE_CHUNK_ENTRIES // max(width, 1), 1)
    if count >= queries.shape[0]:
        everything = (None, None) if exclude is None else exclude
        return without_autocast(formula, queries, gallery, k, similarity, *everything)
    found = []
    for first in range(0, queries.shape[0], count):
        part = slice(first, min(first + count, queries.shape[0]))
        lists = (None, None) if exclude is None else exclude.of_queries(part.start, part.stop)
        found.append(without_autocast(formula, queries[part], gallery, k, similarity, *lists))
    scores, indices = zip(*found, strict=True)
    return torch.cat(scores), torch.cat(indices)


def _check_without_gradients(queries: Tensor, gallery: Any) -> None:
    """Galleries that are no tensors, or are screened."""
    _checks.embeddings("queries", queries)
    if isinstance(gallery, np.ndarray):
        check_array("gallery", gallery)
    elif not isinstance(gallery, (Tensor, Gallery, Int8Gallery)):
        raise TypeError(
            f"gallery is a {type(gallery).__name__}; it must be a tensor, a NumPy array, a Gallery or an Int8Gallery"
        )
    _checks.same_dimensions("gallery", gallery, "queries", queries)
    if not isinstance(gallery, np.ndarray):
        if queries.device.type != "cpu":
            raise ValueError(f"queries are on {queries.device}; this gallery is searched on the CPU")
        if torch.compiler.is_compiling():
            raise ValueError("gallery is no plain tensor, and compiled graphs know no other; pass gallery.embeddings")
    wanted = queries.requires_grad or (isinstance(gallery, Tensor) and gallery.requires_grad)
    if wanted and torch.is_grad_enabled():
        raise ValueError(
            "queries requires gradients, which only a gallery that is a tensor gives, without screen; pass "
            "queries.detach(), or the gallery as a tensor"
        )


def _exclusions(exclude: Any, queries: Tensor, gallery: Any) -> IdLists:
    parts = exclude if isinstance(exclude, tuple) else (exclude,)
    elsewhere = all(isinstance(part, Tensor) and part.device.type != "cpu" for part in parts)
    if torch.compiler.is_compiling() or elsewhere:  # looking at ids would wait for the device
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
        support=Support(cuda="chunks"),
    )
)
