"""Samples that every loss on labelled embeddings has; each loss adds what is its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from pairloom import _checks
from pairloom._registry import Sample


def labelled_samples(
    settings: Mapping[str, Any],
    *,
    dtype: torch.dtype = torch.float32,
    shape: tuple[int, int, int] = (6, 9, 5),
    seed: int = 0,
    distances: bool = False,
) -> Iterator[Sample]:
    """Calls of ``loss(embeddings, labels, ref_emb, ref_labels, **settings)``: kinds of labels, weights, reductions.

    With ``distances`` also the two that are no products, once for rows of length 1 and once for rows as they are.
    """
    n, m, d = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    embeddings, ref_emb = normal(n, d).to(dtype), normal(m, d).to(dtype)
    labels = torch.randint(0, max(n // 2, 1), (n,), generator=generator)
    ref_labels = torch.randint(0, max(n // 2, 1), (m,), generator=generator)
    ignored = torch.where(torch.arange(n) % 3 == 1, -100, labels)
    one = {"embeddings": embeddings, "labels": labels, **settings}
    two = {**one, "ref_emb": ref_emb, "ref_labels": ref_labels}
    both = ("embeddings", "ref_emb")
    yield Sample("one-batch", one, ("embeddings",))
    yield Sample("references", two, both)
    yield Sample("dot", {**one, "similarity": "dot"}, ("embeddings",))
    if distances:
        yield Sample("euclidean", {**two, "similarity": "euclidean"}, both)
        as_they_are = {"similarity": "squared_euclidean", "normalize": False}
        yield Sample("squared_euclidean", {**one, **as_they_are}, ("embeddings",))
    yield Sample("ignored", {**two, "labels": ignored}, both)
    yield Sample("ignored-one-batch", {**one, "labels": ignored}, ("embeddings",))
    yield Sample("no-positive", {**one, "labels": torch.arange(n)}, ("embeddings",))
    yield Sample("no-negative", {**one, "labels": torch.zeros(n, dtype=torch.uint8)}, ("embeddings",))
    weights = torch.rand(n, generator=generator)
    for reduction in _checks.REDUCTIONS:
        weighted = {**one, "labels": ignored, "weights": weights, "reduction": reduction}
        yield Sample(f"{reduction}-weights", weighted, ("embeddings",))
    yield Sample("learned-weights", {**one, "weights": weights.double()}, ("embeddings", "weights"))
    yield Sample("strided", {**one, "embeddings": embeddings.repeat(1, 2)[:, ::2]}, ("embeddings",))
