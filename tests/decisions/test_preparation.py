"""Maps that are prepared before a threshold flags them: each step against a loop over the frame,
and the promise of prepared maps against a count by hand.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from scipy import ndimage

import segunc
from segunc.core.errors import InputError
from segunc.decisions.flags import Threshold
from segunc.decisions.guarantee import promise_of, read_threshold
from segunc.decisions.preparation import (
    MAX_RARITY,
    Preparation,
    classes_of_place,
    dilated,
    rarity,
)
from segunc.decisions.risks import Method, Scene
from segunc.gallery import drawing
from segunc.maps.manifest import read_manifest
from segunc.maps.reader import MapsReader
from segunc.maps.regions import surface_hull
from tests.conftest import Job
from tests.decisions.test_threshold import FRAMES, write_set
from tests.support.scenes import table
from tools import price_of_promises
from tools.simulate_guarantees import LEVEL, population, simulate

ROAD = 0
TREE = 1
SQUARE = np.ones((5, 5), bool)  # of a margin of 2


def scores(seed: int, shape: tuple[int, int] = (12, 17)) -> np.ndarray:
    """Scores in steps of a quarter, so that many are equal."""
    return np.rint(4 * np.random.default_rng(seed).normal(size=shape)) / 4


def test_rarity_is_the_share_of_the_frame_that_reaches_a_score() -> None:
    values = scores(0)
    rare = rarity(values)
    for value in np.unique(values):
        share = (values >= value).mean()
        np.testing.assert_allclose(rare[values == value], -np.log10(share), atol=2e-3)


def test_rarity_depends_on_the_order_of_the_scores_alone() -> None:
    values = scores(1)
    np.testing.assert_array_equal(rarity(values), rarity(np.exp(values) * 1e6 - 3))
    np.testing.assert_array_equal(rarity(values), rarity(values.astype(np.float16)))


def test_rarity_is_bounded_and_no_score_is_below_zero() -> None:
    values = np.arange(100_000.0).reshape(250, 400)
    rare = rarity(values)
    assert rare.max() == np.float16(MAX_RARITY)
    assert rare.min() == 0
    assert not np.signbit(rare).any()


def test_pixels_that_do_not_count_leave_the_rarity_of_others_alone() -> None:
    values = scores(2)
    kept = np.random.default_rng(0).random(values.shape) < 0.6
    rare = rarity(values, kept)
    np.testing.assert_array_equal(rare[kept], rarity(values[kept][None])[0])
    assert not rare[~kept].any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.uint8, np.uint16])
def test_a_margin_widens_what_every_threshold_flags(dtype: Any) -> None:
    """The map of the margin flags at each value what the map flags there, and two pixels more to
    each side.
    """
    values = (scores(3) * 4 + 20).astype(dtype)
    wide = dilated(values, 2)
    assert wide.dtype == dtype
    for value in np.unique(values):
        expected = ndimage.binary_dilation(values >= value, SQUARE)
        np.testing.assert_array_equal(wide >= value, expected)


def test_pixels_that_do_not_count_are_not_widened() -> None:
    values = np.zeros((5, 9))
    values[2, 4] = 1
    kept = np.ones(values.shape, bool)
    kept[2, 4] = False
    assert Preparation(margin=2)(values).any()
    assert not Preparation(margin=2)(values, kept=kept).any()


@pytest.mark.parametrize("level", ["none", "frame"])
def test_a_score_that_is_not_finite_is_not_widened(level: Any) -> None:
    values = scores(8)
    values[5, 5] = np.nan
    wide = Preparation(level=level, margin=2).ranked(values)
    values[5, 5] = values[np.isfinite(values)].min()
    expected = dilated(values, 2)
    assert np.isfinite(wide).all()
    np.testing.assert_array_equal(
        np.argsort(wide[0], kind="stable"), np.argsort(expected[0], kind="stable")
    )
    if level == "none":
        np.testing.assert_array_equal(wide, expected)


def test_outside_of_the_place_no_value_flags() -> None:
    values = scores(4)
    prediction = np.full(values.shape, TREE, np.uint8)
    prediction[6:] = ROAD
    prepared = Preparation(place=("road",), place_ids=(ROAD,), margin=1)(values, prediction)
    assert np.isneginf(prepared[:6]).all()
    np.testing.assert_array_equal(prepared[6:], dilated(values[6:], 1))


def test_a_place_needs_the_prediction() -> None:
    with pytest.raises(InputError, match="the place road needs the prediction of each frame"):
        Preparation(place=("road",), place_ids=(ROAD,))(scores(5))


def test_a_place_needs_a_prediction_of_the_size_of_the_map() -> None:
    prediction = np.zeros((3, 4), np.uint8)
    with pytest.raises(InputError, match="the prediction has 3 x 4 pixels, and the map 12 x 17"):
        Preparation(place=("road",), place_ids=(ROAD,))(scores(5), prediction)


def test_a_frame_without_the_surface_is_promised_as_a_whole() -> None:
    prediction = np.full((12, 17), TREE, np.uint8)
    assert surface_hull(prediction, [ROAD]).all()


def test_a_threshold_that_prepares_nothing_gives_the_map_itself() -> None:
    values = scores(6)
    assert Threshold(0.5).prepared(values, lambda: None) is values


def test_classes_of_a_place_are_found_by_name_or_by_number() -> None:
    assert classes_of_place(["tree"], ["road", "tree"]) == (1,)
    assert classes_of_place(["0", "3"], None) == (0, 3)
    with pytest.raises(InputError, match=r"place. car: the maps have no such class"):
        classes_of_place(["car"], ["road", "tree"])
    with pytest.raises(InputError, match=r"place. car: these maps do not name their classes"):
        classes_of_place(["car"], None)


def test_a_promise_names_its_surface() -> None:
    words = promise_of(
        "missed-objects",
        0.1,
        method="conformal",
        confidence=None,
        unit="frame",
        found_share=0.5,
        smallest=50,
        smallest_object=10,
        place=("road", "sidewalk"),
    )
    assert "anomalous objects on the surface of road and sidewalk of a frame are missed" in words


def scene_with_place() -> tuple[Scene, np.ndarray]:
    """A frame of which the right half is the place: an object in it, one of which 3 of 8 columns
    lie in it, and one outside.
    """
    keys = np.random.default_rng(7).integers(0, 256, (20, 30)).astype(np.uint8)
    anomaly = np.zeros(keys.shape, np.uint8)
    anomaly[2:6, 20:26] = 1
    anomaly[8:12, 10:18] = 1
    anomaly[14:18, 2:8] = 1
    place = np.zeros(keys.shape, bool)
    place[:, 15:] = True
    return Scene(keys, anomaly, None, None, place=place), keys


def test_objects_outside_of_the_place_do_not_count() -> None:
    scene, _ = scene_with_place()
    counts = scene.counts("missed-objects", found_share=0.5)
    assert counts is not None
    assert counts[1, 0] == 1
    more = scene.counts("missed-objects", found_share=0.375)
    assert more is not None
    assert more[1, 0] == 2, "of the second object three eighths can be flagged"


def test_counts_with_a_place_are_those_of_a_loop() -> None:
    scene, keys = scene_with_place()
    place = scene.inside
    anomaly = scene.anomaly
    assert anomaly is not None
    missed = scene.counts("missed-pixels")
    normal = scene.counts("flagged-pixels")
    objects = scene.counts("missed-objects", found_share=0.5)
    assert missed is not None
    assert normal is not None
    assert objects is not None
    for code in (0, 1, 100, 255):
        flagged = (keys >= code) & place
        key = 257 * code
        assert missed[0, key] == ((anomaly == 1) & place & ~flagged).sum()
        assert normal[0, key] == ((anomaly == 0) & flagged).sum()
        assert normal[1, key] == (anomaly == 0).sum()
        assert objects[0, key] == (flagged[2:6, 20:26].mean() < 0.5)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Maps of another tool, with a prediction: road at the left, where the objects are, and trees
    from column 16 on.
    """
    root = tmp_path_factory.mktemp("prepared")
    folders = {}
    for part, frames in (("calibration", FRAMES[:30]), ("test", FRAMES[40:])):
        maps, masks = write_set(root / part, frames)
        for place, name in enumerate(frames):
            prediction = np.full((24, 32), TREE, np.uint8)
            # In every third frame, the road ends above the lower object.
            prediction[: 12 if place % 3 == 0 else 24, :16] = ROAD
            path = maps / "prediction" / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), prediction)
        folders[part] = maps, masks
    return folders


