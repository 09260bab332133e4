"""The labels that verbs are given: folders of them, or those of a data set's frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.data.entry import DatasetEntry, Sample, encoding_of_masks
from segunc.maps.labelled import LabelFolder, Labels
from segunc.options import ClassTruthOptions, TruthOptions

SELECTION = "selection"
"""A split of every data set with class labels: val, or what stands in for it where every frame of val holds an anomaly."""


def split_samples(entry: DatasetEntry, options: TruthOptions) -> list[Sample]:
    """Return the frames of the split in ``--root``; :data:`SELECTION` are those that every selection of a fine-tuning looks at."""
    root = Path(options.root or "")
    selected = options.split == SELECTION
    return entry.training_samples(root, "val") if selected else entry.samples(root, options.split)


def label_arguments(
    options: TruthOptions,
    entry: DatasetEntry | None,
    samples: Callable[[DatasetEntry, Any], Sequence[Sample]] = split_samples,
) -> dict[str, Any]:
    """Return the labels for whatever reads labels of maps, as its keyword arguments.

    These are ``anomaly_labels`` and ``anomaly_encoding``, and of options with class labels ``labels`` and ``label_map``. The labels
    are the folders that the options name, whose files may be named as the data set's, or with a ``--root`` the files of the
    ``samples`` that are found there.

    Raises:
        InputError: both are given, or class labels whose values nothing explains.
    """
    layouts, by_class = entry.layouts if entry else (), isinstance(options, ClassTruthOptions)
    folders = options.anomaly_labels, options.labels if isinstance(options, ClassTruthOptions) else None
    anomalies, labels = (LabelFolder(Path(folder), layouts) if folder else None for folder in folders)
    found: tuple[Labels | None, Labels | None] = anomalies, labels
    if options.root:
        if entry is None or any(folders):
            raise InputError("--root goes with --dataset, and without --labels and --anomaly-labels")
        frames = samples(entry, options)
        found = (
            {sample.name: sample.anomaly for sample in frames if sample.anomaly is not None} or None,
            {sample.name: sample.label for sample in frames if sample.label is not None and by_class} or None,
        )
        if not any(found):
            raise InputError(f"the data set {entry.name} marks no anomalies")
    if found[1] is not None and (entry is None or entry.labels is None):
        message = "nothing says which values of --labels are which classes"
        raise InputError(message, hint="add --dataset cityscapes, or --label-map CSV")
    arguments: dict[str, Any] = {"anomaly_labels": found[0], "anomaly_encoding": encoding_of_masks(entry)}
    if by_class:
        explained = entry.label_map() if found[1] is not None and entry is not None else None
        arguments |= {"labels": found[1], "label_map": explained}
    return arguments
