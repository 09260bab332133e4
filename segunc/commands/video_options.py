"""Options of ``segunc predict`` for video and scale, and those of ``segunc summary``; nothing heavy is imported."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def add_video_options(parser: argparse.ArgumentParser, image_size: Callable[[str], tuple[int, int]]) -> None:
    """Which frames are taken, by which shard, and how they are computed.

    Args:
        parser: of the verb.
        image_size: reads ``HxW``.
    """
    parser.add_argument("--every", type=int, default=1, metavar="N", help="take every N-th frame (default 1)")
    parser.add_argument("--start", metavar="TIME", help="first moment of a video, in seconds or as HH:MM:SS")
    parser.add_argument("--end", metavar="TIME", help="moment of a video to stop before")
    parser.add_argument(
        "--shard", metavar="I/N", help="only part I of N of the frames; all N share --out, at once or one by one"
    )
    parser.add_argument(
        "--frames-at-once",
        type=int,
        metavar="N",
        help="consecutive frames of one size in a batch (default: by their size; one on a CPU)",
    )
    parser.add_argument(
        "--smooth",
        type=float,
        metavar="TAU",
        help="average probabilities along the video with this time constant, in seconds (images: in frames); epistemic then also holds how much successive frames disagree",
    )
    parser.add_argument(
        "--tile", type=image_size, metavar="HxW", help="cut frames into tiles of this size, blended without seams"
    )
    parser.add_argument(
        "--overlap", type=int, metavar="N", help="pixels that neighbouring tiles share (default a quarter of a tile)"
    )
    parser.add_argument(
        "--redraw",
        action="store_true",
        help="new draws for every frame (default: the same for all, so that the maps of a video do not flicker)",
    )
    parser.add_argument(
        "--mask",
        metavar="PNG",
        help="region of interest: where it is black (the vehicle itself, say), maps are 0 and statistics see nothing",
    )
    parser.add_argument(
        "--component-threshold",
        type=thresholds,
        default={},
        metavar="A=X,B=Y",
        help="values from which on pixels form a component in the statistics (default entropy=0.5,epistemic=0.1,...)",
    )


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Which engine predicts, and how many processes of it."""
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="local: this process; ray: workers on this machine or a cluster (extra 'ray'), the same files (default local)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes of --engine ray (default: one for every GPU, or for every 4 CPU cores, of this machine)",
    )
    parser.add_argument(
        "--shards",
        type=int,
        metavar="N",
        help="parts that --engine ray cuts an input into (default: 4 a worker; of videos, each decoded whole, 1 a worker)",
    )
    parser.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="a running cluster: auto, or HOST:PORT (default: start one on this machine)",
    )


def add_summary_options(parser: argparse.ArgumentParser) -> None:
    """What to list, and where."""
    parser.add_argument("--maps", required=True, metavar="DIR", help="a maps folder, or the folder of several")
    parser.add_argument("--score", default="entropy", help="score of the worst moments (default entropy)")
    parser.add_argument(
        "--statistic",
        default="mean",
        choices=("mean", "p99", "max", "component"),
        help="of each frame: mean, 99th percentile, maximum or largest component above the threshold (default mean)",
    )
    parser.add_argument("--label-score", default="epistemic", help="score whose mean ranks frames (default epistemic)")
    parser.add_argument("--top", type=int, default=10, metavar="N", help="moments and frames to list (default 10)")
    parser.add_argument(
        "--apart", type=float, default=5.0, metavar="SECONDS", help="between two moments of a video (default 5)"
    )
    parser.add_argument("--out", metavar="CSV", help="also write both lists as a table")


def thresholds(text: str) -> dict[str, float]:
    """``a=0.5,b=0.1`` as a dictionary."""
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, number = part.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            raise argparse.ArgumentTypeError(f"'{part}' is not SCORE=VALUE, e.g. entropy=0.5") from None
    return found
