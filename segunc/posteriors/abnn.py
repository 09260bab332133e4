"""ABNN: members with their own gamma and beta, and noise on gamma ("Make Me a BNN", CVPR 2024)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineDraws, AffineLayout, in_scope
from segunc.affine.noise import NoiseSource, Seed
from segunc.affine.posterior import Posterior, PriorMean, Trainable
from segunc.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from segunc.core.device import resolve_device
from segunc.core.errors import InputError
from segunc.networks.copies import copy_network
from segunc.networks.network import SegmentationNetwork, check_images
from segunc.posteriors.finetune_run import FinetuneRun
from segunc.posteriors.fitting import finetuning
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Model
from segunc.posteriors.running_statistics import RunningStatistics
from segunc.training.affine_tuner import AffineTuner
from segunc.training.batches import count_batches, unpack_batch
from segunc.training.config import AffineTrainingConfig
from segunc.training.losses import Schedule


class ABNNPosterior(Posterior):
    """Draw s of member m = s mod M: ``weight = gamma_m (1 + alpha eps)``, ``bias = beta_m``, ``eps
    ~ N(0, I)``, one a channel. Members whose running statistics were re-estimated keep the
    correction as ``rescale`` and ``reshift``: ``weight = gamma' rescale``, ``bias = beta + gamma'
    reshift``, with gamma' the drawn gamma, rescale = s_base / s_member and reshift = (mu_base -
    mu_member) / s_member.

    Args:
        gamma, beta: ``[M, T]`` affine parameters of the members.
        alpha: noise scale, at least 0; 0 gives the members themselves.
        scope: which sites are noisy.
        rescale, reshift: ``[M, T]`` statistics corrections; None for the base's statistics.

    Raises:
        InputError: a negative alpha, or gamma and beta of other shapes.
    """

    method: ClassVar[str] = "abnn"

    def __init__(
        self,
        gamma: Tensor,
        beta: Tensor,
        alpha: float,
        scope: str = "all",
        rescale: Tensor | None = None,
        reshift: Tensor | None = None,
    ) -> None:
        if not 0 <= alpha < math.inf:
            raise InputError(
                f"alpha {alpha} is no number of at least 0", hint="0.05 to 0.2 are usual"
            )
        if gamma.ndim != 2 or gamma.shape != beta.shape or len(gamma) == 0:
            raise InputError(
                f"gamma {tuple(gamma.shape)} and beta {tuple(beta.shape)} are not both [M, T]"
            )
        self.gamma, self.beta, self.alpha, self.scope = gamma, beta, float(alpha), scope
        self.rescale, self.reshift = rescale, reshift

    @classmethod
    def around(
        cls, layout: AffineLayout, alpha: float, members: int = 1, scope: str = "all"
    ) -> ABNNPosterior:
        """Return members at the trained affine parameters: a Bayesian network without any
        training.
        """
        return cls(layout.weight.repeat(members, 1), layout.bias.repeat(members, 1), alpha, scope)

    @property
    def members(self) -> int:
        return len(self.gamma)

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        member = torch.tensor([s % self.members for s in draws])
        gamma, beta = self.gamma[member].to(layout.device), self.beta[member].to(layout.device)
        if self.alpha:
            mask = layout.mask(self.scope, scope)
            noise = (
                NoiseSource.of(seed)
                .normal(draws, layout.total, members=self.members)
                .to(layout.device)
            )
            gamma = gamma * (1.0 + self.alpha * mask * noise)
        if self.rescale is not None and self.reshift is not None:
            beta = beta + gamma * self.reshift[member].to(layout.device)
            gamma = gamma * self.rescale[member].to(layout.device)
        return AffineDraws(gamma, beta)

    def with_alpha(self, alpha: float) -> ABNNPosterior:
        """Return the same members with another noise scale; their statistics stay those that were
        estimated for the first one.
        """
        return ABNNPosterior(self.gamma, self.beta, alpha, self.scope, self.rescale, self.reshift)

    def settings(self) -> dict[str, Any]:
        return {"alpha": self.alpha, "scope": self.scope, "noise": "channel"}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        statistics = tensors.get("rescale"), tensors.get("reshift")
        return cls(
            tensors["gamma"], tensors["beta"], settings["alpha"], settings["scope"], *statistics
        )


FIT_EPOCHS = 2  # of each member on a loader, where no number is given


@dataclass(frozen=True)
class ABNN(AffineTrainingConfig):
    """How ABNN members are made; epochs and steps are those of each member. Training and
    re-estimated statistics need data: 0 epochs with frozen statistics need none. Without
    ``epochs``, ``fit`` trains two on a loader, and ``segunc finetune`` none. By default nothing is
    trained, because training brought no significant gain on four bases (docs/results.md); the
    publication trains, ``members=3, epochs=2, random_classes=3``.

    Args:
        members: number M of members: sets of affine parameters.
        alpha: noise scale, at least 0.
        statistics: running statistics of BatchNorm layers: frozen keeps those of the base;
            reestimated re-estimates those of each member under its noise; auto freezes them where
            members are trained, because what members learn holds only with the base's statistics,
            and re-estimates them otherwise. Without a loader, ``fit`` keeps them frozen.
        optimizer: optimiser: sgd (Nesterov momentum 0.9) or adamw.
        schedule: schedule of the learning rate: onecycle, poly or constant.
        prior_mean: mean of the prior: base (the trained values) or zero (plain weight decay).
        random_classes: number of randomly chosen classes to which each member gives more weight.
        random_class_weight: weight of these classes in the cross-entropy of the member.
    """

    section = "abnn"
    members: PositiveInt = 1
    alpha: NonNegativeFloat = 0.1
    statistics: Literal["auto", "frozen", "reestimated"] = "auto"
    epochs: NonNegativeInt | None = None  # type: ignore[assignment]
    lr: PositiveFloat = 0.05
    optimizer: Literal["sgd", "adamw"] = "sgd"
    schedule: Schedule = "poly"
    prior_mean: PriorMean = "base"
    random_classes: NonNegativeInt = 0
    random_class_weight: NonNegativeFloat = 4.0

    around: ClassVar[Callable[..., ABNNPosterior]] = ABNNPosterior.around
    without_data: ClassVar[str] = "--abnn.epochs 0 --abnn.statistics frozen need none"

    @property
    def uses_data(self) -> dict[str, str]:
        """The splits that are looked at, each with the setting that asks for it."""
        if self.epochs:
            return {"train": f"abnn.epochs {self.epochs}"}
        if self.reestimates:
            return {"train": "abnn.statistics reestimated"}
        return {}

    @property
    def reestimates(self) -> bool:
        return not self.epochs if self.statistics == "auto" else self.statistics == "reestimated"

    def fit(
        self, base: Model, train: Iterable[Any] | None = None, *, device: str = "auto"
    ) -> Model:
        """Return a Bayesian model of a deterministic one, which is not changed.

        Args:
            base: of :func:`segunc.load` or :func:`segunc.wrap`.
            train: a loader of ``(image, label)`` pairs or dictionaries with these keys: float
                images ``[N, 3, H, W]`` in 0..1 and class ids ``[N, H, W]`` or ``[N, 1, H, W]``, 255
                ignored. The members are trained on it for ``epochs`` each, two where none are
                given; 0 epochs train nothing, and re-estimate the statistics alone. One without a
                length is counted in a pass of its own. None trains nothing: the members are the
                base network with noise of scale ``alpha``.
            device: ``auto``, ``cpu`` or ``cuda[:N]``, on which the model is left.

        Raises:
            InputError: a Bayesian base, a scope without a normalisation layer, labels that are no
                classes, epochs or statistics that need data without any, or a
                ``class_weight_power``, which needs the frequencies of a data set.
            PartialFailure: the loss becomes NaN or infinite.
        """
        if base.bayesian:
            raise InputError(
                "the base is Bayesian already", hint="load its deterministic base with segunc.load"
            )
        if train is None and self.epochs:
            hint = "give a loader, or leave epochs out"
            raise InputError(f"epochs {self.epochs} need data", hint=hint)
        if train is None and self.statistics == "reestimated":
            raise InputError(
                "statistics reestimated needs data", hint="give a loader, or take frozen statistics"
            )
        if train is not None and self.class_weight_power:
            message = f"class_weight_power {self.class_weight_power} needs class frequencies, which a loader does not say"
            raise InputError(message, hint="leave it 0, or take segunc.finetune")
        settings = self._settled(with_data=train is not None)
        network = copy_network(base.network)
        report = convert(network.body)
        network.to(resolve_device(device)).to(memory_format=torch.channels_last)
        layout = AffineLayout(network)
        record: dict[str, Any] = {"seed": self.seed, "provenance": {"settings": asdict(settings)}}
        if train is None:
            posterior = ABNNPosterior.around(layout, self.alpha, self.members, self.scope)
            in_scope(self.scope, layout.names)
            return Model(network, posterior, base.sha256, "", report, record)
        if settings.epochs:
            posterior = _train(network, settings, train)
        else:
            posterior = ABNNPosterior.around(layout, self.alpha, self.members, self.scope)
            in_scope(self.scope, layout.names)
        if settings.reestimates:
            posterior = with_own_statistics(
                network, posterior, lambda: map(unpack_batch, train), self.seed
            )
        return Model(network, posterior, base.sha256, "", report, record)

    def _settled(self, *, with_data: bool) -> ABNN:
        """Return the settings of a fit, with a number of epochs, and statistics that are frozen or
        re-estimated.
        """
        epochs = self.epochs
        if epochs is None:
            epochs = FIT_EPOCHS if with_data else 0
        settled = replace(self, epochs=epochs)
        reestimates = settled.reestimates and with_data
        return replace(settled, statistics="reestimated" if reestimates else "frozen")


def _train(network: SegmentationNetwork, settings: ABNN, train: Iterable[Any]) -> ABNNPosterior:
    """Return members that were trained on a loader, over a converted network on its device."""
    classes, device = network.description.num_classes, next(network.parameters()).device
    tuner = AffineTuner(
        network, classes, lambda layout: Members(layout, classes, settings), settings
    ).to(device)
    batches = count_batches(train, settings.max_steps)
    epochs = settings.epochs or 0
    steps = int(min(batches * epochs, settings.max_steps or math.inf)) * settings.members
    optimizer, schedule = tuner.optimizer(steps)
    passes = chain.from_iterable(train for _ in range(-(-steps // batches)))
    for step, (images, labels) in enumerate(map(unpack_batch, islice(passes, steps))):
        tuner.loss(images.to(device), labels.to(device), step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return tuner.posterior()


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
        self.members, self.alpha = config.members, config.alpha
        self.gamma = nn.ParameterList(
            [nn.Parameter(layout.weight.clone()) for _ in range(self.members)]
        )
        self.beta = nn.ParameterList(
            [nn.Parameter(layout.bias.clone()) for _ in range(self.members)]
        )
        emphasis = torch.ones(self.members, num_classes, dtype=torch.float32)
        self.random_classes: list[list[int]] = []
        for member in range(self.members):
            chosen = np.random.default_rng([config.seed, member]).choice(
                num_classes, count, replace=False
            )
            self.random_classes.append(sorted(int(c) for c in chosen))
            emphasis[member, chosen] = config.random_class_weight
        self.register_buffer("emphasis", emphasis, persistent=False)

    def member_affine(self, layout: AffineLayout, member: int) -> Tensor:
        return self.within_scope(torch.stack([self.gamma[member], self.beta[member]]), layout)

    def posterior(self, layout: AffineLayout) -> ABNNPosterior:
        gamma, beta = torch.stack([self.member_affine(layout, m) for m in range(self.members)], 1)
        return ABNNPosterior(gamma, beta, self.alpha, self.scope)

    def regulariser(self, layout: AffineLayout, member: int) -> Tensor:
        return self.prior.energy(self.member_affine(layout, member), layout, self.scope)

    def class_weights(self, weights: Tensor, member: int) -> Tensor:
        return weights * self.emphasis[member]

    def others(self, member: int) -> list[nn.Parameter]:
        return [
            p for m in range(self.members) if m != member for p in (self.gamma[m], self.beta[m])
        ]


STATISTICS_BATCHES = 40


@finetuning
def finetune_abnn(run: FinetuneRun[ABNN]) -> dict[str, Any]:
    """Fine-tune the members, and write the Bayesian model."""
    abnn = run.config.settings
    layout = run.place()
    run.measured["alpha"] = abnn.alpha
    if run.epochs == 0:
        posterior = ABNNPosterior.around(layout, abnn.alpha, abnn.members, abnn.scope)
        run.say("epochs 0: nothing is trained, the members are the base network with noise")
    else:
        members = Members(layout, len(run.classes), abnn)
        for member, classes in enumerate(members.random_classes):
            names = ", ".join(run.classes[c] for c in classes)
            run.say(f"member {member}: {names or 'no class'} weighted up")
        posterior = run.train(members)
    if abnn.reestimates:
        run.place()
        posterior = with_own_statistics(run.network, posterior, run.train_batches, abnn.seed)
        run.say(f"running statistics of {posterior.members} members re-estimated")
    numbers = 2 * posterior.gamma.numel()
    return run.finish(
        posterior, f"{posterior.members} members, alpha {abnn.alpha:g}, {numbers:,} parameters"
    )


def with_own_statistics(
    network: nn.Module,
    plain: ABNNPosterior,
    epoch: Callable[[], Iterable[tuple[Tensor, Tensor]]],
    seed: int,
) -> ABNNPosterior:
    """Return a posterior with the running statistics of its members under their noise; ``epoch``
    begins an epoch of training images.
    """
    device = next(network.parameters()).device
    pairs = []
    for member in range(plain.members):
        batches = _images_on(device, network, islice(epoch(), STATISTICS_BATCHES))
        pairs.append(reestimate(network, plain, member, batches, seed))
    rescale, reshift = (torch.stack([pair[i].cpu() for pair in pairs]) for i in (0, 1))
    return ABNNPosterior(plain.gamma, plain.beta, plain.alpha, plain.scope, rescale, reshift)


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
    """Return ``rescale`` and ``reshift`` ``[T]`` of :class:`ABNNPosterior`, which replace the
    base's running statistics by a member's own. A draw of the member meets each batch in a copy of
    the network whose BatchNorm layers normalise with the batch, and InstanceNorm layers with each
    frame, see :mod:`segunc.posteriors.running_statistics`. Sites outside of the posterior's scope keep the
    base's statistics, so that what lies before the first site of a narrow scope is the same for all
    members.
    """
    base = AffineLayout(network)
    twin = copy_network(network)
    drawn = AffineLayout(twin)
    gathered = []
    for name, chosen in zip(drawn.names, in_scope(posterior.scope, drawn.names), strict=True):
        layer = cast(Any, twin.get_submodule(name))
        if chosen and layer.segunc_site.kind == "batch" and hasattr(layer, "reset_running_stats"):
            gathered.append(RunningStatistics.of(layer))
    count = 0
    for count, images in enumerate(batches, start=1):
        draw = posterior.affine(base, [member + posterior.members * (count - 1)], seed)
        drawn.store(draw.weight[0], draw.bias[0])
        twin(images)
    if not count:
        raise InputError(
            "there is no batch to re-estimate statistics from",
            hint="lower data.batch_size, or --abnn.statistics frozen",
        )
    for statistics in gathered:
        statistics.store()
    member_layout = AffineLayout(twin)
    return member_layout.inverse / base.inverse, (
        base.mean - member_layout.mean
    ) * member_layout.inverse


METHOD = Method("abnn", ABNN, finetune_abnn, ABNNPosterior.from_tensors)
