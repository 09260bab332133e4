"""Which label of a data set belongs to a frame of maps."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from segunc.frames.image_source import stamp_of
from segunc.maps.labelled import LabelSources, NoLabelError
from segunc.maps.reader import MapsReader

FRAMES = ("train/s/000", "val/s/000")


def draw(root: Path) -> tuple[dict[str, Path], dict[str, Path]]:
    """Write two frames of the same number with their masks; return images and masks by the names of
    a data set.
    """
    images: dict[str, Path] = {}
    masks: dict[str, Path] = {}
    for number, name in enumerate(FRAMES):
        images[f"images/{name}"] = root / "images" / f"{name}.png"
        masks[f"images/{name}"] = root / "masks" / f"{name}.png"
        for path in (images[f"images/{name}"], masks[f"images/{name}"]):
            path.parent.mkdir(parents=True)
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(images[f"images/{name}"])
        Image.fromarray(np.eye(8, dtype=np.uint8)).save(masks[f"images/{name}"])
    return images, masks


def maps_of(stamp: str | None) -> MapsReader:
    """Return maps of a frame ``s/000``, as predicting ``images/val`` makes them."""
    fake: Any = SimpleNamespace(records={"s/000": {"stamp": stamp}}, region=None, manifest=None)
    return cast(MapsReader, fake)


def test_a_frame_of_a_folder_inside_of_the_data_set_is_known_by_its_bytes(tmp_path: Path) -> None:
    images, masks = draw(tmp_path)
    for name in FRAMES:
        sources = LabelSources(anomaly_labels=masks, images=images)
        reader = maps_of(stamp_of(images[f"images/{name}"]))
        found = sources.find(reader, ["s/000"]).anomaly_files
        assert found == {"s/000": masks[f"images/{name}"]}


@pytest.mark.parametrize("stamp", [None, "of another image"])
def test_a_frame_of_other_bytes_gets_no_label_of_its_number(
    tmp_path: Path, stamp: str | None
) -> None:
    images, masks = draw(tmp_path)
    sources = LabelSources(anomaly_labels=masks, images=images)
    with pytest.raises(NoLabelError, match="no label named like images/train/s/000") as refusal:
        sources.find(maps_of(stamp), ["s/000"])
    folder = tmp_path / "masks" / "train" / "s"
    hint = f"--anomaly-labels {folder} takes the labels by their names"
    assert hint in str(refusal.value.hint)


def test_frames_of_other_names_may_be_of_another_split(tmp_path: Path) -> None:
    images, masks = draw(tmp_path)
    sources = LabelSources(anomaly_labels=masks, images=images)
    with pytest.raises(NoLabelError) as refusal:
        sources.find(maps_of(None), ["007"])
    assert refusal.value.hint == "--split names another split of the data set"
