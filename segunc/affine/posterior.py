"""Posteriors over affine parameters: their protocol, the prior that all share, what is trained, and
how one over one network is stored. Posteriors that vary more are mixtures of *branches* (network,
input transform, posterior): draw s belongs to branch s mod B.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, runtime_checkable

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from segunc.affine.convert import ConversionReport
from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import NoiseSource, Seed, mix_seed
from segunc.core.errors import InputError
from segunc.core.files import file_sha256, link_or_copy, read_json, write_atomically, write_record
from segunc.networks.model_folder import DESCRIPTION, POSTERIOR, WEIGHTS
from segunc.networks.weights import check_finite

P = TypeVar("P", bound="Posterior")
PriorMean = Literal["base", "zero"]
TENSORS = "posterior.safetensors"


class Stored(Protocol):
    """What a model folder keeps beside its base network. A subclass with one attribute for each
    argument needs to write no method.
    """

    method: ClassVar[str]  # its name in files and on the command line

    @property
    def members(self) -> int: ...

    def tensors(self) -> dict[str, Tensor]:
        """Return what ``posterior.safetensors`` holds."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def settings(self) -> dict[str, Any]:
        """Return what ``posterior.json`` holds beside the sites."""
        return {name: value for name, value in vars(self).items() if not isinstance(value, Tensor)}


@runtime_checkable
class Posterior(Stored, Protocol):
    """A way to make affine draws over one network. One whose draws differ in other layers, too, has
    a method ``prepare(network)``, which makes these layers of a network just loaded drawable, in
    place.
    """

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        """Return the draws with the given numbers, over the layout of the posterior's network; each
        depends on (seed, number) alone. The seed may be a source of noise whose scheme couples the
        draws; the scope is narrower than the posterior's own, or None.
        """

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Return the posterior that gave these :meth:`tensors` and :meth:`settings` (among other
        keys); a KeyError for one that lacks.
        """
        names = signature(cls).parameters
        return cls(**{name: tensors[name] if name in tensors else settings[name] for name in names})


class Deterministic(Posterior):
    """One draw: the trained affine itself."""

    method: ClassVar[str] = "deterministic"
    members = 1

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        rows = torch.ones(len(draws), 1, device=layout.device, dtype=torch.float32)
        return AffineDraws(rows * layout.weight, rows * layout.bias)


@dataclass(frozen=True)
class Prior:
    """``N(theta; theta_prior, s^2)`` in ``log p(theta) = [N_eff x mean-pixel log-likelihood + log
    prior] / T``. N_eff says for how many independent pixels the labelled ones, which are far from
    independent, count. T below 1 is a cold posterior.
    """

    scale: float = 0.1  # s, the standard deviation, above 0
    effective_pixels: float = 100_000.0  # N_eff, above 0
    mean: PriorMean = "base"  # centres it on the trained values; zero is plain weight decay
    temperature: float = 1.0  # T, at least 0

    def centre(self, layout: AffineLayout) -> Tensor:
        """Return ``[2, T]`` gamma (row 0) and beta (row 1) at the prior's mean."""
        return (1.0 if self.mean == "base" else 0.0) * layout.affine

    def energy(self, affine: Tensor, layout: AffineLayout, scope: str) -> Tensor:
        """Return ``|theta - theta_prior|^2 / (2 s^2 N_eff)`` of ``[2, T]`` over a scope, a scalar:
        what a mean-pixel loss is added.
        """
        square = (affine - self.centre(layout)).square()
        gamma, beta = (
            row[free].sum() for row, free in zip(square, layout.free(scope), strict=True)
        )
        distance: Tensor = gamma + beta
        return distance / (2.0 * self.scale**2 * self.effective_pixels)


class Trainable(nn.Module, ABC, Generic[P]):
    """The parameters of a posterior while gradient steps train them; they start at the trained
    values, and are what a checkpoint holds. Sites outside the scope keep the base's affine. Of M
    members, member m = step mod M trains at a step.
    """

    members = 1
    regulariser_name = "prior"

    def __init__(self, scope: str = "all", prior: Prior | None = None) -> None:
        super().__init__()
        self.scope, self.prior = scope, Prior() if prior is None else prior

    @abstractmethod
    def posterior(self, layout: AffineLayout) -> P:
        """Return the posterior of the parameters as they are, differentiable in them."""

    @abstractmethod
    def regulariser(self, layout: AffineLayout, member: int) -> Tensor:
        """Return the negative log prior, or the KL, divided by N_eff; a scalar."""

    def within_scope(self, affine: Tensor, layout: AffineLayout) -> Tensor:
        """Return ``[2, T]`` gamma and beta inside the scope, the base's outside of it and where a
        layer has no beta.
        """
        return torch.where(layout.free(self.scope), affine, layout.affine)

    def class_weights(self, weights: Tensor, member: int) -> Tensor:
        return weights  # [C], in the cross-entropy of a member's step

    def others(self, member: int) -> list[nn.Parameter]:
        return []  # the parameters that do not train while a member does

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [
            {"params": list(self.parameters())}
        ]  # of the optimiser; a group may have an ``lr`` of its own

    def schedule(self, optimizer: Optimizer) -> LRScheduler | None:
        return None  # of its own, in place of the one that the settings name

    def check_steps(self, steps: int) -> None:
        """Raise an InputError before the first step if this many cannot do."""

    def after_step(self, layout: AffineLayout, step: int) -> None:
        """Look at the parameters after an optimiser step, the first of which is 1."""


