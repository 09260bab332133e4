"""The summary of a report: each line says what the numbers say, with their frames."""

from __future__ import annotations

from typing import Any

import pytest
from scipy.stats import binomtest

from segunc.reporting.facts import _under_shift
from segunc.reporting.summary_lines import folded, measuring, resampled, share, summary_of

COUNTS = {
    "anomaly_pixels": 5,
    "normal_pixels": 95,
    "labelled_frames": 7,
    "frames": 7,
}


def result(**changes: Any) -> dict[str, Any]:
    """A result as a report holds it."""
    content = {
        "run": {"dataset": "streets", "split": "test"},
        "counts": COUNTS,
        "intervals": {},
        "segmentation": {"miou": 0.5, "per_class": {"road": 0.9, "pole": 0.0, "car": 0.6}},
        "calibration": {"ece": 0.02},
        "scores": {"entropy": {"pooled": {"aupr": 0.4, "fpr95": 0.25}}},
    }
    return {
        "name": "test",
        "data": "streets test",
        "labelled": "streets test, 7 frames",
        "with_anomalies": "streets test, 3 frames",
        "segmented": True,
        "score": "entropy",
        "found": "At the threshold",
        "missed": {
            "size": [["small", 64, 53, 0.9]],
            "distance": [],
            "group": [],
        },
        "content": content,
    } | changes


def facts(**changes: Any) -> dict[str, Any]:
    """What a report says, with nothing measured but one result."""
    domain = {
        "independence": "",
        "label_quality": "",
        "approvers": [],
        "cells": [],
        "gaps": 0,
        "minimum": 30,
    }
    plain: dict[str, Any] = {
        "results": [result()],
        "thresholds": [],
        "shift": [],
        "trained": {},
        "domain": domain,
        "monitor": None,
        "gaps": ["operation"],
    }
    return plain | changes


def line(name: str, **changes: Any) -> dict[str, str]:
    (found,) = (line for line in summary_of(facts(**changes)) if line["name"] == name)
    return found


def threshold(loss: float) -> dict[str, Any]:
    row = {
        "data": "streets test",
        "control": "missed-objects",
        "loss": loss,
        "units": 20,
        "upper": 0.139,
        "kept": "kept" if loss <= 0.1 else "exceeded",
        "shifted": False,
        "flagged": {"normal_share": 0.48},
    }
    return {
        "promise": "At most 10 %.",
        "condition": "It holds on this road.",
        "control": "missed-objects",
        "score": "entropy",
        "file": "t.json",
        "unit": "frame",
        "achieved": [row],
    }


def test_classes_that_are_never_found_are_named_first() -> None:
    text = line("Classes")["text"]
    assert text.startswith("pole is never found (IoU 0). Trust road most")


def test_results_with_other_labels_of_the_same_frames_have_a_line() -> None:
    text = line("Labels", other_labels=[("ra", "swap")])["text"]
    assert text.startswith("ra and swap are of frames of the same names with other labels")


def test_a_shift_without_clean_images_of_the_same_frames_is_named() -> None:
    row = {"name": "fog", "clean": None, "value": 0.3, "shift": "fog:3", "number": "mean IoU"}
    text = line("Under shift", shift=[row])["text"]
    assert text.startswith("fog of corrupted images cannot be compared, because no result here")
    assert "the same --every and split" in text


def test_each_number_under_shift_names_its_frames_and_score() -> None:
    counts = COUNTS | {"anomaly_frames": 3}
    clean = result()
    clean["content"]["counts"] = counts
    shifted = result(name="fog")
    shifted["content"]["counts"] = counts
    shifted["content"]["run"] = clean["content"]["run"] | {"corruption": "fog:3"}
    shifted["content"]["scores"] = {"entropy": {"pooled": {"aupr": 0.3, "fpr95": 0.5}}}
    rows = _under_shift([clean, shifted])
    assert [(row["number"], row["score"], row["frames"]) for row in rows] == [
        ("mean IoU", None, 7),
        ("ECE", None, 7),
        ("AUPR", "entropy", 3),
        ("FPR95", "entropy", 3),
    ]
    text = line("Under shift", results=[clean, shifted], shift=rows)["text"]
    assert (
        "Under fog:3, mean IoU is .500; without it .500 (streets test, 7 frames). "
        "Under fog:3, ECE is .020; without it .020 (streets test, 7 frames). "
        "Under fog:3, AUPR of the score entropy is .300; without it .400 (streets test, 3 frames). "
        "Under fog:3, FPR95 of the score entropy is .500; without it .250 "
        "(streets test, 3 frames)."
    ) in text


