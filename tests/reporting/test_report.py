"""The report: made of its file alone, with the numbers of the results, refused where its parts do
not belong together; read and printed in Chromium.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import html
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from scipy.stats import binomtest

import segunc
from segunc.core.files import file_sha256
from segunc.core.places import names_apart
from segunc.data.datasets import dataset_entry
from segunc.data.entries import encoding_of_masks
from segunc.decisions.flags import Threshold
from segunc.decisions.guarantee import settings_of
from segunc.decisions.preparation import AS_IT_IS
from segunc.decisions.risks import binomial_bound
from segunc.evaluation.comparison import format_number
from segunc.evaluation.parts import LabelledFrame
from segunc.evaluation.resampling import load_replicates
from segunc.gallery.drawing import FLAGGED, LABELLED_STROKES
from segunc.gallery.review_page import run_id
from segunc.maps.labelled import LabelSources
from segunc.maps.reader import MapsReader
from segunc.metrics.objects import SMALLEST_OBJECT
from segunc.options import ReportOptions
from segunc.reporting.facts import _gaps
from segunc.reporting.failures import (
    Failure,
    Failures,
    OperatingPoint,
    _false_alarm,
    _operating_point,
    _outlines,
    _worst,
    commonest_mistake,
    failures,
)
from segunc.reporting.inputs import Domain
from segunc.reporting.rendering import render
from segunc.reporting.summary_lines import number
from segunc.verbs.evaluate import label_sources
from tests.conftest import Job
from tests.reporting.conftest import (
    ANOMALY,
    CLEAN,
    FOG,
    VALUE,
    evaluate_images,
    write_threshold,
)
from tests.support.scenes import LABEL_MAP, NAMES, OBJECT, Scene, write_mask, write_scene
from tests.support.shadows import backgrounds, shadows_where_nothing_scrolls
from tests.verbs.processes import SMALL, refuse, succeed


def words(predicted: Job, results: Path, out: Path) -> list[Any]:
    runs = [results / name for name in (FOG, CLEAN, ANOMALY)]
    labels = ("--maps", predicted.maps, "--anomaly-labels", predicted.masks)
    files = ("--threshold", results / "threshold.json", "--domain", results / "domain.yaml")
    return ["report", "--model", predicted.abnn, "--runs", *runs, *labels, *files, "--out", out]


def report_of(out: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((out / "report.json").read_text())
    return facts


def page_of(out: Path) -> str:
    return (out / "index.html").read_text()


def cells_of(page: str) -> list[list[str]]:
    """Return the texts of the cells of each row of the page's tables."""
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    return [re.findall(r">([^<]*)</t[hd]>", row) for row in rows]


def line_of(facts: dict[str, Any], name: str) -> dict[str, str]:
    """Return the one line of the summary with a name."""
    (line,) = [line for line in facts["summary"] if line["name"] == name]
    return dict(line)


@pytest.fixture(scope="module")
def written(predicted: Job, results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("written") / "report"
    succeed(*words(predicted, results, out))
    return out


@pytest.fixture(scope="module")
def facts(written: Path) -> dict[str, Any]:
    return report_of(written)


def test_the_page_is_made_of_the_file_alone_whose_checksum_it_shows(written: Path) -> None:
    data = (written / "report.json").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    page = page_of(written)
    assert page == render(json.loads(data), digest)
    assert f"<code>{digest}</code>" in page
    assert {path.name for path in written.iterdir()} == {"report.json", "index.html"}


def test_a_result_of_another_commit_is_a_caveat(facts: dict[str, Any]) -> None:
    assert "two commits may count differently" not in render(facts, "0")
    other = copy.deepcopy(facts)
    other["results"][0]["content"]["run"]["segunc"] = "0.2.0+g0123456789ab"
    assert (
        "was made by segunc 0.2.0+g0123456789ab, this report by "
        f"{facts['made_by']}: two commits may count differently"
    ) in render(other, "0")


def test_the_page_loads_nothing(written: Path) -> None:
    page = page_of(written)
    assert re.findall(r'(?:src|href)="(?!data:image/jpeg;base64,|#)[^"]*"', page) == []
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")


def test_the_page_names_no_place_of_the_machine(
    written: Path, results: Path, predicted: Job
) -> None:
    texts = page_of(written) + (written / "report.json").read_text()
    for folder in (results, predicted.data, predicted.maps):
        assert str(folder.parent) not in texts


def test_the_page_escapes_texts(written: Path) -> None:
    page = page_of(written)
    assert "Slow &lt;b&gt;down&lt;/b&gt; &amp; wait." in page
    assert "<b>down" not in page
    assert "at most 20\u00a0% &lt;of&gt; the normal pixels" in page


def test_results_on_corrupted_images_come_last(facts: dict[str, Any]) -> None:
    assert [result["name"] for result in facts["results"]] == ["test", "anomaly", "fog"]


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (0, CLEAN),
        (1, ANOMALY),
        (2, FOG),
    ],
)
def test_numbers_are_those_of_the_results(
    facts: dict[str, Any], results: Path, place: int, name: str
) -> None:
    content = json.loads((results / name).read_text())
    del content["run"]["command"]  # it stands under commands
    reported = facts["results"][place]["content"]
    assert {key: content[key] for key in reported} == reported
    assert facts["files"][name] == hashlib.sha256((results / name).read_bytes()).hexdigest()


def test_files_of_the_model_are_told_apart_from_results(facts: dict[str, Any]) -> None:
    # A result may be called as a file of the model.
    assert facts["files"].keys() >= {"MODEL/network.json", "MODEL/network.safetensors"}


def test_base_and_posterior_have_records_of_their_own(facts: dict[str, Any]) -> None:
    made = {name.partition(".")[0] for name in facts["model"]["made"]}
    assert made == {"base", "posterior"}  # whose steps differ


def test_training_data_are_those_of_the_network(facts: dict[str, Any], predicted: Job) -> None:
    provenance = json.loads((predicted.abnn / "network.json").read_text())["provenance"]
    assert facts["trained"]["crop"] == provenance["data"]["crop"]
    assert "The network has no record of the crops" not in render(facts, "0")
    older = {**facts, "trained_by_last_step": True}
    assert "The network has no record of the crops" in render(older, "0")


def test_page_and_summary_show_the_same_numbers(written: Path, facts: dict[str, Any]) -> None:
    clean, anomaly = facts["results"][:2]
    miou = number(clean, "segmentation", "miou")
    aupr = number(anomaly, "scores", "entropy", "pooled", "aupr")
    for text in (miou, aupr):
        assert f">{text}</td>" in page_of(written)
        assert any(text in line["text"] for line in facts["summary"])


def test_a_number_stands_with_its_interval() -> None:
    result = {"content": {"a": {"b": 0.5}, "intervals": {"a.b": [0.25, 0.75]}}}
    assert number(result, "a", "b") == ".500 [.250, .750]"


@pytest.mark.parametrize("kind", ["size", "distance"])
def test_missed_objects_are_those_of_each_bin(facts: dict[str, Any], kind: str) -> None:
    anomaly = facts["results"][1]
    bins = anomaly["content"]["scores"]["entropy"][kind]
    assert anomaly["missed"][kind]
    for name, objects, missed, bound in anomaly["missed"][kind]:
        assert objects == bins[name]["objects"] > 0
        assert missed == pytest.approx(objects * (1 - bins[name]["found"]))
        assert bound == binomial_bound(missed, objects)


def test_what_is_not_given_is_a_gap(facts: dict[str, Any]) -> None:
    gaps = ["independence", "label quality", "latency", "reviewers", "operation"]
    assert facts["gaps"] == gaps


@pytest.mark.parametrize(
    ("events", "trials"),
    [
        (0, 1),
        (0, 30),
        (1, 30),
        (17, 64),
        (29, 30),
        (30, 30),
    ],
)
def test_the_upper_bound_is_exact(events: int, trials: int) -> None:
    interval = binomtest(events, trials, alternative="less").proportion_ci(0.95, method="exact")
    assert binomial_bound(events, trials) == pytest.approx(interval.high, rel=1e-9)
    if not events:
        assert binomial_bound(0, trials) == pytest.approx(1 - 0.05 ** (1 / trials))


