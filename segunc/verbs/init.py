"""``segunc init``: from a folder of images and labels to a configuration.

It writes a label map, a list of frames, a picture of pairs, and one configuration of train,
finetune and evaluate.
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from string import Template
from typing import NamedTuple

import cv2
import numpy as np

from segunc.colours import CLASS_COLOURS
from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import csv_text, read_text, write_file
from segunc.core.results import VerbResult
from segunc.core.terminal import agreeing, counted
from segunc.data.census import MAX_SECONDS, SAMPLED_LABELS, Value, take_census
from segunc.data.channels import load_shown
from segunc.data.data_set_table import OWN_ENTRY
from segunc.data.discover import (
    FRAMES_LIST,
    PAIRS_PICTURE,
    Found,
    NoLabelsError,
    discover,
    labels_beside,
)
from segunc.data.entries import DatasetEntry
from segunc.data.frame_lists import FRAME_COLUMNS, FrameRow, read_frame_list
from segunc.data.images import Colour, Image, Labels, resize_nearest
from segunc.data.labels import (
    COLUMNS,
    IGNORE,
    VOID_NAMES,
    LabelMap,
    label_map,
    label_map_of_rows,
    read_label_map,
)
from segunc.data.pairing import Pair
from segunc.data.recognition import Recognised, recognise, recognised_as
from segunc.data.splits import Divider, find_copies
from segunc.gallery.drawing import Sheet
from segunc.maps.encoding import encode_jpeg
from segunc.options import InitOptions, recorded_command, takes
from segunc.verbs.init_update import (
    free_result,
    lines_of_choices,
    note_on_no_record,
    record_choices,
    step_after_update,
    with_earlier_choices,
    with_earlier_splits,
)
from segunc.verbs.output_folders import is_output_folder

VOID_COLOUR = (20, 20, 28)
MASK_COLOURS = ((70, 110, 170), (255, 120, 0))
"""Of normal pixels and of anomalies, on the picture of a set of masks."""
MIN_DISTANCE = 60
"""Steps of 256 between a proposed colour and one that is taken, in one channel at least."""
SHOWN_PAIRS = 8
"""Pairs on the picture."""
CELL_WIDTH = 400
"""Pixels of one image there."""
GAP = 6
"""Pixels between two pairs there."""
LEGEND_COLUMNS = 4
LEGEND_ROW_HEIGHT = 28


class ClassRow(NamedTuple):
    """A row of a label map, with its columns in their order."""

    raw: int
    name: str
    train: int
    red: int
    green: int
    blue: int

    def value(self, kind: str) -> Value:
        """Return what the labels hold of the class: its id, or its colour."""
        if kind == "ids":
            return self.raw
        return self.red, self.green, self.blue


@dataclass(frozen=True, repr=False)
class InitResult(VerbResult):
    """What was found and written.

    Attributes:
        config: the configuration.
        dataset: what it names as the data set: ``folder`` for your own data.
        label_map: the CSV file of the classes; None for a data set whose classes are known.
        frames: the CSV file of the frames: split,image,label; None if the data set has splits.
        picture: a picture of pairs of images and labels, to look at.
        then: the command that comes next.
        about: what was found, in lines.
        notes: what was assumed or left out.
        kept: the files of an earlier init that stay as they were.
        first: what has to be settled before ``then``; empty for nothing.
    """

    config: Path
    dataset: str
    label_map: Path | None
    frames: Path | None
    picture: Path
    then: str
    about: tuple[str, ...]
    notes: tuple[str, ...]
    kept: tuple[Path, ...] = ()
    first: str = ""


@takes(InitOptions)
def init(options: InitOptions) -> InitResult:
    """Look at a folder of images and labels, and write the configuration ``out`` with a label map,
    a list of frames and a picture beside. A published data set is recognised by its files; its
    classes and splits are known.

    Raises:
        InputError: no images or labels are found, a published data set is only half there, or what
            the labels mean is not clear; the hint names the option that decides.

    >>> result = init(InitOptions(data=data, out=folder / "mine.yaml", labels="gtFine"))
    >>> result.config.name, len(result.about) > 5
    ('mine.yaml', True)
    """
    root = Path(options.data)
    files = _Files(Path(options.out))
    typed = options
    before: list[FrameRow] = []
    notes: list[str] = []
    if options.update:
        before = files.read_for_update(options)
        options = with_earlier_choices(options, notes)
        options = replace(options, label_map=options.label_map or str(files.classes))
    elif not options.overwrite:
        files.check_free()
    recognised = _recognised(root, options, notes)
    if recognised is not None:
        return _init_published(recognised, files)
    discovered = _discover_noting(root, options, typed, notes)
    added: Counter[str] = Counter()
    if before:
        discovered.pairs, added = with_earlier_splits(
            root,
            discovered.pairs,
            before,
            files.config,
            discovered.notes,
            keep_labels=not typed.labels,
        )
    copies = _note_copies(root, discovered, before if options.update else None)
    rows = _class_rows(discovered, options)
    # Before anything is written: a pair that cannot be read leaves the files as they were.
    shown = _show(discovered, files, rows)
    kept = []
    if not _write_classes(files.classes, rows, options, discovered.notes):
        kept.append(files.classes)
    labels = read_label_map(files.classes)
    _write_frames(files.frames, discovered.pairs)
    write_file(files.picture, shown.picture)
    if options.update:
        if not record_choices(root, options, typed, discovered.notes):
            kept.insert(0, files.config)
        then = step_after_update(files.config, added, discovered.notes)
    else:
        _write_own_configuration(files, discovered, shown.sizes, lines_of_choices(root, options))
        then = f"segunc train --config {files.config} --out runs/base"
    if not options.label_map:
        discovered.notes.extend(_notes_on_label_maps(root, discovered, files.classes))
    return InitResult(
        config=files.config,
        dataset="folder",
        label_map=files.classes,
        frames=files.frames,
        picture=files.picture,
        then=then,
        about=_about(discovered, labels, rows, files.frames),
        notes=tuple(discovered.notes),
        kept=tuple(kept),
        first=_settling_of_copies(files, typed) if copies else "",
    )


class _Shown(NamedTuple):
    """What is read of images and labels.

    Attributes:
        picture: of pairs, as a JPEG.
        sizes: height and width of some frames.
    """

    picture: bytes
    sizes: Sequence[tuple[int, int]]


def _show(found: Found, files: _Files, rows: Iterable[ClassRow]) -> _Shown:
    """Return the picture of pairs with the label map of rows that are not written yet, and the
    sizes of some frames.

    Raises:
        InputError: an image or a label cannot be read, or the two of a pair differ in size.
    """
    texts = [[str(cell) for cell in row] for row in rows]
    labels = label_map_of_rows(files.classes, texts)
    return _Shown(encode_jpeg(_picture(found, labels)), _sampled_sizes(found))


def _note_copies(root: Path, found: Found, before: Sequence[FrameRow] | None) -> bool:
    """Note images that are copies of others. Return whether any is in another split.

    Args:
        root: the folder of the data.
        found: gets the notes.
        before: the frames of an earlier list, whose copies an earlier init noted; None without one.
    """
    if before is None:
        copies = find_copies(root, found.pairs)
        repeats = copies.note_on_repeats()
    else:
        listed = {frame.image for frame in before}
        new = {pair.image for pair in found.pairs if pair.image.as_posix() not in listed}
        copies = find_copies(root, found.pairs, new)
        repeats = copies.note_on_new(new)
    notes = (copies.note_on_splits(), repeats)
    found.notes.extend(note for note in notes if note)
    return bool(copies.across)


def _settling_of_copies(files: _Files, typed: InitOptions) -> str:
    """Return how copies over splits are settled before a training."""
    update = recorded_command("init", InitOptions(data=typed.data, out=typed.out, update=True))
    return (
        f"settle the copies: give an image and its copy the same split in {files.frames}, or "
        f"remove one of the two and call {update}"
    )


def _discover_noting(
    root: Path, options: InitOptions, typed: InitOptions, notes: Sequence[str]
) -> Found:
    """Return what a folder holds, as :func:`_discover` does, with notes before those on the folder.

    An update of a configuration of an earlier version also says which options may be missing.
    """
    unrecorded = note_on_no_record(typed) if typed.update else ""
    try:
        found = _discover(root, options, typed)
    except InputError as error:
        if not unrecorded:
            raise
        hint = f"{unrecorded}; {error.hint}" if error.hint else unrecorded
        raise InputError(error.message, hint=hint) from error
    found.notes[:0] = [*notes, unrecorded] if unrecorded else notes
    return found


def _discover(root: Path, options: InitOptions, typed: InitOptions) -> Found:
    """Return what a folder holds.

    Args:
        root: the folder.
        options: what is looked for.
        typed: the options as the user typed them, for the hint.

    Raises:
        InputError: as :func:`discover` does. Where the labels lie beside the folder, the hint is
            the command with the folder that holds both.
    """
    try:
        return discover(
            root,
            options.images,
            options.labels,
            labelled_only=options.labelled_only,
            label_map=label_map(options.label_map) if options.label_map else None,
            allow_mixed=options.void is not None,
            is_output_folder=is_output_folder,
        )
    except NoLabelsError as error:
        labels = labels_beside(root)
        if labels is None:
            raise
        command = recorded_command("init", replace(typed, data=labels.parent))
        raise InputError(
            error.message,
            hint=f"{labels} looks like labels, so take the folder that holds both: {command}",
        ) from error


def _write_own_configuration(
    files: _Files, found: Found, sizes: Sequence[tuple[int, int]], choices: str
) -> None:
    """Write the configuration of your own data, whose other files are written.

    Args:
        files: what is written.
        found: what the folder of the data holds.
        sizes: height and width of some frames.
        choices: comments on what an update takes again.
    """
    data = _DataLines(
        dataset="folder",
        frames=files.frames,
        labels=files.classes,
        remark="Names and colours of the classes stand in the label map. A new frame needs a line "
        "in the list of frames, or `segunc init --update`.",
    )
    settings = _configuration(files.config, data, found, sizes, choices)
    write_file(files.config, settings.encode())


def _write_classes(
    path: Path, rows: Sequence[ClassRow], options: InitOptions, notes: list[str]
) -> bool:
    """Write a label map, or the rows that it lacks where the options name the file itself. Return
    whether anything was written.
    """
    if options.label_map == str(path):
        return _add_rows(path, rows, notes)
    write_file(path, csv_text([COLUMNS, *rows]).encode())
    return True


def _add_rows(path: Path, rows: Sequence[ClassRow], notes: list[str]) -> bool:
    """Add the rows that a label map lacks to its file, whose other lines stay as they are, and note
    them. Return whether there were any.
    """
    known = read_label_map(path).raw_to_train
    added = [row for row in rows if row.raw not in known]
    if not added:
        return False
    header, _, _ = read_text(path).partition("\n")
    if header.strip() == ",".join(COLUMNS):
        lines = read_text(path).rstrip("\r\n")
        text = f"{lines}\n{csv_text(added)}"
    else:
        text = csv_text([COLUMNS, *rows])
    write_file(path, text.encode())
    shown = "; ".join(",".join(str(cell) for cell in row) for row in added)
    notes.append(f"adds {shown} to {path}, whose other rows stay as they are")
    return True


@dataclass(frozen=True)
class _Files:
    """The files that init writes: a configuration, and others whose names begin as its does."""

    config: Path

    @property
    def classes(self) -> Path:
        return _beside(self.config, "classes.csv")

    @property
    def frames(self) -> Path:
        return _beside(self.config, FRAMES_LIST)

    @property
    def picture(self) -> Path:
        return _beside(self.config, PAIRS_PICTURE)

    def check_free(self) -> None:
        """Raise InputError if one of the files is there already."""
        for path in (self.config, self.classes, self.frames, self.picture):
            if path.exists():
                raise InputError(
                    f"{path} already exists",
                    hint="--update adds new frames and keeps what you edited, --overwrite writes "
                    "all files anew, or give another --out",
                )

    def read_for_update(self, options: InitOptions) -> list[FrameRow]:
        """Return the frames that an earlier init listed.

        Raises:
            InputError: there is no earlier init of your own data, or its files are to be replaced.
        """
        if options.overwrite:
            raise InputError(
                "--update keeps the files of an earlier init, and --overwrite replaces them",
                hint="leave one of the two out",
            )
        for path in (self.config, self.classes, self.frames):
            if not path.exists():
                raise InputError(
                    f"{path} does not exist, so there is no earlier init to update",
                    hint="leave --update out",
                )
        return read_frame_list(self.frames)


def _recognised(root: Path, options: InitOptions, notes: list[str]) -> Recognised | None:
    """Return the published data set of a folder, None if the user says what the files are.

    Raises:
        InputError: the options name a data set, and also what its files are.
    """
    says_what_files_are = {
        "--images": options.images,
        "--labels": options.labels,
        "--label-map": options.label_map,
        "--void": options.void,
        "--two-classes": options.two_classes,
        "--labelled-only": options.labelled_only,
    }
    named = [flag for flag, value in says_what_files_are.items() if value]
    if options.dataset is None:
        return None if named else recognise(root, notes)
    if named:
        raise InputError(
            f"--dataset {options.dataset} says what the files are, and so does {named[0]}",
            hint=f"leave out {named[0]}, or --dataset",
        )
    return recognised_as(root, options.dataset)


def _init_published(recognised: Recognised, files: _Files) -> InitResult:
    """Write the configuration of a published data set and a picture of it.

    It is one of train, finetune and evaluate where the set has classes and frames to train on. A
    set without frames to validate on gets a list of frames that holds some out.
    """
    entry = recognised.entry
    found = _found(recognised)
    labels = label_map(entry.labels) if entry.labels else _map_of_masks(entry)
    has_training_frames = "train" in recognised.samples or "all" in recognised.samples
    trains = entry.labels is not None and has_training_frames
    has_splits = {"train", "val"} <= recognised.samples.keys()
    frames: Path | None = None
    if trains and not has_splits:
        frames = files.frames
        divider = Divider(found.root, entry.layouts[0].image_ending, found.notes)
        found.pairs = divider.divide(found.pairs)
    picture = encode_jpeg(_picture(found, labels))
    data = _DataLines(
        dataset=_dataset_from(files.config, recognised.name),
        frames=frames,
        labels=None,
        remark=f"{recognised.describe()}.",
    )
    if trains:
        settings = _configuration(files.config, data, found, _sampled_sizes(found))
        then = f"segunc train --config {files.config} --out runs/base"
    else:
        settings = _evaluation(files.config, data, found.root)
        words = f"--config {files.config} --model MODEL --out {free_result()}"
        then = f"segunc evaluate {words}"
    if frames is not None:
        _write_frames(frames, found.pairs)
    write_file(files.picture, picture)
    write_file(files.config, settings.encode())
    about = _about(found, labels, _rows_of(labels), frames=None)
    return InitResult(
        config=files.config,
        dataset=recognised.name,
        label_map=None,
        frames=frames,
        picture=files.picture,
        then=then,
        about=(recognised.describe(), *about[1:]),
        notes=tuple(found.notes),
    )


def _found(recognised: Recognised) -> Found:
    """Return the frames of a published data set and what their labels hold."""
    pairs: list[Pair] = []
    for split, image, label in recognised.frames:
        pair = Pair(
            split="" if split == "all" else split,
            image=image.relative_to(recognised.root),
            label=label.relative_to(recognised.root),
        )
        pairs.append(pair)
    notes: list[str] = []
    if recognised.missing:
        first = next(iter(recognised.missing.values()))
        splits = ", ".join(recognised.missing)
        notes.append(f"not there: {splits}; the first would lie in {first}")
    if recognised.entry.labels is None:
        notes.append("the data set marks anomalies and no classes, so it evaluates a model")
    census = take_census(recognised.root, pairs, allow_mixed=True)
    return Found(recognised.root, pairs, census, notes)


def _map_of_masks(entry: DatasetEntry) -> LabelMap:
    """Return names and colours for the values of the masks of a data set."""
    masks = entry.anomaly_masks
    assert masks is not None
    train_ids = dict.fromkeys(masks.normal, 0)
    train_ids.update(dict.fromkeys(masks.anomaly, 1))
    train_ids.update(dict.fromkeys(masks.ignored, IGNORE))
    return LabelMap(entry.name, ("normal", "anomaly"), MASK_COLOURS, train_ids)


def _dataset_from(config: Path, name: str) -> str:
    """Return the name of a data set as a configuration has it: a table's path is relative."""
    own_entry = OWN_ENTRY.fullmatch(name)
    if own_entry is None:
        return name
    return f"{_from(config, Path(own_entry['file']))}:{own_entry['name']}"


