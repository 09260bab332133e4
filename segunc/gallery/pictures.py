"""Pictures of maps on disk for print: each score over its image, or everything of a frame side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from segunc.core.errors import InputError
from segunc.core.files import write_file
from segunc.data.images import Image
from segunc.gallery.colormap import page_ranges
from segunc.gallery.description import describe_classes
from segunc.gallery.overlay import THEMES, Legend, draw_overlay, draw_panel, frame_caption
from segunc.maps.encoding import encode_jpeg, encode_png
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import (
    LabelSources,
    ReviewLabels,
    choose_scores,
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
NO_LABELS = LabelSources()


@dataclass(frozen=True)
class PictureSettings:
    """What is drawn of a maps folder; the fields are those of :class:`segunc.options.OverlayOptions`."""

    score: Sequence[str] | None = None
    panel: bool = False
    frames: Sequence[str] | None = None
    images: str | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    flag: Mapping[str, float] = field(default_factory=dict)
    theme: str = "dark"
    format: Literal["png", "jpg"] = "png"


@dataclass
class WrittenPictures:
    """What was drawn."""

    pictures: dict[str, list[Path]]  # folder below the output -> its pictures in the order of the frames
    notes: list[str]  # lines for the user
    times: list[float | None] = field(default_factory=list)  # seconds in the video of the frames that were drawn
    failed: dict[str, str] = field(default_factory=dict)  # frame -> why it has no picture

    @property
    def failure(self) -> str:
        """Say which frames failed, in one line; empty where none did."""
        if not self.failed:
            return ""
        first = "{} ({})".format(*next(iter(self.failed.items())))
        return f"{len(self.failed)} frames could not be drawn, first {first}; the pictures of the others are kept"


def write_pictures(
    maps: Path,
    out: Path,
    settings: PictureSettings,
    labels: LabelSources = NO_LABELS,
    on_frame: Callable[[int, int], None] | None = None,
) -> WrittenPictures:
    """Draw frames of a maps folder into ``OUT/panel/F.ext`` or ``OUT/overlay-SCORE/F.ext``.

    One value has one colour in all pictures. A frame that cannot be drawn does not stop the others; a panel goes without an
    image that is gone. ``on_frame`` is called after each frame with the number of frames done and their total.

    Raises:
        InputError: there are no maps, an unknown score, a flag of a score that is not drawn, no frame of the names given, no
            image for overlays, or an output that is a maps folder or lies in one.
        PartialFailure: no label belongs to a frame.
    """
    reader = open_maps(maps)
    if is_ours(out) or out.resolve().is_relative_to(maps.resolve()):
        raise InputError(f"output {out} is or lies inside a maps folder", hint="give another --out")
    scores = _choose_scores(reader, settings)
    names = _choose_frames(reader, settings.frames)
    if strange := sorted(set(settings.flag) - set(scores)):
        raise InputError(f"'{strange[0]}' is flagged but not drawn", hint=f"--score {','.join((*scores, strange[0]))}")
    ranges = page_ranges(reader, settings.ranges, scores)
    legends = {s: Legend.of(reader.manifest, s, ranges[s], settings.flag.get(s)) for s in scores}
    times = dict(zip(names, frame_times(reader, names), strict=True))
    drawn_labels = labels.find(reader, names)
    source, missing = open_images(reader, settings.images, names)
    if source is None and not settings.panel:
        raise InputError(f"overlays of {maps} need images ({missing})", hint="give --images PATH, or --panel")
    encode = encode_png if settings.format == "png" else encode_jpeg
    written = WrittenPictures({}, [text for text in (missing, reader.unfinished) if text])
    without = 0
    for done, (name, image, error) in enumerate(with_images(names, source), start=1):
        without += image is None
        caption = frame_caption(name, times[name])
        try:
            if image is None and not settings.panel:
                raise InputError(f"frame {name} has no image ({error or 'the source does not hold it'})")
            for folder, picture in _draw(reader, name, image, legends, drawn_labels, settings, caption):
                path = out / folder / f"{name}.{settings.format}"
                write_file(path, encode(picture))
                written.pictures.setdefault(folder, []).append(path)
        except InputError as problem:
            written.failed[name] = str(problem)
        else:
            written.times.append(times[name])
        if on_frame is not None:
            on_frame(done, len(names))
    if source is not None and without:
        written.notes.append(f"{without} of {len(names)} frames have no image")
    return written


def _choose_scores(reader: MapsReader, settings: PictureSettings) -> list[str]:
    if settings.score:
        return choose_scores(reader, settings.score)
    wanted = ANOMALY_PANEL_SCORES if "anomaly" in reader.scores else PANEL_SCORES
    usual = [score for score in wanted if score in reader.scores] if settings.panel else []
    return usual or choose_scores(reader, [first_shown(reader.scores)])


def _choose_frames(reader: MapsReader, patterns: Sequence[str] | None) -> list[str]:
    """Return the frames that equal or match a pattern, in source order; InputError for a pattern without a frame."""
    if patterns is None:
        return list(reader.frames)
    wanted = set()
    for pattern in patterns:
        matched = {name for name in reader.frames if name == pattern or fnmatchcase(name, pattern)}
        if not matched:
            raise InputError(
                f"no frame of {reader.folder} is named '{pattern}'; they have names like {reader.frames[0]}"
            )
        wanted |= matched
    return [name for name in reader.frames if name in wanted]


def _draw(
    reader: MapsReader,
    name: str,
    image: Image | None,
    legends: Mapping[str, Legend],
    labels: ReviewLabels,
    settings: PictureSettings,
    caption: str,
) -> Iterator[tuple[str, Image]]:
    """Yield the folder and the pixels of each picture of a frame."""
    label, theme = labels.anomaly(name), THEMES[settings.theme]
    anomaly = None if label is None else label == 1
    scores = [(legend, reader.read(name, score)) for score, legend in legends.items()]
    if settings.panel:
        prediction = reader.prediction(name) if reader.has(name, PREDICTION) else None
        classes = [(entry["name"], tuple(entry["colour"])) for entry in describe_classes(reader, None)]
        yield (
            PANEL,
            draw_panel(image, prediction, scores, classes=classes, anomaly=anomaly, caption=caption, theme=theme),
        )
        return
    assert image is not None
    for legend, values in scores:
        overlay = draw_overlay(image, values, legend, anomaly=anomaly, caption=caption, theme=theme)
        yield f"overlay-{legend.score}", overlay
