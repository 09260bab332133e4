"""What a report is made of, each checked before anything is written: all of it belongs to one model
and comes of this version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segunc.core.bounds import PositiveInt, Settings, from_plain
from segunc.core.errors import InputError, shortened
from segunc.core.files import file_sha256, has_seal, note_without_seal, read_result
from segunc.core.patterns import Searcher, pattern_of_file
from segunc.core.places import names_apart, without_place
from segunc.core.version import release_of, tool_version
from segunc.decisions.guarantee import (
    GuaranteedThreshold,
    fitted_of,
    model_of,
    read_threshold,
)
from segunc.evaluation.comparison import FITTED_WORDS
from segunc.evaluation.resampling import EvaluationResult, load_results
from segunc.maps.labelled import open_maps
from segunc.maps.reader import MapsReader
from segunc.posteriors.model import load_model
from segunc.training.config import read_config

GIVEN = ("runs", "maps", "threshold", "monitor", "latency", "domain")  # what a report is made of
_SEALED = ("runs", "threshold", "monitor")  # kinds of files that hold a hash of themselves
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
    # condition -> its value -> pattern in the names of frames
    axes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    minimum: PositiveInt = 30  # frames that a cell needs; one with fewer is a gap

    def places(self, frames: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Return the cell of each frame that has one: of each axis the first value that is found in
        the frame's name.
        """
        searches = self._searches()
        placed = {}
        for name in frames:
            values = [_first_value(patterns, name) for patterns in searches]
            cell = tuple(value for value in values if value is not None)
            if cell and len(cell) == len(searches):
                placed[name] = cell
        return placed

    def _searches(self) -> list[dict[str, Searcher]]:
        """Return the search of each value in a frame's name, by axis."""
        searches = []
        for axis, values in self.axes.items():
            of_axis = {}
            for value, pattern in values.items():
                of_axis[value] = axis_pattern(axis, pattern, "the domain")
            searches.append(of_axis)
        return searches


