"""The hardest negatives of every query in a corpus of any size: `mine_hard_negatives`."""

from __future__ import annotations

import math
import os
import warnings
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pairloom import _checks
from pairloom._fingerprints import content_fingerprint, matrix_fingerprint
from pairloom._gallery_blocks import block_rows, rows_of, topk_in_blocks
from pairloom._id_lists import IdLists, id_lists
from pairloom._progress import progress_bar
from pairloom.gallery import Gallery
from pairloom.mining._arguments import check_matrices, checked_checkpoint, checked_rules
from pairloom.mining._checkpoint import Checkpoint, Mined
from pairloom.mining._positives import lowest_scores
from pairloom.mining._report import MiningReport
from pairloom.mining._rules import Rules
from pairloom.reference.similarity import compute_dtype
from pairloom.scoring import search

CANDIDATE_BYTES = 128
"""Of one candidate on its way: scores and indices of two lists, their sort, masks of the filters."""

STEP_QUERIES = 4096
"""Most queries per step: reading the corpus for them is faster than scoring it, and more would be lost with Ctrl-C."""


class HardNegatives(NamedTuple):
    """What `mine_hard_negatives` returns."""

    indices: Tensor
    """(Q, k) int64 rows of the corpus, best first; -1 where there are not k."""
    scores: Tensor
    """(Q, k) their scores; -inf where there are not k."""
    report: MiningReport
    """What each filter removed."""


