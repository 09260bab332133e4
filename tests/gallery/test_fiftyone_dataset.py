"""A data set of FiftyOne and the verdicts of its tags, with a stand-in for FiftyOne.

The stand-in has the few names that are used, because FiftyOne needs a database server. The last
test runs FiftyOne itself where it is installed and its database answers.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import pytest

from segunc import review
from segunc.core.errors import InputError
from segunc.decisions.flags import Threshold
from segunc.gallery.fiftyone_dataset import dataset_name, field_name, read_tags, write_dataset
from segunc.gallery.review_page import run_id
from segunc.maps.reader import MapsReader
from segunc.maps.regions import strongest_regions
from segunc.maps.verdicts import Verdict, read_verdicts
from tests.support.scenes import LABEL_MAP, NAMES, SIZE, Scene, Widened, labels_of, write_mask
from tests.verbs.processes import refuse, succeed

CHANGED = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
FLAG = {"entropy": Threshold(0.5, smallest=4)}


class Fields:
    """An object with attributes that are read and written as items, too."""

    def __init__(self, **fields: Any) -> None:
        self.tags: list[str] = []
        self.__dict__.update(fields)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name]

    def __setitem__(self, name: str, value: Any) -> None:
        assert name.isidentifier()
        self.__dict__[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__


class StandIn(ModuleType):
    """The part of FiftyOne that is used, with its data sets in a dictionary."""

    def __init__(self) -> None:
        super().__init__("fiftyone")
        self.datasets: dict[str, Any] = {}
        for name in ("Sample", "Segmentation", "Heatmap", "Detection", "Detections"):
            setattr(self, name, Fields)

    def list_datasets(self) -> list[str]:
        return list(self.datasets)

    def dataset_exists(self, name: str) -> bool:
        return name in self.datasets

    def load_dataset(self, name: str) -> Any:
        return self.datasets[name].samples

    def delete_dataset(self, name: str) -> None:
        del self.datasets[name]

    def Dataset(self, name: str, *, persistent: bool) -> Any:
        assert persistent
        samples: list[Any] = []
        dataset = Fields(samples=samples, add_samples=samples.extend)
        self.datasets[name] = dataset
        return dataset


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "fiftyone", stand_in)
    return stand_in


def write(scene: Scene, out: Path, **more: Any) -> Any:
    labels = {
        "labels": scene.labels,
        "label_map": LABEL_MAP,
        "anomaly_labels": scene.anomaly,
    }
    return write_dataset(scene.maps, out, labels_of(labels), flag=FLAG, **more)


def pixels(path: str) -> np.ndarray:
    return cv2.imread(path, cv2.IMREAD_UNCHANGED)


def test_each_frame_is_a_sample_with_its_files(library, scene, tmp_path):
    written = write(scene, tmp_path)
    reader = MapsReader(scene.maps)
    dataset = library.datasets[written.name]
    assert written.name == f"segunc-{run_id(reader)}"
    assert [sample.frame for sample in dataset.samples] == reader.frames
    for sample in dataset.samples:
        assert pixels(sample.filepath).shape == (*SIZE, 3)
        prediction = pixels(sample.prediction.mask_path)
        np.testing.assert_array_equal(prediction, reader.prediction(sample.frame) + 1)
        expected = np.rint(reader.read(sample.frame, "entropy") * 255)
        np.testing.assert_array_equal(pixels(sample.entropy.map_path), expected)
        assert sample.entropy.range == [0, 255]
    names = dict(enumerate(reader.class_names, start=1))
    assert dataset.default_mask_targets == names


def test_labels_are_masks(library, scene, tmp_path):
    written = write(scene, tmp_path)
    samples = library.datasets[written.name].samples
    labelled = [sample for sample in samples if "anomaly_label" in sample]
    assert len(labelled) == 4
    for sample in labelled:
        expected = pixels(str(scene.anomaly / f"{sample.frame}.png"))
        np.testing.assert_array_equal(pixels(sample.anomaly_label.mask_path), expected)
    classes = [pixels(sample.label.mask_path) for sample in samples if "label" in sample]
    assert classes
    assert all(mask.max() <= 3 for mask in classes)


def test_detections_are_the_flagged_regions(library, scene, tmp_path):
    written = write(scene, tmp_path, scores=["entropy"])
    reader = MapsReader(scene.maps)
    some = 0
    for sample in library.datasets[written.name].samples:
        values = reader.read(sample.frame, "entropy")
        regions = strongest_regions(values, 0.5, smallest=4, most=32)
        detections = sample.flagged.detections
        assert [tuple(detection.pixels["box"]) for detection in detections] == [
            region.box for region in regions
        ]
        for region, detection in zip(regions, detections, strict=True):
            box = np.array(detection.bounding_box) * [SIZE[1], SIZE[0], SIZE[1], SIZE[0]]
            assert box.tolist() == pytest.approx(list(region.box))
            mask = np.zeros(SIZE, bool).ravel()
            runs = np.array(detection.pixels["mask"]).reshape(-1, 2)
            for start, length in runs:
                mask[start : start + length] = True
            assert mask.sum() == region.area
            x, y = region.peak
            assert detection.peak == pytest.approx(values[y, x])
            some += 1
    assert some > 3


def test_tags_come_back_as_verdicts_that_every_verb_reads(library, scene, tmp_path):
    write(scene, tmp_path / "files")
    samples = library.datasets[dataset_name(MapsReader(scene.maps))].samples
    samples[0].tags = ["nothing-wrong", "a tag of somebody"]
    judged = next(sample for sample in samples if sample.flagged.detections)
    judged.flagged.detections[0].tags = ["false-alarm"]
    judged.last_modified_at = CHANGED
    out = tmp_path / "verdicts.json"
    done = succeed("review --maps", scene.maps, "--tags", out)
    assert "nothing wrong" in done.stdout
    reader = MapsReader(scene.maps)
    verdicts = read_verdicts(out, run_id(reader), reader.frames)
    assert [(verdict.frame, verdict.verdict) for verdict in verdicts] == [
        (samples[0].frame, "nothing-wrong"),
        (judged.frame, "false-alarm"),
    ]
    region = verdicts[1].region
    assert region is not None
    assert list(region.box) == judged.flagged.detections[0].pixels["box"]
    assert sum(region.mask[1::2]) == region.area
    assert region.threshold == 0.5
    assert verdicts[1].time == CHANGED.isoformat()


def test_tags_are_verdicts_on_the_images_of_the_data_set(library, scene, tmp_path, monkeypatch):
    write(scene, tmp_path / "files")
    reader = MapsReader(scene.maps)
    samples = library.datasets[dataset_name(reader)].samples
    for sample in samples[:3]:
        sample.tags = ["missed"]
    del samples[2].__dict__["image_hash"]  # as a data set of an earlier version
    first, *_ = reader.frames
    recorded = MapsReader.image_hash

    def changed(self: MapsReader, name: str) -> str | None:
        return "of a new image" if name == first else recorded(self, name)

    monkeypatch.setattr(MapsReader, "image_hash", changed)
    result = review(maps=scene.maps, tags=tmp_path / "verdicts.json")
    assert result.notes == (
        f"1 verdict is left out, on 1 frame that had another image when judged, first frame "
        f"{first}: the maps are of the new one",
        "1 verdict names no image, as of an earlier version; taken as given on the images of "
        "these maps",
    )
    verdicts = read_verdicts(result.path, run_id(reader), reader.frames)
    hashes = [(verdict.frame, verdict.image_hash) for verdict in verdicts]
    second, third = reader.frames[1:3]
    assert hashes == [(second, recorded(reader, second)), (third, None)]


def test_tags_keep_the_preparation_of_the_map(library, scene, tmp_path):
    """As a map that was not prepared, other regions would be compared."""
    flag = {"entropy": Widened(0.5, smallest=4)}
    write_dataset(scene.maps, tmp_path / "files", flag=flag)
    samples = library.datasets[dataset_name(MapsReader(scene.maps))].samples
    judged = next(sample for sample in samples if sample.flagged.detections)
    judged.flagged.detections[0].tags = ["false-alarm"]
    (verdict,) = read_tags(scene.maps)
    assert verdict.given_at == ("entropy", 0.5, "--margin 2")


def test_means_are_of_the_pixels_that_count(library, copy, tmp_path):
    write_mask(copy)
    write_dataset(copy, tmp_path / "files")
    reader = MapsReader(copy)
    samples = library.datasets[dataset_name(reader)].samples
    for sample in samples:
        kept = reader.read(sample.frame, "entropy")[:, 20:]
        assert sample.entropy_mean == pytest.approx(float(kept.mean(dtype="float64")), abs=1e-12)


def test_verdicts_become_tags(library, scene, tmp_path):
    given = [Verdict(frame=NAMES[0], verdict="missed")]
    written = write(scene, tmp_path, verdicts=given)
    tags = {sample.frame: sample.tags for sample in library.datasets[written.name].samples}
    assert tags.pop(NAMES[0]) == ["missed"]
    assert not any(tags.values())


def test_two_verdicts_on_a_frame_are_refused(library, scene, tmp_path):
    write(scene, tmp_path)
    sample = library.datasets[dataset_name(MapsReader(scene.maps))].samples[0]
    sample.tags = ["missed", "unsure"]
    with pytest.raises(InputError, match="has the tags missed and unsure, which are two verdicts"):
        read_tags(scene.maps)


def test_a_data_set_with_tags_is_not_replaced(library, scene, tmp_path):
    write(scene, tmp_path)
    with pytest.raises(InputError, match="already, and its tags would be lost") as error:
        write(scene, tmp_path)
    assert error.value.hint == f"fiftyone datasets delete {dataset_name(MapsReader(scene.maps))}"


def test_maps_without_a_data_set_have_no_tags(library, scene):
    with pytest.raises(InputError, match="FiftyOne has no data set segunc-"):
        read_tags(scene.maps)


def test_a_damaged_frame_is_named_and_the_others_are_there(library, scene, copy, tmp_path):
    reader = MapsReader(copy)
    damaged = copy / reader.records[reader.frames[1]]["files"]["entropy"]
    damaged.write_bytes(damaged.read_bytes()[:40])
    written = write_dataset(copy, tmp_path)
    assert written.samples == len(NAMES) - 1
    assert f"1 frame is not in the data set, first {reader.frames[1]}" in written.failure


def test_a_database_that_does_not_answer_is_one_sentence(library, scene, tmp_path):
    def fail() -> None:
        raise ConnectionError("no server at port 27017")

    library.list_datasets = fail
    with pytest.raises(InputError, match="FiftyOne has no database"):
        write(scene, tmp_path)


def test_a_missing_library_is_named_with_its_extra(scene, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fiftyone", None)
    error = refuse("review --to fiftyone --maps", scene.maps, "--out", tmp_path)
    assert "needs the package fiftyone, which is not installed" in str(error)
    assert 'pip install "segunc[fiftyone]"' in str(error)


def test_options_of_the_page_are_refused(scene, tmp_path):
    words = "review --to fiftyone --apart 2 --maps"
    assert "takes no --apart" in str(refuse(words, scene.maps, "--out", tmp_path))


def test_tags_are_read_without_a_place_for_a_page(scene, tmp_path):
    words = ("review --maps", scene.maps, "--tags", tmp_path / "a.json", "--out", tmp_path / "b")
    assert "nothing is written to --out" in str(refuse(*words))


def test_names_of_fields_are_identifiers():
    assert field_name("deterministic-max-logit") == "deterministic_max_logit"


def test_fiftyone_itself_keeps_the_samples_and_their_tags(scene, tmp_path):
    library = pytest.importorskip("fiftyone", reason="the extra fiftyone is not installed")
    try:
        library.list_datasets()
    except Exception as error:
        pytest.skip(f"FiftyOne has no database: {error}")
    written = write(scene, tmp_path)
    try:
        dataset = library.load_dataset(written.name)
        sample = dataset.first()
        assert sample.frame == NAMES[0]
        sample.tags.append("false-alarm")
        sample.save()
        (verdict,) = read_tags(scene.maps)
        assert (verdict.frame, verdict.verdict) == (NAMES[0], "false-alarm")
    finally:
        library.delete_dataset(written.name)
