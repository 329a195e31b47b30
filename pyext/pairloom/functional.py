"""One function per loss; the maths is in the operators, the module of a loss only calls its function."""

from pairloom.losses.clip import clip
from pairloom.losses.info_nce import info_nce
from pairloom.losses.multi_similarity import multi_similarity
from pairloom.losses.nt_xent import nt_xent
from pairloom.losses.sup_con import sup_con

__all__ = ["clip", "info_nce", "multi_similarity", "nt_xent", "sup_con"]
