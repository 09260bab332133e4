"""The tool that takes the time of each step of the demo, on steps that only wait."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import segunc.toyroads
from segunc.options import DemoOptions
from segunc.verbs import demo as demo_module
from segunc.verbs.demo import Step
from tools import demo_steps


def waiting(seconds: float, failure: str = "") -> Callable[[Any], SimpleNamespace]:
    """Return the function of a verb that takes so long."""

    def verb(options: Any) -> SimpleNamespace:
        time.sleep(seconds)
        return SimpleNamespace(failure=failure)

    return verb


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Callable[[Any], SimpleNamespace]]]:
    """What the demo does after the scenes, which take .02 s: titles and verbs, to be filled."""
    made: list[tuple[str, Callable[[Any], SimpleNamespace]]] = []

    def demo(options: DemoOptions, step: Step, say: None, processes: int) -> SimpleNamespace:
        start = time.monotonic()
        time.sleep(0.02)
        for title, verb in made:
            step(title, verb, options)
        return SimpleNamespace(seconds=time.monotonic() - start, auroc={"entropy": 0.8})

    monkeypatch.setattr(demo_steps, "demo", demo)
    return made


def test_each_step_has_its_seconds(
    steps: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps += [("train", waiting(0.3)), ("predict", waiting(0.1))]
    assert demo_steps.main(["--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    content = json.loads(printed.out)
    rows = {row["title"]: row["seconds"] for row in content["steps"]}
    assert list(rows) == ["scenes and video are drawn", "train", "predict"]
    assert rows["scenes and video are drawn"] >= 0.02
    assert rows["train"] >= 0.3
    assert 0.1 <= rows["predict"] < rows["train"]
    assert sum(rows.values()) == pytest.approx(content["seconds"], abs=0.05)
    assert content["auroc"] == {"entropy": 0.8}
    assert content["commit"]
    assert len(printed.err.splitlines()) == 3


def test_a_step_that_fails_has_no_seconds(
    steps: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps += [("train", waiting(0.0, "no frames")), ("predict", waiting(0.0))]
    assert demo_steps.main(["--out", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.splitlines()[-1] == "train: no frames"


def test_the_steps_are_those_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[int] = []

    def generate_toy(*place_and_scenes: Any, progress: Any, processes: int) -> None:
        drawn.append(processes)

    monkeypatch.setattr(segunc.toyroads, "generate_toy", generate_toy)
    monkeypatch.setattr(demo_module, "train", waiting(0.0))
    monkeypatch.setattr(demo_module, "finetune", waiting(0.0, "no features"))
    assert demo_steps.main(["--out", str(tmp_path), "--processes", "2"]) == 1
    assert drawn == [2]
    printed = capsys.readouterr().err.splitlines()
    assert [line.partition(" s  ")[2] for line in printed[:2]] == [
        "scenes and video are drawn",
        "train a base network",
    ]
    assert printed[2] == "convert and fine-tune it (ABNN): no features"
