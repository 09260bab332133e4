"""Watch whether frames are still like those of the calibration, and whether a promise holds: tests
that may be looked at after every frame.

Without labels it is a conformal test martingale (Vovk et al. 2021, "Retrain or not retrain", arXiv
2102.10439, algorithm 1) on p-values of a frame's statistic, which are independent and uniform where
all frames are exchangeable. By Ville's inequality it ever reaches 1 / level with a probability of
at most ``level``. With verdicts it is a confidence sequence by betting (Waudby-Smith & Ramdas 2023,
arXiv 2010.09686, §4).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from segunc.maps.verdicts import Verdict

BETS = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""Slopes e of the bets 1 + e (p - 1/2): a negative one wins where statistics are high. Beyond 2 a
bet could lose more than it has.
"""
JUMP = 0.01  # share of the capital that moves to other slopes with each frame
GRID = np.linspace(0.0, 1.0, 1001)  # risks that the confidence sequence tells apart
LARGEST_BET = (
    0.5  # share of the capital that one frame may lose; Waudby-Smith & Ramdas take 1/2 or 3/4
)
LOSSES = {
    "missed-objects": "missed true-alarm",
    "false-alarms": "false-alarm true-alarm nothing-wrong missed",
}
"""Controls that verdicts speak of: the verdict that is a loss, then those that are none."""
LONGEST = 1200  # frames; in fewer the martingale can pass any level that a float holds
SHIFTS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Shifts that power is asked of, in standard deviations."""
POWER = 0.9  # probability with which a shift must raise an alarm to count as one that is found
RUNS = 200  # simulated series
MAX_SIMULATED_FRAMES = (
    300  # frames of a simulated series and of its reference: more would only find more
)
Floats = npt.NDArray[np.float64]


def log_martingale(
    values: Floats, reference: Floats, uniforms: Floats, bets: Sequence[float] = BETS
) -> Floats:
    """Return log10 of the simple jumper martingale after each statistic ``[..., T]``. It bets on
    smoothed p-values, low where a statistic x is high: (#{z > x} + u (#{z = x} + 1)) / (n + 1) over
    all n statistics z before it, of the reference ``[..., N]`` too. Random numbers u in 0..1
    ``[..., T]`` break ties. Against a reference that does not grow p-values would depend on each
    other. Before each bet a share of the capital is spread over all slopes again, so that the
    martingale grows soon after a change, however late it comes.
    """
    pool, start = np.concatenate([reference, values], axis=-1), reference.shape[-1]
    slopes, growths = np.array(bets), np.empty(values.shape)
    capital = np.full(
        (*values.shape[:-1], len(slopes)), 1 / len(slopes)
    )  # by slope, as shares of the martingale
    for t in range(values.shape[-1]):
        before, value = pool[..., : start + t], values[..., t, None]
        rank = (before > value).sum(-1) + uniforms[..., t] * ((before == value).sum(-1) + 1)
        gains = 1 + slopes * (rank[..., None] / (start + t + 1) - 0.5)
        capital = ((1 - JUMP) * capital + JUMP / len(slopes)) * gains
        growths[..., t] = capital.sum(-1)
        capital /= growths[..., t, None]
    return np.asarray(np.log10(growths).cumsum(-1))


def largest_log_martingale() -> Floats:
    """Return the largest log10 that the martingale can have after each of :data:`LONGEST` frames.

    It is that of the most extreme frames: each statistic is above all before it, and ties are
    broken so that every p-value is 0. The gains of a bet are largest at p-values of 0 or 1.
    """
    rising = np.arange(LONGEST, dtype=np.float64)
    return log_martingale(rising, np.zeros(0), np.zeros(LONGEST))


def detectable_shift(frames: int, reference: int, alarm: float) -> float | None:
    """Return the smallest of :data:`SHIFTS` that raises an alarm with the probability
    :data:`POWER`.

    It is simulated with :data:`RUNS` seeded series of normal statistics. They shift at the first
    frame where there is a reference, and otherwise in the middle, because a series that shifts at
    its start does not change.

    Args:
        frames: that are watched; :data:`MAX_SIMULATED_FRAMES` at most are simulated.
        reference: frames of the calibration, 0 for none.
        alarm: log10 of the martingale at which the monitor raises an alarm.

    Returns:
        The shift in standard deviations, None where none of them is found.
    """
    watched = min(frames, MAX_SIMULATED_FRAMES)
    before = min(reference, MAX_SIMULATED_FRAMES)
    generator = np.random.default_rng(0)
    noise = generator.standard_normal((RUNS, before + watched))
    uniforms = generator.random((RUNS, watched))
    start = before if before else watched // 2
    for shift in SHIFTS:
        values = noise.copy()
        values[:, start:] += shift
        path = log_martingale(values[:, before:], values[:, :before], uniforms)
        if (path >= alarm).any(axis=1).mean() >= POWER:
            return shift
    return None


def risk_bounds(losses: Floats, level: float) -> tuple[Floats, Floats]:
    """Return lower and upper bounds of the mean of losses ``[n]`` in 0..1 after each, in their
    order; each holds at all times with the confidence 1 - level. Against each risk m of a grid one
    bettor holds the capital prod(1 + b_t (x_t - m)), another prod(1 - b_t (x_t - m)). The bets b_t
    = sqrt(2 ln(1 / level) / (v_t t ln(1 + t))), with the variance v_t of the losses before, lose at
    most :data:`LARGEST_BET`. A risk at which capital ever reaches 1 / level is rejected, and all
    below (or above) it.
    """
    bounds, capital = (
        np.tile([0.0, 1.0], (len(losses) + 1, 1)),
        np.zeros((2, len(GRID))),
    )  # ln of the capital
    with np.errstate(divide="ignore"):
        most = LARGEST_BET / np.stack([GRID, 1 - GRID])
    total, squares = 0.5, 0.25  # a first guess of mean and variance, as of one frame
    for t, loss in enumerate(losses.tolist(), start=1):
        bets = np.minimum(np.sqrt(-2 * np.log(level) / (squares * np.log(1 + t))), most)
        capital += np.log1p(bets * [loss - GRID, GRID - loss])
        above, below = (GRID[ln >= -np.log(level)] for ln in capital)
        bounds[t] = above.max(initial=bounds[t - 1, 0]), below.min(initial=bounds[t - 1, 1])
        total += loss
        squares += (loss - total / (t + 1)) ** 2
    return bounds[1:, 0], bounds[1:, 1]


def losses_of_verdicts(verdicts: Sequence[Verdict], control: str) -> dict[str, float]:
    """Return the loss in 0..1 of each judged frame by its name, in the order of their first
    verdicts: the mean over its reviewers. Of ``missed-objects`` it is the share of missed ones
    among the anomalies that a reviewer named; frames without one say nothing. Of ``false-alarms``
    it is 1 for a frame with at least one. Verdicts on regions count in place of the verdict on
    their frame, but for a loss that the frame alone has: an anomaly without a region was missed.
    """
    (bad, *good), by_reviewer = (
        LOSSES.get(control, "none").split(),
        dict[tuple[str, str], list[Verdict]](),
    )
    for verdict in sorted(verdicts, key=lambda verdict: verdict.time):
        by_reviewer.setdefault((verdict.frame, verdict.reviewer), []).append(verdict)
    losses: dict[str, list[float]] = {}
    for (frame, _), said in by_reviewer.items():
        of_regions, of_frame = (
            [v.verdict for v in said if v.verdict and bool(v.region) == region]
            for region in (True, False)
        )
        words = (
            of_regions + [word for word in of_frame if word == bad and bad not in of_regions]
            or of_frame
        )
        lost, kept = words.count(bad), sum(map(words.count, good))
        if lost + kept:
            share = lost / (lost + kept)
            losses.setdefault(frame, []).append(
                share if control == "missed-objects" else np.ceil(share)
            )
    return {frame: float(np.mean(shares)) for frame, shares in losses.items()}
