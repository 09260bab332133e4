"""Folders and videos of toy road scenes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.bounds import NonNegativeInt, Settings, Side
from segunc.core.errors import InputError, PartialFailure
from segunc.core.files import read_json
from segunc.data.images import Image
from segunc.frames.video import encode_video
from segunc.toyroads.anomalies import sample_anomaly
from segunc.toyroads.scene import Scene, render_layout, render_scene, sample_layout

VERSION = 2  # raised whenever the same configuration would give other files
SPLITS = ("train", "val", "test", "anomaly")
VIDEO_SPLIT = len(SPLITS)  # the video's place in the seeds, after the splits
FRAMES_PER_SECOND = 12.5
_CITIES = {"train": ("alderton", "birkenau"), "val": ("corvalle",), "test": ("dunmoor",), "anomaly": ("elsewhere",)}
CROSSING = 24.0  # station of the crossing animal, metres ahead of the first frame's camera


@dataclass(frozen=True)
class ToyConfig(Settings):
    """What to generate: scenes of each split and frames of the video (0 leaves it out).

    Frame i of a split is drawn from the seed (``seed``, split, i) alone, so longer and shorter sets share frames;
    ``size`` is (height, width) in pixels, even for the video.
    """

    seed: NonNegativeInt = 0
    train: NonNegativeInt = 160
    val: NonNegativeInt = 32
    test: NonNegativeInt = 32
    anomaly: NonNegativeInt = 32
    video_frames: NonNegativeInt = 48
    size: tuple[Side, Side] = (128, 256)

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(side % 2 for side in self.size):
            raise InputError(f"toy scenes of size {self.size} have an odd side, which no video can have")


def generate_toy(root: Path, config: ToyConfig = ToyConfig(), *, progress: Callable[[str], None] | None = None) -> None:
    """Write the toy road scenes below ``root``; a finished set of the same configuration is kept as it is.

    The files: ``leftImg8bit/SPLIT/CITY/F_leftImg8bit.png``, ``gtFine/SPLIT/CITY/F_gtFine_labelIds.png`` (raw ids of
    the label map ``toy``), for the split ``anomaly`` also ``gtAnomaly/anomaly/CITY/F_anomaly.png`` (0 normal,
    1 anomaly, 255 ignored), ``video/crossing.webm`` (VP8, 12.5 frames a second) with
    ``video/crossing_anomaly/000000.png`` and on, and ``toy.json`` with the configuration. A set is whole or absent:
    it is moved to ``root`` when it is complete. ``progress`` is told a line after each split and the video.

    Raises:
        InputError: ``root`` holds something else, or toy scenes of another configuration or version.
        PartialFailure: a file could not be written.
    """
    settings = {**asdict(config), "size": [*config.size]}
    description = {"content": "segunc toy road scenes", "version": VERSION, "config": settings}
    tell = progress or (lambda line: None)
    if _is_finished(root, description):
        tell(f"toy road scenes in {root} are complete")
        return
    unfinished = root.absolute().with_name(f".{root.absolute().name}.{os.getpid()}.unfinished")
    pictures, classes, masks = (unfinished / name for name in ("leftImg8bit", "gtFine", "gtAnomaly"))
    try:
        unfinished.mkdir(parents=True)
        for index, split in enumerate(SPLITS):
            for i in range(settings[split]):
                frame = frame_name(split, i)
                scene = render_scene((config.seed, index, i), config.size, split == "anomaly")
                _write_png(pictures / split / f"{frame}_leftImg8bit.png", scene.image[..., ::-1])
                _write_png(classes / split / f"{frame}_gtFine_labelIds.png", scene.labels)
                if split == "anomaly":
                    _write_png(masks / split / f"{frame}_anomaly.png", scene.anomaly)
            tell(f"toy road scenes: {settings[split]} of {split}")
        if config.video_frames:
            _write_video(unfinished / "video", config)
            tell(f"toy road scenes: video of {config.video_frames} frames")
        (unfinished / "toy.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        if root.is_dir():
            root.rmdir()  # empty, or _is_finished had refused it
        unfinished.rename(root.absolute())
    except OSError as error:
        raise PartialFailure(f"toy road scenes could not be written to {root}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _is_finished(root: Path, description: dict[str, Any]) -> bool:
    """Return whether the folder holds this set, False where nothing is there yet; raise InputError where anything else is."""
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return False
    marker = root / "toy.json"
    if not marker.is_file() or read_json(marker, "the file of a finished set") != description:
        raise InputError(
            f"{root} holds something else than toy scenes of this configuration", hint="choose a new or empty folder"
        )
    return True


def frame_name(split: str, index: int) -> str:
    """Return the path of a frame below its split's folder, without its ending: ``CITY/CITY_000003_000019``."""
    city = _CITIES[split][index % len(_CITIES[split])]
    # Scenes are numbered as sequences; the frame number is the one that Cityscapes labels.
    return f"{city}/{city}_{index:06d}_000019"


def _write_png(path: Path, picture: npt.NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Encoded here and written by Python: cv2.imwrite reports a full disk as nothing but False.
    done, data = cv2.imencode(".png", picture)
    if not done:
        raise PartialFailure(f"{path} could not be encoded as PNG")
    path.write_bytes(data.tobytes())


def _write_video(folder: Path, config: ToyConfig) -> None:
    folder.mkdir(parents=True)

    def pictures() -> Iterator[tuple[float, Image]]:
        scenes = video_frames((config.seed, VIDEO_SPLIT), config.size, config.video_frames, FRAMES_PER_SECOND)
        for i, scene in enumerate(scenes):
            _write_png(folder / "crossing_anomaly" / f"{i:06d}.png", scene.anomaly)
            yield i / FRAMES_PER_SECOND, scene.image

    encode_video(folder / "crossing.webm", pictures(), FRAMES_PER_SECOND, config.size)


def video_frames(seed: tuple[int, int], size: tuple[int, int], frames: int, rate: float) -> Iterator[Scene]:
    """Draw the frames of the video one after the other: an animal that crosses the street in all of their time.

    ``seed`` is that of the data set and the video's place after the splits; ``rate`` is in frames per second.
    """
    rng = np.random.default_rng((*seed, 0))
    layout = sample_layout(rng)
    # The bend is seen from the camera and would move with it.
    layout.camera = replace(layout.camera, curvature=0.0)
    animal = sample_anomaly(rng, 0.0, CROSSING, "animal", mirror=1)
    left, right = layout.ground.road
    # It starts at the left kerb and ends near the right one, within the picture.
    start, end = left + 0.3, min(right - 0.8, 3.0)
    # Whatever is on the road before it would hide it, or be driven into.
    standing = [one for one in layout.things if not left < one.lateral < right or one.station > CROSSING + 6]
    for i in range(frames):
        time, share = i / rate, i / max(1, frames - 1)
        crossing = replace(animal, lateral=start + (end - start) * share)
        sensor = np.random.default_rng((*seed, i + 1))
        # The camera stops short of the animal, as a driver would.
        yield render_layout(
            replace(layout, things=[*standing, crossing]), size, sensor, (CROSSING - 6.5) * i / frames, time
        )
