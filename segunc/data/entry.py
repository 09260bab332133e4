"""A data set by name: where it comes from, how it lies, which labels it has and what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from segunc.data.anomaly_labels import AnomalyEncoding, classes_as_anomalies
from segunc.data.labels import LabelMap, label_map
from segunc.data.layout import Layout
from segunc.data.samples import Sample
from segunc.errors import InputError


@dataclass(frozen=True)
class DatasetEntry:
    """A data set by name.

    Attributes:
        name: what users write.
        source: where the data come from, with a word on the licence where it binds the user.
        listing: address of the published file listing or split rule that the layouts follow.
        layout: how the files lie below the root, in words, for messages and help.
        layouts: the same as rules; the first whose folders are there is read. All have the same splits.
        labels: name of the class label map or path of its CSV, or None where the set has no class labels.
        anomaly_classes: classes of ``labels`` that no network is trained on and that count as anomalies.
        anomaly_masks: the encoding of masks that mark anomalies and no classes.
        withheld: split -> why it has no labels here.
    """

    name: str
    source: str
    listing: str
    layout: str
    layouts: tuple[Layout, ...]
    labels: str | None = None
    anomaly_classes: tuple[str, ...] = ()
    anomaly_masks: AnomalyEncoding | None = None
    withheld: Mapping[str, str] = field(default_factory=dict)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have labels."""
        return tuple(self.layouts[0].splits)

    @cached_property
    def anomaly_encoding(self) -> AnomalyEncoding | None:
        """What the values of :attr:`Sample.anomaly` files mean, or None where the set marks no anomalies."""
        if self.labels is not None and self.anomaly_classes:
            return classes_as_anomalies(label_map(self.labels), self.anomaly_classes)
        return self.anomaly_masks

    def label_map(self) -> LabelMap:
        """The class label map: anomaly classes are ignored, the others numbered without a gap.

        Raises:
            InputError: the set has no class labels.
        """
        if self.labels is None:
            raise InputError(
                f"data set {self.name} has no class labels", "a set with class labels", "choose another set"
            )
        return label_map(self.labels).without(self.anomaly_classes)

    def samples(self, root: Path, split: str) -> list[Sample]:
        """The labelled frames of one split for evaluation, each with all the labels it has.

        Raises:
            InputError: an unknown split, a missing folder, no image, an image without a label, a label without an
                image, two images of one name, or an empty split.
        """
        if split not in self.splits:
            why = f" has no labels: {self.withheld[split]}" if split in self.withheld else ""
            raise InputError(
                f"split '{split}' of data set {self.name}{why}", f"one of {', '.join(self.splits)}", "check the split"
            )
        described = f"data set {self.name} as {self.layout} (from {self.source})"
        # Where no layout is complete, the one that has come the farthest says what it lacks.
        layout = max(self.layouts, key=lambda one: one.folders_in(root, split))
        there = [other for other in self.splits if any(one.folders_in(root, other) for one in self.layouts)]
        if there and split not in there:
            raise InputError(f"{root} has no split '{split}'", described, f"splits found there: {', '.join(there)}")
        return [
            Sample(
                name,
                image,
                label if self.labels is not None else None,
                label if self.anomaly_encoding is not None else None,
            )
            for name, image, label in layout.frames(root, split, described)
        ]

    def training_samples(self, root: Path, split: str) -> list[Sample]:
        """The frames of split ``train``, or of ``val`` to select hyper-parameters on.

        Raises:
            InputError: as :meth:`samples`, or the set has no class labels to train on.
        """
        self.label_map()
        return self.samples(root, split)
