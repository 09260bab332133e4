"""Monte Carlo batch normalisation: a draw is the network in training mode on its batch."""

import copy
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import segunc
from segunc.affine.draws import AffineLayout
from segunc.baselines.mcbn import MCBNPosterior, random_batches

CLASSES = ("road", "car", "sky")
FIRST = r"\.1$"  # the first of the two BatchNorm layers


def module(seed: int = 0) -> nn.Sequential:
    """Two BatchNorm layers with statistics and affine parameters of their own."""
    torch.manual_seed(seed)
    made = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3, padding=1),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Conv2d(5, 3, 1),
    )
    for layer in (made[1], made[4]):
        nn.init.uniform_(layer.weight, 0.5, 2)
        nn.init.normal_(layer.bias)
        nn.init.normal_(layer.running_mean)
        nn.init.uniform_(layer.running_var, 0.5, 2)
    return made.eval()


def base() -> segunc.Model:
    return segunc.wrap(module(), CLASSES)


def frames(count: int = 6) -> Tensor:
    """Frames of 8 bits which differ in brightness and in contrast."""
    generator = torch.Generator().manual_seed(1)
    brightness = torch.rand(count, 3, 1, 1, generator=generator)
    values = brightness * torch.rand(count, 3, 12, 16, generator=generator)
    return (values * 255).round() / 255


def loader(images: Tensor) -> list[tuple[Tensor, Tensor]]:
    labels = torch.zeros(len(images), *images.shape[2:], dtype=torch.int64)
    return [(images[first : first + 2], labels[first : first + 2]) for first in (0, 2, 4)]


def in_training_mode(images: Tensor, layers: tuple[str, ...] = ("1", "4")) -> Tensor:
    """The logits of the network in float64, some of whose layers normalise with the batch."""
    network = copy.deepcopy(base().network).double()
    for name in layers:
        network.body.get_submodule(name).train()
    with torch.no_grad():
        logits: Tensor = network(images.double())
    return logits


def fitted(**settings: Any) -> segunc.Model:
    """Three batches of two of the six frames."""
    options = {"batches": 3, "batch_size": 2, **settings}
    return segunc.MCBN(**options).fit(base(), loader(frames()))


def logits_of_batch(model: segunc.Model, batch: int, images: Tensor) -> Tensor:
    """The logits of the draw that takes a batch."""
    layout = AffineLayout(model.network)
    rows = slice(batch, batch + 1)
    posterior = model.posterior
    alone = MCBNPosterior(posterior.rescale[rows], posterior.reshift[rows], posterior.scope)
    with torch.no_grad(), layout.active(alone.affine(layout, [0], 0)):
        logits: Tensor = model.network(images)
    return logits


def test_a_draw_is_the_network_in_training_mode_on_its_batch() -> None:
    model = fitted()
    for number, indices in enumerate(random_batches(6, 3, 2, seed=0)):
        images = frames()[indices]
        expected = in_training_mode(images)
        logits = logits_of_batch(model, number, images).double()
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)
        other = logits_of_batch(model, (number + 1) % 3, images).double()
        assert float((other - expected).abs().max()) > 0.01


def test_layers_outside_of_the_scope_keep_the_statistics_of_the_network() -> None:
    images = frames()[random_batches(6, 3, 2, seed=0)[0]]
    logits = logits_of_batch(fitted(scope=FIRST), 0, images)
    expected = in_training_mode(images, ("1",))
    torch.testing.assert_close(logits.double(), expected, rtol=1e-4, atol=1e-5)


def test_layers_outside_of_a_narrower_scope_keep_those_of_the_network() -> None:
    model = fitted()
    layout = AffineLayout(model.network)
    draws = model.posterior.affine(layout, [0, 1], 0, FIRST)
    assert torch.equal(draws.weight[:, 6:], layout.weight[6:].expand(2, -1))
    assert torch.equal(draws.bias[:, 6:], layout.bias[6:].expand(2, -1))
    assert not torch.equal(draws.weight[0, :6], draws.weight[1, :6])


def test_draws_take_each_batch_once_in_an_order_of_the_seed() -> None:
    layout = AffineLayout(fitted().network)
    rescale = torch.rand(12, 11) + 0.5
    posterior = MCBNPosterior(rescale, torch.rand(12, 11))
    draws = posterior.affine(layout, range(12), 0)
    assert {tuple(row.tolist()) for row in draws.weight} == {
        tuple(row.tolist()) for row in layout.weight * rescale
    }
    assert torch.equal(posterior.affine(layout, [12, 13], 0).weight, draws.weight[:2])
    assert not torch.equal(posterior.affine(layout, range(12), 1).weight, draws.weight)


