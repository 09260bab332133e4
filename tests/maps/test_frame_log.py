"""The lines of finished frames: order, recovery, and records that are read when asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segunc.maps.shards import DamageError, FrameLog, FrameRecords, Shard, iterate_lines, seal_line


def record(place: int) -> dict[str, Any]:
    numbers = {f"score-{i}": 0.123456789 for i in range(2)}
    files = {f"score-{i}": f"score-{i}/{place:06d}.png" for i in range(2)}
    sums = {score: (1, "0123456789abcdef") for score in files}
    return {"name": f"{place:06d}", "index": place, "files": files, "sums": sums, "mean": numbers, "max": numbers}


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


def test_torn_doubled_and_refused_lines_are_forgotten(tmp_path: Path) -> None:
    path = written(tmp_path, 0, 1, 2, 2, 3)
    path.write_bytes(path.read_bytes() + seal_line(record(4))[:30])
    log = FrameLog(path)
    assert log.recover(lambda line: line["index"] != 1) == 2
    assert [place for place in range(9) if place in log] == [0, 2, 3]
    log.close()
    assert places_of(path) == [0, 2, 3]


def test_every_flipped_bit_of_a_line_is_noticed(tmp_path: Path) -> None:
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


def test_records_are_read_when_asked_for(tmp_path: Path) -> None:
    shards = [Shard(1, 2), Shard(2, 2)]
    for shard in shards:
        lines = [seal_line(record(place)) for place in range(6) if shard.owns(place)]
        (tmp_path / shard.file("frames.jsonl")).write_bytes(b"".join(lines))
    records = FrameRecords(tmp_path, shards)
    assert list(records) == [f"{place:06d}" for place in range(6)]
    for place in (3, 0, 0, 5):
        assert records[f"{place:06d}"] == record(place)
    assert "000009" not in records
