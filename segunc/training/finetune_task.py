"""The LightningModule that fine-tunes the members of an ABNN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from segunc.bayes.abnn import ABNN, Noise
from segunc.bayes.convert import convert, is_converted
from segunc.bayes.draws import AffineDraws, AffineLayout, draw_noise, mix_seed
from segunc.bayes.scope import in_scope
from segunc.data.labels import IGNORE
from segunc.errors import InputError
from segunc.training.losses import dice_loss
from segunc.training.schedules import Schedule, make_schedule


class ABNNTask(L.LightningModule):
    """Fine-tunes M members on one shared, frozen network; only their gamma and beta have gradients.

    Member m = step mod M trains at each step, with independent noise for each image of the batch. The network stays in eval mode:
    running statistics are frozen and its own dropout is off. The loss is the one posterior of this package,
    divided by N_eff: mean-pixel cross-entropy, with a few randomly chosen classes weighted up for each member, plus
    ``|theta - theta_prior|^2 / (2 s^2 N_eff)``.

    Works in any Lightning script: batches are ``(image, label)`` pairs or dictionaries with these keys; images go to
    the network as they are. After ``fit``, :meth:`posterior` gives the result.

    Args:
        network: any module to logits ``[N, C, H, W]``; converted here unless it is already.
        num_classes: C.
        members: M.
        alpha: noise scale in training.
        scope: sites that are noisy and trained; the others keep the base's affine.
        noise: ``channel`` (the published formula) or ``element``.
        lr: learning rate.
        optimizer: ``sgd`` (Nesterov momentum 0.9) or ``adamw``.
        schedule: see :func:`segunc.training.schedules.make_schedule`.
        prior_scale: s, standard deviation of the Gaussian prior.
        prior_mean: ``base`` centres the prior on the trained values, ``zero`` is plain weight decay.
        effective_pixels: N_eff.
        random_classes: classes weighted up for each member, drawn once from the seed.
        random_class_weight: their weight.
        class_weights: weights of all classes, multiplied with the random ones; None for 1.
        dice: weight of the Dice term.
        seed: of the classes and the noise.

    Raises:
        InputError: fewer than one member, or more random classes than there are.
    """

    def __init__(
        self,
        network: nn.Module,
        num_classes: int,
        members: int = 3,
        alpha: float = 0.1,
        scope: str = "all",
        noise: Noise = "channel",
        lr: float = 0.005,
        optimizer: Literal["sgd", "adamw"] = "sgd",
        schedule: Schedule = "poly",
        prior_scale: float = 0.1,
        prior_mean: Literal["base", "zero"] = "base",
        effective_pixels: float = 100_000.0,
        random_classes: int = 3,
        random_class_weight: float = 4.0,
        class_weights: Sequence[float] | None = None,
        dice: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if members < 1:
            raise InputError(f"{members} members", "at least 1", "the paper uses 3")
        if not 0 <= random_classes <= num_classes:
            raise InputError(
                f"{random_classes} random classes of {num_classes}", f"0 to {num_classes}", "lower random_classes"
            )
        if prior_scale <= 0 or effective_pixels <= 0:
            raise InputError(f"prior_scale {prior_scale}, effective_pixels {effective_pixels}", "positive numbers")
        self.report = None if is_converted(network) else convert(network)
        self.network = network.eval().requires_grad_(False)
        self.members, self.alpha, self.scope, self.noise, self.seed = members, alpha, scope, noise, seed
        self.optimizer_name, self.lr, self.schedule, self.dice = optimizer, lr, schedule, dice
        self.prior_scale, self.prior_mean, self.effective_pixels = prior_scale, prior_mean, effective_pixels
        self.strict_loading = False  # checkpoints hold the members only; the frozen network lies in the base's folder
        layout = AffineLayout(network)
        in_scope(scope, layout.names)  # a bad scope fails here, not at the first step
        self.gamma = nn.ParameterList([nn.Parameter(layout.weight.clone()) for _ in range(members)])
        self.beta = nn.ParameterList([nn.Parameter(layout.bias.clone()) for _ in range(members)])
        weights = (
            torch.ones(members, num_classes)
            if class_weights is None
            else torch.tensor(class_weights).repeat(members, 1)
        )
        self.random_classes: list[list[int]] = []
        for member in range(members):
            chosen = np.random.default_rng([seed, member]).choice(num_classes, random_classes, replace=False)
            self.random_classes.append(sorted(int(c) for c in chosen))
            weights[member, chosen] *= random_class_weight
        self.class_weights: Tensor
        self.register_buffer("class_weights", weights, persistent=False)
        self._layout: AffineLayout | None = None

    @property
    def layout(self) -> AffineLayout:
        """The network's layout, on the device it lies on now."""
        if self._layout is None or self._layout.device != self.gamma[0].device:
            self._layout = AffineLayout(self.network)
            mask = self._layout.site_mask(in_scope(self.scope, self._layout.names))
            self._mask, self._bias_mask = mask, mask & self._layout.has_bias
        return self._layout

    def train(self, mode: bool = True) -> ABNNTask:
        """Lightning toggles the mode around validation; the network under it stays in eval mode."""
        super().train(mode)
        self.network.eval()
        return self

    def member_affine(self, member: int) -> tuple[Tensor, Tensor]:
        """gamma and beta ``[T]`` of a member, with gradients inside the scope."""
        layout = self.layout
        gamma = torch.where(self._mask, self.gamma[member], layout.weight)
        return gamma, torch.where(self._bias_mask, self.beta[member], layout.bias)

    def noisy_draws(self, member: int, images: int, step: int) -> AffineDraws:
        """One independent draw of a member for each image of a batch."""
        layout = self.layout
        gamma, beta = self.member_affine(member)
        seed = mix_seed(self.seed, step, self.global_rank)
        weight, bias = gamma.expand(images, -1), beta.expand(images, -1)
        if self.noise == "element":
            seeds = tuple(mix_seed(seed, i) for i in range(images))
            return AffineDraws(weight, bias, self.alpha * self._mask.float(), seeds)
        noise = draw_noise(seed, range(images), layout.total).to(layout.device)
        return AffineDraws(weight * (1.0 + self.alpha * self._mask * noise), bias)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, labels = _unpack(batch)
        member = self.global_step % self.members
        images = images.contiguous(memory_format=torch.channels_last)
        with self.layout.active(self.noisy_draws(member, len(images), self.global_step)):
            logits: Tensor = self.network(images)
        logits = logits.float()
        if bool((labels != IGNORE).any()):
            loss = F.cross_entropy(logits, labels, self.class_weights[member], ignore_index=IGNORE)
        else:
            loss = logits.sum() * 0.0
        if self.dice:
            loss = loss + self.dice * dice_loss(logits, labels)
        prior = self._prior(member)
        self.log_dict({"train/loss": loss, "train/prior": prior}, prog_bar=True, batch_size=len(images))
        # Every process must see a gradient for every parameter; those of the other members are dropped before the step.
        others = sum(
            (p.sum() for m in range(self.members) if m != member for p in (self.gamma[m], self.beta[m])),
            torch.zeros(()),
        )
        return loss + prior + 0.0 * cast(Tensor, others).to(loss.device)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        for member in range(self.members):
            if member != self.global_step % self.members:
                self.gamma[member].grad = self.beta[member].grad = None

    def _prior(self, member: int) -> Tensor:
        gamma, beta = self.member_affine(member)
        layout = self.layout
        centre = (layout.weight, layout.bias) if self.prior_mean == "base" else (0.0 * layout.weight, 0.0 * layout.bias)
        square = (gamma - centre[0]).square()[self._mask].sum() + (beta - centre[1]).square()[self._bias_mask].sum()
        return square / (2.0 * self.prior_scale**2 * self.effective_pixels)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        parameters = [*self.gamma, *self.beta]
        optimizer: Optimizer = (
            AdamW(parameters, self.lr, weight_decay=0.0)
            if self.optimizer_name == "adamw"
            else SGD(parameters, self.lr, momentum=0.9, nesterov=True)
        )
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = make_schedule(optimizer, self.schedule, steps, self.lr)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {k: v for k, v in state.items() if not k.startswith("network.")}

    def posterior(self) -> ABNN:
        """The members as a posterior, on the CPU."""
        affine = [self.member_affine(m) for m in range(self.members)]
        gamma, beta = (torch.stack([a[i] for a in affine]).detach().cpu().clone() for i in (0, 1))
        return ABNN(gamma, beta, self.alpha, self.scope, self.noise)


def _unpack(batch: Any) -> tuple[Tensor, Tensor]:
    if isinstance(batch, Mapping) and {"image", "label"} <= set(batch):
        return batch["image"], batch["label"].long()
    if isinstance(batch, Sequence) and len(batch) >= 2:
        return batch[0], batch[1].long()
    raise InputError(
        f"a batch of type {type(batch).__name__}", "(image, label) or a dictionary with these keys", "adapt the loader"
    )
