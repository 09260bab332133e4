"""What reviewers' verdicts say of alarms: precision, misses and shares with their intervals, where there is often no label at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from segunc.core.errors import InputError
from segunc.evaluation.evaluator import Gatherer, Result
from segunc.evaluation.labelled_frame import LabelledFrame
from segunc.evaluation.parts import ArrayPart, Forms, Metric, Numbers, higher, lower
from segunc.evaluation.resampling import NumberPath, Resampling
from segunc.maps.verdicts import GRAVEST, VERDICTS, Verdict, by_reviewer
from segunc.metrics.counting import Counts

_NO_PIXEL = np.zeros((0, 0), np.uint8)  # verdicts are of frames and need no label
_KINDS = tuple(VERDICTS)
_ALARMS = higher("precision", "alarms that are true"), higher("recall", "faults that an alarm found")
NO_NAME = "no name"


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
    metrics = (*_ALARMS, lower("false_alarms", "false alarms where nothing is"), Metric("share.*"))
    undefined = "no verdict that it is a share of"

    def __init__(self, section: NumberPath, verdicts: Mapping[str, str]) -> None:
        rows = np.eye(len(_KINDS), dtype=np.int64)
        super().__init__(section, {frame: rows[_KINDS.index(verdict)] for frame, verdict in verdicts.items()})

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        n = dict(zip(_KINDS, counts.tolist(), strict=True))
        others = {"precision": ("true-alarm", "false-alarm"), "recall": ("true-alarm", "missed")}
        others["false_alarms"] = "false-alarm", "nothing-wrong"
        numbers: Numbers = {(name,): _share(n[kind], n[other]) for name, (kind, other) in others.items()}
        return numbers | {("share", kind): _share(number, sum(n.values()) - number) for kind, number in n.items()}


class JudgedRegions(_Judged):
    """Verdicts of one reviewer on regions; counts ``[2, 5]``, what a threshold flagged and what was drawn by hand, in the order of
    :data:`GRAVEST`, then in the first row the frames.

    ``precision``: of the flagged regions that were called true or false, the true ones. ``recall``: of these true ones and of what was
    missed, drawn by hand or flagged in a part that is not enough, the true ones. ``missed_per_frame``: over the frames with a region.
    """

    metrics = (*_ALARMS, lower("missed_per_frame", "missed regions a frame"))
    undefined = "no verdict on a region that it is a share of"

    def __init__(self, section: NumberPath, verdicts: Sequence[Verdict]) -> None:
        by_frame: dict[str, Counts] = {}
        for verdict in verdicts:
            if verdict.region is not None and verdict.verdict:
                counts = by_frame.setdefault(verdict.frame, np.zeros((2, len(GRAVEST) + 1), np.int64))
                counts[int(verdict.region.score is None), GRAVEST.index(verdict.verdict)] += 1
                counts[0, -1] = 1
        super().__init__(section, by_frame)

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        missed, true, false = (counts[:, GRAVEST.index(kind)] for kind in ("missed", "true-alarm", "false-alarm"))
        return {
            ("precision",): _share(true[0], false[0]),
            ("recall",): _share(true[0], missed.sum()),
            ("missed_per_frame",): int(missed.sum()) / int(counts[0, -1]) if counts[0, -1] else None,
        }


METRICS = *JudgedFrames.metrics, *JudgedRegions.metrics


def _share(these: int, others: int) -> float | None:
    return int(these) / int(these + others) if these + others else None


def evaluate_verdicts(
    verdicts: Sequence[Verdict], frames: Sequence[str], resampling: Resampling, unit: Callable[[str], str]
) -> tuple[Result, Gatherer]:
    """Return the numbers of verdicts on ``frames``, of each reviewer and of all together, and the counts behind them.

    The verdict of all together on a frame is the one on which all agree who gave one; ``unit`` is as of :class:`Gatherer`.
    """
    reviewers = by_reviewer(verdicts)
    if not reviewers:
        raise InputError("the files hold notes and no verdict", hint="judge frames on the review page, then export")
    by_frame: dict[str, set[str]] = {}
    for of_frames in reviewers.values():
        for frame, verdict in of_frames.items():
            by_frame.setdefault(frame, set()).add(verdict)
    agreed = {frame: next(iter(kinds)) for frame, kinds in by_frame.items() if len(kinds) == 1}
    parts: list[_Judged] = [JudgedFrames(("verdicts", "together"), agreed)]
    counts: dict[str, Any] = {"frames": len(frames), "judged_frames": len(by_frame)}
    counts |= {"disagreed_frames": len(by_frame) - len(agreed), "verdicts": {}}
    for reviewer, of_frames in reviewers.items():
        name = reviewer or NO_NAME
        section, theirs = ("verdicts", "reviewers", name), [v for v in verdicts if v.reviewer == reviewer]
        parts += [JudgedFrames(section, of_frames), JudgedRegions((*section, "regions"), theirs)]
        counts["verdicts"][name] = {"frames": len(of_frames), "regions": sum(v.region is not None for v in theirs)}
    gatherer = Gatherer(parts, resampling, unit)
    for frame in frames:
        if frame in by_frame:
            gatherer.add(LabelledFrame(frame, {}, anomaly=_NO_PIXEL))
    counts["resampled_units"] = len(gatherer.units)
    result: Result = {"counts": counts, "scores": {}, "left_out": [], "reasons": {}, "intervals": {}}
    gatherer.place_numbers(result)
    gatherer.place_intervals(result)
    return result, gatherer
