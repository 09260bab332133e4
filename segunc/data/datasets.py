"""Data sets by name: where they lie, which splits they have and which label map they are drawn with.

Each entry says how its files must lie; what is missing is named together with where it was looked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from segunc.data.labels import LabelMap, label_map
from segunc.data.pairing import find_labels, list_images
from segunc.data.samples import Sample
from segunc.errors import InputError


@dataclass(frozen=True)
class DatasetEntry:
    """A data set by name.

    Attributes:
        name: what users write.
        layout: how the files lie below the root, in words, for messages and help.
        splits: the splits it has.
        labels: name of its class label map, or None where it holds anomaly labels only.
        folders: root and split -> (image folder, label folder).
        anomaly_encoding: name in :mod:`segunc.data.anomaly_labels` when the labels mark anomalies, else None.
        image_ending: only images whose stem ends so belong to the set.
        label_ending: the same for labels.
    """

    name: str
    layout: str
    splits: tuple[str, ...]
    labels: str | None
    folders: Callable[[Path, str], tuple[Path, Path]]
    anomaly_encoding: str | None = None
    image_ending: str = ""
    label_ending: str = ""

    def samples(self, root: Path, split: str) -> list[Sample]:
        """The labelled frames of one split, sorted by name.

        Raises:
            InputError: an unknown split, a missing folder, no image, or an image without a label.
        """
        if split not in self.splits:
            raise InputError(
                f"split '{split}' of data set {self.name}", f"one of {', '.join(self.splits)}", "check the split"
            )
        images, labels = self.folders(root, split)
        for folder in (images, labels):
            if not folder.is_dir():
                raise InputError(f"{folder} does not exist", f"data set {self.name} as {self.layout}", "check the root")
        paths: dict[str, Path] = {}
        for path in list_images(images):
            if path.stem.endswith(self.image_ending):
                name = path.relative_to(images).with_suffix("").as_posix()
                if name in paths:
                    raise InputError(
                        f"{paths[name]} and {path} are both frame '{name}'", "one image for each name", "remove one"
                    )
                paths[name] = path
        if not paths:
            raise InputError(f"{images} holds no image", f"data set {self.name} as {self.layout}", "check the root")
        found = find_labels(labels, paths, ending=self.label_ending)
        missing = [name for name in paths if name not in found]
        if missing:
            raise InputError(
                f"{len(missing)} of {len(paths)} images in {images} have no label in {labels}, the first is {missing[0]}",
                "a label for each image",
                "add the labels or remove the images",
            )
        return [Sample(name, path, found[name]) for name, path in paths.items()]

    def label_map(self) -> LabelMap:
        """The class label map.

        Raises:
            InputError: the set holds anomaly labels only.
        """
        if self.labels is None:
            raise InputError(
                f"data set {self.name} has no class labels", "a set with class labels", "choose another set"
            )
        return label_map(self.labels)


def _cityscapes(root: Path, split: str) -> tuple[Path, Path]:
    return root / "leftImg8bit" / split, root / "gtFine" / split


def _camvid(root: Path, split: str) -> tuple[Path, Path]:
    return root / split, root / f"{split}annot"


def _folder(root: Path, split: str) -> tuple[Path, Path]:
    base = root if split == "all" else root / split
    masks = base / "labels_masks"
    return base / "images", masks if masks.is_dir() else base / "labels"


def _toy_anomaly(root: Path, split: str) -> tuple[Path, Path]:
    return root / "leftImg8bit" / split, root / "gtAnomaly" / split


ENTRIES = {
    entry.name: entry
    for entry in (
        DatasetEntry(
            "cityscapes",
            "ROOT/leftImg8bit/SPLIT/CITY/*_leftImg8bit.png with ROOT/gtFine/SPLIT/CITY/*_gtFine_labelIds.png",
            ("train", "val", "test"),
            "cityscapes",
            _cityscapes,
            image_ending="_leftImg8bit",
            label_ending="_labelIds",
        ),
        DatasetEntry(
            "toy",
            "the Cityscapes layout, written by `segunc demo` or segunc.data.toy",
            ("train", "val", "test", "anomaly"),
            "toy",
            _cityscapes,
            image_ending="_leftImg8bit",
            label_ending="_labelIds",
        ),
        DatasetEntry(
            "toy-anomaly",
            "ROOT/leftImg8bit/anomaly/CITY/*.png with ROOT/gtAnomaly/anomaly/CITY/*_anomaly.png",
            ("anomaly",),
            None,
            _toy_anomaly,
            anomaly_encoding="binary",
            image_ending="_leftImg8bit",
            label_ending="_anomaly",
        ),
        DatasetEntry(
            "camvid",
            "ROOT/SPLIT/*.png or *.jpg with ROOT/SPLITannot/*.png, the split of SegNet",
            ("train", "val", "test"),
            "camvid",
            _camvid,
        ),
        DatasetEntry(
            "road-anomaly",
            "ROOT/images/*.jpg with ROOT/labels/*.png, 0 normal and 2 anomaly",
            ("test", "all"),
            None,
            lambda root, split: _folder(root, "all"),
            anomaly_encoding="road-anomaly",
        ),
        DatasetEntry(
            "folder",
            "ROOT/images/* with ROOT/labels/* or ROOT/labels_masks/*, below ROOT/SPLIT unless the split is `all`",
            ("all", "train", "val", "test"),
            None,
            _folder,
        ),
    )
}
"""The data sets that can be named in configurations and commands."""


def dataset_entry(name: str) -> DatasetEntry:
    """The entry of a data set by name.

    Raises:
        InputError: an unknown name.
    """
    if name not in ENTRIES:
        raise InputError(f"data set '{name}'", f"one of {', '.join(sorted(ENTRIES))}", "check the name")
    return ENTRIES[name]