def test_a_class_that_is_in_no_label_is_not_called_never_found() -> None:
    seen = result()
    seen["content"]["counts"] = {**COUNTS, "unlabelled_classes": ["pole", "train"]}
    text = line("Classes", results=[seen])["text"]
    assert "never found" not in text
    assert "pole is predicted and not in these labels; the mean counts IoU 0." in text
    assert "Trust road most (IoU .900) and car least (.600)." in text


def test_a_class_without_iou_is_not_called_never_found() -> None:
    seen = result()
    seen["content"]["segmentation"]["per_class"] = {"road": 0.9, "train": None}
    assert "train" not in line("Classes", results=[seen])["text"]


def test_a_number_of_the_summary_names_its_frames() -> None:
    assert "Mean IoU is .500 on streets test, 7 frames." in line("Classes")["text"]
    assert "on streets test, 3 frames" in line("Unknown objects")["text"]


def test_missed_objects_are_a_share_with_its_upper_bound() -> None:
    bound = binomtest(53, 64, alternative="less").proportion_ci(0.95, method="exact").high
    assert round(53 / 64, 2) == 0.83
    words = "95 %, if objects are independent of each other"
    assert share(53, 64) == f"83 % of all objects, upper bound {100 * bound:.0f} % ({words})"
    text = line("Unknown objects")["text"]
    assert f"the score entropy misses 53 of all 64 objects: {share(53, 64)}." in text


def of_two_scores(**changes: Any) -> dict[str, Any]:
    seen = result(score="anomaly", **changes)
    seen["content"]["scores"]["anomaly"] = {"pooled": {"aupr": 0.692, "fpr95": 0.1}}
    return seen


def test_the_headline_is_of_the_best_score_and_names_that_of_the_threshold() -> None:
    seen = of_two_scores(missed_score="entropy")
    text = line("Unknown objects", results=[seen], thresholds=[threshold(0.05)])["text"]
    assert text.startswith("The score anomaly finds anomaly pixels with an AUPR of .692 on ")
    assert (
        "The threshold t.json is on the score entropy, which has an AUPR of .400. At the threshold "
        "the score entropy misses 53 of all 64 objects:"
    ) in text


def test_misses_of_the_headline_are_not_those_of_the_score_of_a_threshold() -> None:
    seen = of_two_scores(found="With 5 % of the normal pixels flagged", missed_score="anomaly")
    text = line("Unknown objects", results=[seen], thresholds=[threshold(0.05)])["text"]
    assert (
        "The threshold t.json is on the score entropy, which has an AUPR of .400. With 5 % of the "
        "normal pixels flagged the score anomaly misses 53 of all 64 objects:"
    ) in text


def test_each_threshold_is_named_with_its_score() -> None:
    of_anomaly = threshold(0.05) | {"score": "anomaly", "file": "t_fa.json"}
    of_knn = threshold(0.05) | {"score": "knn", "file": "t_knn.json"}
    thresholds = [of_anomaly, threshold(0.05), of_knn]
    text = line("Unknown objects", results=[of_two_scores()], thresholds=thresholds)["text"]
    assert "The threshold t_fa.json is on the score anomaly. The threshold t.json is on" in text
    assert "t_knn.json is on the score feature distance, which was not evaluated there." in text


def test_a_headline_of_the_score_of_the_threshold_names_no_other() -> None:
    text = line("Unknown objects", thresholds=[threshold(0.05)])["text"]
    assert "The threshold t.json" not in text
    assert "At the threshold the score entropy misses 53 of all 64 objects:" in text


