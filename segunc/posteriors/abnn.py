"""ABNN: members with their own gamma and beta, and noise on gamma ("Make Me a BNN", CVPR 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource, Seed
from segunc.affine.posterior import Posterior, PriorMean, Trainable
from segunc.core.bounds import (
    Bound,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from segunc.core.errors import InputError
from segunc.core.terminal import counted
from segunc.networks.network import check_images
from segunc.posteriors.finetune_run import FinetuneRun
from segunc.posteriors.layer_alpha import learn_layer_alphas, validation_images
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Model
from segunc.posteriors.running_statistics import NormalisingCopy
from segunc.posteriors.settings import MethodSettings
from segunc.training.config import AffineTrainingConfig
from segunc.training.losses import Schedule

FROZEN = "--abnn.statistics frozen"
BY_LAYER = "by layer"
"""Alpha in the record of a posterior with one for each layer."""


def alpha_range(alpha: float | Tensor) -> tuple[float, float]:
    """Return the smallest and the largest of the noise scales."""
    if isinstance(alpha, Tensor):
        return float(alpha.detach().min()), float(alpha.detach().max())
    return float(alpha), float(alpha)


def alpha_words(alpha: float | Tensor) -> str:
    """Say in words what a noise scale is, for example ``alpha 0.1``."""
    smallest, largest = alpha_range(alpha)
    if isinstance(alpha, Tensor):
        return f"alpha {smallest:.3g} to {largest:.3g} by layer"
    return f"alpha {largest:g}"


class ABNNPosterior(Posterior):
    """Members with noise on gamma: draw s of member m = s mod M is ``weight = gamma_m (1 + alpha
    eps)``, ``bias = beta_m``, with one ``eps ~ N(0, 1)`` a channel. Alpha is one number, or one for
    each of the L normalisation layers.

    Members whose running statistics were re-estimated keep the correction as ``rescale`` and
    ``reshift``: ``weight = gamma' rescale``, ``bias = beta + gamma' reshift``. There gamma' is the
    drawn gamma, rescale = s_base / s_member and reshift = (mu_base - mu_member) / s_member.

    Args:
        gamma, beta: ``[M, T]`` affine parameters of the members.
        alpha: noise scale, at least 0; 0 gives the members themselves. A tensor ``[L]`` holds one
            for each normalisation layer, in the order of the layout.
        scope: which normalisation layers are noisy.
        rescale, reshift: ``[M, T]`` statistics corrections; None for the base's statistics.

    Raises:
        InputError: a negative alpha, or gamma and beta of other shapes.

    >>> import torch
    >>> posterior = ABNNPosterior(torch.ones(2, 5), torch.zeros(2, 5), alpha=0.1)
    >>> posterior.members
    2
    """

    method: ClassVar[str] = "abnn"

    def __init__(
        self,
        gamma: Tensor,
        beta: Tensor,
        alpha: float | Tensor,
        scope: str = "all",
        rescale: Tensor | None = None,
        reshift: Tensor | None = None,
    ) -> None:
        smallest, largest = alpha_range(alpha)
        if not 0 <= smallest <= largest < math.inf:
            wrong = smallest if not smallest >= 0 else largest
            raise InputError(
                f"alpha {wrong} is not a number of at least 0", hint="0.05 to 0.2 are usual"
            )
        if gamma.ndim != 2 or gamma.shape != beta.shape or len(gamma) == 0:
            raise InputError(
                f"gamma {tuple(gamma.shape)} and beta {tuple(beta.shape)} are not both [M, T]"
            )
        self.gamma = gamma
        self.beta = beta
        self.alpha = alpha if isinstance(alpha, Tensor) else float(alpha)
        self._is_noisy = largest > 0
        self.scope = scope
        self.rescale = rescale
        self.reshift = reshift

    @classmethod
    def around(
        cls, layout: AffineLayout, alpha: float, members: int = 1, scope: str = "all"
    ) -> ABNNPosterior:
        """Return members at the trained affine parameters: a Bayesian network without any
        training.

        Args:
            layout: of the converted network.
            alpha: noise scale, at least 0.
            members: number of members, all alike.
            scope: which normalisation layers are noisy.
        """
        return cls(layout.weight.repeat(members, 1), layout.bias.repeat(members, 1), alpha, scope)

    @property
    def members(self) -> int:
        return len(self.gamma)

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        member = torch.tensor([draw % self.members for draw in draws])
        gamma = self.gamma[member].to(layout.device)
        beta = self.beta[member].to(layout.device)
        if self._is_noisy:
            alpha = self.alpha
            if isinstance(alpha, Tensor):
                alpha = layout.of_channels(alpha)
            mask = layout.mask(self.scope, scope)
            source = NoiseSource.of(seed)
            noise = source.normal(draws, layout.total, members=self.members).to(layout.device)
            gamma = gamma * (1.0 + alpha * mask * noise)
        if self.rescale is not None and self.reshift is not None:
            beta = beta + gamma * self.reshift[member].to(layout.device)
            gamma = gamma * self.rescale[member].to(layout.device)
        return AffineDraws(gamma, beta)

    def with_alpha(self, alpha: float | Tensor) -> ABNNPosterior:
        """Return the same members with another noise scale, one number for all layers or ``[L]`` of
        the layers; their statistics stay those that were estimated for the first one.
        """
        return ABNNPosterior(self.gamma, self.beta, alpha, self.scope, self.rescale, self.reshift)

    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"alpha": self.alpha, "scope": self.scope, "noise": "channel"}
        if isinstance(self.alpha, Tensor):
            settings["alpha"] = BY_LAYER  # the numbers are in the file of the tensors
            settings["alpha_range"] = list(alpha_range(self.alpha))
        return settings

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(
            gamma=tensors["gamma"],
            beta=tensors["beta"],
            alpha=tensors["alpha"] if settings["alpha"] == BY_LAYER else settings["alpha"],
            scope=settings["scope"],
            rescale=tensors.get("rescale"),
            reshift=tensors.get("reshift"),
        )


@dataclass(frozen=True)
class ABNN(AffineTrainingConfig, MethodSettings):
    """How ABNN members are made. Epochs and steps count for each member.

    Training and re-estimated statistics need data, 0 epochs with frozen statistics need none. By
    default nothing is trained, because training brought no significant gain on four bases
    (docs/results.md). The publication trains: ``members=3, epochs=2, random_classes=3``.

    Args:
        epochs: number of passes over the training set for each member; 0 trains nothing.
        members: number M of members: sets of affine parameters.
        alpha: noise scale, at least 0.
        alpha_by: what has a noise scale of its own. network has one, ``alpha``, for all layers;
            layer learns one for each normalisation layer. These start at ``alpha``, and gradient
            steps lower the negative log-likelihood of validation frames. No anomaly labels are
            needed. If one alpha is better on the half of the frames that is held out, it is kept.
        alpha_frames: number of evenly spaced validation frames for ``alpha_by`` layer, at least 2.
            The alphas are learnt on the first half, and compared on the second.
        alpha_steps: number of gradient steps for ``alpha_by`` layer; each takes one frame and four
            draws.
        statistics: running statistics of BatchNorm layers. frozen keeps those of the base;
            reestimated re-estimates those of each member under its noise. auto means frozen if
            members are trained or ``alpha_by`` is layer, because what is learnt holds only with the
            base's statistics, and otherwise reestimated. In Python, where no data are given, auto
            also means frozen.
        optimizer: optimiser: sgd (Nesterov momentum 0.9) or adamw.
        schedule: schedule of the learning rate: onecycle, poly or constant.
        prior_mean: mean of the prior: base (the trained values of the base) or zero (plain weight
            decay).
        random_classes: number of randomly chosen classes that get more weight in the training of a
            member.
        random_class_weight: weight of these classes in the cross-entropy of the member.

    >>> import torch
    >>> import segunc
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> segunc.ABNN(members=2, alpha=0.1).fit(base).posterior.members
    2
    """

    section = "abnn"
    method = "abnn"
    members: PositiveInt = 1
    alpha: NonNegativeFloat = 0.1
    alpha_by: Literal["network", "layer"] = "network"
    alpha_frames: Annotated[int, Bound(least=2)] = 8
    alpha_steps: PositiveInt = 40
    statistics: Literal["auto", "frozen", "reestimated"] = "auto"
    epochs: NonNegativeInt = 0
    lr: PositiveFloat = 0.05
    optimizer: Literal["sgd", "adamw"] = "sgd"
    schedule: Schedule = "poly"
    prior_mean: PriorMean = "base"
    random_classes: NonNegativeInt = 0
    random_class_weight: NonNegativeFloat = 4.0

    around: ClassVar[Callable[..., ABNNPosterior]] = ABNNPosterior.around

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha_by == "layer" and self.alpha == 0:
            raise InputError(
                "alpha_by layer cannot start from alpha 0",
                hint="give a number above 0, such as --abnn.alpha 0.1",
            )
        if self.alpha_by == "layer" and self.statistics == "reestimated":
            raise InputError(
                "alpha_by layer learns with the statistics of the base, and statistics is "
                "reestimated",
                hint=FROZEN,
            )

    @property
    def without_data(self) -> str:
        """Settings that need no data."""
        words = "--abnn.epochs 0 --abnn.statistics frozen"
        if self.alpha_by == "layer":
            words = f"{words} --abnn.alpha_by network"
        return f"{words} (needs no data)"

    def settled(self, *, has_data: bool) -> ABNN:
        """Return the settings with frozen statistics where nothing else is asked for and there are
        no data.
        """
        if has_data or not self.reestimates or self.statistics != "auto":
            return self
        return replace(self, statistics="frozen")

    @property
    def uses_data(self) -> dict[str, str]:
        """The splits that are looked at, each with the setting that asks for it."""
        splits = {}
        if self.epochs:
            splits["train"] = f"abnn.epochs {self.epochs}"
        elif self.reestimates:
            splits["train"] = "abnn.statistics reestimated"
        if self.alpha_by == "layer":
            splits["val"] = "abnn.alpha_by layer"
        return splits

    @property
    def reestimates(self) -> bool:
        if self.statistics == "auto":
            return not self.epochs and self.alpha_by == "network"
        return self.statistics == "reestimated"


class Members(Trainable[ABNNPosterior]):
    """M members in training, with noise; each weights up some of the C classes, which the seed
    decides.
    """

    emphasis: Tensor

    def __init__(self, layout: AffineLayout, num_classes: int, config: ABNN) -> None:
        count = config.random_classes
        if count > num_classes:
            raise InputError(
                f"{count} random classes are more than {num_classes} classes",
                hint="lower random_classes",
            )
        super().__init__(config.scope, config.prior(mean=config.prior_mean))
        self.members = config.members
        self.alpha = config.alpha
        self.gamma = nn.ParameterList()
        self.beta = nn.ParameterList()
        emphasis = torch.ones(self.members, num_classes, dtype=torch.float32)
        self.random_classes: list[list[int]] = []
        for member in range(self.members):
            self.gamma.append(nn.Parameter(layout.weight.clone()))
            self.beta.append(nn.Parameter(layout.bias.clone()))
            generator = np.random.default_rng([config.seed, member])
            chosen = generator.choice(num_classes, count, replace=False)
            self.random_classes.append(sorted(int(index) for index in chosen))
            emphasis[member, chosen] = config.random_class_weight
        self.register_buffer("emphasis", emphasis, persistent=False)

    def member_affine(self, layout: AffineLayout, member: int) -> Tensor:
        """Return ``[2, T]`` gamma and beta of a member."""
        affine = torch.stack([self.gamma[member], self.beta[member]])
        return self.within_scope(affine, layout)

    def posterior(self, layout: AffineLayout) -> ABNNPosterior:
        members = [self.member_affine(layout, member) for member in range(self.members)]
        gamma, beta = torch.stack(members, 1)
        return ABNNPosterior(gamma, beta, self.alpha, self.scope)

    def regulariser(self, layout: AffineLayout, member: int) -> Tensor:
        return self.prior.energy(self.member_affine(layout, member), layout, self.scope)

    def class_weights(self, weights: Tensor, member: int) -> Tensor:
        return weights * self.emphasis[member]

    def others(self, member: int) -> list[nn.Parameter]:
        parameters = []
        for other in range(self.members):
            if other != member:
                parameters += [self.gamma[other], self.beta[other]]
        return parameters


STATISTICS_BATCHES = 40
"""Batches of training images from which a member's statistics are re-estimated, at most."""


