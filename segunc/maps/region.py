"""A region of interest: pixels outside of it (the vehicle's own bonnet, a time stamp burnt in) count for nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.images import read_image

MASK_NAME = "mask.png"
ASPECT_TOLERANCE = 0.02
"""By how much the ratio of a mask's sides may differ from that of a frame: another camera's mask is a mistake."""


class Region:
    """Which pixels of every frame count.

    Args:
        path: a PNG: black (0) is left out, any other value counts. A frame of another size gets it resized to the nearest
            pixel.

    Attributes:
        kept: bool ``[H, W]`` at the size of the file.
        sha256: of size and pixels, whatever the file's encoding.

    Raises:
        InputError: the file cannot be read, is no PNG (a JPEG's black is not 0), or leaves nothing.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() != ".png":
            raise InputError(f"mask {path}", "a PNG, whose black is exactly 0", "convert it")
        try:
            picture = read_image(path)
        except OSError as error:
            raise InputError(f"mask {path} cannot be read ({error.strerror})", "a PNG", "check the path") from error
        except ValueError as error:
            raise InputError(f"mask {path} cannot be read ({error})", "a PNG", "write it again") from error
        self.kept: npt.NDArray[np.bool_] = picture.max(axis=2) > 0
        if not self.kept.any():
            raise InputError(f"mask {path} is black all over", "white where pixels count", "invert it")
        self.sha256 = hashlib.sha256(repr(self.kept.shape).encode() + np.packbits(self.kept).tobytes()).hexdigest()
        self._resized: dict[tuple[int, int], npt.NDArray[np.bool_]] = {}

    @property
    def picture(self) -> npt.NDArray[np.uint8]:
        """0 and 255, ``[H, W]``."""
        return self.kept.astype(np.uint8) * np.uint8(255)

    def at(self, height: int, width: int) -> npt.NDArray[np.bool_]:
        """The region at a frame's size, bool ``[height, width]``; InputError for frames of another shape than the mask's, or so
        small that nothing of the region is left."""
        found = self._resized.get((height, width))
        if found is None:
            rows, columns = self.kept.shape
            if abs(columns / rows / (width / height) - 1.0) > ASPECT_TOLERANCE:
                given = f"a mask of {rows}x{columns} for a frame of {height}x{width}"
                raise InputError(given, "one shape", "give another --mask")
            resized = cv2.resize(self.picture, (width, height), interpolation=cv2.INTER_NEAREST)
            found = np.asarray(resized > 0)
            if not found.any():
                raise InputError(f"a mask that leaves nothing of a frame of {height}x{width}", "a larger region", "")
            self._resized = {(height, width): found}  # of the last size only: sizes may be many
        return found

    def clear(self, maps: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Maps ``[H, W]`` of one frame with 0 outside of the region, each in its own type."""
        return {name: np.where(self.at(*values.shape), values, values.dtype.type(0)) for name, values in maps.items()}
