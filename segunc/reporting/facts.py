"""What a report says: the content of ``report.json``. It gathers the records of what other commands
measured, and what follows from their counts; it measures nothing again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from segunc.core.files import file_sha256, flat
from segunc.core.places import shown_command, without_place
from segunc.core.terminal import counted
from segunc.core.version import full_version, now, tool_commit, tool_version
from segunc.data.datasets import DATA_OF_PROGRAM, DATASETS, data_words
from segunc.data.masks import WHITE_ANOMALIES
from segunc.data.training_frames import (
    EPOCH_FRAMES,
    SELECTION,
    frames_record,
    is_selected_on_train,
)
from segunc.decisions.guarantee import GuaranteedThreshold
from segunc.decisions.risks import binomial_bound
from segunc.evaluation.comparison import (
    has_other_images,
    has_other_labels,
    images_of_shared_frames,
    images_words,
    settings_words,
)
from segunc.evaluation.resampling import SIZES_OF_LABELS, EvaluationResult
from segunc.evaluation.small_objects import small_objects_of
from segunc.evaluation.tables import exceeded
from segunc.frames.source import HASH_DIGITS
from segunc.maps.learned_frames import round_words
from segunc.maps.manifest import environment
from segunc.maps.reader import MapsReader
from segunc.metrics.objects import KINDS
from segunc.posteriors.map_records import chosen_on
from segunc.posteriors.model import model_files
from segunc.reporting.failures import Failures
from segunc.reporting.inputs import Inputs
from segunc.reporting.summary_lines import TEST, VALIDATION_SPLITS
from segunc.scores import first_shown
from segunc.training.config import HISTORY, data_of_network, recorded_commands, recorded_data

KIND = "segunc report"
VERSION = 2
Facts = dict[str, Any]
Row = Mapping[str, Any]
VALIDATION = "validation"
TRAINING = "training"
CALIBRATION = "calibration"
ROLES = (TEST, VALIDATION, TRAINING, CALIBRATION)
"""What frames were used for. Only those of the first role say how a model does on new frames."""
_TRAINED = {"epochs", "val_miou", "trained"}
"""Keys of the record of a network that ``segunc train`` trained; an imported network has none."""
_MACHINE = (
    *("root", "frames", "labels", "workers", "batch_size", "eval_batch_size"),
    *("threads", "processes", "seconds", "resumed", "trained", EPOCH_FRAMES),
)
"""Keys of records that say something of the machine, or nothing to a reader."""


def facts_of(inputs: Inputs, found: Failures) -> Facts:
    """Return what is known of a model.

    Args:
        inputs: what the report is made of.
        found: the failures, see :func:`segunc.reporting.failures.failures`.

    Returns:
        Plain values for ``report.json``; ``gaps`` names the sections without data.
    """
    recorded = recorded_data(inputs.folder) or {}
    trained = _plain(data_of_network(inputs.model.network.description.provenance, recorded))
    frames = frames_record(inputs.model.network.description.provenance)
    trainings = [_with_split_of_epoch(data, frames) for data in (trained, _plain(recorded))]
    results = [_result(inputs, run, *trainings) for run in inputs.results]
    thresholds = []
    for name, threshold in inputs.thresholds.items():
        sha256 = inputs.threshold_hashes[name]
        achieved = _worst_first(_achieved(results, threshold, name, sha256))
        others = list(_made_with_others(results, threshold, sha256))
        made = {"file": name, "achieved": achieved, "others": others}
        thresholds.append({**asdict(threshold), **made})
    domain = _domain(inputs, results)
    facts: Facts = {
        "kind": KIND,
        "version": VERSION,
        "made": now(),
        "made_by": full_version(),
        "name": inputs.name,
        "model": _model(inputs),
        "tools": {"segunc": f"{tool_version()} {tool_commit() or ''}".strip(), **environment()},
        "trained": _with_data_words(trained, recorded),
        "training_frames": frames,
        "trained_by_last_step": _is_of_last_step(inputs),
        "tuned": _tuned(inputs, trained, recorded),
        "imported": not _TRAINED & inputs.model.network.description.provenance.keys(),
        "fitted_on": _sources_of_fitted(inputs, recorded),
        "splits_changed": _splits_changed(inputs),
        "domain": domain,
        "results": results,
        "maps": [_maps(inputs, reader) for reader in inputs.maps],
        "latency": [_without_command(record) for record in inputs.latency],
        "thresholds": thresholds,
        "monitor": _monitor(inputs.monitor) if inputs.monitor else None,
        "failures": found.pictures,
        "failures_searched": found.searched,
        "failures_found": found.found,
        "failures_bars": found.bars,
        "failures_labelled": found.labelled,
        "failures_masked": found.masked,
        "failures_labels": found.labels,
        "settings": _settings(inputs),
        "other_images": _other_images(inputs.results),
        "some_other_images": _some_other_images(inputs.results),
        "other_labels": _other_labels(inputs.results),
        "files": _hashes(inputs),
        "unsealed": inputs.unsealed,
        "commands": list(_commands(inputs)),
        "shift": _under_shift(results),
    }
    return facts | {"gaps": _gaps(facts)}


def _with_split_of_epoch(data: Row, frames: Row) -> Facts:
    """Return the data of a training whose ``validation`` is the split of the frames that chose the
    epoch, which are no frames of ``val`` where others stand in for them.
    """
    if data.get("anomaly_class") and is_selected_on_train(data.get("validation"), frames):
        return {**data, "validation": SELECTION}
    return dict(data)


def _is_of_last_step(inputs: Inputs) -> bool:
    """Return whether the record of the training data may be of the step that made the posterior:
    the networks of earlier versions have none of their own.
    """
    own = inputs.model.network.description.provenance.get("data")
    return inputs.model.bayesian and not own


def _tuned(inputs: Inputs, trained: Row, recorded: Row) -> Facts:
    """Return the settings of the data in which the training of the posterior differs from that of
    its network; nothing where no posterior was trained.

    Args:
        inputs: what the report is made of.
        trained: the data of the network's training.
        recorded: the data of the last step, from beside the model.
    """
    provenance = inputs.model.record.get("provenance") or {}
    if not (provenance.get("steps") or provenance.get("teacher")):
        return {}
    if provenance.get("dataset") == DATA_OF_PROGRAM:  # beside the model lies the base's record
        return {"dataset": DATA_OF_PROGRAM}
    step = _plain(recorded)
    differing = {key: value for key, value in step.items() if value != trained.get(key)}
    for key in trained.keys() - recorded.keys() - set(_MACHINE):
        differing[key] = "not set"
    return _with_data_words(differing, recorded)


def _sources_of_fitted(inputs: Inputs, recorded: Row) -> list[str]:
    """Return the data of all that was fitted on the model, in words, each once; those of the
    posterior only where a program handed them over.
    """
    sources: dict[str, None] = {}
    tuned = inputs.model.record.get("provenance") or {}
    if tuned.get("dataset") == DATA_OF_PROGRAM:
        sources[DATA_OF_PROGRAM] = None
    for attachment in inputs.model.attachments.values():
        made: Row = getattr(attachment, "fitted_on", {})
        if made.get("dataset"):
            sources[_trained_words(made, recorded)] = None
        for entry in getattr(attachment, "verdicts", ()):
            sources[round_words(entry)] = None
    return list(sources)


def _splits_changed(inputs: Inputs) -> list[str]:
    """Return the results that were made with another list of frames than the training."""
    trained = inputs.model.network.description.provenance.get("frames_sha256")
    changed = []
    for run in inputs.results:
        evaluated = run.content["run"].get("frames_sha256")
        if trained and evaluated and trained != evaluated:
            changed.append(run.name)
    return changed


def _settings(inputs: Inputs) -> list[Facts]:
    """Return how the frames of each file were seen and drawn: equal hashes of a model say nothing
    of these settings.
    """
    runs: dict[str, Row] = {run.name: run.content["run"] for run in inputs.results}
    for reader in inputs.maps:
        runs[inputs.maps_name(reader)] = (reader.manifest or {}).get("run", {})
    for name, threshold in inputs.thresholds.items():
        runs[name] = threshold.settings
    return [{"name": name, **settings_words(run)} for name, run in runs.items()]


def _other_labels(results: Sequence[EvaluationResult]) -> list[tuple[str, str]]:
    """Return the names of each two results of frames of the same names whose labels differ, though
    their images do not, as far as these are known.
    """
    pairs: list[tuple[str, str]] = []
    for number, first in enumerate(results):
        for second in results[:number]:
            names = _frame_names(first)
            if names is None or names != _frame_names(second) or has_other_images(first, second):
                continue
            if any(has_other_labels(first, second, kind) for kind in SIZES_OF_LABELS):
                pairs.append((second.name, first.name))
    return pairs


def _other_images(results: Sequence[EvaluationResult]) -> list[tuple[str, str]]:
    """Return the files of each result whose images are others than those of an earlier one under
    the same names, with that of the first such result.
    """
    pairs: list[tuple[str, str]] = []
    for number, result in enumerate(results):
        for earlier in results[:number]:
            if has_other_images(earlier, result):
                pairs.append((_file_of(result), _file_of(earlier)))
                break
    return pairs


def _some_other_images(results: Sequence[EvaluationResult]) -> list[Facts]:
    """Return of each result whose frames are not those of an earlier one, but share names with
    them, how many of the shared ones have other images; of each the first such earlier result.
    """
    rows: list[Facts] = []
    for number, result in enumerate(results):
        for earlier in results[:number]:
            shared, changed = images_of_shared_frames(earlier, result)
            if changed and not has_other_images(earlier, result):
                rows.append(
                    {
                        "result": _file_of(result),
                        "earlier": _file_of(earlier),
                        "shared": len(shared),
                        "changed": len(changed),
                    }
                )
                break
    return rows


def _file_of(run: EvaluationResult) -> str:
    """Return the name of a result's file, with its folder where two files share one."""
    return f"{run.name}{run.path.suffix}"


