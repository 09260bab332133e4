"""The callback in a training of a user: what it logs, and that it leaves no trace in the
training.
"""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import lightning as L
import numpy as np
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    SequentialSampler,
    TensorDataset,
)

import segunc
from segunc.core.errors import InputError, NoteWarning
from segunc.lightning import UncertaintyCallback
from segunc.lightning.callback import batches_of_validation
from tests.callback.training import (
    CLASSES,
    METHOD,
    LitBlocks,
    blocks,
    make_callback,
    make_trainer,
    run,
    train_loader,
    val_loader,
)


def epochs_of(callback: UncertaintyCallback) -> list[int]:
    return [evaluation.epoch for evaluation in callback.history]


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": None},
        {"at_end": True, "every": 5},
        {"network": lambda module: module.net},
        {"scores": ("msp", "aleatoric")},
    ],
)
def test_the_training_is_the_same_bit_for_bit(tmp_path: Path, settings: dict[str, Any]) -> None:
    alone, expected = run(tmp_path)
    expected_numbers = [random.random(), np.random.rand(), float(torch.rand(()))]  # noqa: NPY002
    callback = make_callback(**settings)
    trainer, module = run(tmp_path, [callback])
    numbers = [random.random(), np.random.rand(), float(torch.rand(()))]  # noqa: NPY002
    assert len(callback.history) == (1 if "every" in settings else 2)
    assert same_weights(module, expected)
    assert numbers == expected_numbers
    assert str(trainer.optimizers[0].state_dict()) == str(alone.optimizers[0].state_dict())
    assert [m.training for m in module.modules()] == [m.training for m in expected.modules()]


