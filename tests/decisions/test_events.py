"""Events: regions that are followed over frames, their files, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

import segunc
from segunc.core.errors import InputError
from segunc.data.images import read_image
from segunc.decisions.events import BOX, Follower, find_events, overlaps
from segunc.maps.manifest import build_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.store import MapsWriter
from tests.maps.fakes import CLASSES, PALETTE
from tests.support.events import FPS, SEEN, SIZE, event_scene, write_events_scene


def test_a_region_is_followed_over_one_frame_that_lacks_it_and_no_farther(tmp_path: Path) -> None:
    reader = MapsReader(write_events_scene(tmp_path / "maps"))
    times = [index / FPS for index in range(20)]
    events, crowded = find_events(reader, "entropy", 0.5, times, smallest=10)
    frames = [([int(name) for name in event.boxes], int(event.peak["frame"])) for event in events]
    assert frames == [(list(range(2, 20)), 2), (list(SEEN), 4), ([11], 11)]
    assert (len({name for event in events for name in event.boxes}), crowded) == (18, 0)
    mover = events[1]
    assert (mover.start, mover.peak["time"], mover.class_id) == (
        {"frame": "000003", "time": 0.15},
        0.2,
        4 % 3,
    )
    assert (mover.peak["value"], [mover.peak[side] for side in BOX], mover.largest) == (
        pytest.approx(0.9, abs=1e-4),
        [9, 5, 8, 8],
        63,
    )


def test_shards_and_whole_runs_give_the_same_file(tmp_path: Path) -> None:
    for name, shards in (("whole", 1), ("parts", 3)):
        segunc.summary(
            write_events_scene(tmp_path / name, shards=shards),
            flag=["entropy=0.5"],
            events=tmp_path / f"of-{name}" / "e.json",
        )
    whole, parts = (path.read_bytes() for path in tmp_path.glob("of-*/e.json"))
    assert (whole, len(json.loads(whole))) == (parts, 3)


def test_overlaps_are_those_of_masks_and_crossing_things_keep_their_numbers() -> None:
    random = np.random.default_rng(0)
    boxes = np.concatenate([random.integers(0, 20, (6, 2)), random.integers(1, 15, (6, 2))], 1)
    masks = np.zeros((6, 40, 40), bool)
    for mask, (x, y, w, h) in zip(masks, boxes, strict=True):
        mask[y : y + h, x : x + w] = True
    flat = masks.reshape(6, -1).astype(int)
    shared = flat @ flat.T
    assert overlaps(boxes, boxes) == pytest.approx(
        shared / (flat.sum(1)[:, None] + flat.sum(1) - shared)
    )
    # The best pair alone, of the second thing and the first box, would leave the others a bad one.
    follower = Follower()
    assert follower.follow("a/0", [(0, 0, 10, 10), (4, 0, 10, 10)]) == [0, 1]
    assert follower.follow("a/1", [(3, 0, 10, 10), (8, 0, 10, 10)]) == [0, 1]
    assert follower.follow("b/0", [(5, 0, 10, 10)]) == [2], "another folder is another video"


def test_files_hold_the_same_events_and_coco_its_documented_fields(tmp_path: Path) -> None:
    maps = write_events_scene(tmp_path / "maps", name="drive/{:06d}")
    for ending in (".json", ".csv", "_coco.json"):
        result = segunc.summary(maps, flag=["entropy=0.5"], events=tmp_path / f"events{ending}")
    records = json.loads((tmp_path / "events.json").read_text())
    assert [record["boxes"] for record in records] == [event.boxes for event in result.events]
    assert [read_image(tmp_path / r["peak"]["crop"]).shape for r in records] == [
        (180, 240, 3)
    ] * 3  # no image lies beside the score's
    assert {*map(" ".join, records)} == {
        "id score threshold start end peak frames largest class_id boxes"
    }
    rows = list(csv.DictReader((tmp_path / "events.csv").open(newline="")))
    expected = [
        (str(r["id"]), r["peak"]["frame"], str(r["end"]["time"]), str(r["frames"])) for r in records
    ]
    assert [
        (row["id"], row["peak.frame"], row["end.time"], row["frames"]) for row in rows
    ] == expected
    assert [int(rows[1][f"peak.{side}"]) for side in BOX] == [
        records[1]["peak"][side] for side in BOX
    ]
    assert [records[1]["peak"][side] for side in BOX] == records[1]["boxes"][
        records[1]["peak"]["frame"]
    ]
    coco = json.loads((tmp_path / "events_coco.json").read_text())
    images, videos = ({one["id"]: one for one in coco[kind]} for kind in ("images", "videos"))
    assert (
        [video["name"] for video in videos.values()],
        [of["id"] for of in coco["categories"]],
    ) == (["drive"], [1])
    assert len({one["id"] for one in coco["annotations"]}) == sum(r["frames"] for r in records)
    assert {one["track_id"] for one in coco["annotations"]} == {1, 2, 3}
    for one in coco["annotations"]:
        image = images[one["image_id"]]
        assert (one["category_id"], one["iscrowd"], one["video_id"], image["video_id"]) == (
            1,
            0,
            1,
            1,
        )
        assert one["bbox"] == records[one["track_id"] - 1]["boxes"][image["file_name"]]
        # Runs of an uncompressed mask go down the columns, pixels outside first.
        counts, size = one["segmentation"]["counts"], one["segmentation"]["size"]
        mask = np.repeat(np.arange(len(counts)) % 2, counts).reshape(size[::-1]).T
        assert size == [image["height"], image["width"]] == list(SIZE)
        regions, _ = ndimage.label(
            event_scene(int(image["file_name"][-6:])) >= 0.5, np.ones((3, 3))
        )
        assert (mask.astype(bool) == (regions == regions[tuple(np.argwhere(mask)[0])])).all()
        assert one["area"] == mask.sum()


def test_images_are_a_sequence_at_a_rate_and_ids_run_over_all_thresholds(tmp_path: Path) -> None:
    maps = write_events_scene(tmp_path / "maps", timed=False, scores=("entropy", "epistemic"))
    assert not segunc.summary(maps, flag=["entropy=0.5"]).events
    events = segunc.summary(maps, flag=["entropy=0.5"], fps=10.0).events
    assert [event.end["time"] for event in events] == [1.9, 0.8, 1.1]
    events = segunc.summary(
        maps, flag=["entropy=0.5", "epistemic=0.65"], fps=10.0, events=tmp_path / "e.csv"
    ).events
    assert [(event.id, event.score) for event in events] == [
        *enumerate(["entropy"] * 3 + ["epistemic"] * 2, start=1)
    ]


def test_what_has_no_threshold_order_or_form_is_refused(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"events": tmp_path / "e.json"}, "`flag` entropy=0.5"),
        (
            {"flag": ["entropy=0.5"], "events": tmp_path / "e.xml"},
            "ends in none of .csv, .json, _coco.json",
        ),
        ({"flag": ["margin=0.5"]}, "has no map 'margin'"),
    ]
    for asked, message in cases:
        with pytest.raises(InputError, match=message):
            segunc.summary(write_events_scene(tmp_path / "maps", timed=False), **asked)
    manifest = build_manifest(
        {"draws": 1}, ("entropy",), device="cpu", classes=CLASSES, palette=PALETTE
    )
    with MapsWriter(tmp_path / "letters", manifest) as writer:
        writer.commit(
            writer.store("cat", {"prediction": np.zeros(SIZE, np.uint8), "entropy": event_scene(0)})
        )
    write_events_scene(tmp_path / "days" / "one"), write_events_scene(tmp_path / "days" / "two")
    for folder, message in (
        ("letters", "no time is known of the frame cat of"),
        ("days", "holds 2 maps folders"),
    ):
        with pytest.raises(InputError, match=message):
            segunc.summary(tmp_path / folder, flag=["entropy=0.5"], events=tmp_path / "e.csv")
    assert not list(tmp_path.glob("e.*"))
