"""DHEL: function and module, streamed over rows by `pairloom.stream_rows`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pairloom import _checks
from pairloom._dispatch import as_temperature, not_scripted
from pairloom.losses._pairs import paired_similarity
from pairloom.reference._rows import log_sum_exp, reduce_rows
from pairloom.reference.similarity import compute_dtype
from pairloom.streaming import RowContext, stream_rows


@not_scripted
def dhel(
    first: Tensor,
    second: Tensor,
    *,
    temperature: Tensor | float = 0.3,
    both: bool = True,
    similarity: str = "cosine",
    reduction: str = "mean",
    weights: Tensor | None = None,
) -> Tensor:
    r"""DHEL, decoupled hyperspherical energy loss: views attract across, samples repel within each view.

    With z(x, y) = s(x, y) / temperature_i and x_i, y_i the two views of sample i:

        L_i = log sum_{j != i} e^{z(x_i, x_j)} + log sum_{j != i} e^{z(y_i, y_j)} - z(x_i, y_i)       may be negative

    No negatives across views, and no positive in a denominator. Source: Koromilas et al., "Bridging Mini-Batch and
    Asymptotic Analysis in Contrastive Learning: From InfoNCE to Kernel-Based Losses", ICML 2024.

    Args:
        first: (N, D) float32, float64, float16 or bfloat16, any strides; one view of every sample.
        second: (N, D), the other view.
        temperature: number above 0, or float tensor: 0-d, or (N,) with one value for each sample. Gets a gradient.
        both: whether the second view has its sum too.
        similarity: "cosine" or "dot".
        reduction: "mean" and "mean_all" (over all samples), "mean_nonzero" (over those with a loss above 0), "sum", or
            "none" (one loss for each sample). With ``weights`` a mean is sum(w L) / sum(w).
        weights: (N,) float, >= 0, one for each sample. Gets a gradient.

    Returns:
        The loss: 0-d, or (N,) for "none"; float64 if an embedding is, else float32.

    Raises:
        TypeError: embeddings that are not float.
        ValueError: shapes or devices that do not fit, a setting out of range, an unknown word. Nothing is computed
            before.

    One sample, all weights 0, or N = 0: 0. NaN in a row: NaN.

    Cost: 4 N N D flops forward, about four times as many with gradients, and some passes of plain torch over each chunk
    of rows; O(N D) memory.

    Example:
        >>> import torch, pairloom
        >>> first = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-0.8, 0.6]])
        >>> second = torch.tensor([[0.8, 0.6], [0.28, 0.96], [-0.28, 0.96], [-1.0, 0.0]])
        >>> f"{pairloom.functional.dhel(first, second, temperature=0.5).item():.4f}"
        '1.9960'
    """
    _checks.embeddings("first", first, second=second)
    if first.shape[0] != second.shape[0]:
        raise ValueError(f"second has {second.shape[0]} rows and first has {first.shape[0]}; row i is sample i in both")
    _checks.temperature(temperature, "first", first)
    _checks.choice("similarity", similarity, _checks.LOSS_SIMILARITIES)
    _checks.choice("reduction", reduction, _checks.REDUCTIONS)
    _checks.weights(weights, "first", first)
    count, dtype = first.shape[0], compute_dtype(first, second)
    scale = as_temperature(temperature, first).to(dtype).expand(count)

    def others(s: Tensor, ctx: RowContext) -> Tensor:
        """(R, N) -> (R,) log of the sum over the other samples."""
        return log_sum_exp(s / ctx.row_args[0].unsqueeze(1), ~ctx.self_mask)[0]

    row_loss = stream_rows(others, first, similarity=similarity, row_args=(scale,))
    if both:
        row_loss = row_loss + stream_rows(others, second, similarity=similarity, row_args=(scale,))
    row_loss = row_loss - paired_similarity(first, second, similarity) / scale
    if count == 1:  # nobody to repel
        row_loss = row_loss * 0
    return reduce_rows(row_loss, torch.ones_like(row_loss, dtype=torch.bool), weights, reduction)


@not_scripted
class DHELLoss(nn.Module):
    """DHEL as a module; all about it stands at `pairloom.functional.dhel`.

    Args:
        temperature: number above 0.
        both: whether the second view has its sum too.
        similarity: "cosine" or "dot".
        reduction: "mean", "mean_all", "mean_nonzero", "sum" or "none".

    Raises:
        ValueError, TypeError: a setting that is not allowed.

    Example:
        >>> import torch, pairloom
        >>> first = torch.eye(3, requires_grad=True)
        >>> pairloom.DHELLoss()(first, torch.eye(3)).backward()
        >>> tuple(first.grad.shape)
        (3, 3)
    """

    def __init__(
        self, temperature: float = 0.3, *, both: bool = True, similarity: str = "cosine", reduction: str = "mean"
    ) -> None:
        super().__init__()
        _checks.positive_number("temperature", temperature)
        _checks.choice("similarity", similarity, _checks.LOSS_SIMILARITIES)
        _checks.choice("reduction", reduction, _checks.REDUCTIONS)
        self.settings: dict[str, Any] = {
            "temperature": temperature,
            "both": both,
            "similarity": similarity,
            "reduction": reduction,
        }

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """The loss; arguments as in `pairloom.functional.dhel`."""
        return dhel(first, second, **self.settings)

    def extra_repr(self) -> str:
        """The settings."""
        return ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