def calibrate(folders: tuple[Path, Path], out: Path, **asked: Any) -> Any:
    usual: dict[str, Any] = {"control": "missed-objects", "level": 0.2, "score": "other"}
    return segunc.threshold(maps=folders[0], anomaly_labels=folders[1], out=out, **(usual | asked))


def flags_by_hand(values: np.ndarray, prediction: np.ndarray, made: Any) -> np.ndarray:
    """Return what is flagged, by loops and scipy."""
    asked = made.preparation
    place = prediction == ROAD if asked.place_ids else np.ones(values.shape, bool)
    if asked.level == "frame":
        ordered = np.sort(values[place])
        shares = 1 - np.searchsorted(ordered, values) / len(ordered)
        with np.errstate(divide="ignore"):
            values = np.minimum(-np.log10(shares), MAX_RARITY).astype(np.float16)
    flagged = (values >= np.float64(made.value)) & place
    if asked.margin:
        side = 2 * asked.margin + 1
        flagged = ndimage.binary_dilation(flagged, np.ones((side, side), bool)) & place
    return flagged


def by_hand(folders: tuple[Path, Path], made: Any) -> tuple[list[float], float]:
    """Return the share of missed objects of each frame that has one on the place, and the share of
    normal pixels that is flagged, the mean over the frames.
    """
    maps, masks = folders
    missed = []
    normal = []
    for path in sorted((maps / "other").rglob("*.npy")):
        name = f"{path.parent.name}/{path.stem}.png"
        prediction = cv2.imread(str(maps / "prediction" / name), cv2.IMREAD_UNCHANGED)
        mask = cv2.imread(str(masks / name), cv2.IMREAD_UNCHANGED)
        flagged = flags_by_hand(np.load(path), prediction, made)
        normal.append(flagged[mask == 0].mean())
        numbers, count = ndimage.label(mask == 1, np.ones((3, 3)))
        of_frame = []
        for number in range(1, count + 1):
            pixels = numbers == number
            if made.preparation.place_ids and (prediction[pixels] == ROAD).mean() < 0.5:
                continue
            of_frame.append(flagged[pixels].mean() < 0.5)
        if of_frame:
            missed.append(float(np.mean(of_frame)))
    return missed, float(np.mean(normal))


