"""Damage to a finished maps folder: found where it is read, found by a look at everything, made again."""

from __future__ import annotations

import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.maps.folder import examine
from segunc.maps.reader import MapsReader
from segunc.maps.shards import DamageError, Shard
from segunc.maps.statistics import Region
from tests.maps.fakes import folder_bytes, predict, write_pictures

FRAME = "a/frame_001"
FILES = ("entropy/{}.png", "prediction/{}.png", "deterministic-max-logit/{}.npy")


def again(home: Path, *, verify: bool = False) -> list[str]:
    """Write what is missing of four frames; return what is said of frames that are made again."""
    notes: list[str] = []
    predict(home / "in", home / "maps", verify=verify, on_note=notes.append)
    return [note for note in notes if "again" in note]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "in", 4)
    assert again(tmp_path) == []
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "in", 4)
    for number in (1, 2):
        predict(tmp_path / "in", tmp_path / "maps", shard=Shard(number, 2))
    return tmp_path / "maps"


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
    path.unlink()
    with pytest.raises(InputError, match=rf"{FRAME}.* is missing.*--repair"):
        reader._read(FRAME, file.split("/")[0])
    path.write_bytes(whole)
    assert examine(home / "maps").amount == 0


@pytest.mark.parametrize("file", FILES)
def test_another_size_is_noticed_always_and_a_flipped_bit_when_asked(home: Path, file: str) -> None:
    before, path = folder_bytes(home / "maps"), home / "maps" / file.format(FRAME)
    path.write_bytes(path.read_bytes()[:50])
    assert examine(home / "maps").damaged == [f"{FRAME} ({file.format(FRAME)})"]
    assert again(home) == ["1 finished frames are made again: their maps or images are missing, damaged or others"]
    assert folder_bytes(home / "maps") == before
    flip(path, 300)
    assert again(home) == []
    assert len(again(home, verify=True)) == 1
    assert folder_bytes(home / "maps") == before


def test_damaged_doubled_torn_and_lost_lines(home: Path) -> None:
    before, log = folder_bytes(home / "maps"), home / "maps/frames.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + lines[0] + lines[1].replace(b'"mean"', b'"moan"') + lines[2])
    health = examine(home / "maps")
    assert (health.frames, health.lost, health.amount) == (4, 1, 2)
    # Its folder is said once, by who asks.
    assert re.match(r"frames.jsonl, line 3, was changed.*, no line tells of 1", health.examples)
    with pytest.raises(DamageError, match=r"line 3, was changed since it was written.*doctor --maps DIR --repair"):
        MapsReader(home / "maps")
    log.write_bytes(lines[0] + lines[2])
    assert "has lost the lines of 2 finished frames" in (MapsReader(home / "maps").unfinished or "")
    log.write_bytes(log.read_bytes() + b"more")
    assert len(again(home)) == 1
    assert folder_bytes(home / "maps") == before


def test_a_changed_mask_is_noticed(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 1)
    mask = np.full((24, 32), 255, np.uint8)
    mask[20:] = 0
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    predict(tmp_path / "in", tmp_path / "maps", region=Region(tmp_path / "mask.png"))
    mask[19] = 0
    cv2.imwrite(str(tmp_path / "maps/mask.png"), mask)
    for look in (MapsReader, examine):
        with pytest.raises(DamageError, match=r"mask.png was changed"):
            look(tmp_path / "maps")


def test_shards_say_which_of_them_is_damaged(sharded: Path) -> None:
    assert examine(sharded).amount == 0
    flip(sharded / "entropy/a/frame_001.png", 999)
    health = examine(sharded)
    assert (health.damaged, health.shards) == (["a/frame_001 (entropy/a/frame_001.png)"], [Shard(2, 2)])
    record = sharded / "manifest.1-of-2.json"
    record.write_text(record.read_text().replace('"finished": 2', '"finished": 3'))
    with pytest.raises(DamageError, match=r"manifest.1-of-2.json was changed"):
        examine(sharded)


@pytest.mark.parametrize("manifest_text", [None, '{"format": "other"}'])
def test_the_maps_of_shards_are_never_another_tools(sharded: Path, manifest_text: str | None) -> None:
    path = sharded / "manifest.json"
    path.unlink() if manifest_text is None else path.write_text(manifest_text)
    said = r"holds frames\.1-of-2\.jsonl but no manifest|is no manifest of a maps folder"
    with pytest.raises(InputError, match=said):
        MapsReader(sharded)