def test_posteriors_of_other_shapes_are_refused() -> None:
    with pytest.raises(segunc.InputError, match=r"rescale \(2, 5\) and reshift \(2, 4\)"):
        MCBNPosterior(torch.ones(2, 5), torch.zeros(2, 4))


def test_batches_share_no_frame_where_there_are_enough() -> None:
    batches = random_batches(frames=20, batches=5, batch_size=4, seed=0)
    assert sorted(chain(*batches)) == list(range(20))
    assert batches != random_batches(frames=20, batches=5, batch_size=4, seed=1)
    assert all(batch == sorted(batch) for batch in batches)


def test_no_frame_is_twice_in_a_batch() -> None:
    batches = random_batches(frames=7, batches=50, batch_size=4, seed=0)
    assert {len(set(batch)) for batch in batches} == {4}
    assert {index for batch in batches for index in batch} == set(range(7))


def test_the_record_says_which_frames_are_in_a_batch(tmp_path: Path) -> None:
    model = fitted()
    model.save(tmp_path)
    record = segunc.load(tmp_path, network=module()).record
    names = record["provenance"]["frames"]
    assert [len(batch) for batch in names] == [2, 2, 2]
    assert len(set(chain(*names))) == 6
    assert (record["batches"], record["scope"]) == (3, "all")


def test_a_saved_model_makes_the_same_maps(tmp_path: Path) -> None:
    model = fitted()
    model.save(tmp_path)
    again = segunc.load(tmp_path, network=module())
    image = (frames()[0].permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()
    maps = model(image, draws=3, scores=("epistemic",))
    others = again(image, draws=3, scores=("epistemic",))
    np.testing.assert_array_equal(maps.scores["epistemic"], others.scores["epistemic"])
    assert float(maps.scores["epistemic"].mean()) > 1e-4


def test_a_folder_of_images_needs_no_labels(tmp_path: Path) -> None:
    for number, image in enumerate(frames()):
        values = (image.permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()
        Image.fromarray(values).save(tmp_path / f"{number}.png")
    settings = segunc.MCBN(batches=3, batch_size=2, images=str(tmp_path))
    model = settings.fit(base())
    assert torch.equal(model.posterior.rescale, fitted().posterior.rescale)
    names = model.record["provenance"]["frames"]
    assert sorted(chain(*names)) == [str(number) for number in range(6)]


class Pooled(nn.Module):
    """Its BatchNorm sees one value a channel and frame."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 3, 3, padding=1)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.stem(images)
        return features + self.pool(features)


def test_a_batch_of_one_frame_behind_a_pooling_is_refused() -> None:
    model = segunc.wrap(Pooled().eval(), CLASSES)
    with pytest.raises(segunc.InputError, match="of one frame, and needs two") as caught:
        segunc.MCBN(batches=2, batch_size=1).fit(model, loader(frames()))
    assert "mcbn.batch_size" in str(caught.value.hint)


@pytest.mark.parametrize("layer", [nn.GroupNorm(2, 6), nn.InstanceNorm2d(6, affine=True)])
def test_a_network_without_batch_norms_is_refused(layer: nn.Module) -> None:
    network = nn.Sequential(nn.Conv2d(3, 6, 1), layer, nn.Conv2d(6, 3, 1)).eval()
    with pytest.raises(segunc.InputError, match="no BatchNorm layer with running statistics"):
        segunc.MCBN().fit(segunc.wrap(network, CLASSES), loader(frames()))


def test_frames_of_one_batch_are_too_few() -> None:
    with pytest.raises(segunc.InputError, match="6 frames cannot give different batches of 6"):
        fitted(batch_size=6)


def test_few_frames_are_told() -> None:
    lines: list[str] = []
    segunc.MCBN(batches=4, batch_size=2).fit(base(), loader(frames()), say=lines.append)
    assert "6 frames: some are in several batches" in lines


def test_frames_of_several_sizes_make_no_batch() -> None:
    images = [np.zeros((12, 16, 3), np.uint8), np.zeros((12, 20, 3), np.uint8)]
    images.append(np.ones((12, 16, 3), np.uint8))
    with pytest.raises(segunc.InputError, match="sizes 12x16 and 12x20 make no batch"):
        segunc.MCBN(batches=3, batch_size=2).fit(base(), images)


def test_the_model_that_is_given_stays_as_it_is() -> None:
    model = base()
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    segunc.MCBN(batches=3, batch_size=2).fit(model, loader(frames()))
    after = model.network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(layer.training for layer in model.network.modules())
