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

_OWN = {entry.name: entry for entry in (*class_sets.ENTRIES, *anomaly_sets.ENTRIES)}
DATASETS: Registry[DatasetEntry] = Registry("data set", "segunc.datasets", dict(sorted(_OWN.items())))
"""What configurations and commands can name; a data set of one's own is one more :class:`DatasetEntry` in it."""
HOLDOUT = 30
"""Frames of ``train`` that stand in for ``val`` where every frame of ``val`` holds an anomaly."""


@dataclass(frozen=True)
class AnomalyClassEntry(DatasetEntry):
    """A data set some of whose classes were declared anomalies.

    Training: the frames of ``train`` without an anomaly. Selection: the frames of ``val`` without one; where there is
    none, the last ``holdout`` of the training frames in the order of their names, which are then not trained on.
    Frames of one drive resemble their neighbours, and a block at the end has neighbours on one side only.
    Evaluation, of any split: a frame with an anomaly gives its anomaly label, one without gives its class labels.
    Sets with anomaly classes of their own give both labels of every frame, as their protocols do.

    """

    holdout: int = HOLDOUT
    own_anomalies: bool = False

    def samples(self, root: Path, split: str) -> list[Sample]:
        found = super().samples(root, split)
        return found if self.own_anomalies else [self._one_label(sample) for sample in found]

    def training_samples(self, root: Path, split: str) -> list[Sample]:
        val = self._without_anomaly(root, "val") if "val" in self.splits else []
        if split == "val" and val:
            return val
        train = self._without_anomaly(root, "train")
        names, remedy = " or ".join(self.anomaly_classes), "declare another class the anomaly"
        if not val and len(train) <= self.holdout:
            given = f"no frame of val in {root} is without {names}, and {len(train)} of train are"
            expected = f"more than the {self.holdout} that are then held out to select on"
            raise InputError(given, expected, f"lower data.holdout or {remedy}")
        if not train:
            given = f"every frame of train in {root} holds {names}"
            raise InputError(given, "frames without the anomaly to train on", remedy)
        if val:
            return train
        return train[: -self.holdout] if split == "train" else train[-self.holdout :]

    def _without_anomaly(self, root: Path, split: str) -> list[Sample]:
        return [sample for sample in super().samples(root, split) if not self._holds_anomaly(sample)]

    def _holds_anomaly(self, sample: Sample) -> bool:
        assert sample.label is not None
        assert self.anomaly_encoding is not None
        return not self.anomaly_encoding.anomaly.isdisjoint(label_values(sample.label))

    def _one_label(self, sample: Sample) -> Sample:
        try:
            anomalous = self._holds_anomaly(sample)
        except InputError:  # an unreadable label must cost its own frame, which whoever reads it reports, not the run
            anomalous = False
        return replace(sample, label=None) if anomalous else replace(sample, anomaly=None)


def dataset_entry(
    name: str, *, labels: str | None = None, anomaly_classes: Iterable[str] = (), holdout: int = HOLDOUT
) -> DatasetEntry:
    """The entry of a data set by name.

    Args:
        name: one of :data:`DATASETS`.
        labels: name or CSV path of a label map instead of the set's own: its label files are then class labels.
        anomaly_classes: names of its label map's classes that are anomalies, beside those it has.
        holdout: see :class:`AnomalyClassEntry`; at least 1.

    Raises:
        InputError: an unknown name, or of the anomaly classes: the set has no class labels, no class bears one of the
            names, or fewer than two classes are left.
    """
    entry = DATASETS[name]
    if labels is not None:
        entry = replace(entry, labels=labels, anomaly_masks=None)
    if not (classes := list(anomaly_classes)):
        return entry
    own = {one.name: getattr(entry, one.name) for one in fields(DatasetEntry)}
    own["anomaly_classes"] = tuple(dict.fromkeys([*entry.anomaly_classes, *classes]))
    declared = AnomalyClassEntry(**own, holdout=holdout, own_anomalies=bool(entry.anomaly_classes))
    declared.label_map()  # unknown names are an error here and not after an hour
    return declared


def entry_of_labels(name: str | None, labels: str | None, anomaly_classes: Collection[str] = ()) -> DatasetEntry | None:
    """The data set of the name, or of that name with other ``labels``, or these alone, for folders of labels; None of neither.
    InputError where only anomaly classes are given, or as of :func:`dataset_entry`."""
    if anomaly_classes and not (name or labels):
        raise InputError("--anomaly-class without the data set it belongs to", "--dataset", "e.g. --dataset camvid")
    return dataset_entry(name or "folder", labels=labels, anomaly_classes=anomaly_classes) if name or labels else None
