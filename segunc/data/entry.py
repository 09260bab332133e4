"""An entry of the table of data sets: where its frames lie, and what its labels and anomaly masks mean."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
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
    """The raw values of an anomaly mask and what they mean. Each value of 0..255 stands in one of the sets at most."""

    name: str
    normal: frozenset[int]
    anomaly: frozenset[int]
    ignored: frozenset[int] = frozenset()  # no metric counts these pixels
    labels: LabelMap | None = None  # where classes are the anomaly: the label map, whose colours the files may hold

    def __post_init__(self) -> None:
        values = [*self.normal, *self.anomaly, *self.ignored]
        if len(set(values)) != len(values) or not all(0 <= value <= 255 for value in values):
            raise InputError(f"anomaly encoding '{self.name}' has a value twice or outside 0..255: {sorted(values)}")

    def read(self, path: Path) -> npt.NDArray[np.uint8]:
        """Return the mask of a file as :meth:`encode` does; raise InputError where it cannot be read or encoded."""
        raw = self.labels.read_ids(path) if self.labels else read_label_image(path)
        return self.encode(raw, f"anomaly label {path}")

    def encode(self, raw: npt.NDArray[np.integer], source: str = "anomaly label") -> npt.NDArray[np.uint8]:
        """Return uint8 ``[H, W]`` with 0 normal, 1 anomaly, 255 ignored of a raw mask ``[H, W]``; raise InputError, which names
        ``source``, for a value that the encoding does not know."""
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


def classes_as_anomalies(labels: LabelMap, names: Iterable[str]) -> AnomalyEncoding:
    """Return the encoding of class labels in which some classes are the anomaly and ignored ids stay ignored; raise InputError where no
    class bears one of the names."""
    names = list(names)
    anomaly = labels.raw_ids(names)
    ignored = frozenset(raw for raw, train in labels.raw_to_train.items() if train == IGNORE)
    normal = frozenset(labels.raw_to_train) - anomaly - ignored
    return AnomalyEncoding(f"{labels.name}: {', '.join(names)}", normal, anomaly, ignored, labels)


def check_masks(files: Iterable[Path], encoding: AnomalyEncoding) -> None:
    """Raise InputError where no mask of a set holds a value but 0 and 255, and the encoding ignores 255: many tools write 255 for the
    anomaly, and then every anomaly would be left out. Files are read until one holds another value."""
    if IGNORE not in encoding.ignored or 0 not in encoding.normal:
        return
    values: set[int] = set()
    for file in files:
        with suppress(InputError):  # whoever reads its frame says what is wrong
            values |= label_values(file, encoding.labels)
        if not values <= {0, IGNORE}:
            return
    if values == {0, IGNORE}:
        raise InputError(
            f"no anomaly mask, the last is {file}, holds a value but 0 and 255, and 255 is ignored, so nothing is an anomaly",
            hint=f"--dataset {WHITE_ANOMALIES} if 255 marks the anomalies, else give no masks",
        )


@dataclass(frozen=True)
class Sample:
    """One frame of a data set, by a name that is unique in it, and its labels; both may be the same file."""

    name: str
    image: Path
    label: Path | None  # the class label, or None where its classes are not asked about
    anomaly: Path | None = None  # the label that marks anomalies, or None where they are not asked about


@dataclass(frozen=True)
class DatasetEntry:
    """A data set by name."""

    name: str
    source: str  # where the data come from, with a word on the licence where it binds the user
    layouts: tuple[Layout, ...]  # how the files lie below the root; the first whose folders are there is read
    labels: str | None = None  # name or CSV path of the class label map, None where the set has no class labels
    anomaly_classes: tuple[str, ...] = ()  # classes of ``labels`` that no network is trained on and that are anomalies
    anomaly_masks: AnomalyEncoding | None = None  # the encoding of masks that mark anomalies and no classes

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
        """Return the class label map: anomaly classes are ignored, the others numbered without a gap; raise InputError where there is
        none."""
        if self.labels is None:
            raise InputError(
                f"data set {self.name} has no class labels", hint="give a --label-map, or another data set"
            )
        return label_map(self.labels).without(self.anomaly_classes)

    def samples(self, root: Path, split: str) -> list[Sample]:
        """Return the labelled frames of one split for evaluation, each with all the labels it has; raise InputError for an unknown split
        or where :meth:`~segunc.data.layout.Layout.frames` does."""
        if split not in self.splits:
            raise InputError(
                f"data set {self.name} has no split '{split}' with public labels",
                hint=f"one of {', '.join(self.splits)}",
            )
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

    def training_samples(self, root: Path, split: str) -> list[Sample]:
        """Return the frames of split ``train``, or of ``val`` to select hyper-parameters on; raise InputError as :meth:`samples`, or
        where the set has no class labels to train on."""
        self.label_map()
        return self.samples(root, split)


def encoding_of_masks(entry: DatasetEntry | None) -> AnomalyEncoding:
    """Return what the values of anomaly masks mean: as in a data set that has such masks, else :data:`BINARY`."""
    return (entry and entry.anomaly_encoding) or BINARY
