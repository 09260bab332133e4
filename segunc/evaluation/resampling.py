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
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from segunc.core.errors import InputError, NoteWarning, shortened
from segunc.core.files import read_arrays, read_bytes, read_json, write_atomically
from segunc.core.patterns import Searcher, pattern_of_file
from segunc.data.frame_names import composed, frames_named
from segunc.decisions.guarantee import block_seconds

LEVEL = 0.95
MAX_UNDEFINED = (
    0.05  # share of replicates without a number (no anomaly was drawn, say) that leaves an interval
)
MIN_REPLICATES = (
    40  # replicates below which the 2.5 and 97.5 percentiles would be extrapolated: 1 / 0.025
)
MAX_REPLICATES = 20_000  # the time that they take grows with their number
# A rule, no limit of the method: fewer frames or blocks are seldom a sample of what they stand for.
MIN_UNITS = 15
OTHER = "other"  # the group of all frames that are in no other
MAX_GROUPS = 100
ABOUT = (
    "counts",
    "run",
    "bootstrap",
)  # sections whose numbers are about the evaluation; every other section holds numbers of a table
NumberPath = tuple[
    str, ...
]  # of a number in a result: ("scores", "entropy", "pooled", "auroc"); dotted in a file
TimeOf = Callable[
    [str], float | None
]  # of a frame, in seconds of its video; None where it is not known
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Resampling:
    """How many replicates R (0 makes no intervals), and from which seed of the weights."""

    replicates: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.replicates != 0 and not MIN_REPLICATES <= self.replicates <= MAX_REPLICATES:
            message = f"{self.replicates} bootstrap replicates are neither 0 nor {MIN_REPLICATES} to {MAX_REPLICATES}"
            raise InputError(
                message, hint="--replicates 2000 is the default, --replicates 0 makes no intervals"
            )

    def weights(self, unit: str) -> npt.NDArray[np.int64]:
        """Return how often a unit is in each replicate, int64 ``[R]``; with more replicates the
        first ones stay.
        """
        return self._generator(unit).poisson(1.0, self.replicates)

    def weights_of(self, units: tuple[str, ...]) -> npt.NDArray[np.uint8]:
        """Return the :meth:`weights` of some units, uint8 ``[U, R]``; those of the last stretches
        of :func:`units_at_once` are kept."""
        return _unit_weights(self, units)

    def seed_weights(self, name: str) -> Floats:
        """Return the multiplier of a seed of training in each replicate, standard normal ``[R]``;
        see :attr:`Replicates.seeds`.
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
    """Return the function from a frame's name to its unit; it raises InputError, which names the
    ``option``, for a name that does not fit. ``how`` is ``frame``, ``folder``, ``10s`` for blocks
    of seconds of a video (``time_of`` gives the moment of a frame), or a regular expression, whose
    match in the name (its first group, where it has one) is the unit. One ``of_file`` is a
    stranger's, and is searched in bounded time."""
    seconds = block_seconds(how)
    if seconds == 0:
        raise InputError(f"{option} 0s makes blocks of no time", hint=f"{option} 10s")
    fault = f"{option} '{shortened(how)}' is none of frame, folder, 10s and a regular expression"
    pattern: Searcher
    if of_file:
        pattern = pattern_of_file(how, f"{option} '{shortened(how)}'")
    else:
        pattern = compiled(how, fault, option)

    def unit(name: str) -> str:
        if how == "frame":
            return name
        if how == "folder":
            return name.rpartition("/")[0]
        if seconds:
            time = time_of(name)
            if time is None:
                message = f"{option} {how} needs maps of a video, but no time of the frame {name} is known"
                raise InputError(message, hint=rf"take a part of the names: {option} '_f\d\d'")
            return f"{name.rpartition('/')[0]}/{int(time // seconds)}"
        match = pattern.search(composed(name))
        if match is None:
            raise InputError(
                f"the regular expression '{how}' of {option} finds nothing in the frame name {name}"
            )
        return str(match[min(pattern.groups, 1)])

    return unit


def compiled(pattern: str, otherwise: str, option: str = "") -> re.Pattern[str]:
    """Return a regular expression for :func:`composed` names; InputError, which says what it is
    ``otherwise``, for a text that is none."""
    try:
        return re.compile(composed(pattern))
    except re.error as error:
        hint = f"{option} '^[a-z_]+' takes the letters before a number" if option else ""
        raise InputError(f"{otherwise} ({error})", hint=hint) from error


