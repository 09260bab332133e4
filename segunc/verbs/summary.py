"""``segunc summary``: the worst moments of maps on disk, and the frames that are worth a label."""

from __future__ import annotations

import argparse
from pathlib import Path

from segunc.core.errors import InputError
from segunc.frames.sources import format_time
from segunc.maps.manifest import read_manifest
from segunc.maps.summary import Moment, maps_folders, worst_moments, write_moments


def run(arguments: argparse.Namespace) -> None:
    """Print both lists, and write them as CSV where asked."""
    folders = maps_folders(Path(arguments.maps))
    for folder in folders:
        manifest = read_manifest(folder) or {}
        if manifest.get("status") != "finished":
            print(
                f"note: {folder} is not finished (status {manifest.get('status', 'unknown')}); the list is of what is there"
            )
        if manifest.get("run", {}).get("smooth") is not None:
            print(
                f"note: {folder} is smoothed along the video; its epistemic also holds how much successive frames disagree"
            )
        if manifest.get("failed"):
            print(f"note: {len(manifest['failed'])} frames of {folder} failed and are in no list")
    apart, count = arguments.apart, arguments.top
    moments = worst_moments(folders, arguments.score, arguments.statistic, count=count, apart=apart)
    label = worst_moments(folders, arguments.label_score, "mean", count=count, apart=apart)
    if not moments:
        raise InputError(
            f"{arguments.maps} holds no finished frame", "at least one", "let the prediction finish one first"
        )
    statistics = f"{arguments.score}.{arguments.statistic}", f"{arguments.label_score}.mean"
    root = Path(arguments.maps)
    _print(f"worst moments by {statistics[0]}, at least {apart:g} s apart", moments, root)
    _print(f"frames to label first by {statistics[1]} (BALD), at least {apart:g} s apart", label, root)
    if arguments.out:
        write_moments(Path(arguments.out), {"moments": (statistics[0], moments), "label": (statistics[1], label)})
        print(f"wrote {arguments.out}")


def _print(title: str, moments: list[Moment], root: Path) -> None:
    print(title)
    for rank, moment in enumerate(moments, start=1):
        folder = "" if moment.folder == root else f"{moment.folder.relative_to(root)}/"
        time = "" if moment.time is None else f"{format_time(moment.time)}  "
        print(f"{rank:4d}  {time}{moment.value:<12.6g}{folder}{moment.name}")
