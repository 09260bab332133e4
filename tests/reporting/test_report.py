"""The report: made of its file alone, with the numbers of the results, refused where its parts do
not belong together; read and printed in Chromium.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
from scipy.stats import binomtest

import segunc
from segunc.data.datasets import dataset_entry
from segunc.data.entries import encoding_of_masks
from segunc.decisions.risks import binomial_bound
from segunc.decisions.threshold import settings_of
from segunc.evaluation.compare import format_number
from segunc.gallery.page import run_id
from segunc.maps.labelled import LabelSources
from segunc.maps.reader import MapsReader
from segunc.reporting.failures import failures
from segunc.reporting.inputs import Domain, _name_among
from segunc.reporting.page import render
from segunc.reporting.summary import number
from tests.conftest import Job
from tests.gallery.scenes import LABEL_MAP, NAMES, OBJECT, Scene, write_scene
from tests.reporting.conftest import ANOMALY, CLEAN, FOG, VALUE, write_threshold
from tests.verbs.processes import refuse, succeed


def words(predicted: Job, results: Path, out: Path) -> list[Any]:
    runs = [results / name for name in (FOG, CLEAN, ANOMALY)]
    labels = ("--maps", predicted.maps, "--anomaly-labels", predicted.masks)
    files = ("--threshold", results / "threshold.json", "--domain", results / "domain.yaml")
    return ["report", "--model", predicted.abnn, "--runs", *runs, *labels, *files, "--out", out]


@pytest.fixture(scope="module")
def written(predicted: Job, results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("written") / "report"
    succeed(*words(predicted, results, out))
    return out


def test_the_page_is_made_of_the_file_alone_whose_checksum_it_shows(written: Path) -> None:
    data, page = (written / "report.json").read_bytes(), (written / "index.html").read_text()
    digest = hashlib.sha256(data).hexdigest()
    assert page == render(json.loads(data), digest)
    assert f"<code>{digest}</code>" in page
    assert {path.name for path in written.iterdir()} == {"report.json", "index.html"}


def test_the_page_loads_nothing_names_no_place_of_the_machine_and_escapes_texts(
    written: Path, results: Path, predicted: Job
) -> None:
    page = (written / "index.html").read_text()
    assert re.findall(r'(?:src|href)="(?!data:image/jpeg;base64,|#)[^"]*"', page) == []
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    for place in (results, predicted.data, predicted.maps):
        assert str(place.parent) not in page + (written / "report.json").read_text()
    assert "Slow &lt;b&gt;down&lt;/b&gt; &amp; wait." in page
    assert "<b>down" not in page
    assert "at most 20 % &lt;of&gt; the normal pixels" in page


def test_numbers_are_those_of_the_results(written: Path, results: Path) -> None:
    facts, page = (
        json.loads((written / "report.json").read_text()),
        (written / "index.html").read_text(),
    )
    assert [of["name"] for of in facts["results"]] == [
        "test",
        "anomaly",
        "fog",
    ]  # corrupted images come last
    for of, name in zip(facts["results"], (CLEAN, ANOMALY, FOG), strict=True):
        content = json.loads((results / name).read_text())
        del content["run"]["command"]  # it stands under commands
        assert {key: content[key] for key in of["content"]} == of["content"]
        assert facts["files"][name] == hashlib.sha256((results / name).read_bytes()).hexdigest()
    assert facts["files"].keys() >= {
        "MODEL/network.json",
        "MODEL/network.safetensors",
    }  # a result may be called as a file of the model
    assert {name.partition(".")[0] for name in facts["model"]["made"]} == {
        "base",
        "posterior",
    }  # whose steps differ
    clean, anomaly = facts["results"][:2]
    for text in (
        number(clean, "segmentation", "miou"),
        number(anomaly, "scores", "entropy", "pooled", "aupr"),
    ):
        assert f">{text}</td>" in page
        assert any(text in line["text"] for line in facts["summary"])
    assert (
        number({"content": {"a": {"b": 0.5}, "intervals": {"a.b": [0.25, 0.75]}}}, "a", "b")
        == ".500 [.250, .750]"
    )
    for kind in ("size", "distance"):
        bins = anomaly["content"]["scores"]["entropy"][kind]
        assert anomaly["missed"][kind]
        for name, objects, missed, bound in anomaly["missed"][kind]:
            assert objects == bins[name]["objects"] > 0
            assert missed == pytest.approx(objects * (1 - bins[name]["found"]))
            assert bound == binomial_bound(missed, objects)
    assert facts["gaps"] == [
        *("independence", "label quality"),
        *("latency", "reviewers", "operation"),
    ]


@pytest.mark.parametrize(
    ("events", "trials"), [(0, 1), (0, 30), (1, 30), (17, 64), (29, 30), (30, 30)]
)
def test_the_upper_bound_is_exact(events: int, trials: int) -> None:
    interval = binomtest(events, trials, alternative="less").proportion_ci(0.95, method="exact")
    assert binomial_bound(events, trials) == pytest.approx(interval.high, rel=1e-9)
    if not events:
        assert binomial_bound(0, trials) == pytest.approx(1 - 0.05 ** (1 / trials))


def test_a_promise_is_compared_with_what_results_achieved(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    """By the losses of their units: a level between them, above both, and below both."""
    contents = [json.loads((results / name).read_text()) for name in (CLEAN, FOG)]
    shares = [content["flagged"]["entropy"]["risk"] for content in contents]
    assert shares[0] != shares[1]
    limited = "limited" if shares[0] < shares[1] else "broken"
    for level, state in (
        (max(shares), "holds"),
        (min(shares) / 2, "broken"),
        (sum(shares) / 2, limited),
    ):
        path = write_threshold(tmp_path / "t.json", contents[0]["run"], level=level)
        runs = ("--runs", results / CLEAN, results / FOG, "--threshold", path)
        succeed("report", "--model", predicted.abnn, *runs, "--out", tmp_path / "report")
        facts = json.loads((tmp_path / "report" / "report.json").read_text())
        (line,) = (line for line in facts["summary"] if line["name"] == "Operating point")
        achieved = facts["thresholds"][0]["achieved"]
        assert line["state"] == state
        assert [row["loss"] for row in achieved] == shares
        assert [row["kept"] for row in achieved] == [
            "kept" if share <= level else "exceeded" for share in shares
        ]
    del contents[0]["flagged"]["entropy"][
        "promise"
    ]  # as a bare --flag entropy=0.4 leaves it: another loss
    (tmp_path / CLEAN).write_text(json.dumps(contents[0]))
    words = ("--runs", tmp_path / CLEAN, "--threshold", path, "--out", tmp_path / "report")
    succeed("report", "--model", predicted.abnn, *words)
    assert (
        json.loads((tmp_path / "report" / "report.json").read_text())["thresholds"][0]["achieved"]
        == []
    )
    assert (
        "no result was made with this threshold" in (tmp_path / "report" / "index.html").read_text()
    )


def test_the_price_of_a_threshold_needs_no_class_labels(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    run = json.loads((results / ANOMALY).read_text())["run"]
    asked: dict[str, Any] = {"control": "missed-pixels", "level": 0.9, "promise": "P."}
    flag = write_threshold(tmp_path / "t.json", run, settings=settings_of(run, "entropy"), **asked)
    labels = (
        "--maps",
        predicted.maps,
        "--anomaly-labels",
        predicted.masks,
        "--replicates",
        0,
        "--groups",
        "^.",
    )
    succeed("evaluate", *labels, "--flag", flag, "--out", tmp_path / "a.json")
    entry, reader, frames = (
        dataset_entry("toy-anomaly"),
        MapsReader(predicted.maps),
        list[np.ndarray](),
    )
    for sample in entry.samples(predicted.data, "anomaly"):
        assert sample.anomaly is not None
        normal = encoding_of_masks(entry).read(sample.anomaly) == 0
        frames.append(reader.read(sample.name, "entropy")[normal] >= VALUE)
    share = np.concatenate(frames).mean()
    assert 0 < share < 1
    succeed(
        "report",
        "--model",
        predicted.abnn,
        "--runs",
        tmp_path / "a.json",
        "--threshold",
        flag,
        "--out",
        tmp_path / "report",
    )
    facts, page = (
        json.loads((tmp_path / "report" / "report.json").read_text()),
        (tmp_path / "report" / "index.html").read_text(),
    )
    (line,) = (line for line in facts["summary"] if line["name"] == "Operating point")
    assert f", with {100 * share:.1f} % of the normal pixels flagged." in line["text"]
    assert "objects by group of frames, entropy" in page
    (row,) = (
        row
        for row in re.findall(r"<tr>(.*?)</tr>", page)
        if ">missed-pixels<" in row and ">kept<" in row
    )
    assert f">{format_number(share)}</td>" in row


def test_latency_is_of_the_model_and_its_percentiles_rise(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    model = {
        key: json.loads((results / CLEAN).read_text())["run"][key]
        for key in ("base_sha256", "posterior_sha256")
    }
    measured = {
        "kind": "segunc latency",
        "version": 1,
        **model,
        "what": "sampler",
        "hardware": "a <core>",
        "size": [64, 128],
        "draws": 4,
    }
    measured |= {"frames": 100, "first": 4.5, "p50": 0.25, "p95": 0.5, "p99": 0.75}
    path, out = tmp_path / "latency.json", tmp_path / "report"
    command = ("report", "--model", predicted.abnn, "--latency", path, "--out", out)
    for change, said in (
        ({"posterior_sha256": "0" * 64}, "is of another model than that in"),
        ({"p95": 0.2}, r"the percentiles [0.25, 0.2, 0.75] are no seconds that rise"),
        ({"p50": "fast"}, "are no seconds that rise"),
        ({"version": 2}, "is not a latency of segunc in version 1"),
    ):
        path.write_text(json.dumps(measured | change))
        assert (said in refuse(*command), out.exists()) == (True, False), said
    path.write_text(json.dumps(measured))
    succeed(*command)
    page, facts = (out / "index.html").read_text(), json.loads((out / "report.json").read_text())
    assert "latency" not in facts["gaps"]
    assert facts["files"]["latency.json"] == hashlib.sha256(path.read_bytes()).hexdigest()
    rows = [re.findall(r">([^<]*)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
    assert ["sampler", "a &lt;core&gt;", "64 x 128", "4", "4.500", ".250", ".500", ".750"] in rows


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
    ("content", "said"),
    [
        ("axes: {light: {day: '('}}", "'(' of the axis 'light' is not a regular expression"),
        ("intended: x", "unknown key 'intended'"),
    ],
)
def test_a_domain_that_cannot_be_is_one_sentence(
    content: str, said: str, finetuned: Job, tmp_path: Path
) -> None:
    (tmp_path / "d.yaml").write_text(content)
    out = tmp_path / "report"
    assert said in refuse(
        "report", "--model", finetuned.abnn, "--domain", tmp_path / "d.yaml", "--out", out
    )
    assert not out.exists()


Edit = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("name", "edit", "said"),
    [
        (
            CLEAN,
            lambda c: c["run"].update(base_sha256="0" * 64),
            "is of another model than that in",
        ),
        (
            CLEAN,
            lambda c: c["run"].update(posterior_sha256=None),
            "is of another model than that in",
        ),
        (CLEAN, lambda c: c["run"].update(segunc="0.0.9"), "was made by segunc 0.0.9, not by"),
        (CLEAN, lambda c: c["run"].pop("segunc"), "was made by another tool"),
        (
            CLEAN,
            lambda c: [c["run"].pop(key) for key in ("base_sha256", "posterior_sha256")],
            "records no model",
        ),
        (CLEAN, lambda c: c.pop("counts"), "is no result of segunc evaluate"),
        (
            "threshold.json",
            lambda c: c.update(model="0" * 64),
            "threshold.json is of another model than that in",
        ),
        ("threshold.json", lambda c: c.update(version=2), "is not a threshold of segunc in version 1"),
        ("threshold.json", lambda c: c.pop("promise"), "lacks promise"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    name: str, edit: Edit, said: str, predicted: Job, results: Path, tmp_path: Path
) -> None:
    folder, out = Path(shutil.copytree(results, tmp_path / "copy")), tmp_path / "report"
    content = json.loads((folder / name).read_text())
    edit(content)
    (folder / name).write_text(json.dumps(content))
    assert said in refuse(*words(predicted, folder, out))
    assert not out.exists()


def test_files_of_one_name_in_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a/run/t.json", "b/run/t.json", "c.json")]
    assert [_name_among(path, paths) for path in paths] == [
        "a/run/t.json",
        "b/run/t.json",
        "c.json",
    ]


def test_frames_whose_lines_are_lost_are_said_by_summary_and_report(
    finetuned: Job, predicted: Job, tmp_path: Path
) -> None:
    maps = tmp_path / "maps"
    shutil.copytree(predicted.maps, maps)
    lines = (maps / "frames.jsonl").read_bytes().splitlines(keepends=True)
    (maps / "frames.jsonl").write_bytes(b"".join(lines[:-1]))
    lost = f"{maps} has lost the lines of 1 finished frames"
    assert lost in segunc.summary(maps=maps).notes[0]
    made = segunc.report(model=finetuned.abnn, maps=[maps], out=tmp_path / "report")
    assert lost in made.notes[0]
    page = made.page.read_text()
    assert "maps has lost the lines of 1 finished frames" in page
    assert str(tmp_path) not in page


def test_nothing_is_reported_of_nothing_and_no_other_page_is_replaced(
    finetuned: Job, results: Path, tmp_path: Path
) -> None:
    start = ("report", "--model", finetuned.abnn, "--out", tmp_path)
    assert "there is nothing to report" in refuse(*start)
    (tmp_path / "index.html").write_text("mine")
    assert "holds another page" in refuse(*start, "--runs", results / CLEAN)
    assert (tmp_path / "index.html").read_text() == "mine"


def test_monitor_and_reviewers_have_their_sections(
    predicted: Job, results: Path, tmp_path: Path
) -> None:
    state = {
        "kind": "segunc monitor",
        "version": 1,
        "threshold": {"sha256": "0"},
        "statistic": "entropy mean",
        "frames": 7,
        "martingale": 2.5,
    }
    (tmp_path / "m.json").write_text(
        json.dumps(state | {"level": 0.01, "fired": "frame_5", "risk": None})
    )
    reader = MapsReader(predicted.maps)
    given = [
        {"frame": name, "verdict": "true-alarm", "reviewer": who}
        for name in reader.frames[:2]
        for who in ("Ana", "Bo")
    ]
    given[-1]["verdict"] = "false-alarm"
    file = {"format": "segunc-verdicts", "version": 2, "run": run_id(reader), "verdicts": given}
    (tmp_path / "v.json").write_text(json.dumps(file))
    judged = (
        "--verdicts",
        tmp_path / "v.json",
        "--replicates",
        0,
        "--out",
        tmp_path / "judged.json",
    )
    succeed("evaluate", "--maps", predicted.maps, *judged)
    more = ("--monitor", tmp_path / "m.json", "--out", tmp_path / "report")
    succeed("report", "--model", predicted.abnn, "--runs", tmp_path / "judged.json", *more)
    promised = ("--threshold", results / "threshold.json")
    assert "watches another threshold" in refuse(
        "report", "--model", predicted.abnn, *promised, *more
    )
    page = (tmp_path / "report" / "index.html").read_text()
    rows = [
        re.sub(r"<[^>]+>", " ", row).split()
        for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    ]
    assert ["Fired", "frame_5"] in rows
    assert "2 of 4 frames judged, reviewers disagree on 1" in page
    assert [row[1] for row in rows if row[0] in ("Ana", "Bo")] == ["1.000", ".500"]
    bounds = {" ".join(row[:3]): row[3] for row in rows if row[0] == "together,"}
    assert bounds == {"together, at least": ".500", "together, at most": "1.000"}
    assert "Cohen's kappa .000 over 2 frames" in page


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return write_scene(tmp_path_factory.mktemp("scene"))


def test_failures_are_what_maps_and_labels_say(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = MapsReader(scene.maps)
    labels = LabelSources(scene.anomaly, labels=scene.labels, label_map=LABEL_MAP)
    threshold = SimpleNamespace(
        score="entropy", value=0.5, found_share=0.5, frames={}, smallest=50, smallest_object=10
    )
    inputs: Any = SimpleNamespace(maps=[reader], thresholds={"t": threshold})
    pictures = failures(inputs, labels)
    assert all(
        cv2.imdecode(np.frombuffer(base64.b64decode(of["jpeg"]), np.uint8), 1).shape
        == (180, 480, 3)
        for of in pictures
    )
    flagged = {
        name: float((reader.read(name, "entropy")[OBJECT] >= 0.5).mean()) for name in NAMES[:3]
    }
    missed = [name for name, share in flagged.items() if share < 0.5]
    assert missed == [NAMES[1]]  # the dark object
    lines = [of["line"] for of in pictures if of["title"] == "Missed."]
    assert (
        lines[0]
        == f"{NAMES[1]}: an object of 120 pixels, of which {flagged[NAMES[1]]:.0%} are flagged by entropy."
    )
    assert {line.partition(":")[0] for line in lines} <= {
        NAMES[1],
        NAMES[2],
    }  # the second has a small dark object, too
    errors = [of["line"] for of in pictures if of["title"] == "Confident error."]
    assert errors
    for line in errors:
        name, pixels = re.match(r"(.*?): ([\d,]+) pixels of \w+ taken for", line).groups()  # type: ignore[union-attr]
        truth = cv2.imread(str(scene.labels / f"{name}.png"), 0)
        wrong = (
            (truth != 255)
            & (reader.prediction(name) != truth)
            & (reader.read(name, "entropy") < 0.5)
        )
        areas = cv2.connectedComponentsWithStats(wrong.astype(np.uint8), connectivity=8)[2][1:, 4]
        assert int(pixels) == areas.max()
    threshold.frames = {NAMES[1]: reader.identity(NAMES[1], "entropy")}
    shown = {of["line"].partition(":")[0] for of in failures(inputs, labels)}
    assert {of["line"].partition(":")[0] for of in pictures} - shown == {NAMES[1]}, (
        "calibrated on it"
    )
    monkeypatch.setattr("segunc.reporting.failures.EACH", 1)
    assert NAMES[2] in {
        of["line"].partition(":")[0] for of in failures(inputs, labels) if of["title"] == "Missed."
    }, "the smaller object"
    assert failures(SimpleNamespace(maps=[reader], thresholds={}), LabelSources()) == []  # type: ignore[arg-type]


def test_print_has_pages_and_cuts_no_table(written: Path, browser: Any, tmp_path: Path) -> None:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
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
    page = browser.new_page(viewport={"width": 665, "height": 980})  # A4 less its margins
    page.emulate_media(media="print")
    page.goto((written / "index.html").as_uri())
    wide = "[...document.querySelectorAll('table, pre, figure, p')].filter((e) => e.getBoundingClientRect().right > 666).map((e) => e.textContent)"
    assert page.evaluate(wide) == []
    assert page.evaluate("getComputedStyle(document.querySelector('tr')).breakInside") == "avoid"
    assert not page.is_visible("nav")
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_and_headings_are_in_order(
    written: Path, browser: Any, theme: str
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for width in (1400, 390):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
        requests: list[str] = []
        page.on("request", lambda request, to=requests: to.append(request.url))
        page.goto((written / "index.html").as_uri())
        found = axe.run(page, options={"resultTypes": ["violations"], "preload": False})
        assert not found.violations_count, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
        levels = [
            int(tag[1])
            for tag in page.evaluate(
                "[...document.querySelectorAll('h1, h2, h3')].map((h) => h.tagName)"
            )
        ]
        assert all(after - before <= 1 for before, after in pairwise(levels))
        assert (
            page.evaluate(
                "[...document.querySelectorAll('main th:not([scope]), img:not([alt])')].length"
            )
            == 0
        )
        page.close()
