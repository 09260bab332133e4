"""Text, colour bars and outlines in pictures, with OpenCV's own font (no font file is needed)."""

from __future__ import annotations

import unicodedata
from typing import TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from segunc.data.images import Image

Scalar = TypeVar("Scalar", bound=np.generic)
INK = (236, 236, 240)
FAINT_INK = (168, 168, 178)
PAPER = (22, 22, 26)
"""Colours of text, of minor text and of the strips that carry it, RGB."""
_FONT = cv2.FONT_HERSHEY_SIMPLEX
MINIMUM_TEXT = 12
"""Height of capital letters in pixels below which text is not drawn: smaller is not legible in a JPEG."""


def blank(height: int, width: int, colour: tuple[int, int, int] = PAPER) -> Image:
    """A picture of one colour, RGB uint8 ``[height, width, 3]``."""
    return np.full((height, width, 3), colour, np.uint8)


def printable(text: str) -> str:
    """Text in the characters that OpenCV's font has in all versions: accents removed, the rest as ``?``."""
    plain = unicodedata.normalize("NFKD", text)
    return "".join(c if " " <= c <= "~" else "?" for c in plain if not unicodedata.combining(c))


def text_width(text: str, size: int) -> int:
    """Width in pixels of text with capitals ``size`` pixels high."""
    return int(cv2.getTextSize(printable(text), _FONT, cv2.getFontScaleFromHeight(_FONT, size, 1), 1)[0][0])


def shorten(text: str, size: int, width: int) -> str:
    """Text cut with ``...`` so that it fits into ``width`` pixels."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "...", size) > width:
        text = text[:-1]
    return text.rstrip() + "..."


def draw_text(
    picture: Image, text: str, left: int, baseline: int, size: int, colour: tuple[int, int, int] = INK
) -> None:
    """Write text into a picture, capitals ``size`` pixels high, standing on ``baseline``."""
    scale = cv2.getFontScaleFromHeight(_FONT, size, 1)
    cv2.putText(picture, printable(text), (left, baseline), _FONT, scale, colour, 1, cv2.LINE_AA)


def draw_bar(
    picture: Image, colours: Image, left: int, top: int, width: int, height: int, ticks: tuple[str, ...], size: int
) -> None:
    """Draw a horizontal colour bar of ``colours`` ``[K, 3]`` with evenly spaced labels below, the outer ones flush."""
    columns = np.rint(np.linspace(0, len(colours) - 1, width)).astype(np.intp)
    picture[top : top + height, left : left + width] = colours[columns]
    cv2.rectangle(picture, (left - 1, top - 1), (left + width, top + height), FAINT_INK, 1)
    for index, tick in enumerate(ticks):
        share = index / (len(ticks) - 1)
        x = left + round(share * width) - round(share * text_width(tick, size))
        draw_text(picture, tick, x, top + height + round(size * 1.7), size, FAINT_INK)


def draw_outline(picture: Image, mask: npt.NDArray[np.bool_]) -> None:
    """Outline the regions of a mask ``[H, W]`` in white with a dark edge, visible on any colour."""
    regions, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    thickness = max(1, round(picture.shape[1] / 640))
    cv2.drawContours(picture, regions, -1, (0, 0, 0), 3 * thickness, cv2.LINE_AA)
    cv2.drawContours(picture, regions, -1, (255, 255, 255), thickness, cv2.LINE_AA)


def resize(picture: Image, width: int, height: int) -> Image:
    """A picture at another size: means of pixels when it shrinks, linear in between when it grows."""
    if picture.shape[:2] == (height, width):
        return picture
    shrinks = width < picture.shape[1]
    return np.asarray(
        cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR), np.uint8
    )


def resize_nearest(values: npt.NDArray[Scalar], width: int, height: int) -> npt.NDArray[Scalar]:
    """A map ``[H, W]`` or picture ``[H, W, 3]`` at another size, without values between its own."""
    if values.shape[:2] == (height, width):
        return values
    rows = np.arange(height) * values.shape[0] // height
    columns = np.arange(width) * values.shape[1] // width
    resized: npt.NDArray[Scalar] = values[rows[:, None], columns[None, :]]
    return resized
