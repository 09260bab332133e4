"""From the losses of exchangeable units to a threshold with a bound of the risk, which is the mean loss of all units to come.

``conformal`` is conformal risk control (Angelopoulos et al. 2022, arXiv 2208.02814): the expected loss is at most the level, and smaller by
at most 2 B / (n + 1), B the largest loss, where losses have no jumps. ``ltt`` is Learn then Test (Angelopoulos et al. 2021, arXiv 2110.01052)
in a fixed sequence from the safe end, until the first Hoeffding-Bentkus p-value above 1 - confidence. ``clopper-pearson`` does the same with
the share of units with any loss, by the exact binomial test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import bdtr, betainccinv  # scipy.stats takes seconds to import

from segunc.core.errors import InputError
from segunc.decisions.risks import RISING, LossSums, largest_loss

Floats = npt.NDArray[np.float64]
METHODS = ("conformal", "ltt", "clopper-pearson")


def hoeffding_bentkus(risk: npt.ArrayLike, units: int, level: float) -> Floats:
    """Return the p-value of the hypothesis that the mean of losses in 0..1 is above ``level``, for mean losses ``risk`` of so many units: the
    smaller one of Hoeffding's and Bentkus' (Angelopoulos et al. 2021, section 3.1; Bates et al. 2021, arXiv 2101.02703)."""
    mean = np.asarray(risk, np.float64)
    low = np.minimum(mean, level)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(low > 0, low * np.log(low / level), 0.0)
        hoeffding = np.exp(-units * (first + (1 - low) * np.log((1 - low) / (1 - level))))
    bentkus = np.e * bdtr(np.minimum(np.ceil(units * mean), units), units, level)
    return np.asarray(np.minimum(hoeffding, bentkus))


@dataclass(frozen=True)
class Method:
    """A way to a bound: its name of :data:`METHODS`, and the confidence in 0..1 of the bound, None of ``conformal``."""

    name: str
    confidence: float | None = None

    @property
    def doubt(self) -> float:
        """The chance that the bound does not hold."""
        return 1 - float(self.confidence or 0)

    def largest(self, control: str) -> float:
        """Return the largest value of what is bounded: the loss of a unit, of ``clopper-pearson`` a share of units."""
        return 1.0 if self.name == "clopper-pearson" else largest_loss(control)

    def risk(self, sums: LossSums, place: int) -> float:
        """Return what the units say of the risk at a threshold, without a correction."""
        return float((sums.failed if self.name == "clopper-pearson" else sums.total)[place]) / sums.units

    def certified(self, sums: LossSums, level: float) -> int | None:
        """Return the last threshold from the safe end on up to which all keep to the level; None where the first does not."""
        largest, units = self.largest(sums.control), sums.units
        if self.name == "conformal":
            holds = (sums.total + largest) / (units + 1) <= level + 1e-12  # rounding of sums
        elif self.name == "ltt":
            holds = hoeffding_bentkus(sums.total / units / largest, units, level / largest) <= self.doubt
        else:
            holds = bdtr(sums.failed, units, level) <= self.doubt
        rising = sums.control in RISING
        ordered = holds if rising else holds[::-1]
        length = int(np.logical_and.accumulate(ordered).sum())
        return None if not length else length - 1 if rising else len(ordered) - length

    def smallest_level(self, control: str, units: int) -> float:
        """Return the smallest level that so many units can give, where none of them loses anything."""
        share = 1 / (units + 1) if self.name == "conformal" else -math.expm1(math.log(self.doubt) / units)
        return self.largest(control) * share

    def minimum_units(self, control: str, level: float) -> int:
        """Return the fewest units with which a level can be had."""
        share = level / self.largest(control)
        needed = 1 / share - 1 if self.name == "conformal" else math.log(self.doubt) / math.log1p(-share)
        return max(math.ceil(needed - 1e-9), 1)

    def check_units(self, sums: LossSums, level: float, units: str, option: str) -> None:
        """Raise InputError where units are too few for a level, which names the smallest that they can have; it calls them ``units``."""
        if sums.units < (needed := self.minimum_units(sums.control, level)):
            least = math.ceil(self.smallest_level(sums.control, sums.units) * 1e4) / 1e4
            message = f"{sums.units} {units} are too few for {sums.control} of {level:g}, which needs {needed}"
            raise InputError(f"{message}; the smallest level that they can have is {least:g}", hint=f"{option} {least:g}")

    def upper_bound(self, sums: LossSums, place: int) -> float:
        """Return the upper bound of the risk at a threshold; of ``conformal`` that of its expectation."""
        largest, units, failed = self.largest(sums.control), sums.units, int(sums.failed[place])
        if self.name == "conformal":
            return (float(sums.total[place]) + largest) / (units + 1)
        if self.name == "clopper-pearson":
            return binomial_bound(failed, units, self.doubt)
        return largest * bentkus_bound(self.risk(sums, place) / largest, units, self.doubt)


def binomial_bound(events: int, trials: int, doubt: float = 0.05) -> float:
    """Return the one-sided upper bound of a share, 0..1, which fails with the probability ``doubt`` (Clopper & Pearson 1934)."""
    return 1.0 if events >= trials else float(betainccinv(events + 1, trials - events, doubt))


def bentkus_bound(risk: float, units: int, doubt: float) -> float:
    """Return the level in 0..1 at which :func:`hoeffding_bentkus` falls to ``doubt``."""
    return 1.0 if risk >= 1 else float(brentq(lambda level: float(hoeffding_bentkus(risk, units, level)) - doubt, risk, 1))
