"""``segunc init``: from a folder of images and labels to a label map, a list of frames and one
configuration of train, finetune and evaluate.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, cast

import cv2
import numpy as np

from segunc.core.errors import InputError
from segunc.core.files import csv_text, write_file
from segunc.data.census import Value
from segunc.data.discover import FRAMES_LIST, PAIRS_PICTURE, Found, discover
from segunc.data.frame_lists import FRAME_COLUMNS
from segunc.data.images import Colour, Image, load_image, resize_nearest
from segunc.data.labels import COLUMNS, IGNORE, LabelMap, label_map, read_label_map
from segunc.data.pairing import Pair
from segunc.gallery.drawing import Sheet
from segunc.maps.encoding import encode_jpeg
from segunc.options import InitOptions, takes

# Okabe and Ito's colours and Tol's muted ones, which colour-blind readers tell apart; none is grey,
# since grey pixels may be ids.
PALETTE = (
    *(
        (0, 114, 178),
        (230, 159, 0),
        (0, 158, 115),
        (204, 121, 167),
        (86, 180, 233),
        (213, 94, 0),
        (240, 228, 66),
    ),
    *(
        (51, 34, 136),
        (136, 34, 85),
        (17, 119, 51),
        (153, 153, 51),
        (136, 204, 238),
        (170, 68, 153),
        (221, 204, 119),
    ),
)
VOID_COLOUR = (20, 20, 28)
APART = 60  # steps of 256 between a proposed colour and one that is taken, in one channel at least
SHOWN_PAIRS, CELL = 8, 400  # pairs on the picture, and pixels of the width of one image there


@dataclass(frozen=True)
class InitResult:
    """What was found and written."""

    config: Path  # the configuration
    label_map: Path  # CSV of the classes
    frames: Path  # CSV of the frames: split,image,label
    picture: Path  # pairs to look at
    about: tuple[str, ...]  # what was found, in lines
    notes: tuple[str, ...]  # what was assumed or left out


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
    root, config = Path(options.data), Path(options.out)
    stem = config.with_suffix("")
    files = ("classes.csv", FRAMES_LIST, PAIRS_PICTURE)
    places = {file.partition(".")[0]: stem.with_name(f"{stem.name}-{file}") for file in files}
    if not options.overwrite and (
        taken := [path for path in (config, *places.values()) if path.exists()]
    ):
        raise InputError(
            f"{taken[0]} is there", hint="--overwrite writes it anew, or give another --out"
        )
    given = label_map(options.label_map) if options.label_map else None
    found = discover(
        root,
        options.images,
        options.labels,
        labelled_only=options.labelled_only,
        label_map=given,
        allow_mixed=options.void is not None,
    )
    rows = _classes(found, options)
    write_file(places["classes"], csv_text([COLUMNS, *rows]).encode())
    labels = read_label_map(places["classes"])
    frames = [(pair.split, pair.image.as_posix(), pair.label.as_posix()) for pair in found.pairs]
    write_file(places["frames"], csv_text([FRAME_COLUMNS, *frames]).encode())
    sizes = [
        load_image(root / pair.image).shape[:2]
        for pair in found.pairs[:: max(1, len(found.pairs) // 8)]
    ]
    write_file(places["pairs"], encode_jpeg(_picture(found, labels)))
    settings = _configuration(config, places, found, sizes)
    write_file(config, settings.encode())
    about = _about(found, labels, rows)
    return InitResult(
        config, places["classes"], places["frames"], places["pairs"], about, tuple(found.notes)
    )


def _text(value: Value) -> str:
    """Return an id, or a colour as ``#rrggbb``."""
    return str(value) if isinstance(value, int) else "#{:02x}{:02x}{:02x}".format(*value)


