"""Shards through Ray's actors are one run to the byte, whatever dies on the way."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from segunc import scale
from segunc.core.errors import InputError, PartialFailure, one_line
from segunc.maps.manifest import read_manifest
from segunc.maps.reader import MapsReader
from segunc.scale import Pool, ShardTask, require_ray, run_shards
from tests.maps.fakes import predict, write_pictures
from tests.maps.test_shards import maps_of
from tests.scale.fake_work import FakeWork, no_work


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"`engine` ray needs Ray .*pip install 'segunc\[ray\]'"):
        require_ray()


def test_errors_become_one_line() -> None:
    assert one_line(InputError("a\nb", hint="c")) == "a b. Hint: c"
    assert one_line(OSError(28, "No space\nleft")) == "OSError: [Errno 28] No space left"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of this process, for all tests of this file; starting one takes seconds."""
    pytest.importorskip("ray", reason="Ray is not installed (extra 'ray')")
    require_ray()
    with scale._cluster(Pool(2)):
        yield


@pytest.mark.usefixtures("cluster")
def test_two_workers_write_what_one_process_writes_and_a_killed_shard_is_redone(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 23)
    predict(tmp_path / "in", tmp_path / "one")
    out, journal = tmp_path / "many", tmp_path / "journal"
    make = partial(FakeWork, tmp_path / "in", out, journal, {2: 1})
    tasks = [ShardTask(0, number, 4) for number in range(1, 5)]
    results = {result.task.number: result for result in run_shards(make, tasks, Pool(2))}
    assert maps_of(out) == maps_of(tmp_path / "one")
    assert MapsReader(out).frames == MapsReader(tmp_path / "one").frames
    assert (read_manifest(out) or {})["status"] == "finished"
    assert not list(out.glob(".*"))
    assert sorted(results) == [1, 2, 3, 4]
    # The shard of the killed worker went on behind its second frame, in another process.
    assert (results[2].finished, results[2].skipped) == (4, 2)
    assert results[2].notes == ("shard 2/4 was begun 2 times, because its worker died",)
    assert results[1].notes == ()
    assert sum(result.finished + result.skipped for result in results.values()) == 23
    events = [line.split(maxsplit=1) for line in journal.read_text().splitlines()]
    assert len({pid for pid, event in events if event == "began 2"}) == 2
    assert str(os.getpid()) not in {pid for pid, _ in events}
    # Each worker made its work once, whatever number of shards it took: two workers, and one in place of the killed,
    # unless the other took all the rest before that one had started.
    makers = [pid for pid, event in events if event == "made"]
    assert len(makers) == len(set(makers)) <= 3
    assert {pid for pid, _ in events} == set(makers)


@pytest.mark.usefixtures("cluster")
def test_a_deadly_shard_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 30)
    journal = tmp_path / "journal"
    make = partial(FakeWork, tmp_path / "in", tmp_path / "out", journal, {1: 9})
    tasks = [ShardTask(0, number, 3) for number in (1, 2)] + [ShardTask(0, 99, 99)]
    results = {result.task.number: result for result in run_shards(make, tasks, Pool(2, retries=1))}
    assert sorted(results) == [1, 2, 99]
    assert results[1].error == "its worker died 2 times"
    assert (results[2].finished, results[2].error) == (10, "")
    assert results[99].error == "shard 99 is missing. Hint: give another"
    assert journal.read_text().count("began 1\n") == 2
    assert (read_manifest(tmp_path / "out") or {})["missing_shards"] == ["1/3", "3/3"]


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_dies_whenever_it_starts_ends_the_run_too() -> None:
    with pytest.raises(PartialFailure, match="a worker could not start: ActorDiedError"):
        list(run_shards(partial(os._exit, 1), [ShardTask(0, 1, 1)], Pool(1, retries=1)))


@pytest.mark.usefixtures("cluster")
def test_a_worker_that_cannot_start_ends_the_run() -> None:
    with pytest.raises(PartialFailure, match=r"a worker on .* could not start: input /data/drive\.mp4 does not exist"):
        list(run_shards(no_work, [ShardTask(0, 1, 2), ShardTask(0, 2, 2)], Pool(1)))
