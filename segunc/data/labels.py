"""Label maps: what the values of a label file mean, as a CSV file says it with the columns
``id,name,train_id,red,green,blue``. ``train_id`` 255 is ignored. Raw ids may share a train id; the
first row of a train id names and colours the class.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import read_rows, reading
from segunc.data.images import Colour, read_label_image

IGNORE = 255  # the train id of pixels that no loss and no metric counts
UNKNOWN = 254  # stands for a train id at pixels that an anomaly label marks
COLUMNS = ("id", "name", "train_id", "red", "green", "blue")


def recode(
    raw: npt.NDArray[np.integer],
    codes: Mapping[int, int],
    source: str,
    known_values: str,
    hint: str,
) -> npt.NDArray[np.uint8]:
    """Return the codes of label values ``[H, W]`` as uint8; raise InputError, in the other words,
    for a value that has none.
    """
    table = np.full(256, -1, np.int16)
    table[list(codes)] = list(codes.values())
    if raw.dtype == np.uint8:
        coded = table[raw]
    else:  # a negative value would count from the end of the table
        outside = (raw < 0) | (raw > 255)
        coded = np.where(outside, np.int16(-1), table[np.where(outside, 0, raw)])
    if coded.min(initial=0) < 0:
        unknown = np.unique(raw[coded < 0])[:8].tolist()
        raise InputError(
            f"{source} holds the values {unknown}, but only {known_values} are known", hint=hint
        )
    return np.asarray(coded, np.uint8)


@dataclass(frozen=True)
class LabelMap:
    """Raw label ids and the classes they train."""

    name: str
    classes: tuple[str, ...]  # the C names in the order of their train ids 0..C-1
    palette: tuple[tuple[int, int, int], ...]  # C colours as (red, green, blue) in 0..255
    raw_to_train: dict[int, int]  # raw id -> train id in 0..C-1 or 255 (ignored)
    colours: Mapping[Colour, int] | None = field(
        default=None, kw_only=True
    )  # RGB -> raw id, -1 where classes share it
    train_ids: int = field(
        default=0, kw_only=True
    )  # of the file that was read, also of the classes that were left out

    def __post_init__(self) -> None:
        """Raise InputError where two classes bear one name: results are by name, and would hold one
        number for both."""
        number_of: dict[str, int] = {}
        for number, name in enumerate(self.classes):
            first = number_of.setdefault(unicodedata.normalize("NFC", name), number)
            if first != number:
                raise InputError(
                    f"label map '{self.name}' names both classes {first} and {number} '{name}'",
                    hint="give each train_id a name of its own, or both rows one train_id",
                )

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def read_ids(self, path: Path) -> npt.NDArray[np.uint8]:
        """Return the raw ids of a label file, uint8 ``[H, W]``; see
        :func:`segunc.data.images.read_label_image`.
        """
        return read_label_image(path, self.colours, self.raw_to_train)

    def read(self, path: Path) -> npt.NDArray[np.uint8]:
        """Return the train ids of a label file, uint8 ``[H, W]``, 255 ignored; raise InputError
        where it cannot be read or encoded.
        """
        return self.encode(self.read_ids(path), f"label {path}")

    def encode(self, raw: npt.NDArray[np.integer], source: str = "label") -> npt.NDArray[np.uint8]:
        """Return train ids (uint8, 255 ignored) of raw ids ``[H, W]``; raise InputError for one
        that the map does not know.
        """
        known_values = f"{compact_ranges(self.raw_to_train)} of label map '{self.name}'"
        hint = "repair the labels, or give the --label-map (data.labels to train) that they were drawn with"
        return recode(raw, self.raw_to_train, source, known_values, hint)

    def raw_ids(self, names: Iterable[str]) -> frozenset[int]:
        """Return the raw ids of some classes; raise InputError where no class bears one of the
        names.
        """
        names = set(names)
        for name in names - set(self.classes):
            classes = ", ".join(self.classes)
            raise InputError(
                f"label map '{self.name}' has no class '{name}'", hint=f"one of {classes}"
            )
        trained = {raw: train for raw, train in self.raw_to_train.items() if train != IGNORE}
        return frozenset(raw for raw, train in trained.items() if self.classes[train] in names)

    def without(self, names: Collection[str]) -> LabelMap:
        """Return the map without some classes, whose raw ids are ignored; the others are numbered
        anew in their order.
        """
        self.raw_ids(names)
        kept = [i for i, name in enumerate(self.classes) if name not in names]
        name = f"{self.name} without {', '.join(names)}" if names else self.name
        if len(kept) < 2:
            raise InputError(f"label map '{name}' has fewer than two classes")
        numbers = {train: number for number, train in enumerate(kept)}
        return replace(
            self,
            name=name,
            classes=tuple(self.classes[i] for i in kept),
            palette=tuple(self.palette[i] for i in kept),
            raw_to_train={
                raw: numbers.get(train, IGNORE) for raw, train in self.raw_to_train.items()
            },
        )


def compact_ranges(values: Iterable[int]) -> str:
    """Return integers as a short text: ``0-10, 255``."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def mixed_masks(values_of: Mapping[Path, Collection[int]]) -> tuple[Path, Path] | None:
    """Return a mask of 0 and 1 and one of 0 and 255 of a set in which no mask holds both 1 and 255:
    either may mark what is looked for.

    Args:
        values_of: the values of each mask; None is returned where any other value occurs.

    Returns:
        The first mask of each kind, or None where the set is of one kind.
    """
    of_ones: Path | None = None
    of_255: Path | None = None
    for path, values in values_of.items():
        held = set(values)
        if not held <= {0, 1, IGNORE} or held >= {1, IGNORE}:
            return None
        if 1 in held and of_ones is None:
            of_ones = path
        if IGNORE in held and of_255 is None:
            of_255 = path
    return (of_ones, of_255) if of_ones and of_255 else None


