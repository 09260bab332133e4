"""One page on how the maps of two folders differ: the tables, and the frames that differ most with
the pictures of both.

Like the page of changed alarms it is a single file that loads nothing and runs no script.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from segunc.colours import DisplayRange
from segunc.data.images import Image, resize_nearest
from segunc.gallery.change_page import picture_element, write_single_page
from segunc.gallery.drawing import (
    BLACK,
    FLAGGED_STROKES,
    Colour,
    Legend,
    Mask,
    Strokes,
    bar_colours,
    draw_outline,
    draw_scores,
    resize,
)
from segunc.maps.encoding import encode_jpeg, encode_png
from segunc.scores import scale_words, title_of

WIDTH = 560  # pixels of a picture: a third of the page, at twice the density
QUALITY = 82  # of JPEG
CHANGED = (255, 140, 0)
"""RGB of pixels whose class changed."""
ALONE = (255, 255, 255)
"""RGB of the outline of a region that the other folder does not flag."""
ALONE_STROKES: Strokes = ((BLACK, 5), (ALONE, 2))
MEDIUM_GREY = 128
"""Brightness under the scores of a frame without an image."""
NO_IMAGE = "no image"
BAR_PIXELS = 12  # height of the colour bar
Ids = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ShownPicture:
    """A picture of a frame with its caption.

    Attributes:
        caption: what it shows.
        jpeg: the file; empty without a picture.
        wide: whether it takes a whole row on a narrow screen.
    """

    caption: str
    jpeg: bytes = b""
    wide: bool = False


@dataclass(frozen=True)
class ShownFrame:
    """A frame of the page: its name, its numbers in words, and its pictures in reading order."""

    name: str
    numbers: Sequence[str]
    pictures: Sequence[ShownPicture]


@dataclass(frozen=True)
class ShownTable:
    """A table of the page; the first row is the header, and the first column names the rows."""

    title: str
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class ShownClass:
    """A class that the pictures show."""

    name: str
    colour: Colour


@dataclass(frozen=True)
class ShownScore:
    """The score that the pictures show.

    Attributes:
        name: of the score.
        shown: range of its colours, the same for both folders.
        flagged: whether flagged regions are outlined.
    """

    name: str
    shown: DisplayRange
    flagged: bool


@dataclass(frozen=True)
class ShownDifference:
    """What the page shows of two folders.

    Attributes:
        heading: what is compared.
        tables: the numbers.
        notes: sentences on the numbers.
        frames_title: by what the frames are chosen.
        frames: those that differ most.
        score: that the pictures show; None without one.
        classes: that the pictures show.
        changes: whether pixels whose class changed are shown.
        missing: a sentence on missing images; empty where all are there.
    """

    heading: str
    tables: Sequence[ShownTable]
    notes: Sequence[str]
    frames_title: str
    frames: Sequence[ShownFrame]
    score: ShownScore | None
    classes: Sequence[ShownClass]
    changes: bool
    missing: str


def joined_range(first: DisplayRange, second: DisplayRange) -> DisplayRange:
    """Return the range that holds both of two, so that a colour is one number in both folders."""
    measured = [shown.measured_to for shown in (first, second) if shown.measured_to is not None]
    return replace(
        first,
        low=min(first.low, second.low),
        high=max(first.high, second.high),
        open_below=first.open_below or second.open_below,
        open_above=first.open_above or second.open_above,
        measured_to=min(measured) if measured else None,
    )


def picture_size(shape: Sequence[int]) -> tuple[int, int]:
    """Return width and height of the picture of a frame of ``shape`` (height, width)."""
    height, width = shape[:2]
    return WIDTH, max(1, round(WIDTH * height / width))


def draw_image(image: Image, size: tuple[int, int]) -> bytes:
    """Draw the image of a frame, RGB uint8 ``[H, W, 3]``, as a JPEG of ``size`` (width, height)."""
    return encode_jpeg(resize(image, *size), QUALITY)


def draw_classes(ids: Ids, colours: npt.NDArray[np.uint8], size: tuple[int, int]) -> bytes:
    """Draw the classes of a frame as a JPEG.

    Args:
        ids: of the classes ``[H, W]``.
        colours: RGB of each id, ``[256, 3]``.
        size: (width, height) of the picture.
    """
    return encode_jpeg(np.ascontiguousarray(colours[resize_nearest(ids, *size)]), QUALITY)


def draw_changes(changed: Mask, image: Image | None, size: tuple[int, int]) -> bytes:
    """Draw in orange over the grey image where the class of a frame changed, as a JPEG.

    Args:
        changed: bool ``[H, W]``.
        image: RGB uint8 ``[H, W, 3]``; None draws over plain grey.
        size: (width, height) of the picture.
    """
    picture = _grey(image, size)
    # A change of few pixels must not vanish when the picture shrinks.
    shares = cv2.resize(changed.astype(np.float32), size, interpolation=cv2.INTER_AREA)
    picture[shares > 0] = CHANGED
    return encode_jpeg(picture, QUALITY)


def _grey(image: Image | None, size: tuple[int, int]) -> Image:
    width, height = size
    if image is None:
        return np.full((height, width, 3), MEDIUM_GREY, np.uint8)
    grey = cv2.cvtColor(resize(image, *size), cv2.COLOR_RGB2GRAY)
    return np.repeat(grey[..., None], 3, axis=2)


def draw_score(
    values: npt.NDArray[np.floating],
    score: ShownScore,
    image: Image | None,
    size: tuple[int, int],
    *,
    kept: Mask | None = None,
    regions: tuple[Mask, Mask] | None = None,
) -> bytes:
    """Draw a score over its image as a JPEG.

    Args:
        values: in real units ``[H, W]``.
        score: of the values.
        image: RGB uint8 ``[H, W, 3]``; None draws over plain grey.
        size: (width, height) of the picture.
        kept: pixels that no mask leaves out, bool ``[H, W]``; None for all.
        regions: flagged pixels of regions that the other folder flags, too, and of those that it
            does not, bool ``[H, W]`` each; None where nothing is flagged.
    """
    below = _grey(None, size) if image is None else image
    legend = Legend(score.name, "", score.shown)
    picture, _ = draw_scores(below, values, legend, size, kept=kept)
    if regions is not None:
        met, alone = regions
        draw_outline(picture, met, FLAGGED_STROKES, dashed_holes=True)
        draw_outline(picture, alone, ALONE_STROKES, dashed_holes=True)
    return encode_jpeg(picture, QUALITY)


def write_difference_page(
    path: Path, differences: Iterable[ShownDifference], judgement: str
) -> None:
    """Write the page.

    Args:
        path: of the HTML file; one that is there is replaced.
        differences: of each two folders.
        judgement: a sentence on what the numbers do not say.
    """
    parts = ["<h1>How maps differ</h1>", f'<p class="notice">{html.escape(judgement)}</p>']
    for difference in differences:
        parts += _section(difference)
    write_single_page(path, "How maps differ", parts)


def _section(difference: ShownDifference) -> list[str]:
    """Return the part of the page on two folders."""
    parts = [f"<h2>{html.escape(difference.heading)}</h2>"]
    for table in difference.tables:
        parts += _table(table)
    parts.append('<ul class="notes">')
    parts += [f"<li>{html.escape(note)}</li>" for note in difference.notes]
    parts.append("</ul>")
    parts.append(f"<h2>{html.escape(difference.frames_title)}</h2>")
    if difference.missing:
        parts.append(f'<p class="warning">{html.escape(difference.missing)}</p>')
    parts += _legend(difference)
    parts.append('<ol class="frames">')
    for frame in difference.frames:
        parts += _frame(frame)
    parts.append("</ol>")
    return parts


def _table(table: ShownTable) -> list[str]:
    header, *rows = table.rows
    cells = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
    parts = [
        f'<div class="wide"><table class="numbers"><caption>{html.escape(table.title)}</caption>',
        f"<thead><tr>{cells}</tr></thead><tbody>",
    ]
    for name, *numbers in rows:
        cells = "".join(f"<td>{html.escape(number)}</td>" for number in numbers)
        parts.append(f'<tr><th scope="row">{html.escape(name)}</th>{cells}</tr>')
    parts.append("</tbody></table></div>")
    return parts


def _legend(difference: ShownDifference) -> list[str]:
    """Return what the colours and outlines of the pictures mean."""
    parts = ['<div class="legend">']
    if difference.changes:
        parts.append(f"<p>{_swatch(CHANGED)} the predicted class changed</p>")
    score = difference.score
    if score is not None:
        low, middle, high = (html.escape(tick) for tick in score.shown.ticks)
        bar = picture_element(_bar(), kind="png")
        title = html.escape(title_of(score.name))
        parts.append(
            f'<div class="bar"><b>{title}</b>{bar}'
            f"<p><span>{low}</span><span>{middle}</span><span>{high}</span></p>"
            f"<small>{html.escape(scale_words(score.name))}</small></div>"
        )
    if score is not None and score.flagged:
        met, _ = FLAGGED_STROKES[-1]
        parts.append(f"<p>{_line(met, 3)} region that both flag</p>")
        parts.append(f"<p>{_line(ALONE, 5)} region that only this one flags</p>")
        parts.append("<p>dashed: a hole in a region</p>")
    if difference.classes:
        swatches = [
            f"<span>{_swatch(shown.colour)} {html.escape(shown.name)}</span>"
            for shown in difference.classes
        ]
        parts.append(f'<p class="classes">{" ".join(swatches)}</p>')
    parts.append("</div>")
    return parts


def _bar() -> bytes:
    """Return the colours of a score from low to high, as a PNG."""
    return encode_png(np.repeat(bar_colours()[None], BAR_PIXELS, axis=0))


def _swatch(colour: Sequence[int]) -> str:
    return f'<i class="swatch" style="background:{_css(colour)}"></i>'


def _line(colour: Sequence[int], thickness: int) -> str:
    style = f"border-top:{thickness}px solid {_css(colour)}"
    return f'<i class="line"><i style="{style}"></i></i>'


def _css(colour: Sequence[int]) -> str:
    red, green, blue = colour
    return f"rgb({red},{green},{blue})"


def _frame(frame: ShownFrame) -> list[str]:
    parts = [f"<li><h3>{html.escape(frame.name)}</h3>"]
    parts += [f'<p class="small">{html.escape(words)}</p>' for words in frame.numbers]
    parts.append('<div class="pictures">')
    for picture in frame.pictures:
        kind = ' class="whole-row"' if picture.wide else ""
        caption = html.escape(picture.caption)
        content = f'<span class="absent">{NO_IMAGE}</span>'
        if picture.jpeg:
            content = picture_element(picture.jpeg, f"{picture.caption} of frame {frame.name}")
        parts.append(f"<figure{kind}><figcaption>{caption}</figcaption>{content}</figure>")
    parts.append("</div></li>")
    return parts
