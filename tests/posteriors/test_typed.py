"""The way in from Python: a wrapped module, a method fitted on it, the maps of an image, and verbs
as functions of their options.
"""

import json
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import segunc
from segunc.affine.draws import AffineLayout
from segunc.posteriors.abnn import ABNN, ABNNPosterior, Members
from segunc.training.affine_tuner import AffineTuner

IMAGE = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
CLASSES = ("road", "car", "sky")
MODULE = """
from torch import nn

def build(width=8):
    stem = [nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*stem, nn.Conv2d(width, 3, 1))
"""


def module() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1)
    )
    made[1].running_var.uniform_(0.5, 2)
    return made


def batches(count: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    loader = []
    for _ in range(count):
        images = torch.rand(2, 3, 16, 16, generator=generator)
        labels = torch.randint(0, 3, (2, 16, 16), generator=generator)
        loader.append((images, labels))
    return loader


def noisy_model() -> segunc.Model:
    wrapped = segunc.wrap(module().eval(), CLASSES, mean=(0.5, 0.4, 0.3), std=(1, 1, 2))
    return segunc.ABNN(members=2, alpha=0.1).fit(wrapped)


def test_noise_alone_gives_the_maps_of_the_sampler() -> None:
    maps = noisy_model()(IMAGE, draws=6, seed=3)
    mean = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)
    deviation = torch.tensor([1, 1, 2]).view(3, 1, 1)
    images = (torch.from_numpy(IMAGE).permute(2, 0, 1)[None] / 255 - mean) / deviation
    converted = module().eval()
    segunc.convert(converted)
    posterior = ABNNPosterior.around(AffineLayout(converted), 0.1, 2)
    expected = segunc.Sampler(converted, posterior, draws=6, seed=3)(images)
    energy = expected.scores["deterministic-energy"][0]
    assert expected.scores["epistemic"].max() > 0
    np.testing.assert_allclose(maps.entropy, expected.scores["entropy"][0], atol=1e-5)
    np.testing.assert_allclose(maps.deterministic_energy, energy, atol=1e-5)
    np.testing.assert_array_equal(maps.prediction, expected.prediction[0])


def test_a_fit_and_a_call_leave_the_module_alone() -> None:
    mine = module().eval()
    before = pickle.dumps(mine)
    wrapped = segunc.wrap(mine, CLASSES, mean=(0.5, 0.4, 0.3), std=(1, 1, 2))
    segunc.ABNN(members=2, alpha=0.1).fit(wrapped)(IMAGE, draws=6, seed=3)
    assert pickle.dumps(mine) == before


def test_maps_of_an_image_are_attributes_and_can_be_pickled() -> None:
    maps = noisy_model()(IMAGE, draws=6, seed=3)
    assert np.array_equal(pickle.loads(pickle.dumps(maps)).epistemic, maps.epistemic)
    with pytest.raises(
        AttributeError, match=r"no score 'entropie' \(did you mean entropy\?\); the maps hold msp"
    ):
        _ = maps.entropie


def test_members_are_trained_as_a_plain_loop_trains_them() -> None:
    settings = {
        "members": 2,
        "alpha": 0.1,
        "epochs": 2,
        "random_classes": 1,
        "seed": 5,
    }
    net = segunc.wrap(module(), CLASSES, mean=(0, 0, 0), std=(1, 1, 1))
    in_float32 = {"precision": "32-true"}
    model = segunc.ABNN(**settings).fit(net, batches(), trainer=in_float32)
    config = ABNN(**settings)
    tuner = AffineTuner(module(), 3, lambda layout: Members(layout, 3, config), config)
    optimizer, schedule = tuner.optimizer(12)
    for step in range(12):
        tuner.loss(*batches()[step % 3], step).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    torch.testing.assert_close(model.posterior.gamma, tuner.posterior().gamma, rtol=1e-5, atol=1e-6)
    assert (model.posterior.gamma[0] - model.posterior.gamma[1]).abs().max() > 1e-3
    assert not net.bayesian


