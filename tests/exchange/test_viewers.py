"""Exports for viewers: masks and heatmaps where FiftyOne looks for them, recordings for Rerun at the right moments."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from segunc.core.errors import InputError, PartialFailure
from segunc.data.entry import ROAD_ANOMALY
from segunc.data.images import read_image
from segunc.data.labels import LabelMap
from segunc.exchange.fiftyone import ANOMALY_TARGETS, export_fiftyone, fiftyone_samples
from segunc.exchange.viewers import ViewerMaps, export_rerun
from segunc.frames.sources import open_source
from segunc.maps.pipeline import run_pipeline
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from tests.maps.fakes import CLASSES, PALETTE, manifest, process, write_pictures, write_video
from tests.maps.foreign import write_map


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


def grey(path: Path) -> np.ndarray:
    found = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert (found.dtype, found.ndim) == (np.uint8, 2)
    return found


def test_the_folder_holds_masks_and_heatmaps_of_every_frame(maps: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = export_fiftyone(ViewerMaps(maps, ["entropy", "epistemic"]), out)
    assert (summary.written, summary.total, summary.failed) == (3, 3, {})
    reader = MapsReader(maps)
    index = json.loads((out / "segunc.json").read_text())
    assert [entry["frame"] for entry in index["samples"]] == reader.frames
    assert index["classes"] == {str(i + 1): name for i, name in enumerate(CLASSES)}
    assert index["ranges"] == {"entropy": [0, 1], "epistemic": [0, 0.1]}
    for entry in index["samples"]:
        name = entry["frame"]
        # The documented layout of ImageSegmentationDirectory: data/NAME.* and labels/NAME.*.
        assert (entry["image"], entry["prediction"]) == (f"data/{name}.jpg", f"labels/{name}.png")
        assert read_image(out / entry["image"]).shape == (24, 32, 3)
        np.testing.assert_array_equal(grey(out / entry["prediction"]), reader.prediction(name) + 1)
        entropy = grey(out / entry["heatmaps"]["entropy"])
        np.testing.assert_allclose(entropy / 255, reader.read(name, "entropy"), atol=0.5 / 255 + 1e-6)
        epistemic = np.clip(reader.read(name, "epistemic") / 0.1, 0, 1)
        np.testing.assert_allclose(grey(out / entry["heatmaps"]["epistemic"]) / 255, epistemic, atol=0.5 / 255 + 1e-6)
        assert entry["statistics"]["entropy"]["mean"] == reader.records[name]["mean"]["entropy"]


def write_truth(folder: Path, names: list[str], values: list[int], size: tuple[int, int] = (24, 32)) -> Path:
    """Random label files of the values for the frames."""
    generator = np.random.default_rng(5)
    for name in names:
        write_map(folder / f"{name}.png", generator.choice(np.array(values, np.uint8), size))
    return folder


def test_ground_truth_is_in_masks_of_the_frames_that_have_it(maps: Path, tmp_path: Path) -> None:
    frames, out = MapsReader(maps).frames, tmp_path / "out"
    labels = write_truth(tmp_path / "labels", frames[:2], [10, 11, 12, 255])
    masks = write_truth(tmp_path / "masks", frames[1:], [0, 2])
    # Raw ids that are no train ids, and masks of another encoding.
    meaning = LabelMap("three", CLASSES, PALETTE, {10: 2, 11: 0, 12: 1, 255: 255})
    content = ViewerMaps(
        maps, ["entropy"], labels=labels, label_map=meaning, anomaly_labels=masks, anomaly_encoding=ROAD_ANOMALY
    )
    summary = export_fiftyone(content, out)
    assert (summary.written, summary.failed) == (3, {})
    assert summary.notes[:2] == [
        f"2 of 3 frames have {kind} label; the others show none." for kind in ("an anomaly", "a class")
    ]
    index = json.loads((out / "segunc.json").read_text())
    for entry, of_classes, of_anomalies in zip(index["samples"], (1, 1, 0), (0, 1, 1), strict=True):
        name = entry["frame"]
        assert ("ground_truth" in entry, "anomaly_truth" in entry) == (of_classes, of_anomalies)
        if of_classes:
            shown, raw = grey(out / entry["ground_truth"]), grey(labels / f"{name}.png")
            # As the prediction, class id plus 1; what is ignored is FiftyOne's background.
            assert {value: set(np.unique(shown[raw == value])) for value in (10, 11, 12, 255)} == {
                10: {3},
                11: {1},
                12: {2},
                255: {0},
            }
        if of_anomalies:
            shown, raw = grey(out / entry["anomaly_truth"]), grey(masks / f"{name}.png")
            np.testing.assert_array_equal(shown, raw == 2)
    # Without labels, a new export of the same place keeps none of it.
    export_fiftyone(ViewerMaps(maps, ["entropy"]), out, overwrite=True)
    assert not list(out.glob("*_truth"))


def test_labels_that_do_not_fit_are_refused_or_cost_their_frame(maps: Path, tmp_path: Path) -> None:
    frames = MapsReader(maps).frames
    masks = write_truth(tmp_path / "masks", frames, [0, 1, 255])
    write_truth(tmp_path / "masks", frames[:1], [0, 7])
    write_truth(tmp_path / "masks", frames[1:2], [0, 1], size=(12, 32))
    summary = export_fiftyone(ViewerMaps(maps, anomaly_labels=masks), tmp_path / "out")
    assert (summary.written, list(summary.failed)) == (1, frames[:2])
    assert "holds the values [7]" in summary.failed[frames[0]]
    assert "is 32 x 12 and the image 32 x 24" in summary.failed[frames[1]]
    other = LabelMap("two", ("car", "road"), PALETTE[:2], {0: 0, 1: 1, 255: 255})
    with pytest.raises(InputError, match="does not fit the maps"):
        ViewerMaps(maps, labels=masks, label_map=other)
    with pytest.raises(PartialFailure, match=r"no label in .*nothing belongs to a frame"):
        ViewerMaps(maps, anomaly_labels=write_truth(tmp_path / "nothing", ["else"], [0]))


def test_an_export_is_replaced_on_request_only_and_files_of_others_never(maps: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_fiftyone(ViewerMaps(maps), out)
    assert (out / "heatmaps" / "deterministic-max-logit").is_dir()
    with pytest.raises(InputError, match=r"holds an export; .*--overwrite removes it"):
        export_fiftyone(ViewerMaps(maps), out)
    export_fiftyone(ViewerMaps(maps, ["entropy"]), out, overwrite=True)
    assert [path.name for path in (out / "heatmaps").iterdir()] == ["entropy"]
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "data").write_text("x")
    with pytest.raises(InputError, match=r"holds files; .*give another --out"):
        export_fiftyone(ViewerMaps(maps), tmp_path / "foreign", overwrite=True)


def test_a_frame_without_its_image_fails_alone(maps: Path, tmp_path: Path) -> None:
    (tmp_path / "in" / f"{MapsReader(maps).frames[0]}.png").unlink()
    summary = export_fiftyone(ViewerMaps(maps), tmp_path / "out")
    assert summary.written == 2
    assert "has no image" in next(iter(summary.failed.values()))


def test_samples_point_at_the_files(maps: Path, tmp_path: Path) -> None:
    pytest.importorskip("fiftyone", reason="FiftyOne is not installed (extra 'fiftyone')")
    masks = write_truth(tmp_path / "masks", MapsReader(maps).frames[:1], [0, 1, 255])
    export_fiftyone(ViewerMaps(maps, anomaly_labels=masks), tmp_path / "out")
    samples, targets = fiftyone_samples(tmp_path / "out")
    assert targets == {i + 1: name for i, name in enumerate(CLASSES)}
    assert [sample["frame"] for sample in samples] == MapsReader(maps).frames
    for sample in samples:
        assert Path(sample.filepath).is_file()
        assert sample["prediction"].get_mask().max() <= len(CLASSES)
        assert sample["max_logit"].get_map().shape == (24, 32)
        assert 0 < sample["entropy_mean"] < 1
    assert [sample.has_field("anomaly_truth") for sample in samples] == [True, False, False]
    assert set(np.unique(samples[0]["anomaly_truth"].get_mask())) == {0, *ANOMALY_TARGETS}
    # Its own importer of the documented layout reads the segmentation, without our index.
    from fiftyone.utils.data.importers import ImageSegmentationDirectoryImporter

    importer = ImageSegmentationDirectoryImporter(dataset_dir=str(tmp_path / "out"))
    importer.setup()
    found = {path: mask.mask_path for path, _, mask in importer}
    assert found == {sample.filepath: sample["prediction"].mask_path for sample in samples}


def test_without_a_viewers_library_one_line_says_what_to_install(
    maps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rerun", "fiftyone"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"--to rerun without its SDK .*pip install 'segunc\[rerun\]'"):
        export_rerun(ViewerMaps(maps), tmp_path / "out.rrd")
    with pytest.raises(InputError, match=r"pip install 'segunc\[fiftyone\]'"):
        fiftyone_samples(tmp_path)


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
