"""Metrics: does the gallery answer a query with items of the query's class, and how do embeddings lie?

    recall_at_k            share of queries with a right answer among the first k
    precision_at_1         share of queries whose first answer is right
    r_precision            share of right answers among the first R
    map_at_r               how well the right answers are ranked, all of them counted
    mean_reciprocal_rank   where the first right answer stands
    ndcg_at_k              the same for the first k answers, later ones counting less
    roc_auc, error_rates   pairs: one class or two?
    alignment, uniformity, effective_rank   how rows lie on the sphere

    metric(queries, query_labels, gallery=None, gallery_labels=None, *, similarity="cosine") -> float

A mean over nothing is NaN: no rows, no query with something to find, no pair of a kind; in exported graphs too.

Without a gallery the queries search among themselves, leave-one-out. All of them work block by block, so no Q x M
matrix exists. In a graph that `pairloom.export.module_to_onnx` writes they are 0-d float64 tensors, with that matrix.
"""

from pairloom.metrics.average_precision import map_at_r
from pairloom.metrics.geometry import alignment, effective_rank, uniformity
from pairloom.metrics.precision import precision_at_1
from pairloom.metrics.ranking import mean_reciprocal_rank, ndcg_at_k, r_precision
from pairloom.metrics.recall import recall_at_k
from pairloom.metrics.verification import error_rates, roc_auc
from pairloom.reference.metrics import ErrorRates

__all__ = [
    "ErrorRates",
    "alignment",
    "effective_rank",
    "error_rates",
    "map_at_r",
    "mean_reciprocal_rank",
    "ndcg_at_k",
    "precision_at_1",
    "r_precision",
    "recall_at_k",
    "roc_auc",
    "uniformity",
]
