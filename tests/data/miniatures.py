"""Miniature data sets, a few small frames in each of the layouts that the package reads."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from segunc.data.labels import label_map

SIZE = (48, 64)


def write_frame(image: Path, label: Path, values: list[int], *, seed: int = 0, size: tuple[int, int] = SIZE) -> None:
    """A noisy picture and a label of vertical stripes of some raw values."""
    rng = np.random.default_rng(seed)
    stripes: npt.NDArray[np.uint8] = np.array(values, np.uint8)[np.arange(size[1]) * len(values) // size[1]]
    for path, content in ((image, rng.integers(0, 256, (*size, 3), np.uint8)), (label, np.broadcast_to(stripes, size))):
        path.parent.mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(path), np.ascontiguousarray(content))


def cityscapes(root: Path, splits: dict[str, int], name: str = "cityscapes") -> Path:
    """The Cityscapes layout with the three label files that the real set has beside each other."""
    values = sorted(label_map(name).raw_to_train)
    for split, frames in splits.items():
        for i in range(frames):
            stem = f"ulm/ulm_{i:06d}_000019"
            label = root / "gtFine" / split / f"{stem}_gtFine_labelIds.png"
            write_frame(root / "leftImg8bit" / split / f"{stem}_leftImg8bit.png", label, values, seed=i)
            for other in ("color", "instanceIds"):
                label.with_name(label.name.replace("labelIds", other)).write_bytes(b"not to be read")
    return root


def camvid(root: Path, splits: dict[str, int]) -> Path:
    """The SegNet layout of CamVid."""
    values = sorted(label_map("camvid").raw_to_train)
    for split, frames in splits.items():
        for i in range(frames):
            name = f"0001TP_{i:06d}.png"
            write_frame(root / split / name, root / f"{split}annot" / name, values, seed=i)
    return root


def folder(root: Path, labels: str, frames: int, values: list[int]) -> Path:
    """``images/`` beside ``labels/`` or ``labels_masks/``."""
    for i in range(frames):
        write_frame(root / "images" / f"scene{i}.jpg", root / labels / f"scene{i}.png", values, seed=i)
    return root
