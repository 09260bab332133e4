"""What a threshold flags, against a count by hand, and where thresholds come from."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import ndimage
from sklearn import metrics as sklearn_metrics

from segunc.core.errors import InputError, PartialFailure
from segunc.data.labels import LabelMap
from segunc.decisions.flags import Threshold, calibrated_frames, read_thresholds
from segunc.evaluation.comparison import compare, format_number
from segunc.evaluation.evaluator import Evaluator, Measures
from segunc.evaluation.resampling import Resampling, load_results
from segunc.evaluation.tables import format_metrics
from segunc.maps.encoding import decode_unit
from segunc.metrics.counting import ScoreBins
from segunc.scores import stored_as_codes
from tests.evaluation.runs import CLASSES, make_run

pytestmark = pytest.mark.usefixtures("few_units")
CITY = LabelMap("city", (*CLASSES, "boat"), ((0, 0, 0),) * 5, {i: i for i in range(5)} | {255: 255})
SCORES = ("entropy", "deterministic-energy")
RUN = make_run()


def evaluate(
    flag: Mapping[str, Threshold], *, anomalies: bool = True, classes: bool = True
) -> dict[str, Any]:
    evaluator = Evaluator(
        SCORES,
        CITY if classes else None,
        RUN,
        anomalies=RUN if anomalies else None,
        measures=Measures(flag=flag, resampling=Resampling(60)),
    )
    for name, frame in RUN.items():
        labels = frame.labels if classes else None
        anomaly = frame.anomaly if anomalies else None
        assert evaluator.update(name, frame.stored, frame.prediction, None, labels, anomaly), (
            evaluator._left_out
        )
    return evaluator.numbers()


class CountByHand:
    """Known and flagged pixels by class and large regions by frame, at a threshold of a score."""

    def __init__(self, score: str, value: float, *, anomalies: bool) -> None:
        self.known = np.zeros(5)
        self.flagged = np.zeros(5)
        self.regions: list[int] = []
        for frame in RUN.values():
            stored = frame.stored[score]
            values = decode_unit(stored) if stored_as_codes(score) else stored.astype(np.float32)
            known = frame.labels != 255
            if anomalies:
                known &= frame.anomaly != 1
            flagged = (values >= value) & known
            for number in range(5):
                self.known[number] += (known & (frame.labels == number)).sum()
                self.flagged[number] += (flagged & (frame.labels == number)).sum()
            labels, _ = ndimage.label(flagged, np.ones((3, 3)))
            sizes = np.bincount(labels.ravel())[1:]
            self.regions.append(int((sizes >= 12).sum()))


each_count = pytest.mark.parametrize(
    ("score", "value", "anomalies"),
    [
        ("entropy", 0.5, True),
        ("entropy", 0.5, False),
        ("deterministic-energy", -2.5, True),
        ("deterministic-energy", -2.5, False),
    ],
)


@each_count
def test_false_alarms_are_those_of_a_count_by_hand(
    score: str, value: float, anomalies: bool
) -> None:
    result = evaluate({score: Threshold(value, smallest=12)}, anomalies=anomalies)
    expected = CountByHand(score, value, anomalies=anomalies)
    numbers = result["flagged"][score]
    assert numbers["threshold"] == value
    share = expected.flagged.sum() / expected.known.sum()
    assert numbers["share"] == pytest.approx(share, rel=1e-12)
    assert min(expected.regions) < max(expected.regions)
    assert numbers["regions_per_frame"] == np.mean(expected.regions)
    assert numbers["frames_with_region"] == np.mean(np.array(expected.regions) > 0)
    low, high = result["intervals"][f"flagged.{score}.share"]
    assert low < numbers["share"] < high
    assert ("recall" in numbers) == anomalies


def test_frames_without_a_known_pixel_have_no_share_in_false_alarms() -> None:
    """There nothing could be a false alarm."""
    evaluator = Evaluator(
        ["entropy"], CLASSES, anomalies=None, measures=Measures(flag={"entropy": Threshold(0.4)})
    )
    for name, frame in make_run().items():
        maps = {"entropy": frame.stored["entropy"]}
        ignored = np.full_like(frame.labels, 255)
        evaluator.update(name, maps, frame.prediction, labels=frame.labels)
        evaluator.update(f"{name}_ignored", maps, frame.prediction, labels=ignored)
    flagged = evaluator.numbers()["flagged"]["entropy"]
    assert flagged["frames_with_region"] == 1
    assert flagged["regions_per_frame"] >= 1


@each_count
def test_false_alarms_by_class_are_those_of_a_count_by_hand(
    score: str, value: float, anomalies: bool
) -> None:
    result = evaluate({score: Threshold(value, smallest=12)}, anomalies=anomalies)
    expected = CountByHand(score, value, anomalies=anomalies)
    by_class = result["flagged"][score]["by_class"]
    assert list(by_class) == [*CLASSES, "boat"]
    for number, name in enumerate(CLASSES):
        share = expected.flagged[number] / expected.known[number]
        assert by_class[name] == pytest.approx(share)
    assert by_class["boat"] is None
    assert "no pixel is labelled" in result["reasons"][f"flagged.{score}.by_class.boat"]


def test_drives_without_an_anomaly_show_their_false_alarms_where_a_mask_leaves_pixels_out() -> None:
    """Pixels outside of a region are ignored in the labels."""
    values = np.array([[0.1, 0.9, 0.3, 0.8]], np.float32)
    label = np.array([[0, 0, 0, 255]], np.uint8)
    measures = Measures(flag={"s": Threshold(0.5)})
    evaluator = Evaluator(("s",), None, ["a"], anomalies=["a"], measures=measures)
    evaluator.bins["s"] = ScoreBins(np.unique(values))
    assert evaluator.update("a", {"s": values}, anomaly=label)
    result = evaluator.numbers()
    assert result["flagged"]["s"]["normal_share"] == pytest.approx(1 / 3)
    assert result["reasons"]["scores.s.pooled.auroc"] == "no pixel is labelled as an anomaly"


@pytest.mark.parametrize("recall", ["0.8", "0.95"])
def test_a_threshold_in_a_result_reaches_its_recall(recall: str) -> None:
    first = evaluate({}, classes=False)["scores"]
    thresholds = read_thresholds(
        [f"{name}={of['pooled']['thresholds'][recall]!r}" for name, of in first.items()]
    )
    assert set(thresholds) == set(SCORES)
    result = evaluate(thresholds)
    labels = np.concatenate([frame.anomaly.ravel() for frame in RUN.values()])
    for score in SCORES:
        stored = np.concatenate([frame.stored[score].ravel() for frame in RUN.values()])
        values = decode_unit(stored) if stored_as_codes(score) else stored.astype(np.float32)
        truth, predicted = labels[labels != 255], values[labels != 255] >= thresholds[score].value
        hits = result["flagged"][score]
        assert hits["recall"] == pytest.approx(
            sklearn_metrics.recall_score(truth, predicted), rel=1e-12
        )
        assert hits["precision"] == pytest.approx(
            sklearn_metrics.precision_score(truth, predicted), rel=1e-12
        )
        assert hits["recall"] >= float(recall)
        assert hits["normal_share"] == pytest.approx(predicted[truth == 0].mean(), rel=1e-12)
        # The next higher score that occurs reaches less.
        above = min(values[labels != 255][values[labels != 255] > thresholds[score].value])
        assert sklearn_metrics.recall_score(truth, values[labels != 255] >= above) < float(recall)


SHOWN = (
    "share",
    "regions_per_frame",
    "frames_with_region",
    "precision",
    "recall",
    "normal_share",
)


def test_a_table_shows_what_is_flagged() -> None:
    result = evaluate({"entropy": Threshold(0.5)})
    result["run"] = {"corruption": "fog:3"}
    text = format_metrics(result)
    numbers = result["flagged"]["entropy"]
    lines = text.split("Flagged at or above")[1].splitlines()
    row = next(line for line in lines if line.startswith("| entropy"))
    assert row.split()[5:-1:2] == [format_number(numbers[key]) for key in SHOWN]
    assert format_number(numbers["by_class"]["road"]) in text
    titles = [
        line for line in text.splitlines() if line and line[0] not in "|" and "| " not in line
    ]
    tables = [title for title in titles if title.startswith(("Anomaly", "Flagged", "Segment"))]
    assert len(tables) >= 2
    assert all(title.count("images corrupted by fog:3") == 1 for title in tables)


OF_CLASSES = "; share, regions/frame, frames with one: of the known pixels of {} with class labels"
OF_ANOMALIES = "; precision, recall, of normal pixels: of {} with anomaly labels"


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ({}, OF_CLASSES + OF_ANOMALIES),
        ({"anomalies": False}, OF_CLASSES),
        ({"classes": False}, OF_ANOMALIES),
    ],
)
def test_the_title_says_of_which_frames_each_number_is(kinds: dict[str, bool], words: str) -> None:
    result = evaluate({"entropy": Threshold(0.5)}, **kinds)
    result["counts"]["labelled_frames"] = 21
    result["counts"]["anomaly_frames"] = 1
    frames = ["21 frames", "1 frame"]
    if kinds.get("classes") is False:
        frames = ["1 frame"]
    title = format_metrics(result).split("Flagged at or above a threshold")[1].splitlines()[0]
    assert title == words.format(*frames)


def test_class_labels_count_without_a_prediction() -> None:
    """What is flagged of known pixels needs none, and other labels must be told apart."""
    results = []
    for first_label in (0, 255):
        evaluator = Evaluator(
            ["entropy"],
            CLASSES,
            anomalies=None,
            measures=Measures(flag={"entropy": Threshold(0.5)}),
        )
        for name, frame in make_run().items():
            labels = frame.labels.copy()
            labels[0] = first_label
            evaluator.update(name, {"entropy": frame.stored["entropy"]}, labels=labels)
        results.append(evaluator.numbers())
    first, other = (result["counts"] for result in results)
    assert first["labelled_frames"] == other["labelled_frames"] == 4
    assert first["labelled_pixels"] > other["labelled_pixels"] > 0
    assert first["class_labels"] != other["class_labels"]
    assert "of the known pixels of 4 frames with class labels" in format_metrics(results[0])
    assert results[0]["segmentation"]["miou"] is None


def test_a_table_shows_a_threshold_so_that_it_can_be_copied() -> None:
    text = format_metrics(evaluate({"entropy": Threshold(0.51234)}))
    lines = text.split("Flagged at or above")[1].splitlines()
    row = next(line for line in lines if line.startswith("| entropy"))
    assert row.split()[3] == "0.51234"


def test_what_is_flagged_can_be_compared(tmp_path: Path) -> None:
    paths = []
    for name, value in (("a", 0.5), ("b", 0.9)):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(evaluate({"entropy": Threshold(value)})))
    rows = {row.label: row for row in compare(load_results(paths)).rows}
    labels = [label for label in rows if label.startswith("flagged")]
    assert labels == [f"flagged.entropy.{key}" for key in SHOWN]
    assert rows["flagged.entropy.share"].higher_is_better is False
    assert rows["flagged.entropy.precision"].higher_is_better is True


def test_maps_of_another_form_than_the_threshold_are_refused() -> None:
    made: Any = SimpleNamespace(form="float", levels={}, control="missed-pixels")
    flag, frame = {"entropy": Threshold(0.5, "first.json", guarantee=made)}, RUN["bergen/frame_0"]
    for labels, anomalies in ((None, RUN), (CITY, None)):
        measures = Measures(flag=flag)
        evaluator = Evaluator(SCORES, labels, RUN, anomalies=anomalies, measures=measures)
        anomaly = None if anomalies is None else frame.anomaly
        given = frame.stored, frame.prediction, None, frame.labels if labels else None, anomaly
        assert not evaluator.update("f", *given)
        with pytest.raises(PartialFailure, match="was calibrated on maps stored as float"):
            evaluator.numbers()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(
            (word.split(), "neither SCORE=VALUE nor thr")
            for word in ("entropy", "entropy=high", "entropy=nan")
        ),
        (["entropy=1.5"], "lies in 0 to 1"),
        (["entropy=0.5", "entropy=0.6"], "second threshold of 'entropy'"),
        (["FILE"], "is not a threshold of segunc in version 1"),
    ],
)
def test_thresholds_that_say_nothing_are_refused(
    tmp_path: Path, words: list[str], message: str
) -> None:
    old = {"scores": {"entropy": {"pooled": {"auroc": 0.5, "threshold": 0.2}}}, "counts": {}}
    (tmp_path / "old.json").write_text(json.dumps(old))
    with pytest.raises(InputError, match=message):
        read_thresholds([word.replace("FILE", str(tmp_path / "old.json")) for word in words])


def test_two_thresholds_that_together_leave_no_frame_are_refused() -> None:
    """Each alone leaves one of the two frames."""
    frames = [("one", "1" * 16), ("two", "2" * 16)]
    flag: Any = {
        "entropy": SimpleNamespace(
            source="a.json", guarantee=SimpleNamespace(frames=dict(frames[:1]))
        ),
        "epistemic": SimpleNamespace(
            source="b.json", guarantee=SimpleNamespace(frames=dict(frames[1:]))
        ),
    }
    with pytest.raises(InputError, match=r"each of these 2 frames .* a\.json or b\.json"):
        calibrated_frames(flag, lambda score: frames)
    entropy_alone = {"entropy": flag["entropy"]}
    assert calibrated_frames(entropy_alone, lambda score: frames).keys() == {"one"}
