"""An entry of the table of data sets: the frames of each split, and the labels that each frame is
asked about.

A network must not have seen its anomaly, so a frame that holds a pixel of a declared one is left
out of training altogether: ignoring the pixels alone would show the network their surroundings, and
what a border to them looks like.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import read_rows, reading, safe_name
from segunc.data.frame_names import composed, frame_name
from segunc.data.labels import IGNORE, LabelMap, label_map, label_values
from segunc.data.layouts import Layout
from segunc.data.masks import BINARY, AnomalyEncoding


@dataclass(frozen=True)
class Sample:
    """One frame of a data set, by a name that is unique in it, and its labels; both may be the same
    file.
    """

    name: str
    image: Path
    label: Path | None  # the class label, or None where its classes are not asked about
    anomaly: Path | None = (
        None  # the label that marks anomalies, or None where they are not asked about
    )


FRAME_COLUMNS = ("split", "image", "label")  # of a list of frames
DISJOINT_SPLITS = ("train", "val", "validation", "test")  # no frame may be in two of them
LOOKED_AT = 20  # labels of a split, spread over it, that show whether the split has classes
# Frames of ``train`` that stand in for ``val`` where every frame of ``val`` holds an anomaly.
HOLDOUT = 30


def _check_names(listed: Path, rows: Iterable[Sequence[str]]) -> None:
    """Raise InputError where two rows of a list of frames have images of one name in one split."""
    image_of: dict[tuple[str, str], str] = {}  # by split and name of the frame
    for split, image, _ in rows:
        name = split, os.path.splitext(_normal(image))[0]
        if name in image_of:
            other = image_of[name]
            both = f"{image} twice" if other == image else f"{other} and {image}"
            raise InputError(
                f"{listed} has {both} in split {split}, which is one frame by its name",
                hint="remove one of the two rows",
            )
        image_of[name] = image


def _in_two_splits(listed: Path, rows: Iterable[Sequence[str]]) -> str:
    """Return a sentence on the images that are in two of the :data:`DISJOINT_SPLITS` of a list of
    frames; empty where none is.
    """
    split_of: dict[str, str] = {}
    shared: list[str] = []
    for split, image, _ in rows:
        if split in DISJOINT_SPLITS:
            other = split_of.setdefault(_normal(image), split)
            if other != split:
                shared.append(f"{image} is both in {other} and in {split}")
    if not shared:
        return ""
    return f"{listed} has {len(shared)} images in two splits: {shared[0]}"


def _normal(image: str) -> str:
    """Return the path of an image in one spelling."""
    return composed(os.path.normpath(image))


@dataclass(frozen=True)
class DatasetEntry:
    """A data set by name.

    With ``declared`` anomalies training sees the frames of ``train`` without one, and selection
    those of ``val``; where ``val`` has none, the last :data:`HOLDOUT` training frames by name:
    frames of one drive resemble their neighbours, and a block at the end has these on one side
    only. Evaluation, of any split: a frame with an anomaly gives its anomaly label, one without
    gives its class labels. Sets with anomaly classes of their own give both labels of every frame,
    as their protocols do.
    """

    name: str
    layouts: tuple[
        Layout, ...
    ]  # how the files lie below the root; the first whose folders are there is read
    labels: str | None = (
        None  # name or CSV path of the class label map, None where the set has no class labels
    )
    anomaly_classes: tuple[
        str, ...
    ] = ()  # classes of ``labels`` that no network is trained on and that are anomalies
    anomaly_masks: AnomalyEncoding | None = (
        None  # the encoding of masks that mark anomalies and no classes
    )
    declared: tuple[
        str, ...
    ] = ()  # classes of ``labels`` that the user declares anomalies beside these
    source: str = "see docs/data-sets.md"  # where the data come from
    listed: Path | None = (
        # A CSV of split,image,label in the place of the layouts, its paths relative to the root.
        None
    )

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have labels."""
        if self.listed is not None:
            return tuple(dict.fromkeys(split for split, _, _ in self._rows()))
        return tuple(self.layouts[0].splits)

    def _rows(self) -> list[list[str]]:
        """Return split, image and label of each frame of the list."""
        assert self.listed is not None
        with reading(
            f"list of frames {self.listed}", "a CSV file in UTF-8", "segunc init writes it"
        ):
            header, *rows = read_rows(self.listed) or [[]]
        if (
            tuple(header) != FRAME_COLUMNS
            or not rows
            or any(len(row) != len(header) for row in rows)
        ):
            shown = f"{self.listed} does not hold rows of {','.join(FRAME_COLUMNS)} under that line"
            raise InputError(shown, hint="write it again with segunc init")
        for _, image, label in rows:
            for path in (image, label):
                self._check_below_root(path)
        _check_names(self.listed, rows)
        return rows

    def _check_below_root(self, path: str) -> None:
        """Raise InputError for a path of the list that is absolute or leads above the root: the
        list may be a stranger's."""
        # ./a.png is a path below the root, as a.png is.
        below = PurePosixPath(path).as_posix()
        try:
            safe_name(below, f"a file of the list of frames {self.listed}")
        except InputError as error:
            hint = "write paths below the root with /, and give a root that holds all files"
            raise InputError(error.message, hint=hint) from error

    def usual_split(self, root: Path) -> str:
        """Return the split that is evaluated where nobody names one: the first of test, val,
        validation and all, or else of the others, that has labels and a folder below the root.
        """
        usual = [name for name in ("test", "val", "validation", "all") if name in self.splits]
        names = [
            *usual,
            *(name for name in self.splits if name not in (*usual, "train")),
            *self.splits,
        ]
        for name in names:
            if self.listed is None:
                if any(layout.folders_in(root, name) for layout in self.layouts):
                    return name
            elif self._has_classes(root, name):
                return name
            else:
                warnings.warn(
                    f"split {name} of {self.listed} is left aside: the labels of it that were looked at hold no class",
                    NoteWarning,
                    stacklevel=2,
                )
        return names[0]

    def _has_classes(self, root: Path, split: str) -> bool:
        """Return whether labels that are spread over a split of the list hold any class; True where
        that cannot be read, so that whoever reads the frames says why. Published labels of test
        frames may be dummies.
        """
        if self.labels is None:
            return True
        labels = label_map(self.labels)
        files = [root / label for name, _, label in self._rows() if name == split]
        places = np.linspace(0, len(files) - 1, min(LOOKED_AT, len(files))).astype(int)
        for place in places.tolist():
            try:
                values = label_values(files[place], labels)
            except InputError:
                return True
            if any(labels.raw_to_train.get(value, 0) != IGNORE for value in values):
                return True
        return False

    @property
    def anomalies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.anomaly_classes, *self.declared]))

    @cached_property
    def anomaly_encoding(self) -> AnomalyEncoding | None:
        """What the values of :attr:`Sample.anomaly` files mean, or None where the set marks no
        anomalies.
        """
        if self.labels is None or not self.anomalies:
            return self.anomaly_masks
        labels = label_map(self.labels)
        anomaly = labels.raw_ids(self.anomalies)
        ignored = frozenset(raw for raw, train in labels.raw_to_train.items() if train == IGNORE)
        normal = frozenset(labels.raw_to_train) - anomaly - ignored
        return AnomalyEncoding(
            f"{labels.name}: {', '.join(self.anomalies)}", normal, anomaly, ignored, labels
        )

    def label_map(self) -> LabelMap:
        """Return the class label map: anomaly classes are ignored, the others numbered without a
        gap.
        """
        if self.labels is None:
            lack = f"data set {self.name} has no class labels"
            raise InputError(lack, hint="give a --label-map, or another data set")
        return label_map(self.labels).without(self.anomalies)

    def samples(self, root: Path, split: str) -> list[Sample]:
        """Return the labelled frames of one split for evaluation, each with the labels that it is
        asked about.
        """
        samples = self._every_sample(root, split)
        if self.listed is not None and (fact := _in_two_splits(self.listed, self._rows())):
            warnings.warn(
                f"{fact}, so a network that was trained with this list has seen it",
                NoteWarning,
                stacklevel=2,
            )
        if not self.declared or self.anomaly_classes:
            return samples
        asked = []
        for sample in samples:
            anomalous = False
            with suppress(
                InputError
            ):  # an unreadable label must cost its own frame, which whoever reads it reports
                anomalous = self._holds_anomaly(sample)
            asked.append(
                replace(sample, label=None) if anomalous else replace(sample, anomaly=None)
            )
        return asked

    def training_samples(self, root: Path, split: str) -> list[Sample]:
        """Return the frames of split ``train``, or of ``val`` to select hyper-parameters on."""
        self.label_map()  # InputError where there are no class labels to train on
        if self.listed is not None and (fact := _in_two_splits(self.listed, self._rows())):
            raise InputError(fact, hint="remove one of the two rows of each")
        if not self.declared:
            return self._every_sample(root, split)

        def known(split: str) -> list[Sample]:
            return [
                sample
                for sample in self._every_sample(root, split)
                if not self._holds_anomaly(sample)
            ]

        val = known("val") if "val" in self.splits else []
        if split == "val" and val:
            return val
        train, needed = known("train"), 0 if val else HOLDOUT
        if len(train) <= needed:
            few = (
                f"{len(train)} frames of train in {root} are without {' or '.join(self.anomalies)}"
            )
            raise InputError(
                f"{few}, and {needed} are held out to select on",
                hint="declare another class the anomaly",
            )
        first = len(train) - needed
        return train[:first] if split == "train" else train[first:]

    def _every_sample(self, root: Path, split: str) -> list[Sample]:
        if split not in self.splits:
            message = f"data set {self.name} has no split '{split}' with public labels"
            raise InputError(message, hint=f"one of {', '.join(self.splits)}")
        if self.listed is not None:
            rows = [
                (root / image, root / label) for name, image, label in self._rows() if name == split
            ]
            if gone := [path for pair in rows for path in pair if not path.exists()]:
                lack = (
                    f"{len(gone)} files of {self.listed} are not in {root}, the first is {gone[0]}"
                )
                hint = "--data.root (or --root) is the folder that segunc init was given; or run it again"
                raise InputError(lack, hint=hint)
            frames = [(frame_name(root, image), image, label) for image, label in rows]
        else:
            described = " or ".join(layout.describe(split) for layout in self.layouts)
            described = f"data set {self.name} lies as {described} ({self.source})"
            # Where no layout is complete, the one that has come the farthest says what it lacks.
            best_layout = max(self.layouts, key=lambda layout: layout.folders_in(root, split))
            there = [
                name
                for name in self.splits
                if any(layout.folders_in(root, name) for layout in self.layouts)
            ]
            if there and split not in there:
                raise InputError(
                    f"{root} has no split '{split}', but {', '.join(there)}", hint=described
                )
            frames = best_layout.frames(root, split, described)
        classes, anomalies = self.labels is not None, self.anomaly_encoding is not None
        return [
            Sample(name, image, label if classes else None, label if anomalies else None)
            for name, image, label in frames
        ]

    def _holds_anomaly(self, sample: Sample) -> bool:
        assert sample.label is not None
        assert self.anomaly_encoding is not None
        return not self.anomaly_encoding.anomaly.isdisjoint(
            label_values(sample.label, self.anomaly_encoding.labels)
        )


def encoding_of_masks(entry: DatasetEntry | None) -> AnomalyEncoding:
    """Return what the values of anomaly masks mean: as in a data set that has such masks, else
    :data:`BINARY`.
    """
    return (entry and entry.anomaly_encoding) or BINARY
