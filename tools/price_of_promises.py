"""What a promise costs on real frames: thresholds that are calibrated on random halves of the
frames of a maps folder, and measured on the other halves.

    python -m tools.price_of_promises --maps MAPS --anomaly-labels MASKS [--dataset NAME]
        [--score anomaly] [--level 0.1] [--margins 0,8,16] [--place road,sidewalk]
        [--splits 200] [--found-share 0.5] [--smallest-object 10]

Printed as one Markdown table, a row for each preparation of the maps: the share of objects that is
missed and the share of normal pixels that is flagged, means over the splits with the tenth and the
ninetieth percentile; and the false regions of a frame at the threshold of all frames. The promise
is about missed objects, by conformal risk control.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.decisions.preparation import Preparation, classes_of_place, counted_pixels
from segunc.decisions.risks import Losses, LossSums, Method, Pool, Scene, monotone
from segunc.evaluation.from_maps import read_frame
from segunc.maps.labelled import ReviewLabels, open_maps
from segunc.maps.reader import MapsReader
from segunc.metrics.objects import Objects
from segunc.options import EvaluateOptions
from segunc.verbs.evaluate import label_sources

CONTROLS = ("missed-objects", "flagged-pixels")
MIN_CALIBRATION = 9  # frames that a level of 0.1 needs


@dataclass
class Prices:
    """What one preparation costs.

    Attributes:
        missed: losses of missed objects of N frames at each threshold, ``[N, T]``.
        flagged: share of the normal pixels of these frames that is flagged, ``[N, T]``.
        outside: number of labelled objects outside the place.
        objects: number of labelled objects.
    """

    missed: Losses
    flagged: Losses
    outside: int
    objects: int


def main(words: Sequence[str] | None = None) -> None:
    asked = read_options(words)
    reader = open_maps(Path(asked.maps))
    labels = labels_of(asked, reader)
    print(
        "| preparation | frames | objects outside | missed objects | flagged normal pixels "
        "| false regions |\n|---|---:|---:|---:|---:|---:|"
    )
    for preparation in preparations(asked, reader.class_names):
        prices = measure(reader, labels, preparation, asked)
        missed, flagged = split(prices, asked.level, asked.splits)
        regions = false_regions(reader, labels, preparation, asked, prices)
        print(
            f"| {preparation.words or 'none'} | {len(prices.missed)} "
            f"| {prices.outside} of {prices.objects} | {missed.mean():.3f} "
            f"| {flagged.mean():.3f} [{np.quantile(flagged, 0.1):.3f}, "
            f"{np.quantile(flagged, 0.9):.3f}] | {regions:.1f} |",
            flush=True,
        )


def read_options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("maps", "anomaly-labels"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--dataset")
    parser.add_argument("--score", default="anomaly")
    parser.add_argument("--level", type=float, default=0.1)
    parser.add_argument("--margins", default="0,8,16")
    parser.add_argument("--place", default="")
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--found-share", type=float, default=0.5)
    parser.add_argument("--smallest-object", type=int, default=10)
    return parser.parse_args(words)


def labels_of(asked: argparse.Namespace, reader: MapsReader) -> ReviewLabels:
    """Return the labels of the frames of the maps."""
    options = EvaluateOptions(
        maps=asked.maps, anomaly_labels=asked.anomaly_labels, dataset=asked.dataset
    )
    return label_sources(options).find(reader, reader.frames)


def preparations(asked: argparse.Namespace, names: Sequence[str] | None) -> Iterator[Preparation]:
    """Yield nothing, and all combinations of a place, levelled frames and the margins."""
    place = tuple(asked.place.split(",")) if asked.place else ()
    ids = classes_of_place(place, names)
    margins = [int(margin) for margin in asked.margins.split(",")]
    places = [((), ()), (place, ids)] if place else [((), ())]
    for (of_place, of_ids), level, margin in product(places, ("none", "frame"), margins):
        yield Preparation(level, margin, of_place, of_ids)  # type: ignore[arg-type]


def scenes(
    reader: MapsReader, labels: ReviewLabels, preparation: Preparation, score: str
) -> Iterator[Scene]:
    """Yield the frames that have a label, with their prepared maps."""
    for name in labels.labelled(reader.frames):
        places = bool(preparation.place_ids)
        fields: dict[str, Any] = read_frame(reader, [score], labels, None, name, places=places)
        stored = fields["stored"][score]
        inside = preparation.inside(fields["prediction"], stored.shape)
        ranked = preparation.ranked(stored, counted_pixels(inside, fields["kept"]))
        yield Scene(ranked, fields["anomaly"], None, None, place=inside)


def measure(
    reader: MapsReader, labels: ReviewLabels, preparation: Preparation, asked: argparse.Namespace
) -> Prices:
    """Return the losses of all frames that hold an object."""
    rows: dict[str, list[Losses]] = {control: [] for control in CONTROLS}
    outside = 0
    number = 0
    for scene in scenes(reader, labels, preparation, asked.score):
        assert scene.anomaly is not None
        objects = Objects.of(scene.anomaly, asked.smallest_object)
        found = scene.found_up_to(objects, asked.found_share)
        outside += int(np.count_nonzero(found < 0))
        number += len(found)
        losses = {}
        for control in CONTROLS:
            pool = Pool(control)
            counts = scene.counts(
                control, found_share=asked.found_share, smallest_object=asked.smallest_object
            )
            assert counts is not None
            pool.add(counts)
            losses[control] = pool.losses()
        if losses["missed-objects"] is None or losses["flagged-pixels"] is None:
            continue
        for control, values in losses.items():
            assert values is not None
            rows[control].append(monotone(values, control))
    return Prices(np.stack(rows[CONTROLS[0]]), np.stack(rows[CONTROLS[1]]), outside, number)


def threshold_of(missed: Losses, level: float) -> int:
    """Return the threshold that some frames give; 0, which flags all, where none keeps the
    level.
    """
    sums = LossSums("missed-objects", missed.shape[1])
    for losses in missed:
        sums.add(losses)
    return Method("conformal").certified(sums, level) or 0


def split(
    prices: Prices, level: float, splits: int, seed: int = 0
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the missed share of objects and the flagged share of normal pixels on the other half
    of each split, ``[splits]`` each.
    """
    random = np.random.default_rng(seed)
    frames = len(prices.missed)
    half = max(frames // 2, MIN_CALIBRATION)
    missed = np.zeros(splits)
    flagged = np.zeros(splits)
    for place in range(splits):
        order = random.permutation(frames)
        key = threshold_of(prices.missed[order[:half]], level)
        missed[place] = prices.missed[order[half:], key].mean()
        flagged[place] = prices.flagged[order[half:], key].mean()
    return missed, flagged


def false_regions(
    reader: MapsReader,
    labels: ReviewLabels,
    preparation: Preparation,
    asked: argparse.Namespace,
    prices: Prices,
) -> float:
    """Return the false regions of a frame at the threshold of all frames."""
    key = threshold_of(prices.missed, asked.level)
    regions = [
        scene.regions(key, smallest=50)
        for scene in scenes(reader, labels, preparation, asked.score)
    ]
    return float(np.mean(regions))


if __name__ == "__main__":
    main()
