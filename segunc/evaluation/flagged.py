"""Alarms. A threshold flags the pixels at or above it: on frames of known scenes these are false
alarms, by class and as regions; of anomalies they have precision and recall. Reviewers' verdicts
give precision, misses and shares, often where there is no label at all.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from segunc.core.errors import InputError
from segunc.core.terminal import agreeing, counted
from segunc.data.labels import IGNORE
from segunc.decisions.flags import Threshold
from segunc.decisions.guarantee import GuaranteedThreshold, MethodName
from segunc.decisions.risks import (
    OF_ANOMALIES,
    OF_CLASSES,
    LossSums,
    Method,
    Pool,
    Scene,
    flagged_shares,
)
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

_KINDS = tuple(VERDICTS)  # a frame has one of these verdicts
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
    """Return the sections of the thresholds of scores, for the kinds of labels that there are.

    Args:
        flag: score -> threshold.
        scores: that are evaluated.
        classes: names of the classes; empty without class labels.
        anomalies: whether there are anomaly labels.
        time_of: gives the seconds of a frame in its video.

    Raises:
        InputError: a score with a threshold is not evaluated.
    """
    unused = [name for name in flag if name not in scores]
    if unused:
        raise InputError(
            f"--flag has a threshold of '{unused[0]}', which is not evaluated",
            hint=f"evaluated are {', '.join(scores)}; name others with --scores",
        )
    sections: list[Flagged] = []
    if classes:
        sections += [FalseAlarms(name, threshold, classes) for name, threshold in flag.items()]
    if anomalies:
        sections += [Hits(name, threshold) for name, threshold in flag.items()]
    for name, threshold in flag.items():
        if threshold.guarantee is None:
            continue
        for control in threshold.guarantee.levels:
            sections.append(Achieved(name, threshold, control, anomalies, time_of))
    return sections


class Flagged(ArrayPart):
    """A section of what a threshold of a score flags."""

    def __init__(self, score: str, threshold: Threshold) -> None:
        self.score = score
        self.threshold = threshold
        self.section = ("flagged", score)

    def flagged(self, frame: LabelledFrame) -> Array:
        """Return which pixels of a frame are flagged, bool ``[H, W]``."""
        form = str(frame.form(self.score))
        guarantee = self.threshold.guarantee
        if guarantee is not None and guarantee.form != form:
            raise InputError(
                f"the map '{self.score}' is stored as {form}, but {self.threshold.source} was "
                f"calibrated on maps stored as {guarantee.form}",
                hint="evaluate maps of one tool, or give --flag SCORE=VALUE",
            )
        values = self.threshold.prepared(
            frame.values(self.score), lambda: frame.prediction, frame.kept
        )
        return is_flagged(values, self.threshold.value)

    def place(self, frame: LabelledFrame) -> Array | None:
        """Return which pixels of a frame belong to the place that is promised, bool ``[H, W]``;
        None for all.
        """
        preparation = self.threshold.preparation
        return preparation.inside(frame.prediction, frame.stored[self.score].shape)


class FalseAlarms(Flagged):
    """Known pixels that are flagged, by class, and the regions of at least ``threshold.smallest``
    pixels that they form.

    Known are the pixels with a class label, except those that an anomaly label marks; nothing else
    counts or is part of a region (8-connected). Its counts are ``[2 C + 3]``: known pixels and
    flagged ones by class; frames with a known pixel, regions, and frames with one.
    """

    needs = "class"
    undefined = ALL_IGNORED
    metrics = (
        parts.lower("share", "share"),
        parts.lower("by_class.*"),
        parts.lower("regions_per_frame", "regions/frame"),
        parts.lower("frames_with_region", "frames with one"),
    )

    def __init__(self, score: str, threshold: Threshold, classes: Sequence[str]) -> None:
        super().__init__(score, threshold)
        self.classes = classes
        self.lacks = f"no labelled frame has a map '{score}'"
        self.names = (
            ("share",),
            *[("by_class", name) for name in classes],
            ("regions_per_frame",),
            ("frames_with_region",),
        )

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.labels is None or self.score not in frame.stored:
            return None
        is_labelled = frame.labels != IGNORE
        if frame.anomaly is not None:
            is_labelled &= frame.anomaly != 1
        flagged = is_labelled & self.flagged(frame)
        number_of_classes = len(self.classes)
        known_by_class = np.bincount(frame.labels[is_labelled], minlength=number_of_classes)
        flagged_by_class = np.bincount(frame.labels[flagged], minlength=number_of_classes)
        sizes = Objects.of(flagged).pixels
        regions = int(np.count_nonzero(sizes >= self.threshold.smallest))
        # A frame without a known pixel can have no false alarm, so its lack of one says nothing.
        of_frame = [is_labelled.any(), regions, regions > 0]
        return np.concatenate([known_by_class, flagged_by_class, of_frame]).astype(np.int64)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        known, flagged = counts[:-3].reshape(2, -1)
        frames, regions, frames_with_region = counts[-3:].tolist()
        if not known.any():
            return dict.fromkeys(self.names)
        numbers: Numbers = {("share",): flagged.sum() / known.sum()}
        for name, pixels, alarms in zip(
            self.classes, known.tolist(), flagged.tolist(), strict=True
        ):
            numbers["by_class", name] = alarms / pixels if pixels else None
        numbers["regions_per_frame",] = regions / frames
        numbers["frames_with_region",] = frames_with_region / frames
        return numbers

    def why(self, counts: Counts, name: NumberPath) -> str:
        if counts.any() and name[0] == "by_class":
            return "no pixel is labelled with the class"
        return self.undefined


class Hits(Flagged):
    """Precision, recall and price of the flagged pixels, over all pixels with an anomaly label;
    counts ``[2, 2]``, by label and flag.
    """

    needs = "anomaly"
    lacks = NO_ANOMALY_LABEL
    metrics = (
        parts.higher("precision", "precision"),
        parts.higher("recall", "recall"),
        parts.lower("normal_share", "of normal pixels"),
    )

    def count(self, frame: LabelledFrame) -> Counts | None:
        if frame.anomaly is None:
            return None
        flagged = self.flagged(frame)
        normal = np.bincount(flagged[frame.anomaly == 0], minlength=2)
        anomalous = np.bincount(flagged[frame.anomaly == 1], minlength=2)
        return np.stack([normal, anomalous])

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        (kept, false), (missed, hit) = counts.tolist()
        return {
            ("precision",): _share(hit, false),
            ("recall",): _share(hit, missed),
            ("normal_share",): _share(false, kept),
        }

    def why(self, counts: Counts, name: NumberPath) -> str:
        if name == ("recall",):
            return NO_ANOMALY
        if name == ("normal_share",):
            return NO_NORMAL
        return "no pixel with an anomaly label is flagged"


_FLAGGED_KEY = int(score_keys(np.ones(1, np.uint8))[0])  # of a score that is 1


class Achieved(Flagged):
    """The mean loss of these units at a threshold with a promise, beside the promised ``level``;
    ``upper`` bounds the risk with 95 %. Of ``errors-kept`` also ``right_flagged`` and
    ``wrong_flagged``, shares of all right and of all wrong pixels. Its counts are those of each
    frame, ``[2, 2]``, at the threshold and where nothing is flagged.
    """

    batch = 512
    undefined = "no unit holds what the promise is about"
    metrics = (
        parts.lower("risk", "achieved"),
        parts.Metric("level", "promised"),
        parts.lower("right_flagged", "of right pixels"),
        parts.higher("wrong_flagged", "of wrong pixels"),
    )

    def __init__(
        self, score: str, threshold: Threshold, control: str, anomalies: bool, time_of: TimeOf
    ) -> None:
        super().__init__(score, threshold)
        assert threshold.guarantee is not None
        self.guarantee = threshold.guarantee
        self.control = control
        self.level = threshold.guarantee.levels[control]
        self.needs = "anomaly" if anomalies and control not in OF_CLASSES else "class"
        self.lacks = f"no labelled frame has what {control} needs"
        self.names = (("risk",), ("level",), ("units",), ("upper",))
        if control in OF_CLASSES:
            self.names += (("right_flagged",), ("wrong_flagged",))
        self.point = frozenset(self.names)
        if control != self.guarantee.control:
            self.section = (*self.section, control)
        self.unit = unit_of_threshold(threshold.guarantee, time_of)
        self.calibrated_units: frozenset[str] = frozenset()  # they test nothing

    def count(self, frame: LabelledFrame) -> dict[str, Counts] | None:
        if self.score not in frame.stored:
            return None
        if self.control in OF_ANOMALIES and frame.anomaly is None:
            return None
        flagged = self.flagged(frame).view(np.uint8)  # a score that is 1 where pixels are flagged
        scene = Scene(flagged, frame.anomaly, frame.labels, frame.wrong, place=self.place(frame))
        counts = scene.counts(
            self.control,
            found_share=self.guarantee.found_share,
            smallest=self.guarantee.smallest,
            smallest_object=self.guarantee.smallest_object,
        )
        if counts is None:
            return None
        return {frame.name: counts[:, [_FLAGGED_KEY, -1]]}

    def combine(self, counts: Sequence[dict[str, Counts]]) -> dict[str, Counts]:
        combined: dict[str, Counts] = {}
        for frames in counts:
            combined.update(frames)
        return combined

    def numbers(self, counts: dict[str, Counts], forms: Forms) -> Numbers:
        pools: dict[str, Pool] = {}
        tested = []
        for name, counts_of_frame in counts.items():
            unit = self.unit(name)
            if unit in self.calibrated_units:
                continue
            tested.append(counts_of_frame)
            if unit not in pools:
                pools[unit] = Pool(self.control, self.guarantee.unit)
            pools[unit].add(counts_of_frame)
        sums = LossSums(self.control, size=2)
        for pool in pools.values():
            sums.add(pool.losses())
        if not sums.units:
            return dict.fromkeys(self.names)
        # A conformal threshold has no confidence; its risk is bounded as that of ltt.
        name_of_method: MethodName = "ltt"
        if self.guarantee.method == "clopper-pearson":
            name_of_method = "clopper-pearson"
        method = Method(name_of_method, confidence=0.95)
        numbers: Numbers = {
            ("risk",): method.risk(sums, 0),
            ("level",): self.level,
            ("units",): sums.units,
            ("upper",): method.upper_bound(sums, 0),
        }
        if self.control in OF_CLASSES:
            right, wrong = flagged_shares(np.sum(tested, axis=0))
            numbers["right_flagged",] = right
            numbers["wrong_flagged",] = wrong
        return numbers

    def why(self, counts: dict[str, Counts], name: NumberPath) -> str:
        if counts and name == ("right_flagged",):
            return "no pixel is rightly predicted"
        if counts and name == ("wrong_flagged",):
            return "no pixel is wrongly predicted"
        if counts and self.calibrated_units.issuperset(self.unit(frame) for frame in counts):
            return "each of these units holds frames of the calibration"
        return self.undefined


def unit_of_threshold(guarantee: GuaranteedThreshold, time_of: TimeOf) -> Callable[[str], str]:
    """Return the function from a frame's name to its unit of a promise."""
    return resampled_units(guarantee.unit, time_of, "the unit of the threshold", of_file=True)


