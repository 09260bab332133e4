"""How the draws of a posterior are computed: as *branches* (network, input transform, posterior).

Draw s belongs to branch s mod B. Most posteriors have one branch; an ensemble or test-time
augmentation is a :class:`Mixture` of several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.noise import NoiseSource, mix_seed
from segunc.affine.posterior import Deterministic, Posterior
from segunc.core.errors import InputError
from segunc.core.terminal import counted


@dataclass(frozen=True)
class InputTransform:
    """A transform of frames whose logits can be brought back.

    Attributes:
        scale: factor above 0 of height and width, which become whole pixels.
        flip: whether frames are mirrored left to right.
    """

    scale: float = 1.0
    flip: bool = False

    @property
    def identity(self) -> bool:
        return self.scale == 1.0 and not self.flip

    def apply(self, images: Tensor) -> Tensor:
        """Return frames ``[n, 3, H, W]`` as the network shall see them; shrinking averages
        (antialiased bilinear interpolation).
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
    """One network with one posterior over it, seen through one input transform.

    Attributes:
        network: converted, unless the posterior is deterministic.
        posterior: over this network.
        transform: of the frames.
        networks: how many networks take turns: draw s of the whole is draw s // networks of this
            network's posterior.
        index: of this network among them; where there are several, each has noise of its own.
    """

    network: nn.Module
    posterior: Posterior
    transform: InputTransform = IDENTITY
    networks: int = 1
    index: int = 0

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
        total = None
        if noise.total is not None:
            total = len(range(self.index, noise.total, self.networks))
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
        """Return its B branches; draw s belongs to branch s mod B.

        Args:
            network: the first network.
        """

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return what decides its draws apart from the networks, for records."""


AnyPosterior = Posterior | Mixture


def branches_of(network: nn.Module, posterior: AnyPosterior | None) -> list[Branch]:
    """Return the branches of a posterior or mixture over a network; None is the network itself."""
    if isinstance(posterior, Mixture):
        return posterior.branches(network)
    return [Branch(network, Deterministic() if posterior is None else posterior)]


def least_draws(posterior: AnyPosterior) -> int:
    """Return :attr:`Mixture.least_draws`, or of any other posterior its number of members."""
    return posterior.least_draws if isinstance(posterior, Mixture) else posterior.members


def draws_of(branches: list[Branch], posterior: AnyPosterior | None, draws: int) -> int:
    """Return how many draws are made where ``draws`` are asked for: one for each branch where none
    has noise.

    Raises:
        InputError: fewer draws than members.
    """
    if not any(branch.stochastic for branch in branches):
        return len(branches)
    assert posterior is not None
    least = least_draws(posterior)
    if draws < least:
        number = counted(draws, "draw", "is")
        raise InputError(
            f"{number} too few for {least} members", hint=f"use at least {least} draws"
        )
    return draws
