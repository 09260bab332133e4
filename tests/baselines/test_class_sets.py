"""Prediction sets of classes: the guarantee on exchangeable frames, the sets against a count by
hand, and the way from a model to maps.
"""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from segunc.baselines.class_sets import (
    LAMBDA_STEPS,
    PredictionSets,
    class_keys,
    shares_up_to,
)
from segunc.core.errors import InputError
from segunc.data.datasets import dataset_entry
from segunc.data.images import load_image
from segunc.decisions.guarantee import settings_of
from segunc.decisions.risks import LossSums, Method
from segunc.evaluation.comparison import format_number
from segunc.posteriors.model import load_model
from segunc.sampling import Sampler
from segunc.sampling.sampler import sample_frames
from segunc.scores import SCORES, SET_THRESHOLD
from tests.conftest import Job
from tests.support.fits import fit_folder
from tests.verbs.processes import FAST, refuse, succeed


def frame_losses(frames: int, seed: int) -> list[np.ndarray]:
    """Losses at each lambda of frames that are hard or easy as a whole, so that their pixels are
    far from exchangeable.
    """
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for hardness in torch.rand(frames, generator=generator).square() * 4:
        labels = torch.randint(0, 5, (300,), generator=generator)
        noise = torch.randn(5, 300, generator=generator)
        logits = hardness * noise + 2 * torch.nn.functional.one_hot(labels, 5).T
        probabilities = logits.softmax(0)
        keys = class_keys(probabilities, probabilities.argmax(0))
        losses.append(1 - shares_up_to(keys.gather(0, labels[None])))
    return losses


def certified_step(losses: list[np.ndarray], level: float) -> int:
    """The step of lambda that the losses of calibration frames give."""
    sums = LossSums("class-sets", LAMBDA_STEPS + 1)
    for frame in losses:
        sums.add(frame)
    step = Method("conformal").certified(sums, level)
    assert step is not None
    return step


@pytest.mark.parametrize(
    ("frames", "level"),
    [
        (10, 0.1),
        (25, 0.1),
        (40, 0.25),
    ],
)
def test_the_promise_holds_exactly_where_frames_are_exchangeable(frames: int, level: float) -> None:
    """Of n + 1 frames in random order the last is each one equally often: the mean over them is the
    expectation, without a tolerance.
    """
    steps = set()
    for seed in range(3):
        losses = frame_losses(frames, seed)
        achieved = []
        for number, test in enumerate(losses):
            step = certified_step(losses[:number] + losses[number + 1 :], level)
            steps.add(step)
            achieved.append(test[step])
        jump = max(float(np.abs(np.diff(loss)).max()) for loss in losses)
        assert np.mean(achieved) <= level + 1e-9
        assert np.mean(achieved) >= level - 2 / frames - jump, "it is no looser than theory says"
    assert len(steps) > 3, "another calibration gives another lambda"


SOME_STEPS = (
    0,
    1,
    LAMBDA_STEPS // 2,
    3 * LAMBDA_STEPS // 4,
    54321,
    LAMBDA_STEPS - 1,
    LAMBDA_STEPS,
)


def test_a_set_holds_the_predicted_class_and_those_near_enough_to_certainty() -> None:
    logits = torch.randn(1, 6, 40, 50, generator=torch.Generator().manual_seed(1)) * 3
    logits[..., 0] = torch.tensor([100.0, 0, 0, 0, 0, 0])[None, :, None]  # certain
    logits[..., 1] = 0.0  # all the same: one of them is predicted
    probabilities = logits.softmax(1)
    # At the very edge of some sets.
    probabilities[0, :, :, 2] = torch.tensor([0.5, 0.25, 0.25, 0, 0, 0])[:, None]
    prediction = probabilities[0].max(0).indices
    keys = class_keys(probabilities[0], prediction).numpy()
    sizes = set[float]()
    for step in SOME_STEPS:
        threshold = step / LAMBDA_STEPS
        inside = 1 - probabilities[0].numpy() <= np.float32(threshold)
        np.put_along_axis(inside, prediction.numpy()[None], values=True, axis=0)
        np.testing.assert_array_equal(keys <= step, inside)
        size = SCORES["set-size"]({"probabilities": probabilities, SET_THRESHOLD: threshold})
        np.testing.assert_array_equal(size[0].numpy(), inside.sum(0))
        sizes.update(size.unique().tolist())
    assert sizes == {1, 2, 3, 4, 5, 6}


