"""Models of a module that no folder can build: saved without it, opened with it."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import segunc
from segunc.baselines.distil import Student
from segunc.baselines.features import FeatureDensity
from segunc.baselines.mc_dropout import MCDropout
from segunc.baselines.mcbn import MCBN
from segunc.baselines.mixtures import TTA, Ensemble
from segunc.baselines.temperature import Temperature
from segunc.core.errors import NoteWarning
from segunc.networks.answers import answer_of
from segunc.networks.description import IMAGENET_MEAN, IMAGENET_STD

CLASSES = ("road", "car", "sky")
MEAN = torch.tensor(IMAGENET_MEAN).view(3, 1, 1)
STD = torch.tensor(IMAGENET_STD).view(3, 1, 1)
IMAGE = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)


def module(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    made = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 1)
    )
    made[1].running_var.uniform_(0.5, 2)
    return made.eval()


@torch.no_grad()
def batches(count: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Frames whose labels are mostly what the network says."""
    generator = torch.Generator().manual_seed(1)
    loader = []
    for _ in range(count):
        images = torch.randint(0, 256, (2, 3, 16, 16), generator=generator).float() / 255
        logits = module()((images - MEAN) / STD)
        chosen = torch.rand(2, 16, 16, generator=generator) < 0.7
        other = torch.randint(0, 3, (2, 16, 16), generator=generator)
        labels = logits.argmax(1).where(chosen, other)
        loader.append((images, labels))
    return loader


def wrapped(seed: int = 0) -> segunc.Model:
    return segunc.wrap(module(seed), CLASSES)


def fitted_with_two_networks() -> segunc.Model:
    members = [segunc.ABNN().fit(wrapped(seed), batches()) for seed in (0, 1)]
    return Ensemble().fit(members)


def taught() -> segunc.Model:
    teacher = segunc.ABNN(members=2).fit(wrapped())
    settings = Student(epochs=1, head_channels=4, draws=2, corruptions=[])
    return settings.fit(teacher, batches())


MODELS: dict[str, Callable[[], segunc.Model]] = {
    "deterministic": wrapped,
    "abnn": lambda: segunc.ABNN(members=2).fit(wrapped(), batches()),
    "mc-dropout": lambda: MCDropout(p=0.2).fit(wrapped()),
    "mcbn": lambda: MCBN(batches=2, batch_size=2).fit(wrapped(), batches()),
    "temperature": lambda: Temperature(draws=2).fit(segunc.ABNN().fit(wrapped()), batches()),
    "features": lambda: FeatureDensity(layers=["body.1"], bank=50).fit(wrapped(), batches()),
    "tta": lambda: TTA().fit(segunc.ABNN().fit(wrapped())),
    "student": taught,
}


def scores_of(model: segunc.Model) -> tuple[str, ...]:
    return ("entropy", "knn") if "features" in model.attachments else ("entropy", "epistemic")


def assert_same_maps(model: segunc.Model, other: segunc.Model) -> None:
    draws = max(6, model.posterior.members)
    maps = model(IMAGE, draws=draws, scores=scores_of(model))
    others = other(IMAGE, draws=draws, scores=scores_of(model))
    np.testing.assert_array_equal(maps.prediction, others.prediction)
    for name, values in maps.scores.items():
        np.testing.assert_array_equal(values, others.scores[name])


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_comes_back_with_its_module(tmp_path: Path, kind: str) -> None:
    model = MODELS[kind]()
    model.save(tmp_path)
    has_weights = (tmp_path / "network.safetensors").exists()
    assert has_weights == (kind == "student"), "whose weights only the folder holds"
    again = segunc.load(tmp_path, network=module())
    assert again.posterior_sha256 == model.posterior_sha256
    assert_same_maps(again, model)


def test_an_ensemble_takes_a_module_for_each_member(tmp_path: Path) -> None:
    model = fitted_with_two_networks()
    model.save(tmp_path)
    again = segunc.load(tmp_path, network=[module(0), module(1)])
    assert_same_maps(again, model)
    with pytest.raises(segunc.InputError, match="the folder holds more networks"):
        segunc.load(tmp_path, network=module(0))
    with pytest.raises(segunc.InputError, match="the module given as network has the hash"):
        segunc.load(tmp_path, network=[module(1), module(0)])


