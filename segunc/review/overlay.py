"""A score over its image, with a legend that says what is seen: score, unit, fixed range, model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.data.images import Image
from segunc.errors import InputError
from segunc.review.colormap import DEFAULT_COLOUR_MAP, DisplayRange, colour_table, levels
from segunc.review.drawing import (
    FAINT_INK,
    MINIMUM_TEXT,
    blank,
    draw_bar,
    draw_outline,
    draw_text,
    resize,
    resize_nearest,
    shorten,
    text_width,
)

OUTLINE_NOTE = "outlined: labelled anomaly"
MINIMUM_WIDTH = 640
"""Smaller pictures are enlarged by a whole factor, so that their legend can be read."""
PHOTO_BRIGHTNESS = 0.8
"""Share of its brightness that the grey image keeps under the colours."""
_LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
"""ITU-R BT.601 weights of red, green and blue."""


@dataclass(frozen=True)
class Legend:
    """What a legend says.

    Attributes:
        score: the score's name.
        unit: its unit in words.
        shown: the fixed range of the colours.
        note: the model line, :func:`model_line`.
        colour_map: name of the colour table.
    """

    score: str
    unit: str
    shown: DisplayRange
    note: str = ""
    colour_map: str = DEFAULT_COLOUR_MAP

    @property
    def title(self) -> str:
        return f"{self.score} ({self.unit})" if self.unit else self.score

    @property
    def ticks(self) -> tuple[str, str, str]:
        """Labels of the low end, the middle and the high end."""
        middle = (self.shown.low + self.shown.high) / 2
        return self.shown.low_text, f"{middle:g}", self.shown.high_text


def model_line(manifest: Mapping[str, Any] | None) -> str:
    """One line on the model and its posterior from a manifest: what of it is recorded, nothing else."""
    manifest = manifest or {}
    model, run = manifest.get("model", {}), manifest.get("run", {})
    parts = [str(model[key]) for key in ("architecture", "method") if model.get(key)]
    if members := model.get("members"):
        parts.append(f"{members} member{'' if members == 1 else 's'}")
    if run.get("draws"):
        parts.append(f"{run['draws']} draws")
    parts += [f"{key} {run[key]}" for key in ("seed", "scope") if run.get(key) is not None]
    return ", ".join(parts)


def score_unit(manifest: Mapping[str, Any] | None, score: str) -> str:
    """The unit of a score as a manifest records it, empty where there is none."""
    return str(((manifest or {}).get("maps", {}).get(score) or {}).get("unit", ""))


def draw_overlay(
    image: Image,
    values: npt.NDArray[np.floating],
    legend: Legend,
    *,
    anomaly: npt.NDArray[np.bool_] | None = None,
) -> Image:
    """A score map over its image, a legend strip below.

    The image is shown in grey, darkened to 80 %. Colour covers it the more, the higher the score, by a fixed rule: 10 % at the low end
    of the range, 85 % at the high end; the legend's bar is painted by the same rule over mid-grey.

    Args:
        image: RGB uint8 ``[H, W, 3]``.
        values: the score in real units ``[h, w]``; taken to the image's size by the nearest value.
        legend: what it is and how it is shown.
        anomaly: labelled anomalies ``[H, W]``, outlined.

    Returns:
        RGB uint8, at least 640 pixels wide.
    """
    check_mask(image, anomaly)
    height, width = image.shape[:2]
    factor = math.ceil(MINIMUM_WIDTH / width)
    height, width = height * factor, width * factor
    # Darkened, so that a white lane marking cannot be taken for a high score.
    grey = resize(image, width, height).astype(np.float32) @ (_LUMINANCE * np.float32(PHOTO_BRIGHTNESS))
    picture = blend(grey, resize_nearest(levels(values, legend.shown), width, height), legend.colour_map)
    if anomaly is not None:
        draw_outline(picture, resize_nearest(anomaly, width, height))
    return np.vstack([picture, _legend_strip(legend, width, outlined=anomaly is not None)])


def blend(grey: npt.NDArray[np.float32], level: npt.NDArray[np.integer], colour_map: str) -> Image:
    """Colours of the levels 0..255 over grey values 0..255, both ``[...]``, as RGB uint8 ``[..., 3]``."""
    cover = (0.10 + 0.75 * np.arange(256, dtype=np.float32) / 255)[:, None]
    added = colour_table(colour_map).astype(np.float32) * cover
    mixed = grey[..., None] * (1 - cover)[level] + added[level]
    return np.asarray(np.rint(mixed), np.uint8)


def check_mask(image: Image, anomaly: npt.NDArray[np.bool_] | None) -> None:
    """Raise InputError where labels do not lie on their image."""
    if anomaly is not None and anomaly.shape != image.shape[:2]:
        raise InputError(
            f"an anomaly label of {anomaly.shape[1]}x{anomaly.shape[0]} for an image of {image.shape[1]}x{image.shape[0]}",
            "labels of the image's size",
            "give the labels that were drawn on these images",
        )


def _legend_strip(legend: Legend, width: int, *, outlined: bool) -> Image:
    size = max(MINIMUM_TEXT, width // 72)
    strip = blank(round(size * 4.6), width)
    margin, middle = size, round(width * 0.55)
    draw_text(strip, shorten(legend.title, size, middle - 2 * margin), margin, round(size * 1.9), size)
    draw_text(strip, shorten(legend.note, size, middle - 2 * margin), margin, round(size * 3.8), size, FAINT_INK)
    if outlined:
        left = 2 * margin + text_width(legend.title, size)
        draw_text(strip, shorten(OUTLINE_NOTE, size, middle - left - margin), left, round(size * 1.9), size, FAINT_INK)
    colours = blend(np.full(256, 128 * PHOTO_BRIGHTNESS, np.float32), np.arange(256), legend.colour_map)
    draw_bar(strip, colours, middle, round(size * 0.8), width - margin - middle, round(size * 1.1), legend.ticks, size)
    return strip