@dataclass(frozen=True)
class Calibrated:
    """A model with calibrated prediction sets, and what was made of it."""

    data: Path
    model: Path
    maps: Path  # of the val frames
    fit: tuple[object, ...]  # words of the command that calibrates, without a level
    output: str  # of the command

    @property
    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.model / "class_sets.json").read_text())
        return record


def fit_temperature(model: Path, data: Path, out: Path) -> str:
    return succeed(
        "finetune --method temperature --device cpu --data.dataset toy",
        *("--base", model),
        *("--data.root", data),
        *("--out", out),
    ).stdout


@pytest.fixture(scope="module")
def calibrated(overconfident: Job, tmp_path_factory: pytest.TempPathFactory) -> Calibrated:
    folder = tmp_path_factory.mktemp("sets")
    model = folder / "model"
    fit_temperature(overconfident.abnn, overconfident.data, model)
    fit = (
        "finetune --method class-sets --device cpu --class_sets.draws 4 --data.dataset toy",
        "--data.size [96,192]",  # the network sees other sizes than the frames'
        *("--base", model),
        *("--data.root", overconfident.data),
        *("--out", model),
    )
    output = succeed(*fit, "--class_sets.level 0.4").stdout
    succeed(
        "predict --draws 4 --size 96x192 --scores set-size,msp",
        FAST,
        *("--model", model),
        *("--input", overconfident.data / "leftImg8bit" / "val"),
        *("--out", folder / "maps"),
    )
    return Calibrated(overconfident.data, model, folder / "maps", fit, output)


def test_the_command_prints_the_guarantee(calibrated: Calibrated) -> None:
    record = calibrated.record
    assert record["promise"] in calibrated.output
    assert f"lambda {record['threshold']:.4f}, on 4 frames" in calibrated.output


def test_the_condition_names_what_was_chosen_on_the_frames(calibrated: Calibrated) -> None:
    said = "these frames are of the split val, on which the model got"
    assert said in calibrated.output
    assert said in calibrated.record["condition"]
    assert "its temperature" in calibrated.record["condition"]


def test_a_level_that_needs_more_frames_is_refused(calibrated: Calibrated) -> None:
    refusal = refuse(*calibrated.fit)
    assert "0.1, which needs 9; the smallest level that they can have is 0.2" in refusal
    assert "Hint: --class_sets.level 0.2" in refusal


def test_a_level_of_1_is_refused(calibrated: Calibrated) -> None:
    refusal = refuse(*calibrated.fit, "--class_sets.level 1")
    assert "is not a number above 0 and below 1" in refusal


@pytest.mark.parametrize(
    "draws",
    [
        "--draws 3",
        "--draws 4 --seed 1",
        "--draws 4 --scope decoder",
        "--draws 4 --scheme independent",
    ],
)
def test_other_draws_are_refused(calibrated: Calibrated, tmp_path: Path, draws: str) -> None:
    refusal = refuse(
        "predict --scores set-size --size 96x192",
        FAST,
        draws,
        *("--model", calibrated.model),
        *("--input", calibrated.data / "leftImg8bit" / "val"),
        *("--out", tmp_path / "maps"),
    )
    assert "of 4 latin-hypercube draws of seed 0 in the whole scope alone" in refusal


SIZE_NOTE = (
    "note: the class sets were calibrated on frames at 96x192, and the network sees these at {}, "
    "so their promise does not hold here"
)


@pytest.mark.parametrize(
    ("size", "note"),
    [
        (("--size", "48x96"), SIZE_NOTE.format("48x96")),
        ((), SIZE_NOTE.format("their own size")),
        (("--size", "96x192"), ""),
    ],
)
def test_frames_at_another_size_get_a_note(
    calibrated: Calibrated, tmp_path: Path, size: tuple[str, ...], note: str
) -> None:
    done = succeed(
        "predict --draws 4 --scores set-size",
        FAST,
        *size,
        *("--model", calibrated.model),
        *("--input", calibrated.data / "leftImg8bit" / "val"),
        *("--out", tmp_path / "maps"),
    )
    printed = done.stdout + done.stderr
    assert ("their promise does not hold here" in printed) == bool(note)
    assert note in printed