def _classes(found: Found, options: InitOptions) -> list[list[object]]:
    """Return the rows of the label map: of the given one, or proposed."""
    if options.label_map:
        given = label_map(options.label_map)
        known = given.colours or {} if found.kind == "colours" else given.raw_to_train
        if unknown := [_text(value) for value in found.pixels if value not in known]:
            lack = f"{len(unknown)} values of the labels are not in label map {options.label_map}, e.g. {', '.join(unknown[:5])}"
            raise InputError(lack, hint="leave --label-map out, and a label map is proposed")
        return _rows_of(given)
    values = sorted(
        found.pixels, key=lambda value: (-1, value, ()) if isinstance(value, int) else (0, 0, value)
    )
    if len(values) <= 2 + (IGNORE in values and len(values) == 3) and not options.two_classes:
        shown = " and ".join(map(_text, values))
        if len(values) < 2:
            raise InputError(
                f"the labels hold {shown} alone: nothing to learn",
                hint="--labels names other labels",
            )
        way = {"0 and 2": " --dataset road-anomaly", "0 and 255": " --dataset folder-255"}.get(
            shown, ""
        )
        masks = f"segunc evaluate --maps MAPS --anomaly-labels LABELS{way}"
        hint = f"--two-classes learns them; if they mark anomalies: {masks}"
        raise InputError(f"the labels hold {shown} alone: masks", hint=hint)
    void, number = _void(found, values, options), 0
    rows: list[list[object]] = []
    taken = [
        colour for value, colour in found.palette.items() if value in values and len({*colour}) > 1
    ]
    for index, value in enumerate(values):
        ignored, colour, raw = value in void, value, index
        if isinstance(value, int):  # no grey: grey pixels of three channels may be ids
            own, raw = found.palette.get(value, (0, 0, 0)), value
            colour = (
                VOID_COLOUR if ignored else _proposed(number, taken) if len({*own}) == 1 else own
            )
        name = "void" if ignored else f"class {_text(value)}"
        rows.append([raw, name, IGNORE if ignored else number, *cast(Colour, colour)])
        number += not ignored
    if number < 2:
        raise InputError(
            "fewer than two classes are left to learn", hint="name fewer values at --void"
        )
    return rows


def _proposed(number: int, taken: Sequence[Colour] = ()) -> Colour:
    """Return the colour of a class, far from those that others have; from the fifteenth on the
    first ones return darker.
    """
    free = [
        one
        for one in PALETTE
        if all(np.abs(np.subtract(one, other)).max() >= APART for other in taken)
    ] or PALETTE
    rounds, place = divmod(number, len(free))
    red, green, blue = (round(part * 0.6**rounds) for part in free[place])
    return red, green, blue


def _rows_of(labels: LabelMap) -> list[list[object]]:
    """Return the rows that describe a label map, a colour for each raw id where it has one."""
    colours = {raw: colour for colour, raw in (labels.colours or {}).items()}
    rows: list[list[object]] = []
    for raw, train in sorted(labels.raw_to_train.items(), key=lambda item: (item[1], item[0])):
        name = "void" if train == IGNORE else labels.classes[train]
        rows.append(
            [
                raw,
                name,
                train,
                *colours.get(raw, VOID_COLOUR if train == IGNORE else labels.palette[train]),
            ]
        )
    return rows


def _void(found: Found, values: Sequence[Value], options: InitOptions) -> set[Value]:
    """Return the values that no class has, and note the assumption."""
    if options.void is not None:
        named = {text.lower() for text in options.void} - {"none"}
        void = {value for value in values if _text(value) in named}
        if unknown := named - {_text(value) for value in void}:
            fact = f"--void {', '.join(sorted(unknown))} is no value of the labels"
            raise InputError(fact, hint=f"they hold {', '.join(map(_text, values))}")
        return void
    usual: Value = IGNORE if found.kind == "ids" else (0, 0, 0)
    void = {usual} if usual in values and len(values) > (2 if found.kind == "ids" else 3) else set()
    for value in void:
        found.notes.append(
            f"assumes that {_text(value)} is void and ignores it; --void none makes it a class"
        )
    if not void:
        found.notes.append(
            "assumes that every value is a class; --void VALUE ignores one that marks what has none"
        )
    return void


def _about(found: Found, labels: LabelMap, rows: Sequence[Sequence[object]]) -> tuple[str, ...]:
    counts = ", ".join(f"{count} {split}" for split, count in found.counts().items())
    lines = [f"{len(found.pairs)} pairs of image and label: {counts}"]
    lines += [f"  {pair.split}: {pair.image} with {pair.label}" for pair in _spread(found.pairs, 3)]
    looked = f"in the {found.looked_at} of {len(found.pairs)} labels that were looked at"
    lines.append(
        f"{labels.num_classes} classes by {found.kind} {looked}; training refuses other values"
    )
    key: Callable[[Any], Any] = (
        (lambda row: row[0]) if found.kind == "ids" else (lambda row: tuple(row[3:]))
    )
    pixels: Mapping[Any, int] = found.pixels
    for row in (row for row in rows if row[2] != IGNORE or key(row) in pixels):
        share = pixels.get(key(row), 0) / max(1, found.pixels.total())
        lines.append(f"  {_text(key(row)):>8}  {row[1]}: {100 * share:.2f} % of the pixels")
    return tuple(lines)