def _frame_names(run: EvaluationResult) -> Sequence[str] | None:
    """Return the names of the frames of a result; None where it does not record them."""
    if run.replicates is None:
        return None
    if run.replicates.frames:
        return run.replicates.frames
    # Of an earlier version.
    unit = run.content.get("bootstrap", {}).get("unit")
    return run.replicates.units if unit == "frame" else None


def _with_data_words(values: Row, recorded: Row) -> Facts:
    """Return a record whose ``dataset`` is in words.

    Args:
        values: the record.
        recorded: the data of the training, whose folder is that of the record if both have one
            data set.
    """
    if not values.get("dataset"):
        return dict(values)
    return {**values, "dataset": _trained_words(values, recorded)}


def _trained_words(values: Row, recorded: Row, split: str | None = None) -> str:
    """Return the data of a record in words, see :func:`_with_data_words`."""
    folder = ""
    if values.get("dataset") == recorded.get("dataset") and recorded.get("root"):
        folder = without_place(str(recorded["root"]))
    return data_words(values["dataset"], split, folder)


def _plain(values: Row) -> Facts:
    """Return a record without what says something of the machine or nothing at all."""
    return {
        key: value
        for key, value in values.items()
        if key not in _MACHINE and value not in (None, "")
    }


def _gaps(facts: Row) -> list[str]:
    """Return the names of the sections without data."""
    domain = facts["domain"]
    results = facts["results"]
    data = {
        "intended use": domain["intended_use"],
        "factors": domain["axes"],
        "evaluation data": results,
        "training data": facts["trained"],
        "independence": domain["independence"],
        "label quality": domain["label_quality"],
        "segmentation": any(result["segmented"] for result in results),
        "anomalies": any(result["score"] for result in results),
        "operating point": facts["thresholds"],
        "residual risk": any(_has_objects(result) for result in results),
        "shift": facts["shift"],
        "slices": any(result["content"]["counts"].get("groups") for result in results),
        "failures": facts["failures_searched"],
        "latency": facts["latency"],
        "reviewers": any("verdicts" in result["content"] for result in results),
        "operation": _was_watched(facts["monitor"]),
        "ethics": domain["affected"],
    }
    return [name for name, there in data.items() if not there]


