"""Pictures of maps on disk for print: each score over its image, or everything of a frame side by side."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from segunc.core.errors import InputError
from segunc.core.files import write_file
from segunc.data.entry import BINARY, AnomalyEncoding
from segunc.data.images import Image
from segunc.gallery.colormap import page_ranges
from segunc.gallery.description import describe_classes
from segunc.gallery.overlay import THEMES, Bar, Legend, Sheet, draw_overlay, draw_panel, frame_caption
from segunc.maps.encoding import encode_jpeg, encode_png
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import (
    Labels,
    ReviewLabels,
    choose_scores,
    find_review_labels,
    frame_times,
    open_images,
    open_maps,
    with_images,
)
from segunc.maps.manifest import is_ours
from segunc.maps.reader import MapsReader
from segunc.scores import first_shown

PANEL = "panel"
PANEL_SCORES = ("entropy", "aleatoric", "epistemic")
ANOMALY_PANEL_SCORES = ("anomaly", "entropy", "epistemic")
PDF_FONT = 0.95  # em of a PDF's font for the height of capitals: its letters are wider than those in pixels, whose room they have
PRINT_DPI = 300  # dots an inch of a PDF: the resolution that journals ask of pictures
Suffix = Literal["png", "jpg", "pdf"]  # PNG and PDF are lossless


@dataclass
class WrittenPictures:
    """What was drawn."""

    pictures: dict[str, list[Path]]  # folder below the output -> its pictures in the order of the frames
    notes: list[str]  # lines for the user
    times: list[float | None] = field(default_factory=list)  # seconds in the video of the frames that were drawn
    failed: dict[str, str] = field(default_factory=dict)  # frame -> why it has no picture

    @property
    def failure(self) -> str:
        """Which frames failed, in one line; empty where none did."""
        if not self.failed:
            return ""
        first = "{} ({})".format(*next(iter(self.failed.items())))
        return f"{len(self.failed)} frames could not be drawn, first {first}; the pictures of the others are kept"


def write_pictures(
    maps: Path,
    out: Path,
    *,
    scores: Sequence[str] | None = None,
    panel: bool = False,
    frames: Sequence[str] | None = None,
    suffix: Suffix = "png",
    ranges: Mapping[str, tuple[float, float]] | None = None,
    flags: Mapping[str, float] | None = None,
    captions: bool = True,
    theme: str = "dark",
    images: str | Path | None = None,
    anomaly_labels: Labels | None = None,
    anomaly_encoding: AnomalyEncoding = BINARY,
    on_frame: Callable[[int, int], None] | None = None,
) -> WrittenPictures:
    """Draw frames of a maps folder into ``OUT/panel/F.ext`` or ``OUT/overlay-SCORE/F.ext``.

    One value has one colour in all pictures. A frame that cannot be drawn does not stop the others; a panel goes without an
    image that is gone.

    The arguments are those of :class:`segunc.options.OverlayOptions`, but for ``on_frame``, which is called after each frame with the number
    of frames done and their total.

    InputError: no maps, an unknown score, a flag of none that is drawn, no frame of the names given, no image for overlays, or an output
    that is a maps folder or lies in one. PartialFailure: no label of any frame.
    """
    reader = open_maps(maps)
    if is_ours(out) or out.resolve().is_relative_to(maps.resolve()):
        raise InputError(f"output {out} is or lies inside a maps folder", "a folder of its own", "give another --out")
    if scores is None and panel:
        usual = ANOMALY_PANEL_SCORES if "anomaly" in reader.scores else PANEL_SCORES
        scores = [score for score in usual if score in reader.scores] or reader.scores
    # Pictures without a score are none.
    scores = choose_scores(reader, ([first_shown(reader.scores)] if scores is None else scores) or [""])
    names = _choose_frames(reader, frames)
    shown = page_ranges(reader, ranges, scores)
    marks = dict(flags or {})
    if strange := sorted(set(marks) - set(scores)):
        raise InputError(f"a flag of '{strange[0]}'", f"one of {', '.join(scores)}", "draw that score too")
    legends = {score: Legend.of(reader.manifest, score, shown[score], marks.get(score)) for score in scores}
    times = dict(zip(names, frame_times(reader, names), strict=True))
    labels = find_review_labels(reader, names, anomaly_labels, anomaly_encoding)
    source, missing = open_images(reader, images, names)
    if source is None and not panel:
        raise InputError(f"overlays of {maps} without images ({missing})", "--images PATH, or --panel")
    folders = [PANEL] if panel else [f"overlay-{score}" for score in scores]
    notes = [text for text in (missing, reader.unfinished) if text]
    failed: dict[str, str] = {}
    without = 0
    for done, (name, image, error) in enumerate(with_images(names, source), start=1):
        without += image is None
        try:
            look = {"caption": frame_caption(name, times[name]) if captions else "", "theme": THEMES[theme]}
            for folder, sheet in _draw(reader, name, image, error, legends, labels, look, panel=panel):
                write_file(out / folder / f"{name}.{suffix}", encode_picture(sheet, suffix))
        except InputError as problem:
            failed[name] = str(problem)
        if on_frame is not None:
            on_frame(done, len(names))
    if source is not None and without:
        notes.append(f"{without} of {len(names)} frames have no image in {source.path}")
    drawn = [name for name in names if name not in failed]
    pictures = {folder: [out / folder / f"{name}.{suffix}" for name in drawn] for folder in folders}
    return WrittenPictures(pictures, notes, [times[name] for name in drawn], failed)


def encode_picture(sheet: Sheet, suffix: Suffix) -> bytes:
    """The bytes of a picture file; a PDF holds text as text and legends as vectors. The same sheet gives the same bytes."""
    if suffix != "pdf":
        return encode_png(sheet.picture()) if suffix == "png" else encode_jpeg(sheet.picture())
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    height, width = sheet.pixels.shape[:2]
    point = 72 / PRINT_DPI  # of a pixel
    # Type 42 keeps characters that can be searched, copied and edited; the font comes with matplotlib.
    with rc_context({"pdf.fonttype": 42, "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(width / PRINT_DPI, height / PRINT_DPI), dpi=PRINT_DPI)
        figure.figimage(sheet.pixels)

        def box(left: float, bar: Bar, **look: Any) -> None:
            corner, right = (left / width, 1 - (bar.top + bar.height) / height), bar.left + bar.width
            figure.add_artist(Rectangle(corner, (right - left) / width, bar.height / height, **look))

        for bar in sheet.bars:
            for step, colour in enumerate(bar.colours / 255):  # each up to the end, so that no seam shows between two
                box(bar.left + step * bar.width / len(bar.colours), bar, facecolor=colour, linewidth=0)
            box(bar.left, bar, fill=False, edgecolor=[part / 255 for part in bar.edge], linewidth=point)
        for words, left, baseline, size, colour in sheet.texts:
            place = (left / width, 1 - baseline / height)
            look: dict[str, Any] = {"fontsize": PDF_FONT * size * point, "color": [part / 255 for part in colour]}
            figure.text(*place, words, va="baseline", parse_math=False, **look)
        stream = io.BytesIO()
        figure.savefig(stream, format="pdf", dpi=PRINT_DPI, metadata={"CreationDate": None})
    return stream.getvalue()


def _choose_frames(reader: MapsReader, patterns: Sequence[str] | None) -> list[str]:
    if patterns is None:
        return list(reader.frames)
    taken = {p: [name for name in reader.frames if name == p or fnmatchcase(name, p)] for p in patterns}
    for pattern, found in taken.items():
        if not found:
            given = f"no frame of {reader.folder} is named '{pattern}'"
            raise InputError(given, f"names like {reader.frames[0]}", "check --frames")
    wanted = {name for found in taken.values() for name in found}
    return [name for name in reader.frames if name in wanted]


def _draw(
    reader: MapsReader,
    name: str,
    image: Image | None,
    error: str | None,
    legends: Mapping[str, Legend],
    labels: ReviewLabels,
    look: Mapping[str, Any],
    *,
    panel: bool,
) -> Iterator[tuple[str, Sheet]]:
    """Folder and sheet of each picture of a frame; ``look`` is its caption and its theme."""
    label = labels.anomaly(name)
    anomaly = None if label is None else label == 1
    scores = [(legend, reader.read(name, score)) for score, legend in legends.items()]
    if panel:
        prediction = reader.prediction(name) if reader.has(name, PREDICTION) else None
        classes = [(one["name"], tuple(one["colour"])) for one in describe_classes(reader, None)]
        yield PANEL, draw_panel(image, prediction, scores, classes=classes, anomaly=anomaly, **look)
        return
    if image is None:
        why = error or "the source does not hold it"
        raise InputError(f"frame {name} has no image ({why})", "its image", "--images")
    for legend, values in scores:
        yield f"overlay-{legend.score}", draw_overlay(image, values, legend, anomaly=anomaly, **look)
