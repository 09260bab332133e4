"""What of the training frames each place of a frame is most like: ``nearest/F.json`` of a maps folder.

A place is one of the coarse grid of a layer's features. Names in these files are text to be shown and open nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import safe_name

NEAREST = "nearest"
"""The folder of these files, and their name in the line of a frame."""
FORMAT = 1
MOST_BYTES = 1 << 25
MOST_PLACES = 1 << 20


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
    extent: tuple[
        float, float
    ]  # of the grid, as shares of the frame's height and width: a network may pad below and at the right

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
    def read(cls, path: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> Self:
        """What :meth:`encode` made, ``read`` gives its bytes; InputError where it is missing, too large or holds anything else."""
        try:
            if path.stat().st_size > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            return cls._of(json.loads(read(path)), path)
        except OSError as error:
            raise InputError(
                f"{path} cannot be read ({error.strerror})", "what places are most like", "predict again"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            given = f"{path} holds no neighbours of places ({type(error).__name__}: {str(error)[:80]})"
            raise InputError(given, "a file that segunc predict --nearest wrote", "predict again") from error

    @classmethod
    def _of(cls, content: dict[str, Any], path: Path) -> Self:
        height, width = _whole(content["size"], 2, MOST_PLACES)
        if content["format"] != FORMAT or not 0 < height * width <= MOST_PLACES:
            raise ValueError(f"format {content['format']} of {height} x {width} places")
        frames = [safe_name(name, f"{path}: a training frame") for name in content["frames"]]
        known = []
        for frame, row, column, label in content["neighbours"]:
            (number,), at = _whole([frame], 1, len(frames)), _shares([row, column], 2, 1)
            known.append(TrainingPlace(frames[number], *at, None if label is None else _whole([label], 1, 255)[0]))
        places = np.array(_whole(content["places"], height * width, len(known)), np.int64).reshape(height, width)
        distances = np.array(_shares(content["distances"], height * width, 2), np.float32).reshape(height, width)
        down, right = _shares(content["extent"], 2, 64)
        if min(down, right) < 1:
            raise ValueError("a grid that leaves out a part of the frame")
        return cls(safe_name(content["dataset"], f"{path}: the data set"), known, places, distances, (down, right))


def _whole(values: Any, count: int, end: int) -> list[int]:
    """A list of so many whole numbers in 0..end - 1."""
    if not isinstance(values, list) or len(values) != count or not all(type(v) is int and 0 <= v < end for v in values):
        raise ValueError(f"expected {count} whole numbers below {end}")
    return values


def _shares(values: Any, count: int, highest: float) -> list[float]:
    """A list of so many numbers in 0..highest."""
    if (
        not isinstance(values, list)
        or len(values) != count
        or not all(type(v) in (int, float) and 0 <= v <= highest for v in values)
    ):
        raise ValueError(f"expected {count} numbers in 0..{highest:g}")
    return values


def strongest(values: npt.NDArray[np.floating], threshold: float | None) -> tuple[int, int] | None:
    """(row, column) of the highest value of a map ``[H, W]``, which lies in the connected region of the highest maximum; None where
    it is below the threshold, or no value is a number."""
    known = np.where(np.isfinite(values), values, -np.inf)
    row, column = (int(place) for place in np.unravel_index(known.argmax(), known.shape))
    return (
        (row, column) if known[row, column] >= (np.finfo(np.float32).min if threshold is None else threshold) else None
    )
