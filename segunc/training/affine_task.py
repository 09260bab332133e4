"""The fine-tuning of affine parameters over a frozen network, as a LightningModule that knows no method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import Optimizer

from segunc.affine.convert import convert, is_converted
from segunc.affine.draws import AffineDraws, AffineLayout, in_scope
from segunc.affine.noise import TrainingNoise, mix_seed
from segunc.affine.posterior import P, Trainable
from segunc.core.errors import InputError
from segunc.training.config import AffineTrainingConfig
from segunc.training.data import unpack_batch
from segunc.training.losses import (
    OptimizerName,
    Schedule,
    diverged,
    make_optimizer,
    make_schedule,
    require_finite_state,
    segmentation_loss,
)

PREFIX = "trained."


class AffineTask(L.LightningModule, Generic[P]):
    """Trains a posterior's parameters over one frozen network.

    Each row of a batch meets one draw of the posterior as it is, made by its own ``affine()``. The loss is the negative log
    posterior of this package divided by N_eff: mean-pixel cross-entropy plus the regulariser. The network stays in eval mode:
    running statistics are frozen and its own dropout is off. Checkpoints hold the posterior's parameters only.

    Works in any Lightning script: batches are ``(image, label)`` pairs or dictionaries with these keys; images go to
    the network as they are. After ``fit``, :meth:`posterior` gives the result.

    Args:
        network: any module to logits ``[N, C, H, W]``; converted here unless it is already.
        num_classes: C.
        make: what is trained, over the layout of the converted network.
        config: of which ``lr``, ``dice`` and the ``seed`` of the noise are read, and, where the method has them, ``optimizer``
            (else SGD), ``schedule`` (else poly) and ``draws_per_image``, independent draws that each image of a batch meets (else 1).
        class_weights: C weights of the classes in the cross-entropy; None for 1.

    Raises:
        InputError: a scope without a site, or another number of class weights than classes.
        PartialFailure: in training, when the loss or a parameter becomes NaN or infinite; checkpoints written before
            stay, and none is written after.
    """

    class_weights: Tensor

    def __init__(
        self,
        network: nn.Module,
        num_classes: int,
        make: Callable[[AffineLayout], Trainable[P]],
        config: AffineTrainingConfig,
        *,
        class_weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        if class_weights is not None and len(class_weights) != num_classes:
            raise InputError(f"{len(class_weights)} class weights for {num_classes} classes", "one for each class")
        if not is_converted(network):
            convert(network)
        self.network = network.eval().requires_grad_(False)
        self._layout = AffineLayout(network)
        self.trained = make(self._layout)
        self._chosen = in_scope(self.trained.scope, self._layout.names)
        self.seed, self.lr, self.dice = config.seed, config.lr, config.dice
        self.optimizer_name: OptimizerName = getattr(config, "optimizer", "sgd")
        self.schedule: Schedule = getattr(config, "schedule", "poly")
        self.draws_per_image: int = getattr(config, "draws_per_image", 1)
        self.strict_loading = False  # checkpoints do not hold the network; it lies in the base's folder
        weights = torch.ones(num_classes) if class_weights is None else torch.tensor(class_weights)
        self.register_buffer("class_weights", weights, persistent=False)

    @property
    def layout(self) -> AffineLayout:
        """The network's layout, on the device it lies on now."""
        if self._layout.device != self.class_weights.device:
            self._layout = AffineLayout(self.network)
        return self._layout

    @torch.no_grad()
    def posterior(self) -> P:
        """The posterior as it is trained, on the CPU."""
        made = self.trained.posterior(self.layout)
        tensors = {name: tensor.cpu().clone() for name, tensor in made.tensors().items()}
        return type(made).from_tensors(tensors, made.settings())

    def train(self, mode: bool = True) -> AffineTask[P]:
        super().train(mode)  # Lightning toggles the mode around validation
        self.network.eval()
        return self

    @property
    def member(self) -> int:
        """The member that trains at this step."""
        return self.global_step % self.trained.members

    def training_draws(self, rows: int) -> AffineDraws:
        """One independent draw of the member for each row of the batch, with gradients."""
        noise = TrainingNoise(mix_seed(self.seed, self.global_step, self.global_rank))
        members = self.trained.members
        draws = [row * members + self.member for row in range(rows)]
        return self.trained.posterior(self.layout).affine(self.layout, draws, noise)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, labels = unpack_batch(batch)
        if self.draws_per_image > 1:
            images, labels = (t.repeat_interleave(self.draws_per_image, 0) for t in (images, labels))
        images = images.contiguous(memory_format=torch.channels_last)
        draws = self.layout.fold(self.training_draws(len(images)))
        with self.layout.active(draws.frozen_outside(self._chosen)):
            logits: Tensor = self.network(images)
        loss = segmentation_loss(logits, labels, self.trained.class_weights(self.class_weights, self.member), self.dice)
        added = self.trained.regulariser(self.layout, self.member)
        total = loss + added
        if not bool(torch.isfinite(total)):
            raise diverged("the loss", self.global_step)
        logged = {"train/loss": loss, f"train/{self.trained.regulariser_name}": added}
        self.log_dict(logged, prog_bar=True, batch_size=len(images))
        return total

    def on_train_start(self) -> None:
        self.trained.check_steps(int(self.trainer.estimated_stepping_batches))

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        # Their gradients are 0, but a momentum would still move them.
        for parameter in self.trained.others(self.member):
            parameter.grad = None

    def on_train_batch_end(self, *_: Any) -> None:
        self.trained.after_step(self.layout, self.global_step)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        groups = self.trained.parameter_groups()
        optimizer = make_optimizer(self.optimizer_name, groups, self.lr)
        scheduler = self.trained.schedule(optimizer)
        if scheduler is None:
            rates = [group["lr"] for group in optimizer.param_groups]
            scheduler = make_schedule(optimizer, self.schedule, int(self.trainer.estimated_stepping_batches), rates)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        kept = {key.removeprefix(PREFIX): value for key, value in state.items() if key.startswith(PREFIX)}
        require_finite_state(kept, self.global_step)
        checkpoint["state_dict"] = kept

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["state_dict"] = {PREFIX + key: value for key, value in checkpoint["state_dict"].items()}