def test_test_frames_stand_for_the_model_before_those_of_a_validation() -> None:
    validated = result(name="val", labelled="streets val, 9 validation frames", role="validation")
    validated["content"]["segmentation"]["miou"] = 0.542
    text = line("Classes", results=[validated, result(role="test")])["text"]
    assert "Mean IoU is .500 on streets test, 7 frames." in text
    assert ".542" in line("Classes", results=[validated])["text"]


def test_a_split_named_val_comes_after_test_also_where_no_training_chose_on_it() -> None:
    validated = result(name="val", role="test")
    validated["content"]["run"] = {"dataset": "streets", "split": "val"}
    validated["content"]["segmentation"]["miou"] = 0.542
    assert "Mean IoU is .500" in line("Classes", results=[validated, result(role="test")])["text"]


def over_drives(units: int) -> dict[str, Any]:
    """A result with intervals over so many folders."""
    seen = result()
    seen["content"]["bootstrap"] = {"unit": "folder", "units": units}
    seen["content"]["intervals"] = {"segmentation.miou": [0.4, 0.6]}
    return seen


def test_intervals_over_few_units_are_said_not_to_be_relied_on() -> None:
    words = (
        "Intervals of test are over 2 folders (of frames, such as drives): too few, so its "
        "intervals are not to be relied on."
    )
    assert words in line("Classes", results=[over_drives(2)])["text"]
    assert "Intervals of" not in line("Classes", results=[over_drives(10)])["text"]
    assert resampled(over_drives(12)) == "12 folders (of frames, such as drives)"
    assert resampled(result()) == ""


def test_the_price_of_errors_kept_tells_right_and_wrong_pixels_apart() -> None:
    promised = threshold(0.05) | {"control": "errors-kept"}
    row = promised["achieved"][0] | {"control": "errors-kept", "flagged": {"share": 0.659}}
    promised["achieved"] = [row | {"right_flagged": 0.555, "wrong_flagged": 0.907}]
    text = line("Operating point", thresholds=[promised])["text"]
    assert "kept, with 55.5 % of the right and 90.7 % of the wrong pixels flagged." in text
    assert "normal pixels" not in text
    promised["achieved"] = [row]  # of an earlier version
    text = line("Operating point", thresholds=[promised])["text"]
    assert "with 65.9 % of all labelled pixels flagged, right or wrong." in text


def test_lines_of_which_nothing_was_given_are_one_line() -> None:
    lines = summary_of(facts(thresholds=[threshold(0.05)], gaps=["operation", "shift"]))
    shown, missing, words = folded(lines)
    assert len(shown) + len(missing) == len(lines)
    assert {line["name"] for line in shown} == {
        "Classes",
        "Probabilities",
        "Unknown objects",
        "Operating point",
        "Training data",
    }
    assert words == (
        "Nobody stated: independence, label quality, operating domain, approval. A file for "
        "--domain states them; the guide docs/guides/reporting.md shows one. Not measured: under "
        "shift, reviewers, operation. The section of each below names the command."
    )


def test_the_row_names_all_that_its_lines_name() -> None:
    gaps = ["intended use", "factors", "shift", "latency", "reviewers", "operation", "ethics"]
    words = folded(summary_of(facts(gaps=gaps)), gaps)[2]
    stated, measured = words.split(" Not measured: ")
    assert stated.startswith(
        "Nobody stated: independence, label quality, operating domain, approval, intended use, "
        "ethics."
    )
    assert measured.startswith("operating point, under shift, reviewers, operation, latency.")


def test_a_finding_that_is_open_is_not_folded() -> None:
    lines = summary_of(facts(other_labels=[("ra", "swap")]))
    assert "Labels" in {line["name"] for line in folded(lines)[0]}


def test_a_promise_that_does_not_hold_is_the_first_line() -> None:
    first = summary_of(facts(thresholds=[threshold(0.2)]))[0]
    assert first["name"] == "Operating point"
    assert first["state"] == "broken"


