"""Label files as arrays of their raw values.

Decoders change label values without a word: OpenCV turns a palette PNG into its colours, and a black-and-white PNG
of one bit into 0 and 255. Here the values are those that the file stores.
"""

from __future__ import annotations

import io
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from segunc.data.images import find_damage
from segunc.errors import InputError

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PALETTE = 3
"""The colour type of a palette PNG (PNG specification, IHDR)."""


def read_label_image(path: Path) -> npt.NDArray[np.uint8]:
    """The raw label values of an image file, uint8 ``[H, W]``; palette PNGs give their indices.

    Raises:
        InputError: the file cannot be read, is damaged, is no single-channel image, or holds values above 255.
    """
    remedy = "write it again as a lossless single-channel PNG of label ids"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"label {path} cannot be read ({error.strerror})", "a PNG", "check the path") from error
    damage = find_damage(data)
    if damage:
        raise InputError(f"label {path} cannot be read ({damage})", "a PNG", remedy)
    if data.startswith(b"\xff\xd8"):
        raise InputError(f"label {path} is a JPEG, whose values are not exact", "a PNG", remedy)
    if data.startswith(_PNG_SIGNATURE):
        depth, colour = data[24], data[25]
        if colour == _PALETTE or depth == 1:
            with Image.open(io.BytesIO(data)) as image:
                return np.asarray(image).astype(np.uint8)
        if depth < 8:
            raise InputError(f"label {path} is a PNG of {depth} bits", "8 or 16 bits, or a palette", remedy)
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if decoded is None:
        raise InputError(f"label {path} cannot be decoded", "a PNG", remedy)
    if decoded.ndim != 2 or not np.issubdtype(decoded.dtype, np.integer):
        raise InputError(
            f"label {path} is an image of shape {decoded.shape} and type {decoded.dtype}", "one channel of ids", remedy
        )
    if decoded.max(initial=0) > 255:
        raise InputError(f"label {path} holds values up to {decoded.max()}", "class ids in 0..255", remedy)
    return decoded.astype(np.uint8)
