"""Benchmark files: what the benchmarks read, rounding, refusals, and that runs are never mixed."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from segunc.core.errors import InputError
from segunc.core.files import partial_of
from segunc.exchange import ExportResult, export_maps
from segunc.maps.encoding import score_keys
from segunc.maps.reader import MapsReader
from segunc.maps.shards import file_sum
from segunc.maps.store import MapsWriter
from tests.maps.fakes import CLASSES, edit_log, edit_manifest, manifest
from tests.maps.foreign import write_map

NAMES = ("a/one", "b/two_leftImg8bit")
BOARD = ("0003_frankfurt_000001_034047_rgb", "sub/0012_04_Maurener_Weg_8_000000_000030_rgb")  # of Fishyscapes
TRAIN_IDS = np.array([0, 13, 10])  # road, car and sky among the classes of Cityscapes
KINDS = {"prediction": "png", "entropy": "png", "epistemic": "png", "deterministic-max-logit": "npy"}


def ours(out: Path, names: tuple[str, ...] = NAMES, **run: int) -> Path:
    with MapsWriter(out, manifest(**run)) as writer:
        for seed, name in enumerate(names):
            generator = np.random.default_rng(seed)
            unit, other, logits = generator.random((3, 6, 8), np.float32)
            ids = generator.integers(0, len(CLASSES), (6, 8), np.uint8)
            writer.write(name, dict(zip(KINDS, (ids, unit, other, -20 * logits), strict=True)))
    return out


def smiyc(maps: Path, out: Path, score: str = "entropy") -> ExportResult:
    return export_maps(maps, out, score, "smiyc", method="Mine", dataset="AnomalyTrack-all")


@pytest.mark.parametrize("score", ["entropy", "deterministic-max-logit"])
def test_smiyc_files_are_what_the_benchmark_and_this_tool_read(tmp_path: Path, score: str) -> None:
    maps, out = ours(tmp_path / "maps"), tmp_path / "out"
    summary = smiyc(maps, out, score)
    assert (summary.written, summary.total, summary.failed, summary.notes) == (2, 2, {}, [])
    folder = out / "anomaly_p" / "Mine" / "AnomalyTrack-all"
    assert summary.folder == folder
    assert sorted(path.name for path in folder.iterdir()) == ["one.hdf5", "two.hdf5"]
    back = MapsReader(out)
    assert back.scores == ["Mine"]
    for name, file in zip(NAMES, ("one", "two"), strict=True):
        with h5py.File(folder / f"{file}.hdf5", "r") as content:
            assert list(content) == ["value"]
            value = content["value"]
            assert (value.dtype, value.shape, value.compression) == (np.float16, (6, 8), "gzip")
            np.testing.assert_array_equal(value[:], MapsReader(maps).read(name, score).astype(np.float16))
        if score == "deterministic-max-logit":
            keys = score_keys(MapsReader(maps).read_stored(name, score))
            np.testing.assert_array_equal(score_keys(back.read_stored(f"AnomalyTrack-all/{file}", "Mine")), keys)


def test_fishyscapes_files_are_a_score_and_train_ids_under_the_number_of_their_image(tmp_path: Path) -> None:
    maps, out = ours(tmp_path / "maps", BOARD), tmp_path / "out"
    edit_manifest(maps, lambda content: content.update(status="running"))
    summary = export_maps(maps, out, "entropy", "fishyscapes")
    assert (summary.folder, summary.written) == (out, 2)
    assert "status running, 2 frames so far" in summary.notes[0]
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
    maps, out = ours(tmp_path / "maps"), tmp_path / "out"
    edit_manifest(maps, lambda content: content["classes"]["names"].__setitem__(1, "cone"))
    write_map(tmp_path / "theirs/entropy/0001.npy", np.zeros((1, 2)))
    for folder, name in ((maps, "cone"), (tmp_path / "theirs", "without a name")):
        with pytest.raises(InputError, match=rf"class '{name}' is none of Cityscapes.*`anomaly_only`"):
            export_maps(folder, out, "entropy", "fishyscapes")
    assert not out.exists()
    (note,) = export_maps(maps, out, "entropy", "fishyscapes", anomaly_only=True).notes
    assert note.startswith("2 frames have no number, first one")
    assert sorted(path.name for path in out.glob("*.npy")) == ["one_anomaly.npy", "two_leftImg8bit_anomaly.npy"]


def test_predictions_that_do_not_fit_fail_alone(tmp_path: Path) -> None:
    maps = ours(tmp_path / "maps", tuple("123"))
    write_map(maps / "prediction" / "2.png", np.full((6, 8), 19, np.uint8))
    sums = {score: file_sum((maps / score / f"2.{kind}").read_bytes()) for score, kind in KINDS.items()}
    edit_log(maps, lambda record: record.update(sums=sums), slice(1, 2))
    (maps / "prediction" / "3.png").unlink()
    summary = export_maps(maps, tmp_path / "out", "entropy", "fishyscapes")
    assert (summary.written, list(summary.failed)) == (1, ["2", "3"])
    assert "(6, 8) with ids up to 19 does not fit" in summary.failed["2"]
    assert not (tmp_path / "out" / "2_anomaly.npy").exists()


@pytest.mark.parametrize("value", [np.nan, -np.inf, 65520.0, -70000.0])
def test_bad_frames_are_named_and_the_others_written(tmp_path: Path, value: float) -> None:
    values = np.linspace(-3, 65504, 12).reshape(3, 4)
    maps, out = tmp_path / "maps", tmp_path / "out"
    for name in ("good", "huge", "torn"):
        write_map(maps / "s" / f"{name}.npy", np.where(values > 60000, value if name == "huge" else values, values))
    (maps / "s" / "torn.npy").write_bytes(b"\x93NUMPY")
    summary = smiyc(maps, out, "s")
    assert summary.written == 1
    assert set(summary.failed) == {"huge", "torn"}
    assert "first huge (the map holds NaN, or values beyond those of float16" in summary.failure
    (entry,) = json.loads((out / "export.json").read_text())["exports"].values()
    assert (entry["status"], list(entry["failed"])) == ("finished", ["huge", "torn"])
    with h5py.File(summary.folder / "good.hdf5", "r") as content:
        np.testing.assert_array_equal(content["value"][:], values.astype(np.float16))
    if np.isfinite(value):  # float32 holds it
        numbers = export_maps(maps, tmp_path / "board", "s", "fishyscapes", anomaly_only=True)
        assert list(numbers.failed) == ["torn"]
    # Repaired, the same command completes the folder.
    for name in ("huge", "torn"):
        write_map(maps / "s" / f"{name}.npy", values)
    assert smiyc(maps, out, "s").written == 3
    write_map(tmp_path / "bad" / "s" / "a.npy", np.full((2, 2), np.nan))
    with pytest.raises(InputError, match="1 of 1 frames could not be exported"):
        smiyc(tmp_path / "bad", tmp_path / "none", "s")


def test_the_same_export_again_gives_the_same_bytes(tmp_path: Path) -> None:
    maps = ours(tmp_path / "maps")
    folder = smiyc(maps, tmp_path / "out").folder
    files = {path: path.read_bytes() for path in folder.iterdir()}
    # As a kill leaves it: one file missing, another half-written beside its name.
    (folder / "one.hdf5").unlink()
    partial_of(folder / "one.hdf5").write_bytes(b"half")
    smiyc(maps, tmp_path / "out")
    assert {path: path.read_bytes() for path in folder.iterdir()} == files


def test_two_sources_are_never_mixed_and_methods_share_a_folder(tmp_path: Path) -> None:
    maps, other, out = ours(tmp_path / "maps"), ours(tmp_path / "other", seed=1), tmp_path / "out"
    folder = smiyc(maps, out).folder
    with pytest.raises(InputError, match=r"was written with score = 'entropy' \(now 'epistemic'\)"):
        smiyc(maps, out, "epistemic")
    with pytest.raises(InputError, match=r"source\.run\.seed = 0 \(now 1\)"):
        smiyc(other, out)
    moved = maps.rename(tmp_path / "moved")
    assert smiyc(moved, out).written == 2
    export_maps(moved, out, "epistemic", "smiyc", method="B", dataset="D")
    exports = json.loads((out / "export.json").read_text())["exports"]
    scores = {place: entry["settings"]["score"] for place, entry in exports.items()}
    assert scores == {"anomaly_p/Mine/AnomalyTrack-all": "entropy", "anomaly_p/B/D": "epistemic"}
    assert MapsReader(out).scores == ["B", "Mine"]
    (folder / "three.hdf5").write_bytes(b"somebody's")
    with pytest.raises(InputError, match=r"three\.hdf5, which is no file of this export"):
        smiyc(moved, out)
    (out / "export.json").unlink()
    with pytest.raises(InputError, match=r"one\.hdf5, which is no file of this export"):
        smiyc(moved, out)


def test_what_has_no_file_of_its_own_is_refused(tmp_path: Path) -> None:
    maps, out = tmp_path / "maps", tmp_path / "out"
    for name in ("a/1", "b/1", "0001_a", "0001_b"):
        write_map(maps / "s" / f"{name}.npy", np.zeros((2, 2)))
    with pytest.raises(InputError, match="lies inside"):
        smiyc(maps, maps / "out", "s")
    with pytest.raises(InputError, match=r"frames a/1 and b/1 would both be 1"):
        smiyc(maps, out, "s")
    with pytest.raises(InputError, match=r"0001_a and 0001_b would both be 0001"):
        export_maps(maps, out, "s", "fishyscapes", anomaly_only=True)
    for changes, said in (
        ({"score": "prediction"}, "'prediction' has no maps"),
        ({"method": ""}, "smiyc needs `method`"),
        ({"method": "../mine"}, "can be no folder"),
        ({"dataset": ".hidden"}, "can be no folder"),
    ):
        with pytest.raises(InputError, match=said):
            export_maps(maps, out, **{"score": "s", "to": "smiyc", "method": "Mine", "dataset": "Set"} | changes)
    assert not out.exists()