def _has_objects(result: Row) -> bool:
    return bool(result["missed"]["size"] or result["missed"]["distance"])


def _monitor(state: Row) -> Facts:
    """Return the state of a monitor without its command and the paths of this machine."""
    kept = _without_command(state)
    kept.pop("maps", None)
    kept["threshold"] = {"sha256": state["threshold"]["sha256"]}
    if state.get("reference"):
        kept["reference"] = {"frames": state["reference"]["frames"]}
    return kept


def _was_watched(monitor: Row | None) -> bool:
    """Return whether a monitor had enough frames or verdicts to raise an alarm."""
    if monitor is None:
        return False
    return bool(monitor.get("measured", True) or monitor.get("risk"))


def _hashes(inputs: Inputs) -> dict[str, str]:
    """Return the SHA-256 of each file: of the model below ``MODEL/``, and of what was given."""
    files = {}
    for path in model_files(inputs.folder):
        files[f"MODEL/{path.relative_to(inputs.folder).as_posix()}"] = path
    files |= inputs.files
    for reader in inputs.maps:
        # The manifest and the lines of the frames hold the hash of every map.
        for path in sorted(reader.folder.glob("[!.]*.json*")):
            files[f"{inputs.maps_name(reader)}/{path.name}"] = path
    return {name: file_sha256(path) for name, path in files.items()}


