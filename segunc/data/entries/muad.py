"""MUAD: synthetic road scenes (Franchi et al., BMVC 2022), 15 known classes and 6 that are anomalies.

Which classes are known is the rule of the authors' own loader: rider, train, motorcycle, bicycle, animals and rubbish
are the anomalies. Both labels come from one file, so every frame gives class labels and an anomaly label.
"""

from __future__ import annotations

from segunc.data.entry import DatasetEntry
from segunc.data.layout import Layout, same_folders

FULL = (
    *("train", "val", "test_id", "test_ood"),
    *("test_id_low_adv", "test_id_high_adv", "test_ood_low_adv", "test_ood_high_adv"),
)
SMALL = ("test", "ood")
"""Splits that the small version has beside train and val."""

ENTRIES = (
    DatasetEntry(
        name="muad",
        source="https://github.com/ENSTA-U2IS-AI/MUAD-Dataset, for non-commercial use",
        listing="https://github.com/ENSTA-U2IS-AI/MUAD-Dataset/blob/main/evaluation_seg/val.odgt; splits and classes: "
        "https://github.com/ENSTA-U2IS-AI/torch-uncertainty/blob/main/src/torch_uncertainty/datasets/muad.py",
        layout="ROOT/SPLIT/leftImg8bit/*_leftImg8bit.png with ROOT/SPLIT/leftLabel/*_leftLabel.png",
        layouts=(
            Layout(
                same_folders("{}/leftImg8bit", "{}/leftLabel", (*FULL, *SMALL)),
                image_ending="_leftImg8bit",
                label_ending="_leftLabel",
            ),
        ),
        labels="muad",
        anomaly_classes=(
            *("rider", "train", "motorcycle", "bicycle"),
            *("bear deer cow", "garbage bag stand food trash can"),
        ),
    ),
)
