"""Shards and their lines: together they are one run, to the byte, whatever the order, the kills and
the number of processes.
"""

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import segunc
from segunc.core.errors import InputError
from segunc.frames.sources import open_source
from segunc.maps import shards
from segunc.maps.folder import refuse_foreign
from segunc.maps.manifest import read_manifest
from segunc.maps.pipeline import Summary, run_pipeline
from segunc.maps.reader import MapsReader
from segunc.maps.shards import DamageError, FrameLog, Shard, iterate_lines, seal_line
from segunc.maps.store import MapsWriter
from tests.maps.fakes import SCORES, folder_bytes, manifest, predict, process, write_pictures


def maps_of(out: Path) -> dict[str, bytes]:
    """The bytes of all maps, and the lines of all shards in source order."""
    files = {name: data for name, data in folder_bytes(out).items() if "/" in name}
    records = shards.FrameRecords(out, shards.all_shards(read_manifest(out) or {})).values()
    return files | {"lines": json.dumps(list(records)).encode()}


@given(st.integers(1, 9), st.integers(0, 200))
def test_every_frame_belongs_to_one_shard(count: int, frames: int) -> None:
    parts = [Shard(number, count) for number in range(1, count + 1)]
    owners = [[shard.number for shard in parts if shard.owns(place)] for place in range(frames)]
    assert all(len(numbers) == 1 for numbers in owners)
    shares = [shard.share(frames) for shard in parts]
    assert shares == [sum(numbers == [shard.number] for numbers in owners) for shard in parts]
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("text", ["0/2", "3/2", "1/0", "1", "a/b", "1/2/3", "-1/2", "1/4097"])
def test_impossible_shards_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="shard"):
        shards.parse_shard(text)


def test_shards_one_by_one_are_one_run(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 11)
    one, three = tmp_path / "one", tmp_path / "three"
    predict(tmp_path / "in", one)
    for number in (3, 1, 2):
        assert 0 < predict(tmp_path / "in", three, shard=Shard(number, 3)).finished < 11
    assert maps_of(three) == maps_of(one)
    assert not list(three.glob(".*"))
    reader = MapsReader(three)
    assert (reader.frames, reader.unfinished) == (MapsReader(one).frames, None)
    assert reader.manifest is not None
    assert (reader.manifest["status"], reader.manifest["finished"]) == ("finished", 11)
    assert predict(tmp_path / "in", three, shard=Shard(2, 3)).finished == 0
    MapsWriter(three, manifest(), overwrite=True).close()
    assert sorted(folder_bytes(three)) == ["frames.jsonl"]


def predict_shard(given: Path, out: Path, shard: Shard) -> Summary:
    """A run whose manifest records the list of its source, as the verb makes it."""
    source = open_source(given)
    described = manifest() | {"source": source.describe()}
    return run_pipeline(source, process, MapsWriter(out, described, shard=shard))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [(None, "b/later.png", "it now lists 5"), ("a/frame_000.png", "b/z.png", "4 of other names")],
)
def test_shards_of_another_list_of_frames_are_refused(
    tmp_path: Path, old: str | None, new: str, words: str
) -> None:
    images, out = tmp_path / "in", tmp_path / "out"
    write_pictures(images, 4)
    predict_shard(images, out, Shard(1, 2))
    before = folder_bytes(out)
    picture = images / "b/frame_003.png"
    (images / new).write_bytes(picture.read_bytes())
    if old is not None:
        (images / old).unlink()
    with pytest.raises(InputError, match=f"listed 4 frames, and .*{words}"):
        predict_shard(images, out, Shard(2, 2))
    assert folder_bytes(out) == before
    assert not list(out.glob(".*")), "no lock is left"


def test_a_run_in_one_piece_goes_on_over_a_folder_that_grows(tmp_path: Path) -> None:
    images, out = tmp_path / "in", tmp_path / "out"
    names = write_pictures(images, 4)
    predict_shard(images, out, Shard())
    (images / "b/later.png").write_bytes((images / f"{names[0]}.png").read_bytes())
    assert predict_shard(images, out, Shard()).finished == 1
    reader = MapsReader(out)
    assert (reader.frames, reader.unfinished) == ([*names, "b/later"], None)


def test_readers_say_where_shards_saw_other_numbers_of_frames(tmp_path: Path) -> None:
    """Earlier versions recorded the number of frames that the first shard saw, and compared
    nothing."""
    out = tmp_path / "out"
    described = manifest() | {"source": {"kind": "folder", "frames": 4}}
    for number, places in ((1, (0, 2)), (2, (1, 3, 5))):
        with MapsWriter(out, described, shard=Shard(number, 2)) as writer:
            for place in places:
                grey = np.full((2, 2), 0.5, np.float32)
                maps = dict.fromkeys(SCORES, grey) | {"prediction": np.zeros((2, 2), np.uint8)}
                writer.commit(writer.store(f"f{place}", maps, place=place))
    words = "the first of which saw 4 frames, and all together saw 5"
    assert words in (MapsReader(out).unfinished or "")
    assert words in segunc.summary(maps=out).notes[0]