def _model(inputs: Inputs) -> Facts:
    model = inputs.model
    recorded = recorded_data(inputs.folder) or {}
    network = model.network.description
    members = model.posterior.members
    records = {}
    for name, record in (
        ("base", network.provenance),
        ("posterior", model.record.get("provenance")),
    ):
        if record:
            shown = _plain(record)
            shown.pop("data", None)  # it stands under Training data
            records[name] = _with_data_words(shown, recorded)
    sets = model.attachments.get("class_sets")
    return {
        "network": f"{network.architecture} {network.encoder}".strip(),
        "classes": list(network.classes),
        "posterior": f"{model.posterior.method}, {counted(members, 'member')}",
        "settings": flat(model.posterior.settings()),
        "base_sha256": model.sha256,
        "posterior_sha256": model.posterior_sha256,
        "made": flat(records),
        "fitted": [_fitted_words(*item, recorded) for item in model.attachments.items()],
        "sets": sets and f"{sets.promise} {sets.condition}",
    }


def _fitted_words(name: str, attachment: Any, recorded: Row) -> str:
    """Return what was fitted on a model, with its data as far as they are recorded."""
    made: Row = getattr(attachment, "fitted_on", {})
    sources: list[str] = []
    if made.get("dataset"):
        sources.append(_trained_words(made, recorded, made.get("split")))
    sources += [round_words(entry) for entry in getattr(attachment, "verdicts", ())]
    return f"{name} (on {'; and '.join(sources)})" if sources else name


@dataclass
class _Frames:
    """Names of frames by what they were used for."""

    of_role: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in ROLES})

    def add(self, names: Collection[str], role: str) -> None:
        """Add frames of a role; a frame that served twice counts as what spoils it for a test."""
        rank = ROLES.index(role)
        for name in names:
            for better in ROLES[:rank]:
                self.of_role[better].discard(name)
            if not any(name in self.of_role[worse] for worse in ROLES[rank:]):
                self.of_role[role].add(name)


def _frames(inputs: Inputs, results: Sequence[Row]) -> _Frames:
    """Return the frames of results that resample frames, else those of the maps, by their role."""
    frames = _Frames()
    named: list[tuple[Sequence[str], str]] = []
    for run, result in zip(inputs.results, results, strict=True):
        names = _frame_names(run)
        if names is not None:
            named.append((names, result["role"]))
    # Those with the longest paths first: others are found among them.
    named.sort(key=lambda group: -max(name.count("/") for name in group[0]))
    for names, role in named:
        frames.add(_below_one_folder(names, set().union(*frames.of_role.values())), role)
    if not named:
        for reader in inputs.maps:
            frames.add(reader.frames, TEST)
    tested_apart = _names_tested_apart(inputs, results)
    known = set().union(*frames.of_role.values())
    for threshold in inputs.thresholds.values():
        apart = tested_apart | _names_of_other_images(inputs, threshold)
        calibrated = threshold.frames.keys() - apart
        named_so = _as_results_name_them(calibrated, known - apart)
        frames.add(set(named_so.values()), CALIBRATION)
        # Frames of an equal name that are others count, too, by a name that no frame has.
        frames.add([f"{name}\0" for name in threshold.frames.keys() & apart], CALIBRATION)
    return frames


def _below_one_folder(names: Collection[str], known: Collection[str]) -> Collection[str]:
    """Return the frames of a result by the names that another result gives them.

    A result of maps names frames by their path below the input of ``predict``, which may be one
    folder of a data set. Where all of them lie in one folder of the frames that are known, they are
    the same frames; where several folders hold all of them, nobody knows which.
    """
    of_folder: dict[str, set[str]] = {}
    for name in known:
        parts = name.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            of_folder.setdefault(folder, set()).add("/".join(parts[depth:]))
    holding = [folder for folder, below in of_folder.items() if below.issuperset(names)]
    if len(holding) != 1:
        return names
    return [f"{holding[0]}/{name}" for name in names]


def _as_results_name_them(calibrated: Collection[str], known: Collection[str]) -> dict[str, str]:
    """Return the name that results give each frame of a calibration; its own where they hold none.

    A result names a frame by its path below the root of its data set, and maps name it by its path
    below their input: ``day/camera/1`` and ``camera/1`` are one frame. Names without a folder are
    compared whole, because two drives may both have a frame ``1``.
    """
    of_ending: dict[str, str] = {}
    for name in known:
        parts = name.split("/")
        for start in range(len(parts) - 1):
            of_ending["/".join(parts[start:])] = name
    names: dict[str, str] = {}
    for name in calibrated:
        parts = name.split("/")
        endings = ["/".join(parts[start:]) for start in range(max(len(parts) - 1, 1))]
        same = next((of_ending[ending] for ending in endings if ending in of_ending), name)
        names[name] = name if name in known else same
    return names


