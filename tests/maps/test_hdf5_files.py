"""Maps in HDF5: the values of the single files, and the same bytes whenever a run was killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.frames.sources import Frame, open_source
from segunc.maps.hdf5_files import Hdf5Files, part_path
from segunc.maps.pipeline import run_pipeline
from segunc.maps.reader import MapsReader
from segunc.maps.shards import Shard
from segunc.maps.store import Maps, MapsWriter
from tests.maps.fakes import SCORES, folder_bytes, manifest, process, write_pictures


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "in", 10)
    return tmp_path / "in"


def run(given: Path, out: Path, *, shard: Shard = Shard(), stop: int = -1, store: bool = True) -> None:  # noqa: B008
    def until(frames: list[Frame]) -> list[Maps]:
        if frames[0].index == stop:
            raise KeyboardInterrupt
        return process(frames)

    files = Hdf5Files(out, segment=4) if store else None
    writer = MapsWriter(out, manifest(store=store), shard=shard, files=files)
    if stop >= 0:
        # A kill packs nothing.
        writer._files.close = lambda: None  # type: ignore[method-assign]
    try:
        run_pipeline(open_source(given), until, writer)
    except KeyboardInterrupt:
        assert stop >= 0


def test_values_are_those_of_single_files(pictures: Path, tmp_path: Path) -> None:
    run(pictures, tmp_path / "png", store=False)
    run(pictures, tmp_path / "hdf5")
    single, packed = MapsReader(tmp_path / "png"), MapsReader(tmp_path / "hdf5")
    assert packed.frames == single.frames
    for name in single.frames:
        np.testing.assert_array_equal(packed.prediction(name), single.prediction(name))
        for score in SCORES:
            np.testing.assert_array_equal(packed.read(name, score), single.read(name, score))
            assert packed.records[name]["mean"] == single.records[name]["mean"]
    assert sorted(path.name for path in (tmp_path / "hdf5/store").iterdir()) == [
        "000000000.h5", "000000004.h5", "000000008.h5"
    ]  # fmt: skip


def test_any_hdf5_reader_opens_a_segment(pictures: Path, tmp_path: Path) -> None:
    run(pictures, tmp_path / "out")
    reader = MapsReader(tmp_path / "out")
    with h5py.File(tmp_path / "out/store/000000004.h5") as file:
        dataset = file[f"entropy/{reader.frames[5]}"]
        assert (dataset.dtype, dataset.chunks, dataset.compression, dataset.shuffle) == (
            np.uint16, (24, 32), "gzip", True
        )  # fmt: skip
        np.testing.assert_array_equal(dataset[()], reader.read_stored(reader.frames[5], "entropy"))


@pytest.mark.parametrize("stops", [(1,), (4,), (6,), (9,), (2, 7, 8)])
def test_a_killed_run_loses_no_finished_frame_and_ends_with_the_same_bytes(
    pictures: Path, tmp_path: Path, stops: tuple[int, ...]
) -> None:
    run(pictures, tmp_path / "whole")
    out = tmp_path / "killed"
    for stop in stops:
        run(pictures, out, stop=stop)
        reader = MapsReader(out)
        assert len(reader) == stop
        for name in reader.frames:  # packed or not
            assert reader.read(name, "entropy").shape == (24, 32)
    run(pictures, out)
    assert folder_bytes(out) == folder_bytes(tmp_path / "whole")


def test_shards_write_whole_segments(pictures: Path, tmp_path: Path) -> None:
    run(pictures, tmp_path / "whole")
    for number in (2, 1):
        run(pictures, tmp_path / "two", shard=Shard(number, 2))
    for path in (tmp_path / "whole/store").iterdir():
        assert (tmp_path / "two/store" / path.name).read_bytes() == path.read_bytes()


def test_a_retried_frame_joins_its_segment(pictures: Path, tmp_path: Path) -> None:
    run(pictures, tmp_path / "whole")
    path = sorted(pictures.rglob("*.png"))[2]
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    out = tmp_path / "out"
    writer = MapsWriter(out, manifest(store=True), files=Hdf5Files(out, segment=4))
    run_pipeline(open_source(pictures), process, writer, raise_failures=False)
    assert len(MapsReader(out)) == 9
    path.write_bytes(data)
    run(pictures, out)
    assert folder_bytes(out) == folder_bytes(tmp_path / "whole")


def test_a_damaged_segment_is_computed_again(pictures: Path, tmp_path: Path) -> None:
    run(pictures, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "out")
    segment = tmp_path / "out/store/000000004.h5"
    segment.write_bytes(segment.read_bytes()[:500])
    name = MapsReader(tmp_path / "out").frames[4]
    with pytest.raises(InputError, match="cannot be read"):
        MapsReader(tmp_path / "out").read(name, "entropy")
    run(pictures, tmp_path / "out")
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "whole")
    segment.unlink()
    with pytest.raises(InputError, match="does not hold map entropy"):
        MapsReader(tmp_path / "out").read(name, "entropy")
    run(pictures, tmp_path / "out")
    assert folder_bytes(tmp_path / "out") == folder_bytes(tmp_path / "whole")
    assert not part_path(segment, 4).exists()