def _write_frames(path: Path, pairs: Iterable[Pair]) -> None:
    """Write a list of frames."""
    frames = [(pair.split, pair.image.as_posix(), pair.label.as_posix()) for pair in pairs]
    write_file(path, csv_text([FRAME_COLUMNS, *frames]).encode())


def _beside(config: Path, ending: str) -> Path:
    """Return the path of a file that belongs to a configuration: ``mine-classes.csv``."""
    stem = config.with_suffix("")
    return stem.with_name(f"{stem.name}-{ending}")


def _sampled_sizes(found: Found) -> list[tuple[int, int]]:
    """Return height and width of about eight images, spread over the folder."""
    step = max(1, len(found.pairs) // 8)
    sizes: list[tuple[int, int]] = []
    for pair in found.pairs[::step]:
        height, width = load_shown(found.root / pair.image).shape[:2]
        sizes.append((height, width))
    return sizes


def _text(value: Value) -> str:
    """Return an id, or a colour as ``#rrggbb``."""
    return str(value) if isinstance(value, int) else "#{:02x}{:02x}{:02x}".format(*value)


def _class_rows(found: Found, options: InitOptions) -> list[ClassRow]:
    """Return the rows of the label map: of the one that the user names, or proposed."""
    if options.label_map:
        labels = label_map(options.label_map)
        void_rows = _rows_of_void(found, labels, options.void or ())
        known = {row.value(found.kind) for row in void_rows}
        _check_values_known(found, labels, options, known)
        _check_shared_colours(found, labels, options)
        return [*_rows_of(labels), *void_rows]
    values = sorted(found.pixels, key=_sort_key)
    if not options.two_classes:
        _check_no_masks(values)
    void = _void(found, values, options)
    return _proposed_rows(found, values, void)


def _sort_key(value: Value) -> tuple[int, ...]:
    """Return what sorts ids, or colours; labels hold one of the two."""
    return (value,) if isinstance(value, int) else value


def _values_of(found: Found, labels: LabelMap) -> Collection[Value]:
    """Return the ids or colours that a label map knows."""
    if found.kind == "colours":
        return labels.colours or {}
    return labels.raw_to_train


def _ignored_values(found: Found, labels: LabelMap) -> set[Value]:
    """Return the ids or colours that a label map ignores."""
    if found.kind != "colours":
        return {raw for raw, train in labels.raw_to_train.items() if train == IGNORE}
    # The id of a colour that stands for several classes is -1, which is no id of the label map.
    colours = labels.colours or {}
    return {colour for colour, raw in colours.items() if labels.raw_to_train.get(raw) == IGNORE}


def _notes_on_label_maps(root: Path, found: Found, written: Path) -> list[str]:
    """Return a line on each CSV file beside the frames that says what the labels hold, except for
    the label map that this run has ``written``.
    """
    notes: list[str] = []
    for path in sorted(root.glob("*.csv")):
        if path.resolve() == written.resolve():
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NoteWarning)
                labels = read_label_map(path)
        except InputError:
            continue
        if found.pixels.keys() <= set(_values_of(found, labels)):
            notes.append(
                f"{path} names all values of the labels; --label-map {path} --overwrite takes "
                "its names"
            )
    return notes


