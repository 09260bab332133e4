"""What fits make of the batches of a program, and of the state of its process."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import segunc
from segunc.training.fit_data import LoaderData
from tests.posteriors.test_fit_data import IN_FLOAT32, Batches, base, batches, module

CHAINS = segunc.SGLD(cycles=1, cycle_steps=4, states_per_cycle=2)
STATE = [
    segunc.Temperature(pixels=50),
    segunc.ABNN(epochs=1),
    segunc.Laplace(images=6, samples=8),
    CHAINS,
    segunc.Student(epochs=1, corruptions=[]),
    segunc.FeatureDensity(layers=["body.1"]),
    segunc.Anomaly(parts=["msp", "entropy"]),
]


def method_of(settings: Any) -> str:
    return str(settings.method)


def options_of(settings: Any) -> dict[str, Any]:
    return {"trainer": IN_FLOAT32} if isinstance(settings, segunc.ABNN) else {}


def fitted_numbers(model: segunc.Model) -> list[Any]:
    numbers: list[Any] = [model.posterior_sha256]
    for attachment in model.attachments.values():
        record = {**vars(attachment), "fitted_on": None, "_kept": None}
        numbers.append(record)
    return numbers


@pytest.mark.parametrize("settings", STATE, ids=method_of)
@pytest.mark.parametrize(
    "state",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_the_state_of_the_process_does_not_reach_into_a_fit(
    settings: Any, state: Callable[[], Any]
) -> None:
    options = options_of(settings)
    data = batches()
    plain = settings.fit(base(), data, **options)
    model = base()
    with state():
        fitted = settings.fit(model, data, **options)
    assert fitted_numbers(fitted) == fitted_numbers(plain)


def test_batches_that_were_made_in_inference_mode_train() -> None:
    with torch.inference_mode():
        data = batches()
        fitted = segunc.ABNN(epochs=1).fit(base(), data, trainer=IN_FLOAT32)
    plain = segunc.ABNN(epochs=1).fit(base(), batches(), trainer=IN_FLOAT32)
    assert fitted.posterior_sha256 == plain.posterior_sha256


@pytest.mark.parametrize("settings", STATE, ids=method_of)
@pytest.mark.parametrize(
    "change",
    [
        lambda images, labels: ((images * 255).round().byte(), labels),
        lambda images, labels: (images.double(), labels),
        lambda images, labels: (images.numpy(), labels.numpy()),
    ],
    ids=["uint8", "float64", "numpy"],
)
def test_the_same_frames_in_another_type_make_the_same_fit(
    settings: Any, change: Callable[[Tensor, Tensor], tuple[Any, Any]]
) -> None:
    options = options_of(settings)
    other = [change(images, labels) for images, labels in batches()]
    plain = settings.fit(base(), batches(), **options)
    assert fitted_numbers(settings.fit(base(), other, **options)) == fitted_numbers(plain)


IMAGES = torch.rand(2, 3, 16, 16)
LABELS = torch.zeros(2, 16, 16, dtype=torch.int64)
BAD_BATCHES = [
    ((IMAGES * 255, LABELS), "from .* not in 0..1"),
    ((IMAGES * 4 - 2, LABELS), "not in 0..1"),
    ((IMAGES * torch.nan, LABELS), "NaN"),
    ((IMAGES[0], LABELS[:1]), r"images of shape \(3, 16, 16\) are not \[N, 3, H, W\]"),
    ((IMAGES[:, :1], LABELS), r"images of shape \(2, 1, 16, 16\)"),
    ((IMAGES, LABELS[:, ::2, ::2]), r"labels of shape \(2, 8, 8\) do not fit images"),
    ((IMAGES, LABELS[:1]), r"labels of shape \(1, 16, 16\) do not fit images"),
    ((IMAGES, LABELS + 7), "label 7 in frame 0"),
    ((IMAGES, LABELS - 1), "label -1 in frame 0"),
    ((IMAGES, LABELS + 254), "label 254 in frame 0"),
    ((IMAGES, None), "labels of a batch are of type NoneType"),
]


@pytest.mark.parametrize("settings", STATE, ids=method_of)
@pytest.mark.parametrize(("batch", "said"), BAD_BATCHES, ids=[said for _, said in BAD_BATCHES])
def test_every_method_refuses_a_batch_that_does_not_fit(
    settings: Any, batch: Any, said: str
) -> None:
    with pytest.raises(segunc.InputError, match=said):
        settings.fit(base(), [batch])


@pytest.mark.parametrize("settings", STATE, ids=method_of)
def test_every_method_refuses_an_iterator(settings: Any) -> None:
    with pytest.raises(segunc.InputError, match="which can be gone through once"):
        settings.fit(base(), (batch for batch in batches()))


@pytest.mark.parametrize("settings", STATE, ids=method_of)
def test_every_method_refuses_a_loader_without_a_batch(settings: Any) -> None:
    with pytest.raises(segunc.InputError, match="the loader holds no batch"):
        settings.fit(base(), [])


class Counted(TensorDataset):
    """Counts how often a frame is read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


def counted_frames() -> Counted:
    images = torch.cat([images for images, _ in batches()])
    labels = torch.cat([labels for _, labels in batches()])
    return Counted(images, labels)


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_data_loader_is_gone_through_once_for_its_frames(drop_last: bool) -> None:
    frames = counted_frames()
    loader = DataLoader(frames, batch_size=4, drop_last=drop_last)
    fitted = segunc.PredictionSets(level=0.4).fit(base(), loader)
    expected = 4 if drop_last else 6
    assert fitted.attachments["class_sets"].frames == expected
    assert frames.reads == expected