def units_of_calibration(
    guarantee: GuaranteedThreshold,
    frames: Iterable[str],
    identity_of: Callable[[str], str],
    time_of: TimeOf,
) -> frozenset[str]:
    """Return the units that hold frames of a calibration, known by name and bytes.

    The other frames of such a unit resemble these, so they cannot test the promise, either.

    Args:
        guarantee: of the calibration.
        frames: names of all frames, also of those that are not evaluated.
        identity_of: gives the hash of a frame.
        time_of: gives the seconds of a frame in its video.
    """
    unit_of = unit_of_threshold(guarantee, time_of)
    units = set()
    for name in frames:
        if name in guarantee.frames and guarantee.frames[name] == identity_of(name):
            units.add(unit_of(name))
    return frozenset(units)


def notes_on_units(
    threshold: Threshold,
    frames: Iterable[str],
    calibrated: Collection[str],
    time_of: TimeOf,
) -> Iterator[str]:
    """Yield what a user should know of the units that test a promise.

    Args:
        threshold: with its promise.
        frames: names of the frames that test it.
        calibrated: units that hold frames of the calibration.
        time_of: gives the seconds of a frame in its video.
    """
    assert threshold.guarantee is not None
    unit_of = unit_of_threshold(threshold.guarantee, time_of)
    frames_of = Counter(unit_of(name) for name in frames)
    shared = frames_of.keys() & {*calibrated}
    if shared:
        yield (
            f"{len(shared)} of these {counted(len(frames_of), 'unit')} "
            f"{agreeing('holds', len(shared))} frames of the calibration of {threshold.source}, "
            "too. Such units cannot test its promise, and the achieved risk leaves them out; "
            "evaluate other drives"
        )
    others = [number for unit, number in frames_of.items() if unit not in shared]
    if others:
        mean = sum(others) / len(others)
        for note in (
            threshold.density_note(int(mean)),
            threshold.sparsity_note(mean),
        ):
            if note:
                yield note


