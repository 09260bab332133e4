"""Alarms. What a threshold flags, pixels at or above it: on frames of known scenes false alarms, by
class and as regions; of anomalies precision and recall. What reviewers' verdicts say of alarms:
precision, misses and shares, where there is often no label at all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE
from segunc.decisions.flags import Threshold
from segunc.decisions.risks import OF_ANOMALIES, LossSums, Method, Pool, Scene
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
from segunc.maps.encoding import is_flagged, score_keys
from segunc.maps.verdicts import GRAVEST, VERDICTS, Verdict
from segunc.metrics.counting import NO_ANOMALY, NO_NORMAL, Counts
from segunc.metrics.objects import Objects

_KINDS = tuple(VERDICTS)
_ALARMS = (
    parts.higher("precision", "alarms that are true"),
    parts.higher("recall", "faults that an alarm found"),
)


def flag_parts(
    flag: Mapping[str, Threshold],
    scores: Sequence[str],
    classes: Sequence[str],
    anomalies: bool,
    time_of: TimeOf = lambda frame: None,
) -> list[Flagged]:
    """Return the parts of the thresholds of the scores that are evaluated, for the kinds of labels
    there are.
    """
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


class Flagged(ArrayPart):
    def __init__(self, score: str, threshold: Threshold) -> None:
        self.score, self.threshold, self.section = score, threshold, ("flagged", score)

    def flagged(self, frame: LabelledFrame) -> Array:
        """Return which pixels of a frame are flagged, bool ``[H, W]``."""
        form, made = str(frame.form(self.score)), self.threshold.guarantee
        if made and made.form != form:
            message = f"the map '{self.score}' is stored as {form}, but {self.threshold.source} is of maps stored as {made.form}"
            raise InputError(message, hint="evaluate maps of one tool, or give --flag SCORE=VALUE")
        return is_flagged(frame.values(self.score), self.threshold.value)


class FalseAlarms(Flagged):
    """Known pixels that are flagged, by class, and the regions of at least ``threshold.smallest``
    pixels that they make.

    Known are the pixels with a class label, but for those that an anomaly label marks; nothing else
    counts or is part of a region (8-connected). Its counts are ``[2 C + 3]``: known pixels and
    flagged ones by class; frames, regions, and frames with one.
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
        regions = Objects.of(flagged).pixels
        large = int(np.count_nonzero(regions >= self.threshold.smallest))
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
    """Precision, recall and price of the flagged pixels, over all pixels with an anomaly label;
    counts ``[2, 2]``, by label and flag.
    """

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
    """The mean loss of these units at a threshold with a promise, beside the promised ``level``;
    ``upper`` bounds the risk with 95 %. Its counts are those of each frame, ``[2, 2]``, at the
    threshold and where nothing is flagged.
    """

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
        made = self.guarantee
        counts = scene.counts(self.control, made.found_share, made.smallest, made.smallest_object)
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

    @abstractmethod
    def rests_on(self, counts: Counts) -> dict[NumberPath, list[int]]:
        """Return the fewest and the most frames or regions that each number is a share of."""


_SHARES: dict[NumberPath, tuple[frozenset[str], frozenset[str]]] = {
    ("precision",): (frozenset({"true-alarm"}), frozenset({"false-alarm"})),
    ("recall",): (frozenset({"true-alarm"}), frozenset({"missed"})),
    ("false_alarms",): (frozenset({"false-alarm"}), frozenset({"nothing-wrong"})),
} | {("share", kind): (frozenset({kind}), frozenset(_KINDS) - {kind}) for kind in _KINDS}
"""Each number of judged frames: the verdicts that it counts, and those that it is also a share
of."""
AT_LEAST, AT_MOST = "at_least", "at_most"
DISPUTED = "reviewers disagree on frames that it counts; at_least and at_most bound it"


class JudgedFrames(_Judged):
    """Verdicts on frames, of one reviewer; counts ``[5]`` in the order of :data:`VERDICTS`.

    ``precision``: of the frames with an alarm, true or false, the true ones. ``recall``: of the
    frames with something wrong, true alarms and missed, the alarms. ``false_alarms``: of the frames
    with nothing wrong, those with a false alarm.
    """

    names: Sequence[NumberPath] = tuple(_SHARES)
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
        numbers: Numbers = {}
        for name, (these, others) in _SHARES.items():
            part, rest = self._sums(counts, these, others)
            numbers[name] = _share(part, rest)
        return numbers

    def rests_on(self, counts: Counts) -> dict[NumberPath, list[int]]:
        return {name: [sum(self._sums(counts, *of))] * 2 for name, of in _SHARES.items()}

    @staticmethod
    def _sums(counts: Counts, these: Collection[str], others: Collection[str]) -> tuple[int, int]:
        by_kind = dict(zip(_KINDS, counts.tolist(), strict=True))
        return sum(by_kind[kind] for kind in these), sum(by_kind[kind] for kind in others)