def _rows_of_void(found: Found, labels: LabelMap, texts: Iterable[str]) -> list[ClassRow]:
    """Return a row for each value that the user names as void and that the label map lacks.

    Raises:
        InputError: the label map says what a named value is.
    """
    values = _values_of(found, labels)
    ignored = _ignored_values(found, labels)
    if ignored:
        # The name of what the label map ignores asks for what is done anyway.
        texts = [text for text in texts if text.lower() not in VOID_NAMES]
    taken = [text for text in texts if text in labels.classes]
    if not taken:
        void = _named_void(sorted(found.pixels, key=_sort_key), texts) - ignored
        taken = [_text(value) for value in sorted(void, key=_sort_key) if value in values]
    if taken:
        raise InputError(
            f"--void {','.join(taken)} is a class of the label map",
            hint="give it the train_id 255 there",
        )
    free_ids = (raw for raw in range(256) if raw not in labels.raw_to_train)
    rows: list[ClassRow] = []
    for value in sorted(void, key=_sort_key):
        if isinstance(value, int):
            rows.append(ClassRow(value, "void", IGNORE, *VOID_COLOUR))
        else:
            rows.append(ClassRow(next(free_ids), "void", IGNORE, *value))
    return rows


def _check_values_known(
    found: Found, labels: LabelMap, options: InitOptions, void: Collection[Value]
) -> None:
    """Raise InputError for ids or colours of the labels that are neither in the label map of the
    options nor void.
    """
    known = _values_of(found, labels)
    unknown = [value for value in found.pixels if value not in known and value not in void]
    if unknown:
        texts = [_text(value) for value in sorted(unknown, key=_sort_key)]
        more = ", ..." if len(texts) > 5 else ""
        number = counted(len(texts), "value")
        are = agreeing("is", len(texts))
        ignore = f"--void '{','.join(texts)}' ignores {'it' if len(texts) == 1 else 'them'}"
        if options.update:
            row = ",".join(str(cell) for cell in _row_to_add(found, labels, min(unknown)))
            others = "" if len(texts) == 1 else ", and likewise for the others"
            add = f"for a class, add the row {row} to {options.label_map}{others}"
        else:
            add = "or add rows, or leave --label-map out, and a label map is proposed"
        raise InputError(
            f"{number} of the labels {are} not in label map {options.label_map}: "
            f"{', '.join(texts[:5])}{more}{_where(found, unknown)}",
            hint=f"{ignore}; {add}",
        )


