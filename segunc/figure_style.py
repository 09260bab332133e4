"""The common look of figures for reports and print, legible at a column width of 8 cm."""

from __future__ import annotations

from typing import Any

from matplotlib import style

WIDTH = 3.15  # of a figure in inches: 8 cm, one column of a two-column page
INK = "#1c1d21"
FAINT = "#6b6e78"
GRID = "#dcdde2"
LOOK: dict[str, Any] = {
    "font.size": 7.5,
    # Comes with matplotlib, so that a figure is the same on every machine.
    "font.family": "DejaVu Sans",
    "axes.labelsize": 7.5,
    "axes.titlesize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "pdf.fonttype": 42,  # text stays text that can be searched and edited
    "svg.fonttype": "none",
    "svg.hashsalt": "segunc",  # the same figure gives the same bytes
}
styled = style.context(["default", LOOK])
"""Decorates a function to run in the common look, whatever the settings of the process or of its
user are.
"""
