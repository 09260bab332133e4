"""Label maps: what the values of a label file mean.

A label map is a CSV file with the columns ``id,name,train_id,red,green,blue``. ``train_id`` 255 is
ignored. Raw ids may share a train id; the first row of a train id names and colours the class.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from segunc.core.bounds import first_equal_names
from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import read_rows, reading
from segunc.data.images import Colour, read_label_image

IGNORE = 255
"""The train id of pixels that no loss and no metric counts."""
UNKNOWN = 254
"""Stands for a train id at pixels that an anomaly label marks."""
COLUMNS = ("id", "name", "train_id", "red", "green", "blue")


def recode(
    raw: npt.NDArray[np.integer],
    codes: Mapping[int, int],
    source: str,
    known_values: str,
    hint: str,
) -> npt.NDArray[np.uint8]:
    """Return the codes of label values ``[H, W]`` as uint8.

    Args:
        raw: the values.
        codes: the code of each value.
        source: what the values were read from, for the message.
        known_values: which values there are, for the message.
        hint: that of the message.

    Raises:
        InputError: a value has no code.
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
    """Raw label ids and the C classes that they train."""

    name: str
    classes: tuple[str, ...]
    """The C names in the order of their train ids 0..C-1."""
    palette: tuple[tuple[int, int, int], ...]
    """C colours as (red, green, blue) in 0..255."""
    raw_to_train: dict[int, int]
    """Raw id -> train id in 0..C-1, or 255 (ignored)."""
    colours: Mapping[Colour, int] | None = field(default=None, kw_only=True)
    """RGB -> raw id, -1 where classes share the colour."""
    train_ids: int = field(default=0, kw_only=True)
    """Number of train ids in the file that was read, with those of classes that were left out."""

    def __post_init__(self) -> None:
        """Raise InputError if two classes have one name.

        Results are by name, so they would hold one number for both.
        """
        equal = first_equal_names(self.classes)
        if equal is not None:
            first, second = equal
            raise InputError(
                f"label map '{self.name}' names both classes {first} and {second} "
                f"'{self.classes[second]}'",
                hint="give each train_id a name of its own, or both rows one train_id",
            )

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @cached_property
    def code(self) -> str:
        """All that decides the raw ids that :meth:`read_ids` returns, as a text.

        A label map of the same name may be another file, or this one before it was edited.
        """
        return repr((sorted(self.raw_to_train.items()), sorted((self.colours or {}).items())))

    def read_ids(self, path: Path) -> npt.NDArray[np.uint8]:
        """Return the raw ids of a label file, uint8 ``[H, W]``.

        See :func:`segunc.data.images.read_label_image`.
        """
        return read_label_image(path, self.colours, self.raw_to_train)

    def read(self, path: Path) -> npt.NDArray[np.uint8]:
        """Return the train ids of a label file, uint8 ``[H, W]``, 255 ignored.

        Raises:
            InputError: the file cannot be read, or holds an id that the map does not know.
        """
        return self.encode(self.read_ids(path), f"label {path}")

    def encode(self, raw: npt.NDArray[np.integer], source: str = "label") -> npt.NDArray[np.uint8]:
        """Return the train ids (uint8, 255 ignored) of raw ids ``[H, W]``.

        Raises:
            InputError: the map does not know an id; the message begins with ``source``.
        """
        return recode(
            raw,
            self.raw_to_train,
            source,
            known_values=f"{compact_ranges(self.raw_to_train)} of label map '{self.name}'",
            hint="repair the labels, or give the --label-map (data.labels to train) "
            "that they were drawn with",
        )

    def raw_ids(self, names: Iterable[str]) -> frozenset[int]:
        """Return the raw ids of some classes.

        Raises:
            InputError: the map has no class of one of the names.
        """
        names = set(names)
        for name in names - set(self.classes):
            raise InputError(
                f"label map '{self.name}' has no class '{name}'",
                hint=f"one of {', '.join(self.classes)}",
            )
        wanted = {train for train, name in enumerate(self.classes) if name in names}
        return frozenset(raw for raw, train in self.raw_to_train.items() if train in wanted)

    def without(self, names: Collection[str]) -> LabelMap:
        """Return the map without some classes.

        Their raw ids are ignored; the others are numbered anew in their order.

        Raises:
            InputError: the map has no class of one of the names, or fewer than two are left.
        """
        self.raw_ids(names)
        kept = [train for train, name in enumerate(self.classes) if name not in names]
        name = f"{self.name} without {', '.join(names)}" if names else self.name
        if len(kept) < 2:
            raise InputError(f"label map '{name}' has fewer than two classes")
        new_number = {train: number for number, train in enumerate(kept)}
        raw_to_train = {
            raw: new_number.get(train, IGNORE) for raw, train in self.raw_to_train.items()
        }
        return replace(
            self,
            name=name,
            classes=tuple(self.classes[train] for train in kept),
            palette=tuple(self.palette[train] for train in kept),
            raw_to_train=raw_to_train,
        )


