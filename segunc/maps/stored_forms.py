"""The arrays of a frame in the types that are stored, and the refusal of what cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.errors import InputError
from segunc.maps.encoding import UNIT_SCORES, encode_score

Array = npt.NDArray[Any]


def class_ids(values: Array, name: str) -> npt.NDArray[np.uint8]:
    """The prediction of a frame as uint8.

    Raises:
        InputError: no whole numbers in 0..255.
    """
    if not np.issubdtype(values.dtype, np.integer) or values.min(initial=0) < 0 or values.max(initial=0) > 255:
        raise InputError(f"the prediction of frame {name} is {values.dtype}", "class ids 0..255", "repair the process")
    return np.ascontiguousarray(values, np.uint8)


def stored_score(score: str, values: Array) -> Array:
    """A score as uint16 codes or float16; codes of a score in 0..1 are taken as they are.

    Raises:
        InputError: another type, or NaN.
    """
    if np.issubdtype(values.dtype, np.floating):
        return encode_score(score, values)
    if values.dtype == np.uint16 and score in UNIT_SCORES:
        return values
    raise InputError(
        f"map {score} is {values.dtype}", "floating values, or uint16 codes of a score in 0..1", "repair the process"
    )
