"""Lost and Found (Pinggera et al. 2016): small obstacles on the road; and the split that SegmentMeIfYouCan scores.

Label ids: 0 is outside the drivable area and ignored, 1 is free road, 2 and above are obstacles, by the benchmark's rule
"random non-hazards" too. ``labelTrainIds`` files give those the value 0 and so cannot be read by this rule.

``test-valid`` leaves out frames whose label holds nothing but 0 (17 of 1203: the benchmark lists their indices and
gives this as the rule), ``test-no-known`` also those with children and bicycles, which are classes of Cityscapes.
"""

from __future__ import annotations

from segunc.data.anomaly_labels import AnomalyEncoding
from segunc.data.entry import DatasetEntry
from segunc.data.layout import Layout, Part

LOST_AND_FOUND = AnomalyEncoding(
    "lost-and-found", frozenset({1}), frozenset(range(2, 201)), frozenset({0, *range(201, 256)})
)
KNOWN = (
    "15_Rechbergstr_Deckenpfronn",
    "01_Hanns_Klemm_Str_45_000006",
    "01_Hanns_Klemm_Str_45_000007",
    "10_Schlossberg_9_000004",
)
"""Beginnings of the names of frames that show children (the first) or bicycles."""


def _drawn(values: frozenset[int]) -> bool:
    return values != {0}


def _unknown(name: str) -> bool:
    return not name.startswith(KNOWN)


_TRAIN = ("leftImg8bit/train", "gtCoarse/train")
_TEST = ("leftImg8bit/test", "gtCoarse/test")

ENTRIES = (
    DatasetEntry(
        name="lost-and-found",
        source="http://www.6d-vision.com/lostandfounddataset",
        listing="https://github.com/SegmentMeIfYouCan/road-anomaly-benchmark/blob/master/road_anomaly_benchmark/"
        "datasets/tracks.py",
        layout="ROOT/leftImg8bit/SPLIT/SCENE/*_leftImg8bit.png with ROOT/gtCoarse/SPLIT/SCENE/*_gtCoarse_labelIds.png, "
        "SPLIT train or test",
        layouts=(
            Layout(
                {
                    "train": (Part(*_TRAIN),),
                    "test": (Part(*_TEST),),
                    "train-valid": (Part(*_TRAIN, holds=_drawn),),
                    "test-valid": (Part(*_TEST, holds=_drawn),),
                    "test-no-known": (Part(*_TEST, keep=_unknown, holds=_drawn),),
                },
                image_ending="_leftImg8bit",
                label_ending="_gtCoarse_labelIds",
            ),
        ),
        anomaly_masks=LOST_AND_FOUND,
    ),
)