FLAGGED_METRICS = (
    parts.Metric("threshold", "threshold"),
    *FalseAlarms.metrics,
    *Hits.metrics,
    *Achieved.metrics,
)


class _Judged(ArrayPart):
    """A section of what reviewers say."""

    needs = "verdict"
    lacks = "no frame has a verdict"

    def __init__(self, section: NumberPath, counts: Mapping[str, Counts]) -> None:
        self.section = section
        self._counts = counts

    def count(self, frame: LabelledFrame) -> Counts | None:
        return self._counts.get(frame.name)

    @abstractmethod
    def rests_on(self, counts: Counts) -> dict[NumberPath, list[int]]:
        """Return the fewest and the most frames or regions that each number is a share of."""


@dataclass(frozen=True)
class _Ratio:
    """A share of judged frames: those with one of some verdicts among them and others."""

    counted: frozenset[str]  # the verdicts of the share
    others: frozenset[str]  # the verdicts of the rest


def _ratios() -> dict[NumberPath, _Ratio]:
    """Return the numbers of judged frames by their names."""
    alarm = frozenset({"true-alarm"})
    false_alarm = frozenset({"false-alarm"})
    ratios: dict[NumberPath, _Ratio] = {
        ("precision",): _Ratio(counted=alarm, others=false_alarm),
        ("recall",): _Ratio(counted=alarm, others=frozenset({"missed"})),
        ("false_alarms",): _Ratio(counted=false_alarm, others=frozenset({"nothing-wrong"})),
    }
    for kind in _KINDS:
        counted = frozenset({kind})
        ratios["share", kind] = _Ratio(counted=counted, others=frozenset(_KINDS) - counted)
    return ratios