def test_a_promise_stands_with_its_condition_and_its_price() -> None:
    text = line("Operating point", thresholds=[threshold(0.05)])["text"]
    assert text.startswith("Missed objects .050: kept. At most 10 %. .050, mean over 20 frames")
    assert text.endswith("It holds on this road.")
    words = "on streets test, at most .139 with 95 % confidence: kept"
    assert f".050, mean over 20 frames {words}" in text
    assert "kept, with 48.0 % of the normal pixels flagged." in text


def test_what_was_achieved_and_promised_stands_before_the_conditions() -> None:
    point = threshold(0.327)
    point["achieved"][0] |= {"level": 0.1, "file": "friday.json", "of": "tour (friday.json)"}
    said = line("Operating point", thresholds=[point])
    assert said["lead"] == "Missed objects .327, promised .100: exceeded."
    assert said["text"].startswith(f"{said['lead']} At most 10 %.")
    assert "mean over 20 frames on tour (friday.json)," in said["text"]
    fog = point["achieved"][0] | {"loss": 0.05, "upper": 0.09, "kept": "kept", "file": "fog.json"}
    point["achieved"].append(fog)
    said = line("Operating point", thresholds=[point])
    assert said["lead"] == (
        "Missed objects .327 in friday.json, promised .100: exceeded. "
        "Missed objects .050 in fog.json, promised .100: kept."
    )


@pytest.mark.parametrize(
    ("control", "name", "lacking"),
    [
        ("missed-objects", "Missed objects", "labelled object that counts"),
        ("errors-kept", "Wrong pixels among those kept", "pixel with a class label"),
    ],
)
def test_a_risk_without_a_number_is_said_to_be_not_measured(
    control: str, name: str, lacking: str
) -> None:
    point = threshold(0.1)
    point["achieved"][0] |= {
        "control": control,
        "loss": None,
        "units": None,
        "upper": None,
        "kept": "not measured",
        "level": 0.1,
        "flagged": {},
    }
    said = line("Operating point", thresholds=[point])
    assert said["state"] == "open"
    assert said["lead"] == f"{name} were not measured, promised .100."
    assert f" Not measured on streets test: no frame there has a {lacking}. " in said["text"]
    assert "no number" not in said["text"]


def test_results_of_other_images_under_the_same_names_are_said() -> None:
    others = [("fog.json", "friday.json")]
    text = line("Images", other_images=others)["text"]
    assert (
        text == "The images of fog.json are others than those of friday.json under the same names."
    )
    shift = line("Under shift", other_images=others)
    assert shift["state"] == "open"
    assert shift["text"].startswith(
        "Not measured on corrupted images. fog.json is a result of other images under the same "
        "names; the numbers stand with the other results"
    )
    alone = line("Under shift")
    assert alone["text"] == "Not measured on corrupted images."


def test_a_network_is_trained_on_frames_and_not_on_labels() -> None:
    trained = {"dataset": "labels in the folder data"}
    text = line("Training data", trained=trained)["text"]
    assert text.startswith("Trained on the frames of the folder data.")
    assert line("Training data", trained={"dataset": "camvid"})["text"] == "Trained on camvid."


def test_a_promise_on_frames_that_something_was_chosen_on_says_so() -> None:
    chosen = threshold(0.05) | {"chosen": "these frames are of the split val"}
    text = line("Operating point", thresholds=[chosen])["text"]
    assert text.endswith("road. Of the calibration: these frames are of the split val.")


def test_a_promise_that_was_tested_on_frames_of_another_size_says_so() -> None:
    tested = threshold(0.05)
    tested["achieved"][0]["size_note"] = "t.json was calibrated on frames of 96x64 pixels"
    text = line("Operating point", thresholds=[tested])["text"]
    assert "flagged. t.json was calibrated on frames of 96x64 pixels. It holds" in text


def test_a_monitor_of_too_few_frames_measures_nothing() -> None:
    said = line("Operation", monitor={"frames": 5, "measured": False, "fired": None})
    assert said["state"] == "open"
    assert "5 frames are too few to raise an alarm" in said["text"]


