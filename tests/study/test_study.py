"""A small study on toy scenes, made twice; its tables hold the numbers of the results; plans that
cannot be are refused.
"""

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from segunc.core.errors import InputError
from segunc.evaluation.resampling import load_results
from segunc.networks.model_folder import WEIGHTS
from segunc.training.config import HISTORY
from tests.conftest import Job
from tests.study.conftest import Run
from tools import study_methods
from tools.study.cells import Study
from tools.study.plan import read_plan
from tools.study.report import axis_label, axis_values, named_as_drawn, report, selection_report
from tools.study.words import fingerprint

pytestmark = pytest.mark.usefixtures("few_units")
REPOSITORY = Path(__file__).resolve().parents[2]
LINES = [
    "base: entropy",
    "base: msp",
    "ABNN: epistemic",
    "energy: deterministic-energy",
    "nowhere: msp",
]
ENDPOINTS = [
    {
        "evaluation": "toy/test",
        "number": "segmentation.miou",
        "line": "ABNN",
        "margin": 0.5,
    },
    {
        "evaluation": "toy/anomaly",
        "number": "pooled.aupr",
        "line": "ABNN: epistemic",
        "baseline": "base: entropy",
    },
]
STEP = {"epochs": 1, "max_steps": 1}
FLOAT32 = {"precision": "32-true"}


def plan_content(job: Job, **changed: Any) -> dict[str, Any]:
    """Toy scenes, one base for all seeds, and a row of every kind."""
    data = {
        "dataset": "toy",
        "root": str(job.data),
        "crop": [64, 64],
        "batch_size": 4,
    }
    toy = {"root": str(job.data), "size": "64x128"}
    anomalies = {"evaluation": "toy/anomaly", "numbers": ["pooled.auroc", "pooled.aupr"]}
    return {
        "seeds": [0, 1],
        "baseline": "base",
        "evaluate": {
            "draws": 2,
            "replicates": 60,
            "precision": "float32",
            "scores": ["msp", "entropy", "epistemic"],
        },
        "protocols": {
            "toy": {
                "base": str(job.base),
                "data": data,
                "selection": {"dataset": "toy", "split": "val", **toy},
                "evaluations": {
                    "test": {"dataset": "toy", "split": "anomaly", **toy},
                    "anomaly": {
                        "dataset": "toy-anomaly",
                        "split": "anomaly",
                        "protocols": "pooled",
                        **toy,
                    },
                    "alarms": {
                        "dataset": "toy",
                        "split": "val",
                        "flag": ["{cell}/anomaly.json:0.8"],
                        **toy,
                    },
                },
            }
        },
        "rows": [
            {"label": "base"},
            {
                "label": "control",
                "method": "abnn",
                "settings": {**STEP, "members": 1, "alpha": 0.0},
                "trainer": FLOAT32,
                "scores": ["deterministic-msp", "entropy", "epistemic"],
            },
            {
                "label": "ABNN",
                "method": "abnn",
                "settings": {**STEP, "members": 2, "alpha": 0.2},
                "trainer": FLOAT32,
            },
            {
                "label": "ABNN, flipped",
                "method": "tta",
                "of": "ABNN",
                "settings": {"scales": [1.0]},
                "seeds": [1],
            },
            {
                "label": "ensemble",
                "method": "ensemble",
                "of": "control",
                "members": [0, 1],
                "seeds": [0],
            },
            {
                "label": "energy",
                "scores": ["deterministic-energy"],
                "evaluations": ["anomaly", "alarms"],
            },
            {
                "label": "nowhere",
                "base": str(job.base.parent / "missing-{seed}"),
                "seeds": [0],
            },
        ],
        "candidates": [
            {
                "label": f"alpha {alpha}",
                "method": "abnn",
                "settings": {"epochs": 0, "alpha": alpha, "members": 1},
            }
            for alpha in (0.8, 0.0)
        ],
        "tables": [
            {
                "title": "Scenes",
                "evaluation": "toy/test",
                "numbers": ["segmentation.miou", "calibration.nll", "selective.msp.aurc"],
            },
            {
                **anomalies,
                "title": "Anomalies",
                "score": "epistemic",
                "baseline_score": "entropy",
            },
            {
                **anomalies,
                "title": "Scores",
                "scores": ["entropy", "epistemic"],
                "numbers": ["pooled.aupr"],
            },
        ],
        "figures": [
            {
                "name": "figure",
                "x": "toy/test/calibration.ece",
                "y": ["toy/anomaly/scores.entropy.pooled.aupr"],
            },
            {
                "name": "times",
                "x": "toy/training_seconds",
                "y": ["toy/test/calibration.nll"],
            },
        ],
        **changed,
    }


