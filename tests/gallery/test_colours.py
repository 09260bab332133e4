"""Colours that mean something, as people with normal sight, deuteranopia and protanopia
see them.
"""

import re
from collections.abc import Sequence
from importlib import resources
from itertools import combinations
from typing import Any

import cv2
import numpy as np
import pytest

from segunc.colours import CLASS_COLOURS, colour_of_class, colour_table
from segunc.gallery.drawing import FLAGGED, LABELLED

SIGHT = {
    "normal": np.eye(3),
    # Machado, Oliveira & Fernandes 2009, severity 1.0, on linear RGB.
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
}
TO_XYZ = [
    [0.4124564, 0.3575761, 0.1804375],
    [0.2126729, 0.7151522, 0.0721750],
    [0.0193339, 0.1191920, 0.9503041],
]
VERDICTS = ("true-alarm", "false-alarm", "missed", "unsure", "nothing-wrong")


def seen(colours: Any, sight: str) -> Any:
    """CIE Lab under D65 of RGB colours ``[N, 3]``."""
    share = np.asarray(colours) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    xyz = (
        np.clip(linear @ np.array(SIGHT[sight]).T, 0, 1)
        @ np.array(TO_XYZ).T
        / [0.95047, 1, 1.08883]
    )
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


def nearest(colours: Sequence[tuple[int, ...]], sight: str) -> float:
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(seen(colours, sight), 2))


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_verdicts_are_told_apart(theme: str, sight: str) -> None:
    sheet = (resources.files("segunc.gallery") / "assets" / "base.css").read_text(encoding="utf-8")
    block = sheet.split("@media (prefers-color-scheme: dark)")[theme == "dark"]
    found = {name: re.search(rf"--{name}: #([0-9a-f]{{6}})", block) for name in VERDICTS}
    colours = [tuple(bytes.fromhex(match[1])) for match in found.values() if match]
    assert len(colours) == len(VERDICTS)
    assert nearest(colours, sight) > 15  # 2.3 is a difference that can just be seen


@pytest.mark.parametrize("sight", SIGHT)
def test_proposed_classes_and_outlines_are_told_apart(sight: str) -> None:
    assert nearest(CLASS_COLOURS[:8], sight) > 15
    assert nearest(CLASS_COLOURS[:13], sight) > 7
    assert nearest([LABELLED, FLAGGED], sight) > 15
    lightness = seen(colour_table(), sight)[:, 0]
    assert (np.diff(lightness[::8]) > 0).all(), "the order of scores is that of the lightness"


def test_classes_without_a_palette_are_told_apart() -> None:
    """By CIE Lab of OpenCV; 2.3 is a difference that can just be seen."""
    colours = [colour_of_class(number, ()) for number in range(28)]
    rows = np.array([colours], np.float32) / 255
    lab = cv2.cvtColor(rows, cv2.COLOR_RGB2Lab)[0]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(lab, 2)) > 20