def read_label_map(path: Path) -> LabelMap:
    """Read a label map from a CSV file with the columns ``id,name,train_id,red,green,blue``, or in
    another usual form.
    """
    with reading(f"label map {path}", "a CSV file in UTF-8", "save it so"):
        header, *rows = read_rows(path) or [[]]
    if tuple(header) != COLUMNS:
        rows = _standard_rows(path, header, rows)
    raw_to_train: dict[int, int] = {}
    colours: dict[Colour, int] = {}
    classes: dict[int, tuple[str, tuple[int, int, int]]] = {}  # by train id
    for row in rows:
        try:
            raw, label, *numbers = row
            raw_id, train, red, green, blue = (int(cell) for cell in (raw, *numbers))
            colour = red, green, blue
            bytes((raw_id, train, *colour))  # a ValueError for others than 0 to 255
        except ValueError as error:
            message = f"label map {path}: the row {','.join(row)} does not hold {','.join(COLUMNS)}"
            raise InputError(
                message, hint="ids, train ids and colours are whole numbers of 0 to 255"
            ) from error
        if raw_id in raw_to_train:
            raise InputError(f"label map {path} has the id {raw_id} twice", hint="remove a row")
        raw_to_train[raw_id] = train
        if raw_to_train.get(colours.setdefault(colour, raw_id)) != train:
            colours[colour] = -1
        if train != IGNORE:
            classes.setdefault(train, (label, colour))
    if sorted(classes) != list(range(len(classes))) or not classes:
        message = f"label map {path} has the train ids {compact_ranges(classes)}"
        raise InputError(message, hint="number them 0, 1, 2, ... without a gap")
    names, palette = zip(*(classes[train] for train in range(len(classes))), strict=True)
    return LabelMap(
        path.stem, names, palette, raw_to_train, colours=colours, train_ids=len(classes)
    )


COLUMN_NAMES = {
    "id": ("id", "ids", "label_id", "labelid", "raw_id", "value", "index"),
    "name": ("name", "class", "label", "class_name", "classname", "names"),
    "train_id": ("train_id", "trainid"),
    "red": ("red", "r"),
    "green": ("green", "g"),
    "blue": ("blue", "b"),
    "colour": ("colour", "color", "rgb", "hex"),
}
"""What the columns of label maps are called in other tools, in lower case."""
VOID_NAMES = ("void", "unlabeled", "unlabelled", "ignore", "ignored", "none", "don't care")
"""Names of what no class has, in label maps that have no train ids."""


def _standard_rows(path: Path, header: Sequence[str], rows: Sequence[list[str]]) -> list[list[str]]:
    """Return the rows of a label map in :data:`COLUMNS`, out of columns in another order or with
    other names, such as ``name,r,g,b`` or ``id,name,color``, and warn of numbers that the file does
    not give (:class:`NoteWarning`).
    """
    places: dict[str, int] = {}
    for place, text in enumerate(header):
        for column, names in COLUMN_NAMES.items():
            if text.strip().lower().replace(" ", "_") in names:
                places.setdefault(column, place)
    is_coloured = "colour" in places or {"red", "green", "blue"} <= places.keys()
    if "name" not in places or not is_coloured:
        raise InputError(
            f"label map {path} has the columns {','.join(header)} instead of {','.join(COLUMNS)}",
            hint="segunc init DATA --out mine.yaml writes one of your labels, to be edited",
        )
    standard: list[list[str]] = []
    classes = 0
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise InputError(
                f"label map {path}: the row {','.join(row)} does not hold {','.join(header)}",
                hint="give each row a cell for each column",
            )
        cells = {column: row[place].strip() for column, place in places.items()}
        raw = cells.get("id", str(number))
        is_void = cells["name"].lower() in VOID_NAMES or raw == str(IGNORE)
        train = cells.get("train_id", str(IGNORE if is_void else classes))
        classes += not is_void
        standard.append([raw, cells["name"], train, *_colour_cells(cells)])
    _warn_of_numbers(path, places, standard)
    return standard


