"""MC dropout, over the channels of norm sites or at the network's own dropout layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.dropout_sites import DropoutReport
from segunc.affine.noise import NoiseSource, mix_seed
from segunc.affine.posterior import Deterministic, stochastic
from segunc.affine.scope import in_scope
from segunc.core.errors import InputError


class ChannelDropout:
    """Draw s: ``gamma z / (1 - p)`` and ``beta z / (1 - p)``, one ``z ~ Bernoulli(1 - p)`` for each channel.

    The whole output of a dropped channel is 0, and the expectation of every channel stays what it was. The same
    uniform numbers decide at every p, so the channels dropped at a smaller p are among those of a larger one.

    Args:
        affine: ``[2, T]`` the trained gamma (row 0) and beta (row 1).
        p: probability that a channel is dropped, in [0, 1); 0 is the network itself.
        scope: which sites have dropout.

    Raises:
        InputError: p out of range, or a tensor of another shape.
    """

    method: ClassVar[str] = "mc-dropout"
    where: ClassVar[str] = "norm"
    members = 1

    def __init__(self, affine: Tensor, p: float, scope: str = "all") -> None:
        if not 0 <= p < 1:
            raise InputError(f"dropout probability p {p}", "a number in [0, 1)", "0.005 to 0.05 are usual for channels")
        if affine.ndim != 2 or affine.shape[0] != 2:
            raise InputError(f"affine parameters {tuple(affine.shape)}", "[2, T]")
        self.gamma_beta, self.p, self.scope = affine, float(p), scope

    @classmethod
    def of(cls, layout: AffineLayout, p: float, scope: str = "all") -> ChannelDropout:
        """Dropout on the trained affine parameters of a network."""
        return cls(torch.stack([layout.weight, layout.bias]), p, scope)

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: int | NoiseSource, scope: str | None = None
    ) -> AffineDraws:
        kept = (NoiseSource.of(seed).uniform(draws, layout.total) >= self.p).float().to(layout.device) / (1.0 - self.p)
        factor = torch.where(stochastic(layout, self.scope, scope), kept, 1.0)
        gamma, beta = self.gamma_beta.to(layout.device)
        return AffineDraws(gamma * factor, beta * factor)

    def with_p(self, p: float) -> ChannelDropout:
        """The same network with another probability."""
        return ChannelDropout(self.gamma_beta, p, self.scope)

    def tensors(self) -> dict[str, Tensor]:
        return {"affine": self.gamma_beta}

    def settings(self) -> dict[str, Any]:
        return {"p": self.p, "scope": self.scope, "where": self.where}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(tensors["affine"], settings["p"], settings["scope"])


class OwnDropout:
    """Draw s: the trained affine, and masks of the dropout layers that (seed, s, layer) decide.

    ``nn.Dropout`` drops elements, ``Dropout1d`` to ``Dropout3d`` whole channels; what is kept is divided by 1 - p. A mask
    is the same for all frames of one size, and for all windows where a network folds them into the batch.

    Args:
        p: for each layer, in network order, the probability in [0, 1).
        names: of the layers.
        scope: which of the layers drop, as :func:`segunc.affine.scope.in_scope` reads it.

    Raises:
        InputError: a probability out of range, or another number of names.
    """

    method: ClassVar[str] = "mc-dropout"
    where: ClassVar[str] = "own"
    members = 1

    def __init__(self, p: Sequence[float], names: Sequence[str], scope: str = "all") -> None:
        if len(p) != len(names) or not p:
            raise InputError(f"{len(p)} probabilities for {len(names)} dropout layers", "one for each, at least one")
        for value in p:
            if not 0 <= value < 1:
                raise InputError(f"dropout probability p {value}", "a number in [0, 1)", "give mc_dropout.p")
        self.p, self.names, self.scope = tuple(float(value) for value in p), tuple(names), scope

    @classmethod
    def of(cls, report: DropoutReport, p: float | None = None, scope: str = "all") -> OwnDropout:
        """The layers of a report with their own probabilities, or all with ``p``."""
        return cls([site.p if p is None else p for site in report.sites], [s.name for s in report.sites], scope)

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: int | NoiseSource, scope: str | None = None
    ) -> AffineDraws:
        """See :class:`segunc.affine.posterior.Posterior`; masks are independent under every scheme of the noise.

        Raises:
            InputError: the network's dropout layers are not these, or were not converted.
        """
        if layout.dropout_names != self.names:
            raise InputError(
                f"a network with the drawn dropout layers {', '.join(layout.dropout_names) or 'none'}",
                ", ".join(self.names),
                "call convert_dropout on the network that the posterior was made for",
            )
        flags = in_scope(self.scope, self.names)
        if scope is not None:
            flags = [a and b for a, b in zip(flags, in_scope(scope, self.names), strict=True)]
        source = NoiseSource.of(seed).seed
        trained = Deterministic().affine(layout, draws, seed)
        chosen = tuple(p if flag else 0.0 for p, flag in zip(self.p, flags, strict=True))
        return AffineDraws(
            trained.weight, trained.bias, dropout=chosen, dropout_seeds=tuple(mix_seed(source, s) for s in draws)
        )

    def with_p(self, p: float) -> OwnDropout:
        """The same layers, all with another probability."""
        return OwnDropout([p] * len(self.p), self.names, self.scope)

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def settings(self) -> dict[str, Any]:
        return {"p": list(self.p), "layers": list(self.names), "scope": self.scope, "where": self.where}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(settings["p"], settings["layers"], settings["scope"])
