"""Scores of pairs that are known by their ids."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pairloom._gallery_blocks import rows_of
from pairloom._id_lists import IdLists
from pairloom.similarity import pairwise_similarity

PAIRS = 256
"""Pairs looked at together: all of their queries meet all of their rows, which costs less than one call for each."""


def lowest_scores(queries: Tensor, corpus: Tensor | np.ndarray, positives: IdLists, similarity: str) -> Tensor:
    """(B,) float64: the lowest finite score of each query with its positives, NaN where there is none.

    They come from the same products as those of `topk`, so a margin of 0 keeps what equals the positive.
    """
    lowest = torch.full((len(queries),), torch.inf, dtype=torch.float64)
    owners = positives.query_of_each()
    for owner, ids in zip(owners.split(PAIRS), positives.indices.split(PAIRS), strict=True):
        rows, row_of_each = owner.unique(return_inverse=True)
        matrix = pairwise_similarity(queries[rows], rows_of(corpus, ids.numpy()), similarity=similarity)
        scores = matrix[row_of_each, torch.arange(len(ids))].double()
        lowest.scatter_reduce_(0, owner, torch.where(scores.isfinite(), scores, torch.inf), "amin")
    return torch.where(lowest.isinf(), torch.nan, lowest)
