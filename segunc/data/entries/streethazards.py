"""StreetHazards of the CAOS benchmark: simulated streets (Hendrycks et al., 1911.11132); anomalies in test alone.

The values in the files are one more than the class numbers of its code, which gives the anomaly 13: 14 here. Class 0,
"unlabeled", is sky and what the simulator names nothing; the benchmark trains it as a class, and so do we.
"""

from __future__ import annotations

from segunc.data.entry import DatasetEntry
from segunc.data.layout import Layout, Part

FOLDERS = {"train": ("train", "training"), "val": ("train", "validation"), "test": ("test", "test")}
"""Split -> archive it comes in, and its folder's name there."""

ENTRIES = (
    DatasetEntry(
        name="streethazards",
        source="https://people.eecs.berkeley.edu/~hendrycks/streethazards_train.tar and streethazards_test.tar",
        listing="https://github.com/hendrycks/anomaly-seg/blob/master/create_dataset.py",
        layout="ROOT/train/images/training/TOWN/*.png with ROOT/train/annotations/training/TOWN/*.png, the same in "
        "ROOT/train/*/validation and ROOT/test/*/test; or all three below ROOT/images and ROOT/annotations",
        layouts=(
            Layout(
                {
                    split: (Part(f"{archive}/images/{kind}", f"{archive}/annotations/{kind}"),)
                    for split, (archive, kind) in FOLDERS.items()
                }
            ),
            Layout(
                {split: (Part(f"images/{kind}", f"annotations/{kind}"),) for split, (_, kind) in FOLDERS.items()},
            ),
        ),
        labels="streethazards",
        anomaly_classes=("anomaly",),
    ),
)