def mine_hard_negatives(
    queries: Tensor | np.ndarray,
    corpus: Tensor | np.ndarray | Gallery,
    positives: Any,
    *,
    k: int,
    range_min: int = 0,
    range_max: int | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    max_score: float | None = None,
    min_score: float | None = None,
    strategy: str = "top",
    generator: torch.Generator | int | None = None,
    similarity: str = "cosine",
    memory_mib: float = 256.0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> HardNegatives:
    """For every query, k rows of the corpus that are similar to it and not positive.

        rank r of query q   the r-th best row that is not in positives[q]; ties go to the lowest index
        candidates          ranks range_min .. range_max - 1
        kept                s <= s+ - absolute_margin,  s <= s+ - relative_margin |s+|,  min_score <= s <= max_score
        taken               the best k that were kept, or k of them drawn at random

    with s+ the *lowest* score of the query with its positives, as in ``mine_hard_negatives`` of sentence-transformers:
    what scores as high as a known positive may be an unknown one. Filters that are None remove nothing; margins need a
    positive of finite score. Positives are left out inside the selection, so they take no ranks: k negatives come
    whenever the window and the filters leave k. A negative margin allows scores above the positive.

    Args:
        queries: (Q, D) float32, float64, float16 or bfloat16 tensor on the CPU, or a NumPy array or memory map
            (float16, float32, float64).
        corpus: (M, D) likewise. Arrays are read block by block: they may be larger than memory. Or a
            `pairloom.Gallery`, whose screen finds the same negatives sooner.
        positives: rows of the corpus that are right for each query: integers (Q,), -1 for none; a list with the ids
            of each query; or CSR, a tuple (indptr (Q + 1,), indices).
        k: negatives per query, 1 or more.
        range_min: ranks to skip: the very best are often unknown positives.
        range_max: rank to stop before; None means range_min + max(10 k, 100). Only so many are ever kept per query.
        absolute_margin, relative_margin, max_score, min_score: see above; compared in float64.
        strategy: "top" or "random": drawn evenly, without replacement.
        generator: for "random", a torch.Generator or a seed; None: torch's own generator. The draw of a query depends
            on the seed, its number and its candidates only.
        similarity: "cosine", "dot", "euclidean" or "squared_euclidean"; margins and bounds are on its scale.
        memory_mib: MiB to work in beside inputs, results and 32 MiB of the kernel; at least one query at a time with
            its candidates. Results do not depend on it.
        checkpoint: file (.npz) that is rewritten after every step; the same call reads it and goes on, bit-equal on the
            same machine. Inputs are told apart by shape, dtype, all positives and some rows.
        progress: show a bar on stderr.

    Returns:
        A named tuple: indices (Q, k) int64, -1 where there are not k; scores (Q, k), -inf there; report, which prints
        as a table. No gradients.

    Raises:
        TypeError: what is no float matrix, ids that are no integers, settings that are no numbers.
        ValueError: shapes that do not fit, ids outside of the corpus, k below 1, a window smaller than k, bounds that
            are not finite or exclude each other, an unknown word, a checkpoint of another call.

    Warns:
        UserWarning: a query gets nothing, or more than half of the queries get fewer than k.

    Cost: 2 Q M D flops; the corpus is read once for 4096 queries, or as many as have their candidates (128 bytes each)
    in half of ``memory_mib``.

    Example:
        >>> import torch, pairloom
        >>> corpus = torch.tensor([[1.0, 0.0], [0.99, 0.14], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
        >>> mined = pairloom.mine_hard_negatives(corpus[:1], corpus, [[0, 1]], k=2, absolute_margin=0.3)
        >>> mined.indices
        tensor([[3, 4]])
        >>> mined.report.candidates, mined.report.removed
        (3, {'absolute_margin': 1})
    """
    gallery = None
    if isinstance(corpus, Gallery):
        gallery, corpus = corpus, corpus.embeddings
    check_matrices(queries, corpus)
    rules = checked_rules(
        k, range_min, range_max, absolute_margin, relative_margin, max_score, min_score, strategy, generator
    )
    _checks.choice("similarity", similarity, _checks.SIMILARITIES)
    _checks.positive_number("memory_mib", memory_mib)
    _checks.flag("progress", progress)
    lists = id_lists("positives", positives, len(queries), len(corpus), of="corpus").to("cpu")
    file = checked_checkpoint(checkpoint, strategy, generator)

    with torch.no_grad():
        dtype = compute_dtype(rows_of(queries, slice(0, 0)), rows_of(corpus, slice(0, 0)))
        mined = Mined(
            torch.full((len(queries), k), -torch.inf, dtype=dtype),
            torch.full((len(queries), k), -1),
        )
        saved = None
        if file is not None:
            saved = Checkpoint(file, _fingerprint(queries, corpus, lists, rules, similarity))
            saved.load(mined)
        _mine(mined, saved, queries, corpus, gallery, lists, rules, similarity, memory_mib * 2**20, progress)
    report = _report(mined, lists, rules)
    _warn(report)
    return HardNegatives(mined.indices, mined.scores, report)


def _mine(
    mined: Mined,
    saved: Checkpoint | None,
    queries: Tensor | np.ndarray,
    corpus: Tensor | np.ndarray,
    gallery: Gallery | None,
    positives: IdLists,
    rules: Rules,
    similarity: str,
    nbytes: float,
    progress: bool,
) -> None:
    """The walk over the queries that are not done yet."""
    depth = min(rules.range_max, len(corpus))
    step = max(int(nbytes / 2 / (depth * CANDIDATE_BYTES + queries.shape[1] * queries.dtype.itemsize)), 1)
    step = min(step, STEP_QUERIES)
    steps = math.ceil((len(queries) - mined.done) / step)
    with progress_bar(progress, "mining", steps * len(corpus)) as advance:
        while mined.done < len(queries):
            first, last = mined.done, min(mined.done + step, len(queries))
            some = rows_of(queries, slice(first, last))
            lists = positives.of_queries(first, last)
            if gallery is not None:
                scores, indices, _ = gallery.search(some, depth, similarity, lists)
                advance(len(corpus))
            else:
                scores, indices = topk_in_blocks(
                    search, some, corpus, depth, similarity, lists,
                    rows_per_block=block_rows(corpus, nbytes / 4), on_block=advance,
                )  # fmt: skip
            lowest = lowest_scores(some, corpus, lists, similarity)
            chosen = rules.choose(first, scores, indices, lowest)
            mined.scores[first:last], mined.indices[first:last] = chosen.scores, chosen.indices
            mined.counts.update(chosen.counts)
            mined.done = last
            if saved is not None:
                saved.save(mined)


def _fingerprint(
    queries: Tensor | np.ndarray, corpus: Tensor | np.ndarray, positives: IdLists, rules: Rules, similarity: str
) -> dict[str, str]:
    return {
        **{name: str(value) for name, value in asdict(rules).items()},
        "similarity": similarity,
        "queries": matrix_fingerprint(queries),
        "corpus": matrix_fingerprint(corpus),
        "positives": f"{len(positives.indices)} ids {content_fingerprint(*positives)}",
    }


def _report(mined: Mined, positives: IdLists, rules: Rules) -> MiningReport:
    counts = mined.counts
    filters = ("absolute_margin", "relative_margin", "max_score", "min_score")
    return MiningReport(
        queries=len(mined.indices),
        k=rules.k,
        range_min=rules.range_min,
        range_max=rules.range_max,
        positives=len(positives.indices),
        without_positive=counts["without_positive"],
        skipped=counts["skipped"],
        candidates=counts["candidates"],
        removed={name: counts[f"removed {name}"] for name in filters if getattr(rules, name) is not None},
        left_over=counts["left_over"],
        negatives=counts["negatives"],
        with_fewer=counts["with_fewer"],
        with_none=counts["with_none"],
    )


def _warn(report: MiningReport) -> None:
    """Of what is easily missed and changes a training: queries with nothing, or mostly with less than asked for."""
    fewer = report.with_fewer + report.with_none
    removed = sum(report.removed.values())
    if report.with_none > 0 or 2 * fewer > report.queries:
        parts = ", ".join(f"{name} {count:,}" for name, count in report.removed.items())
        warnings.warn(
            f"{fewer:,} of {report.queries:,} queries have fewer than k = {report.k} hard negatives, "
            f"{report.with_none:,} have none; of {report.candidates:,} candidates filters removed {removed:,}"
            f"{f' ({parts})' if parts else ''}",
            stacklevel=3,
        )
