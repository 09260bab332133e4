"""A noise scale for each normalisation layer: the draws, the gradient, and what is kept."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import segunc
from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.noise import NoiseSource
from segunc.options import SamplingOptions
from segunc.posteriors import layer_alpha
from segunc.posteriors.abnn import ABNNPosterior
from segunc.posteriors.layer_alpha import (
    DRAWS,
    LabelledImage,
    learn_layer_alphas,
    mean_nll,
    nll_gradient,
)
from segunc.verbs.execution import make_sampler
from tests.affine.networks import layout_of, small_network

CLASSES = ("road", "car", "sky")
LAYOUT = layout_of(small_network())
"""Two layers of 8 channels."""


def body(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 3, 1),
    )
    nn.init.normal_(made[6].weight, std=30.0)
    return made.eval()


def network() -> nn.Module:
    made = body().requires_grad_(False)
    convert(made)
    return made


@torch.no_grad()
def labelled(made: nn.Module, wrong: float, count: int = 4) -> list[LabelledImage]:
    """Frames whose labels are those of the network, but for a share of pixels with the class of
    the second largest logit, and a first row without labels.
    """
    generator = torch.Generator().manual_seed(3)
    images = []
    for number in range(count):
        image = torch.rand(1, 3, 16, 20, generator=generator)
        order = made(image).argsort(1, descending=True)
        is_wrong = torch.rand(1, 16, 20, generator=generator) < wrong
        labels = torch.where(is_wrong, order[:, 1], order[:, 0])
        labels[:, 0] = 255
        images.append(LabelledImage(str(number), image, labels))
    return images


def test_each_layer_has_noise_of_its_scale() -> None:
    one = ABNNPosterior.around(LAYOUT, 0.1, 2).affine(LAYOUT, [0, 1, 2], 5)
    noise = one.weight / LAYOUT.weight - 1
    posterior = ABNNPosterior.around(LAYOUT, 0.1, 2).with_alpha(torch.tensor([0.3, 0.0]))
    draws = posterior.affine(LAYOUT, [0, 1, 2], 5)
    expected = LAYOUT.weight[:8] * (1 + 3 * noise[:, :8])
    torch.testing.assert_close(draws.weight[:, :8], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(draws.weight[:, 8:], LAYOUT.weight[8:].expand(3, -1))
    assert torch.equal(draws.bias, one.bias)


def test_equal_scales_of_the_layers_are_one_scale() -> None:
    one = ABNNPosterior.around(LAYOUT, 0.2).affine(LAYOUT, [0, 1], 0)
    layers = ABNNPosterior.around(LAYOUT, torch.full((2,), 0.2)).affine(LAYOUT, [0, 1], 0)
    assert torch.equal(one.weight, layers.weight)


def test_scales_of_zero_are_no_noise() -> None:
    draws = ABNNPosterior.around(LAYOUT, torch.zeros(2)).affine(LAYOUT, [0], 0)
    assert torch.equal(draws.weight[0], LAYOUT.weight)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ABNNPosterior.around(LAYOUT, torch.tensor([0.1, -0.2])), "alpha -0.2"),
        (lambda: ABNNPosterior.around(LAYOUT, torch.tensor([0.1, math.nan])), "alpha nan"),
        (lambda: ABNNPosterior.around(LAYOUT, torch.tensor([math.inf, 0.1])), "alpha inf"),
        (
            lambda: ABNNPosterior.around(LAYOUT, torch.ones(3)).affine(LAYOUT, [0], 0),
            r"\(3,\) are not one for each of the 2 normalisation layers",
        ),
        (lambda: segunc.ABNN(alpha_by="layer", alpha=0.0), "cannot start from alpha 0"),
        (
            lambda: segunc.ABNN(alpha_by="layer", statistics="reestimated"),
            "learns with the statistics of the base",
        ),
        (lambda: segunc.ABNN(alpha_frames=1), "alpha_frames 1"),
    ],
)
def test_scales_that_are_none_are_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(segunc.InputError, match=said):
        make()


def test_the_gradient_is_that_of_the_nll_of_the_mean() -> None:
    """All draws in one graph, in the place of one after the other."""
    made = network()
    layout = AffineLayout(made)
    (image,) = labelled(made, wrong=0.3, count=1)
    alpha = torch.tensor([0.3, 0.1], requires_grad=True)
    posterior = ABNNPosterior.around(layout, alpha)
    found = nll_gradient(made, layout, posterior, alpha, image, draws=DRAWS, seed=7)
    noise = NoiseSource(7, "latin-hypercube", DRAWS)
    draws = posterior.affine(layout, range(DRAWS), noise)
    with layout.active(draws):
        logits = made(image.image.repeat(DRAWS, 1, 1, 1))
    mean = logits.softmax(1).mean(0, keepdim=True)
    loss = nn.functional.nll_loss(mean.log(), image.labels, ignore_index=255)
    (expected,) = torch.autograd.grad(loss, alpha)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    assert float(expected.abs().min()) > 1e-4
    assert mean_nll(made, posterior, [image], DRAWS, 7) == pytest.approx(loss.item(), rel=1e-4)


def test_the_nll_is_that_of_the_network_without_noise() -> None:
    made = network()
    images = labelled(made, wrong=0.3)
    posterior = ABNNPosterior.around(AffineLayout(made), 0.0)
    losses = []
    for image in images:
        logits = made(image.image)
        losses.append(nn.functional.cross_entropy(logits, image.labels, ignore_index=255).item())
    expected = sum(losses) / len(losses)
    assert mean_nll(made, posterior, images, 2, 0) == pytest.approx(expected, rel=1e-5)


def learn(made: nn.Module, images: list[LabelledImage], steps: int = 30) -> Any:
    posterior = ABNNPosterior.around(AffineLayout(made), 0.1)
    return learn_layer_alphas(made, posterior.with_alpha, 0.1, images, steps=steps, seed=0)


def test_scales_fall_where_the_network_is_right() -> None:
    made = network()
    learnt = learn(made, labelled(made, wrong=0.0))
    assert learnt.kept
    assert learnt.nll_after < learnt.nll_before
    assert float(learnt.alpha.max()) < 0.05
    assert learnt.frames == ("0", "1", "2", "3")


def test_scales_rise_where_the_network_is_overconfident() -> None:
    made = network()
    learnt = learn(made, labelled(made, wrong=0.4))
    assert learnt.kept
    assert learnt.nll_after < learnt.nll_before
    assert float(learnt.alpha.max()) > 0.15


def test_the_same_seed_learns_the_same() -> None:
    made = network()
    images = labelled(made, wrong=0.4)
    first = learn(made, images, steps=3)
    second = learn(made, images, steps=3)
    assert torch.equal(first.alpha, second.alpha)
    assert all(parameter.grad is None for parameter in made.parameters())


def test_one_scale_is_kept_where_the_learnt_ones_are_worse() -> None:
    made = network()
    right = labelled(made, wrong=0.0)
    wrong = labelled(made, wrong=0.6)
    learnt = learn(made, [*wrong[:2], *right[2:]])
    assert not learnt.kept
    assert learnt.nll_after > learnt.nll_before
    assert learnt.alpha == 0.1


def test_a_scale_stays_within_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_alpha, "LEARNING_RATE", 50.0)
    made = network()
    learnt = learn(made, labelled(made, wrong=0.0), steps=1)
    torch.testing.assert_close(learnt.alpha, torch.full((2,), 0.001))


def frames() -> list[tuple[Tensor, Tensor]]:
    """Batches of frames of 8 bits, with labels that the network says in seven of ten pixels."""
    generator = torch.Generator().manual_seed(1)
    base = segunc.wrap(body(), CLASSES).network
    batches = []
    for _ in range(2):
        images = torch.randint(0, 256, (2, 3, 16, 16), generator=generator).float() / 255
        with torch.no_grad():
            order = base(images).argsort(1, descending=True)
        is_wrong = torch.rand(2, 16, 16, generator=generator) < 0.4
        batches.append((images, torch.where(is_wrong, order[:, 1], order[:, 0])))
    return batches


SETTINGS = segunc.ABNN(alpha_by="layer", alpha_frames=4, alpha_steps=20)


def test_a_fit_learns_scales_and_keeps_them_in_its_file(tmp_path: Path) -> None:
    lines: list[str] = []
    model = SETTINGS.fit(segunc.wrap(body(), CLASSES), frames(), say=lines.append)
    alpha = model.posterior.alpha
    assert alpha.shape == (2,)
    assert model.posterior.rescale is None, "the statistics are those of the base"
    model.save(tmp_path)
    record = json.loads((tmp_path / "posterior.json").read_text())
    assert record["alpha"] == "by layer"
    assert record["alpha_range"] == [float(alpha.min()), float(alpha.max())]
    found = record["provenance"]["alphas"]
    assert found["kept"]
    assert found["nll_layers"] < found["nll_one_alpha"]
    assert len(set(found["frames"])) == 4
    assert any("instead of" in line for line in lines)
    again = segunc.load(tmp_path, network=body())
    assert torch.equal(again.posterior.alpha, alpha)
    layout = AffineLayout(again.network)
    ours = model.posterior.affine(AffineLayout(model.network), [0, 1], 0)
    assert torch.equal(again.posterior.affine(layout, [0, 1], 0).weight, ours.weight)


def test_one_scale_of_a_run_is_refused_where_a_calibration_has_seen_others() -> None:
    base = segunc.wrap(body(), CLASSES)
    model = segunc.Temperature(draws=2).fit(SETTINGS.fit(base, frames()), frames())
    said = r"on draws of alpha 0\.\d+ to 0\.\d+ by layer, and `alpha` 0\.1 makes others"
    with pytest.raises(segunc.InputError, match=said):
        make_sampler(model, SamplingOptions(device="cpu", alpha=0.1))


def test_one_scale_of_a_run_replaces_those_of_the_layers() -> None:
    model = SETTINGS.fit(segunc.wrap(body(), CLASSES), frames())
    sampler = make_sampler(model, SamplingOptions(device="cpu", alpha=0.0, draws=2))
    images = frames()[0][0]
    assert float(sampler(images).scores["epistemic"].max()) < 1e-6
    own = make_sampler(model, SamplingOptions(device="cpu", draws=2))
    assert float(own(images).scores["epistemic"].max()) > 1e-4


def test_members_keep_their_training_when_scales_are_learnt() -> None:
    base = segunc.wrap(body(), CLASSES)
    trainer = {"precision": "32-true"}
    settings = {"members": 2, "epochs": 1}
    plain = segunc.ABNN(**settings).fit(base, frames(), trainer=trainer)
    layers = segunc.ABNN(alpha_by="layer", alpha_frames=4, alpha_steps=2, **settings)
    learnt = layers.fit(base, frames(), trainer=trainer)
    assert torch.equal(plain.posterior.gamma, learnt.posterior.gamma)


def test_scales_of_layers_need_validation_frames() -> None:
    base = segunc.wrap(body(), CLASSES)
    images, labels = frames()[0]
    with pytest.raises(segunc.InputError, match="1 labelled validation frame is too few"):
        SETTINGS.fit(base, [(images[:1], labels[:1])])
    with pytest.raises(segunc.InputError, match=r"abnn\.alpha_by layer needs data"):
        SETTINGS.fit(base)


def test_a_model_whose_one_scale_is_better_says_so() -> None:
    images, _ = frames()[0]
    order = segunc.wrap(body(), CLASSES).network(images).argsort(1, descending=True)
    batches = [(images, order[:, 1]), (images, order[:, 0])]
    lines: list[str] = []
    model = SETTINGS.fit(segunc.wrap(body(), CLASSES), batches, say=lines.append)
    assert model.posterior.alpha == 0.1
    assert any(line.startswith("note: one alpha is kept") for line in lines)


def test_one_scale_replaces_those_of_the_layers() -> None:
    layers = ABNNPosterior.around(LAYOUT, torch.tensor([0.3, 0.1]))
    one = ABNNPosterior.around(LAYOUT, 0.2)
    draws = layers.with_alpha(0.2).affine(LAYOUT, [0], 0)
    assert torch.equal(draws.weight, one.affine(LAYOUT, [0], 0).weight)