_RATIOS = _ratios()
AT_LEAST = "at_least"
AT_MOST = "at_most"
DISPUTED = "reviewers disagree on frames that it counts; at_least and at_most bound it"


class JudgedFrames(_Judged):
    """Verdicts on frames, of one reviewer; counts ``[5]`` in the order of :data:`VERDICTS`.

    ``precision``: of the frames with an alarm, true or false, the true ones. ``recall``: of the
    frames with something wrong, true alarms and missed, the alarms. ``false_alarms``: of the frames
    with nothing wrong, those with a false alarm.
    """

    names: Sequence[NumberPath] = tuple(_RATIOS)
    metrics = (
        *_ALARMS,
        parts.lower("false_alarms", "false alarms where nothing is"),
        parts.Metric("share.*"),
    )
    undefined = "no verdict that it is a share of"

    def __init__(self, section: NumberPath, verdicts: Mapping[str, str]) -> None:
        one_of_each = np.eye(len(_KINDS), dtype=np.int64)
        counts = {frame: one_of_each[_KINDS.index(verdict)] for frame, verdict in verdicts.items()}
        super().__init__(section, counts)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        numbers: Numbers = {}
        for name, ratio in _RATIOS.items():
            counted = self._frames(counts, ratio.counted)
            others = self._frames(counts, ratio.others)
            numbers[name] = _share(counted, others)
        return numbers

    def rests_on(self, counts: Counts) -> dict[NumberPath, list[int]]:
        numbers: dict[NumberPath, list[int]] = {}
        for name, ratio in _RATIOS.items():
            frames = self._frames(counts, ratio.counted | ratio.others)
            numbers[name] = [frames, frames]
        return numbers

    @staticmethod
    def _frames(counts: Counts, kinds: frozenset[str]) -> int:
        """Return how many frames have one of some verdicts."""
        return sum(int(counts[_KINDS.index(kind)]) for kind in kinds)


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
            *_RATIOS,
            *[(AT_LEAST, *name) for name in _RATIOS],
            *[(AT_MOST, *name) for name in _RATIOS],
        ]
        counts: dict[str, Counts] = {}
        for frame, kinds in verdicts.items():
            counts[frame] = np.zeros(1 << len(_KINDS), np.int64)
            counts[frame][sum(1 << _KINDS.index(kind) for kind in {*kinds})] = 1
        super().__init__(section, counts)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        numbers: Numbers = {}
        for name, ratio in _RATIOS.items():
            low = _share(*self._extreme(counts, ratio.counted, ratio.others))
            # The share is largest where that of the others is smallest.
            others, counted = self._extreme(counts, ratio.others, ratio.counted)
            high = _share(counted, others)
            numbers[(AT_LEAST, *name)] = low
            numbers[(AT_MOST, *name)] = high
            numbers[name] = low if low == high else None
        return numbers

    def rests_on(self, counts: Counts) -> dict[NumberPath, list[int]]:
        numbers: dict[NumberPath, list[int]] = {}
        for name, ratio in _RATIOS.items():
            either = ratio.counted | ratio.others
            fewest = 0
            most = 0
            for kinds, frames in _by_kinds(counts):
                if kinds <= either:
                    fewest += frames
                if kinds & either:
                    most += frames
            numbers[name] = [fewest, most]
        return numbers

    def why(self, counts: Counts, name: NumberPath) -> str:
        if name in _RATIOS and self.rests_on(counts)[name][1]:
            return DISPUTED
        return self.undefined

    @staticmethod
    def _extreme(
        counts: Counts, counted: frozenset[str], others: frozenset[str]
    ) -> tuple[int, int]:
        """Return how many frames are counted and how many are others where the share is smallest.

        A disputed frame is one of the others if any reviewer said so; it is left out if any
        reviewer said neither.
        """
        frames_counted = 0
        frames_of_others = 0
        for kinds, frames in _by_kinds(counts):
            if kinds & others:
                frames_of_others += frames
            elif kinds <= counted:
                frames_counted += frames
        return frames_counted, frames_of_others


