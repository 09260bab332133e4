"""Maps of a frame as scripts that the review page loads.

A page from ``file://`` may not fetch its neighbours, and a canvas that such an image was drawn on
cannot be read back. A ``<script>`` may be loaded, so a map becomes one call with its content:
bytes, as differences to the row above modulo 256, in a zlib stream, in base64. The bytes of a label
are its ids, those of a score what :func:`condense` returns.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.data.images import resize_nearest
from segunc.maps.encoding import is_flagged
from segunc.maps.labelled import Label

STEPS = 254  # of the range of one map
NO_NUMBER = 255  # the code of NaN and infinities

Codes = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]


def condense(
    values: Values | Label, longest: int, threshold: float | None = None
) -> tuple[Codes, dict[str, float]]:
    """Return a map as codes of one byte, and what turns codes into values again.

    A value is ``low + (code + shift) / 254 * (high - low)``, cut to ``low..high``; it differs from
    the map by half a step at most. A map that is shrunk holds means of pixels.

    Args:
        values: a score ``[H, W]``, or a label, uint8, whose codes are its ids.
        longest: pixels of the longer side of the codes, at most.
        threshold: a step ends there: values at or above it never share a code with values below.

    Returns:
        The codes, 255 where a value is not finite, and ``low``, ``high`` and ``shift`` (steps).
    """
    if values.dtype == np.uint8:
        height, width = fitting_size(values.shape, longest)
        return resize_nearest(values.astype(np.uint8), width, height), {}
    small = shrink(values, longest)
    finite = np.isfinite(small)
    low = 0.0
    high = 0.0
    if finite.any():
        low = float(small[finite].min())
        high = float(small[finite].max())
    steps_per_unit = STEPS / (high - low) if high > low else 0
    steps = (np.where(finite, small, low) - low) * steps_per_unit
    shift = 0.0
    first_flagged = 0  # code of the lowest values at or above the threshold; 0 for no such code
    if threshold is not None and low < threshold <= high:
        steps_below = (threshold - low) / (high - low) * STEPS
        first_flagged = math.ceil(steps_below)
        shift = steps_below - (first_flagged - 0.5)
    codes = np.clip(np.rint(steps - np.float32(shift)), 0, STEPS)
    if threshold is not None and first_flagged:
        # Float32 may round a value that lies next to the threshold to the wrong side.
        codes = np.where(
            is_flagged(small, threshold),
            np.maximum(codes, first_flagged),
            np.minimum(codes, first_flagged - 1),
        )
    codes = np.where(finite, codes, NO_NUMBER).astype(np.uint8)
    return codes, {"low": low, "high": high, "shift": shift}


def map_script(key: str, codes: Codes, ends: Mapping[str, Any], stamp: str) -> bytes:
    """Return the script that hands codes ``[H, W]`` to the page, with the ends of their range and
    what else it is to know of the map. ``stamp`` is that of the page.
    """
    size = {"height": codes.shape[0], "width": codes.shape[1]}
    return _script(key, {"stamp": stamp, **size, **ends}, packed(codes))


def packed(codes: Codes) -> str:
    """Return codes ``[H, W]`` as text: differences to the row above, in a zlib stream, in
    base64.
    """
    differences = codes.copy()
    differences[1:] -= codes[:-1]
    # Level 6 of zlib takes three times as long for 5 % less.
    return base64.b64encode(zlib.compress(differences.tobytes(), 1)).decode()


def picture_script(key: str, jpeg: bytes, stamp: str) -> bytes:
    """Return the script that hands a picture to the page: what a page from disk loads as a picture
    it may not save. ``stamp`` is that of the page.
    """
    return _script(key, {"stamp": stamp}, base64.b64encode(jpeg).decode())


def _script(key: str, head: Mapping[str, Any], text: str) -> bytes:
    """Return the script that hands a text to the page under ``key``."""
    return f'segunc.receive({json.dumps(key)}, {json.dumps(head)}, "{text}");\n'.encode()


def fitting_size(shape: tuple[int, ...], longest: int) -> tuple[int, int]:
    """Return height and width scaled down to at most ``longest`` pixels on the longer side."""
    height, width = shape[:2]
    scale = min(1.0, longest / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def shrink(picture: Any, longest: int) -> Any:
    """Scale a picture or map down to at most ``longest`` pixels on a side, each the mean of those
    it stands for.
    """
    height, width = fitting_size(picture.shape, longest)
    if (height, width) == picture.shape[:2]:
        return picture
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
