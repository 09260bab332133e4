"""Events: regions that are followed over frames, their files, and what is refused."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from scipy import ndimage

import segunc
from segunc.core.errors import InputError
from segunc.core.files import flat
from segunc.data.images import read_image
from segunc.decisions.events import BOX, Event, Follower, find_events, overlaps
from segunc.decisions.flags import Threshold
from segunc.gallery.pictures import CropWindow
from segunc.maps.manifest import build_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.regions import Region
from segunc.maps.store import MapsWriter
from tests.maps.fakes import CLASSES, PALETTE
from tests.support.events import FPS, SEEN, SIZE, event_scene, write_events_scene
from tests.support.scenes import write_scene
from tests.verbs.processes import segunc as run


@pytest.fixture
def events(tmp_path: Path) -> list[Event]:
    """The still object, the mover and the other region."""
    reader = MapsReader(write_events_scene(tmp_path / "maps"))
    times = [index / FPS for index in range(20)]
    found, crowded = find_events(reader, "entropy", Threshold(0.5, smallest=10), times)
    assert crowded == 0
    return found


def test_a_region_is_followed_over_one_frame_that_lacks_it_and_no_farther(
    events: list[Event],
) -> None:
    still, mover, other = events
    assert [int(name) for name in still.boxes] == list(range(2, 20))
    assert [int(name) for name in mover.boxes] == list(SEEN)
    assert [int(name) for name in other.boxes] == [11]


def test_an_event_knows_where_it_is_strongest(events: list[Event]) -> None:
    assert [int(event.peak["frame"]) for event in events] == [2, 4, 11]
    mover = events[1]
    assert mover.start == {"frame": "000003", "time": 0.15}
    assert mover.peak["time"] == 0.2
    assert mover.peak["value"] == pytest.approx(0.9, abs=1e-4)
    assert [mover.peak[side] for side in BOX] == [9, 5, 8, 8]
    assert mover.largest == 63
    assert mover.class_id == 4 % 3
    assert mover.class_name == CLASSES[4 % 3]


def test_shards_and_whole_runs_give_the_same_file(tmp_path: Path) -> None:
    files = []
    for name, shards in (("whole", 1), ("parts", 3)):
        file = tmp_path / f"of-{name}" / "e.json"
        segunc.summary(
            write_events_scene(tmp_path / name, shards=shards), flag=["entropy=0.5"], events=file
        )
        files.append(file.read_bytes())
    whole, parts = files
    assert whole == parts
    assert len(json.loads(whole)) == 3


def test_overlaps_are_those_of_masks() -> None:
    random = np.random.default_rng(0)
    corners = random.integers(0, 20, (6, 2))
    sizes = random.integers(1, 15, (6, 2))
    boxes = np.concatenate([corners, sizes], 1)
    masks = np.zeros((6, 40, 40), bool)
    for mask, (left, top, width, height) in zip(masks, boxes, strict=True):
        mask[top : top + height, left : left + width] = True
    pixels = masks.reshape(6, -1).astype(int)
    shared = pixels @ pixels.T
    areas = pixels.sum(1)
    expected = shared / (areas[:, None] + areas - shared)
    assert overlaps(boxes, boxes) == pytest.approx(expected)


def test_crossing_things_keep_their_numbers() -> None:
    """The best pair alone, of the second thing and the first box, would leave the others a bad
    one."""
    follower = Follower()
    assert follower.follow("a/0", [(0, 0, 10, 10), (4, 0, 10, 10)]) == [0, 1]
    assert follower.follow("a/1", [(3, 0, 10, 10), (8, 0, 10, 10)]) == [0, 1]


def test_another_folder_is_another_video() -> None:
    follower = Follower()
    assert follower.follow("a/0", [(3, 0, 10, 10)]) == [0]
    assert follower.follow("b/0", [(5, 0, 10, 10)]) == [1]


@pytest.fixture
def maps_of_a_drive(tmp_path: Path) -> Path:
    return write_events_scene(tmp_path / "maps", name="drive/{:06d}")


def records_of(maps: Path, path: Path, value: float = 0.5) -> list[dict[str, Any]]:
    """Return the content of ``events.json``."""
    segunc.summary(maps, flag=[f"entropy={value}"], events=path)
    records: list[dict[str, Any]] = json.loads(path.read_text())
    return records


def test_json_holds_the_events_of_the_result(maps_of_a_drive: Path, tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    result = segunc.summary(maps_of_a_drive, flag=["entropy=0.5"], events=path)
    records = json.loads(path.read_text())
    assert [record["boxes"] for record in records] == [event.boxes for event in result.events]
    fields = "id score threshold start end peak frames largest class_id class_name boxes"
    assert {*map(" ".join, records)} == {fields}


def test_a_crop_shows_the_score_where_there_is_no_image(
    maps_of_a_drive: Path, tmp_path: Path
) -> None:
    for record in records_of(maps_of_a_drive, tmp_path / "events.json"):
        assert read_image(tmp_path / record["peak"]["crop"]).shape == (180, 240, 3)


def test_a_crop_outlines_what_is_flagged_below_the_colours_of_the_score(tmp_path: Path) -> None:
    """A region of values that have the darkest colour, as all around it."""
    values = np.zeros((180, 320), np.float32)
    values[60:120, 100:180] = 0.002
    maps = tmp_path / "maps"
    manifest = build_manifest({}, ("entropy",), device="cpu", classes=CLASSES, palette=PALETTE)
    with MapsWriter(maps, manifest) as writer:
        content = {"entropy": values, "prediction": np.zeros(values.shape, np.uint8)}
        writer.commit(writer.store("f", content) | {"time": 0.0})
    (record,) = records_of(maps, tmp_path / "events.json", value=0.001)
    crop = read_image(tmp_path / record["peak"]["crop"]).astype(int)
    window = CropWindow.around((100, 60, 80, 60), values.shape)
    is_line = (crop[:, :, 1] > crop[:, :, 0] + 40) & (crop[:, :, 2] > crop[:, :, 0] + 40)
    left, top = window.place(100, 60)
    right, bottom = window.place(180, 120)
    assert is_line[top:bottom, left - 3 : left + 4].any(axis=1).mean() > 0.9
    assert is_line[bottom - 3 : bottom + 4, left:right].any(axis=0).mean() > 0.9
    assert not is_line[top + 6 : bottom - 6, left + 6 : right - 6].any()


def test_the_worst_moments_are_those_of_the_threshold_that_is_given(maps_of_a_drive: Path) -> None:
    result = segunc.summary(maps_of_a_drive, flag=["entropy=0.7"], apart=0, top=100)
    strengths: dict[str, float] = {}
    for event in result.events:
        for name, (strength, _) in event.extents.items():
            strengths[name] = max(strength, strengths.get(name, 0.0))
    assert strengths
    listed = {moment.name: moment.value for moment in result.moments}
    assert {name: value for name, value in listed.items() if value} == strengths
    assert result.moments[0].value == max(strengths.values())
    # At the threshold that the maps record, values are others.
    usual = segunc.summary(maps_of_a_drive, apart=0, top=100)
    assert usual.moments[0].value != result.moments[0].value


def test_a_frame_with_a_region_at_the_threshold_comes_before_frames_without(
    tmp_path: Path,
) -> None:
    """What a region exceeds the threshold by is 0 there, as it is where nothing is flagged."""
    manifest = build_manifest({}, ("entropy",), device="cpu", classes=CLASSES, palette=PALETTE)
    with MapsWriter(tmp_path / "maps", manifest) as writer:
        for number in range(4):
            values = np.full((20, 30), 0.01, np.float32)
            if number == 2:
                values[5:15, 5:15] = 1
            content = {"entropy": values, "prediction": np.zeros(values.shape, np.uint8)}
            writer.commit(writer.store(f"f{number}", content) | {"time": float(number)})
    result = segunc.summary(tmp_path / "maps", flag=["entropy=1"], apart=0)
    names = [moment.name for moment in result.moments]
    assert names == ["f2", "f0", "f1", "f3"]
    (note,) = [note for note in result.notes if "of --flag" in note]
    assert note.startswith("no flagged region lies above the threshold of --flag for entropy")


@pytest.mark.parametrize(("models", "is_noted"), [("aa", False), ("ab", True)])
def test_folders_of_several_models_are_noted(tmp_path: Path, models: str, is_noted: bool) -> None:
    """Their scores may have other scales, and one list ranks them."""
    for number, model in enumerate(models):
        run_of_model = {"base_sha256": 64 * model}
        manifest = build_manifest(
            run_of_model, ("entropy",), device="cpu", classes=CLASSES, palette=PALETTE
        )
        with MapsWriter(tmp_path / "maps" / f"drive{number}", manifest) as writer:
            values = np.full((20, 30), 0.1, np.float32)
            content = {"entropy": values, "prediction": np.zeros(values.shape, np.uint8)}
            writer.commit(writer.store("f", content) | {"time": 0.0})
    notes = segunc.summary(tmp_path / "maps").notes
    noted = [note for note in notes if note.startswith("these maps are of 2 models")]
    assert bool(noted) == is_noted


def test_the_largest_regions_are_those_of_the_threshold_that_is_given(
    maps_of_a_drive: Path,
) -> None:
    asked: dict[str, Any] = {"statistic": "component", "apart": 0, "top": 1}
    result = segunc.summary(maps_of_a_drive, flag=["entropy=0.7"], **asked)
    assert result.moments[0].value == max(event.largest for event in result.events)


def test_a_threshold_above_all_values_leaves_no_worst_moment(maps_of_a_drive: Path) -> None:
    notes = segunc.summary(maps_of_a_drive, flag=["entropy=1"]).notes
    assert any("above the threshold of --flag for entropy" in note for note in notes)


def test_a_summary_names_a_threshold_to_begin_with(maps_of_a_drive: Path) -> None:
    reader = MapsReader(maps_of_a_drive)
    percentiles = [np.percentile(reader.read(name, "entropy"), 99) for name in reader.frames]
    expected = float(np.median(percentiles))
    percentile = segunc.summary(maps_of_a_drive).percentile
    assert percentile == pytest.approx(expected, abs=1e-4)
    line = f"--flag entropy={percentile:.3g} lists regions"
    assert line in run(f"summary --maps {maps_of_a_drive}").stdout
    assert "--flag" not in run(f"summary --maps {maps_of_a_drive} --flag entropy=0.5").stdout


def test_csv_holds_the_events_of_json(maps_of_a_drive: Path, tmp_path: Path) -> None:
    records = records_of(maps_of_a_drive, tmp_path / "events.json")
    segunc.summary(maps_of_a_drive, flag=["entropy=0.5"], events=tmp_path / "events.csv")
    rows = list(csv.DictReader((tmp_path / "events.csv").open(newline="")))
    for row, record in zip(rows, records, strict=True):
        assert row["id"] == str(record["id"])
        assert row["peak.frame"] == record["peak"]["frame"]
        assert row["end.time"] == str(record["end"]["time"])
        assert row["frames"] == str(record["frames"])
    mover = records[1]
    box = [mover["peak"][side] for side in BOX]
    assert box == mover["boxes"][mover["peak"]["frame"]]
    assert [int(rows[1][f"peak.{side}"]) for side in BOX] == box


def test_csv_has_the_same_header_with_and_without_events(
    maps_of_a_drive: Path, tmp_path: Path
) -> None:
    (first, *_) = records_of(maps_of_a_drive, tmp_path / "events.json")
    del first["boxes"]
    headers = []
    for value in (0.5, 0.99):
        path = tmp_path / f"{value}.csv"
        segunc.summary(maps_of_a_drive, flag=[f"entropy={value}"], events=path)
        headers.append(next(csv.reader(path.open(newline=""))))
    assert headers[0] == [*flat(first)]
    assert headers[1] == headers[0]


def test_a_summary_says_that_no_event_was_found(maps_of_a_drive: Path, tmp_path: Path) -> None:
    words = ("summary", "--maps", maps_of_a_drive, "--flag", "entropy=0.99")
    done = run(*words, "--events", tmp_path / "events.csv")
    assert "events: no event was found\n" in done.stdout


@pytest.fixture
def coco(maps_of_a_drive: Path, tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "events_coco.json"
    segunc.summary(maps_of_a_drive, flag=["entropy=0.5"], events=path)
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_coco_has_one_video_and_one_category(coco: dict[str, Any]) -> None:
    assert [video["name"] for video in coco["videos"]] == ["drive"]
    assert [category["id"] for category in coco["categories"]] == [1]
    assert {image["video_id"] for image in coco["images"]} == {1}


def test_coco_annotates_each_frame_of_each_event(
    coco: dict[str, Any], maps_of_a_drive: Path, tmp_path: Path
) -> None:
    records = records_of(maps_of_a_drive, tmp_path / "events.json")
    images = {image["id"]: image for image in coco["images"]}
    annotations = coco["annotations"]
    identifiers = {annotation["id"] for annotation in annotations}
    assert len(identifiers) == sum(record["frames"] for record in records)
    assert {annotation["track_id"] for annotation in annotations} == {1, 2, 3}
    for annotation in annotations:
        frame = images[annotation["image_id"]]["file_name"]
        assert annotation["category_id"] == 1
        assert annotation["iscrowd"] == 0
        assert annotation["video_id"] == 1
        assert annotation["bbox"] == records[annotation["track_id"] - 1]["boxes"][frame]


def coco_of(maps: Path, path: Path, **options: Any) -> dict[str, Any]:
    """Return the events of maps as COCO."""
    segunc.summary(maps, flag=["entropy=0.5"], events=path, **options)
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_coco_names_the_files_of_images(tmp_path: Path) -> None:
    scene = write_scene(tmp_path)
    # Another reader has another ending.
    (scene.images / "sub" / "d.png").rename(scene.images / "sub" / "d.PNG")
    content = coco_of(scene.maps, tmp_path / "events_coco.json", fps=10)
    files = [image["file_name"] for image in content["images"]]
    assert "sub/d.PNG" in files
    assert all((scene.images / file).is_file() for file in files)


def test_coco_names_the_video_and_the_frame(tmp_path: Path) -> None:
    maps = write_events_scene(tmp_path / "maps", run={"input": "/data/drive.mp4"})
    content = coco_of(maps, tmp_path / "events_coco.json")
    assert [video["name"] for video in content["videos"]] == ["drive.mp4"]
    assert content["images"][0]["file_name"] == "drive.mp4/000002.png"


def test_coco_names_the_topic_of_a_recording(tmp_path: Path) -> None:
    maps = write_events_scene(tmp_path / "maps", run={"input": "/data/a.mcap:/camera/front"})
    content = coco_of(maps, tmp_path / "events_coco.json")
    assert content["images"][0]["file_name"] == "a.mcap/camera/front/000002.png"


def test_coco_without_its_images_names_frames_and_says_so(tmp_path: Path) -> None:
    scene = write_scene(tmp_path)
    shutil.rmtree(scene.images)
    path = tmp_path / "events_coco.json"
    result = segunc.summary(scene.maps, flag=["entropy=0.5"], events=path, fps=10)
    files = [image["file_name"] for image in json.loads(path.read_text())["images"]]
    assert "sub/d" in files
    assert any("so file_name is the name of the frame there" in note for note in result.notes)


def test_coco_masks_are_the_flagged_regions(coco: dict[str, Any]) -> None:
    images = {image["id"]: image for image in coco["images"]}
    for annotation in coco["annotations"]:
        image = images[annotation["image_id"]]
        size = annotation["segmentation"]["size"]
        assert size == [image["height"], image["width"]]
        assert size == list(SIZE)
        # Runs of an uncompressed mask go down the columns, pixels outside first.
        counts = annotation["segmentation"]["counts"]
        runs = np.repeat(np.arange(len(counts)) % 2, counts)
        mask = runs.reshape(size[::-1]).T.astype(bool)
        flagged = event_scene(int(image["file_name"][-6:])) >= 0.5
        regions, _ = ndimage.label(flagged, np.ones((3, 3)))
        number = regions[tuple(np.argwhere(mask)[0])]
        assert (mask == (regions == number)).all()
        assert annotation["area"] == mask.sum()


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a_coco.json", "COCO, with masks"),
        ("coco.json", "JSON, without masks; a name that ends in _coco.json gives COCO"),
        ("a.csv", "CSV, without masks"),
    ],
)
def test_what_was_written_is_said(
    maps_of_a_drive: Path, tmp_path: Path, name: str, written: str
) -> None:
    words = ("summary", "--maps", maps_of_a_drive, "--flag", "entropy=0.5")
    out = tmp_path / name
    done = run(*words, "--events", out, "--out", tmp_path / "worst")
    assert f"wrote {out}: {written}\n" in done.stdout
    assert f"wrote {tmp_path / 'worst'} as CSV\n" in done.stdout


def test_images_without_a_rate_are_no_sequence(tmp_path: Path) -> None:
    maps = write_events_scene(tmp_path / "maps", timed=False)
    assert not segunc.summary(maps, flag=["entropy=0.5"]).events


def test_images_are_a_sequence_at_a_rate(tmp_path: Path) -> None:
    maps = write_events_scene(tmp_path / "maps", timed=False)
    events = segunc.summary(maps, flag=["entropy=0.5"], fps=10.0).events
    assert [event.end["time"] for event in events] == [1.9, 0.8, 1.1]


def test_numbers_of_events_run_over_all_thresholds(tmp_path: Path) -> None:
    maps = write_events_scene(tmp_path / "maps", timed=False, scores=("entropy", "epistemic"))
    flag = ["entropy=0.5", "epistemic=0.65"]
    events = segunc.summary(maps, flag=flag, fps=10.0, events=tmp_path / "e.csv").events
    assert [event.id for event in events] == [1, 2, 3, 4, 5]
    assert [event.score for event in events] == ["entropy"] * 3 + ["epistemic"] * 2


@pytest.mark.parametrize(
    ("file", "flag", "message"),
    [
        ("e.json", [], "`flag` entropy=0.5"),
        ("e.xml", ["entropy=0.5"], "ends in none of .csv, .json, _coco.json"),
        ("events", ["entropy=0.5"], "ends in none of .csv, .json, _coco.json"),
        (None, ["margin=0.5"], "has no map 'margin'"),
    ],
)
def test_what_has_no_threshold_or_form_is_refused(
    tmp_path: Path, file: str | None, flag: list[str], message: str
) -> None:
    asked: dict[str, Any] = {"flag": flag} if flag else {}
    if file is not None:
        asked["events"] = tmp_path / file
    with pytest.raises(InputError, match=message):
        segunc.summary(write_events_scene(tmp_path / "maps", timed=False), **asked)
    assert not list(tmp_path.glob("e.*"))


def test_a_frame_without_a_time_has_no_place_in_events(tmp_path: Path) -> None:
    manifest = build_manifest(
        {"draws": 1}, ("entropy",), device="cpu", classes=CLASSES, palette=PALETTE
    )
    with MapsWriter(tmp_path / "letters", manifest) as writer:
        maps = {"prediction": np.zeros(SIZE, np.uint8), "entropy": event_scene(0)}
        writer.commit(writer.store("cat", maps))
    with pytest.raises(InputError, match="no time is known of the frame cat of"):
        segunc.summary(tmp_path / "letters", flag=["entropy=0.5"], events=tmp_path / "e.csv")
    assert not list(tmp_path.glob("e.*"))


def test_events_are_of_one_maps_folder(tmp_path: Path) -> None:
    write_events_scene(tmp_path / "days" / "one")
    write_events_scene(tmp_path / "days" / "two")
    with pytest.raises(InputError, match="holds 2 maps folders"):
        segunc.summary(tmp_path / "days", flag=["entropy=0.5"], events=tmp_path / "e.csv")
    assert not list(tmp_path.glob("e.*"))


def test_what_a_mask_leaves_out_is_no_event_at_threshold_0(tmp_path: Path) -> None:
    picture = np.zeros((*SIZE, 3), np.uint8)
    picture[:, 30:] = 255
    assert cv2.imwrite(str(tmp_path / "mask.png"), picture)
    reader = MapsReader(write_events_scene(tmp_path / "maps"))
    reader.region = Region(tmp_path / "mask.png")
    (event,), _ = find_events(reader, "entropy", Threshold(0.0, smallest=1), [None] * 20)
    assert event.boxes["000000"] == [30, 0, 30, 40]
    assert event.largest == 30 * 40
