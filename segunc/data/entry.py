"""An entry of the table of data sets: where its frames lie, and what its labels and anomaly masks mean.

A network must not have seen its anomaly, so a frame that holds a pixel of a declared one is left out of training altogether:
ignoring the pixels alone would show the network their surroundings, and what a border to them looks like.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.images import read_label_image
from segunc.data.labels import IGNORE, LabelMap, compact_ranges, label_map, label_values, recode
from segunc.data.layout import Layout


@dataclass(frozen=True)
class AnomalyEncoding:
    """The raw values 0..255 of an anomaly mask and what they mean."""

    name: str
    normal: frozenset[int]
    anomaly: frozenset[int]
    ignored: frozenset[int] = frozenset()  # no metric counts these pixels

    def read(self, path: Path) -> npt.NDArray[np.uint8]:
        """Return the mask of a file as :meth:`encode` does."""
        return self.encode(read_label_image(path), f"anomaly label {path}")

    def encode(self, raw: npt.NDArray[np.integer], source: str = "anomaly label") -> npt.NDArray[np.uint8]:
        """Return uint8 ``[H, W]`` with 0 normal, 1 anomaly, 255 ignored of a raw mask; InputError for an unknown value."""
        codes = dict.fromkeys(self.normal, 0) | dict.fromkeys(self.anomaly, 1) | dict.fromkeys(self.ignored, IGNORE)
        known_values = f"those of the anomaly encoding '{self.name}' ({self})"
        return recode(raw, codes, source, known_values, "name the --dataset that the masks belong to")

    def __str__(self) -> str:
        parts = (("normal", self.normal), ("anomaly", self.anomaly), ("ignored", self.ignored))
        return ", ".join(f"{compact_ranges(values)} = {word}" for word, values in parts if values)


BINARY = AnomalyEncoding("binary", frozenset({0}), frozenset({1}), frozenset({IGNORE}))
"""0 normal, 1 anomaly, 255 ignored: Fishyscapes, SegmentMeIfYouCan and this project's own sets."""
WHITE_ANOMALIES = "folder-255"
"""The data set of one's own files whose masks are black and white."""
ROAD_ANOMALY = AnomalyEncoding("road-anomaly", frozenset({0}), frozenset({2}))
"""Road Anomaly (Lis et al., ICCV 2019): 2 is the anomaly."""


def check_masks(files: Iterable[Path], encoding: AnomalyEncoding) -> None:
    """Raise InputError where no mask of a set holds a value but 0 and 255, and the encoding ignores 255: many tools write 255 for the
    anomaly, and then every anomaly would be left out."""
    if IGNORE not in encoding.ignored or 0 not in encoding.normal:
        return
    values: set[int] = set()
    for file in files:
        with suppress(InputError):  # whoever reads its frame says what is wrong
            values |= label_values(file)
        if not values <= {0, IGNORE}:
            return
    if values == {0, IGNORE}:
        fact = f"no anomaly mask, the last is {file}, holds a value but 0 and 255, and 255 is ignored, so nothing is an anomaly"
        raise InputError(fact, hint=f"--dataset {WHITE_ANOMALIES} if 255 marks the anomalies, else give no masks")


@dataclass(frozen=True)
class Sample:
    """One frame of a data set, by a name that is unique in it, and its labels; both may be the same file."""

    name: str
    image: Path
    label: Path | None  # the class label, or None where its classes are not asked about
    anomaly: Path | None = None  # the label that marks anomalies, or None where they are not asked about


HOLDOUT = 30
"""Frames of ``train`` that stand in for ``val`` where every frame of ``val`` holds an anomaly."""


