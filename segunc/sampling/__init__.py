"""The sampler: draws as a batch over one network, streaming accumulators, finished maps."""

from __future__ import annotations

from segunc.sampling.sampler import Prediction, Sampler

__all__ = ["Prediction", "Sampler"]
