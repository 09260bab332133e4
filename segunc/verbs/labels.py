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
    """Return the labels of maps as keyword arguments of their readers: ``anomaly_labels`` and ``anomaly_encoding``, and of options with
    class labels ``labels`` and ``label_map``. They are the folders that the options name, whose files may be named as the data set's, or
    with a ``--root`` the files of its ``samples``. InputError where both are given, or nothing explains the values of class labels."""
    layouts = entry.layouts if entry else ()
    by_class = isinstance(options, ClassTruthOptions)
    folders = [options.anomaly_labels, getattr(options, "labels", None)]
    anomalies: Labels | None
    labels: Labels | None
    anomalies, labels = (LabelFolder(Path(folder), layouts) if folder else None for folder in folders)
    if options.root:
        if entry is None or any(folders):
            raise InputError("--root goes with --dataset, and without --labels and --anomaly-labels")
        frames = samples(entry, options)
        anomalies = {frame.name: frame.anomaly for frame in frames if frame.anomaly is not None} or None
        labels = {frame.name: frame.label for frame in frames if frame.label is not None and by_class} or None
        if not (anomalies or labels):
            raise InputError(f"the data set {entry.name} marks no anomalies")
    if labels is not None and (entry is None or entry.labels is None):
        message = "nothing says which values of --labels are which classes"
        raise InputError(message, hint="add --dataset cityscapes, or --label-map CSV")
    arguments: dict[str, Any] = {"anomaly_labels": anomalies, "anomaly_encoding": encoding_of_masks(entry)}
    if by_class:
        arguments |= {"labels": labels, "label_map": entry.label_map() if labels is not None and entry else None}
    return arguments