DENSITY = segunc.FeatureDensity(layers=["body.2"])
METHODS: list[Any] = [
    [segunc.ABNN(), segunc.Temperature()],
    [segunc.ABNN(), DENSITY, (segunc.Anomaly(), [blocks(4, 9).tensors])],
    segunc.TTA(),
    segunc.MCDropout(),
    segunc.MCBN(batches=2, batch_size=2),
    segunc.SWAG(epochs=1, burn_in=0, collect_every=1),
    segunc.Laplace(),
    segunc.Variational(epochs=1),
    segunc.Student(),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_every_method_leaves_the_training_as_it_was(tmp_path: Path, method: Any) -> None:
    _, expected = run(tmp_path, epochs=1)
    callback = make_callback(method=method)
    _, module = run(tmp_path, [callback], epochs=1)
    assert same_weights(module, expected)
    numbers = callback.history[0].numbers
    assert 0 < numbers["entropy_mean"] < 1
    has_anomaly = isinstance(method, list) and len(method) == 3
    assert ("anomaly_mean" in numbers) == has_anomaly


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_a_training_in_another_precision_is_the_same(tmp_path: Path, precision: Any) -> None:
    _, expected = run(tmp_path, precision=precision)
    callback = make_callback()
    _, module = run(tmp_path, [callback], precision=precision)
    assert epochs_of(callback) == [1, 2]
    assert same_weights(module, expected)
    assert module.net[0].weight.dtype == expected.net[0].weight.dtype


class Surroundings(L.Callback):
    """Writes down what a Trainer keeps for the whole process."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        names = ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")
        levels = [logging.getLogger(name).level for name in names]
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        seeds = {key: value for key, value in os.environ.items() if key.startswith("PL_")}
        self.seen.append((levels, handlers, seeds, rank_zero_only.rank, warnings.filters[:]))


def test_the_trainer_of_a_method_leaves_that_of_the_user_alone(tmp_path: Path) -> None:
    surroundings = Surroundings()
    logging.getLogger("lightning.pytorch").setLevel(logging.INFO)
    run(tmp_path, [surroundings, make_callback(), surroundings], epochs=1)
    before, after = surroundings.seen
    assert before == after


class Dimmed(TensorDataset):
    """Images that a generator of their data set makes darker, as transforms do."""

    def __init__(self) -> None:
        super().__init__(*blocks(8, 0).tensors)
        self.random = np.random.default_rng(7)

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image * self.random.uniform(0.5, 1), label


def test_a_training_with_generators_of_its_own_is_the_same(tmp_path: Path) -> None:
    sums: list[float] = []

    class Method:
        def fit(self, base: segunc.Model, data: Any) -> segunc.Model:
            sums.append(sum(float(batch["image"].sum()) for batch in data))
            return base

    def train(callbacks: list[Any]) -> LitBlocks:
        module = LitBlocks(dropout=0.0)
        generator = torch.Generator().manual_seed(5)
        loader = DataLoader(Dimmed(), 4, shuffle=True, generator=generator)
        make_trainer(tmp_path, callbacks).fit(module, loader, val_loader())
        return module

    assert same_weights(train([]), train([make_callback(method=Method())]))
    # Every evaluation fits the same.
    assert sums[0] == sums[1]


def test_a_callback_begins_anew_in_a_second_training(tmp_path: Path) -> None:
    callback = make_callback(method=None, at_end=True)
    run(tmp_path, [callback], epochs=2)
    run(tmp_path, [callback], epochs=1)
    assert epochs_of(callback) == [1]


class Stream(torch.utils.data.IterableDataset[Any]):
    """Frames that come in their order."""

    def __iter__(self) -> Any:
        return iter([*blocks(4, 0)])


def test_the_position_of_a_stream_is_not_lost(tmp_path: Path) -> None:
    loader = DataLoader(Stream(), 2)
    trainer = make_trainer(tmp_path, [make_callback(on_error="warn")])
    with pytest.raises(InputError, match=r"reads an IterableDataset.*fit_data=...\) a loader"):
        trainer.fit(LitBlocks(), loader, val_loader())
    assert trainer.global_step == 0
    callback = make_callback(fit_data=train_loader(), frames=DataLoader(Stream(), 2), limit=3)
    make_trainer(tmp_path, [callback], epochs=1).fit(LitBlocks(), loader)
    assert callback.history[0].frames == 3


def test_a_training_that_is_continued_from_a_checkpoint_is_the_same(tmp_path: Path) -> None:
    """Two epochs, a new process in effect, and two more; with and without the callback."""
    modules = {}
    histories = {}
    for name, every in (("alone", None), ("watched", 2)):
        folder = tmp_path / name
        for epochs in (2, 4):
            saver = ModelCheckpoint(folder, "last", save_on_train_epoch_end=True)
            callbacks: list[Any] = [saver]
            if every is not None:
                callbacks.append(make_callback(every=every))
            L.seed_everything(epochs, verbose=False)
            module = LitBlocks()
            trainer = make_trainer(folder, callbacks, epochs=epochs, enable_checkpointing=True)
            last = folder / "last.ckpt"
            resume = str(last) if last.exists() else None
            trainer.fit(module, train_loader(), val_loader(), ckpt_path=resume)
            if resume is None:
                continue
            modules[name] = module
            histories[name] = callbacks[-1]
    assert same_weights(modules["alone"], modules["watched"])
    assert epochs_of(histories["watched"]) == [2, 4]


def test_numbers_are_those_of_the_fitted_model(tmp_path: Path) -> None:
    """Against the same fit and maps by hand, NumPy and scikit-learn."""
    callback = make_callback(pictures=0)
    trainer, module = run(tmp_path, [callback], epochs=1)
    model = callback._recipe.fitted(module.net, callback._data(trainer), torch.device("cpu"))
    sampler = segunc.Sampler(
        model.network, model.posterior, draws=4, scores=("msp", "entropy", "epistemic")
    )
    maps = [sampler(image[None], keep_probabilities=True) for image, _ in blocks(5, 1)]
    labels = np.stack([label.numpy() for _, label in blocks(5, 1)])
    prediction = np.concatenate([one.prediction.numpy() for one in maps])
    entropy = np.concatenate([one.scores["entropy"].numpy() for one in maps]).astype(np.float64)
    labelled = labels != 255
    wrong = (prediction != labels)[labelled]
    numbers = callback.history[-1].numbers
    assert numbers["accuracy"] == pytest.approx(1 - wrong.mean(), abs=1e-12)
    assert numbers["entropy_mean"] == pytest.approx(entropy.mean(), abs=1e-9)
    # The stored scores have 16 bits.
    auroc = roc_auc_score(wrong, entropy[labelled])
    assert numbers["entropy_failure_auroc"] == pytest.approx(auroc, abs=1e-4)
    probabilities = np.concatenate([one.probabilities.numpy() for one in maps])
    picked = np.take_along_axis(probabilities, np.where(labelled, labels, 0)[:, None], 1)[:, 0]
    assert numbers["nll"] == pytest.approx(-np.log(picked[labelled]).mean(), abs=1e-5)
    for key, value in numbers.items():
        assert float(trainer.callback_metrics[f"segunc/{key}"]) == pytest.approx(value, rel=1e-6)


def with_anomalies(count: int = 3) -> list[dict[str, Tensor]]:
    images, labels = blocks(count, 2).tensors
    anomaly = torch.zeros(count, 32, 48, dtype=torch.uint8)
    anomaly[:, 20:28, 8:24] = 1
    anomaly[:, :2] = 255
    images = images.clone()
    images[:, :, 20:28, 8:24] = torch.rand(count, 3, 8, 16, generator=torch.manual_seed(0))
    return [{"image": images, "label": labels, "anomaly": anomaly}]


def test_anomaly_labels_give_anomaly_numbers(tmp_path: Path) -> None:
    frames = with_anomalies()
    callback = make_callback(frames=frames, method=None)
    _, module = run(tmp_path, [callback], epochs=1)
    base = segunc.wrap(module.net, CLASSES, mean=(0, 0, 0), std=(1, 1, 1))
    maps = segunc.Sampler(base.network, scores=("entropy",))(frames[0]["image"])
    anomaly = frames[0]["anomaly"].numpy()
    counted = anomaly != 255
    values = maps.scores["entropy"].numpy()[counted]
    numbers = callback.history[0].numbers
    assert numbers["entropy_auroc"] == pytest.approx(
        roc_auc_score(anomaly[counted], values), abs=1e-4
    )
    assert numbers["entropy_aupr"] == pytest.approx(
        average_precision_score(anomaly[counted], values), abs=1e-3
    )
    assert 0 <= numbers["entropy_fpr95"] <= 1


def test_frames_without_labels_give_means_alone(tmp_path: Path) -> None:
    callback = make_callback(frames=[blocks(3, 1).tensors[0]])
    run(tmp_path, [callback], epochs=1)
    assert set(callback.history[0].numbers) == {"entropy_mean", "epistemic_mean"}
    assert callback.history[0].frames == 3


def test_normalised_images_give_the_numbers_of_images_in_0_to_1(tmp_path: Path) -> None:
    """The loader normalises for one user, the network of the other does it itself."""
    mean = (0.4, 0.5, 0.6)
    std = (0.2, 0.25, 0.3)
    images, labels = blocks(4, 1).tensors
    normalised = (images - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    histories = []
    for given, is_normalised in ((images, False), (normalised, True)):
        callback = make_callback(
            method=None,
            mean=mean,
            std=std,
            normalised=is_normalised,
            frames=[(given, labels)],
        )
        run(tmp_path, [callback], epochs=1)
        histories.append(callback.history[0].numbers)
    assert histories[0] == pytest.approx(histories[1], abs=1e-4)


def test_every_so_many_epochs_and_at_the_end(tmp_path: Path) -> None:
    callback = make_callback(every=2, method=None)
    run(tmp_path, [callback], epochs=5)
    assert epochs_of(callback) == [2, 4]
    callback = make_callback(every=2, method=None, at_end=True)
    run(tmp_path, [callback], epochs=5)
    assert epochs_of(callback) == [2, 4, 5]


class Stop(L.Callback):
    """Ends a training early."""

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        trainer.should_stop = trainer.current_epoch == 2


def test_the_end_of_a_training_that_stops_early_is_evaluated(tmp_path: Path) -> None:
    callback = make_callback(every=2, method=None, at_end=True)
    logger = CSVLogger(tmp_path)
    run(tmp_path, [callback, Stop()], epochs=9, logger=logger)
    assert epochs_of(callback) == [2, 3]
    logged = (Path(logger.log_dir) / "metrics.csv").read_text()
    assert str(callback.history[-1].numbers["entropy_mean"])[:8] in logged.splitlines()[-1]


def test_a_number_can_be_monitored(tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, "best", monitor="segunc/entropy_mean", mode="min")
    run(tmp_path, [make_callback(method=None), saver], enable_checkpointing=True)
    assert saver.best_model_score is not None


def test_methods_are_fitted_one_after_the_other(tmp_path: Path) -> None:
    calls: list[Any] = []

    class Method:
        def __init__(self, name: str) -> None:
            self.name = name

        def fit(self, base: segunc.Model, data: Any) -> segunc.Model:
            calls.append((self.name, base, [batch["image"].shape for batch in data]))
            return segunc.ABNN().fit(base) if self.name == "first" else base

    callback = make_callback(method=[Method("first"), Method("second")])
    run(tmp_path, [callback], epochs=1)
    names = [name for name, _, _ in calls]
    assert names == ["first", "second"]
    assert not calls[0][1].bayesian
    assert calls[1][1].bayesian
    assert calls[0][2] == [(4, 3, 32, 48), (4, 3, 32, 48)]


def test_pictures_are_files_where_no_logger_takes_images(tmp_path: Path) -> None:
    callback = make_callback(pictures=2)
    run(tmp_path, [callback], epochs=1, logger=CSVLogger(tmp_path))
    path = tmp_path / "lightning_logs/version_0/segunc/epoch_0001.png"
    assert callback.history[0].picture == path
    picture = cv2.imread(str(path))
    assert picture is not None
    # Image, label, prediction, errors, entropy and epistemic: six pictures of 320 pixels.
    assert picture.shape[1] > 6 * 320


def test_pictures_go_to_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = make_callback(name="watch")
    logger = TensorBoardLogger(tmp_path)
    run(tmp_path, [callback], epochs=2, logger=[CSVLogger(tmp_path), logger])
    events = EventAccumulator(logger.log_dir, size_guidance={"images": 0})
    events.Reload()
    images = events.Images("watch/maps")
    assert [image.step for image in images] == [2, 4]
    picture = cv2.imdecode(np.frombuffer(images[0].encoded_image_string, np.uint8), 1)
    assert picture.shape == (images[0].height, images[0].width, 3)
    assert "watch/miou" in events.Tags()["scalars"]
    assert not [*tmp_path.rglob("epoch_*.png")]


class Wandb:
    """A logger with the method of Weights & Biases."""

    def __init__(self) -> None:
        self.images: list[tuple[str, int, tuple[int, ...]]] = []

    def log_image(self, key: str, images: list[Any], step: int, caption: list[str]) -> None:
        assert caption == ["after epoch 1"]
        self.images.append((key, step, images[0].shape))


class MLFlowLogger:
    """The part of MLflow's logger that takes images."""

    run_id = "run"

    def __init__(self) -> None:
        self.images: list[tuple[str, str]] = []

    @property
    def experiment(self) -> Any:
        return self

    def log_image(self, run_id: str, image: Any, artifact_file: str) -> None:
        assert image.dtype == np.uint8
        self.images.append((run_id, artifact_file))


class SpecialMLFlowLogger(MLFlowLogger):
    """A user's own, of which the picture is still an artifact."""


def test_each_kind_of_logger_takes_pictures_its_way(tmp_path: Path) -> None:
    from segunc.lightning.picture_logs import Picture, log_picture

    picture = Picture("segunc/maps", np.zeros((4, 6, 3), np.uint8), step=7, epoch=1)
    wandb = Wandb()
    mlflow = SpecialMLFlowLogger()
    assert log_picture(picture, [object(), wandb, mlflow], tmp_path) is None
    assert wandb.images == [("segunc/maps", 7, (4, 6, 3))]
    assert mlflow.images == [("run", "segunc/maps/epoch_0001.png")]
    assert log_picture(picture, [object()], tmp_path) == tmp_path / "epoch_0001.png"


def test_the_trainer_of_pytorch_lightning_takes_it(tmp_path: Path) -> None:
    """The other name of the same library, whose classes are others."""

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = LitBlocks().net

        training_step = LitBlocks.training_step

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    callback = make_callback(frames=val_loader())
    trainer = pytorch_lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        callbacks=[callback],
        default_root_dir=tmp_path,
        enable_progress_bar=False,
        enable_checkpointing=False,
    )
    trainer.fit(Module(), train_loader())
    assert epochs_of(callback) == [1]
    assert float(trainer.callback_metrics["segunc/miou"]) > 0
    callback.network = None
    with pytest.raises(InputError, match="Module has no forward, and network does not say"):
        trainer.fit(Module(), train_loader())