def _names_tested_apart(inputs: Inputs, results: Sequence[Row]) -> set[str]:
    """Return the frames of results that were made with a threshold: ``segunc evaluate`` compared
    them with the frames of its calibration, so an equal name means another frame."""
    names: set[str] = set()
    for run, result in zip(inputs.results, results, strict=True):
        if any(_made_with_thresholds(inputs, result)):
            names.update(_frame_names(run) or ())
    return names


def _names_of_other_images(inputs: Inputs, threshold: GuaranteedThreshold) -> set[str]:
    """Return the frames of results that have the name of a calibration frame and another image,
    in every result that has such a frame.
    """
    others: set[str] = set()
    same: set[str] = set()
    for run in inputs.results:
        names = set(_frame_names(run) or ()).intersection(threshold.frames)
        others_of_run = _other_than_calibrated(run, {name: name for name in names}, threshold)
        others |= others_of_run
        same |= names - others_of_run
    return others - same


def _other_than_calibrated(
    run: EvaluationResult, names: Mapping[str, str], threshold: GuaranteedThreshold
) -> set[str]:
    """Return which frames have another image than the calibration frame of the same name, as far
    as both record a hash of it.

    Args:
        run: the result.
        names: of its frames, each with the name that the calibration gives it.
        threshold: of the calibration.
    """
    images = run.replicates.images if run.replicates is not None else {}
    others = set()
    for name, calibrated in names.items():
        identity = threshold.frames[calibrated]
        # A calibration on maps without hashes of images records hashes of the maps.
        is_of_image = len(identity) == HASH_DIGITS
        if is_of_image and name in images and not identity.startswith(images[name]):
            others.add(name)
    return others


def _domain(inputs: Inputs, results: Sequence[Row]) -> Facts:
    """Return the operator's words, and in each cell of the domain the frames of each role.

    A cell lacks as many test frames as it has fewer than the minimum; frames that chose an epoch or
    a threshold are no test.
    """
    domain = inputs.domain
    frames = _frames(inputs, results)
    counted = {
        role: Counter(domain.places(sorted(frames.of_role[role])).values()) for role in ROLES
    }
    cells: list[Facts] = []
    for values in product(*domain.axes.values()):
        if values:
            cell = {role: counted[role][values] for role in ROLES}
            lacking = max(domain.minimum - cell[TEST], 0)
            cells.append({"values": list(values), **cell, "lacking": lacking})
    number = {role: len(frames.of_role[role]) for role in ROLES}
    return {
        **asdict(domain),
        "cells": cells,
        "gaps": sum(cell["lacking"] > 0 for cell in cells),
        "frames": number,
        "outside": number[TEST] - counted[TEST].total(),
    }


def _role(inputs: Inputs, record: Row, *trainings: Row) -> str:
    """Return what the frames of a result were used for.

    They are training frames where the network got its weights, or a step its posterior, on this
    split ``train`` of this data set. They are validation frames where a training, of the network or
    of a later step, chose its epoch on the split, where something was fitted on it, or, without a
    record of a training, where the split says so.
    """
    split = record.get("split")
    if split is None:
        return TEST
    made_on = _splits_of_model(inputs)
    place = (record.get("dataset"), split)
    if split == "train" and place in made_on:
        return TRAINING
    if split == SELECTION or (not any(trainings) and split in VALIDATION_SPLITS):
        return VALIDATION
    used = [*made_on, *((data.get("dataset"), data.get("validation")) for data in trainings)]
    for attachment in inputs.model.attachments.values():
        made: Row = getattr(attachment, "fitted_on", {})
        used.append((made.get("dataset"), made.get("split")))
    return VALIDATION if place in used else TEST


def _splits_of_model(inputs: Inputs) -> list[tuple[str, str]]:
    """Return data set and split of the frames that gave the network its weights and its epoch, and
    a step its posterior, as far as they are recorded.
    """
    model = inputs.model
    trained = model.network.description.provenance
    records = chosen_on(trained, {}, model.record.get("provenance"))
    return [(entry["dataset"], entry["split"]) for entry in records]


