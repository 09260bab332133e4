"""The fault campaign in small: each part over a few cases, and that it reports what is planted."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.core.files import PARTIAL_SUFFIX
from tests.conftest import Job
from tests.verbs.processes import Finished
from tools.faults import fuzz, resources, silent
from tools.faults.fuzz import Cases, fuzz_reader
from tools.faults.kills import kill
from tools.faults.mutations import OF_KIND, mutate
from tools.faults.readers import READERS, Reader, in_folders
from tools.faults.report import MARKS, Row, rewrite
from tools.faults.resources import FAULTS, Fault, take_away
from tools.faults.silent import flip
from tools.faults.targets import Unbroken, verdict, written
from tools.faults.world import World

WHOLE = b"whole" * 20
QUICK = (
    *(
        "images, PNG",
        "images, JPEG",
        "labels",
        "maps of others",
        "maps",
        "maps, manifest",
        "maps, frames.jsonl",
        "maps, shards",
    ),
    *("doctor --maps", "predict --verify", "nearest places", "label maps", "class maps and groups", "pages"),
    "configurations",
)
"""Readers whose whole files take no training."""


@pytest.fixture(scope="module")
def world(predicted: Job, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(predicted, tmp_path_factory.mktemp("faults"))


def refuse() -> None:
    raise InputError("bytes", "others", "write them again")


def long_line() -> None:
    raise InputError("more", "x" * 5000, "")


def hang() -> None:
    time.sleep(60.0)


def hang_below_python() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(60.0)


def die() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def read_unless_damaged(bad: Callable[[], Any], root: Path, file: Path) -> Any:
    """1 of a whole file, and something bad of another."""
    return 1 if file.read_bytes() == WHOLE else bad()


def plant(monkeypatch: pytest.MonkeyPatch, bad: Callable[[], Any]) -> None:
    """A reader that is bad with damaged files."""

    def seeds(world: World, folder: Path) -> list[Path]:
        return in_folders(folder, ["a.bin"], lambda name, path: path.write_bytes(WHOLE))

    monkeypatch.setitem(READERS, "planted", Reader(seeds, partial(read_unless_damaged, bad), 1, exact=True))
    monkeypatch.setattr(fuzz, "GRACE", 0.2)


@pytest.fixture
def alarm() -> Iterator[None]:
    """What a worker does with an alarm, in this process."""
    old = signal.signal(signal.SIGALRM, fuzz.too_long)
    yield
    signal.signal(signal.SIGALRM, old)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (refuse, "refused"),
        (lambda: {}["key"], "KeyError at no line of ours"),
        (lambda: 2, "a wrong result of a.bin without a word"),
        (lambda: np.empty(1 << 55), "more than 2 GiB at"),
        (long_line, "a line of 5 thousand characters"),
        (hang, "too slow at"),
    ],
)
@pytest.mark.usefixtures("alarm")
def test_how_a_case_ends_is_judged(
    bad: Callable[[], Any], said: str, monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    plant(monkeypatch, bad)
    with fuzz.whole_files("planted", world, seconds=0.2) as given:
        assert Cases(given, given.top.with_name("damaged")).run(1)[0].startswith(said)


@pytest.mark.parametrize(("bad", "said"), [(die, "the process died of signal 11"), (hang_below_python, "no end")])
def test_the_end_of_a_worker_is_a_failure(
    bad: Callable[[], Any], said: str, monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    plant(monkeypatch, bad)
    row = fuzz_reader("planted", world, 2, seed=1, workers=1, seconds=0.2)
    assert row.cases == 2
    assert row.failures[0].what == said
    assert row.failures[0].again.startswith("--case 'planted':")


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.usefixtures("alarm")
def test_damaged_files_are_read_right_or_refused(name: str, world: World) -> None:
    with fuzz.whole_files(name, world, seed=5) as given:
        cases = Cases(given, given.top.with_name("damaged"))
        assert {cases.run(case)[0] for case in range(8)} <= set(fuzz.OUTCOMES)
        assert all(map(cases.expected, range(len(given.files)))), "a whole file is refused"


def test_mutations_follow_from_their_seed() -> None:
    data = json.dumps({"a": [1, 2, {"b": "c"}], "d": None}).encode()
    for kind in (*OF_KIND, "bin"):
        made = [[mutate(data, kind, np.random.default_rng(seed)) for seed in range(12)] for _ in range(2)]
        assert made[0] == made[1]
        assert sum(one != data for one in made[0]) > 6


def test_a_killed_run_ends_in_the_same_bytes(world: World) -> None:
    (row,) = kill(world, 1, seed=1, names=["export"])
    assert (row.cases, row.failures) == (1, [])


def test_what_a_broken_run_leaves_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    whole, done = Unbroken(written(tmp_path), 1.0, 1), Finished(0, "", "")
    assert verdict(tmp_path, whole, [done])[0] == "equal"
    refused = Finished(2, "", "there is a network already")
    assert verdict(tmp_path, whole, [Finished(1, "", "no")])[0] == "the same command again ends with 1"
    assert verdict(tmp_path, whole, [refused])[0] == "equal"
    assert verdict(tmp_path, Unbroken({}, 1.0, 1), [refused])[0] == "the same command again ends with 2"
    (tmp_path / f".a{PARTIAL_SUFFIX}").touch()
    assert verdict(tmp_path, whole, [done])[0] == "temporary files or locks stay"
    (tmp_path / f".a{PARTIAL_SUFFIX}").rename(tmp_path / "b")
    assert verdict(tmp_path, whole, [done])[0] == "files are left over"
    (tmp_path / "b").rename(tmp_path / "a.txt")
    assert verdict(tmp_path, whole, [done])[0] == "other bytes"
    (tmp_path / "posterior.json").write_text('{"provenance": {"resumed": true}}')
    whole = Unbroken({**whole.files, "posterior.json": written(tmp_path)["posterior.json"]}, 1.0, 1)
    assert verdict(tmp_path, whole, [done])[0] == "said"
    (tmp_path / "a.txt").unlink()
    assert verdict(tmp_path, whole, [done])[0] == "files are missing"


def test_what_lacks_is_said_and_a_fault_that_is_none_is_reported(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setitem(FAULTS, "nothing lacks", Fault(codes=(1, 2)))
    names = ["files of 2 kB at most", "nothing lacks"]
    limited, planted = take_away(world, names=names, targets=["export"])
    assert (limited.cases, limited.failures) == (1, [])
    assert [failure.what for failure in planted.failures] == ["export: ends with 0"]


def test_hostile_names(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    names = {"a tag": resources.NAMES["a tag"]}
    monkeypatch.setattr(resources, "NAMES", names)
    (row,) = take_away(world, names=["hostile names"])
    assert (row.cases, row.failures) == (1, [])


def test_a_flipped_bit_is_found_and_one_that_is_not_flipped_is_missed(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    row = flip(world, 4, 1, seed=0)
    assert (row.cases, row.failures) == (1, [])
    monkeypatch.setattr(silent, "flip_bit", lambda *_: None)
    assert "does not find" in flip(world, 4, 1, seed=0).failures[0].what


def test_the_table_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    row = Row("fuzz", "labels", 7)
    row.count("refused", 1999)
    row.fail("KeyError", "--case 'labels':3")
    with row.timed():
        raise RuntimeError("no disk")
    content = {"seconds": 2, "provenance": {"commit": "abc", "date": "2025-01-01T00:00"}, "rows": [row.plain()]}
    (tmp_path / "results.json").write_text(json.dumps(content))
    document = tmp_path / "page.md"
    document.write_text(f"before\n{MARKS[0]}\nold\n{MARKS[1]}\nbehind\n")
    for _ in range(2):
        rewrite(document, [tmp_path / "results.json"])
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("behind\n")
    assert "old" not in text
    assert text.count("| fuzz | labels | 2,001 | 7 | 1,999 refused | 2 |") == 1
