"""The maps folder: its files, what a second run may do to it, and reading it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.maps.encoding import encode_unit
from segunc.maps.manifest import read_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from tests.maps.fakes import CLASSES, PALETTE, SCORES, manifest

NAMES = ("a/one", "b/two")


def maps(value: float = 0.25) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(int(value * 100))
    return {
        "prediction": generator.integers(0, 3, (6, 8)).astype(np.uint8),
        "entropy": generator.random((6, 8), np.float32) * value,
        "epistemic": generator.random((6, 8), np.float32) * value / 10,
        "deterministic-max-logit": -20 * generator.random((6, 8), np.float32),
    }


@pytest.fixture
def out(tmp_path: Path) -> Path:
    with MapsWriter(tmp_path / "maps", manifest()) as writer:
        for index, name in enumerate(NAMES):
            writer.write(name, maps(0.25 + index / 2))
    return tmp_path / "maps"


def test_files_are_what_the_contract_says(out: Path) -> None:
    expected = maps(0.25)
    assert cv2.imread(str(out / "prediction/a/one.png"), cv2.IMREAD_UNCHANGED).dtype == np.uint8
    codes = cv2.imread(str(out / "entropy/a/one.png"), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(codes, encode_unit(expected["entropy"]))
    assert np.load(out / "deterministic-max-logit/a/one.npy").dtype == np.float16
    first = json.loads((out / "frames.jsonl").read_text().splitlines()[0])
    assert (first["name"], first["size"]) == ("a/one", [6, 8])
    assert first["files"]["deterministic-max-logit"] == "deterministic-max-logit/a/one.npy"
    assert first["mean"]["epistemic"] == pytest.approx(expected["epistemic"].mean(), rel=1e-3)
    assert first["max"]["deterministic-max-logit"] == pytest.approx(expected["deterministic-max-logit"].max(), rel=1e-3)
    assert not list(out.rglob(".*"))
    reader = MapsReader(out)
    assert (reader.frames, reader.scores) == (list(NAMES), list(SCORES))
    np.testing.assert_array_equal(reader.prediction("a/one"), expected["prediction"])
    np.testing.assert_array_equal(reader.read_stored("a/one", "entropy"), codes)
    for score in SCORES:
        values = reader.read("b/two", score)
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, maps(0.75)[score], rtol=2e-3, atol=2e-5)
    with pytest.raises(InputError, match="no map 'deterministic-energy'"):
        reader.read("a/one", "deterministic-energy")


def test_manifest_records_units_ranges_and_status(tmp_path: Path) -> None:
    writer = MapsWriter(tmp_path, manifest())
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "running"
    writer.failed["c/three"] = "the JPEG is truncated"
    writer.close()
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["status"] == "finished"
    assert content["failed"] == [{"name": "c/three", "reason": "the JPEG is truncated"}]
    assert list(content["maps"]) == ["prediction", *SCORES]
    assert content["maps"]["epistemic"]["range"] == [0.0, 1.0]
    described = {"file": "npy", "dtype": "float16", "unit": "negative max logit", "range": None}
    assert content["maps"]["deterministic-max-logit"] == described
    assert content["environment"]["numpy"] == np.__version__
    assert content["classes"] == {"names": list(CLASSES), "palette": [list(colour) for colour in PALETTE]}


def test_encoded_scores_are_taken_as_they_are(tmp_path: Path) -> None:
    encoded = {
        "entropy": encode_unit(maps()["entropy"]),
        "deterministic-max-logit": maps()["deterministic-max-logit"].astype(np.float16),
    }
    with MapsWriter(tmp_path, manifest()) as writer:
        writer.write("x", maps() | encoded)
    for score, values in encoded.items():
        np.testing.assert_array_equal(MapsReader(tmp_path).read_stored("x", score), values)


def test_reader_does_not_see_a_frame_without_its_line(tmp_path: Path) -> None:
    with MapsWriter(tmp_path, manifest()) as writer:
        writer.write("a/one", maps())
        assert "status running, 1 frames so far" in (MapsReader(tmp_path).unfinished or "")
        writer.store("b/two", maps())
        writer.close("interrupted")
    reader = MapsReader(tmp_path)
    assert reader.frames == ["a/one"]
    assert "status interrupted" in (reader.unfinished or "")


@pytest.mark.parametrize(
    ("changed", "key"),
    [({"draws": 8}, "draws = 24 (now 8)"), ({"maps": ["entropy"]}, "maps"), ({"scope": "decoder"}, "scope = None")],
)
def test_other_settings_are_refused_by_name(out: Path, changed: dict[str, Any], key: str) -> None:
    before = (out / "frames.jsonl").read_bytes()
    with pytest.raises(InputError) as error:
        MapsWriter(out, manifest(**changed))
    assert key in str(error.value)
    assert "give another `out`, or `overwrite`" in str(error.value)
    assert (out / "frames.jsonl").read_bytes() == before


def test_overwrite_removes_our_maps(out: Path) -> None:
    """And what a killed run left without a line, but nothing else, see ``test_hostile.py``."""
    (out / "overlay.webm").write_bytes(b"old")
    (out / "entropy/.x.png.segunc-partial").write_bytes(b"")
    (out / "frames.jsonl").write_bytes((out / "frames.jsonl").read_bytes()[:-20])
    with MapsWriter(out, manifest(draws=8), overwrite=True) as writer:
        assert len(writer.lines) == 0
        assert sorted(path.name for path in out.iterdir()) == [".lock", "frames.jsonl", "manifest.json"]
        writer.write("new", maps())
    assert MapsReader(out).frames == ["new"]
    assert (read_manifest(out) or {})["run"] == manifest(draws=8)["run"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_foreign_folder_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(InputError, match=r"no manifest\.json"):
        MapsWriter(tmp_path, manifest(), overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    for path in (tmp_path / "thesis.tex", tmp_path / "thesis.tex" / "maps"):
        with pytest.raises(InputError, match="thesis"):
            MapsWriter(path, manifest())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"entropy": np.full((6, 8), np.nan, np.float32)}, "NaN"),
        ({"entropy": np.zeros((6, 7), np.float32)}, "map entropy of frame x"),
        ({"deterministic-max-logit": np.zeros((6, 8), np.uint16)}, "deterministic-max-logit is of type uint16"),
        ({"prediction": np.full((6, 8), 256)}, "class ids"),
        ({"surprise": np.zeros((6, 8), np.float32)}, "surprise"),
    ],
)
def test_unfit_maps_are_refused(tmp_path: Path, change: dict[str, np.ndarray], said: str) -> None:
    with MapsWriter(tmp_path, manifest()) as writer, pytest.raises(InputError, match=said):
        writer.write("x", maps() | change)
    assert (tmp_path / "frames.jsonl").read_bytes() == b""
