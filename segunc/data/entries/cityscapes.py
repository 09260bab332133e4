"""Cityscapes, and ACDC with its classes in fog, at night, in rain and in snow."""

from __future__ import annotations

from segunc.data.entry import DatasetEntry
from segunc.data.layout import Layout, Part, same_folders

CONDITIONS = ("fog", "night", "rain", "snow")


def _conditions(split: str, conditions: tuple[str, ...]) -> tuple[Part, ...]:
    return tuple(Part(f"rgb_anon/{one}/{split}", f"gt/{one}/{split}", prefix=f"{one}/{split}/") for one in conditions)


CITYSCAPES = DatasetEntry(
    name="cityscapes",
    source="https://www.cityscapes-dataset.com, after registration, for non-commercial use",
    listing="https://github.com/mcordts/cityscapesScripts#dataset-structure",
    layout="ROOT/leftImg8bit/SPLIT/CITY/*_leftImg8bit.png with ROOT/gtFine/SPLIT/CITY/*_gtFine_labelIds.png",
    layouts=(
        Layout(
            same_folders("leftImg8bit/{}", "gtFine/{}", ("train", "val")),
            image_ending="_leftImg8bit",
            label_ending="_gtFine_labelIds",
        ),
    ),
    labels="cityscapes",
    withheld={"test": "the public files of its labels are dummies, scored by the benchmark's server"},
)
ACDC = DatasetEntry(
    name="acdc",
    source="https://acdc.vision.ee.ethz.ch, after registration, for non-commercial use",
    listing="https://github.com/open-mmlab/mmsegmentation/commit/fae38cc341bd4542321a499a14727a8d4284854f",
    layout="ROOT/rgb_anon/CONDITION/SPLIT/SEQUENCE/*_rgb_anon.png with "
    "ROOT/gt/CONDITION/SPLIT/SEQUENCE/*_gt_labelTrainIds.png, CONDITION one of fog, night, rain, snow",
    layouts=(
        Layout(
            {
                **{split: _conditions(split, CONDITIONS) for split in ("train", "val")},
                **{f"{split}-{one}": _conditions(split, (one,)) for split in ("train", "val") for one in CONDITIONS},
            },
            image_ending="_rgb_anon",
            label_ending="_gt_labelTrainIds",
        ),
    ),
    labels="cityscapes-train-ids",
    withheld={"test": "they are kept by the benchmark's server"},
)
ENTRIES = (CITYSCAPES, ACDC)