def save_posterior(
    posterior: Stored,
    report: ConversionReport | None,
    base: Path,
    folder: Path,
    *,
    seed: int,
    provenance: dict[str, Any],
) -> None:
    """Write a Bayesian model: the posterior, and the base network linked (or copied) beside it.

    Args:
        report: of the conversion; None for a network that is not converted.
        base, folder: the model folder of the base network, and the new one.
        seed: that the posterior was made with.
        provenance: how it came to be: settings, measurements, dates.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if folder.resolve() != base.resolve():
        for name in (WEIGHTS, DESCRIPTION):
            link_or_copy(base / name, folder / name)
    tensors = {
        name: t.detach().cpu().contiguous().clone() for name, t in posterior.tensors().items()
    }
    check_finite(tensors, "the posterior to save")
    write_atomically(folder / TENSORS, save(tensors))
    record = {
        **{"method": posterior.method, "members": posterior.members, **posterior.settings()},
        "seed": seed,
        "base_sha256": read_json(folder / DESCRIPTION, "the description of a network")["sha256"],
        "tensors_sha256": file_sha256(folder / TENSORS),
        "parameters": sum(t.numel() for t in tensors.values()),
        "conversion": None if report is None else report.to_json(),
        "provenance": provenance,
    }
    write_record(folder / POSTERIOR, record)


@dataclass(frozen=True)
class InputTransform:
    """A transform of frames whose logits can be brought back: scaled by a factor above 0, to whole
    pixels, and mirrored left to right.
    """

    scale: float = 1.0
    flip: bool = False

    @property
    def identity(self) -> bool:
        return self.scale == 1.0 and not self.flip

    def apply(self, images: Tensor) -> Tensor:
        """Return frames ``[n, 3, H, W]`` as the network shall see them; shrinking averages
        (antialiased bilinear).
        """
        if self.scale != 1.0:
            size = [max(1, round(side * self.scale)) for side in images.shape[-2:]]
            images = F.interpolate(
                images, size, mode="bilinear", align_corners=False, antialias=self.scale < 1.0
            )
        return images.flip(-1) if self.flip else images

    def undo(self, logits: Tensor, size: tuple[int, int]) -> Tensor:
        """Return logits ``[n, C, h, w]`` of transformed frames on the (height, width) grid of
        untransformed ones.
        """
        logits = logits.flip(-1) if self.flip else logits
        if logits.shape[-2:] == size:
            return logits
        return F.interpolate(logits, size, mode="bilinear", align_corners=False)


IDENTITY = InputTransform()


@dataclass(frozen=True)
class Branch:
    """One network with one posterior over it, seen through one input transform."""

    network: nn.Module  # converted, unless the posterior is deterministic
    posterior: Posterior
    transform: InputTransform = IDENTITY
    networks: int = (
        1  # take turns: draw s of the whole is draw s // networks of this network's posterior
    )
    index: int = 0  # of this network among them; where there are several, each has noise of its own

    @property
    def stochastic(self) -> bool:
        return not isinstance(self.posterior, Deterministic)

    def numbers(self, draws: range) -> list[int]:
        """Return the numbers that draws of the whole have within this network's posterior."""
        return [draw // self.networks for draw in draws]

    def noise(self, noise: NoiseSource) -> NoiseSource:
        """Return the source of this network's noise, given that of the whole."""
        if self.networks == 1:
            return noise
        total = None if noise.total is None else len(range(self.index, noise.total, self.networks))
        return replace(noise, seed=mix_seed(noise.seed, self.index), total=total)


class Mixture(ABC):
    """A posterior that varies more than the affine parameters of one network."""

    method: ClassVar[str]

    @property
    @abstractmethod
    def members(self) -> int: ...

    @property
    @abstractmethod
    def least_draws(self) -> int:
        """The number of draws with which every member of every part has its turn."""

    @abstractmethod
    def branches(self, network: nn.Module) -> list[Branch]:
        """Return its B branches, where ``network`` is the first network; draw s belongs to branch s
        mod B.
        """

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return what decides its draws beside the networks, for records."""


AnyPosterior = Posterior | Mixture


def branches_of(network: nn.Module, posterior: AnyPosterior | None) -> list[Branch]:
    """Return the branches of any posterior over a network; None is the network itself."""
    if isinstance(posterior, Mixture):
        return posterior.branches(network)
    return [Branch(network, Deterministic() if posterior is None else posterior)]


def least_draws(posterior: AnyPosterior) -> int:
    """Return :attr:`Mixture.least_draws`, or of any other posterior its number of members."""
    return posterior.least_draws if isinstance(posterior, Mixture) else posterior.members


def draws_of(branches: list[Branch], posterior: AnyPosterior | None, draws: int) -> int:
    """Return how many draws ``draws`` come to: branches without noise have one each; others need at
    least one a member.
    """
    if not any(branch.stochastic for branch in branches):
        return len(branches)
    assert posterior is not None
    if draws < (least := least_draws(posterior)):
        number = "1 draw is" if draws == 1 else f"{draws} draws are"
        raise InputError(
            f"{number} too few for {least} members", hint=f"use at least {least} draws"
        )
    return draws