def _result(inputs: Inputs, run: EvaluationResult, *trainings: Row) -> Facts:
    """Return a result: its content, what it is of, and the missed objects with upper bounds.

    Args:
        inputs: what the report is made of.
        run: the result.
        trainings: the data of each training of the model.
    """
    content = run.content
    score = first_shown(content["scores"])
    threshold_score = _threshold_score(inputs, content) or score
    flagged = content.get("flagged", {}).get(threshold_score, {})
    at_threshold = "promise" in flagged and any(flagged.get(kind) for kind in KINDS)
    missed_score = threshold_score if at_threshold else score
    bins = flagged if at_threshold else content["scores"].get(score, {})
    missed = {kind: _missed(bins.get(kind, {})) for kind in (*KINDS, "group")}
    pooled = content["scores"].get(score, {}).get("pooled", {})
    detected = pooled.get("aupr") is not None
    return {
        **_data_of(inputs, run, *trainings),
        "score": score if detected else None,
        "missed_score": missed_score,
        "found": "At the threshold" if at_threshold else "With 5 % of the normal pixels flagged",
        "segmented": content.get("segmentation", {}).get("miou") is not None,
        "missed": missed,
        "small_objects": small_objects_of(content).warning if any(missed.values()) else "",
        "content": _content(content),
    }


def _data_of(inputs: Inputs, run: EvaluationResult, *trainings: Row) -> Facts:
    """Return what a result is of: its file, its data and images, and what its frames were used for.

    Args:
        inputs: what the report is made of.
        run: the result.
        trainings: the data of each training of the model.
    """
    record = run.content["run"]
    counts = run.content["counts"]
    role = _role(inputs, record, *trainings)
    calibrated, namesakes = _calibration_frames(inputs, run)
    data = _data_words(record, is_judged="verdicts" in run.content)
    images = images_words(record)
    named = f"{_file_of(run)}, {images}" if images else _file_of(run)
    learned = record.get("learned_frames", 0)
    labelled = _frames_words(counts.get("labelled_frames", 0), role, calibrated, learned)
    with_anomalies = _frames_words(counts.get("anomaly_frames", 0), role, calibrated, learned)
    return {
        "name": run.name,
        "file": _file_of(run),
        "data": f"{data}; {images}" if images else data,
        "of": f"{data} ({named})",
        "label_values": _label_values(record),
        "role": role,
        "calibrated": calibrated,
        "namesakes_of_calibrated": namesakes,
        "may_be_calibrated": _may_be_calibrated(inputs, run),
        "learned": learned,
        "labelled": f"{data}, {labelled} ({named})",
        "with_anomalies": f"{data}, {with_anomalies} ({named})",
    }


def _content(content: Row) -> Facts:
    """Return the content of a result that a report holds."""
    kept = {key: value for key, value in content.items() if key not in ("reasons", "forms")}
    kept["run"] = _without_command(content["run"])
    return kept


def _threshold_score(inputs: Inputs, content: Row) -> str:
    """Return the score of the first threshold whose score a result has; empty for none."""
    for threshold in inputs.thresholds.values():
        if threshold.score in content["scores"]:
            return threshold.score
    return ""


def _label_values(record: Row) -> str | None:
    """Return what the values of a result's masks mean, in words; None where it is not known."""
    if record.get("mask_values"):
        return str(record["mask_values"])
    if record.get("dataset") == WHITE_ANOMALIES:
        return str(DATASETS[WHITE_ANOMALIES].anomaly_masks)
    return None


def _data_words(record: Row, is_judged: bool) -> str:
    """Return the data of a result in words, without what the values of masks mean.

    Args:
        record: how the result was made.
        is_judged: whether reviewers judged the frames, which then need no labels.
    """
    words = data_words(
        record.get("dataset"),
        record.get("split"),
        record.get("labels_in", ""),
        None,
        is_judged=is_judged,
    )
    if record.get("corruption"):
        words += f" under {record['corruption']}"
    return words


def _frames_words(number: int, role: str, calibrated: int, learned: int = 0) -> str:
    kind = "" if role == TEST else f"{role} "
    words = counted(number, f"{kind}frame")
    if calibrated:
        words += f" ({calibrated:,} of them of a calibration)"
    if learned:
        words += f" (verdicts on {learned:,} of the frames changed the bank)"
    return words


def _calibration_frames(inputs: Inputs, run: EvaluationResult) -> tuple[int, int]:
    """Return how many frames of a result are calibration frames of a threshold, and how many more
    have the name of one and another image.

    Where a hash of the image is missing, an equal name is taken for the frame. A result that was
    made with the threshold holds none: ``segunc evaluate`` leaves them out.
    """
    names = set(_frame_names(run) or ())
    calibrated: set[str] = set()
    others: set[str] = set()
    made_with = _made_with_thresholds(inputs, {"content": run.content})
    for threshold, made in zip(inputs.thresholds.values(), made_with, strict=True):
        if not made:
            named_so = _as_results_name_them(threshold.frames, names)
            of_name = {name: its_own for its_own, name in named_so.items() if name in names}
            of_other_image = _other_than_calibrated(run, of_name, threshold)
            calibrated |= of_name.keys() - of_other_image
            others |= of_other_image
    return len(calibrated), len(others - calibrated)


