"""A posterior of another package: uniform noise on gamma.

Its settings are all that there is to store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import Tensor

from segunc import AffineLayout
from segunc.affine.draws import AffineDraws
from segunc.affine.noise import NoiseSource, Seed
from segunc.core.bounds import PositiveFloat
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Model
from segunc.posteriors.settings import MethodSettings


@dataclass(frozen=True)
class UniformNoise(MethodSettings):
    """Multiply gamma by a uniform factor, drawn once for each channel.

    Args:
        width: half the width of the interval of factors around 1.
        scope: normalisation layers with noise.
        seed: for the record.
    """

    section: ClassVar[str] = "uniform_noise"  # in a configuration
    method: ClassVar[str] = "uniform-noise"  # on the command line
    members: ClassVar[int] = 1
    uses_data: ClassVar[dict[str, str]] = {}  # none

    width: PositiveFloat = 0.1
    scope: str = "all"
    seed: int = 0

    def affine(
        self, layout: AffineLayout, draws: Sequence[int], seed: Seed, scope: str | None = None
    ) -> AffineDraws:
        """Return the draws with these numbers, each a row of gammas and a row of betas."""
        # [S, T] in 0..1: noise of draw s depends only on the seed and on s.
        uniform = NoiseSource.of(seed).uniform(draws, layout.total).to(layout.device)
        # [T], 1 where a channel is drawn and 0 elsewhere.
        drawn = layout.mask(self.scope, scope)
        factor = 1 + self.width * drawn * (2 * uniform - 1)
        return AffineDraws(
            weight=layout.weight * factor,
            bias=layout.bias.expand(len(draws), -1),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return what posterior.safetensors holds."""
        return {}

    def settings(self) -> dict[str, Any]:
        """Return what posterior.json holds."""
        return asdict(self)

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]
    ) -> UniformNoise:
        """Return the posterior that gave these tensors and settings."""
        return cls(
            width=settings["width"],
            scope=settings["scope"],
            seed=settings["seed"],
        )


def fit(run: Any) -> Model:
    """Return the base network with the posterior; ``run`` is a FinetuneRun."""
    model: Model = run.finish(posterior=run.settings, summary="uniform noise on gamma")
    return model


METHOD = Method(
    name="uniform-noise",
    config=UniformNoise,
    fit=fit,
    restore=UniformNoise.from_tensors,
)