class Broken(LitBlocks):
    """Its network returns NaN after the first epoch."""

    def on_train_epoch_end(self) -> None:
        if self.current_epoch == 0:
            with torch.no_grad():
                self.net[4].bias[0] = torch.nan


def test_a_failing_evaluation_is_a_warning(tmp_path: Path) -> None:
    callback = make_callback(on_error="warn")
    with pytest.warns(
        NoteWarning, match="no evaluation after epoch 2: .*NaN.*The training goes on"
    ):
        trainer, _ = run(tmp_path, [callback], module=Broken())
    assert trainer.current_epoch == 2
    assert epochs_of(callback) == [1]


def test_a_failing_evaluation_ends_the_training_where_that_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="NaN"):
        run(tmp_path, [make_callback(on_error="raise")], module=Broken())


def test_labels_that_are_no_classes_are_said(tmp_path: Path) -> None:
    images, labels = blocks(2, 1).tensors
    labels = labels.clone()
    labels[1, 5, 5] = 9
    callback = make_callback(method=None, frames=[(images, labels)])
    with pytest.raises(InputError, match=r"the label of frame 1 holds 9.*ignore_index=9"):
        run(tmp_path, [callback], epochs=1)
    callback = make_callback(method=None, frames=[(images, labels)], ignore_index=9)
    run(tmp_path, [callback], epochs=1)
    assert callback.history[0].frames == 2


