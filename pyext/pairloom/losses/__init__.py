"""Losses as modules: settings in the constructor, tensors in the call. One file per loss."""

from pairloom import _device_loss as _device_loss  # what the operators do on CUDA
from pairloom.losses._translate import PeerKeywords, ProxyKeywords
from pairloom.losses.batch_hard_triplet import BatchHardTripletLoss
from pairloom.losses.binomial_deviance import BinomialDevianceLoss
from pairloom.losses.circle import CircleLoss
from pairloom.losses.clip import CLIPLoss
from pairloom.losses.contrastive import ContrastiveLoss
from pairloom.losses.dcl import DCLLoss
from pairloom.losses.dhel import DHELLoss
from pairloom.losses.gist import GISTEmbedLoss
from pairloom.losses.hcl import HCLLoss
from pairloom.losses.info_nce import InfoNCELoss
from pairloom.losses.lifted_structure import GeneralizedLiftedStructureLoss
from pairloom.losses.lifted_structure_pairs import LiftedStructureLoss
from pairloom.losses.margin import MarginLoss
from pairloom.losses.moco import MoCoLoss
from pairloom.losses.multi_similarity import MultiSimilarityLoss
from pairloom.losses.multiple_negatives_ranking import MultipleNegativesRankingLoss
from pairloom.losses.n_pairs import NPairsLoss
from pairloom.losses.normalized_softmax import NormalizedSoftmaxLoss
from pairloom.losses.nt_xent import NTXentLoss
from pairloom.losses.proxy_anchor import ProxyAnchorLoss
from pairloom.losses.proxy_nca import ProxyNCALoss
from pairloom.losses.siglip import SigLIPLoss
from pairloom.losses.sup_con import SupConLoss
from pairloom.losses.triplet_margin import TripletMarginLoss

__all__ = [
    "BatchHardTripletLoss",
    "BinomialDevianceLoss",
    "CLIPLoss",
    "CircleLoss",
    "ContrastiveLoss",
    "DCLLoss",
    "DHELLoss",
    "GISTEmbedLoss",
    "GeneralizedLiftedStructureLoss",
    "HCLLoss",
    "InfoNCELoss",
    "LiftedStructureLoss",
    "MarginLoss",
    "MoCoLoss",
    "MultiSimilarityLoss",
    "MultipleNegativesRankingLoss",
    "NPairsLoss",
    "NTXentLoss",
    "NormalizedSoftmaxLoss",
    "PeerKeywords",
    "ProxyAnchorLoss",
    "ProxyKeywords",
    "ProxyNCALoss",
    "SigLIPLoss",
    "SupConLoss",
    "TripletMarginLoss",
]