def test_an_unfinished_shard_is_named(tmp_path: Path) -> None:
    names, out = write_pictures(tmp_path / "in", 7), tmp_path / "out"
    (tmp_path / "in" / f"{names[4]}.png").write_bytes(b"broken")
    assert "1 of 2 frames failed" in predict(tmp_path / "in", out, shard=Shard(2, 3)).failure
    state = read_manifest(out) or {}
    assert (state["missing_shards"], [each["name"] for each in state["failed"]]) == (
        ["1/3", "3/3"],
        [names[4]],
    )
    assert "has not finished (status interrupted, 1 frames so far)" in (
        MapsReader(out).unfinished or ""
    )
    for shard in (Shard(), Shard(1, 2)):
        with pytest.raises(InputError, match=r"begun in 3 shards, not in .*not finished: 1/3, 3/3"):
            predict(tmp_path / "in", out, shard=shard)
    with pytest.raises(InputError, match="one shard cannot overwrite"):
        MapsWriter(out, manifest(), shard=Shard(1, 3), overwrite=True)


def test_a_folder_and_a_shard_are_held_by_one_run(tmp_path: Path) -> None:
    for shard, held in ((Shard(), "output .*"), (Shard(1, 2), "shard 1/2 of output .*")):
        out = tmp_path / str(shard.count)
        writer = MapsWriter(out, manifest(), shard=shard)
        with pytest.raises(InputError, match=rf"{held} another run \(process {os.getpid()} on "):
            MapsWriter(out, manifest(), shard=shard)
        if not shard.whole:
            MapsWriter(out, manifest(), shard=Shard(2, 2)).close()
        writer.close()
        MapsWriter(out, manifest(), shard=shard).close()


def test_a_folder_that_another_shard_is_making_is_no_foreign_one(tmp_path: Path) -> None:
    start, partial = tmp_path / ".lock-start", tmp_path / ".manifest.json.segunc-partial"
    start.write_text("1 host\n")
    partial.write_text("{}")

    def finish() -> None:
        partial.rename(tmp_path / "manifest.json")
        start.unlink()

    timer = threading.Timer(0.2, finish)
    timer.start()
    refuse_foreign(tmp_path)
    assert (tmp_path / "manifest.json").exists()
    timer.join()
    (tmp_path / "manifest.json").unlink()
    partial.write_text("{}")
    with pytest.raises(InputError, match=r"holds files but no manifest\.json"):
        refuse_foreign(tmp_path)


def record(place: int) -> dict[str, Any]:
    files, sums = {"entropy": f"entropy/{place:06d}.png"}, {"entropy": (1, "0123456789abcdef")}
    return {
        "name": f"{place:06d}",
        "index": place,
        "files": files,
        "sums": sums,
        "mean": {"entropy": 0.123456789},
    }


def written(folder: Path, *places: int) -> Path:
    (folder / "frames.jsonl").write_bytes(b"".join(seal_line(record(place)) for place in places))
    return folder / "frames.jsonl"


def places_of(path: Path) -> list[int]:
    return [line["index"] for _, line in iterate_lines(path)]


@settings(deadline=None)
@given(st.permutations(range(12)), st.integers(0, 12))
def test_any_order_over_two_runs_ends_sorted(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], cut: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "frames.jsonl"
    for part in (order[:cut], order[cut:]):
        log = FrameLog(path)
        log.recover(lambda _: True)
        for place in part:
            assert place not in log
            log.append(record(place))
            assert place in log
        log.close()
    assert places_of(path) == list(range(12))
    assert list(path.parent.iterdir()) == [path]


def test_torn_doubled_and_refused_lines_are_forgotten_and_every_flipped_bit_is_noticed(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, 0, 1, 2, 2, 3)
    path.write_bytes(path.read_bytes() + seal_line(record(4))[:30])
    log = FrameLog(path)
    assert log.recover(lambda line: line["index"] != 1) == 2
    assert [place for place in range(9) if place in log] == [0, 2, 3]
    log.close()
    assert places_of(path) == [0, 2, 3]
    path = written(tmp_path, 0, 1)
    first, second = path.read_bytes().splitlines(keepends=True)
    for bit in reversed(range(8 * len(first))):
        damaged = bytearray(first)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(damaged) + second)
        with pytest.raises(DamageError, match=r"frames.jsonl, line 1, was changed"):
            list(iterate_lines(path))
    assert FrameLog(path).recover(lambda _: True) == 1
    assert places_of(path) == [1]