def test_a_model_stands_for_its_module(tmp_path: Path) -> None:
    model = MODELS["abnn"]()
    model.save(tmp_path)
    assert_same_maps(segunc.load(tmp_path, network=wrapped()), model)


def test_a_loaded_model_is_saved_again(tmp_path: Path) -> None:
    model = MODELS["temperature"]()
    model.save(tmp_path / "first")
    again = segunc.load(tmp_path / "first", network=module())
    again.save(tmp_path / "second")
    assert_same_maps(segunc.load(tmp_path / "second", network=module()), model)


def test_loading_leaves_the_module_as_it_is(tmp_path: Path) -> None:
    MODELS["abnn"]().save(tmp_path)
    mine = module().train()
    state = {name: tensor.clone() for name, tensor in mine.state_dict().items()}
    segunc.load(tmp_path, network=mine)
    assert [type(part) for part in mine] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.Conv2d]
    for name, tensor in mine.state_dict().items():
        assert torch.equal(tensor, state[name])


def change_a_weight(network: Any) -> None:
    with torch.no_grad():
        network[0].weight[0, 0, 0, 0] += 1


def test_a_module_of_other_weights_is_refused(tmp_path: Path) -> None:
    MODELS["abnn"]().save(tmp_path)
    other = module()
    change_a_weight(other)
    with pytest.raises(segunc.InputError, match="give the module with the weights"):
        segunc.load(tmp_path, network=other)


def change_eps(changed: nn.Sequential) -> None:
    cast(nn.BatchNorm2d, changed[1]).eps = 0.5


def change_activation(changed: nn.Sequential) -> None:
    changed[2] = nn.LeakyReLU(0.3)


CHANGES = pytest.mark.parametrize("change", [change_eps, change_activation])


@CHANGES
@pytest.mark.parametrize("kind", ["abnn", "deterministic", "student"])
def test_a_module_of_other_code_is_refused(
    tmp_path: Path, kind: str, change: Callable[[nn.Sequential], None]
) -> None:
    MODELS[kind]().save(tmp_path)
    other = module()
    change(other)
    with pytest.raises(segunc.InputError, match=r"gives other logits.*with the same weights"):
        segunc.load(tmp_path, network=other)


def test_a_folder_of_a_version_that_recorded_no_answer_is_opened(tmp_path: Path) -> None:
    MODELS["abnn"]().save(tmp_path)
    path = tmp_path / "network.json"
    record = json.loads(path.read_text())
    del record["answer"]
    path.write_text(json.dumps(record))
    assert segunc.load(tmp_path, network=module()).bayesian


def test_a_damaged_answer_is_named(tmp_path: Path) -> None:
    MODELS["abnn"]().save(tmp_path)
    path = tmp_path / "network.json"
    record = json.loads(path.read_text())
    record["answer"]["size"] = "small"
    path.write_text(json.dumps(record))
    with pytest.raises(segunc.InputError, match="is not the size of a frame and logits"):
        segunc.load(tmp_path, network=module())


