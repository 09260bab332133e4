"""Small maps folders of two models that are none."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from segunc.maps.manifest import build_manifest
from segunc.maps.regions import Region
from segunc.maps.store import MapsWriter
from tests.maps.fakes import CLASSES, PALETTE

SIZE = (24, 32)
SCORES = ("entropy", "deterministic-energy")


def maps_of(seed: int, size: tuple[int, int] = SIZE) -> dict[str, Any]:
    """Return class ids and scores with many ties."""
    generator = np.random.default_rng(seed)
    return {
        "prediction": generator.integers(0, len(CLASSES), size).astype(np.uint8),
        "entropy": np.round(generator.random(size), 1).astype(np.float32),
        "deterministic-energy": np.round(generator.normal(size=size), 1).astype(np.float32),
    }


def write_folder(
    out: Path,
    frames: Mapping[str, Mapping[str, Any]],
    *,
    classes: Sequence[str] = CLASSES,
    stamps: Mapping[str, str | None] | None = None,
    region: Region | None = None,
    **run: Any,
) -> Path:
    """Write a maps folder.

    Args:
        out: the folder.
        frames: maps of each frame by its name.
        classes: names of the classes.
        stamps: hash of the image of each frame; None takes one that follows from the name.
        region: of the pixels that count.
        run: what the run records beside the usual.
    """
    scores = [name for name in next(iter(frames.values())) if name != "prediction"]
    settings = {"draws": 4, "seed": 0, "base_sha256": out.name} | run
    palette = [PALETTE[number % len(PALETTE)] for number in range(len(classes))]
    manifest = build_manifest(settings, scores, device="cpu", classes=classes, palette=palette)
    with MapsWriter(out, manifest, region=region) as writer:
        for index, (name, maps) in enumerate(frames.items()):
            record = writer.store(name, dict(maps), place=index)
            stamp = f"image of {name}" if stamps is None else stamps.get(name)
            writer.commit(record | ({"stamp": stamp} if stamp else {}))
    return out
