"""An entry of the table of data sets: the frames of each split, and the labels that each frame is
asked about.

A network must not have seen its anomaly, so a frame that holds a pixel of a declared one is left
out of training altogether: ignoring the pixels alone would show the network their surroundings, and
what a border to them looks like.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from segunc.core.errors import InputError, NoteWarning
from segunc.core.terminal import agreeing, counted
from segunc.data.frame_lists import images_in_two_splits, read_frame_list
from segunc.data.frame_names import frame_name
from segunc.data.labels import IGNORE, LabelMap, label_map, label_values
from segunc.data.layouts import Layout
from segunc.data.masks import BINARY, AnomalyEncoding
from segunc.data.training_frames import TrainingFrames

SAMPLED_LABELS = 20
"""Labels of a split, spread over it, that show whether the split has classes."""
HOLDOUT = 30
"""The most frames of ``train`` that stand in for ``val`` if every frame of ``val`` holds an
anomaly.
"""
HOLDOUT_SHARE = 5
"""One of so many frames of ``train`` stands in for ``val``, so that most are left to train."""
SMALLEST_HOLDOUT = 2
"""The fewest frames of ``train`` that stand in for ``val``."""
USUAL_SPLITS = ("test", "val", "validation", "all")
"""Splits to evaluate, the first that exists."""


@dataclass(frozen=True)
class Sample:
    """One frame of a data set and its labels, which may be the same file."""

    name: str
    """Unique in its data set."""
    image: Path
    label: Path | None
    """The class label, or None if the frame is not asked about its classes."""
    anomaly: Path | None = None
    """The label that marks anomalies, or None if the frame is not asked about them."""


@dataclass(frozen=True)
class DatasetEntry:
    """A data set by name.

    With ``declared`` anomalies training sees the frames of ``train`` without one, and selection
    those of ``val``. Where ``val`` has none, the last training frames by name stand in for it, one
    of :data:`HOLDOUT_SHARE` and at most :data:`HOLDOUT`: frames of one drive resemble their
    neighbours, and a block at the end has these on one side only. Evaluation, of any split: a frame
    with an anomaly gives its anomaly label, one without gives its class labels. Sets with anomaly
    classes of their own give both labels of every frame, as their protocols do.
    """

    name: str
    layouts: tuple[Layout, ...]
    """How the files may lie below the root; the first whose folders exist is read."""
    labels: str | None = None
    """Name or CSV path of the class label map, None if the set has no class labels."""
    anomaly_classes: tuple[str, ...] = ()
    """Classes of ``labels`` that are anomalies, so that no network is trained on them."""
    anomaly_masks: AnomalyEncoding | None = None
    """The encoding of masks that mark anomalies and no classes."""
    declared: tuple[str, ...] = ()
    """Classes of ``labels`` that the user declares anomalies beside ``anomaly_classes``."""
    source: str = "see docs/data-sets.md"
    """Where the data come from."""
    title: str = ""
    """What readers call the set."""
    licence: str = "see the source"
    """Under which terms the data may be used."""
    rule: str = ""
    """The published list of files or rule of splits that the layouts follow."""
    encoding: str = "ids"
    """What the published label files hold: ``ids`` or ``colours``. Both are read."""
    recognised_by: tuple[str, ...] = ()
    """Patterns of files below the root that this set alone has, so that ``segunc init`` knows it.
    """
    listed: Path | None = None
    """A list of frames (:mod:`segunc.data.frame_lists`) that replaces the layouts."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have labels."""
        if self.listed is not None:
            return tuple(dict.fromkeys(row.split for row in read_frame_list(self.listed)))
        return tuple(self.layouts[0].splits)

    def usual_split(self, root: Path) -> str:
        """Return the split that is evaluated if the user names none.

        That is the first of :data:`USUAL_SPLITS` that has labels and a folder below the root, or
        else the first other split. Splits of a list whose labels hold no class are left aside with
        a :class:`NoteWarning`.
        """
        splits = self.splits
        usual = [name for name in USUAL_SPLITS if name in splits]
        others = [name for name in splits if name not in (*usual, "train")]
        candidates = list(dict.fromkeys([*usual, *others, *splits]))
        for name in candidates:
            if self.listed is None:
                if self._has_folder(root, name):
                    return name
            elif self._has_classes(root, self.listed, name):
                return name
            else:
                warnings.warn(
                    f"split {name} of {self.listed} is left aside: "
                    "the labels of it that were looked at hold no class",
                    NoteWarning,
                    stacklevel=2,
                )
        return candidates[0]

    def _has_folder(self, root: Path, split: str) -> bool:
        return any(layout.folders_in(root, split) for layout in self.layouts)

    def _has_classes(self, root: Path, list_path: Path, split: str) -> bool:
        """Return whether labels that are spread over a split of the list hold any class.

        Published labels of test frames may be dummies. A label that cannot be read counts as one
        with classes, so that whoever reads the frames says why.
        """
        if self.labels is None:
            return True
        labels = label_map(self.labels)
        files = [root / row.label for row in read_frame_list(list_path) if row.split == split]
        sampled = np.linspace(0, len(files) - 1, min(SAMPLED_LABELS, len(files))).astype(int)
        for index in sampled.tolist():
            try:
                values = label_values(files[index], labels)
            except InputError:
                return True
            if any(labels.raw_to_train.get(value, 0) != IGNORE for value in values):
                return True
        return False

    @property
    def anomalies(self) -> tuple[str, ...]:
        """Names of all classes that are anomalies."""
        return tuple(dict.fromkeys([*self.anomaly_classes, *self.declared]))

    @cached_property
    def anomaly_encoding(self) -> AnomalyEncoding | None:
        """What the values of :attr:`Sample.anomaly` files mean, None if the set marks none."""
        if self.labels is None or not self.anomalies:
            return self.anomaly_masks
        labels = label_map(self.labels)
        anomaly = labels.raw_ids(self.anomalies)
        ignored = frozenset(raw for raw, train in labels.raw_to_train.items() if train == IGNORE)
        return AnomalyEncoding(
            name=f"{labels.name}: {', '.join(self.anomalies)}",
            normal=frozenset(labels.raw_to_train) - anomaly - ignored,
            anomaly=anomaly,
            ignored=ignored,
            labels=labels,
        )

    def label_map(self) -> LabelMap:
        """Return the class label map.

        Anomaly classes are ignored, the others are numbered without a gap.
        """
        if self.labels is None:
            raise InputError(
                f"data set {self.name} has no class labels",
                hint="give a --label-map, or another data set",
            )
        return label_map(self.labels).without(self.anomalies)

    def samples(self, root: Path, split: str) -> list[Sample]:
        """Return the labelled frames of a split for evaluation.

        Each frame has the labels that it is asked about.
        """
        samples = self._every_sample(root, split)
        shared = images_in_two_splits(self.listed) if self.listed is not None else ""
        if shared:
            warnings.warn(
                f"{shared}, so a network that was trained with this list has seen it",
                NoteWarning,
                stacklevel=2,
            )
        if not self.declared or self.anomaly_classes:
            return samples
        return [self._with_one_label(sample) for sample in samples]

    def _with_one_label(self, sample: Sample) -> Sample:
        """Return a frame with its anomaly label if it holds an anomaly, else with its class label.

        A label that cannot be read must cost only its own frame, which whoever reads it reports.
        """
        try:
            is_anomalous = self._is_anomalous(sample)
        except InputError:
            is_anomalous = False
        if is_anomalous:
            return replace(sample, label=None)
        return replace(sample, anomaly=None)

    def training_samples(self, root: Path, split: str) -> list[Sample]:
        """Return the frames of split ``train``, or those of ``val`` to select hyper-parameters on.

        Raises:
            InputError: there are no class labels, or too few frames without an anomaly.
        """
        self.label_map()  # InputError if there are no class labels to train on
        shared = images_in_two_splits(self.listed) if self.listed is not None else ""
        if shared:
            raise InputError(shared, hint="remove one of the two rows of each")
        if not self.declared:
            return self._every_sample(root, split)
        if split == "val" and not self.selects_on_train(root):
            return self._without_anomaly(root, "val")
        training = self._without_anomaly(root, "train")
        held_out = self._substitute_of(len(training)) if self.selects_on_train(root) else 0
        if len(training) <= held_out:
            raise InputError(
                f"{counted(len(training), 'frame')} of train in {root} "
                f"{agreeing('is', len(training))} without "
                f"{' or '.join(self.anomalies)}, and {held_out} are held out to select on",
                hint="declare another class the anomaly",
            )
        first_held_out = len(training) - held_out
        if split == "train":
            return training[:first_held_out]
        return training[first_held_out:]

    def selects_on_train(self, root: Path) -> bool:
        """Return whether frames of ``train`` stand in for ``val``, because no frame of ``val`` is
        without a declared anomaly.
        """
        if not self.declared:
            return False
        if "val" not in self.splits:
            return True
        return all(self._is_anomalous(sample) for sample in self._every_sample(root, "val"))

    def _substitute_of(self, frames: int) -> int:
        """Return how many of a number of training frames stand in for ``val``."""
        return min(HOLDOUT, max(SMALLEST_HOLDOUT, frames // HOLDOUT_SHARE))

    def training_frames(self, root: Path) -> TrainingFrames:
        """Return how many frames of ``train`` and ``val`` a training leaves out, and how many of
        ``train`` stand in for ``val``.

        Raises:
            InputError: there are no class labels, or too few frames without an anomaly.
        """
        training = len(self.training_samples(root, "train"))
        if not self.declared:
            return TrainingFrames(training)
        selection = len(self.training_samples(root, "val"))
        substitute = selection if self.selects_on_train(root) else 0
        validation = self._every_sample(root, "val") if "val" in self.splits else []
        validation_left_out = len(validation) - (0 if substitute else selection)
        return TrainingFrames(
            train=training,
            selection=selection,
            anomaly_classes=self.declared,
            left_out=len(self._every_sample(root, "train")) - training - substitute,
            validation_left_out=validation_left_out,
            substitute=substitute,
        )

    def _without_anomaly(self, root: Path, split: str) -> list[Sample]:
        samples = self._every_sample(root, split)
        return [sample for sample in samples if not self._is_anomalous(sample)]

    def _every_sample(self, root: Path, split: str) -> list[Sample]:
        """Return all labelled frames of a split, each with the class and anomaly label it has."""
        splits = self.splits
        if split not in splits:
            raise InputError(
                f"data set {self.name} has no split '{split}' with public labels",
                hint=f"one of {', '.join(splits)}",
            )
        if self.listed is not None:
            frames = _frames_of_list(self.listed, root, split)
        else:
            frames = self._frames_of_layouts(root, split)
        has_classes = self.labels is not None
        has_anomalies = self.anomaly_encoding is not None
        samples: list[Sample] = []
        for name, image, label in frames:
            sample = Sample(
                name=name,
                image=image,
                label=label if has_classes else None,
                anomaly=label if has_anomalies else None,
            )
            samples.append(sample)
        return samples

    def _frames_of_layouts(self, root: Path, split: str) -> list[tuple[str, Path, Path]]:
        """Return name, image and label of each frame of a split by the layout of the root."""
        layouts = " or ".join(layout.describe(split) for layout in self.layouts)
        described = f"data set {self.name} lies as {layouts} ({self.source})"
        existing = [name for name in self.splits if self._has_folder(root, name)]
        if existing and split not in existing:
            raise InputError(
                f"{root} has no split '{split}', only {', '.join(existing)}", hint=described
            )
        # If no layout is complete, the one with most of its folders says what it lacks.
        best_layout = max(self.layouts, key=lambda layout: layout.folders_in(root, split))
        return best_layout.frames(root, split, described)

    def _is_anomalous(self, sample: Sample) -> bool:
        assert sample.label is not None
        return self.holds_anomaly(sample.label)

    def holds_anomaly(self, label: Path) -> bool:
        """Return whether a label file holds a value that means an anomaly."""
        assert self.anomaly_encoding is not None
        values = label_values(label, self.anomaly_encoding.labels)
        return not self.anomaly_encoding.anomaly.isdisjoint(values)


def _frames_of_list(list_path: Path, root: Path, split: str) -> list[tuple[str, Path, Path]]:
    """Return name, image and label of each frame that a list has in a split.

    Raises:
        InputError: a file of the list does not exist.
    """
    frames: list[tuple[str, Path, Path]] = []
    missing: list[Path] = []
    for row in read_frame_list(list_path):
        if row.split != split:
            continue
        image = root / row.image
        label = root / row.label
        missing += [path for path in (image, label) if not path.exists()]
        frames.append((frame_name(root, image), image, label))
    if missing:
        raise InputError(
            f"{counted(len(missing), 'file')} of {list_path} "
            f"{agreeing('is', len(missing))} not in {root}, the first is {missing[0]}",
            hint="--data.root (or --root) is the folder that segunc init was given; "
            "or run it again",
        )
    return frames


def encoding_of_masks(entry: DatasetEntry | None) -> AnomalyEncoding:
    """Return the encoding of the anomaly masks of a data set, or else :data:`BINARY`."""
    if entry is None or entry.anomaly_encoding is None:
        return BINARY
    return entry.anomaly_encoding
