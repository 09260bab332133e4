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
    """Return R-hat of one quantity: near 1 where the chains agree.

    It is the larger of the split R-hat of the rank-normalised draws (location) and of their folded
    distances from the median (scale); Vehtari et al. 2021, arXiv 1903.08008, section 4, which asks
    for below 1.01.

    Args:
        chains: N draws of each of M chains ``[M, N]``.

    Returns:
        R-hat; NaN where the quantity is constant or not finite.
    """
    halves = _split(chains)
    if not _varies(halves):
        return float("nan")
    folded = np.abs(halves - np.median(halves))
    return max(_rhat(_normal_scores(halves)), _rhat(_normal_scores(folded)))


def effective_sample_size(chains: Array) -> float:
    """Return the bulk effective sample size of one quantity.

    It is computed of the rank-normalised split chains by Geyer's initial positive and monotone
    sequence (1992); Vehtari et al. 2021, sections 3.2 and 4.3.

    Args:
        chains: N draws of each of M chains ``[M, N]``.

    Returns:
        At most S log10 S of all S = M N draws; NaN where the quantity is constant.
    """
    halves = _split(chains)
    if not _varies(halves):
        return float("nan")
    scores = _normal_scores(halves)
    size = scores.size
    time = _autocorrelation_time(_correlation(scores), scores.shape[1])
    return float(size / max(time, 1.0 / np.log10(size)))


def _correlation(scores: Array) -> Array:
    """Return the autocorrelation of chains ``[M, N]`` at each lag, ``[N]``."""
    length = scores.shape[1]
    covariance = _autocovariance(scores).mean(0)
    within = covariance[0] * length / (length - 1)
    # Splitting makes at least two chains of the one.
    total = within * (length - 1) / length + scores.mean(1).var(ddof=1)
    correlation: Array = 1.0 - (within - covariance) / total
    correlation[0] = 1.0
    return correlation


def _autocorrelation_time(correlation: Array, length: int) -> float:
    """Return how many draws are worth one independent draw, from the correlation at each lag."""
    # The last lags have too few products to be summed in pairs (as in Stan and ArviZ).
    last = max(0, (length - 3) // 2)
    pairs = correlation[: 2 * (last + 1)].reshape(-1, 2).sum(1)
    negative = np.flatnonzero(pairs < 0)
    kept = int(negative[0]) if len(negative) else last
    # Of the pair at which the sum ends the even lag still counts; a negative one only where the
    # lags and not the correlation end.
    even = float(correlation[2 * kept])
    extra = even if pairs[kept] >= 0 else max(0.0, even)
    return -1.0 + 2.0 * float(np.minimum.accumulate(pairs[:kept]).sum()) + extra


NUMBERS = ("rhat_max", "rhat_median", "rhat_below_1.1", "ess_min", "ess_median")
"""What :func:`convergence` returns."""


def convergence(states: Array) -> dict[str, Any]:
    """Return R-hat and effective sample size over D parameters, for a record.

    Args:
        states: N states of each of M chains, ``[M, N, D]``.

    Returns:
        The numbers of :data:`NUMBERS`; ``rhat_below_1.1`` is a share of the parameters. All are
        None where the chains are too short or stand still, with the ``reason``.
    """
    chains, length, count = states.shape
    if length < MIN_DRAWS:
        return _unknown(f"{length} states a chain, R-hat needs {MIN_DRAWS}")
    series = np.asarray(states, np.float64).transpose(2, 0, 1)
    numbers = np.array([(rank_normalised_rhat(x), effective_sample_size(x)) for x in series])
    rhat, size = numbers[np.isfinite(numbers).all(1)].T
    if not rhat.size:
        return _unknown(f"none of {count} parameters varies within {chains} chains")
    values = {
        "rhat_max": rhat.max(),
        "rhat_median": np.median(rhat),
        "rhat_below_1.1": (rhat < 1.1).mean(),
        "ess_min": size.min(),
        "ess_median": np.median(size),
    }
    return {name: round(float(value), 4) for name, value in values.items()}


def _unknown(reason: str) -> dict[str, Any]:
    return {**dict.fromkeys(NUMBERS), "reason": reason}


def _split(chains: Array) -> Array:
    """Return the first and the last half of each chain, ``[2 M, N // 2]``; the middle draw of an
    odd number is left out.
    """
    half = chains.shape[1] // 2
    return np.concatenate([chains[:, :half], chains[:, -half:]])


def _varies(chains: Array) -> bool:
    return bool(np.isfinite(chains).all()) and bool(np.ptp(chains) > 0)


def _normal_scores(chains: Array) -> Array:
    """Return the average ranks of all draws as quantiles of the standard normal (Blom's offset
    3/8).
    """
    _, inverse, counts = np.unique(chains, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse].reshape(chains.shape)
    return np.asarray(ndtri((ranks - 0.375) / (chains.size + 0.25)), np.float64)


def _rhat(chains: Array) -> float:
    """Return R-hat of chains as they are (Gelman et al. 2013)."""
    length = chains.shape[1]
    between = length * chains.mean(1).var(ddof=1)
    within = chains.var(1, ddof=1).mean()
    if within == 0:
        return float("inf")
    return float(np.sqrt(between / within / length + (length - 1) / length))


def _autocovariance(chains: Array) -> Array:
    """Return the autocovariance of each chain at each lag, ``[M, N]``, divided by N whatever the
    lag.
    """
    length = chains.shape[1]
    centred = chains - chains.mean(1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * length)
    products = np.fft.irfft(spectrum * spectrum.conj(), 2 * length)[:, :length]
    return np.asarray(products / length, np.float64)