def _colour_cells(cells: Mapping[str, str]) -> list[str]:
    """Return red, green and blue of a row, which may have them in one cell: as ``#rrggbb``, or as
    three numbers.
    """
    if "red" in cells:
        return [cells["red"], cells["green"], cells["blue"]]
    text = cells["colour"].removeprefix("#")
    if re.fullmatch(r"[0-9a-fA-F]{6}", text):
        return [str(part) for part in bytes.fromhex(text)]
    return re.findall(r"[^\s,;()\[\]]+", text)


def _warn_of_numbers(path: Path, places: Collection[str], rows: Sequence[Sequence[str]]) -> None:
    if "id" not in places:
        warnings.warn(
            f"label map {path} has no column id, so its rows are the ids 0 to {len(rows) - 1}: "
            "labels in its colours are read rightly, others only where they hold these ids",
            NoteWarning,
            stacklevel=2,
        )
    if "train_id" not in places:
        ignored = [name for _, name, train, *_ in rows if train == str(IGNORE)]
        shown = f"ignores {', '.join(ignored)}" if ignored else "ignores nothing"
        warnings.warn(
            f"label map {path} has no column train_id: each row is a class in its order, and it {shown}",
            NoteWarning,
            stacklevel=2,
        )


def label_map(name: str) -> LabelMap:
    """Return a built-in label map by name (``cityscapes``, ``camvid``, ...) or one of your own by
    the path of its CSV.
    """
    if name.endswith(".csv"):
        return read_label_map(Path(name))
    built_in = {
        path.stem: path for path in sorted((Path(__file__).parent / "labels").glob("*.csv"))
    }
    if name not in built_in:
        raise InputError(
            f"no label map is called '{name}'",
            hint=f"{', '.join(built_in)} or the path of a CSV file",
        )
    return read_label_map(built_in[name])


_VALUES: dict[tuple[Path, int, int, str], frozenset[int]] = {}
"""By path, size, time of change, and label map, so that a file which is written anew is read anew.
"""


def label_values(path: Path, labels: LabelMap | None = None) -> frozenset[int]:
    """Return the raw values that occur in a label file, by the colours of a label map where there
    is one; the process remembers them.
    """
    with reading(f"label {path}", "a PNG"):
        status = path.stat()
    key = (path, status.st_size, status.st_mtime_ns, labels.name if labels else "")
    if key not in _VALUES:
        raw = labels.read_ids(path) if labels else read_label_image(path)
        _VALUES[key] = frozenset(np.flatnonzero(np.bincount(raw.ravel(), minlength=256)).tolist())
    return _VALUES[key]


def check_label_files(files: Iterable[Path], labels: LabelMap, *, training: bool = False) -> None:
    """Check that the values of a set of label files are those of a label map, and warn where that
    stays open (:class:`NoteWarning`). One file cannot tell, so files are read until the values seen
    so far settle it; for a set that is right, that is the first file or two. For ``training``
    labels that leave nothing, or one class alone, to learn are refused.
    """
    ids, train_ids = labels.raw_to_train, {*range(labels.train_ids), IGNORE}
    id_of_class = {
        train: raw for raw, train in sorted(ids.items(), reverse=True) if train != IGNORE
    }  # the lowest
    # A map most of whose classes have an id beyond the train ids: files of its ids hold such
    # values.
    renumbered = 2 * sum(raw not in train_ids for raw in id_of_class.values()) >= len(id_of_class)
    telling = {raw for raw, train in ids.items() if train != IGNORE} - (
        train_ids if renumbered else {0, IGNORE}
    )
    hint = (
        "give the --label-map of the train ids, such as cityscapes-train-ids (data.labels to train)"
    )
    values, first = set[int](), None
    for file in files:
        try:
            values |= label_values(file, labels)
        except InputError:  # whoever reads its frame says what is wrong
            continue
        first = first or file
        if values & telling:
            return
    if first is None:
        return
    fact = f"no label file, the first is {first}, holds a value but {compact_ranges(values)}"
    if renumbered and values <= train_ids and IGNORE in values:
        raise InputError(
            f"{fact}: these look like train ids, not like ids of label map '{labels.name}'",
            hint=hint,
        )
    learnt = {ids.get(value, IGNORE) for value in values} - {IGNORE}
    if not learnt or (values == {0, IGNORE} and len(learnt) < 2):
        fact += (
            ", so there is one class" if learnt else f", which label map '{labels.name}' ignores"
        )
        if training:
            raise InputError(fact, hint="check the labels and the label map")
        warnings.warn(fact, NoteWarning, stacklevel=2)
    elif renumbered and values <= train_ids:
        warnings.warn(
            f"{fact}; if these are train ids, what follows is wrong: {hint}",
            NoteWarning,
            stacklevel=2,
        )
