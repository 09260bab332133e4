"""Options of ``segunc overlay``; nothing heavy is imported."""

from __future__ import annotations

import argparse
from collections.abc import Callable

OVERLAY_EXAMPLES = (
    "segunc overlay --maps maps --out figures --score epistemic --frames 'night/*' --format pdf\n"
    "  segunc overlay --maps maps --out figures --panel --anomaly-labels masks\n"
    "  segunc overlay --maps maps --out figures --panel --score entropy,epistemic --video"
)


def add_overlay_options(parser: argparse.ArgumentParser, names: Callable[[str], list[str]]) -> None:
    """Which pictures to draw, and how to write them; ``names`` splits ``A,B``."""
    parser.add_argument("--maps", required=True, metavar="DIR", help="a maps folder, of segunc or any other tool")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the pictures, outside of the maps")
    parser.add_argument(
        "--score",
        type=names,
        metavar="A,B",
        help="scores to draw (default entropy; with --panel entropy, aleatoric and epistemic)",
    )
    parser.add_argument(
        "--panel",
        action="store_true",
        help="one picture a frame: image, prediction, class legend and every score side by side (default: each score over the image)",
    )
    parser.add_argument(
        "--frames", type=names, metavar="A,B", help="names or patterns of frames, e.g. 000120,night/* (default: all)"
    )
    parser.add_argument("--images", metavar="PATH", help="the source images, where they are no longer at their place")
    parser.add_argument("--anomaly-labels", metavar="DIR", help="anomaly masks to outline")
    parser.add_argument("--dataset", metavar="NAME", help="data set whose anomaly encoding the masks have")
    parser.add_argument(
        "--range",
        dest="ranges",
        type=score_ranges,
        default={},
        metavar="A=LOW:HIGH,B=LOW:HIGH",
        help="ranges of the colours (default: fixed for scores in 0..1, of the whole set for unbounded ones)",
    )
    parser.add_argument(
        "--format",
        choices=("png", "jpg", "pdf"),
        default="png",
        help="png and pdf are lossless, pdf is 300 dots an inch (default png)",
    )
    parser.add_argument(
        "--video",
        action="store_true",
        help="also a video of the pictures: MP4 (H.264) where PyAV is installed (extra 'video'), else WebM (VP8)",
    )
    parser.add_argument("--fps", type=float, metavar="N", help="frames a second of the video (default: as recorded)")


def score_ranges(text: str) -> dict[str, tuple[float, float]]:
    """``a=0:0.5,b=-8:0`` as a dictionary."""
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, ends = part.partition("=")
        try:
            low, high = map(float, ends.split(":"))
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{part}' is not SCORE=LOW:HIGH, e.g. epistemic=0:0.05") from None
        found[name.strip()] = (low, high)
    return found
