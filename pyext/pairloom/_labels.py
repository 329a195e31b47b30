"""Labels as the operators take them: ids as int64, multi-hot rows as int64 words of 32 labels each."""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 32
"""Labels in one word. A word of labels is never negative, so that -1 can stand for a row that is ignored."""


def operator_labels(labels: Tensor, ignore_index: int | None, word: int = BITS) -> Tensor:
    """(N,) ids -> (N,) int64; (N, L) of 0 and 1 -> (N, ceil(L / 32)) int64.

    Bit b of word w is label 32 w + b. Rows full of ``ignore_index`` become words of -1. TorchScript compiles this: it
    sees default values of arguments, but no global numbers.
    """
    wide = labels.to(torch.int64)
    if wide.dim() == 1:
        return wide
    words = (wide.shape[1] + word - 1) // word
    bits = torch.nn.functional.pad((wide == 1).to(torch.int64), [0, words * word - wide.shape[1]])
    values = 2 ** torch.arange(word, device=wide.device)
    packed = (bits.reshape(-1, words, word) * values).sum(dim=2)
    if ignore_index is None:
        return packed
    return torch.where((wide == ignore_index).all(dim=1, keepdim=True), -1, packed)
