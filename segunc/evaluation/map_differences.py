"""How the maps of two folders differ, without labels: classes, scores and flagged regions.

Frames are read once, one at a time, and each adds to sums of a fixed size, so memory does not grow
with their number. Without labels no number says which folder is better.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.decisions.flags import Threshold
from segunc.evaluation.map_pairs import ComparedMaps, FrameMaps, MapsPair, StoredPair
from segunc.maps.regions import Mask, regions_of
from segunc.metrics.rank_agreement import highest_overlap, rank_correlation
from segunc.scores import first_shown

CLASS_IDS = 256
MAX_CLASS_CHANGES = 5
"""Changes from one class to another that are listed, the largest."""


@dataclass(frozen=True)
class ClassChange:
    """Pixels of one class in the baseline and of another class in the other folder.

    Attributes:
        before: class in the baseline.
        after: class in the other folder.
        pixels: number of these pixels.
        share: of all pixels that have a class in both, 0 to 1.
    """

    before: str
    after: str
    pixels: int
    share: float


@dataclass(frozen=True)
class PredictionDifference:
    """How predicted classes differ.

    Attributes:
        pixels: that have a class in both folders.
        changed: those of them whose class differs.
        changes: the largest changes from one class to another, the largest first.
    """

    pixels: int
    changed: int
    changes: tuple[ClassChange, ...]

    @property
    def share(self) -> float | None:
        """Share of the pixels whose class differs, 0 to 1; None without a pixel."""
        return self.changed / self.pixels if self.pixels else None


@dataclass(frozen=True)
class ScoreDifference:
    """How the maps of one score differ; numbers are in the unit of the score.

    Attributes:
        score: its name.
        pixels: that have a value in both folders.
        means: of the baseline and of the other folder, over these pixels; None without a pixel.
        mean_difference: mean over these pixels of the absolute difference; None without a pixel.
        rank_correlation: Spearman's correlation of the pixels of a frame, mean over the frames that
            have one, -1 to 1; None where no frame has.
        highest_overlap: intersection over union of the highest 5 % of the pixels of a frame, mean
            over the frames that have it, 0 to 1; None where no frame has.
        scales_differ: whether a number may mean something else in each folder; then only ranks
            compare.
    """

    score: str
    pixels: int
    means: tuple[float, float] | None
    mean_difference: float | None
    rank_correlation: float | None
    highest_overlap: float | None
    scales_differ: bool


@dataclass(frozen=True)
class FlaggedSide:
    """What the threshold of one folder flags.

    Attributes:
        threshold: of the score in this folder.
        frames: with a flagged region.
        pixels: in flagged regions.
        regions: number of flagged regions.
        met: those of them that share a pixel with a flagged region of the other folder.
    """

    threshold: Threshold
    frames: int
    pixels: int
    regions: int
    met: int

    @property
    def alone(self) -> int:
        """Regions that share no pixel with a flagged region of the other folder."""
        return self.regions - self.met


@dataclass(frozen=True)
class FlaggedDifference:
    """How the flagged regions of one score differ.

    Attributes:
        score: its name.
        pixels: that count in both folders.
        sides: of the baseline and of the other folder.
    """

    score: str
    pixels: int
    sides: tuple[FlaggedSide, FlaggedSide]


@dataclass(frozen=True)
class FrameDifference:
    """How the maps of one frame differ.

    Attributes:
        name: in the baseline.
        value: by which frames are ranked, see :attr:`MapsDifference.ranked_by`.
        pixels: that count in both folders.
        changed: share of the pixels with a class whose class differs, 0 to 1; None where classes
            are not compared.
        mean_differences: score -> mean absolute difference of its pixels.
        regions: flagged score -> regions of the baseline and of the other folder.
        alone: flagged score -> those of these regions that meet none of the other folder.
    """

    name: str
    value: float
    pixels: int
    changed: float | None
    mean_differences: Mapping[str, float] = field(default_factory=dict)
    regions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    alone: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class MapsDifference:
    """How the maps of two folders differ over the frames that both hold.

    Attributes:
        baseline: name of the first folder.
        other: name of the second folder.
        frames: number of frames that are compared.
        pixels: of these frames that no mask leaves out.
        prediction: how classes differ; None where they are not compared.
        scores: how each score differs.
        flagged: how flagged regions differ, for each score with a threshold.
        ranked_by: what ranks the frames, in words.
        ranking_score: the score that ranks the frames; empty where classes do.
        most: the frames that differ most, the first most.
        notes: what a user should know, in sentences without full stops.
    """

    baseline: str
    other: str
    frames: int
    pixels: int
    prediction: PredictionDifference | None
    scores: tuple[ScoreDifference, ...]
    flagged: tuple[FlaggedDifference, ...]
    ranked_by: str
    ranking_score: str
    most: tuple[FrameDifference, ...]
    notes: tuple[str, ...]


def compare_maps(
    pair: MapsPair,
    top: int = 10,
    follow: Callable[[Iterable[FrameMaps]], Iterable[FrameMaps]] = lambda frames: frames,
) -> MapsDifference:
    """Compare two maps folders.

    Args:
        pair: of the folders.
        top: number of frames to list.
        follow: passes the frames on, for instance with a progress bar.

    Raises:
        InputError: no frame can be compared, or a map is damaged.
    """
    counter = _Counter(pair, top)
    for maps in follow(pair.read()):
        counter.add(maps)
    return counter.result()


class _Counter:
    """Adds the numbers of each frame; holds no map."""

    def __init__(self, pair: MapsPair, top: int) -> None:
        self.pair = pair
        self.top = top
        self.frames = 0
        self.pixels = 0
        self.confusion = np.zeros((CLASS_IDS, CLASS_IDS), np.int64)
        self.scores = {score: _ScoreSums() for score in pair.scores}
        self.flagged = {score: _FlaggedSums() for score in pair.first.flag}
        self.ranking = _Ranking.of(pair)
        # The frames that differ most so far: by their value, then by the share of changed classes;
        # of equal frames the first stays.
        self.most: list[tuple[float, float, int, FrameDifference]] = []

    def add(self, maps: FrameMaps) -> None:
        """Add the numbers of one frame."""
        pixels = _count(maps.counted, maps.shape)
        changed = self._add_prediction(maps)
        mean_differences: dict[str, float] = {}
        for score, stored in maps.scores.items():
            mean_difference = self.scores[score].add(stored, maps.counted)
            if mean_difference is not None:
                mean_differences[score] = mean_difference
        regions: dict[str, tuple[int, int]] = {}
        alone: dict[str, tuple[int, int]] = {}
        only_one: dict[str, int] = {}
        for score, sums in self.flagged.items():
            frame = flag_frame(self.pair, maps, score)
            sums.add(frame, pixels)
            regions[score] = frame.regions
            alone[score] = frame.alone
            only_one[score] = frame.only_one
        self.frames += 1
        self.pixels += pixels
        value = self.ranking.value(changed, mean_differences, only_one)
        difference = FrameDifference(
            name=maps.frame.first,
            value=value,
            pixels=pixels,
            changed=changed,
            mean_differences=mean_differences,
            regions=regions,
            alone=alone,
        )
        self._keep(difference)

    def _keep(self, difference: FrameDifference) -> None:
        """Keep a frame if it is among those that differ most."""
        changed = difference.changed or 0.0
        heapq.heappush(self.most, (difference.value, changed, -self.frames, difference))
        if len(self.most) > self.top:
            heapq.heappop(self.most)

    def _add_prediction(self, maps: FrameMaps) -> float | None:
        """Count the classes of a frame; return the share of pixels whose class differs."""
        classified = maps.classified()
        if classified is None or maps.predictions is None:
            return None
        first, second = maps.predictions
        # A frame has few classes, and a table of both ids counts them in one pass.
        both = first[classified].astype(np.intp) * CLASS_IDS + second[classified]
        counts = np.bincount(both, minlength=CLASS_IDS**2).reshape(CLASS_IDS, CLASS_IDS)
        self.confusion += counts
        return float(1 - counts.trace() / both.size) if both.size else None

    def result(self) -> MapsDifference:
        """Return the numbers of all frames."""
        first = self.pair.first
        second = self.pair.second
        if not self.frames:
            reasons = "; ".join(self.pair.notes_after())
            raise InputError(
                f"no frame of {first.reader.place} and {second.reader.place} can be compared: "
                f"{reasons}",
                hint="run segunc predict on the same images with both models",
            )
        notes = [*self.pair.notes_before(), *self.pair.notes_after()]
        notes += self._of_missing_values()
        most = [difference for *_, difference in sorted(self.most, reverse=True)]
        if any(frame.changed for frame in most) and not any(frame.value for frame in most):
            notes.append(
                f"the {self.ranking.words} is 0 in all frames, so frames are ordered by the share "
                "of pixels whose class changed"
            )
        return MapsDifference(
            baseline=first.name,
            other=second.name,
            frames=self.frames,
            pixels=self.pixels,
            prediction=self._prediction(),
            scores=tuple(self._score(score) for score in self.scores),
            flagged=tuple(self._flagged(score) for score in self.flagged),
            ranked_by=self.ranking.words,
            ranking_score=self.ranking.score,
            most=tuple(most),
            notes=tuple(notes),
        )

    def _of_missing_values(self) -> list[str]:
        """Say how many pixels have no value in one of the folders."""
        notes = []
        for score, sums in self.scores.items():
            missing = self.pixels - sums.pixels
            if missing:
                notes.append(
                    f"{missing:,} pixels of {score} are NaN or infinite in a folder and do not "
                    "count"
                )
        missing = self.pixels - int(self.confusion.sum())
        if self.pair.compares_classes and missing:
            notes.append(f"{missing:,} pixels are of class 255, ignored, in a folder")
        return notes

    def _prediction(self) -> PredictionDifference | None:
        if not self.pair.compares_classes:
            return None
        pixels = int(self.confusion.sum())
        changes = self.confusion.copy()
        np.fill_diagonal(changes, 0)
        largest = np.argsort(-changes, axis=None, kind="stable")[:MAX_CLASS_CHANGES]
        listed = []
        for place in largest.tolist():
            before, after = divmod(place, CLASS_IDS)
            count = int(changes[before, after])
            if count:
                change = ClassChange(
                    before=self._class_name(before),
                    after=self._class_name(after),
                    pixels=count,
                    share=count / pixels,
                )
                listed.append(change)
        return PredictionDifference(pixels, int(changes.sum()), tuple(listed))

    def _class_name(self, number: int) -> str:
        names = self.pair.first.reader.class_names
        return f"class {number}" if names is None else names[number]

    def _score(self, score: str) -> ScoreDifference:
        sums = self.scores[score]
        return ScoreDifference(
            score=score,
            pixels=sums.pixels,
            means=sums.means,
            mean_difference=sums.mean_difference,
            rank_correlation=_mean(sums.correlations),
            highest_overlap=_mean(sums.overlaps),
            scales_differ=self.pair.scales_differ(score),
        )

    def _flagged(self, score: str) -> FlaggedDifference:
        sums = self.flagged[score]
        return FlaggedDifference(
            score=score,
            pixels=sums.counted,
            sides=(
                sums.side(0, self.pair.first.flag[score]),
                sums.side(1, self.pair.second.flag[score]),
            ),
        )


@dataclass(frozen=True)
class _Ranking:
    """By which number frames are ranked."""

    words: str
    score: str = ""
    flagged: bool = False

    @classmethod
    def of(cls, pair: MapsPair) -> _Ranking:
        """Return the ranking of a pair: pixels that only one flags, else the difference of the
        score that pages show first, else the share of changed classes.
        """
        if pair.first.flag:
            score = first_shown(pair.first.flag)
            return cls(f"pixels that only one folder flags by {score}", score, flagged=True)
        score = first_shown(pair.scores)
        if score:
            return cls(f"mean absolute difference of {score}", score)
        return cls("share of pixels whose class changed")

    def value(
        self,
        changed: float | None,
        mean_differences: Mapping[str, float],
        only_one: Mapping[str, int],
    ) -> float:
        """Return the number of a frame; 0 where it has none."""
        if self.flagged:
            return float(only_one[self.score])
        if self.score:
            return mean_differences.get(self.score, 0.0)
        return changed or 0.0


@dataclass
class _ScoreSums:
    """Sums of one score over frames."""

    pixels: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0])
    differences: float = 0.0
    # Sum and number of frames.
    correlations: list[float] = field(default_factory=lambda: [0.0, 0])
    overlaps: list[float] = field(default_factory=lambda: [0.0, 0])

    def add(self, pair: StoredPair, counted: Mask | None) -> float | None:
        """Add a frame; return the mean absolute difference in it, None without a pixel."""
        finite = pair.finite(counted)
        first, second = (values[finite].astype(np.float64) for values in pair.values)
        if not first.size:
            return None
        differences = float(np.abs(first - second).sum())
        self.pixels += first.size
        self.sums[0] += float(first.sum())
        self.sums[1] += float(second.sum())
        self.differences += differences
        stored_first, stored_second = (stored[finite] for stored in pair.stored)
        _add_to(self.correlations, rank_correlation(stored_first, stored_second))
        _add_to(self.overlaps, highest_overlap(stored_first, stored_second))
        return differences / first.size

    @property
    def means(self) -> tuple[float, float] | None:
        """The mean of each folder."""
        if not self.pixels:
            return None
        return self.sums[0] / self.pixels, self.sums[1] / self.pixels

    @property
    def mean_difference(self) -> float | None:
        """The mean absolute difference."""
        return self.differences / self.pixels if self.pixels else None


def _add_to(sums: list[float], value: float | None) -> None:
    """Add a number of a frame to its sum and to the number of frames that have one."""
    if value is not None:
        sums[0] += value
        sums[1] += 1


def _mean(sums: list[float]) -> float | None:
    total, frames = sums
    return total / frames if frames else None


@dataclass(frozen=True)
class FlaggedFrame:
    """The flagged regions of one score in one frame of both folders.

    Attributes:
        numbers: the number of each pixel's region in the baseline and in the other folder, 0 for
            none, ``[H, W]`` each.
    """

    numbers: tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]

    @property
    def regions(self) -> tuple[int, int]:
        """Number of regions of each folder."""
        return len(_region_numbers(self.numbers[0])), len(_region_numbers(self.numbers[1]))

    @property
    def met(self) -> tuple[int, int]:
        """Number of regions of each folder that share a pixel with one of the other."""
        first, second = self.numbers
        both = (first > 0) & (second > 0)
        return len(np.unique(first[both])), len(np.unique(second[both]))

    @property
    def alone(self) -> tuple[int, int]:
        """Number of regions of each folder that share no pixel with one of the other."""
        regions = self.regions
        met = self.met
        return regions[0] - met[0], regions[1] - met[1]

    @property
    def only_one(self) -> int:
        """Pixels that are flagged in one folder alone."""
        first, second = self.numbers
        return int(((first > 0) != (second > 0)).sum())

    def masks(self, side: int) -> tuple[Mask, Mask]:
        """Return the regions of a folder (0 is the baseline) that meet one of the other, and those
        that meet none, bool ``[H, W]`` each.
        """
        numbers = self.numbers[side]
        met = np.unique(numbers[self.numbers[1 - side] > 0])
        is_met = np.isin(numbers, met[met > 0])
        return is_met, (numbers > 0) & ~is_met


def _region_numbers(numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    return np.unique(numbers[numbers > 0])


def flag_frame(pair: MapsPair, maps: FrameMaps, score: str) -> FlaggedFrame:
    """Return what the threshold of each folder flags in a frame.

    A region consists of pixels that count in both folders, and has at least as many pixels as its
    threshold asks for.
    """
    first, second = maps.scores[score].values
    return FlaggedFrame(
        numbers=(
            _flagged_regions(pair.first, maps.frame.first, score, first, maps.counted),
            _flagged_regions(pair.second, maps.frame.second, score, second, maps.counted),
        )
    )


def _flagged_regions(
    maps: ComparedMaps,
    name: str,
    score: str,
    values: npt.NDArray[np.floating],
    counted: Mask | None,
) -> npt.NDArray[np.int32]:
    """Return the number of each pixel's flagged region in a frame of a folder, 0 for none."""
    threshold = maps.flag[score]
    # Levels within the frame are those of the folder's own mask, as they were calibrated.
    kept = maps.reader.kept(values.shape)
    prepared = threshold.prepared(values, partial(maps.reader.prediction_of, name), kept)
    numbers, boxes, _ = regions_of(prepared, threshold.value, counted)
    is_large = boxes[:, cv2.CC_STAT_AREA] >= threshold.smallest
    kept_numbers = np.where(is_large, np.arange(1, len(boxes) + 1), 0)
    with_background = np.concatenate([[0], kept_numbers]).astype(np.int32)
    return np.asarray(with_background[numbers])


class _FlaggedSums:
    """Sums of the flagged regions of one score over frames."""

    def __init__(self) -> None:
        self.counted = 0
        self.frames = [0, 0]
        self.pixels = [0, 0]
        self.regions = [0, 0]
        self.met = [0, 0]

    def add(self, frame: FlaggedFrame, counted: int) -> None:
        """Add a frame, with the number of its pixels that count."""
        self.counted += counted
        regions = frame.regions
        met = frame.met
        for side in (0, 1):
            self.frames[side] += regions[side] > 0
            self.pixels[side] += int((frame.numbers[side] > 0).sum())
            self.regions[side] += regions[side]
            self.met[side] += met[side]

    def side(self, number: int, threshold: Threshold) -> FlaggedSide:
        """Return the numbers of the baseline (0) or of the other folder (1)."""
        return FlaggedSide(
            threshold=threshold,
            frames=self.frames[number],
            pixels=self.pixels[number],
            regions=self.regions[number],
            met=self.met[number],
        )


def _count(counted: Mask | None, shape: tuple[int, ...]) -> int:
    """Return the number of pixels that count."""
    return int(np.prod(shape)) if counted is None else int(counted.sum())
