"""Hard negatives of a whole corpus, mined between epochs; miners of a batch are in `pairloom.miners`."""

from pairloom.mining._report import MiningReport
from pairloom.mining.hard_negatives import HardNegatives, mine_hard_negatives

__all__ = ["HardNegatives", "MiningReport", "mine_hard_negatives"]
