"""Damage to a finished maps folder: found where it is read, found by a look at everything, made again."""

from __future__ import annotations

import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.frames.sources import open_source
from segunc.maps.health import examine
from segunc.maps.pipeline import run_pipeline
from segunc.maps.reader import MapsReader
from segunc.maps.shards import Shard
from segunc.maps.statistics import Region
from segunc.maps.store import MapsWriter
from segunc.maps.sums import DamageError
from tests.maps.fakes import folder_bytes, manifest, process, write_pictures

FRAME = "a/frame_001"
FILES = ("entropy/{}.png", "prediction/{}.png", "deterministic-max-logit/{}.npy")


def write(home: Path, *, verify: bool = False, masked: bool = False, shard: Shard | None = None) -> list[str]:
    """Four frames, or what is missing of them; the notes of the run."""
    region = Region(home / "mask.png") if masked else None
    writer = MapsWriter(home / "maps", manifest(), verify=verify, region=region, shard=shard or Shard())
    notes: list[str] = []
    run_pipeline(open_source(home / "in"), process, writer, on_note=notes.append)
    return [note for note in notes if "again" in note]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "in", 4)
    assert write(tmp_path) == []
    return tmp_path


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("file", FILES)
def test_no_flipped_bit_is_read(home: Path, file: str) -> None:
    path = home / "maps" / file.format(FRAME)
    whole = path.read_bytes()
    reader = MapsReader(home / "maps")
    for bit in np.random.default_rng(0).choice(8 * len(whole), 60, replace=False):
        flip(path, int(bit))
        with pytest.raises(InputError, match=rf"{FRAME}.* was changed since it was written.*--repair"):
            reader._read(FRAME, file.split("/")[0])
        path.write_bytes(whole)
    path.rename(home / "elsewhere")
    with pytest.raises(InputError, match=rf"{FRAME}.* is missing.*--repair"):
        reader._read(FRAME, file.split("/")[0])
    (home / "elsewhere").rename(path)
    assert examine(home / "maps").whole


@pytest.mark.parametrize("file", FILES)
def test_another_size_is_noticed_always_and_a_flipped_bit_when_asked(home: Path, file: str) -> None:
    before, path = folder_bytes(home / "maps"), home / "maps" / file.format(FRAME)
    path.write_bytes(path.read_bytes()[:50])
    assert examine(home / "maps").damaged == {FRAME: file.format(FRAME)}
    assert write(home) == ["1 finished frames are made again: their maps or images are missing, damaged or others"]
    assert folder_bytes(home / "maps") == before
    flip(path, 300)
    assert write(home) == []
    assert len(write(home, verify=True)) == 1
    assert folder_bytes(home / "maps") == before


def test_damaged_and_lost_lines(home: Path) -> None:
    before, log = folder_bytes(home / "maps"), home / "maps/frames.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + lines[1].replace(b'"mean"', b'"moan"') + lines[2])
    found = examine(home / "maps")
    assert (found.frames, found.lost, found.total, found.amount) == (2, 1, 4, 2)
    assert re.match(
        r"frames.jsonl, line 2, was changed.*, no line tells of 1", found.examples
    )  # its folder is said once, by who asks
    log.write_bytes(lines[0] + lines[2])
    assert "has lost the lines of 2 finished frames" in (MapsReader(home / "maps").unfinished or "")
    assert len(write(home)) == 1
    assert folder_bytes(home / "maps") == before
    log.write_bytes(log.read_bytes() + b"more")
    assert examine(home / "maps").examples == "frames.jsonl ends within a line"
    write(home)
    assert folder_bytes(home / "maps") == before


def test_a_changed_mask_is_noticed(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 4)
    mask = np.full((24, 32), 255, np.uint8)
    mask[20:] = 0
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    write(tmp_path, masked=True)
    mask[19] = 0
    cv2.imwrite(str(tmp_path / "maps/mask.png"), mask)
    for look in (MapsReader, examine):
        with pytest.raises(DamageError, match=r"mask.png was changed"):
            look(tmp_path / "maps")


def test_shards_say_which_of_them_is_damaged(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 4)
    for number in (1, 2):
        write(tmp_path, shard=Shard(number, 2))
    assert examine(tmp_path / "maps").whole
    flip(tmp_path / "maps/entropy/a/frame_001.png", 999)
    found = examine(tmp_path / "maps")
    assert (list(found.damaged), found.shards) == (["a/frame_001"], [Shard(2, 2)])
    record = tmp_path / "maps/manifest.1-of-2.json"
    record.write_text(record.read_text().replace('"finished": 2', '"finished": 3'))
    with pytest.raises(DamageError, match=r"manifest.1-of-2.json was changed"):
        examine(tmp_path / "maps")


def test_a_doubled_line_hides_no_lost_one(home: Path) -> None:
    before, log = folder_bytes(home / "maps"), home / "maps" / "frames.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([lines[0], *lines[:-1]]))
    found = examine(home / "maps")
    assert (found.frames, found.lines, found.lost) == (3, ["a second line of a/frame_000"], 0)
    write(home)
    assert folder_bytes(home / "maps") == before


@pytest.mark.parametrize("manifest_text", [None, '{"format": "other"}'])
def test_the_maps_of_shards_are_never_another_tools(tmp_path: Path, manifest_text: str | None) -> None:
    write_pictures(tmp_path / "in", 2)
    for number in (1, 2):
        write(tmp_path, shard=Shard(number, 2))
    path = tmp_path / "maps" / "manifest.json"
    path.unlink() if manifest_text is None else path.write_text(manifest_text)
    with pytest.raises(
        InputError, match=r"holds frames\.1-of-2\.jsonl but no manifest|is no manifest of a maps folder"
    ):
        MapsReader(tmp_path / "maps")
