"""Results read back from disk, with bootstrap intervals of their numbers and whether two of them
differ beyond chance.

A Poisson bootstrap (Chamandy et al. 2012, "Estimating uncertainty for massive data streams"): each
resampled unit, a frame or a group of frames, enters replicate r with a weight from Poisson(1), a
function of the seed and the unit's name alone. So replicate r of two models over the same frames
has the same weights: their differences are paired, and leave out what both share (a hard frame is
hard for both).

The interval is the percentile interval at the level that a Student t with nu degrees of freedom
asks for (Hesterberg 2015, "What teachers should know about the bootstrap", section 5.3: percentiles
of a few units are too narrow by sqrt(n / (n - 1)), and know nothing of the t); nu is that of
:attr:`Chance.effective`. How often these intervals cover the truth: ``docs/checks.md``.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from segunc.core.errors import InputError, NoteWarning, shortened
from segunc.core.files import (
    note_without_seal,
    read_arrays,
    read_bytes,
    read_json,
    without_seal,
    write_atomically,
)
from segunc.core.patterns import Searcher, pattern_of_file
from segunc.core.periods import whole_periods
from segunc.data.frame_names import composed, frames_named
from segunc.decisions.guarantee import block_seconds
from segunc.maps.verdicts import FORMAT as VERDICTS_FORMAT

LEVEL = 0.95
IMAGE_HASH_LENGTH = 12  # characters that tell the images of a set apart
# Share of replicates without a number (no anomaly was drawn, say) that still leaves an interval.
MAX_UNDEFINED = 0.05
# Of fewer replicates the 2.5 and 97.5 percentiles would be extrapolated: 1 / 0.025.
MIN_REPLICATES = 40
MAX_REPLICATES = 20_000  # the time that they take grows with their number
# A rule, no limit of the method: fewer frames or blocks are seldom a sample of what they stand for.
MIN_UNITS = 15
OTHER = "other"  # the group of all frames that are in no other
MAX_GROUPS = 100
ABOUT = ("counts", "run", "bootstrap")
"""Sections whose numbers are about the evaluation; every other section holds numbers of a table."""
ANOMALY_LABELS = "anomaly_labels"
CLASS_LABELS = "class_labels"
"""Kinds of labels, and keys of the sums of hashes of these labels in the counts of a result."""
SIZES_OF_LABELS = {ANOMALY_LABELS: "anomaly_label_sizes", CLASS_LABELS: "class_label_sizes"}
"""Keys of the sums of hashes of the sizes of labels, by kind."""
UNIT_MEMBERS = "unit_members"
"""Key of the sum of hashes of the frames with their resampled units, in how a result was
resampled."""
_REPLICATES_HASH = "replicates_sha256"
_ROUNDING = 2.5e-7  # of float32, as a share of the largest number; a few times its half step
NumberPath = tuple[str, ...]
"""Of a number in a result: ("scores", "entropy", "pooled", "auroc"); dotted in a file."""
TimeOf = Callable[[str], float | None]
"""Of a frame, in seconds of its video; None where it is not known."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Resampling:
    """How many replicates R (0 makes no intervals), and from which seed of the weights."""

    replicates: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.replicates != 0 and not MIN_REPLICATES <= self.replicates <= MAX_REPLICATES:
            raise InputError(
                f"--replicates {self.replicates}: use 0 (no intervals), "
                f"or {MIN_REPLICATES} to {MAX_REPLICATES}",
                hint="--replicates 2000 is the default",
            )

    def weights(self, unit: str) -> npt.NDArray[np.int64]:
        """Return how often a unit is in each replicate, int64 ``[R]``.

        With more replicates the first ones stay.
        """
        return self._generator(unit).poisson(1.0, self.replicates)

    def weights_of(self, units: tuple[str, ...]) -> npt.NDArray[np.uint8]:
        """Return the :meth:`weights` of some units, uint8 ``[U, R]``.

        Those of the last stretches of :func:`units_at_once` are kept.
        """
        return _unit_weights(self, units)

    def seed_weights(self, name: str) -> Floats:
        """Return the multiplier of a seed of training in each replicate, standard normal ``[R]``.

        See :attr:`Replicates.seeds`.
        """
        return self._generator(f"\nseed {name}").standard_normal(self.replicates)

    def _generator(self, name: str) -> np.random.Generator:
        digest = hashlib.sha256(f"{self.seed}\n{name}".encode()).digest()
        key = [int.from_bytes(digest[start : start + 8], "little") for start in (0, 8)]
        return np.random.Generator(np.random.Philox(key=key))