def _may_be_calibrated(inputs: Inputs, run: EvaluationResult) -> bool:
    """Return whether a result names no frames, so that nobody knows whether it holds calibration
    frames of a threshold that it was not made with.
    """
    made_with = _made_with_thresholds(inputs, {"content": run.content})
    return _frame_names(run) is None and not all(made_with)


def _missed(bins: Row) -> list[list[Any]]:
    """Return of each bin with objects its name, the objects, those that were missed, and the upper
    bound of their share (one-sided, 95 %)."""
    rows = []
    for name, numbers in bins.items():
        objects = numbers["objects"]
        found_share = numbers["found"]
        if objects and found_share is not None:
            missed = objects - round(found_share * objects)
            rows.append([name, objects, missed, binomial_bound(missed, objects)])
    return rows


def _flagged_with(result: Row, promised: GuaranteedThreshold, sha256: str) -> Row | None:
    """Return what a result says of a threshold, or None where it was made without it. It knows its
    threshold by the file, and by promise and value, which a group of frames has of its own: what a
    bare value flags is no such loss.

    Args:
        result: with its ``content``.
        promised: the threshold.
        sha256: of its file. Another one may have the same promise and value, and be calibrated on
            the frames of the result.
    """
    content = result["content"]
    row: Row = content.get("flagged", {}).get(promised.score, {})
    recorded = content.get("run", {}).get("thresholds", {}).get(promised.score, {})
    same = row.get("promise") == promised.promise and recorded.get("sha256") in (None, sha256)
    return row if same and math.isclose(row["threshold"], promised.value) else None


def _made_with_thresholds(inputs: Inputs, result: Row) -> list[bool]:
    """Return of each threshold of a report whether a result was made with it."""
    made_with = []
    for name, threshold in inputs.thresholds.items():
        row = _flagged_with(result, threshold, inputs.threshold_hashes[name])
        made_with.append(row is not None)
    return made_with


def _achieved(
    results: Sequence[Facts], promised: GuaranteedThreshold, source: str, sha256: str
) -> Iterator[Facts]:
    """Yield of each result that was made with a threshold, and of each risk that it bounds, the
    mean loss of the units and whether that keeps to the level.

    Args:
        results: all of the report.
        promised: the threshold.
        source: name of its file.
        sha256: of the file.
    """
    for result in results:
        row = _flagged_with(result, promised, sha256)
        if row is None:
            continue
        for control, level in promised.levels.items():
            numbers = row if control == promised.control else row.get(control, {})
            loss = numbers.get("risk")
            kept = "not measured"
            if loss is not None:
                kept = "exceeded" if exceeded({"risk": loss, "level": level}) else "kept"
            yield {
                "name": result["name"],
                "file": result["file"],
                "data": result["data"],
                "of": result["of"],
                "control": control,
                "level": level,
                "loss": loss,
                "units": numbers.get("units"),
                "upper": numbers.get("upper"),
                "kept": kept,
                # Of errors-kept; results of earlier versions do not record them.
                "right_flagged": numbers.get("right_flagged"),
                "wrong_flagged": numbers.get("wrong_flagged"),
                "shifted": "corruption" in result["content"]["run"],
                "same_input": result["content"]["run"].get("calibration_input", False),
                # Results of earlier versions do not record the sizes of their frames.
                "size_note": promised.size_note(row.get("sizes", ()), source),
                "flagged": row,
            }


def _made_with_others(
    results: Sequence[Facts], promised: GuaranteedThreshold, sha256: str
) -> Iterator[Facts]:
    """Yield each threshold that results were made with in the place of a promised one, whose file
    has the ``sha256``: the name of the result, the score, the value, ``control`` and ``level`` of a
    promise, else None, and whether the promise and the value are the ``same``.
    """
    for result in results:
        if _flagged_with(result, promised, sha256) is not None:
            continue
        for score, row in result["content"].get("flagged", {}).items():
            yield {
                "name": result["name"],
                "score": score,
                "value": row["threshold"],
                "control": row.get("control") if row.get("promise") else None,
                "level": row.get("level"),
                "same": row.get("promise") == promised.promise
                and math.isclose(row["threshold"], promised.value),
            }


def _worst_first(achieved: Iterator[Facts]) -> list[Facts]:
    """Return what was achieved, exceeded promises first."""
    return sorted(achieved, key=lambda row: row["kept"] != "exceeded")


