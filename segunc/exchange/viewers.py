"""What viewers are given of a maps folder: frame by frame, the image, the prediction and the scores in real units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.images import Image
from segunc.exchange.export import ExportSummary
from segunc.gallery.colormap import DisplayRange, page_ranges
from segunc.gallery.inputs import choose_scores, frame_times, open_images, open_maps, with_images
from segunc.maps.folder import PREDICTION
from segunc.maps.reader import MapsReader


@dataclass(frozen=True, eq=False)
class ViewerFrame:
    """One frame; what the source or the maps do not hold is None or left out."""

    name: str
    place: int  # among the frames, from 0
    time: float | None  # seconds in its video
    image: Image | None  # RGB uint8 [H, W, 3]
    prediction: npt.NDArray[np.uint8] | None  # class ids [H, W]
    scores: dict[str, npt.NDArray[np.float32]]  # in real units, [H, W]
    record: Mapping[str, Any]  # its line of frames.jsonl


class ViewerMaps:
    """A maps folder with its images, as viewers want it; scores and images as in the functions that export.

    Raises:
        InputError: no maps, an unknown score, or no such images.
    """

    def __init__(self, maps: Path, scores: Sequence[str] | None = None, images: str | Path | None = None) -> None:
        self.reader: MapsReader = open_maps(maps)
        self.scores = choose_scores(self.reader, scores)
        self._source, missing = open_images(self.reader, images, self.reader.frames)
        self._notes = [text for text in (missing, self.reader.unfinished) if text]

    @cached_property
    def ranges(self) -> dict[str, DisplayRange]:
        """The range in which each of the scores is shown."""
        return page_ranges(self.reader, scores=self.scores)

    def export(
        self, out: Path, write: Callable[[ViewerFrame], None], on_frame: Callable[[int, int], None] | None
    ) -> ExportSummary:
        """Hand every frame to ``write``; one whose maps cannot be read, or that is refused, does not stop the others."""
        names = self.reader.frames
        summary = ExportSummary(out, total=len(names), notes=list(self._notes))
        times = dict(zip(names, enumerate(frame_times(self.reader, names)), strict=True))
        for done, (name, image, _) in enumerate(with_images(names, self._source), start=1):
            place, time = times[name]
            try:
                prediction = self.reader.prediction(name) if self.reader.has(name, PREDICTION) else None
                scores = {score: self.reader.read(name, score) for score in self.scores if self.reader.has(name, score)}
                record = self.reader.records.get(name, {})
                write(ViewerFrame(name, place, time, image, prediction, scores, record))
            except InputError as error:
                summary.failed[name] = str(error)
            else:
                summary.written += 1
            if on_frame is not None:
                on_frame(done, len(names))
        return summary
