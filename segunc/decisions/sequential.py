"""Watch whether frames are still like those of the calibration, and whether a promise holds: tests
that may be looked at after every frame.

Without labels it is a conformal test martingale (Vovk et al. 2021, "Retrain or not retrain", arXiv
2102.10439, algorithm 1) on p-values of a frame's statistic, which are independent and uniform where
all frames are exchangeable. By Ville's inequality it ever reaches 1 / level with a probability of
at most ``level``. With verdicts it is a confidence sequence by betting (Waudby-Smith & Ramdas 2023,
arXiv 2010.09686, §4).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from segunc.maps.verdicts import Verdict

BETS = (-2.0, -1.0, 0.0, 1.0, 2.0)
"""Slopes e of the bets 1 + e (p - 1/2): a negative one wins where statistics are high. Beyond 2 a
bet could lose more than it has.
"""
JUMP = 0.01  # share of the capital that moves to other slopes with each frame
GRID = np.linspace(0.0, 1.0, 1001)  # risks that the confidence sequence tells apart
# Share of the capital that one frame may lose; Waudby-Smith & Ramdas take 1/2 or 3/4.
LARGEST_BET = 0.5
LONGEST_MARTINGALE = 1200  # frames; in fewer the martingale can pass any level that a float holds
SHIFTS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Shifts that :func:`detectable_shift` tries, in standard deviations."""
POWER = 0.9  # probability with which a shift must raise an alarm to count as one that is found
RUNS = 200  # simulated series
# Frames of a simulated series, and of its reference: more would only find more.
MAX_SIMULATED_FRAMES = 300
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Outcomes:
    """The verdicts on a region or a frame that say something of a control."""

    lost: str  # the verdict that is a loss
    kept: tuple[str, ...]  # verdicts that are none


_OUTCOMES = {
    "missed-objects": _Outcomes(lost="missed", kept=("true-alarm",)),
    "false-alarms": _Outcomes(lost="false-alarm", kept=("true-alarm", "nothing-wrong", "missed")),
}
"""Controls that verdicts speak of."""


def log_martingale(
    values: Floats, reference: Floats, uniforms: Floats, bets: Sequence[float] = BETS
) -> Floats:
    """Return log10 of the simple jumper martingale after each frame, ``[..., T]``.

    It bets on smoothed p-values, which are low where a statistic x is high:
    (#{z > x} + u (#{z = x} + 1)) / (n + 1) over all n statistics z before it, with those of the
    reference. Against a reference that does not grow, p-values would depend on each other. Before
    each bet a share of the capital is spread over all slopes again, so that the martingale grows
    soon after a change, however late it comes.

    Args:
        values: statistics of the frames, ``[..., T]``.
        reference: statistics of frames that came before, ``[..., N]``.
        uniforms: random numbers u in 0..1 that break ties, ``[..., T]``.
        bets: slopes of the bets, see :data:`BETS`.
    """
    pool = np.concatenate([reference, values], axis=-1)
    start = reference.shape[-1]
    slopes = np.array(bets)
    growths = np.empty(values.shape)
    # By slope, as shares of the martingale.
    capital = np.full((*values.shape[:-1], len(slopes)), 1 / len(slopes))
    for t in range(values.shape[-1]):
        before = pool[..., : start + t]
        value = values[..., t, None]
        higher = (before > value).sum(-1)
        equal = (before == value).sum(-1)
        rank = higher + uniforms[..., t] * (equal + 1)
        p_value = rank[..., None] / (start + t + 1)
        gains = 1 + slopes * (p_value - 0.5)
        capital = ((1 - JUMP) * capital + JUMP / len(slopes)) * gains
        growths[..., t] = capital.sum(-1)
        capital /= growths[..., t, None]
    return np.asarray(np.log10(growths).cumsum(-1))


class RunningMartingale:
    """The martingale of :func:`log_martingale` for frames that come one by one.

    It gives the same numbers, with ties broken by ``default_rng(0)``, as ``segunc monitor`` does.
    It keeps the statistics of all frames, 8 bytes each, because a p-value is a rank among them.

    Args:
        reference: statistics of frames that came before.
        bets: slopes of the bets, see :data:`BETS`.

    >>> martingale = RunningMartingale([0.1, 0.2, 0.3])
    >>> [round(martingale.add(value), 3) for value in (0.9, 0.8, 1.0)]
    [0.0, 0.0, 0.0]
    """

    def __init__(self, reference: Sequence[float], bets: Sequence[float] = BETS) -> None:
        self.frames = 0
        self.log10 = 0.0
        self._sorted = array("d", sorted(reference))
        self._generator = np.random.default_rng(0)
        self._slopes = np.array(bets)
        self._capital = np.full(len(bets), 1 / len(bets))

    def add(self, value: float) -> float:
        """Bet on the statistic of the next frame, and return log10 of the martingale after it."""
        first = bisect_left(self._sorted, value)
        last = bisect_right(self._sorted, value)
        before = len(self._sorted)
        rank = before - last + self._generator.random() * (last - first + 1)
        gains = 1 + self._slopes * (rank / (before + 1) - 0.5)
        capital = ((1 - JUMP) * self._capital + JUMP / len(self._slopes)) * gains
        growth = float(capital.sum())
        self._capital = capital / growth
        self.log10 += math.log10(growth)
        self.frames += 1
        self._sorted.insert(last, value)
        return self.log10


