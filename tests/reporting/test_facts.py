"""What a report gathers: roles of frames, cells of the domain, and commands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from segunc.options import FinetuneOptions, recorded_command
from segunc.reporting.facts import (
    CALIBRATION,
    TEST,
    TRAINING,
    VALIDATION,
    _calibration_frames,
    _commands,
    _domain,
    _fitted_words,
    _frames_words,
    _may_be_calibrated,
    _model_commands,
    _monitor,
    _other_labels,
    _role,
    _some_other_images,
    _sources_of_fitted,
    _tuned,
    shown_command,
)
from segunc.reporting.inputs import Domain
from segunc.training.config import data_of_network, recorded_commands, settings_of_training
from tests.conftest import Job
from tests.reporting.conftest import CLEAN
from tests.verbs.processes import succeed

AXES = {"light": {"night": "night", "day": "."}}
TRAINED = {"dataset": "streets", "validation": "val"}


def inputs(
    runs: dict[str, list[str]],
    calibrated: tuple[str, ...] = (),
    *,
    images: dict[str, str] | None = None,
    identity: str = "0",
) -> Any:
    """What a report is made of: names of frames by the result, and of the calibration.

    Args:
        runs: the frames of each result.
        calibrated: the frames of the calibration.
        images: the hash of each image that the results record.
        identity: the hash of each frame of the calibration.
    """
    results = []
    for units in runs.values():
        replicates = SimpleNamespace(units=tuple(units), images=images or {}, frames=())
        results.append(
            SimpleNamespace(content={"bootstrap": {"unit": "frame"}}, replicates=replicates)
        )
    promised = SimpleNamespace(
        frames=dict.fromkeys(calibrated, identity), score="entropy", promise="P.", value=0.5
    )
    return SimpleNamespace(
        domain=Domain(axes=AXES, minimum=2),
        results=results,
        maps=[],
        thresholds={"t.json": promised},
        threshold_hashes={"t.json": "a" * 64},
    )


def roles(*names: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": {}} for role in names]


def cell_of(facts: dict[str, Any], light: str) -> dict[str, Any]:
    (cell,) = (cell for cell in facts["cells"] if cell["values"] == [light])
    return cell


def test_validation_frames_fill_no_cell() -> None:
    runs = {"val": ["night/1", "night/2", "night/3"], "test": ["day/1", "day/2"]}
    facts = _domain(inputs(runs), roles(VALIDATION, TEST))
    assert cell_of(facts, "night") == {
        "values": ["night"],
        "test": 0,
        "validation": 3,
        "training": 0,
        "calibration": 0,
        "lacking": 2,
    }
    assert cell_of(facts, "day")["lacking"] == 0
    assert facts["gaps"] == 1


def test_frames_of_a_calibration_fill_no_cell() -> None:
    facts = _domain(inputs({"test": ["day/1", "day/2"]}, ("day/1",)), roles(TEST))
    assert cell_of(facts, "day")["test"] == 1
    assert cell_of(facts, "day")[CALIBRATION] == 1
    assert cell_of(facts, "day")["lacking"] == 1


def test_frames_that_were_compared_with_the_calibration_are_tests_whatever_their_names() -> None:
    """Names of video frames are numbers, which every video has."""
    tested = roles(TEST)
    tested[0]["content"] = {"flagged": {"entropy": {"promise": "P.", "threshold": 0.5}}}
    facts = _domain(inputs({"test": ["day/1", "day/2"]}, ("day/1",)), tested)
    assert cell_of(facts, "day")["test"] == 2


@pytest.mark.parametrize(("sha256", "tests"), [("a" * 64, 2), ("b" * 64, 1)])
def test_a_threshold_of_the_same_value_from_another_file_was_not_compared(
    sha256: str, tests: int
) -> None:
    """The other one may be calibrated on the frames of the result."""
    tested = roles(TEST)
    tested[0]["content"] = {
        "flagged": {"entropy": {"promise": "P.", "threshold": 0.5}},
        "run": {"thresholds": {"entropy": {"file": "t.json", "sha256": sha256}}},
    }
    made_of = inputs({"test": ["day/1", "day/2"]}, ("day/1",))
    made_of.results[0].content |= tested[0]["content"]
    assert cell_of(_domain(made_of, tested), "day")["test"] == tests
    assert _calibration_frames(made_of, made_of.results[0]) == (2 - tests, 0)


def test_calibration_frames_are_found_by_the_end_of_a_longer_path() -> None:
    """A result of a model names frames below the root of a data set, maps below their input."""
    names = ["val/day/1", "val/day/2"]
    made_of = inputs({"model": names}, ("day/1",), images=dict.fromkeys(names, "0" * 12))
    assert _calibration_frames(made_of, made_of.results[0]) == (1, 0)
    made_of = inputs({"model": names}, ("day/1",), images={names[0]: "1" * 12}, identity=HASH)
    assert _calibration_frames(made_of, made_of.results[0]) == (0, 1)


def test_calibration_frames_are_found_in_a_result_that_resamples_drives() -> None:
    made_of = inputs({"test": ["day"]}, ("day/1",))
    (run,) = made_of.results
    run.content["bootstrap"]["unit"] = "folder"
    run.replicates.frames = ("day/1", "day/2")
    assert _calibration_frames(made_of, run) == (1, 0)
    assert cell_of(_domain(made_of, roles(TEST)), "day")["test"] == 1
    assert not _may_be_calibrated(made_of, run)
    run.replicates = None
    assert _may_be_calibrated(made_of, run)


def test_a_calibration_frame_is_known_by_its_path_below_another_root() -> None:
    """Maps name frames by their path below their input, results by that below the data set."""
    calibrated = ("day/1", "day/3")
    facts = _domain(inputs({"test": ["front/day/1", "front/day/2"]}, calibrated), roles(TEST))
    assert cell_of(facts, "day")["test"] == 1
    assert cell_of(facts, "day")[CALIBRATION] == 2
    nested = ("cameras/front/day/1",)
    facts = _domain(inputs({"test": ["front/day/1", "front/day/2"]}, nested), roles(TEST))
    assert cell_of(facts, "day")["test"] == 1


@pytest.mark.parametrize("first", ["of the model", "of maps"])
def test_frames_of_maps_are_those_of_the_data_set_that_hold_all_of_them(first: str) -> None:
    runs = {
        "of the model": ["friday/camera/night1", "friday/camera/day1", "monday/camera/night2"],
        "of maps": ["night1", "day1"],
    }
    ordered = {first: runs[first], **runs}
    found = _domain(inputs(ordered), roles(TEST, TEST))
    assert found["frames"][TEST] == 3
    assert cell_of(found, "night")[TEST] == 2


def test_calibration_frames_of_equal_names_that_are_others_are_counted() -> None:
    tested = roles(TEST)
    tested[0]["content"] = {"flagged": {"entropy": {"promise": "P.", "threshold": 0.5}}}
    found = _domain(inputs({"test": ["day/1", "day/2"]}, ("day/1", "day/3")), tested)
    assert found["frames"][TEST] == 2
    assert found["frames"][CALIBRATION] == 2


HASH = "ab" * 16
"""Of an image; results record its first 12 digits."""


@pytest.mark.parametrize(
    ("images", "identity", "of_calibration", "namesakes"),
    [
        ({"day/1": HASH[:12]}, HASH, 1, 0),
        ({"day/1": "0" * 12}, HASH, 0, 1),
        ({}, HASH, 1, 0),  # a result of an earlier version: the name has to do
        ({"day/1": "0" * 12}, HASH[:16], 1, 0),  # the threshold knows its maps alone
    ],
)
def test_a_frame_with_the_name_of_a_calibration_frame_and_another_image_is_a_test(
    images: dict[str, str], identity: str, of_calibration: int, namesakes: int
) -> None:
    """Data sets number their frames, so two of them share names."""
    made_of = inputs({"test": ["day/1", "day/2"]}, ("day/1",), images=images, identity=identity)
    assert _calibration_frames(made_of, made_of.results[0]) == (of_calibration, namesakes)
    found = _domain(made_of, roles(TEST))
    assert cell_of(found, "day")[TEST] == 2 - of_calibration
    assert found["frames"][CALIBRATION] == 1


def test_shared_frames_with_other_images_are_counted_also_in_results_of_other_frames() -> None:
    first = result_with("first", "a", "1", "2", "3")
    second = result_with("second", "a", "1", "2")
    first.replicates.images = {"1": "x", "2": "y", "3": "z"}
    second.replicates.images = {"1": "x", "2": "other"}
    (row,) = _some_other_images([first, second])
    assert row == {"result": "second.json", "earlier": "first.json", "shared": 2, "changed": 1}
    second.replicates.images["2"] = "y"
    assert _some_other_images([first, second]) == []


def result_with(name: str, labels: str | None, *units: str, unit: str = "frame") -> Any:
    content = {
        "counts": {} if labels is None else {"anomaly_labels": labels},
        "bootstrap": {"unit": unit},
    }
    replicates = SimpleNamespace(units=units, images={}, frames=())
    path = Path(f"{name}.json")
    return SimpleNamespace(name=name, content=content, replicates=replicates, path=path)


def test_results_of_the_same_frames_with_other_labels_are_named() -> None:
    first = result_with("first", "a", "1", "2")
    swapped = result_with("swapped", "b", "1", "2")
    assert _other_labels([first, swapped]) == [("first", "swapped")]
    same = result_with("same", "a", "1", "2")
    other_frames = result_with("frames", "b", "3")
    earlier = result_with("earlier", None, "1", "2")
    # Of two drives, some frames of each: their names are not recorded.
    some = result_with("some", "a", "monday", unit="folder")
    others = result_with("others", "b", "monday", unit="folder")
    assert _other_labels([some, others]) == []
    assert _other_labels([first, same, other_frames, earlier]) == []


def test_two_data_sets_whose_frames_have_the_same_numbers_do_not_have_other_labels() -> None:
    first = result_with("static", "a", "0", "2")
    second = result_with("obstacle", "b", "0", "2")
    first.content["counts"] |= {"frame_names": "1", "images": "2"}
    second.content["counts"] |= {"frame_names": "1", "images": "3"}
    assert _other_labels([first, second]) == []
    second.content["counts"]["images"] = "2"
    assert _other_labels([first, second]) == [("static", "obstacle")]


def test_frames_that_two_folders_hold_are_of_neither() -> None:
    runs = {"model": ["friday/1", "friday/2", "monday/1", "monday/2"], "maps": ["1", "2"]}
    assert _domain(inputs(runs), roles(TEST, TEST))["frames"][TEST] == 6


def test_a_calibration_frame_without_a_folder_is_no_frame_of_another_drive() -> None:
    facts = _domain(inputs({"test": ["day/1", "day/2"]}, ("1",)), roles(TEST))
    assert cell_of(facts, "day")["test"] == 2


BASE = {"dataset": "streets", "crop": [160, 160], "size": [180, 240], "validation": "val"}
STEP = {"dataset": "streets", "crop": [320, 320], "validation": "val", "root": "/data/streets"}


@pytest.mark.parametrize(
    ("provenance", "differing"),
    [
        ({"settings": {"epochs": 0}}, {}),
        ({"steps": 9}, {"crop": [320, 320], "size": "not set"}),
    ],
)
def test_the_step_of_a_posterior_says_what_differs_if_it_trained_something(
    provenance: dict[str, Any], differing: dict[str, Any]
) -> None:
    model = SimpleNamespace(record={"provenance": provenance})
    assert _tuned(SimpleNamespace(model=model), BASE, STEP) == differing  # type: ignore[arg-type]


def test_a_network_keeps_the_settings_of_its_training_whatever_a_later_step_takes() -> None:
    assert data_of_network({"data": BASE}, STEP) == BASE
    assert data_of_network({}, STEP) == STEP
    assert data_of_network({}, None) == {}


def test_the_settings_of_a_training_name_no_place_of_the_machine() -> None:
    data = {**BASE, "root": "data", "frames": "mine.csv", "labels": "classes.csv", "scale": None}
    assert settings_of_training(data) == BASE


@pytest.mark.parametrize(
    ("record", "trained", "role"),
    [
        ({"dataset": "streets", "split": "val"}, TRAINED, VALIDATION),
        ({"dataset": "streets", "split": "test"}, TRAINED, TEST),
        ({"dataset": "animals", "split": "val"}, TRAINED, TEST),
        ({"dataset": "animals", "split": "val"}, {}, VALIDATION),
        ({"dataset": "tuned", "split": "held-out"}, TRAINED, VALIDATION),
        ({"dataset": "streets", "split": "selection"}, TRAINED, VALIDATION),
        ({"dataset": "streets", "split": "train"}, TRAINED, TRAINING),
        ({"dataset": "tuned", "split": "train"}, TRAINED, TRAINING),
        ({"dataset": "tuned", "split": "val"}, TRAINED, VALIDATION),
        ({"dataset": "animals", "split": "train"}, TRAINED, TEST),
        ({}, TRAINED, TEST),
    ],
)
def test_the_role_of_frames_follows_from_what_chose_an_epoch_or_was_fitted(
    record: dict[str, Any], trained: dict[str, Any], role: str
) -> None:
    fitted = SimpleNamespace(fitted_on={"dataset": "tuned", "split": "held-out"})
    seen = [{"dataset": "tuned", "split": "train"}, {"dataset": "tuned", "split": "val"}]
    of_network = {"trained": True, "dataset": "streets", "validation": "val"} if trained else {}
    made_of: Any = SimpleNamespace(
        model=SimpleNamespace(
            attachments={"calibration": fitted},
            network=SimpleNamespace(description=SimpleNamespace(provenance=of_network)),
            record={"provenance": {"seen_splits": seen}},
        )
    )
    assert _role(made_of, record, trained) == role


def test_verdicts_and_their_frames_stand_with_what_was_fitted() -> None:
    bank = SimpleNamespace(
        fitted_on={"dataset": "own", "split": "train"},
        verdicts=({"images": "friday", "frames": 2, "learned": {"1": None, "2": None}},),
    )
    recorded = {"dataset": "own"}
    words = "features (on own train; and verdicts on 2 frames of friday)"
    assert _fitted_words("features", bank, recorded) == words
    made_of: Any = SimpleNamespace(model=SimpleNamespace(attachments={"features": bank}, record={}))
    sources = _sources_of_fitted(made_of, recorded)
    assert sources == ["own", "verdicts on 2 frames of friday"]


def test_frames_of_verdicts_are_counted_among_those_of_a_result() -> None:
    assert _frames_words(12, TEST, 0, 9) == (
        "12 frames (verdicts on 9 of the frames changed the bank)"
    )


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("segunc predict --model /home/me/m --out maps", "segunc predict --model m --out maps"),
        ("segunc x --data.root=/home/me/d/", "segunc x --data.root=d"),
        (r"segunc x --root 'C:\\me\\my data'", "segunc x --root 'my data'"),
        ("segunc x --frames '^(a|b)$'", "segunc x --frames '^(a|b)$'"),
    ],
)
def test_a_shown_command_names_no_place_of_the_machine(command: str, shown: str) -> None:
    assert shown_command(command) == shown


def test_every_file_records_the_command_that_made_it(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    maps = json.loads((predicted.maps / "manifest.json").read_text())
    assert shlex.split(maps["command"])[:2] == ["segunc", "predict"]
    result = json.loads((results / CLEAN).read_text())
    assert f"--root {predicted.data}" in result["run"]["command"]
    verbs = [shlex.split(entry["command"])[1] for entry in recorded_commands(predicted.abnn)]
    assert verbs == ["train", "finetune"]
    out = tmp_path / "report"
    succeed("report", "--model", predicted.abnn, "--runs", results / CLEAN, "--out", out)
    commands = json.loads((out / "report.json").read_text())["commands"]
    assert [shlex.split(made["command"])[1] for made in commands] == [*verbs, "evaluate"]


def test_a_recorded_command_gives_the_same_result_again(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    first = json.loads((results / CLEAN).read_text())
    words = shlex.split(first["run"]["command"])[1:]
    words[words.index("--out") + 1] = str(tmp_path / "again.json")
    words += ["--device", "cpu"]
    succeed(*words)
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["segmentation"] == first["segmentation"]


def test_approval_lists_the_roles_that_sign(predicted: Job, results: Path, tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("approvers: [Safety manager, Owner of the model]\n")
    out = tmp_path / "report"
    words = ("--runs", results / CLEAN, "--domain", tmp_path / "d.yaml", "--out", out)
    succeed("report", "--model", predicted.abnn, *words)
    page = (out / "index.html").read_text()
    assert '<tr class="sign"><th scope="row">Safety manager</th>' in page
    assert '<tr class="sign"><th scope="row">Owner of the model</th>' in page


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"abnn.epochs": 0, "data.size": [64, 64]},
            ["--abnn.epochs", "0", "--data.size", "[64, 64]"],
        ),
        (["--abnn.epochs", "0"], ["--abnn.epochs", "0"]),
    ],
)
def test_settings_of_both_forms_are_recorded(settings: Any, words: list[str]) -> None:
    options = FinetuneOptions(base="base", out="out", settings=settings)
    recorded = shlex.split(recorded_command("finetune", options))
    assert recorded[-len(words) :] == words


def test_a_model_without_a_history_has_no_command(tmp_path: Path) -> None:
    assert list(_model_commands(tmp_path)) == [{"file": "MODEL", "command": None, "date": None}]


def test_a_monitor_is_reported_without_the_paths_of_this_machine() -> None:
    state = {
        "frames": 9,
        "command": "segunc monitor",
        "maps": "/data/maps",
        "threshold": {"sha256": "f" * 64, "path": "/data/threshold.json"},
        "reference": {"frames": 200, "path": "/data/reference"},
    }
    assert _monitor(state) == {
        "frames": 9,
        "threshold": {"sha256": "f" * 64},
        "reference": {"frames": 200},
    }


def test_a_monitor_without_a_reference_reports_none() -> None:
    state = {"frames": 9, "threshold": {"sha256": "f" * 64}, "reference": None}
    assert _monitor(state)["reference"] is None


def test_every_file_that_records_a_date_shows_it() -> None:
    result = SimpleNamespace(
        path=Path("metrics.json"),
        content={"run": {"command": "segunc evaluate", "date": "2026-02"}},
    )
    reader = SimpleNamespace(
        folder=Path("maps"), manifest={"command": "segunc predict", "date": "2026-01"}
    )
    made_of: Any = SimpleNamespace(
        folder=Path("model"),
        maps=[reader],
        maps_name=lambda reader: reader.folder.name,
        thresholds={},
        results=[result],
        monitor={"kind": "segunc monitor", "command": "segunc monitor", "date": "2026-03"},
        latency=[{"kind": "segunc latency", "command": "latency", "date": "2026-04"}],
    )
    dates = {made["file"]: made["date"] for made in _commands(made_of)}
    assert dates == {
        "MODEL": None,
        "maps": "2026-01",
        "metrics.json": "2026-02",
        "segunc monitor": "2026-03",
        "segunc latency": "2026-04",
    }


def test_a_posterior_of_frames_of_a_program_is_not_of_the_data_of_its_base() -> None:
    provenance = {"dataset": "data of a program", "steps": 3}
    model = SimpleNamespace(attachments={}, record={"provenance": provenance})
    inputs: Any = SimpleNamespace(model=model)
    base = {"dataset": "toy", "crop": [64, 64]}
    assert _tuned(inputs, base, base) == {"dataset": "data of a program"}
    assert _sources_of_fitted(inputs, base) == ["data of a program"]
    provenance["dataset"] = "toy"
    assert _tuned(inputs, base, base) == {}
    assert _sources_of_fitted(inputs, base) == []
