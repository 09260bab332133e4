"""A mean over seeds as a result of its own, so that whatever compares results compares means.

Replicate r of every result rests on the same draw of frames, so the mean over results of their
replicates is that of the mean for other frames and these seeds. Seeds of training are resampled
too: with the mean m_r over the K seeds in replicate r, and y_s that of seed s over all replicates,
whose mean over seeds is m, the replicate of the mean is

    m_r + sum_s g_sr (y_s - m) / sqrt(K (K - 1)),    g_sr ~ N(0, 1),

where g_sr is a function of the bootstrap's seed and the seed's name.

The second part has the variance s^2 / K of a mean of K, where drawing K seeds with replacement
would have (K - 1) / K of it, and rows of the same seeds share g: their differences are paired in
both levels. What s^2 of few seeds leaves open is in the degrees of freedom of the interval (K - 1
for this part; `Replicates.chance`). What units do to each seed apart is in both parts, so the
interval errs to the wide side. One seed leaves units alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from segunc.core.errors import InputError
from segunc.evaluation.comparison import data_warnings
from segunc.evaluation.resampling import (
    Chance,
    EvaluationResult,
    NumberPath,
    Replicates,
    Resampling,
    why_not_paired,
)


def mean_over_seeds(
    results: Sequence[EvaluationResult], name: str, seeds: Sequence[int] = ()
) -> EvaluationResult:
    """The mean of each number over results of the same data.

    Args:
        results: one for each seed.
        name: of the mean.
        seeds: of the results, to resample them too; none is of these very networks.

    Returns:
        numbers that all results have, with intervals and replicates; a number that one lacks is
        null with its reason.

    Raises:
        InputError: no result, or results of different data.
    """
    if not results:
        raise InputError(f"'{name}' has no result", hint="run the study first")
    first = results[0]
    warnings = data_warnings(results)
    if warnings:
        raise InputError(f"'{name}': {warnings[0]}", hint="evaluate all seeds on the same data")
    numbers: dict[NumberPath, float | None] = {}
    reasons: dict[str, str] = {}
    for path in first.numbers:
        values = [result.numbers.get(path) for result in results]
        known = [value for value in values if value is not None]
        numbers[path] = float(np.mean(known)) if len(known) == len(values) else None
        if numbers[path] is None:
            lacking = next(r for r, value in zip(results, values, strict=True) if value is None)
            reasons[".".join(path)] = str(lacking.cell(path).reason)
    replicates = mean_replicates(
        [result.replicates for result in results], [str(seed) for seed in seeds]
    )
    chances = {} if replicates is None else replicates.chances()
    intervals = {
        path: [chance.low, chance.high]
        for path, chance in chances.items()
        if isinstance(chance, Chance)
    }
    bootstrap = {
        "effective_units": {
            path: chance.effective for path, chance in chances.items() if isinstance(chance, Chance)
        },
        "no_interval": {
            path: chance for path, chance in chances.items() if isinstance(chance, str)
        },
    }
    content = {**first.content, "intervals": intervals, "reasons": reasons, "bootstrap": bootstrap}
    return replace(first, name=name, content=content, numbers=numbers, replicates=replicates)


def spread_over_seeds(results: Sequence[EvaluationResult], path: NumberPath) -> float | None:
    """The standard deviation of a number over seeds (n - 1), None with fewer than two or where one
    lacks it.
    """
    values = [result.numbers.get(path) for result in results]
    known = [value for value in values if value is not None]
    return float(np.std(known, ddof=1)) if len(known) == len(values) > 1 else None


def mean_replicates(
    results: Sequence[Replicates | None], seeds: Sequence[str] = ()
) -> Replicates | None:
    """The replicates of the mean, with seeds resampled too where two or more are named; None where
    they are not paired.
    """
    every = [result for result in results if result is not None]
    if len(every) < len(results) or any(why_not_paired(every[0], other) for other in every[1:]):
        return None
    draws = min(one.values.shape[1] for one in every)
    paths = tuple(path for path in every[0].paths if all(path in other.paths for other in every))
    rows = np.stack(
        [one.values[[one.paths.index(path) for path in paths], :draws] for one in every]
    )  # [K, P, R]
    mean = rows.mean(axis=0)
    if len(seeds) > 1:
        resampling = Resampling(draws, every[0].seed)
        drawn = np.stack([resampling.seed_weights(seed) for seed in seeds]) / np.sqrt(
            len(seeds) * (len(seeds) - 1)
        )
        of_seeds = np.array(
            [[np.nanmean(row) if np.isfinite(row).any() else np.nan for row in one] for one in rows]
        )
        mean = mean + (of_seeds - of_seeds.mean(axis=0)).T @ drawn
    return Replicates(
        paths, mean, every[0].seed, every[0].units, tuple(seeds) if len(seeds) > 1 else ()
    )
