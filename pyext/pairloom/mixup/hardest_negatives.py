"""The most similar rows of other classes: partners for mixtures."""

from __future__ import annotations

import torch
from torch import Tensor

from pairloom import _checks
from pairloom._id_lists import IdLists
from pairloom._stream import CHUNK_ENTRIES, chunks
from pairloom.scoring import search

FEWEST_ROWS = 64
"""Rows that are searched for together, also where their classes are large."""


@torch.no_grad()
def hardest_negatives(
    embeddings: Tensor,
    labels: Tensor,
    k: int = 1,
    *,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
    similarity: str = "cosine",
    ignore_index: int | None = -100,
) -> Tensor:
    """The k most similar rows of another class for every row, as row numbers: what input-level Metrix mixes with.

        partner[i, 0..k) = the first k of sorted({j : label_j != label_i}, key=lambda j: (-s(x_i, r_j), j))

    Args:
        embeddings: (N, D) float.
        labels: (N,) integer or bool.
        k: partners for each row.
        ref_emb: (M, D) rows to choose from; None: the embeddings.
        ref_labels: (M,) their classes.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean".
        ignore_index: rows of this class have no partner and are none; None switches it off.

    Returns:
        (N, k) int64, -1 where there is none: `pairloom.mixup.mix` leaves such a row as it is.

    Raises:
        TypeError, ValueError: arguments that do not fit.

    Cost: that of `pairloom.topk`, plus, for each row, the size of its class; blocks of rows, never the N x M matrix.

    Source: Venkataramanan et al., "It Takes Two to Tango: Mixup for Deep Metric Learning", ICLR 2022. The code beside
    the paper looks positions of a subset up in the full list, so that its partners are not the hardest.

    Example:
        >>> import torch, pairloom
        >>> x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.6, 0.8]])
        >>> pairloom.mixup.hardest_negatives(x, torch.tensor([0, 0, 1, 2])).flatten().tolist()
        [3, 3, 3, 2]
    """
    _checks.embeddings("embeddings", embeddings, ref_emb=ref_emb)
    _checks.labels("labels", labels, "embeddings", embeddings)
    _checks.given_together("ref_emb", ref_emb, "ref_labels", ref_labels, "pass the class of each row")
    _checks.given_together("ref_labels", ref_labels, "ref_emb", ref_emb, "there is nothing to label")
    _checks.count("k", k)
    _checks.choice("similarity", similarity, _checks.SIMILARITIES)
    _checks.label_value("ignore_index", ignore_index)
    if ref_emb is None or ref_labels is None:
        ref_emb, ref_labels = embeddings, labels
    else:
        _checks.labels("ref_labels", ref_labels, "ref_emb", ref_emb)
    labels, ref_labels = labels.to(torch.int64), ref_labels.to(torch.int64)
    asks = torch.ones_like(labels, dtype=torch.bool)
    if ignore_index is not None:
        asks = labels != ignore_index
        kept = (ref_labels != ignore_index).nonzero().flatten()
        ref_emb, ref_labels = ref_emb[kept], ref_labels[kept]
    else:
        kept = torch.arange(len(ref_labels), device=ref_labels.device)
    partners = torch.full((len(labels), k), -1, device=labels.device)
    by_class = ref_labels.argsort(stable=True)
    begin = torch.searchsorted(ref_labels[by_class], labels)
    size = torch.searchsorted(ref_labels[by_class], labels, right=True) - begin
    rows = asks.nonzero().flatten()
    largest = max(int(size.max()), 1) if len(size) else 1
    for part in chunks(len(rows), largest, max(CHUNK_ENTRIES // largest, FEWEST_ROWS)):
        chunk = rows[part]
        # The own class of every row, which begins at another place for each.
        indptr = torch.cat([size.new_zeros(1), size[chunk].cumsum(0)])
        ahead = (begin[chunk] - indptr[:-1]).repeat_interleave(size[chunk])
        places = torch.arange(len(ahead), device=ahead.device) + ahead
        _, found = search(embeddings[chunk], ref_emb, k, similarity, IdLists(indptr, by_class[places]))
        partners[chunk] = torch.where(found < 0, -1, kept[found.clamp(min=0)] if len(kept) else found)
    return partners
