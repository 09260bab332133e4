"""``segunc evaluate``: metrics from maps on disk, or from a model in one pass."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import write_json
from segunc.data.corruptions import Corruption
from segunc.data.datasets import entry_of_labels
from segunc.data.entry import DatasetEntry, Sample
from segunc.evaluation.evaluator import Evaluation, EvaluationOptions, Result
from segunc.evaluation.flagged import read_thresholds
from segunc.evaluation.judged import evaluate_verdicts
from segunc.evaluation.labelled_frame import CONFIDENCE
from segunc.evaluation.maps import NO_LABEL, evaluate_maps
from segunc.evaluation.resampling import Resampling, save_replicates, sidecar_path
from segunc.gallery.page import run_id
from segunc.maps.labelled import open_maps
from segunc.maps.verdicts import merge_verdicts, read_verdicts
from segunc.metrics.objects import ObjectBins
from segunc.options import EvaluateOptions, takes
from segunc.verbs.labels import label_arguments, split_samples

Found = tuple[Evaluation, Sequence[str]]  # with lines for the user


class PooledNumbers(SimpleNamespace):
    """How well a score finds anomalous pixels, over all pixels; None where it cannot be measured."""

    auroc: float | None
    aupr: float | None
    fpr95: float | None
    best_f1: float | None
    threshold: float | None  # of the best F1


@dataclass(frozen=True)
class EvaluateResult:
    """What was measured."""

    path: Path | None  # of the JSON file, if it was asked for
    numbers: Result  # its content
    figures: tuple[Path, ...] = ()  # that were drawn
    notes: tuple[str, ...] = ()  # what a user should know
    failure: str = ""  # how many frames could not be counted, in one line; empty where all were

    def __getitem__(self, score: str) -> PooledNumbers:
        """The numbers of a score over all pixels, the protocol ``pooled``; KeyError where the score was not evaluated."""
        return PooledNumbers(**self.numbers["scores"][score]["pooled"])


@takes(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> EvaluateResult:
    """Evaluate maps or a model, and write the result, its replicates and the figures.

    Raises:
        InputError: what was given cannot be evaluated.

    >>> result = evaluate(EvaluateOptions(model=abnn, dataset="toy", root=data, out=folder / "metrics.json", draws=4))
    >>> result.path.name, sorted(result.numbers["segmentation"])
    ('metrics.json', ['accuracy', 'miou', 'per_class'])
    """
    out = None if options.out is None else Path(options.out)
    entry = entry_of_labels(options.dataset, options.label_map, list(options.anomaly_class))
    wanted = EvaluationOptions(
        scores=options.scores,
        protocols=options.protocols,
        tracks=options.components or (),
        resampling=Resampling(options.replicates),
        resample=options.resample,
        map_classes=options.map_classes,
        by=[ObjectBins.of(kind) for kind in options.by if kind != "none"],
        groups=options.groups,
        flag=read_thresholds(options.flag),
    )
    if options.verdicts:
        evaluation, notes = _from_verdicts([Path(path) for path in options.verdicts], options, wanted)
    elif options.maps and not options.model:
        evaluation, notes = _from_maps(Path(options.maps), options, entry, wanted)
    elif options.model and not options.maps:
        evaluation, notes = _from_model(Path(options.model), options, entry, wanted)
    else:
        raise InputError("exactly one of --maps and --model says what to evaluate")
    result = evaluation.result
    if options.anomaly_class:
        result.setdefault("run", {})["anomaly_classes"] = list(options.anomaly_class)
    if evaluation.evaluator is not None and (mapping := evaluation.evaluator.mapping):
        result.setdefault("run", {})["map_classes"] = mapping.about()
        notes = [*notes, *mapping.notes()]
    about = {"replicates": options.replicates, "seed": wanted.resampling.seed, "unit": wanted.resample}
    result["bootstrap"] = about | {"units": len(evaluation.replicates.units)} | result.pop("bootstrap", {})
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Those of an earlier result would pass for this one's, also after a kill in between.
        sidecar_path(out).unlink(missing_ok=True)
        write_json(out, result)
        if evaluation.replicates.paths:
            save_replicates(sidecar_path(out), evaluation.replicates)
    figures: Sequence[Path] = ()
    if options.plots and evaluation.evaluator is not None:
        from segunc.plots.evaluation import write_plots

        figures = write_plots(evaluation.evaluator, result, Path(options.plots), out.stem if out else "metrics")
    return EvaluateResult(out, result, tuple(figures), tuple(notes), _failure(result))


def _failure(result: Result) -> str:
    # A frame without a label was not asked about; any other that is missing from the numbers is a failure.
    failed = [entry for entry in result["left_out"] if entry["reason"] != NO_LABEL]
    if not failed:
        return ""
    return (
        f"{len(failed)} of {result['counts']['frames']} frames could not be counted, first {failed[0]['frame']} "
        f"({failed[0]['reason']}); the numbers are of the others, with every reason under left_out"
    )


def _from_maps(maps: Path, options: EvaluateOptions, entry: DatasetEntry | None, wanted: EvaluationOptions) -> Found:
    if options.corruption is not None:
        raise InputError("--corruption needs --model: maps are of images as they were predicted")
    if options.root is None and _chosen_frames(options):
        raise InputError("--frames and --every choose among the frames of --dataset with --root, which are not given")
    if not (options.root or options.labels or options.anomaly_labels):
        raise InputError("--maps needs labels", hint="give --labels, --anomaly-labels, or --dataset with --root")
    labels = label_arguments(options, entry, _samples)
    evaluation = evaluate_maps(maps, **labels, options=wanted)
    if entry is not None:
        asked = {"split": options.split, **_chosen_frames(options)} if options.root else {}
        evaluation.result["run"] = {"dataset": entry.name, **asked}
    return evaluation, [] if evaluation.evaluator is None else evaluation.evaluator.notes()


def _from_verdicts(files: Sequence[Path], options: EvaluateOptions, wanted: EvaluationOptions) -> Found:
    for name in ("model", "labels", "anomaly_labels", "dataset", "flag", "plots"):
        if getattr(options, name):
            raise InputError(
                f"--verdicts and --{name.replace('_', '-')} do not go together: verdicts are evaluated alone"
            )
    if not options.maps:
        raise InputError("--verdicts needs the maps that were reviewed", hint="add --maps DIR")
    reader = open_maps(Path(options.maps), several=True)
    verdicts = merge_verdicts(read_verdicts(path, run_id(reader), reader.frames) for path in files)
    times = {name: record.get("time") for name, record in reader.records.items()}
    evaluation = evaluate_verdicts(verdicts, reader.frames, wanted, times.get)
    judged, frames = evaluation.result["counts"]["judged_frames"], len(reader.frames)
    note = f"{judged} of {frames} frames were judged; the numbers hold for all only where these were chosen by chance"
    return evaluation, [note] if judged < frames else []


def _samples(entry: DatasetEntry, options: EvaluateOptions) -> list[Sample]:
    """Return the frames of ``--split`` that are asked for."""
    samples = split_samples(entry, options)
    try:
        pattern = re.compile(options.frames or "")
    except re.error as error:
        raise InputError(f"--frames '{options.frames}' is no regular expression: {error}") from error
    chosen = [sample for sample in samples if pattern.search(sample.name)][:: options.every]
    if not chosen:
        raise InputError(f"--frames '{options.frames}' matches no frame; the first is {samples[0].name}")
    return chosen


def _chosen_frames(options: EvaluateOptions) -> dict[str, Any]:
    """Return what a result records of the choice of frames; nothing where all were taken."""
    chosen = {"frames": options.frames} if options.frames else {}
    return chosen | ({"every": options.every} if options.every > 1 else {})


def _from_model(folder: Path, options: EvaluateOptions, entry: DatasetEntry | None, wanted: EvaluationOptions) -> Found:
    from segunc.core.device import flushed_denormals, threads
    from segunc.evaluation.models import evaluate_model
    from segunc.posteriors.files import load_model
    from segunc.posteriors.model import default_scores
    from segunc.scores import check_scores
    from segunc.verbs.execution import (
        calibration_record,
        make_sampler,
        noise_record,
    )

    corruption = None if options.corruption is None else Corruption.parse(options.corruption)
    if entry is None or not options.root:
        raise InputError("--model needs a data set", hint="--dataset camvid --root data/camvid")
    samples = _samples(entry, options)
    model = load_model(folder)
    scores = check_scores(wanted.scores or default_scores(folder))
    wanted = replace(wanted, scores=scores)
    with flushed_denormals(), threads(options.threads):
        # msp is what calibration is made of.
        sampler = make_sampler(model, options, check_scores((*scores, CONFIDENCE)))
        how: dict[str, Any] = {"size": options.size, "corruption": corruption, "bits": options.bits}
        evaluation = evaluate_model(sampler, model, entry, samples, wanted, **how)
    evaluation.result["run"] = {
        **{"dataset": entry.name, "split": options.split, **_chosen_frames(options)},
        **{"method": model.posterior.method, "base_sha256": model.sha256, "posterior_sha256": model.posterior_sha256},
        **calibration_record(sampler),
        **{"draws": sampler.draws, "seed": sampler.seed, "scheme": sampler.noise.scheme, **noise_record(options)},
        **{"scope": sampler.scope, "precision": sampler.precision, "compiled": sampler.compiled, "size": options.size},
        **({} if options.bits is None else {"bits": options.bits}),
        **({} if corruption is None else {"corruption": str(corruption)}),
    }
    return evaluation, list(sampler.report.messages)
