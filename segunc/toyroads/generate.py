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

from segunc.core.errors import InputError, PartialFailure
from segunc.core.files import read_json
from segunc.data.images import Image
from segunc.frames.video_writing import encode_video
from segunc.toyroads.anomalies import sample_anomaly
from segunc.toyroads.canvas import CAR, PERSON, Thing
from segunc.toyroads.scene import Scene, check_size, render_layout, render_scene, sample_layout

VERSION = 1  # raised whenever the same configuration would give other files
SPLITS = ("train", "val", "test", "anomaly")
VIDEO_SPLIT = len(SPLITS)  # the video's place in the seeds, after the splits
FRAMES_PER_SECOND = 12.5
_CITIES = {"train": ("alderton", "birkenau"), "val": ("corvalle",), "test": ("dunmoor",), "anomaly": ("elsewhere",)}
SPEED = 4.5  # of the video's camera, m/s
CROSSING = 24.0  # station of the crossing animal, metres ahead of the first frame's camera


@dataclass(frozen=True)
class ToyConfig:
    """What to generate: scenes of each split and frames of the video (0 leaves it out).

    Frame i of a split is drawn from the seed (``seed``, split, i) alone, so longer and shorter sets share frames;
    ``size`` is (height, width) in pixels, even and at least 32.
    """

    seed: int = 0
    train: int = 160
    val: int = 32
    test: int = 32
    anomaly: int = 32
    video_frames: int = 48
    size: tuple[int, int] = (128, 256)

    def check(self) -> None:
        """Refuse a negative number, and a size that is too small or odd, as an InputError."""
        check_size(self.size)
        if any(side % 2 for side in self.size):
            raise InputError(f"toy scenes of size {self.size}", "even height and width (for the video)", "round it")
        for name, value in asdict(self).items():
            if name != "size" and value < 0:
                raise InputError(f"{name} {value} of the toy scenes", "0 or more", "give another number")


def generate_toy(root: Path, config: ToyConfig = ToyConfig(), *, progress: Callable[[str], None] | None = None) -> None:
    """Write the toy road scenes below ``root``; a finished set of the same configuration is kept as it is.

    The files: ``leftImg8bit/SPLIT/CITY/F_leftImg8bit.png``, ``gtFine/SPLIT/CITY/F_gtFine_labelIds.png`` (raw ids of
    the label map ``toy``), for the split ``anomaly`` also ``gtAnomaly/anomaly/CITY/F_anomaly.png`` (0 normal,
    1 anomaly, 255 ignored), ``video/crossing.webm`` (VP8, 12.5 frames a second) with
    ``video/crossing_anomaly/000000.png`` and on, and ``toy.json`` with the configuration. A set is whole or absent:
    it is moved to ``root`` when it is complete. ``progress`` is told a line every 32 scenes and after the video.

    Raises:
        InputError: ``root`` holds something else, or toy scenes of another configuration or version.
        PartialFailure: a file could not be written.
    """
    config.check()
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
            count = settings[split]
            for i in range(count):
                frame = frame_name(split, i)
                scene = render_scene((config.seed, index, i), config.size, split == "anomaly")
                _write_png(pictures / split / f"{frame}_leftImg8bit.png", scene.image[..., ::-1])
                _write_png(classes / split / f"{frame}_gtFine_labelIds.png", scene.labels)
                if split == "anomaly":
                    _write_png(masks / split / f"{frame}_anomaly.png", scene.anomaly)
                if (i + 1) % 32 == 0 or i + 1 == count:
                    tell(f"toy road scenes: {split} {i + 1}/{count}")
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
    """Whether the folder holds this set; False where nothing is there yet."""
    if root.exists() and not root.is_dir():
        raise InputError(f"{root} is a file", "a new or empty folder for the toy scenes", "choose another path")
    if not root.exists() or not any(root.iterdir()):
        return False
    marker = root / "toy.json"
    if not marker.is_file():
        expected = "a new or empty folder, or a finished set of toy scenes"
        raise InputError(f"folder {root} holds other files (no toy.json)", expected, "choose another folder")
    found = read_json(marker, "the file of a finished set")
    if found == description:
        return True
    if not isinstance(found.get("config"), dict):
        what = "its toy.json is not from this tool"
    elif found.get("version") != VERSION:
        what = f"version {found.get('version')}, this is version {VERSION}"
    else:
        theirs, ours = found["config"], description["config"]
        what = ", ".join(f"{k} {theirs.get(k)} there, {v} asked for" for k, v in ours.items() if theirs.get(k) != v)
    given = f"folder {root} holds toy scenes of another configuration: {what}"
    raise InputError(given, "the same configuration or a new folder", "choose another folder or remove this one")


def frame_name(split: str, index: int) -> str:
    """The path of a frame below its split's folder, without its ending: ``CITY/CITY_000003_000019``."""
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

    Args:
        seed: (seed of the data set, place of the video after the splits).
        rate: frames per second; with SPEED, how far the camera moves between frames.
    """
    rng = np.random.default_rng((*seed, 0))
    layout = sample_layout(rng, film=True)
    animal = sample_anomaly(rng, 0.0, CROSSING, "animal", mirror=1)
    # It starts at the left kerb and ends near the right one.
    start, end = layout.ground.road[0] + 0.3, layout.ground.road[1] - 0.8
    # The camera stops short of it, as a driver would.
    speed = min(SPEED, (CROSSING - 6.5) * rate / max(1, frames))
    things = [moved for thing in layout.things if (moved := _give_way(thing, frames / rate)) is not None]
    for i in range(frames):
        time, share = i / rate, i / max(1, frames - 1)
        now = [replace(thing, station=thing.station + thing.speed * time) for thing in things]
        now.append(replace(animal, lateral=start + (end - start) * share))
        sensor = np.random.default_rng((*seed, i + 1))
        yield render_layout(replace(layout, things=now), size, sensor, speed * time, time)


def _give_way(thing: Thing, duration: float) -> Thing | None:
    """Traffic that lets the animal pass: cars before it are gone unless parked at the kerb, cars behind it keep their distance."""
    if thing.label == PERSON and abs(thing.lateral) < 2.0 and thing.station < CROSSING + 2:
        return None
    if thing.label != CAR:
        return thing
    if thing.speed == 0:
        # A parked car stays at its kerb; one that stands in the camera's way, or turns across it, is left out.
        reach = 5.0 if abs(np.sin(thing.yaw)) > 0.3 else 2.3
        return None if abs(thing.lateral) < reach and thing.station < CROSSING + 6 else thing
    if thing.station < CROSSING + 6:
        return None
    return replace(thing, speed=max(thing.speed, -(thing.station - CROSSING - 5) / duration))