def _by_kinds(counts: Counts) -> Iterator[tuple[frozenset[str], int]]:
    """Yield each set of verdicts that a frame was given, and how many frames were."""
    for mask in np.flatnonzero(counts).tolist():
        kinds = frozenset(kind for bit, kind in enumerate(_KINDS) if mask >> bit & 1)
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
            if verdict.region is None or not verdict.verdict:
                continue
            if verdict.frame not in by_frame:
                by_frame[verdict.frame] = np.zeros((2, len(GRAVEST) + 1), np.int64)
                by_frame[verdict.frame][0, -1] = 1
            drawn_by_hand = verdict.region.score is None
            by_frame[verdict.frame][int(drawn_by_hand), GRAVEST.index(verdict.verdict)] += 1
        super().__init__(section, by_frame)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        regions = _RegionCounts.of(counts)
        missed_per_frame = None
        if regions.frames:
            missed_per_frame = regions.missed / regions.frames
        return {
            ("precision",): _share(regions.true, regions.false),
            ("recall",): _share(regions.true, regions.missed),
            ("missed_per_frame",): missed_per_frame,
        }

    def rests_on(self, counts: Counts) -> dict[NumberPath, list[int]]:
        regions = _RegionCounts.of(counts)
        alarms = regions.true + regions.false
        faults = regions.true + regions.missed
        return {
            ("precision",): [alarms, alarms],
            ("recall",): [faults, faults],
            ("missed_per_frame",): [regions.frames, regions.frames],
        }


@dataclass(frozen=True)
class _RegionCounts:
    """Verdicts on regions, as numbers are made of them."""

    true: int  # true alarms
    false: int  # false alarms
    missed: int  # drawn by hand, or flagged in a part that is not enough
    frames: int  # with a verdict on a region

    @classmethod
    def of(cls, counts: Counts) -> _RegionCounts:
        """Return the numbers of the counts ``[2, 5]`` of :class:`JudgedRegions`."""
        return cls(
            true=int(counts[0, GRAVEST.index("true-alarm")]),
            false=int(counts[0, GRAVEST.index("false-alarm")]),
            missed=int(counts[:, GRAVEST.index("missed")].sum()),
            frames=int(counts[0, -1]),
        )


JUDGED_METRICS = (*JudgedFrames.metrics, *JudgedRegions.metrics)


def _share(counted: int, others: int) -> float | None:
    """Return the share of what is counted; None of nothing."""
    return int(counted) / int(counted + others) if counted + others else None
