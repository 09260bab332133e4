"""The picture of each frame on the review page: its overlay, or a panel drawn from maps and source image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.data.anomaly_labels import BINARY
from segunc.data.images import Image, read_image
from segunc.data.label_images import read_label_image
from segunc.errors import InputError
from segunc.maps.folder import PREDICTION
from segunc.maps.reader import MapsReader
from segunc.maps.sources import FrameSource
from segunc.review.colormap import DISPLAY_RANGES, display_range
from segunc.review.overlay import Legend, model_line, score_unit
from segunc.review.panel import draw_panel

ReadAnomaly = Callable[[Path], npt.NDArray[np.bool_]]


def read_anomaly_mask(path: Path) -> npt.NDArray[np.bool_]:
    """Where an anomaly label is 1, ``[H, W]``; the file holds 0 (normal), 1 (anomaly) and 255 (ignored) only.

    Raises:
        InputError: no such file, more than one channel, or other values.
    """
    return np.asarray(BINARY.encode(read_label_image(path), f"anomaly label {path}") == 1, np.bool_)


class FramePictures:
    """Draws frames of a maps folder.

    Args:
        reader: the maps.
        ranges: display ranges of the user's own, score -> (low, high); unbounded scores are shown only with one.
    """

    def __init__(self, reader: MapsReader, ranges: dict[str, tuple[float, float]] | None = None) -> None:
        self.reader = reader
        manifest: dict[str, Any] = reader.manifest or {}
        given = ranges or {}
        unknown = sorted(set(given) - set(reader.scores))
        if unknown:
            raise InputError(f"a range for '{unknown[0]}'", f"one of {', '.join(reader.scores)}", "check the name")
        self.note = model_line(manifest)
        self.legends = {
            score: Legend(score, score_unit(manifest, score), display_range(score, given.get(score)), self.note)
            for score in reader.scores
            if score in given or score in DISPLAY_RANGES
        }
        self.classes = list(manifest.get("classes", {}).get("names", []))
        self.palette = [(int(r), int(g), int(b)) for r, g, b in manifest.get("classes", {}).get("palette", [])]

    def panel(self, name: str, image: Image | None, anomaly: npt.NDArray[np.bool_] | None) -> Image | None:
        """The panel of a frame; None where it has neither an image nor a map that can be shown."""
        scores = [(legend, self.reader.read(name, s)) for s, legend in self.legends.items() if self.reader.has(name, s)]
        shown = self.palette and self.reader.has(name, PREDICTION)
        prediction = self.reader.prediction(name) if shown else None
        if image is None and prediction is None and not scores:
            return None
        return draw_panel(
            image, prediction, scores, classes=self.classes, palette=self.palette, note=self.note, anomaly=anomaly
        )

    def iterate(
        self,
        names: list[str],
        source: FrameSource | None,
        labels: dict[str, Path],
        read_anomaly: ReadAnomaly,
        *,
        redraw: bool,
    ) -> Iterator[tuple[str, Image]]:
        """Name and picture of each frame, in no promised order, one picture in memory at a time.

        The overlay of the prediction is taken where there is one, unless ``redraw``, or labels ask for outlines.
        """
        wanted = set(names)
        drawn = set()
        for name in names:
            overlay = None if redraw or name in labels else self.reader.overlay(name)
            if overlay is not None:
                drawn.add(name)
                yield name, read_image(overlay)
        wanted -= drawn
        if source is not None and wanted:
            for frame in source.frames(lambda _, name: name not in wanted):
                if frame.name in wanted and frame.image is not None:
                    anomaly = read_anomaly(labels[frame.name]) if frame.name in labels else None
                    picture = self.panel(frame.name, frame.image, anomaly)
                    if picture is not None:
                        wanted.discard(frame.name)
                        yield frame.name, picture
                if not wanted:
                    return
        for name in (name for name in names if name in wanted):
            anomaly = read_anomaly(labels[name]) if name in labels else None
            picture = self.panel(name, None, anomaly)
            if picture is not None:
                yield name, picture
