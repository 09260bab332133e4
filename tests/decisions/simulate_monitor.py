"""How often the monitor fires without a change, and how soon after one: ``python -m tests.decisions.simulate_monitor``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from segunc.decisions.monitor import log_martingale, smoothed_p_values

REFERENCE, BEFORE, AFTER, LEVEL = 200, 100, 400, 0.01
SHIFTS = (0.0, 0.25, 0.5, 1.0, 2.0)  # of the statistic, in standard deviations


def delays(
    shift: float, runs: int, *, ties: bool = False, reference: int = REFERENCE, seed: int = 0
) -> npt.NDArray[np.float64]:
    """Return how many frames after a shift of normal statistics each run fires, ``[runs]``: negative before it, infinite never. With
    ``ties`` statistics are rounded to whole numbers."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((runs, reference + BEFORE + AFTER))
    values[:, reference + BEFORE :] += shift
    values = np.rint(values) if ties else values
    uniforms = generator.random((runs, BEFORE + AFTER))
    path = log_martingale(smoothed_p_values(values[:, reference:], values[:, :reference], uniforms))
    fired = path >= -np.log10(LEVEL)
    return np.where(fired.any(1), fired.argmax(1) + 1.0 - BEFORE, np.inf)


def table(runs: int = 1000) -> str:
    lines = [
        "| shift (standard deviations) | fired before it | fired after it | median delay (frames) | 90 % (frames) |"
    ]
    lines.append("|---:|---:|---:|---:|---:|")
    for shift in SHIFTS:
        found = delays(shift, runs)
        early, after = found <= 0, found[found > 0]
        middle, late = (np.quantile(after, share, method="inverted_cdf") for share in (0.5, 0.9))
        shown = (f"{value:.0f}" if np.isfinite(value) else "none" for value in (middle, late))
        share = np.isfinite(after).sum() / runs
        lines.append(f"| {shift:g} | {early.mean():.1%} | {share:.1%} | {' | '.join(shown)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