PREPARED: dict[str, dict[str, Any]] = {
    "level": {"level_frames": True},
    "margin": {"margin": 2},
    "place": {"place": ["0"]},
    "all": {"level_frames": True, "margin": 1, "place": ["0"]},
}


@pytest.mark.parametrize("asked", PREPARED)
def test_the_promise_is_about_what_is_flagged(data: Any, tmp_path: Path, asked: str) -> None:
    out = tmp_path / "t.json"
    result = calibrate(data["calibration"], out, **PREPARED[asked])
    made = result.threshold
    assert read_threshold(out) == made
    missed, normal = by_hand(data["calibration"], made)
    assert made.units == len(missed)
    assert made.risk == pytest.approx(np.mean(missed))
    assert made.bound == pytest.approx((sum(missed) + 1) / (len(missed) + 1))
    assert result.price["flagged-pixels"] == pytest.approx(normal)


@pytest.mark.parametrize("asked", PREPARED)
def test_evaluate_prepares_maps_as_the_calibration_did(
    data: Any, tmp_path: Path, asked: str
) -> None:
    out = tmp_path / "t.json"
    made = calibrate(data["calibration"], out, **PREPARED[asked]).threshold
    maps, masks = data["test"]
    result = segunc.evaluate(maps=maps, anomaly_labels=masks, flag=[str(out)], replicates=0)
    found = result.numbers["flagged"]["other"]
    missed, _ = by_hand(data["test"], made)
    assert found["risk"] == pytest.approx(np.mean(missed))
    assert found["units"] == len(missed)