def _check_shared_colours(found: Found, labels: LabelMap, options: InitOptions) -> None:
    """Raise InputError for a colour of the labels that the label map of the options gives to
    several classes. The label map that is written would give it to one of them.
    """
    if found.kind != "colours":
        return
    colours = labels.colours or {}
    shared = [
        value for value in found.pixels if not isinstance(value, int) and colours.get(value) == -1
    ]
    if shared:
        first = min(shared, key=_sort_key)
        raise InputError(
            f"label map {options.label_map} gives the colour {_text(first)} to several classes, "
            f"and labels hold it{_where(found, [first])}",
            hint="give each class a colour of its own there, or its rows one train_id",
        )


def _where(found: Found, values: Collection[Value]) -> str:
    """Return which labels hold some values, in words; empty where that was not counted."""
    labels = found.census.labels_with(values)
    if not labels:
        return ""
    counts = found.pixels
    pixels = sum(counts[value] for value in values)
    return (
        f"; first in {labels[0]}, {pixels} pixels in {len(labels)} of the {found.looked_at} labels "
        "that were looked at"
    )


def _row_to_add(found: Found, labels: LabelMap, value: Value) -> tuple[int | str, ...]:
    """Return the row that makes an id or a colour of the labels the next class of a label map."""
    train = labels.num_classes
    if not isinstance(value, int):
        raw = next(raw for raw in range(256) if raw not in labels.raw_to_train)
        return raw, "NAME", train, *value
    return value, "NAME", train, *_proposed(train, labels.palette)