def study_of(content: dict[str, Any], folder: Path, *, candidates: bool = False) -> Study:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump({"study": content}, sort_keys=False), encoding="utf-8")
    plan = read_plan(path)
    return Study(plan, plan.candidates if candidates else plan.rows, folder / "out", "cpu")


def run_all(study: Study) -> dict[tuple[str, int], str]:
    plan = study.plan
    return {
        (cell.row.label, cell.seed): study.run(cell, plan.evaluations_of(cell.row, "toy"))
        for cell in study.cells()
    }


@pytest.fixture(scope="module")
def made(
    trained: Job, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Study, dict[tuple[str, int], str], str]]:
    """The study, what became of its cells, and its report; its plan names the data by a variable of
    the environment.
    """
    content = json.loads(
        json.dumps(plan_content(trained, endpoints=ENDPOINTS)).replace(str(trained.data), "$SCENES")
    )
    lines = {
        "lines": LINES,
        "baseline_score": "entropy",
        "numbers": ["pooled.aupr"],
    }
    content["tables"].append(
        {
            "title": "Lines",
            "evaluation": "toy/anomaly",
            **lines,
        }
    )
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SCENES", str(trained.data))
        study = study_of(content, tmp_path_factory.mktemp("study"))
        outcomes = run_all(study)
        yield study, outcomes, report(study)


def test_every_cell_is_made_once_and_a_missing_base_is_waited_for(made: Any) -> None:
    study, outcomes, text = made
    assert re.fullmatch(r"waits for .*missing-0", outcomes.pop(("nowhere", 0)))
    assert list(outcomes.values()) == ["made"] * 10
    times = {
        path: path.stat().st_mtime_ns
        for path in study.out.rglob("*")
        if path.suffix in (".safetensors", ".json")
    }
    again = run_all(study)
    del again[("nowhere", 0)]
    assert again == dict.fromkeys(again, "kept")
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert "* toy, nowhere, seed 0: not begun" in text
    assert not list(study.out.rglob("checkpoints"))
    for label in ("ABNN", "control"):  # seeds make different models
        first, second = (
            json.loads(cell.result("test").read_text()) for cell in study.cells([label])
        )
        assert first["calibration"] != second["calibration"]


