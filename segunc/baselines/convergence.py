"""Convergence of Markov chains: rank-normalised split R-hat and effective sample size (Vehtari et
al. 2021). arviz-stats tests it, but does not replace it: it takes seconds to import, three times as
long for a network, and has no R-hat of a single chain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

Array = npt.NDArray[np.float64]
MIN_DRAWS = 4  # a chain of fewer draws has halves without a variance


def rank_normalised_rhat(chains: Array) -> float:
    """Return R-hat of one quantity, of N draws of each of M chains ``[M, N]``: near 1 where the
    chains agree, NaN where it is constant or not finite. The larger of the split R-hat of the
    rank-normalised draws (location) and of their folded distances from the median (scale); Vehtari
    et al. 2021, arXiv 1903.08008, section 4, which asks for below 1.01.
    """
    halves = _split(chains)
    if not _varies(halves):
        return float("nan")
    folded = np.abs(halves - np.median(halves))
    return max(_rhat(_normal_scores(halves)), _rhat(_normal_scores(folded)))


def effective_sample_size(chains: Array) -> float:
    """Return the bulk effective sample size of a quantity, at most S log10 S of its S = M N draws
    ``[M, N]``; NaN where it is constant: the rank-normalised split chains by Geyer's initial
    positive and monotone sequence (1992); Vehtari et al. 2021, sections 3.2 and 4.3.
    """
    halves = _split(chains)
    if not _varies(halves):
        return float("nan")
    scores = _normal_scores(halves)
    count, length = scores.shape
    covariance = _autocovariance(scores).mean(0)
    within = covariance[0] * length / (length - 1)
    # Splitting makes at least two chains of the one.
    total = within * (length - 1) / length + scores.mean(1).var(ddof=1)
    correlation = 1.0 - (within - covariance) / total
    correlation[0] = 1.0
    # The last lags have too few products to be summed in pairs (as in Stan and ArviZ).
    last = max(0, (length - 3) // 2)
    pairs = correlation[: 2 * (last + 1)].reshape(-1, 2).sum(1)
    kept = next((k for k, pair in enumerate(pairs) if pair < 0), last)
    # Of the pair at which the sum ends the even lag still counts; a negative one only where the
    # lags and not the correlation end.
    even = float(correlation[2 * kept])
    extra = even if pairs[kept] >= 0 else max(0.0, even)
    time = -1.0 + 2.0 * float(np.minimum.accumulate(pairs[:kept]).sum()) + extra
    size = count * length
    return float(size / max(time, 1.0 / np.log10(size)))


def convergence(states: Array) -> dict[str, Any]:
    """Return R-hat and effective sample size over the D parameters of ``[M, N, D]``, N states of
    each of M chains, for a record: ``rhat_below_1.1`` is a share of the parameters. All are None
    where the chains are too short or stand still, with the ``reason``.
    """
    names = ("rhat_max", "rhat_median", "rhat_below_1.1", "ess_min", "ess_median")
    chains, length, count = states.shape
    if length < MIN_DRAWS:
        return {
            **dict.fromkeys(names),
            "reason": f"{length} states a chain, R-hat needs {MIN_DRAWS}",
        }
    series = np.asarray(states, np.float64).transpose(2, 0, 1)
    numbers = np.array([(rank_normalised_rhat(x), effective_sample_size(x)) for x in series])
    rhat, size = numbers[np.isfinite(numbers).all(1)].T
    if not rhat.size:
        return {
            **dict.fromkeys(names),
            "reason": f"none of {count} parameters varies within {chains} chains",
        }
    values = (rhat.max(), np.median(rhat), (rhat < 1.1).mean(), size.min(), np.median(size))
    return {name: round(float(value), 4) for name, value in zip(names, values, strict=True)}


def _split(chains: Array) -> Array:
    """``[2M, N // 2]``: each chain's first and last half; the middle draw of an odd number is left
    out.
    """
    half = chains.shape[1] // 2
    return np.concatenate([chains[:, :half], chains[:, -half:]])


def _varies(chains: Array) -> bool:
    return bool(np.isfinite(chains).all()) and bool(np.ptp(chains) > 0)


def _normal_scores(chains: Array) -> Array:
    """Average ranks of all draws, as quantiles of the standard normal (Blom's offset 3/8)."""
    _, inverse, counts = np.unique(chains, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse].reshape(chains.shape)
    return np.asarray(ndtri((ranks - 0.375) / (chains.size + 0.25)), np.float64)


def _rhat(chains: Array) -> float:
    """R-hat of chains as they are (Gelman et al. 2013)."""
    length = chains.shape[1]
    between = length * chains.mean(1).var(ddof=1)
    within = chains.var(1, ddof=1).mean()
    if within == 0:
        return float("inf")
    return float(np.sqrt(between / within / length + (length - 1) / length))


def _autocovariance(chains: Array) -> Array:
    """``[M, N]`` of each chain and lag, divided by N whatever the lag."""
    length = chains.shape[1]
    centred = chains - chains.mean(1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * length)
    return np.asarray(
        np.fft.irfft(spectrum * spectrum.conj(), 2 * length)[:, :length] / length, np.float64
    )
