"""A small maps folder with everything a review page can show, its page and its pictures."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from segunc.data.labels import LabelMap
from segunc.decisions.flags import Threshold
from segunc.decisions.preparation import Preparation
from segunc.frames.sources import open_source
from segunc.gallery.condensed import condense
from segunc.gallery.pictures import WrittenPictures, write_pictures
from segunc.gallery.review_page import write_review
from segunc.maps.labelled import LabelSources
from segunc.maps.manifest import build_manifest
from segunc.maps.regions import Region
from segunc.maps.store import MapsWriter
from segunc.scores import SCORES as SCORES_OF_TOOL
from tests.maps.fakes import CLASSES, PALETTE, edit_manifest

NAMES = ("a dark", "b&<mid>#1", "c%20 100%", "sub/d", "sub/e 'quoted'", "sub/f bright")
SIZE = (30, 40)
SCORES = ("entropy", "epistemic", "deterministic-max-logit")
LABEL_MAP = LabelMap("three", CLASSES, PALETTE, {0: 0, 1: 1, 2: 2, 255: 255})
OBJECT = (slice(8, 18), slice(5, 17))
SECOND_OBJECT = (slice(20, 26), slice(25, 35))


@dataclass(frozen=True)
class Scene:
    images: Path
    maps: Path
    anomaly: Path
    labels: Path


class Reasoned(dict[str, Any]):
    reasons: Any = None


def score_maps(grey: Any, seed: int) -> dict[str, Any]:
    """Textured maps whose mean follows the picture's brightness."""
    noise = np.random.default_rng(seed).random(grey.shape, np.float32)
    entropy = np.clip(0.75 * grey + 0.25 * noise, 0, 1).astype(np.float32)
    return {
        "entropy": entropy,
        "epistemic": 0.2 * entropy**2 * noise,
        "deterministic-max-logit": 12 * (entropy - 1) - 3 * noise,
        "anomaly": 4 * (1 - entropy) + 2 * noise,
    }


def carried(values: Any, score: str = "entropy") -> Any:
    """Return what the page shows of a map of a score, whose usual threshold these maps record."""
    codes, ends = condense(values, 960, SCORES_OF_TOOL[score].threshold)
    span = ends["high"] - ends["low"]
    shown = ends["low"] + (codes + ends["shift"]) / 254 * span
    return np.clip(shown, ends["low"], ends["high"]).astype(np.float32)


def labels_of(given: dict[str, Any]) -> LabelSources:
    """Take the labels out of what a page or pictures are given; ``images`` are for these alone."""
    names = {field.name for field in fields(LabelSources)} - {"images"}
    return LabelSources(**{name: given.pop(name) for name in names & given.keys()})


def write_page(maps: Path, out: Path, share: float = 0.5, **given: Any) -> Path:
    given["flag"] = {
        score: Threshold(value, found_share=share) for score, value in given.get("flag", {}).items()
    }
    return write_review(maps, out, labels_of(given), **given)


def table(index: Path, name: str) -> Any:
    """Return a table of the data of a review page, as its browser receives it."""
    text = (index.parent / "data" / f"{name}.js").read_text(encoding="utf-8")
    found = re.fullmatch(rf'segunc\.receive\("{name}", JSON\.parse\((".*")\)\);\n', text)
    return json.loads(json.loads(found[1]))


def draw(maps: Path, out: Path, **given: Any) -> WrittenPictures:
    given["flag"] = {score: Threshold(value) for score, value in given.get("flag", {}).items()}
    return write_pictures(maps, out, labels_of(given), **given)


