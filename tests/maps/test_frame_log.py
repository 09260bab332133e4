"""The lines of finished frames: order, recovery, and memory that does not grow with their number."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segunc.maps.shards import FrameLog, FrameRecords, Shard, iterate_lines
from segunc.maps.sums import DamageError, seal_line


def record(place: int) -> dict[str, Any]:
    numbers = {f"score-{i}": 0.123456789 for i in range(2)}
    files = {f"score-{i}": f"score-{i}/{place:06d}.png" for i in range(2)}
    sums = {score: (1, "0123456789abcdef") for score in files}
    return {"name": f"{place:06d}", "index": place, "files": files, "sums": sums, "mean": numbers, "max": numbers}


def written(folder: Path, *places: int) -> Path:
    (folder / "frames.jsonl").write_bytes(b"".join(seal_line(record(place)) for place in places))
    return folder / "frames.jsonl"


def places_of(path: Path) -> list[int]:
    return [found["index"] for _, found in iterate_lines(path)]


def opened(path: Path) -> FrameLog:
    log = FrameLog(path)
    log.recover(lambda found: found["index"])
    log.open()
    return log


@settings(deadline=None)
@given(st.permutations(range(12)), st.integers(0, 12))
def test_any_order_over_two_runs_ends_sorted(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], cut: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "frames.jsonl"
    for part in (order[:cut], order[cut:]):
        log = opened(path)
        for place in part:
            assert place not in log
            log.append(record(place))
            assert place in log
        log.close()
    assert places_of(path) == list(range(12))
    assert list(path.parent.iterdir()) == [path]


def test_torn_lines_forgotten_frames_and_moved_places(tmp_path: Path) -> None:
    path = written(tmp_path, *range(4))
    path.write_bytes(path.read_bytes() + seal_line(record(4))[:30])
    log = FrameLog(path)
    log.recover(lambda found: {0: 0, 1: None, 2: 7, 3: 3}[found["index"]])
    assert log.count == 3
    assert [place for place in range(9) if place in log] == [0, 3, 7]
    log.open()
    log.close()
    assert [found["name"] for _, found in iterate_lines(path)] == ["000000", "000003", "000002"]
    assert places_of(path) == [0, 3, 7]


def test_every_flipped_bit_of_a_line_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, 0, 1)
    first, second = path.read_bytes().splitlines(keepends=True)
    for bit in reversed(range(8 * len(first))):
        damaged = bytearray(first)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(damaged) + second)
        with pytest.raises(DamageError, match=r"frames.jsonl, line 1, was changed"):
            list(iterate_lines(path))
    assert FrameLog(path).recover(lambda found: found["index"]) == 1
    assert places_of(path) == [1]


def test_an_intact_file_is_not_written_again_but_with_a_moved_place_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, *range(3))
    before = path.stat().st_ino
    opened(path).close()
    assert path.stat().st_ino == before
    assert FrameLog(path).recover(lambda found: found["index"] + 1) == 0
    assert places_of(path) == [1, 2, 3]


def test_many_frames_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "frames.jsonl"
    with path.open("wb") as file:
        for place in range(20_000):
            file.write(seal_line(record(place)))
    assert path.stat().st_size > 4e6
    tracemalloc.start()
    log = opened(path)
    for place in range(20_000, 20_100):
        log.append(record(place))
    log.close()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert log.count == 20_100
    assert peak < 4e5


def test_records_are_read_when_asked_for(tmp_path: Path) -> None:
    for number in (1, 2):
        shard = Shard(number, 2)
        lines = [seal_line(record(place)) for place in range(6) if shard.owns(place)]
        (tmp_path / shard.file("frames.jsonl")).write_bytes(b"".join(lines))
    records = FrameRecords(tmp_path, [Shard(1, 2), Shard(2, 2)])
    assert list(records) == [f"{place:06d}" for place in range(6)]
    for place in (3, 0, 0, 5):
        assert records[f"{place:06d}"] == record(place)
    assert "000009" not in records
    with pytest.raises(KeyError):
        records["000009"]