def _under_shift(results: Sequence[Row]) -> list[Facts]:
    """Return each number of a result on corrupted images beside the same on clean ones."""
    rows = []
    for shifted in results:
        record = shifted["content"]["run"]
        if not record.get("corruption"):
            continue
        clean = _clean_of(shifted, results)
        counts = shifted["content"]["counts"]
        for title, path in _shift_numbers(shifted):
            is_of_score = path[0] == "scores"
            frames = counts.get("anomaly_frames" if is_of_score else "labelled_frames", 0)
            rows.append(
                {
                    "name": shifted["name"],
                    "shift": record["corruption"],
                    "data": shifted["with_anomalies" if is_of_score else "labelled"],
                    "frames": frames,
                    "score": shifted["score"] if is_of_score else None,
                    "number": title,
                    "path": path,
                    "value": _value(shifted, path),
                    "clean_name": clean and clean["name"],
                    "clean": clean and _value(clean, path),
                }
            )
    return rows


def _shift_numbers(result: Row) -> list[tuple[str, list[str]]]:
    numbers = []
    if result["segmented"]:
        numbers.append(("mean IoU", ["segmentation", "miou"]))
        numbers.append(("ECE", ["calibration", "ece"]))
    if result["score"]:
        numbers.append(("AUPR", ["scores", result["score"], "pooled", "aupr"]))
        numbers.append(("FPR95", ["scores", result["score"], "pooled", "fpr95"]))
    return [(title, path) for title, path in numbers if _value(result, path) is not None]


def _clean_of(shifted: Row, results: Sequence[Row]) -> Row | None:
    """Return the result on the same frames without corruption, None where there is none."""
    there = _same_frames(shifted)
    images = shifted["content"]["counts"].get("images")
    for result in results:
        others = result["content"]["counts"].get("images")
        if None not in (images, others) and images != others:
            continue  # a corruption is applied to the same files
        if not result["content"]["run"].get("corruption") and _same_frames(result) == there:
            return result
    return None


def _same_frames(result: Row) -> tuple[Any, ...]:
    record = result["content"]["run"]
    counts = result["content"]["counts"]
    named = [record.get(key) for key in ("dataset", "split", "frames", "every")]
    return (*named, counts.get("frames"))


def _value(result: Row, path: Sequence[str]) -> float | None:
    value: Any = result["content"]
    for key in path:
        value = (value or {}).get(key)
    return None if value is None else float(value)


def _maps(inputs: Inputs, reader: MapsReader) -> Facts:
    manifest = reader.manifest or {}
    missing = reader.unfinished  # without the place of the folder on this machine
    if missing is not None:
        missing = missing.replace(reader.place, reader.folder.name)
    return {
        "name": inputs.maps_name(reader),
        "frames": len(reader.frames),
        "unfinished": missing,
        "scores": reader.scores,
        "device": manifest.get("device"),
    }


def _commands(inputs: Inputs) -> Iterator[Facts]:
    """Yield the command that made each file, in the order of the work; None where a file, of
    another tool or an earlier version, records none.
    """
    yield from _model_commands(inputs.folder)
    for reader in inputs.maps:
        manifest = reader.manifest or {}
        yield _command(inputs.maps_name(reader), manifest.get("command"), manifest.get("date"))
    for name, threshold in inputs.thresholds.items():
        yield _command(name, threshold.command, threshold.date)
    for run in inputs.results:
        record = run.content["run"]
        yield _command(run.path.name, record.get("command"), record.get("date"))
    if inputs.monitor:
        state = inputs.monitor
        yield _command(str(state["kind"]), state.get("command"), state.get("date"))
    for record in inputs.latency:
        yield _command(str(record["kind"]), record.get("command"), record.get("date"))


def _model_commands(model: Path) -> Iterator[Facts]:
    """Yield the commands that made a model and its members, without the place of its folder."""
    for folder in (model, *sorted(model.glob("members/[0-9]*"))):
        file = (Path("MODEL") / folder.relative_to(model) / HISTORY).as_posix()
        commands = recorded_commands(folder)
        for entry in commands:
            yield _command(file, entry["command"], entry.get("date"))
        if not commands and folder == model:
            yield _command("MODEL", None)


def _command(file: str, command: str | None, date: str | None = None) -> Facts:
    return {"file": file, "command": command and shown_command(command), "date": date}


def _without_command(record: Row) -> Facts:
    """Return a record without its command, which stands under ``commands``."""
    return {key: value for key, value in record.items() if key != "command"}
