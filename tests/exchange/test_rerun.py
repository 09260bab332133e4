"""Recordings for Rerun hold image, prediction and scores at the right moments, and appear whole."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.exchange.rerun import export_rerun
from segunc.frames.sources import open_source
from segunc.maps.pipeline import run_pipeline
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from tests.maps.fakes import manifest, process, write_video


@pytest.fixture
def maps(tmp_path: Path) -> Path:
    write_video(tmp_path / "drive.avi", 4)
    source = open_source(tmp_path / "drive.avi")
    described = manifest(**source.identity()) | {"source": source.describe()}
    run_pipeline(source, process, MapsWriter(tmp_path / "maps", described))
    return tmp_path / "maps"


def test_without_the_sdk_one_line_says_what_to_install(
    maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    with pytest.raises(InputError, match=r"--to rerun without its SDK .*pip install 'segunc\[rerun\]'"):
        export_rerun(maps, tmp_path / "out.rrd")


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


def test_a_recording_holds_the_maps_at_their_times(maps: Path, tmp_path: Path) -> None:
    pytest.importorskip("rerun", reason="the Rerun SDK is not installed (extra 'rerun')")
    out = tmp_path / "new" / "out.rrd"
    summary = export_rerun(maps, out, scores=["entropy", "max-logit"])
    assert (summary.written, summary.failed, summary.folder) == (4, {}, out)
    assert [path.name for path in out.parent.iterdir()] == ["out.rrd"]
    reader = MapsReader(maps)
    for score in ("entropy", "max-logit"):
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


def test_bad_input(maps: Path, tmp_path: Path) -> None:
    pytest.importorskip("rerun", reason="the Rerun SDK is not installed (extra 'rerun')")
    out = tmp_path / "out.rrd"
    with pytest.raises(InputError, match=r"a name ending in \.rrd"):
        export_rerun(maps, tmp_path / "out")
    with pytest.raises(InputError, match="score 'x' has no maps"):
        export_rerun(maps, out, scores=["x"])
    out.write_bytes(b"mine")
    with pytest.raises(InputError, match=r"is there already.*--overwrite"):
        export_rerun(maps, out)
    assert out.read_bytes() == b"mine"
    # A damaged map fails alone.
    (maps / "entropy" / "000001.png").write_bytes(b"broken")
    summary = export_rerun(maps, out, overwrite=True)
    assert (summary.written, list(summary.failed)) == (3, ["000001"])
    assert sorted(rows_of(out, "/scores/entropy", "DepthImage:buffer")) == [0, 2, 3]
