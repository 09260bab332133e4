"""Bars of a number for each class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from segunc.plots.style import COLOURS, FAINT, HATCHES, add_legend, legend_rows, new_figure, styled

BAR = 0.13
"""Height of a bar in inches."""
GAP = 0.07
"""Space between classes in inches."""


@styled
def class_bars_figure(
    models: Mapping[str, Mapping[str, float | None]],
    means: Mapping[str, float | None],
    quantity: str = "IoU",
    places: Mapping[str, int] | None = None,
) -> Figure:
    """A number of each class as bars, one for each model, with the mean over classes as a line.

    Args:
        models: model -> class -> number in 0..1; None where it does not exist, shown as a dash, not as 0.
        means: model -> its mean over classes in 0..1, shown beside the name.
        quantity: what the number is.
        places: model -> place among what is compared, for colour and hatching; None is the order of ``models``.
    """
    classes = list(dict.fromkeys(name for numbers in models.values() for name in numbers))
    labels = [name if means.get(name) is None else f"{name}  {means[name]:.3f}" for name in models]
    height = 0.5 + len(classes) * (GAP + BAR * len(models))
    figure, (axes,) = new_figure(1, height, legend_rows(labels, title=True))
    order = places or {name: index for index, name in enumerate(models)}
    step = 1.0 / (len(models) + GAP / BAR)
    handles = []
    for row, (model, numbers) in enumerate(models.items()):
        at = np.arange(len(classes)) + (row - (len(models) - 1) / 2) * step
        values = [numbers.get(name) for name in classes]
        colour = COLOURS[order[model] % len(COLOURS)]
        handles.append(
            axes.barh(
                at,
                [0.0 if value is None else value for value in values],
                step * 0.92,
                facecolor=colour,
                hatch=HATCHES[order[model] % len(HATCHES)],
                edgecolor="white",
                linewidth=0,
            )
        )
        for place, value in zip(at, values, strict=True):
            text = "–" if value is None else f"{value:.2f}"
            axes.annotate(
                text,
                (value or 0.0, place),
                xytext=(2, 0),
                textcoords="offset points",
                va="center",
                fontsize=6,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3},  # the lines of the means pass below it
            )
        mean = means.get(model)
        if mean is not None:
            axes.axvline(mean, color=colour, linewidth=0.8, linestyle=(0, (3, 2)), zorder=1)
    axes.set_yticks(range(len(classes)), classes)
    axes.set_ylim(len(classes) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    # Room on the right for the number of a bar that reaches 1.
    axes.set_xlim(0.0, 1.12)
    axes.set_xticks([0.0, 0.25, 0.5, 0.75, 1.0])
    axes.spines["left"].set_color(FAINT)
    axes.set_xlabel(f"{quantity} of the class (dashed: mean)")
    add_legend(figure, handles, labels, f"mean {quantity}")
    return figure
