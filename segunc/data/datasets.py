"""Data sets by name, as configurations and commands name them, and any class of one as its anomaly.

A network must not have seen its anomaly, so a frame that holds a pixel of a declared one is left out of training altogether:
ignoring the pixels alone would show the network their surroundings, and what a border to them looks like.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.registry import Registry
from segunc.data import anomaly_sets, class_sets
from segunc.data.entry import DatasetEntry, Sample
from segunc.data.labels import label_values

_ENTRIES = {entry.name: entry for entry in (*class_sets.ENTRIES, *anomaly_sets.ENTRIES)}
DATASETS: Registry[DatasetEntry] = Registry("data set", "segunc.datasets", dict(sorted(_ENTRIES.items())))
"""What configurations and commands can name; a data set of one's own is one more :class:`DatasetEntry` in it."""
HOLDOUT = 30
"""Frames of ``train`` that stand in for ``val`` where every frame of ``val`` holds an anomaly."""


@dataclass(frozen=True)
class AnomalyClassEntry(DatasetEntry):
    """A data set some of whose classes were declared anomalies.

    Training: the frames of ``train`` without an anomaly. Selection: the frames of ``val`` without one; where there is
    none, the last :data:`HOLDOUT` of the training frames in the order of their names, which are then not trained on.
    Frames of one drive resemble their neighbours, and a block at the end has neighbours on one side only.
    Evaluation, of any split: a frame with an anomaly gives its anomaly label, one without gives its class labels.
    Sets with anomaly classes of their own give both labels of every frame, as their protocols do.
    """

    own_anomalies: bool = False

    def samples(self, root: Path, split: str) -> list[Sample]:
        samples = super().samples(root, split)
        return samples if self.own_anomalies else [self._with_one_label(sample) for sample in samples]

    def training_samples(self, root: Path, split: str) -> list[Sample]:
        val = self._without_anomaly(root, "val") if "val" in self.splits else []
        if split == "val" and val:
            return val
        train = self._without_anomaly(root, "train")
        needed = 0 if val else HOLDOUT
        if len(train) <= needed:
            raise InputError(
                f"{len(train)} frames of train in {root} are without {' or '.join(self.anomaly_classes)}, and {needed} are held out to select on",
                hint="declare another class the anomaly",
            )
        if val:
            return train
        return train[:-HOLDOUT] if split == "train" else train[-HOLDOUT:]

    def _without_anomaly(self, root: Path, split: str) -> list[Sample]:
        return [sample for sample in super().samples(root, split) if not self._holds_anomaly(sample)]

    def _holds_anomaly(self, sample: Sample) -> bool:
        assert sample.label is not None
        assert self.anomaly_encoding is not None
        return not self.anomaly_encoding.anomaly.isdisjoint(label_values(sample.label))

    def _with_one_label(self, sample: Sample) -> Sample:
        try:
            anomalous = self._holds_anomaly(sample)
        except InputError:  # an unreadable label must cost its own frame, which whoever reads it reports, not the run
            anomalous = False
        return replace(sample, label=None) if anomalous else replace(sample, anomaly=None)


def dataset_entry(name: str, *, labels: str | None = None, anomaly_classes: Iterable[str] = ()) -> DatasetEntry:
    """Return the entry of a data set by name.

    Args:
        name: one of :data:`DATASETS`.
        labels: name or CSV path of a label map instead of the set's own: its label files are then class labels.
        anomaly_classes: names of its label map's classes that are anomalies, beside those it has.

    Raises:
        InputError: an unknown name, or of the anomaly classes: the set has no class labels, no class bears one of the
            names, or fewer than two classes are left.
    """
    entry = DATASETS[name]
    if labels is not None:
        entry = replace(entry, labels=labels, anomaly_masks=None)
    if not (classes := list(anomaly_classes)):
        return entry
    values = {field.name: getattr(entry, field.name) for field in fields(DatasetEntry)}
    values["anomaly_classes"] = tuple(dict.fromkeys([*entry.anomaly_classes, *classes]))
    declared = AnomalyClassEntry(**values, own_anomalies=bool(entry.anomaly_classes))
    declared.label_map()  # unknown names are an error here and not after an hour
    return declared


def entry_of_labels(name: str | None, labels: str | None, anomaly_classes: Collection[str] = ()) -> DatasetEntry | None:
    """Return the data set of the name, or of that name with other ``labels``, or these alone, for folders of labels; None of neither.
    Raise InputError where only anomaly classes are given, or as :func:`dataset_entry` does."""
    if anomaly_classes and not (name or labels):
        raise InputError("--anomaly-class needs the data set that the classes belong to", hint="e.g. --dataset camvid")
    return dataset_entry(name or "folder", labels=labels, anomaly_classes=anomaly_classes) if name or labels else None
