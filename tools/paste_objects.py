"""Write frames with pasted objects (:mod:`segunc.data.pasting`) and their anomaly masks, for
choosing a setting without an anomaly that results are reported on.

    python -m tools.paste_objects --frames CAMVID/val --labels CAMVID/valannot \\
        --sources CAMVID/train --every 4 --out runs/pasted

In a mask, 255 marks edges of objects and pixels without a label, 1 pasted objects and 0 the rest.
The objects are a function of the frames' names.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import cv2
import numpy as np

from segunc.data.images import Image, load_image, read_label_image
from segunc.data.labels import IGNORE
from segunc.data.pasting import paste_objects


class ImageFiles(Sequence[Image]):
    """Images that are read when they are asked for."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    @overload
    def __getitem__(self, index: int) -> Image: ...
    @overload
    def __getitem__(self, index: slice) -> ImageFiles: ...
    def __getitem__(self, index: int | slice) -> Image | ImageFiles:
        if isinstance(index, slice):
            return ImageFiles(self.paths[index])
        return load_image(self.paths[index])


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
    sources = ImageFiles(sorted(path for path in arguments.sources.iterdir() if path.is_file()))
    for folder in ("images", "labels_masks"):
        (arguments.out / folder).mkdir(parents=True, exist_ok=True)
    for path in sorted(arguments.frames.iterdir())[:: arguments.every]:
        labels = read_label_image(next(arguments.labels.glob(f"{path.stem}.*")))
        ignored = np.where(labels == arguments.void, IGNORE, 0).astype(np.uint8)
        image, mask = paste_objects(load_image(path), ignored, sources, path.stem)
        file = f"{path.stem}.png"
        bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        cv2.imwrite(str(arguments.out / "images" / file), bgr)
        cv2.imwrite(str(arguments.out / "labels_masks" / file), mask)
    return 0


if __name__ == "__main__":
    sys.exit(main())