def test_frames_of_the_training_are_no_test_frames(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    evaluate_images(predicted, tmp_path / "train.json", split="train")
    runs = ("--runs", tmp_path / "train.json", results / CLEAN)
    succeed("report", "--model", predicted.abnn, *runs, "--out", tmp_path / "report")
    facts = report_of(tmp_path / "report")
    assert [result["role"] for result in facts["results"]] == ["training", "test"]
    number = facts["results"][0]["content"]["counts"]["frames"]
    assert facts["domain"]["frames"]["training"] == number
    assert "(test.json" in line_of(facts, "Classes")["text"], "of new frames"
    assert f"{number} training frames" in page_of(tmp_path / "report")


def made_with(threshold: Path, result: Path, folder: Path) -> Path:
    """Copy a result into a folder, as if it had been made with this file of its threshold."""
    content = json.loads(result.read_text())
    del content["record_sha256"]  # of a later edit
    content["run"]["thresholds"]["entropy"]["sha256"] = file_sha256(threshold)
    copied = folder / result.name
    copied.write_text(json.dumps(content))
    return copied


def report_on_threshold(predicted: Job, threshold: Path, *runs: Path) -> Path:
    """Report results with a threshold, and return the folder of the report."""
    out = threshold.parent / "report"
    files = ("--runs", *runs, "--threshold", threshold)
    succeed("report", "--model", predicted.abnn, *files, "--out", out)
    return out


@pytest.mark.parametrize("level", ["between", "above", "far above", "below"])
def test_a_promise_is_compared_with_what_results_achieved(
    predicted: Job, results: Path, tmp_path: Path, level: str
) -> None:
    """By the losses of their units: a level between them, above both, and below both."""
    contents = [json.loads((results / name).read_text()) for name in (CLEAN, FOG)]
    clean, fog = (content["flagged"]["entropy"]["risk"] for content in contents)
    assert clean != fog
    promised, state = {
        "between": ((clean + fog) / 2, "limited" if clean < fog else "broken"),
        "above": (max(clean, fog), "unproven"),  # an upper bound lies above what was achieved
        "far above": (1.0, "holds"),
        "below": (min(clean, fog) / 2, "broken"),
    }[level]
    path = write_threshold(tmp_path / "t.json", contents[0]["run"], level=promised)
    runs = [made_with(path, results / name, tmp_path) for name in (CLEAN, FOG)]
    folder = report_on_threshold(predicted, path, *runs)
    facts = report_of(folder)
    assert line_of(facts, "Operating point")["state"] == state
    achieved = facts["thresholds"][0]["achieved"]
    assert [row["loss"] for row in achieved] == [clean, fog]
    kept = ["kept" if loss <= promised else "exceeded" for loss in (clean, fog)]
    assert [row["kept"] for row in achieved] == kept
    table = page_of(folder).split("Achieved on other frames")[-1].split("</table>")[0]
    unproven = [row for row in achieved if row["loss"] <= promised < row["upper"]]
    assert table.count(">kept here, not proven<") == len(unproven)


def test_another_file_of_the_same_promise_and_value_was_not_measured(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    """It may have been calibrated on the frames of the result."""
    run = json.loads((results / CLEAN).read_text())["run"]
    path = write_threshold(tmp_path / "t.json", run, frames={"c": "3", "d": "4"})
    facts = report_of(report_on_threshold(predicted, path, results / CLEAN))
    assert facts["thresholds"][0]["achieved"] == []
    words = "The result test was made with another file of the same promise and value, which may"
    assert words in line_of(facts, "Operating point")["text"]


def test_a_bare_threshold_achieves_no_promise(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    """A bare --flag entropy=0.4 records another loss than that of a promise."""
    content = json.loads((results / CLEAN).read_text())
    path = write_threshold(tmp_path / "t.json", content["run"])
    del content["record_sha256"]  # of a later edit
    del content["flagged"]["entropy"]["promise"]
    (tmp_path / CLEAN).write_text(json.dumps(content))
    out = report_on_threshold(predicted, path, tmp_path / CLEAN)
    assert report_of(out)["thresholds"][0]["achieved"] == []
    page = html.unescape(page_of(out))
    assert "no result was made with t.json (entropy >= 0.4)." in page
    assert "test was made with a bare value: entropy >= 0.4." in page


def test_a_report_says_that_a_threshold_was_calibrated_on_frames_of_another_size(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    run = json.loads((results / CLEAN).read_text())["run"]
    path = write_threshold(tmp_path / "t.json", run, sizes=["960x540"])
    content = json.loads(made_with(path, results / CLEAN, tmp_path).read_text())
    flagged = content["flagged"]["entropy"]
    promised = json.loads(path.read_text())
    flagged |= {"promise": promised["promise"], "threshold": promised["value"]}
    (size,) = flagged["sizes"]
    (tmp_path / CLEAN).write_text(json.dumps(content))
    out = report_on_threshold(predicted, path, tmp_path / CLEAN)
    words = f"t.json was calibrated on frames of 960x540 pixels, and these have {size}"
    assert words in line_of(report_of(out), "Operating point")["text"]
    assert html.unescape(page_of(out)).count(f"Note: {words}") == 1


def test_a_result_of_another_threshold_is_named_with_that_threshold(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    run = json.loads((results / CLEAN).read_text())["run"]
    path = write_threshold(tmp_path / "other.json", run, value=0.31234)
    out = report_on_threshold(predicted, path, results / CLEAN)
    text = line_of(report_of(out), "Operating point")["text"]
    assert "no result was made with other.json (entropy >= 0.31234)." in text
    made_with = "entropy >= 0.4, for flagged-pixels of at most .200."
    assert f"test was made with another threshold: {made_with}" in text
    assert "To measure it: segunc evaluate --maps MAPS --anomaly-labels MASKS --flag" in text


def flagged_share(predicted: Job) -> float:
    """Return the share of the normal pixels of the toy anomalies at or above the threshold."""
    entry = dataset_entry("toy-anomaly")
    reader = MapsReader(predicted.maps)
    frames = []
    for sample in entry.samples(predicted.data, "anomaly"):
        assert sample.anomaly is not None
        normal = encoding_of_masks(entry).read(sample.anomaly) == 0
        frames.append(reader.read(sample.name, "entropy")[normal] >= VALUE)
    return float(np.concatenate(frames).mean())


def test_the_price_of_a_threshold_needs_no_class_labels(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    run = json.loads((results / ANOMALY).read_text())["run"]
    flag = write_threshold(
        tmp_path / "t.json",
        run,
        settings=settings_of(run, "entropy"),
        control="missed-pixels",
        level=0.9,
        promise="P.",
    )
    maps = ("--maps", predicted.maps, "--anomaly-labels", predicted.masks)
    parts = ("--replicates", 0, "--groups", "^.")
    succeed("evaluate", *maps, *parts, "--flag", flag, "--out", tmp_path / "a.json")
    share = flagged_share(predicted)
    assert 0 < share < 1
    out = report_on_threshold(predicted, flag, tmp_path / "a.json")
    line = line_of(report_of(out), "Operating point")
    assert f", with {100 * share:.1f} % of the normal pixels flagged." in line["text"]
    page = page_of(out)
    assert "objects by group of frames, missed by the score entropy" in page
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    (row,) = [row for row in rows if ">missed-pixels<" in row and ">kept<" in row]
    assert f">{format_number(share)}</td>" in row


@pytest.fixture
def latency(results: Path) -> dict[str, Any]:
    """A measured latency of the model."""
    run = json.loads((results / CLEAN).read_text())["run"]
    return {
        "kind": "segunc latency",
        "version": 1,
        "base_sha256": run["base_sha256"],
        "posterior_sha256": run["posterior_sha256"],
        "what": "sampler",
        "hardware": "a <core>",
        "size": [64, 128],
        "draws": 4,
        "frames": 100,
        "first": 4.5,
        "p50": 0.25,
        "p95": 0.5,
        "p99": 0.75,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"posterior_sha256": "0" * 64}, "is of another model than the model in"),
        ({"p95": 0.2}, "the percentiles [0.25, 0.2, 0.75] are not rising numbers of seconds"),
        ({"p50": "fast"}, "are not rising numbers of seconds"),
        ({"version": 2}, "is not a latency of segunc in version 1"),
        ({"streams": 8}, "streams is not a list of measurements"),
        ({"streams": [{}]}, "the percentiles [None, None, None] are not rising"),
        (
            {"streams": [{"p50": 1, "p95": 2, "p99": 3, "streams": 8, "frames": 100}]},
            "frames_per_second of a measurement is not a number above 0",
        ),
    ],
)
def test_latency_is_of_the_model_and_its_percentiles_rise(
    predicted: Job, tmp_path: Path, latency: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "latency.json"
    path.write_text(json.dumps(latency | change))
    out = tmp_path / "report"
    refusal = refuse("report", "--model", predicted.abnn, "--latency", path, "--out", out)
    assert message in refusal
    assert not out.exists()


def test_latency_has_its_row(predicted: Job, tmp_path: Path, latency: dict[str, Any]) -> None:
    path = tmp_path / "latency.json"
    path.write_text(json.dumps(latency))
    out = tmp_path / "report"
    succeed("report", "--model", predicted.abnn, "--latency", path, "--out", out)
    facts = report_of(out)
    assert "latency" not in facts["gaps"]
    assert facts["files"]["latency.json"] == hashlib.sha256(path.read_bytes()).hexdigest()
    machine = ["sampler", "a &lt;core&gt;", "64 x 128", "4", "4.500"]
    assert [*machine, "1", ".250", ".500", ".750", ""] in cells_of(page_of(out))


def test_latency_has_a_row_for_each_number_of_streams(
    predicted: Job, tmp_path: Path, latency: dict[str, Any]
) -> None:
    one = {"streams": 1, "frames": 100, "p50": 0.25, "p95": 0.5, "p99": 0.75}
    eight = {"streams": 8, "frames": 100, "p50": 1.25, "p95": 1.5, "p99": 1.75}
    streams = [{**one, "frames_per_second": 3.75}, {**eight, "frames_per_second": 6.5}]
    path = tmp_path / "latency.json"
    path.write_text(json.dumps({**latency, "streams": streams}))
    out = tmp_path / "report"
    succeed("report", "--model", predicted.abnn, "--latency", path, "--out", out)
    machine = ["sampler", "a &lt;core&gt;", "64 x 128", "4", "4.500"]
    rows = cells_of(page_of(out))
    assert [*machine, "1", ".250", ".500", ".750", "3.750"] in rows
    assert [*machine, "8", "1.250", "1.500", "1.750", "6.500"] in rows


def test_a_reliability_diagram_has_the_bins_of_its_result(results: Path, written: Path) -> None:
    content = json.loads((results / CLEAN).read_text())
    bins = content["calibration"]["reliability"]
    pixels = sum(n for *_, n in bins)
    assert pixels == content["counts"]["labelled_pixels"]
    assert sum(abs(x - y) * n for x, y, n in bins) / pixels == pytest.approx(
        content["calibration"]["ece"]
    )
    (figure,) = re.findall(
        r'<svg[^>]*aria-label="Reliability diagram of test:.*?</svg>',
        (written / "index.html").read_text(),
        re.DOTALL,
    )
    assert figure.count("<circle") == len(bins) > 5
    assert f"{len(bins)} of 15 bins hold pixels" in figure


def test_frames_are_counted_in_cells_by_name() -> None:
    axes = {"light": {"night": "night", "day": "."}, "weather": {"fog": "fog", "dry": "dry"}}
    domain = Domain(axes=axes)
    expected = {"night/fog1": ("night", "fog"), "night/dry1": ("night", "dry")}
    frames = ["night/fog1", "night/dry1", "day/fog1", "day/wet1", "day/fog2"]
    assert domain.places(frames) == {
        **expected,
        "day/fog1": ("day", "fog"),
        "day/fog2": ("day", "fog"),
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("axes: {light: {day: '('}}", "'(' of the axis 'light' is not a regular expression"),
        ("intended: x", "unknown key 'intended'"),
    ],
)
def test_a_domain_that_cannot_be_is_one_sentence(
    content: str, message: str, finetuned: Job, tmp_path: Path
) -> None:
    (tmp_path / "d.yaml").write_text(content)
    out = tmp_path / "report"
    assert message in refuse(
        "report", "--model", finetuned.abnn, "--domain", tmp_path / "d.yaml", "--out", out
    )
    assert not out.exists()


Edit = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        (
            CLEAN,
            lambda c: c["run"].update(base_sha256="0" * 64),
            "is of another model than the model in",
        ),
        (
            CLEAN,
            lambda c: c["run"].update(posterior_sha256=None),
            "is of another model than the model in",
        ),
        (CLEAN, lambda c: c["run"].update(segunc="0.0.9"), "was made by segunc 0.0.9, not by"),
        (CLEAN, lambda c: c["run"].pop("segunc"), "was made by another tool"),
        (
            CLEAN,
            lambda c: [c["run"].pop(key) for key in ("base_sha256", "posterior_sha256")],
            "records no model",
        ),
        (CLEAN, lambda c: c.pop("counts"), "is not a result of segunc evaluate"),
        (
            "threshold.json",
            lambda c: c.update(model="0" * 64),
            "threshold.json is of another model than the model in",
        ),
        (
            "threshold.json",
            lambda c: c.update(version=2),
            "is not a threshold of segunc in version 1",
        ),
        ("threshold.json", lambda c: c.pop("promise"), "lacks promise"),
        (
            CLEAN,
            lambda c: c["run"].update(features_sha256="0" * 64),
            "was made with another bank of features than the model in",
        ),
        (
            CLEAN,
            lambda c: c["run"].update(calibrator_sha256="0" * 64),
            "was made with another calibration of the probabilities than the model in",
        ),
        (
            CLEAN,
            lambda c: c["run"].update(temperature=2.0),
            "was made with another calibration of the probabilities than the model in",
        ),
        (
            "threshold.json",
            lambda c: c["settings"].update(anomaly="0" * 64),
            "threshold.json was made with another sum of scores (anomaly) than the model in",
        ),
    ],
)
def test_what_does_not_belong_together_is_refused(
    name: str, edit: Edit, message: str, predicted: Job, results: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(results, tmp_path / "copy"))
    out = tmp_path / "report"
    content = json.loads((folder / name).read_text())
    content.pop("record_sha256", None)  # of a result or state, which would be found first
    edit(content)
    (folder / name).write_text(json.dumps(content))
    assert message in refuse(*words(predicted, folder, out))
    assert not out.exists()


def test_files_of_one_name_in_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a/run/t.json", "b/run/t.json", "c.json")]
    assert [*names_apart(paths)] == ["a/run/t.json", "b/run/t.json", "c.json"]


def test_frames_whose_lines_are_lost_are_said_by_summary_and_report(
    finetuned: Job, predicted: Job, tmp_path: Path
) -> None:
    maps = tmp_path / "maps"
    shutil.copytree(predicted.maps, maps)
    lines = (maps / "frames.jsonl").read_bytes().splitlines(keepends=True)
    (maps / "frames.jsonl").write_bytes(b"".join(lines[:-1]))
    lost = f"{maps} has lost the lines of 1 finished frame"
    assert lost in segunc.summary(maps=maps).notes[0]
    made = segunc.report(model=finetuned.abnn, maps=[maps], out=tmp_path / "report")
    assert lost in made.notes[0]
    page = made.page.read_text()
    assert "maps has lost the lines of 1 finished frame" in page
    assert str(tmp_path) not in page


def test_a_list_of_frames_that_changed_since_the_training_is_noted(
    finetuned: Job, predicted: Job, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(finetuned.abnn, model)
    frames = tmp_path / "mine-frames.csv"
    frames.write_text("split,image,label\n")
    data = json.loads((model / "data.json").read_text())
    (model / "data.json").write_text(json.dumps({**data, "frames": str(frames)}))
    network = json.loads((model / "network.json").read_text())
    network["provenance"]["frames_sha256"] = file_sha256(frames)
    (model / "network.json").write_text(json.dumps(network))
    same = segunc.report(model=model, maps=[predicted.maps], out=tmp_path / "report")
    assert same.notes == ()
    frames.write_text("split,image,label\nval,a.png,b.png\n")
    changed = segunc.report(model=model, maps=[predicted.maps], out=tmp_path / "report")
    (note,) = changed.notes
    assert note.startswith(f"{frames} is not the list of frames that the network was trained with")


def test_nothing_is_reported_of_nothing(finetuned: Job, tmp_path: Path) -> None:
    refusal = refuse("report", "--model", finetuned.abnn, "--out", tmp_path)
    assert "there is nothing to report" in refusal


def test_no_other_page_is_replaced(finetuned: Job, results: Path, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    runs = ("--runs", results / CLEAN)
    refusal = refuse("report", "--model", finetuned.abnn, "--out", tmp_path, *runs)
    assert "holds another page" in refusal
    assert (tmp_path / "index.html").read_text() == "mine"


@pytest.fixture(scope="module")
def monitor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a monitor that fired."""
    path = tmp_path_factory.mktemp("monitor") / "m.json"
    state = {
        "kind": "segunc monitor",
        "version": 1,
        "threshold": {"sha256": "0"},
        "statistic": "entropy mean",
        "frames": 7,
        "martingale": 2.5,
        "level": 0.01,
        "fired": "frame_5",
        "risk": {
            "estimate": 0.25,
            "bound": 0.5,
            "verdicts": 20,
            "left_out": {"calibration": 3, "threshold": 2},
            "unstated": 1,
        },
    }
    path.write_text(json.dumps(state))
    return path


def write_verdicts(path: Path, reader: MapsReader) -> None:
    """Write verdicts of two reviewers on two frames; on one they disagree."""
    first, second = reader.frames[:2]
    verdicts = [
        {
            "frame": first,
            "verdict": "true-alarm",
            "reviewer": "Ana",
        },
        {
            "frame": first,
            "verdict": "true-alarm",
            "reviewer": "Bo",
        },
        {
            "frame": second,
            "verdict": "true-alarm",
            "reviewer": "Ana",
        },
        {
            "frame": second,
            "verdict": "false-alarm",
            "reviewer": "Bo",
        },
    ]
    run = run_id(reader)
    content = {
        "format": "segunc-verdicts",
        "version": 2,
        "run": run,
        "verdicts": verdicts,
    }
    path.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def watched(predicted: Job, monitor: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a report on verdicts and on a monitor."""
    folder = tmp_path_factory.mktemp("watched")
    write_verdicts(folder / "v.json", MapsReader(predicted.maps))
    judged = ("--verdicts", folder / "v.json", "--replicates", 0, "--out", folder / "judged.json")
    succeed("evaluate", "--maps", predicted.maps, *judged)
    files = ("--runs", folder / "judged.json", "--monitor", monitor)
    succeed("report", "--model", predicted.abnn, *files, "--out", folder / "report")
    return page_of(folder / "report")


def words_of_rows(page: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    return [re.sub(r"<[^>]+>", " ", row).split() for row in rows]


def test_a_monitor_that_fired_is_shown(watched: str) -> None:
    assert ["Fired", "frame_5"] in words_of_rows(watched)


def test_verdicts_that_a_monitor_left_out_are_shown(watched: str) -> None:
    rows = [" ".join(words) for words in words_of_rows(watched)]
    assert "Verdicts 20" in rows
    assert "Verdicts left out, on calibration frames 3" in rows
    assert "Verdicts left out, of another threshold 2" in rows
    assert "Verdicts without a threshold, counted 1" in rows


def test_a_monitor_of_another_threshold_is_refused(
    predicted: Job, results: Path, monitor: Path, tmp_path: Path
) -> None:
    files = ("--threshold", results / "threshold.json", "--monitor", monitor)
    refusal = refuse("report", "--model", predicted.abnn, *files, "--out", tmp_path / "report")
    assert "watches another threshold" in refusal


def test_a_monitor_of_another_model_is_refused(
    predicted: Job, results: Path, monitor: Path, tmp_path: Path
) -> None:
    """Without a threshold in the report, too."""
    path = tmp_path / "m.json"
    path.write_text(json.dumps(json.loads(monitor.read_text()) | {"model": "0" * 64}))
    files = ("--runs", results / CLEAN, "--monitor", path)
    refusal = refuse("report", "--model", predicted.abnn, *files, "--out", tmp_path / "report")
    assert f"{path} is of another model than the model in {predicted.abnn}" in refusal


def test_frames_of_verdicts_are_not_called_labelled(watched: str) -> None:
    assert "judged frames of maps" in watched
    assert "labelled frames of maps" not in watched


def test_reviewers_have_their_precision(watched: str) -> None:
    assert "2 of 4 frames judged, reviewers disagree on 1" in watched
    rows = words_of_rows(watched)
    assert [row[1] for row in rows if row[0] in ("Ana", "Bo")][:2] == ["1.000", ".500"]


@pytest.fixture(scope="module")
def judged_by_regions(predicted: Job, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a report on the verdicts of one reviewer, two of whose three are on regions."""
    folder = tmp_path_factory.mktemp("judged_by_regions")
    reader = MapsReader(predicted.maps)
    height, width = reader.read(reader.frames[0], "entropy").shape
    box = {"box": [1, 0, 2, 2], "area": 4, "size": [height, width], "mask": [1, 2, width + 1, 2]}
    flagged = box | {"score": "entropy", "threshold": 0.5, "value": 0.7}
    given = [("true-alarm", flagged), ("missed", box), ("unsure", None)]
    verdicts = []
    for position, (verdict, region) in enumerate(given):
        time = f"2026-03-0{position + 1}T08:00:00.000Z"
        entry = {"frame": reader.frames[position], "verdict": verdict, "reviewer": "Cy"}
        verdicts.append(entry | {"region": region, "time": time})
    content = {"format": "segunc-verdicts", "version": 2, "run": run_id(reader)}
    (folder / "cy.json").write_text(json.dumps(content | {"verdicts": verdicts}))
    judged = ("--verdicts", folder / "cy.json", "--replicates", 0, "--out", folder / "judged.json")
    succeed("evaluate", "--maps", predicted.maps, *judged)
    files = ("--runs", folder / "judged.json")
    succeed("report", "--model", predicted.abnn, *files, "--out", folder / "report")
    return page_of(folder / "report")


def test_who_judged_has_counts_and_dates(judged_by_regions: str) -> None:
    first = "2026-03-01T08:00:00+00:00"
    last = "2026-03-03T08:00:00+00:00"
    assert ["Cy", "3", "2", "2", first, last] in words_of_rows(judged_by_regions)
    assert "By verdicts on regions alone, Cy judged 2 of 3 frames." in judged_by_regions


def test_verdicts_without_a_date_have_a_dash(watched: str) -> None:
    assert ["Ana", "2", "0", "0", "—", "—"] in words_of_rows(watched)


def test_numbers_of_regions_stand_beside_those_of_frames(judged_by_regions: str) -> None:
    # One true alarm, and one object that no alarm found, on two frames.
    assert ["Cy", "2", "1.000", ".500", ".500"] in words_of_rows(judged_by_regions)


def test_files_of_verdicts_have_their_hashes(judged_by_regions: str) -> None:
    rows = words_of_rows(judged_by_regions)
    (digest,) = [row[1] for row in rows if row[0] == "cy.json"]
    assert re.fullmatch(r"[0-9a-f]{64}", digest)


def test_verdicts_in_place_of_a_result_are_told_how_to_become_one(
    predicted: Job, tmp_path: Path
) -> None:
    write_verdicts(tmp_path / "v.json", MapsReader(predicted.maps))
    files = ("--runs", tmp_path / "v.json")
    refusal = refuse("report", "--model", predicted.abnn, *files, "--out", tmp_path / "report")
    assert "segunc evaluate --maps MAPS --verdicts v.json" in refusal


def test_names_of_many_calibration_frames_are_cut() -> None:
    from segunc.reporting.rendering import NAMED_FRAMES, _frame_names

    names = [str(number) for number in range(NAMED_FRAMES + 2)]
    assert _frame_names(names[:2]) == "0, 1"
    assert _frame_names(names).endswith(f", {NAMED_FRAMES - 1} and 2 more, which report.json names")


def test_two_reviewers_bound_the_precision(watched: str) -> None:
    rows = [row for row in words_of_rows(watched) if row[0] == "together,"]
    bounds = {" ".join(row[:3]): row[3] for row in rows}
    assert bounds == {"together, at least": ".500", "together, at most": "1.000"}


def test_two_reviewers_have_their_kappa(watched: str) -> None:
    kappa = "Cohen&#39;s kappa of .* is 0\\.00, over 2 frames that both judged\\."
    assert re.search(kappa, watched)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return write_scene(tmp_path_factory.mktemp("scene"))


@pytest.fixture
def inputs(scene: Scene) -> Any:
    """What a report is made of, as far as pictures of failures need it."""
    threshold = SimpleNamespace(
        score="entropy",
        value=0.5,
        found_share=0.5,
        frames={},
        smallest=50,
        smallest_object=10,
        preparation=AS_IT_IS,
    )
    return SimpleNamespace(maps=[MapsReader(scene.maps)], thresholds={"t": threshold})


@pytest.fixture
def sources(scene: Scene) -> LabelSources:
    return LabelSources(scene.anomaly, labels=scene.labels, label_map=LABEL_MAP)


def lines_of(pictures: list[dict[str, str]], title: str) -> list[str]:
    return [picture["line"] for picture in pictures if picture["title"] == title]


def frames_of(lines: list[str]) -> set[str]:
    return {line.partition(":")[0] for line in lines}


def test_pictures_of_failures_have_one_size(inputs: Any, sources: LabelSources) -> None:
    for picture in failures(inputs, sources).pictures:
        jpeg = np.frombuffer(base64.b64decode(picture["jpeg"]), np.uint8)
        pixels = cv2.imdecode(jpeg, cv2.IMREAD_COLOR)
        assert pixels is not None
        assert pixels.shape == (360, 960, 3)


def dark_shares(pictures: list[dict[str, str]]) -> list[float]:
    """Return which share of the score's view is nearly black in each picture."""
    shares = []
    for picture in pictures:
        jpeg = np.frombuffer(base64.b64decode(picture["jpeg"]), np.uint8)
        pixels = cv2.imdecode(jpeg, cv2.IMREAD_COLOR)
        assert pixels is not None
        view = pixels[:, pixels.shape[1] // 2 :].astype(int)
        shares.append(float((view.sum(axis=2) < 100).mean()))
    return shares


def test_pictures_of_failures_are_striped_where_a_mask_leaves_pixels_out(
    inputs: Any, sources: LabelSources, scene: Scene, tmp_path: Path
) -> None:
    """A map holds 0 there, which looks as if somebody had measured it."""
    whole = failures(inputs, sources)
    assert not whole.masked
    assert max(dark_shares(whole.pictures)) < 0.25
    maps = Path(shutil.copytree(scene.maps, tmp_path / "maps"))
    write_mask(maps)
    inputs.maps = [MapsReader(maps)]
    masked = failures(inputs, sources)
    assert masked.masked
    assert max(dark_shares(masked.pictures)) > 0.25


def test_missed_objects_are_those_of_the_labels(inputs: Any, sources: LabelSources) -> None:
    (reader,) = inputs.maps
    flagged = {}
    for name in NAMES[:3]:
        flagged[name] = float((reader.read(name, "entropy")[OBJECT] >= 0.5).mean())
    dark = NAMES[1]
    assert [name for name, share in flagged.items() if share < 0.5] == [dark]
    lines = lines_of(failures(inputs, sources).pictures, "Missed.")
    share = f"of which {flagged[dark]:.0%} are flagged by entropy."
    assert lines[0] == f"{dark}: an object of 120 pixels, {share}"
    assert frames_of(lines) <= {dark, NAMES[2]}  # which has a small dark object, too


def test_confident_errors_are_the_largest_unflagged_mistakes(
    scene: Scene, inputs: Any, sources: LabelSources
) -> None:
    (reader,) = inputs.maps
    errors = lines_of(failures(inputs, sources).pictures, "Confident error.")
    assert errors
    for line in errors:
        match = re.match(
            r"(.*?): ([\d,]+) wrong pixels, most often \w+ taken for \w+ \([\d,]+\)", line
        )
        assert match is not None
        name, pixels = match.groups()
        truth = cv2.imread(str(scene.labels / f"{name}.png"), cv2.IMREAD_GRAYSCALE)
        mistaken = (truth != 255) & (reader.prediction(name) != truth)
        unflagged = mistaken & (reader.read(name, "entropy") < 0.5)
        _, _, statistics, _ = cv2.connectedComponentsWithStats(
            unflagged.astype(np.uint8), connectivity=8
        )
        assert int(pixels) == statistics[1:, cv2.CC_STAT_AREA].max()


def test_a_mistake_is_the_commonest_pair_of_classes() -> None:
    # The commonest label is 3 and the commonest prediction 0, and they never stand together.
    labels = np.array([3, 3, 3, 1, 1], np.uint8)
    prediction = np.array([2, 4, 5, 0, 0], np.uint8)
    assert commonest_mistake(labels, prediction) == (1, 0, 2)


def test_frames_of_a_calibration_are_left_out(inputs: Any, sources: LabelSources) -> None:
    (reader,) = inputs.maps
    before = frames_of([picture["line"] for picture in failures(inputs, sources).pictures])
    inputs.thresholds["t"].frames = {NAMES[1]: reader.identity(NAMES[1], "entropy")}
    after = frames_of([picture["line"] for picture in failures(inputs, sources).pictures])
    assert before - after == {NAMES[1]}


def test_where_one_picture_is_shown_the_next_object_comes_in(
    inputs: Any, sources: LabelSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    (reader,) = inputs.maps
    inputs.thresholds["t"].frames = {NAMES[1]: reader.identity(NAMES[1], "entropy")}
    monkeypatch.setattr("segunc.reporting.failures.EACH", 1)
    # The object of the frame before is larger, and that frame was calibrated on.
    assert NAMES[2] in frames_of(lines_of(failures(inputs, sources).pictures, "Missed."))


def test_an_object_of_one_pixel_is_one_pixel(inputs: Any, tmp_path: Path) -> None:
    reader = inputs.maps[0]
    values = reader.read(NAMES[0], "entropy")
    anomaly = np.zeros(values.shape, np.uint8)
    anomaly[np.unravel_index(values.argmin(), values.shape)] = 1
    cv2.imwrite(str(tmp_path / f"{NAMES[0]}.png"), anomaly)
    lines = lines_of(failures(inputs, LabelSources(tmp_path)).pictures, "Missed.")
    assert lines == [f"{NAMES[0]}: an object of 1 pixel, of which 0% are flagged by entropy."]


def test_failures_that_were_looked_for_and_not_found_are_counted_by_frames(
    inputs: Any, scene: Scene, tmp_path: Path
) -> None:
    # All of the frame is an anomaly, and all of it is flagged, so nothing is wrong.
    reader = inputs.maps[0]
    anomaly = np.ones(reader.read(NAMES[0], "entropy").shape, np.uint8)
    cv2.imwrite(str(tmp_path / f"{NAMES[0]}.png"), anomaly)
    inputs.thresholds["t"].value = 0.0
    assert failures(inputs, LabelSources(tmp_path)) == Failures([], searched=1)


def test_no_failure_found_is_another_fact_than_not_measured(facts: dict[str, Any]) -> None:
    found_none = {
        **facts,
        "failures": [],
        "failures_searched": 14,
        "failures_labels": "labels in the folder masks",
    }
    assert "failures" not in _gaps(found_none)
    text = "were looked for in 14 labelled frames (labels in the folder masks), and none was found."
    assert text in render(found_none, "0")
    not_measured = {**facts, "failures": [], "failures_searched": 0}
    assert "failures" in _gaps(not_measured)


def test_failures_stand_with_the_number_of_frames_that_they_are_of(facts: dict[str, Any]) -> None:
    picture = {"title": "Missed.", "line": "a: an object", "jpeg": "", "frame": "a"}
    shown = {**facts, "failures": [picture], "failures_searched": 14, "failures_labels": ""}
    page = render(shown, "0")
    assert "The worst of each kind in 14 labelled frames, of frames that lie apart" in page


def test_failures_name_the_folder_of_their_labels(
    facts: dict[str, Any], inputs: Any, sources: LabelSources
) -> None:
    found = failures(inputs, replace(sources, place="streets/masks"))
    shown = {**facts, "failures_searched": 14, "failures_labels": found.labels}
    words = "in 14 labelled frames (labels in the folder streets/masks)"
    picture = {"title": "Missed.", "line": "a: an object", "jpeg": "", "frame": "a"}
    assert words in render({**shown, "failures": [picture]}, "0")
    assert words in render({**shown, "failures": []}, "0")


def test_labels_of_a_data_set_are_named_by_it_and_those_of_no_known_place_are_not() -> None:
    assert LabelSources(dataset="camvid", split="val", place="data").words == "camvid val"
    assert LabelSources().words == ""


def test_labels_that_options_name_are_named_by_their_folder(scene: Scene) -> None:
    options = ReportOptions(model="m", out="r", anomaly_labels=scene.anomaly)
    assert label_sources(options).words == f"labels in the folder {scene.anomaly.name}"


def test_conditions_of_thresholds_stand_once_with_their_files(facts: dict[str, Any]) -> None:
    (made, *_) = facts["thresholds"]
    second = {**made, "file": "second.json"}
    third = {**made, "file": "third.json", "condition": "It holds elsewhere."}
    page = render({**facts, "thresholds": [made, third, second]}, "0")
    caveats = page.partition("Caveats and recommendations</h")[2]
    condition = f"Operating point, {made['file']} and second.json: {html.escape(made['condition'])}"
    assert caveats.count(condition) == 1
    assert caveats.count(html.escape(made["condition"])) == 1
    assert "Operating point, third.json: It holds elsewhere." in caveats


def test_failures_have_a_legend_of_their_frames_and_colours(
    facts: dict[str, Any], inputs: Any, sources: LabelSources
) -> None:
    found = failures(inputs, sources)
    (bar,) = found.bars
    assert bar == {
        "score": "entropy",
        "ticks": ["0", "0.5", "1"],
        "hatched": False,
        "words": "0 = certain, 1 = all classes equally likely",
        "flagged": "entropy >= 0.5",
        "mark": 0.5,
    }
    assert found.labelled
    picture = {"title": "Missed.", "line": "a: an object", "jpeg": "", "frame": "a"}
    anomaly = {
        "score": "anomaly",
        "ticks": ["0", "4.8", ">= 6"],
        "hatched": True,
        "words": "W",
        "flagged": "rarity >= 2",
        "mark": None,
    }
    shown = {**facts, "failures": [picture], "failures_bars": [bar, anomaly]}
    shown["failures_found"] = {}
    page = render({**shown, "failures_labelled": True}, "0")
    assert "around what is flagged: entropy &gt;= 0.5, rarity &gt;= 2" in page
    assert page.count('<b style="left:50.0%"></b>') == 1
    assert "around a labelled anomaly" in page
    assert "around a labelled anomaly" not in render({**shown, "failures_labelled": False}, "0")
    assert "around the labelled object that was missed" in page
    assert "a false alarm" not in page
    assert "<span>0</span><span>4.8</span><span>&gt;= 6</span>" in page
    assert page.count('style="background:linear-gradient(90deg,') == 2
    assert page.count("<i></i></i>") == 1


def test_failures_stand_with_the_number_that_was_found(facts: dict[str, Any]) -> None:
    of_frames = ("a", "a", "b")
    pictures = [{"title": "Missed.", "line": "x", "jpeg": "", "frame": name} for name in of_frames]
    pictures.append({"title": "False alarm.", "line": "x", "jpeg": "", "frame": "c"})
    found = {"Missed.": 7, "False alarm.": 5}
    page = render({**facts, "failures": pictures, "failures_found": found}, "0")
    assert "3 of 7 missed objects, from 2 frames; 1 of 5 frames with a false alarm, of each" in page


def test_failures_are_counted_by_their_kind(inputs: Any, sources: LabelSources) -> None:
    found = failures(inputs, sources)
    missed = lines_of(found.pictures, "Missed.")
    assert found.found["Missed."] == len(missed) == 2
    assert {picture["frame"] for picture in found.pictures} == frames_of(
        [picture["line"] for picture in found.pictures]
    )


def test_one_failure_of_each_frame_comes_before_a_second_one() -> None:
    heavy = [failure(10, 9.0), failure(10, 8.0), failure(11, 1.0)]
    assert _worst(heavy, 3, ["10", "11"]) == [heavy[0], heavy[2], heavy[1]]


def test_lines_without_content_are_folded_and_reachable_on_screen_and_paper(
    facts: dict[str, Any], tmp_path: Path, browser: Any
) -> None:
    (tmp_path / "index.html").write_text(render(facts, "0"))
    page = browser.new_page()
    page.goto((tmp_path / "index.html").as_uri())
    names = page.locator(".summary dt").all_inner_texts()
    assert not any(name.startswith(("Independence", "Reviewers", "Gaps")) for name in names)
    content = page.locator(".summary details li").first
    assert not content.is_visible()
    page.emulate_media(media="print")
    assert content.is_visible()
    page.emulate_media(media="screen")
    page.click(".summary summary")
    assert content.is_visible()
    page.close()


def test_results_come_before_how_the_model_was_made(written: Path) -> None:
    page = page_of(written)
    assert page.index("IoU of each class") < page.index("How the model was made</span>")


def test_intervals_name_their_units(facts: dict[str, Any]) -> None:
    changed = copy.deepcopy(facts)
    content = changed["results"][0]["content"]
    content["bootstrap"] = {"unit": "10s", "units": 12}
    content["intervals"] = {"segmentation.miou": [0.1, 0.2]}
    assert "bootstrap over units, of test over 12 10s blocks." in render(changed, "0")


@pytest.mark.parametrize(
    ("confidence", "words"),
    [(None, "of the expected risk, which has no confidence"), (0.9, ", 90 % confidence")],
)
def test_an_upper_bound_of_an_operating_point_says_its_confidence(
    facts: dict[str, Any], confidence: float | None, words: str
) -> None:
    changed = copy.deepcopy(facts)
    changed["thresholds"][0] |= {"confidence": confidence, "bound": 0.162}
    rows = [" ".join(row) for row in words_of_rows(render(changed, "0"))]
    assert any(row.startswith("Upper bound") and row.endswith(f"{words} .162") for row in rows)


RING = np.s_[4:24, 6:34]
HELD = np.s_[10:18, 14:26]


def false_alarm(
    values: Any, anomaly: Any, threshold: float = 0.5
) -> tuple[Failure, list[tuple[Any, Any]]]:
    """Return the false alarm of a frame and its outlines."""
    frame = LabelledFrame("a", {"entropy": values}, anomaly=anomaly, smallest_object=10)
    point = OperatingPoint("entropy", Threshold(threshold), 10)
    (found,) = _false_alarm(frame, point.score, point.flag)
    return found, _outlines(frame, point)


def ring() -> tuple[Any, Any]:
    """Scores that flag an object with the ground around it, and the label of the object."""
    values = np.zeros((30, 40), np.float32)
    values[RING] = 0.75
    anomaly = np.zeros((30, 40), np.uint8)
    anomaly[HELD] = 1
    return values, anomaly


def test_a_false_alarm_says_that_its_region_holds_an_anomaly() -> None:
    found, _ = false_alarm(*ring())
    assert found.line == (
        "a: 464 pixels of normal ground flagged, in one region with 96 labelled pixels of an "
        "anomaly; entropy up to 0.75 on normal ground."
    )
    assert found.box == (6, 4, 28, 20)


def test_a_false_alarm_counts_all_normal_ground_of_a_region_that_an_anomaly_cuts() -> None:
    values, anomaly = ring()
    anomaly[:, 14:26] = 1
    found, _ = false_alarm(values, anomaly)
    assert "a: 320 pixels of normal ground flagged, in one region with 240 labelled" in found.line


def test_a_false_alarm_without_an_anomaly_names_none() -> None:
    values, anomaly = ring()
    found, _ = false_alarm(values, np.zeros_like(anomaly))
    assert found.line == (
        "a: 560 pixels of normal ground flagged, entropy up to 0.75 on normal ground."
    )


def test_pictures_outline_what_is_flagged_and_the_label() -> None:
    values, anomaly = ring()
    _, ((flagged, _), (labelled_pixels, strokes)) = false_alarm(values, anomaly)
    assert np.array_equal(flagged, values >= 0.5)
    assert np.array_equal(labelled_pixels, anomaly == 1)
    assert strokes == LABELLED_STROKES


def test_pictures_of_failures_hold_the_lines_of_both_outlines(
    inputs: Any, sources: LabelSources
) -> None:
    """The colour of what is flagged is in no image and in no score."""
    for picture in failures(inputs, sources).pictures:
        if picture["title"] != "False alarm.":
            continue
        jpeg = np.frombuffer(base64.b64decode(picture["jpeg"]), np.uint8)
        pixels = np.asarray(cv2.imdecode(jpeg, cv2.IMREAD_COLOR_RGB), int)
        near = np.abs(pixels - FLAGGED).max(axis=2) < 60
        assert near[:, :480].any()
        assert near[:, 480:].any()
        return
    pytest.fail("there is no false alarm")


def failure(place: int, weight: float) -> Failure:
    return Failure("Missed", weight, f"{place:02}", "", (0, 0, 1, 1))


def test_failures_are_of_frames_that_lie_apart() -> None:
    frames = [f"{place:02}" for place in range(34)]
    heavy = [failure(place, 100 - place) for place in range(10, 18)]
    light = [failure(0, 3.0), failure(24, 2.0), failure(33, 1.0)]
    chosen = [found.frame for found in _worst(heavy + light, 4, frames)]
    assert chosen == ["10", "00", "24", "33"]


def test_neighbours_are_shown_where_there_is_no_choice() -> None:
    frames = [f"{place:02}" for place in range(34)]
    neighbours = [failure(10, 9.0), failure(10, 8.0), failure(11, 7.0), failure(14, 6.0)]
    assert _worst(neighbours, 3, frames) == [neighbours[0], neighbours[2], neighbours[3]]
    by_frame = [neighbours[0], neighbours[2], neighbours[3], neighbours[1]]
    assert _worst(neighbours, 4, frames) == by_frame


def test_maps_without_labels_have_no_failures(inputs: Any) -> None:
    inputs.thresholds = {}
    assert failures(inputs, LabelSources()) == Failures([], 0)


def test_without_a_threshold_regions_of_the_maps_are_flagged(inputs: Any) -> None:
    (reader,) = inputs.maps
    reader.manifest["maps"]["entropy"]["component_threshold"] = 0.375
    inputs.thresholds = {}
    point = OperatingPoint("entropy", Threshold(0.375), SMALLEST_OBJECT)
    assert _operating_point(inputs, reader) == point


def test_maps_without_any_threshold_have_no_failures(inputs: Any, sources: LabelSources) -> None:
    (reader,) = inputs.maps
    inputs.thresholds = {}
    del reader.manifest["maps"]["entropy"]["component_threshold"]
    assert failures(inputs, sources) == Failures([], 0)


def test_maps_whose_frames_have_no_labels_have_no_failures(inputs: Any, tmp_path: Path) -> None:
    labels = tmp_path / "labels"
    labels.mkdir()
    assert cv2.imwrite(str(labels / "another frame.png"), np.zeros((30, 40), np.uint8))
    assert failures(inputs, LabelSources(labels)) == Failures([], 0)


WIDER_THAN_THE_PAPER = """
    [...document.querySelectorAll('table, pre, figure, p')]
        .filter((element) => element.getBoundingClientRect().right > 666)
        .map((element) => element.textContent)
"""


def test_a_print_has_few_pages(written: Path, browser: Any, tmp_path: Path) -> None:
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)))
    pdf = tmp_path / "report.pdf"
    switches = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-pdf-header-footer",
        f"--user-data-dir={tmp_path}/chromium",
    ]
    subprocess.run(
        [path, *switches, f"--print-to-pdf={pdf}", (written / "index.html").as_uri()],
        check=True,
        timeout=120,
        capture_output=True,
    )
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))
    assert 4 <= pages <= 14


COMMAND_WIDTHS = """
    [...document.querySelectorAll('.commands code')]
        .map((code) => code.parentElement.getBoundingClientRect().width)
"""
CUT_KEYS = """
    [...document.querySelectorAll('.facts th')].flatMap((key) => {
      const words = document.createTreeWalker(key, NodeFilter.SHOW_TEXT);
      const cut = [];
      while (words.nextNode()) {
        for (const word of words.currentNode.data.matchAll(/[^ ._/-]+/g)) {
          const range = document.createRange();
          range.setStart(words.currentNode, word.index);
          range.setEnd(words.currentNode, word.index + word[0].length);
          if (range.getClientRects().length > 1) cut.push(word[0]);
        }
      }
      return cut;
    })
"""


def test_a_narrow_screen_shows_whole_commands_and_words(written: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto((written / "index.html").as_uri())
    widths = page.evaluate(COMMAND_WIDTHS)
    assert widths
    assert min(widths) > 300
    assert page.evaluate(CUT_KEYS) == []
    page.close()


def test_what_was_achieved_is_whole_beside_the_contents(
    facts: dict[str, Any], tmp_path: Path, browser: Any
) -> None:
    """The widest table: with the shares of right and wrong pixels, precision and recall."""
    shown = copy.deepcopy(facts)
    for row in shown["thresholds"][0]["achieved"]:
        row |= {"data": "labels in the folder data, split test; maps in maps_of_friday"}
        row |= {"control": "errors-kept", "right_flagged": 0.123, "wrong_flagged": 0.456}
        row["flagged"] |= {"normal_share": 0.123, "precision": 0.456, "recall": 0.789}
    (tmp_path / "index.html").write_text(render(shown, "0"))
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto((tmp_path / "index.html").as_uri())
    table = page.locator(".table", has=page.locator("caption", has_text="Achieved on other frames"))
    assert table.locator("thead th").last.inner_text() == "recall"
    assert not table.evaluate("(element) => element.scrollWidth > element.clientWidth")
    page.close()


@pytest.mark.parametrize("width", [1200, 1400])
def test_the_numbers_of_a_segmentation_are_whole_beside_the_contents(
    facts: dict[str, Any], tmp_path: Path, browser: Any, width: int
) -> None:
    """With intervals of every number, and names and data as long as those of users."""
    shown = copy.deepcopy(facts)
    names = itertools.count(1)
    for result in shown["results"]:
        result["name"] = f"metrics_of_friday_evening_{next(names)}"
        result["data"] = "labels in the folder own_frames, split test under fog:3; maps in maps_fog"
        content = result["content"]
        for path in ("segmentation.miou", "segmentation.accuracy"):
            content["intervals"][path] = [0.1234, 0.5678]
        for key in ("ece", "nll", "brier"):
            content["calibration"][key] = 0.00555
            content["intervals"][f"calibration.{key}"] = [0.00416, 0.00789]
    (tmp_path / "index.html").write_text(render(shown, "0"))
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((tmp_path / "index.html").as_uri())
    caption = page.locator("caption", has_text="All pixels with a class label")
    table = page.locator(".table", has=caption)
    assert table.locator("thead th").last.inner_text() == "Brier"
    assert not table.evaluate("(element) => element.scrollWidth > element.clientWidth")
    page.close()


def test_numbers_under_shift_stand_with_their_score_and_frames(facts: dict[str, Any]) -> None:
    assert {row["number"] for row in facts["shift"]} >= {"mean IoU"}
    shown = copy.deepcopy(facts)
    row = shown["shift"][0] | {"number": "AUPR", "score": "entropy", "frames": 13}
    shown["shift"] = [row, row | {"number": "ECE", "score": None, "frames": 21}]
    rows = words_of_rows(render(shown, "0").partition("Corrupted images beside")[2])
    assert rows[1][2:5] == ["AUPR", "entropy", "13"]
    assert rows[2][2:5] == ["ECE", "—", "21"]


def test_what_was_achieved_stands_first_in_the_summary(facts: dict[str, Any]) -> None:
    line = line_of(facts, "Operating point")
    assert line["text"].startswith(line["lead"])
    assert f"<dd><b>{line['lead']}</b><br>On average, at most" in render(facts, "0")


NAMES_AFTER_SCROLLING = """
    [...document.querySelectorAll('.table')].filter((box) => box.scrollWidth > box.clientWidth)
      .map((box) => {
        box.scrollLeft = 1e6;
        const name = box.querySelector('tbody th');
        return name.getBoundingClientRect().left - box.getBoundingClientRect().left;
      })
"""


def test_a_table_that_scrolls_keeps_the_names_of_its_rows(written: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.goto((written / "index.html").as_uri())
    moved = page.evaluate(NAMES_AFTER_SCROLLING)
    assert moved
    assert all(left == pytest.approx(0, abs=1) for left in moved)
    page.close()


def test_no_line_ends_within_an_interval_or_before_a_percent_sign(facts: dict[str, Any]) -> None:
    line = {"name": "N", "state": "open", "text": "It is .176 [.163, .187] or 5 % of [a b, c]."}
    page = render({**facts, "summary": [line]}, "0")
    assert "It is .176 [.163,\u00a0.187] or 5\u00a0% of [a b, c]." in page


def test_no_shadow_stands_where_nothing_scrolls(written: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto((written / "index.html").as_uri())
    assert shadows_where_nothing_scrolls(page, ".table") == []
    page.emulate_media(media="print")
    assert backgrounds(page, ".table") == {"none"}
    page.close()


BREAKS_OF_TABLES = """
    [...document.querySelectorAll('.table')].map((table) =>
        [table.querySelectorAll('tbody tr').length > 5, getComputedStyle(table).breakInside])
"""


def test_a_print_breaks_long_tables_between_rows(written: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 665, "height": 980})
    page.emulate_media(media="print")
    page.goto((written / "index.html").as_uri())
    breaks = {(is_long, inside) for is_long, inside in page.evaluate(BREAKS_OF_TABLES)}
    assert breaks == {(True, "auto"), (False, "avoid")}
    page.close()


def test_a_print_cuts_no_table(written: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 665, "height": 980})  # A4 less its margins
    page.emulate_media(media="print")
    page.goto((written / "index.html").as_uri())
    assert page.evaluate(WIDER_THAN_THE_PAPER) == []
    assert page.evaluate("getComputedStyle(document.querySelector('tr')).breakInside") == "avoid"
    assert not page.is_visible("nav")
    page.close()


HEADINGS = "[...document.querySelectorAll('h1, h2, h3')].map((heading) => heading.tagName)"
UNNAMED = "[...document.querySelectorAll('main th:not([scope]), img:not([alt])')].length"


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_headings_are_in_order(
    written: Path, browser: Any, theme: str, width: int
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((written / "index.html").as_uri())
    violations = axe.run(page, options={"resultTypes": ["violations"], "preload": False})
    assert not violations.violations_count, violations.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
    levels = [int(tag[1]) for tag in page.evaluate(HEADINGS)]
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.evaluate(UNNAMED) == 0
    page.close()


@pytest.mark.parametrize("name", [CLEAN, ANOMALY])
def test_a_result_that_was_edited_is_refused(
    name: str, predicted: Job, results: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(results, tmp_path / "copy"))
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace('"draws": ', '"draws": 1', 1))
    files = ("--runs", folder / name)
    words = ("report", "--model", predicted.abnn, *files, "--out", tmp_path / "report")
    assert "has changed since it was written" in refuse(*words)
    assert not (tmp_path / "report").exists()


def test_a_result_says_on_how_many_of_its_frames_verdicts_changed_the_bank(
    facts: dict[str, Any],
) -> None:
    words = "verdicts on 9 of them changed the bank"
    first, *others = facts["results"]
    assert words not in render(facts, "0")
    learned = {**facts, "results": [{**first, "learned": 9}, *others]}
    assert f"{first['role']}; {words}" in render(learned, "0")


def test_the_files_that_hold_the_hashes_of_maps_have_one(
    predicted: Job, facts: dict[str, Any]
) -> None:
    manifest = predicted.maps / "manifest.json"
    name = f"{predicted.maps.name}/manifest.json"
    assert facts["files"][name] == hashlib.sha256(manifest.read_bytes()).hexdigest()
    assert f"{predicted.maps.name}/frames.jsonl" in facts["files"]


def test_a_result_says_how_many_of_its_frames_are_of_a_calibration(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    content = json.loads((results / ANOMALY).read_text())
    names = MapsReader(predicted.maps).frames[:2]
    path = write_threshold(tmp_path / "t.json", content["run"], frames=dict.fromkeys(names, "1"))
    files = ("--runs", results / ANOMALY, "--threshold", path)
    succeed("report", "--model", predicted.abnn, *files, "--out", tmp_path / "report")
    (result,) = report_of(tmp_path / "report")["results"]
    assert result["calibrated"] == 2
    assert "test; 2 of them calibration" in page_of(tmp_path / "report")


def test_what_was_fitted_on_a_model_names_its_data(facts: dict[str, Any]) -> None:
    assert all(words == "ensemble" or " (on toy " in words for words in facts["model"]["fitted"])
    assert facts["fitted_on"] == []


def test_a_file_in_which_an_edit_would_not_show_is_said(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    content = json.loads((results / CLEAN).read_text())
    content.pop("record_sha256")
    (tmp_path / "bare.json").write_text(json.dumps(content))
    files = ("--runs", tmp_path / "bare.json", results / ANOMALY)
    succeed("report", "--model", predicted.abnn, *files, "--out", tmp_path / "report")
    facts = report_of(tmp_path / "report")
    assert facts["unsealed"] == ["bare.json"]
    line = line_of(facts, "Edits")
    assert line["state"] == "open"
    assert line["text"].startswith("bare.json holds no hash of itself")


def test_how_the_frames_were_seen_is_shown_and_a_difference_is_said(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    content = json.loads((results / ANOMALY).read_text())
    content.pop("record_sha256")
    content["run"].update(size=[32, 64], draws=7, mask_sha256="ab" * 32)
    (tmp_path / "other.json").write_text(json.dumps(content))
    files = ("--runs", tmp_path / "other.json", results / ANOMALY)
    succeed("report", "--model", predicted.abnn, *files, "--out", tmp_path / "report")
    page = page_of(tmp_path / "report")
    row = ["other", "32 x 64", "7", "0", "float32", "abababababab: pixels are left out"]
    assert row in cells_of(page)
    assert "other: a mask leaves pixels out." in page
    text = line_of(report_of(tmp_path / "report"), "Settings")["text"]
    assert "Draws: 7 (other);" in text
    assert "Size: 32 x 64 (other);" in text
    assert "Mask: abababababab: pixels are left out (other); none (anomaly)." in text


def test_settings_that_are_equal_are_no_line_of_the_summary(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    files = ("--runs", results / ANOMALY, "--maps", predicted.maps)
    succeed("report", "--model", predicted.abnn, *files, "--out", tmp_path / "report")
    names = [line["name"] for line in report_of(tmp_path / "report")["summary"]]
    assert "Settings" not in names
    assert "Edits" not in names


def test_labels_of_a_folder_are_named_by_it_and_not_by_a_name_of_ours(
    predicted: Job, tmp_path: Path
) -> None:
    words = ("--maps", predicted.maps, "--anomaly-labels", predicted.masks, "--replicates", 0)
    succeed("evaluate --dataset folder", *words, "--out", tmp_path / "own.json")
    files = ("--runs", tmp_path / "own.json")
    succeed("report", "--model", predicted.abnn, *files, "--out", tmp_path / "report")
    text = line_of(report_of(tmp_path / "report"), "Unknown objects")["text"]
    masks = predicted.masks.name
    assert f"on labels in the folder {masks}, 4 frames (own.json, maps in maps)" in text
    assert "255" not in text
    meaning = "Values of the masks of own.json: 0 = normal, 1 = anomaly, 255 = ignored."
    assert meaning in page_of(tmp_path / "report")


@pytest.fixture(scope="module")
def fogged(predicted: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with results of maps: ``clear.json``, ``again.json`` and, of the same frames under
    fog that their user painted, ``fog.json``.
    """
    folder = tmp_path_factory.mktemp("fogged")
    images = folder / "images"
    for path in sorted(predicted.frames.rglob("*.png")):
        image = cv2.imread(str(path))
        copied = images / path.relative_to(predicted.frames)
        copied.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(copied), cv2.addWeighted(image, 0.4, np.full_like(image, 255), 0.6, 0))
    words = f"predict {SMALL}"
    for name, source in (("clear", predicted.frames), ("fog", images)):
        maps = ("--input", source, "--out", folder / f"maps_{name}")
        succeed(words, "--model", predicted.abnn, *maps)
    for name, maps_name in (("clear", "maps_clear"), ("again", "maps_clear"), ("fog", "maps_fog")):
        maps = ("--maps", folder / maps_name, "--anomaly-labels", predicted.masks)
        succeed("evaluate", *maps, "--replicates", 50, "--out", folder / f"{name}.json")
    return folder


def test_results_of_other_images_are_told_from_each_other(
    predicted: Job, fogged: Path, tmp_path: Path
) -> None:
    runs = [fogged / f"{name}.json" for name in ("clear", "again", "fog")]
    succeed("report", "--model", predicted.abnn, "--runs", *runs, "--out", tmp_path / "report")
    facts = report_of(tmp_path / "report")
    assert facts["other_images"] == [["fog.json", "clear.json"]]
    words = "The images of fog.json are others than those of clear.json under the same names."
    assert line_of(facts, "Images")["text"] == words
    assert line_of(facts, "Under shift")["text"].startswith(
        "Not measured on corrupted images. fog.json is a result of other images"
    )
    assert facts["shift"] == []
    page = page_of(tmp_path / "report")
    assert page.count(words) == 2
    assert "fog: labels in the folder anomaly; maps in maps_fog; 4 frames" in page


def test_a_comparison_of_other_images_says_what_its_columns_are(fogged: Path) -> None:
    results = [fogged / f"{name}.json" for name in ("clear", "again", "fog")]
    text = segunc.compare(results=results).text
    assert "fog less clear: the images differ under the same frame names." in text
    assert "again less clear: " not in text
    assert "maps in maps_fog; labels in the folder anomaly; 4 frames (0 with class labels" in text


def test_a_result_keeps_the_hash_of_each_image_beside_it(fogged: Path) -> None:
    clear, again, fog = (
        load_replicates(fogged / f"{name}.replicates.npz").images
        for name in ("clear", "again", "fog")
    )
    assert len(clear) == 4
    assert again == clear
    assert {*fog} == {*clear}
    assert not {*fog.values()} & {*clear.values()}


def test_clear_images_beside_a_corruption_are_of_the_same_files(
    results: Path,
) -> None:
    contents = [json.loads((results / name).read_text()) for name in (CLEAN, FOG)]
    clean, fog = (content["counts"] for content in contents)
    assert clean["images"] == fog["images"]
    assert clean["frame_names"] == fog["frame_names"]


def test_every_command_that_segunc_ran_has_its_date(facts: dict[str, Any]) -> None:
    dates = {made["file"]: made["date"] for made in facts["commands"]}
    assert dates["anomaly.json"][:2] == dates["maps"][:2] == "20"


def test_a_report_says_that_its_objects_are_specks(predicted: Job, tmp_path: Path) -> None:
    masks = tmp_path / "masks"
    shutil.copytree(predicted.masks, masks)
    first, *others = sorted(masks.rglob("*.png"))
    for path in (first, *others):
        mask = np.zeros_like(cv2.imread(str(path), cv2.IMREAD_UNCHANGED))
        mask[2, 3] = 1
        if path != first:
            mask[8:12, 8:12] = 1
        cv2.imwrite(str(path), mask)
    maps = ("--maps", predicted.maps, "--anomaly-labels", masks)
    succeed("evaluate", *maps, "--replicates", 0, "--out", tmp_path / "own.json")
    runs = ("--runs", tmp_path / "own.json")
    succeed("report", "--model", predicted.abnn, *runs, "--out", tmp_path / "report")
    words = (
        "1 of 4 labelled objects has fewer than 10 pixels, in 1 frame without a larger one, "
        "so numbers of objects may be of specks of the labelling."
    )
    assert line_of(report_of(tmp_path / "report"), "Unknown objects")["text"].endswith(words)
    assert f'<p class="note">own: {words}</p>' in page_of(tmp_path / "report")
