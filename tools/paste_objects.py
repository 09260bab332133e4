"""Objects pasted into frames that hold none, for choosing a setting without an anomaly that results
are reported on.

    python -m tools.paste_objects --frames CAMVID/val --labels CAMVID/valannot \\
        --sources CAMVID/train --every 4 --out runs/pasted

After Fishyscapes Static (Blum et al. 2021, 1904.03215) and CutPaste (Li et al. 2021, 2104.04015):
one to three shapes of fractal noise a frame, of .02 to 3 % of it, filled with a patch of a source
frame in other colours, lower where they are larger. Edges are feathered by a pixel; they and pixels
whose label is 255 are ignored (255), all others are normal (0) or pasted (1). A function of the
frames' names.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from segunc.data.corruptions import fractal
from segunc.data.images import Image, load_image, read_label_image
from segunc.data.labels import IGNORE

AREAS = (2e-4, 3e-2)  # shares of the frame, uniform in their logarithm
MOST = 3


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("frames", "labels", "sources", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--void",
        type=int,
        default=11,
        metavar="ID",
        help="label that is ignored (default 11, CamVid's)",
    )
    parser.add_argument("--every", type=int, default=1, metavar="N")
    arguments = parser.parse_args()
    sources = sorted(path for path in arguments.sources.iterdir() if path.is_file())
    for folder in ("images", "labels_masks"):
        (arguments.out / folder).mkdir(parents=True, exist_ok=True)
    for path in sorted(arguments.frames.iterdir())[:: arguments.every]:
        labels = next(arguments.labels.glob(f"{path.stem}.*"))
        random = np.random.default_rng(zlib.crc32(path.stem.encode()))
        image, mask = (
            load_image(path),
            np.where(read_label_image(labels) == arguments.void, IGNORE, 0).astype(np.uint8),
        )
        for _ in range(random.integers(1, MOST + 1)):
            paste(image, mask, load_image(sources[random.integers(len(sources))]), random)
        cv2.imwrite(
            str(arguments.out / "images" / f"{path.stem}.png"),
            cv2.cvtColor(image, cv2.COLOR_RGB2BGR),
        )
        cv2.imwrite(str(arguments.out / "labels_masks" / f"{path.stem}.png"), mask)
    return 0


def paste(image: Image, mask: Image, source: Image, random: np.random.Generator) -> None:
    """Paste an object made of ``source`` into ``image`` ``[H, W, 3]`` and its ``mask`` ``[H, W]``,
    in place.
    """
    height, width = mask.shape
    share = float(np.exp(random.uniform(*np.log(AREAS))))
    side = int(2 * np.sqrt(share * mask.size)) + 4
    alpha = island(side, random)
    patch = recoloured_patch(source, side, random)
    size_rank = np.log(share / AREAS[0]) / np.log(AREAS[1] / AREAS[0])
    foot = height * np.clip(random.normal(0.6 + 0.3 * size_rank, 0.1), 0, 1)
    top = int(np.clip(foot - side, 0, height - side))
    left = int(random.integers(max(1, width - side)))
    part = np.s_[top : top + side, left : left + side]
    image[part] = np.rint(image[part] * (1 - alpha) + patch * alpha)
    opaque = alpha[..., 0] > 0.99
    edge = alpha[..., 0] > 0.01
    mask[part] = np.where(opaque, 1, np.where(edge, IGNORE, mask[part]))


def island(side: int, random: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return the opacity ``[side, side, 1]`` of the highest island of a fractal landscape."""
    heights = cv2.resize(fractal(64, random.uniform(1.6, 2.4), random), (side, side))
    across = np.linspace(-1, 1, side)
    heights -= np.hypot(across[:, None], across) ** 2  # the island ends before its square does
    above_sea = (heights > np.quantile(heights, 0.7)).astype(np.uint8)
    islands = cv2.connectedComponents(above_sea)[1]
    inside = (islands == islands.flat[int(heights.argmax())]).astype(np.float32)
    return cv2.GaussianBlur(inside, (0, 0), 0.7)[..., None]


def recoloured_patch(source: Image, side: int, random: np.random.Generator) -> Image:
    """Return a square of a frame, ``[side, side, 3]``, whose colours are inverted or exchanged."""
    cut = int(min(source.shape[:2]) * random.uniform(0.1, 0.5))
    top = int(random.integers(source.shape[0] - cut + 1))
    left = int(random.integers(source.shape[1] - cut + 1))
    square = cv2.resize(source[top : top + cut, left : left + cut], (side, side))
    lab = cv2.cvtColor(square, cv2.COLOR_RGB2LAB)
    inverted = random.random() < 0.5
    colours = 255 - lab[..., 1:] if inverted else lab[..., :0:-1]
    return cv2.cvtColor(np.dstack([lab[..., 0], colours]), cv2.COLOR_LAB2RGB)


if __name__ == "__main__":
    sys.exit(main())
