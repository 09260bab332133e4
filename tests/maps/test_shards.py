"""Shards: together they are one run, to the byte, whatever the order, the kills and the number of processes."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segunc.core.errors import InputError
from segunc.frames.sources import open_source
from segunc.maps.folder import refuse_foreign
from segunc.maps.manifest import read_manifest
from segunc.maps.pipeline import Summary, run_pipeline
from segunc.maps.reader import MapsReader
from segunc.maps.shards import Shard, all_shards, iterate_records, parse_shard
from segunc.maps.store import MapsWriter
from tests.maps.fakes import folder_bytes, manifest, process, write_pictures


def run(given: Path, out: Path, shard: Shard = Shard(), group: int = 1) -> Summary:  # noqa: B008
    writer = MapsWriter(out, manifest(group=group), shard=shard)
    return run_pipeline(open_source(given), process, writer, group=group)


def maps_of(out: Path) -> dict[str, bytes]:
    """The bytes of all maps, and the lines of all shards in source order."""
    found = {name: data for name, data in folder_bytes(out).items() if "/" in name}
    records = iterate_records(out, all_shards(read_manifest(out)))
    return found | {"lines": json.dumps(list(records)).encode()}


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 200))
def test_every_frame_belongs_to_one_shard(count: int, block: int, frames: int) -> None:
    shards = [Shard(number, count) for number in range(1, count + 1)]
    owners = [[shard.number for shard in shards if shard.owns(place, block)] for place in range(frames)]
    assert all(len(found) == 1 for found in owners)
    for shard in shards:
        assert shard.share(frames, block) == sum(found == [shard.number] for found in owners)
    shares = [shard.share(frames, block) for shard in shards]
    assert max(shares) - min(shares) <= block


@pytest.mark.parametrize("text", ["0/2", "3/2", "1/0", "1", "a/b", "1/2/3", "-1/2", "1/4097"])
def test_impossible_shards_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="shard"):
        parse_shard(text)


@pytest.mark.parametrize("group", [1, 3])
def test_shards_one_by_one_are_one_run(tmp_path: Path, group: int) -> None:
    write_pictures(tmp_path / "in", 11)
    run(tmp_path / "in", tmp_path / "one", group=group)
    for number in (3, 1, 2):
        summary = run(tmp_path / "in", tmp_path / "three", Shard(number, 3), group)
        assert 0 < summary.finished < 11
    assert maps_of(tmp_path / "three") == maps_of(tmp_path / "one")
    assert not list((tmp_path / "three").glob(".*"))
    reader = MapsReader(tmp_path / "three")
    assert reader.frames == MapsReader(tmp_path / "one").frames
    assert reader.unfinished is None
    assert reader.manifest is not None
    assert (reader.manifest["status"], reader.manifest["finished"]) == ("finished", 11)
    assert run(tmp_path / "in", tmp_path / "three", Shard(2, 3), group).finished == 0


def test_an_unfinished_shard_is_named(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 6)
    out = tmp_path / "out"
    run(tmp_path / "in", out, Shard(2, 3))
    assert (read_manifest(out) or {})["missing_shards"] == ["1/3", "3/3"]
    assert "has not finished (status interrupted, 2 frames so far)" in (MapsReader(out).unfinished or "")
    for shard in (Shard(), Shard(1, 2)):
        with pytest.raises(InputError, match=r"begun in 3 shards, not in .*not finished: 1/3, 3/3"):
            run(tmp_path / "in", out, shard)
    with pytest.raises(InputError, match="one shard cannot overwrite"):
        MapsWriter(out, manifest(group=1), shard=Shard(1, 3), overwrite=True)
    run(tmp_path / "in", tmp_path / "whole")
    with pytest.raises(InputError, match="begun without shards"):
        run(tmp_path / "in", tmp_path / "whole", Shard(1, 2))


def test_overwrite_removes_all_shards(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 4)
    for number in (1, 2):
        run(tmp_path / "in", tmp_path / "out", Shard(number, 2))
    writer = MapsWriter(tmp_path / "out", manifest(group=1), overwrite=True)
    run_pipeline(open_source(tmp_path / "in"), process, writer)
    run(tmp_path / "in", tmp_path / "whole")
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "whole")


def test_failures_of_all_shards_are_listed(tmp_path: Path) -> None:
    names = write_pictures(tmp_path / "in", 4)
    for name in names[:2]:
        (tmp_path / "in" / f"{name}.png").write_bytes(b"broken")
    for number in (1, 2):
        assert "1 of 2 frames failed" in run(tmp_path / "in", tmp_path / "out", Shard(number, 2)).failure
    found = read_manifest(tmp_path / "out") or {}
    assert [failure["name"] for failure in found["failed"]] == names[:2]


def test_a_folder_and_a_shard_are_held_by_one_run(tmp_path: Path) -> None:
    writer = MapsWriter(tmp_path / "whole", manifest())
    with pytest.raises(InputError, match=r"output .*whole is being written by another run"):
        MapsWriter(tmp_path / "whole", manifest())
    writer.close()
    MapsWriter(tmp_path / "whole", manifest()).close()
    tmp_path /= "shards"
    writer = MapsWriter(tmp_path, manifest(), shard=Shard(1, 2))
    with pytest.raises(InputError, match=rf"shard 1/2 of output .* another run \(process {os.getpid()} on "):
        MapsWriter(tmp_path, manifest(), shard=Shard(1, 2))
    MapsWriter(tmp_path, manifest(), shard=Shard(2, 2)).close()
    writer.close()
    MapsWriter(tmp_path, manifest(), shard=Shard(1, 2)).close()


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