def test_a_loader_with_a_function_for_its_batches_is_counted() -> None:
    def halves(items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        images = torch.stack([image for image, _ in items])
        labels = torch.stack([label for _, label in items])
        return torch.cat(images.split(8, 2)), torch.cat(labels.split(8, 1))

    loader = DataLoader(counted_frames(), batch_size=2, collate_fn=halves)
    assert len(LoaderData({"train": loader}, 3).dataset("train")) == 12


def test_a_stream_is_counted_by_a_pass() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(counted_frames())

    loader = DataLoader(Stream(), batch_size=4)
    assert len(LoaderData({"train": loader}, 3).dataset("train")) == 6


class TrainingOnly(L.LightningDataModule):
    """A data module without validation frames."""

    def train_dataloader(self) -> Any:
        return DataLoader(batches(seed=1), batch_size=None)


class SeveralSets(TrainingOnly):
    """A data module with validation loaders in a list or a dictionary."""

    loaders: Any = ()

    def val_dataloader(self) -> Any:
        return self.loaders


def loader_of(seed: int) -> Any:
    return DataLoader(batches(seed=seed), batch_size=None)


def test_training_frames_never_stand_for_validation_frames() -> None:
    with pytest.raises(segunc.InputError, match="the data module has no split val"):
        segunc.Temperature(pixels=50).fit(base(), TrainingOnly())
    data = SeveralSets()
    with pytest.raises(segunc.InputError, match="no split val"):
        segunc.Temperature(pixels=50).fit(base(), data)
    data.loaders = [loader_of(2), loader_of(3)]
    with pytest.raises(segunc.InputError, match="2 loaders of the split val"):
        segunc.Temperature(pixels=50).fit(base(), data)
    assert segunc.ABNN(epochs=1).fit(base(), data, trainer=IN_FLOAT32).measured["steps"] == 3


@pytest.mark.parametrize("pack", [lambda one: [one], lambda one: {"city": one}])
def test_the_only_validation_loader_is_taken_from_a_list(pack: Callable[[Any], Any]) -> None:
    data = SeveralSets()
    data.loaders = pack(loader_of(2))
    fitted = segunc.Temperature(pixels=50).fit(base(), data)
    expected = segunc.Temperature(pixels=50).fit(base(), batches(seed=2))
    assert fitted.temperature == expected.temperature


def test_what_has_the_loaders_of_a_data_module_is_one() -> None:
    class Plain:
        def train_dataloader(self) -> Batches:
            return batches(seed=1)

        def val_dataloader(self) -> Batches:
            return batches(seed=2)

    fitted = segunc.Temperature(pixels=50).fit(base(), Plain())
    expected = segunc.Temperature(pixels=50).fit(base(), batches(seed=2))
    assert fitted.temperature == expected.temperature


@pytest.mark.parametrize("name", ["max_epochs", "max_steps"])
def test_a_trainer_does_not_say_how_long_a_method_trains(name: str) -> None:
    with pytest.raises(segunc.InputError, match=f"trainer gives {name}"):
        segunc.ABNN(epochs=1).fit(base(), batches(), trainer={name: 3})


def test_a_fit_leaves_memory_and_gradients_of_the_network() -> None:
    net = module()
    model = segunc.wrap(net, ("road", "car", "sky"))
    net[0].weight.grad = torch.ones_like(net[0].weight)
    tensors = [*net.parameters(), *net.buffers()]
    pointers = [tensor.data_ptr() for tensor in tensors]
    strides = [tensor.stride() for tensor in tensors]
    gradients = [tensor.grad for tensor in tensors]
    segunc.Temperature(pixels=50).fit(model, batches())
    now = [*net.parameters(), *net.buffers()]
    assert all(tensor is before for tensor, before in zip(now, tensors, strict=True))
    assert [tensor.data_ptr() for tensor in now] == pointers
    assert [tensor.stride() for tensor in now] == strides
    assert all(tensor.grad is gradient for tensor, gradient in zip(now, gradients, strict=True))


def test_a_fit_leaves_what_lightning_says_of_other_trainings() -> None:
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        filters = list(warnings.filters)
        segunc.ABNN(epochs=1).fit(base(), batches(), trainer=IN_FLOAT32)
        assert warnings.filters == filters
        assert logger.level == logging.DEBUG
    finally:
        logger.setLevel(level)


def test_a_student_of_a_float64_network_learns() -> None:
    net = module().double()
    model = segunc.wrap(net, ("road", "car", "sky"))
    student = segunc.Student(epochs=1, corruptions=[]).fit(model, batches())
    maps = student(np.zeros((16, 16, 3), np.uint8))
    assert np.isfinite(maps.entropy).all()


def test_an_ensemble_of_what_is_no_list_is_refused() -> None:
    with pytest.raises(segunc.InputError, match="made of several models, not of a Model"):
        segunc.Ensemble().fit(base())  # type: ignore[arg-type]


def test_a_network_that_was_trained_on_is_fitted_as_it_is() -> None:
    net: Any = module()
    model = segunc.wrap(net, ("road", "car", "sky"))
    with torch.no_grad():
        net[3].weight.mul_(2)
    expected = segunc.ABNN().fit(segunc.wrap(net, ("road", "car", "sky")))
    fitted = segunc.ABNN().fit(model)
    assert fitted.sha256 == expected.sha256
    assert fitted.posterior_sha256 == expected.posterior_sha256


def test_a_fit_on_weights_that_changed_after_another_fit_is_refused() -> None:
    net: Any = module()
    model = segunc.Temperature(pixels=50).fit(segunc.wrap(net, ("road", "car", "sky")), batches())
    with torch.no_grad():
        net[3].weight.mul_(2)
    with pytest.raises(segunc.InputError, match="have changed since something was fitted"):
        segunc.Anomaly(parts=["msp", "entropy"]).fit(model, batches())