def group_frames(how: str | Mapping[str, str], frames: Collection[str]) -> dict[str, set[str]]:
    """Return the frames with an anomaly label of each group by its name, :data:`OTHER` last; at
    least one frame belongs to one of at most :data:`MAX_GROUPS` groups. ``how`` is a regular
    expression as of :func:`resampled_units`, or a mapping from the names of frames, or of their
    files, to groups; a warning says which names are of no frame."""
    if isinstance(how, str):
        pattern = compiled(
            how, f"--groups '{how}' is neither a CSV file nor a regular expression", "--groups"
        )
        matches = {frame: pattern.search(composed(frame)) for frame in frames}
        group_of = {
            frame: match[min(pattern.groups, 1)] or OTHER
            for frame, match in matches.items()
            if match
        }
    else:
        group_of = _listed_groups(how, frames)
    groups: dict[str, set[str]] = {name: set() for name in sorted({*group_of.values()} - {OTHER})}
    for frame in frames:
        groups.setdefault(group_of.get(frame, OTHER), set()).add(frame)
    if not group_of or len(groups) > MAX_GROUPS:
        many = f"makes {len(groups)} groups, more than {MAX_GROUPS}"
        fault = many if group_of else "names no frame with an anomaly label"
        example = f"; a frame's name is {min(frames)}" if frames else ""
        raise InputError(f"--groups {how if isinstance(how, str) else 'CSV'} {fault}{example}")
    return groups


def _listed_groups(listed: Mapping[str, str], frames: Collection[str]) -> dict[str, str]:
    """Return the group of each frame that a list names; InputError where it gives a frame two
    groups."""
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
    """What replicates say of a number: its 95 % interval, the two-sided p-value of zero in 0..1,
    and the effective number of units.

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
    """The numbers of every bootstrap replicate."""

    paths: tuple[str, ...]  # dotted
    values: Floats  # [P, R], NaN where a replicate defines no number
    seed: int  # of the weights
    units: tuple[str, ...]  # that are resampled, sorted
    seeds: tuple[
        str, ...
    ] = ()  # the K of training whose mean the numbers are, where these are resampled too

    def of(self, path: NumberPath) -> Floats | None:
        dotted = ".".join(path)
        return self.values[self.paths.index(dotted)] if dotted in self.paths else None

    def chances(self) -> dict[str, Chance | str]:
        """Return :meth:`chance` of each number."""
        reasons = [self._why_none(row) for row in self.values]
        rows = [row for row, why in zip(self.values, reasons, strict=True) if why is None]
        spreads = iter(self._effective(rows))
        return {
            path: self._chance(row, *next(spreads)) if why is None else why
            for path, row, why in zip(self.paths, self.values, reasons, strict=True)
        }

    def chance(self, values: Floats) -> Chance | str:
        """Return what values ``[R]`` of these replicates say of their number, or why there is no
        interval."""
        why = self._why_none(values)
        if why is not None:
            return why
        return self._chance(values, *self._effective([values])[0])

    def _why_none(self, values: Floats) -> str | None:
        number = len(self.units)
        if not enough(self.units):
            return f"too few resampled units: {number}, of at least {MIN_UNITS}"
        total = int(np.isfinite(values).sum())
        if not total:
            return f"fewer than {MIN_UNITS} resampled units say something of it"
        if total < MIN_REPLICATES or total < (1 - MAX_UNDEFINED) * len(values):
            return f"{total} of {len(values)} replicates define the number"
        return None

    def _chance(self, values: Floats, effective: float, freedom: float) -> Chance:
        """Return the interval and the p-value of values ``[R]``, with the effective number of units
        and the degrees of freedom.

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
        p_value = 2 * float(stdtr(freedom, min(ndtri(beyond / (total + 1)), 0.0) / stretch))
        return Chance(float(row[rank]), float(row[-1 - rank]), p_value, effective)

    def _effective(self, rows: Sequence[Floats]) -> list[tuple[float, float]]:
        """Return the effective number of units, and the degrees of freedom of the standard error,
        of each row ``[R]``. Influences are covariances of a number with the weights (the
        infinitesimal jackknife; Efron 2014, "Estimation and accuracy after model selection"). The
        weights of some units are in memory at a time."""
        if not rows:
            return []
        replicates = len(rows[0])
        resampling = Resampling(replicates, self.seed)
        powers = np.zeros((len(rows), 2))  # sums of squares and of fourth powers of the influences
        step = units_at_once(replicates)
        for start in range(0, len(self.units), step):
            weights = resampling.weights_of(self.units[start : start + step]).astype(np.float64)
            for place, row in enumerate(rows):
                influences = _influences(weights, row)
                powers[place] += (influences**2).sum(), (influences**4).sum()
        multipliers = np.reshape(
            [resampling.seed_weights(name) for name in self.seeds], (len(self.seeds), replicates)
        )
        return [
            self._freedom(second, fourth, np.isfinite(row).sum(), _influences(multipliers, row))
            for (second, fourth), row in zip(powers.tolist(), rows, strict=True)
        ]

    def _freedom(
        self, second: float, fourth: float, replicates: int, of_seeds: Floats
    ) -> tuple[float, float]:
        """Return the effective number of units and the degrees of freedom, from the sums of squares
        and of fourth powers of the units' influences and from the influences of the seeds. R
        replicates leave a noise of variance 1 / R in each influence, which is taken out of the
        sums. The seeds' part of the variance has K - 1 degrees of freedom; Satterthwaite's formula
        joins both."""
        noise = 1 / replicates
        number = len(self.units)
        fourth = fourth - 6 * noise * second + 3 * number * noise**2
        second -= float(number * noise)
        effective = float(number)
        if second > 3 * noise * math.sqrt(2 * number):
            spread = min(fourth / second**2, 1.0) - 1 / number
            effective = 2 / max(spread, 2 / number)
        seeds = (
            max(float((of_seeds**2).sum() - len(of_seeds) * noise), 0.0)
            if len(of_seeds) > 1
            else 0.0
        )
        if not seeds:
            return effective, effective - 1
        second = max(second, 0.0)
        return effective, (second + seeds) ** 2 / (
            second**2 / (effective - 1) + seeds**2 / (len(of_seeds) - 1)
        )


