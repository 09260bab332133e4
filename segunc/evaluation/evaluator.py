"""Parts with their sums and bootstrap replicates: what both passes of an evaluation gather."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.data.labels import IGNORE, LabelMap
from segunc.evaluation.labelled_frame import CONFIDENCE, LabelledFrame
from segunc.evaluation.parts import (
    PARTS,
    PROTOCOLS,
    Part,
    Path,
    Protocol,
)
from segunc.evaluation.resampling import Replicates, Resampling, Tally, replicate_numbers
from segunc.metrics.counting import NO_ANOMALY

Result = dict[str, Any]
"""The content of ``metrics.json``."""


class Gatherer:
    """Sums the counts of parts over frames; a frame is counted by all parts or by none.

    Args:
        parts: what is counted.
        resampling: of the intervals.
        unit: from a frame's name to the unit that is resampled; None resamples single frames.
    """

    def __init__(
        self, parts: Sequence[Part[Any]], resampling: Resampling, unit: Callable[[str], str] | None = None
    ) -> None:
        self.parts, self.resampling = tuple(parts), resampling
        self.unit = unit or (lambda name: name)
        self.tallies = [Tally(part, resampling) for part in self.parts]
        self.counted = [0] * len(self.parts)
        self.forms: dict[str, str] = {}
        self.units: set[str] = set()

    def add(self, frame: LabelledFrame) -> None:
        """Count a frame.

        Raises:
            InputError: a part cannot count it, or a map is stored in another form than in the frames before; then
                nothing of the frame is counted.
        """
        counts = [part.count(frame) for part in self.parts]
        forms = dict(self.forms)
        for name in frame.stored:
            form = frame.form(name)
            if forms.setdefault(name, form) != form:
                raise InputError(f"the map '{name}' is stored as {form}", f"{forms[name]}, as in the frames before it")
        unit = self.unit(frame.name)
        self.forms = forms
        self.units.add(unit)
        for index, part_counts in enumerate(counts):
            if part_counts is not None:
                self.tallies[index].add(part_counts, unit)
                self.counted[index] += 1

    def merge(self, other: Gatherer) -> None:
        """Add the counts of other frames; the sums are those of one gatherer over all frames, to the last bit.

        Raises:
            InputError: the two do not gather the same, hold a resampled unit in common, or maps of different forms.
        """
        if [p.section for p in self.parts] != [p.section for p in other.parts]:
            raise InputError("two evaluations of different scores or protocols", "the same in both")
        if self.resampling != other.resampling:
            raise InputError(f"intervals by {self.resampling} and {other.resampling}", "the same in both")
        common = self.units & other.units
        if common and self.resampling.replicates:
            raise InputError(f"'{min(common)}' is in both shards", "each resampled unit in one shard")
        for name in self.forms.keys() & other.forms.keys():
            if self.forms[name] != other.forms[name]:
                raise InputError(f"the map '{name}' as {other.forms[name]}", f"{self.forms[name]}, as in both shards")
        self.forms |= other.forms
        self.units |= other.units
        for mine, theirs in zip(self.tallies, other.tallies, strict=True):
            mine.merge(theirs)
        self.counted = [a + b for a, b in zip(self.counted, other.counted, strict=True)]

    def counts(self, kind: type[Part[Any]], section: Path) -> Any:
        """The summed counts of the part of a kind and section; None where no frame was counted."""
        found = [
            t for p, t in zip(self.parts, self.tallies, strict=True) if isinstance(p, kind) and p.section == section
        ]
        return found[0].total if found else None

    def place_numbers(
        self, result: Result, reasons: dict[str, str], incomplete: Callable[[Part[Any], int], str | None]
    ) -> None:
        """Put every number into a result, None with its reason where there is none.

        Args:
            result: is filled.
            reasons: dotted path -> reason, is filled.
            incomplete: why a part that so many frames were counted by has no numbers, or None.
        """
        for part, tally, counted in zip(self.parts, self.tallies, self.counted, strict=True):
            why = incomplete(part, counted)
            numbers = dict.fromkeys(part.names)
            if tally.total is not None and not why:
                numbers |= part.numbers(tally.total, self.forms)
            for name in part.names:
                path = (*part.section, *name)
                _place(result, path, numbers[name])
                if numbers[name] is None:
                    reasons[".".join(path)] = why or part.why(tally.total, name)

    def replicates(self, incomplete: Callable[[Part[Any], int], str | None]) -> Replicates:
        """The numbers of every bootstrap replicate; no paths without resampling."""
        rows: dict[str, npt.NDArray[np.float64]] = {}
        for part, tally, counted in zip(self.parts, self.tallies, self.counted, strict=True):
            if not incomplete(part, counted):
                columns = replicate_numbers(partial(part.numbers, forms=self.forms), tally)
                rows |= {".".join((*part.section, *n)): row for n, row in columns.items() if n not in part.point}
        values = np.stack([*rows.values()]) if rows else np.zeros((0, self.resampling.replicates))
        return Replicates(tuple(rows), values, self.resampling.seed, tuple(sorted(self.units)))


def _place(result: Result, path: Path, value: float | None) -> None:
    for key in path[:-1]:
        result = result.setdefault(key, {})
    result[path[-1]] = value


# Gather the counts of a whole run, frame by frame in constant memory, and turn them into one result.
#
# The evaluator sees arrays only: whether they come from files or straight from a network, the stored form of each score
# is what is counted, so both ways give the same numbers to the last digit.

Array = npt.NDArray[Any]


class Evaluator:
    """Counts frames one by one; :meth:`result` gives the numbers.

    A frame is counted whole or not at all, so all scores are compared over the same pixels. Frames that cannot be
    counted are listed in the result with the reason, and the run goes on.

    Args:
        score_names: the scores to evaluate; every frame with an anomaly label must bring all of them.
        classes: the label map, or the class names by train id; None where no class labels are evaluated.
        protocols: of the anomaly labels; none where no anomaly labels are evaluated.
        unit_codes: scores whose uint16 maps hold this tool's codes; those of other tools are linear. None for our own maps.
        resampling: of the intervals; None makes none.
        unit: from a frame's name to the unit that is resampled; None resamples single frames.

    Raises:
        InputError: a score or a class is named twice, a protocol is unknown, or there is nothing to evaluate.
    """

    def __init__(
        self,
        score_names: Sequence[str],
        classes: LabelMap | Sequence[str] | None,
        *,
        protocols: Sequence[Protocol] = ("pooled",),
        unit_codes: Collection[str] | None = None,
        resampling: Resampling | None = None,
        unit: Callable[[str], str] | None = None,
    ) -> None:
        self.score_names = tuple(score_names)
        self.classes = tuple(classes.classes if isinstance(classes, LabelMap) else classes or ())
        for kind, names in (("score", self.score_names), ("class", self.classes)):
            if len(set(names)) != len(names):
                raise InputError(f"the {kind} names {', '.join(names)}", "each name once", "rename one of them")
        unknown = [name for name in protocols if name not in PROTOCOLS]
        if unknown:
            raise InputError(f"protocol '{unknown[0]}'", f"one of {', '.join(PROTOCOLS)}", "check the spelling")
        if not (self.score_names and protocols) and not self.classes:
            raise InputError("neither scores nor classes to evaluate", "at least one of them")
        self.unit_codes = unit_codes
        builders = [PARTS[name] for name in PARTS]
        parts = [part for build in builders for part in build(self.score_names, self.classes, protocols)]
        self.gatherer = Gatherer(parts, resampling or Resampling(0), unit)
        self._anomaly_pixels = np.zeros(3, np.int64)
        self._label_pixels = np.zeros(2, np.int64)
        self._frames = dict.fromkeys(("seen", "scored", "anomaly", "both", "labelled"), 0)
        self._left_out: list[dict[str, str]] = []

    def update(
        self,
        frame: str,
        stored: Mapping[str, Array],
        prediction: npt.NDArray[np.uint8] | None = None,
        mean_probabilities: npt.NDArray[np.float32] | None = None,
        labels: npt.NDArray[np.uint8] | None = None,
        anomaly: npt.NDArray[np.uint8] | None = None,
    ) -> bool:
        """Count a frame.

        Args:
            frame: its name.
            stored: score name -> map ``[H, W]`` in its stored form (uint16 codes, or floats, taken as float16).
            prediction: class ids uint8 ``[H, W]``.
            mean_probabilities: float32 ``[C, H, W]``, mean over the draws.
            labels: train ids uint8 ``[H, W]``, 255 ignored.
            anomaly: uint8 ``[H, W]``, 0 normal, 1 anomaly, 255 ignored.

        Returns:
            whether the frame was counted; where not, the result names it and says why.
        """
        labels = labels if self.classes else None
        used = {name: stored[name] for name in (*self.score_names, CONFIDENCE) if name in stored}
        try:
            maps = LabelledFrame(frame, used, prediction, mean_probabilities, labels, anomaly, self.unit_codes)
            self.gatherer.add(maps)
        except InputError as error:
            self.leave_out(frame, str(error))
            return False
        self._count_pixels(maps)
        return True

    def leave_out(self, frame: str, reason: str) -> None:
        """Note a frame that cannot be counted, one that could not be read for instance."""
        self._frames["seen"] += 1
        self._left_out.append({"frame": frame, "reason": reason})

    def merge(self, other: Evaluator) -> None:
        """Add the counts of another evaluator with the same scores, classes and resampling over other frames.

        The numbers are then those of one evaluator over all the frames, to the last bit. A resampled unit must lie in
        one of both.

        Raises:
            InputError: the two do not evaluate the same, hold a unit in common, or hold maps of different forms.
        """
        if self.classes != other.classes:
            raise InputError("two evaluations of different classes", "the same in both")
        self.gatherer.merge(other.gatherer)
        self._anomaly_pixels += other._anomaly_pixels
        self._label_pixels += other._label_pixels
        self._frames = {key: value + other._frames[key] for key, value in self._frames.items()}
        self._left_out += other._left_out

    def result(self) -> Result:
        """The numbers of all frames so far, in the form of ``metrics.json``.

        Every number that cannot be made is None, and ``reasons`` says why under its dotted path.

        Raises:
            InputError: no frame could be counted.
        """
        if self._frames["scored"] == 0:
            first = f" (first {self._left_out[0]['frame']}: {self._left_out[0]['reason']})" if self._left_out else ""
            raise InputError(
                f"none of {self._frames['seen']} frames could be scored{first}",
                "maps and labels of the same frames",
                "check that the label folder belongs to these maps",
            )
        result: Result = {"scores": {}, "segmentation": {}, "calibration": {}, "selective": {}}
        reasons: dict[str, str] = {}
        self.gatherer.place_numbers(result, reasons, self._incomplete)
        result["segmentation"].setdefault("per_class", {})
        result["intervals"] = self.replicates().intervals()
        result["reasons"] = reasons
        result["counts"] = self._counts()
        result["left_out"] = list(self._left_out)
        return result

    def replicates(self) -> Replicates:
        """The numbers of every bootstrap replicate; no paths without resampling."""
        return self.gatherer.replicates(self._incomplete)

    def _count_pixels(self, frame: LabelledFrame) -> None:
        self._frames["seen"] += 1
        self._frames["scored"] += 1
        self._frames["anomaly"] += frame.anomaly is not None
        self._frames["both"] += bool(frame.anomaly_pixels[0] and frame.anomaly_pixels[1])
        self._anomaly_pixels += frame.anomaly_pixels
        if frame.labels is not None and frame.prediction is not None:
            self._frames["labelled"] += 1
            ignored = np.count_nonzero(frame.labels == IGNORE)
            self._label_pixels += (frame.labels.size - ignored, ignored)

    def _incomplete(self, part: Part[Any], counted: int) -> str | None:
        """Why a part has no numbers whatever its counts are."""
        if part.needs == "class" and not self.classes:
            return "no class labels were given"
        labelled = self._frames["anomaly" if part.needs == "anomaly" else "labelled"]
        if 0 < counted < labelled:
            return f"only {counted} of {labelled} frames with a label hold what it needs"
        if part.needs == "anomaly" and labelled and not self._anomaly_pixels[1] and self._anomaly_pixels[2]:
            return f"{NO_ANOMALY}; {self._anomaly_pixels[2]} pixels are ignored"
        return None

    def _counts(self) -> dict[str, int]:
        normal, anomaly, ignored = (int(n) for n in self._anomaly_pixels)
        return {
            "frames": self._frames["seen"],
            "frames_scored": self._frames["scored"],
            "frames_left_out": self._frames["seen"] - self._frames["scored"],
            "anomaly_frames": self._frames["anomaly"],
            "anomaly_frames_with_both_classes": self._frames["both"],
            "pixels": normal + anomaly,
            "anomaly_pixels": anomaly,
            "normal_pixels": normal,
            "ignored_pixels": ignored,
            "labelled_frames": self._frames["labelled"],
            "labelled_pixels": int(self._label_pixels[0]),
            "ignored_label_pixels": int(self._label_pixels[1]),
            "resampled_units": len(self.gatherer.units),
        }
