"""Label maps: what the values of a label file mean.

A label map is a CSV file with the columns ``id,name,train_id,red,green,blue``; ``train_id`` 255 is ignored.
Raw ids may share a train id; the first row of a train id names and colours the class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import read_rows, reading
from segunc.data.images import read_label_image

IGNORE = 255
"""The train id of pixels that no loss and no metric counts."""
COLUMNS = ("id", "name", "train_id", "red", "green", "blue")


def recode(
    raw: npt.NDArray[np.integer], codes: Mapping[int, int], source: str, expected: str, remedy: str
) -> npt.NDArray[np.uint8]:
    """The codes of label values ``[H, W]`` as uint8; the last three are for the InputError of a value that has none, or lies
    outside 0..255."""
    table = np.full(256, -1, np.int16)
    table[list(codes)] = list(codes.values())
    if raw.dtype == np.uint8:
        coded = table[raw]
    else:  # a negative value would count from the end of the table
        outside = (raw < 0) | (raw > 255)
        coded = np.where(outside, np.int16(-1), table[np.where(outside, 0, raw)])
    if coded.min(initial=0) < 0:
        unknown = np.unique(raw[coded < 0])[:8].tolist()
        raise InputError(f"{source} holds the values {unknown}", expected, remedy)
    return np.asarray(coded, np.uint8)


@dataclass(frozen=True)
class LabelMap:
    """Raw label ids and the classes they train."""

    name: str
    classes: tuple[str, ...]  # the C names in the order of their train ids 0..C-1
    palette: tuple[tuple[int, int, int], ...]  # C colours as (red, green, blue) in 0..255
    raw_to_train: dict[int, int]  # raw id -> train id in 0..C-1 or 255 (ignored)

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def encode(self, raw: npt.NDArray[np.integer], source: str = "label") -> npt.NDArray[np.uint8]:
        """Train ids (uint8, 255 ignored) of raw label ids ``[H, W]`` in 0..255; InputError for one that the map does not know."""
        expected = f"only ids of the label map '{self.name}': {compact_ranges(self.raw_to_train)}"
        remedy = "repair the labels or give the label map that they were drawn with"
        return recode(raw, self.raw_to_train, source, expected, remedy)

    def raw_ids(self, names: Iterable[str]) -> frozenset[int]:
        """The raw ids of some classes; InputError where no class bears one of the names."""
        wanted = set()
        for name in names:
            if name not in self.classes:
                known = ", ".join(self.classes)
                raise InputError(f"class '{name}' of label map '{self.name}'", f"one of {known}", "check the name")
            wanted.add(self.classes.index(name))
        return frozenset(raw for raw, train in self.raw_to_train.items() if train in wanted)

    def without(self, names: Iterable[str]) -> LabelMap:
        """The same map without some classes: their raw ids are ignored, the others are renumbered in their order. InputError where
        no class bears one of the names, or fewer than two classes are left."""
        names = list(names)
        gone = self.raw_ids(names)
        kept = [i for i, name in enumerate(self.classes) if name not in names]
        name = f"{self.name} without {', '.join(names)}" if names else self.name
        if len(kept) < 2:
            given = f"label map '{self.name}' without {', '.join(names)} has {len(kept)} classes"
            raise InputError(given, "at least two known classes", "declare fewer classes anomalies")
        numbers = {old: new for new, old in enumerate(kept)} | {IGNORE: IGNORE}
        return LabelMap(
            name,
            tuple(self.classes[i] for i in kept),
            tuple(self.palette[i] for i in kept),
            {raw: IGNORE if raw in gone else numbers[train] for raw, train in self.raw_to_train.items()},
        )


def compact_ranges(values: Iterable[int]) -> str:
    """Integers as a short text: ``0-10, 255``."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def read_label_map(path: Path, name: str | None = None) -> LabelMap:
    """Read a label map from a CSV file with the columns ``id,name,train_id,red,green,blue``."""
    with reading(f"label map {path}", "a CSV file in UTF-8", "save it so"):
        header, *cells = read_rows(path) or [[]]
    if tuple(header) != COLUMNS:
        given = f"label map {path} has the columns {','.join(header)}"
        raise InputError(given, ",".join(COLUMNS), "repair its first line")
    try:
        rows = [dict(zip(header, row, strict=False)) for row in cells]
        parsed = [
            (int(r["id"]), r["name"], int(r["train_id"]), (int(r["red"]), int(r["green"]), int(r["blue"])))
            for r in rows
        ]
    except (KeyError, ValueError) as error:
        expected = "whole numbers in every column but the name"
        raise InputError(f"label map {path}: {error}", expected, "repair the row") from error
    for raw, label, train, colour in parsed:
        if not all(0 <= value <= 255 for value in (raw, train, *colour)):
            given = f"label map {path}: the row of id {raw} ({label}) holds a number outside 0..255"
            raise InputError(given, "ids, train ids and colours in 0..255", "repair the row")
    raw_to_train = {raw: train for raw, _, train, _ in parsed}
    if len(raw_to_train) < len(parsed):
        twice = next(raw for raw in raw_to_train if [row[0] for row in parsed].count(raw) > 1)
        raise InputError(f"label map {path} has the id {twice} twice", "each id once", "remove a row")
    first: dict[int, tuple[str, tuple[int, int, int]]] = {}
    for _, label, train, colour in parsed:
        if train != IGNORE:
            first.setdefault(train, (label, colour))
    if sorted(first) != list(range(len(first))) or not first:
        given = f"label map {path} has the train ids {compact_ranges(first)}"
        raise InputError(given, "0, 1, 2, ... without a gap, or 255", "renumber them")
    ordered = [first[i] for i in range(len(first))]
    return LabelMap(name or path.stem, tuple(n for n, _ in ordered), tuple(c for _, c in ordered), raw_to_train)


def label_map(name: str) -> LabelMap:
    """A built-in label map by name (``cityscapes``, ``camvid``, ...) or one of your own by the path of its CSV."""
    if name.endswith(".csv"):
        return read_label_map(Path(name))
    folder = resources.files("segunc.data") / "labels"
    known = sorted(p.name.removesuffix(".csv") for p in folder.iterdir() if p.name.endswith(".csv"))
    if name not in known:
        expected = f"one of {', '.join(known)} or the path of a CSV file"
        raise InputError(f"label map '{name}'", expected, "check the name")
    with resources.as_file(folder / f"{name}.csv") as path:
        return read_label_map(path, name)


_FOUND: dict[tuple[Path, int, int], frozenset[int]] = {}
"""By path, size and time of change, so that a file which is written anew is read anew."""


def label_values(path: Path) -> frozenset[int]:
    """The raw values that occur in a file for :func:`segunc.data.images.read_label_image`; remembered by the process."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"label {path} cannot be read ({error.strerror})", "a PNG", "check the path") from error
    key = (path, status.st_size, status.st_mtime_ns)
    if key not in _FOUND:
        counts = np.bincount(read_label_image(path).ravel(), minlength=256)
        _FOUND[key] = frozenset(np.flatnonzero(counts).tolist())
    return _FOUND[key]
