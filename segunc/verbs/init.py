"""``segunc init``: from a folder of images and labels to a configuration.

It writes a label map, a list of frames, a picture of pairs, and one configuration of train,
finetune and evaluate.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import NamedTuple

import cv2
import numpy as np

from segunc.colours import CLASS_COLOURS
from segunc.core.errors import InputError
from segunc.core.files import csv_text, write_file
from segunc.core.results import VerbResult
from segunc.data.census import Value
from segunc.data.discover import FRAMES_LIST, PAIRS_PICTURE, Found, discover
from segunc.data.frame_lists import FRAME_COLUMNS
from segunc.data.images import Colour, Image, Labels, load_image, resize_nearest
from segunc.data.labels import COLUMNS, IGNORE, LabelMap, label_map, read_label_map
from segunc.data.pairing import Pair
from segunc.gallery.drawing import Sheet
from segunc.maps.encoding import encode_jpeg
from segunc.options import InitOptions, takes

VOID_COLOUR = (20, 20, 28)
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
        label_map: the CSV file of the classes.
        frames: the CSV file of the frames: split,image,label.
        picture: a picture of pairs of images and labels, to look at.
        about: what was found, in lines.
        notes: what was assumed or left out.
    """

    config: Path
    label_map: Path
    frames: Path
    picture: Path
    about: tuple[str, ...]
    notes: tuple[str, ...]


@takes(InitOptions)
def init(options: InitOptions) -> InitResult:
    """Look at a folder of images and labels, and write the configuration ``out`` with a label map,
    a list of frames and a picture beside.

    Raises:
        InputError: no images or labels are found, or what they mean is not clear; the hint names
            the option that decides.

    >>> result = init(InitOptions(data=data, out=folder / "mine.yaml", labels="gtFine"))
    >>> result.config.name, len(result.about) > 5
    ('mine.yaml', True)
    """
    root = Path(options.data)
    config = Path(options.out)
    classes_path = _beside(config, "classes.csv")
    frames_path = _beside(config, FRAMES_LIST)
    picture_path = _beside(config, PAIRS_PICTURE)
    if not options.overwrite:
        for path in (config, classes_path, frames_path, picture_path):
            if path.exists():
                raise InputError(
                    f"{path} already exists",
                    hint="--overwrite writes it anew, or give another --out",
                )
    discovered = discover(
        root,
        options.images,
        options.labels,
        labelled_only=options.labelled_only,
        label_map=label_map(options.label_map) if options.label_map else None,
        allow_mixed=options.void is not None,
    )
    rows = _class_rows(discovered, options)
    write_file(classes_path, csv_text([COLUMNS, *rows]).encode())
    labels = read_label_map(classes_path)
    frames = [
        (pair.split, pair.image.as_posix(), pair.label.as_posix()) for pair in discovered.pairs
    ]
    write_file(frames_path, csv_text([FRAME_COLUMNS, *frames]).encode())
    sizes = _sampled_sizes(discovered)
    write_file(picture_path, encode_jpeg(_picture(discovered, labels)))
    settings = _configuration(config, classes_path, frames_path, discovered, sizes)
    write_file(config, settings.encode())
    return InitResult(
        config=config,
        label_map=classes_path,
        frames=frames_path,
        picture=picture_path,
        about=_about(discovered, labels, rows),
        notes=tuple(discovered.notes),
    )


def _beside(config: Path, ending: str) -> Path:
    """Return the path of a file that belongs to a configuration: ``mine-classes.csv``."""
    stem = config.with_suffix("")
    return stem.with_name(f"{stem.name}-{ending}")


def _sampled_sizes(found: Found) -> list[tuple[int, int]]:
    """Return height and width of about eight images, spread over the folder."""
    step = max(1, len(found.pairs) // 8)
    sizes: list[tuple[int, int]] = []
    for pair in found.pairs[::step]:
        height, width = load_image(found.root / pair.image).shape[:2]
        sizes.append((height, width))
    return sizes


def _text(value: Value) -> str:
    """Return an id, or a colour as ``#rrggbb``."""
    return str(value) if isinstance(value, int) else "#{:02x}{:02x}{:02x}".format(*value)


def _class_rows(found: Found, options: InitOptions) -> list[ClassRow]:
    """Return the rows of the label map: of the one that the user names, or proposed."""
    if options.label_map:
        labels = label_map(options.label_map)
        _check_values_known(found, labels, options.label_map)
        return _rows_of(labels)
    values = sorted(found.pixels, key=_sort_key)
    if not options.two_classes:
        _check_no_masks(values)
    void = _void(found, values, options)
    return _proposed_rows(found, values, void)


def _sort_key(value: Value) -> tuple[int, ...]:
    """Return what sorts ids, or colours; labels hold one of the two."""
    return (value,) if isinstance(value, int) else value


def _check_values_known(found: Found, labels: LabelMap, name: str) -> None:
    """Raise InputError for ids or colours of the labels that are not in a label map."""
    known_values = labels.colours or {} if found.kind == "colours" else labels.raw_to_train
    unknown = [_text(value) for value in found.pixels if value not in known_values]
    if unknown:
        raise InputError(
            f"{len(unknown)} values of the labels are not in label map {name}, "
            f"e.g. {', '.join(unknown[:5])}",
            hint="leave --label-map out, and a label map is proposed",
        )


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


def _about(found: Found, labels: LabelMap, rows: Sequence[ClassRow]) -> tuple[str, ...]:
    """Return what was found, in lines."""
    counts = ", ".join(f"{count} {split}" for split, count in found.counts().items())
    lines = [f"{len(found.pairs)} pairs of image and label: {counts}"]
    examples = _spread(found.pairs, count=3)
    lines += [f"  {pair.split}: {pair.image} with {pair.label}" for pair in examples]
    lines.append(
        f"{labels.num_classes} classes by {found.kind} in the {found.looked_at} of "
        f"{len(found.pairs)} labels that were looked at; training refuses other values"
    )
    pixels = found.pixels
    total = max(1, pixels.total())
    for row in rows:
        value = row.value(found.kind)
        if row.train == IGNORE and value not in pixels:
            continue
        share = pixels.get(value, 0) / total
        lines.append(f"  {_text(value):>8}  {row.name}: {100 * share:.2f} % of the pixels")
    return tuple(lines)


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
    image = load_image(root / pair.image)
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
    return relative if relative.startswith("..") else f"./{relative}"


def _configuration(
    config: Path, classes: Path, frames: Path, found: Found, sizes: Sequence[tuple[int, int]]
) -> str:
    """Return the text of the configuration of train, finetune and evaluate.

    Args:
        config: where it will lie.
        classes: the label map.
        frames: the list of frames.
        found: what the folder of the data holds.
        sizes: height and width of some frames.
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
    template = (resources.files("segunc.verbs") / "init.template").read_text(encoding="utf-8")
    return Template(template).substitute(
        root=_quoted(_from(config, found.root)),
        frames=_quoted(_from(config, frames)),
        classes=_quoted(_from(config, classes)),
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
