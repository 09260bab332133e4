"""A network that is none: maps that follow from the image alone, and a small folder of road-like
pictures.
"""

import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from segunc.frames.source import Frame
from segunc.frames.sources import open_source
from segunc.maps.manifest import build_manifest
from segunc.maps.pipeline import Summary, run_pipeline
from segunc.maps.shards import file_sum, seal
from segunc.maps.store import Maps, MapsWriter

SCORES = ("entropy", "epistemic", "deterministic-max-logit")
CLASSES = ("road", "car", "sky")
PALETTE = ((128, 64, 128), (0, 0, 142), (70, 130, 180))
MILLISECOND = Fraction(1, 1000)


def write_pictures(folder: Path, count: int, size: tuple[int, int] = (24, 32)) -> list[str]:
    """Lossless pictures in two sub-folders; their frame names in source order."""
    generator = np.random.default_rng(3)
    names = []
    for index in range(count):
        parent = "a" if index < count // 2 else "b"
        name = f"{parent}/frame_{index:03d}"
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (*size, 3), np.uint8)
        cv2.imwrite(str(path), pixels)
        names.append(name)
    return names


def write_video(
    path: Path, count: int, *, fps: float = 25.0, size: tuple[int, int] = (48, 64)
) -> None:
    code = {".webm": "VP80", ".avi": "MJPG", ".mp4": "mp4v"}[path.suffix]
    writer = cv2.VideoWriter(
        str(path), cv2.CAP_FFMPEG, cv2.VideoWriter.fourcc(*code), fps, size[::-1]
    )
    assert writer.isOpened()
    for index in range(count):
        picture = np.full((*size, 3), 20 + index * 4 % 200, np.uint8)
        picture[: size[0] // 2] = 128
        writer.write(picture)
    writer.release()


def add_stream(container: Any, codec: str, size: tuple[int, int]) -> Any:
    """Return a stream whose times are milliseconds."""
    stream = container.add_stream(codec, rate=25)
    stream.height, stream.width = size
    stream.pix_fmt = "yuv420p"
    stream.time_base = MILLISECOND
    stream.codec_context.time_base = MILLISECOND
    return stream


def write_timed_video(
    path: Path,
    times: Sequence[float],
    size: tuple[int, int] = (48, 64),
    options: dict[str, str] | None = None,
) -> None:
    """A video whose frames stand at these seconds; a growing white bar says which frame it is.
    Needs PyAV.
    """
    av = pytest.importorskip("av")
    codec = {".webm": "libvpx", ".mkv": "mpeg4", ".mp4": "mpeg4"}[path.suffix]
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    texture = cv2.resize(noise, size[::-1])
    third = size[0] // 3
    with av.open(str(path), "w", options=options or {}) as container:
        stream = add_stream(container, codec, size)
        for index, time in enumerate(times):
            picture = texture.copy()
            picture[:third] = 0
            picture[:third, : 4 * index + 4] = 255
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts = round(1000 * time)
            frame.time_base = MILLISECOND
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def edit_manifest(maps: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a manifest as a forger does, with its sum."""
    content = json.loads((maps / "manifest.json").read_text())
    content.pop("sha256", None)
    change(content)
    (maps / "manifest.json").write_text(json.dumps(seal(content)))


def edit_log(
    maps: Path,
    change: Callable[[dict[str, Any]], Any],
    lines: slice = slice(1),
) -> None:
    """Change lines of a log as a forger does, with their sums."""
    log = maps / "frames.jsonl"
    content = log.read_bytes().splitlines(keepends=True)
    for number in range(len(content))[lines]:
        record = json.loads(content[number])
        del record["sum"]
        change(record)
        text = json.dumps(record).encode()  # also what is no UTF-8
        _, digest = file_sum(text)
        content[number] = text[:-1] + b',"sum":"%s"}\n' % digest.encode()
    log.write_bytes(b"".join(content))


def process(frame: Frame) -> Maps:
    assert frame.image is not None
    image = frame.image.astype(np.float32) / 255
    grey = image.mean(axis=2)
    return {
        "prediction": image.argmax(axis=2).astype(np.uint8),
        "entropy": np.clip(0.9 * grey + 0.1 * image.mean(), 0, 1),
        "epistemic": grey**2 * 0.2,
        "deterministic-max-logit": -10 * grey,
    }


def manifest(**run: Any) -> dict[str, Any]:
    settings = {
        "draws": 24,
        "seed": 0,
        "group": 1,
        "maps": list(SCORES),
    } | run
    return build_manifest(settings, SCORES, device="cpu", classes=CLASSES, palette=PALETTE)


def folder_bytes(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but the manifest, whose status and versions may differ."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }


def predict(
    given: Path,
    out: Path,
    *,
    run: Any = (),
    on_note: Any = None,
    **writer: Any,
) -> Summary:
    maps_writer = MapsWriter(out, manifest(**dict(run)), **writer)
    return run_pipeline(open_source(given), process, maps_writer, on_note=on_note)
