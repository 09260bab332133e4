"""Options of ``segunc export``; nothing heavy is imported."""

from __future__ import annotations

import argparse

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