def finetune_abnn(run: FinetuneRun[ABNN]) -> Model:
    """Return a base network with members, which are fine-tuned where epochs are asked for."""
    abnn = run.config.settings
    layout = run.place()
    run.measured["alpha"] = abnn.alpha
    if run.epochs == 0:
        posterior = ABNNPosterior.around(layout, abnn.alpha, abnn.members, abnn.scope)
        run.say("epochs 0: nothing is trained, the members are the base network with noise")
    else:
        members = Members(layout, len(run.classes), abnn)
        for member, classes in enumerate(members.random_classes):
            names = ", ".join(run.classes[index] for index in classes)
            run.say(f"member {member}: {names or 'no class'} weighted up")
        posterior = run.train(members)
    if abnn.alpha_by == "layer":
        posterior = with_learnt_alphas(run, posterior)
    if abnn.reestimates:
        run.place()
        posterior = with_own_statistics(run.network, posterior, run.train_batches, abnn.seed)
        run.say(f"running statistics of {counted(posterior.members, 'member')} re-estimated")
    numbers = 2 * posterior.gamma.numel()
    count = counted(posterior.members, "member")
    return run.finish(posterior, f"{count}, {alpha_words(posterior.alpha)}, {numbers:,} parameters")


def with_learnt_alphas(run: FinetuneRun[ABNN], plain: ABNNPosterior) -> ABNNPosterior:
    """Return the posterior with a noise scale for each layer, or with its own where the learnt ones
    are not better on frames that were held out.
    """
    abnn = run.config.settings
    run.place()
    images = validation_images(run, abnn.alpha_frames)
    learnt = learn_layer_alphas(
        run.network,
        plain.with_alpha,
        abnn.alpha,
        images,
        steps=abnn.alpha_steps,
        seed=abnn.seed,
        quiet=run.quiet,
    )
    run.measured["alphas"] = learnt.record()
    if not learnt.kept:
        run.say(
            f"note: one alpha is kept: the NLL of frames that were held out is "
            f"{learnt.nll_after:.4f} with alphas of the layers, and {learnt.nll_before:.4f} with "
            f"alpha {abnn.alpha:g}"
        )
        return plain
    run.say(
        f"{alpha_words(learnt.alpha)}: the NLL of frames that were held out is "
        f"{learnt.nll_after:.4f} instead of {learnt.nll_before:.4f}"
    )
    return plain.with_alpha(learnt.alpha)