def units_at_once(replicates: int) -> int:
    """Return how many units' weights are in memory at a time, 64 MiB as float64."""
    return max((1 << 23) // max(replicates, 1), 1)


@lru_cache(maxsize=16)
def _unit_weights(resampling: Resampling, units: tuple[str, ...]) -> npt.NDArray[np.uint8]:
    weights = np.empty((len(units), resampling.replicates), np.uint8)
    for row, unit in zip(weights, units, strict=True):
        row[:] = resampling.weights(unit)
    return weights


def resampled_units(
    how: str,
    time_of: TimeOf = lambda frame: None,
    option: str = "--resample",
    *,
    of_file: bool = False,
) -> Callable[[str], str]:
    """Return the function from a frame's name to its unit.

    It raises InputError, which names the ``option``, for a name that does not fit.

    Args:
        how: ``frame``, ``folder``, ``10s`` for blocks of seconds of a video, or a regular
            expression, whose match in the name (its first group, where it has one) is the unit.
        time_of: gives the moment of a frame.
        option: that ``how`` comes from.
        of_file: whether ``how`` comes from a file. Then it may be a stranger's, and is searched in
            bounded time.
    """
    seconds = block_seconds(how)
    if seconds == 0:
        raise InputError(f"{option} 0s makes blocks of 0 seconds", hint=f"{option} 10s")
    pattern = _unit_pattern(how, option, of_file=of_file)

    def block_of(name: str, seconds: float) -> str:
        time = time_of(name)
        if time is None:
            raise InputError(
                f"{option} {how} needs maps of a video, but no time of the frame {name} is known",
                hint=rf"take a part of the names: {option} '_f\d\d'",
            )
        return f"{name.rpartition('/')[0]}/{whole_periods(time, seconds)}"

    def unit(name: str) -> str:
        if how == "frame":
            return name
        if how == "folder":
            return name.rpartition("/")[0]
        if seconds:
            return block_of(name, seconds)
        match = pattern.search(composed(name))
        if match is None:
            raise InputError(
                f"the regular expression '{how}' of {option} finds nothing in the frame name {name}"
            )
        return str(match[min(pattern.groups, 1)])

    return unit


def _unit_pattern(how: str, option: str, *, of_file: bool) -> Searcher:
    if of_file:
        return pattern_of_file(how, f"{option} '{shortened(how)}'")
    fault = (
        f"{option} '{shortened(how)}' is not frame, folder, "
        "a number of seconds such as 10s, or a regular expression"
    )
    return compiled(how, fault, option)


def compiled(pattern: str, fault: str, option: str = "") -> re.Pattern[str]:
    """Return a regular expression for :func:`composed` names.

    Raises:
        InputError: the text is not one; the message is the ``fault`` with the position.
    """
    try:
        return re.compile(composed(pattern))
    except re.error as error:
        hint = f"{option} '^[a-z_]+' takes the letters before a number" if option else ""
        raise InputError(f"{fault} ({error})", hint=hint) from error


def group_frames(how: str | Mapping[str, str], frames: Collection[str]) -> dict[str, set[str]]:
    """Return the frames of each group by its name, :data:`OTHER` last.

    Args:
        how: a regular expression as of :func:`resampled_units`, or a mapping from the names of
            frames, or of their files, to groups; a warning says which names are of no frame.
        frames: those with an anomaly label.

    Raises:
        InputError: no frame belongs to a group, or there are more than :data:`MAX_GROUPS`.
    """
    group_of = _matched_groups(how, frames) if isinstance(how, str) else _listed_groups(how, frames)
    groups: dict[str, set[str]] = {}
    for group in sorted({*group_of.values()} - {OTHER}):
        groups[group] = set()
    for frame in frames:
        groups.setdefault(group_of.get(frame, OTHER), set()).add(frame)
    fault = ""
    if not group_of:
        fault = "names no frame with an anomaly label"
    elif len(groups) > MAX_GROUPS:
        fault = f"makes {len(groups)} groups, more than {MAX_GROUPS}"
    if fault:
        option = f"--groups {how}" if isinstance(how, str) else "--groups CSV"
        example = f"; a frame's name is {min(frames)}" if frames else ""
        raise InputError(f"{option} {fault}{example}")
    return groups


def _matched_groups(expression: str, frames: Collection[str]) -> dict[str, str]:
    """Return the group of each frame in whose name a regular expression finds something."""
    fault = f"--groups '{expression}' is neither a CSV file nor a regular expression"
    pattern = compiled(expression, fault, "--groups")
    group_of: dict[str, str] = {}
    for frame in frames:
        match = pattern.search(composed(frame))
        if match:
            group_of[frame] = match[min(pattern.groups, 1)] or OTHER
    return group_of


def _listed_groups(listed: Mapping[str, str], frames: Collection[str]) -> dict[str, str]:
    """Return the group of each frame that a list names.

    Raises:
        InputError: the list gives a frame two groups.
    """
    group_of: dict[str, str] = {}
    unknown: list[str] = []
    for name, frame in frames_named(listed, frames).items():
        if frame is None:
            unknown.append(name)
            continue
        group = composed(listed[name])
        if group_of.setdefault(frame, group) != group:
            both = f"{group_of[frame]} and {group}"
            raise InputError(
                f"--groups CSV puts the frame {frame} into two groups, {both}",
                hint="remove one of its rows",
            )
    if unknown and group_of:
        fact = f"{len(unknown)} of {len(listed)} rows of --groups CSV, first {unknown[0]}"
        warnings.warn(f"{fact}, name no frame with an anomaly label", NoteWarning, stacklevel=2)
    return group_of


@dataclass(frozen=True)
class Chance:
    """What replicates say of a number.

    That is its 95 % interval, the two-sided p-value of zero in 0..1, and the effective number of
    units.

    p < 1 - LEVEL exactly where the interval excludes zero; save where the level that so few
    effective units ask for lies beyond the outermost replicate: then the interval ends at these,
    and p says that it cannot decide.

    ``effective`` is the number of units of normal influence that would leave the standard error as
    uncertain (Satterthwaite 1946; of clusters: Carter, Schnepel & Steigerwald 2017): with
    influences U_i and the participation ratio P = (sum U^2)^2 / sum U^4 it is 2 / (1 / P - 1 / n),
    at most the number of units n. P itself would call normal influences n / 3.
    """

    low: float
    high: float
    p_value: float
    effective: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero, and p < 1 - LEVEL."""
        return (self.low > 0 or self.high < 0) and self.p_value < 1 - LEVEL


@dataclass(frozen=True)
class Replicates:
    """The numbers of every bootstrap replicate.

    Attributes:
        paths: of the P numbers, dotted.
        values: ``[P, R]``, NaN where a replicate defines no number.
        seed: of the weights.
        units: that are resampled, sorted.
        seeds: the K of training whose mean the numbers are, where these are resampled too.
        images: the first characters of the hash of the image of each frame, by its name, where they
            are known.
        frames: names of the counted frames; empty in files of earlier versions, unless all images
            are known.
    """

    paths: tuple[str, ...]
    values: Floats
    seed: int
    units: tuple[str, ...]
    seeds: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict)
    frames: tuple[str, ...] = ()

    def of(self, path: NumberPath) -> Floats | None:
        """Return the replicates ``[R]`` of a number; None where there are none of it."""
        dotted = ".".join(path)
        return self.values[self.paths.index(dotted)] if dotted in self.paths else None

    def chances(self) -> dict[str, Chance | str]:
        """Return :meth:`chance` of each number."""
        reasons = [self._why_none(row) for row in self.values]
        rows = [row for row, why in zip(self.values, reasons, strict=True) if why is None]
        spreads = iter(self._effective(rows))
        chances: dict[str, Chance | str] = {}
        for path, row, why in zip(self.paths, self.values, reasons, strict=True):
            if why is not None:
                chances[path] = why
                continue
            effective, freedom = next(spreads)
            chances[path] = self._chance(row, effective, freedom)
        return chances

    def chance(self, values: Floats) -> Chance | str:
        """Return what values ``[R]`` of these replicates say of their number.

        Or, as a text, why there is no interval.
        """
        why = self._why_none(values)
        if why is not None:
            return why
        effective, freedom = self._effective([values])[0]
        return self._chance(values, effective, freedom)

    def _why_none(self, values: Floats) -> str | None:
        """Return why values ``[R]`` give no interval; None where they give one."""
        number = len(self.units)
        if not enough(self.units):
            return f"too few resampled units: {number}, of at least {MIN_UNITS}"
        total = int(np.isfinite(values).sum())
        if not total:
            return f"fewer than {MIN_UNITS} resampled units say something of it"
        if total < MIN_REPLICATES or total < (1 - MAX_UNDEFINED) * len(values):
            undefined = len(values) - total
            allowed = min(int(MAX_UNDEFINED * len(values)), len(values) - MIN_REPLICATES)
            return (
                f"{undefined} of {len(values)} replicates drew no unit that the number needs; an "
                f"interval allows {max(allowed, 0)}"
            )
        return None

    def _chance(self, values: Floats, effective: float, freedom: float) -> Chance:
        """Return the interval and the p-value of values ``[R]``.

        The ends of the interval are values of replicates, the k-th from either end, k the largest
        whole number below (1 + R) Phi(-t sqrt(n / (n - 1))) with the 97.5 percentile t of Student's
        t with nu degrees of freedom, nu + 1 the effective number of units. The p-value is the least
        1 - level at which the interval of that level excludes zero, where the share of replicates
        beyond zero has the added one that keeps it from being 0 (Davison & Hinkley, Bootstrap
        Methods and their Application, 1997, eq. 4.11).
        """
        number = len(self.units)
        row = np.sort(values[np.isfinite(values)])
        total = len(row)
        stretch = math.sqrt(number / (number - 1))
        level = float(ndtr(-stretch * stdtrit(freedom, 0.5 + 0.5 * LEVEL)))
        rank = max(math.ceil(level * (total + 1)) - 2, 0)
        beyond = 1 + min(np.count_nonzero(row <= 0), np.count_nonzero(row >= 0))
        normal_quantile = min(ndtri(beyond / (total + 1)), 0.0)
        p_value = 2 * float(stdtr(freedom, normal_quantile / stretch))
        return Chance(float(row[rank]), float(row[-1 - rank]), p_value, effective)

    def _effective(self, rows: Sequence[Floats]) -> list[tuple[float, float]]:
        """Return the effective number of units, and the degrees of freedom of the standard error,
        of each row ``[R]``.

        Influences are covariances of a number with the weights (the infinitesimal jackknife; Efron
        2014, "Estimation and accuracy after model selection"). The weights of some units are in
        memory at a time.
        """
        if not rows:
            return []
        replicates = len(rows[0])
        resampling = Resampling(replicates, self.seed)
        powers = self._powers(rows, resampling)
        multipliers = np.zeros((len(self.seeds), replicates))
        for number, seed in enumerate(self.seeds):
            multipliers[number] = resampling.seed_weights(seed)
        spreads = []
        for row, (second, fourth) in zip(rows, powers.tolist(), strict=True):
            of_seeds = _influences(multipliers, row)
            spreads.append(self._freedom(second, fourth, np.isfinite(row).sum(), of_seeds))
        return spreads

    def _powers(self, rows: Sequence[Floats], resampling: Resampling) -> Floats:
        """Return the sums of squares and of fourth powers of the units' influences on each row,
        ``[len(rows), 2]``.
        """
        powers = np.zeros((len(rows), 2))
        step = units_at_once(resampling.replicates)
        for start in range(0, len(self.units), step):
            weights = resampling.weights_of(self.units[start : start + step]).astype(np.float64)
            for number, row in enumerate(rows):
                influences = _influences(weights, row)
                powers[number] += (influences**2).sum(), (influences**4).sum()
        return powers

    def _freedom(
        self, second: float, fourth: float, replicates: int, of_seeds: Floats
    ) -> tuple[float, float]:
        """Return the effective number of units, and the degrees of freedom.

        R replicates leave a noise of variance 1 / R in each influence, which is taken out of the
        sums. The seeds' part of the variance has K - 1 degrees of freedom; Satterthwaite's formula
        joins both.

        Args:
            second: sum of the squares of the units' influences.
            fourth: sum of their fourth powers.
            replicates: R that define the number.
            of_seeds: influences of the seeds, ``[K]``.
        """
        noise = 1 / replicates
        number = len(self.units)
        fourth = fourth - 6 * noise * second + 3 * number * noise**2
        second -= float(number * noise)
        effective = float(number)
        if second > 3 * noise * math.sqrt(2 * number):
            spread = min(fourth / second**2, 1.0) - 1 / number
            effective = 2 / max(spread, 2 / number)
        seeds = 0.0
        if len(of_seeds) > 1:
            seeds = max(float((of_seeds**2).sum() - len(of_seeds) * noise), 0.0)
        if not seeds:
            return effective, effective - 1
        second = max(second, 0.0)
        spread_of_both = second**2 / (effective - 1) + seeds**2 / (len(of_seeds) - 1)
        return effective, (second + seeds) ** 2 / spread_of_both


def enough(units: Collection[str]) -> bool:
    """Return whether units are enough for an interval."""
    return len(units) >= MIN_UNITS


def _influences(weights: Floats, values: Floats) -> Floats:
    """Return the covariance of values ``[R]`` with the weights of each unit ``[U, R]``.

    ``[U]`` in standard deviations of the values; replicates without a value are left out.
    """
    defined = np.isfinite(values)
    if not defined.all():
        weights = weights[:, defined]
        values = values[defined]
    centred = values - values.mean()
    centred = centred / (centred.std() or 1.0)
    return np.asarray(weights @ centred / len(centred))


def paired_difference(
    first: Replicates,
    second: Replicates,
    one: NumberPath,
    other: NumberPath | None = None,
    shift: float = 0.0,
) -> Chance | str:
    """Return what paired replicates say of a number of the second less one of the first.

    Or, as a text, why there is no test. Where one has more replicates, its first ones are those of
    the fewer.

    Args:
        first: replicates of one evaluation.
        second: replicates of another one.
        one: path of the number in the first.
        other: path of the number in the second; None for the same.
        shift: added to the difference, a margin for instance.
    """
    why = why_not_paired(first, second)
    if why:
        return why
    of_first = first.of(one)
    of_second = second.of(other or one)
    if of_first is None or of_second is None:
        return "this number has no replicates"
    number = min(len(of_first), len(of_second))
    return first.chance(of_second[:number] - of_first[:number] + shift)


def why_not_paired(first: Replicates, second: Replicates) -> str | None:
    """Return why replicates r of two evaluations are not of the same units; None where they are."""
    if first.seed != second.seed:
        return f"resampled with the seeds {first.seed} and {second.seed}"
    if first.seeds != second.seeds:
        return "means over other seeds"
    if first.units != second.units:
        return _other_units(first.units, second.units)
    return None


def _other_units(first: Sequence[str], second: Sequence[str]) -> str:
    """Return that two results resampled other units, and what may be the reason."""
    words = f"other units were resampled ({len(first)} and {len(second)})"
    of_first = sorted({*first}.difference(second))
    of_second = sorted({*second}.difference(first))
    if not (of_first and of_second):
        return words
    words += f", such as {of_first[0]} and {of_second[0]}"
    endings = [{name.rpartition("/")[2] for name in units} for units in (of_first, of_second)]
    if endings[0] == endings[1]:
        words += (
            "; if these are the same frames under other paths, evaluate both results by --maps, or "
            "both by --model"
        )
    return words


def sidecar_path(result: Path) -> Path:
    """Return where the replicates of a result file lie: ``X.replicates.npz`` beside ``X.json``."""
    return result.with_name(result.name.removesuffix(".json") + ".replicates.npz")


def save_replicates(path: Path, replicates: Replicates) -> None:
    """Write :func:`encoded_replicates` to a file, which appears whole."""
    write_atomically(path, encoded_replicates(replicates))


def record_replicates(result: dict[str, Any], encoded: bytes) -> None:
    """Put the SHA-256 of :func:`encoded_replicates` into a result, which binds both files."""
    result.setdefault("run", {})[_REPLICATES_HASH] = hashlib.sha256(encoded).hexdigest()


def encoded_replicates(replicates: Replicates) -> bytes:
    """Return replicates as an ``.npz`` that loads without unpickling.

    It holds ``paths`` ``[P]``, ``values`` float32 ``[P, R]``, ``seed``, and ``clusters``, the
    resampled units; of F counted frames also ``frames`` and ``images`` ``[F]``, their names and the
    hashes of their images, empty where these are not known.
    """
    names = dict.fromkeys([*replicates.frames, *replicates.images])
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        paths=np.array(replicates.paths, np.str_),
        # float32 moves a value by 6e-8 of itself at most, and neighbouring ones of 2000 replicates
        # lie farther apart.
        values=np.asarray(replicates.values, np.float32),
        seed=np.array(replicates.seed, np.int64),
        clusters=np.array(replicates.units, np.str_),
        frames=np.array([*names], np.str_),
        images=np.array([replicates.images.get(name, "") for name in names], np.str_),
    )
    return buffer.getvalue()


def is_sidecar(path: Path) -> bool:
    """Return whether a file holds replicates of a result."""
    with contextlib.suppress(InputError):
        load_replicates(path)
        return True
    return False


def load_replicates(path: Path) -> Replicates:
    """Read what :func:`save_replicates` wrote, of whichever result it is.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    return _loaded(path)[0]


def replicates_beside(result: Path, content: Mapping[str, Any]) -> Replicates | None:
    """Return the replicates of a result; None where no file of them lies beside it.

    A result records the SHA-256 of the file. A result of an earlier version records none: there the
    number of replicates, the number of units and the intervals have to agree.

    Args:
        result: the file of the result.
        content: of this file.

    Raises:
        InputError: the file cannot be read, or holds the replicates of another result.
    """
    path = sidecar_path(result)
    if not path.is_file():
        return None
    replicates, sha256 = _loaded(path)
    recorded = content.get("run", {}).get(_REPLICATES_HASH)
    why = ""
    if recorded is None:
        why = _why_of_another_result(replicates, content)
    elif recorded != sha256:
        why = f"{result.name} records another SHA-256 of it"
    if why:
        raise InputError(
            f"{path} does not hold the replicates of {result.name}: {why}",
            hint="restore the file that evaluate wrote, evaluate again, or remove it to go on "
            "without tests",
        )
    return replicates


def _why_of_another_result(replicates: Replicates, content: Mapping[str, Any]) -> str:
    """Return why replicates cannot be those of a result that records no hash of them; empty if they
    can.
    """
    bootstrap = content.get("bootstrap", {})
    number = replicates.values.shape[1]
    expected = bootstrap.get("replicates", number)
    if number != expected:
        return f"it holds {number} replicates of each number, and not {expected}"
    units = bootstrap.get("units", len(replicates.units))
    if len(replicates.units) != units:
        return f"it is of {len(replicates.units)} resampled units, and not of {units}"
    # Dotted, because names of scores and of groups may hold dots.
    numbers = {".".join(path): value for path, value in numbers_of(content).items()}
    intervals = content.get("intervals", {})
    for path, values in zip(replicates.paths, replicates.values, strict=True):
        if numbers.get(path) is None:
            return f"it holds replicates of {path}, which is no number of the result"
        if path in intervals and not _may_have_interval(values, *intervals[path]):
            return f"its replicates of {path} have another interval"
    return ""


def _may_have_interval(values: Floats, low: float, high: float) -> bool:
    """Return whether ``low`` and ``high`` may be ends of the interval of replicates ``[R]``.

    They are two of the replicates, and at most 2.5 % of these lie beyond either end. How far out
    they lie differs between versions, so the interval is not made again. The first versions took
    percentiles, which lie between two replicates.
    """
    row = values[np.isfinite(values)]
    if not len(row):
        return False
    # The file holds float32, the result float64.
    slack = _ROUNDING * max(abs(low), abs(high), float(np.abs(row).max()))
    most = (1 - LEVEL) / 2 * len(row) + 1
    below = np.count_nonzero(row < low - slack)
    above = np.count_nonzero(row > high + slack)
    if max(below, above) > most:
        return False
    ends = np.array([low, high])
    if (np.abs(row[:, None] - ends).min(axis=0) <= slack).all():
        return True
    beyond = 50 * (1 - LEVEL)
    return bool((np.abs(np.percentile(row, [beyond, 100 - beyond]) - ends) <= slack).all())


def _loaded(path: Path) -> tuple[Replicates, str]:
    """Return the replicates in a file, and the SHA-256 of the file.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    try:
        encoded = read_bytes(path)
        arrays = read_arrays(encoded)
        paths = arrays["paths"]
        values = arrays["values"]
        seed = arrays["seed"]
        clusters = arrays["clusters"]
        kinds = paths.dtype.kind + clusters.dtype.kind + values.dtype.kind
        if kinds != "UUf" or seed.dtype.kind not in "iu":
            raise ValueError("its arrays are of other types")
        is_table = values.shape == (len(paths), values.shape[-1])
        if not is_table or clusters.ndim != 1 or seed.size != 1:
            raise ValueError("its arrays are of other shapes")
        images = _images_of(arrays)
        replicates = Replicates(
            paths=tuple(paths.tolist()),
            values=values.astype(np.float64),
            seed=int(seed),
            units=tuple(clusters.tolist()),
            images={name: image for name, image in images.items() if image},
            frames=tuple(images),
        )
        return replicates, hashlib.sha256(encoded).hexdigest()
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        fault = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise InputError(
            f"{path} holds no replicates of a result ({fault})", hint="evaluate again"
        ) from error


def _images_of(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, str]:
    """Return the hash of the image of each frame by its name, empty where it is not known; none of
    an earlier version.

    Raises:
        ValueError: the arrays hold something else.
    """
    if "frames" not in arrays or "images" not in arrays:
        return {}
    frames = arrays["frames"]
    images = arrays["images"]
    if frames.dtype.kind + images.dtype.kind != "UU":
        raise ValueError("its arrays are of other types")
    if frames.ndim != 1 or images.shape != frames.shape:
        raise ValueError("its arrays are of other shapes")
    return dict(zip(frames.tolist(), images.tolist(), strict=True))


@dataclass(frozen=True)
class Cell:
    """A number, its 95 % interval where there is one, and why it is None or has no interval."""

    value: float | None
    interval: tuple[float, float] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class EvaluationResult:
    """One ``metrics.json``.

    Attributes:
        name: in a table.
        path: of the file.
        content: of the file.
        numbers: all of its numbers.
        replicates: of its sidecar; None where there is none.
    """

    name: str
    path: Path
    content: Mapping[str, Any]
    numbers: Mapping[NumberPath, float | None]
    replicates: Replicates | None

    def cell(self, path: NumberPath) -> Cell:
        """Return a number with its interval, or with the reasons why there is none."""
        value = self.numbers.get(path)
        dotted = ".".join(path)
        if value is None:
            reason = self.content.get("reasons", {}).get(dotted, "no reason is given")
            return Cell(None, reason=str(reason))
        why_none = self.content.get("bootstrap", {}).get("no_interval", {}).get(dotted)
        bounds = self.content.get("intervals", {}).get(dotted)
        if not bounds:
            return Cell(value, reason=why_none)
        low, high = bounds
        return Cell(value, (float(low), float(high)), why_none)


class _Bootstrap(BaseModel):
    no_interval: dict[str, str] = {}
    replicates: int | None = None
    units: int | None = None


class _ResultFile(BaseModel):
    model_config = ConfigDict(strict=True)
    scores: dict[str, Any]
    counts: dict[str, Any]
    intervals: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]] = {}
    reasons: dict[str, Any] = {}
    forms: dict[str, Any] = {}
    run: dict[str, Any] = {}
    bootstrap: _Bootstrap = _Bootstrap()
    left_out: list[dict[str, Any]] = []


def load_results(
    paths: Sequence[Path], names: Sequence[str] | None = None
) -> list[EvaluationResult]:
    """Read results of ``segunc evaluate`` with their sidecars.

    Args:
        paths: of the files.
        names: of the results; None takes the stem of each file, with its folder where two files
            share one.

    Raises:
        InputError: a file cannot be read or is not a result, a sidecar is of another result, or
            names lack or repeat.
    """
    names = names or _names_of(paths)
    if len(names) != len(paths):
        raise InputError(
            f"{len(names)} names are given for {len(paths)} results", hint="--names a,b"
        )
    for name, number in Counter(names).items():
        if number > 1:
            raise InputError(f"two results are named '{name}'", hint="--names a,b")
    return [_load(path, name) for path, name in zip(paths, names, strict=True)]


def _names_of(paths: Sequence[Path]) -> list[str]:
    stems = Counter(path.stem for path in paths)
    names = []
    for path in paths:
        shared = stems[path.stem] > 1
        names.append(f"{path.resolve().parent.name}/{path.stem}" if shared else path.stem)
    return names


def _hint_on_verdicts(path: Path) -> str:
    """Return how a file of verdicts becomes a result."""
    return (
        "it holds verdicts of a review page, and this command makes a result of them: "
        f"segunc evaluate --maps MAPS --verdicts {path.name} --out judged.json"
    )


def _load(path: Path, name: str) -> EvaluationResult:
    content = without_seal(read_json(path, "a result of segunc evaluate"), path)
    try:
        _ResultFile.model_validate(content)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise InputError(
            f"{path} is not a result of segunc evaluate: {where} ({fault['msg']})",
            hint=_hint_on_verdicts(path) if content.get("format") == VERDICTS_FORMAT else "",
        ) from error
    note_without_seal(path, "segunc evaluate")
    replicates = replicates_beside(path, content)
    return EvaluationResult(name, path, content, numbers_of(content), replicates)


def numbers_of(content: Mapping[str, Any]) -> dict[NumberPath, float | None]:
    """Return the numbers and nulls of a result's content by their paths."""
    numbers: dict[NumberPath, float | None] = {}
    for section, below in content.items():
        if section not in ABOUT:
            numbers.update(numbers_below(below, (section,)))
    return numbers


def numbers_below(content: Any, prefix: NumberPath) -> Iterator[tuple[NumberPath, float | None]]:
    """Yield the path and value of each number and null of nested objects.

    Lists are not numbers of a table, and neither is a number that stands in no section.
    """
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from numbers_below(value, (*prefix, str(key)))
    elif len(prefix) == 1 or isinstance(content, bool):
        return
    elif content is None:
        yield prefix, None
    elif isinstance(content, int | float):
        yield prefix, float(content)