def _spread(pairs: Sequence[Pair], count: int) -> list[Pair]:
    return [
        pairs[int(index)] for index in np.unique(np.linspace(0, len(pairs) - 1, count).astype(int))
    ]


def _picture(found: Found, labels: LabelMap) -> Image:
    """Return eight pairs, each the image beside its label over it, and a legend below."""
    palette = np.full((256, 3), VOID_COLOUR, np.uint8)
    palette[: labels.num_classes] = labels.palette
    cells, ignored = [], False
    for pair in _spread(found.pairs, SHOWN_PAIRS):
        image, label = load_image(found.root / pair.image), labels.read(found.root / pair.label)
        if image.shape[:2] != label.shape:
            sizes = "{}x{}, its label {}x{}".format(*image.shape[:2], *label.shape)
            raise InputError(
                f"image {pair.image} is {sizes} pixels",
                hint="--labels names the labels of these images",
            )
        ignored |= bool((label == IGNORE).any())
        height = max(1, round(CELL * image.shape[0] / image.shape[1]))
        small = np.asarray(
            cv2.resize(image, (CELL, height), interpolation=cv2.INTER_AREA), np.uint8
        )
        grey = np.repeat(small.mean(2, keepdims=True), 3, 2)
        over = (0.35 * grey + 0.65 * palette[resize_nearest(label, CELL, height)]).astype(np.uint8)
        cells.append(np.concatenate([small, over], 1))
    tallest, paper = max(len(cell) for cell in cells), 255
    padded = [
        np.pad(cell, ((0, tallest - len(cell) + 6), (0, 6), (0, 0)), constant_values=paper)
        for cell in cells
    ]
    padded += [np.full_like(padded[0], paper)] * (len(padded) % 2)
    grid = np.concatenate([np.concatenate(padded[i : i + 2], 1) for i in range(0, len(padded), 2)])
    colours = [*zip(labels.classes, labels.palette, strict=True)] + [
        ("void (ignored)", VOID_COLOUR)
    ] * ignored
    legend, width = Sheet(28 * -(-len(colours) // 4) + 6, grid.shape[1]), grid.shape[1] // 4
    for index, (name, colour) in enumerate(colours):
        legend.swatch(name, colour, 8 + index % 4 * width, 24 + 28 * (index // 4), 14, width - 16)
    return np.concatenate([grid, legend.pixels])


def _from(config: Path, path: Path) -> str:
    """Return a path as a configuration names it: relative to its own folder, with ``./`` or
    ``../``, so that both can be moved together; whole where they have no folder in common.
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
    config: Path, places: Mapping[str, Path], found: Found, sizes: Sequence[tuple[int, int]]
) -> str:
    """Return the text of the configuration of train, finetune and evaluate, for frames of these
    sizes.
    """
    height = min(size[0] for size in sizes)
    width = min(size[1] for size in sizes)
    train = found.counts()["train"]
    same_size = len(set(sizes)) == 1
    epochs = min(60, max(10, round(12_000 / train)))
    largest_side = 320 if height * width < 1_000_000 else 512
    paths = {name: _from(config, path) for name, path in {**places, "root": found.root}.items()}
    if same_size:
        size = f"inference_size: [{height}, {width}]"
    else:
        size = "# Frames differ in size: each is seen at its own."
    template = (resources.files("segunc.verbs") / "init.template").read_text(encoding="utf-8")
    return Template(template).substitute(
        {name: json.dumps(path, ensure_ascii=False) for name, path in paths.items()},
        side=min(largest_side, max(32, min(height, width) // 32 * 32)),
        batch_size=min(8, train),
        eval_batch_size=4 if same_size else 1,
        size=size,
        epochs=epochs,
        every=max(1, epochs // 8),
    )
