"""Losses as modules: settings in the constructor, tensors in the call. One file per loss."""

from pairloom.losses.clip import CLIPLoss
from pairloom.losses.info_nce import InfoNCELoss
from pairloom.losses.multi_similarity import MultiSimilarityLoss
from pairloom.losses.nt_xent import NTXentLoss
from pairloom.losses.sup_con import SupConLoss

__all__ = ["CLIPLoss", "InfoNCELoss", "MultiSimilarityLoss", "NTXentLoss", "SupConLoss"]
