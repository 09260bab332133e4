"""Arrays and tables as script files, the one kind of file whose content a page opened from disk may read.

A page from ``file://`` may not fetch its neighbours, and a canvas that such an image was drawn on cannot be read back.
A ``<script>`` may be loaded, so a map becomes one call with its exact content: differences to the row above, modulo
the range of the type, as one plane for each byte (low byte first), in a zlib stream, in base64. Neighbouring rows are
alike and the high bytes more so: on maps of 960 x 540 the files are about as large as the 16-bit PNGs they come from.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.files import write_atomically
from segunc.maps.score_files import Form

_LEVEL = 1
"""Of zlib: level 6 takes three times as long for 5 % less."""


def pack(values: npt.NDArray[Any]) -> tuple[str, bytes]:
    """The type (``uint8``, ``uint16``, ``float16`` or ``float32``) and the packed bytes of an array ``[H, W]``.

    Any other type is taken to float32, in which :meth:`segunc.maps.reader.MapsReader.read` gives values.
    """
    if values.dtype not in (np.uint8, np.uint16, np.float16, np.float32):
        values = values.astype(np.float32)
    size = values.dtype.itemsize
    bits = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).view(f"<u{size}")
    differences = bits.copy()
    differences[1:] -= bits[:-1]
    planes = differences.view(np.uint8).reshape(*values.shape, size).transpose(2, 0, 1)
    return values.dtype.name, zlib.compress(planes.tobytes(), _LEVEL)


def write_chunk(path: Path, key: str, stored: npt.NDArray[Any], form: Form) -> None:
    """Write a stored map or label ``[H, W]`` as a script that hands it to the page under ``key``.

    Args:
        path: the file, ending in ``.js``; its folder is made if missing.
        key: how the page asks for it.
        stored: the map as it is stored.
        form: how its whole numbers become values.
    """
    dtype, packed = pack(stored)
    head = {"dtype": dtype, "form": form, "height": stored.shape[0], "width": stored.shape[1]}
    text = f'segunc.receive({json.dumps(key)}, {json.dumps(head)}, "{base64.b64encode(packed).decode()}");\n'
    write_new(path, text.encode())


def write_data(path: Path, key: str, content: Any) -> None:
    """Write a table as a script that hands it to the page under ``key``; NaN is refused.

    The browser parses JSON in a string several times faster than the same text as an expression.
    """
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    write_new(path, f"segunc.receive({json.dumps(key)}, JSON.parse({json.dumps(text)}));\n".encode())


def write_new(path: Path, data: bytes) -> None:
    """Write a file whole; its folder is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
