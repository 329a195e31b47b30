"""One function per loss; the maths is in the operators, the module of a loss only calls its function."""

from pairloom.losses.batch_hard_triplet import batch_hard_triplet
from pairloom.losses.binomial_deviance import binomial_deviance
from pairloom.losses.circle import circle
from pairloom.losses.clip import clip
from pairloom.losses.contrastive import contrastive
from pairloom.losses.dcl import dcl
from pairloom.losses.dhel import dhel
from pairloom.losses.gist import gist
from pairloom.losses.hcl import hcl
from pairloom.losses.info_nce import info_nce
from pairloom.losses.lifted_structure import lifted_structure
from pairloom.losses.lifted_structure_pairs import lifted_structure_pairs
from pairloom.losses.margin import margin
from pairloom.losses.moco import moco
from pairloom.losses.multi_similarity import multi_similarity
from pairloom.losses.multiple_negatives_ranking import multiple_negatives_ranking
from pairloom.losses.n_pairs import n_pairs
from pairloom.losses.normalized_softmax import normalized_softmax
from pairloom.losses.nt_xent import nt_xent
from pairloom.losses.proxy_anchor import proxy_anchor
from pairloom.losses.proxy_nca import proxy_nca
from pairloom.losses.siglip import siglip
from pairloom.losses.sup_con import sup_con
from pairloom.losses.triplet_margin import triplet_margin

__all__ = [
    "batch_hard_triplet",
    "binomial_deviance",
    "circle",
    "clip",
    "contrastive",
    "dcl",
    "dhel",
    "gist",
    "hcl",
    "info_nce",
    "lifted_structure",
    "lifted_structure_pairs",
    "margin",
    "moco",
    "multi_similarity",
    "multiple_negatives_ranking",
    "n_pairs",
    "normalized_softmax",
    "nt_xent",
    "proxy_anchor",
    "proxy_nca",
    "siglip",
    "sup_con",
    "triplet_margin",
]