def _check_no_masks(values: Sequence[Value]) -> None:
    """Raise InputError for labels of two values, which may be masks of anomalies."""
    is_two_with_void = len(values) == 3 and IGNORE in values
    if len(values) > 2 and not is_two_with_void:
        return
    shown = " and ".join(_text(value) for value in values)
    if len(values) < 2:
        raise InputError(
            f"the labels hold {shown} alone: nothing to learn",
            hint="--labels names other labels",
        )
    dataset_options = {"0 and 2": " --dataset road-anomaly", "0 and 255": " --dataset folder-255"}
    dataset = dataset_options.get(shown, "")
    raise InputError(
        f"the labels hold {shown} alone: masks",
        hint="--two-classes learns them; if they mark anomalies: "
        f"segunc evaluate --maps MAPS --anomaly-labels LABELS{dataset}",
    )


def _proposed_rows(found: Found, values: Sequence[Value], void: set[Value]) -> list[ClassRow]:
    """Return a row for each value of the labels; those of ``void`` are ignored."""
    rows: list[ClassRow] = []
    number = 0
    for index, value in enumerate(values):
        is_void = value in void
        name = "void" if is_void else f"class {_text(value)}"
        train = IGNORE if is_void else number
        if not isinstance(value, int):
            rows.append(ClassRow(index, name, train, *value))
        elif is_void:
            rows.append(ClassRow(value, name, train, *VOID_COLOUR))
        else:
            colour = _colour_of_id(found, values, value, number)
            rows.append(ClassRow(value, name, train, *colour))
        if not is_void:
            number += 1
    if number < 2:
        raise InputError(
            "fewer than two classes are left to learn", hint="name fewer values at --void"
        )
    return rows


