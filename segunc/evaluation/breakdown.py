"""Anomaly numbers of kinds of objects and of groups of frames: a number of the whole pool is an average over its largest objects."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import numpy as np

from segunc.core.errors import InputError
from segunc.evaluation import parts
from segunc.evaluation.labelled_frame import LabelledFrame
from segunc.evaluation.parts import COARSE_KEYS, NO_ANOMALY_LABEL, ArrayPart, Forms, Numbers, Pooled
from segunc.evaluation.resampling import NumberPath
from segunc.metrics.counting import NO_NORMAL, Counts
from segunc.metrics.objects import NO_OBJECT, OBJECT_NUMBERS, ObjectBins, object_counts, object_numbers

OTHER = "other"
"""The group of frames whose names a pattern does not match, or a list does not hold."""
MAX_GROUPS = 100


class ByObject(ArrayPart):
    """The pooled numbers of the objects of each bin against all normal pixels, and the share of them that is found; see
    :mod:`segunc.metrics.objects`. Its counts are ``[1 + 2 B, K]`` by key or bin: normal pixels, then those of ``object_counts``."""

    needs, lacks = "anomaly", NO_ANOMALY_LABEL
    metrics = (*parts.AREAS, parts.higher("found", "found"), *map(parts.Metric, ("objects", "pixels")))
    coarse = COARSE_KEYS

    def __init__(self, score: str, bins: ObjectBins) -> None:
        self.score, self.bins, self.section = score, bins, ("scores", score, bins.kind)
        self.names = tuple((name, number) for name in bins.names for number in OBJECT_NUMBERS)
        self.rows = 1 + 2 * len(bins.names)
        self.point = frozenset(name for name in self.names if name[1] in ("objects", "pixels"))

    def count(self, frame: LabelledFrame) -> Counts | None:
        counts, objects = frame.anomaly_counts(self.score), frame.objects
        if counts is None or objects is None:
            return None
        keys, size = frame.keys(self.score, objects.number > 0)
        return np.concatenate([counts[:1], object_counts(keys, objects, self.bins, size)])

    def numbers(self, counts: Counts, forms: Forms) -> Numbers:
        rows = object_numbers(counts[0], counts[1:])
        return {
            (name, key): value for name, row in zip(self.bins.names, rows, strict=True) for key, value in row.items()
        }

    def why(self, counts: Counts, name: NumberPath) -> str:
        return NO_OBJECT if counts[0].any() else NO_NORMAL


class PooledGroup(Pooled):
    """The pooled numbers of the frames of one group."""

    def __init__(self, score: str, group: str, members: Collection[str]) -> None:
        super().__init__(score)
        self.group, self.members, self.section = group, members, ("scores", score, "groups", group, "pooled")

    def count(self, frame: LabelledFrame) -> Counts | None:
        return super().count(frame) if frame.name in self.members else None


def group_frames(how: str | Mapping[str, str], frames: Collection[str]) -> dict[str, set[str]]:
    """Return the frames of each group by its name, :data:`OTHER` last.

    Args:
        how: a regular expression, whose match in the name of a frame (its first group, where it has one) names the group, or a
            mapping from frames to groups.
        frames: those with an anomaly label.

    Raises:
        InputError: no regular expression, no frame belongs to a group, or there are more than :data:`MAX_GROUPS` groups.
    """
    if isinstance(how, str):
        try:
            pattern = re.compile(how)
        except re.error as error:
            message = f"--groups '{how}' is neither a CSV file nor a regular expression ({error})"
            raise InputError(message, hint="--groups '^[a-z_]+' takes the letters before a number") from error
        matches = {frame: pattern.search(frame) for frame in frames}
        group_of = {frame: match[min(pattern.groups, 1)] or OTHER for frame, match in matches.items() if match}
    else:
        group_of = {frame: how[frame] for frame in frames if frame in how}
    groups: dict[str, set[str]] = {name: set() for name in sorted({*group_of.values()} - {OTHER})}
    for frame in frames:
        groups.setdefault(group_of.get(frame, OTHER), set()).add(frame)
    if not group_of or len(groups) > MAX_GROUPS:
        fault = (
            f"makes {len(groups)} groups, more than {MAX_GROUPS}"
            if group_of
            else "names no frame with an anomaly label"
        )
        example = f"; a frame's name is {min(frames)}" if frames else ""
        raise InputError(f"--groups {how if isinstance(how, str) else 'CSV'} {fault}{example}")
    return groups