def test_a_monitor_that_fired_is_no_reassurance() -> None:
    monitor = {"frames": 50, "fired": "frame_9", "alarms": ["x"]}
    said = line("Operation", monitor=monitor, gaps=[])
    assert said["state"] == "broken"
    assert said["text"].endswith("no longer like before.")
    said = line("Operation", monitor=monitor | {"condition": "It holds where c."}, gaps=[])
    assert said["text"].endswith("no longer like before. It holds where c.")


def test_kappa_stands_beside_what_reviewers_saw() -> None:
    seen = result()
    seen["content"]["verdicts"] = {}
    pair = {
        "reviewers": ["Ana", "Bo"],
        "kappa": 0.41,
        "frames": 20,
    }
    judged = {
        "judged_frames": 30,
        "disagreed_frames": 12,
        "judged_by_several": 20,
    }
    seen["content"]["counts"] = COUNTS | judged | {"agreement": [pair]}
    text = line("Reviewers", results=[seen])["text"]
    assert "reviewers disagree on 12 of 20 that two or more judged" in text
    assert "Cohen's kappa of Ana and Bo is 0.41, over 20 frames that both judged." in text


def test_kappa_of_regions_stands_beside_that_of_frames() -> None:
    seen = result()
    seen["content"]["verdicts"] = {}
    pairs = [
        {"reviewers": ["Ana", "Bo"], "kappa": 0.23, "regions": 40},
        {"reviewers": ["Ana", "Cy"], "kappa": None, "regions": 3},
        {"reviewers": ["Bo", "Cy"], "kappa": None, "regions": 0},
    ]
    judged = {"judged_frames": 30, "disagreed_frames": 12, "region_agreement": pairs}
    seen["content"]["counts"] = COUNTS | judged
    text = line("Reviewers", results=[seen])["text"]
    assert "Cohen's kappa of Ana and Bo is 0.23, over 40 regions that both judged." in text
    assert "Ana and Cy gave the same verdict on all 3 regions that both judged" in text
    assert "Bo and Cy judged none of the same regions." in text


def test_classes_that_are_never_found_under_shift_are_named() -> None:
    shifted = result(name="fog")
    shifted["content"]["run"] = shifted["content"]["run"] | {"corruption": "fog:3"}
    shifted["content"]["segmentation"] = {"miou": 0.3, "per_class": {"road": 0.6, "car": 0.0}}
    rows = _under_shift([result(), shifted])
    text = line("Under shift", results=[result(), shifted], shift=rows)["text"]
    assert text.endswith("Under fog:3, car is never found.")


def test_what_the_operator_says_is_stated_and_not_measured() -> None:
    domain = facts()["domain"] | {"independence": "Other cities."}
    assert line("Independence", domain=domain)["state"] == "stated"


def test_nothing_is_said_of_the_training_of_an_imported_network() -> None:
    trained = {"dataset": "streets", "validation": "val"}
    said = line("Training data", trained=trained, imported=True)
    assert said["state"] == "open"
    assert "epoch" not in said["text"]
    assert "segunc did not train the network" in said["text"]


@pytest.mark.parametrize("imported", [False, True])
def test_training_data_name_every_source_of_what_was_fitted(imported: bool) -> None:
    trained = {"dataset": "camvid"}
    sources = ["road.mp4", "camvid", "cv/val"]
    text = line("Training data", trained=trained, imported=imported, fitted_on=sources)["text"]
    assert text.endswith("What was fitted on it here saw camvid, road.mp4 and cv/val.")
    alone = line("Training data", trained=trained, imported=imported, fitted_on=["camvid"])["text"]
    assert ("saw camvid." in alone) == imported


def test_a_list_of_frames_that_changed_after_the_training_is_said() -> None:
    trained = {"dataset": "folder", "validation": "val"}
    said = line("Training data", trained=trained, splits_changed=["metrics"])
    assert said["state"] == "open"
    assert "metrics may hold frames that it was trained on" in said["text"]


