"""The table of all frames, the worst moments and the frames to label."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segunc.core.errors import InputError
from segunc.frames.sources import open_source
from segunc.maps.pipeline import run_pipeline
from segunc.maps.shards import Shard
from segunc.maps.statistics import maps_folders, separated_peaks, worst_moments, write_moments
from segunc.maps.store import MapsWriter
from tests.maps.fakes import manifest, process, write_pictures, write_timed_video


def predict(given: Path, out: Path, shard: Shard = Shard()) -> Path:  # noqa: B008
    run_pipeline(open_source(given), process, MapsWriter(out, manifest(), shard=shard))
    return out


def test_the_table_holds_what_the_lines_hold(tmp_path: Path) -> None:
    write_timed_video(tmp_path / "drive.mkv", [0.0, 0.5, 0.6])
    out = predict(tmp_path / "drive.mkv", tmp_path / "out")
    rows = list(csv.DictReader((out / "frames.csv").open(newline="")))
    records = [json.loads(line) for line in (out / "frames.jsonl").read_text().splitlines()]
    assert [(row["name"], float(row["time"])) for row in rows] == [("000000", 0.0), ("000001", 0.5), ("000002", 0.6)]
    for row, record in zip(rows, records, strict=True):
        for score in ("entropy", "epistemic", "max-logit"):
            for statistic in ("mean", "max", "p99"):
                assert float(row[f"{score}.{statistic}"]) == record[statistic][score]
        assert int(row["entropy.component"]) == record["component"]["entropy"]
        assert row["max-logit.component"] == ""  # unbounded: no threshold of its own
    assert json.loads((out / "manifest.json").read_text())["maps"]["epistemic"]["component_threshold"] == 0.1


def test_shards_make_one_table_when_the_last_has_finished(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 5)
    predict(tmp_path / "in", tmp_path / "whole")
    predict(tmp_path / "in", tmp_path / "two", Shard(2, 2))
    assert not (tmp_path / "two" / "frames.csv").exists()
    predict(tmp_path / "in", tmp_path / "two", Shard(1, 2))
    assert (tmp_path / "two/frames.csv").read_bytes() == (tmp_path / "whole/frames.csv").read_bytes()
    moments = worst_moments([tmp_path / "two"], "entropy", count=3)
    assert [m.name for m in moments] == [m.name for m in worst_moments([tmp_path / "whole"], "entropy", count=3)]


@given(
    st.lists(st.one_of(st.floats(-5, 5), st.just(math.nan)), max_size=30),
    st.integers(1, 6),
    st.sampled_from([0.0, 1.0, 2.5, 100.0]),
)
def test_peaks_are_the_highest_that_are_far_enough_apart(values: list[float], count: int, apart: float) -> None:
    times = [0.5 * place for place in range(len(values))]
    chosen = separated_peaks(values, times, count, apart)
    picked = [values[place] for place in chosen]
    assert picked == sorted(picked, reverse=True)
    assert len(set(chosen)) == len(chosen) <= count
    for place in chosen:
        assert all(place == other or abs(times[place] - times[other]) >= apart for other in chosen)
    for place, value in enumerate(values):
        if place not in chosen and not math.isnan(value):
            near = any(abs(times[place] - times[other]) < apart and values[other] >= value for other in chosen)
            assert near or (len(chosen) == count and min(picked) >= value)


def test_moments_of_several_folders_are_one_ranking(tmp_path: Path) -> None:
    times = [0.0, 0.1, 3.0, 3.1, 9.0]
    for name in ("monday", "tuesday"):
        write_timed_video(tmp_path / f"{name}.mkv", times)
        predict(tmp_path / f"{name}.mkv", tmp_path / "maps" / name)
    folders = maps_folders(tmp_path / "maps")
    assert [folder.name for folder in folders] == ["monday", "tuesday"]
    moments = worst_moments(folders, "entropy", "mean", count=5, apart=1.0)
    # The bar grows from frame to frame, so each cluster's last frame is its brightest, its entropy the highest.
    assert [(m.folder.name, m.time) for m in moments] == [
        ("monday", 9.0), ("tuesday", 9.0), ("monday", 3.1), ("tuesday", 3.1), ("monday", 0.1)
    ]  # fmt: skip
    assert [m.value for m in moments] == sorted((m.value for m in moments), reverse=True)
    write_moments(tmp_path / "summary.csv", {"moments": ("entropy.mean", moments)})
    rows = list(csv.DictReader((tmp_path / "summary.csv").open(newline="")))
    assert [(row["rank"], row["frame"], float(row["value"])) for row in rows] == [
        (str(rank), m.name, m.value) for rank, m in enumerate(moments, start=1)
    ]
    assert len(worst_moments(folders[:1], "entropy", apart=0.0)) == 5


def test_images_stand_for_themselves(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 6)
    out = predict(tmp_path / "in", tmp_path / "out")
    moments = worst_moments([out], "epistemic", "p99", count=4, apart=1e9)
    assert len(moments) == 4
    values = [json.loads(line)["p99"]["epistemic"] for line in (out / "frames.jsonl").read_text().splitlines()]
    assert [m.value for m in moments] == sorted(values, reverse=True)[:4]
    assert all(m.time is None for m in moments)


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 2)
    out = predict(tmp_path / "in", tmp_path / "out")
    for words, said in (
        ((out, "entropie", "mean"), "no mean of 'entropie'.*entropy, epistemic, max-logit"),
        ((out, "max-logit", "component"), "no component of 'max-logit'"),
        ((out, "entropy", "median"), "statistic 'median'"),
    ):
        with pytest.raises(InputError, match=said):
            worst_moments([words[0]], *words[1:])
    with pytest.raises(InputError, match=r"holds no manifest\.json"):
        maps_folders(tmp_path / "in")
    (out / "manifest.json").write_text('{"format": "segunc-maps", "format_version": 99}')
    with pytest.raises(InputError, match="format version 99"):
        worst_moments([out], "entropy")
