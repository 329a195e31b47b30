"""One function per loss; the maths is in the operators, the module of a loss only calls its function."""

from pairloom.losses.batch_hard_triplet import batch_hard_triplet
from pairloom.losses.binomial_deviance import binomial_deviance
from pairloom.losses.clip import clip
from pairloom.losses.contrastive import contrastive
from pairloom.losses.dcl import dcl
from pairloom.losses.hcl import hcl
from pairloom.losses.info_nce import info_nce
from pairloom.losses.lifted_structure import lifted_structure
from pairloom.losses.multi_similarity import multi_similarity
from pairloom.losses.nt_xent import nt_xent
from pairloom.losses.sup_con import sup_con
from pairloom.losses.triplet_margin import triplet_margin

__all__ = [
    "batch_hard_triplet",
    "binomial_deviance",
    "clip",
    "contrastive",
    "dcl",
    "hcl",
    "info_nce",
    "lifted_structure",
    "multi_similarity",
    "nt_xent",
    "sup_con",
    "triplet_margin",
]
