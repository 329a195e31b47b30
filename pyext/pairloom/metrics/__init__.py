"""Retrieval metrics: does the gallery answer a query with items of the query's class?

    recall_at_k      share of queries with a right answer among the first k
    precision_at_1   share of queries whose first answer is right
    map_at_r         how well the right answers are ranked, all of them counted

    metric(queries, query_labels, gallery=None, gallery_labels=None, *, similarity="cosine") -> float

Without a gallery the queries search among themselves, leave-one-out. All of them are made of `pairloom.topk` alone,
block by block (`_ranking`), so no Q x M matrix exists.
"""

from pairloom.metrics.average_precision import map_at_r
from pairloom.metrics.precision import precision_at_1
from pairloom.metrics.recall import recall_at_k

__all__ = ["map_at_r", "precision_at_1", "recall_at_k"]
