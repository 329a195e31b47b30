"""Whether an installed package works at all: import, top-k, a loss with its gradient. Wheels are tested with it."""

from __future__ import annotations

import torch

import pairloom

gallery = torch.eye(4)
scores, ids = pairloom.topk(gallery.flip(0), gallery, k=1)
assert ids.flatten().tolist() == [3, 2, 1, 0], ids
assert scores.flatten().tolist() == [1.0] * 4, scores

embeddings = torch.randn(8, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
loss = pairloom.MultiSimilarityLoss()(embeddings, torch.arange(8) // 2)
loss.backward()
assert embeddings.grad is not None
assert bool(torch.isfinite(embeddings.grad).all())
print(f"pairloom {pairloom.__version__} works with torch {torch.__version__}: {pairloom.__file__}")