def test_the_next_value_breaks_the_level_with_a_margin_too(data: Any, tmp_path: Path) -> None:
    made = calibrate(data["calibration"], tmp_path / "t.json", margin=2).threshold
    maps, _ = data["calibration"]
    values = np.unique(
        np.concatenate([np.load(p).ravel() for p in (maps / "other").rglob("*.npy")])
    )
    above = float(values[values > made.value][0])
    missed, _ = by_hand(data["calibration"], replace(made, value=above))
    assert (sum(missed) + 1) / (len(missed) + 1) > 0.2 >= made.bound


def test_objects_without_a_promise_are_counted_in_a_note(data: Any, tmp_path: Path) -> None:
    result = calibrate(data["calibration"], tmp_path / "t.json", place=["0"])
    maps, masks = data["calibration"]
    objects = 0
    outside = 0
    for path in sorted(masks.rglob("*.png")):
        mask = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        name = f"{path.parent.name}/{path.name}"
        prediction = cv2.imread(str(maps / "prediction" / name), cv2.IMREAD_UNCHANGED)
        numbers, count = ndimage.label(mask == 1, np.ones((3, 3)))
        objects += count
        for number in range(1, count + 1):
            outside += (prediction[numbers == number] == ROAD).mean() < 0.5
    assert outside
    line = f"{outside} of {objects} labelled objects lie outside of the surface of 0"
    assert any(line in note for note in result.notes)
    assert "on the surface of 0" in result.threshold.promise
    assert "Only the surface of 0 is flagged." in result.threshold.condition


def test_the_price_in_false_regions_is_that_of_a_count(data: Any, tmp_path: Path) -> None:
    result = calibrate(data["calibration"], tmp_path / "t.json", margin=1, smallest=4)
    maps, masks = data["calibration"]
    regions = []
    for path in sorted((maps / "other").rglob("*.npy")):
        name = f"{path.parent.name}/{path.stem}.png"
        mask = cv2.imread(str(masks / name), cv2.IMREAD_UNCHANGED)
        flagged = flags_by_hand(np.load(path), mask, result.threshold) & (mask == 0)
        numbers, count = ndimage.label(flagged, np.ones((3, 3)))
        sizes = np.bincount(numbers.ravel(), minlength=count + 1)[1:]
        regions.append((sizes >= 4).sum())
    assert result.regions == pytest.approx(np.mean(regions))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"margin": 257}, "257 is not a number of at least 0 and at most 256"),
        ({"margin": -1}, "-1 is not a number of at least 0 and at most 256"),
        ({"place": ["road"]}, "place. road: these maps do not name their classes"),
    ],
)
def test_what_cannot_be_prepared_is_one_sentence(
    data: Any, tmp_path: Path, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        calibrate(data["calibration"], tmp_path / "t.json", **asked)
    assert not (tmp_path / "t.json").exists()


def test_maps_without_a_prediction_have_no_place(tmp_path: Path) -> None:
    folders = write_set(tmp_path, FRAMES[:12])
    with pytest.raises(InputError, match="the place 0 needs the prediction of each frame"):
        calibrate(folders, tmp_path / "t.json", place=["0"])


def test_no_object_on_the_surface_is_refused(tmp_path: Path) -> None:
    """All objects are left of column 9, and the road is right of column 15."""
    folders = write_set(tmp_path, FRAMES[:12])
    prediction = np.full((24, 32), TREE, np.uint8)
    prediction[:, 16:] = ROAD
    for name in FRAMES[:12]:
        path = folders[0] / "prediction" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), prediction)
    message = "says nothing here: no labelled object lies on the surface of 0"
    with pytest.raises(InputError, match=message):
        calibrate(folders, tmp_path / "t.json", place=["0"])


