"""ABNN over a training step and a loop of one's own: the same members as the task, nothing else moved, and goes on where it stopped."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn

from segunc.affine.convert import revert
from segunc.affine.draws import AffineLayout
from segunc.core.errors import InputError, PartialFailure
from segunc.networks import NetworkDescription, SegmentationNetwork, build_network, save_network
from segunc.posteriors.abnn import ABNNPosterior, ABNNTuner
from segunc.posteriors.abnn_task import ABNNCallback, ABNNTask
from segunc.posteriors.files import load_model
from segunc.sampling.sampler import Sampler
from tests.affine.networks import layout_of, small_network
from tests.training.fitting import fit, loader

SETTINGS: dict[str, Any] = {"members": 3, "alpha": 0.2, "lr": 0.1, "effective_pixels": 200.0, "seed": 5}
"""With a prior strong enough to be seen in the members."""


class Script(L.LightningModule):
    """A training script that segunc does not know: dropout, running statistics and a parameter beside the network."""

    def __init__(self, network: nn.Module | None = None) -> None:
        super().__init__()
        network = nn.Sequential(small_network(), nn.Dropout(0.5)) if network is None else network
        self.wrapped = nn.ModuleDict({"net": network.train()})
        self.offset = nn.Parameter(torch.zeros(4, 1, 1))
        self.seen: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.train()
        torch.manual_seed(100 * self.current_epoch + batch_idx)  # of the dropout, so that a resumed fit drops the same
        logits = self.wrapped["net"](batch[0].contiguous(memory_format=torch.channels_last)) + self.offset
        return {"loss": F.cross_entropy(logits.float(), batch[1])}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen.append(self.wrapped["net"](batch[0]))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def tune(
    module: L.LightningModule, epochs: int, *more: L.Callback, resume: Path | None = None, **trainer: Any
) -> ABNNPosterior:
    """The posterior of a fit whose first callback, of several perhaps, is ours."""
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    runner = L.Trainer(max_epochs=epochs, accelerator="cpu", callbacks=[*more], **{**quiet, **trainer})
    runner.fit(module, loader(), loader(16), ckpt_path=resume, weights_only=True)
    (callback,) = (one for one in more if isinstance(one, ABNNCallback))
    return callback.posterior()


def ours(**settings: Any) -> ABNNCallback:
    return ABNNCallback(**{"network": "wrapped.net", **SETTINGS, **settings})


def assert_same(one: ABNNPosterior, other: ABNNPosterior, atol: float = 1e-6) -> None:
    base = layout_of(small_network())
    assert float((one.gamma - base.weight).abs().amax(1).min()) > 1e-3, "every member moved"
    assert float((one.gamma[0] - one.gamma[1]).abs().max()) > 1e-4, "each its own way"
    for name, tensor in one.tensors().items():
        torch.testing.assert_close(tensor, other.tensors()[name], rtol=0.0, atol=atol)


@pytest.mark.parametrize(
    ("optimizer", "trainer"),
    [
        ("sgd", dict),
        ("sgd", lambda: {"precision": "bf16-mixed"}),
        ("adamw", lambda: {"accumulate_grad_batches": 3, "gradient_clip_val": 0.5}),
        (
            "adamw",
            lambda: {"plugins": MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=256.0))},
        ),
    ],
    ids=["plain", "bfloat16", "accumulated and clipped", "float16 with a scaler"],
)
def test_the_callback_and_the_task_give_the_same_members(optimizer: str, trainer: Any, tmp_path: Path) -> None:
    task = ABNNTask(small_network(), 4, **SETTINGS, random_classes=0, optimizer=optimizer)
    fit(task, tmp_path, 3, **trainer())
    posterior = tune(Script(), 3, ours(optimizer=optimizer), default_root_dir=tmp_path, **trainer())
    assert_same(posterior, task.posterior())


@pytest.mark.parametrize("own", [False, True], ids=["its optimiser", "one of one's own"])
def test_a_plain_loop_and_the_task_give_the_same_members(own: bool, tmp_path: Path) -> None:
    """An optimiser of one's own gets all parameters, and its momentum moves only the member whose turn it is."""
    settings = {**SETTINGS, "schedule": "constant" if own else "poly"}
    task = ABNNTask(small_network(), 4, **settings)
    fit(task, tmp_path, 3)
    tuner = ABNNTuner(small_network(), 4, **settings)
    optimizer, schedule = tuner.optimizer(12)
    if own:
        optimizer = torch.optim.SGD(tuner.parameters(), SETTINGS["lr"], momentum=0.9, nesterov=True)
    for step, (images, labels) in enumerate(batch for _ in range(3) for batch in loader()):
        before = torch.stack([*tuner.trained.gamma]).detach()
        tuner.train().loss(images, labels.byte(), step).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        moved = (torch.stack([*tuner.trained.gamma]).detach() != before).any(1)
        assert moved.tolist() == [member == step % 3 for member in range(3)]
    assert_same(tuner.posterior(), task.posterior())


def test_the_module_stays_as_it_was_and_validation_meets_member_0(tmp_path: Path) -> None:
    module = Script()
    before = copy.deepcopy(module.state_dict())
    posterior = tune(module, 2, ours(), default_root_dir=tmp_path)
    after = module.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(parameter.requires_grad for parameter in module.parameters())
    network, images = module.wrapped["net"], next(iter(loader(16)))[0]
    assert not any(part.training for part in network.modules())
    layout = AffineLayout(network)
    with torch.no_grad(), layout.active(posterior.with_alpha(0.0).affine(layout, [0], 0)):
        member = network(images)
    torch.testing.assert_close(module.seen[-1], member)
    assert not torch.allclose(member, network(images), atol=1e-3)


