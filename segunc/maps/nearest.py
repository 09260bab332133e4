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

from segunc.core.errors import InputError, one_line
from segunc.core.files import parse_json, read_bytes, safe_name
from segunc.maps.sums import REPAIR, DamageError

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
    def read(cls, path: Path, read: Callable[[Path], bytes] = read_bytes) -> Self:
        """What :meth:`encode` made, ``read`` gives its bytes; InputError where it is missing, too large or holds anything else."""
        try:
            if path.stat().st_size > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            return cls._of(parse_json(read(path)), path)
        except OSError as error:
            raise InputError(f"{path} cannot be read ({error.strerror})", "a file", REPAIR) from error
        except DamageError as error:
            raise InputError(f"{path} {error.given}", error.expected, error.remedy) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            given = f"{path} holds no neighbours of places ({one_line(error)})"
            raise InputError(
                given, "a file that segunc predict --nearest wrote", "predict into a new folder"
            ) from error

    @classmethod
    def _of(cls, content: dict[str, Any], path: Path) -> Self:
        height, width = _numbers(content["size"], 2, MOST_PLACES, int)
        extent = _numbers(content["extent"], 2, 64, int, float)
        if content["format"] != FORMAT or not 0 < height * width <= MOST_PLACES or min(extent) < 1:
            raise ValueError("of another format, or a grid that is none of a frame")
        frames = [safe_name(name, f"{path}: a training frame") for name in content["frames"]]
        known = []
        for frame, row, column, label in content["neighbours"]:
            _numbers([frame], 1, len(frames) - 1, int)
            _numbers([row, column], 2, 1, int, float)
            _numbers([0 if label is None else label], 1, 254, int)
            known.append(TrainingPlace(frames[frame], row, column, label))
        places = np.array(_numbers(content["places"], height * width, len(known) - 1, int), np.int64)
        distances = np.array(_numbers(content["distances"], height * width, 2, int, float), np.float32)
        dataset = safe_name(content["dataset"], f"{path}: the data set")
        return cls(dataset, known, places.reshape(height, width), distances.reshape(height, width), tuple(extent))


def _numbers(values: Any, count: int, highest: float, *kinds: type) -> list[Any]:
    """A list of so many numbers in 0..highest."""
    if not isinstance(values, list) or len(values) != count:
        raise ValueError(f"expected {count} numbers")
    if not all(type(value) in kinds and 0 <= value <= highest for value in values):
        raise ValueError(f"expected {kinds[-1].__name__}s in 0..{highest:g}")
    return values


def strongest(values: npt.NDArray[np.floating], threshold: float | None) -> tuple[int, int] | None:
    """(row, column) of the highest value of a map ``[H, W]``, which lies in the connected region of the highest maximum; None where
    it is below the threshold, or no value is a number."""
    known = np.where(np.isfinite(values), values, -np.inf)
    row, column = (int(place) for place in np.unravel_index(known.argmax(), known.shape))
    highest = known[row, column]
    return (row, column) if np.isfinite(highest) and (threshold is None or highest >= threshold) else None
