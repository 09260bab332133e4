"""The options of ``segunc evaluate`` that say which numbers are made; nothing here imports more than argparse."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def add_metric_options(parser: argparse.ArgumentParser, names: Callable[[str], list[str]]) -> None:
    """Corruption, protocols, components, intervals and figures.

    Args:
        parser: of the verb.
        names: reads a list of names.
    """
    parser.add_argument(
        "--corruption",
        metavar="NAME:N",
        help="corrupt the images first: blur, noise, fog, darkness or jpeg, of strength 1 to 5, e.g. fog:3; with --model",
    )
    parser.add_argument(
        "--protocols",
        type=names,
        default=["pooled", "per-image"],
        metavar="A,B",
        help="how anomaly pixels are pooled: pooled, per-image, smiyc (default pooled,per-image)",
    )
    parser.add_argument(
        "--components",
        type=names,
        metavar="A,B",
        help="component tracks smiyc-anomaly, smiyc-obstacle: anomalies as objects, in a second pass",
    )
    parser.add_argument(
        "--component-mode",
        default="smiyc",
        choices=("smiyc", "inclusive"),
        help="score > threshold as the benchmark cuts (default), or >=",
    )
    parser.add_argument(
        "--replicates", type=int, default=200, metavar="R", help="of the bootstrap intervals (default 200; 0: none)"
    )
    parser.add_argument(
        "--resample",
        default="frame",
        metavar="UNIT",
        help="what is resampled: frame (default), folder, or a regular expression; frames with one match stay together",
    )
    parser.add_argument(
        "--plots", metavar="DIR", help="folder for figures (PDF, SVG, PNG) and the points of their curves (curves.json)"
    )
