"""How embeddings lie on the sphere: alignment, uniformity, effective rank."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pairloom import _checks
from pairloom._stream import ChunkedSimilarity, chunks
from pairloom.metrics._export import exported_as
from pairloom.reference import metrics as dense


def _check_alignment(a: Tensor, b: Tensor, alpha: float) -> None:
    _checks.embeddings("a", a, b=b)
    _checks.positive_number("alpha", alpha)
    if a.shape != b.shape:
        raise ValueError(f"b has shape {tuple(b.shape)}; it must be that of a, {tuple(a.shape)}")


def _check_uniformity(x: Tensor, t: float) -> None:
    _checks.embeddings("x", x)
    _checks.positive_number("t", t)


@exported_as(dense.alignment, _check_alignment)
def alignment(a: Tensor, b: Tensor, *, alpha: float = 2.0) -> float:
    """Mean distance of the two views of each sample, to a power; lower is better.

        mean_i |a_i - b_i|^alpha

    Rows are taken as they are: divide them by their length first. Source: Wang and Isola, "Understanding Contrastive
    Representation Learning through Alignment and Uniformity on the Hypersphere", ICML 2020.

    Args:
        a: (N, D) float embeddings, one view of each sample.
        b: (N, D) the other.
        alpha: the power, above 0.

    Returns:
        A number of at least 0; NaN for N = 0.

    Raises:
        TypeError: embeddings that are not float.
        ValueError: shapes or devices that do not fit, alpha that is not above 0.

    Example:
        >>> import torch, pairloom
        >>> f"{pairloom.metrics.alignment(torch.eye(2), torch.eye(2).flip(0)):.4f}"
        '2.0000'
    """
    difference = a.detach().to(torch.float64) - b.detach().to(torch.float64)
    return float(difference.norm(dim=1).pow(alpha).mean())


@exported_as(dense.uniformity, _check_uniformity)
def uniformity(x: Tensor, *, t: float = 2.0) -> float:
    """How evenly rows fill the sphere: log of the mean Gaussian potential of all pairs; lower is better.

        log mean_{i < j} e^{-t |x_i - x_j|^2}

    Rows are taken as they are: divide them by their length first. Source: as `alignment`.

    Args:
        x: (N, D) float embeddings.
        t: steepness, above 0.

    Returns:
        A number of at most 0; NaN for fewer than two rows.

    Raises:
        TypeError: embeddings that are not float.
        ValueError: a shape that does not fit, t that is not above 0.

    Cost: 2 N N D flops; O(N D) memory and one chunk of the distances.

    Example:
        >>> import torch, pairloom
        >>> f"{pairloom.metrics.uniformity(torch.eye(3)):.4f}"
        '-4.0000'
    """
    n = x.shape[0]
    if n < 2:
        return math.nan
    matrix = ChunkedSimilarity(x.detach(), None, "squared_euclidean", needs_grad=0)
    sums = []
    for chunk in chunks(n, n):
        exponents = matrix.block(chunk).to(torch.float64) * t
        rows = torch.arange(chunk.start, chunk.stop, device=x.device)
        exponents[rows - chunk.start, rows] = -torch.inf
        sums.append(exponents.logsumexp((0, 1)))
    return float(torch.stack(sums).logsumexp(0)) - math.log(n * (n - 1))


def effective_rank(x: Tensor) -> float:
    """How many directions the rows really use: e to the entropy of the singular values.

        q_k = s_k / sum(s),      erank = exp( -sum q_k log q_k )

    Between 1 and the rank; 0 for a matrix of zeros, which uses none. Source: Roy and Vetterli, "The Effective Rank: A
    Measure of Effective Dimensionality", EUSIPCO 2007.

    Args:
        x: (N, D) float embeddings.

    Returns:
        A number from 0 to min(N, D); NaN for N = 0, and for a row that is not finite.

    Raises:
        TypeError: embeddings that are not float.
        ValueError: a shape that does not fit, or an export to ONNX, which has no singular values.

    Cost: one singular value decomposition, O(N D min(N, D)).

    Example:
        >>> import torch, pairloom
        >>> f"{pairloom.metrics.effective_rank(torch.eye(3)):.4f}"
        '3.0000'
    """
    _checks.embeddings("x", x)
    if torch.onnx.is_in_onnx_export():
        raise ValueError("effective_rank needs singular values, which ONNX does not have; compute it outside the graph")
    rows = x.detach().to(torch.float64)
    if rows.shape[0] == 0 or not bool(rows.isfinite().all()):  # LAPACK raises, or answers anything
        return math.nan
    values = torch.linalg.svdvals(rows)
    if values[0] == 0:
        return 0.0
    share = values[values > 0] / values[0]  # the largest first: their sum may be beyond float64
    share = share / share.sum()
    return float((-(share * share.log()).sum()).exp())
