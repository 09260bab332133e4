"""Colours and textures.

An anomaly draws from the very distributions of the known things, so its colour alone gives nothing away.
A texture is a float32 patch ``[h, w]`` or ``[h, w, 3]`` of factors around 1 that multiplies a colour.
"""

from __future__ import annotations

import colorsys
from functools import cache

import cv2
import numpy as np

from segunc.toyroads.camera import Floats, Points

Random = np.random.Generator

# Of each thing: hue, saturation, value, and the spread of each, of equally frequent tones.
_TONES = {
    "car": ((0.6, 0.05, 0.55, 0.1, 0.05, 0.15), (0.6, 0.1, 0.12, 0.1, 0.1, 0.07), (0.12, 0.04, 0.85, 0.1, 0.04, 0.1),
        (0.3, 0.55, 0.5, 0.4, 0.3, 0.2)),  # mostly grey, black and white
    "clothing": ((0.62, 0.3, 0.22, 0.1, 0.25, 0.14), (0.08, 0.25, 0.4, 0.06, 0.2, 0.25), (0.5, 0.5, 0.5, 0.5, 0.4, 0.3)),
    "facade": ((0.1, 0.18, 0.68, 0.04, 0.12, 0.18), (0.03, 0.4, 0.46, 0.03, 0.18, 0.16),
        (0.55, 0.08, 0.52, 0.15, 0.06, 0.2)),  # plaster, brick, concrete
    "foliage": ((0.26, 0.5, 0.35, 0.08, 0.2, 0.12),),
    "bark": ((0.08, 0.3, 0.26, 0.03, 0.15, 0.1),),
    "asphalt": ((0.6, 0.05, 0.37, 0.2, 0.05, 0.1),),
    "paving": ((0.1, 0.08, 0.56, 0.06, 0.06, 0.12), (0.03, 0.25, 0.5, 0.02, 0.12, 0.1)),  # concrete slabs, bricks
    "metal": ((0.58, 0.04, 0.48, 0.1, 0.04, 0.14), (0.5, 0.2, 0.18, 0.16, 0.15, 0.1)),  # galvanised, painted dark
    "skin": ((0.06, 0.42, 0.6, 0.02, 0.15, 0.25),),
    "sign": ((0.99, 0.8, 0.65, 0.02, 0.12, 0.14), (0.6, 0.75, 0.55, 0.03, 0.15, 0.15), (0.12, 0.05, 0.85, 0.1, 0.05, 0.1),
        (0.13, 0.75, 0.78, 0.02, 0.15, 0.12)),  # red, blue, white, yellow
}  # fmt: skip
# What anomalies take their colours from.
_ANY = ("facade", "facade", "facade", "foliage", "foliage", "clothing", "clothing", "car", "paving", "bark", "sign")
_ROAD_GREY = 0.37


def colour(rng: Random, thing: str) -> Points:
    """Return the RGB of a known thing, by its name in the table of tones."""
    tones = np.array(_TONES[thing])
    tone = tones[rng.integers(len(tones))]
    hue, saturation, value = tone[:3] + rng.uniform(-1, 1, 3) * tone[3:]
    return np.array(colorsys.hsv_to_rgb(hue % 1.0, np.clip(saturation, 0, 1), np.clip(value, 0.03, 0.97)))


def odd_colour(rng: Random) -> Points:
    """Return the RGB of an anomaly: one of the known things' distributions, but none that hides it on a grey road.

    A grey lump on grey asphalt is road to every network, without a doubt; nothing could be learned from it.
    """
    while True:
        found = colour(rng, _ANY[rng.integers(len(_ANY))])
        if np.abs(found - _ROAD_GREY).max() > 0.27:
            return found


TILE = 256
_GRAINS = {"medium": 5.0, "coarse": 14.0, "cloud": 0.0}


@cache
def noise_tile(grain: str) -> Floats:
    """Return a tileable noise ``[256, 256]`` with mean 0 and standard deviation 1; the same in every run.

    Grains: ``medium`` and ``coarse`` (blobs of 2 and 6 pixels), ``cloud`` (1/f).
    """
    rng = np.random.default_rng([20240617, [*_GRAINS].index(grain)])
    spectrum = np.fft.rfft2(rng.standard_normal((TILE, TILE)))
    frequency = np.hypot(np.fft.fftfreq(TILE)[:, None], np.fft.rfftfreq(TILE)[None])
    cloud = grain == "cloud"
    spectrum *= 1 / np.maximum(frequency, 1 / TILE) ** 1.5 if cloud else np.exp(-((frequency * _GRAINS[grain]) ** 2))
    spectrum[0, 0] = 0
    tile = np.fft.irfft2(spectrum, s=(TILE, TILE))
    return np.ascontiguousarray(tile / tile.std(), dtype=np.float32)


