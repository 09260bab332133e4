"""The card of a model: what it says with and without a report."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import segunc
from segunc.core.errors import InputError
from segunc.core.files import file_sha256
from tests.conftest import Job
from tests.reporting.conftest import ANOMALY, CLEAN, FOG, results as results
from tests.support.hub_server import serve

huggingface_hub = pytest.importorskip("huggingface_hub")


@pytest.fixture(scope="module")
def report(predicted: Job, results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report on the fine-tuned model."""
    out = tmp_path_factory.mktemp("report")
    segunc.report(
        model=predicted.abnn,
        runs=[results / CLEAN, results / FOG, results / ANOMALY],
        maps=[predicted.maps],
        threshold=[results / "threshold.json"],
        domain=results / "domain.yaml",
        out=out,
    )
    return out


def card_of(model: Any, out: Path, **more: Any) -> tuple[dict[str, Any], str]:
    """Return header and text of the card of a model."""
    model.save_pretrained(out, repo_id="owner/roads", **more)
    text = (out / "README.md").read_text(encoding="utf-8")
    _, header, body = text.split("---\n", 2)
    return yaml.safe_load(header), body


def cells(body: str, heading: str) -> dict[str, list[str]]:
    """Return the rows of the last table below a heading by their first cells."""
    section = body.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line[2:-2].split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows}


def test_the_numbers_are_those_of_the_report(
    predicted: Job, report: Path, results: Path, tmp_path: Path
) -> None:
    header, body = card_of(
        segunc.load(predicted.abnn), tmp_path / "out", report=report, license="mit"
    )
    assert header["library_name"] == "segunc"
    assert header["pipeline_tag"] == "image-segmentation"
    assert header["license"] == "mit"
    assert {"abnn", "semantic-segmentation", "uncertainty-estimation"} <= set(header["tags"])
    (index,) = header["model-index"]
    found = {}
    for entry in index["results"]:
        for metric in entry["metrics"]:
            found[entry["dataset"]["config"], metric["type"]] = metric["value"]
    expected = {}
    for name in (CLEAN, FOG):
        content = json.loads((results / name).read_text())
        expected[Path(name).stem, "mean_iou"] = content["segmentation"]["miou"]
        expected[Path(name).stem, "ece"] = content["calibration"]["ece"]
    pooled = json.loads((results / ANOMALY).read_text())["scores"]["entropy"]["pooled"]
    expected["anomaly", "average_precision"] = pooled["aupr"]
    expected["anomaly", "roc_auc"] = pooled["auroc"]
    expected["anomaly", "fpr95"] = pooled["fpr95"]
    assert found == expected
    rows = cells(body, "What was measured")
    (own_labels,) = (name for name in rows if name.startswith("labels in the folder "))
    assert own_labels.endswith(", 4 frames (anomaly.json, maps in maps)")
    miou, ece, score, aupr, fpr95 = rows[own_labels]
    assert (miou, ece, score) == ("-", "-", "entropy")
    assert aupr.split(" ")[0] == f"{pooled['aupr']:.3g}"
    assert fpr95.split(" ")[0] == f"{pooled['fpr95']:.3g}"
    of_fog = [row for name, row in rows.items() if name.startswith("toy test under fog:5, 2 fr")]
    assert [row[0] for row in of_fog] == [f"{expected['fog', 'mean_iou']:.3g}"]
    assert file_sha256(report / "report.json") in body


def test_each_line_of_the_report_is_there_with_its_state(
    predicted: Job, report: Path, tmp_path: Path
) -> None:
    _, body = card_of(segunc.load(predicted.abnn), tmp_path / "out", report=report / "report.json")
    facts = json.loads((report / "report.json").read_text())
    rows = cells(body, "What was measured")
    names = {line["name"] for line in facts["summary"]} - {"Gaps", "Approval"}
    assert names <= rows.keys()
    assert rows["Operating point"][0] == "does not hold"
    assert rows["Independence"] == ["open", "Nobody stated it."]
    section = body.split("## What was not measured")[1].split("##")[0]
    assert {line.removeprefix("- ") for line in section.splitlines() if line} == set(facts["gaps"])
    assert "- Slow &lt;b&gt;down&lt;/b&gt; &amp; wait." in body  # no HTML of anybody


def test_an_interval_is_shown() -> None:
    from segunc.posteriors.model_card import _number

    content = {"a": {"b": 0.12345}, "intervals": {"a.b": [0.1, 0.15]}}
    assert _number({"content": content}, ("a", "b")) == "0.123 (0.1 to 0.15)"
    assert _number({"content": content}, ("a", "c")) == "-"


def test_without_a_report_the_card_says_that_nothing_was_measured(
    predicted: Job, tmp_path: Path
) -> None:
    header, body = card_of(segunc.load(predicted.base), tmp_path / "out")
    assert not {"model-index", "metrics", "license", "datasets"} & header.keys()
    assert "Nothing was measured for this card." in body
    assert "- whether its scores find unknown objects" in body
    assert "The author states no licence." in body
    facts = cells(body, "What it is")
    assert facts["posterior"] == ["none: the network is deterministic"]
    assert facts["network"] == [r"FPN mobilenet\_v2"]
    assert facts["training data"] == ["toy; its epoch was chosen on the split val"]
    assert facts["SHA-256 of the network"] == [segunc.load(predicted.base).sha256]