class TwoHeads(LitBlocks):
    """A module whose own forward gives logits."""

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits


def test_the_module_itself_can_be_the_network(tmp_path: Path) -> None:
    named = make_callback()
    run(tmp_path, [named], epochs=1)
    itself = make_callback(network=None)
    _, module = run(tmp_path, [itself], epochs=1, module=TwoHeads())
    assert itself.history[0].numbers == named.history[0].numbers
    assert module.training


WRONG_NETWORKS = [
    (None, "LitBlocks has no forward, and network does not say .*Hint: network is one of net"),
    ("nett", "no attribute network='nett' .did you mean net"),
    ("lr", "the network of LitBlocks is of type float, not a torch module"),
    (lambda module: 3, "of type int, not a torch module"),
]


@pytest.mark.parametrize(("network", "message"), WRONG_NETWORKS)
def test_a_wrong_network_is_said_before_the_first_step(
    tmp_path: Path, network: Any, message: str
) -> None:
    callback = make_callback(network=network, on_error="warn")
    trainer = make_trainer(tmp_path, [callback])
    with pytest.raises(InputError, match=message):
        trainer.fit(LitBlocks(), train_loader(), val_loader())
    assert trainer.global_step == 0


def test_wrong_classes_are_said_before_the_first_step(tmp_path: Path) -> None:
    callback = make_callback(classes=["road", "car"], on_error="warn")
    trainer = make_trainer(tmp_path, [callback])
    with pytest.raises(InputError, match="3 output channels, but 2"):
        trainer.fit(LitBlocks(), train_loader(), val_loader())
    assert trainer.global_step == 0


WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"every": 0}, "every 0 is not a whole number of at least 1"),
    ({"every": 2.0}, "every 2.0 is not"),
    ({"draws": True}, "draws True is not"),
    ({"limit": 0}, "limit 0 is not"),
    ({"seed": 2**32}, "seed 4294967296 is not a whole number from 0 to 4294967295"),
    ({"method": segunc.ABNN}, "method ABNN is not the settings of a method"),
    ({"method": "abnn"}, "method 'abnn' is not the settings"),
    ({"method": [METHOD, (3, [])]}, "method 3 is not the settings"),
    ({"classes": "road"}, "classes is the text 'road', not a list"),
    ({"mean": (0, 0, 0)}, "mean and std belong together"),
    ({"normalised": True}, "normalised images need the mean and std"),
    ({"scores": ("entropi",)}, "entropi"),
    ({"scores": "entropy"}, "scores is one text, 'entropy'"),
    ({"seed": "a"}, "seed 'a' is not a whole number"),
    ({"seed": -1}, "seed -1 is not a whole number from 0"),
    ({"ignore_index": "x"}, "ignore_index 'x' is not a whole number"),
    ({"mean": 0.5, "std": 0.5}, "mean 0.5 is not a number for each channel"),
    ({"frames": 3}, "frames is of type int, not a loader"),
    ({"unpack": 3}, "unpack 3 is not a function of a batch"),
    ({"on_error": "ignore"}, "on_error 'ignore' is neither"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG_ARGUMENTS)