def with_own_statistics(
    network: nn.Module,
    plain: ABNNPosterior,
    epoch: Callable[[], Iterable[tuple[Tensor, Tensor]]],
    seed: int,
) -> ABNNPosterior:
    """Return a posterior with running statistics of each member, re-estimated under its noise.

    Args:
        network: converted.
        plain: the posterior with the base's statistics.
        epoch: begins an epoch of training images and labels.
        seed: of the noise.
    """
    device = next(network.parameters()).device
    rescales = []
    reshifts = []
    for member in range(plain.members):
        batches = _images_on(device, network, islice(epoch(), STATISTICS_BATCHES))
        rescale, reshift = reestimate(network, plain, member, batches, seed)
        rescales.append(rescale.cpu())
        reshifts.append(reshift.cpu())
    return ABNNPosterior(
        plain.gamma,
        plain.beta,
        plain.alpha,
        plain.scope,
        rescale=torch.stack(rescales),
        reshift=torch.stack(reshifts),
    )


def _images_on(
    device: torch.device, network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]
) -> Iterator[Tensor]:
    """Yield the images of batches on a device; they are checked before, as a GPU would be waited
    for.
    """
    for images, _ in batches:
        check_images(images, network)
        yield images.to(device)


@torch.no_grad()
def reestimate(
    network: nn.Module,
    posterior: ABNNPosterior,
    member: int,
    batches: Iterable[Tensor],
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Re-estimate the running statistics of a member, which replace the base's.

    A draw of the member meets each batch in a
    :class:`segunc.posteriors.running_statistics.NormalisingCopy` of the network.

    Returns:
        ``rescale`` and ``reshift`` ``[T]`` of :class:`ABNNPosterior`.

    Raises:
        InputError: there is no batch.
    """
    base = AffineLayout(network)
    copied = NormalisingCopy(network, posterior.scope, FROZEN)
    count = 0
    for count, images in enumerate(batches, start=1):
        number = member + posterior.members * (count - 1)
        draw = posterior.affine(base, [number], seed)
        copied.layout.store(draw.weight[0], draw.bias[0])
        copied.network(images)
    if not count:
        raise InputError(
            "there is no batch to re-estimate statistics from",
            hint=f"lower data.batch_size, or {FROZEN}",
        )
    return copied.corrections()


METHOD = Method(name="abnn", config=ABNN, fit=finetune_abnn, restore=ABNNPosterior.from_tensors)
