"""Recognise a published data set by the files that lie in a folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from segunc.core.errors import InputError
from segunc.data.datasets import DATASETS, dataset_entry
from segunc.data.entries import DatasetEntry, Sample
from segunc.data.images import label_rank
from segunc.data.labels import IGNORE, label_map, label_values
from segunc.data.layouts import EmptySplitError, Layout, folders_of

SAMPLED_LABELS = 8
"""Labels that show whether they hold the values of the data set."""


@dataclass(frozen=True)
class Recognised:
    """A data set of the table that lies in a folder."""

    name: str
    """What ``--dataset`` takes."""
    entry: DatasetEntry
    root: Path
    samples: dict[str, list[Sample]]
    """The frames of each split that is there."""
    missing: dict[str, str]
    """The folders that each other split would have, in words."""

    @property
    def frames(self) -> list[tuple[str, Path, Path]]:
        """Split, image and label of every frame; a frame of several splits stands in the first."""
        split_of: dict[Path, tuple[str, Path, Path]] = {}
        for split, samples in self.samples.items():
            for sample in samples:
                label = sample.label or sample.anomaly
                assert label is not None
                split_of.setdefault(sample.image, (split, sample.image, label))
        return list(split_of.values())

    def describe(self) -> str:
        """Return what was recognised, with the number of frames of each split."""
        counts = ", ".join(f"{len(samples)} {split}" for split, samples in self.samples.items())
        return f"This is {self.entry.title}: {counts}"


def recognise(root: Path, notes: list[str]) -> Recognised | None:
    """Return the published data set that lies in a folder, None if there is none of the table.

    Args:
        root: the folder.
        notes: sentences on what was assumed are added.

    Raises:
        InputError: the files are those of several data sets, or a data set is only half there.
    """
    names = [name for name, entry in DATASETS.items() if _has_marks(root, entry)]
    if not names:
        return None
    if len(names) > 1:
        titles = " and ".join(f"{DATASETS[name].title} ({name})" for name in names)
        raise InputError(
            f"{root} holds the files of {titles}", hint=f"--dataset {names[0]} names one of them"
        )
    found = recognised_as(root, names[0])
    stranger = _foreign_labels(found)
    if stranger:
        notes.append(
            f"{root} lies as {found.entry.title}, but {stranger}, so it is read as your own data; "
            f"--dataset {names[0]} reads it as published"
        )
        return None
    return found


def recognised_as(root: Path, name: str) -> Recognised:
    """Return a data set of the table, or of ``mine.yaml:NAME``, as it lies in a folder.

    Raises:
        InputError: nothing of it is there, a folder of a split is missing, or images and labels do
            not belong together.
    """
    entry = dataset_entry(name)
    layout = max(entry.layouts, key=lambda layout: _folders(layout, root, entry.splits))
    samples: dict[str, list[Sample]] = {}
    missing: dict[str, str] = {}
    for split in entry.splits:
        there, absent = _divided(layout, root, split)
        if there and absent:
            raise InputError(
                f"{root} is {entry.title}, but the folder {absent[0]} is missing, "
                f"while {there[0]} is there",
                hint=f"extract the rest of the archive ({entry.source})",
            )
        if not there:
            missing[split] = " and ".join(absent)
            continue
        try:
            samples[split] = entry.samples(root, split)
        except EmptySplitError:  # A few frames of a set may all be of another split.
            missing[split] = " and ".join(there)
    if not samples:
        first = entry.splits[0]
        raise InputError(
            f"{root} does not hold {entry.title}: {missing[first]} are missing",
            hint=f"it lies as {layout.describe(first)} ({entry.source})",
        )
    return Recognised(name, entry, root, samples, missing)


def _has_marks(root: Path, entry: DatasetEntry) -> bool:
    """Return whether a folder has a file that only this data set has, in one of its layouts."""
    if not any(_folders(layout, root, entry.splits) for layout in entry.layouts):
        return False
    for pattern in entry.recognised_by:
        for _ in root.glob(pattern):
            return True
    return False


def _folders(layout: Layout, root: Path, splits: Iterable[str]) -> int:
    return sum(layout.folders_in(root, split) for split in splits)


def _divided(layout: Layout, root: Path, split: str) -> tuple[list[str], list[str]]:
    """Return the folders of a split that exist, and those that do not."""
    there: list[str] = []
    absent: list[str] = []
    for part in layout.splits[split]:
        for folder in (part.images, part.labels):
            (there if folders_of(root, folder) else absent).append(folder)
    return there, absent


def _foreign_labels(found: Recognised) -> str:
    """Return why the labels cannot be those of the data set, empty if they can.

    Someone's own data may lie as a published set does, and mean other classes.
    """
    if found.entry.labels is None:
        return ""
    labels = label_map(found.entry.labels)
    files = [label for _, _, label in found.frames]
    indices = np.linspace(0, len(files) - 1, min(SAMPLED_LABELS, len(files))).astype(int)
    held: set[int] = set()
    for index in np.unique(indices).tolist():
        if found.entry.encoding == "colours" and label_rank(files[index]) == 0:
            return f"label {files[index]} holds ids and not the colours of that set"
        try:
            values = label_values(files[index], labels)
        except InputError:
            return f"label {files[index]} holds other colours or cannot be read"
        unknown = sorted(values - labels.raw_to_train.keys())
        if unknown:
            return f"label {files[index]} holds the value {unknown[0]}, which that set has not"
        held |= values
    if all(labels.raw_to_train[value] == IGNORE for value in held):
        return "the labels that were looked at hold no class of it"
    return ""
