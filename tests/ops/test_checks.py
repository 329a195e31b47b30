"""Bad input: one sentence with the argument, what came and what is allowed, and nothing computed."""

import numpy as np
import pytest
import torch

import pairloom
from pairloom.functional import info_nce, multi_similarity

X = torch.randn(4, 3)
IDS = torch.arange(4)
ELSEWHERE = torch.empty(4, 3, device="meta")

VALUE, TYPE = ValueError, TypeError


def nce(negatives=None, **keywords):
    return info_nce(X, X, negatives, **keywords)


def ms(*references, **keywords):
    return multi_similarity(X, IDS, *references, **keywords)


# What is wrong: the call, the error, the beginning of its sentence.
BAD = {
    "list": (lambda: info_nce([[1.0]], X), TYPE, r"query is a list; it must be a torch.Tensor"),
    "integer embeddings": (
        lambda: info_nce(X.int(), X),
        TYPE,
        r"query has dtype int32; embeddings must",
    ),
    "complex embeddings": (lambda: info_nce(X, X.cfloat()), TYPE, r"key has dtype complex64"),
    "1-D embeddings": (lambda: info_nce(X[0], X), VALUE, r"query has shape \(3,\); embeddings must be 2-D"),
    "3-D embeddings": (lambda: info_nce(X[None], X), VALUE, r"query has shape \(1, 4, 3\)"),
    "no dimensions": (
        lambda: info_nce(X[:, :0], X),
        VALUE,
        r"query has shape \(4, 0\); rows must",
    ),
    "dims differ": (lambda: info_nce(X, X[:, :2]), VALUE, r"key has 2 dimensions per row and query has 3"),
    "negatives differ": (lambda: nce(X[:, :2]), VALUE, r"negatives has 2 dimensions per row"),
    "rows differ": (lambda: info_nce(X, X[:3]), VALUE, r"key has 3 rows and query has 4"),
    "devices": (lambda: info_nce(X, ELSEWHERE), VALUE, r"key is on meta and query on cpu"),
    "temperature zero": (
        lambda: nce(temperature=0),
        VALUE,
        r"temperature is 0; it must",
    ),
    "temperature nan": (lambda: nce(temperature=float("nan")), VALUE, r"temperature is nan"),
    "temperature inf": (lambda: nce(temperature=float("inf")), VALUE, r"temperature is inf"),
    "temperature word": (
        lambda: nce(temperature="low"),
        TYPE,
        r"temperature is 'low'; it must be a number",
    ),
    "temperature tensor": (
        lambda: nce(temperature=torch.tensor(-1.0)),
        VALUE,
        r"temperature holds -1.0",
    ),
    "temperature rows": (
        lambda: nce(temperature=torch.ones(3)),
        VALUE,
        r"temperature has shape \(3,\); .* \(4,\)",
    ),
    "temperature dtype": (
        lambda: nce(temperature=torch.tensor(1)),
        TYPE,
        r"temperature has dtype int64",
    ),
    "float ids": (
        lambda: nce(ids=IDS.float()),
        TYPE,
        r"ids has dtype float32; labels must",
    ),
    "2-D ids": (lambda: nce(ids=IDS[None]), VALUE, r"ids has shape \(1, 4\); it must be \(4,\), one id"),
    "ids length": (lambda: nce(ids=IDS[:3]), VALUE, r"ids has shape \(3,\); it must be \(4,\)"),
    "negative_ids alone": (
        lambda: nce(X, negative_ids=IDS),
        VALUE,
        r"negative_ids is given without ids",
    ),
    "no negatives": (
        lambda: nce(ids=IDS, negative_ids=IDS),
        VALUE,
        r"negative_ids is given without negatives",
    ),
    "ids of two kinds": (
        lambda: nce(X, ids=IDS.to(torch.uint64), negative_ids=IDS),
        TYPE,
        r"both must be uint64 or neither",
    ),
    "same_id": (lambda: nce(same_id="keep"), VALUE, r"same_id is 'keep'; allowed: ignore, positive"),
    "similarity": (
        lambda: nce(similarity="l2"),
        VALUE,
        r"similarity is 'l2'; allowed: cosine, dot, euclidean, squared_euclidean$",
    ),
    "reduction": (lambda: nce(reduction="avg"), VALUE, r"reduction is 'avg'; allowed: mean, .*none"),
    "ignore_index": (
        lambda: nce(ignore_index=1.5),
        TYPE,
        r"ignore_index is 1.5; it must be an integer, or None",
    ),
    "weights negative": (lambda: nce(weights=-torch.ones(4)), VALUE, r"weights holds -1.0"),
    "weights nan": (lambda: nce(weights=torch.full((4,), torch.nan)), VALUE, r"weights holds nan"),
    "weights length": (
        lambda: nce(weights=torch.ones(5)),
        VALUE,
        r"weights has shape \(5,\); it must be \(4,\)",
    ),
    "weights dtype": (lambda: nce(weights=IDS), TYPE, r"weights has dtype int64"),
    "module temperature": (lambda: pairloom.InfoNCELoss(-1.0), VALUE, r"temperature is -1.0"),
    "labels missing": (lambda: multi_similarity(X), VALUE, r"labels is None; pass the class"),
    "float labels": (lambda: multi_similarity(X, IDS.double()), TYPE, r"labels has dtype float64"),
    "labels length": (
        lambda: multi_similarity(X, IDS[:2]),
        VALUE,
        r"labels has shape \(2,\); it must be \(4,\)",
    ),
    "ref_labels missing": (lambda: ms(X), VALUE, r"ref_emb is given without ref_labels"),
    "ref_emb missing": (
        lambda: ms(None, IDS),
        VALUE,
        r"ref_labels is given without ref_emb",
    ),
    "ref_labels length": (
        lambda: ms(X[:2], IDS),
        VALUE,
        r"ref_labels has shape \(4,\); it must be \(2,\)",
    ),
    "alpha": (lambda: ms(alpha=0.0), VALUE, r"alpha is 0.0; it must"),
    "beta": (lambda: pairloom.MultiSimilarityLoss(beta=-1), VALUE, r"beta is -1"),
    "base": (lambda: ms(base=float("nan")), VALUE, r"base is nan; it must be finite"),
    "epsilon": (lambda: ms(epsilon=float("inf")), VALUE, r"epsilon is inf"),
    "k negative": (lambda: pairloom.topk(X, X, -1), VALUE, r"k is -1; it must be 0 or more"),
    "k float": (lambda: pairloom.topk(X, X, 1.5), TYPE, r"k is 1.5; it must be an integer"),
    "gallery dims": (
        lambda: pairloom.topk(X, X[:, :2], 1),
        VALUE,
        r"gallery has 2 dimensions per row and queries has 3",
    ),
    "gallery dtype": (lambda: pairloom.topk(X, X.long(), 1), TYPE, r"gallery has dtype int64"),
    "topk similarity": (
        lambda: pairloom.topk(X, X, 1, similarity="l2"),
        VALUE,
        r"allowed: cosine, dot, euclidean, squared",
    ),
    "b dims": (
        lambda: pairloom.pairwise_similarity(X, X[:, :1]),
        VALUE,
        r"b has 1 dimensions per row and a has 3",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_numpy_numbers_are_numbers():
    assert nce(temperature=np.float32(0.5)).isfinite()
    assert pairloom.topk(X, X, np.int64(2))[1].shape == (4, 2)
    assert ms(beta=np.float64(3.0), ignore_index=np.int32(-1)).isfinite()


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.ops.pairloom.topk(X, X, -1, "cosine"),
        lambda: torch.ops.pairloom.topk(X, X[:, :2], 1, "cosine"),
        lambda: torch.ops.pairloom.pairwise_similarity(X, X, "l2"),
        lambda: torch.ops.pairloom.pairwise_similarity(X.int(), X, "dot"),
        lambda: torch.ops.pairloom.multi_similarity(
            X, None, IDS[:2], None, None, 2.0, 50.0, 0.5, None, "cosine", "mean", -100, 0, False
        ),
        lambda: torch.ops.pairloom.info_nce(
            X, X[:2], torch.tensor(1.0), None, None, None, "cosine", "mean", "ignore", -100, 0, False
        ),
    ],
)
def test_operators_refuse_by_themselves(call):
    """Saved programs call the operators without our Python in front: an error, never a read out of bounds."""

    with pytest.raises(RuntimeError):
        call()


def test_value_checks_do_not_enter_compiled_graphs():
    compiled = torch.compile(lambda x, t: info_nce(x, x, temperature=t), fullgraph=True, backend="eager")
    assert compiled(X, torch.tensor(0.1)).isfinite()
