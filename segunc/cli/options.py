"""The options of the verbs; nothing here imports more than argparse."""

from __future__ import annotations

import argparse
from collections.abc import Callable

SMALLEST_SIDE = 32
"""Stride of the deepest feature map of the usual encoders: a smaller input leaves it nothing."""


def image_size(text: str) -> tuple[int, int]:
    """``HxW`` as (height, width)."""
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(p.isdigit() and int(p) > 0 for p in parts):
        raise argparse.ArgumentTypeError(f"'{text}' is not HxW, e.g. 512x1024")
    height, width = int(parts[0]), int(parts[1])
    if min(height, width) < SMALLEST_SIDE:
        raise argparse.ArgumentTypeError(f"'{text}' is too small, each side must be at least {SMALLEST_SIDE}")
    return height, width


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """Draws, their noise and the network's size and precision."""
    parser.add_argument("--draws", type=int, default=24, metavar="S", help="draws in total (default 24)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default 0)")
    parser.add_argument(
        "--scheme",
        choices=("independent", "antithetic", "latin-hypercube"),
        help="how the draws of a member are spread (default latin-hypercube)",
    )
    parser.add_argument(
        "--scope", metavar="SCOPE", help="sample fewer norm sites: all, encoder, decoder, last:N, every:N or a pattern"
    )
    parser.add_argument(
        "--size", type=image_size, metavar="HxW", help="size the network sees; maps keep the frame's own size"
    )
    parser.add_argument("--chunk", type=int, metavar="N", help="draws in a batch (default: by memory)")
    parser.add_argument(
        "--precision",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="of the network (default: bfloat16 where it is fast)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads of the network (default: all cores)")
    parser.add_argument(
        "--compile",
        nargs="?",
        const="on",
        default="auto",
        choices=("auto", "on", "off"),
        help="torch.compile the draws: a tenth faster after seconds of compiling for each size of frame (default auto: where the whole input is long enough)",
    )


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


EXPORT_EXAMPLES = (
    "segunc export --maps maps --score entropy --to smiyc --method MyNet --dataset AnomalyTrack-all --out outputs\n"
    "  segunc export --maps maps --score entropy --to fishyscapes --out outputs\n"
    "  segunc export --maps maps --to rerun --out drive.rrd\n"
    "  segunc export --maps maps --to fiftyone --score entropy,epistemic --out dataset"
)
BENCHMARKS = ("smiyc", "fishyscapes")
VIEWERS = ("rerun", "fiftyone")


def add_export_options(parser: argparse.ArgumentParser) -> None:
    """What to export, in which form, and where to."""
    parser.add_argument("--maps", required=True, metavar="DIR", help="a maps folder, of segunc or any other tool")
    parser.add_argument(
        "--score",
        metavar="SCORE",
        help="the score to export, e.g. entropy; viewers take several, A,B (default: all)",
    )
    parser.add_argument(
        "--to",
        required=True,
        choices=(*BENCHMARKS, *VIEWERS),
        help="smiyc: anomaly_p/METHOD/DATASET/FRAME.hdf5, float16; fishyscapes: FRAME_anomaly.npy, float32; rerun: a "
        "recording (.rrd, extra 'rerun'); fiftyone: a data set folder to import (extra 'fiftyone')",
    )
    parser.add_argument("--method", default="", metavar="NAME", help="name of the method (smiyc needs it)")
    parser.add_argument(
        "--dataset", default="", metavar="NAME", help="the benchmark's name of the data set (smiyc needs it)"
    )
    parser.add_argument(
        "--images", metavar="PATH", help="the source images for a viewer, where they are no longer at their place"
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="PATH",
        help="output folder, or the .rrd file; the same command after a kill loses nothing",
    )
    parser.add_argument("--overwrite", action="store_true", help="remove an earlier export at the same place first")
