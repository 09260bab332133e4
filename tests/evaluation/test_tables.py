"""The tables of a result: sections that another package adds are printed like ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from segunc.cli.main import main
from segunc.evaluation.evaluator import Evaluator, Measures, Result
from segunc.evaluation.parts import (
    PARTS,
    Array,
    ArrayPart,
    Counts,
    Forms,
    LabelledFrame,
    Metric,
    Numbers,
    PartBuilder,
)
from segunc.evaluation.resampling import Resampling
from segunc.evaluation.tables import exceeded, format_metrics
from tests.evaluation.runs import CLASSES, make_run
from tests.maps.foreign import write_map
from tests.outside import metric_part


class Sharpness(ArrayPart):
    """The mean of each score, a section of a part for each score."""

    metrics = (Metric("mean", "mean score"), Metric("frames", "frames", higher_is_better=True))
    needs = "anomaly"
    lacks = "no frame has anomaly labels"

    def __init__(self, score: str) -> None:
        self.score = score
        self.section = ("sharpness", score)

    def count(self, frame: LabelledFrame) -> Counts | None:
        values: Array = frame.values(self.score)
        return np.array([round(float(values.mean()) * 1000), 1])

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        thousandths, frames = counts.tolist()
        return {("mean",): thousandths / 1000 / frames, ("frames",): frames}


def sharpness_parts(
    scores: Sequence[str], classes: Sequence[str], protocols: Sequence[str]
) -> list[Sharpness]:
    return [Sharpness(score) for score in scores]


@pytest.fixture
def register() -> Iterator[Callable[[str, PartBuilder], PartBuilder]]:
    """Adds a section to the table of parts until the test ends."""
    before = dict(PARTS._entries)
    yield PARTS.register
    PARTS._entries = before


def measure(classes: Sequence[str] | None = CLASSES, replicates: int = 0) -> Result:
    measures = Measures(resampling=Resampling(replicates))
    evaluator = Evaluator(("entropy",), classes, measures=measures)
    for name, frame in make_run().items():
        evaluator.update(
            name, frame.stored, frame.prediction, labels=frame.labels, anomaly=frame.anomaly
        )
    return evaluator.numbers()


def table_of(text: str, section: str) -> list[list[str]]:
    """The cells of the table of a section of another package, without its header."""
    title = f"{section}, a section that another package adds\n\n"
    assert text.count(title) == 1
    lines = text.split(title)[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_a_section_of_another_package_is_a_table_with_its_name(register):
    register("labels", metric_part.parts)
    result = measure()
    pixels = result["labels"]["pixels"]
    assert pixels == sum((frame.labels != 255).sum() for frame in make_run().values())
    assert table_of(format_metrics(result), "labels") == [["labelled pixels", f"{pixels:.3f}"]]


def test_a_section_of_several_parts_has_a_row_for_each_number(register):
    register("sharpness", sharpness_parts)
    result = measure()
    (mean, frames) = table_of(format_metrics(result), "sharpness")
    assert mean[0] == "entropy, mean score"
    assert float(mean[1]) == pytest.approx(result["sharpness"]["entropy"]["mean"], abs=5e-4)
    assert frames == ["entropy, frames", "4"]


@pytest.mark.usefixtures("few_units")
def test_a_number_of_another_package_stands_with_its_interval(register):
    register("sharpness", sharpness_parts)
    result = measure(replicates=60)
    assert "sharpness.entropy.mean" in result["intervals"]
    mean, _ = table_of(format_metrics(result), "sharpness")
    assert mean[1].endswith("]")


def test_a_section_without_a_number_is_not_a_table_but_a_reason(register):
    register("labels", metric_part.parts)
    text = format_metrics(measure(classes=None))
    assert "a section that another package adds" not in text
    assert "labels.pixels: no class labels were given" in text


def test_sections_of_this_package_are_not_printed_twice():
    assert "a section that another package adds" not in format_metrics(measure())


def test_the_verb_prints_a_section_of_another_package(register, tmp_path: Path, capsys):
    register("sharpness", sharpness_parts)
    for name, frame in make_run().items():
        write_map(tmp_path / "maps" / "entropy" / f"{name}.png", frame.stored["entropy"])
        write_map(tmp_path / "labels" / f"{name}.png", frame.anomaly)
    words = ["evaluate", "--maps", str(tmp_path / "maps"), "--replicates", "0"]
    code = main([*words, "--anomaly-labels", str(tmp_path / "labels")])
    assert not code
    rows = table_of(capsys.readouterr().out, "sharpness")
    assert [row[0] for row in rows] == ["entropy, mean score", "entropy, frames"]


@pytest.mark.parametrize(("risk", "is_exceeded"), [(sum([0.1] * 3) / 3, False), (0.1001, True)])
def test_a_risk_that_rounding_lifts_above_its_level_keeps_the_promise(
    risk: float, is_exceeded: bool
) -> None:
    assert risk > 0.1
    assert exceeded({"risk": risk, "level": 0.1}) == is_exceeded