def test_a_report_of_another_model_is_refused(predicted: Job, report: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is of another model: posterior\.json differs"):
        card_of(segunc.load(predicted.base), tmp_path / "base", report=report)
    other = segunc.ABNN(members=2, alpha=0.3, epochs=0).fit(segunc.load(predicted.base))
    with pytest.raises(InputError, match="is of another model: posterior"):
        card_of(other, tmp_path / "other", report=report)


def test_a_report_before_a_later_fit_is_refused(
    predicted: Job, report: Path, tmp_path: Path
) -> None:
    from segunc.core.files import write_record

    folder = tmp_path / "model"
    segunc.load(predicted.abnn).save(folder)
    model = segunc.load(folder)
    write_record(folder / "calibration.json", {"base_sha256": model.sha256, "fitted_on": {}})
    model.save = lambda out: shutil.copytree(folder, out)  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"is of another model: calibration\.json differs"):
        card_of(model, tmp_path / "out", report=report)


def test_what_is_no_report_is_refused(predicted: Job, results: Path, tmp_path: Path) -> None:
    model = segunc.load(predicted.abnn)
    with pytest.raises(InputError, match="is not a report of segunc"):
        card_of(model, tmp_path / "out", report=results / CLEAN)
    with pytest.raises(InputError, match="cannot be read"):
        card_of(model, tmp_path / "out", report=tmp_path / "none")


def test_the_owners_words(predicted: Job, tmp_path: Path) -> None:
    words = {
        "model_description": "Made for *slow* roads.",
        "paper_url": "https://example.org/paper",
        "language": "en",
        "tags": ["roads"],
        "license_name": "roads-1",
        "license_link": "LICENSE",
        "model_name": "Roads",
    }
    header, body = card_of(
        segunc.load(predicted.base), tmp_path / "out", license="other", model_card_kwargs=words
    )
    assert header["language"] == "en"
    assert "roads" in header["tags"]
    assert header["license_link"] == "LICENSE"
    assert body.lstrip().startswith("# Roads\n")
    assert "Made for *slow* roads." in body
    assert "- paper: https://example.org/paper" in body
    assert "roads-1: LICENSE" in body
    with pytest.raises(InputError, match=r"unknown key 'licence' \(did you mean license\?\)"):
        card_of(segunc.load(predicted.base), tmp_path / "no", model_card_kwargs={"licence": "mit"})


def test_names_do_not_break_a_table(tmp_path: Path) -> None:
    from segunc.posteriors.model_card import _cell

    assert _cell("a|b\n<i>*c*</i> `d` [e](f)") == (r"a\|b &lt;i&gt;\*c\*&lt;/i&gt; \`d\` \[e\](f)")
    assert _cell("maps of /home/me/maps") == "maps of maps"


def test_a_pushed_card_is_the_one_of_the_report(
    predicted: Job, report: Path, tmp_path: Path
) -> None:
    """The client of the Hub reads its own header back."""
    out = tmp_path / "out"
    card_of(segunc.load(predicted.abnn), out, report=report)
    card = huggingface_hub.ModelCard.load(out / "README.md")
    results = {(r.dataset_config, r.metric_type): r.metric_value for r in card.data.eval_results}
    assert len(results) == 7
    assert card.data.model_name == "roads"


@pytest.mark.slow
def test_the_block_of_the_guide_runs(predicted: Job, report: Path, tmp_path: Path) -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "sharing.md"
    (block,) = re.findall(r"```python\n(.*?)```", guide.read_text("utf-8"), re.DOTALL)
    segunc.load(predicted.abnn).save(tmp_path / "runs/abnn")
    shutil.copytree(report, tmp_path / "report")
    with serve() as hub:
        done = subprocess.run(
            [sys.executable, "-c", f"{block}\nprint(model.bayesian)"],
            cwd=tmp_path,
            env=hub.environment(tmp_path / "cache"),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr
        assert "license: mit" in hub.repos["owner/roads"].files()["README.md"].decode()


def test_a_module_without_a_factory_is_to_be_handed_over(tmp_path: Path) -> None:
    from segunc.posteriors.model_card import CardOptions, make_card

    description = {"format": 2, "architecture": "", "encoder": "", "kind": "python"}
    content = {**description, "classes": ["road", "car"], "sha256": "abc"}
    (tmp_path / "network.json").write_text(json.dumps(content))
    values = make_card(tmp_path, "roads", CardOptions()).values
    assert values["needs_network"]
    assert "holds neither code nor weights of the network" in values["how_to_load"][0]
    (tmp_path / "network.safetensors").touch()
    values = make_card(tmp_path, "roads", CardOptions()).values
    assert "holds the weights and no code of the network" in values["how_to_load"][0]
