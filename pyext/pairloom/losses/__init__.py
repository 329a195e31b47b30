"""Losses as modules: settings in the constructor, tensors in the call. One file per loss."""

from pairloom.losses.info_nce import InfoNCELoss
from pairloom.losses.multi_similarity import MultiSimilarityLoss
from pairloom.losses.sup_con import SupConLoss

__all__ = ["InfoNCELoss", "MultiSimilarityLoss", "SupConLoss"]
