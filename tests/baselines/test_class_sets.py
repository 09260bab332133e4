"""Sets of classes: the promise on exchangeable frames, the sets against a count by hand, and the
way from a model to maps.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from segunc.baselines.class_sets import (
    LAMBDA_STEPS,
    ClassSetsConfig,
    class_keys,
    fit_class_sets,
    shares_up_to,
)
from segunc.core.errors import InputError
from segunc.data.datasets import dataset_entry
from segunc.data.images import load_image
from segunc.decisions.guarantee import settings_of
from segunc.decisions.risks import LossSums, Method
from segunc.evaluation.compare import format_number
from segunc.posteriors.model import load_model
from segunc.sampling import Sampler
from segunc.sampling.sampler import sample_frames
from segunc.scores import SCORES, SET_THRESHOLD
from segunc.training.config import FitConfig
from tests.conftest import Job
from tests.verbs.processes import FAST, refuse, succeed


def frame_losses(frames: int, seed: int) -> list[np.ndarray]:
    """Losses at each lambda of frames that are hard or easy as a whole, so that their pixels are
    far from exchangeable.
    """
    generator, losses = torch.Generator().manual_seed(seed), []
    for hardness in torch.rand(frames, generator=generator).square() * 4:
        labels = torch.randint(0, 5, (300,), generator=generator)
        logits = (
            hardness * torch.randn(5, 300, generator=generator)
            + 2 * torch.nn.functional.one_hot(labels, 5).T
        )
        probabilities = logits.softmax(0)
        keys = class_keys(probabilities, probabilities.argmax(0))
        losses.append(1 - shares_up_to(keys.gather(0, labels[None])))
    return losses


@pytest.mark.parametrize(("frames", "level"), [(10, 0.1), (25, 0.1), (40, 0.25)])
def test_the_promise_holds_exactly_where_frames_are_exchangeable(frames: int, level: float) -> None:
    """Of n + 1 frames in random order the last is each one equally often: the mean over them is the
    expectation, without a tolerance.
    """
    chosen = set[int]()
    for seed in range(3):
        losses = frame_losses(frames, seed)
        achieved = []
        for number, test in enumerate(losses):
            sums = LossSums("class-sets", LAMBDA_STEPS + 1)
            for other in losses[:number] + losses[number + 1 :]:
                sums.add(other)
            place = Method("conformal").certified(sums, level)
            assert place is not None
            chosen.add(place)
            achieved.append(test[place])
        jump = max(float(np.abs(np.diff(of)).max()) for of in losses)
        assert np.mean(achieved) <= level + 1e-9
        assert np.mean(achieved) >= level - 2 / frames - jump, "it is no looser than theory says"
    assert len(chosen) > 3, "another calibration gives another lambda"


def test_a_set_holds_the_classes_near_enough_to_certainty_and_always_the_predicted_one() -> None:
    logits = torch.randn(1, 6, 40, 50, generator=torch.Generator().manual_seed(1)) * 3
    logits[..., 0] = torch.tensor([100.0, 0, 0, 0, 0, 0])[None, :, None]  # certain
    logits[..., 1] = 0.0  # all the same: one of them is predicted
    probabilities = logits.softmax(1)
    probabilities[0, :, :, 2] = torch.tensor([0.5, 0.25, 0.25, 0, 0, 0])[
        :, None
    ]  # at the very edge of some sets
    prediction = probabilities[0].max(0).indices
    keys = class_keys(probabilities[0], prediction).numpy()
    seen = set[float]()
    for k in (
        0,
        1,
        LAMBDA_STEPS // 2,
        3 * LAMBDA_STEPS // 4,
        54321,
        LAMBDA_STEPS - 1,
        LAMBDA_STEPS,
    ):
        inside = 1 - probabilities[0].numpy() <= np.float32(k / LAMBDA_STEPS)
        np.put_along_axis(inside, prediction.numpy()[None], values=True, axis=0)
        np.testing.assert_array_equal(keys <= k, inside)
        size = SCORES["set-size"]({"probabilities": probabilities, SET_THRESHOLD: k / LAMBDA_STEPS})
        np.testing.assert_array_equal(size[0].numpy(), inside.sum(0))
        seen |= {*size.unique().tolist()}
    assert seen == {1, 2, 3, 4, 5, 6}


def test_maps_of_a_model_have_the_sets_that_were_calibrated(
    overconfident: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the frames' own size, with the calibrated mean of all draws: risk and size of the record
    are those of maps and labels.
    """
    fitted, maps = tmp_path / "model", tmp_path / "maps"
    data = ("--data.dataset toy --data.root", overconfident.data)
    small = "--data.size [96,192]"  # the network sees other sizes than the frames'
    succeed(
        "finetune --method temperature --device cpu --base",
        overconfident.abnn,
        *data,
        "--out",
        fitted,
    )
    words = (
        "finetune --method class-sets --device cpu --class_sets.draws 4 --base",
        fitted,
        "--out",
        fitted,
        *data,
        small,
    )
    assert (
        "0.1, which needs 9; the smallest level that they can have is 0.2. Hint: --class_sets.level 0.2"
        in refuse(*words)
    )
    assert "is not a number above 0 and below 1" in refuse(*words, "--class_sets.level 1")
    said = succeed(*words, "--class_sets.level 0.4").stdout
    record = json.loads((fitted / "class_sets.json").read_text())
    assert record["promise"] in said
    assert f"lambda {record['threshold']:.4f}, on 4 frames" in said
    images = overconfident.data / "leftImg8bit" / "val"
    succeed(
        "predict --draws 4 --size 96x192 --scores set-size,msp",
        FAST,
        "--model",
        fitted,
        "--input",
        images,
        "--out",
        maps,
    )
    others = (
        "predict --scores set-size --size 96x192",
        FAST,
        "--model",
        fitted,
        "--input",
        images,
        "--out",
        tmp_path / "others",
    )
    for other in (
        "--draws 3",
        "--draws 4 --seed 1",
        "--draws 4 --scope decoder",
        "--draws 4 --scheme independent",
    ):
        assert "of 4 latin-hypercube draws of seed 0 in the whole scope alone" in refuse(
            *others, other
        )
    run = json.loads((maps / "manifest.json").read_text())["run"]
    assert {key: record[key] for key in run["class_sets"]} == run["class_sets"]
    assert (
        settings_of(run, "set-size")["class_sets"]
        != settings_of({**run, "class_sets": {}}, "set-size")["class_sets"]
    )
    assert "class_sets" not in settings_of(run, "msp")
    model, entry = load_model(fitted), dataset_entry("toy")
    sampler = Sampler(
        model.network, model.posterior, draws=4, scores=("msp",), fitted=model.fitted(("msp",))
    )
    losses, sizes = [], []
    for sample in entry.samples(overconfident.data, "val"):
        assert sample.label is not None
        labels = entry.label_map().read(sample.label)
        found = sample_frames(
            sampler, [load_image(sample.image)], size=(96, 192), keep_probabilities=True
        )
        assert found.probabilities is not None
        inside = 1 - found.probabilities[0].numpy() <= record["threshold"]
        np.put_along_axis(inside, found.prediction.numpy().astype(int), values=True, axis=0)
        stored = np.load(maps / "set-size" / f"{sample.name}.npy")
        np.testing.assert_array_equal(stored, inside.sum(0))
        labelled = labels < 254
        outside = ~np.take_along_axis(inside, np.where(labelled, labels, 0)[None].astype(int), 0)[0]
        losses.append(outside[labelled].mean())
        sizes.append(stored[labelled].astype(float).mean())
    assert record["risk"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert record["mean_size"] == pytest.approx(np.mean(sizes), rel=1e-6)
    assert 0 < sum(losses) <= 0.4 * 5 - 1
    data_set = ("--dataset toy --split val --replicates 0 --root", overconfident.data)
    for name, more in (("fog", ("--corruption", "fog:5")), ("clean", ())):
        how = (
            "evaluate --draws 4 --size 96x192 --scores set-size",
            FAST,
            *more,
            "--model",
            fitted,
            "--out",
            tmp_path / f"{name}.json",
        )
        said = succeed(*how, *data_set).stdout
    clean, fog = (
        json.loads((tmp_path / f"{name}.json").read_text())["sets"] for name in ("clean", "fog")
    )
    assert (
        clean
        == {
            "outside": pytest.approx(record["risk"], abs=1e-8),
            "size": pytest.approx(record["mean_size"], abs=1e-8),
        }
        != fog
    )
    assert re.search(rf"outside +\| +{re.escape(format_number(clean['outside']))} \|", said)
    assert (
        "removed"
        in succeed(
            "finetune --method temperature --device cpu --base", fitted, *data, "--out", fitted
        ).stdout
    )
    assert "class_sets" not in load_model(fitted).attachments
    monkeypatch.setattr("segunc.baselines.class_sets.UNKNOWN", 0)  # no label is below
    config = FitConfig(
        ClassSetsConfig(frames=1), {"dataset": "toy", "root": str(overconfident.data)}
    )
    with pytest.raises(InputError, match="the val frames hold no labelled pixel"):
        fit_class_sets(fitted, config, fitted, device="cpu")
