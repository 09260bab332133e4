"""Road Anomaly (Lis et al., ICCV 2019): 60 frames of animals, rocks, lost tyres and cones on roads; 2 is the anomaly."""

from __future__ import annotations

from segunc.data.anomaly_labels import ROAD_ANOMALY
from segunc.data.entry import DatasetEntry
from segunc.data.layout import Layout, Part


def _stem(name: str) -> str:
    return name.removesuffix("/labels_semantic").removesuffix(".labels")


def _splits(images: str, labels: str) -> dict[str, tuple[Part, ...]]:
    return dict.fromkeys(("test", "all"), (Part(images, labels),))


ENTRIES = (
    DatasetEntry(
        name="road-anomaly",
        source="https://www.epfl.ch/labs/cvlab/data/road-anomaly/",
        listing="https://github.com/NazirNayal8/RbA/blob/main/datasets/road_anomaly.py",
        layout="ROOT/frames/NAME.jpg with ROOT/frames/NAME.labels/labels_semantic.png, or ROOT/images/NAME.jpg with "
        "ROOT/labels/NAME.png or ROOT/labels_masks/NAME.png",
        layouts=(
            Layout(_splits("frames", "frames"), label_ending="labels_semantic", label_stem=_stem, flat=True),
            *(Layout(_splits("images", labels)) for labels in ("labels_masks", "labels")),
        ),
        anomaly_masks=ROAD_ANOMALY,
    ),
)