@dataclass(frozen=True)
class DatasetEntry:
    """A data set by name.

    With ``declared`` anomalies training sees the frames of ``train`` without one, and selection those of ``val``; where ``val`` has none,
    the last :data:`HOLDOUT` of the training frames in the order of their names, which are then not trained on. Frames of one drive
    resemble their neighbours, and a block at the end has neighbours on one side only. Evaluation, of any split: a frame with an anomaly
    gives its anomaly label, one without gives its class labels. Sets with anomaly classes of their own give both labels of every frame,
    as their protocols do.
    """

    name: str
    source: str  # where the data come from, with a word on the licence where it binds the user
    layouts: tuple[Layout, ...]  # how the files lie below the root; the first whose folders are there is read
    labels: str | None = None  # name or CSV path of the class label map, None where the set has no class labels
    anomaly_classes: tuple[str, ...] = ()  # classes of ``labels`` that no network is trained on and that are anomalies
    anomaly_masks: AnomalyEncoding | None = None  # the encoding of masks that mark anomalies and no classes
    declared: tuple[str, ...] = ()  # classes of ``labels`` that the user declares anomalies beside these

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have labels."""
        return tuple(self.layouts[0].splits)

    @property
    def anomalies(self) -> tuple[str, ...]:
        """The classes that are anomalies, each once."""
        return tuple(dict.fromkeys([*self.anomaly_classes, *self.declared]))

    @cached_property
    def anomaly_encoding(self) -> AnomalyEncoding | None:
        """What the values of :attr:`Sample.anomaly` files mean, or None where the set marks no anomalies."""
        if self.labels is None or not self.anomalies:
            return self.anomaly_masks
        labels = label_map(self.labels)
        anomaly = labels.raw_ids(self.anomalies)
        ignored = frozenset(raw for raw, train in labels.raw_to_train.items() if train == IGNORE)
        normal = frozenset(labels.raw_to_train) - anomaly - ignored
        return AnomalyEncoding(f"{labels.name}: {', '.join(self.anomalies)}", normal, anomaly, ignored)

    def label_map(self) -> LabelMap:
        """Return the class label map: anomaly classes are ignored, the others numbered without a gap."""
        if self.labels is None:
            lack = f"data set {self.name} has no class labels"
            raise InputError(lack, hint="give a --label-map, or another data set")
        return label_map(self.labels).without(self.anomalies)

    def samples(self, root: Path, split: str) -> list[Sample]:
        """Return the labelled frames of one split for evaluation, each with the labels that it is asked about."""
        samples = self._every_sample(root, split)
        if not self.declared or self.anomaly_classes:
            return samples
        return [replace(s, label=None) if self._shows_anomaly(s) else replace(s, anomaly=None) for s in samples]

    def training_samples(self, root: Path, split: str) -> list[Sample]:
        """Return the frames of split ``train``, or of ``val`` to select hyper-parameters on."""
        self.label_map()  # InputError where there are no class labels to train on
        if not self.declared:
            return self._every_sample(root, split)

        def known(split: str) -> list[Sample]:
            return [sample for sample in self._every_sample(root, split) if not self._holds_anomaly(sample)]

        val = known("val") if "val" in self.splits else []
        if split == "val" and val:
            return val
        train, needed = known("train"), 0 if val else HOLDOUT
        if len(train) <= needed:
            few = f"{len(train)} frames of train in {root} are without {' or '.join(self.anomalies)}"
            raise InputError(f"{few}, and {needed} are held out to select on", hint="declare another class the anomaly")
        first = len(train) - needed
        return train[:first] if split == "train" else train[first:]

    def _every_sample(self, root: Path, split: str) -> list[Sample]:
        if split not in self.splits:
            message = f"data set {self.name} has no split '{split}' with public labels"
            raise InputError(message, hint=f"one of {', '.join(self.splits)}")
        described = " or ".join(layout.describe(split) for layout in self.layouts)
        described = f"data set {self.name} lies as {described} (from {self.source})"
        # Where no layout is complete, the one that has come the farthest says what it lacks.
        best_layout = max(self.layouts, key=lambda layout: layout.folders_in(root, split))
        there = [name for name in self.splits if any(layout.folders_in(root, name) for layout in self.layouts)]
        if there and split not in there:
            raise InputError(f"{root} has no split '{split}', but {', '.join(there)}", hint=described)
        classes, anomalies = self.labels is not None, self.anomaly_encoding is not None
        return [
            Sample(name, image, label if classes else None, label if anomalies else None)
            for name, image, label in best_layout.frames(root, split, described)
        ]

    def _holds_anomaly(self, sample: Sample) -> bool:
        assert sample.label is not None
        assert self.anomaly_encoding is not None
        return not self.anomaly_encoding.anomaly.isdisjoint(label_values(sample.label))

    def _shows_anomaly(self, sample: Sample) -> bool:
        try:
            return self._holds_anomaly(sample)
        except InputError:  # an unreadable label must cost its own frame, which whoever reads it reports, not the run
            return False


def encoding_of_masks(entry: DatasetEntry | None) -> AnomalyEncoding:
    """Return what the values of anomaly masks mean: as in a data set that has such masks, else :data:`BINARY`."""
    return (entry and entry.anomaly_encoding) or BINARY
