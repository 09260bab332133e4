"""Colours of classes that stay apart for colour-blind eyes: the palette's own hues, some of them lighter or darker."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

Colour = tuple[int, int, int]
Colours = npt.NDArray[np.float64]

VISIONS = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
"""What eyes make of linear red, green and blue: Machado, Oliveira and Fernandes 2009, severity 1."""
APART = 14.0
"""Distance (CIE 1976, in L*a*b*) that two classes are to have for each of :data:`VISIONS`; 2.3 is just noticeable, side by side."""
_STEPS = tuple(
    sign * step for step in range(0, 85, 6) for sign in ((1, -1) if step else (1,))
)  # of lightness, nearest first


def seen(colours: Sequence[Colour] | Colours, vision: str) -> Colours:
    """L*a*b* ``[n, 3]`` of red, green and blue 0..255 as eyes of one of :data:`VISIONS` see them."""
    share = np.asarray(colours, np.float64).reshape(-1, 3) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4) @ VISIONS[vision].T
    linear = linear.clip(0, 1)
    share = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.asarray(cv2.cvtColor(share.astype(np.float32)[None], cv2.COLOR_RGB2LAB)[0], np.float64)


def kept_apart(palette: Sequence[Colour]) -> list[Colour]:
    """The palette with the lightness of some colours changed, as little as keeps each :data:`APART` from those before it; where none
    does, as far from them as it can be. Equal palettes give equal colours, and the first keeps its own."""
    found: list[Colour] = []
    for colour in palette:
        start = seen([colour], "usual")[0]
        candidates = [colour, *(_with_lightness(start, step) for step in _STEPS[1:] if 12 <= start[0] + step <= 97)]
        if found:
            distances = np.min(
                [
                    np.linalg.norm(seen(candidates, vision)[:, None] - seen(found, vision)[None], axis=2).min(1)
                    for vision in VISIONS
                ],
                axis=0,
            )
            enough = np.flatnonzero(distances >= APART)
            colour = candidates[int(enough[0] if len(enough) else distances.argmax())]
        found.append((int(colour[0]), int(colour[1]), int(colour[2])))
    return found


def _with_lightness(start: npt.NDArray[np.float64], step: float) -> Colour:
    lab = np.array([[[start[0] + step, start[1], start[2]]]], np.float32)
    red, green, blue = np.rint(cv2.cvtColor(lab, cv2.COLOR_LAB2RGB)[0, 0].clip(0, 1) * 255).astype(int)
    return int(red), int(green), int(blue)
