"""Everything of segunc that reads a file of unknown origin, each with whole files to begin from.

A reader is given a folder with one damaged file in it. It returns what it read, or raises one of
the errors that a user sees as one line. Where it is ``exact``, there is a checksum or a hash behind
what it reads: then nothing but what was written may be returned.
"""

import contextlib
import shutil
import sys
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
from PIL import Image
from torch import nn

import segunc
from segunc.core.errors import InputError, PartialFailure
from segunc.data.images import read_label_image
from segunc.data.labels import label_map, read_label_map
from segunc.data.masks import BINARY
from segunc.frames.sources import open_source
from segunc.frames.video import VideoSource
from segunc.maps.pipeline import run_pipeline
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from segunc.networks.weights import read_state
from segunc.options import CompareOptions
from segunc.posteriors.abnn import METHOD as ABNN
from segunc.posteriors.model import load_model
from segunc.training.base import make_trainer, trainer_settings
from segunc.training.batches import open_data
from segunc.training.config import FinetuneConfig, TrainConfig, parse_config
from tests.campaign.world import World
from tests.maps.fakes import folder_bytes, manifest, process, write_pictures, write_timed_video

REFUSED = (InputError, PartialFailure, ArgumentTypeError)  # which a user sees as one line
SIZE = (24, 32)
Seeds = Callable[[World, Path], list[Path]]


@dataclass(frozen=True)
class Reader:
    # Makes whole files, each in a folder of its own below a folder, and returns those to damage.
    seeds: Seeds
    read: Callable[[Path, Path], Any]  # of the folder and the damaged file in it
    exact: bool = False
    writes: bool = False  # the folder has to be laid anew for each case


def noise(*shape: int) -> Any:
    return np.random.default_rng(3).integers(0, 256, shape, np.uint8)


def in_folders(names: Iterable[str], write: Callable[[str, Path], Any]) -> Seeds:
    """A file of each name in a folder of its own."""

    def make(world: World, folder: Path) -> list[Path]:
        files = [folder / str(number) / name for number, name in enumerate(names)]
        for path in files:
            path.parent.mkdir(parents=True)
            write(path.name, path)
        return files

    return make


def copied(sources: dict[str, Callable[[World], Path]]) -> Seeds:
    return lambda world, folder: in_folders(
        sources, lambda name, path: shutil.copy(sources[name](world), path)
    )(world, folder)


def write_image(name: str, path: Path) -> None:
    picture, exif = Image.fromarray(noise(*SIZE, 3)), Image.Exif()
    exif[0x0112] = 6
    kinds: dict[str, Callable[[], Any]] = {
        "sixteen": lambda: Image.fromarray(noise(*SIZE).astype(np.uint16) * 257),
        "cmyk": lambda: picture.convert("CMYK"),
        "palette": lambda: picture.quantize(16),
        "alpha": lambda: Image.fromarray(noise(*SIZE, 4)),
        "wide": lambda: Image.fromarray(noise(2, 20_000, 3)),
        "grey": lambda: Image.fromarray(noise(*SIZE)),
    }
    kinds.get(path.stem, lambda: picture)().save(
        path, **({"exif": exif} if path.stem == "turned" else {})
    )


def read_frames(root: Path, file: Path) -> Any:
    """As ``predict`` reads them: a frame that cannot be read is an error of that frame."""
    (frame,) = open_source(file).frames()
    if frame.image is None:
        raise InputError(str(frame.error))
    return frame.image


