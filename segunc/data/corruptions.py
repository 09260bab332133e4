"""Corruptions of frames, five strengths each, with which a network's uncertainty is looked at under
shift.

Noise, defocus blur and JPEG are those of ImageNet-C (Hendrycks & Dietterich 2019, 1903.12261) at
its strengths, with which Michaelis et al. 2019 (1907.07484) made Cityscapes-C. Fog has ImageNet-C's
formula; its slightest takes 60 % of the contrast of a road scene, so 3, 4 and 5 are as thick as its
1, 2 and 5, two are lighter, and all have the smooth pattern of its first two. Darkness is the low
light of 3D Common Corruptions (Kar et al. 2022, 2203.01441) with noise that grows as in RoboDepth
(Kong et al. 2023, 2310.15171).

Radii of blur grow with the shorter side of a frame, so that a strength is the same loss of detail
of a road scene at every size; the pattern of the fog always spans the frame. Grain of noise and
blocks of JPEG stay those of single pixels. Nothing here knows depth: the fog is a veil before the
whole picture. Nor does a camera's control of its exposure answer the darkness.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.images import Image

STRENGTHS = 5
REFERENCE_SIDE = 1024  # shorter side, in pixels, of the frames that the radii of blur belong to
Values = npt.NDArray[np.float64]

BLUR_RADIUS = (
    3.0,
    4.0,
    6.0,
    8.0,
    10.0,
)  # radius of the disc that a point becomes, in pixels at :data:`REFERENCE_SIDE`
NOISE_DEVIATION = (0.08, 0.12, 0.18, 0.26, 0.38)  # standard deviation of Gaussian noise, in 0..1
FOG_THICKNESS = (0.5, 1.0, 1.5, 2.0, 3.0)
"""Of the veil, in units of full scale: 1 / (1 + thickness) of the contrast is left."""
FOG_DECAY = 2.0  # by what the height of the veil's pattern falls with each halving of its length
DARKNESS = (
    (0.6, 600, 0.008),
    (0.5, 250, 0.012),
    (0.4, 120, 0.018),
    (0.3, 50, 0.026),
    (0.2, 30, 0.038),
)
"""What full scale becomes, photons that full scale stands for, and the standard deviation of the
read noise in 0..1.
"""
DARKNESS_GAMMA = 2.0
JPEG_QUALITY = (25, 18, 15, 10, 7)


@dataclass(frozen=True)
class Corruption:
    """A corruption of :data:`CORRUPTIONS` of a strength, 1 (slight) to 5."""

    name: str
    strength: int

    def __post_init__(self) -> None:
        if self.name not in CORRUPTIONS or self.strength not in range(1, STRENGTHS + 1):
            raise InputError(
                f"corruption '{self.name}' of strength {self.strength} is unknown", hint=_HINT
            )

    @classmethod
    def parse(cls, text: str) -> Corruption:
        """Return the corruption of ``NAME:STRENGTH``; raise InputError for another form, name or
        strength.
        """
        name, _, strength = text.partition(":")
        if not (strength.isascii() and strength.isdigit()):
            raise InputError(f"corruption '{text}' is not of the form NAME:STRENGTH", hint=_HINT)
        return cls(name, int(strength))

    def __str__(self) -> str:
        return f"{self.name}:{self.strength}"

    def __call__(self, image: Image, frame: str) -> Image:
        """Return the corrupted image, a function of image, frame name, corruption and strength
        alone. The random pattern of a frame is the same at all strengths, so that they differ by
        strength and nothing else.
        """
        digest = hashlib.sha256(f"{self.name}\n{frame}".encode()).digest()
        key = [int.from_bytes(digest[start : start + 8], "little") for start in (0, 8)]
        return CORRUPTIONS[self.name](
            image, self.strength - 1, np.random.Generator(np.random.Philox(key=key))
        )


def _blur(image: Image, level: int, random: np.random.Generator) -> Image:
    """Blur as a defocused lens does: the mean over a disc, whose edge covers pixels in part."""
    radius = BLUR_RADIUS[level] * min(image.shape[:2]) / REFERENCE_SIDE
    reach = int(np.ceil(radius))
    across = np.arange(-reach, reach + 1)
    disc = np.clip(radius + 0.5 - np.hypot(across[:, None], across), 0.0, 1.0)
    blurred = cv2.filter2D(
        image.astype(np.float32), -1, disc / disc.sum(), borderType=cv2.BORDER_REFLECT_101
    )
    return _stored(np.asarray(blurred, np.float64) / 255.0)


def _noise(image: Image, level: int, random: np.random.Generator) -> Image:
    return _stored(image / 255.0 + NOISE_DEVIATION[level] * random.standard_normal(image.shape))


def _fog(image: Image, level: int, random: np.random.Generator) -> Image:
    """Add a veil of a fractal pattern, and scale the picture back to its brightest value."""
    thickness = FOG_THICKNESS[level]
    height, width = image.shape[:2]
    veil = thickness * fractal(max(height, width), FOG_DECAY, random)[:height, :width, None]
    values = image / 255.0
    brightest = values.max()
    return _stored((values + veil) * brightest / (brightest + thickness))


def _darkness(image: Image, level: int, random: np.random.Generator) -> Image:
    """Return ``scale x^2`` of the values stretched to 0..1, with photon noise, then read noise."""
    scale, photons, read_noise = DARKNESS[level]
    values = image / 255.0
    low, high = values.min(), values.max()
    dark = scale * ((values - low) / max(high - low, 1 / 255)) ** DARKNESS_GAMMA
    counted = random.poisson(dark * photons) / photons
    return _stored(np.clip(counted, 0.0, 1.0) + read_noise * random.standard_normal(image.shape))


def _jpeg(image: Image, level: int, random: np.random.Generator) -> Image:
    options = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY[level]]
    encoded = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), options)[1]
    decoded = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    assert decoded is not None
    return np.ascontiguousarray(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB), np.uint8)


CORRUPTIONS: dict[str, Callable[[Image, int, np.random.Generator], Image]] = {
    "blur": _blur,
    "noise": _noise,
    "fog": _fog,
    "darkness": _darkness,
    "jpeg": _jpeg,
}
"""Name -> (image, strength - 1, random numbers) -> corrupted image."""
_HINT = f"one of {', '.join(CORRUPTIONS)} with a strength of 1 to {STRENGTHS}, e.g. fog:3"


def _stored(values: Values) -> Image:
    """Return values around 0..1 as uint8."""
    return np.asarray(np.rint(np.clip(values, 0.0, 1.0) * 255.0), np.uint8)


def fractal(side: int, decay: float, random: np.random.Generator) -> Values:
    """Return a periodic height map ``[N, N]`` in 0..1 by midpoint displacement (diamond-square;
    Fournier, Fussell & Carpenter 1982), N the next power of two from ``side``. The displacements
    are divided by ``decay`` from one grid to the next, twice as fine.
    """
    size = 1 << max(1, (side - 1).bit_length())
    heights = np.zeros((size, size))
    step, reach = size, 1.0
    while step > 1:
        half = step // 2
        corners = heights[::step, ::step]
        displaced = random.uniform(-reach, reach, (3, *corners.shape))
        below, right = np.roll(corners, -1, 0), np.roll(corners, -1, 1)
        centres = (corners + below + right + np.roll(below, -1, 1)) / 4 + displaced[0]
        heights[half::step, half::step] = centres
        heights[::step, half::step] = (
            corners + right + centres + np.roll(centres, 1, 0)
        ) / 4 + displaced[1]
        heights[half::step, ::step] = (
            corners + below + centres + np.roll(centres, 1, 1)
        ) / 4 + displaced[2]
        step, reach = half, reach / decay
    heights -= heights.min()
    return np.asarray(heights / max(heights.max(), np.finfo(float).tiny))