def enough(units: Collection[str]) -> bool:
    """Return whether units are enough for an interval."""
    return len(units) >= MIN_UNITS


def _influences(weights: Floats, values: Floats) -> Floats:
    """Return the covariance of values ``[R]`` with the weights of each unit ``[U, R]``, in standard
    deviations of the values, ``[U]``; replicates without a value are left out."""
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
    """Return what paired replicates say of the number ``other`` (None: the same) of the second less
    ``one`` of the first, plus ``shift`` (a margin), or why there is no test. Where one has more
    replicates, its first ones are those of the fewer.
    """
    if why := why_not_paired(first, second):
        return why
    a, b = first.of(one), second.of(other or one)
    if a is None or b is None:
        return "this number has no replicates"
    number = min(len(a), len(b))
    return first.chance(b[:number] - a[:number] + shift)


def why_not_paired(first: Replicates, second: Replicates) -> str | None:
    """Return why replicate r of two evaluations is not over the same draw of units; None where it
    is.
    """
    if first.seed != second.seed:
        return f"resampled with the seeds {first.seed} and {second.seed}"
    if first.seeds != second.seeds:
        return "means over other seeds"
    if first.units != second.units:
        return f"other units were resampled ({len(first.units)} and {len(second.units)})"
    return None


def sidecar_path(result: Path) -> Path:
    """Return where the replicates of a result file lie: ``X.replicates.npz`` beside ``X.json``."""
    return result.with_name(result.name.removesuffix(".json") + ".replicates.npz")


def save_replicates(path: Path, replicates: Replicates) -> None:
    """Write replicates as an ``.npz`` that loads without unpickling: ``paths`` ``[P]``, ``values``
    float32 ``[P, R]``, ``seed``, and ``clusters``, the resampled units; the file appears whole.
    """
    buffer = io.BytesIO()
    paths, units = (np.array(names, np.str_) for names in (replicates.paths, replicates.units))
    # float32 moves a value by 6e-8 of itself at most, and neighbouring ones of 2000 replicates lie
    # farther apart.
    seed, values = np.array(replicates.seed, np.int64), np.asarray(replicates.values, np.float32)
    np.savez_compressed(buffer, paths=paths, values=values, seed=seed, clusters=units)
    write_atomically(path, buffer.getvalue())


