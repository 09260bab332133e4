"""ABNN for a Lightning script of one's own, as its module or as a callback; a file of its own, because it imports Lightning."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor, nn
from torch.optim import Optimizer

from segunc.affine.convert import convert, revert
from segunc.affine.draws import AffineLayout, in_scope
from segunc.affine.files import save_posterior
from segunc.core.errors import InputError
from segunc.networks.files import load_network, save_network
from segunc.networks.network import SegmentationNetwork
from segunc.networks.weights import load_state
from segunc.posteriors.abnn import ABNN, ABNNPosterior, ABNNTuner
from segunc.training.affine_task import AffineTask
from segunc.training.config import environment
from segunc.training.losses import diverged, require_finite_state
from segunc.training.progress import say

OF_CALLBACK = (
    "effective_pixels",
    "epochs",
    "lr",
    "optimizer",
    "prior_mean",
    "prior_scale",
    "schedule",
    "scope",
    "seed",
)
"""Settings of a fine-tuning whose loss is not ours."""


class ABNNTask(ABNNTuner, AffineTask[ABNNPosterior]):
    """An :class:`ABNNTuner` for a Lightning Trainer: give it to ``fit`` in place of your own module, then ask :meth:`posterior`.
    Batches are ``(image, label)`` pairs or dictionaries with these keys; the arguments are those of the tuner."""


class ABNNCallback(L.Callback):
    """Fine-tunes M members in the last epochs of a fit, with the script's own training step, loss and data.

    A second fit after the script's own would need a loss of ours and know nothing of its augmentation, so it is their training step
    that runs, and each call of their network in it computes with draws of member step mod M, independent for each image. The
    prior's gradient is added, the whole module is frozen, the network stays in eval mode, and an optimiser over gamma and beta
    takes the place of the script's, so accumulation, clipping, mixed precision and checkpoints are the Trainer's own. In
    validation, and wherever else there are no gradients, member 0 computes without noise. Before these epochs the fit is what it
    would be without the callback; after it, the module has its own weights, and the network is converted and in eval mode.

    A fit of no more than members x epochs epochs is all fine-tuning: its network should be trained already. A checkpoint holds
    the members beside the module, whose keys do not change, and a fit goes on from it.

    Args:
        network: name of the segmentation network in the LightningModule, e.g. ``model`` or ``wrapped.net``; images go in as a tensor
            ``[N, ...]``, and what comes out is for the training step alone.
        members, alpha: M, and the noise scale in training.
        out: where to :meth:`save` when the fit ends, or None.
        base: see :meth:`save`.
        settings: more of :class:`segunc.posteriors.abnn.ABNN`: ``epochs`` (of each member, 2), ``scope``, ``lr``,
            ``optimizer``, ``schedule``, ``prior_scale``, ``prior_mean``, ``effective_pixels``, ``seed``.

    Raises:
        InputError: settings out of range, no such network, or a fit in several processes, of manual optimisation or without an end.
        PartialFailure: in training, when the loss or a member becomes NaN or infinite.
    """

    def __init__(
        self,
        network: str,
        members: int = 3,
        alpha: float = 0.1,
        *,
        out: Path | str | None = None,
        base: Path | str | None = None,
        **settings: Any,
    ) -> None:
        if other := sorted(set(settings) - set(OF_CALLBACK)):
            remedy = "your own training step decides the loss"
            raise InputError(f"ABNNCallback with {', '.join(other)}", f"settings of {', '.join(OF_CALLBACK)}", remedy)
        self.path, self.out, self.base, self.settings = (
            network,
            out,
            base,
            {"members": members, "alpha": alpha, "epochs": 2, **settings},
        )
        config = ABNN(**self.settings)
        if not config.epochs:
            raise InputError("ABNNCallback with epochs 0", "at least 1", "ABNN.around gives members without training")
        self.epochs, self.scope, self.seed = members * config.epochs, config.scope, config.seed
        self._tuner: ABNNTuner | None = None
        self._restored: dict[str, Any] = {}
        self._draws = ExitStack()
        self._after = ExitStack()

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.world_size > 1 or not pl_module.automatic_optimization:
            given = "manual optimisation" if trainer.world_size == 1 else f"{trainer.world_size} processes"
            raise InputError(
                f"ABNNCallback in a fit of {given}", "automatic optimisation in one", "see segunc.ABNNTask"
            )
        try:
            self._network = pl_module.get_submodule(self.path)
        except AttributeError as error:
            found = ", ".join(name for name, _ in pl_module.named_children())
            raise InputError(f"{type(pl_module).__name__} has no module '{self.path}'", f"one of {found}") from error
        if math.isinf(trainer.estimated_stepping_batches) or trainer.estimated_stepping_batches < 0:
            raise InputError("a fit without an end", "max_epochs or max_steps", "its last epochs fine-tune the members")
        revert(self._network)  # where another fit has converted it
        own = self._network
        self._conversion = convert(own.body if isinstance(own, SegmentationNetwork) else own)
        in_scope(self.scope, AffineLayout(self._network).names)
        if self.out is not None:
            self._described(self.base)
        self._tuner, restored, self._restored = None, self._restored, {}
        if restored:
            try:
                self._begin(trainer, pl_module, restored["start"]).load_state_dict(restored["members"])
            except RuntimeError as error:
                raise InputError("a checkpoint of other members", f"{self.settings['members']}", "fit anew") from error

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        steps = trainer.estimated_stepping_batches
        epoch = math.ceil(min(trainer.num_training_batches / trainer.accumulate_grad_batches, steps))
        if self._tuner is None and steps - trainer.global_step <= self.epochs * epoch:
            self._begin(trainer, pl_module, trainer.global_step)
            members, step = self.settings["members"], trainer.global_step
            say(
                f"ABNNCallback: {members} members of {self.path} are fine-tuned from step {step} to {int(steps)}, the end"
            )

    def _begin(self, trainer: L.Trainer, pl_module: L.LightningModule, start: int) -> nn.Module:
        """Put members in the place of what the fit trained until its step ``start``; returns what is trained."""
        for parameter in pl_module.parameters():
            if parameter.requires_grad:
                self._after.callback(parameter.requires_grad_)
        pl_module.requires_grad_(False).zero_grad()
        tuner = ABNNTuner(self._network, 1, random_classes=0, **self.settings).to(pl_module.device)
        optimizer, schedule = tuner.optimizer(int(trainer.estimated_stepping_batches) - start)
        trainer.optimizers = [optimizer]
        trainer.strategy.lr_scheduler_configs = [LRSchedulerConfig(schedule, interval="step")]

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            module.eval()  # the script may have set another mode since
            if torch.is_grad_enabled():
                images = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
                if images is None:
                    raise InputError(f"'{self.path}' called without a tensor", "images [N, ...]", "name another module")
                draws = tuner.folded_draws(len(images), trainer.global_step - start)
            else:
                members = tuner.trained.posterior(tuner.layout)
                draws = tuner.layout.fold(members.with_alpha(0.0).affine(tuner.layout, [0], 0))
            self._draws.enter_context(tuner.layout.active(draws))

        self._after.enter_context(self._network.register_forward_pre_hook(enter, with_kwargs=True))
        leave = self._network.register_forward_hook(lambda *_: self._draws.close(), always_call=True)
        self._after.enter_context(leave)
        self._after.callback(self._network.eval)
        self._tuner, self._start, self._steps, self._batches = tuner, start, 0, 0
        self._precision = trainer.precision
        return tuner.trained

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: Tensor) -> None:
        if self._tuner is None:
            return
        if not loss.requires_grad:
            given = f"a training step whose loss does not go through a call of '{self.path}'"
            raise InputError(given, f"self.{self.path}(images)", "name the module that it calls")
        if not bool(torch.isfinite(loss)):
            raise diverged("the loss", trainer.global_step - self._start)

        self._batches += 1

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        if self._tuner is None or not self._batches:
            return
        tuner, member = self._tuner, self._tuner.member(trainer.global_step - self._start)
        # Here the gradients are accumulated and unscaled; the Trainer divides each batch's loss by the number of a full step.
        with torch.enable_grad():
            share = self._batches / trainer.accumulate_grad_batches
            torch.autograd.backward(tuner.trained.regulariser(tuner.layout, member) * share)
        self._batches, self._steps = 0, trainer.global_step - self._start + 1
        for parameter in tuner.trained.others(member):
            parameter.grad = None

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._after.close()
        if self.out is not None:
            self.save(self.out, self.base)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._after.close()

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if self._tuner is not None:
            require_finite_state(self._tuner.trained.state_dict(), trainer.global_step - self._start)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._tuner is None else {"start": self._start, "members": self._tuner.trained.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict

    def posterior(self) -> ABNNPosterior:
        """The members as they are trained, on the CPU.

        Raises:
            InputError: no fit has come to its fine-tuning.
        """
        if self._tuner is None:
            given = f"no fit has come to its last {self.epochs} epochs, which fine-tune the members"
            raise InputError(
                given, "a fit that was not stopped before", "fit again, for more epochs or without the stop"
            )
        return self._tuner.posterior()

    def save(self, folder: Path | str, base: Path | str | None = None) -> None:
        """Write a model folder for every verb and :func:`segunc.load_model`: the network as it is, and its posterior.

        Args:
            base: a model folder of the same network (of ``segunc import``, say), whose description is taken; needed where the
                script's network is no :class:`segunc.SegmentationNetwork`. It normalises images in 0..1 as it says, so the
                script should have trained on images normalised so.

        Raises:
            InputError: nothing was fine-tuned, or the network has no description, or another one's.
        """
        posterior, network, folder = self.posterior(), self._described(base), Path(folder)
        provenance = {"dataset": "own training script", **environment(self._precision), "steps": self._steps}
        save_network(network, folder)
        save_posterior(
            posterior, AffineLayout(self._network), self._conversion, folder, folder,
            seed=self.seed, provenance={**provenance, "settings": self.settings},
        )  # fmt: skip

    def _described(self, base: Path | str | None) -> SegmentationNetwork:
        """The network with a description: itself, or with that of a model folder."""
        if isinstance(self._network, SegmentationNetwork):
            return self._network
        if base is None:
            given = f"'{self.path}', a {type(self._network).__name__}, says nothing of its classes and its input"
            raise InputError(given, "a model folder of it to take them from", "segunc import it, and give base=FOLDER")
        network = load_network(base, ignore_posterior=True)
        load_state(network.body, self._network.state_dict(), f"'{self.path}'")
        return network
