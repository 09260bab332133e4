"""A mean over seeds as a result of its own, so that whatever compares results compares means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from segunc.core.errors import InputError
from segunc.evaluation.compare import EvaluationResult, data_warnings
from segunc.evaluation.resampling import NumberPath, Replicates, why_not_paired


def mean_over_seeds(results: Sequence[EvaluationResult], name: str) -> EvaluationResult:
    """The mean of each number over results of the same data.

    Replicate r of every result rests on the same draw of frames, so the mean over results of their replicates is the
    replicate of the mean. Its interval tells what other frames would have given these networks; other seeds are not in it.

    Args:
        results: one for each seed.
        name: of the mean.

    Returns:
        numbers that all results have, with intervals and replicates; a number that one lacks is null with its reason.

    Raises:
        InputError: no result, or results of different data.
    """
    if not results:
        raise InputError(f"'{name}' has no result", "at least one", "run the study first")
    first = results[0]
    warnings = data_warnings(results)
    if warnings:
        raise InputError(f"'{name}': {warnings[0]}", "seeds evaluated on the same data", "evaluate them again")
    numbers: dict[NumberPath, float | None] = {}
    reasons: dict[str, str] = {}
    for path in first.numbers:
        values = [result.numbers.get(path) for result in results]
        known = [value for value in values if value is not None]
        numbers[path] = float(np.mean(known)) if len(known) == len(values) else None
        if numbers[path] is None:
            lacking = next(r for r, value in zip(results, values, strict=True) if value is None)
            reasons[".".join(path)] = str(lacking.cell(path).reason)
    replicates = _mean_replicates(results)
    intervals = {} if replicates is None else replicates.intervals()
    content = {**first.content, "intervals": intervals, "reasons": reasons}
    return replace(first, name=name, content=content, numbers=numbers, replicates=replicates)


def spread_over_seeds(results: Sequence[EvaluationResult], path: NumberPath) -> float | None:
    """The standard deviation of a number over seeds (n - 1), None with fewer than two or where one lacks it."""
    values = [result.numbers.get(path) for result in results]
    known = [value for value in values if value is not None]
    return float(np.std(known, ddof=1)) if len(known) == len(values) > 1 else None


def _mean_replicates(results: Sequence[EvaluationResult]) -> Replicates | None:
    every = [result.replicates for result in results if result.replicates is not None]
    if len(every) < len(results) or any(why_not_paired(every[0], other) for other in every[1:]):
        return None
    paths = tuple(path for path in every[0].paths if all(path in other.paths for other in every))
    rows = [one.values[[one.paths.index(path) for path in paths]] for one in every]
    return Replicates(paths, np.mean(rows, axis=0), every[0].seed, every[0].units)
