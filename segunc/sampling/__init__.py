"""The sampler: draws as a batch over one network, streaming accumulators, finished maps."""

from __future__ import annotations

from segunc.sampling.frames import Prediction
from segunc.sampling.sampler import Sampler

__all__ = ["Prediction", "Sampler"]