class Counting(nn.Module):
    """A network that counts its passes, and adds noise."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = module()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.count += 1
        logits: torch.Tensor = self.body(images)
        return logits + torch.rand_like(logits)


def test_the_answer_of_a_network_leaves_it_and_its_random_numbers_alone() -> None:
    body = Counting()
    network = segunc.SegmentationNetwork(body, segunc.NetworkDescription("mine", "", CLASSES))
    random_numbers = torch.get_rng_state()
    assert answer_of(network) is None
    assert int(body.count) == 0
    assert torch.equal(torch.get_rng_state(), random_numbers)


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A factory that makes what :func:`module` does, with other weights."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delitem(sys.modules, "factory_of_three_layers", raising=False)
    (tmp_path / "factory_of_three_layers.py").write_text(
        "from torch import nn\n"
        "def build(width=8):\n"
        "    first = nn.Conv2d(3, width, 3, padding=1)\n"
        "    last = nn.Conv2d(width, 3, 1)\n"
        "    return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), last)\n"
    )
    return "factory_of_three_layers:build"


@CHANGES
def test_a_factory_that_makes_another_network_is_refused(
    factory: str, change: Callable[[nn.Sequential], None]
) -> None:
    mine = module()
    change(mine)
    with pytest.raises(segunc.InputError, match="makes another network than the module"):
        segunc.wrap(mine, CLASSES, factory=factory)


def test_a_factory_of_other_arguments_is_refused(factory: str) -> None:
    with pytest.raises(segunc.InputError, match=r"another network than the module: .* shape"):
        segunc.wrap(module(), CLASSES, factory=factory, arguments={"width": 6})


def test_a_factory_of_the_module_is_taken(factory: str, tmp_path: Path) -> None:
    model = segunc.wrap(module(), CLASSES, factory=factory)
    model.save(tmp_path / "model")
    assert segunc.load(tmp_path / "model").sha256 == model.sha256


def test_a_folder_without_its_network_says_what_to_give(tmp_path: Path) -> None:
    MODELS["abnn"]().save(tmp_path)
    with pytest.raises(segunc.InputError, match=r"segunc\.load\(folder, network=module\)"):
        segunc.load(tmp_path)


def test_what_is_no_module_is_refused(tmp_path: Path) -> None:
    MODELS["abnn"]().save(tmp_path)
    with pytest.raises(segunc.InputError, match="of type str, not a torch module"):
        segunc.load(tmp_path, network=["resnet"])  # type: ignore[list-item]


def test_weights_that_changed_after_the_fit_are_not_saved(tmp_path: Path) -> None:
    mine = module()
    base = segunc.wrap(mine, CLASSES)
    model = Temperature(draws=1).fit(base, batches())
    change_a_weight(mine)
    with pytest.raises(segunc.InputError, match="weights of the network have changed"):
        model.save(tmp_path / "model")


def test_a_deterministic_model_is_not_written_over_a_bayesian_one(tmp_path: Path) -> None:
    MODELS["abnn"]().save(tmp_path)
    with pytest.raises(segunc.InputError, match="holds a Bayesian model"):
        wrapped().save(tmp_path)


def test_a_student_is_not_written_over_another_model(tmp_path: Path) -> None:
    wrapped().save(tmp_path)
    with pytest.raises(segunc.InputError, match="holds another model"):
        taught().save(tmp_path)


def test_the_network_of_a_fitted_model_is_refused(tmp_path: Path) -> None:
    model = segunc.ABNN(alpha=0.1).fit(segunc.wrap(module(), CLASSES))
    model.save(tmp_path / "model")
    with pytest.raises(segunc.InputError, match=r"of a fitted model.*of segunc\.wrap"):
        segunc.load(tmp_path / "model", network=model)


def test_a_loaded_model_that_was_trained_on_is_saved_twice(tmp_path: Path) -> None:
    mine = module()
    segunc.wrap(mine, CLASSES).save(tmp_path / "first")
    model = segunc.load(tmp_path / "first", network=mine)
    change_a_weight(mine)
    model.save(tmp_path / "second")
    model.save(tmp_path / "third")
    again = segunc.load(tmp_path / "third", network=mine)
    assert again.sha256 == segunc.wrap(mine, CLASSES).sha256


def test_maps_of_weights_that_changed_after_the_fit_are_not_saved(tmp_path: Path) -> None:
    mine = module()
    model = Temperature(draws=1).fit(segunc.wrap(mine, CLASSES), batches())
    model(IMAGE).save(tmp_path, "before")
    change_a_weight(mine)
    with pytest.warns(NoteWarning, match="maps are not those of a fit"):
        maps = model(IMAGE)
    with pytest.raises(segunc.InputError, match="do not say which model made them"):
        maps.save(tmp_path, "after")


def test_maps_of_a_network_that_was_trained_on_are_those_of_another_model(tmp_path: Path) -> None:
    mine = module()
    model = segunc.wrap(mine, CLASSES)
    model(IMAGE).save(tmp_path / "maps", "before")
    change_a_weight(mine)
    with pytest.raises(segunc.InputError, match="was written with another model"):
        model(IMAGE).save(tmp_path / "maps", "after")
    model(IMAGE).save(tmp_path / "trained", "after")
    segunc.wrap(mine, CLASSES)(IMAGE).save(tmp_path / "trained", "again")


def noisy(alpha: float) -> segunc.Model:
    return segunc.ABNN(alpha=alpha).fit(wrapped())


def assign_alpha(model: segunc.Model) -> segunc.Model:
    model.posterior = cast(segunc.ABNNPosterior, model.posterior).with_alpha(0.6)
    return model


def replace_posterior(model: segunc.Model) -> segunc.Model:
    posterior = cast(segunc.ABNNPosterior, model.posterior)
    return replace(model, posterior=posterior.with_alpha(0.6))


def write_alpha(model: segunc.Model) -> segunc.Model:
    cast(segunc.ABNNPosterior, model.posterior).alpha = 0.6
    return model


def copy_and_assign(model: segunc.Model) -> segunc.Model:
    return assign_alpha(copy.deepcopy(model))


def assign_and_copy(model: segunc.Model) -> segunc.Model:
    return copy.deepcopy(assign_alpha(model))


@pytest.mark.parametrize(
    "change", [assign_alpha, replace_posterior, write_alpha, copy_and_assign, assign_and_copy]
)
def test_another_posterior_gives_its_own_maps_and_is_not_saved(
    tmp_path: Path, change: Callable[[segunc.Model], segunc.Model]
) -> None:
    model = noisy(0.1)
    model(IMAGE)
    changed = change(model)
    with pytest.warns(NoteWarning, match=r"not the one that was fitted.*not those of a fit"):
        maps = changed(IMAGE)
    np.testing.assert_array_equal(maps.entropy, noisy(0.6)(IMAGE).entropy)
    with pytest.raises(segunc.InputError, match="do not say which model made them"):
        maps.save(tmp_path, "changed")
    with pytest.raises(segunc.InputError, match="posterior of the model is not the one"):
        changed.save(tmp_path / "model")


def test_a_copy_of_a_model_has_the_posterior_that_was_fitted(tmp_path: Path) -> None:
    model = noisy(0.1)
    model(IMAGE)
    copied = pickle.loads(pickle.dumps(model))
    copied(IMAGE).save(tmp_path / "maps", "copy")
    copied.save(tmp_path / "model")
    assert segunc.load(tmp_path / "model", network=module()).posterior_sha256


def test_maps_of_a_model_without_its_calibration_are_not_calibrated() -> None:
    model = Temperature(draws=1).fit(wrapped(), batches())
    assert not np.array_equal(model(IMAGE).entropy, wrapped()(IMAGE).entropy)
    del model.attachments["calibration"]
    np.testing.assert_array_equal(model(IMAGE).entropy, wrapped()(IMAGE).entropy)


def test_a_compiled_module_is_the_module_that_was_compiled(tmp_path: Path) -> None:
    mine = module()
    compiled: Any = torch.compile(mine)
    model = segunc.ABNN().fit(segunc.wrap(compiled, CLASSES))
    assert model.sha256 == segunc.wrap(mine, CLASSES).sha256
    model.save(tmp_path)
    assert segunc.load(tmp_path, network=compiled).sha256 == model.sha256


def test_arrays_of_colours_and_sizes_are_taken_as_plain_numbers(tmp_path: Path) -> None:
    palette: Any = np.eye(3, dtype=np.uint8) * 255
    size: Any = np.array([32, 48])
    mean: Any = torch.tensor([0.5, 0.5, 0.5])
    model = segunc.wrap(
        module(), CLASSES, mean=mean, std=mean, palette=palette, inference_size=size
    )
    model.save(tmp_path)
    description = model.network.description
    assert description.palette == ((255, 0, 0), (0, 255, 0), (0, 0, 255))
    assert description.inference_size == (32, 48)
    assert description.mean == description.std == (0.5, 0.5, 0.5)


def test_one_text_is_no_list_of_classes() -> None:
    with pytest.raises(segunc.InputError, match="classes is the text 'abc', not a list"):
        segunc.wrap(module(), "abc")
