"""Plain-torch definition of every operator: what a kernel is right about when it equals it.

One file per operator, the formula and its source on top. Every function takes the arguments of the operator of the same
name (without ``needs_grad``) and returns what the operator returns (without the gradients). They work in float64, under
``torch.func`` transforms and for second derivatives, and hold the whole matrix of pairs: O(N M) memory.
"""

from pairloom.reference.batch_hard_triplet import batch_hard_triplet
from pairloom.reference.binomial_deviance import binomial_deviance
from pairloom.reference.circle import circle
from pairloom.reference.clip import clip
from pairloom.reference.coded_topk import coded_topk
from pairloom.reference.contrastive import contrastive
from pairloom.reference.dcl import dcl
from pairloom.reference.hcl import hcl
from pairloom.reference.info_nce import info_nce
from pairloom.reference.lifted_structure import lifted_structure
from pairloom.reference.margin import margin
from pairloom.reference.mix import mix
from pairloom.reference.mixture_sums import mixture_sums
from pairloom.reference.multi_similarity import multi_similarity
from pairloom.reference.proxy_anchor import proxy_anchor
from pairloom.reference.siglip import siglip
from pairloom.reference.similarity import pairwise_similarity
from pairloom.reference.sup_con import sup_con
from pairloom.reference.topk import topk
from pairloom.reference.triplet_margin import triplet_margin

__all__ = [
    "batch_hard_triplet",
    "binomial_deviance",
    "circle",
    "clip",
    "coded_topk",
    "contrastive",
    "dcl",
    "hcl",
    "info_nce",
    "lifted_structure",
    "margin",
    "mix",
    "mixture_sums",
    "multi_similarity",
    "pairwise_similarity",
    "proxy_anchor",
    "siglip",
    "sup_con",
    "topk",
    "triplet_margin",
]