def test_the_first_epochs_are_the_scripts_and_a_checkpoint_of_any_goes_on_to_the_same_end(tmp_path: Path) -> None:
    # Groups of 3 and of 1 batches, so 2 steps an epoch; the last 4 epochs of 8 are of 2 members.
    settings: dict[str, Any] = {
        "accumulate_grad_batches": 3,
        "enable_checkpointing": True,
        "default_root_dir": tmp_path,
    }
    whole = Script()
    kept = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, monitor=None)
    expected = tune(whole, 8, ours(members=2), kept, **settings).tensors()
    alone = Script()
    fit(alone, tmp_path, 4, accumulate_grad_batches=3)
    assert all(torch.equal(value, alone.state_dict()[name]) for name, value in whole.state_dict().items())
    for epoch in (1, 3, 4, 6):
        checkpoint = tmp_path / f"epoch={epoch}.ckpt"
        resumed = tune(Script(), 8, ours(members=2), resume=checkpoint, **settings).tensors()
        assert all(torch.equal(tensor, resumed[name]) for name, tensor in expected.items())
    with pytest.raises(InputError, match="a checkpoint of other members; expected 3"):
        tune(Script(), 8, ours(), resume=checkpoint, **settings)


def test_the_rate_is_logged_and_a_second_fit_begins_anew(tmp_path: Path) -> None:
    module = Script()
    for _ in range(2):
        monitor, logger = LearningRateMonitor("step"), CSVLogger(tmp_path)
        callbacks = ours(members=2, epochs=1), monitor
        posterior = tune(module, 4, *callbacks, logger=logger, log_every_n_steps=1, default_root_dir=tmp_path)
        assert monitor.lrs["lr-SGD"] == pytest.approx([SETTINGS["lr"] * (1 - step / 8) ** 0.9 for step in range(8)])
        assert float((posterior.gamma - AffineLayout(module.wrapped["net"]).weight).abs().max()) > 1e-3


class Larger(Script):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        images, labels = (F.interpolate(t.float(), size=(64, 64)) for t in (batch[0], batch[1][:, None]))
        return super().training_step((images, labels[:, 0].long()), batch_idx)


@pytest.mark.parametrize("bare", [False, True], ids=["a network of ours", "a module with base"])
def test_the_model_folder_gives_the_maps_of_the_script(bare: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    small = {"decoder_pyramid_channels": 32, "decoder_segmentation_channels": 32}
    network = build_network(
        NetworkDescription("FPN", "mobilenet_v2", ("a", "b", "c", "d"), (), small, (0, 0, 0), (1, 1, 1))
    )
    save_network(network, tmp_path / "base")
    script = Larger(network.body if bare else network)
    callback = ours(members=2, epochs=1, out=tmp_path / "out", base=tmp_path / "base" if bare else None)
    posterior = tune(script, 3, callback, default_root_dir=tmp_path, limit_train_batches=2, limit_val_batches=0)
    model, images = load_model(tmp_path / "out"), torch.rand(1, 3, 64, 64)
    assert isinstance(model.network, SegmentationNetwork)
    assert model.record["provenance"]["steps"] == 4
    expected, actual = (
        Sampler(one, draws, draws=4)(images).scores["epistemic"]
        for one, draws in ((script.wrapped["net"], posterior), (model.network, model.posterior))
    )
    torch.testing.assert_close(actual, expected)
    assert float(actual.max()) > 1e-4


class Inside(Script):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.wrapped["net"][0](batch[0]).mean()


class Broken(Script):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx)["loss"] * (float("nan") if self.global_step == 5 else 1.0)


class Stopped(Script):
    def on_train_epoch_end(self) -> None:
        self.trainer.should_stop = True


class Manual(Script):
    automatic_optimization = False  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("module", "callback", "trainer", "said"),
    [
        (Script, {"network": "wrapped.model"}, {}, "Script has no module 'wrapped.model'; expected one of wrapped"),
        (Script, {"network": "offset"}, {}, "Script has no module 'offset'"),
        (Script, {"scope": "nowhere"}, {}, "nowhere"),
        (Script, {"out": "folder"}, {}, "'wrapped.net', a Sequential, says nothing of its classes"),
        (Script, {}, {"max_steps": -1, "epochs": -1}, "a fit without an end"),
        (Manual, {}, {}, "a fit of manual optimisation"),
        (Inside, {}, {}, "a training step whose loss does not go through a call of 'wrapped.net'"),
        (Stopped, {"members": 1, "epochs": 1}, {}, "no fit has come to its last 1 epochs"),
        (
            Script,
            {"random_classes": 3, "dice": 1.0},
            {},
            "ABNNCallback with dice, random_classes; expected settings of",
        ),
        (Script, {"epochs": 0}, {}, "ABNNCallback with epochs 0"),
        (Script, {"members": 0}, {}, "members 0 is not a number above 0"),
    ],
)
def test_bad_input_is_one_clear_line(
    module: type[Script], callback: dict[str, Any], trainer: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said) as error:
        tune(module(), trainer.pop("epochs", 2), ours(**callback), default_root_dir=tmp_path, **trainer)
    assert "\n" not in str(error.value)


def test_a_loss_that_is_nan_stops_the_fit_and_leaves_no_draws_or_hooks(tmp_path: Path) -> None:
    script, callback = Broken(), ours()
    with pytest.raises(PartialFailure, match="the loss became NaN or infinite at step 5"):
        tune(script, 2, callback, default_root_dir=tmp_path)
    assert float((callback.posterior().gamma[0] - AffineLayout(script.wrapped["net"]).weight).abs().max()) > 1e-4
    images = torch.rand(1, 3, 8, 8)
    drawn = script.wrapped["net"](images)
    revert(script.wrapped["net"])
    assert torch.equal(drawn, script.wrapped["net"](images))