def class_shares(pixels: npt.NDArray[np.integer], *, is_sample: bool) -> list[float]:
    """Return the share of the labelled pixels of each class.

    Args:
        pixels: number of pixels of each class, ``[C]``.
        is_sample: whether there are frames that were not counted. Then a class without a pixel may
            be in these, and counts as one pixel: it is rare, not absent.

    Raises:
        InputError: there is no labelled pixel.
    """
    if pixels.sum() == 0:
        raise InputError(f"the training labels hold only ignored pixels (train id {IGNORE})")
    counts = np.maximum(pixels, 1) if is_sample else pixels
    return [float(share) for share in counts / counts.sum()]


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
    """Return a mask of 0 and 1 and a mask of 0 and 255, if a set has both kinds.

    In such a set either value may mark what is looked for. A mask that holds both 1 and 255, or any
    other value, shows that the set is not of this sort.

    Args:
        values_of: the values of each mask.

    Returns:
        The first mask of each kind, or None.
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
    if of_ones is None or of_255 is None:
        return None
    return of_ones, of_255


class _Row(NamedTuple):
    """A row of a label map."""

    raw: int
    name: str
    train: int
    colour: Colour


def read_label_map(path: Path) -> LabelMap:
    """Read a label map from a CSV file.

    Its columns are ``id,name,train_id,red,green,blue``, or those of another usual form.

    Raises:
        InputError: the file cannot be read, holds an id twice, or numbers its classes with a gap.
    """
    with reading(f"label map {path}", "a CSV file in UTF-8", "save it so"):
        header, *rows = read_rows(path) or [[]]
    if tuple(header) != COLUMNS:
        rows = _standard_rows(path, header, rows)
    return label_map_of_rows(path, rows)


def label_map_of_rows(path: Path, rows: Iterable[Sequence[str]]) -> LabelMap:
    """Return the label map of rows, which need not be written yet.

    Args:
        path: of their file; it names the map and begins messages.
        rows: the texts of :data:`COLUMNS`.

    Raises:
        InputError: a row holds something else, an id comes twice, or the classes are numbered with
            a gap.
    """
    raw_to_train: dict[int, int] = {}
    id_of_colour: dict[Colour, int] = {}
    row_of_class: dict[int, _Row] = {}  # by train id
    for cells in rows:
        row = _parse_row(path, cells)
        if row.raw in raw_to_train:
            raise InputError(f"label map {path} has the id {row.raw} twice", hint="remove a row")
        raw_to_train[row.raw] = row.train
        first_id = id_of_colour.setdefault(row.colour, row.raw)
        if raw_to_train.get(first_id) != row.train:
            id_of_colour[row.colour] = -1
        if row.train != IGNORE:
            row_of_class.setdefault(row.train, row)
    for row in row_of_class.values():
        if not row.name:
            raise InputError(
                f"label map {path}: the class of train id {row.train} has no name",
                hint="write a name into its first row",
            )
    if not row_of_class or sorted(row_of_class) != list(range(len(row_of_class))):
        raise InputError(
            f"label map {path} has the train ids {compact_ranges(row_of_class)}",
            hint="number them 0, 1, 2, ... without a gap",
        )
    classes = [row_of_class[train] for train in range(len(row_of_class))]
    return LabelMap(
        name=path.stem,
        classes=tuple(row.name for row in classes),
        palette=tuple(row.colour for row in classes),
        raw_to_train=raw_to_train,
        colours=id_of_colour,
        train_ids=len(classes),
    )


def _parse_row(path: Path, cells: Sequence[str]) -> _Row:
    """Return a row of the label map ``path`` from the texts of its :data:`COLUMNS`."""
    try:
        raw_text, name, *number_texts = (text.strip() for text in cells)
        raw, train, red, green, blue = (_whole_number(text) for text in (raw_text, *number_texts))
        bytes((raw, train, red, green, blue))  # ValueError for a number outside of 0 to 255
    except ValueError as error:
        raise InputError(
            f"label map {path}: the row {','.join(cells)} does not hold {','.join(COLUMNS)}",
            hint="ids, train ids and colours are whole numbers of 0 to 255",
        ) from error
    return _Row(raw, name, train, (red, green, blue))


def _whole_number(text: str) -> int:
    """Return the number of decimal digits alone. ValueError for other texts, some of which
    :class:`int` takes, such as 1_0.
    """
    if re.fullmatch(r"[0-9]+", text) is None:
        raise ValueError(text)
    return int(text)


COLUMN_NAMES = {
    "id": (
        *("id", "ids", "label_id", "labelid", "raw_id", "value", "index"),
        *("class_id", "classid", "class_index", "class_idx"),
    ),
    "name": ("name", "names", "class_name", "classname", "class", "label"),
    "train_id": ("train_id", "trainid"),
    "red": ("red", "r"),
    "green": ("green", "g"),
    "blue": ("blue", "b"),
    "colour": ("colour", "color", "rgb", "hex"),
}
"""What the columns of label maps are called in other tools, in lower case. Of several columns that
may be one of ours, the first name here counts.
"""
NAME_OR_ID = ("class", "label")
"""Columns that hold names, or ids where another column holds the names."""
VOID_NAMES = ("void", "unlabeled", "unlabelled", "ignore", "ignored", "none", "don't care")
"""Names of pixels without a class, in label maps that have no train ids."""


def _standard_rows(path: Path, header: Sequence[str], rows: Sequence[list[str]]) -> list[list[str]]:
    """Return the rows of a label map of another tool in :data:`COLUMNS`.

    Its columns may stand in another order or have other names, such as ``name,r,g,b`` or
    ``id,name,color``. A :class:`NoteWarning` names the numbers that the file does not give.
    """
    index_of = _known_columns(header, rows)
    has_colours = "colour" in index_of or {"red", "green", "blue"} <= index_of.keys()
    if "name" not in index_of or not has_colours:
        raise InputError(
            f"label map {path} has the columns {','.join(header)} instead of {','.join(COLUMNS)}",
            hint="a header of name,r,g,b is enough; segunc init DATA --out mine.yaml writes one of "
            "your labels, to be edited",
        )
    standard: list[list[str]] = []
    classes = 0
    for number, row in enumerate(rows):
        if len(row) != len(header):
            raise InputError(
                f"label map {path}: the row {','.join(row)} does not hold {','.join(header)}",
                hint="give each row a cell for each column",
            )
        cells = {column: row[index].strip() for column, index in index_of.items()}
        raw = cells.get("id", str(number))
        is_void = cells["name"].lower() in VOID_NAMES or raw == str(IGNORE)
        default_train = IGNORE if is_void else classes
        train = cells.get("train_id", str(default_train))
        if not is_void:
            classes += 1
        standard.append([raw, cells["name"], train, *_colour_cells(cells)])
    _warn_of_numbers(path, index_of, standard)
    return standard


def _known_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the index of each column that :data:`COLUMN_NAMES` knows, by our name for it."""
    index_of_text: dict[str, int] = {}
    for index, text in enumerate(header):
        index_of_text.setdefault(text.strip().lower().replace(" ", "_"), index)
    index_of: dict[str, int] = {}
    for column, names in COLUMN_NAMES.items():
        for name in names:
            if name in index_of_text:
                index_of.setdefault(column, index_of_text[name])
    for name in NAME_OR_ID:
        other = index_of_text.get(name)
        if other is None or "id" in index_of or other == index_of.get("name"):
            continue
        cells = [row[other].strip() for row in rows if len(row) == len(header)]
        if all(cell.isdecimal() for cell in cells):
            index_of["id"] = other
    return index_of


