"""Options of ``segunc review``."""

from __future__ import annotations

import argparse
from collections.abc import Callable

REVIEW_EXAMPLES = (
    "segunc review --maps maps --anomaly-labels masks --out review\n"
    "  segunc review --maps maps --labels labels --dataset cityscapes --compare other-maps --out review\n"
    "  segunc review --import verdicts.json --maps maps --out review"
)


def add_review_options(parser: argparse.ArgumentParser, names: Callable[[str], list[str]]) -> None:
    """What the page shows, and verdicts to read back; ``names`` splits ``A,B``."""
    parser.add_argument("--maps", required=True, metavar="DIR", help="a maps folder, of segunc or any other tool")
    parser.add_argument("--labels", metavar="DIR", help="class labels, for ground truth and errors (needs --dataset)")
    parser.add_argument("--anomaly-labels", metavar="DIR", help="anomaly masks to outline")
    parser.add_argument("--dataset", metavar="NAME", help="data set whose label values the labels and masks have")
    parser.add_argument("--compare", metavar="DIR", help="maps of a second model on the same frames")
    parser.add_argument("--images", metavar="PATH", help="the source images, where they are no longer at their place")
    parser.add_argument("--metrics", metavar="JSON", help="a result of evaluate to show")
    parser.add_argument("--scores", type=names, metavar="A,B", help="scores that the page carries (default: all)")
    parser.add_argument("--limit", type=int, metavar="N", help="carry only the N frames of the highest mean entropy")
    parser.add_argument(
        "--import",
        dest="verdicts",
        metavar="FILE",
        help="check and count the verdicts that a page exported (.json or .csv); with --out the page shows them",
    )
    parser.add_argument("--out", metavar="DIR", help="folder of the page")