def test_the_tool_works_on_chosen_cells_and_writes_the_report(
    made: Any, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    study, _, text = made
    words = ("--plan", study.out.parent / "plan.yaml", "--out", study.out, "--device", "cpu")
    assert run(study_methods, *words, "--rows", "base,control", "--seeds", "1") == 0
    kept = [line for line in capsys.readouterr().out.splitlines() if ": kept" in line]
    assert kept == ["== toy, base, seed 1: kept", "== toy, control, seed 1: kept"]
    assert (study.out / "study.md").read_text().split("Written")[0] == text.split("Written")[0]


def test_what_is_kept_gives_the_same_tables(
    made: Any, trained: Job, run: Run, tmp_path: Path
) -> None:
    study, _, text = made
    kept = tmp_path / "kept"
    words = ("--plan", study.out.parent / "plan.yaml", "--device", "cpu", "--stage", "report")
    assert run(study_methods, *words, "--out", study.out, "--keep", kept) == 0
    assert not list(kept.rglob("*.safetensors"))
    # Of the folders of this machine nothing, where the plan has a name for them.
    assert str(trained.data) in (study.out / "toy" / "abnn" / "seed-0" / "cell.json").read_text()
    assert not any(str(trained.data) in path.read_text() for path in kept.rglob("*.json"))
    assert run(study_methods, *words, "--out", kept) == 0
    assert (kept / "study.md").read_text().split("Written")[0] == text.split("Written")[0]
    sizes = [
        sum(path.stat().st_size for path in folder.rglob("*.npz")) for folder in (study.out, kept)
    ]
    assert 0 < sizes[1] < 0.5 * sizes[0]


def kept_study(study: Study, run: Run, folder: Path) -> Study:
    """Return the same study over what ``--keep`` copies: records and results without models."""
    words = ("--plan", study.out.parent / "plan.yaml", "--device", "cpu", "--stage", "report")
    assert run(study_methods, *words, "--out", study.out, "--keep", folder) == 0
    return Study(study.plan, study.plan.rows, folder, "cpu")


def test_a_kept_study_is_finished(made: Any, run: Run, tmp_path: Path) -> None:
    study, _, _ = made
    kept = kept_study(study, run, tmp_path / "kept")
    for label in ("control", "ABNN"):
        cell = next(kept.cells([label], [0]))
        assert kept.run(cell, study.plan.protocols["toy"].evaluations) == "kept"
        assert not cell.model.exists()


def test_a_kept_study_makes_a_result_that_lacks(made: Any, run: Run, tmp_path: Path) -> None:
    study, _, _ = made
    kept = kept_study(study, run, tmp_path / "kept")
    cell = next(kept.cells(["ABNN"], [0]))
    cell.result("test").unlink()
    assert kept.run(cell, study.plan.protocols["toy"].evaluations) == "made"
    before = json.loads(next(study.cells(["ABNN"], [0])).result("test").read_text())
    after = json.loads(cell.result("test").read_text())
    assert after["calibration"] == before["calibration"]


def test_a_kept_study_makes_a_row_that_is_built_on_a_kept_row(
    made: Any, run: Run, tmp_path: Path
) -> None:
    study, _, _ = made
    kept = kept_study(study, run, tmp_path / "kept")
    cell = next(kept.cells(["ABNN, flipped"], [1]))
    shutil.rmtree(cell.folder)
    assert kept.run(cell, {}) == "made"


def test_the_fingerprint_of_a_base_leaves_its_history_out(trained: Job, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(trained.base, base)
    before = fingerprint(base)
    (base / HISTORY).write_text("another date", encoding="utf-8")
    assert fingerprint(base) == before
    with (base / WEIGHTS).open("ab") as file:
        file.write(b"0")
    assert fingerprint(base) != before


def test_an_evaluation_that_was_lost_or_changed_is_made_again(made: Any) -> None:
    study, _, _ = made
    cell = next(study.cells(["base"], [0]))
    evaluations = study.plan.protocols["toy"].evaluations
    lost = cell.result("test").read_bytes()
    cell.result("test").unlink()
    assert study.run(cell, evaluations) == "made"
    assert (
        json.loads(cell.result("test").read_bytes())["calibration"]
        == json.loads(lost)["calibration"]
    )
    other = {**evaluations, "test": {**evaluations["test"], "replicates": 0}}
    assert study.run(cell, other) == "made"
    assert json.loads(cell.result("test").read_text())["intervals"] == {}
    assert study.run(cell, evaluations) == "made"


def shown(text: str) -> float:
    return float(text.split()[0].strip("*").replace("−", "-"))


def row_of(text: str, start: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {start}"))
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def pooled(study: Study, label: str, score: str, number: str) -> float:
    """Return the mean over seeds of a number of a row's anomaly results."""
    numbers = []
    for cell in study.cells([label]):
        result = json.loads(cell.result("anomaly").read_text())
        numbers.append(result["scores"][score]["pooled"][number])
    return float(np.mean(numbers))


def nll(study: Study, row: int, seed: int) -> float:
    """Return the NLL of a row of the plan on the test split."""
    cell = study.cell("toy", study.plan.rows[row], seed)
    result = json.loads(cell.result("test").read_text())
    return float(result["calibration"]["nll"])


def less_than_base(study: Study) -> float:
    """Return the mean NLL of the two seeds of ABNN less that of the base."""
    return (nll(study, 2, 0) + nll(study, 2, 1)) / 2 - nll(study, 0, 0)


def test_a_table_holds_the_mean_over_seeds(made: Any) -> None:
    study, _, text = made
    mean = (nll(study, 2, 0) + nll(study, 2, 1)) / 2
    assert shown(row_of(text, "ABNN (2)")[1]) == pytest.approx(mean, abs=6e-4)


def test_a_table_holds_the_difference_to_the_baseline(made: Any) -> None:
    study, _, text = made
    row = row_of(text.split("less base")[1], "ABNN (2)")
    assert shown(row[1]) == pytest.approx(less_than_base(study), abs=6e-4)


def test_an_axis_shows_the_difference_to_the_baseline_with_its_interval(made: Any) -> None:
    study, _, _ = made
    axis = "toy/test/calibration.nll"
    title = study.plan.tables[0].title
    assert axis_label(study, axis) == f"NLL (nats) ↓\n{title}\ndifference to base"
    drawn = axis_values(study, axis)
    assert drawn["base"] == (0.0, None)
    value, interval = drawn["ABNN"]
    assert value == pytest.approx(less_than_base(study))
    assert interval[0] < interval[1]


def test_differences_of_epistemic_refer_to_the_entropy_of_the_baseline(made: Any) -> None:
    """Epistemic of the base is 0 by construction."""
    study, _, text = made
    auroc = pooled(study, "ABNN", "epistemic", "auroc") - pooled(study, "base", "entropy", "auroc")
    row = row_of(text.split("less base")[2], "ABNN (2)")
    assert shown(row[0]) == pytest.approx(auroc, abs=6e-4)
    assert "differences to entropy of the baseline" in text


def test_endpoints_stand_in_a_table_of_their_own(made: Any) -> None:
    study, _, text = made
    endpoints = text.split("## Endpoints")[1].split("## ")[0]
    assert row_of(endpoints, "toy/test, segmentation.miou: ABNN not lower by 0.5 than base ")
    claim = "toy/anomaly, pooled.aupr: ABNN: epistemic higher than base: entropy "
    aupr = pooled(study, "ABNN", "epistemic", "aupr") - pooled(study, "base", "entropy", "aupr")
    assert shown(row_of(endpoints, claim)[0]) == pytest.approx(aupr, abs=6e-4)


def test_lines_are_scores_of_rows_beside_one_of_the_baseline(made: Any) -> None:
    study, _, text = made
    lines = text.split("## Lines\n")[1].split("##")[0]
    entropy = pooled(study, "base", "entropy", "aupr")
    for line in LINES[:-1]:
        label, score = line.split(": ")
        value, difference = row_of(lines, f"{label} (2): {score}")
        aupr = pooled(study, label, score, "aupr")
        assert shown(value) == pytest.approx(aupr, abs=6e-4)
        assert shown(difference) == pytest.approx(aupr - entropy, abs=6e-4)
    assert "nowhere" not in lines


def test_the_record_holds_every_cell(made: Any) -> None:
    study, _, _ = made
    content = json.loads((study.out / "study.json").read_text())
    assert [cell["label"] for cell in content["cells"]].count("ABNN") == 2


@pytest.mark.parametrize("name", ["figure", "times"])
def test_a_figure_names_its_rows_in_the_legend(made: Any, name: str) -> None:
    study, _, _ = made
    assert (study.out / f"{name}.svg").read_text().count("ABNN") >= 2


def test_other_settings_are_refused_and_unfinished_ones_made_anew(
    made: Any, trained: Job, tmp_path: Path
) -> None:
    study, _, _ = made
    content = plan_content(trained)
    content["rows"][2]["settings"]["alpha"] = 0.3
    fresh = study_of(content, tmp_path)
    other = Study(fresh.plan, fresh.plan.rows, study.out, "cpu")
    cell = next(other.cells(["ABNN"], [0]))
    with pytest.raises(InputError, match="other settings or bases"):
        other.run(cell, {})
    cell = next(fresh.cells(["ABNN"], [0]))
    cell.folder.mkdir(parents=True)
    (cell.folder / "cell.json").write_text(
        json.dumps(
            {
                "asked": {},
                "failure": "not finished",
                "evaluations": {},
            }
        )
    )
    assert fresh.run(cell, {}) == "made"
    assert json.loads((cell.model / "posterior.json").read_text())["alpha"] == 0.3


def copied(study: Study, content: dict[str, Any], folder: Path) -> Study:
    shutil.copytree(study.out, folder / "out", ignore=shutil.ignore_patterns("*.safetensors"))
    return study_of(content, folder)


def test_no_table_mixes_what_another_plan_asked_for(
    made: Any, trained: Job, tmp_path: Path
) -> None:
    content = plan_content(trained)
    content["rows"][2]["settings"]["alpha"] = 0.3
    content["protocols"]["toy"]["evaluations"]["anomaly"]["draws"] = 3
    text = report(copied(made[0], content, tmp_path))
    assert re.search(
        r"\* toy, ABNN, seed 0: made from other settings than the plan's; remove .*abnn/seed-0",
        text,
    )
    assert "* toy, base, seed 0: evaluated on anomaly with other options than the plan's" in text
    scenes = text.split("## Scenes")[1].split("## ")[0]
    assert "| base (2)" in scenes
    assert "ABNN (2)" not in scenes
    assert "## Anomalies" not in text  # nothing was evaluated as it is asked for
    assert "Mixed" not in text


def test_a_table_names_the_commits_and_the_data_that_it_mixes(
    made: Any, trained: Job, tmp_path: Path
) -> None:
    study = copied(made[0], plan_content(trained), tmp_path)
    cell = next(study.cells(["base"], [1]))
    record = cell.record()
    record["evaluations"]["test"]["commit"] = "0" * 40
    (cell.folder / "cell.json").write_text(json.dumps(record))
    ensemble = next(study.cells(["ensemble"], [0])).result("test")
    result = json.loads(ensemble.read_text())
    del result["record_sha256"]
    result["counts"]["labelled_pixels"] += 1
    ensemble.write_text(json.dumps(result))
    scenes, rest = report(study).split("## Scenes")[1].split("## ", 1)
    assert re.search(r"Mixed: evaluated at 2 commits: .*; 0{40} \(base 1\)\.", scenes)
    assert "Mixed: not comparable: base and ensemble differ in labelled_pixels" in scenes
    assert "Mixed" not in rest


def test_candidates_are_ranked_by_the_nll_of_the_selection_frames(
    trained: Job, tmp_path: Path
) -> None:
    study = study_of(
        plan_content(trained, seeds=[0]) | {"rows": [{"label": "base"}]}, tmp_path, candidates=True
    )
    nll = {}
    for cell in study.cells():
        assert study.run(cell, {"selection": study.plan.protocols["toy"].selection}) == "made"
        nll[cell.row.label] = json.loads(cell.result("selection").read_text())["calibration"]["nll"]
    text = selection_report(study)
    assert sorted(nll, key=lambda label: text.index(f"| {label}")) == sorted(
        nll, key=lambda label: nll[label]
    )
    assert nll["alpha 0.8"] != nll["alpha 0.0"]


GONE = {
    # 5e37d6d is the last commit that runs it.
    "method: alphas": "'ABNN by job' has the method alphas",
    # 47d9b646.
    "method: decoder-ensemble": "'decoder ensemble of 4' has the method decoder-ensemble",
    "scores: [knn, mahalanobis": (  # 8da6a7f
        r"unknown key 'scores'|no score 'mahalanobis'|unknown key 'select'"
    ),
    "anomalies: cut-paste": "unknown key 'select'",  # 96fbbaf
}
"""What plans that are kept as they were registered ask for, and why they no longer run."""


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "configs" / "study").glob("*.yaml")), ids=lambda path: path.name
)
def test_the_documented_plans_are_valid(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for folder in ("SEGUNC_DATA", "BOARDS", "NETWORKS", "BANKS"):
        monkeypatch.setenv(folder, str(tmp_path))
    monkeypatch.setenv("WITNESS", str(tmp_path / "witness.safetensors"))
    said = next((said for words, said in GONE.items() if words in path.read_text()), None)
    with pytest.raises(InputError, match=said) if said else contextlib.nullcontext():
        plan = read_plan(path)
        assert list(Study(plan, plan.rows, tmp_path).cells())
        list(Study(plan, plan.candidates, tmp_path).cells())


REFUSED = {
    "baseline: abnn": "baseline 'abnn' is no row",
    "rows: [{label: base}, {label: Base}]": "folder name 'base'",
    "rows: [{label: base}, {label: x, method: bagging}]": "method bagging",
    "rows: [{label: base}, {label: x, method: tta, of: y}]": "no earlier row: base",
    "rows: [{label: base}, {label: x, method: tta, of: base, seeds: [7]}]": "of seed 7",
    "{rows: [{label: late, method: laplace, settings: {images: -1}}], baseline: late}": (
        "toy, late, seed 0"
    ),
    "rows: [{label: base, colour: red}]": "colour",
    "endpoints: [{evaluation: toy/test, number: calibration.nll, line: x}]": "names the row of 'x'",
    "endpoints: [{evaluation: toy/test, number: calibration.x, line: ABNN}]": "has no direction",
    'tables: [{title: t, evaluation: toy/test, numbers: [], lines: ["ABNN: msp"]}]': (
        "lines of table 't' need a baseline_score"
    ),
    "figures: [{name: f, x: toy/training_seconds, y: [toy/x/calibration.nll]}]": "'toy/x'",
    "means: {both: [base, x]}": "mean 'both' names the row 'x'",
    "means: {base: [base, ABNN]}": "mean 'base' has the label of a row",
    "means: {both: [ABNN]}": "mean 'both' is of fewer than two rows",
}


@pytest.mark.parametrize(("change", "message"), REFUSED.items())
def test_plans_that_do_not_fit_together_are_refused(
    trained: Job, tmp_path: Path, change: str, message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        study_of(plan_content(trained, **yaml.safe_load(change)), tmp_path)
    assert not (tmp_path / "out").exists()


def test_one_pass_and_draws_are_compared_under_the_same_names(made: Any) -> None:
    study, _, _ = made
    result = load_results([next(study.cells(["ABNN"], [0])).result("test")], ["0"])[0]
    assert named_as_drawn(result).numbers == result.numbers
    passes = tuple(path.replace(".msp.", ".deterministic-msp.") for path in result.replicates.paths)
    intervals = {
        w.replace(".msp.", ".deterministic-msp."): value
        for w, value in result.content["intervals"].items()
    }
    one_pass = replace(
        result,
        numbers={
            tuple(p.replace("msp", "deterministic-msp") for p in path): v
            for path, v in result.numbers.items()
        },
        content={**result.content, "intervals": intervals},
        replicates=replace(result.replicates, paths=passes),
    )
    named, path = named_as_drawn(one_pass), ("selective", "msp", "aurc")
    assert one_pass.numbers.get(path) is None
    assert named.cell(path) == result.cell(path)
    assert named.cell(path).interval is not None
    assert named.replicates.paths == result.replicates.paths