def crop(rng: Random, grain: str, height: int = 48, width: int = 48) -> Floats:
    """Return a random piece of a noise tile, at most 256 pixels high and wide."""
    top, left = (int(v) for v in rng.integers(0, (TILE - height + 1, TILE - width + 1)))
    return noise_tile(grain)[top : top + height, left : left + width]


def speckle(rng: Random, strength: float, grain: str = "medium") -> Floats:
    """Return noise factors ``[48, 48]`` around 1 with standard deviation ``strength``, held within 0.2..1.8."""
    return np.asarray(np.clip(1 + np.float32(strength) * crop(rng, grain), 0.2, 1.8), np.float32)


def leaves(rng: Random) -> Floats:
    """Return clumps of leaves ``[64, 64]``: dark gaps between lit clumps, lighter towards the top."""
    patch = 1 + 0.22 * crop(rng, "medium", 64, 64) + 0.24 * crop(rng, "coarse", 64, 64)
    patch = patch * np.linspace(1.2, 0.75, 64, dtype=np.float32)[:, None]
    return np.asarray(np.clip(patch, 0.25, 1.9), np.float32)


def fabric(rng: Random) -> Floats:
    """Return any surface of made things ``[48, 48]``: speckled, striped or patched."""
    kind, strength = int(rng.integers(3)), rng.uniform(0.03, 0.2)
    patch = speckle(rng, 0.5 * strength)
    if kind == 1:
        patch += strength * np.sign(np.sin(np.linspace(0, 2 * np.pi * rng.uniform(2, 7), 48)))[:, None]
    elif kind == 2:
        patch += 1.5 * strength * np.sign(crop(rng, "coarse") - np.float32(rng.uniform(-0.5, 0.8)))
    return patch.clip(0.25, 1.75)


def rounded(patch: Floats, side: float, strength: float = 0.35) -> Floats:
    """Return a patch shaded as a round body: lit from ``side`` (-1 left .. 1 right), darker at its foot."""
    height, width = patch.shape
    across = np.linspace(-1, 1, width, dtype=np.float32)[None]
    down = np.linspace(0.12, -0.18, height, dtype=np.float32)[:, None]
    shade: Floats = 1 + np.float32(strength * side) * across - np.float32(0.15) * across**2 + down
    return patch * shade


def house_front(rng: Random, wall: Points, *, storeys: int, bays: int, lit: float, shops: bool) -> Floats:
    """Return the colours of a house front, float32 ``[16 * storeys, 12 * bays, 3]`` in 0..1.

    Args:
        wall: RGB of the wall.
        lit: share of windows with light inside (0..1).
        shops: the ground floor has shop windows.
    """
    front = np.empty((16 * storeys, 12 * bays, 3), np.float32)
    front[:] = wall
    rows, columns = front.shape[:2]
    front *= cv2.resize(speckle(rng, rng.uniform(0.03, 0.1), "cloud"), (columns, rows))[..., None]
    top, bottom, left = int(rng.integers(2, 5)), int(rng.integers(11, 14)), int(rng.integers(2, 4))
    frame = np.clip(wall * rng.uniform(0.7, 1.5), 0, 0.95)
    glass = np.array([0.16, 0.2, 0.26]) * rng.uniform(0.5, 1.8)
    for y in range(0, rows, 16):
        for x in range(0, columns, 12):
            light = rng.random() < lit
            pane = np.array([0.95, 0.78, 0.45]) * rng.uniform(0.5, 1.0) if light else glass * rng.uniform(0.6, 1.6)
            if shops and y + 16 == rows:
                front[y + 3 : y + 15, x + 1 : x + 11] = pane
                continue
            front[y + top - 1 : y + bottom + 1, x + left - 1 : x + 13 - left] = frame
            front[y + top : y + bottom, x + left : x + 12 - left] = pane
    return np.clip(front, 0.02, 0.98)
