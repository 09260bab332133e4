"""Everything of segunc that reads a file of unknown origin, each with whole files to begin from.

A reader is given a folder with one damaged file in it. It returns what it read, or raises one of the errors that a user sees as one
line. Where it is ``exact``, there is a checksum or a hash behind what it reads: then nothing but what was written may be returned.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
import tempfile
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import torch
from PIL import Image

import segunc
from segunc.core.errors import InputError, PartialFailure
from segunc.data.cut_paste import read_cut_out
from segunc.data.entry import BINARY
from segunc.data.images import read_label_image
from segunc.data.labels import label_map, read_label_map
from segunc.evaluation.flagged import read_thresholds
from segunc.evaluation.resampling import load_replicates
from segunc.frames.sources import open_source
from segunc.frames.video import VideoSource
from segunc.gallery.description import run_id
from segunc.gallery.page import kept_verdicts, page_of
from segunc.maps.health import examine
from segunc.maps.pipeline import run_pipeline
from segunc.maps.reader import MapsReader
from segunc.maps.shards import Shard
from segunc.maps.store import MapsWriter
from segunc.networks.weights import read_state
from segunc.options import CompareOptions, EvaluateOptions, ReviewOptions, class_pairs, frame_groups
from segunc.posteriors.abnn import METHOD as ABNNPosterior
from segunc.posteriors.files import load_model
from segunc.posteriors.model import model_files
from segunc.processing.smoothing import Smoother
from segunc.training.base import make_trainer, trainer_settings
from segunc.training.config import FinetuneConfig, TrainConfig, parse_config
from segunc.training.data import open_data
from tests.maps.fakes import folder_bytes, manifest, process, write_pictures, write_timed_video, write_video
from tools.faults.mutations import Random
from tools.faults.world import World

REFUSED = (InputError, PartialFailure, ArgumentTypeError)
"""Errors that a user sees as one line of what is wrong with the input."""
SIZE = (24, 32)


@dataclass(frozen=True)
class Reader:
    """One way to read one kind of file."""

    # Makes whole files, each in a folder of its own below a folder: those to damage. None where they are made.
    seeds: Callable[[World, Path], list[Path]] | None
    read: Callable[[Path, Path], Any]  # of the folder and the damaged file in it
    share: int  # of the cases
    exact: bool = False
    finish: Callable[[bytes, Random], bytes] | None = None  # what is done to damaged bytes in the end
    writes: bool = False  # the folder has to be laid anew for each case


def noise(*shape: int) -> Any:
    """Pictures that no decoder finds easy."""
    return np.random.default_rng(3).integers(0, 256, shape, np.uint8)


def in_folders(folder: Path, names: list[str], write: Callable[[str, Path], Any]) -> list[Path]:
    """A file of each name in a folder of its own."""
    files = []
    for number, name in enumerate(names):
        path = folder / str(number) / name
        path.parent.mkdir(parents=True)
        write(name, path)
        files.append(path)
    return files


def of_file(read: Callable[[Path], Any], root: Path, file: Path) -> Any:
    """What a function reads of a file alone."""
    return read(file)


# -- images, labels, videos ------------------------------------------------------------------------------------------------------


def write_image(name: str, path: Path) -> None:
    """An image of the kind that its name says."""
    picture, grey = Image.fromarray(noise(*SIZE, 3)), noise(*SIZE)
    stem = path.stem
    if stem == "sixteen":
        cv2.imwrite(str(path), noise(*SIZE).astype(np.uint16) * 257)
    elif stem == "float":
        cv2.imwrite(str(path), noise(*SIZE).astype(np.float32))
    elif stem == "cmyk":
        picture.convert("CMYK").save(path)
    elif stem == "turned":
        exif = Image.Exif()
        exif[0x0112] = 6
        picture.save(path, exif=exif)
    elif stem == "palette":
        picture.quantize(16).save(path)
    elif stem == "alpha":
        picture.putalpha(Image.fromarray(np.pad(np.full((12, 16), 255, np.uint8), ((6, 6), (8, 8)))))
        picture.save(path)
    elif stem == "one":
        Image.fromarray(noise(1, 1, 3)).save(path)
    elif stem == "wide":
        Image.fromarray(noise(2, 20_000, 3)).save(path)
    elif stem == "bit":
        Image.fromarray(grey > 127).save(path)
    elif stem == "grey":
        Image.fromarray(grey).save(path)
    elif stem == "progressive":
        picture.save(path, progressive=True)
    elif stem == "deflated":
        picture.save(path, compression="tiff_adobe_deflate")
    elif stem == "interlaced":
        cv2.imwrite(str(path), noise(*SIZE, 3))
    else:
        picture.save(path)


PNGS = [
    "plain.png",
    "sixteen.png",
    "palette.png",
    "alpha.png",
    "one.png",
    "wide.png",
    "bit.png",
    "grey.png",
]
JPEGS = ["plain.jpg", "cmyk.jpg", "turned.jpg", "grey.jpg", "progressive.jpg", "one.jpg"]
OTHERS = [
    "plain.tif",
    "sixteen.tif",
    "deflated.tif",
    "float.tif",
    "cmyk.tif",
    "plain.bmp",
    "plain.webp",
    "alpha.webp",
]


def read_frames(root: Path, file: Path) -> Any:
    """As ``predict`` reads them: a frame that cannot be read is an error of that frame."""
    (frame,) = open_source(file).frames()
    if frame.image is None:
        raise InputError(str(frame.error))
    return frame.image


def write_label(name: str, path: Path) -> None:
    values = (np.arange(SIZE[0] * SIZE[1]).reshape(SIZE) // 90 % 2).astype(np.uint8)
    if path.stem == "palette":
        image = Image.fromarray(values, "P")
        image.putpalette([0, 0, 0, 255, 255, 255, 9, 9, 9])
        image.save(path)
    elif path.stem == "bit":
        Image.fromarray(values.astype(bool)).save(path)
    elif path.stem == "sixteen":
        cv2.imwrite(str(path), values.astype(np.uint16))
    else:
        cv2.imwrite(str(path), values)


def read_label(root: Path, file: Path) -> Any:
    raw = read_label_image(file)
    coded = []
    for meaning in (BINARY, label_map("toy")):
        with contextlib.suppress(InputError):  # the values of another
            coded.append(meaning.encode(raw, str(file)))
    return raw, coded


def write_clip(name: str, path: Path) -> None:
    if path.stem == "timed":
        write_timed_video(path, [0.0, 0.04, 0.2, 0.24], SIZE)
    else:
        write_video(path, 4, size=SIZE)


def read_video(root: Path, file: Path) -> Any:
    frames = [(frame.name, frame.time, frame.error, frame.image) for frame in VideoSource(file)]
    if frames and frames[-1][2] is not None:
        raise InputError(str(frames[-1][2]))
    return frames


# -- maps ------------------------------------------------------------------------------------------------------------------------------


def write_maps(folder: Path, *, shards: int = 1, compact: bool = False) -> Path:
    """A folder with pictures in ``in`` and maps of them in ``maps``."""
    write_pictures(folder / "in", 2, SIZE)
    for number in range(1, shards + 1):
        source = open_source(folder / "in")
        run = {"compact": True} if compact else {}
        writer = MapsWriter(folder / "maps", manifest(input="in", **run), shard=Shard(number, shards))
        run_pipeline(source, process, writer)
    return folder / "maps"


def our_maps(*patterns: str, shards: int = 1, compact: bool = True) -> Callable[[World, Path], list[Path]]:
    """Files of a maps folder of ours, and, if ``compact``, of a compact one."""

    def make(world: World, folder: Path) -> list[Path]:
        made = [write_maps(folder / "0", shards=shards)]
        if compact:
            made.append(write_maps(folder / "1", compact=True))
        return sorted(path for maps in made for pattern in patterns for path in maps.glob(pattern))

    return make


def read_maps(root: Path, file: Path) -> Any:
    """All that a verb would see of a maps folder."""
    reader = MapsReader(root / "maps" if (root / "maps").is_dir() else root)
    if reader.unfinished:  # every verb says it
        raise PartialFailure(reader.unfinished)
    names = reader.scores
    values = {name: [reader.read(name, score) for score in names if reader.has(name, score)] for name in reader.frames}
    ids = {name: reader.prediction(name) for name in reader.frames if reader.has(name, "prediction")}
    records = {
        name: {key: one for key, one in record.items() if key != "sums"} for name, record in reader.records.items()
    }
    return names, values, ids, records, reader.class_names


def read_health(root: Path, file: Path) -> Any:
    """``doctor --maps``: damage of any file is found."""
    health = examine(root / "maps")
    if not health.whole:
        raise PartialFailure(health.examples)
    found = folder_bytes(root / "maps")
    return {name: sorted(data.splitlines()) if name.endswith(".jsonl") else data for name, data in found.items()}


def resume(root: Path, file: Path) -> Any:
    """``predict --verify`` into the folder: what is damaged is made again, to the same bytes."""
    writer = MapsWriter(root / "maps", manifest(input="in"), verify=True)
    run_pipeline(open_source(root / "in"), process, writer)
    return {name: data for name, data in folder_bytes(root / "maps").items() if name != "frames.csv"}


def sealed_again(data: bytes, random: Random) -> bytes:
    """Lines and a manifest whose sums fit what is damaged, as one who forges them writes them."""
    from segunc.maps.sums import seal, seal_line

    def line(text: bytes) -> bytes:
        try:
            content = json.loads(text)
            return seal_line({key: one for key, one in content.items() if key != "sum"})
        except (ValueError, AttributeError, RecursionError):
            return text

    try:
        content = json.loads(data)
        if isinstance(content, dict) and "sum" not in content:
            return json.dumps(seal({key: one for key, one in content.items() if key != "sha256"})).encode()
    except (ValueError, RecursionError):
        pass
    return b"".join(map(line, data.splitlines(keepends=True)))


def foreign_maps(world: World, folder: Path) -> list[Path]:
    """Score maps of other tools, each in a folder ``SCORE``."""
    values = noise(*SIZE).astype(np.float32) / 255

    def write(name: str, path: Path) -> None:
        if path.suffix == ".npy":
            np.save(path, values.astype({"half": np.float16, "long": np.int64}.get(path.stem, np.float32)))
        elif path.suffix in (".h5", ".hdf5"):
            with h5py.File(path, "w") as file:
                more = {"compression": "gzip", "chunks": (8, 8), "shuffle": True} if path.stem == "deflated" else {}
                file.create_dataset("value", data=values.astype(np.float16), **more)
        else:
            kind = np.uint16 if path.stem == "sixteen" else np.float32 if path.stem == "float" else np.uint8
            cv2.imwrite(str(path), (values * (65535 if kind == np.uint16 else 255)).astype(kind))

    names = ["plain.npy", "half.npy", "long.npy", "plain.hdf5", "deflated.h5"]
    names += ["plain.png", "sixteen.png", "plain.tif", "sixteen.tif", "float.tif"]
    return in_folders(folder, [f"score/{name}" for name in names], write)


def nearest_places(world: World, folder: Path) -> list[Path]:
    def write(name: str, path: Path) -> None:
        known = [["a/b", 0.5, 0.25, 3], ["c", 0.1, 0.9, None]]
        content = {"format": 1, "dataset": "toy", "size": [2, 3], "extent": [1, 1], "frames": ["a/b", "c"]}
        content |= {
            "neighbours": [[number, *one[1:]] for number, one in enumerate(known)],
            "places": [0, 1, 0, 1, 0, 0],
        }
        path.write_text(json.dumps(content | {"distances": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}))

    return in_folders(folder, ["nearest.json"], write)


def read_nearest(root: Path, file: Path) -> Any:
    from segunc.maps.nearest import NearestPlaces

    read = NearestPlaces.read(file)
    return [read.at(row, column) for row in (0.1, 0.9) for column in (0.1, 0.5, 0.9)], read.encode()


def smoothing_states(world: World, folder: Path) -> list[Path]:
    def write(name: str, path: Path) -> None:
        probabilities, time = noise(1, 3, *SIZE).astype(np.float32) / 255, np.array(0.5)
        np.savez(path, sequence=np.array("a"), time=time, probabilities=probabilities, aleatoric=probabilities[:, 0])

    return in_folders(folder, ["smoothing/000000000063.npz"], write)


def resume_smoothing(root: Path, file: Path) -> Any:
    smoother = Smoother(1.0, root)
    place = smoother.resume(100)
    state = smoother._state
    return place, None if state is None else [
        one if isinstance(one, str | int | float | None) else one.numpy() for one in state
    ]


# -- models ----------------------------------------------------------------------------------------------------------------------------


def models(*patterns: str, fitted: bool = False) -> Callable[[World, Path], list[Path]]:
    """Files of a model folder."""

    def make(world: World, folder: Path) -> list[Path]:
        source = world.fitted if fitted else world.job.abnn
        for path in model_files(source):
            target = folder / "0" / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        return sorted(path for pattern in patterns for path in (folder / "0").glob(pattern))

    return make


def read_model(root: Path, file: Path) -> Any:
    """All that decides what the model predicts, or what its maps are called."""
    model = load_model(root)
    of_network = {**model.network.description.to_json(), "provenance": None}  # which decides nothing, and no hash binds
    settings = (model.posterior.method, model.posterior.settings(), model.posterior.members)
    draws = {name: tensor.numpy() for name, tensor in model.posterior.tensors().items()} if model.bayesian else {}
    return of_network, settings, draws, model.sha256, model.temperature, repr(model.attachments)


def checkpoints(world: World, folder: Path) -> list[Path]:
    return in_folders(folder, ["weights.pth"], lambda name, path: shutil.copy(world.checkpoint, path))


def read_checkpoint(root: Path, file: Path) -> Any:
    return {name: tensor.float().numpy() for name, tensor in read_state(file).items()}


# -- text ------------------------------------------------------------------------------------------------------------------------------


def configurations(world: World, folder: Path) -> list[Path]:
    """Those of a job, with a callback and a logger."""
    sources = {"train.yaml": world.job.train_config, "tune.yaml": world.job.finetune_config}
    named = "callbacks: [{class_path: Timer, init_args: {duration: '00:01:00:00'}}], "
    named += "logger: {class_path: CSVLogger, init_args: {save_dir: .}}"

    def write(name: str, path: Path) -> None:
        path.write_text(sources[name].read_text().replace("trainer: {", f"trainer: {{{named}, "))

    return in_folders(folder, list(sources), write)


def read_configuration(root: Path, file: Path) -> Any:
    """Read, its data opened, and its trainer made with all callbacks and loggers; nothing is trained."""
    try:
        if file.name == "train.yaml":
            config: Any = parse_config(TrainConfig, file, [])
        else:
            config = parse_config(FinetuneConfig, file, [], ABNNPosterior.config)
        open_data(config.data, 9)
        with tempfile.TemporaryDirectory() as out:
            settings = trainer_settings(dict(config.trainer), Path(out), "cpu", torch.nn.Linear(1, 1))
            make_trainer(settings, Path(out), "faults")
    finally:
        if sys.modules.pop("tools.faults.canary", None):
            raise RuntimeError("what a configuration names was imported")
    return config.plain()


def label_maps(world: World, folder: Path) -> list[Path]:
    source = Path(segunc.__file__).parent / "data" / "labels" / "toy.csv"
    return in_folders(folder, ["toy.csv"], lambda name, path: shutil.copy(source, path))


def read_labels(root: Path, file: Path) -> Any:
    read = read_label_map(file)
    return read.classes, read.palette, read.raw_to_train


def class_tables(world: World, folder: Path) -> list[Path]:
    texts = {
        "classes.csv": "network,dataset\nroad,road\nsidewalk,pavement\n",
        "groups.csv": "frame,group\na/x,night\nb/y,day\n",
    }
    return in_folders(folder, list(texts), lambda name, path: path.write_text(texts[name]))


def read_classes(root: Path, file: Path) -> Any:
    return (class_pairs if file.name == "classes.csv" else frame_groups)(str(file))


def verdicts(world: World, folder: Path) -> list[Path]:
    """Verdicts of both kinds of file, on maps beside them."""
    files = []
    for number, ending in enumerate((".json", ".csv")):
        root = folder / str(number)
        maps = write_maps(root)
        reader = MapsReader(maps)
        run, (first, second) = run_id(reader), reader.frames
        region = {"box": [1, 2, 4, 4], "area": 16, "size": list(SIZE), "mask": [65, 4, 97, 4]}
        region |= {"score": "entropy", "threshold": 0.5, "value": 0.75}
        one = {
            "frame": first,
            "verdict": "true-alarm",
            "note": "a dog",
            "time": "2025-01-01T00:00:00Z",
            "reviewer": "ann",
        }
        entries = [one, one | {"reviewer": "bob", "verdict": "unsure"}, one | {"frame": second, "region": region}]
        path = root / f"verdicts{ending}"
        if ending == ".json":
            path.write_text(json.dumps({"format": "segunc-verdicts", "version": 2, "run": run, "verdicts": entries}))
        else:
            columns = ("run", *one, *region)
            rows = [",".join(columns)]
            for entry in entries:
                flat = entry | (entry.get("region") or {}) | {"run": run}
                words = (flat.get(column, "") for column in columns)
                rows.append(",".join(" ".join(map(str, w)) if isinstance(w, list) else str(w) for w in words))
            path.write_text("\n".join(rows) + "\n")
        files.append(path)
    return files


def read_judged(root: Path, file: Path) -> Any:
    """Both verbs that read them."""
    table = segunc.review(ReviewOptions(root / "maps", verdicts=[file])).verdicts
    options = EvaluateOptions(maps=root / "maps", verdicts=[file], out=root / "judged.json", replicates=0)
    return table, segunc.evaluate(options).numbers


def pages(world: World, folder: Path) -> list[Path]:
    def write(name: str, path: Path) -> None:
        one = {"frame": "a", "verdict": "missed", "note": "", "time": "", "reviewer": ""}
        content = {"format": "segunc-verdicts", "version": 2, "run": "0", "verdicts": [one]}
        path.write_text(json.dumps(content if name == "verdicts.json" else {"format": "segunc-review", "run": "0"}))

    return in_folders(folder, ["verdicts.json", "review.json"], write)


def read_page(root: Path, file: Path) -> Any:
    return page_of(root), kept_verdicts(root, "0")


def results(*patterns: str) -> Callable[[World, Path], list[Path]]:
    """Results of evaluations with their replicates."""

    def make(world: World, folder: Path) -> list[Path]:
        (folder / "0").mkdir(parents=True)
        for path in (world.metrics, world.metrics.with_suffix(".replicates.npz")):
            for name in ("first", "second"):
                shutil.copy(path, folder / "0" / path.name.replace("metrics", name))
        return sorted(path for pattern in patterns for path in (folder / "0").glob(pattern))

    return make


def read_results(root: Path, file: Path) -> Any:
    """A comparison, with its files."""
    found = [root / f"{name}.json" for name in ("first", "second")]
    return segunc.compare(CompareOptions(results=found, out=root / "table.csv")).text


def read_limits(root: Path, file: Path) -> Any:
    return read_thresholds([str(file)])


READERS: dict[str, Reader] = {
    "images, PNG": Reader(lambda world, folder: in_folders(folder, PNGS, write_image), read_frames, 14),
    "images, JPEG": Reader(lambda world, folder: in_folders(folder, JPEGS, write_image), read_frames, 12),
    "images, TIFF, BMP, WebP": Reader(lambda world, folder: in_folders(folder, OTHERS, write_image), read_frames, 14),
    "cut-out objects": Reader(
        lambda world, folder: in_folders(folder, ["alpha.png"], write_image), partial(of_file, read_cut_out), 4
    ),
    "labels": Reader(
        lambda world, folder: in_folders(
            folder, ["plain.png", "palette.png", "bit.png", "sixteen.png", "plain.tif"], write_label
        ),
        read_label,
        14,
    ),
    "videos": Reader(
        lambda world, folder: in_folders(folder, ["a.webm", "b.avi", "c.mp4", "timed.mkv"], write_clip), read_video, 4
    ),
    "maps of others": Reader(foreign_maps, read_maps, 24),
    "maps": Reader(our_maps("*/*/*.png", "*/*/*.npy"), read_maps, 14, exact=True),
    "maps, manifest": Reader(our_maps("manifest.json"), read_maps, 8, exact=True),
    "maps, frames.jsonl": Reader(our_maps("frames.jsonl"), read_maps, 8, exact=True),
    "maps, shards": Reader(
        our_maps("manifest.*.json", "frames.*.jsonl", "manifest.json", shards=2), read_maps, 6, exact=True
    ),
    "maps, forged log": Reader(our_maps("frames.jsonl"), read_maps, 6, finish=sealed_again),
    "maps, forged manifest": Reader(our_maps("manifest.json"), read_maps, 6, finish=sealed_again),
    "doctor --maps": Reader(our_maps("*/*/*.*", "frames.jsonl", "manifest.json"), read_health, 6, exact=True),
    "predict --verify": Reader(
        our_maps("*/*/*.*", "frames.jsonl", "manifest.json", compact=False), resume, 4, exact=True, writes=True
    ),
    "predict into a forged folder": Reader(
        our_maps("frames.jsonl", "manifest.json", compact=False), resume, 3, finish=sealed_again, writes=True
    ),
    "nearest places": Reader(nearest_places, read_nearest, 4),
    "smoothing states": Reader(smoothing_states, resume_smoothing, 4, writes=True),
    "model, network": Reader(models("network.*"), read_model, 2, exact=True),
    "model, posterior": Reader(models("posterior.*"), read_model, 2, exact=True),
    "model, what is fitted": Reader(
        models("[!np]*.json", "features.safetensors", fitted=True), read_model, 2, exact=True
    ),
    "checkpoints": Reader(checkpoints, read_checkpoint, 2),
    "configurations": Reader(configurations, read_configuration, 4),
    "label maps": Reader(label_maps, read_labels, 5),
    "class maps and groups": Reader(class_tables, read_classes, 5),
    "verdicts": Reader(verdicts, read_judged, 6),
    "pages": Reader(pages, read_page, 4),
    "results": Reader(results("first.json"), read_results, 4),
    "results as thresholds": Reader(results("first.json"), read_limits, 4),
    "replicates": Reader(results("first.replicates.npz"), partial(of_file, load_replicates), 6),
}
"""What is fuzzed, in the order of the table."""


def digest(value: Any) -> str:
    """A hash of nested values and arrays."""
    found = hashlib.sha256()

    def add(one: Any) -> None:
        if isinstance(one, dict):
            found.update(b"{")
            for key, inner in one.items():
                add(key)
                add(inner)
        elif isinstance(one, list | tuple):
            found.update(b"[")
            for inner in one:
                add(inner)
        elif isinstance(one, np.ndarray):
            found.update(f"{one.dtype}{one.shape}".encode() + np.ascontiguousarray(one).tobytes())
        else:
            found.update(repr(one).encode("utf-8", "surrogatepass") + b";")

    add(value)
    return found.hexdigest()
