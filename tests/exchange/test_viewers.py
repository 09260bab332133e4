"""Exports for viewers: recordings for Rerun at the right moments."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.exchange.viewers import ViewerMaps, export_rerun
from segunc.frames.sources import open_source
from segunc.maps.pipeline import run_pipeline
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from tests.maps.fakes import manifest, process, write_pictures, write_video


def predict(given: Path) -> Path:
    """Maps beside an input."""
    source = open_source(given)
    described = manifest(**source.identity()) | {"source": source.describe()}
    run_pipeline(source, process, MapsWriter(given.parent / "maps", described))
    return given.parent / "maps"


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    write_pictures(tmp_path / "in", 3)
    return predict(tmp_path / "in")


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    pytest.importorskip("rerun", reason="the Rerun SDK is not installed (extra 'rerun')")
    write_video(tmp_path / "drive.avi", 4)
    return predict(tmp_path / "drive.avi")


def test_without_a_viewers_library_one_line_says_what_to_install(
    maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(InputError, match=r"--to rerun without its SDK .*pip install 'segunc\[rerun\]'"):
        export_rerun(ViewerMaps(maps), tmp_path / "out.rrd")


def rows_of(recording: Path, entity: str, component: str) -> dict[int, tuple[float, list[object]]]:
    """Frame -> its time in seconds and what a component of an entity holds then, read by the SDK."""
    chunks = pytest.importorskip("rerun.chunk", reason="this Rerun SDK reads no recordings")
    found = {}
    for chunk in chunks.RrdReader(recording).stream().to_chunks():
        batch = chunk.to_record_batch()
        if chunk.entity_path == entity and component in batch.schema.names:
            columns = (batch.column(name).to_pylist() for name in ("frame", "time", component))
            for frame, time, value in zip(*columns, strict=True):
                found[frame] = (time.total_seconds(), value)
    return found


def test_a_recording_holds_the_maps_at_their_times(drive: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.rrd"
    summary = export_rerun(ViewerMaps(drive, ["entropy", "deterministic-max-logit"]), out)
    assert (summary.written, summary.failed, summary.folder) == (4, {}, out)
    assert [path.name for path in out.parent.iterdir()] == ["out.rrd"]
    reader = MapsReader(drive)
    for score in ("entropy", "deterministic-max-logit"):
        rows = rows_of(out, f"/scores/{score}", "DepthImage:buffer")
        assert sorted(rows) == [0, 1, 2, 3]
        for frame, (time, value) in rows.items():
            assert time == pytest.approx(frame / 25, abs=1e-6)
            stored = np.frombuffer(bytes(value[0]), np.float32).reshape(48, 64)  # type: ignore[call-overload]
            np.testing.assert_array_equal(stored, reader.read(f"{frame:06d}", score))
    for _, value in rows_of(out, "/scores/entropy", "DepthImage:depth_range").values():
        assert value == [[0.0, 1.0]]
    prediction = rows_of(out, "/prediction", "SegmentationImage:buffer")
    ids = np.frombuffer(bytes(prediction[2][1][0]), np.uint8).reshape(48, 64)  # type: ignore[call-overload]
    np.testing.assert_array_equal(ids, reader.prediction("000002"))
    means = rows_of(out, "/statistics/entropy/mean", "Scalars:scalars")
    assert means[3][1] == [reader.records["000003"]["mean"]["entropy"]]
    assert sorted(rows_of(out, "/image", "EncodedImage:blob")) == [0, 1, 2, 3]
    assert rows_of(out, "/scores/epistemic", "DepthImage:buffer") == {}


def test_bad_recordings(drive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.rrd"
    with pytest.raises(InputError, match=r"a name ending in \.rrd"):
        export_rerun(ViewerMaps(drive), tmp_path / "out")
    with pytest.raises(InputError, match="score 'x' has no maps"):
        export_rerun(ViewerMaps(drive, ["x"]), out)
    out.write_bytes(b"mine")
    with pytest.raises(InputError, match=r"is there already.*--overwrite"):
        export_rerun(ViewerMaps(drive), out)
    assert out.read_bytes() == b"mine"
    # A damaged map fails alone.
    (drive / "entropy" / "000001.png").write_bytes(b"broken")
    summary = export_rerun(ViewerMaps(drive), out, overwrite=True)
    assert (summary.written, list(summary.failed)) == (3, ["000001"])
    assert sorted(rows_of(out, "/scores/entropy", "DepthImage:buffer")) == [0, 2, 3]