def _first_value(values: Mapping[str, Searcher], name: str) -> str | None:
    """Return the first value of an axis that is found in a frame's name."""
    matches = [value for value, pattern in values.items() if pattern.search(name)]
    return matches[0] if matches else None


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
    """Everything a report is made of; what was not given is empty or None.

    Args:
        folder: of the model.
        given: the paths of each kind in :data:`GIVEN`.
        source: from which the model was imported, such as ``hf:NAME``; empty for a folder that the
            user named.

    Raises:
        InputError: something is damaged, of another model or version, or nothing was given.
    """

    def __init__(self, folder: Path, given: Mapping[str, Sequence[Path]], source: str = "") -> None:
        if not any(given.values()):
            raise InputError("there is nothing to report of the model", hint="--runs metrics.json")
        paths: list[Path] = []
        for kind, of_kind in given.items():
            if kind != "maps":
                paths.extend(of_kind)
        self.files = names_apart(paths)
        self.domain = read_domain(given["domain"][0]) if given["domain"] else Domain()
        results = load_results(given["runs"])
        self.maps = [open_maps(path) for path in given["maps"]]
        self.thresholds: dict[str, GuaranteedThreshold] = {}
        self.threshold_hashes: dict[str, str] = {}
        for name, path in self.files.items():
            if path in given["threshold"]:
                self.thresholds[name] = read_threshold(path)
                self.threshold_hashes[name] = file_sha256(path)
        self.monitor = _read_monitor(given["monitor"][0]) if given["monitor"] else None
        self.latency = [read_latency(path) for path in given["latency"]]
        self.folder = folder
        # The folder of a source is an entry of the cache, whose name says nothing to a reader.
        self.name = without_place(source) if source else folder.resolve().name
        self.shown = self.name if source else f"the model in {folder}"
        self.model = load_model(folder)
        features = self.model.attachments.get("features")
        if features is not None:
            features.check_tensors(folder)
        _check_versions(results)
        self._check_models(results, given["latency"], given["monitor"])
        self._check_monitor(given["monitor"])
        self.unsealed = self._without_hash(given)
        # Clean images first: what stands for the model is measured on them.
        self.results = sorted(results, key=lambda run: bool(run.content["run"].get("corruption")))

    def _without_hash(self, given: Mapping[str, Sequence[Path]]) -> list[str]:
        """Return the names of the files in which nothing would show an edit."""
        sealed = {path for kind in _SEALED for path in given[kind]}
        return [name for name, path in self.files.items() if path in sealed and not has_seal(path)]

    def maps_name(self, reader: MapsReader) -> str:
        """Return the name of a maps folder, with its parent where two folders have one name."""
        folder = reader.folder.resolve()
        same = [other for other in self.maps if other.folder.resolve().name == folder.name]
        return folder.name if len(same) == 1 else f"{folder.parent.name}/{folder.name}"

    def _check_models(
        self,
        results: Sequence[EvaluationResult],
        latency_paths: Sequence[Path],
        monitor_paths: Sequence[Path],
    ) -> None:
        """Raise InputError where a file is of another model than that of this report."""
        models: list[tuple[Path | str, str]] = [
            (run.path, model_of(run.content["run"])) for run in results
        ]
        for path, record in zip(latency_paths, self.latency, strict=True):
            models.append((path, model_of(record)))
        for reader in self.maps:
            run_record = (reader.manifest or {}).get("run", {})
            models.append((reader.place, model_of(run_record)))
        for name, threshold in self.thresholds.items():
            models.append((name, threshold.model))
        # A monitor of an earlier version recorded no model.
        if self.monitor is not None and "model" in self.monitor:
            models.append((monitor_paths[0], str(self.monitor["model"])))
        ours = model_of(
            {"base_sha256": self.model.sha256, "posterior_sha256": self.model.posterior_sha256}
        )
        for source, theirs in models:
            if theirs == ours:
                continue
            fault = "records no model"
            if theirs:
                fault = f"is of another model than {self.shown}"
            raise InputError(
                f"{source} {fault}", hint="one model a report, in files of this version of segunc"
            )
        self._check_fitted(results)

    def _check_fitted(self, results: Sequence[EvaluationResult]) -> None:
        """Raise InputError where a file was made with something else fitted on the model: another
        bank of features changes the maps, and neither the network nor the posterior.
        """
        ours: dict[str, Any] = {}
        for attachment in self.model.attachments.values():
            ours.update(attachment.record())
        fitted = fitted_of(ours)
        records: dict[Path | str, Mapping[str, Any]] = {}
        for run in results:
            records[run.path] = run.content["run"]
        for reader in self.maps:
            records[reader.place] = (reader.manifest or {}).get("run", {})
        for name, threshold in self.thresholds.items():
            records[name] = threshold.settings
        for source, record in records.items():
            self._check_calibration(record, source)
            for key, theirs in fitted_of(record).items():
                if fitted.get(key) != theirs:
                    words = FITTED_WORDS[key]
                    raise InputError(
                        f"{source} was made with another {words} than {self.shown} has now",
                        hint="predict, find the threshold and evaluate again with this model",
                    )

    def _check_calibration(self, record: Mapping[str, Any], source: Path | str) -> None:
        """Raise InputError where a file was made before the probabilities of the model were
        calibrated, or with another calibration.
        """
        keys = ("temperature", "calibrator_sha256")
        if not any(key in record for key in keys):
            return  # of another tool
        # A threshold of maps whose mean over draws is calibrated names no temperature of logits.
        recorded = {"temperature": 1.0, "calibrator_sha256": None, **record}
        for key in keys:
            if recorded[key] != self.model.hashes[key]:
                raise InputError(
                    f"{source} was made with another {FITTED_WORDS['calibration']} than "
                    f"{self.shown} has now",
                    hint="predict, find the threshold and evaluate again with this model",
                )

    def _check_monitor(self, paths: Sequence[Path]) -> None:
        """Raise InputError where the monitor watches none of the thresholds of this report."""
        hashes = self.threshold_hashes.values()
        if self.monitor and hashes and self.monitor["threshold"]["sha256"] not in hashes:
            raise InputError(
                f"{paths[0]} watches another threshold than those of this report",
                hint="monitor again",
            )


def _check_versions(results: Sequence[EvaluationResult]) -> None:
    """Raise InputError where a result is not of this release of segunc."""
    for run in results:
        version = run.content.get("run", {}).get("segunc")
        if version and release_of(version) == tool_version():
            continue
        maker = "another tool, or a segunc that recorded no version"
        if version:
            maker = f"segunc {version}"
        raise InputError(
            f"{run.path} was made by {maker}, not by {tool_version()}", hint="evaluate again"
        )


def _read_monitor(path: Path) -> Mapping[str, Any]:
    content = read_result(path, "monitor", _MONITOR, "segunc monitor")
    note_without_seal(path, "segunc monitor")
    return content


def read_latency(path: Path) -> Mapping[str, Any]:
    """Return a latency; one that an earlier version measured has no ``streams``."""
    content = read_result(path, "latency", _LATENCY, "tools/latency.py")
    rows = content.get("streams", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: streams is not a list of measurements", hint="measure again")
    for row in (content, *rows):
        _check_percentiles(row, path)
    for row in rows:
        for name in ("streams", "frames", "frames_per_second"):
            if not _is_positive(row.get(name)):
                message = f"{path}: {name} of a measurement is not a number above 0"
                raise InputError(message, hint="measure again")
    return content


def _check_percentiles(row: Mapping[str, Any], path: Path) -> None:
    """Raise InputError for percentiles of seconds that do not rise."""
    seconds: list[Any] = [row.get(name) for name in ("p50", "p95", "p99")]
    if not all(_is_positive(value) for value in seconds) or seconds != sorted(seconds):
        raise InputError(
            f"{path}: the percentiles {seconds} are not rising numbers of seconds",
            hint="measure again",
        )


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and value > 0