class JudgedTogether(_Judged):
    """Verdicts on frames, of all reviewers. Where they disagree on a frame, each number lies
    between two bounds: every disputed verdict lowers it, or every one raises it, among those that
    were given. Counts ``[32]`` are frames by the set of their verdicts, of which verdict k of
    :data:`VERDICTS` is the bit 2^k.

    A number without a bound's name is that of all, None where its bounds differ.
    """

    metrics = JudgedFrames.metrics
    undefined = JudgedFrames.undefined

    def __init__(self, section: NumberPath, verdicts: Mapping[str, Collection[str]]) -> None:
        self.names: Sequence[NumberPath] = [
            *_SHARES,
            *((AT_LEAST, *name) for name in _SHARES),
            *((AT_MOST, *name) for name in _SHARES),
        ]
        counts: dict[str, Counts] = {}
        for frame, kinds in verdicts.items():
            counts[frame] = np.zeros(1 << len(_KINDS), np.int64)
            counts[frame][sum(1 << _KINDS.index(kind) for kind in {*kinds})] = 1
        super().__init__(section, counts)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        numbers: Numbers = {}
        for name, (these, others) in _SHARES.items():
            low = _share(*self._extreme(counts, these, others))
            # The share of these is largest where that of the others is smallest.
            rest, part = self._extreme(counts, others, these)
            high = _share(part, rest)
            numbers[(AT_LEAST, *name)] = low
            numbers[(AT_MOST, *name)] = high
            numbers[name] = low if low == high else None
        return numbers

    def rests_on(self, counts: Counts) -> dict[NumberPath, list[int]]:
        numbers: dict[NumberPath, list[int]] = {}
        for name, (these, others) in _SHARES.items():
            fewest = most = 0
            for kinds, frames in _by_kinds(counts):
                fewest += frames * (kinds <= these | others)
                most += frames * bool(kinds & (these | others))
            numbers[name] = [fewest, most]
        return numbers

    def why(self, counts: Counts, name: NumberPath) -> str:
        disputed = name in _SHARES and self.rests_on(counts)[name][1]
        return DISPUTED if disputed else self.undefined

    @staticmethod
    def _extreme(counts: Counts, these: frozenset[str], others: frozenset[str]) -> tuple[int, int]:
        """Return how many frames count as one of ``these`` and how many as one of the ``others``
        where the share of these is smallest: a disputed frame is one of the others if anybody said
        so, else it is left out if anybody said something else."""
        part = rest = 0
        for kinds, frames in _by_kinds(counts):
            if kinds & others:
                rest += frames
            elif kinds <= these:
                part += frames
        return part, rest


def _by_kinds(counts: Counts) -> Iterator[tuple[frozenset[str], int]]:
    """Yield each set of verdicts that a frame was given, and how many frames were."""
    for mask in np.flatnonzero(counts).tolist():
        kinds = frozenset(kind for place, kind in enumerate(_KINDS) if mask >> place & 1)
        yield kinds, int(counts[mask])


class JudgedRegions(_Judged):
    """Verdicts of one reviewer on regions; counts ``[2, 5]``, what a threshold flagged and what was
    drawn by hand, in the order of :data:`GRAVEST`, then in the first row the frames.

    ``precision``: of the flagged regions that were called true or false, the true ones. ``recall``:
    of these true ones and of what was missed, drawn by hand or flagged in a part that is not
    enough, the true ones. ``missed_per_frame``: over the frames with a region.
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

    def rests_on(self, counts: Counts) -> dict[NumberPath, list[int]]:
        missed, true, false = (
            counts[:, GRAVEST.index(kind)] for kind in ("missed", "true-alarm", "false-alarm")
        )
        whole = {
            ("precision",): int(true[0] + false[0]),
            ("recall",): int(true[0] + missed.sum()),
            ("missed_per_frame",): int(counts[0, -1]),
        }
        return {name: [number] * 2 for name, number in whole.items()}


JUDGED_METRICS = *JudgedFrames.metrics, *JudgedRegions.metrics


def _share(these: int, others: int) -> float | None:
    return int(these) / int(these + others) if these + others else None