def test_a_wrong_argument_is_one_sentence(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        make_callback(**settings)


WRONG_DATA: list[tuple[dict[str, Any], str]] = [
    ({"frames": [{"pixels": torch.zeros(1)}]}, "with the keys pixels has no known form"),
    ({"frames": [torch.zeros(3, 8, 8)]}, "are (3, 8, 8), not a tensor [N, C, H, W]"),
    ({"frames": [(255 * torch.rand(1, 3, 8, 8),)]}, "not in 0..1. Hint: divide by 255"),
    (
        {"frames": [(torch.rand(1, 3, 8, 8), torch.zeros(1, 4, 4))]},
        "labels of shape (1, 4, 4) do not fit images of shape (1, 3, 8, 8)",
    ),
    (
        {
            "frames": [255 * torch.rand(1, 3, 8, 8)],
            "normalised": True,
            "mean": (0.5, 0.5, 0.5),
            "std": (0.2, 0.2, 0.2),
        },
        "without their normalisation the images have values from",
    ),
    (
        {
            "frames": [torch.zeros(1, 3, 8, 8, dtype=torch.uint8)],
            "normalised": True,
            "mean": (0.5, 0.5, 0.5),
            "std": (0.2, 0.2, 0.2),
        },
        "images of the type uint8 are not normalised",
    ),
    ({"frames": []}, "there is no frame to evaluate"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG_DATA)
def test_wrong_data_is_one_sentence(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        run(tmp_path, [make_callback(method=None, **settings)], epochs=1)


def test_batches_of_another_form_are_unpacked(tmp_path: Path) -> None:
    images, labels = blocks(3, 1).tensors
    plain = make_callback(method=None, frames=[(images, labels)])
    run(tmp_path, [plain], epochs=1)
    own = make_callback(
        method=None,
        frames=[{"pixels": images, "masks": labels}],
        unpack=lambda batch: (batch["pixels"], batch["masks"]),
    )
    run(tmp_path, [own], epochs=1)
    assert own.history[0].numbers == plain.history[0].numbers


def test_bytes_are_images_in_0_to_1(tmp_path: Path) -> None:
    images, labels = blocks(3, 1).tensors
    whole = (255 * images).round()
    histories = []
    for given in (whole.byte(), whole / 255):
        callback = make_callback(method=None, frames=[(given, labels)])
        run(tmp_path, [callback], epochs=1)
        histories.append(callback.history[0].numbers)
    assert histories[0] == histories[1]


def test_two_callbacks_keep_two_histories(tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, "last", save_on_train_epoch_end=True)
    callbacks = [make_callback(), make_callback(method=None, name="base", every=2), saver]
    trainer, _ = run(tmp_path, callbacks, enable_checkpointing=True)
    assert {"segunc/epistemic_mean", "base/miou"} <= set(trainer.callback_metrics)
    continued = [make_callback(), make_callback(method=None, name="base", every=2)]
    again = make_trainer(tmp_path, continued, epochs=3)
    again.fit(LitBlocks(), train_loader(), val_loader(), ckpt_path=str(tmp_path / "last.ckpt"))
    assert epochs_of(continued[0]) == [1, 2, 3]
    assert epochs_of(continued[1]) == [2]
    assert continued[1].history == callbacks[1].history


def test_the_method_is_fitted_on_other_data_where_they_are_given(tmp_path: Path) -> None:
    """Batches that each process reads whole, and data that the method opens itself."""
    seen: list[Any] = []

    class Method:
        def fit(self, base: segunc.Model, data: Any) -> segunc.Model:
            seen.append(data)
            return base

    batches = [blocks(2, 3).tensors]
    run(tmp_path, [make_callback(method=Method(), fit_data=batches)], epochs=1)
    run(tmp_path, [make_callback(method=Method(), fit_data="toy")], epochs=1)
    (batch,) = seen[0]
    assert len(seen[0]) == 1
    assert torch.equal(batch["image"], batches[0][0])
    assert seen[1] == "toy"


def test_a_fit_shuffles_the_same_way_each_time(tmp_path: Path) -> None:
    orders: list[list[float]] = []

    def sums_of(batches: Any) -> list[float]:
        return [float(value) for batch in batches for value in batch["image"].sum((1, 2, 3))]

    class Method:
        def fit(self, base: segunc.Model, data: Any) -> segunc.Model:
            orders.append(sums_of(data))
            assert sums_of(data) != orders[-1]
            return base

    run(tmp_path, [make_callback(method=Method())], epochs=3)
    assert orders[0] == orders[1] == orders[2]
    plain = [float(image.sum()) for image, _ in blocks(8, 0)]
    assert orders[0] != plain
    assert sorted(orders[0]) == pytest.approx(sorted(plain))


def test_a_training_without_validation_is_told_what_lacks(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, [make_callback(on_error="warn")])
    with pytest.raises(InputError, match=r"no validation loader. Hint: .*frames=...\) a loader"):
        trainer.fit(LitBlocks(), train_loader())
    assert trainer.global_step == 0


class FSDPStrategy:
    """Splits a network over devices."""


def test_a_strategy_that_splits_the_network_is_refused() -> None:
    trainer: Any = SimpleNamespace(strategy=FSDPStrategy())
    with pytest.raises(InputError, match=r"FSDPStrategy splits it. Hint: take strategy="):
        make_callback().on_fit_start(trainer, LitBlocks())


class BrokenLogger(CSVLogger):
    """Takes images, and fails."""

    def log_image(self, **_: Any) -> None:
        raise ConnectionError("the server is away")


def test_a_logger_that_fails_costs_the_picture_alone(tmp_path: Path) -> None:
    callback = make_callback(on_error="warn")
    with pytest.warns(NoteWarning, match="no picture after epoch 1: ConnectionError: the server"):
        trainer, _ = run(tmp_path, [callback], epochs=1, logger=BrokenLogger(tmp_path))
    assert len(callback.history) == 1
    assert "segunc/miou" in trainer.callback_metrics
    with pytest.raises(ConnectionError):
        run(tmp_path, [make_callback()], epochs=1, logger=BrokenLogger(tmp_path))


def test_several_loaders_are_refused_and_one_in_a_list_is_taken(tmp_path: Path) -> None:
    callback = make_callback(method=None)
    trainer = make_trainer(tmp_path, [callback], epochs=1)
    trainer.fit(LitBlocks(), train_loader(), [val_loader()])
    assert callback.history[0].frames == 5
    trainer = make_trainer(tmp_path, [make_callback(method=None)], epochs=1)
    module = LitBlocks()
    module.validation_step = lambda *batch: None  # type: ignore[method-assign]
    with pytest.raises(InputError, match="the trainer has 2 validation loaders"):
        trainer.fit(module, train_loader(), [val_loader(), val_loader()])


def test_no_more_frames_than_the_trainer_validates_on(tmp_path: Path) -> None:
    for limit, frames in ((1, 2), (2, 4), (0.4, 2), (1.0, 5)):
        callback = make_callback(method=None)
        run(tmp_path, [callback], epochs=1, limit_val_batches=limit)
        assert callback.history[0].frames == frames
    callback = make_callback(method=None, limit=3)
    run(tmp_path, [callback], epochs=1)
    assert callback.history[0].frames == 3


def test_no_more_batches_of_a_stream_than_the_trainer_validates_on(tmp_path: Path) -> None:
    sampler = BatchSampler(SequentialSampler(blocks(5, 1)), 2, drop_last=False)
    loaders: list[DataLoader[Any]] = [
        DataLoader(Stream(), 2),
        DataLoader(blocks(5, 1), batch_sampler=sampler),
    ]
    for loader in loaders:
        callback = make_callback(method=None)
        trainer = make_trainer(tmp_path, [callback], epochs=1, limit_val_batches=1)
        trainer.fit(LitBlocks(), train_loader(), loader)
        assert callback.history[0].frames == 2


@pytest.mark.parametrize(("limit", "batches"), [(2, 4), (0.5, 2), (1.0, None)])
def test_batches_of_several_processes_are_those_that_the_trainer_validates_on(
    limit: float, batches: int | None
) -> None:
    """Five batches on two processes are three each, and a half of three is one."""
    trainer: Any = SimpleNamespace(limit_val_batches=limit, world_size=2)
    data = blocks(5, 1)
    sampler: Any = DistributedSampler(data, num_replicas=2, rank=0, shuffle=False)
    assert batches_of_validation(trainer, DataLoader(data, 1, sampler=sampler)) == batches
    whole = {2: 2, 0.5: 2, 1.0: None}[limit]
    assert batches_of_validation(trainer, DataLoader(data, 1)) == whole


def test_a_try_of_one_batch_evaluates_and_writes_nothing(tmp_path: Path) -> None:
    callback = make_callback(every=7)
    run(tmp_path, [callback], fast_dev_run=True)
    assert len(callback.history) == 1
    assert not [*tmp_path.rglob("*.png")]


def test_a_loader_with_workers_that_stay_is_not_moved(tmp_path: Path) -> None:
    """Workers keep their random numbers from epoch to epoch."""

    def train(callbacks: list[Any]) -> LitBlocks:
        L.seed_everything(1, workers=True, verbose=False)
        module = LitBlocks()
        data = Noisy(*blocks(4, 0).tensors)
        loader = DataLoader(data, 2, num_workers=1, persistent_workers=True, shuffle=True)
        make_trainer(tmp_path, callbacks).fit(module, loader, val_loader())
        return module

    assert same_weights(train([]), train([make_callback()]))


class Noisy(TensorDataset):
    """Images with noise of the process that reads them."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image * (1 - 0.1 * torch.rand(())), label


def test_notes_on_the_network_are_given_once(tmp_path: Path) -> None:
    class Shares(LitBlocks):
        def __init__(self) -> None:
            super().__init__()
            self.net.append(nn.LogSoftmax(1))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(tmp_path, [make_callback(method=None)], module=Shares(), epochs=3)
    notes = [str(w.message) for w in caught if issubclass(w.category, NoteWarning)]
    assert len(notes) == len(set(notes)) >= 1
    assert any("log-probabilities" in note for note in notes)


def test_importing_the_package_imports_no_lightning() -> None:
    import subprocess
    import sys

    code = (
        "import sys, segunc; assert 'lightning' not in sys.modules; "
        "segunc.lightning.UncertaintyCallback; assert 'lightning' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("offset", "factor", "hint"),
    [
        (-0.45, 4.5, "mean=..., std=..., normalised=True"),
        (0.0, 255.0, "divide by 255, in the data set or in unpack="),
    ],
)
def test_images_out_of_range_are_refused_with_the_argument_of_the_callback(
    tmp_path: Path, offset: float, factor: float, hint: str
) -> None:
    images, labels = blocks(4, 0).tensors
    loader = DataLoader(TensorDataset((images + offset) * factor, labels), batch_size=2)
    trainer = make_trainer(tmp_path, [make_callback(method=None)], epochs=1)
    with pytest.raises(InputError, match=re.escape(hint)):
        trainer.fit(LitBlocks(), loader, loader)
