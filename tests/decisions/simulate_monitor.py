"""How often the monitor fires without a change, and how soon after one: ``python -m tests.decisions.simulate_monitor``."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from segunc.decisions.monitor import log_martingale

REFERENCE, BEFORE, AFTER, LEVEL = 200, 100, 400, 0.01


def delays(
    shift: float, runs: int, *, ties: bool = False, reference: int = REFERENCE, seed: int = 0
) -> npt.NDArray[np.float64]:
    """Return how many frames after a shift of normal statistics (in standard deviations) each run fires, ``[runs]``: negative before it,
    infinite never. With ``ties`` statistics are rounded to whole numbers."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((runs, reference + BEFORE + AFTER))
    values[:, reference + BEFORE :] += shift
    values = np.rint(values) if ties else values
    path = log_martingale(values[:, reference:], values[:, :reference], generator.random((runs, BEFORE + AFTER)))
    fired = path >= -np.log10(LEVEL)
    return np.where(fired.any(1), fired.argmax(1) + 1.0 - BEFORE, np.inf)


def main(runs: int = 1000) -> None:
    """Print a table: what fired before the shift and after it, median and 90 % quantile of the delay."""
    for shift in (0.0, 0.25, 0.5, 1.0, 2.0):
        found = delays(shift, runs)
        after = found[found > 0]
        middle, late = (np.quantile(after, share, method="inverted_cdf") for share in (0.5, 0.9))
        fired = np.isfinite(after).sum() / runs
        print(f"| {shift:g} | {(found <= 0).mean():.1%} | {fired:.1%} | {middle:.0f} | {late:.0f} |")


if __name__ == "__main__":
    main()
