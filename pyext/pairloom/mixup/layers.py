"""Mixing at a chosen layer of an encoder: its input, what a submodule gives, or the embedding."""

from __future__ import annotations

from difflib import get_close_matches
from threading import get_ident
from typing import Any

from torch import Tensor, nn

from pairloom import _checks
from pairloom.mixup.mix import mix

ENDS = ("input", "output")


class MixAtLayer(nn.Module):
    """An encoder that mixes the items of its batch on the way.

        h = layers up to `layer` (items),      output = layers behind it ( lam h + (1 - lam) h[partner] )

    Args:
        encoder: module from a batch of items to embeddings.
        layer: "input", "output" (the embedding), or the name of a submodule as ``encoder.named_modules()`` has it,
            whose output, one tensor (B, ...), is mixed.
        normalize: divide mixed embeddings by their length ("output" alone).

    Raises:
        TypeError, ValueError: a name that is no submodule; a layer that gives no single tensor of the batch's length.
        RuntimeError: a layer that ran not once in a call, but never or several times.

    The encoder itself is not changed: called by itself, also in another thread at the same time, it mixes nothing. So
    activation checkpointing must not span the layer: what it computes again in backward would not be mixed.

    Source: Verma et al., "Manifold Mixup: Better Representations by Interpolating Hidden States", ICML 2019;
    Venkataramanan et al., "It Takes Two to Tango: Mixup for Deep Metric Learning", ICLR 2022 (levels of mixing).

    Example:
        >>> import torch, pairloom
        >>> encoder = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> images, partner = torch.randn(3, 4), torch.tensor([1, 2, 0])
        >>> pairloom.mixup.MixAtLayer(encoder, "1")(images, partner, 0.7).shape
        torch.Size([3, 2])
    """

    def __init__(self, encoder: nn.Module, layer: str, *, normalize: bool = False) -> None:
        super().__init__()
        if not isinstance(encoder, nn.Module):
            raise TypeError(f"encoder is a {type(encoder).__name__}; it must be a torch.nn.Module")
        _checks.flag("normalize", normalize)
        names = {name for name, _ in encoder.named_modules() if name}
        if not isinstance(layer, str):
            raise TypeError(f"layer is {layer!r}; it must be the name of a submodule, 'input' or 'output'")
        if layer not in names and layer not in ENDS:
            near = get_close_matches(layer, names, n=3)
            raise ValueError(
                f"layer is {layer!r}, which is no submodule of the encoder; allowed: 'input', 'output'"
                + (f", and names such as {', '.join(map(repr, near or sorted(names)[:5]))}" if names else "")
            )
        if layer in names and layer in ENDS:
            raise ValueError(f"layer is {layer!r}, which is an end of the encoder and a submodule too; rename that")
        if normalize and layer != "output":
            raise ValueError(f"normalize is True with layer {layer!r}; only embeddings ('output') are normalised")
        self.encoder = encoder
        self.layer = layer
        self.normalize = normalize

    def forward(self, items: Tensor, partner: Tensor, lam: Tensor | float, **others: Any) -> Any:
        """Mixed embeddings; further arguments go to the encoder. Arguments as of `mix`."""
        if self.layer == "input":
            return self.encoder(mix(items, partner, lam), **others)
        if self.layer == "output":
            embeddings = self.encoder(items, **others)
            self._check(embeddings, items)
            return mix(embeddings, partner, lam, normalize=self.normalize)
        runs = 0

        thread = get_ident()

        def mixed(module: nn.Module, arguments: Any, output: Any) -> Tensor:
            nonlocal runs
            if get_ident() != thread:  # somebody else's call of the same encoder
                return output
            runs += 1
            self._check(output, items)
            return mix(output, partner, lam)

        hook = self.encoder.get_submodule(self.layer).register_forward_hook(mixed)
        try:
            result = self.encoder(items, **others)
        finally:
            hook.remove()
        if runs != 1:
            raise RuntimeError(f"layer {self.layer!r} ran {runs} times in one call; mixing needs one that runs once")
        return result

    def _check(self, output: Any, items: Tensor) -> None:
        if not isinstance(output, Tensor):
            raise TypeError(f"layer {self.layer!r} gives a {type(output).__name__}; only a tensor can be mixed")
        if output.dim() == 0 or output.shape[0] != items.shape[0]:
            raise ValueError(
                f"layer {self.layer!r} gives shape {tuple(output.shape)} for {items.shape[0]} items; "
                "its first dimension must be the batch"
            )

    def extra_repr(self) -> str:
        """Where it mixes."""
        return f"layer={self.layer!r}, normalize={self.normalize}"
