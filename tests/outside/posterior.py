"""A posterior of another package: uniform noise on gamma. Its settings are all that there is to
store.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from segunc import AffineLayout
from segunc.affine.draws import AffineDraws
from segunc.affine.noise import NoiseSource
from segunc.core.bounds import PositiveFloat, Settings
from segunc.posteriors.methods import METHODS, Method


@dataclass(frozen=True)
class UniformNoise(Settings):
    section, method, members = "uniform_noise", "uniform-noise", 1
    width: PositiveFloat = 0.1
    scope: str = "all"
    seed: int = 0

    def affine(self, layout: AffineLayout, draws, seed, scope=None) -> AffineDraws:
        noise = 2 * NoiseSource.of(seed).uniform(draws, layout.total).to(layout.device) - 1
        factor = 1 + self.width * layout.mask(self.scope, scope) * noise
        return AffineDraws(layout.weight * factor, layout.bias.expand(len(draws), -1))

    tensors, settings = (lambda self: {}), asdict

    @classmethod
    def from_tensors(cls, tensors, record):
        return cls(record["width"], record["scope"], record["seed"])


def fit(base, config, out, **options):
    from segunc.posteriors.finetune_run import FinetuneRun

    return FinetuneRun(base, config, out, **options).finish(
        config.settings, "uniform noise on gamma"
    )


METHODS.register(
    "uniform-noise", Method("uniform-noise", UniformNoise, fit, UniformNoise.from_tensors)
)
