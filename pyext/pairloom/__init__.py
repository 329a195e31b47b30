"""pairloom: contrastive and metric learning from pairs of embeddings, without ever holding the matrix of pairs.

    loss = pairloom.MultiSimilarityLoss()(embeddings, labels)
    scores, ids = pairloom.topk(queries, gallery, k=10)

Names are looked up on first use, so that ``import pairloom`` is cheap and does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairloom import deploy, export, functional, losses, metrics, miners, mining, mixup, reference
    from pairloom._stats import PairStats
    from pairloom.embedding_queue import EmbeddingQueue
    from pairloom.gallery import Gallery, Int8Gallery
    from pairloom.losses import (
        BatchHardTripletLoss,
        BinomialDevianceLoss,
        CircleLoss,
        CLIPLoss,
        ContrastiveLoss,
        DCLLoss,
        DHELLoss,
        GeneralizedLiftedStructureLoss,
        GISTEmbedLoss,
        HCLLoss,
        InfoNCELoss,
        LiftedStructureLoss,
        MarginLoss,
        MoCoLoss,
        MultipleNegativesRankingLoss,
        MultiSimilarityLoss,
        NormalizedSoftmaxLoss,
        NPairsLoss,
        NTXentLoss,
        ProxyAnchorLoss,
        ProxyNCALoss,
        SigLIPLoss,
        SupConLoss,
        TripletMarginLoss,
    )
    from pairloom.miners import (
        BatchHardMiner,
        DistanceWeightedMiner,
        MultiSimilarityMiner,
        PairMarginMiner,
        TripletMarginMiner,
        UniformTripletMiner,
    )
    from pairloom.mining import mine_hard_negatives
    from pairloom.scoring import topk
    from pairloom.similarity import pairwise_similarity
    from pairloom.streaming import stream_rows

    __version__: str

_HOME = {
    "BatchHardMiner": "pairloom.miners",
    "BatchHardTripletLoss": "pairloom.losses",
    "BinomialDevianceLoss": "pairloom.losses",
    "CLIPLoss": "pairloom.losses",
    "CircleLoss": "pairloom.losses",
    "ContrastiveLoss": "pairloom.losses",
    "DCLLoss": "pairloom.losses",
    "DHELLoss": "pairloom.losses",
    "DistanceWeightedMiner": "pairloom.miners",
    "EmbeddingQueue": "pairloom.embedding_queue",
    "GISTEmbedLoss": "pairloom.losses",
    "Gallery": "pairloom.gallery",
    "Int8Gallery": "pairloom.gallery",
    "GeneralizedLiftedStructureLoss": "pairloom.losses",
    "HCLLoss": "pairloom.losses",
    "InfoNCELoss": "pairloom.losses",
    "LiftedStructureLoss": "pairloom.losses",
    "MarginLoss": "pairloom.losses",
    "MoCoLoss": "pairloom.losses",
    "MultiSimilarityLoss": "pairloom.losses",
    "MultiSimilarityMiner": "pairloom.miners",
    "MultipleNegativesRankingLoss": "pairloom.losses",
    "NPairsLoss": "pairloom.losses",
    "NTXentLoss": "pairloom.losses",
    "NormalizedSoftmaxLoss": "pairloom.losses",
    "PairMarginMiner": "pairloom.miners",
    "PairStats": "pairloom._stats",
    "ProxyAnchorLoss": "pairloom.losses",
    "ProxyNCALoss": "pairloom.losses",
    "SigLIPLoss": "pairloom.losses",
    "SupConLoss": "pairloom.losses",
    "TripletMarginLoss": "pairloom.losses",
    "TripletMarginMiner": "pairloom.miners",
    "UniformTripletMiner": "pairloom.miners",
    "mine_hard_negatives": "pairloom.mining",
    "pairwise_similarity": "pairloom.similarity",
    "stream_rows": "pairloom.streaming",
    "topk": "pairloom.scoring",
}
_SUBPACKAGES = (
    "deploy",
    "export",
    "functional",
    "losses",
    "metrics",
    "miners",
    "mining",
    "mixup",
    "reference",
    "testing",
)

__all__ = [
    "BatchHardMiner",
    "BatchHardTripletLoss",
    "BinomialDevianceLoss",
    "CLIPLoss",
    "CircleLoss",
    "ContrastiveLoss",
    "DCLLoss",
    "DHELLoss",
    "DistanceWeightedMiner",
    "EmbeddingQueue",
    "GISTEmbedLoss",
    "Gallery",
    "GeneralizedLiftedStructureLoss",
    "HCLLoss",
    "InfoNCELoss",
    "Int8Gallery",
    "LiftedStructureLoss",
    "MarginLoss",
    "MoCoLoss",
    "MultiSimilarityLoss",
    "MultiSimilarityMiner",
    "MultipleNegativesRankingLoss",
    "NPairsLoss",
    "NTXentLoss",
    "NormalizedSoftmaxLoss",
    "PairMarginMiner",
    "PairStats",
    "ProxyAnchorLoss",
    "ProxyNCALoss",
    "SigLIPLoss",
    "SupConLoss",
    "TripletMarginLoss",
    "TripletMarginMiner",
    "UniformTripletMiner",
    "__version__",
    "deploy",
    "export",
    "functional",
    "losses",
    "metrics",
    "mine_hard_negatives",
    "miners",
    "mining",
    "mixup",
    "pairwise_similarity",
    "reference",
    "stream_rows",
    "topk",
]


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        value = _version()
    elif name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in _SUBPACKAGES:
        value = importlib.import_module(f"pairloom.{name}")
    else:
        raise AttributeError(f"module 'pairloom' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pairloom")
    except PackageNotFoundError:  # built in place and used from the source folder
        from pairloom import _native

        return str(_native.build_info()["version"])
