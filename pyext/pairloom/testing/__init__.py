"""What the package's own tests are made of, public so that your own rules and operators can be tested the same way.

    inputs      rows of many kinds, tensors in every memory layout, labels of every dtype, sizes around tile edges
    evaluate    one call as a dictionary of outputs and gradients, and the same call through a float64 reference
    rounding    how far a result may be from the exact one, derived from D, the number of pairs, and the inputs
    run modes   instruction-set level and number of threads, restored afterwards
    memory      the most that this process has held

Example:
    >>> import torch, pairloom
    >>> from pairloom.testing import assert_within, evaluate, rounding_bounds
    >>> x, y = torch.randn(40, 8), torch.arange(40) % 5
    >>> call = {"embeddings": x, "labels": y}
    >>> ours = evaluate(pairloom.functional.multi_similarity, call, ["embeddings"])
    >>> def exact(**call):
    ...     return evaluate(dense, call, ["embeddings"])
    >>> def dense(embeddings, labels):
    ...     return pairloom.reference.multi_similarity(embeddings, None, labels)[0]
    >>> assert_within(ours, *rounding_bounds(exact, call, depth=8, terms=40))
"""

from pairloom.testing._evaluate import (
    Evaluation,
    computed_in,
    evaluate,
    evaluate_record,
    evaluate_reference,
    widen,
)
from pairloom.testing._inputs import (
    LABEL_DTYPES,
    LAYOUTS,
    ROW_KINDS,
    TILE_EDGES,
    embedding_rows,
    laid_out,
    relabelled,
)
from pairloom.testing._memory import peak_memory_mb
from pairloom.testing._modes import isa_levels, using_isa, using_threads
from pairloom.testing._rounding import UNITS, assert_within, rounding_bounds

__all__ = [
    "LABEL_DTYPES",
    "LAYOUTS",
    "ROW_KINDS",
    "TILE_EDGES",
    "UNITS",
    "Evaluation",
    "assert_within",
    "computed_in",
    "embedding_rows",
    "evaluate",
    "evaluate_record",
    "evaluate_reference",
    "isa_levels",
    "laid_out",
    "peak_memory_mb",
    "relabelled",
    "rounding_bounds",
    "using_isa",
    "using_threads",
    "widen",
]
