"""What every fine-tuning of affine parameters over a frozen network shares, as a LightningModule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from segunc.affine.convert import convert, is_converted
from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.posterior import Posterior
from segunc.affine.scope import in_scope
from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.training.losses import Schedule, dice_loss, diverged, make_schedule, require_finite_state


class AffineTask(L.LightningModule, ABC):
    """Trains flat affine parameters over one frozen network; the base of the fine-tuning methods.

    A method gives its parameters, one draw for each row of the batch (:meth:`training_draws`), the second term of the
    loss (:meth:`regulariser`) and the posterior that results. The loss is the negative log posterior of this package
    divided by N_eff: mean-pixel cross-entropy plus the regulariser. The network stays in eval mode: running statistics
    are frozen and its own dropout is off. Checkpoints hold the parameters of the method only.

    Works in any Lightning script: batches are ``(image, label)`` pairs or dictionaries with these keys; images go to
    the network as they are.

    Args:
        network: any module to logits ``[N, C, H, W]``; converted here unless it is already.
        num_classes: C.
        scope: sites that are trained; the others keep the base's affine.
        lr: learning rate.
        optimizer: ``sgd`` (Nesterov momentum 0.9) or ``adamw`` (without weight decay: the prior does that).
        schedule: see :func:`segunc.training.losses.make_schedule`.
        prior_scale: s, standard deviation of the Gaussian prior N(theta; theta_prior, s^2).
        prior_mean: ``base`` centres the prior on the trained values, ``zero`` is plain weight decay.
        effective_pixels: N_eff, how many independent pixels the training set counts for.
        class_weights: C weights of the classes in the cross-entropy; None for 1.
        dice: weight of the Dice term.
        draws_per_image: independent draws that each image of a batch meets.
        seed: of the noise.

    Raises:
        InputError: settings out of range, a scope without a site, another number of class weights than classes.
        PartialFailure: in training, when the loss or a parameter becomes NaN or infinite; checkpoints written before
            stay, and none is written after.
    """

    regulariser_name = "prior"

    def __init__(
        self,
        network: nn.Module,
        num_classes: int,
        *,
        scope: str = "all",
        lr: float = 0.005,
        optimizer: Literal["sgd", "adamw"] = "sgd",
        schedule: Schedule = "poly",
        prior_scale: float = 0.1,
        prior_mean: Literal["base", "zero"] = "base",
        effective_pixels: float = 100_000.0,
        class_weights: Sequence[float] | None = None,
        dice: float = 0.0,
        draws_per_image: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if prior_scale <= 0 or effective_pixels <= 0:
            raise InputError(f"prior_scale {prior_scale}, effective_pixels {effective_pixels}", "positive numbers")
        if draws_per_image < 1:
            raise InputError(f"draws_per_image {draws_per_image}", "at least 1")
        if class_weights is not None and len(class_weights) != num_classes:
            raise InputError(f"{len(class_weights)} class weights for {num_classes} classes", "one for each class")
        self.report = None if is_converted(network) else convert(network)
        self.network = network.eval().requires_grad_(False)
        self.scope, self.seed, self.draws_per_image = scope, seed, draws_per_image
        self.optimizer_name, self.lr, self.schedule, self.dice = optimizer, lr, schedule, dice
        self.prior_scale, self.prior_mean, self.effective_pixels = prior_scale, prior_mean, effective_pixels
        self.strict_loading = (
            False  # checkpoints hold the method's parameters only; the network lies in the base's folder
        )
        self._layout: AffineLayout | None = None
        self._chosen = in_scope(scope, AffineLayout(network).names)  # a bad scope fails here, not at the first step
        self.class_weights: Tensor
        weights = torch.ones(num_classes) if class_weights is None else torch.tensor(class_weights)
        self.register_buffer("class_weights", weights, persistent=False)

    @property
    def layout(self) -> AffineLayout:
        """The network's layout, on the device it lies on now."""
        if self._layout is None or self._layout.device != self.class_weights.device:
            self._layout = AffineLayout(self.network)
            mask = self._layout.site_mask(self._chosen)
            self._mask, self._bias_mask = mask, mask & self._layout.has_bias
        return self._layout

    @property
    def masks(self) -> tuple[Tensor, Tensor]:
        """``[T]`` bool each: the gammas and the betas that the scope trains."""
        _ = self.layout  # makes both
        return self._mask, self._bias_mask

    def train(self, mode: bool = True) -> AffineTask:
        """Lightning toggles the mode around validation; the network under it stays in eval mode."""
        super().train(mode)
        self.network.eval()
        return self

    def within_scope(self, gamma: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        """gamma and beta ``[T]`` inside the scope, the base's outside of it."""
        layout = self.layout
        return torch.where(self._mask, gamma, layout.weight), torch.where(self._bias_mask, beta, layout.bias)

    def prior_centre(self) -> tuple[Tensor, Tensor]:
        """gamma and beta ``[T]`` at the mean of the prior."""
        layout = self.layout
        if self.prior_mean == "base":
            return layout.weight, layout.bias
        return 0.0 * layout.weight, 0.0 * layout.bias

    def gaussian_prior(self, gamma: Tensor, beta: Tensor) -> Tensor:
        """``|theta - theta_prior|^2 / (2 s^2 N_eff)`` over the scope, a scalar."""
        centre = self.prior_centre()
        mask, bias_mask = self.masks
        square = (gamma - centre[0]).square()[mask].sum() + (beta - centre[1]).square()[bias_mask].sum()
        return square / (2.0 * self.prior_scale**2 * self.effective_pixels)

    @abstractmethod
    def training_draws(self, rows: int, step: int) -> AffineDraws:
        """One draw for each row of the batch at an optimiser step, with gradients."""

    @abstractmethod
    def regulariser(self) -> Tensor:
        """What is added to the mean-pixel loss: the negative log prior, or the KL, divided by N_eff."""

    @abstractmethod
    def posterior(self) -> Posterior:
        """The result of the training, on the CPU."""

    def loss_weights(self) -> Tensor:
        """``[C]`` class weights of the cross-entropy at this step."""
        return self.class_weights

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, labels = unpack_batch(batch)
        if self.draws_per_image > 1:
            images, labels = (t.repeat_interleave(self.draws_per_image, 0) for t in (images, labels))
        images = images.contiguous(memory_format=torch.channels_last)
        draws = self.layout.fold(self.training_draws(len(images), self.global_step))
        with self.layout.active(draws.frozen_outside(self._chosen)):
            logits: Tensor = self.network(images)
        logits = logits.float()
        if bool((labels != IGNORE).any()):
            loss = F.cross_entropy(logits, labels, self.loss_weights(), ignore_index=IGNORE)
        else:
            loss = logits.sum() * 0.0
        if self.dice:
            loss = loss + self.dice * dice_loss(logits, labels)
        added = self.regulariser()
        total = loss + added
        if not bool(torch.isfinite(total)):
            raise diverged("the loss", self.global_step)
        logged = {"train/loss": loss, f"train/{self.regulariser_name}": added}
        self.log_dict(logged, prog_bar=True, batch_size=len(images))
        return total

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        groups = self.parameter_groups()
        optimizer: Optimizer = (
            AdamW(groups, self.lr, weight_decay=0.0)
            if self.optimizer_name == "adamw"
            else SGD(groups, self.lr, momentum=0.9, nesterov=True)
        )
        scheduler = self.make_scheduler(optimizer, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of the optimiser; a group may have an ``lr`` of its own."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def make_scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        return make_schedule(optimizer, self.schedule, steps, [group["lr"] for group in optimizer.param_groups])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        kept = {k: v for k, v in checkpoint["state_dict"].items() if not k.startswith("network.")}
        require_finite_state(kept, self.global_step)
        checkpoint["state_dict"] = kept


def unpack_batch(batch: Any) -> tuple[Tensor, Tensor]:
    """Images ``[N, 3, H, W]`` and int64 train ids ``[N, H, W]`` of a pair or of a dictionary with these keys."""
    if isinstance(batch, Mapping) and {"image", "label"} <= set(batch):
        return batch["image"], batch["label"].long()
    if isinstance(batch, Sequence) and len(batch) >= 2:
        return batch[0], batch[1].long()
    raise InputError(
        f"a batch of type {type(batch).__name__}", "(image, label) or a dictionary with these keys", "adapt the loader"
    )
