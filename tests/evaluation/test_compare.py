"""Results side by side: what is marked, what is tested, what is said where neither can be."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import segunc.evaluation.comparison as comparison_module
from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import write_result as write_sealed
from segunc.evaluation.comparison import (
    Comparison,
    Row,
    compare,
    data_warnings,
    format_cell,
    format_comparison,
    format_number,
    markdown_table,
)
from segunc.evaluation.resampling import (
    Cell,
    Chance,
    load_replicates,
    load_results,
    record_replicates,
    save_replicates,
    sidecar_path,
)
from tests.evaluation.runs import COUNTS, write_replicates, write_result

AUROC = "scores.entropy.pooled.auroc"
AUPR = "scores.entropy.pooled.aupr"
FPR = "scores.entropy.pooled.fpr95"


def rows(comparison: Comparison) -> dict[str, Row]:
    return {row.label: row for row in comparison.rows}


def pair(tmp_path: Path, **changes: object) -> list[Path]:
    """Two results: the first is better in AUROC by 0.02, in AUPR by 0.0005.

    Sections of the other one may have ``changes``.
    """
    paths = []
    for name, shift in (("first", 0.02), ("other", 0.0)):
        numbers = {
            "auroc": 0.9 + shift,
            "aupr": 0.312 + shift / 40,
            "fpr95": 0.4 - shift,
            "threshold": 0.1,
        }
        sections = changes if name == "other" else {}
        path = write_result(tmp_path / f"{name}.json", {"entropy": numbers}, **sections)
        write_replicates(
            path,
            {
                AUROC: numbers["auroc"],
                AUPR: numbers["aupr"],
                FPR: numbers["fpr95"],
            },
        )
        paths.append(path)
    return paths


def test_paired_replicates_tell_what_intervals_cannot(tmp_path: Path) -> None:
    paths = pair(tmp_path)
    for path in paths:
        with_interval(path)
    results = load_results(paths)
    assert results[0].cell((*AUROC.split("."),)).interval[0] < 0.9  # the intervals overlap
    comparison = compare(results)
    assert comparison.columns == ("first", "other")
    assert comparison.warnings == ()
    difference = rows(comparison)[AUROC].differences[1]
    assert difference.value == pytest.approx(-0.02)
    assert difference.test.low < -0.02 < difference.test.high < 0
    assert difference.test.p_value < 0.01
    assert rows(comparison)[AUROC].differences[0] is None


def test_a_column_is_best_where_it_is_better_by_more_than_chance(tmp_path: Path) -> None:
    row_of = rows(compare(load_results(pair(tmp_path))))
    assert row_of[AUROC].best == 0
    assert row_of[FPR].best == 0
    assert row_of[FPR].higher_is_better is False
    assert row_of[AUPR].best is None


def with_interval(path: Path) -> None:
    """Give a result the interval of its replicates of AUROC, as earlier versions wrote it."""
    values = load_replicates(sidecar_path(path)).values[0]
    bounds = np.percentile(values, [2.5, 97.5]).tolist()
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"intervals": {AUROC: bounds}}))


def as_bound(path: Path) -> None:
    """Give a result the hash of its replicates, as evaluate does."""
    content = json.loads(path.read_text())
    record_replicates(content, sidecar_path(path).read_bytes())
    path.write_text(json.dumps(content))


def test_replicates_of_another_result_are_refused(tmp_path: Path) -> None:
    paths = pair(tmp_path)
    for path in paths:
        as_bound(path)
    assert compare(load_results(paths)).rows
    # Only the hash tells them apart: there are no intervals, and the units are the same.
    shutil.copy(sidecar_path(paths[0]), sidecar_path(paths[1]))
    with pytest.raises(InputError) as refused:
        load_results(paths)
    assert "other.replicates.npz does not hold the replicates of other.json" in str(refused.value)
    assert "other.json records another SHA-256 of it" in str(refused.value)


def test_replicates_of_another_result_of_an_earlier_version_are_refused(tmp_path: Path) -> None:
    """Such a result records no hash; its intervals tell."""
    paths = pair(tmp_path)
    write_replicates(paths[1], {AUROC: 0.7})
    for path in paths:
        with_interval(path)
    assert compare(load_results(paths)).rows
    shutil.copy(sidecar_path(paths[0]), sidecar_path(paths[1]))
    why = rf"other\.json: its replicates of {AUROC} have another interval"
    with pytest.raises(InputError, match=why):
        load_results(paths)


def test_replicates_of_nearly_the_same_interval_are_refused(tmp_path: Path) -> None:
    """Of a result of an earlier version, whose intervals end at two of its replicates."""
    paths = pair(tmp_path)
    replicates = load_replicates(sidecar_path(paths[1]))
    content = json.loads(paths[1].read_text())
    for ends in ([2.5, 97.5], None):
        row = np.sort(replicates.values[0])
        bounds = [row[5], row[-6]] if ends is None else np.percentile(row, ends).tolist()
        paths[1].write_text(json.dumps(content | {"intervals": {AUROC: bounds}}))
        save_replicates(sidecar_path(paths[1]), replicates)
        assert load_results(paths)[1].replicates is not None
        shifted = replace(replicates, values=replicates.values + 1e-5)
        save_replicates(sidecar_path(paths[1]), shifted)
        with pytest.raises(InputError, match=f"its replicates of {AUROC} have another interval"):
            load_results(paths)


def test_replicates_of_numbers_that_a_result_lacks_are_refused(tmp_path: Path) -> None:
    paths = pair(tmp_path)
    write_replicates(paths[1], {"scores.msp.pooled.auroc": 0.9})
    why = r"it holds replicates of scores\.msp\.pooled\.auroc, which is no number of the result"
    with pytest.raises(InputError, match=why):
        load_results(paths)


def test_replicates_of_a_score_with_a_dot_in_its_name_are_read(tmp_path: Path) -> None:
    path = write_result(tmp_path / "own.json", {"own.v2": {"auroc": 0.9}})
    write_replicates(path, {"scores.own.v2.pooled.auroc": 0.9})
    assert load_results([path])[0].replicates is not None


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_an_interval_tells_narrow_and_wide_replicates(tmp_path: Path, scale: float) -> None:
    path = pair(tmp_path)[0]
    with_interval(path)
    replicates = load_replicates(sidecar_path(path))
    mean = replicates.values.mean(axis=1, keepdims=True)
    scaled = replace(replicates, values=mean + scale * (replicates.values - mean))
    save_replicates(sidecar_path(path), scaled)
    with pytest.raises(InputError, match="have another interval"):
        load_results([path])


@pytest.mark.parametrize(
    ("bootstrap", "why"),
    [
        ({"units": 61}, "it is of 60 resampled units, and not of 61"),
        ({"replicates": 0}, "it holds 400 replicates of each number, and not 0"),
        ({"units": 60, "replicates": 400}, ""),
    ],
)
def test_replicates_of_other_units_or_another_number_are_refused(
    tmp_path: Path, bootstrap: dict[str, int], why: str
) -> None:
    paths = pair(tmp_path, bootstrap=bootstrap)
    if not why:
        assert load_results(paths)[1].replicates is not None
        return
    with pytest.raises(InputError, match=why):
        load_results(paths)


def test_without_sidecars_nothing_can_be_said(tmp_path: Path) -> None:
    results = pair(tmp_path)
    for path in tmp_path.glob("*.npz"):
        path.unlink()
    unpaired = rows(compare(load_results(results)))[AUROC]
    assert unpaired.best is None
    assert unpaired.differences[1].reason == "first has no replicates beside it"


def test_numbers_of_other_objects_are_not_compared(tmp_path: Path) -> None:
    """The first result is of an earlier version, which counted labelled regions of any size."""
    comparison = compare(load_results(pair(tmp_path, run={"smallest_object": 10})))
    (warning,) = comparison.warnings
    assert warning.endswith("first and other count labelled regions from 0 and 10 pixels on")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"counts": COUNTS | {"anomaly_pixels": 901}}, r"anomaly_pixels \(900 and 901\)"),
        ({"counts": COUNTS | {"anomaly_frames": 59}}, r"anomaly_frames \(60 and 59\)"),
        ({"counts": COUNTS | {"labelled_pixels": 8}}, r"labelled_pixels \(7 and 8\)"),
    ],
)
def test_other_data_is_not_compared(tmp_path: Path, change: dict[str, object], said: str) -> None:
    comparison = compare(load_results(pair(tmp_path, **change)))
    (warning,) = comparison.warnings
    assert re.match(f"not comparable: first and other differ in {said}", warning)
    text = format_comparison(comparison)
    assert text.startswith(f"Warning: {warning}.\n\n- first: ")
    assert text.count(warning) == 1
    # Numbers of the labels that are the same may be compared.
    refused = rows(comparison)[AUROC]
    other = rows(comparison)["segmentation.miou"]
    if "labelled" in said:
        refused, other = other, refused
    assert refused.best is None
    assert refused.differences[1].test is None
    assert refused.differences[1].reason == "other data"
    assert other.differences[1].reason != "other data"


FLAGGED_ROWS = {
    "flagged.entropy.recall": "anomaly_pixels",
    "flagged.entropy.normal_share": "anomaly_pixels",
    "flagged.entropy.over_time.detected": "anomaly_pixels",
    "flagged.entropy.share": "both",
    "flagged.entropy.risk": "both",
}


def flagged_pair(tmp_path: Path, **changes: object) -> list[Path]:
    """Two results whose flagged numbers differ by more than chance."""
    paths = []
    for name, shift in (("first", 0.02), ("other", 0.0)):
        numbers = {"recall": 0.7, "normal_share": 0.1, "share": 0.1, "risk": 0.1}
        section: dict[str, object] = {key: value + shift for key, value in numbers.items()}
        section["over_time"] = {"detected": 0.5 + shift}
        sections = {"flagged": {"entropy": section}} | (changes if name == "other" else {})
        path = write_result(tmp_path / f"{name}.json", {}, **sections)
        write_replicates(path, dict.fromkeys(FLAGGED_ROWS, 0.5 + shift))
        paths.append(path)
    return paths


def test_what_is_flagged_of_the_same_data_is_paired(tmp_path: Path) -> None:
    row_of = rows(compare(load_results(flagged_pair(tmp_path))))
    for label in FLAGGED_ROWS:
        assert row_of[label].differences[1].test is not None


@pytest.mark.parametrize("changed", ["anomaly_pixels", "labelled_pixels"])
def test_what_is_flagged_of_other_labels_is_not_paired(tmp_path: Path, changed: str) -> None:
    results = flagged_pair(tmp_path, counts=COUNTS | {changed: 8})
    row_of = rows(compare(load_results(results)))
    for label, of in FLAGGED_ROWS.items():
        row = row_of[label]
        refused = of in (changed, "both")
        assert (row.differences[1].reason == "other data") == refused
        assert row.best is None or not refused


GROUP = {"anomaly_frames": 30, "normal_pixels": 4000, "anomaly_pixels": 300}


@pytest.mark.parametrize(("pixels", "why"), [(300, None), (301, "the group is of other frames")])
def test_groups_of_other_frames_are_not_paired(
    tmp_path: Path, pixels: int, why: str | None
) -> None:
    """Two results of the same frames, which different lists put into groups of one name."""
    paths = flagged_pair(tmp_path)
    of_scores = "scores.entropy.groups.day.pooled.auroc"
    of_objects = "flagged.entropy.group.day.found"
    for path, anomaly_pixels in zip(paths, (300, pixels), strict=True):
        content = json.loads(path.read_text())
        content["scores"] = {"entropy": {"groups": {"day": {"pooled": {"auroc": 0.8}}}}}
        content["flagged"]["entropy"]["group"] = {"day": {"found": 0.5}}
        groups = {"day": GROUP | {"anomaly_pixels": anomaly_pixels}}
        content["counts"] = COUNTS | {"groups": groups}
        path.write_text(json.dumps(content))
        write_replicates(path, {of_scores: 0.8, of_objects: 0.5})
    row_of = rows(compare(load_results(paths), keys=["*group*"]))
    for label in (of_scores, of_objects):
        assert row_of[label].differences[1].reason == why


def test_seconds_of_other_frame_rates_are_not_paired(tmp_path: Path) -> None:
    paths = flagged_pair(tmp_path)
    seconds = "flagged.entropy.over_time.seconds_to_detection"
    detected = "flagged.entropy.over_time.detected"
    for path, rate in zip(paths, (10.0, 25.0), strict=True):
        content = json.loads(path.read_text())
        content["flagged"]["entropy"]["over_time"]["seconds_to_detection"] = 1 / rate
        content["run"] = {"fps": rate}
        path.write_text(json.dumps(content))
        write_replicates(path, {seconds: 1 / rate, detected: 0.5})
    comparison = compare(load_results(paths))
    row_of = rows(comparison)
    assert row_of[seconds].differences[1].reason == "seconds by other frame rates (--fps)"
    assert row_of[seconds].best is None
    assert row_of[detected].differences[1].test is not None
    warning = "seconds are not comparable: first and other were evaluated by --fps 10 and 25"
    assert comparison.warnings == (warning,)


@pytest.mark.parametrize(("unit", "is_paired"), [(r"^(\d)", True), (r"(\d)$", False)])
def test_units_of_another_rule_are_not_paired(tmp_path: Path, unit: str, is_paired: bool) -> None:
    """Units of equal names may hold other frames."""
    paths = pair(tmp_path)
    for path, resampled in zip(paths, (r"^(\d)", unit), strict=True):
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"bootstrap": {"unit": resampled}}))
    row = rows(compare(load_results(paths)))[AUROC]
    assert (row.differences[1].test is not None) == is_paired
    assert (row.best is not None) == is_paired
    if not is_paired:
        assert row.differences[1].reason == r"resampled by other units (^(\d) and (\d)$)"


def test_objects_from_another_size_on_are_not_paired(tmp_path: Path) -> None:
    results = flagged_pair(tmp_path, run={"smallest_object": 10})
    row_of = rows(compare(load_results(results)))
    of_objects = row_of["flagged.entropy.over_time.detected"].differences[1]
    assert of_objects.reason == "objects of other sizes count"
    assert row_of["flagged.entropy.recall"].differences[1].test is not None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seed": 1}, "seeds 0 and 1"),
        ({"units": ("x",)}, "other units"),
        ({}, "this number has no replicates"),
    ],
)
def test_why_a_difference_is_not_tested(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    first, other = pair(tmp_path)
    write_replicates(other, {AUPR: 0.3} if not change else {AUROC: 0.9}, **change)
    comparison = compare(load_results([first, other]))
    assert why in rows(comparison)[AUROC].differences[1].reason
    assert f"not paired: {'' if change else 'this'}" in format_comparison(comparison)


def test_scores_of_one_result(tmp_path: Path) -> None:
    scores = {
        "entropy": {"auroc": 0.9, "threshold": 1.0},
        "deterministic-msp": {"auroc": 0.8, "threshold": 1.0},
    }
    parts = {name: {"aurc": 0.1} for name in scores}
    path = write_result(tmp_path / "m.json", scores, selective=parts)
    write_replicates(
        path, {f"scores.{name}.pooled.auroc": numbers["auroc"] for name, numbers in scores.items()}
    )
    comparison = compare(load_results([path]), scores=["deterministic-msp", "entropy", "entropy"])
    assert comparison.columns == ("deterministic-msp", "entropy")
    assert list(rows(comparison)) == ["pooled.auroc", "selective.aurc"]
    row = rows(comparison)["pooled.auroc"]
    assert row.best == 1
    assert row.differences[1].test.excludes_zero


def test_a_score_that_no_result_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no result has a score 'msp'.* the results have entropy"):
        compare(load_results(pair(tmp_path)), scores=["msp"])


def test_scores_of_several_results(tmp_path: Path) -> None:
    results = load_results(pair(tmp_path), ["ABNN", "base"])
    comparison = compare(results, scores=["entropy"], baseline="base:entropy")
    assert comparison.columns == ("ABNN:entropy", "base:entropy")
    assert comparison.baseline == 1
    assert rows(comparison)["pooled.auroc"].differences[0].value == pytest.approx(0.02)


def test_the_baseline_is_a_heading_or_a_file(tmp_path: Path) -> None:
    first, other = pair(tmp_path)
    results = load_results([first, other], ["ABNN", "base"])
    assert compare(results, baseline=str(other)).baseline == 1
    assert "| less base" in format_comparison(compare(results, baseline="base"))
    with pytest.raises(InputError, match="baseline third is not a column"):
        compare(results, baseline="third")


def test_a_section_of_another_package_is_compared(tmp_path: Path) -> None:
    sections = {"ignored": {"share": 0.25, "by": {"car": 0.5}}, "run": {"seed": 3}}
    path = write_result(tmp_path / "a.json", {}, **sections)
    labels = set(rows(compare(load_results([path]))))
    assert {"ignored.share", "ignored.by.car"} <= labels
    # What is said of the run is not compared.
    assert not {label for label in labels if label.startswith(("run", "counts"))}


def test_rows_that_are_shown_where_no_key_chooses(tmp_path: Path) -> None:
    comparison = compare(load_results(pair(tmp_path)))
    segmentation = {"segmentation.miou", "calibration.ece", "calibration.nll"}
    assert set(rows(comparison)) == {AUROC, AUPR, FPR, *segmentation}


def test_a_threshold_that_a_metric_chose_is_shown_where_a_key_asks_for_it(tmp_path: Path) -> None:
    selective = {"entropy": {"pavpu": 0.8, "pavpu_threshold": 0.4}}
    path = write_result(tmp_path / "a.json", {}, selective=selective)
    results = load_results([path])
    threshold = "selective.entropy.pavpu_threshold"
    shown = set(rows(compare(results)))
    assert "selective.entropy.pavpu" in shown
    assert threshold not in shown
    assert list(rows(compare(results, keys=["*.pavpu_threshold"]))) == [threshold]


def test_keys_choose_rows(tmp_path: Path) -> None:
    results = load_results(pair(tmp_path))
    chosen = compare(results, keys=["*.pooled.threshold", "segmentation.*"])
    assert list(rows(chosen)) == [
        "scores.entropy.pooled.threshold",
        "segmentation.miou",
        "segmentation.per_class.road",
    ]
    assert [row.higher_is_better for row in chosen.rows] == [None, True, True]
    with pytest.raises(InputError, match="no number matches the key 'miou'"):
        compare(results, keys=["miou"])


def test_keys_are_whole_paths_too_where_columns_are_scores(tmp_path: Path) -> None:
    results = load_results(pair(tmp_path))
    pooled = ["pooled.auroc", "pooled.aupr", "pooled.fpr95", "pooled.threshold"]
    for key in ("*.pooled.*", "scores.entropy.*", "pooled.*"):
        assert list(rows(compare(results, scores=["entropy"], keys=[key]))) == pooled
    with pytest.raises(InputError, match=r"no number matches the key 'scores\.msp\.\*'"):
        compare(results, scores=["entropy"], keys=["scores.msp.*"])


def refusal(path: Path, key: str, **choice: object) -> str:
    with pytest.raises(InputError) as refused:
        compare(load_results([path]), keys=[key], **choice)
    return refused.value.command_line


def test_a_key_of_a_whole_result_is_refused_for_one_score(tmp_path: Path) -> None:
    selective = {"msp": {"aurc": 0.1, "eaurc": 0.2}}
    path = write_result(tmp_path / "a.json", {}, selective=selective)
    text = refusal(path, "calibration.*", scores=["msp"])
    assert text == (
        "no number matches the key 'calibration.*', because calibration holds no numbers of one "
        "score; there are selective.aurc, selective.eaurc. Hint: leave --scores out for those, "
        "or --keys 'selective.*'"
    )
    chosen = compare(load_results([path]), scores=["msp"], keys=["selective.*"])
    assert list(rows(chosen)) == ["selective.aurc", "selective.eaurc"]
    assert "segmentation holds no" in refusal(path, "segmentation.miou", scores=["msp"])
    assert rows(compare(load_results([path]), keys=["calibration.*", "segmentation.miou"]))


@pytest.mark.parametrize(
    ("key", "hint"), [("miou", "*.miou"), ("per_class", "*.per_class.*"), ("x.*", "scores.*")]
)
def test_the_hint_on_a_key_is_a_key_that_some_number_has(
    tmp_path: Path, key: str, hint: str
) -> None:
    path = pair(tmp_path)[0]
    assert refusal(path, key).endswith(f"Hint: --keys '{hint}'")
    assert rows(compare(load_results([path]), keys=[hint]))


def test_a_result_without_a_hash_of_itself_is_noted(tmp_path: Path) -> None:
    whole, bare = pair(tmp_path)
    write_sealed(whole, json.loads(whole.read_text()))
    with pytest.warns(NoteWarning) as noted:
        load_results([whole, bare])
    assert [str(note.message) for note in noted] == [
        f"{bare} holds no hash of itself (record_sha256), so a later edit cannot be noticed; "
        "segunc evaluate makes it again"
    ]


def test_results_have_names(tmp_path: Path) -> None:
    paths = [write_result(tmp_path / name / "metrics.json", {}) for name in ("x", "y")]
    assert [result.name for result in load_results(paths)] == ["x/metrics", "y/metrics"]
    assert [result.name for result in load_results(paths, ["p", "q"])] == ["p", "q"]


def test_names_that_lack_or_repeat_are_refused(tmp_path: Path) -> None:
    paths = [write_result(tmp_path / name / "metrics.json", {}) for name in ("x", "y")]
    with pytest.raises(InputError, match="1 names are given for 2 results"):
        load_results(paths, ["p"])
    with pytest.raises(InputError, match="two results are named 'x/metrics'"):
        load_results([paths[0], paths[0]])


def test_null_is_a_dash_with_its_reason(tmp_path: Path) -> None:
    a = write_result(
        tmp_path / "a.json", {"entropy": {"auroc": None}, "msp": {"auroc": 0.7}}, selective=None
    )
    b = write_result(tmp_path / "b.json", {"entropy": {"auroc": 0.5}})
    text = format_comparison(compare(load_results([a, b])))
    line = next(line for line in text.splitlines() if line.startswith(f"| {AUROC}"))
    assert [cell.strip() for cell in line.split("|")[2:4]] == ["—", ".500"]
    assert f"— no reason is given: {AUROC} of a." in text
    assert "— maps hold no probabilities: calibration.nll of a, calibration.nll of b." in text
    assert "— the file does not hold it: scores.msp.pooled.auroc of b." in text


@pytest.mark.parametrize("key", ["anomaly_labels", "anomaly_label_sizes"])
def test_other_labels_of_the_same_frames_are_not_compared(tmp_path: Path, key: str) -> None:
    for labels in ("b" * 16, "a" * 16):
        first = write_result(tmp_path / "a.json", {"entropy": {"auroc": 0.4}})
        paths = [first]
        for name, label_hash in (("a", "a" * 16), ("b", labels)):
            path = write_result(tmp_path / f"{name}.json", {"entropy": {"auroc": 0.4}})
            content = json.loads(path.read_text())
            content["counts"][key] = label_hash
            content.pop("record_sha256", None)
            path.write_text(json.dumps(content))
            paths.append(path)
        warned = data_warnings(load_results(paths[1:]))
        said = any("anomaly_labels: as many pixels of as many frames" in line for line in warned)
        assert said == (labels == "b" * 16)


def test_a_row_without_any_number_stands_in_the_notes_alone(tmp_path: Path) -> None:
    a = write_result(tmp_path / "a.json", {"entropy": {"auroc": 0.4, "aupr": None}})
    b = write_result(tmp_path / "b.json", {"entropy": {"auroc": 0.5, "aupr": None}})
    text = format_comparison(compare(load_results([a, b]), keys=["*.pooled.*"]))
    assert not any(line.startswith(f"| {AUPR}") for line in text.splitlines())
    assert f"— no reason is given: {AUPR} of a, {AUPR} of b." in text


def test_rows_without_numbers_are_shown_where_there_is_nothing_else(tmp_path: Path) -> None:
    a = write_result(tmp_path / "a.json", {"entropy": {"auroc": 0.4, "aupr": None}})
    b = write_result(tmp_path / "b.json", {"entropy": {"auroc": 0.5, "aupr": None}})
    text = format_comparison(compare(load_results([a, b]), keys=["*.aupr"]))
    assert any(line.startswith(f"| {AUPR}") for line in text.splitlines())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("counts", "x"),
        ("intervals", "x"),
        ("reasons", "x"),
        ("forms", "x"),
        ("run", "x"),
        ("bootstrap", "x"),
        ("left_out", "x"),
        ("intervals", {AUROC: 5}),
        ("intervals", {AUROC: [1]}),
        ("intervals", {AUROC: [0, "1"]}),
        ("intervals", {AUROC: [0, 1, 2]}),
        ("bootstrap", {"no_interval": [AUROC]}),
    ],
)
def test_a_section_of_another_form_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = write_result(tmp_path / "a.json", {"entropy": {"auroc": 0.9}})
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(InputError, match=rf"a\.json is not a result of segunc evaluate: {key}"):
        load_results([path])


@pytest.mark.parametrize("content", ["{}", "[1]", "{"])
def test_a_file_that_is_not_a_result_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=r"a\.json"):
        load_results([tmp_path / "a.json"])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.312, ".312"),
        (1.0, "1.000"),
        (-0.0123, "−.012"),
        (0.0, ".000"),
        (-0.0, ".000"),
        (12.3456, "12.346"),
        (0.000412, ".000412"),
        (0.00999, ".00999"),
        (0.9996, "1.000"),
        (0.0000166, ".000017"),
        (1.66e-8, ".000"),
    ],
)
def test_numbers_are_written_as_statistics_does(value: float, text: str) -> None:
    assert format_number(value) == text
    signed = format_number(value, sign=True)
    assert signed == (f"+{text}" if text.strip("0.") and value > 0 else text)


def test_columns_of_a_table_stand_below_each_other() -> None:
    text = markdown_table([["a", "b|c"], ["long name", "1"]])
    assert text.splitlines() == [
        "| a         | b\\|c |",
        "| --------- | ---: |",
        "| long name |    1 |",
    ]


def test_a_comparison_marks_directions_and_the_best_column(tmp_path: Path) -> None:
    text = format_comparison(compare(load_results(pair(tmp_path))))
    assert f"| {AUROC} ↑" in text
    assert "**.920**" in text
    assert "p < .001" in text or "p .00" in text


def test_one_result_alone_has_neither_marks_nor_differences(tmp_path: Path) -> None:
    pair(tmp_path)
    alone = format_comparison(compare(load_results([tmp_path / "first.json"])))
    assert "**" not in alone
    assert "less" not in alone


def test_a_cell_holds_its_interval() -> None:
    assert format_cell(Cell(0.312, (0.29, 0.335))) == ".312 [.290, .335]"
    assert format_cell(Cell(0.0004, (0.0, 0.01))) == ".000400 [.000, .010000]"


def test_a_comparison_says_what_its_brackets_hold(tmp_path: Path) -> None:
    path = write_result(
        tmp_path / "one.json", {"entropy": {"auroc": 0.9}}, intervals={AUROC: (0.8, 0.95)}
    )
    assert "Brackets hold 95 % intervals." in format_comparison(compare(load_results([path])))


def test_a_comparison_without_an_interval_has_no_word_on_brackets(tmp_path: Path) -> None:
    path = write_result(tmp_path / "one.json", {"entropy": {"auroc": 0.9}})
    assert "Brackets" not in format_comparison(compare(load_results([path])))


def test_results_without_an_anomaly_label_are_compared_whatever_their_objects_are(
    tmp_path: Path,
) -> None:
    counts = {"labelled_frames": 5, "labelled_pixels": 7}
    paths = []
    for pixels in (1, 9):
        path = tmp_path / f"{pixels}.json"
        paths.append(write_result(path, {}, counts=counts, run={"smallest_object": pixels}))
    assert data_warnings(load_results(paths)) == []


MAPS = {"maps_in": "maps_fog", "dataset": "folder", "split": "test", "labels_in": "data"}


def test_a_heading_says_what_a_column_is_of(tmp_path: Path) -> None:
    run = MAPS | {
        "base_sha256": "ab" * 32,
        "posterior_sha256": "cd" * 32,
        "thresholds": {"entropy": {"file": "t.json", "sha256": "ef" * 32}},
    }
    flagged = {"entropy": {"threshold": 0.4, "share": 0.1}}
    paths = pair(tmp_path, run=run, flagged=flagged, counts=COUNTS | {"frames_scored": 60})
    text = format_comparison(compare(load_results(paths)))
    assert (
        "- other: model abababababab with posterior cdcdcdcdcdcd; maps in maps_fog; labels in the "
        "folder data, split test; 60 frames (5 with class labels, 60 with anomaly labels); "
        "threshold t.json (SHA-256 efefefefefef): entropy >= 0.4"
    ) in text
    assert (
        "- first: model not recorded; folder of the images not recorded; camvid; frames not "
        "counted (5 with class labels, 60 with anomaly labels)"
    ) in text
    assert text.index("- first: ") < text.index("| number ")


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        ({"control": "missed-objects", "level": 0.1}, " for missed objects of at most .100"),
        ({"control": "missed-objects"}, " for missed objects"),
        ({}, ""),
    ],
)
def test_a_heading_names_what_a_threshold_controls(
    tmp_path: Path, recorded: dict[str, Any], words: str
) -> None:
    flagged = {"entropy": {"threshold": 0.4, "share": 0.1} | recorded}
    text = format_comparison(compare(load_results(pair(tmp_path, flagged=flagged))))
    assert f"; threshold entropy >= 0.4{words}\n" in text


def test_settings_that_differ_are_said_above_the_table(tmp_path: Path) -> None:
    run = {"draws": 8, "seed": 0, "size": [256, 512], "precision": "bfloat16"}
    paths = []
    for name, other in (("a", {}), ("b", {"size": [192, 384]}), ("c", {"precision": "float32"})):
        scores = {"entropy": {"auroc": 0.9}}
        paths.append(write_result(tmp_path / f"{name}.json", scores, run=run | other))
    text = format_comparison(compare(load_results(paths)))
    assert (
        "Other settings. Size: 256 x 512 (a, c); 192 x 384 (b). "
        "Precision: bfloat16 (a, b); float32 (c).\n"
    ) in text
    assert "Draws:" not in text
    assert text.index("Other settings.") < text.index("| number ")


def test_noise_of_another_scale_scheme_and_scope_is_said(tmp_path: Path) -> None:
    own = {"scheme": "independent", "scope": None}
    other = {"scheme": "antithetic", "scope": "decoder", "alpha": 0.5}
    scores = {"entropy": {"auroc": 0.9}}
    paths = [
        write_result(tmp_path / "a.json", scores, run=own),
        write_result(tmp_path / "b.json", scores, run=other),
        write_result(tmp_path / "earlier.json", scores, run={}),
    ]
    text = format_comparison(compare(load_results(paths)))
    assert (
        "Other settings. Scheme of the noise: independent (a); antithetic (b). "
        "Scale of the noise (alpha): of the model (a, earlier); 0.5 (b). "
        "Layers with noise: of the posterior (a, earlier); decoder (b).\n"
    ) in text


@pytest.mark.parametrize(
    ("first", "other", "said"),
    [
        (
            {"temperature": 1.0},
            {"temperature": 1.25},
            "Calibration of the probabilities: none (first); "
            "temperature 1.25 of the logits (other).",
        ),
        (
            {"temperature": 1.0, "calibrator_sha256": "ab" * 32},
            {"temperature": 1.0},
            "Calibration of the probabilities: abababababab, of the mean over the draws (first); "
            "none (other).",
        ),
        (
            {"features_sha256": "ab" * 32},
            {"features_sha256": "cd" * 32},
            "Bank of features: abababababab (first); cdcdcdcdcdcd (other).",
        ),
        (
            {"anomaly": {"weights": [1.0]}},
            {"anomaly": {"weights": [2.0]}},
            "Sum of scores (anomaly): 42290143b523 (first); 5fded90f553d (other).",
        ),
        (
            {"class_sets": {"level": 0.1}},
            {"class_sets": {"level": 0.2}},
            "Calibration of class sets: 2de2e710e770 (first); 402a6c39f30c (other).",
        ),
        ({"features_sha256": "ab" * 32, "temperature": 1.0}, {}, ""),
        ({"anomaly": {"weights": [1.0]}}, {"anomaly": {"weights": [1.0]}}, ""),
    ],
)
def test_what_was_fitted_on_a_model_is_said_where_it_differs(
    tmp_path: Path, first: dict[str, Any], other: dict[str, Any], said: str
) -> None:
    """What a result does not record had no part in its numbers."""
    paths = []
    for name, run in (("first", first), ("other", other)):
        scores = {"entropy": {"auroc": 0.9}}
        paths.append(write_result(tmp_path / f"{name}.json", scores, run=run))
    settings = compare(load_results(paths)).settings
    assert settings == ((said,) if said else ())


def test_settings_that_are_equal_are_not_said(tmp_path: Path) -> None:
    assert "Other settings" not in format_comparison(compare(load_results(pair(tmp_path))))


@pytest.mark.parametrize(
    ("names", "images", "said"),
    [("1", "3", True), ("1", "2", False), ("0", "3", False), ("1", None, False)],
)
def test_pairs_of_other_images_are_said_by_their_hashes(
    tmp_path: Path, names: str, images: str | None, said: bool
) -> None:
    paths = pair(tmp_path)
    for path, counted in zip(
        paths, ({"frame_names": "1", "images": "2"}, {"frame_names": names}), strict=True
    ):
        content = json.loads(path.read_text())
        content["counts"] = COUNTS | counted
        if path == paths[1] and images is not None:
            content["counts"]["images"] = images
        path.write_text(json.dumps(content))
    text = format_comparison(compare(load_results(paths)))
    assert ("other less first: paired by frame name; the images differ." in text) == said


@pytest.mark.parametrize(
    ("first", "other", "said"),
    [
        ("abc", "aBcd", "1 of the 3 shared frames has another image under the same name: b"),
        ("abcde", "ABCDf", "4 of the 4 shared frames have other images under the same name: a, b"),
        ("abc", "aBC", "2 of the 3 shared frames have other images under the same name: b, c"),
        ("abc", "abcd", ""),
        ("abc", "ABC", ""),
        ("", "ABCD", ""),
    ],
)
def test_shared_frames_with_other_images_are_named(
    tmp_path: Path, first: str, other: str, said: str
) -> None:
    """A letter is a frame, and its case the image of the frame; '' is of an earlier version."""
    for path, frames in zip(pair(tmp_path), (first, other), strict=True):
        images = {frame.lower(): frame for frame in frames}
        write_replicates(path, {AUROC: 0.9}, images=images)
    text = format_comparison(compare(load_results(sorted(tmp_path.glob("*.json")))))
    assert ("shared frame" in text) == bool(said)
    assert f"other less first: {said}" in text or not said


def thresholds_pair(tmp_path: Path, value: float, sha256: str | None) -> list[Path]:
    """Two results with a threshold each, that of the second one as given; without a hash, as of an
    earlier version.
    """
    paths = pair(tmp_path)
    for path, of_entropy, digest in ((paths[0], 0.4, "a"), (paths[1], value, sha256)):
        content = json.loads(path.read_text())
        numbers = {"threshold": of_entropy, "share": 0.1, "level": 0.2, "units": 7}
        content["flagged"] = {"entropy": numbers}
        if digest is not None:
            content["run"]["thresholds"] = {"entropy": {"file": "t.json", "sha256": digest}}
        path.write_text(json.dumps(content))
    return paths


@pytest.mark.parametrize(
    ("value", "sha256", "warned"),
    [
        (0.4, "a", False),
        (0.5, "a", True),
        (0.4, "b", True),
        (0.4, None, False),
        (0.5, None, True),
    ],
)
def test_numbers_of_different_thresholds_are_warned_of(
    tmp_path: Path, value: float, sha256: str | None, warned: bool
) -> None:
    results = load_results(thresholds_pair(tmp_path, value, sha256))
    warning = (
        "numbers of flagged.entropy belong to different thresholds in first and other, so they do "
        "not tell the results apart"
    )
    assert compare(results).warnings == ((warning,) if warned else ())
    assert compare(results, keys=["segmentation.*"]).warnings == ()


def test_a_value_is_another_threshold_than_a_file_of_this_value(tmp_path: Path) -> None:
    """A file has a smallest region and a share of its own, which a bare value has not."""
    paths = thresholds_pair(tmp_path, 0.4, None)
    content = json.loads(paths[0].read_text())
    content["flagged"]["entropy"]["control"] = "missed-objects"
    paths[0].write_text(json.dumps(content))
    (warning,) = compare(load_results(paths)).warnings
    assert "belong to different thresholds in first and other" in warning


def test_no_score_is_better_at_its_own_threshold(tmp_path: Path) -> None:
    numbers = {"entropy": {"auroc": 0.9}, "msp": {"auroc": 0.8}}
    flagged = {"entropy": {"threshold": 0.4, "share": 0.1}, "msp": {"threshold": 0.2, "share": 0.3}}
    path = write_result(tmp_path / "m.json", numbers, flagged=flagged)
    replicates = {f"scores.{name}.pooled.auroc": row["auroc"] for name, row in numbers.items()}
    replicates |= {f"flagged.{name}.share": row["share"] for name, row in flagged.items()}
    write_replicates(path, replicates)
    comparison = compare(load_results([path]), scores=["entropy", "msp"])
    share = rows(comparison)["flagged.share"]
    assert share.differences[1].test.excludes_zero
    assert share.best is None
    assert rows(comparison)["pooled.auroc"].best == 0
    (warning,) = comparison.warnings
    assert warning.startswith("numbers of what is flagged are of another threshold in each score")
    assert (
        compare(load_results([path]), scores=["entropy", "msp"], keys=["pooled.*"]).warnings == ()
    )


@pytest.mark.parametrize(("value", "best"), [(0.4, 0), (0.5, None)])
def test_no_column_is_better_at_another_threshold(
    tmp_path: Path, value: float, best: int | None
) -> None:
    paths = thresholds_pair(tmp_path, value, "a")
    for path, share in zip(paths, (0.1, 0.3), strict=True):
        content = json.loads(path.read_text())
        content["flagged"]["entropy"]["share"] = share
        path.write_text(json.dumps(content))
        write_replicates(path, {"flagged.entropy.share": share})
    (row,) = compare(load_results(paths), keys=["flagged.entropy.share"]).rows
    assert row.best == best


@pytest.mark.parametrize(("accuracy", "best"), [(0.72, 1), (0.56, None)])
def test_more_errors_are_no_better_failure_aupr(
    tmp_path: Path, accuracy: float, best: int | None
) -> None:
    """The AUPR of wrong pixels is their share by chance."""
    failure = "selective.entropy.failure_aupr"
    paths = pair(tmp_path)
    for path, of_all, aupr in zip(paths, (0.73, accuracy), (0.4, 0.6), strict=True):
        content = json.loads(path.read_text())
        content["segmentation"] = {"accuracy": of_all}
        content["selective"] = {"entropy": {"failure_aupr": aupr}}
        path.write_text(json.dumps(content))
        write_replicates(path, {failure: aupr})
    compared = compare(load_results(paths), keys=[failure])
    assert compared.rows[0].best == best
    warning = (
        "failure_aupr of chance is the share of wrong pixels, .270 in first, .440 in other: more "
        "errors alone make it higher, so no column is called better by it"
    )
    assert compared.warnings == (() if best else (warning,))
    assert compare(load_results(paths), keys=["segmentation.*"]).warnings == ()


def test_frames_under_other_paths_are_named(tmp_path: Path) -> None:
    paths = pair(tmp_path)
    frames = [f"{number:02d}" for number in range(15)]
    write_replicates(paths[0], {AUROC: 0.9}, units=tuple(f"drive/{name}" for name in frames))
    write_replicates(paths[1], {AUROC: 0.9}, units=tuple(frames))
    text = format_comparison(compare(load_results(paths)))
    assert (
        "not paired: other units were resampled (15 and 15), such as drive/00 and 00; if these are "
        "the same frames under other paths, evaluate both results by --maps, or both by --model"
    ) in text


SPECKS = (
    "first: 4 of 20 labelled objects have fewer than 10 pixels, in 1 frame without a larger one, "
    "so numbers of objects may be of specks of the labelling."
)


@pytest.mark.parametrize(
    ("keys", "flagged", "of_objects"),
    [
        (None, {"control": "missed-objects", "risk": 0.1}, True),
        (None, {"control": "missed-pixels", "risk": 0.1}, False),
        (None, {"control": "missed-pixels", "missed-objects": {"upper": 0.2}}, True),
        (None, {"control": "missed-objects", "flagged-pixels": {"risk": 0.1}}, False),
        (None, {"over_time": {"detected": 0.5}}, True),
        (None, {"size": {"0-100": {"found": 0.5}}}, False),
        (["*.found"], {"size": {"0-100": {"found": 0.5}}}, True),
    ],
)
def test_numbers_of_specks_are_said_above_the_table(
    tmp_path: Path, keys: list[str] | None, flagged: dict[str, object], of_objects: bool
) -> None:
    """The first result has four single pixels in a frame, the other one has none."""
    paths = pair(tmp_path)
    counts = COUNTS | {"objects": 20, "small_objects": 0, "small_object_frames": 0}
    specks = {"small_objects": 4, "small_object_frames": 1}
    for path, counted in ((paths[0], counts | specks), (paths[1], counts)):
        content = json.loads(path.read_text())
        content |= {"counts": counted, "flagged": {"entropy": flagged}}
        path.write_text(json.dumps(content))
    text = format_comparison(compare(load_results(paths), keys=keys))
    assert (f"\n\n{SPECKS}\n\n| number " in text) is of_objects
    assert ("specks" in text) is of_objects


def test_specks_are_said_once_for_results_that_have_the_same(tmp_path: Path) -> None:
    paths = pair(tmp_path)
    counts = COUNTS | {"objects": 20, "small_objects": 4, "small_object_frames": 1}
    for path in paths:
        content = json.loads(path.read_text())
        flagged = {"over_time": {"detected": 0.5}}
        content |= {"counts": counts, "flagged": {"entropy": flagged, "msp": flagged}}
        path.write_text(json.dumps(content))
    (sentence,) = compare(load_results(paths), scores=["entropy", "msp"]).small_objects
    assert sentence == SPECKS.replace("first: ", "first, other: ")


@pytest.mark.parametrize(("p_value", "best"), [(0.049, 0), (0.065, None)])
def test_bold_asks_for_the_interval_and_for_p_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, p_value: float, best: int | None
) -> None:
    """Few effective units end an interval at the outermost replicate, while p cannot decide."""
    chance = Chance(0.007, 0.146, p_value, 16.0)
    monkeypatch.setattr(comparison_module, "paired_difference", lambda *_: chance)
    comparison = compare(load_results(pair(tmp_path)), keys=[AUROC])
    assert rows(comparison)[AUROC].best == best
    text = " ".join(format_comparison(comparison).split())
    rule = "the 95 % interval of each paired difference excludes 0, and its p is below .05."
    assert f"Bold is better than every other column by more than chance: {rule}" in text


def test_settings_of_a_threshold_have_no_difference(tmp_path: Path) -> None:
    row_of = rows(compare(load_results(thresholds_pair(tmp_path, 0.4, "a"))))
    assert row_of["flagged.entropy.level"].differences == (None, None)
    assert row_of["flagged.entropy.units"].differences == (None, None)
    (threshold,) = compare(
        load_results(sorted(tmp_path.glob("*.json"))), keys=["flagged.entropy.threshold"]
    ).rows
    assert threshold.differences == (None, None)
    assert row_of["flagged.entropy.share"].differences[1] is not None
