"""Exports hold the decoded scores in the benchmark's type, never mix two sources, and survive bad frames and kills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from segunc.core.errors import InputError
from segunc.core.files import partial_of
from segunc.exchange.export import FORMATS, ExportResult, export_maps, narrow
from segunc.maps.encoding import score_keys
from segunc.maps.reader import MapsReader
from segunc.maps.score_files import read_score_file
from segunc.maps.store import MapsWriter
from segunc.maps.sums import file_sum
from tests.maps.fakes import CLASSES, edit_log, edit_manifest, manifest
from tests.maps.foreign import write_map

NAMES = ("a/one", "b/two_leftImg8bit")


def ours(out: Path, names: tuple[str, ...] = NAMES, **run: int) -> Path:
    with MapsWriter(out, manifest(**run)) as writer:
        for seed, name in enumerate(names):
            generator = np.random.default_rng(seed)
            unit = generator.random((2, 6, 8), np.float32)
            logits = -20 * generator.random((6, 8), np.float32)
            ids = generator.integers(0, len(CLASSES), (6, 8), np.uint8)
            maps = {"prediction": ids, "entropy": unit[0], "epistemic": unit[1], "deterministic-max-logit": logits}
            writer.write(name, maps)
    return out


def smiyc(maps: Path, out: Path, score: str = "entropy") -> ExportResult:
    return export_maps(maps, out, score, "smiyc", method="Mine", dataset="AnomalyTrack-all")


def sums_of(maps: Path, record: dict[str, Any]) -> dict[str, Any]:
    return {score: file_sum((maps / file).read_bytes()) for score, file in record["files"].items()}


@pytest.mark.parametrize("score", ["entropy", "deterministic-max-logit"])
def test_smiyc_files_are_what_the_benchmark_reads(tmp_path: Path, score: str) -> None:
    maps = ours(tmp_path / "maps")
    summary = smiyc(maps, tmp_path / "out", score)
    assert (summary.written, summary.total, summary.failed, summary.notes) == (2, 2, {}, [])
    folder = tmp_path / "out" / "anomaly_p" / "Mine" / "AnomalyTrack-all"
    assert summary.folder == folder
    assert sorted(path.name for path in folder.iterdir()) == ["one.hdf5", "two.hdf5"]
    for name, file in zip(NAMES, ("one", "two"), strict=True):
        with h5py.File(folder / f"{file}.hdf5", "r") as content:
            assert list(content) == ["value"]
            value = content["value"]
            assert (value.dtype, value.shape, value.compression) == (np.float16, (6, 8), "gzip")
            np.testing.assert_array_equal(value[:], MapsReader(maps).read(name, score).astype(np.float16))


BOARD = (
    "0003_frankfurt_000001_034047_rgb",
    "sub/0012_04_Maurener_Weg_8_000000_000030_rgb",
)  # as Fishyscapes names its images
TRAIN_IDS = np.array([0, 13, 10])  # road, car and sky among the classes of Cityscapes


def test_fishyscapes_files_are_a_score_and_train_ids_under_the_number_of_their_image(tmp_path: Path) -> None:
    maps, out = ours(tmp_path / "maps", BOARD), tmp_path / "out"
    summary = export_maps(maps, out, "entropy", "fishyscapes")
    assert (summary.folder, summary.written, summary.notes) == (out, 2, [])
    names = [f"{number}_{kind}.npy" for number in ("0003", "0012") for kind in ("anomaly", "segmentation")]
    assert sorted(path.name for path in out.iterdir()) == [*names, "export.json"]
    reader = MapsReader(maps)
    for frame, number in zip(BOARD, ("0003", "0012"), strict=True):
        values = np.load(out / f"{number}_anomaly.npy", allow_pickle=False)
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, reader.read(frame, "entropy"))
        ids = np.load(out / f"{number}_segmentation.npy", allow_pickle=False)
        assert (ids.dtype, ids.shape) == (np.int32, values.shape)
        np.testing.assert_array_equal(ids, TRAIN_IDS[reader.prediction(frame)])
    # The same frames without the ids are another export.
    with pytest.raises(InputError, match=r"segmentation = True \(now None\)"):
        export_maps(maps, out, "entropy", "fishyscapes", anomaly_only=True)


def test_classes_that_the_board_does_not_know_are_refused_or_left_out(tmp_path: Path) -> None:
    maps = ours(tmp_path / "maps")
    edit_manifest(maps, lambda content: content["classes"]["names"].__setitem__(1, "cone"))
    with pytest.raises(InputError, match=r"class 'cone' of the maps is none of Cityscapes.*`anomaly_only` leaves"):
        export_maps(maps, tmp_path / "out", "entropy", "fishyscapes")
    assert not (tmp_path / "out").exists()
    (note,) = export_maps(maps, tmp_path / "out", "entropy", "fishyscapes", anomaly_only=True).notes
    assert note.startswith("2 frames have no number, one for instance")
    assert sorted(path.name for path in (tmp_path / "out").glob("*.npy")) == [
        "one_anomaly.npy",
        "two_leftImg8bit_anomaly.npy",
    ]


def test_predictions_that_do_not_fit_fail_alone_and_missing_ones_are_refused(tmp_path: Path) -> None:
    maps = ours(tmp_path / "maps", tuple("1234"))
    write_map(maps / "prediction" / "2.png", np.full((6, 8), 19, np.uint8))
    write_map(maps / "prediction" / "3.png", np.zeros((1, 3), np.uint8))
    (maps / "prediction" / "4.png").unlink()
    edit_log(maps, lambda record: record.update(sums=sums_of(maps, record)), slice(1, 3))
    summary = export_maps(maps, tmp_path / "out", "entropy", "fishyscapes")
    assert (summary.written, list(summary.failed)) == (1, ["2", "3", "4"])
    assert "holds class 19 of only 3" in summary.failed["2"]
    assert "are (1, 3) and (6, 8)" in summary.failed["3"]
    assert not (tmp_path / "out" / "2_anomaly.npy").exists()
    write_map(tmp_path / "scores" / "s" / "0001.npy", np.zeros((1, 2)))
    with pytest.raises(InputError, match=r"holds no predictions.*`anomaly_only` leaves"):
        export_maps(tmp_path / "scores", tmp_path / "new", "s", "fishyscapes")
    write_map(tmp_path / "scores" / "prediction" / "0001.png", np.zeros((1, 2), np.uint8))
    with pytest.raises(InputError, match="do not name the classes"):
        export_maps(tmp_path / "scores", tmp_path / "new", "s", "fishyscapes")


def test_an_export_is_read_back_as_a_foreign_folder(tmp_path: Path) -> None:
    maps = ours(tmp_path / "maps")
    smiyc(maps, tmp_path / "out", "deterministic-max-logit")
    back = MapsReader(tmp_path / "out")
    assert back.scores == ["Mine"]
    keys = score_keys(MapsReader(maps).read_stored("a/one", "deterministic-max-logit"))
    np.testing.assert_array_equal(score_keys(back.read_stored("one", "Mine")), keys)


@settings(max_examples=30, deadline=None)
@given(
    arrays.arrays(np.float32, arrays.array_shapes(min_dims=2, max_dims=2), elements=st.floats(-65504, 65504, width=32))
)
def test_encoding_rounds_and_does_nothing_else(tmp_path_factory: pytest.TempPathFactory, values: np.ndarray) -> None:
    for target in FORMATS.values():
        path = tmp_path_factory.mktemp("map") / f"map{target.ending}"
        path.write_bytes(target.encode(narrow(values, target.dtype)))
        np.testing.assert_array_equal(read_score_file(path), values.astype(target.dtype))
        assert target.encode(narrow(values, target.dtype)) == path.read_bytes()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.nan, "NaN or infinite"),
        (-np.inf, "NaN or infinite"),
        (65505.0, "the value 65505, beyond the 65504 of float16"),
        (-70000.0, "the value 70000, beyond"),
    ],
)
def test_what_float16_cannot_hold_is_refused(value: float, said: str) -> None:
    values = np.zeros((2, 3), np.float32)
    values[1, 2] = value
    with pytest.raises(InputError, match=said):
        narrow(values, np.float16)
    if np.isfinite(value):
        np.testing.assert_array_equal(narrow(values, np.float32), values)
    with pytest.raises(InputError, match="of float32"):
        narrow(np.full((1, 1), 1e39), np.float32)


def test_bad_frames_are_named_and_the_others_written(tmp_path: Path) -> None:
    values = np.linspace(0, 1, 12).reshape(3, 4)
    for name in ("good", "huge", "torn"):
        write_map(tmp_path / "maps" / "s" / f"{name}.npy", values * (1e6 if name == "huge" else 1))
    (tmp_path / "maps" / "s" / "torn.npy").write_bytes(b"\x93NUMPY")
    summary = smiyc(tmp_path / "maps", tmp_path / "out", "s")
    assert summary.written == 1
    assert set(summary.failed) == {"huge", "torn"}
    assert "first huge (the map holds the value 1e+06" in summary.failure
    (entry,) = json.loads((tmp_path / "out" / "export.json").read_text())["exports"].values()
    assert entry["status"] == "finished"
    assert [frame["name"] for frame in entry["failed"]] == ["huge", "torn"]
    # Repaired, the same command completes the folder.
    for name in ("huge", "torn"):
        write_map(tmp_path / "maps" / "s" / f"{name}.npy", values)
    assert smiyc(tmp_path / "maps", tmp_path / "out", "s").written == 3
    write_map(tmp_path / "bad" / "s" / "a.npy", np.full((2, 2), np.nan))
    with pytest.raises(InputError, match="none of 1 frames"):
        smiyc(tmp_path / "bad", tmp_path / "none", "s")


def test_the_same_export_again_gives_the_same_bytes(tmp_path: Path) -> None:
    maps = ours(tmp_path / "maps")
    smiyc(maps, tmp_path / "out")
    files = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.hdf5")}
    # As a kill leaves it: one file missing, another half-written beside its name.
    first = min(files)
    first.unlink()
    partial_of(first).write_bytes(b"half")
    smiyc(maps, tmp_path / "out")
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.hdf5")} == files
    assert [path.name for path in first.parent.iterdir() if path.name.startswith(".")] == []


def test_two_sources_are_never_mixed(tmp_path: Path) -> None:
    maps, other = ours(tmp_path / "maps"), ours(tmp_path / "other", seed=1)
    folder = smiyc(maps, tmp_path / "out").folder
    with pytest.raises(InputError, match=r"was written with score = 'entropy' \(now 'epistemic'\)"):
        smiyc(maps, tmp_path / "out", "epistemic")
    with pytest.raises(InputError, match=r"source\.run\.seed = 0 \(now 1\)"):
        smiyc(other, tmp_path / "out")
    moved = maps.rename(tmp_path / "moved")
    assert smiyc(moved, tmp_path / "out").written == 2
    (folder / "three.hdf5").write_bytes(b"somebody's")
    with pytest.raises(InputError, match=r"three\.hdf5, which is no file of this export"):
        smiyc(moved, tmp_path / "out")
    (tmp_path / "out" / "export.json").unlink()
    with pytest.raises(InputError, match=r"one\.hdf5, which is no file of this export"):
        smiyc(moved, tmp_path / "out")


def test_other_methods_share_a_folder_and_a_record(tmp_path: Path) -> None:
    maps = ours(tmp_path / "maps")
    for method, score in (("A", "entropy"), ("B", "epistemic")):
        export_maps(maps, tmp_path / "out", score, "smiyc", method=method, dataset="D")
    exports = json.loads((tmp_path / "out" / "export.json").read_text())["exports"]
    scores = {place: entry["settings"]["score"] for place, entry in exports.items()}
    assert scores == {"anomaly_p/A/D": "entropy", "anomaly_p/B/D": "epistemic"}
    assert MapsReader(tmp_path / "out").scores == ["A", "B"]


def test_frames_that_would_share_a_file_are_both_named(tmp_path: Path) -> None:
    for name in ("a/1", "b/1"):
        write_map(tmp_path / "maps" / "s" / f"{name}.npy", np.zeros((2, 2)))
    with pytest.raises(InputError, match="lies inside"):
        smiyc(tmp_path / "maps", tmp_path / "maps" / "out", "s")
    with pytest.raises(InputError, match=r"frames a/1 and b/1 would both be 1\.hdf5"):
        smiyc(tmp_path / "maps", tmp_path / "out", "s")
    for name in ("0001_a", "0001_b"):
        write_map(tmp_path / "numbers" / "s" / f"{name}.npy", np.zeros((2, 2)))
    with pytest.raises(InputError, match=r"0001_a and 0001_b would both be 0001_anomaly\.npy"):
        export_maps(tmp_path / "numbers", tmp_path / "out", "s", "fishyscapes", anomaly_only=True)
    assert not (tmp_path / "out").exists()


def test_an_unfinished_run_is_said(tmp_path: Path) -> None:
    maps = ours(tmp_path / "ours")
    edit_manifest(maps, lambda content: content.update(status="running"))
    (note,) = smiyc(maps, tmp_path / "half").notes
    assert "status running, 2 frames so far" in note


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"score": "prediction"}, "'prediction' has no maps"),
        ({"method": ""}, "smiyc needs `method`"),
        ({"method": "../mine"}, "can be no folder"),
        ({"dataset": ".hidden"}, "can be no folder"),
    ],
)
def test_bad_calls_are_refused(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    call = {"score": "entropy", "to": "smiyc", "method": "Mine", "dataset": "Set"} | changes
    with pytest.raises(InputError, match=said):
        export_maps(ours(tmp_path / "maps"), tmp_path / "out", **call)
    assert not (tmp_path / "out").exists()