def test_a_saved_model_is_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delitem(sys.modules, "their_factory", raising=False)
    Path("their_factory.py").write_text(MODULE)
    made = module()
    net = segunc.wrap(made, CLASSES, factory="their_factory:build", arguments={"width": 8})
    model = segunc.ABNN(members=2, alpha=0.2, seed=4, epochs=2).fit(net, batches())
    model.save("abnn")
    net.save("base")
    again = segunc.load("abnn")
    np.testing.assert_array_equal(again(IMAGE, draws=4).epistemic, model(IMAGE, draws=4).epistemic)
    provenance = json.loads(Path("abnn/posterior.json").read_text())["provenance"]
    assert provenance["alpha"] == 0.2
    assert provenance["settings"]["epochs"] == 2
    assert provenance["steps"] == 12
    assert again.posterior.rescale is None, "the statistics are those that it was trained with"
    np.testing.assert_array_equal(
        segunc.load("base")(IMAGE, draws=1).prediction, net(IMAGE, draws=1).prediction
    )
    with pytest.raises(segunc.InputError, match="Bayesian already"):
        segunc.ABNN().fit(again)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: segunc.ABNN(members=0), "^members 0"),
        (
            lambda: segunc.ABNN(statistics="reestimated").fit(segunc.wrap(module(), CLASSES)),
            "reestimated needs data",
        ),
        (lambda: segunc.ABNN().fit(segunc.wrap(module(), CLASSES), []), "holds no batch"),
        (lambda: segunc.ABNN(scope="nowhere").fit(segunc.wrap(module(), CLASSES)), "nowhere"),
        (
            lambda: segunc.ABNN(members=3).fit(segunc.wrap(module(), CLASSES))(IMAGE, draws=2),
            "at least 3 draws$",
        ),
        (lambda: segunc.wrap(module(), CLASSES)(IMAGE > 9, draws=1), "image is of dtype bool"),
        (lambda: segunc.wrap(module(), ("road", "car")), "3 output channels"),
        (
            lambda: segunc.wrap(module(), CLASSES, mean=(123.7, 116.3, 103.5)),
            "divide mean and std by 255",
        ),
        (
            lambda: segunc.convert(torch.jit.trace(module().eval(), torch.rand(1, 3, 8, 8))),
            "TorchScript",
        ),
        (lambda: segunc.predict("nowhere", "there.mp4", out="maps", draws=0), "^`draws` 0"),
    ],
)
def test_errors_name_parameters(
    make: object, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(segunc.InputError, match=said) as caught:
        make()
    assert not re.search("(?<!segunc import )--", str(caught.value))
    assert not Path("here").exists()


class Stream(torch.utils.data.IterableDataset):
    """Batches without a length."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self):
        return iter(batches(self.count))


def endless() -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(Stream(1000), batch_size=None)


def test_no_epochs_on_a_loader_train_nothing_and_average_the_statistics() -> None:
    base = segunc.wrap(module(), CLASSES)
    model = segunc.ABNN().fit(base, batches())
    trained = segunc.ABNN(epochs=2).fit(base, batches())
    assert torch.equal(model.posterior.gamma[0], torch.ones(8)), "as the base was made"
    assert model.posterior.rescale is not None
    assert not torch.equal(trained.posterior.gamma[0], torch.ones(8))
    assert trained.posterior.rescale is None


def test_no_epochs_and_frozen_statistics_leave_the_base() -> None:
    settings = segunc.ABNN(epochs=0, statistics="frozen", members=2)
    model = settings.fit(segunc.wrap(module(), CLASSES), batches())
    assert torch.equal(model.posterior.gamma, torch.ones(2, 8))
    assert model.posterior.rescale is None


def test_a_loader_without_a_length_trains_as_one_with_a_length() -> None:
    loader = torch.utils.data.DataLoader(Stream(3), batch_size=None)
    models = [
        segunc.ABNN(epochs=2, seed=1).fit(segunc.wrap(module(), CLASSES), train)
        for train in (loader, batches())
    ]
    assert torch.equal(models[0].posterior.gamma, models[1].posterior.gamma)


def test_a_loader_that_does_not_end_trains_for_its_steps() -> None:
    settings = segunc.ABNN(epochs=1, max_steps=2)
    models = [
        settings.fit(segunc.wrap(module(), CLASSES), train) for train in (endless(), batches())
    ]
    assert torch.equal(models[0].posterior.gamma, models[1].posterior.gamma)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((torch.rand(2, 3, 16, 16) * 255, torch.zeros(2, 16, 16)), "not in 0..1"),
        ((torch.rand(2, 3, 16, 16), torch.zeros(2, 3, 16, 16)), r"neither \[N, H, W\]"),
        ((torch.rand(2, 3, 16, 16), torch.rand(2, 16, 16)), "hold fractions"),
    ],
)
def test_a_later_batch_is_looked_at_too(batch: tuple[torch.Tensor, ...], said: str) -> None:
    base = segunc.wrap(module(), CLASSES)
    for settings in (segunc.ABNN(epochs=1), segunc.ABNN(epochs=0)):
        with pytest.raises(segunc.InputError, match=said):
            settings.fit(base, [*batches(), batch])


def test_labels_with_an_axis_of_one_are_those_without() -> None:
    train = [(images, labels[:, None]) for images, labels in batches()]
    models = [
        segunc.ABNN(epochs=1).fit(segunc.wrap(module(), CLASSES), loader)
        for loader in (train, batches())
    ]
    assert torch.equal(models[0].posterior.gamma, models[1].posterior.gamma)


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        (lambda base: segunc.ABNN(epochs=2).fit(base), "epochs 2 needs data"),
        (lambda base: segunc.ABNN().fit(base, iter(batches())), "gone through once"),
    ],
)
def test_what_a_loader_cannot_do_is_said(fit, said: str) -> None:
    with pytest.raises(segunc.InputError, match=said):
        fit(segunc.wrap(module(), CLASSES))