def _colour_of_id(found: Found, values: Sequence[Value], value: int, number: int) -> Colour:
    """Return the colour of class ``number``: that of the labels' palette, or a proposed one.

    A palette's grey is not taken: grey pixels of three channels may be ids.
    """
    colour = found.palette.get(value, (0, 0, 0))
    if not _is_grey(colour):
        return colour
    taken: list[Colour] = []
    for other, colour_of_other in found.palette.items():
        if other in values and not _is_grey(colour_of_other):
            taken.append(colour_of_other)
    return _proposed(number, taken)


def _is_grey(colour: Colour) -> bool:
    return len(set(colour)) == 1


def _proposed(number: int, taken: Sequence[Colour] = ()) -> Colour:
    """Return the colour of a class, far from the colours that others have.

    When the colours run out, the first ones return darker.
    """

    def is_free(colour: Colour) -> bool:
        return all(np.abs(np.subtract(colour, other)).max() >= MIN_DISTANCE for other in taken)

    free = [colour for colour in CLASS_COLOURS if is_free(colour)] or CLASS_COLOURS
    rounds, place = divmod(number, len(free))
    red, green, blue = (round(part * 0.6**rounds) for part in free[place])
    return red, green, blue


def _rows_of(labels: LabelMap) -> list[ClassRow]:
    """Return the rows that describe a label map, with the colour of each raw id if it has one."""
    colour_of_id = {raw: colour for colour, raw in (labels.colours or {}).items()}
    rows: list[ClassRow] = []
    for raw, train in sorted(labels.raw_to_train.items(), key=lambda item: (item[1], item[0])):
        if train == IGNORE:
            name = "void"
            class_colour = VOID_COLOUR
        else:
            name = labels.classes[train]
            class_colour = labels.palette[train]
        rows.append(ClassRow(raw, name, train, *colour_of_id.get(raw, class_colour)))
    return rows


def _void(found: Found, values: Sequence[Value], options: InitOptions) -> set[Value]:
    """Return the values that no class has, and note what was assumed."""
    if options.void is not None:
        return _named_void(values, options.void)
    usual: Value = IGNORE if found.kind == "ids" else (0, 0, 0)
    fewest_classes = 2 if found.kind == "ids" else 3
    if usual in values and len(values) > fewest_classes:
        found.notes.append(
            f"assumes that {_text(usual)} is void and ignores it; --void none makes it a class"
        )
        return {usual}
    found.notes.append(
        "assumes that every value is a class; --void VALUE ignores one that marks what has none"
    )
    return set()


