"""Folders of other tools, and how the manifest alone decides what 16-bit numbers mean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segunc.core.errors import InputError
from segunc.maps.encoding import decode_unit, encode_unit
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from tests.maps.fakes import manifest
from tests.maps.foreign import write_map

VALUES = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
CODES = encode_unit(VALUES)
FLAT, PICTURE = np.zeros((3, 4), np.float32), np.zeros((3, 4, 3), np.uint8)
OURS = {"prediction": CODES // 65535, "entropy": VALUES, "epistemic": FLAT, "deterministic-max-logit": FLAT}


def written(folder: Path, *places: str, values: np.ndarray = VALUES) -> Path:
    for place in places:
        write_map(folder / place, values)
    return folder


def test_score_folders_with_nested_frames_and_mixed_kinds(tmp_path: Path) -> None:
    reader = MapsReader(written(tmp_path, "energy/a/1.npy", "energy/a/2.h5", "void/a/1.tif"))
    assert (reader.scores, reader.frames) == (["energy", "void"], ["a/1", "a/2"])
    assert [reader.has("a/2", score) for score in reader.scores] == [True, False]
    assert (reader.manifest, reader.unfinished) == (None, None)
    for name, score in (("a/1", "energy"), ("a/2", "energy"), ("a/1", "void")):
        np.testing.assert_array_equal(reader.read(name, score), VALUES)
    # Whole numbers without a range of their own are values.
    for kept in (np.float64, np.uint8, np.uint16, np.float16, np.int16, np.int64, np.uint32, np.bool_):
        write_map(tmp_path / "void/a/2.npy", np.array([[0, 1]], kept))
        stored = MapsReader(tmp_path).read_stored("a/2", "void")
        assert stored.dtype == (np.float64 if kept in (np.int16, np.int64, np.uint32, np.bool_) else kept)
        np.testing.assert_array_equal(stored, [[0, 1]])


@pytest.mark.parametrize("level", [".", "anomaly_p"])
def test_the_benchmark_layout(tmp_path: Path, level: str) -> None:
    values = VALUES.astype(np.float16)
    written(tmp_path / "anomaly_p", "A/One/f.hdf5", "B/One/f.hdf5", "B/Two/f.hdf5", values=values)
    reader = MapsReader(tmp_path / level)
    assert (reader.scores, reader.frames) == (["A", "B"], ["One/f", "Two/f"])
    assert not reader.has("Two/f", "A")
    np.testing.assert_array_equal(reader.read_stored("Two/f", "B"), values)


def test_class_ids_alone_are_enough_and_palettes_are_indices(tmp_path: Path) -> None:
    ids = {"a.png": np.array([[0, 255]], np.uint8), "b.npy": np.array([[3, 18]], np.int64)}
    for name, values in ids.items():
        write_map(tmp_path / "prediction" / name, values)
    reader = MapsReader(tmp_path)
    assert (reader.scores, reader.frames) == ([], ["a", "b"])
    for name, values in zip(reader.frames, ids.values(), strict=True):
        assert reader.prediction(name).dtype == np.uint8
        np.testing.assert_array_equal(reader.prediction(name), values)
    indices = np.array([[2, 0, 1], [0, 1, 2]], np.uint8)
    palette = Image.fromarray(indices, "P")
    palette.putpalette([128, 64, 128, 244, 35, 232, 70, 70, 70])
    palette.save(tmp_path / "prediction/a.png")
    np.testing.assert_array_equal(reader.prediction("a"), indices)
    palette.convert("RGB").save(tmp_path / "prediction/a.png")
    with pytest.raises(InputError, match=r"a.png has the shape \(2, 3, 3\)"):
        reader.prediction("a")
    write_map(tmp_path / "prediction/a.png", np.dstack([ids["a.png"]] * 3))
    np.testing.assert_array_equal(reader.prediction("a"), ids["a.png"])
    for unfit in (np.array([[0, 256]]), np.array([[-1, 2]]), np.array([[0.0, 1.0]])):
        write_map(tmp_path / "prediction/b.npy", unfit)
        with pytest.raises(InputError, match="prediction of frame b"):
            reader.prediction("b")


def test_the_name_of_a_score_does_not_make_codes_of_ours(tmp_path: Path) -> None:
    write_map(tmp_path / "theirs/entropy/1.png", CODES)
    (tmp_path / "theirs/manifest.json").write_text('{"name": "a web page"}')  # of another tool
    theirs = MapsReader(tmp_path / "theirs")
    assert (theirs.manifest, theirs.form("entropy")) == (None, "linear")
    np.testing.assert_allclose(theirs.read("1", "entropy"), CODES / 65535, rtol=1e-6)
    with MapsWriter(tmp_path / "ours", manifest()) as writer:
        writer.write("1", OURS)
    ours = MapsReader(tmp_path / "ours")
    forms = [ours.form(score) for score in ("entropy", "deterministic-max-logit", "unknown")]
    assert forms == ["unit-code", "linear", "linear"]
    np.testing.assert_array_equal(ours.read("1", "entropy"), decode_unit(CODES))
    np.testing.assert_array_equal(ours.read_stored("1", "entropy"), theirs.read_stored("1", "entropy"))


def test_pictures_and_labels_beside_the_scores_are_no_scores(tmp_path: Path) -> None:
    written(tmp_path, "images/1.png", "labels/1.png", values=PICTURE)
    with pytest.raises(InputError, match=r"holds no finished map: no file SCORE/FRAME of .*\.hdf5"):
        MapsReader(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        MapsReader(tmp_path / "nowhere")
    written(tmp_path, "entropy/1.png", values=PICTURE)
    reader = MapsReader(written(tmp_path, "entropy/2.png", "overlay/1.png", values=CODES))
    assert (reader.scores, reader.frames) == (["entropy"], ["1", "2"])
    with pytest.raises(InputError, match=r"entropy/1.png has the shape \(3, 4, 3\)"):
        reader.read("1", "entropy")


def test_two_files_of_one_frame_are_both_named_and_hidden_files_none(tmp_path: Path) -> None:
    """A Mac decomposes accents and lays a hidden file beside each of its own on a foreign disk."""
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    written(tmp_path, f"a/{composed}.npy", f"b/{decomposed}.npy", f"a/._{composed}.npy", "a/.cache/x.npy")
    reader = MapsReader(tmp_path)
    assert (reader.frames, reader.has(composed, "b")) == ([composed], True)
    for second in (f"{decomposed}.npy", f"{composed}.tif"):
        with pytest.raises(InputError, match=r"a/caf.*and .*a/caf.* are both frame 'caf"):
            MapsReader(written(tmp_path, f"a/{second}"))
        (tmp_path / "a" / second).unlink()


def test_manifests_of_another_version_or_damaged_are_one_line(tmp_path: Path) -> None:
    with MapsWriter(tmp_path, manifest()) as writer:
        writer.write("1", OURS)
    path = tmp_path / "manifest.json"
    whole = path.read_text()
    other = whole.replace('"format_version": 2', '"format_version": 3')
    for text, said in (
        (other, "is of format version 3, not 2"),
        (other[:-30], "is not valid JSON"),
        (whole.replace('"sha256"', '"sha257"'), "was changed since it was written"),
        (whole.replace("(code / 65535)^2", "(code / 65534)^2"), "was changed since it was written"),
    ):
        assert text != whole
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            MapsReader(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"holds frames\.jsonl but no manifest\.json"):
        MapsReader(tmp_path)


def test_maps_are_read_without_torch() -> None:
    rooms = "store, reader, statistics, pipeline"
    code = f"import sys; from segunc.maps import {rooms}; sys.exit('torch' in sys.modules or 'filelock' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
