"""The fine-tuning of affine parameters over a frozen network, without a trainer and knowing no
method: draws, loss, optimiser.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from segunc.affine.convert import convert, is_converted
from segunc.affine.draws import AffineDraws, AffineLayout, FoldedDraws, in_scope
from segunc.affine.noise import TrainingNoise, mix_seed
from segunc.affine.posterior import P, Trainable
from segunc.affine.rows import RowOrder
from segunc.core.errors import InputError
from segunc.networks.gradients import run_with_gradients
from segunc.networks.network import check_images, check_logits
from segunc.training import losses
from segunc.training.batches import class_ids
from segunc.training.config import AffineTrainingConfig


class AffineTuner(nn.Module, Generic[P]):
    """Train a posterior's parameters over one frozen network, in a loop of one's own. Each row of a
    batch meets one draw of the posterior as it is, made by its own ``affine()``. Where the network
    does not keep the batch outermost, the rows run one at a time, which a note says
    (:mod:`segunc.affine.rows`). The loss is the negative log posterior of this package divided by
    N_eff: mean-pixel cross-entropy, of the classes with C ``class_weights``, plus the regulariser.
    The network stays in eval mode. Steps are counted from 0.

    Args:
        network: any module to logits ``[N, C, H, W]``; converted here unless it is already.
        make: what is trained, over the layout of the converted network.
        config: of which ``lr`` and ``seed`` are read, and, where there are any, ``optimizer`` (else
            SGD) and ``schedule`` (else poly).

    Raises:
        InputError: images that the network does not take, labels that are not class ids, or a
            network that returns probabilities.
        PartialFailure: the loss becomes NaN or infinite.
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
            message = f"there are {len(class_weights)} class weights for {num_classes} classes"
            raise InputError(message)
        if not is_converted(network):
            convert(network)
        self.network = network.eval().requires_grad_(False)
        self._layout = AffineLayout(network)
        self.trained = make(self._layout)
        self._chosen = in_scope(self.trained.scope, self._layout.names)
        self._row_order = RowOrder(network, self.trained.scope)
        self.seed = config.seed
        self.lr = config.lr
        self.optimizer_name: losses.OptimizerName = getattr(config, "optimizer", "sgd")
        self.schedule: losses.Schedule = getattr(config, "schedule", "poly")
        values = [1.0] * num_classes if class_weights is None else class_weights
        weights = torch.tensor(values, dtype=torch.float32)
        self.register_buffer("class_weights", weights, persistent=False)
        self._logits_checked = False  # with the first batch

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

    def training_draws(self, rows: int, step: int, batch: int = 0) -> AffineDraws:
        """Return one independent draw of the step's member for each row of a batch, with gradients;
        see :meth:`terms`.
        """
        noise = TrainingNoise(mix_seed(self.seed, step, batch))
        draws = [row * self.trained.members + self.member(step) for row in range(rows)]
        return self.trained.posterior(self.layout).affine(self.layout, draws, noise)

    def terms(
        self, images: Tensor, labels: Tensor, step: int, batch: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the two terms of a step's loss, that of the pixels and the regulariser.

        Args:
            images: ``[N, 3, H, W]``, which go to the network as they are.
            labels: ``[N, H, W]`` int64, 255 ignored.
            step: number of the optimiser step, from 0.
            batch: number of this batch among those whose gradients the step adds, of all processes
                of a distributed run. Each batch has noise of its own.
        """
        check_images(images, self.network)
        logits = self._training_logits(images, step, batch)
        if not self._logits_checked:
            check_logits(self.network, logits.detach(), images)
            self._logits_checked = True
        member = self.member(step)
        weights = self.trained.class_weights(self.class_weights, member)
        loss = losses.segmentation_loss(logits, labels, weights)
        added = self.trained.regulariser(self.layout, member)
        if not bool(torch.isfinite(loss + added)):
            raise losses.diverged("the loss", step)
        return loss, added

    def _training_logits(self, images: Tensor, step: int, batch: int) -> Tensor:
        """Return the logits of images, each with its own draw: as one batch where that is right,
        else one by one.
        """
        images = images.contiguous(memory_format=torch.channels_last)
        draws = self.layout.fold(self.training_draws(len(images), step, batch))
        # Without gradients where nothing is trained.
        draws = draws.frozen_outside(self._chosen)
        if self._row_order.is_kept(self.layout, images):
            return self._drawn_logits(images, draws)
        logits: list[Tensor] = []
        for row in range(len(images)):
            image = images[row : row + 1]
            logits.append(self._drawn_logits(image, draws.part(row, row + 1)))
        return torch.cat(logits)

    def _drawn_logits(self, images: Tensor, draws: FoldedDraws) -> Tensor:
        with self.layout.active(draws):
            return run_with_gradients(self.network, images)

    def loss(self, images: Tensor, labels: Tensor, step: int, batch: int = 0) -> Tensor:
        """Return the loss of a step, a scalar, see :meth:`terms`; only the step's member gets
        gradients, so no momentum moves the others.
        """
        others = set(self.trained.others(self.member(step)))
        for parameter in self.trained.parameters():
            parameter.requires_grad_(parameter not in others)
        loss, added = self.terms(images, class_ids(labels), step, batch)
        return loss + added

    def optimizer(self, steps: int) -> tuple[Optimizer, LRScheduler]:
        """Return the optimiser that the settings name, and its schedule over a number of steps."""
        optimizer = losses.make_optimizer(
            self.optimizer_name, self.trained.parameter_groups(), self.lr
        )
        rates = [group["lr"] for group in optimizer.param_groups]
        schedule = self.trained.schedule(optimizer)
        return optimizer, schedule or losses.make_schedule(optimizer, self.schedule, steps, rates)