def write_maps(
    images: Path,
    out: Path,
    *,
    scores: Sequence[str] = SCORES,
    reasons: Any = None,
    recorded: Mapping[str, Any] | None = None,
    region: Region | None = None,
    **described: Any,
) -> Path:
    """Write maps of a folder of pictures, of a model that is none; ``reasons`` are of a pixel,
    ``recorded`` is what the run records beside the usual, and pixels outside of ``region`` are left
    out.
    """
    source = open_source(images)
    run = {
        "input": str(source.path),
        "draws": 24,
        "seed": 0,
        "scope": "decoder",
        **(recorded or {}),
    }
    model: dict[str, Any] = {
        "architecture": "FPN mobilenet_v2",
        "method": "ABNN",
        "members": 4,
        "parameters": {"alpha": 0.05, "noise": "channel"},
        "feature_encoder": "timm's" if reasons else "own",
    }
    manifest = build_manifest(
        run, scores, device="cpu", classes=CLASSES, palette=PALETTE, model=model, **described
    )
    with MapsWriter(out, manifest, region=region) as writer:
        for frame in source.frames():
            grey = frame.image.mean(axis=2).astype(np.float32) / 255
            prediction = np.where(grey > 0.5, 2, 0).astype(np.uint8)
            prediction[-6:] = 1
            all_scores = score_maps(grey, frame.index)
            maps = Reasoned({"prediction": prediction})
            maps.update({name: all_scores[name] for name in scores})
            maps.reasons = reasons
            record = writer.store(frame.name, maps, place=frame.index)
            writer.commit(record | {"stamp": frame.stamp})
    return out


def frame_of(index: int) -> tuple[Any, Any, Any]:
    """Return picture, anomaly label and class label of a frame of the scene."""
    picture = np.full((*SIZE, 3), 20 + 40 * index, np.uint8)
    anomaly = np.zeros(SIZE, np.uint8)
    if index < 3:
        anomaly[OBJECT] = 1
        picture[OBJECT] = 5 if index == 1 else 250
    if index == 2:
        anomaly[SECOND_OBJECT] = 1
        picture[SECOND_OBJECT] = 5
    anomaly[0] = 255
    truth = np.zeros(SIZE, np.uint8)
    truth[:, 20:] = 2
    truth[0] = 255
    return picture, anomaly, truth


def write_mask(maps: Path) -> None:
    """Leave the left half of every frame out of maps, as predict --mask does."""
    kept = np.full(SIZE, 255, np.uint8)
    kept[:, : SIZE[1] // 2] = 0
    assert cv2.imwrite(str(maps / "mask.png"), kept)
    record = {"file": "mask.png", "sha256": Region(maps / "mask.png").sha256}
    edit_manifest(maps, lambda content: content.update(mask=record))


@dataclass(frozen=True)
class Widened(Threshold):
    """A threshold of maps with a margin, which otherwise a file of segunc threshold records."""

    @property
    def preparation(self) -> Preparation:
        return Preparation(margin=2)


def write_picture(folder: Path, name: str, content: Any) -> None:
    path = folder / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), content)


def write_scene(root: Path) -> Scene:
    """Write six frames of rising brightness. Four have anomaly masks: a bright object (found at
    high thresholds), a dark one (missed), a bright and a dark one, none at all.
    """
    images = root / "images"
    anomalies = root / "anomaly"
    labels = root / "labels"
    for index, name in enumerate(NAMES):
        picture, anomaly, truth = frame_of(index)
        write_picture(images, name, picture)
        if index < 4:
            write_picture(anomalies, name, anomaly)
        if index < 5:
            write_picture(labels, name, truth)
    maps = write_maps(images, root / "maps")
    return Scene(images, maps, anomalies, labels)


def write_video_scene(
    root: Path,
    count: int = 40,
    fps: float = 20.0,
    every: int = 1,
    times: Sequence[float] | None = None,
) -> Path:
    """Maps of a video's frames whose entropy has two clear peaks, at frames 10 and 30, and an
    overlay video. The frames are evenly spaced, or at the times that are given.
    """
    if times is None:
        times = [index * every / fps for index in range(count)]
    run = {"draws": 8, "seed": 1, "scope": "all", "every": every}
    source = {"kind": "video", "fps": fps, "frames": count}
    manifest = build_manifest(
        run, ("entropy",), device="cpu", classes=CLASSES, palette=PALETTE, source=source
    )
    maps = root / "video-maps"
    with MapsWriter(maps, manifest) as writer:
        for index in range(count):
            first_peak = 0.5 * max(0, 1 - abs(index - 10) / 5)
            second_peak = 0.7 * max(0, 1 - abs(index - 30) / 5)
            level = 0.2 + first_peak + second_peak
            content = {
                "prediction": np.zeros(SIZE, np.uint8),
                "entropy": np.full(SIZE, level, np.float32),
            }
            writer.commit(writer.store(f"{index:06d}", content) | {"time": times[index]})
    return maps
