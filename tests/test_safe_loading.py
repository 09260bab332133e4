"""No file that is loaded runs: pickles in every place that one could stand in, YAML tags, archives,
pictures that are programs.
"""

import io
import json
import os
import pickle
import signal
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from segunc.cli.main import main
from segunc.core.errors import InputError
from segunc.core.files import read_array, read_arrays, read_record
from segunc.data.images import load_image, read_label_image
from segunc.data.labels import read_label_map
from segunc.evaluation.resampling import load_replicates, load_results
from segunc.frames.source import sampled_hash
from segunc.maps.encoding import read_score_file
from segunc.maps.manifest import read_manifest
from segunc.networks.weights import read_checkpoint, read_state
from segunc.training.config import TrainConfig, parse_config
from tests.conftest import Job


class Trap:
    """Whatever unpickles it makes the folder ``ran`` below the working directory."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def ran() -> bool:
    return os.path.exists("ran")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not ran()


def in_torch(legacy: bool = False) -> bytes:
    buffer = io.BytesIO()
    torch.save({"state_dict": {"a": Trap()}}, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def in_tar() -> bytes:
    """As the first versions of torch saved: pickles in an archive, here beside an entry that leaves
    its folder.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("../ran/escaped", "storages", "tensors", "pickle"):
            entry = tarfile.TarInfo(name)
            entry.size = len(PICKLE)
            archive.addfile(entry, io.BytesIO(PICKLE))
    return buffer.getvalue()


def in_npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([Trap()], object), allow_pickle=True)
    return buffer.getvalue()


def in_npz(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("paths", "values", "seed", "clusters", "../ran/escaped"):
            archive.writestr(f"{name}.npy", data)
    return buffer.getvalue()


PICKLE = pickle.dumps(Trap())
SVG = (
    b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><image"
    b" href='file:///etc/passwd'/></svg>"
)
FILES = {
    "torch": in_torch(),
    "legacy": in_torch(legacy=True),
    "tar": in_tar(),
    "pickle": PICKLE,
    "npy": in_npy(),
}
FILES |= {
    "npz": in_npz(in_npy()),
    "npz of pickles": in_npz(PICKLE),
    "svg": SVG,
}
READERS: dict[str, Callable[[Path], object]] = {
    "network.pth": read_state,
    "network.safetensors": read_state,
    "posterior.safetensors": read_checkpoint,
    "a.replicates.npz": load_replicates,
    "array": lambda path: read_array(path.read_bytes()),
    "arrays": lambda path: read_arrays(path.read_bytes()),
    **{f"map{ending}": read_score_file for ending in (".npy", ".png", ".tif", ".h5")},
    **{f"frame{ending}": load_image for ending in (".png", ".jpg", ".webp")},
    "label.png": read_label_image,
    "config.yaml": lambda path: parse_config(TrainConfig, path, []),
}
OTHERS: dict[str, Callable[[Path], object]] = {
    "posterior.json": lambda path: read_record(path, "a posterior"),
    "manifest.json": lambda path: read_manifest(path.parent),
    "metrics.json": lambda path: load_results([path]),
    "map.csv": read_label_map,
    "video.mp4": lambda path: sampled_hash(path, 2, 10),
}


def test_the_trap_works() -> None:
    for load in (
        lambda: pickle.loads(PICKLE),
        lambda: np.load(io.BytesIO(FILES["npy"]), allow_pickle=True),
    ):
        load()
        assert ran()
        os.rmdir("ran")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", FILES)
def test_no_reader_runs_what_it_reads(kind: str, reader: str, tmp_path: Path) -> None:
    path = tmp_path / reader
    path.write_bytes(FILES[kind])
    with pytest.raises((InputError, ValueError)) as caught:
        READERS[reader](path)
    assert reader in ("array", "arrays") or isinstance(caught.value, InputError)


@pytest.mark.parametrize("reader", [*OTHERS, *(name for name in READERS if "." in name)])
def test_a_pipe_is_refused_at_once(reader: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / reader)
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for ever"))
    signal.alarm(60)
    try:
        with pytest.raises((InputError, OSError)):
            {**READERS, **OTHERS}[reader](tmp_path / reader)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


TAGS = (
    "!!python/object/apply:os.mkdir [ran]",
    "!!python/object/new:os.mkdir [ran]",
    "!!python/name:os.mkdir",
)


@pytest.mark.parametrize(
    "tag", [*TAGS, "!!python/module:os", "!<tag:yaml.org,2002:python/object/apply:os.mkdir> [ran]"]
)
@pytest.mark.parametrize(
    "place", ["seed: {}", "data: {{root: {}}}", "trainer: {{callbacks: [{}]}}", "{}"]
)
def test_a_tag_of_a_configuration_makes_nothing(
    place: str, tag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(place.format(tag))
    assert main(["train", "--config", "config.yaml", "--out", "out", "--device", "cpu"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(Exception, match=r"python|Error|ran"):
        yaml.safe_load(tag)


def test_checkpoints_of_a_run_that_goes_on_are_not_unpickled(
    trained: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever can write into the output folder of a training runs nothing in it."""
    words = ["train", "--config", str(trained.train_config), "--out", "out", "--device", "cpu"]
    folder = tmp_path / "out" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text((trained.base / "checkpoints" / "run.json").read_text())
    for kind in ("torch", "legacy", "pickle", "tar"):
        (folder / "last.ckpt").write_bytes(FILES[kind])
        assert main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "checkpoints/last.ckpt" in line


def test_records_are_data(tmp_path: Path) -> None:
    """A network's description that names code, where an architecture is a name of a table."""
    for architecture in ("os.mkdir", "__import__('os').mkdir('ran')", "python:os:mkdir"):
        described = {
            "format": 2,
            "architecture": architecture,
            "encoder": "resnet18",
        }
        description = {**described, "classes": ["a"], "sha256": "0"}
        (tmp_path / "network.json").write_text(json.dumps(description))
        (tmp_path / "network.safetensors").write_bytes(b"")
        assert (
            main(["predict", "--model", ".", "--input", ".", "--out", "maps", "--device", "cpu"])
            == 2
        )