def _colour_cells(cells: Mapping[str, str]) -> list[str]:
    """Return red, green and blue of a row.

    They may stand in one cell: as ``#rrggbb``, or as three numbers.
    """
    if "red" in cells:
        return [cells["red"], cells["green"], cells["blue"]]
    text = cells["colour"].removeprefix("#")
    if re.fullmatch(r"[0-9a-fA-F]{6}", text):
        return [str(part) for part in bytes.fromhex(text)]
    return re.findall(r"[^\s,;()\[\]]+", text)


def _warn_of_numbers(path: Path, columns: Collection[str], rows: Sequence[Sequence[str]]) -> None:
    """Warn of ids and train ids that a label map does not give (:class:`NoteWarning`)."""
    if "id" not in columns:
        warnings.warn(
            f"label map {path} has no column id, so its rows are the ids 0 to {len(rows) - 1}: "
            "labels in its colours are read rightly, others only where they hold these ids",
            NoteWarning,
            stacklevel=2,
        )
    if "train_id" not in columns:
        ignored = [name for _, name, train, *_ in rows if train == str(IGNORE)]
        warnings.warn(
            f"label map {path} has no column train_id: each row is a class in its order, "
            f"and it ignores {', '.join(ignored) or 'nothing'}",
            NoteWarning,
            stacklevel=2,
        )