def write_label(name: str, path: Path) -> None:
    values = (np.arange(SIZE[0] * SIZE[1]).reshape(SIZE) // 90 % 2).astype(np.uint8)
    of_kind = values.astype({"bit": bool, "sixteen": np.uint16}.get(path.stem, np.uint8))
    image = Image.fromarray(of_kind)
    (image.convert("P") if path.stem == "palette" else image).save(path)


def read_label(root: Path, file: Path) -> Any:
    raw = read_label_image(file)
    coded = []
    for meaning in (BINARY, label_map("toy")):
        with contextlib.suppress(InputError):  # the values of another
            coded.append(meaning.encode(raw, str(file)))
    return raw, coded


def read_video(root: Path, file: Path) -> Any:
    frames = [
        (frame.name, frame.time, frame.error, frame.image) for frame in VideoSource(file).frames()
    ]
    if frames and frames[-1][2] is not None:
        raise InputError(str(frames[-1][2]))
    return frames


def our_maps(*patterns: str, compact: bool = True) -> Seeds:
    """Files of a maps folder of ours in ``maps``, with pictures in ``in``, and, if ``compact``, of
    a compact one.
    """

    def make(world: World, folder: Path) -> list[Path]:
        made = [folder / "0", *([folder / "1"] if compact else [])]
        for place, settings in zip(made, ({}, {"compact": True}), strict=False):
            write_pictures(place / "in", 2, SIZE)
            writer = MapsWriter(place / "maps", manifest(input="in", **settings))
            run_pipeline(open_source(place / "in"), process, writer)
        return sorted(
            path
            for place in made
            for pattern in patterns
            for path in (place / "maps").glob(pattern)
        )

    return make


def read_maps(root: Path, file: Path) -> Any:
    """All that a verb would see of a maps folder."""
    reader = MapsReader(root / "maps" if (root / "maps").is_dir() else root)
    if reader.unfinished:  # every verb says it
        raise PartialFailure(reader.unfinished)
    names = reader.scores
    values = {
        name: [reader.read(name, score) for score in names if reader.has(name, score)]
        for name in reader.frames
    }
    ids = {
        name: reader.prediction(name) for name in reader.frames if reader.has(name, "prediction")
    }
    records = [
        {key: one for key, one in record.items() if key != "sums"}
        for record in reader.records.values()
    ]
    return names, values, ids, records, reader.class_names


def resume(root: Path, file: Path) -> Any:
    """``predict --verify`` into the folder: what is damaged is made again, to the same bytes."""
    writer = MapsWriter(root / "maps", manifest(input="in"), verify=True)
    run_pipeline(open_source(root / "in"), process, writer)
    return folder_bytes(root / "maps")


def write_foreign(name: str, path: Path) -> None:
    """A score map of another tool, in a folder ``SCORE``."""
    values = noise(*SIZE).astype(np.float32) / 255
    if path.suffix == ".npy":
        np.save(
            path, values.astype({"half": np.float16, "long": np.int64}.get(path.stem, np.float32))
        )
    elif path.suffix == ".h5":
        more = (
            {
                "compression": "gzip",
                "chunks": (8, 8),
                "shuffle": True,
            }
            if path.stem == "deflated"
            else {}
        )
        with h5py.File(path, "w") as file:
            file.create_dataset("value", data=values.astype(np.float16), **more)
    else:
        scale, kind = (65535, np.uint16) if path.stem == "sixteen" else (255, np.uint8)
        cv2.imwrite(str(path), (values * scale).astype(kind))


FOREIGN = (
    "plain.npy",
    "half.npy",
    "long.npy",
    "plain.h5",
    "deflated.h5",
    "plain.png",
    "sixteen.png",
    "plain.tif",
)


def models(*patterns: str) -> Seeds:
    def make(world: World, folder: Path) -> list[Path]:
        shutil.copytree(
            world.job.abnn, folder / "0", ignore=shutil.ignore_patterns("checkpoints", "logs")
        )
        return sorted(path for pattern in patterns for path in (folder / "0").glob(pattern))

    return make


def read_model(root: Path, file: Path) -> Any:
    model = load_model(root)
    of_network = {
        **model.network.description.to_json(),
        "provenance": None,
    }  # which decides nothing, and no hash binds
    settings = (model.posterior.method, model.posterior.settings(), model.posterior.members)
    draws = (
        {name: tensor.numpy() for name, tensor in model.posterior.tensors().items()}
        if model.bayesian
        else {}
    )
    return of_network, settings, draws, model.sha256, model.temperature, repr(model.attachments)


def read_checkpoint(root: Path, file: Path) -> Any:
    return {name: tensor.float().numpy() for name, tensor in read_state(file).items()}


def configurations(world: World, folder: Path) -> list[Path]:
    """Those of a job, with a limit of time."""
    named = "max_time: {hours: 1}"
    sources = {"train.yaml": world.job.train_config, "tune.yaml": world.job.finetune_config}
    texts = {
        name: path.read_text().replace("trainer: {", f"trainer: {{{named}, ")
        for name, path in sources.items()
    }
    return in_folders(texts, lambda name, path: path.write_text(texts[name]))(world, folder)


def read_configuration(root: Path, file: Path) -> Any:
    """Read, its data opened, and its trainer made with all callbacks and loggers; nothing is
    trained.
    """
    kind: tuple[Any, ...] = (
        (TrainConfig, file, [])
        if file.name == "train.yaml"
        else (FinetuneConfig, file, [], ABNN.config)
    )
    try:
        config: Any = parse_config(*kind)
        open_data(config.data, 9)
        with tempfile.TemporaryDirectory() as out:
            settings = trainer_settings(dict(config.trainer), Path(out), "cpu", nn.Identity())
            make_trainer(settings, Path(out), "faults")
    finally:
        if sys.modules.pop("tests.campaign.canary", None):
            raise RuntimeError("what a configuration names was imported")
    return config.plain()


def read_labels(root: Path, file: Path) -> Any:
    read = read_label_map(file)
    return read.classes, read.palette, read.raw_to_train


def read_results(root: Path, file: Path) -> Any:
    return segunc.compare(
        CompareOptions(results=[file, file], names=["a", "b"], out=root / "table.md")
    ).text


LOG_AND_MANIFEST = ("frames.jsonl", "manifest.json")
VIDEOS = in_folders(
    ("a.webm", "b.mp4", "c.mkv"), lambda name, path: write_timed_video(path, [0.0, 0.04, 0.2], SIZE)
)
PNGS = ("plain.png", "sixteen.png", "palette.png", "alpha.png", "wide.png", "grey.png")
RESULT = copied({"first.json": lambda world: world.metrics})
LABEL_FILES = in_folders(
    ("plain.png", "palette.png", "bit.png", "sixteen.png", "plain.tif"), write_label
)
READERS: dict[str, Reader] = {
    "images": Reader(in_folders(PNGS, write_image), read_frames),
    "images, JPEG": Reader(
        in_folders(("plain.jpg", "cmyk.jpg", "turned.jpg"), write_image), read_frames
    ),
    "labels": Reader(LABEL_FILES, read_label),
    "videos": Reader(VIDEOS, read_video),
    "maps of others": Reader(
        in_folders([f"score/{name}" for name in FOREIGN], write_foreign), read_maps
    ),
    "maps": Reader(our_maps("*/*/*.png", "*/*/*.npy"), read_maps, exact=True),
    "maps, log and manifest": Reader(our_maps(*LOG_AND_MANIFEST), read_maps, exact=True),
    "predict --verify": Reader(
        our_maps("*/*/*.*", *LOG_AND_MANIFEST, compact=False), resume, exact=True, writes=True
    ),
    "model, network": Reader(models("network.*"), read_model, exact=True),
    "model, posterior": Reader(models("posterior.*"), read_model, exact=True),
    "checkpoints": Reader(copied({"weights.pth": lambda world: world.checkpoint}), read_checkpoint),
    "configurations": Reader(configurations, read_configuration),
    "label maps": Reader(
        copied({"toy.csv": lambda world: Path(segunc.__file__).parent / "data/labels/toy.csv"}),
        read_labels,
    ),
    "results": Reader(RESULT, read_results),
}
