"""Reliability diagrams."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from segunc.metrics.calibration import Reliability
from segunc.plots.style import DOTTED, FAINT, add_legend, legend_rows, line_style, new_figure, styled, unit_axis

MARKERS = ("o", "s", "^", "D", "v")


@styled
def reliability_figure(
    diagrams: Mapping[str, Reliability],
    errors: Mapping[str, float | None],
    protocol: str,
    places: Mapping[str, int] | None = None,
) -> Figure:
    """Accuracy over mean confidence of each bin, the diagonal of perfect calibration, and the pixels of each bin.

    A point above the diagonal is a bin that is right more often than it says. The counts lie below, on a logarithmic
    axis, because a point may stand for a handful of pixels.

    Args:
        diagrams: name -> its bins.
        errors: name -> ECE in 0..1, shown beside the name.
        protocol: how pixels are pooled, named on the axes.
        places: name -> place among what is compared, for colour and dashes; None is the order of ``diagrams``.
    """
    labels = [name if errors.get(name) is None else f"{name}  {errors[name]:.3f}" for name in diagrams]
    figure, (upper, lower) = new_figure(2, 3.3, legend_rows(labels, title=True), share_x=True, ratios=(2.6, 1.0))
    upper.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, linestyle=DOTTED, zorder=1)
    order = places or {name: index for index, name in enumerate(diagrams)}
    handles = []
    most = 1
    for name, diagram in diagrams.items():
        look = line_style(order[name])
        marker = MARKERS[order[name] % len(MARKERS)]
        handles += upper.plot(diagram.confidence, diagram.accuracy, marker=marker, markersize=3, **look)
        lower.stairs(diagram.pixels, diagram.edges, linewidth=1.1, baseline=None, **look)
        most = max(most, int(diagram.pixels.max()))
    for axis in ("x", "y"):
        unit_axis(upper, axis)
    lower.set_yscale("log")
    lower.set_ylim(0.8, most * 2.0)
    bins = len(next(iter(diagrams.values())).pixels) if diagrams else 0
    upper.set_ylabel(f"accuracy ({protocol})")
    lower.set_ylabel("pixels")
    lower.set_xlabel(f"confidence of the predicted class ({bins} bins)")
    add_legend(figure, handles, labels, "ECE")
    return figure
