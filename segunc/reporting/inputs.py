"""What a report is made of, each checked before anything is written: all of it belongs to one model
and comes of this version.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segunc.core.bounds import PositiveInt, Settings, from_plain
from segunc.core.errors import InputError, shortened
from segunc.core.files import file_sha256, read_result
from segunc.core.patterns import Searcher, pattern_of_file
from segunc.decisions.guarantee import model_of, read_threshold
from segunc.evaluation.resampling import load_results
from segunc.maps.labelled import open_maps
from segunc.maps.manifest import tool_version
from segunc.posteriors.model import load_model
from segunc.training.config import read_config

GIVEN = ("runs", "maps", "threshold", "monitor", "latency", "domain")  # what a report is made of
_MONITOR = ("frames", "martingale", "level", "fired", "risk", "statistic", "threshold")
_LATENCY = (
    "what",
    "hardware",
    "size",
    "draws",
    "frames",
    "first",
    "p50",
    "p95",
    "p99",
    "base_sha256",
    "posterior_sha256",
)


@dataclass(frozen=True)
class Domain(Settings):
    """What a model is meant for, in its operator's words, and the cells of its operating domain."""

    intended_use: str = ""
    users: str = ""
    out_of_scope: tuple[str, ...] = ()
    affected: str = ""  # whom an error can harm, and how
    limits: tuple[str, ...] = ()
    independence: str = ""  # why test frames say something that training frames do not
    label_quality: str = ""  # who labelled the test frames, and how the labels were checked
    approvers: tuple[str, ...] = ()  # roles that have to approve the report
    axes: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict
    )  # condition -> its value -> pattern in the names of frames
    minimum: PositiveInt = 30  # frames that a cell needs; one with fewer is a gap

    def places(self, frames: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the cell of each frame that has one: of each axis the first value that is found in
        the frame's name.
        """
        searches = {}
        for axis, values in self.axes.items():
            searches[axis] = {
                value: axis_pattern(axis, pattern, "the domain")
                for value, pattern in values.items()
            }
        placed = {}
        for name in frames:
            matches = [
                [value for value, pattern in values.items() if pattern.search(name)]
                for values in searches.values()
            ]
            if matches and all(matches):
                placed[name] = tuple(values[0] for values in matches)
        return placed


def read_domain(path: Path) -> Domain:
    """Return the domain of a YAML file."""
    domain = from_plain(Domain, read_config(path), str(path))
    for axis, values in domain.axes.items():
        for pattern in values.values():
            axis_pattern(axis, pattern, str(path))
    return domain


def axis_pattern(axis: str, pattern: str, source: str) -> Searcher:
    """Return the search of a condition in a frame's name; InputError, which names the ``source``,
    where it is no regular expression."""
    return pattern_of_file(pattern, f"{source}: '{shortened(pattern)}' of the axis '{axis}'")


class Inputs:
    """Everything a report is made of, from the paths that are ``given`` by the names in
    :data:`GIVEN`; what was not is empty or None. InputError where something is damaged, of another
    model or version, or nothing was given.
    """

    def __init__(self, folder: Path, given: Mapping[str, Sequence[Path]]) -> None:
        if not any(given.values()):
            raise InputError("there is nothing to report of the model", hint="--runs metrics.json")
        paths = [path for name, those in given.items() for path in those if name != "maps"]
        self.files = {_name_among(path, paths): path for path in paths}
        self.domain = next(map(read_domain, given["domain"]), Domain())
        results, self.maps = (
            load_results(given["runs"]),
            [open_maps(path) for path in given["maps"]],
        )
        self.thresholds = {
            n: read_threshold(p) for n, p in self.files.items() if p in given["threshold"]
        }
        self.monitor = next(
            (read_result(path, "monitor", _MONITOR, "segunc monitor") for path in given["monitor"]),
            None,
        )
        self.latency = [_read_latency(path) for path in given["latency"]]
        self.folder, self.model = folder, load_model(folder)
        for run in results:
            if (version := run.content.get("run", {}).get("segunc")) != tool_version():
                made = (
                    f"by segunc {version}"
                    if version
                    else "by another tool, or a segunc that recorded no version"
                )
                raise InputError(
                    f"{run.path} was made {made}, not by {tool_version()}", hint="evaluate again"
                )
        records = [
            *((run.path, run.content["run"]) for run in results),
            *zip(given["latency"], self.latency, strict=True),
        ]
        records += [(reader.folder, (reader.manifest or {}).get("run", {})) for reader in self.maps]
        models = [
            *((path, model_of(record)) for path, record in records),
            *((name, of.model) for name, of in self.thresholds.items()),
        ]
        ours = model_of(
            {"base_sha256": self.model.sha256, "posterior_sha256": self.model.posterior_sha256}
        )
        for path, theirs in models:
            if theirs != ours:
                what = (
                    f"is of another model than that in {folder}" if theirs else "records no model"
                )
                raise InputError(
                    f"{path} {what}", hint="one model a report, in files of this version of segunc"
                )
        hashes = {file_sha256(self.files[name]) for name in self.thresholds}
        if self.monitor and hashes and self.monitor["threshold"]["sha256"] not in hashes:
            raise InputError(
                f"{given['monitor'][0]} watches another threshold than those of this report",
                hint="monitor again",
            )
        # Clean images first: what stands for the model is measured on them.
        self.results = sorted(results, key=lambda run: bool(run.content["run"].get("corruption")))


def _name_among(path: Path, paths: Sequence[Path]) -> str:
    """Return the path of a file below the folder that holds all files of its name: no place of the
    machine, and another for each of them.
    """
    common = os.path.commonpath(
        [other.parent.resolve() for other in paths if other.name == path.name]
    )
    return (path.parent.resolve() / path.name).relative_to(common).as_posix()


def _read_latency(path: Path) -> Mapping[str, Any]:
    content = read_result(path, "latency", _LATENCY, "tools/latency.py")
    seconds = [content[name] for name in ("p50", "p95", "p99")]
    if not all(
        isinstance(value, int | float) and value > 0 for value in seconds
    ) or seconds != sorted(seconds):
        raise InputError(
            f"{path}: the percentiles {seconds} are no seconds that rise", hint="measure again"
        )
    return content