def is_sidecar(path: Path) -> bool:
    """Return whether a file holds replicates of a result."""
    with contextlib.suppress(InputError):
        load_replicates(path)
        return True
    return False


def load_replicates(path: Path) -> Replicates:
    """Read what :func:`save_replicates` wrote; raises InputError where a file cannot be read or
    holds something else.
    """
    try:
        arrays = read_arrays(read_bytes(path))
        paths, values, seed, clusters = (
            arrays[name] for name in ("paths", "values", "seed", "clusters")
        )
        if (paths.dtype.kind, clusters.dtype.kind, values.dtype.kind) != (
            "U",
            "U",
            "f",
        ) or seed.dtype.kind not in "iu":
            raise ValueError("its arrays are of other types")
        if values.shape != (len(paths), values.shape[-1]) or clusters.ndim != 1 or seed.size != 1:
            raise ValueError("its arrays are of other shapes")
        return Replicates(
            tuple(paths.tolist()), values.astype(np.float64), int(seed), tuple(clusters.tolist())
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        fault = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise InputError(
            f"{path} holds no replicates of a result ({fault})", hint="evaluate again"
        ) from error


@dataclass(frozen=True)
class Cell:
    """A number, its 95 % interval where there is one, and why it is None or has no interval."""

    value: float | None
    interval: tuple[float, float] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class EvaluationResult:
    """One ``metrics.json``."""

    name: str  # in a table
    path: Path
    content: Mapping[str, Any]
    numbers: Mapping[NumberPath, float | None]  # all of its numbers
    replicates: Replicates | None  # of its sidecar, None where there is none

    def cell(self, path: NumberPath) -> Cell:
        value, dotted = self.numbers.get(path), ".".join(path)
        if value is None:
            return Cell(
                None, reason=str(self.content.get("reasons", {}).get(dotted, "no reason is given"))
            )
        bounds = self.content.get("intervals", {}).get(dotted)
        why_none = self.content.get("bootstrap", {}).get("no_interval", {}).get(dotted)
        return Cell(value, (float(bounds[0]), float(bounds[1])) if bounds else None, why_none)


class _Bootstrap(BaseModel):
    no_interval: dict[str, str] = {}


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
    """Read results of ``segunc evaluate`` with their sidecars; ``names`` None takes the stem of
    each file, with its folder where two files share one. InputError where a file cannot be read or
    is no result, or names lack or repeat.
    """
    stems = Counter(path.stem for path in paths)
    names = names or [
        f"{p.resolve().parent.name}/{p.stem}" if stems[p.stem] > 1 else p.stem for p in paths
    ]
    if len(names) != len(paths):
        raise InputError(
            f"{len(names)} names are given for {len(paths)} results", hint="--names a,b"
        )
    repeated = [name for name, number in Counter(names).items() if number > 1]
    if repeated:
        raise InputError(f"two results are named '{repeated[0]}'", hint="--names a,b")
    return [_load(path, name) for path, name in zip(paths, names, strict=True)]


def _load(path: Path, name: str) -> EvaluationResult:
    content = read_json(path, "a result of segunc evaluate")
    try:
        _ResultFile.model_validate(content)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise InputError(
            f"{path} is no result of segunc evaluate: {where} ({fault['msg']})"
        ) from error
    sidecar = sidecar_path(path)
    replicates = load_replicates(sidecar) if sidecar.is_file() else None
    sections = [section for section in content if section not in ABOUT]
    numbers = {
        path: value
        for section in sections
        for path, value in _numbers(content[section], (section,))
    }
    return EvaluationResult(name, path, content, numbers, replicates)


def _numbers(content: Any, prefix: NumberPath) -> Iterator[tuple[NumberPath, float | None]]:
    """Yield the numbers and nulls of nested objects; lists are no numbers of a table."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _numbers(value, (*prefix, str(key)))
    elif len(prefix) > 1 and (
        content is None or (isinstance(content, int | float) and not isinstance(content, bool))
    ):
        yield prefix, None if content is None else float(content)