def test_too_few_frames_name_the_number_that_is_needed(data: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"30 units are too few .* of 0.02, which needs 49"):
        calibrate(data["calibration"], tmp_path / "t.json", margin=1, level=0.02)


def copy_first_frame(folders: tuple[Path, Path], copies: int) -> None:
    """Write the first frame once more under other names."""
    maps, masks = folders
    for number in range(copies):
        name = FRAMES[1]
        shutil.copy(maps / "other" / f"{name}.npy", maps / "other" / f"day/copy{number:02d}.npy")
        shutil.copy(masks / f"{name}.png", masks / f"day/copy{number:02d}.png")


def test_a_set_of_copies_promises_nothing(tmp_path: Path) -> None:
    folders = write_set(tmp_path, FRAMES[:3])
    copy_first_frame(folders, 17)
    message = "only 3 of these 20 frames differ from each other, and 4 different ones are needed"
    with pytest.raises(InputError, match=message):
        calibrate(folders, tmp_path / "t.json")


def test_copies_among_enough_frames_are_a_note(tmp_path: Path) -> None:
    folders = write_set(tmp_path, FRAMES[:12])
    copy_first_frame(folders, 2)
    result = calibrate(folders, tmp_path / "t.json")
    assert any("2 of these 14 frames have the bytes of another one" in n for n in result.notes)


