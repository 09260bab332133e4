"""Lines between affine parameters: their points, their barrier, and their ends against the members themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.core.errors import InputError
from segunc.data.module import SegmentationDataModule
from segunc.networks.files import load_network, save_network
from segunc.posteriors.abnn import ABNNPosterior
from segunc.posteriors.files import load_model
from segunc.sampling.sampler import Sampler
from segunc.training.selection import validation_nll
from tests.conftest import Job
from tests.study.conftest import Run
from tools import study_connectivity
from tools.study_connectivity import barrier, networks_line, places_on_line, segments


def test_the_barrier_of_known_curves() -> None:
    t = places_on_line(13)
    assert t[[0, -1]].tolist() == [-0.25, 1.25]
    assert barrier(3 * t + 1, t) == pytest.approx(0, abs=1e-12)
    assert barrier(t**2, t) == pytest.approx(0.125**2 - 0.125)  # below its chord: least so beside the ends
    assert barrier(t * (1 - t) + 5 * t, t) == pytest.approx(0.25)
    assert barrier(torch.where(t >= 1.1, 100.0, 0.0), t) == pytest.approx(0)  # beyond the ends
    with pytest.raises(InputError, match="without the ends"):
        barrier(places_on_line(10), places_on_line(10))


def test_lines_pass_through_members_and_draws(overconfident: Job) -> None:
    model = load_model(overconfident.abnn)
    layout, posterior = AffineLayout(model.network), model.posterior
    t = places_on_line(7)
    lines = {line.name: line for line in segments(posterior, layout, 3, 5, t)}
    of_members = ["base to member 0", "base to member 1", "members 0 to 1"]
    assert list(lines) == [*of_members, "draws 0 to 1", "draws 1 to 2", "draws 0 to 2"]  # the last of one member
    torch.testing.assert_close(lines["base to member 1"].weight[1], layout.weight)
    torch.testing.assert_close(lines["base to member 1"].bias[5], posterior.beta[1])
    drawn = posterior.affine(layout, range(3), 5)
    for a, b in ((0, 1), (1, 2), (0, 2)):
        name = f"draws {a} to {b}"
        torch.testing.assert_close(lines[name].weight[1], drawn.weight[a])
        torch.testing.assert_close(lines[name].weight[5], drawn.weight[b])
        torch.testing.assert_close(lines[name].bias[3], (drawn.bias[a] + drawn.bias[b]) / 2)
        beyond = drawn.weight[b] + 0.25 * (drawn.weight[b] - drawn.weight[a])
        torch.testing.assert_close(lines[name].weight[6], beyond, rtol=1e-5, atol=1e-6)


def test_the_ends_have_the_loss_of_the_members(
    finetuned: Job, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--model", finetuned.abnn, "--dataset", "toy", "--data", finetuned.data, "--split", "test", "--every", 1)
    out = tmp_path / "lines.json"
    more = ("--draws", 2, "--points", 7, "--device", "cpu", "--json", out, "--plot", tmp_path / "lines")
    assert run(study_connectivity, *words, *more) == 0
    result = json.loads(out.read_text())
    names = ["base to member 0", "base to member 1", "members 0 to 1", "draws 0 to 1"]
    assert [line["name"] for line in result["lines"]] == names
    between = result["lines"][2]
    assert "| members 0 to 1" in capsys.readouterr().out
    model = load_model(finetuned.abnn)
    posterior = model.posterior
    data = SegmentationDataModule("toy", str(finetuned.data)).dataset("test")
    for member, place in ((0, 1), (1, 5)):
        one = ABNNPosterior(posterior.gamma[[member]], posterior.beta[[member]], 0.0)
        nll = validation_nll(Sampler(model.network, one, draws=1), data, range(len(data)))
        assert between["nll"][place] == pytest.approx(nll, rel=1e-4)
        assert between["nll_ends"][member] == between["nll"][place]
    for line in result["lines"]:
        assert 0 < line["accuracy"][1] <= 1
        assert line["highest_nll"] >= max(line["nll_ends"])
        start, end = line["nll_ends"]
        chord = [start + share * (end - start) for share in (0.25, 0.5, 0.75)]
        assert line["barrier"] == pytest.approx(max(np.subtract(line["nll"][2:5], chord)))
    assert (tmp_path / "lines.svg").read_text().count("members 0 to 1") == 1


def test_what_has_no_lines_is_refused(
    trained: Job, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--dataset", "toy", "--data", trained.data, "--json", tmp_path / "lines.json", "--device", "cpu")
    assert run(study_connectivity, "--model", trained.base, *words) == 2
    assert "a posterior over affine parameters" in capsys.readouterr().err


def test_a_line_between_two_networks_and_statistics_of_every_point(
    finetuned: Job, tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other network is the base with its last layer turned: in the middle both cancel, and no logit is left."""
    other = load_network(finetuned.base)
    with torch.no_grad():
        for value in other.body.segmentation_head[0].parameters():
            value.neg_()
    save_network(other, tmp_path / "other")
    words = (
        "--model",
        finetuned.abnn,
        "--dataset",
        "toy",
        "--data",
        finetuned.data,
        "--split",
        "test",
        "--device",
        "cpu",
    )
    out = tmp_path / "lines.json"
    more = ("--every", 2, "--draws", 1, "--points", 7, "--other", tmp_path / "other", "--reestimate", 3, "--json", out)
    assert run(study_connectivity, *words, *more) == 0
    lines = {line["name"]: line for line in json.loads(out.read_text())["lines"]}
    of_members = ["base to member 0", "base to member 1", "members 0 to 1"]
    anew = [f"{name}, re-estimated" for name in (*of_members, "base to other")]
    assert list(lines) == [*of_members, *anew, "base to other"]
    for name in ("base to other", "base to other, re-estimated"):
        assert lines[name]["nll"][3] == pytest.approx(np.log(len(other.description.classes)), rel=1e-5)
    # The same point of the same line, whichever way it is gone through; other statistics make another network of it.
    assert lines["base to other"]["nll"][1] == pytest.approx(lines["base to member 0"]["nll"][1], rel=1e-5)
    start = lines["base to other, re-estimated"]["nll"][1]
    assert start == pytest.approx(lines["base to member 0, re-estimated"]["nll"][1], rel=1e-5)
    assert start != pytest.approx(lines["base to other"]["nll"][1], rel=1e-4)
    for line in lines.values():
        assert all(0 <= value <= 1 for value in line["miou"])
        chord = np.linspace(*line["miou_ends"], 5)[1:-1]
        assert line["miou_barrier"] == pytest.approx(max(chord - line["miou"][2:5]))


def test_statistics_stay_above_zero_beyond_the_ends() -> None:
    first, last = (torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4)).eval() for _ in range(2))
    last[1].running_var.mul_(10)  # type: ignore[union-attr, operator]
    for network in (first, last):
        convert(network)
    points = networks_line(first, last, places_on_line(7)).networks
    variances = [float(point.get_buffer("1.running_var")[0]) for point in points]
    assert variances == pytest.approx([1, 1, 3.25, 5.5, 7.75, 10, 10])
    weights = [network.get_parameter("0.weight") for network in (points[0], first, last)]
    torch.testing.assert_close(weights[0], 1.25 * weights[1] - 0.25 * weights[2])


def test_networks_of_other_weights_have_no_line(finetuned: Job) -> None:
    network = load_network(finetuned.base)
    convert(network.body)
    with pytest.raises(InputError, match="other weights"):
        networks_line(network, torch.nn.Conv2d(3, 3, 1), places_on_line(7))
