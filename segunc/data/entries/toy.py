"""The built-in toy road scenes in the Cityscapes layout, and their anomaly masks."""

from __future__ import annotations

from segunc.data.anomaly_labels import BINARY
from segunc.data.entry import DatasetEntry
from segunc.data.layout import Layout, same_folders

SOURCE = "`segunc demo`, or generate_toy of segunc.data.toy"
LISTING = "https://github.com/mcordts/cityscapesScripts#dataset-structure"

ENTRIES = (
    DatasetEntry(
        name="toy",
        source=SOURCE,
        listing=LISTING,
        layout="ROOT/leftImg8bit/SPLIT/CITY/*_leftImg8bit.png with ROOT/gtFine/SPLIT/CITY/*_gtFine_labelIds.png",
        layouts=(
            Layout(
                same_folders("leftImg8bit/{}", "gtFine/{}", ("train", "val", "test", "anomaly")),
                image_ending="_leftImg8bit",
                label_ending="_gtFine_labelIds",
            ),
        ),
        labels="toy",
    ),
    DatasetEntry(
        name="toy-anomaly",
        source=SOURCE,
        listing=LISTING,
        layout="ROOT/leftImg8bit/anomaly/CITY/*_leftImg8bit.png with ROOT/gtAnomaly/anomaly/CITY/*_anomaly.png",
        layouts=(
            Layout(
                same_folders("leftImg8bit/{}", "gtAnomaly/{}", ("anomaly",)),
                image_ending="_leftImg8bit",
                label_ending="_anomaly",
            ),
        ),
        anomaly_masks=BINARY,
    ),
)