def test_a_file_of_an_earlier_version_prepares_nothing(data: Any, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    made = calibrate(data["calibration"], out).threshold
    content = json.loads(out.read_text())
    assert content["preparation"] == {"level": "none", "margin": 0, "place": [], "place_ids": []}
    del content["preparation"], content["record_sha256"]
    out.write_text(json.dumps(content))
    assert read_threshold(out) == made
    assert asdict(made)["preparation"]["margin"] == 0


@pytest.mark.parametrize(
    "preparation", [Preparation(level="frame"), Preparation(margin=1)], ids=["level", "margin"]
)
def test_the_promise_holds_for_prepared_maps(preparation: Preparation) -> None:
    """On synthetic frames whose risk is known, as for maps that are not prepared."""
    rows = population(250, preparation=preparation)["missed-objects"]
    risks = simulate(rows, "missed-objects", Method("conformal"), n=40, draws=300)
    assert risks.mean() <= LEVEL + 3 * risks.std() / np.sqrt(300)
    assert risks.std() > 0


def calibrate_predicted(job: Job, out: Path, **asked: Any) -> Any:
    """Calibrate a threshold of entropy on maps of this tool."""
    return segunc.threshold(
        maps=job.maps,
        anomaly_labels=job.masks,
        out=out,
        control="flagged-pixels",
        level=0.3,
        score="entropy",
        **asked,
    ).threshold


def test_maps_and_model_flag_the_same_prepared_pixels(predicted: Job, tmp_path: Path) -> None:
    """The same frames, under another name, so that they may test the promise."""
    out = tmp_path / "t.json"
    calibrate_predicted(predicted, out, place=["road"], margin=2, level_frames=True)
    content = json.loads(out.read_text())
    content["frames"] = {}
    del content["record_sha256"]
    out.write_text(json.dumps(content))
    asked: dict[str, Any] = {"flag": [str(out)], "replicates": 0, "scores": ["entropy"]}
    of_maps = segunc.evaluate(maps=predicted.maps, anomaly_labels=predicted.masks, **asked)
    of_model = segunc.evaluate(
        model=predicted.abnn,
        dataset="toy",
        root=predicted.data,
        split="anomaly",
        draws=4,
        precision="float32",
        device="cpu",
        **asked,
    )
    numbers = of_maps.numbers["flagged"]["entropy"]
    assert numbers["risk"] == content["risk"]
    # Rounding of the network may swap the ranks of two pixels.
    found = of_model.numbers["flagged"]["entropy"]
    assert found["risk"] == pytest.approx(numbers["risk"], abs=1e-3)


def flagged_pixels(job: Job, made: Any) -> dict[str, np.ndarray]:
    """Return what is flagged in each frame, bool ``[H, W]``."""
    reader = MapsReader(job.maps)
    flagged = {}
    for name in reader.frames:
        values = made.preparation(reader.read(name, "entropy"), reader.prediction(name))
        flagged[name] = values >= np.float64(made.value)
    return flagged


def test_events_follow_what_is_flagged(predicted: Job, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    made = calibrate_predicted(predicted, out, place=["road"], margin=2)
    segunc.summary(
        maps=predicted.maps, flag=[str(out)], fps=25, events=str(tmp_path / "events.json")
    )
    events = json.loads((tmp_path / "events.json").read_text())
    largest = max(event["largest"] for event in events)
    expected = 0
    for mask in flagged_pixels(predicted, made).values():
        numbers, _ = ndimage.label(mask, np.ones((3, 3)))
        expected = max(expected, int(np.bincount(numbers.ravel(), minlength=2)[1:].max()))
    assert largest == expected


def test_overlays_outline_what_is_flagged(
    predicted: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "t.json"
    made = calibrate_predicted(predicted, out, place=["road"], margin=2, level_frames=True)
    drawn = []
    outline = drawing._outline

    def noted(picture: Any, anomaly: Any, legend: Any, prepared: Any) -> Any:
        drawn.append(prepared >= np.float64(legend.threshold))
        assert legend.flagged.startswith("rarity of entropy in its frame >= ") or legend.promise
        return outline(picture, anomaly, legend, prepared)

    monkeypatch.setattr(drawing, "_outline", noted)
    segunc.overlay(maps=predicted.maps, out=tmp_path / "o", score=["entropy"], flag=[str(out)])
    for mask, expected in zip(drawn, flagged_pixels(predicted, made).values(), strict=True):
        np.testing.assert_array_equal(mask, expected)


def test_predict_outlines_what_is_flagged_and_records_it(predicted: Job, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    calibrate_predicted(predicted, out, place=["road"], margin=2)
    segunc.predict(
        predicted.abnn,
        predicted.frames,
        out=tmp_path / "m",
        scores=["entropy"],
        overlay=True,
        flag=[str(out)],
        draws=4,
        precision="float32",
        device="cpu",
    )
    run = (read_manifest(tmp_path / "m") or {})["run"]
    assert run["flag_preparation"]["entropy"]["margin"] == 2
    assert run["flag_preparation"]["entropy"]["place"] == ["road"]


def test_the_review_page_ranks_frames_by_what_is_flagged(predicted: Job, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    made = calibrate_predicted(predicted, out, place=["road"], level_frames=True)
    strengths = {}
    reader = MapsReader(predicted.maps)
    for name, mask in flagged_pixels(predicted, made).items():
        values = made.preparation(reader.read(name, "entropy"), reader.prediction(name))
        numbers, count = ndimage.label(mask, np.ones((3, 3)))
        excess = np.where(mask, values.astype(np.float64) - made.value, 0)
        sums = ndimage.sum(excess, numbers, range(1, count + 1))
        strengths[name] = float(max(sums, default=0))
    ranked = sorted(strengths, key=lambda name: -strengths[name])
    for limit in (None, 2):
        page = segunc.review(
            maps=predicted.maps, out=tmp_path / f"{limit}", flag=[str(out)], limit=limit
        ).page
        assert page is not None
        rows = {row["name"]: row["statistics"]["entropy"] for row in table(page, "frames")}
        assert {*rows} == {*ranked[:limit]}
        for name, statistics in rows.items():
            assert statistics["region"] == pytest.approx(strengths[name], rel=1e-3)


def test_the_review_page_shows_the_prepared_map(predicted: Job, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    made = calibrate_predicted(predicted, out, place=["road"], margin=2, level_frames=True)
    page = segunc.review(maps=predicted.maps, out=tmp_path / "review", flag=[str(out)]).page
    assert page is not None
    facts = (page.parent / "data" / "page.js").read_text()
    assert f'\\"region_from\\":{made.value}' in facts
    assert "3 = one in 1,000 pixels of the surface of road in this frame scores as high" in facts
    notices = json.loads((page.parent / "review.json").read_text())["notices"]
    assert "calibration" in notices[0]  # these frames cannot test the promise
    assert made.condition in notices[1]
    rows = (page.parent / "data" / "frames.js").read_text()
    areas = []
    for mask in flagged_pixels(predicted, made).values():
        numbers, _ = ndimage.label(mask, np.ones((3, 3)))
        areas.append(int(np.bincount(numbers.ravel(), minlength=2)[1:].max()))
    assert any(f'\\"area\\":{area}' in rows for area in areas)


def test_the_page_counts_objects_outside_of_the_place_as_not_found(
    data: Any, tmp_path: Path
) -> None:
    out = tmp_path / "t.json"
    result = calibrate(data["calibration"], out, place=["0"], smallest=4)
    maps, masks = data["calibration"]
    page = segunc.review(
        maps=maps, anomaly_labels=masks, out=tmp_path / "review", flag=[str(out)]
    ).page
    assert page is not None
    text = (page.parent / "data" / "frames.js").read_text()
    found = [json.loads(part) for part in re.findall(r'\\"other\\":(\[[^\]]*\])', text)]
    values = [value for of_frame in found for value in of_frame]
    (note,) = [note for note in result.notes if "lie outside of the surface" in note]
    assert sum(value < -1e38 for value in values) == int(note.split()[0])


def test_an_exported_file_takes_no_prepared_threshold(predicted: Job, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    calibrate_predicted(predicted, out, margin=2)
    with pytest.raises(
        InputError, match=r"t.json flags prepared maps \(what is flagged is widened"
    ):
        segunc.export(
            model=predicted.abnn,
            to="pt2",
            out=tmp_path / "export",
            threshold=str(out),
            scores=["entropy"],
            draws=4,
            size=(64, 96),
        )


def test_the_tool_for_prices_counts_as_the_verb_does(
    data: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maps, masks = data["calibration"]
    words = ["--maps", str(maps), "--anomaly-labels", str(masks), "--score", "other"]
    words += ["--place", "0", "--margins", "1", "--splits", "4", "--level", "0.2"]
    price_of_promises.main(words)
    _, _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 4, "with and without a place, with and without levelled frames"
    asked = price_of_promises.read_options(words)
    reader = MapsReader(maps)
    labels = price_of_promises.labels_of(asked, reader)
    for preparation in price_of_promises.preparations(asked, None):
        prices = price_of_promises.measure(reader, labels, preparation, asked)
        key = price_of_promises.threshold_of(prices.missed, 0.2)
        made = calibrate(
            data["calibration"],
            tmp_path / "t.json",
            margin=1,
            place=preparation.place or None,
            level_frames=preparation.level == "frame",
        )
        assert len(prices.missed) == made.threshold.units
        assert prices.missed[:, key].mean() == pytest.approx(made.threshold.risk)
        if not preparation.place:
            assert prices.flagged[:, key].mean() == pytest.approx(made.price["flagged-pixels"])