@pytest.mark.parametrize(
    ("control", "also", "labels"),
    [
        ("errors-kept", {}, "--labels LABELS --config CONFIG"),
        ("missed-objects", {}, "--anomaly-labels MASKS"),
        (
            "missed-objects",
            {"errors-kept": 0.1},
            "--labels LABELS --config CONFIG --anomaly-labels MASKS",
        ),
    ],
)
def test_a_threshold_is_measured_with_the_labels_that_its_risk_needs(
    control: str, also: dict[str, float], labels: str
) -> None:
    threshold = {"file": "t.json", "control": control, "also": also}
    command = f"segunc evaluate --maps MAPS {labels} --flag t.json --out metrics.json"
    assert measuring(threshold) == command


def test_what_nobody_stated_is_open() -> None:
    assert line("Independence")["state"] == "open"
    assert line("Label quality")["state"] == "open"


def test_a_shift_is_not_compared_with_other_images_of_the_same_names() -> None:
    shifted = result(name="fog")
    run = shifted["content"]["run"] | {"corruption": "fog:3"}
    shifted["content"] |= {"run": run, "counts": COUNTS | {"images": "a"}}
    other = result()
    other["content"]["counts"] = COUNTS | {"images": "b"}
    assert {row["clean"] for row in _under_shift([other, shifted])} == {None}
    other["content"]["counts"] = COUNTS | {"images": "a"}
    assert None not in {row["clean"] for row in _under_shift([other, shifted])}


@pytest.mark.parametrize("changed", [{"split": "val"}, {"frames": "^a"}, {"every": 2}])
def test_a_shift_is_compared_with_the_same_frames_alone(changed: dict[str, Any]) -> None:
    shifted = result(name="fog")
    shifted["content"]["run"] = shifted["content"]["run"] | {"corruption": "fog:3"}
    shifted["content"]["segmentation"] = {"miou": 0.3, "per_class": {}}
    rows = _under_shift([result(), shifted])
    assert [row["clean"] for row in rows if row["number"] == "mean IoU"] == [0.5]
    other = result()
    other["content"]["run"] = other["content"]["run"] | changed
    assert {row["clean"] for row in _under_shift([other, shifted])} == {None}


def test_an_alarm_is_said_in_its_words() -> None:
    monitor = {"frames": 50, "fired": None, "alarms": ["risk above 0.1", "blur"]}
    assert line("Operation", monitor=monitor, gaps=[]) == {
        "name": "Operation",
        "state": "broken",
        "text": "Alarm: risk above 0.1; blur.",
    }


@pytest.mark.parametrize(
    ("power", "sentence"),
    [
        (None, "few frames show only large changes"),
        ({"line": ""}, "few frames show only large changes"),
        ({"line": "they show shifts of 1"}, "they show shifts of 1"),
    ],
)
def test_silence_is_a_measurement_with_its_power(power: Any, sentence: str) -> None:
    monitor = {"frames": 50, "fired": None, "alarms": [], "power": power}
    assert line("Operation", monitor=monitor, gaps=[]) == {
        "name": "Operation",
        "state": "measured",
        "text": f"The monitor found no change in 50 frames; {sentence}.",
    }


@pytest.mark.parametrize(
    ("clean", "state"), [("kept", "limited"), ("not measured", "broken"), ("exceeded", "broken")]
)
def test_a_promise_that_is_exceeded_under_shift_is_limited_at_best(clean: str, state: str) -> None:
    promised = threshold(0.05)
    (row,) = promised["achieved"]
    shifted = row | {"kept": "exceeded", "shifted": True}
    promised["achieved"] = [row | {"kept": clean}, shifted]
    assert line("Operating point", thresholds=[promised])["state"] == state


def test_a_bound_above_the_level_and_the_input_of_the_calibration_are_said() -> None:
    point = threshold(0.05)
    point["achieved"][0] |= {"level": 0.1, "same_input": True}
    text = line("Operating point", thresholds=[point])["text"]
    assert "at most .139 with 95 % confidence: kept here, but the bound is above .100" in text
    assert "These frames come from the input of the calibration" in text
    assert line("Operating point", thresholds=[point])["state"] == "unproven"
    point["achieved"][0] |= {"upper": 0.09, "same_input": False}
    text = line("Operating point", thresholds=[point])["text"]
    assert "bound is above" not in text
    assert "input of the calibration" not in text
    assert line("Operating point", thresholds=[point])["state"] == "holds"
