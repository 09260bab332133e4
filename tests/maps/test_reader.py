"""Folders of other tools in every layout, and how the manifest alone decides what 16-bit numbers mean."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.maps.encoding import decode_unit, encode_unit
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from tests.maps.fakes import manifest
from tests.maps.foreign import write_map

VALUES = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
CODES = encode_unit(VALUES)
FLAT = np.zeros((3, 4), np.float32)
OURS = {"prediction": CODES // 65535, "entropy": VALUES, "epistemic": FLAT, "max-logit": FLAT}


def test_score_folders_with_nested_frames_and_mixed_kinds(tmp_path: Path) -> None:
    write_map(tmp_path / "energy" / "a" / "1.npy", VALUES)
    write_map(tmp_path / "energy" / "a" / "2.h5", VALUES)
    write_map(tmp_path / "void" / "a" / "1.tif", VALUES)
    reader = MapsReader(tmp_path)
    assert reader.scores == ["energy", "void"]
    assert reader.frames == ["a/1", "a/2"]
    assert reader.missing("void") == ["a/2"]
    assert reader.missing("energy") == []
    assert (reader.manifest, reader.unfinished, reader.skipped) == (None, None, {})
    for name, score in (("a/1", "energy"), ("a/2", "energy"), ("a/1", "void")):
        np.testing.assert_array_equal(reader.read(name, score), VALUES)


def test_wide_floats_stay_wide(tmp_path: Path) -> None:
    write_map(tmp_path / "s" / "1.npy", VALUES.astype(np.float64) / 3)
    assert MapsReader(tmp_path).read_stored("1", "s").dtype == np.float64


@pytest.mark.parametrize("level", [".", "anomaly_p", "anomaly_p/Mine", "anomaly_p/Mine/Set-all"])
def test_the_benchmark_layout_from_any_level(tmp_path: Path, level: str) -> None:
    for name in ("x0", "x1"):
        write_map(tmp_path / "anomaly_p" / "Mine" / "Set-all" / f"{name}.hdf5", VALUES.astype(np.float16))
    reader = MapsReader(tmp_path / level)
    assert reader.scores == ["Mine"]
    assert reader.frames == ["x0", "x1"]
    np.testing.assert_array_equal(reader.read_stored("x1", "Mine"), VALUES.astype(np.float16))


def test_several_methods_are_scores_and_several_data_sets_are_in_the_names(tmp_path: Path) -> None:
    for place in ("A/One/f.hdf5", "B/One/f.hdf5", "B/Two/f.hdf5"):
        write_map(tmp_path / "anomaly_p" / place, VALUES)
    reader = MapsReader(tmp_path)
    assert reader.scores == ["A", "B"]
    assert reader.frames == ["One/f", "Two/f"]
    assert reader.missing("A") == ["Two/f"]
    (tmp_path / "anomaly_p" / "B" / "Two" / "f.hdf5").unlink()
    assert MapsReader(tmp_path).frames == ["f"]


def test_a_flat_folder_is_one_score_named_by_the_folder(tmp_path: Path) -> None:
    write_map(tmp_path / "my-entropy" / "b.npy", VALUES)
    write_map(tmp_path / "my-entropy" / "a.png", CODES)
    reader = MapsReader(tmp_path / "my-entropy")
    assert (reader.scores, reader.frames) == (["my-entropy"], ["a", "b"])


def test_a_flat_fishyscapes_folder_loses_its_ending(tmp_path: Path) -> None:
    write_map(tmp_path / "out" / "0003_x_rgb_anomaly.npy", VALUES)
    write_map(tmp_path / "out" / "0003_x_rgb_segmentation.npy", VALUES)
    assert MapsReader(tmp_path / "out").frames == ["0003_x_rgb"]


def test_class_ids_alone_are_enough(tmp_path: Path) -> None:
    write_map(tmp_path / "prediction" / "a.png", np.array([[0, 255]], np.uint8))
    write_map(tmp_path / "prediction" / "b.npy", np.array([[3, 18]], np.int64))
    reader = MapsReader(tmp_path)
    assert (reader.scores, reader.frames) == ([], ["a", "b"])
    np.testing.assert_array_equal(reader.prediction("a"), [[0, 255]])
    assert reader.prediction("b").dtype == np.uint8
    np.testing.assert_array_equal(reader.prediction("b"), [[3, 18]])


@pytest.mark.parametrize("ids", [np.array([[0, 256]]), np.array([[-1, 2]]), np.array([[0.0, 1.0]])])
def test_class_ids_out_of_range_are_refused(tmp_path: Path, ids: np.ndarray) -> None:
    write_map(tmp_path / "prediction" / "a.npy", ids)
    with pytest.raises(InputError, match=r"prediction of frame a .* class ids 0\.\.255"):
        MapsReader(tmp_path).prediction("a")


def test_the_name_of_a_score_does_not_make_codes_of_ours(tmp_path: Path) -> None:
    write_map(tmp_path / "theirs" / "entropy" / "1.png", CODES)
    theirs = MapsReader(tmp_path / "theirs")
    assert theirs.form("entropy") == "linear"
    np.testing.assert_allclose(theirs.read("1", "entropy"), CODES / 65535, rtol=1e-6)
    with MapsWriter(tmp_path / "ours", manifest()) as writer:
        writer.write("1", OURS)
    ours = MapsReader(tmp_path / "ours")
    assert (ours.form("entropy"), ours.form("max-logit"), ours.form("unknown")) == ("unit-code", "linear", "linear")
    np.testing.assert_array_equal(ours.read("1", "entropy"), decode_unit(CODES))
    np.testing.assert_array_equal(ours.read_stored("1", "entropy"), theirs.read_stored("1", "entropy"))


def test_pictures_and_labels_beside_the_scores_are_no_scores(tmp_path: Path) -> None:
    write_map(tmp_path / "entropy" / "1.png", CODES)
    write_map(tmp_path / "heat" / "1.png", np.zeros((3, 4, 3), np.uint8))
    for name in ("images", "overlay", "labels"):
        write_map(tmp_path / name / "1.png", np.zeros((3, 4), np.uint8))
    (tmp_path / "notes").mkdir()
    reader = MapsReader(tmp_path)
    assert reader.scores == ["entropy"]
    assert set(reader.skipped) == {"heat", "images", "overlay", "labels"}
    assert reader.skipped["heat"] == "it holds colour pictures"


def test_one_colour_picture_does_not_hide_a_score(tmp_path: Path) -> None:
    write_map(tmp_path / "entropy" / "1.png", np.zeros((3, 4, 3), np.uint8))
    write_map(tmp_path / "entropy" / "2.png", CODES)
    reader = MapsReader(tmp_path)
    assert reader.frames == ["1", "2"]
    with pytest.raises(InputError, match=r"entropy/1.png has the shape \(3, 4, 3\)"):
        reader.read("1", "entropy")


def test_pictures_alone_are_refused_with_the_reason(tmp_path: Path) -> None:
    write_map(tmp_path / "heat" / "1.png", np.zeros((3, 4, 3), np.uint8))
    for folder in (tmp_path, tmp_path / "heat"):
        with pytest.raises(InputError, match="holds no finished map; heat: it holds colour pictures"):
            MapsReader(folder)


@pytest.mark.parametrize("flat", [False, True])
def test_two_files_of_one_frame_are_both_named(tmp_path: Path, flat: bool) -> None:
    folder = tmp_path if flat else tmp_path / "s"
    write_map(folder / "a.png", CODES)
    write_map(folder / "a.npy", VALUES)
    with pytest.raises(InputError, match=r"a\.npy and .*a\.png are both frame 'a'"):
        MapsReader(tmp_path)


def test_a_damaged_file_fails_its_frame_only(tmp_path: Path) -> None:
    broken = write_map(tmp_path / "s" / "a.hdf5", VALUES)
    write_map(tmp_path / "s" / "b.hdf5", VALUES)
    broken.write_bytes(broken.read_bytes()[:-40])
    reader = MapsReader(tmp_path)
    with pytest.raises(InputError, match=r"s/a\.hdf5 cannot be read \(.*truncated"):
        reader.read_stored("a", "s")
    np.testing.assert_array_equal(reader.read("b", "s"), VALUES)


def test_a_run_under_way_is_visible(tmp_path: Path) -> None:
    writer = MapsWriter(tmp_path, manifest())
    writer.write("1", OURS)
    assert "status running, 1 frames so far" in (MapsReader(tmp_path).unfinished or "")
    writer.close("interrupted")
    assert "status interrupted" in (MapsReader(tmp_path).unfinished or "")
    MapsWriter(tmp_path, manifest()).close()
    assert MapsReader(tmp_path).unfinished is None


def test_manifests_of_another_version_or_damaged_are_one_line(tmp_path: Path) -> None:
    with MapsWriter(tmp_path, manifest()) as writer:
        writer.write("1", OURS)
    path = tmp_path / "manifest.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"format_version": 2}))
    with pytest.raises(InputError, match="is of format version 2; expected version 1"):
        MapsReader(tmp_path)
    path.write_text(path.read_text()[:-30])
    with pytest.raises(InputError, match="is no JSON"):
        MapsReader(tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=r"holds frames\.jsonl but no manifest\.json"):
        MapsReader(tmp_path)


def test_a_manifest_of_another_tool_is_ignored(tmp_path: Path) -> None:
    write_map(tmp_path / "s" / "1.png", CODES)
    (tmp_path / "manifest.json").write_text('{"name": "a web page"}')
    reader = MapsReader(tmp_path)
    assert reader.manifest is None
    assert reader.form("s") == "linear"
    (tmp_path / "manifest.json").write_text("{torn")
    with pytest.raises(InputError, match="is no JSON"):
        MapsReader(tmp_path)


def test_an_empty_folder_says_what_would_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no finished map; expected files SCORE/FRAME or FRAME .*\.hdf5"):
        MapsReader(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        MapsReader(tmp_path / "nowhere")


def test_maps_are_read_without_torch() -> None:
    rooms = "store, reader, statistics, pipeline"
    code = f"import sys; from segunc.maps import {rooms}; sys.exit('torch' in sys.modules or 'filelock' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
