"""Pictures of maps on disk for print: each score over its image, or everything of a frame side by side."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from segunc.data.anomaly_labels import BINARY, AnomalyEncoding
from segunc.data.images import Image
from segunc.errors import InputError, PartialFailure
from segunc.maps.folder import PREDICTION
from segunc.maps.frame_files import encode_jpeg, encode_png, write_file
from segunc.maps.manifest import is_ours
from segunc.maps.reader import MapsReader
from segunc.review.description import describe_classes
from segunc.review.frame_files import FrameRow
from segunc.review.inputs import open_images, open_maps, with_images
from segunc.review.labels import ReviewLabels, find_review_labels
from segunc.review.overlay import Legend, draw_overlay, model_line, score_unit
from segunc.review.panel import draw_panel
from segunc.review.ranges import page_ranges

PANEL = "panel"
PANEL_SCORES = ("entropy", "aleatoric", "epistemic")
OVERLAY_SCORES = ("entropy",)
PRINT_DPI = 300
"""Dots an inch of a PDF: the resolution that journals ask of pictures."""
Suffix = Literal["png", "jpg", "pdf"]


@dataclass(frozen=True)
class PictureRequest:
    """What to draw.

    Attributes:
        scores: the scores; None is entropy, and of a panel those of entropy, aleatoric and epistemic that are there.
        panel: one picture a frame with image, prediction, class legend and all scores; else one picture a score.
        frames: names or patterns (``*``, ``?``, ``[...]``); None is all.
        suffix: the format; PNG and PDF are lossless.
        ranges: ranges of colours, score -> (low, high); see :func:`segunc.review.ranges.page_ranges` for the others.
        images: the source images; None is the input that the manifest records.
        anomaly_labels: folder of masks to outline.
        anomaly_encoding: what their values mean.
    """

    scores: Sequence[str] | None = None
    panel: bool = False
    frames: Sequence[str] | None = None
    suffix: Suffix = "png"
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    images: str | Path | None = None
    anomaly_labels: Path | None = None
    anomaly_encoding: AnomalyEncoding = BINARY


@dataclass
class WrittenPictures:
    """What was drawn.

    Attributes:
        pictures: folder below the output -> its pictures in the order of the frames.
        failed: frame -> why it has no picture.
        notes: lines for the user.
    """

    pictures: dict[str, list[Path]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def raise_failures(self) -> None:
        """Raise PartialFailure where frames failed, naming the first."""
        if self.failed:
            name, reason = next(iter(self.failed.items()))
            raise PartialFailure(
                f"{len(self.failed)} frames could not be drawn, first {name} ({reason}); the pictures of the others are kept"
            )


def write_pictures(
    maps: Path, out: Path, request: PictureRequest, *, on_frame: Callable[[int, int], None] | None = None
) -> WrittenPictures:
    """Draw frames of a maps folder into ``OUT/panel/F.ext`` or ``OUT/overlay-SCORE/F.ext``.

    One value has one colour in all pictures. A frame that cannot be drawn does not stop the others; a panel goes without an
    image that is gone.

    Args:
        maps: the maps folder, of this tool or any other, finished or not.
        out: the folder of the pictures; made if missing.
        request: what to draw.
        on_frame: called after each frame with the number of frames done and their total.

    Raises:
        InputError: no maps, an unknown score, no frame of the names given, no image for overlays, no label of any frame, or
            an output that is a maps folder or lies in one.
    """
    reader = open_maps(maps)
    if is_ours(out) or out.resolve().is_relative_to(maps.resolve()):
        raise InputError(f"output {out} is or lies inside a maps folder", "a folder of its own", "give another --out")
    scores = _choose_scores(reader, request)
    names = _choose_frames(reader, request.frames)
    ranges = page_ranges(reader, dict(request.ranges), scores)
    note = model_line(reader.manifest)
    legends = {score: Legend(score, score_unit(reader.manifest, score), ranges[score], note) for score in scores}
    labels = find_review_labels(
        names, anomaly=request.anomaly_labels, anomaly_encoding=request.anomaly_encoding, region=reader.region
    )
    source, missing = open_images(reader, request.images, names)
    if source is None and not request.panel:
        raise InputError(f"overlays of {maps} without images ({missing})", "--images PATH, or --panel")
    written = WrittenPictures(notes=[text for text in (missing, reader.unfinished) if text])
    written.pictures = {name: [] for name in ([PANEL] if request.panel else [f"overlay-{score}" for score in scores])}
    rows = [FrameRow(name, place) for place, name in enumerate(names)]
    without = 0
    for done, (row, image, error) in enumerate(with_images(rows, source), start=1):
        without += image is None
        try:
            drawn = _draw(reader, row.name, image, error, legends, labels, panel=request.panel)
            for folder, picture in drawn:
                path = out / folder / f"{row.name}.{request.suffix}"
                write_file(path, encode_picture(picture, request.suffix))
                written.pictures[folder].append(path)
        except InputError as problem:
            written.failed[row.name] = str(problem)
        if on_frame is not None:
            on_frame(done, len(rows))
    if source is not None and without:
        written.notes.append(f"{without} of {len(rows)} frames have no image in {source.path}")
    return written


def encode_picture(picture: Image, suffix: Suffix) -> bytes:
    """The bytes of a picture file; the same picture gives the same bytes."""
    if suffix == "pdf":
        return _encode_pdf(picture)
    return encode_png(picture) if suffix == "png" else encode_jpeg(picture)


def _encode_pdf(picture: Image) -> bytes:
    from matplotlib.figure import Figure

    height, width = picture.shape[:2]
    figure = Figure(figsize=(width / PRINT_DPI, height / PRINT_DPI), dpi=PRINT_DPI)
    figure.figimage(picture)
    stream = io.BytesIO()
    figure.savefig(stream, format="pdf", dpi=PRINT_DPI, metadata={"CreationDate": None})
    return stream.getvalue()


def _choose_scores(reader: MapsReader, request: PictureRequest) -> list[str]:
    if request.scores is not None:
        scores = list(dict.fromkeys(request.scores))
    elif request.panel:
        scores = [score for score in PANEL_SCORES if score in reader.scores] or list(reader.scores)
    else:
        scores = list(OVERLAY_SCORES)
    unknown = [score for score in scores if score not in reader.scores]
    if unknown or not scores:
        known = ", ".join(reader.scores) or "(there is none)"
        raise InputError(f"score '{unknown[0] if unknown else ''}' has no maps in {reader.folder}", f"one of {known}")
    return scores


def _choose_frames(reader: MapsReader, patterns: Sequence[str] | None) -> list[str]:
    if patterns is None:
        return list(reader.frames)
    taken = {p: [name for name in reader.frames if name == p or fnmatchcase(name, p)] for p in patterns}
    for pattern, found in taken.items():
        if not found:
            raise InputError(
                f"no frame of {reader.folder} is named '{pattern}'", f"names like {reader.frames[0]}", "check --frames"
            )
    wanted = {name for found in taken.values() for name in found}
    return [name for name in reader.frames if name in wanted]


def _draw(
    reader: MapsReader,
    name: str,
    image: Image | None,
    error: str | None,
    legends: Mapping[str, Legend],
    labels: ReviewLabels,
    *,
    panel: bool,
) -> Iterator[tuple[str, Image]]:
    """Folder and picture of each picture of a frame."""
    label = labels.anomaly(name)
    anomaly = None if label is None else label == 1
    values = {score: reader.read(name, score) for score in legends}
    if panel:
        classes = describe_classes(reader, None)
        yield (
            PANEL,
            draw_panel(
                image,
                reader.prediction(name) if reader.has(name, PREDICTION) else None,
                [(legend, values[score]) for score, legend in legends.items()],
                classes=[entry["name"] for entry in classes],
                palette=[tuple(entry["colour"]) for entry in classes],
                note=next(iter(legends.values())).note,
                anomaly=anomaly,
            ),
        )
        return
    if image is None:
        raise InputError(
            f"frame {name} has no image ({error or 'the source does not hold it'})", "its image", "--images"
        )
    for score, legend in legends.items():
        yield f"overlay-{score}", draw_overlay(image, values[score], legend, anomaly=anomaly)
