"""``segunc threshold`` and who uses its file: on maps of another tool, whose numbers a loop over
their values gives, and on ours.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from scipy import ndimage

import segunc
from segunc.cli.main import main
from segunc.colours import DisplayRange
from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import write_result
from segunc.data.datasets import entry_of_labels
from segunc.decisions.flags import (
    CALIBRATED_ON,
    SAME_BYTES,
    Threshold,
    check_promises,
    read_thresholds,
)
from segunc.decisions.guarantee import (
    GuaranteedThreshold,
    read_threshold,
    settings_of,
    source_of,
)
from segunc.decisions.risks import Method
from segunc.evaluation.tables import format_metrics
from segunc.gallery.drawing import Legend, _outline
from segunc.maps.manifest import read_manifest
from segunc.maps.reader import MapsReader
from segunc.verbs.execution import _overlay_score
from segunc.verbs.threshold import _Choice
from tests.conftest import Job

FRAMES = [f"{'day' if i % 3 else 'night'}/f{i:02d}" for i in range(60)]
TEST = FRAMES[40:]


def write_set(root: Path, frames: list[str]) -> tuple[Path, Path]:
    """Maps of another tool, float16, and masks: an object of 5 x 5 in every frame, a second one in
    some.
    """
    for name in frames:
        random = np.random.default_rng(int(name[-2:]))
        values, mask = random.normal(0, 1, (24, 32)), np.zeros((24, 32), np.uint8)
        for top in (2, 14)[: 1 + int(name[-1]) % 2]:
            mask[top : top + 5, 4:9] = 1
            values[top : top + 5, 4:9] += 1.5 + random.gamma(4, 0.8)
        (root / "maps" / "other" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "masks" / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(root / "maps" / "other" / f"{name}.npy", values.astype(np.float16))
        cv2.imwrite(str(root / "masks" / f"{name}.png"), mask)
    return root / "maps", root / "masks"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    root = tmp_path_factory.mktemp("data")
    return {"calibration": write_set(root / "a", FRAMES[:40]), "test": write_set(root / "b", TEST)}


def calibrate(data: Any, out: Path, **asked: Any) -> Any:
    maps, masks = data["calibration"]
    usual = {
        "control": "missed-objects",
        "level": 0.2,
        "score": "other",
    }
    return segunc.threshold(maps=maps, anomaly_labels=masks, out=out, **(usual | asked))


def missed_objects(folders: tuple[Path, Path], value: float) -> list[float]:
    """The share of objects of each frame of which less than half is flagged."""
    shares = []
    for path in sorted((folders[0] / "other").rglob("*.npy")):
        flagged = np.load(path) >= value
        mask = cv2.imread(
            str(folders[1] / path.parent.name / f"{path.stem}.png"), cv2.IMREAD_UNCHANGED
        )
        numbers, count = ndimage.label(mask == 1, np.ones((3, 3)))
        shares.append(
            float(np.mean([flagged[numbers == i].mean() < 0.5 for i in range(1, count + 1)]))
        )
    return shares


def test_the_file_says_what_was_promised(data: Any, tmp_path: Path) -> None:
    out = tmp_path / "threshold.json"
    made = calibrate(data, out).threshold
    assert read_threshold(out) == made
    losses = missed_objects(data["calibration"], made.value)
    assert made.risk == pytest.approx(np.mean(losses))
    assert made.bound == pytest.approx((sum(losses) + 1) / 41)
    assert made.units == 40 == len(made.frames) == len(set(made.frames.values()))
    assert "at most 20 % of the anomalous objects of a frame are missed" in made.promise


def test_the_next_value_misses_more_than_the_level_allows(data: Any, tmp_path: Path) -> None:
    made = calibrate(data, tmp_path / "threshold.json").threshold
    maps, _ = data["calibration"]
    values = np.unique(np.concatenate([np.load(path).ravel() for path in maps.rglob("*.npy")]))
    above = float(values[values > made.value][0])
    assert (sum(missed_objects(data["calibration"], above)) + 1) / 41 > 0.2 >= made.bound


def test_evaluate_says_what_is_achieved(data: Any, tmp_path: Path) -> None:
    out = tmp_path / "threshold.json"
    made = calibrate(data, out).threshold
    maps, masks = data["test"]
    result = segunc.evaluate(maps=maps, anomaly_labels=masks, flag=[str(out)], replicates=60)
    numbers = result.numbers["flagged"]["other"]
    assert numbers["risk"] == pytest.approx(np.mean(missed_objects(data["test"], made.value)))
    assert numbers["level"] == 0.2
    assert numbers["units"] == 20
    assert numbers["promise"] == made.promise
    assert numbers["risk"] < numbers["upper"] < 1
    assert not any("Achieved" in note for note in result.notes)
    (line,) = result.exceeded
    assert line.startswith("PROMISE EXCEEDED: by other, missed objects are 0.")


def test_the_calibration_cannot_test_its_own_promise(data: Any, tmp_path: Path) -> None:
    out = tmp_path / "threshold.json"
    calibrate(data, out)
    maps, masks = data["calibration"]
    message = r"40 of these frames, first .* are among the 40 that threshold.json"
    with pytest.raises(InputError, match=message):
        segunc.evaluate(maps=maps, anomaly_labels=masks, flag=[str(out)])


RISING_CHANGES: dict[str, Any] = {
    "near one": lambda s: (1 - 1e-4 * np.exp(-s)).astype(np.float32),
    "tiny": lambda s: (1e-9 * s).astype(np.float32),
    "an offset": lambda s: (s + 1500).astype(np.float32),
    "beyond float16": lambda s: (1e6 * s).astype(np.float32),
    "near one, float64": lambda s: 1 - 1e-12 * np.exp(-s),
}


@pytest.mark.parametrize("change", RISING_CHANGES)
@pytest.mark.parametrize("control", ["missed-pixels", "flagged-pixels"])
def test_a_threshold_parts_floats_of_any_scale_where_the_promise_ends(
    tmp_path: Path, change: str, control: str
) -> None:
    """By a loop over all scores: the last one that keeps (sum of losses + 1) / (n + 1) to the
    level, from the safe end on."""
    maps, masks = write_set(tmp_path, FRAMES[:20])
    frames = []
    for path in sorted(maps.rglob("*.npy")):
        values = RISING_CHANGES[change](np.load(path).astype(np.float64))
        np.save(path, values)
        mask = cv2.imread(str(masks / path.parent.name / f"{path.stem}.png"), cv2.IMREAD_UNCHANGED)
        frames.append((values, mask))
    made = calibrate({"calibration": (maps, masks)}, tmp_path / "t.json", control=control)

    def holds(threshold: float) -> bool:
        label = 1 if control == "missed-pixels" else 0
        flagged = [float((values[mask == label] >= threshold).mean()) for values, mask in frames]
        losses = [1 - share if label else share for share in flagged]
        return (sum(losses) + 1) / 21 <= 0.2 + 1e-12

    scores = np.unique(np.concatenate([values.ravel() for values, _ in frames]))
    value = np.asarray(made.threshold.value)
    assert holds(float(value))
    if control == "missed-pixels":
        assert not holds(float(scores[scores > value][0]))
    else:
        assert not holds(float(scores[scores < value][-1]))


@pytest.fixture(scope="module")
def bright(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Other frames than those of the calibration, on which every score is higher."""
    maps, masks = write_set(tmp_path_factory.mktemp("bright"), TEST)
    for path in maps.rglob("*.npy"):
        np.save(path, np.load(path) + np.float16(3))
    return maps, masks


def test_a_promise_that_is_kept_is_a_note_with_its_bound(
    data: Any, bright: tuple[Path, Path], tmp_path: Path
) -> None:
    made = calibrate(data, tmp_path / "t.json").threshold
    maps, masks = bright
    result = segunc.evaluate(
        maps=maps, anomaly_labels=masks, flag=[str(tmp_path / "t.json")], replicates=0
    )
    (note,) = [note for note in result.notes if note.startswith("promised: ")]
    found = result.numbers["flagged"]["other"]
    assert f"{made.promise} Achieved, mean over 20 other units: {found['risk']:.3g}, of 0.2" in note
    assert f"{found['upper']:.3g} at most, with 95 % confidence" in note
    assert result.exceeded == ()
    assert (found["condition"], found["control"]) == (made.condition, "missed-objects")


