"""What of the training frames each place of a frame is most like: ``nearest/F.json`` of a maps folder.

A place is one of the coarse grid of a layer's features. Names in these files are text to be shown and open nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from segunc.core.files import parse_json, read_bytes, reading
from segunc.maps.sums import REPAIR

NEAREST = "nearest"
"""The folder of these files, and their name in the line of a frame."""
FORMAT = 1


class TrainingPlace(NamedTuple):
    """A place of a training frame."""

    frame: str  # name
    row: float  # of its centre, as shares of the frame's height and width
    column: float
    label: int | None  # id of the class of most of its pixels


@dataclass(frozen=True)
class NearestPlaces:
    """For each place of a frame the nearest place of the training frames."""

    dataset: str  # that the training frames are of
    known: Sequence[TrainingPlace]
    places: npt.NDArray[np.int64]  # [h, w], which of the known
    distances: npt.NDArray[np.float32]  # [h, w], 1 - cosine, 0..2
    # Of the grid, as shares of the frame's height and width: a network may pad below and at the right.
    extent: tuple[float, float]

    def at(self, row: float, column: float) -> tuple[TrainingPlace, float]:
        """What the place of a point, given as shares 0..1 of the frame's height and width, is most like, and its distance."""
        shares = zip((row, column), self.extent, self.places.shape, strict=True)
        place = tuple(min(int(share / extent * count), count - 1) for share, extent, count in shares)
        return self.known[self.places[place]], float(self.distances[place])

    def encode(self) -> bytes:
        """The bytes of the file, which holds only the neighbours that occur."""
        used, places = np.unique(self.places, return_inverse=True)
        known = [self.known[index] for index in used]
        frames = sorted({neighbour.frame for neighbour in known})
        number = {name: index for index, name in enumerate(frames)}
        content = {
            "format": FORMAT,
            "dataset": self.dataset,
            "size": list(self.places.shape),
            "extent": list(self.extent),
            "frames": frames,
            "neighbours": [[number[n.frame], round(n.row, 4), round(n.column, 4), n.label] for n in known],
            "places": places.ravel().tolist(),
            "distances": [float(f"{distance:.4g}") for distance in self.distances.ravel().tolist()],
        }
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    @classmethod
    def read(cls, path: Path, read: Callable[[Path], bytes] = read_bytes) -> Self:
        """Return what :meth:`encode` made, of the bytes that ``read`` gives; InputError where there are none, or no JSON."""
        with reading(str(path), "a file that segunc predict --nearest wrote", REPAIR):
            content = parse_json(read(path))
        known = [TrainingPlace(content["frames"][frame], *place) for frame, *place in content["neighbours"]]
        places, distances = (np.reshape(content[key], content["size"]) for key in ("places", "distances"))
        extent = tuple(content["extent"])
        return cls(content["dataset"], known, places.astype(np.int64), distances.astype(np.float32), extent)


def strongest(values: npt.NDArray[np.floating], threshold: float | None) -> tuple[int, int] | None:
    """(row, column) of the highest value of a map ``[H, W]``, which lies in the connected region of the highest maximum; None where
    it is below the threshold, or no value is a number."""
    known = np.where(np.isfinite(values), values, -np.inf)
    row, column = (int(place) for place in np.unravel_index(known.argmax(), known.shape))
    highest = known[row, column]
    return (row, column) if np.isfinite(highest) and (threshold is None or highest >= threshold) else None
