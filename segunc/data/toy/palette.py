"""Colour distributions (RGB albedo in 0..1) of the things in a street, and the one of the anomalies.

An anomaly draws from the very distributions of the known things, so its colour alone gives nothing away.
"""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from segunc.data.toy.camera import Points

Random = np.random.Generator
T = TypeVar("T")

# (hue, saturation, value, spread of each), chosen by weight.
Tone = tuple[float, float, float, float, float, float]


def _choose(rng: Random, weighted: Sequence[tuple[float, T]]) -> T:
    left = rng.random() * sum(weight for weight, _ in weighted)
    for weight, choice in weighted:
        left -= weight
        if left < 0:
            return choice
    return weighted[-1][1]


def _draw(rng: Random, tones: tuple[tuple[float, Tone], ...]) -> Points:
    hue, saturation, value, *spread = _choose(rng, tones)
    a, b, c = (2 * rng.random() - 1 for _ in range(3))
    return np.array(
        colorsys.hsv_to_rgb(
            (hue + a * spread[0]) % 1.0,
            min(max(saturation + b * spread[1], 0.0), 1.0),
            min(max(value + c * spread[2], 0.03), 0.97),
        )
    )


def car(rng: Random) -> Points:
    """Car paint: mostly grey, black and white, some blue and red, few others."""
    return _draw(
        rng,
        (
            (3, (0.60, 0.05, 0.55, 0.1, 0.05, 0.15)),
            (2, (0.60, 0.10, 0.12, 0.1, 0.10, 0.07)),
            (2, (0.12, 0.04, 0.85, 0.1, 0.04, 0.10)),
            (2, (0.60, 0.60, 0.45, 0.05, 0.25, 0.2)),
            (1.5, (0.00, 0.70, 0.55, 0.03, 0.2, 0.2)),
            (1, (0.35, 0.40, 0.40, 0.2, 0.3, 0.2)),
            (0.7, (0.11, 0.55, 0.65, 0.04, 0.3, 0.2)),
        ),
    )


def clothing(rng: Random) -> Points:
    """Clothes: dark and muted mostly, any hue at times."""
    return _draw(
        rng,
        (
            (3, (0.62, 0.30, 0.22, 0.1, 0.25, 0.14)),
            (2, (0.08, 0.25, 0.40, 0.06, 0.2, 0.25)),
            (2, (0.50, 0.55, 0.50, 0.5, 0.35, 0.3)),
            (1, (0.10, 0.05, 0.80, 0.1, 0.05, 0.15)),
        ),
    )


def facade(rng: Random) -> Points:
    """Walls: plaster, brick, concrete."""
    return _draw(
        rng,
        (
            (3, (0.10, 0.18, 0.68, 0.04, 0.12, 0.18)),
            (2, (0.03, 0.40, 0.46, 0.03, 0.18, 0.16)),
            (2, (0.58, 0.06, 0.52, 0.15, 0.05, 0.2)),
            (1, (0.13, 0.35, 0.70, 0.03, 0.15, 0.12)),
            (0.6, (0.45, 0.18, 0.55, 0.12, 0.12, 0.15)),
        ),
    )


def foliage(rng: Random) -> Points:
    """Leaves and grass: greens, some autumn."""
    return _draw(rng, ((5, (0.27, 0.50, 0.34, 0.06, 0.2, 0.12)), (1, (0.12, 0.55, 0.42, 0.04, 0.2, 0.12))))


def bark(rng: Random) -> Points:
    return _draw(rng, ((1, (0.08, 0.30, 0.26, 0.03, 0.15, 0.1)),))


def asphalt(rng: Random) -> Points:
    return _draw(rng, ((3, (0.60, 0.05, 0.36, 0.1, 0.04, 0.1)), (1, (0.08, 0.08, 0.42, 0.04, 0.06, 0.1))))


def paving(rng: Random) -> Points:
    """Sidewalks: concrete slabs, reddish or yellowish bricks."""
    return _draw(
        rng,
        (
            (4, (0.10, 0.08, 0.56, 0.06, 0.06, 0.12)),
            (1, (0.03, 0.28, 0.50, 0.02, 0.12, 0.1)),
            (1, (0.60, 0.06, 0.48, 0.08, 0.05, 0.1)),
        ),
    )


def metal(rng: Random) -> Points:
    """Lamp posts and sign posts: galvanised, dark green, black."""
    return _draw(
        rng,
        (
            (3, (0.58, 0.04, 0.48, 0.1, 0.04, 0.14)),
            (1, (0.40, 0.3, 0.22, 0.06, 0.2, 0.08)),
            (1, (0.6, 0.1, 0.14, 0.1, 0.1, 0.06)),
        ),
    )


def skin(rng: Random) -> Points:
    return _draw(rng, ((1, (0.06, 0.42, 0.60, 0.02, 0.15, 0.25)),))


def sign(rng: Random) -> Points:
    """Sign faces and lettering: red, blue, white, yellow."""
    return _draw(
        rng,
        (
            (3, (0.99, 0.80, 0.65, 0.02, 0.12, 0.14)),
            (3, (0.60, 0.75, 0.55, 0.03, 0.15, 0.15)),
            (2, (0.12, 0.05, 0.85, 0.1, 0.05, 0.1)),
            (2, (0.13, 0.75, 0.78, 0.02, 0.15, 0.12)),
        ),
    )


_KNOWN: tuple[tuple[float, Callable[[Random], Points]], ...] = (
    (3, facade),
    (1, paving),
    (1, car),
    (2, foliage),
    (2, clothing),
    (0.7, bark),
    (1, sign),
)
_ROAD_GREY = 0.37


def anomaly(rng: Random) -> Points:
    """The colour of an anomaly: one of the known things' distributions, but none that hides it on a grey road.

    A grey lump on grey asphalt is road to every network, without a doubt; nothing could be learned from it.
    """
    while True:
        colour = _choose(rng, _KNOWN)(rng)
        if np.abs(colour - _ROAD_GREY).max() > 0.27:
            return colour