def test_an_exceeded_promise_is_the_last_line_and_the_first_row(
    data: Any, bright: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of two risks is exceeded: normal ground is brighter than in the calibration."""
    out = tmp_path / "both.json"
    calibrate(data, out, also={"flagged-pixels": 0.3}, confidence=0.8, level=0.4)
    maps, masks = bright
    words = ["evaluate", "--maps", str(maps), "--anomaly-labels", str(masks), "--flag", str(out)]
    assert main([*words, "--replicates", "0", "--out", str(tmp_path / "m.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("PROMISE EXCEEDED: by other, flagged normal pixels are ")
    assert re.search(r" are 0\.\d+, mean over \d+ other units, and 0\.3 was promised$", lines[-1])
    assert any("| achieved (mean over units) |" in line for line in lines)
    rows = [line for line in lines if line.startswith("| other ")]
    assert "flagged normal pixels" in rows[0]
    assert "EXCEEDED" in rows[0]
    assert "missed objects" in rows[1]
    assert "kept" in rows[1]


def copy_frame(data: Any, root: Path, name: str, new: str) -> None:
    """Put map and mask of a calibration frame into another set, under a name of its own."""
    for folder, inside, ending in zip(
        data["calibration"], ("maps/other", "masks"), ("npy", "png"), strict=True
    ):
        target = root / inside / f"{new}.{ending}"
        target.parent.mkdir(parents=True, exist_ok=True)
        part = folder / "other" if ending == "npy" else folder
        shutil.copy(part / f"{name}.{ending}", target)


def test_frames_of_the_calibration_are_left_out_and_other_frames_with_their_bytes_are_not(
    data: Any, tmp_path: Path
) -> None:
    made = calibrate(data, tmp_path / "threshold.json").threshold
    others = write_set(tmp_path / "set", TEST)
    achieved = missed_objects(others, made.value)
    dark = missed_objects(data["calibration"], made.value)[
        26
    ]  # day comes first, so it is night/f00
    copy_frame(data, tmp_path / "set", FRAMES[1], FRAMES[1])
    copy_frame(data, tmp_path / "set", FRAMES[2], "renamed/f02")
    for place in range(5):
        copy_frame(data, tmp_path / "set", FRAMES[0], f"dark/f{place:02d}")
    asked: dict[str, Any] = {"flag": [str(tmp_path / "threshold.json")], "replicates": 0}
    result = segunc.evaluate(maps=others[0], anomaly_labels=others[1], **asked)
    left_out = {entry["frame"]: entry["reason"] for entry in result.numbers["left_out"]}
    assert left_out == {
        FRAMES[1]: CALIBRATED_ON,
        "renamed/f02": SAME_BYTES,
        "dark/f00": SAME_BYTES,
    }
    found = result.numbers["flagged"]["other"]
    assert found["units"] == 20 + 4
    assert found["risk"] == pytest.approx((sum(achieved) + 4 * dark) / 24)
    assert result.failure == ""
    assert "Left out: 3 of 27 frames" in format_metrics(result.numbers)


def add_specks(masks: Path) -> None:
    """Mark three single pixels in each mask, where the score is low."""
    for path in masks.rglob("*.png"):
        mask = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        mask[0, 12] = mask[10, 20] = mask[22, 30] = 1
        cv2.imwrite(str(path), mask)


def test_every_room_counts_the_same_objects(tmp_path: Path) -> None:
    """Objects are 40 or 20 regions of 25 pixels, and each frame has three specks beside them."""
    plain = write_set(tmp_path / "plain", FRAMES[:40])
    specks = write_set(tmp_path / "specks", FRAMES[:40])
    add_specks(specks[1])
    asked: dict[str, Any] = {
        "control": "missed-objects",
        "level": 0.2,
        "score": "other",
    }
    made = {}
    for name, (maps, masks) in {"plain": plain, "specks": specks}.items():
        out = tmp_path / f"{name}.json"
        made[name] = segunc.threshold(maps=maps, anomaly_labels=masks, out=out, **asked).threshold
    assert made["specks"].value == made["plain"].value
    assert made["specks"].smallest_object == 10
    assert "regions below 10 pixels are specks beside larger ones" in made["specks"].promise
    others = write_set(tmp_path / "others", TEST)
    add_specks(others[1])
    flag = [str(tmp_path / "specks.json")]
    evaluated: dict[str, Any] = {
        "flag": flag,
        "replicates": 0,
        "fps": 10,
        "by": ["size"],
    }
    result = segunc.evaluate(maps=others[0], anomaly_labels=others[1], **evaluated).numbers
    objects = 20 + 10  # of twenty frames, of which every second has two
    by_size = [bins["objects"] for bins in result["scores"]["other"]["size"].values()]
    flagged = [bins["objects"] for bins in result["flagged"]["other"]["size"].values()]
    assert (sum(by_size), sum(flagged)) == (objects, objects)
    assert result["run"]["smallest_object"] == 10
    assert result["run"]["smallest_region"] == {"other": 50}
    page = segunc.review(
        maps=others[0], anomaly_labels=others[1], flag=flag, out=tmp_path / "review"
    ).page
    text = (page.parent / "data" / "frames.js").read_text()
    assert sum(map(int, re.findall(r'\\"objects\\":(\d+)', text))) == objects


SPECKS = (
    " labelled objects have fewer than 10 pixels, in 3 frames without a larger one, so numbers of "
    "objects may be of specks of the labelling"
)


def leave_specks(masks: Path, frames: list[str]) -> None:
    """Mark two single pixels in the masks of these frames, and nothing else."""
    for name in frames:
        mask = np.zeros((24, 32), np.uint8)
        mask[3, 5] = mask[20, 30] = 1
        cv2.imwrite(str(masks / f"{name}.png"), mask)


def test_a_threshold_says_that_its_objects_are_specks(tmp_path: Path) -> None:
    calibration = write_set(tmp_path / "a", FRAMES[:40])
    plain = calibrate({"calibration": calibration}, tmp_path / "plain.json")
    assert not any("specks" in note for note in plain.notes)
    leave_specks(calibration[1], FRAMES[:3])  # which had 1, 2 and 1 of 60 objects
    made = calibrate({"calibration": calibration}, tmp_path / "t.json")
    assert f"6 of 62{SPECKS}" in made.notes


def test_evaluate_says_that_its_objects_are_specks(tmp_path: Path) -> None:
    maps, masks = write_set(tmp_path / "b", TEST)
    asked: dict[str, Any] = {"maps": maps, "anomaly_labels": masks, "replicates": 0}
    plain = segunc.evaluate(**asked, by=["size"])
    assert plain.numbers["counts"]["objects"] == 30
    assert "fewer than" not in format_metrics(plain.numbers)
    leave_specks(masks, TEST[:3])  # which had 1, 2 and 1 of 30 objects
    result = segunc.evaluate(**asked, by=["size"], flag=["other=3"])
    assert f"6 of 32{SPECKS}" in result.notes
    counts = result.numbers["counts"]
    assert counts["objects"] == 32
    assert counts["small_objects"] == 6
    assert counts["small_object_frames"] == 3
    text = format_metrics(result.numbers)
    for title in ("Anomalous objects by their pixels", "Labelled objects at the threshold by size"):
        (line,) = [line for line in text.splitlines() if line.startswith(title)]
        assert line.endswith("; 6 of 32 labelled objects have fewer than 10 pixels")
    without_objects = segunc.evaluate(**asked, by=["none"])
    assert not any("specks" in note for note in without_objects.notes)


def test_an_exceeded_promise_on_objects_says_that_some_are_specks(
    data: Any, tmp_path: Path
) -> None:
    maps, masks = write_set(tmp_path / "b", TEST)
    leave_specks(masks, TEST[:3])
    ends = {
        "missed-objects": " was promised; 6 of 32 labelled objects have fewer than 10 pixels",
        "flagged-pixels": " was promised",
    }
    for control, end in ends.items():
        if control == "flagged-pixels":
            for path in maps.rglob("*.npy"):
                np.save(path, np.load(path) + np.float16(3))
        out = tmp_path / f"{control}.json"
        calibrate(data, out, control=control)
        evaluated = segunc.evaluate(maps=maps, anomaly_labels=masks, flag=[str(out)], replicates=0)
        (line,) = evaluated.exceeded
        assert line.endswith(end)


def test_a_threshold_of_an_earlier_version_counts_specks_as_it_did(
    data: Any, tmp_path: Path
) -> None:
    out = tmp_path / "t.json"
    made = calibrate(data, out).threshold
    content = json.loads(out.read_text())
    del content["smallest_object"], content["source"], content["record_sha256"]
    out.write_text(json.dumps(content))
    maps, masks = write_set(tmp_path / "others", TEST)
    add_specks(masks)
    result = segunc.evaluate(maps=maps, anomaly_labels=masks, flag=[str(out)], replicates=0)
    losses = missed_objects((maps, masks), made.value)
    assert result.numbers["flagged"]["other"]["risk"] == pytest.approx(np.mean(losses))
    assert result.numbers["run"]["smallest_object"] == 0
    assert any("t.json counts labelled regions of any size as objects" in n for n in result.notes)


def test_one_result_has_one_kind_of_object(data: Any, tmp_path: Path) -> None:
    calibrate(data, tmp_path / "t.json")
    maps, masks = data["test"]
    asked: dict[str, Any] = {"flag": [str(tmp_path / "t.json")], "smallest_object": 30}
    with pytest.raises(InputError, match=r"t.json counts labelled objects from 10 pixels on"):
        segunc.evaluate(maps=maps, anomaly_labels=masks, **asked)


def test_two_risks_share_the_error_probability(data: Any, tmp_path: Path) -> None:
    """0.1 of it for each of two."""
    out = tmp_path / "both.json"
    both = calibrate(data, out, also={"flagged-pixels": 0.2}, confidence=0.8).threshold
    alone = calibrate(data, tmp_path / "one.json", confidence=0.9).threshold
    assert both.value == alone.value
    assert both.method == "ltt"
    assert both.confidence == 0.8
    assert alone.confidence == 0.9


def write_bridges(root: Path, frames: int) -> tuple[Path, Path]:
    """Maps and masks of frames with an object at .996, and five false regions at .9975 that become
    one at .99. The keys at which regions are counted are those of .984 and of 1.
    """
    (root / "maps" / "other").mkdir(parents=True)
    (root / "masks").mkdir()
    for place in range(frames):
        values, mask = np.full((12, 24), 0.1), np.zeros((12, 24), np.uint8)
        mask[8:12, 2:6] = 1
        values[8:12, 2:6] = 0.99609375
        values[2, 1:20] = 0.99
        values[2, 1:20:4] = 0.9975
        values[6, place % 24] += place / 100  # no two frames are the same
        np.save(root / "maps" / "other" / f"f{place:02d}.npy", values.astype(np.float16))
        cv2.imwrite(str(root / "masks" / f"f{place:02d}.png"), mask)
    return root / "maps", root / "masks"


@pytest.mark.parametrize(
    "asked",
    [
        {"control": "missed-objects", "level": 0.2, "also": {"false-alarms": 2}},
        {"control": "flagged-pixels", "level": 0.08, "also": {"false-alarms": 2}},
        {"control": "false-alarms", "level": 2, "also": {"missed-objects": 0.2}},
    ],
)
def test_two_risks_meet_where_false_alarms_are_counted(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    data = {"calibration": write_bridges(tmp_path, 150)}
    made = calibrate(data, tmp_path / "t.json", smallest=1, **asked)
    of_alarms = made.threshold.also.get("false-alarms", {"risk": made.threshold.risk})
    assert made.regions <= of_alarms["risk"] <= 2


@pytest.mark.parametrize(
    ("keys", "of_rising", "of_falling"),
    [
        ({"missed-objects": 70, "false-alarms": 32}, 64, 32),
        ({"missed-objects": 35, "false-alarms": 33}, 33, 33),
        ({"missed-objects": 70, "false-alarms": 32, "flagged-pixels": 40}, 64, 64),
        ({"missed-objects": 50, "false-alarms": 32, "flagged-pixels": 40}, None, None),
        ({"missed-objects": 50, "flagged-pixels": 40}, 50, 40),
        ({"missed-objects": 30, "flagged-pixels": 40}, None, None),
    ],
)
def test_a_common_value_is_one_at_which_regions_are_counted(
    monkeypatch: pytest.MonkeyPatch,
    keys: dict[str, int],
    of_rising: int | None,
    of_falling: int | None,
) -> None:
    """They are counted at every 32nd of 65,536 keys, and at the one that false alarms ask for."""
    units: Any = SimpleNamespace(size=1 << 16, sums={name: name for name in keys})
    choice = _Choice(units, dict.fromkeys(keys, 0.1), Method("conformal"))
    monkeypatch.setattr(_Choice, "_key", lambda self, sums, level: keys[sums])
    for control, expected in (("missed-objects", of_rising), ("flagged-pixels", of_falling)):
        if expected is None:
            with pytest.raises(InputError, match="no threshold keeps to the levels of"):
                choice.common_key(control)
        else:
            assert choice.common_key(control) == expected


def test_maps_of_another_scale_than_those_of_the_calibration_are_refused(
    data: Any, tmp_path: Path
) -> None:
    """A value of floats around 0 would flag nearly every pixel of a PNG in 0..255."""
    out = tmp_path / "t.json"
    calibrate(data, out)
    maps, masks = data["test"]
    (tmp_path / "maps" / "other").mkdir(parents=True)
    grey = np.arange(24 * 32, dtype=np.uint8).reshape(24, 32)
    cv2.imwrite(str(tmp_path / "maps" / "other" / "f.png"), grey)
    flag = [str(out)]
    message = "the map 'other' is stored as uint8, but t.json was calibrated on maps stored as fl"
    with pytest.raises(InputError, match=message):
        segunc.review(maps=tmp_path / "maps", out=tmp_path / "page", flag=flag)
    with pytest.raises(InputError, match=message):
        segunc.overlay(maps=tmp_path / "maps", out=tmp_path / "o", score=["other"], flag=flag)
    segunc.review(maps=maps, anomaly_labels=masks, out=tmp_path / "page", flag=flag)


def test_the_second_risk_is_recorded_and_evaluated(data: Any, tmp_path: Path) -> None:
    out = tmp_path / "both.json"
    made = calibrate(data, out, also={"flagged-pixels": 0.2}, confidence=0.8).threshold
    assert made.levels == {"missed-objects": 0.2, "flagged-pixels": 0.2}
    second = made.also["flagged-pixels"]
    assert second["risk"] < second["bound"] <= 0.2
    maps, masks = data["test"]
    result = segunc.evaluate(maps=maps, anomaly_labels=masks, flag=[str(out)], replicates=0)
    assert result.numbers["flagged"]["other"]["flagged-pixels"]["level"] == 0.2


def test_the_command_is_recorded(data: Any, tmp_path: Path) -> None:
    out = tmp_path / "both.json"
    made = calibrate(data, out, also={"flagged-pixels": 0.2}, confidence=0.8).threshold
    assert made.command.startswith("segunc threshold --anomaly-labels")
    assert made.command.endswith("--confidence 0.8 --also flagged-pixels=0.2 --score other")


def test_groups_have_their_own_thresholds(data: Any, tmp_path: Path) -> None:
    out = tmp_path / "one.json"
    made = calibrate(data, out, confidence=0.9, groups="^[a-z]+").threshold
    assert {name: numbers["units"] for name, numbers in made.groups.items()} == {
        "day": 26,
        "night": 14,
    }
    (flag,) = read_thresholds([f"{out}:night"]).values()
    assert flag.value == made.groups["night"]["value"] < made.value, "fewer units promise less"
    of_group = "This is group night, calibrated on 14 units, and says nothing of other frames."
    assert flag.promise == f"{made.promise} {of_group}"
    assert flag.short == "missed objects <= 20 % (90 % sure), group night, calibrated on 14 units"


def test_evaluate_says_that_it_counts_frames_beside_those_of_the_group(
    data: Any, tmp_path: Path
) -> None:
    out = tmp_path / "one.json"
    calibrate(data, out, groups="^[a-z]+")
    maps, masks = data["test"]
    words = "one.json:night promises something of frames of the group night alone"
    for frames, flag, is_told in (
        (None, ":night", True),
        (None, "", False),
        ("^n", ":night", False),
    ):
        result = segunc.evaluate(
            maps=maps, anomaly_labels=masks, flag=[f"{out}{flag}"], frames=frames, replicates=0
        )
        assert any(note.startswith(words) for note in result.notes) is is_told


def test_the_group_of_each_frame_is_recorded(data: Any, tmp_path: Path) -> None:
    out = tmp_path / "one.json"
    made = calibrate(data, out, groups="^[a-z]+").threshold
    assert made.group_of == {name: name.partition("/")[0] for name in made.frames}
    assert len(made.names_of_group("night")) == 14
    maps, masks = data["calibration"]
    with pytest.raises(InputError) as refusal:
        segunc.evaluate(maps=maps, anomaly_labels=masks, flag=[f"{out}:night"], replicates=0)
    words = "(14 of them for the group night, and its promise says nothing of the others)"
    assert words in refusal.value.message
    with pytest.raises(InputError) as refusal:
        segunc.evaluate(maps=maps, anomaly_labels=masks, flag=[str(out)], replicates=0)
    assert "group" not in refusal.value.message


def test_a_file_without_the_groups_of_its_frames_is_read(data: Any, tmp_path: Path) -> None:
    """As an earlier version wrote it."""
    out = tmp_path / "one.json"
    calibrate(data, out, groups="^[a-z]+")
    content = json.loads(out.read_text())
    del content["group_of"]
    del content["record_sha256"]
    write_result(out, content)
    (flag,) = read_thresholds([f"{out}:night"]).values()
    assert flag.guarantee is not None
    assert flag.guarantee.group_of == {}
    maps, masks = data["calibration"]
    with pytest.raises(InputError, match=r"that one\.json was calibrated on, so they cannot"):
        segunc.evaluate(maps=maps, anomaly_labels=masks, flag=[f"{out}:night"], replicates=0)


def test_groups_may_be_listed(data: Any, tmp_path: Path) -> None:
    listed = {name: name.partition("/")[0] for name in FRAMES}
    made = calibrate(data, tmp_path / "t.json", groups=listed, level=0.3).threshold
    assert set(made.groups) == {"day", "night"}
    assert made.command.endswith("--groups GROUPS.csv")


def test_a_group_of_too_few_units_gets_no_threshold(data: Any, tmp_path: Path) -> None:
    made = calibrate(data, tmp_path / "t.json", groups="f0[12]", level=0.1)
    assert set(made.threshold.groups) == {"other"}
    assert any(
        "group f01 gets no threshold of its own: it has 1 unit, of 9" in note for note in made.notes
    )


def test_a_unit_may_be_a_folder(data: Any, tmp_path: Path) -> None:
    made = calibrate(data, tmp_path / "t.json", unit="folder", level=0.4).threshold
    losses = missed_objects(data["calibration"], made.value)
    assert made.units == 2
    assert (made.risk == 0) == (max(losses) == 0)


def test_two_folders_are_too_few_units(data: Any, tmp_path: Path) -> None:
    message = r"2 units are too few for missed-objects of 0.2, which needs 4; the smallest"
    with pytest.raises(InputError, match=message):
        calibrate(data, tmp_path / "t.json", unit="folder")


def test_a_threshold_that_flags_everything_is_said_to(data: Any, tmp_path: Path) -> None:
    lax = calibrate(data, tmp_path / "t.json", control="false-alarms", level=4.9, smallest=900)
    assert np.isfinite(lax.threshold.value)
    assert "flags every" in lax.notes[-1]


def test_a_threshold_that_flags_most_of_the_normal_pixels_is_said_to(
    data: Any, tmp_path: Path
) -> None:
    lax = calibrate(data, tmp_path / "t.json", control="flagged-pixels", level=0.7)
    share = round(100 * lax.price["flagged-pixels"])
    assert 50 < share <= 70
    assert lax.notes[-1] == (
        f"this threshold flags {share} % of the normal pixels: 'other' hardly separates what it "
        "should at this level"
    )
    strict = calibrate(data, tmp_path / "u.json", control="flagged-pixels", level=0.3)
    assert not any("normal pixels" in note for note in strict.notes)


def test_a_threshold_that_flags_next_to_nothing_is_said_to(data: Any, tmp_path: Path) -> None:
    """Forty units allow no more at the smallest level that they can have."""
    with pytest.raises(InputError) as refusal:
        calibrate(data, tmp_path / "t.json", control="flagged-pixels", level=0.01)
    assert refusal.value.hint.endswith(
        "or --level 0.0244, at which next to nothing is flagged; larger levels have room"
    )
    strict = calibrate(data, tmp_path / "t.json", control="flagged-pixels", level=0.0244)
    assert strict.threshold.flagged
    assert strict.price["flagged-pixels"] < 0.000244
    assert "this threshold flags a share of 0 of the normal pixels, next to" in strict.notes[-1]
    assert strict.notes[-1].endswith("larger levels have room, and so have more units")
    roomy = calibrate(data, tmp_path / "u.json", control="flagged-pixels", level=0.05)
    assert not any("next to nothing" in note for note in roomy.notes)


@pytest.mark.parametrize(
    ("control", "level", "is_near"),
    [
        ("missed-pixels", 0.0244, True),
        ("missed-objects", 0.036, True),
        ("missed-objects", 0.037, False),
        ("false-alarms", 0.15, True),
        ("false-alarms", 0.25, False),
    ],
)
def test_a_level_near_the_smallest_one_is_said_to_leave_little_room(
    control: str, level: float, is_near: bool, data: Any, tmp_path: Path
) -> None:
    """Forty units can promise 1 / 41 of the largest loss, which is 5 alarms."""
    made = calibrate(data, tmp_path / "t.json", control=control, level=level)
    notes = [note for note in made.notes if "leave room" in note]
    assert bool(notes) == is_near
    if is_near:
        smallest = 0.122 if control == "false-alarms" else 0.0244
        assert f"{level:g} for {control} is near {smallest:g}, the smallest that 40" in notes[0]


def test_a_threshold_that_flags_next_to_nothing_names_its_level_once(
    data: Any, tmp_path: Path
) -> None:
    strict = calibrate(data, tmp_path / "t.json", control="flagged-pixels", level=0.0244)
    notes = [note for note in strict.notes if " room" in note]
    assert notes == [strict.notes[-1]]


def test_too_few_units_for_misses_are_not_said_to_flag_nothing(data: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refusal:
        calibrate(data, tmp_path / "t.json", control="missed-pixels", level=0.01)
    assert refusal.value.hint.endswith("or --level 0.0244")


def test_the_flagged_share_is_of_all_labelled_pixels(data: Any, tmp_path: Path) -> None:
    made = calibrate(data, tmp_path / "t.json").threshold
    maps, _ = data["calibration"]
    values = np.stack([np.load(path) for path in maps.rglob("*.npy")])
    assert made.flagged == pytest.approx((values >= made.value).mean())
    assert made.right_flagged is None
    assert made.wrong_flagged is None


def test_a_threshold_of_an_earlier_version_has_no_flagged_shares(data: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    calibrate(data, path)
    content = json.loads(path.read_text())
    for key in ("flagged", "right_flagged", "wrong_flagged", "record_sha256"):
        del content[key]
    path.write_text(json.dumps(content))
    made = read_threshold(path)
    assert made.flagged is None
    assert made.note_on_silence == ""


def test_a_line_says_of_which_thresholds_the_false_alarms_are_the_most(
    data: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maps, masks = data["calibration"]
    words = ["threshold", "--maps", str(maps), "--anomaly-labels", str(masks), "--score", "other"]
    words += ["--control", "false-alarms", "--level", "0.5", "--smallest", "4"]
    assert main([*words, "--out", str(tmp_path / "t.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("  false alarms: ")]
    assert line.endswith(", mean over these units, the most at this or any higher threshold")


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Forty frames of one drive."""
    return write_set(tmp_path_factory.mktemp("drive"), [f"drive/f{i:02d}" for i in range(40)])


def test_frames_with_times_are_blocks_of_seconds(drive: tuple[Path, Path], tmp_path: Path) -> None:
    """Forty frames in forty seconds are four units, whose loss is the share of all their
    objects."""
    made = calibrate({"calibration": drive}, tmp_path / "t.json", fps=1)
    threshold = made.threshold
    assert (threshold.unit, threshold.units) == ("10s", 4)
    assert any("units are blocks of 10s" in note for note in made.notes)
    losses = missed_objects(drive, threshold.value)  # of frames, which have one object or two
    objects = np.array([1 + place % 2 for place in range(40)])
    missed = (np.array(losses) * objects).reshape(4, 10).sum(1)
    assert threshold.risk == pytest.approx((missed / 15).mean())
    assert "of a 10s block are missed" in threshold.promise


def told(**options: Any) -> tuple[Any, list[str]]:
    """Return the result of an evaluation of maps of another tool, and the warnings on it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = segunc.evaluate(replicates=0, fps=1, **options)
    return result, [str(warning.message) for warning in caught]


def test_units_that_hold_frames_of_the_calibration_do_not_test_its_promise(tmp_path: Path) -> None:
    """The calibration has all frames of four blocks and half of those of a fifth, of eight."""
    maps, masks = write_set(tmp_path, [f"drive/f{i:02d}" for i in range(80)])
    out = tmp_path / "t.json"
    made = calibrate({"calibration": (maps, masks)}, out, fps=1, frames="f([0-3]|4[02468])")
    assert made.threshold.units == 5
    result, notes = told(maps=maps, anomaly_labels=masks, flag=[str(out)])
    losses = missed_objects((maps, masks), made.threshold.value)
    missed = np.array(losses) * [1 + place % 2 for place in range(80)]
    numbers = result.numbers["flagged"]["other"]
    assert numbers["units"] == 3
    assert numbers["risk"] == pytest.approx((missed[50:].reshape(3, 10).sum(1) / 15).mean())
    (note,) = notes
    assert note.startswith("1 of these 4 units holds frames of the calibration of t.json, too. ")


def test_a_promise_is_not_tested_where_each_unit_holds_frames_of_the_calibration(
    drive: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "t.json"
    calibrate({"calibration": drive}, out, fps=1, frames="[02468]$")
    maps, masks = drive
    for frames in (None, "[13579]$"):  # the calibration is among the frames, or beside them
        result, notes = told(maps=maps, anomaly_labels=masks, flag=[str(out)], frames=frames)
        assert result.numbers["flagged"]["other"]["risk"] is None
        reason = result.numbers["reasons"]["flagged.other.risk"]
        assert reason == "each of these units holds frames of the calibration"
        assert notes[0].startswith("4 of these 4 units hold frames of the calibration of t.json")


ALARMS_IN_BLOCKS: dict[str, Any] = {
    "control": "false-alarms",
    "level": 3,
    "smallest": 1,
    "unit": "10s",
    "fps": 1,
}


def test_a_threshold_says_that_its_blocks_hold_more_frames_than_it_counts(
    drive: tuple[Path, Path], tmp_path: Path
) -> None:
    every = calibrate({"calibration": drive}, tmp_path / "t.json", **ALARMS_IN_BLOCKS)
    few = calibrate({"calibration": drive}, tmp_path / "u.json", frames="[05]$", **ALARMS_IN_BLOCKS)
    words = "of the 40 frames of these 10s blocks are counted"
    assert not any(words in note for note in every.notes)
    assert any(f"only 8 {words}" in note for note in few.notes)
    assert "A 10s block had about 10 frames: where more" in every.threshold.condition
    assert "A 10s block had about 2 frames: where more" in few.threshold.condition


def test_a_promise_that_no_number_of_frames_changes_names_none(
    drive: tuple[Path, Path], tmp_path: Path
) -> None:
    few = calibrate({"calibration": drive}, tmp_path / "t.json", fps=1, frames="[05]$")
    assert "block had about" not in few.threshold.condition
    assert not any("are counted" in note for note in few.notes)


def test_blocks_without_an_anomaly_are_blocks_of_a_second_promise(tmp_path: Path) -> None:
    """Six of the twelve blocks show no anomaly, so they say nothing of misses, but of alarms."""
    maps, masks = write_set(tmp_path, [f"drive/f{i:02d}" for i in range(60)])
    for place in range(0, 60, 10):
        for frame in range(place, place + 5):
            path = str(masks / "drive" / f"f{frame:02d}.png")
            cv2.imwrite(path, np.zeros((24, 32), np.uint8))
    asked: dict[str, Any] = {"level": 0.9, "also": {"false-alarms": 4.9}, "fps": 1, "unit": "5s"}
    made = calibrate({"calibration": (maps, masks)}, tmp_path / "t.json", **asked).threshold
    assert (made.units, made.all_units) == (6, 12)
    assert made.frames_per_block == 5
    assert made.density_note(8, "t.json")
    assert replace(made, all_units=0).frames_per_block == 10, "as files of earlier versions say"


@pytest.mark.parametrize(
    ("calibrated", "every", "note"),
    [
        ("[05]$", 1, "was calibrated on about 2 frames in 10s, and here 10 and more come: more"),
        ("", 5, "was calibrated on about 10 frames in 10s, and here about 2 come: fewer frames"),
        ("", 1, ""),
    ],
)
def test_evaluate_says_that_frames_come_more_or_less_densely(
    drive: tuple[Path, Path], tmp_path: Path, calibrated: str, every: int, note: str
) -> None:
    out = tmp_path / "t.json"
    calibrate({"calibration": drive}, out, frames=calibrated or None, **ALARMS_IN_BLOCKS)
    maps, masks = write_set(tmp_path / "other", [f"other/g{i:02d}" for i in range(50, 80)])
    _, notes = told(maps=maps, anomaly_labels=masks, flag=[str(out)], every=every)
    assert [note in told for told in notes] == ([True] if note else [])


@pytest.mark.parametrize(
    ("group", "every", "note"),
    [
        ("night", 1, "t.json:night was calibrated on about 2 frames in 10s, and here 10 and more"),
        ("day", 5, "t.json:day was calibrated on about 10 frames in 10s, and here about 2 come"),
        ("night", 5, ""),
        ("day", 1, ""),
    ],
)
def test_the_blocks_of_a_group_hold_its_own_number_of_frames(
    drive: tuple[Path, Path], tmp_path: Path, group: str, every: int, note: str
) -> None:
    """Blocks of the group day have 10 frames, those of night 2, and all have 6 on average."""
    out = tmp_path / "t.json"
    names = [f"drive/f{i:02d}" for i in range(40)]
    groups = {name: "day" if name < "drive/f20" else "night" for name in names}
    asked = {**ALARMS_IN_BLOCKS, "frames": "f([01]|.[05])", "groups": groups}
    made = calibrate({"calibration": drive}, out, **asked).threshold
    assert made.frames_per_block == 6
    assert [numbers["all_units"] for numbers in made.groups.values()] == [2, 2]
    (threshold,) = read_thresholds([f"{out}:{group}"]).values()
    frames = {"day": 10, "night": 2}[group]
    assert f"A 10s block had about {frames} frames: where more" in threshold.statement
    maps, masks = write_set(tmp_path / "other", [f"other/g{i:02d}" for i in range(50, 80)])
    _, notes = told(maps=maps, anomaly_labels=masks, flag=[f"{out}:{group}"], every=every)
    assert [note in told for told in notes] == ([True] if note else [])


def test_a_clip_of_seconds_is_one_unit_and_more_drives_are_the_hint(
    drive: tuple[Path, Path], tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"fps": 23 / 9, "frames": "f(0|1|20|21|22)"}
    with pytest.raises(InputError, match="one unit cannot promise anything") as error:
        calibrate({"calibration": drive}, tmp_path / "t.json", **asked)
    assert error.value.hint == "calibrate on more drives"
    with pytest.raises(InputError, match="4 units are too few for missed-objects") as error:
        calibrate({"calibration": drive}, tmp_path / "t.json", fps=1, level=0.1)
    assert error.value.hint == "calibrate on more drives, or --level 0.2"


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        ({}, "no time is known of these frames, so each counts as independent"),
        ({"fps": 1, "unit": "frame"}, "each frame of a video counts as independent of its neigh"),
    ],
)
def test_frames_that_count_as_independent_are_said_to(
    drive: tuple[Path, Path], tmp_path: Path, asked: Any, note: str
) -> None:
    made = calibrate({"calibration": drive}, tmp_path / "t.json", **asked)
    assert (made.threshold.unit, made.threshold.units) == ("frame", 40)
    assert note in made.notes[0]


def test_units_without_times_are_refused_before_frames_are_counted(
    drive: tuple[Path, Path], data: Any, tmp_path: Path
) -> None:
    calibrate({"calibration": drive}, tmp_path / "t.json", fps=1)
    maps, masks = data["test"]
    with pytest.raises(InputError, match="the unit of the threshold 10s needs maps of a video"):
        segunc.evaluate(maps=maps, anomaly_labels=masks, flag=[str(tmp_path / "t.json")])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"level": 0.01},
            "40 units are too few for missed-objects of 0.01, which needs 99; "
            "the smallest .* is 0.0244",
        ),
        ({"frames": "f07"}, "one unit cannot promise anything of others"),
        ({"frames": "x"}, "matches no frame"),
        ({"frames": "("}, "is not a regular expression"),
        ({"unit": "(f)"}, "one unit cannot promise"),
        ({"unit": "10s"}, "--unit 10s needs maps of a video|`unit` 10s needs maps of a video"),
        ({"score": "entropy"}, "the score 'entropy' has no maps"),
        (
            {"level": 1.5},
            "1.5: a level for missed-objects must be above 0 and below 1, because it is a share",
        ),
        (
            {"level": 6, "control": "false-alarms"},
            "6: a level for false-alarms must be above 0 and below 5, because at most 5 false "
            "alarms of a frame, or of a minute, are counted.*`level` 1, or a larger `smallest`",
        ),
        (
            {"level": 2, "control": "false-alarms", "method": "clopper-pearson"},
            "must be above 0 and below 1, because .*clopper-pearson bounds the share of units",
        ),
        (
            {"also": {"false-alarms": 6}, "confidence": 0.9},
            "false-alarms=6: a level for false-alarms must be above 0 and below 5",
        ),
        ({"method": "conformal", "confidence": 0.9}, "has no confidence and no second risk"),
        ({"confidence": 1.0}, "1.0 is not a number above 0 and below 1"),
        ({"also": {"alarms": 0.1}}, "no control 'alarms'"),
        ({"also": {"missed-objects": 0.1}}, "do not go together"),
        ({"also": {"flagged-pixels": 0.1}, "groups": "f"}, "do not go together"),
        ({"control": "false-alarms", "unit": "13s"}, "blocks of 13s are too long"),
        ({"control": "errors-kept"}, "no frame has class labels and a prediction"),
        (
            {"unit": "f(.)", "groups": "^[a-z]+"},
            "the unit of day/f01 is in the groups day and night",
        ),
        (
            {
                "control": "missed-pixels",
                "level": 0.04,
                "also": {"flagged-pixels": 0.04},
                "confidence": 0.5,
            },
            "no threshold keeps to the levels of .* at once",
        ),
    ],
)
def test_what_units_cannot_promise_is_one_sentence(
    data: Any, tmp_path: Path, asked: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        calibrate(data, tmp_path / "t.json", **asked)
    assert not list(tmp_path.iterdir())


def test_labels_without_an_anomaly_and_scores_without_spread_are_refused(tmp_path: Path) -> None:
    maps, masks = write_set(tmp_path, FRAMES[:12])
    for path in masks.rglob("*.png"):
        cv2.imwrite(str(path), np.zeros((24, 32), np.uint8))
    asked: Any = {
        "maps": maps,
        "anomaly_labels": masks,
        "out": tmp_path / "t.json",
        "score": "other",
        "level": 0.2,
    }
    with pytest.raises(
        InputError, match="missed-objects says nothing here: no pixel is labelled as an anomaly"
    ) as refusal:
        segunc.threshold(control="missed-objects", **asked)
    assert "segunc summary --maps DIR names a value" in refusal.value.hint
    for path in maps.rglob("*.npy"):
        np.save(path, np.full((24, 32), 0.5, np.float16))
    with pytest.raises(InputError, match=r"the score 'other' is 0.5 at every labelled pixel"):
        segunc.threshold(control="flagged-pixels", **asked)


def test_a_group_may_be_named_by_a_time_of_day(data: Any, tmp_path: Path) -> None:
    out = tmp_path / "hours.json"
    hours = {name: "08:00" if name.startswith("day") else "s\u00fcd:20:00" for name in FRAMES}
    made = calibrate(data, out, groups=hours, level=0.3).threshold
    for asked, group in (("08:00", "08:00"), ("su\u0308d:20:00", "s\u00fcd:20:00")):
        assert read_thresholds([f"{out}:{asked}"])["other"].value == made.groups[group]["value"]


def test_files_that_are_no_threshold_are_refused(data: Any, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    calibrate(data, out)
    content = json.loads(out.read_text())
    del content["record_sha256"]
    for changes, message in (
        ({"version": 2}, "is not a threshold of segunc in version 1"),
        ({"kind": "x"}, "is not a threshold of segunc in version 1"),
        ({"value": "high"}, "value"),
        ({"frames": ["a"]}, "frames"),
    ):
        out.write_text(json.dumps(content | changes))
        with pytest.raises(InputError, match=message):
            read_threshold(out)
    out.write_text(json.dumps({key: value for key, value in content.items() if key != "units"}))
    with pytest.raises(InputError, match="lacks units"):
        read_threshold(out)
    out.write_text(json.dumps(content))
    with pytest.raises(InputError, match="has no group 'night'"):
        read_thresholds([f"{out}:night"])
    with pytest.raises(InputError, match="another model or tool"):
        read_threshold(out).check_run({"base_sha256": "a"}, "t.json")


@pytest.mark.parametrize("verb", ["threshold", "evaluate"])
def test_labels_of_which_none_fits_a_frame_are_bad_input(
    data: dict[str, tuple[Path, Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    verb: str,
) -> None:
    maps, _ = data["calibration"]
    labels = tmp_path / "labels"
    labels.mkdir()
    cv2.imwrite(str(labels / "another.png"), np.zeros((24, 32), np.uint8))
    words = [verb, "--maps", str(maps), "--anomaly-labels", str(labels)]
    if verb == "threshold":
        words += ["--control", "missed-pixels", "--level", "0.2", "--out", str(tmp_path / "t.json")]
    assert main(words) == 2
    message, _, hint = capsys.readouterr().err.strip().splitlines()[-1].partition(". Hint: ")
    assert message == (
        f"segunc {verb}: no label in {labels} belongs to a frame: labels are named like "
        f"another.png, and frames like {FRAMES[1]}"
    )
    assert hint.startswith("give labels the names of their frames")


def test_a_folder_of_photographs_holds_no_labels(
    data: dict[str, tuple[Path, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maps, _ = data["calibration"]
    cv2.imwrite(str(tmp_path / "another.jpg"), np.zeros((24, 32), np.uint8))
    words = ["evaluate", "--maps", str(maps), "--anomaly-labels", str(tmp_path)]
    assert main(words) == 2
    message, _, hint = capsys.readouterr().err.strip().splitlines()[-1].partition(". Hint: ")
    assert message == (
        f"segunc evaluate: {tmp_path} holds no labels: its files, such as another.jpg, are JPEG "
        "or WebP, which change the values of labels"
    )
    assert hint == "name the folder of the labels, as PNG"


def test_a_label_is_named_and_no_photograph_beside_it(
    data: dict[str, tuple[Path, Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maps, _ = data["calibration"]
    cv2.imwrite(str(tmp_path / "another.jpg"), np.zeros((24, 32), np.uint8))
    cv2.imwrite(str(tmp_path / "the label.png"), np.zeros((24, 32), np.uint8))
    assert main(["evaluate", "--maps", str(maps), "--anomaly-labels", str(tmp_path)]) == 2
    assert "labels are named like the label.png, and frames" in capsys.readouterr().err


def calibrate_predicted(predicted: Job, out: Path) -> GuaranteedThreshold:
    """Calibrate a threshold of entropy on maps of ours."""
    return segunc.threshold(
        maps=predicted.maps,
        anomaly_labels=predicted.masks,
        out=out,
        control="flagged-pixels",
        level=0.3,
        score="entropy",
    ).threshold


def run_of(predicted: Job) -> dict[str, Any]:
    run: dict[str, Any] = (read_manifest(predicted.maps) or {})["run"]
    return run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"draws": 9}, "maps with draws 4, and these have 9"),
        ({"alpha": 0.9}, "maps with the alpha of the model, and these have 0.9"),
        (
            {"mask_sha256": "ab12" * 16},
            "maps without a mask, and these were made with the mask ab12ab12ab12",
        ),
        ({"base_sha256": "0"}, "another model"),
        (
            {"draws": 9, "alpha": 0.9},
            "maps with the alpha of the model, and these have 0.9; with draws 4, and these have 9",
        ),
    ],
)
def test_a_threshold_belongs_to_its_model_and_settings(
    predicted: Job, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    made = calibrate_predicted(predicted, tmp_path / "t.json")
    run = run_of(predicted)
    made.check_run(run, "t.json")
    with pytest.raises(InputError, match=message):
        made.check_run(run | changes, "t.json")


@pytest.mark.parametrize(
    ("calibrated", "changes", "hint"),
    [
        ({}, {"draws": 9}, "make the maps with --draws 4, or calibrate on maps like these"),
        ({}, {"alpha": 0.9}, "leave --alpha out, or calibrate on maps like these"),
        ({"size": [64, 128]}, {}, "make the maps with --size 64x128, or calibrate"),
        (
            {"size": [64, 128]},
            {"draws": 9, "alpha": 0.9},
            "make the maps with --draws 4 --size 64x128 and leave --alpha out, or calibrate",
        ),
        ({}, {"compact": True, "draws": 9}, "Hint: calibrate on maps like these"),
        ({}, {"compact": True}, "Hint: calibrate on maps like these"),
    ],
)
def test_a_threshold_of_other_settings_names_the_option_that_gives_its_own(
    predicted: Job,
    tmp_path: Path,
    calibrated: dict[str, Any],
    changes: dict[str, Any],
    hint: str,
) -> None:
    made = calibrate_predicted(predicted, tmp_path / "t.json")
    made = replace(made, settings={**made.settings, **calibrated})
    with pytest.raises(InputError) as refused:
        made.check_run(run_of(predicted) | changes, "t.json")
    assert hint in f"Hint: {refused.value.hint}"


@pytest.mark.parametrize("has_command", [True, False])
@pytest.mark.parametrize("changes", [{"base_sha256": "0"}, {"draws": 9}])
def test_the_command_that_calibrates_again_runs_as_it_is_printed(
    predicted: Job,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_command: bool,
    changes: dict[str, Any],
) -> None:
    made = calibrate_predicted(predicted, tmp_path / "t.json")
    if not has_command:
        made = replace(made, command="of another program")
    with pytest.raises(InputError) as refused:
        made.check_run(run_of(predicted) | changes, "t.json")
    monkeypatch.chdir(tmp_path)
    Path("MAPS").symlink_to(predicted.maps)
    Path("LABELS").symlink_to(predicted.masks)
    _, _, command = refused.value.hint.partition(": segunc ")
    assert main(shlex.split(command)) == 0
    again = read_threshold(Path("recalibrated.json"))
    assert (again.score, again.control, again.value) == ("entropy", "flagged-pixels", made.value)


def test_a_threshold_depends_on_what_was_fitted_for_its_score(
    predicted: Job, tmp_path: Path
) -> None:
    made = calibrate_predicted(predicted, tmp_path / "t.json")
    run = run_of(predicted)
    # Entropy is not made of what was fitted.
    made.check_run(run | {"features_sha256": "0", "anomaly": {"parts": []}}, "t.json")
    settings = settings_of(run | {"anomaly": {"parts": ["knn"]}}, "anomaly")
    of_anomaly = replace(made, score="anomaly", settings=settings)
    again = "maps with another anomaly score than these, which was fitted again in between"
    with pytest.raises(InputError, match=again):
        of_anomaly.check_run(run | {"anomaly": {"parts": ["entropy"]}}, "t.json")
    with pytest.raises(InputError, match="a fitted anomaly score, and these have no anomaly"):
        of_anomaly.check_run(run, "t.json")
    words = "maps with no temperature, and these have a fitted temperature"
    with pytest.raises(InputError, match=words):
        made.check_run(run | {"calibrator_sha256": "ab" * 32}, "t.json")


def test_a_temperature_of_the_mean_leaves_no_temperature_of_the_logits_beside_it(
    predicted: Job, tmp_path: Path
) -> None:
    made = calibrate_predicted(predicted, tmp_path / "t.json")
    run = run_of(predicted) | {"temperature": 1.0}
    calibrated = run | {"calibrator_sha256": "ab" * 32}
    assert settings_of(run, "entropy")["temperature"] == 1.0
    settings = settings_of(calibrated, "entropy")
    assert "temperature" not in settings
    assert settings["calibrator_sha256"] == "ab" * 32
    replace(made, settings=settings).check_run(calibrated, "t.json")
    of_an_earlier_version = settings | {"temperature": 1.0}
    replace(made, settings=of_an_earlier_version).check_run(calibrated, "t.json")
    with pytest.raises(InputError, match="another temperature than these"):
        replace(made, settings=of_an_earlier_version).check_run(
            calibrated | {"calibrator_sha256": "cd" * 32}, "t.json"
        )


def test_a_file_of_another_threshold_is_replaced_with_a_note(
    predicted: Job, tmp_path: Path
) -> None:
    out = tmp_path / "t.json"

    def notes(**changes: Any) -> list[str]:
        options = {"control": "flagged-pixels", "level": 0.3, "score": "entropy"} | changes
        made = segunc.threshold(
            maps=predicted.maps, anomaly_labels=predicted.masks, out=out, **options
        )
        return [note for note in made.notes if note.startswith("replaces")]

    assert notes() == []
    assert notes() == []
    (note,) = notes(level=0.5)
    assert note.startswith(f"replaces {out}, which was a threshold of entropy: On average")
    assert "at most 30 % of the normal pixels" in note
    out.write_text("{}")
    assert notes() == [f"replaces {out}, which was no threshold that this version reads"]


def test_frames_of_another_size_than_those_of_the_calibration_get_a_note(
    predicted: Job, tmp_path: Path
) -> None:
    out = tmp_path / "t.json"
    made = calibrate_predicted(predicted, out)
    sizes = MapsReader(predicted.maps).sizes()
    assert made.sizes == sizes
    flag = read_thresholds([str(out)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_promises(flag, run_of(predicted), sizes)
        check_promises(flag, run_of(predicted))  # sizes are not known
    words = f"t.json was calibrated on frames of {sizes[0]} pixels, and these have 960x540: its"
    with pytest.warns(NoteWarning, match=words):
        check_promises(flag, run_of(predicted), [*sizes, "960x540"])


def test_a_threshold_without_a_hash_of_itself_gets_a_note(predicted: Job, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    calibrate_predicted(predicted, out)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_thresholds([str(out)])
    content = json.loads(out.read_text())
    del content["record_sha256"]
    out.write_text(json.dumps(content))
    with pytest.warns(NoteWarning, match=r"t\.json holds no hash of itself") as noted:
        read_thresholds([str(out)])
    assert len(noted) == 1
    with pytest.warns(NoteWarning, match=r"t\.json holds no hash of itself"):
        read_threshold(out)  # as monitor, export and report do
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibrate_predicted(predicted, out)  # in its place


def test_a_condition_names_what_counts_as_independent(predicted: Job, tmp_path: Path) -> None:
    made = calibrate_predicted(predicted, tmp_path / "t.json")
    assert made.condition.endswith("Each frame counts as independent of every other frame.")


def test_a_threshold_of_an_earlier_version_says_nothing_of_sizes(
    predicted: Job, tmp_path: Path
) -> None:
    made = calibrate_predicted(predicted, tmp_path / "t.json")
    assert replace(made, sizes=()).size_note(["960x540"], "t.json") == ""


def test_overlay_page_and_summary_use_the_threshold(predicted: Job, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    made = calibrate_predicted(predicted, out)
    asked: dict[str, Any] = {"maps": predicted.maps, "flag": [str(out)]}
    drawn = segunc.overlay(out=tmp_path / "o", score=["entropy"], **asked)
    assert any(f"{made.promise} {made.condition}" in note for note in drawn.notes)
    page = segunc.review(out=tmp_path / "review", **asked).page
    assert f'\\"region_from\\":{made.value}' in (page.parent / "data" / "page.js").read_text()
    listed = segunc.summary(**asked)
    assert any("of 4 frames have a region of at least 50 pixels" in note for note in listed.notes)
    assert f"t.json: {made.promise} {made.condition}" in listed.notes


def test_a_threshold_that_is_printed_can_be_copied(
    predicted: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t.json"
    words = ["threshold", "--maps", str(predicted.maps), "--score", "entropy", "--out", str(out)]
    words += ["--anomaly-labels", str(predicted.masks), "--control", "flagged-pixels"]
    assert main([*words, "--level", "0.3"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "threshold: " in line]
    copied = line.split(">= ")[1].split(", ")[0]
    value = read_threshold(out).value
    assert f"{value:.6g}" != copied, "six digits say too little of this value"
    assert (float(np.float32(copied)), float(copied) <= value) == (value, True)
    listed = segunc.summary(maps=predicted.maps, flag=[str(out)])
    assert any(f"with entropy >= {copied}" in note for note in listed.notes)


def test_predict_draws_the_threshold(predicted: Job, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    calibrate_predicted(predicted, out)
    shown = segunc.predict(
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
    assert shown.frames == 4


def test_a_review_page_says_that_its_frames_have_another_size(
    predicted: Job, tmp_path: Path
) -> None:
    out = tmp_path / "t.json"
    calibrate_predicted(predicted, out)
    content = json.loads(out.read_text())
    del content["record_sha256"]
    content["sizes"] = ["960x540"]
    out.write_text(json.dumps(content))
    page = tmp_path / "page"
    segunc.review(predicted.maps, out=page, flag=[str(out)])
    words = "t.json was calibrated on frames of 960x540 pixels, and these have"
    assert words in (page / "data" / "page.js").read_text()


def test_predict_notes_frames_of_another_size(predicted: Job, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    calibrate_predicted(predicted, out)
    content = json.loads(out.read_text())
    del content["record_sha256"]
    content["sizes"] = ["960x540"]
    out.write_text(json.dumps(content))
    with pytest.warns(NoteWarning, match="was calibrated on frames of 960x540 pixels"):
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


def test_overlays_draw_the_score_of_the_threshold() -> None:
    scores = ["msp", "entropy", "epistemic", "anomaly"]
    assert _overlay_score(scores, {}) == "anomaly"
    assert _overlay_score(scores, {"epistemic": Threshold(0.1)}) == "epistemic"


def test_overlays_draw_the_threshold_of_one_score_that_is_written() -> None:
    flag = {"entropy": Threshold(0.1), "anomaly": Threshold(0.1)}
    with pytest.raises(InputError, match=r"thresholds of 2 scores \(entropy, anomaly\)"):
        _overlay_score(["entropy", "anomaly"], flag)
    with pytest.raises(InputError, match="'anomaly', which is not written") as refused:
        _overlay_score(["entropy"], {"anomaly": Threshold(0.1)})
    assert "--scores entropy,anomaly" in refused.value.command_line


def test_predict_outlines_nothing_without_overlays(predicted: Job, tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    calibrate_predicted(predicted, out)
    with pytest.raises(InputError, match=r"outlines pixels in overlays.*add `overlay`"):
        segunc.predict(
            predicted.abnn, predicted.frames, out=tmp_path / "n", flag=[str(out)], device="cpu"
        )


@pytest.mark.parametrize(
    ("calibrated_on", "drawn_of", "words"),
    [
        ("/drive", "/drive", "flagged normal pixels <= 30 %"),
        ("/drive", "/other", "entropy >= 0.25 (t.json)"),
        ("", "/drive", "entropy >= 0.25 (t.json)"),
        ("", "", "entropy >= 0.25 (t.json)"),
    ],
)
def test_a_legend_promises_nothing_of_other_roads(
    data: Any, tmp_path: Path, calibrated_on: str, drawn_of: str, words: str
) -> None:
    made = replace(
        calibrate(data, tmp_path / "t.json", control="flagged-pixels", level=0.3).threshold,
        source=source_of({"input": calibrated_on}),
    )
    flag = Threshold(0.25, "t.json", made.promise, made.short, made)
    manifest = {"run": {"input": drawn_of}}
    legend = Legend.of(manifest, "entropy", DisplayRange(0, 1), flag)
    picture = np.zeros((60, 80, 3), np.uint8)
    flagged, holes = _outline(picture, None, legend, np.zeros((60, 80)))
    assert flagged.words == f"Flagged: {words}"
    assert holes.words == "Dashed: a hole, not flagged"


def test_other_frames_of_the_calibrations_input_are_said_to_resemble_it(
    predicted: Job, tmp_path: Path
) -> None:
    first = "|".join(f"^{name}$" for name in MapsReader(predicted.maps).frames[:2])
    truth: dict[str, Any] = {"maps": predicted.maps, "anomaly_labels": predicted.masks}
    out = tmp_path / "t.json"
    asked: dict[str, Any] = {
        "control": "flagged-pixels",
        "level": 0.5,
        "score": "entropy",
    }
    segunc.threshold(out=out, frames=first, **asked, **truth)
    result = segunc.evaluate(flag=[str(out)], scores=["entropy"], replicates=0, **truth)
    assert result.numbers["counts"]["frames_left_out"] == 2
    assert any("t.json was calibrated on frames of the same input" in n for n in result.notes)


@pytest.mark.parametrize("method", ["conformal", "clopper-pearson"])
def test_errors_among_kept_pixels_come_from_class_labels(
    predicted: Job, tmp_path: Path, method: Any
) -> None:
    """A threshold of labelled frames; what it bounds is counted again from maps and labels."""
    truth: Any = {
        "dataset": "toy",
        "root": predicted.data,
        "split": "anomaly",
    }
    out, reader, entry = (
        tmp_path / "t.json",
        MapsReader(predicted.maps),
        entry_of_labels("toy", None),
    )
    asked: Any = {
        "control": "errors-kept",
        "level": 0.7,
        "method": method,
        "score": "entropy",
    }
    made = segunc.threshold(maps=predicted.maps, out=out, **asked, **truth).threshold
    assert entry is not None
    shares = []
    for sample in entry.samples(predicted.data, "anomaly"):
        assert sample.label is not None
        labels, kept = (
            entry.label_map().read(sample.label),
            reader.read(sample.name, "entropy") < made.value,
        )
        kept &= labels != 255
        shares.append(
            (kept & (reader.prediction(sample.name) != labels)).sum()
            / max(kept.sum(), 0.01 * (labels != 255).sum())
        )
    worst = np.mean(shares) if method == "conformal" else np.mean(np.array(shares) > 0)
    assert worst <= made.risk <= made.level, "the running maximum is never smaller"
    assert made.risk - worst < 0.2
    assert (
        "wrongly predicted" if method == "conformal" else "have any wrong pixels"
    ) in made.promise


def right_and_wrong(predicted: Job) -> tuple[np.ndarray, np.ndarray]:
    """Return the entropy of all right and of all wrong pixels of the labelled toy frames."""
    reader = MapsReader(predicted.maps)
    entry = entry_of_labels("toy", None)
    assert entry is not None
    right = []
    wrong = []
    for sample in entry.samples(predicted.data, "anomaly"):
        assert sample.label is not None
        labels = entry.label_map().read(sample.label)
        entropy = reader.read(sample.name, "entropy")
        is_right = reader.prediction(sample.name) == labels
        right.append(entropy[is_right & (labels != 255)])
        wrong.append(entropy[~is_right & (labels != 255)])
    return np.concatenate(right), np.concatenate(wrong)


def test_right_and_wrong_pixels_of_errors_kept_are_told_apart(
    predicted: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All labelled pixels are not normal where those with a wrong prediction should be flagged."""
    truth = ["--dataset", "toy", "--root", str(predicted.data), "--split", "anomaly"]
    out = tmp_path / "t.json"
    words = ["threshold", "--maps", str(predicted.maps), *truth, "--score", "entropy"]
    assert main([*words, "--control", "errors-kept", "--level", "0.7", "--out", str(out)]) == 0
    made = read_threshold(out)
    right, wrong = right_and_wrong(predicted)
    assert made.right_flagged == pytest.approx((right >= made.value).mean())
    assert made.wrong_flagged == pytest.approx((wrong >= made.value).mean())
    assert made.right_flagged != made.wrong_flagged
    printed = capsys.readouterr().out
    assert f"  flagged right pixels: {made.right_flagged:.3g} of all right ones\n" in printed
    assert f"  flagged wrong pixels: {made.wrong_flagged:.3g} of all wrong ones\n" in printed
    assert "normal pixels" not in printed
    assert ", mean over these units, the most at this or any lower threshold\n" in printed


def test_the_note_on_errors_kept_tells_right_and_wrong_pixels_apart(
    predicted: Job, tmp_path: Path
) -> None:
    truth: Any = {"dataset": "toy", "root": predicted.data, "split": "anomaly"}
    asked: Any = {"control": "errors-kept", "score": "entropy", "out": tmp_path / "t.json"}
    strict = segunc.threshold(maps=predicted.maps, level=0.5, **asked, **truth)
    right = strict.threshold.right_flagged
    wrong = strict.threshold.wrong_flagged
    assert right is not None
    assert wrong is not None
    assert right > 0.5
    assert strict.notes[-1] == (
        f"this threshold flags {100 * right:.0f} % of the right pixels and {100 * wrong:.0f} % of "
        "the wrong: 'entropy' hardly separates what it should at this level"
    )
    assert "flagged-pixels" not in strict.price


def test_evaluate_tells_right_and_wrong_pixels_of_errors_kept_apart(
    predicted: Job, tmp_path: Path
) -> None:
    truth: Any = {"dataset": "toy", "root": predicted.data, "split": "anomaly"}
    names = MapsReader(predicted.maps).frames
    asked: Any = {"control": "errors-kept", "level": 0.9, "score": "entropy"}
    out = tmp_path / "t.json"
    made = segunc.threshold(maps=predicted.maps, out=out, **asked, **truth).threshold
    content = json.loads(out.read_text())
    del content["record_sha256"]
    out.write_text(json.dumps(content | {"frames": {}, "value": 0.5}))  # as if of other frames
    result = segunc.evaluate(maps=predicted.maps, flag=[str(out)], replicates=0, **truth)
    numbers = result.numbers["flagged"]["entropy"]
    right, wrong = right_and_wrong(predicted)
    assert len(names) >= 2
    assert made.value > 0
    assert numbers["right_flagged"] == pytest.approx((right >= 0.5).mean())
    assert numbers["wrong_flagged"] == pytest.approx((wrong >= 0.5).mean())


def test_an_exported_threshold_that_flags_nothing_is_said_to(
    predicted: Job, tmp_path: Path
) -> None:
    truth: Any = {"dataset": "toy", "root": predicted.data, "split": "anomaly"}
    asked: Any = {"control": "errors-kept", "level": 0.9999, "score": "entropy"}
    out = tmp_path / "t.json"
    made = segunc.threshold(maps=predicted.maps, out=out, **asked, **truth)
    note = made.threshold.note_on_silence
    assert note.startswith("this threshold flags no pixel of its calibration frames: ")
    assert note in made.notes
    usual = segunc.threshold(
        maps=predicted.maps, out=tmp_path / "u.json", **asked | {"level": 0.7}, **truth
    )
    assert usual.threshold.note_on_silence == ""
    exported = segunc.export(
        model=predicted.abnn,
        to="pt2",
        out=tmp_path / "out",
        size=(64, 128),
        draws=4,
        scores=["entropy"],
        threshold=out,
    )
    assert note in exported.notes


def test_short_promises_fit_a_legend(data: Any, tmp_path: Path) -> None:
    made = calibrate(data, tmp_path / "t.json").threshold
    words = {
        replace(
            made, control="false-alarms", level=0.5, unit="10s"
        ).short: "false alarms <= 0.5 a minute",
        replace(made, confidence=0.95).short: "missed objects <= 20 % (95 % sure)",
        replace(
            made, method="clopper-pearson", confidence=0.9
        ).short: "missed objects in <= 20 % of the frames (90 % sure)",
    }
    assert all(short == expected for short, expected in words.items())
    assert isinstance(made, GuaranteedThreshold)


def test_a_threshold_without_a_file_states_no_promise() -> None:
    assert Threshold(0.5).statement == ""


def test_a_mapping_gives_the_threshold_of_each_score() -> None:
    thresholds = read_thresholds({"entropy": 0.25, "msp": 0.5})
    assert thresholds == {"entropy": Threshold(0.25), "msp": Threshold(0.5)}


@pytest.mark.parametrize("changes", [{"value": 0.9}, {"promise": "Nothing is missed."}])
def test_a_threshold_that_was_edited_is_refused(
    data: Any, changes: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "t.json"
    made = calibrate(data, out).threshold
    content = json.loads(out.read_text())
    out.write_text(json.dumps(content | changes))
    with pytest.raises(InputError, match=r"t\.json has changed since it was written"):
        read_threshold(out)
    out.write_text(json.dumps(dict(reversed(content.items()))))  # the order of keys says nothing
    assert read_threshold(out) == made


def test_a_review_page_says_that_its_frames_are_those_of_the_calibration(
    predicted: Job, tmp_path: Path
) -> None:
    """They keep the promise by its making, and a reviewer would take that for a proof."""
    path = tmp_path / "t.json"
    made = calibrate_predicted(predicted, path)
    shown = {"maps": predicted.maps, "flag": [str(path)]}
    notes = segunc.review(**shown, out=tmp_path / "page").notes
    frames = len(made.frames)
    assert notes[0].startswith(f"{frames} of the {frames} frames here are frames of the calib")
    content = json.loads(path.read_text())
    content.pop("record_sha256")
    content["frames"] = dict.fromkeys(made.frames, "0")
    path.write_text(json.dumps(content))
    notes = segunc.review(**shown, out=tmp_path / "page").notes
    assert not any("of the calibration of" in note for note in notes)
