"""How frames are ranked by each statistic of a score: where one frame stands, how well anomalous frames stand before normal ones, how
well the order follows the labelled area, and whether the strongest alarms lie on labelled anomalies.

    python -m tools.check_ranking --maps MAPS --labels MASKS --anomaly 2 [--normal MAPS_OF_NORMAL_FRAMES] [--frame NAME]

Sums over regions are divided by the pixels of the frame, since the two folders differ in size. Equal values share the mean of their ranks.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segunc.data.entry import find_labels
from segunc.data.images import read_label_image
from segunc.gallery.alarms import find_alarms
from segunc.maps.reader import MapsReader
from segunc.maps.shards import STATISTICS
from segunc.metrics.counting import auroc, count_scores, detection_curve
from tools.measuring import provenance


def statistics_of(reader: MapsReader, score: str, statistic: str) -> dict[str, float]:
    """The statistic of each frame; of regions, per pixel of the frame."""
    regional = statistic in ("region", "component")
    return {
        name: record[statistic][score] / (np.prod(record["size"]) if regional else 1)
        for name, record in reader.records.items()
    }


def mean_ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return the rank of each value from 0 on; equal values share the mean of their ranks."""
    _, place, number = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    ranks: npt.NDArray[np.float64] = (np.cumsum(number) - (number + 1) / 2)[place]
    return ranks


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the correlation of the ranks, -1..1; NaN where all values of one are equal."""
    a, b = (ranks - ranks.mean() for ranks in (mean_ranks(first), mean_ranks(second)))
    spread = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / spread if spread else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", type=Path, required=True)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--anomaly", type=int, default=1, help="value of anomalous pixels")
    parser.add_argument("--normal", type=Path, help="maps of frames without an anomaly")
    parser.add_argument("--frame", help="whose rank is printed")
    parser.add_argument("--score", default="anomaly")
    parser.add_argument("--threshold", type=float, default=3.0)
    asked = parser.parse_args()
    print(json.dumps(provenance()))
    reader = MapsReader(asked.maps)
    normal = MapsReader(asked.normal) if asked.normal else None
    labels = find_labels(asked.labels, reader.frames)
    area = {name: float((read_label_image(labels[name]) == asked.anomaly).mean()) for name in reader.frames}
    for statistic in STATISTICS:
        values = statistics_of(reader, asked.score, statistic)
        order, words = sorted(values, key=lambda name: -values[name]), [f"{asked.score} {statistic}"]
        if asked.frame:
            words.append(f"{asked.frame} is {order.index(asked.frame) + 1} of {len(order)}")
        if normal is not None:
            others = [*statistics_of(normal, asked.score, statistic).values()]
            ranks = (2 * mean_ranks([*values.values(), *others])).astype(np.uint16)
            truth = np.repeat(np.array([1, 0], np.uint8), (len(values), len(others)))
            words.append(f"AUROC of anomalous frames {auroc(detection_curve(count_scores(ranks, truth))):.3f}")
        words.append(f"Spearman with the labelled area {spearman([*values.values()], [area[n] for n in values]):z.2f}")
        print(", ".join(words))
    strongest, five = 0, 0
    for name in reader.frames:
        scores, truth = reader.read(name, asked.score), read_label_image(labels[name]) == asked.anomaly
        hits = []
        for alarm in find_alarms({asked.score: scores}, asked.score, asked.threshold, None, 10):
            left, top, width, height = alarm.box
            window = np.s_[top : top + height, left : left + width]
            hits.append(bool((truth[window] & (scores[window] >= asked.threshold)).any()))
        strongest, five = strongest + any(hits[:1]), five + any(hits)
    print(
        f"the strongest alarm touches a labelled anomaly in {strongest} of {len(reader.frames)} frames, one of five in {five}"
    )


if __name__ == "__main__":
    main()
