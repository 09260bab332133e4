"""Folders that models are saved into and loaded from, one after the other, and copies of models."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import segunc
from segunc.core.errors import NoteWarning
from tests.posteriors.test_given_network import CLASSES, IMAGE, batches, module, wrapped

TEMPERATURE = segunc.Temperature(draws=1, pixels=50)


def loaded_abnn(folder: Path, net: Any) -> segunc.Model:
    segunc.ABNN().fit(segunc.wrap(net, CLASSES)).save(folder)
    return segunc.load(folder, network=net)


def test_a_loaded_model_whose_folder_has_gone_is_not_saved_in_silence(tmp_path: Path) -> None:
    model = loaded_abnn(tmp_path / "first", module())
    shutil.rmtree(tmp_path / "first")
    with pytest.raises(segunc.InputError, match="has gone"):
        model.save(tmp_path / "second")


def test_what_now_lies_in_the_folder_of_a_model_is_not_saved_for_it(tmp_path: Path) -> None:
    model = loaded_abnn(tmp_path / "first", module())
    segunc.ABNN(alpha=0.3).fit(wrapped()).save(tmp_path / "first")
    with pytest.raises(segunc.InputError, match="holds another model"):
        TEMPERATURE.fit(model, batches()).save(tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_weights_of_a_loaded_model_that_changed_are_not_lost_in_silence(tmp_path: Path) -> None:
    model: Any = loaded_abnn(tmp_path / "first", module())
    with torch.no_grad():
        model.network.body[3].weight.mul_(2)
    with pytest.raises(segunc.InputError, match="weights of the network have changed"):
        model.save(tmp_path / "second")


def test_a_loaded_network_that_was_trained_on_is_saved_as_it_is(tmp_path: Path) -> None:
    net: Any = module()
    segunc.wrap(net, CLASSES).save(tmp_path / "first")
    model = segunc.load(tmp_path / "first", network=net)
    with torch.no_grad():
        net[3].weight.mul_(2)
    model.save(tmp_path / "second")
    again = segunc.load(tmp_path / "second", network=net)
    assert again.sha256 == segunc.wrap(net, CLASSES).sha256 == model.sha256


def test_what_was_fitted_on_a_former_model_is_removed(tmp_path: Path) -> None:
    TEMPERATURE.fit(wrapped(0), batches()).save(tmp_path)
    with pytest.warns(NoteWarning, match=r"removed .*calibration\.json, .* on another model"):
        wrapped(1).save(tmp_path)
    assert segunc.load(tmp_path, network=module(1)).attachments == {}


def test_what_was_fitted_on_a_former_posterior_is_removed(tmp_path: Path) -> None:
    TEMPERATURE.fit(segunc.ABNN().fit(wrapped()), batches()).save(tmp_path)
    with pytest.warns(NoteWarning, match=r"removed .*calibration\.json"):
        segunc.ABNN(alpha=0.3).fit(wrapped()).save(tmp_path)
    model = segunc.load(tmp_path, network=module())
    assert model.attachments == {}
    assert model.record["alpha"] == 0.3


def test_what_was_fitted_on_the_same_model_stays(tmp_path: Path) -> None:
    TEMPERATURE.fit(wrapped(), batches()).save(tmp_path)
    wrapped().save(tmp_path)
    assert list(segunc.load(tmp_path, network=module()).attachments) == ["calibration"]


def test_a_network_without_weights_is_not_saved_over_weights(tmp_path: Path) -> None:
    description = segunc.NetworkDescription("FPN", "mobilenet_v2", ("road", "car"))
    segunc.save_network(segunc.build_network(description), tmp_path)
    with pytest.raises(segunc.InputError, match="holds the weights of another network"):
        wrapped().save(tmp_path)
    loaded = loaded_abnn(tmp_path / "abnn", module())
    with pytest.raises(segunc.InputError, match="holds the weights of another network"):
        loaded.save(tmp_path)
    with pytest.raises(segunc.InputError, match="holds the weights of another network"):
        segunc.TTA().fit(segunc.load(tmp_path / "abnn", network=module())).save(tmp_path)
    assert segunc.load(tmp_path).network.description == description


def test_a_model_of_one_network_is_not_saved_over_an_ensemble(tmp_path: Path) -> None:
    segunc.Ensemble().fit([wrapped(0), wrapped(1)]).save(tmp_path)
    with pytest.raises(segunc.InputError, match="holds an ensemble"):
        segunc.ABNN().fit(wrapped()).save(tmp_path)


def test_augmentation_of_a_network_is_not_saved_over_another_method(tmp_path: Path) -> None:
    segunc.ABNN().fit(wrapped()).save(tmp_path)
    with pytest.raises(segunc.InputError, match=r"holds a model of another method \(abnn\)"):
        segunc.TTA().fit(wrapped()).save(tmp_path)


def test_more_modules_than_networks_are_refused(tmp_path: Path) -> None:
    segunc.ABNN().fit(wrapped()).save(tmp_path)
    with pytest.raises(segunc.InputError, match="gives 2 modules, and the folder has use for 1"):
        segunc.load(tmp_path, network=[module(), module(1)])


def test_a_bayesian_model_does_not_stand_for_its_module(tmp_path: Path) -> None:
    model = segunc.ABNN().fit(wrapped())
    model.save(tmp_path)
    with pytest.raises(segunc.InputError, match="give the module that was wrapped"):
        segunc.load(tmp_path, network=model)


def test_an_ensemble_stands_for_the_modules_of_its_members(tmp_path: Path) -> None:
    model = segunc.Ensemble().fit([wrapped(0), wrapped(1)])
    model.save(tmp_path)
    again = segunc.load(tmp_path, network=model)
    assert again.posterior_sha256 == model.posterior_sha256


COPIES: dict[str, Callable[[segunc.Model], segunc.Model]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}
KINDS: dict[str, Callable[[], segunc.Model]] = {
    "abnn": lambda: segunc.ABNN().fit(wrapped()),
    "features": lambda: segunc.FeatureDensity(layers=["body.1"]).fit(wrapped(), batches()),
    "augmented": lambda: segunc.TTA(scales=[1.0]).fit(segunc.ABNN().fit(wrapped())),
    "ensemble": lambda: segunc.Ensemble().fit([segunc.ABNN().fit(wrapped(0)), wrapped(1)]),
}


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_gives_the_same_maps_and_is_saved(kind: str, copied: str, tmp_path: Path) -> None:
    model = KINDS[kind]()
    scores = ("entropy", "knn") if kind == "features" else ("entropy",)
    again = COPIES[copied](model)
    expected = model(IMAGE, draws=4, scores=scores)
    maps = again(IMAGE, draws=4, scores=scores)
    for name in scores:
        np.testing.assert_array_equal(getattr(maps, name), getattr(expected, name))
    again.save(tmp_path)
