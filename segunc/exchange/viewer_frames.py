"""What viewers are given of a maps folder: frame by frame, the image, the prediction and the scores in real units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segunc.data.images import Image
from segunc.errors import InputError
from segunc.maps.folder import PREDICTION
from segunc.maps.reader import MapsReader
from segunc.review.frame_files import FrameRow
from segunc.review.inputs import frame_times, open_images, open_maps, with_images


@dataclass(frozen=True, eq=False)
class ViewerFrame:
    """One frame.

    Attributes:
        name: its name.
        place: its place among the frames, from 0.
        time: seconds in its video, None for images.
        image: RGB uint8 ``[H, W, 3]``, None where the source does not hold it.
        prediction: class ids ``[H, W]``, None where there is none.
        scores: score -> values in real units, float32 ``[H, W]``.
    """

    name: str
    place: int
    time: float | None
    image: Image | None
    prediction: npt.NDArray[np.uint8] | None
    scores: dict[str, npt.NDArray[np.float32]]


class ViewerMaps:
    """A maps folder with its images, as viewers want it.

    Args:
        maps: the maps folder, of this tool or any other, finished or not.
        scores: the scores to give; None is all.
        images: the source images; None is the input that the manifest records.

    Attributes:
        reader: of the maps.
        scores: the chosen scores.
        notes: what a user should know of what is missing.

    Raises:
        InputError: no maps, an unknown score, or no such images.
    """

    def __init__(self, maps: Path, scores: Sequence[str] | None = None, images: str | Path | None = None) -> None:
        self.reader: MapsReader = open_maps(maps)
        self.scores = list(self.reader.scores if scores is None else dict.fromkeys(scores))
        unknown = [score for score in self.scores if score not in self.reader.scores]
        if unknown:
            known = ", ".join(self.reader.scores) or "(there is none)"
            raise InputError(f"score '{unknown[0]}' has no maps in {maps}", f"one of {known}", "check the name")
        self._source, missing = open_images(self.reader, images, self.reader.frames)
        self.notes = [text for text in (missing, self.reader.unfinished) if text]

    def __len__(self) -> int:
        return len(self.reader)

    def frames(self) -> Iterator[tuple[str, ViewerFrame | InputError]]:
        """Name and content of every frame; an error in the place of a frame whose maps cannot be read."""
        names = self.reader.frames
        times = frame_times(self.reader, names)
        rows = [FrameRow(name, place) for place, name in enumerate(names)]
        for row, image, _ in with_images(rows, self._source):
            try:
                frame = ViewerFrame(
                    row.name,
                    row.place,
                    times[row.place],
                    image,
                    self.reader.prediction(row.name) if self.reader.has(row.name, PREDICTION) else None,
                    {s: self.reader.read(row.name, s) for s in self.scores if self.reader.has(row.name, s)},
                )
            except InputError as error:
                yield row.name, error
            else:
                yield row.name, frame