def _named_void(values: Sequence[Value], texts: Iterable[str]) -> set[Value]:
    """Return the values that the user names as void."""
    named = {text.lower() for text in texts} - {"none"}
    void = {value for value in values if _text(value) in named}
    unknown = named - {_text(value) for value in void}
    if unknown:
        raise InputError(
            f"--void {', '.join(sorted(unknown))} is not a value of the labels",
            hint=f"they hold {', '.join(_text(value) for value in values)}",
        )
    return void


def _about(
    found: Found, labels: LabelMap, rows: Sequence[ClassRow], frames: Path | None
) -> tuple[str, ...]:
    """Return what was found, in lines.

    ``frames`` is the list of frames that was written; None for a data set with splits of its own.
    """
    counts = ", ".join(f"{count} {split}" for split, count in found.counts().items())
    lines = [f"{counted(len(found.pairs), 'pair')} of image and label: {counts}"]
    examples = _spread(found.pairs, count=3)
    lines += [f"  {pair.split}: {pair.image} with {pair.label}" for pair in examples]
    if frames is not None:
        lines.append(f"  other splits: edit the column split of {frames}; --update keeps it")
    lines.append(
        f"{labels.num_classes} classes by {found.kind} in {_labels_in_words(found)} and refuses "
        "other values"
    )
    pixels = found.pixels
    total = max(1, pixels.total())
    for row in rows:
        value = row.value(found.kind)
        if row.train == IGNORE and value not in pixels:
            continue
        share = pixels.get(value, 0) / total
        ignored = ", ignored" if row.train == IGNORE else ""
        line = f"  {_text(value):>8}  {row.name}: {100 * share:.2f} % of the pixels{ignored}"
        lines.append(line)
    return tuple(lines)


def _labels_in_words(found: Found) -> str:
    """Return in how many labels classes were found, and that training sees all labels."""
    total = counted(len(found.pairs), "label")
    if found.looked_at >= len(found.pairs):
        return f"the {total}; training reads them again"
    return (
        f"{found.looked_at} of the {total}, spread over the splits, because init reads about "
        f"{SAMPLED_LABELS} labels and for {MAX_SECONDS:.0f} s at most; training reads all"
    )


def _spread(pairs: Sequence[Pair], count: int) -> list[Pair]:
    """Return at most ``count`` pairs, evenly spaced."""
    indices = np.linspace(0, len(pairs) - 1, count).astype(int)
    return [pairs[int(index)] for index in np.unique(indices)]


def _picture(found: Found, labels: LabelMap) -> Image:
    """Return eight pairs, each the image beside its label over it, and a legend below."""
    palette = np.full((256, 3), VOID_COLOUR, np.uint8)
    palette[: labels.num_classes] = labels.palette
    cells: list[Image] = []
    has_void = False
    for pair in _spread(found.pairs, SHOWN_PAIRS):
        image, label = _read_pair(found.root, pair, labels)
        cells.append(_cell(image, label, palette))
        has_void |= bool((label == IGNORE).any())
    colours = list(zip(labels.classes, labels.palette, strict=True))
    if has_void:
        colours.append(("void (ignored)", VOID_COLOUR))
    grid = _grid(cells)
    return np.concatenate([grid, _legend(colours, grid.shape[1])])


def _read_pair(root: Path, pair: Pair, labels: LabelMap) -> tuple[Image, Labels]:
    """Return the image and the train ids of a pair.

    Raises:
        InputError: one of them cannot be read, or they differ in size.
    """
    image = load_shown(root / pair.image)
    label = labels.read(root / pair.label)
    if image.shape[:2] != label.shape:
        image_size = "{}x{}".format(*image.shape[:2])
        label_size = "{}x{}".format(*label.shape)
        raise InputError(
            f"image {pair.image} is {image_size}, its label {label_size} pixels",
            hint="--labels names the labels of these images",
        )
    return image, label


def _cell(image: Image, label: Labels, palette: Image) -> Image:
    """Return an image, and beside it the colours of its label over the image in grey."""
    height = max(1, round(CELL_WIDTH * image.shape[0] / image.shape[1]))
    scaled = cv2.resize(image, (CELL_WIDTH, height), interpolation=cv2.INTER_AREA)
    small = np.asarray(scaled, np.uint8)
    grey = np.repeat(small.mean(2, keepdims=True), 3, 2)
    colours = palette[resize_nearest(label, CELL_WIDTH, height)]
    overlay = (0.35 * grey + 0.65 * colours).astype(np.uint8)
    return np.concatenate([small, overlay], axis=1)


