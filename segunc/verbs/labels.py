"""The labels that verbs on maps are given: folders of them, or those of a data set's frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.data.entry import DatasetEntry, Sample, encoding_of_masks
from segunc.gallery.inputs import Labels
from segunc.options import EvaluateOptions, ExportOptions, PathLike, ReviewOptions

SELECTION = "selection"
"""A split of every data set with class labels: val, or what stands in for it where every frame of val holds an anomaly."""


def split_samples(entry: DatasetEntry, root: Path, split: str) -> list[Sample]:
    """The frames of a split; :data:`SELECTION` are those that every selection of a fine-tuning looks at."""
    return entry.training_samples(root, "val") if split == SELECTION else entry.samples(root, split)


def label_arguments(
    options: EvaluateOptions | ExportOptions | ReviewOptions,
    entry: DatasetEntry | None,
    root: PathLike | None = None,
    samples: Callable[[DatasetEntry, Path], Sequence[Sample]] | None = None,
) -> dict[str, Any]:
    """``labels``, ``label_map``, ``anomaly_labels`` and ``anomaly_encoding`` for whatever reads labels of maps: the folders that the
    options name or, with a ``root``, the files of the ``samples`` that are found there. InputError: both are given, or class labels
    whose values nothing explains."""
    labels: Labels | None = Path(options.labels) if options.labels else None
    anomalies: Labels | None = Path(options.anomaly_labels) if options.anomaly_labels else None
    if root and samples is not None:
        if entry is None or labels or anomalies:
            raise InputError("--maps with --root", "--dataset beside it, and no label folders", "give one or the other")
        found = samples(entry, Path(root))
        labels = {sample.name: sample.label for sample in found if sample.label is not None} or None
        anomalies = {sample.name: sample.anomaly for sample in found if sample.anomaly is not None} or None
    if labels is not None and (entry is None or entry.labels is None):
        given, expected = "--labels without the data set they belong to", "--dataset with class labels"
        raise InputError(given, expected, "e.g. --dataset cityscapes, or --label-map CSV")
    return {
        "labels": labels,
        "label_map": entry.label_map() if labels is not None and entry is not None else None,
        "anomaly_labels": anomalies,
        "anomaly_encoding": encoding_of_masks(entry),
    }
