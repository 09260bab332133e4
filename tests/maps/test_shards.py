"""Shards and their lines: together they are one run, to the byte, whatever the order, the kills and
the number of processes.
"""

import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import segunc
from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import Lock
from segunc.frames.sources import open_source
from segunc.maps import folder, shards
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
    records = shards.FrameRecords(out, shards.all_shards(read_manifest(out) or {}))
    lines = json.dumps(list(records.values()))
    return files | {"lines": lines.encode()}


def all_parts(count: int) -> list[Shard]:
    return [Shard(number, count) for number in range(1, count + 1)]


@given(st.integers(1, 9), st.integers(0, 200))
def test_every_frame_belongs_to_one_shard(count: int, frames: int) -> None:
    parts = all_parts(count)
    for place in range(frames):
        owners = [shard for shard in parts if shard.owns(place)]
        assert len(owners) == 1


@given(st.integers(1, 9), st.integers(0, 200))
def test_the_share_of_a_shard_is_the_number_of_its_frames(count: int, frames: int) -> None:
    for shard in all_parts(count):
        owned = [place for place in range(frames) if shard.owns(place)]
        assert shard.share(frames) == len(owned)


@given(st.integers(1, 9), st.integers(0, 200))
def test_shares_differ_by_at_most_one_frame(count: int, frames: int) -> None:
    shares = [shard.share(frames) for shard in all_parts(count)]
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize("text", ["0/2", "3/2", "1/0", "1", "a/b", "1/2/3", "-1/2", "1/4097"])
def test_impossible_shards_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="shard"):
        shards.parse_shard(text)


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Maps of eleven frames, in three shards one by one."""
    write_pictures(tmp_path / "in", 11)
    for number in (3, 1, 2):
        summary = predict(tmp_path / "in", tmp_path / "three", shard=Shard(number, 3))
        assert 0 < summary.finished < 11
    return tmp_path / "three"


def test_shards_one_by_one_are_one_run(tmp_path: Path, three: Path) -> None:
    predict(tmp_path / "in", tmp_path / "one")
    assert maps_of(three) == maps_of(tmp_path / "one")
    assert not list(three.glob(".*"))
    assert MapsReader(three).frames == MapsReader(tmp_path / "one").frames


def test_finished_shards_are_a_finished_run(three: Path) -> None:
    reader = MapsReader(three)
    assert reader.unfinished is None
    assert reader.manifest is not None
    assert reader.manifest["status"] == "finished"
    assert reader.manifest["finished"] == 11


def test_each_shard_records_what_made_it(tmp_path: Path) -> None:
    """The second one found the manifest of the first, and took over what that says of its maker."""
    out = tmp_path / "maps"
    MapsWriter(out, manifest(), shard=Shard(1, 2)).close()
    other = manifest() | {"device": "cpu, 1 thread, AVX2"}
    with pytest.warns(NoteWarning, match="was begun with device = 'cpu' "):
        MapsWriter(out, other, shard=Shard(2, 2)).close()
    records = [shards.read_state(out, shard) or {} for shard in all_parts(2)]
    assert [record["device"] for record in records] == ["cpu", "cpu, 1 thread, AVX2"]


def test_a_finished_shard_has_no_more_to_do(tmp_path: Path, three: Path) -> None:
    assert predict(tmp_path / "in", three, shard=Shard(2, 3)).finished == 0


def test_overwrite_removes_all_shards(three: Path) -> None:
    MapsWriter(three, manifest(), overwrite=True).close()
    assert sorted(folder_bytes(three)) == ["frames.jsonl"]


def predict_shard(given: Path, out: Path, shard: Shard) -> Summary:
    """A run whose manifest records the list of its source, as the verb makes it."""
    source = open_source(given)
    described = manifest() | {"source": source.describe()}
    return run_pipeline(source, process, MapsWriter(out, described, shard=shard))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (None, "b/later.png", "it now lists 5"),
        ("a/frame_000.png", "b/z.png", "4 of other names"),
    ],
)
def test_shards_of_another_list_of_frames_are_refused(
    tmp_path: Path, old: str | None, new: str, words: str
) -> None:
    images = tmp_path / "in"
    out = tmp_path / "out"
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
    images = tmp_path / "in"
    out = tmp_path / "out"
    names = write_pictures(images, 4)
    predict_shard(images, out, Shard())
    (images / "b/later.png").write_bytes((images / f"{names[0]}.png").read_bytes())
    assert predict_shard(images, out, Shard()).finished == 1
    reader = MapsReader(out)
    assert reader.frames == [*names, "b/later"]
    assert reader.unfinished is None


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """Two shards of four frames that have ended; then the folder grows by one."""
    images = tmp_path / "in"
    out = tmp_path / "out"
    write_pictures(images, 4)
    for number in (1, 2):
        predict_shard(images, out, Shard(number, 2))
    picture = images / "b/frame_003.png"
    (images / "b/later.png").write_bytes(picture.read_bytes())
    return images


def test_a_run_in_one_piece_goes_on_where_all_shards_have_ended(
    grown: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    summary = predict_shard(grown, out, Shard())
    assert (summary.finished, summary.skipped) == (1, 4)
    predict_shard(grown, tmp_path / "whole", Shard())
    assert folder_bytes(out) == folder_bytes(tmp_path / "whole")
    reader = MapsReader(out)
    assert reader.frames[-1] == "b/later"
    assert reader.unfinished is None
    with pytest.raises(InputError, match="begun in 2 shards, and went on without") as error:
        predict_shard(grown, out, Shard(1, 2))
    assert error.value.hint == "leave --shard out, or give another --out"


def test_a_shard_of_a_folder_that_grew_names_the_run_in_one_piece(
    grown: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="listed 4 frames, and it now lists 5") as error:
        predict_shard(grown, tmp_path / "out", Shard(1, 2))
    assert error.value.hint.startswith("leave --shard out, because all shards have ended")


def test_shards_are_no_run_in_one_piece_while_one_is_written(grown: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    # A shard that has begun to check its finished frames, and has not said yet that it goes on.
    with Lock(out / Shard(2, 2).file(".lock"), "shard"):
        before = folder_bytes(out)
        with pytest.raises(InputError, match=r"shard 2/2 of output .* is being written"):
            predict_shard(grown, out, Shard())
        assert folder_bytes(out) == before


@pytest.mark.parametrize("step", ["write_state", "remove_checked"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_shards_that_a_killed_run_joined_are_whole(
    grown: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    overwrite: bool,
) -> None:
    """A kill before the manifest of the run, and one before the files of shards are removed."""
    out = tmp_path / "out"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(folder, step, killed)
        with pytest.raises(KeyboardInterrupt):
            predict_shard(grown, out, Shard())
    assert len(MapsReader(out).frames) == 4
    described = manifest() | {"source": open_source(grown).describe()}
    writer = MapsWriter(out, described, overwrite=overwrite)
    summary = run_pipeline(open_source(grown), process, writer)
    assert summary.finished == (5 if overwrite else 1)
    predict_shard(grown, tmp_path / "whole", Shard())
    assert folder_bytes(out) == folder_bytes(tmp_path / "whole")


def test_readers_say_where_shards_saw_other_numbers_of_frames(tmp_path: Path) -> None:
    """Earlier versions recorded the number of frames that the first shard saw, and compared
    nothing."""
    out = tmp_path / "out"
    described = manifest() | {"source": {"kind": "folder", "frames": 4}}
    maps = dict.fromkeys(SCORES, np.full((2, 2), 0.5, np.float32))
    maps["prediction"] = np.zeros((2, 2), np.uint8)
    for number, places in ((1, (0, 2)), (2, (1, 3, 5))):
        with MapsWriter(out, described, shard=Shard(number, 2)) as writer:
            for place in places:
                writer.commit(writer.store(f"f{place}", maps, place=place))
    words = "the first of which saw 4 frames, and all together saw 5"
    assert words in (MapsReader(out).unfinished or "")
    assert words in segunc.summary(maps=out).notes[0]


@dataclass
class UnfinishedShard:
    """The second of three shards of seven frames, of which one is broken."""

    images: Path
    out: Path
    broken: str
    summary: Summary


@pytest.fixture
def unfinished_shard(tmp_path: Path) -> UnfinishedShard:
    images = tmp_path / "in"
    out = tmp_path / "out"
    broken = write_pictures(images, 7)[4]
    (images / f"{broken}.png").write_bytes(b"broken")
    summary = predict(images, out, shard=Shard(2, 3))
    return UnfinishedShard(images, out, broken, summary)


def test_an_unfinished_shard_is_named(unfinished_shard: UnfinishedShard) -> None:
    assert "1 of 2 frames failed" in unfinished_shard.summary.failure
    state = read_manifest(unfinished_shard.out) or {}
    assert state["missing_shards"] == ["1/3", "3/3"]
    assert [frame["name"] for frame in state["failed"]] == [unfinished_shard.broken]
    unfinished = MapsReader(unfinished_shard.out).unfinished or ""
    assert "is not whole: shards 1/3, 3/3 have not finished (1 frame so far)" in unfinished


@pytest.mark.parametrize(("shard", "other"), [(Shard(), ""), (Shard(1, 2), ", not in 2")])
def test_a_run_in_other_shards_is_refused(
    unfinished_shard: UnfinishedShard, shard: Shard, other: str
) -> None:
    with pytest.raises(InputError) as refused:
        predict(unfinished_shard.images, unfinished_shard.out, shard=shard)
    said = f"was begun in 3 shards{other}, and 1/3, 3/3 have not finished"
    assert refused.value.message.endswith(said)
    assert refused.value.hint == "finish --shard 1/3 first, or give another --out"


def test_one_shard_cannot_overwrite(unfinished_shard: UnfinishedShard) -> None:
    with pytest.raises(InputError, match="one shard cannot overwrite"):
        MapsWriter(unfinished_shard.out, manifest(), shard=Shard(1, 3), overwrite=True)


@pytest.mark.parametrize(
    ("shard", "held"),
    [
        (Shard(), "output .*"),
        (Shard(1, 2), "shard 1/2 of output .*"),
    ],
)
def test_a_folder_and_a_shard_are_held_by_one_run(tmp_path: Path, shard: Shard, held: str) -> None:
    writer = MapsWriter(tmp_path, manifest(), shard=shard)
    with pytest.raises(InputError, match=rf"{held} another run \(process {os.getpid()} on "):
        MapsWriter(tmp_path, manifest(), shard=shard)
    writer.close()
    MapsWriter(tmp_path, manifest(), shard=shard).close()


def test_another_shard_is_free(tmp_path: Path) -> None:
    writer = MapsWriter(tmp_path, manifest(), shard=Shard(1, 2))
    MapsWriter(tmp_path, manifest(), shard=Shard(2, 2)).close()
    writer.close()
    MapsWriter(tmp_path, manifest(), shard=Shard(1, 2)).close()


@pytest.fixture
def partial_manifest(tmp_path: Path) -> Path:
    partial = tmp_path / ".manifest.json.segunc-partial"
    partial.write_text("{}")
    return partial


def test_a_folder_that_another_shard_is_making_is_no_foreign_one(
    tmp_path: Path, partial_manifest: Path
) -> None:
    start = tmp_path / ".lock-start"
    start.write_text("1 host\n")

    def finish() -> None:
        partial_manifest.rename(tmp_path / "manifest.json")
        start.unlink()

    timer = threading.Timer(0.2, finish)
    timer.start()
    refuse_foreign(tmp_path)
    assert (tmp_path / "manifest.json").exists()
    timer.join()


def test_a_partial_manifest_that_no_shard_is_making_is_foreign(partial_manifest: Path) -> None:
    with pytest.raises(InputError, match=r"holds files but no manifest\.json"):
        refuse_foreign(partial_manifest.parent)


def record(place: int) -> dict[str, Any]:
    return {
        "name": f"{place:06d}",
        "index": place,
        "files": {"entropy": f"entropy/{place:06d}.png"},
        "sums": {"entropy": (1, "0123456789abcdef")},
        "mean": {"entropy": 0.123456789},
    }


def written(folder: Path, *places: int) -> Path:
    lines = [seal_line(record(place)) for place in places]
    (folder / "frames.jsonl").write_bytes(b"".join(lines))
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
    torn = seal_line(record(4))[:30]
    path.write_bytes(path.read_bytes() + torn)
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
    # The last one is damaged in its first bit.
    assert FrameLog(path).recover(lambda _: True) == 1
    assert places_of(path) == [1]


def test_the_damaged_end_of_a_video_is_listed_once(tmp_path: Path) -> None:
    """It belongs to no shard, so each one names it."""
    failure = {"name": "000007", "reason": "video ends at frame 7"}
    for number in (1, 2):
        state = {"status": "finished", "finished": 3, "failed": [failure]}
        shards.write_state(tmp_path, Shard(number, 2), state)
    assert shards.joined_state(tmp_path, {"shards": 2})["failed"] == [failure]
