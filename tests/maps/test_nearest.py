"""What places are most like: a file that gives back what was put in, and that a stranger may have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.frames.sources import open_source
from segunc.maps.nearest import NearestPlaces, TrainingPlace, strongest
from segunc.maps.pipeline import run_pipeline
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from tests.maps.fakes import manifest, process, write_pictures


def neighbours(extent: tuple[float, float] = (1.0, 1.0), seed: int = 0) -> NearestPlaces:
    generator = np.random.default_rng(seed)
    known = [TrainingPlace(f"seq/{i % 7:06d}", i / 100, round(1 - i / 100, 2), i % 5 or None) for i in range(100)]
    return NearestPlaces("toy", known, generator.integers(0, 100, (3, 4)), generator.random((3, 4), np.float32), extent)


@pytest.mark.parametrize("extent", [(1.0, 1.0), (1.5, 1.25)])
def test_a_file_gives_back_what_each_point_is_most_like(tmp_path: Path, extent: tuple[float, float]) -> None:
    made, path = neighbours(extent), tmp_path / "a.json"
    path.write_bytes(made.encode())
    read = NearestPlaces.read(path)
    assert len(read.known) == len(np.unique(made.places)) < len(made.known)
    for y in range(24):  # pixels of a frame of 24 x 32, each place of which is so many pixels high and wide
        for x in range(32):
            place = int(y / (24 * extent[0] / 3)), int(x / (32 * extent[1] / 4))
            found, distance = read.at((y + 0.5) / 24, (x + 0.5) / 32)
            assert found == made.known[made.places[place]]
            assert distance == pytest.approx(made.distances[place], rel=1e-3)


def test_a_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(InputError, match="cannot be read"):
        NearestPlaces.read(path)
    for data in (b"\xff\xfe", b"[" * 100_000, b"{"):
        path.write_bytes(data)
        with pytest.raises(InputError, match="cannot be read") as error:
            NearestPlaces.read(path)
        assert "\n" not in str(error.value)


def test_the_files_are_those_of_the_run(tmp_path: Path) -> None:
    """They are accounted for in the log: a lost one is made again, and --overwrite removes them and nothing else."""
    names, out = write_pictures(tmp_path / "in", 4), tmp_path / "maps"
    source = open_source(tmp_path / "in")

    def run(**given: Any) -> Any:
        writer = MapsWriter(out, manifest(), source=source, **given)
        return run_pipeline(source, process, writer, find_nearest=lambda frame, _: neighbours(seed=frame.index))

    assert run().finished == 4
    reader = MapsReader(out)
    for index, name in enumerate(names):
        found = reader.nearest(name)
        np.testing.assert_allclose(found.distances, neighbours(seed=index).distances, rtol=1e-3)
    before = {path: path.read_bytes() for path in (out / "nearest").rglob("*.json")}
    assert len(before) == 4
    (out / "nearest" / f"{names[2]}.json").unlink()
    assert (run().finished, run().skipped) == (1, 4)
    assert {path: path.read_bytes() for path in (out / "nearest").rglob("*.json")} == before
    stranger = out / "nearest" / "mine.json"
    stranger.write_text("{}")
    with pytest.raises(InputError, match=r"holds nearest/mine\.json"):
        run(overwrite=True)
    stranger.unlink()
    assert run(overwrite=True).finished == 4
    with MapsWriter(out, manifest(), overwrite=True, source=source):
        assert not (out / "nearest").exists()


def test_a_folder_without_them_has_none(tmp_path: Path) -> None:
    (name, *_) = write_pictures(tmp_path / "in", 2)
    run_pipeline(open_source(tmp_path / "in"), process, MapsWriter(tmp_path / "maps", manifest()))
    assert MapsReader(tmp_path / "maps").nearest(name) is None


def test_the_strongest_pixel() -> None:
    values = np.array([[1, 5, np.nan], [4, 2, np.inf]], np.float32)
    assert strongest(values, None) == strongest(values, 5) == (0, 1)
    assert strongest(values, 5.1) is None
    assert strongest(np.full((2, 2), np.nan, np.float32), None) is None