def label_map(name: str) -> LabelMap:
    """Return a built-in label map by its name, or a user's own by the path of its CSV file."""
    if name.endswith(".csv"):
        return read_label_map(Path(name))
    files = sorted((Path(__file__).parent / "labels").glob("*.csv"))
    built_in = {path.stem: path for path in files}
    if name not in built_in and Path(name).is_file():
        raise InputError(
            f"label map {name} is not a CSV file: its name does not end in .csv",
            hint=f"save it as .csv with a header and the columns name,r,g,b or {','.join(COLUMNS)}",
        )
    if name not in built_in:
        raise InputError(
            f"no label map is called '{name}'",
            hint=f"{', '.join(built_in)} or the path of a CSV file",
        )
    return read_label_map(built_in[name])


_VALUES: dict[tuple[Path, int, int, str], frozenset[int]] = {}
"""Values by path, size, time of change and :attr:`LabelMap.code`: a file that is written anew is
read anew, also a label map.
"""


def label_values(path: Path, labels: LabelMap | None = None) -> frozenset[int]:
    """Return the raw values that occur in a label file; the process remembers them.

    A label map says which colour stands for which value, for files in colour.
    """
    with reading(f"label {path}", "a PNG"):
        status = path.stat()
    key = (path, status.st_size, status.st_mtime_ns, labels.code if labels else "")
    if key not in _VALUES:
        raw = labels.read_ids(path) if labels else read_label_image(path)
        counts = np.bincount(raw.ravel(), minlength=256)
        _VALUES[key] = frozenset(np.flatnonzero(counts).tolist())
    return _VALUES[key]


def check_label_files(files: Iterable[Path], labels: LabelMap, *, training: bool = False) -> None:
    """Check that the values of a set of label files are those of a label map.

    One file cannot tell, so files are read until the values seen so far settle it; for a set that
    is right, that is the first file or two. Where it stays open, a :class:`NoteWarning` says so.

    Args:
        files: the label files.
        labels: what their values should mean.
        training: refuse labels that leave nothing, or one class alone, to learn.

    Raises:
        InputError: the labels hold train ids instead of raw ids, or nothing to learn.
    """
    train_ids = {*range(labels.train_ids), IGNORE}
    is_renumbered = _is_renumbered(labels, train_ids)
    ids = {raw for raw, train in labels.raw_to_train.items() if train != IGNORE}
    settling = ids - (train_ids if is_renumbered else {0, IGNORE})
    undecided = _values_without(files, labels, settling)
    if undecided is None:
        return
    first_file, values = undecided
    fact = (
        f"no label file, the first is {first_file}, holds a value other than "
        f"{compact_ranges(values)}"
    )
    hint = (
        "give the --label-map of the train ids, such as cityscapes-train-ids (data.labels to train)"
    )
    may_be_train_ids = is_renumbered and values <= train_ids
    if may_be_train_ids and IGNORE in values:
        raise InputError(
            f"{fact}: these look like train ids, not like ids of label map '{labels.name}'",
            hint=hint,
        )
    learnt = {labels.raw_to_train.get(value, IGNORE) for value in values} - {IGNORE}
    if not learnt:
        fact += f", which label map '{labels.name}' ignores"
    elif values == {0, IGNORE} and len(learnt) == 1:
        fact += ", so there is one class"
    elif may_be_train_ids:
        warnings.warn(
            f"{fact}; if these are train ids, what follows is wrong: {hint}",
            NoteWarning,
            stacklevel=2,
        )
        return
    else:
        return
    if training:
        raise InputError(fact, hint="check the labels and the label map")
    warnings.warn(fact, NoteWarning, stacklevel=2)


def _is_renumbered(labels: LabelMap, train_ids: Collection[int]) -> bool:
    """Return whether most classes of a map have a raw id beyond the train ids.

    Files of its raw ids then hold such values, and files of train ids do not.
    """
    lowest_id: dict[int, int] = {}  # by train id
    for raw, train in sorted(labels.raw_to_train.items()):
        if train != IGNORE:
            lowest_id.setdefault(train, raw)
    beyond = [raw for raw in lowest_id.values() if raw not in train_ids]
    return 2 * len(beyond) >= len(lowest_id)


def _values_without(
    files: Iterable[Path], labels: LabelMap, settling: Collection[int]
) -> tuple[Path, set[int]] | None:
    """Return the first file and the values of all files, if none holds a ``settling`` value.

    Files are read until one holds such a value. One that cannot be read is passed over: whoever
    reads its frame says what is wrong. None if a settling value was found or no file can be read.
    """
    first_file: Path | None = None
    values: set[int] = set()
    for file in files:
        try:
            values |= label_values(file, labels)
        except InputError:
            continue
        if first_file is None:
            first_file = file
        if not values.isdisjoint(settling):
            return None
    if first_file is None:
        return None
    return first_file, values
