"""Five anomaly sets in the form of an archive that university courses share: ``SET/images`` and ``SET/labels_masks``.

The sets are the validation frames of SegmentMeIfYouCan's two tracks, those of Fishyscapes, and Road Anomaly. Image formats differ
(jpg, webp, png), masks are PNG files of the image's name; in Road Anomaly 2 is the anomaly, in the others 1 is.
"""

from __future__ import annotations

from segunc.data.anomaly_labels import BINARY, ROAD_ANOMALY, AnomalyEncoding
from segunc.data.entry import DatasetEntry
from segunc.data.layout import Layout, Part

SETS = {
    "course-road-anomaly-21": ("RoadAnomaly21", BINARY),
    "course-road-obstacle-21": ("RoadObsticle21", BINARY),
    "course-fs-lost-and-found": ("FS_LostFound_full", BINARY),
    "course-fs-static": ("fs_static", BINARY),
    "course-road-anomaly": ("RoadAnomaly", ROAD_ANOMALY),
}
"""Name -> folder in the archive (spelled as there) and encoding."""


def _entry(name: str, folder: str, encoding: AnomalyEncoding) -> DatasetEntry:
    return DatasetEntry(
        name=name,
        source="the archive `Validation_Dataset` of the course",
        listing="https://github.com/AgneseRe/Real-Time-Anomaly-Segmentation-for-Road-Scenes/blob/main/eval/evalAnomaly.py",
        layout=f"ROOT/{folder}/images/NAME.jpg|png|webp with ROOT/{folder}/labels_masks/NAME.png, or without {folder}",
        layouts=tuple(
            Layout(dict.fromkeys(("test", "all"), (Part(f"{below}images", f"{below}labels_masks"),)))
            for below in (f"{folder}/", "")
        ),
        anomaly_masks=encoding,
    )


ENTRIES = tuple(_entry(name, folder, encoding) for name, (folder, encoding) in SETS.items())
