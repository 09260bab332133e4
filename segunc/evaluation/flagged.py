"""Alarms. What a threshold flags, pixels at or above it: on frames of known scenes false alarms, by class and as regions; of anomalies
precision and recall. What reviewers' verdicts say of alarms: precision, misses and shares, where there is often no label at all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.decisions.risks import OF_ANOMALIES, LossSums, Method, Pool, Scene
from segunc.decisions.threshold import GuaranteedThreshold, read_threshold
from segunc.evaluation import parts
from segunc.evaluation.parts import (
    ALL_IGNORED,
    NO_ANOMALY_LABEL,
    Array,
    ArrayPart,
    Forms,
    LabelledFrame,
    Numbers,
)
from segunc.evaluation.resampling import NumberPath, TimeOf, resampled_units
from segunc.maps.encoding import score_keys
from segunc.maps.verdicts import GRAVEST, VERDICTS, Verdict
from segunc.metrics.counting import NO_ANOMALY, NO_NORMAL, Counts
from segunc.metrics.objects import Objects
from segunc.scores import SCORES

SMALLEST_REGION = 50  # pixels of a flagged region, as of a predicted component of SegmentMeIfYouCan's obstacle track
_KINDS = tuple(VERDICTS)
_ALARMS = (
    parts.higher("precision", "alarms that are true"),
    parts.higher("recall", "faults that an alarm found"),
)


@dataclass(frozen=True)
class Threshold:
    """From which value on pixels are flagged and, of a file of segunc threshold, what it promises."""

    value: float
    source: str = ""
    promise: str = ""
    short: str = ""  # the promise in few words
    guarantee: GuaranteedThreshold | None = None
    found_share: float = 0.5  # of an object's pixels, the least that is flagged
    smallest: int = SMALLEST_REGION


def read_thresholds(words: Iterable[str] | Mapping[str, float]) -> dict[str, Threshold]:
    """Return the threshold of each score, of words ``SCORE=VALUE`` or ``threshold.json[:GROUP]``, which segunc threshold wrote."""
    thresholds: dict[str, Threshold] = {}
    for word in (
        [f"{name}={value}" for name, value in words.items()]
        if isinstance(words, Mapping)
        else words
    ):
        file = re.fullmatch(r"(.+\.json)(?::([^:]*))?", word)
        name, threshold = _of_file(Path(file[1]), file[2]) if file else _of_value(word)
        if name in thresholds:
            raise InputError(f"--flag {word} is a second threshold of '{name}'")
        thresholds[name] = threshold
    return thresholds


def check_promises(
    flag: Mapping[str, Threshold],
    run: Mapping[str, Any],
    identities: Callable[[str], Iterable[tuple[str, str]]] = lambda score: (),
) -> None:
    """Check the promise of each threshold as ``check_run`` does; ``identities`` gives names and hashes of frames for a score."""
    for name, threshold in flag.items():
        if threshold.guarantee:
            threshold.guarantee.check_run(run, threshold.source, identities(name))


def flag_parts(
    flag: Mapping[str, Threshold],
    scores: Sequence[str],
    classes: Sequence[str],
    anomalies: bool,
    time_of: TimeOf = lambda frame: None,
) -> list[Flagged]:
    """Return the parts of the thresholds of the scores that are evaluated, for the kinds of labels there are."""
    if unused := [name for name in flag if name not in scores]:
        message = f"--flag has a threshold of '{unused[0]}', which is not evaluated"
        raise InputError(
            message, hint=f"evaluated are {', '.join(scores)}; name others with --scores"
        )
    alarms = [FalseAlarms(name, threshold, classes) for name, threshold in flag.items() if classes]
    hits = [Hits(name, threshold) for name, threshold in flag.items() if anomalies]
    promised = [
        (name, of, control)
        for name, of in flag.items()
        if of.guarantee
        for control in of.guarantee.levels
    ]
    return [*alarms, *hits, *(Achieved(*of, anomalies, time_of) for of in promised)]


def _of_value(word: str) -> tuple[str, Threshold]:
    name, _, text = word.partition("=")
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not name or not np.isfinite(value):
        message = f"--flag {word} is neither SCORE=VALUE nor threshold.json[:GROUP]"
        raise InputError(message, hint="--flag entropy=0.5, or --flag threshold.json")
    low, high = (SCORES[name].lower, SCORES[name].upper) if name in SCORES else (None, None)
    if (low is not None and value < low) or (high is not None and value > high):
        raise InputError(
            f"--flag {word}: {name} lies in {low:g} to {np.inf if high is None else high:g}"
        )
    return name, Threshold(value)


def _of_file(path: Path, which: str | None) -> tuple[str, Threshold]:
    made = read_threshold(path)
    value, promise, short = made.value, made.promise, made.short
    if which:
        if which not in made.groups:
            groups = f"its groups are {', '.join(made.groups) or 'none'}"
            raise InputError(
                f"--flag {path}:{which}: the threshold has no group '{which}'", hint=groups
            )
        value, words = (
            made.groups[which]["value"],
            f"group {which}, calibrated on {made.groups[which]['units']:g} units",
        )
        promise, short = f"{promise} This is {words}.", f"{short}, {words}"
    return made.score, Threshold(
        value, path.name, promise, short, made, made.found_share, made.smallest
    )


class Flagged(ArrayPart):
    def __init__(self, score: str, threshold: Threshold) -> None:
        self.score, self.threshold, self.section = score, threshold, ("flagged", score)

    def flagged(self, frame: LabelledFrame) -> Array:
        """Return which pixels of a frame are flagged, bool ``[H, W]``."""
        form, made = str(frame.form(self.score)), self.threshold.guarantee
        if made and made.form != form:
            message = f"the map '{self.score}' is stored as {form}, but {self.threshold.source} is of maps stored as {made.form}"
            raise InputError(message, hint="evaluate maps of one tool, or give --flag SCORE=VALUE")
        return np.asarray(frame.values(self.score) >= np.float64(self.threshold.value))


class FalseAlarms(Flagged):
    """Known pixels that are flagged, by class, and the regions of at least :data:`SMALLEST_REGION` pixels that they make.

    Known are the pixels with a class label, but for those that an anomaly label marks; nothing else counts or is part of a region
    (8-connected). Its counts are ``[2 C + 3]``: known pixels and flagged ones by class; frames, regions, and frames with one.
    """

    needs, undefined = "class", ALL_IGNORED
    metrics = (
        *(
            parts.lower("share", "share"),
            parts.lower("by_class.*"),
            parts.lower("regions_per_frame", "regions/frame"),
        ),
        parts.lower("frames_with_region", "frames with one"),
    )

    def __init__(self, score: str, threshold: Threshold, classes: Sequence[str]) -> None:
        super().__init__(score, threshold)
        self.classes, self.lacks = classes, f"no labelled frame has a map '{score}'"
        of_class = (("by_class", name) for name in classes)
        self.names = (("share",), *of_class, ("regions_per_frame",), ("frames_with_region",))

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.labels is None or self.score not in frame.stored:
            return None
        known = (
            frame.labels != IGNORE
            if frame.anomaly is None
            else (frame.labels != IGNORE) & (frame.anomaly != 1)
        )
        flagged = known & self.flagged(frame)
        by_class = [
            np.bincount(frame.labels[mask], minlength=len(self.classes))
            for mask in (known, flagged)
        ]
        large = int(np.count_nonzero(Objects.of(flagged).pixels >= SMALLEST_REGION))
        return np.concatenate([*by_class, [1, large, large > 0]]).astype(np.int64)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        known, flagged = counts[:-3].reshape(2, -1)
        frames, regions, with_region = counts[-3:].tolist()
        if not known.any():
            return dict.fromkeys(self.names)
        shares = [
            f / n if n else None for n, f in zip(known.tolist(), flagged.tolist(), strict=True)
        ]
        values = (flagged.sum() / known.sum(), *shares, regions / frames, with_region / frames)
        return dict(zip(self.names, values, strict=True))

    def why(self, counts: Counts, name: NumberPath) -> str:
        return (
            "no pixel is labelled with the class"
            if counts.any() and len(name) > 1
            else self.undefined
        )


class Hits(Flagged):
    """Precision, recall and price of the flagged pixels, over all pixels with an anomaly label; counts ``[2, 2]``, by label and flag."""

    needs, lacks = "anomaly", NO_ANOMALY_LABEL
    metrics = (
        parts.higher("precision", "precision"),
        parts.higher("recall", "recall"),
        parts.lower("normal_share", "of normal pixels"),
    )

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.anomaly is None:
            return None
        flagged = self.flagged(frame)
        return np.stack(
            [np.bincount(flagged[frame.anomaly == label], minlength=2) for label in (0, 1)]
        )

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        (kept, false), (missed, hit) = counts.tolist()
        pairs = (hit, hit + false), (hit, hit + missed), (false, kept + false)
        return dict(
            zip(self.names, (part / whole if whole else None for part, whole in pairs), strict=True)
        )

    def why(self, counts: Counts, name: NumberPath) -> str:
        return {"recall": NO_ANOMALY, "normal_share": NO_NORMAL}.get(
            name[0], "no pixel with an anomaly label is flagged"
        )


_FLAGGED = int(score_keys(np.ones(1, np.uint8))[0])  # key of a score that is 1


class Achieved(Flagged):
    """The mean loss of these units at a threshold with a promise, beside the promised ``level``; ``upper`` bounds the risk with 95 %. Its
    counts are those of each frame, ``[2, 2]``, at the threshold and where nothing is flagged."""

    batch = 512
    undefined = "no unit holds what the promise is about"
    names = (("risk",), ("level",), ("units",), ("upper",))
    metrics = parts.lower("risk", "achieved"), parts.Metric("level", "promised")
    point = frozenset(names)

    def __init__(
        self, score: str, threshold: Threshold, control: str, anomalies: bool, time_of: TimeOf
    ) -> None:
        super().__init__(score, threshold)
        assert threshold.guarantee is not None
        self.guarantee, self.control, self.level = (
            threshold.guarantee,
            control,
            threshold.guarantee.levels[control],
        )
        self.needs = "anomaly" if anomalies and control != "errors-kept" else "class"
        self.lacks = f"no labelled frame has what {control} needs"
        self.section = (
            self.section if control == self.guarantee.control else (*self.section, control)
        )
        self.unit = resampled_units(
            self.guarantee.unit, time_of, "the unit of the threshold", of_file=True
        )

    def count(self, frame: LabelledFrame) -> dict[str, Counts] | None:
        if self.score not in frame.stored or (
            self.control in OF_ANOMALIES and frame.anomaly is None
        ):
            return None
        scene = Scene(
            self.flagged(frame).view(np.uint8), frame.anomaly, frame.labels, frame.wrong
        )  # a score that is 1 where flagged
        counts = scene.counts(self.control, self.guarantee.found_share, self.guarantee.smallest)
        return None if counts is None else {frame.name: counts[:, [_FLAGGED, -1]]}

    def combine(self, counts: Sequence[dict[str, Counts]]) -> dict[str, Counts]:
        return {name: of for frames in counts for name, of in frames.items()}

    def numbers(self, counts: dict[str, Counts], forms: Forms) -> Numbers:
        pools, sums = dict[str, Pool](), LossSums(self.control, 2)
        for name, of in counts.items():
            pools.setdefault(self.unit(name), Pool(self.control, self.guarantee.unit)).add(of)
        for pool in pools.values():
            sums.add(pool.losses())
        if not sums.units:
            return dict.fromkeys(self.names)
        method = Method(
            "clopper-pearson" if self.guarantee.method == "clopper-pearson" else "ltt", 0.95
        )  # the risk and a bound of it
        return dict(
            zip(
                self.names,
                (method.risk(sums, 0), self.level, sums.units, method.upper_bound(sums, 0)),
                strict=True,
            )
        )


FLAGGED_METRICS = (
    parts.Metric("threshold", "threshold"),
    *FalseAlarms.metrics,
    *Hits.metrics,
    *Achieved.metrics,
)


class _Judged(ArrayPart):
    needs, lacks = "verdict", "no frame has a verdict"

    def __init__(self, section: NumberPath, counts: Mapping[str, Counts]) -> None:
        self.section, self._counts = section, counts

    def count(self, frame: LabelledFrame) -> Counts | None:
        return self._counts.get(frame.name)


class JudgedFrames(_Judged):
    """Verdicts on frames, of one reviewer or of all who agree; counts ``[5]`` in the order of :data:`VERDICTS`.

    ``precision``: of the frames with an alarm, true or false, the true ones. ``recall``: of the frames with something wrong, true alarms
    and missed, the alarms. ``false_alarms``: of the frames with nothing wrong, those with a false alarm.
    """

    names = (("precision",), ("recall",), ("false_alarms",), *(("share", kind) for kind in _KINDS))
    metrics = (
        *_ALARMS,
        parts.lower("false_alarms", "false alarms where nothing is"),
        parts.Metric("share.*"),
    )
    undefined = "no verdict that it is a share of"

    def __init__(self, section: NumberPath, verdicts: Mapping[str, str]) -> None:
        rows = np.eye(len(_KINDS), dtype=np.int64)
        super().__init__(
            section, {frame: rows[_KINDS.index(verdict)] for frame, verdict in verdicts.items()}
        )

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        n = dict(zip(_KINDS, counts.tolist(), strict=True))
        others = {"precision": ("true-alarm", "false-alarm"), "recall": ("true-alarm", "missed")}
        others["false_alarms"] = "false-alarm", "nothing-wrong"
        numbers: Numbers = {
            (name,): _share(n[kind], n[other]) for name, (kind, other) in others.items()
        }
        return numbers | {
            ("share", kind): _share(number, sum(n.values()) - number) for kind, number in n.items()
        }


class JudgedRegions(_Judged):
    """Verdicts of one reviewer on regions; counts ``[2, 5]``, what a threshold flagged and what was drawn by hand, in the order of
    :data:`GRAVEST`, then in the first row the frames.

    ``precision``: of the flagged regions that were called true or false, the true ones. ``recall``: of these true ones and of what was
    missed, drawn by hand or flagged in a part that is not enough, the true ones. ``missed_per_frame``: over the frames with a region.
    """

    metrics = (*_ALARMS, parts.lower("missed_per_frame", "missed regions a frame"))
    undefined = "no verdict on a region that it is a share of"

    def __init__(self, section: NumberPath, verdicts: Sequence[Verdict]) -> None:
        by_frame: dict[str, Counts] = {}
        for verdict in verdicts:
            if verdict.region is not None and verdict.verdict:
                counts = by_frame.setdefault(
                    verdict.frame, np.zeros((2, len(GRAVEST) + 1), np.int64)
                )
                counts[int(verdict.region.score is None), GRAVEST.index(verdict.verdict)] += 1
                counts[0, -1] = 1
        super().__init__(section, by_frame)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        missed, true, false = (
            counts[:, GRAVEST.index(kind)] for kind in ("missed", "true-alarm", "false-alarm")
        )
        return {
            ("precision",): _share(true[0], false[0]),
            ("recall",): _share(true[0], missed.sum()),
            ("missed_per_frame",): int(missed.sum()) / int(counts[0, -1])
            if counts[0, -1]
            else None,
        }


JUDGED_METRICS = *JudgedFrames.metrics, *JudgedRegions.metrics


def _share(these: int, others: int) -> float | None:
    return int(these) / int(these + others) if these + others else None
