"""Lines between affine parameters: their points, their barrier, and their ends against the members themselves."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from segunc.affine.draws import AffineLayout
from segunc.core.errors import InputError
from segunc.data.module import SegmentationDataModule
from segunc.posteriors.abnn import ABNN
from segunc.posteriors.files import load_model
from segunc.sampling.sampler import Sampler
from segunc.training.selection import validation_nll
from tests.conftest import Job
from tools import study_connectivity
from tools.study_connectivity import barrier, places_on_line, segments


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["study_connectivity.py", *map(str, words)])
    return study_connectivity.main()


def test_the_barrier_of_known_curves() -> None:
    t = places_on_line(13)
    assert float(t[0]) == -0.25
    assert float(t[-1]) == 1.25
    assert barrier(3 * t + 1, t) == pytest.approx(0, abs=1e-12)
    assert barrier(t**2, t) == pytest.approx(0.125**2 - 0.125)  # below its chord: least so beside the ends
    assert barrier(t * (1 - t) + 5 * t, t) == pytest.approx(0.25)
    assert barrier(torch.where(t >= 1.1, 100.0, 0.0), t) == pytest.approx(0)  # beyond the ends
    with pytest.raises(InputError, match="without the ends"):
        barrier(places_on_line(10), places_on_line(10))


def test_lines_pass_through_members_and_draws(overconfident: Job) -> None:
    model = load_model(overconfident.abnn)
    layout, posterior = AffineLayout(model.network), model.posterior
    assert isinstance(posterior, ABNN)
    assert posterior.members == 2
    t = places_on_line(7)
    lines = {line.name: line for line in segments(posterior, layout, 3, 5, t)}
    assert list(lines) == ["members 0 to 1", "draws 0 to 1", "draws 1 to 2", "draws 0 to 2"]  # the last of one member
    drawn = posterior.affine(layout, range(3), 5)
    for a, b in ((0, 1), (1, 2), (0, 2)):
        name = f"draws {a} to {b}"
        torch.testing.assert_close(lines[name].weight[1], drawn.weight[a])
        torch.testing.assert_close(lines[name].weight[5], drawn.weight[b])
        torch.testing.assert_close(lines[name].bias[3], (drawn.bias[a] + drawn.bias[b]) / 2)
        beyond = drawn.weight[b] + 0.25 * (drawn.weight[b] - drawn.weight[a])
        torch.testing.assert_close(lines[name].weight[6], beyond, rtol=1e-5, atol=1e-6)


def test_the_ends_have_the_loss_of_the_members(
    finetuned: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", finetuned.abnn, "--dataset", "toy", "--data", finetuned.data, "--split", "test", "--every", 1)
    out = tmp_path / "lines.json"
    more = ("--draws", 2, "--points", 7, "--device", "cpu", "--json", out, "--plot", tmp_path / "lines")
    assert run(monkeypatch, *words, *more) == 0
    result = json.loads(out.read_text())
    assert [line["name"] for line in result["lines"]] == ["members 0 to 1", "draws 0 to 1"]
    assert "| members 0 to 1" in capsys.readouterr().out
    model = load_model(finetuned.abnn)
    posterior = model.posterior
    assert isinstance(posterior, ABNN)
    data = SegmentationDataModule("toy", str(finetuned.data)).dataset("test")
    for member, place in ((0, 1), (1, 5)):
        one = ABNN(posterior.gamma[[member]], posterior.beta[[member]], 0.0)
        nll = validation_nll(Sampler(model.network, one, draws=1), data, range(len(data)))
        assert result["lines"][0]["nll"][place] == pytest.approx(nll, rel=1e-4)
        assert result["lines"][0]["nll_ends"][member] == result["lines"][0]["nll"][place]
    for line in result["lines"]:
        assert 0 < line["accuracy"][1] <= 1
        assert line["highest_nll"] >= max(line["nll_ends"])
        between = [nll - ends for nll, ends in zip(line["nll"][2:5], chord(line["nll_ends"]), strict=True)]
        assert line["barrier"] == pytest.approx(max(between))
    assert (tmp_path / "lines.svg").read_text().count("members 0 to 1") == 1


def chord(ends: list[float]) -> list[float]:
    """A quarter, a half and three quarters of the way."""
    return [ends[0] + share * (ends[1] - ends[0]) for share in (0.25, 0.5, 0.75)]


def test_what_has_no_lines_is_refused(
    trained: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--dataset", "toy", "--data", trained.data, "--json", tmp_path / "lines.json", "--device", "cpu")
    assert run(monkeypatch, "--model", trained.base, *words) == 2
    assert "a posterior over affine parameters" in capsys.readouterr().err
