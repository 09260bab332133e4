"""The fine-tuning of affine parameters over a frozen network, without a trainer and knowing no method: draws, loss, optimiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from segunc.affine.convert import convert, is_converted
from segunc.affine.draws import AffineDraws, AffineLayout, in_scope
from segunc.affine.noise import TrainingNoise, mix_seed
from segunc.affine.posterior import P, Trainable
from segunc.core.errors import InputError
from segunc.networks.network import check_images, check_logits
from segunc.training import losses
from segunc.training.config import AffineTrainingConfig


class AffineTuner(nn.Module, Generic[P]):
    """Train a posterior's parameters over one frozen network, in a loop of one's own. Each row of a batch meets one draw of the posterior
    as it is, made by its own ``affine()``. The loss is the negative log posterior of this package divided by N_eff: mean-pixel
    cross-entropy, of the classes with C ``class_weights``, plus the regulariser. The network stays in eval mode. Steps are counted from 0.

    Args:
        network: any module to logits ``[N, C, H, W]``; converted here unless it is already.
        make: what is trained, over the layout of the converted network.
        config: of which ``lr`` and ``seed`` are read, and, where there are any, ``optimizer`` (else SGD) and ``schedule`` (else poly).

    InputError for images that the network does not take, labels that are no classes, or a network of probabilities; PartialFailure where
    the loss becomes NaN or infinite.
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
            raise InputError(
                f"there are {len(class_weights)} class weights for {num_classes} classes"
            )
        if not is_converted(network):
            convert(network)
        self.network = network.eval().requires_grad_(False)
        self._layout = AffineLayout(network)
        self.trained = make(self._layout)
        self._chosen = in_scope(self.trained.scope, self._layout.names)
        self.seed, self.lr = config.seed, config.lr
        self.optimizer_name: losses.OptimizerName = getattr(config, "optimizer", "sgd")
        self.schedule: losses.Schedule = getattr(config, "schedule", "poly")
        weights = torch.ones(num_classes) if class_weights is None else torch.tensor(class_weights)
        self.register_buffer("class_weights", weights, persistent=False)
        self._checked = False  # what goes in and comes out, with the first batch

    @property
    def layout(self) -> AffineLayout:
        """The network's layout, on the network's present device."""
        if self._layout.device != self.class_weights.device:
            self._layout = AffineLayout(self.network)
        return self._layout

    @torch.no_grad()
    def posterior(self) -> P:
        """Return the posterior as it is now, on the CPU."""
        made = self.trained.posterior(self.layout)
        tensors = {name: tensor.cpu().clone() for name, tensor in made.tensors().items()}
        return type(made).from_tensors(tensors, made.settings())

    def train(self, mode: bool = True) -> Self:
        super().train(mode)  # Lightning toggles the mode around validation
        self.network.eval()
        return self

    def member(self, step: int) -> int:
        return step % self.trained.members

    def training_draws(self, rows: int, step: int, process: int = 0) -> AffineDraws:
        """Return one independent draw of the step's member for each row of the batch of a process, with gradients."""
        noise = TrainingNoise(mix_seed(self.seed, step, process))
        draws = [row * self.trained.members + self.member(step) for row in range(rows)]
        return self.trained.posterior(self.layout).affine(self.layout, draws, noise)

    def terms(
        self, images: Tensor, labels: Tensor, step: int, process: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the two terms of a step's loss, that of the pixels and the regulariser, for images ``[N, 3, H, W]``, which go to the
        network as they are, and labels ``[N, H, W]`` int64, 255 ignored. ``process`` is the number of one in a distributed run."""
        if not self._checked:
            check_images(images, self.network)
        images = images.contiguous(memory_format=torch.channels_last)
        # Without gradients where nothing is trained.
        draws = self.layout.fold(self.training_draws(len(images), step, process)).frozen_outside(
            self._chosen
        )
        with self.layout.active(draws):
            logits: Tensor = self.network(images)
        if not self._checked:
            check_logits(self.network, logits.detach(), images)
            self._checked = True
        member = self.member(step)
        loss = losses.segmentation_loss(
            logits, labels, self.trained.class_weights(self.class_weights, member)
        )
        added = self.trained.regulariser(self.layout, member)
        if not bool(torch.isfinite(loss + added)):
            raise losses.diverged("the loss", step)
        return loss, added

    def loss(self, images: Tensor, labels: Tensor, step: int) -> Tensor:
        """Return the loss of a step, a scalar, see :meth:`terms`; only the step's member gets gradients, so no momentum moves the others."""
        others = set(self.trained.others(self.member(step)))
        for parameter in self.trained.parameters():
            parameter.requires_grad_(parameter not in others)
        loss, added = self.terms(images, labels.long(), step)
        return loss + added

    def optimizer(self, steps: int) -> tuple[Optimizer, LRScheduler]:
        """Return the optimiser that the settings name, and its schedule over so many steps."""
        optimizer = losses.make_optimizer(
            self.optimizer_name, self.trained.parameter_groups(), self.lr
        )
        rates = [group["lr"] for group in optimizer.param_groups]
        schedule = self.trained.schedule(optimizer)
        return optimizer, schedule or losses.make_schedule(optimizer, self.schedule, steps, rates)
