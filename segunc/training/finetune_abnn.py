"""The LightningModule that fine-tunes the members of an ABNN."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from jsonargparse import Namespace
from torch import Tensor, nn
from torch.optim import Optimizer

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import draw_noise, mix_seed
from segunc.core.errors import InputError
from segunc.posteriors.abnn import ABNN, Noise
from segunc.training.affine_task import AffineTask
from segunc.training.finetune_run import FinetuneRun
from segunc.training.losses import Schedule
from segunc.training.progress import say
from segunc.training.statistics import reestimate


class ABNNTask(AffineTask):
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
        schedule: see :func:`segunc.training.losses.make_schedule`.
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
        PartialFailure: in training, when the loss or a member becomes NaN or infinite.
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
        if members < 1:
            raise InputError(f"{members} members", "at least 1", "the paper uses 3")
        if not 0 <= random_classes <= num_classes:
            raise InputError(
                f"{random_classes} random classes of {num_classes}", f"0 to {num_classes}", "lower random_classes"
            )
        super().__init__(
            network,
            num_classes,
            scope=scope,
            lr=lr,
            optimizer=optimizer,
            schedule=schedule,
            prior_scale=prior_scale,
            prior_mean=prior_mean,
            effective_pixels=effective_pixels,
            class_weights=class_weights,
            dice=dice,
            seed=seed,
        )
        self.members, self.alpha, self.noise = members, alpha, noise
        layout = AffineLayout(network)
        self.gamma = nn.ParameterList([nn.Parameter(layout.weight.clone()) for _ in range(members)])
        self.beta = nn.ParameterList([nn.Parameter(layout.bias.clone()) for _ in range(members)])
        weights = self.class_weights.repeat(members, 1)
        self.random_classes: list[list[int]] = []
        for member in range(members):
            chosen = np.random.default_rng([seed, member]).choice(num_classes, random_classes, replace=False)
            self.random_classes.append(sorted(int(c) for c in chosen))
            weights[member, chosen] *= random_class_weight
        self.class_weights = weights  # [M, C] from here on

    @property
    def member(self) -> int:
        """The member that trains at this step."""
        return self.global_step % self.members

    def member_affine(self, member: int) -> tuple[Tensor, Tensor]:
        """gamma and beta ``[T]`` of a member, with gradients inside the scope."""
        return self.within_scope(self.gamma[member], self.beta[member])

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

    def training_draws(self, rows: int, step: int) -> AffineDraws:
        return self.noisy_draws(self.member, rows, step)

    def regulariser(self) -> Tensor:
        return self.gaussian_prior(*self.member_affine(self.member))

    def loss_weights(self) -> Tensor:
        return self.class_weights[self.member]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        total = super().training_step(batch, batch_idx)
        # Every process must see a gradient for every parameter; those of the other members are dropped before the step.
        others = sum(
            (p.sum() for m in range(self.members) if m != self.member for p in (self.gamma[m], self.beta[m])),
            torch.zeros(()),
        )
        return total + 0.0 * cast(Tensor, others).to(total.device)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        for member in range(self.members):
            if member != self.member:
                self.gamma[member].grad = self.beta[member].grad = None

    def posterior(self) -> ABNN:
        """The members as a posterior, on the CPU."""
        affine = [self.member_affine(m) for m in range(self.members)]
        gamma, beta = (torch.stack([a[i] for a in affine]).detach().cpu().clone() for i in (0, 1))
        return ABNN(gamma, beta, self.alpha, self.scope, self.noise)


STATISTICS_BATCHES = 40


def finetune_abnn(
    base: Path, config: Namespace, out: Path, *, device: str = "auto", say: Callable[[str], None] = say
) -> dict[str, Any]:
    """Convert a base network, select alpha unless it is given, fine-tune the members, and write the Bayesian model.

    A killed run continues from its last checkpoint when called again with the same ``out``.

    Args:
        base: model folder of a deterministic network.
        config: of :func:`segunc.training.config.parse_finetune_config`.
        out: the new model folder.
        device: ``auto``, ``cpu`` or ``cuda[:N]``.
        say: receives a line for each step.

    Returns:
        what was measured: alpha and the validation NLL of each candidate, seconds, steps.
    """
    abnn = config.abnn
    run = FinetuneRun(base, config, "abnn", out, device, say, members=abnn.members)
    layout = run.place()
    noise_only = ABNN.around(layout, 0.0, scope=abnn.scope, noise=abnn.noise)
    alpha = abnn.alpha
    if alpha is None:
        frames, draws, corruption = abnn.alpha_frames, abnn.alpha_draws, abnn.alpha_corruption
        alpha = run.select(noise_only.with_alpha, abnn.alpha_grid, "alpha", frames, draws, corruption)
    run.measured["alpha"] = alpha
    if run.epochs == 0:
        posterior = ABNN.around(layout, alpha, abnn.members, scope=abnn.scope, noise=abnn.noise)
        say("epochs 0: nothing is trained, the members are the base network with noise")
    else:
        posterior = _train_members(run, alpha)
    if abnn.statistics == "reestimated":
        run.place()
        posterior = _with_own_statistics(run, posterior)
    numbers = 2 * posterior.gamma.numel()
    return run.finish(posterior, f"{posterior.members} members, alpha {alpha:g}, {numbers:,} parameters")


def _train_members(run: FinetuneRun, alpha: float) -> ABNN:
    abnn = run.options
    task = ABNNTask(
        run.network.cpu(),
        run.data.label_map.num_classes,
        members=abnn.members,
        alpha=alpha,
        noise=abnn.noise,
        optimizer=abnn.optimizer,
        schedule=abnn.schedule,
        prior_mean=abnn.prior_mean,
        random_classes=abnn.random_classes,
        random_class_weight=abnn.random_class_weight,
        **run.shared_options(),
    )
    for member, classes in enumerate(task.random_classes):
        names = ", ".join(run.data.label_map.classes[c] for c in classes)
        run.say(f"member {member}: {names or 'no class'} weighted up")
    return run.train(task).posterior()


def _with_own_statistics(run: FinetuneRun, posterior: ABNN) -> ABNN:
    device = next(run.network.parameters()).device

    def batches() -> Iterator[Tensor]:
        return (batch["image"].to(device) for batch in islice(run.data.train_dataloader(), STATISTICS_BATCHES))

    pairs = [
        reestimate(run.network, g.to(device), b.to(device), batches())
        for g, b in zip(posterior.gamma, posterior.beta, strict=True)
    ]
    rescale, reshift = (torch.stack([p[i].cpu() for p in pairs]) for i in (0, 1))
    run.say(f"running statistics of {posterior.members} members re-estimated")
    return ABNN(posterior.gamma, posterior.beta, posterior.alpha, posterior.scope, posterior.noise, rescale, reshift)
