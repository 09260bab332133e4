"""Evaluate reviewers' verdicts on alarms, which need no labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC
from typing import Any

import numpy as np

from segunc.core.errors import InputError
from segunc.evaluation.evaluator import Gatherer, Result, image_sums
from segunc.evaluation.flagged import JudgedFrames, JudgedRegions, JudgedTogether
from segunc.evaluation.parts import LabelledFrame
from segunc.evaluation.resampling import Resampling
from segunc.maps.verdicts import Verdict, agreements, by_reviewer, date_of, region_agreements

NO_NAME = "no name"  # of a reviewer who gave none
_JudgedPart = JudgedTogether | JudgedFrames | JudgedRegions


def evaluate_verdicts(
    verdicts: Sequence[Verdict],
    frames: Sequence[str],
    resampling: Resampling,
    unit: Callable[[str], str],
    stamp_of: Callable[[str], str | None] = lambda frame: None,
    video: str | None = None,
) -> tuple[Result, Gatherer]:
    """Return the numbers of verdicts on ``frames``, and the counts behind them.

    There are numbers of each reviewer and of all together. Where reviewers disagree on frames, the
    numbers of all together are bounds, see :class:`JudgedTogether`; ``unit`` is as of
    :class:`Gatherer`. ``stamp_of`` returns the hash of a frame's image, None where it is not known;
    ``video`` is the hash of the video that such frames are of.
    """
    reviewers = by_reviewer(verdicts)
    if not reviewers:
        raise InputError(
            "the files hold notes and no verdict",
            hint="judge frames on the review page, then export",
        )
    verdicts_of_frame: dict[str, list[str]] = {}
    for judged in reviewers.values():
        for frame, verdict in judged.items():
            verdicts_of_frame.setdefault(frame, []).append(verdict)
    parts: list[_JudgedPart] = [JudgedTogether(("verdicts", "together"), verdicts_of_frame)]
    reviewer_counts: dict[str, dict[str, Any]] = {}
    for reviewer, judged in reviewers.items():
        name = reviewer or NO_NAME
        theirs = [verdict for verdict in verdicts if verdict.reviewer == reviewer]
        parts += _parts_of_reviewer(name, judged, theirs)
        reviewer_counts[name] = _reviewer_counts(judged, theirs)
    gatherer = _gathered(parts, frames, verdicts_of_frame, resampling, unit)
    gatherer.images = {frame: stamp_of(frame) for frame in frames if frame in verdicts_of_frame}
    counts = _frame_counts(frames, verdicts_of_frame)
    counts |= image_sums({frame: stamp or video for frame, stamp in gatherer.images.items()})
    counts["agreement"] = [asdict(pair) for pair in agreements(verdicts)]
    counts["region_agreement"] = [asdict(pair) for pair in region_agreements(verdicts)]
    counts["verdicts"] = reviewer_counts
    counts["resampled_units"] = len(gatherer.units)
    counts["rests_on"] = _rests_on(parts, gatherer)
    result: Result = {
        "counts": counts,
        "scores": {},
        "left_out": [],
        "reasons": {},
        "intervals": {},
    }
    gatherer.place_numbers(result)
    gatherer.place_intervals(result)
    return result, gatherer


def _parts_of_reviewer(
    name: str, judged: Mapping[str, str], verdicts: Sequence[Verdict]
) -> list[_JudgedPart]:
    """Return the parts of one reviewer's verdicts on frames (``judged``) and on regions."""
    section = ("verdicts", "reviewers", name)
    return [JudgedFrames(section, judged), JudgedRegions((*section, "regions"), verdicts)]


def _reviewer_counts(judged: Mapping[str, str], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return what one reviewer judged, and when.

    ``frames``, of these ``by_regions`` (frames with verdicts on regions alone), ``regions``, and
    the dates of the ``first`` and the ``last`` verdict in UTC, where verdicts have dates.
    """
    judged_as_wholes = {
        verdict.frame for verdict in verdicts if verdict.verdict and verdict.region is None
    }
    counts: dict[str, Any] = {
        "frames": len(judged),
        "by_regions": len(judged.keys() - judged_as_wholes),
        "regions": sum(verdict.region is not None for verdict in verdicts),
    }
    dates = []
    for verdict in verdicts:
        date = date_of(verdict)
        if date is not None:
            dates.append(date.astimezone(UTC))
    if dates:
        counts["first"] = min(dates).isoformat(timespec="seconds")
        counts["last"] = max(dates).isoformat(timespec="seconds")
    return counts


def _frame_counts(
    frames: Sequence[str], verdicts_of_frame: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return how many frames there are, were judged, by several reviewers, and in disagreement."""
    several = 0
    disagreed = 0
    for verdicts in verdicts_of_frame.values():
        several += len(verdicts) > 1
        disagreed += len({*verdicts}) > 1
    return {
        "frames": len(frames),
        "judged_frames": len(verdicts_of_frame),
        "judged_by_several": several,
        "disagreed_frames": disagreed,
    }


def _gathered(
    parts: Sequence[_JudgedPart],
    frames: Sequence[str],
    verdicts_of_frame: Mapping[str, Sequence[str]],
    resampling: Resampling,
    unit: Callable[[str], str],
) -> Gatherer:
    """Count the judged frames by all parts."""
    gatherer = Gatherer(parts, resampling, unit)
    no_label = np.zeros((0, 0), np.uint8)  # a frame must have a label, and verdicts need none
    for frame in frames:
        if frame in verdicts_of_frame:
            gatherer.add(LabelledFrame(frame, {}, anomaly=no_label))
    return gatherer


def _rests_on(parts: Sequence[_JudgedPart], gatherer: Gatherer) -> dict[str, list[int]]:
    """Return of each number, by its dotted path, the fewest and the most frames or regions that it
    is a share of.
    """
    rests_on: dict[str, list[int]] = {}
    for part, tally in zip(parts, gatherer.tallies, strict=True):
        if tally.total is None:
            continue
        for number, bounds in part.rests_on(tally.total).items():
            rests_on[".".join((*part.section, *number))] = bounds
    return rests_on
