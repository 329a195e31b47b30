"""The picture of the digits example: queries with their nearest neighbours, and the training curve.

Right and wrong differ in colour *and* symbol *and* frame, so the picture can be read without telling colours apart; the
two colours are the blue and vermilion of the Okabe-Ito palette, which colour-blind people do tell apart.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import torch
from torch import Tensor

matplotlib.use("Agg")  # writes files, needs no screen
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine

RIGHT, WRONG, NEUTRAL = "#0072B2", "#D55E00", "#444444"
FAILURES = 3
TITLE = "Similar digits among classes the encoder never saw: trained on 0-4, searching 5-9"
LEGEND = "Solid blue and ✓: same class as the query.   Dotted orange and ✗: another class.   Numbers: the true class."


def draw(
    path: Path,
    images: Tensor,
    labels: Tensor,
    neighbours: Tensor,
    loss: list[float],
    mined: list[float],
    map_at_r: dict[str, float],
    seed: int,
) -> None:
    """Write the picture.

    Args:
        path: PNG file.
        images: (N, 1, 8, 8) queries and gallery at once.
        labels: (N,) their digits.
        neighbours: (N, k) ids of every image's nearest other images, best first.
        loss: value at each training step.
        mined: share of pairs that mining kept, at each step.
        map_at_r: MAP@R by name of the embedding.
        seed: chooses the typical queries.
    """
    typical, worst, imperfect = choose_queries(labels, neighbours, seed)
    depth = neighbours.shape[1]
    figure = plt.figure(
        figsize=(11, 7), dpi=110, layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, rect=(0.01, 0.01, 0.98, 0.98))
    )
    figure.suptitle(TITLE, fontsize=13, weight="bold")
    figure.supxlabel(LEGEND, fontsize=9)
    left, right = figure.subfigures(1, 2, width_ratios=(1.15, 1), wspace=0.06, squeeze=False).flat
    top, bottom = left.subfigures(2, 1, height_ratios=(len(typical) + 0.6, FAILURES + 0.6), squeeze=False).flat

    draw_rows(top, f"A random query of each class, and its {depth} nearest", typical, images, labels, neighbours)
    if worst:
        title = (
            f"The {len(worst)} worst of the {imperfect} queries (of {len(labels)}) with a wrong answer among {depth}"
        )
        draw_rows(bottom, title, worst, images, labels, neighbours)
    else:
        bottom.suptitle(f"No query of {len(labels)} has a wrong answer among its {depth}", fontsize=10)
    draw_curves(right, loss, mined, map_at_r)
    figure.savefig(path)
    plt.close(figure)


def choose_queries(labels: Tensor, neighbours: Tensor, seed: int) -> tuple[list[int], list[int], int]:
    """One random query of each class; the queries with most wrong answers; how many have any wrong answer."""
    generator = torch.Generator().manual_seed(seed)
    rows = [(labels == label).nonzero().squeeze(1) for label in labels.unique()]
    typical = [int(r[torch.randint(len(r), (1,), generator=generator)]) for r in rows]
    wrong = (labels[neighbours] != labels.unsqueeze(1)).sum(dim=1)
    worst = wrong.argsort(descending=True, stable=True)[:FAILURES]
    return typical, [int(q) for q in worst if wrong[q] > 0], int((wrong > 0).sum())


def draw_rows(
    area: SubFigure, title: str, queries: list[int], images: Tensor, labels: Tensor, neighbours: Tensor
) -> None:
    """One row for each query: the query, then its answers with their verdicts."""
    area.suptitle(title, fontsize=10, x=0.01, ha="left")
    grid = area.subplots(len(queries), 1 + neighbours.shape[1], squeeze=False)
    for row, query in zip(grid, queries, strict=True):
        draw_digit(row[0], images[query], f"{int(labels[query])} ?", NEUTRAL, "-", 1.0)
        for axes, answer in zip(row[1:], neighbours[query].tolist(), strict=True):
            hit = bool(labels[answer] == labels[query])
            text = f"{int(labels[answer])} {'✓' if hit else '✗'}"
            draw_digit(axes, images[answer], text, RIGHT if hit else WRONG, "-" if hit else ":", 2.5)


def draw_digit(axes: Axes, image: Tensor, text: str, colour: str, line: str, width: float) -> None:
    """One image in a frame, with its text at its right side."""
    axes.imshow(image.squeeze(0).numpy(), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.annotate(
        text,
        (1.08, 0.5),
        xycoords="axes fraction",
        color=colour,
        fontsize=10,
        weight="bold",
        va="center",
        annotation_clip=False,
    )
    for spine in axes.spines.values():
        spine.set(color=colour, linestyle=line, linewidth=width)


def draw_curves(area: SubFigure, loss: list[float], mined: list[float], map_at_r: dict[str, float]) -> None:
    """Loss and mined pairs over the steps, and what came of it."""
    curves, pairs, result = area.subplots(3, 1, height_ratios=(1, 1, 0.62))
    steps = range(1, len(loss) + 1)
    curves.plot(steps, loss, color=RIGHT)
    curves.set(ylabel="loss", ylim=(0, None))
    curves.set_title("Training: Multi-Similarity loss of a batch", fontsize=10, loc="left")
    pairs.plot(steps, [100 * share for share in mined], color=WRONG, linestyle="--")
    pairs.set(xlabel="step", ylabel="pairs kept, %", ylim=(0, 100))
    pairs.set_title("Pairs of a batch that mining keeps", fontsize=10, loc="left")
    for axes in (curves, pairs):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)

    names = list(map_at_r)[::-1]
    values = [map_at_r[name] for name in names]
    bars = result.barh(names, values, color=["#56B4E9" if name.startswith("trained") else "#CCCCCC" for name in names])
    result.bar_label(bars, [f"{value:.3f}" for value in values], padding=4, fontsize=9)
    for height, name in enumerate(names):  # inside the bars: no room needed beside them
        result.text(0.01, height, name, va="center", fontsize=9)
    result.set(xlim=(0, 1), yticks=[])
    result.set_title("What came of it: MAP@R on the unseen classes", fontsize=10, loc="left")
    result.spines[["top", "right"]].set_visible(False)
