"""Objects pasted into frames that hold none, so that settings can be chosen without a labelled
anomaly.

The objects follow Fishyscapes Static (Blum et al. 2021, 1904.03215) and CutPaste (Li et al. 2021,
2104.04015). Each has the shape of an island in a fractal landscape, and is filled with a patch of a
source frame whose colours are inverted or exchanged.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from segunc.data.corruptions import fractal
from segunc.data.images import Image, Labels
from segunc.data.labels import IGNORE

AREAS = (2e-4, 3e-2)  # shares of the frame, uniform in their logarithm
MAX_OBJECTS = 3  # that a frame gets; it gets at least one
OPAQUE = 0.99  # a pixel of a higher opacity shows the object alone


def paste_objects(
    image: Image, mask: Labels, sources: Sequence[Image], name: str
) -> tuple[Image, Labels]:
    """Return a frame with one to three pasted objects, and its anomaly mask.

    An object covers about .02 to 3 % of the frame, and lies lower where it is larger. In small
    frames, the smallest objects cover more, about ten pixels. The edge of an object is feathered by
    a pixel, unless nothing else would be left of it. The result is a function of the arguments
    alone.

    Args:
        image: RGB uint8 ``[H, W, 3]``; it stays as it is.
        mask: uint8 ``[H, W]``, 0 normal and 255 ignored; it stays as it is.
        sources: frames RGB uint8 ``[h, w, 3]`` of which the patches are cut, at least one.
        name: of the frame; it decides the objects.

    Returns:
        The frame, and its mask: 0 normal, 1 pasted (at least one pixel), 255 ignored. Feathered
        edges are ignored.

    >>> import numpy as np
    >>> frame = np.zeros((90, 160, 3), np.uint8)
    >>> source = np.full((90, 160, 3), (200, 80, 40), np.uint8)
    >>> pasted, mask = paste_objects(frame, np.zeros((90, 160), np.uint8), [source], "000012")
    >>> np.unique(mask).tolist()
    [0, 1, 255]
    >>> bool(pasted[mask == 1].any())
    True
    """
    random = np.random.default_rng(zlib.crc32(name.encode()))
    pasted = image.copy()
    pasted_mask = mask.copy()
    for _ in range(random.integers(1, MAX_OBJECTS + 1)):
        source = sources[int(random.integers(len(sources)))]
        _paste(pasted, pasted_mask, source, random)
    return pasted, pasted_mask


def _paste(image: Image, mask: Labels, source: Image, random: np.random.Generator) -> None:
    """Paste an object made of ``source`` into ``image`` ``[H, W, 3]`` and its ``mask`` ``[H, W]``,
    in place.
    """
    height, width = mask.shape
    share = float(np.exp(random.uniform(*np.log(AREAS))))
    side = min(int(2 * np.sqrt(share * mask.size)) + 4, height, width)
    alpha = _island(side, random)
    patch = _recoloured_patch(source, side, random)
    size_rank = np.log(share / AREAS[0]) / np.log(AREAS[1] / AREAS[0])
    foot = height * np.clip(random.normal(0.6 + 0.3 * size_rank, 0.1), 0, 1)
    top = int(np.clip(foot - side, 0, height - side))
    left = int(random.integers(max(1, width - side)))
    part = np.s_[top : top + side, left : left + side]
    image[part] = np.rint(image[part] * (1 - alpha) + patch * alpha)
    opaque = alpha[..., 0] > OPAQUE
    edge = alpha[..., 0] > 0.01
    mask[part] = np.where(opaque, 1, np.where(edge, IGNORE, mask[part]))


def _island(side: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return the opacity ``[side, side, 1]`` of the highest island of a fractal landscape; at least
    one pixel is opaque.
    """
    heights = cv2.resize(fractal(64, random.uniform(1.6, 2.4), random), (side, side))
    across = np.linspace(-1, 1, side)
    heights -= np.hypot(across[:, None], across) ** 2  # the island ends before its square does
    above_sea = (heights > np.quantile(heights, 0.7)).astype(np.uint8)
    islands = cv2.connectedComponents(above_sea)[1]
    inside = (islands == islands.flat[int(heights.argmax())]).astype(np.float32)
    blurred = np.asarray(cv2.GaussianBlur(inside, (0, 0), 0.7), np.float32)
    # Of a thin island, the blur would leave no opaque pixel, so the mask would not show the object.
    opacity = blurred if blurred.max() > OPAQUE else inside
    return opacity[..., None]


def _recoloured_patch(source: Image, side: int, random: np.random.Generator) -> Image:
    """Return a square of a frame, ``[side, side, 3]``, whose colours are inverted or exchanged."""
    cut = max(1, int(min(source.shape[:2]) * random.uniform(0.1, 0.5)))
    top = int(random.integers(source.shape[0] - cut + 1))
    left = int(random.integers(source.shape[1] - cut + 1))
    square = cv2.resize(source[top : top + cut, left : left + cut], (side, side))
    lab = cv2.cvtColor(square, cv2.COLOR_RGB2LAB)
    inverted = random.random() < 0.5
    colours = 255 - lab[..., 1:] if inverted else lab[..., :0:-1]
    recoloured = np.dstack([lab[..., 0], colours])
    return np.asarray(cv2.cvtColor(recoloured, cv2.COLOR_LAB2RGB), np.uint8)