def largest_log_martingale() -> Floats:
    """Return the largest log10 that the martingale can have after each of
    :data:`LONGEST_MARTINGALE` frames.

    It is that of the most extreme frames: each statistic is above all before it, and ties are
    broken so that every p-value is 0. The gains of a bet are largest at p-values of 0 or 1.
    """
    rising = np.arange(LONGEST_MARTINGALE, dtype=np.float64)
    return log_martingale(rising, reference=np.zeros(0), uniforms=np.zeros(LONGEST_MARTINGALE))


def detectable_shift(frames: int, reference: int, alarm: float) -> float | None:
    """Return the smallest of :data:`SHIFTS` that raises an alarm with the probability ``POWER``.

    It is simulated with :data:`RUNS` seeded series of normal statistics. They shift at the first
    frame where there is a reference, and otherwise in the middle, because a series that shifts at
    its start does not change.

    Args:
        frames: number of watched frames; :data:`MAX_SIMULATED_FRAMES` at most are simulated.
        reference: number of frames of the calibration, 0 for none.
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
    """Return lower and upper bounds of the mean of losses after each of them, ``[n]`` each.

    Each bound holds at all times with the confidence 1 - level. Against each risk m of a grid one
    bettor holds the capital prod(1 + b_t (x_t - m)), another prod(1 - b_t (x_t - m)). A risk at
    which the capital ever reaches 1 / level is rejected, and so are all risks below it (or above
    it). The bets are b_t = sqrt(2 ln(1 / level) / (v_t t ln(1 + t))), with the variance v_t of the
    losses before; they can lose at most :data:`LARGEST_BET`.

    Args:
        losses: ``[n]`` in 0..1, in their order.
        level: error probability of each bound.
    """
    lower = np.empty(len(losses))
    upper = np.empty(len(losses))
    low = 0.0
    high = 1.0
    log_capital = np.zeros((2, len(GRID)))
    with np.errstate(divide="ignore"):
        largest_bets = LARGEST_BET / np.stack([GRID, 1 - GRID])
    # A first guess of mean and variance, as of one frame.
    total = 0.5
    squares = 0.25
    for t, loss in enumerate(losses.tolist(), start=1):
        bet = np.sqrt(-2 * np.log(level) / (squares * np.log(1 + t)))
        bets = np.minimum(bet, largest_bets)
        log_capital += np.log1p(bets * [loss - GRID, GRID - loss])
        too_low, too_high = log_capital >= -np.log(level)
        low = GRID[too_low].max(initial=low)
        high = GRID[too_high].min(initial=high)
        lower[t - 1] = low
        upper[t - 1] = high
        total += loss
        squares += (loss - total / (t + 1)) ** 2
    return lower, upper


def losses_of_verdicts(
    verdicts: Sequence[Verdict], control: str, *, any_loss: bool = False
) -> dict[str, float]:
    """Return the loss of each judged frame by its name, in the order of their first verdicts.

    The loss of a frame is the mean over its reviewers, in 0..1. Of ``missed-objects`` it is the
    share of missed ones among the anomalies that a reviewer named; frames without one say nothing.
    Of ``false-alarms`` it is 1 for a frame with at least one, and so it is of each control with
    ``any_loss``, because the promise of ``clopper-pearson`` is about frames with any.
    """
    outcomes = _OUTCOMES.get(control)
    if outcomes is None:
        return {}
    verdicts_of: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in sorted(verdicts, key=lambda verdict: verdict.time):
        verdicts_of.setdefault((verdict.frame, verdict.reviewer), []).append(verdict)
    losses: dict[str, list[float]] = {}
    for (frame, _), verdicts_of_reviewer in verdicts_of.items():
        words = _words_that_count(verdicts_of_reviewer, outcomes.lost)
        lost = words.count(outcomes.lost)
        kept = sum(words.count(word) for word in outcomes.kept)
        if not lost and not kept:
            continue
        share = lost / (lost + kept)
        counts_frames = any_loss or control != "missed-objects"
        loss = float(np.ceil(share)) if counts_frames else share
        losses.setdefault(frame, []).append(loss)
    return {frame: float(np.mean(shares)) for frame, shares in losses.items()}


def _words_that_count(verdicts: Sequence[Verdict], lost: str) -> list[str]:
    """Return what one reviewer said of one frame, as words.

    Verdicts on regions count in place of the verdict on their frame. A loss that the frame alone
    has counts beside them: an anomaly without a region was missed.
    """
    of_regions = []
    of_frame = []
    for verdict in verdicts:
        if not verdict.verdict:  # a note alone
            continue
        if verdict.region:
            of_regions.append(verdict.verdict)
        else:
            of_frame.append(verdict.verdict)
    if lost in of_regions:
        return of_regions
    words = [*of_regions, *[word for word in of_frame if word == lost]]
    return words or of_frame