def test_the_manifest_records_the_guarantee(calibrated: Calibrated) -> None:
    run = json.loads((calibrated.maps / "manifest.json").read_text())["run"]
    recorded = run["class_sets"]
    assert {key: calibrated.record[key] for key in recorded} == recorded
    without = {**run, "class_sets": {}}
    sets = settings_of(run, "set-size")["class_sets"]
    assert sets != settings_of(without, "set-size")["class_sets"]
    assert "class_sets" not in settings_of(run, "msp")


def test_maps_have_the_sets_that_were_calibrated(calibrated: Calibrated) -> None:
    """At the frames' own size, with the calibrated mean of all draws: risk and size of the record
    are those of maps and labels.
    """
    record = calibrated.record
    model = load_model(calibrated.model)
    entry = dataset_entry("toy")
    sampler = Sampler(
        model.network, model.posterior, draws=4, scores=("msp",), fitted=model.fitted(("msp",))
    )
    losses = []
    sizes = []
    for sample in entry.samples(calibrated.data, "val"):
        assert sample.label is not None
        labels = entry.label_map().read(sample.label)
        image = load_image(sample.image)
        sampled = sample_frames(sampler, [image], size=(96, 192), keep_probabilities=True)
        assert sampled.probabilities is not None
        inside = 1 - sampled.probabilities[0].numpy() <= record["threshold"]
        np.put_along_axis(inside, sampled.prediction.numpy().astype(int), values=True, axis=0)
        stored = np.load(calibrated.maps / "set-size" / f"{sample.name}.npy")
        np.testing.assert_array_equal(stored, inside.sum(0))
        labelled = labels < 254
        classes = np.where(labelled, labels, 0)[None].astype(int)
        outside = ~np.take_along_axis(inside, classes, 0)[0]
        losses.append(outside[labelled].mean())
        sizes.append(stored[labelled].astype(float).mean())
    assert record["risk"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert record["mean_size"] == pytest.approx(np.mean(sizes), rel=1e-6)
    assert 0 < sum(losses) <= 0.4 * 5 - 1


def evaluate_sets(calibrated: Calibrated, out: Path, *more: str) -> tuple[dict[str, float], str]:
    """Return the section ``sets`` of the metrics, and what the command prints."""
    output = succeed(
        "evaluate --draws 4 --size 96x192 --scores set-size",
        "--dataset toy --split val --replicates 0",
        FAST,
        *more,
        *("--model", calibrated.model),
        *("--root", calibrated.data),
        *("--out", out),
    ).stdout
    return json.loads(out.read_text())["sets"], output


def test_evaluate_measures_risk_and_size_of_the_sets(
    calibrated: Calibrated, tmp_path: Path
) -> None:
    record = calibrated.record
    clean, output = evaluate_sets(calibrated, tmp_path / "clean.json")
    assert clean == {
        "outside": pytest.approx(record["risk"], abs=1e-8),
        "size": pytest.approx(record["mean_size"], abs=1e-8),
    }
    assert re.search(rf"outside +\| +{re.escape(format_number(clean['outside']))} \|", output)
    fog, _ = evaluate_sets(calibrated, tmp_path / "fog.json", "--corruption fog:5")
    assert fog != clean


def test_another_temperature_removes_the_sets(calibrated: Calibrated, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(calibrated.model, model)
    assert "removed" in fit_temperature(model, calibrated.data, model)
    assert "class_sets" not in load_model(model).attachments


def test_frames_without_labels_are_refused(
    calibrated: Calibrated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segunc.baselines.class_sets.UNKNOWN", 0)  # no label is below
    data = {"dataset": "toy", "root": str(calibrated.data)}
    with pytest.raises(InputError, match="the val frames hold no labelled pixel"):
        fit_folder(PredictionSets(frames=1), calibrated.model, tmp_path / "out", data)
