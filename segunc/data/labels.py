"""Label maps: what the values of a label file mean.

A label map is a CSV file with the columns ``id,name,train_id,red,green,blue``; ``train_id`` 255 is ignored.
Raw ids may share a train id; the first row of a train id names and colours the class.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import read_rows, reading
from segunc.data.images import Colour, read_label_image

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
    colours: Mapping[Colour, int] | None = field(default=None, kw_only=True)  # RGB -> raw id, -1 where classes share it
    train_ids: int = field(default=0, kw_only=True)  # of the file that was read, also of the classes that were left out

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def read_ids(self, path: Path) -> npt.NDArray[np.uint8]:
        """Return the raw ids of a label file, uint8 ``[H, W]``; see :func:`segunc.data.images.read_label_image`."""
        return read_label_image(path, self.colours, self.raw_to_train)

    def read(self, path: Path) -> npt.NDArray[np.uint8]:
        """Return the train ids of a label file, uint8 ``[H, W]``, 255 ignored; InputError where it cannot be read or encoded."""
        return self.encode(self.read_ids(path), f"label {path}")

    def encode(self, raw: npt.NDArray[np.integer], source: str = "label") -> npt.NDArray[np.uint8]:
        """Train ids (uint8, 255 ignored) of raw label ids ``[H, W]`` in 0..255; InputError for one that the map does not know."""
        expected = f"only ids of the label map '{self.name}': {compact_ranges(self.raw_to_train)}"
        other = other_numbering(self.name)
        remedy = "repair the labels or give the label map that they were drawn with" + (
            other and f": --label-map {other}?"
        )
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
        return replace(
            self,
            name=name,
            classes=tuple(self.classes[i] for i in kept),
            palette=tuple(self.palette[i] for i in kept),
            raw_to_train={raw: IGNORE if raw in gone else numbers[train] for raw, train in self.raw_to_train.items()},
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
    colours: dict[Colour, int] = {}
    for raw, _, train, colour in parsed:
        shared = raw_to_train.get(colours.setdefault(colour, raw)) != train
        colours[colour] = -1 if shared else colours[colour]
    names, palette = tuple(n for n, _ in ordered), tuple(c for _, c in ordered)
    return LabelMap(name or path.stem, names, palette, raw_to_train, colours=colours, train_ids=len(ordered))


def label_map(name: str) -> LabelMap:
    """A built-in label map by name (``cityscapes``, ``camvid``, ...) or one of your own by the path of its CSV."""
    if name.endswith(".csv"):
        return read_label_map(Path(name))
    if name not in (known := _built_in()):
        expected = f"one of {', '.join(known)} or the path of a CSV file"
        raise InputError(f"label map '{name}'", expected, "check the name")
    with resources.as_file(known[name]) as path:
        return read_label_map(path, name)


def _built_in() -> dict[str, Traversable]:
    folder = resources.files("segunc.data") / "labels"
    found = {path.name.removesuffix(".csv"): path for path in folder.iterdir() if path.name.endswith(".csv")}
    return dict(sorted(found.items()))


def other_numbering(name: str) -> str:
    """Return the built-in label map of the same classes by other ids (label ids and train ids), or an empty text."""
    plain = name.partition(" ")[0]  # "cityscapes without train"
    other = plain.removesuffix("-train-ids") if plain.endswith("-train-ids") else f"{plain}-train-ids"
    return other if other in _built_in() else ""


_FOUND: dict[tuple[Path, int, int, str], frozenset[int]] = {}
"""By path, size, time of change, and label map, so that a file which is written anew is read anew."""


def label_values(path: Path, labels: LabelMap | None = None) -> frozenset[int]:
    """The raw values that occur in a label file, by the colours of a label map where there is one; remembered by the process."""
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"label {path} cannot be read ({error.strerror})", "a PNG", "check the path") from error
    key = (path, status.st_size, status.st_mtime_ns, labels.name if labels else "")
    if key not in _FOUND:
        raw = labels.read_ids(path) if labels else read_label_image(path)
        _FOUND[key] = frozenset(np.flatnonzero(np.bincount(raw.ravel(), minlength=256)).tolist())
    return _FOUND[key]


def check_label_files(files: Iterable[Path], labels: LabelMap, *, training: bool = False) -> None:
    """Check that the values of a set of label files are those of a label map, and warn where that stays open (:class:`NoteWarning`).

    One file cannot tell, so they are read until the values seen so far settle it; for a set that is right, that is the first file or
    two. Files that cannot be read are left to whoever reads their frame.

    Args:
        training: whether to refuse labels that leave nothing, or one class alone, to learn.

    Raises:
        InputError: the files hold train ids where the map has other ids, or the reverse, or there is nothing to train on.
    """
    own, trains = labels.raw_to_train, {*range(labels.train_ids), IGNORE}
    of_classes = {train: raw for raw, train in sorted(own.items(), reverse=True) if train != IGNORE}  # the lowest
    # A map most of whose classes have an id beyond the train ids: files of its ids hold such values.
    renumbered = 2 * sum(raw not in trains for raw in of_classes.values()) >= len(of_classes)
    other, seen, first = other_numbering(labels.name), set[int](), None
    for file in files:
        try:
            seen |= label_values(file, labels)
        except InputError:
            continue
        first = first or file
        strange = seen - own.keys()
        if strange and other and seen <= label_map(other).raw_to_train.keys():
            given = f"label {file} holds the values {sorted(strange)[:8]}, which are ids of label map '{other}', not of '{labels.name}'"
            raise InputError(
                given, f"ids of label map '{labels.name}'", f"--label-map {other}, or data.labels to train"
            )
        ambiguous = seen <= {0, IGNORE} or (renumbered and seen <= trains)
        if not ambiguous and any(own.get(value, IGNORE) != IGNORE for value in seen):
            return
    if first is None:
        return
    what = f"no label file, the first is {first}, holds a value but {compact_ranges(seen)}"
    hint = f"--label-map {other}" if other else "a label map of the train ids"
    if renumbered and seen <= trains and IGNORE in seen:
        expected = f"ids of label map '{labels.name}', most of which are higher"
        raise InputError(f"{what}: these look like train ids", expected, f"{hint}, or data.labels to train")
    known = {own.get(value, IGNORE) for value in seen} - {IGNORE}
    why = "so there is one class" if known else f"which label map '{labels.name}' ignores"
    if not known or seen == {0, IGNORE}:
        if training:
            raise InputError(f"{what}, {why}", "labels of several classes", "check the labels and the label map")
        warnings.warn(f"{what}, {why}", NoteWarning, stacklevel=2)
    elif renumbered and seen <= trains:
        warnings.warn(f"{what}; if these are train ids, what follows is wrong: {hint}", NoteWarning, stacklevel=2)
