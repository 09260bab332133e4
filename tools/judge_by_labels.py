"""Verdicts on the alarms of a run, as a reviewer would give them who knows the labels.

    python -m tools.judge_by_labels --maps maps --flag knn=0.2 --anomaly-labels masks --most 20 \\
        --out verdicts.json

The strongest alarms of the run are judged, at most five of a frame, as the review page lists them;
of a video one of each event, at its peak. An alarm that touches a labelled anomaly is true, any
other is false. Without labels every alarm is false: for frames that are known to hold no anomaly.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.files import write_json
from segunc.decisions.events import Follower
from segunc.decisions.flags import Threshold, read_thresholds
from segunc.gallery.review_page import run_id
from segunc.maps.labelled import LabelSources, ReviewLabels, open_maps
from segunc.maps.reader import MapsReader
from segunc.maps.regions import MAX_LISTED_REGIONS, StrongRegion, strongest_regions
from segunc.maps.shards import frame_times
from segunc.maps.verdicts import FORMAT, FORMAT_VERSION

Mask = npt.NDArray[np.bool_]


def alarms_of(
    reader: MapsReader, score: str, threshold: Threshold
) -> list[tuple[str, StrongRegion]]:
    """Return frame and region of each alarm, the strongest first; of a video one of each event."""
    times = frame_times(reader.frames, reader.records, reader.manifest, None)
    is_video = all(time is not None for time in times)
    follower = Follower()
    strongest: dict[Any, tuple[str, StrongRegion]] = {}
    for name in reader.frames:
        regions = strongest_regions(
            reader.read(name, score),
            threshold.value,
            smallest=threshold.smallest,
            most=MAX_LISTED_REGIONS,
        )
        numbers = follower.follow(name, [region.box for region in regions])
        for number, region in zip(numbers, regions, strict=True):
            key = number if is_video else (name, region.box)
            if key not in strongest or region.strength > strongest[key][1].strength:
                strongest[key] = (name, region)
    return sorted(strongest.values(), key=lambda alarm: -alarm[1].strength)


def judge(
    name: str, region: StrongRegion, shape: tuple[int, ...], labels: ReviewLabels | None
) -> tuple[str, Mask]:
    """Return the verdict on a region, and its pixels ``[H, W]``."""
    left, top, width, height = region.box
    pixels = np.zeros(shape, bool)
    pixels[top : top + height, left : left + width] = region.inside
    anomaly = None if labels is None else labels.anomaly(name)
    if anomaly is not None and (anomaly[pixels] == 1).any():
        return "true-alarm", pixels
    return "false-alarm", pixels


def runs_of(pixels: Mask) -> list[int]:
    """Return start and length of each run of pixels, row by row."""
    padded = np.concatenate([[False], pixels.flatten(), [False]]).astype(np.int8)
    steps = np.diff(padded)
    starts = np.flatnonzero(steps == 1)
    ends = np.flatnonzero(steps == -1)
    return [int(number) for pair in zip(starts, ends - starts, strict=True) for number in pair]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--maps", type=Path, required=True)
    parser.add_argument("--flag", required=True, help="SCORE=VALUE or threshold.json")
    parser.add_argument("--anomaly-labels", type=Path)
    parser.add_argument("--most", type=int, default=20, help="number of verdicts")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    reader = open_maps(options.maps)
    ((score, threshold),) = read_thresholds([options.flag]).items()
    labels = None
    if options.anomaly_labels:
        labels = LabelSources(anomaly_labels=options.anomaly_labels).find(reader, reader.frames)
    verdicts: list[dict[str, Any]] = []
    for name, region in alarms_of(reader, score, threshold)[: options.most]:
        values = reader.read(name, score)
        verdict, pixels = judge(name, region, values.shape, labels)
        verdicts.append(
            {
                "frame": name,
                "verdict": verdict,
                "note": "",
                "time": datetime.now(UTC).isoformat(),
                "reviewer": "labels",
                "region": {
                    "box": list(region.box),
                    "area": region.area,
                    "size": list(values.shape),
                    "mask": runs_of(pixels),
                    "score": score,
                    "threshold": threshold.value,
                    "value": float(values[pixels].max()),
                },
            }
        )
    content = {"format": FORMAT, "version": FORMAT_VERSION, "run": run_id(reader)}
    write_json(options.out, {**content, "verdicts": verdicts})
    false_alarms = sum(verdict["verdict"] == "false-alarm" for verdict in verdicts)
    print(f"wrote {options.out}: {len(verdicts)} verdicts, {false_alarms} false alarms")


if __name__ == "__main__":
    sys.exit(main())