def _grid(cells: Sequence[Image]) -> Image:
    """Return cells on white paper, two in a row."""
    paper = 255
    tallest = max(len(cell) for cell in cells)
    padded: list[Image] = []
    for cell in cells:
        below = tallest - len(cell) + GAP
        padded.append(np.pad(cell, ((0, below), (0, GAP), (0, 0)), constant_values=paper))
    if len(padded) % 2:
        padded.append(np.full_like(padded[0], paper))
    lefts = range(0, len(padded), 2)
    rows = [np.concatenate(padded[left : left + 2], axis=1) for left in lefts]
    return np.concatenate(rows)


def _legend(colours: Sequence[tuple[str, Colour]], width: int) -> Image:
    """Return the names of classes beside their colours, in columns."""
    rows = -(-len(colours) // LEGEND_COLUMNS)
    sheet = Sheet(LEGEND_ROW_HEIGHT * rows + GAP, width)
    column_width = width // LEGEND_COLUMNS
    for index, (name, colour) in enumerate(colours):
        row, column = divmod(index, LEGEND_COLUMNS)
        left = 8 + column * column_width
        baseline = 24 + LEGEND_ROW_HEIGHT * row
        sheet.swatch(name, colour, left, baseline, 14, column_width - 16)
    return sheet.pixels


def _from(config: Path, path: Path) -> str:
    """Return a path as a configuration names it.

    It is relative to the folder of the configuration, with ``./`` or ``../``, so that both can be
    moved together; it is whole if the two have no folder in common.
    """
    folder = config.absolute().parent.resolve()
    target = path.absolute().resolve()
    try:
        shared = Path(os.path.commonpath([folder, target]))
    except ValueError:  # on two drives
        return str(target)
    if shared == Path(shared.anchor):
        return str(target)
    relative = Path(os.path.relpath(target, folder)).as_posix()
    if relative == ".":
        return relative
    return relative if relative.startswith("..") else f"./{relative}"


@dataclass(frozen=True)
class _DataLines:
    """What the section ``data`` of a configuration names."""

    dataset: str
    frames: Path | None
    """The list of frames; None if the data set has splits of its own."""
    labels: Path | None
    """The label map; None if the data set has its own."""
    remark: str
    """A comment for whoever reads the configuration."""

    def files(self, config: Path) -> str:
        """Return the lines of the files, as a configuration at a path names them."""
        lines = ""
        if self.frames is not None:
            lines += f"  frames: {_quoted(_from(config, self.frames))}\n"
        if self.labels is not None:
            lines += f"  labels: {_quoted(_from(config, self.labels))}\n"
        return lines


def _template(name: str) -> Template:
    return Template((resources.files("segunc.verbs") / name).read_text(encoding="utf-8"))


def _evaluation(config: Path, data: _DataLines, root: Path) -> str:
    """Return the text of a configuration of evaluate alone."""
    return _template("init-evaluate.template").substitute(
        remark=data.remark, dataset=_quoted(data.dataset), root=_quoted(_from(config, root))
    )


def _configuration(
    config: Path,
    data: _DataLines,
    found: Found,
    sizes: Sequence[tuple[int, int]],
    choices: str = "",
) -> str:
    """Return the text of the configuration of train, finetune and evaluate.

    Args:
        config: where it will lie.
        data: data set, label map and list of frames.
        found: what the folder of the data holds.
        sizes: height and width of some frames.
        choices: comments on what an update takes again.
    """
    height = min(size[0] for size in sizes)
    width = min(size[1] for size in sizes)
    has_one_size = len(set(sizes)) == 1
    training_frames = found.counts()["train"]
    epochs = min(60, max(10, round(12_000 / training_frames)))
    largest_side = 320 if height * width < 1_000_000 else 512
    whole_strides = min(height, width) // 32 * 32
    if has_one_size:
        size = f"inference_size: [{height}, {width}]"
    else:
        size = "# Frames differ in size: each is seen at its own."
    return _template("init.template").substitute(
        remark=data.remark,
        choices=choices,
        dataset=_quoted(data.dataset) if ":" in data.dataset else data.dataset,
        root=_quoted(_from(config, found.root)),
        files=data.files(config),
        side=min(largest_side, max(32, whole_strides)),
        batch_size=min(8, training_frames),
        eval_batch_size=4 if has_one_size else 1,
        size=size,
        epochs=epochs,
        every=max(1, epochs // 8),
    )


def _quoted(text: str) -> str:
    """Return a text as YAML and JSON write it."""
    return json.dumps(text, ensure_ascii=False)
