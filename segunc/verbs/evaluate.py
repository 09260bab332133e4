"""``segunc evaluate``: metrics from maps on disk, or from a model in one pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import write_json
from segunc.core.removal import check_result, remove_result
from segunc.core.version import full_version
from segunc.data.corruptions import Corruption
from segunc.data.datasets import dataset_entry, entry_of_labels
from segunc.data.entries import DatasetEntry, Sample, encoding_of_masks
from segunc.data.frame_names import composed
from segunc.decisions.flags import (
    CALIBRATED_ON,
    SAME_BYTES,
    Threshold,
    read_thresholds,
    smallest_object_of,
)
from segunc.decisions.guarantee import RISKS, SETTINGS
from segunc.evaluation.evaluator import Evaluator, Gatherer, Result
from segunc.evaluation.maps import NO_LABEL, evaluate_maps, evaluate_model, evaluate_verdicts
from segunc.evaluation.parts import CONFIDENCE
from segunc.evaluation.report import exceeded, promised
from segunc.evaluation.resampling import (
    Resampling,
    compiled,
    is_sidecar,
    resampled_units,
    save_replicates,
    sidecar_path,
)
from segunc.gallery.review_page import run_id
from segunc.maps.labelled import LabelFolder, Labels, LabelSources, open_maps
from segunc.maps.manifest import is_ours, read_manifest
from segunc.maps.verdicts import merge_verdicts, note_on_dates, read_verdicts
from segunc.metrics.objects import ObjectBins
from segunc.options import ClassTruthOptions, EvaluateOptions, TruthOptions, recorded_command, takes

SELECTION = "selection"
"""A split of every data set with class labels: val, or what stands in for it where every frame of
val holds an anomaly.
"""

Measured = tuple[Result, Gatherer, Sequence[str]]  # with lines for the user

SIDECAR = "what evaluate writes beside a result"


@dataclass(frozen=True)
class EvaluateResult:
    """What was measured."""

    path: Path | None  # of the JSON file, if it was asked for
    numbers: Result  # its content
    figures: tuple[Path, ...] = ()  # that were drawn
    notes: tuple[str, ...] = ()  # what a user should know
    failure: str = ""  # how many frames could not be counted, in one line; empty where all were
    exceeded: tuple[str, ...] = ()  # a line on each promise that the achieved risk exceeds

    def __getitem__(self, score: str) -> SimpleNamespace:
        """The numbers of a score over all pixels: auroc, aupr, fpr95, best_f1 and threshold, None
        where one cannot be measured.
        """
        return SimpleNamespace(**self.numbers["scores"][score]["pooled"])


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
    asked = options
    if out is not None:
        check_result(sidecar_path(out), is_sidecar, SIDECAR)
    options, listed, notes_on_data = _with_data(options)
    entry = entry_of_labels(options.dataset, options.label_map, list(options.anomaly_class), listed)
    if options.root and entry and options.split is None:
        options = replace(options, split=entry.usual_split(Path(options.root)))
        notes_on_data += [
            f"split {options.split} of {entry.name} is evaluated; --split names another"
        ]
    if options.fps and not options.maps:
        raise InputError("--fps needs --maps: it gives times to the frames of maps")
    resampling = Resampling(options.replicates)
    flag = read_thresholds(options.flag)
    smallest_object = smallest_object_of(flag, options.smallest_object)
    new = partial(
        Evaluator,
        protocols=options.protocols,
        tracks=options.components or (),
        by=[ObjectBins.of(kind) for kind in options.by if kind != "none"],
        groups=options.groups,
        flag=flag,
        smallest_object=smallest_object,
        resampling=resampling,
        resample=options.resample,
    )
    if options.verdicts:
        result, gatherer, notes = _from_verdicts(options, resampling)
    elif options.maps and not options.model:
        result, gatherer, notes = _from_maps(Path(options.maps), options, entry, new)
    elif options.model and not options.maps:
        result, gatherer, notes = _from_model(Path(options.model), options, entry, new)
    else:
        raise InputError("exactly one of --maps and --model says what to evaluate")
    run: dict[str, Any] = result.setdefault("run", {})
    run["segunc"] = full_version()
    run["command"] = recorded_command("evaluate", asked)
    if not options.verdicts:
        run["smallest_object"] = smallest_object
    if flag:
        run["smallest_region"] = {score: of.smallest for score, of in flag.items()}
    if options.anomaly_class:
        run["anomaly_classes"] = list(options.anomaly_class)
    replicates = gatherer.replicates()
    about = {"replicates": options.replicates, "seed": resampling.seed, "unit": options.resample}
    result["bootstrap"] = about | {"units": len(replicates.units)} | result.pop("bootstrap", {})
    if out is not None:
        # Those of an earlier result would pass for this one's, also after a kill in between.
        remove_result(sidecar_path(out), is_sidecar, SIDECAR)
        write_json(out, result)
        if replicates.paths:
            save_replicates(sidecar_path(out), replicates)
    kept, broken = _promises(result)
    manifest = None
    if options.maps and is_ours(Path(options.maps)):
        manifest = read_manifest(Path(options.maps))
    figures: Sequence[Path] = ()
    if options.plots:
        from segunc.plots import write_plots

        shown = (
            out.stem
            if out
            else Path(str(options.model or options.maps or options.verdicts)).resolve().name
        )
        figures = write_plots(gatherer, result, Path(options.plots), shown)
    return EvaluateResult(
        out,
        result,
        tuple(figures),
        (*notes_on_data, *notes, *_notes_on_thresholds(flag, manifest), *kept),
        _failure(result),
        tuple(broken),
    )


def _with_data(options: EvaluateOptions) -> tuple[EvaluateOptions, str | None, list[str]]:
    """Return the options with the data of the configuration, or else of the model's record, where
    nobody named any; the list of their frames; and what a user should know.
    """
    named = (
        options.dataset,
        options.root,
        options.labels,
        options.anomaly_labels,
        options.label_map,
    )
    if options.config:
        from segunc.training.config import read_config, with_own_paths

        data: Any = read_config(Path(options.config)).get("data")
        if isinstance(data, dict):
            data = with_own_paths(data, Path(options.config))
        else:
            raise InputError(
                f"{options.config} has no section data", hint="data: {dataset: NAME, root: DIR}"
            )
        source = str(options.config)
    elif options.model and not any(named):
        from segunc.training.config import recorded_data

        data, source = recorded_data(Path(options.model)) or {}, "the record of the model"
    else:
        return options, None, []
    if not data or (options.maps and any(named[2:4])):
        return options, None, []
    declared = data.get("anomaly_class") or []
    declared = (
        [name.strip() for name in declared.split(",")] if isinstance(declared, str) else declared
    )
    found = replace(
        options,
        dataset=options.dataset or data.get("dataset"),
        root=options.root or data.get("root"),
        label_map=options.label_map or data.get("labels"),
        anomaly_class=[*options.anomaly_class] or declared,
    )
    frames = data.get("frames") if found.dataset == data.get("dataset") else None
    return found, frames, [f"data: {found.dataset} in {found.root}, from {source}"]


def _notes_on_thresholds(
    flag: Mapping[str, Threshold], manifest: Mapping[str, Any] | None
) -> Iterator[str]:
    """Yield what a user should know of thresholds with a promise: one that was calibrated on the
    input of these maps, and one for which a speck of the labelling is an object, as it was for all
    thresholds of earlier versions."""
    for threshold in flag.values():
        if threshold.claims((manifest or {}).get("run", {})):
            alike = "so these frames resemble those; another drive tests its promise better"
            yield f"{threshold.source} was calibrated on frames of the same input, {alike}"
        if threshold.guarantee and not threshold.guarantee.smallest_object:
            source = threshold.source
            yield f"{source} counts labelled regions of any size as objects; so does this result"


def _promises(result: Result) -> tuple[list[str], list[str]]:
    """Return a line on each promise that these units keep, and on each that they exceed."""
    kept = []
    broken = []
    for score, control, of in promised(result):
        units = f"on {of['units']} other units"
        promise = of.get("promise", f"{RISKS[control]}, of at most {of['level']:.3g}.")
        upper = f"{of['upper']:.3g} at most, with 95 % confidence"
        if exceeded(of):
            risk = (
                f"{RISKS[control]} are {of['risk']:.3g} {units}, and {of['level']:.3g} was promised"
            )
            broken.append(f"PROMISE EXCEEDED: by {score}, {risk}")
        else:
            achieved = f"{of['risk']:.3g}, of {of['level']:.3g}; {upper}"
            kept.append(f"promised: {promise} Achieved {units}: {achieved}")
    return kept, broken


def _failure(result: Result) -> str:
    # A frame without a label was not asked about, and one of a calibration must not be counted; any
    # other that is missing from the numbers is a failure.
    expected = (NO_LABEL, CALIBRATED_ON, SAME_BYTES)
    failed = [entry for entry in result["left_out"] if entry["reason"] not in expected]
    if not failed:
        return ""
    return (
        f"{len(failed)} of {result['counts']['frames']} frames could not be counted, first {failed[0]['frame']} "
        f"({failed[0]['reason']}); the numbers are of the others, with every reason under left_out"
    )


def _from_maps(
    maps: Path, options: EvaluateOptions, entry: DatasetEntry | None, new: Callable[..., Evaluator]
) -> Measured:
    if options.corruption is not None:
        raise InputError("--corruption needs --model: maps are of images as they were predicted")
    if not (options.root or options.labels or options.anomaly_labels):
        raise InputError(
            "--maps needs labels", hint="give --labels, --anomaly-labels, or --dataset with --root"
        )
    labels = LabelSources(**label_arguments(options, entry, _samples))

    def choose(names: Sequence[str]) -> Sequence[str]:
        if not options.root:
            return matching(names, options.frames)[:: options.every]
        # The samples of the data set were chosen; of others, whose names may be longer, none is
        # said to lack a label.
        return [name for name in names if re.search(options.frames or "", name)] or names

    result, evaluator = evaluate_maps(maps, labels, options.scores, new, choose, options.fps)
    result["run"] = _recorded_model(
        read_manifest(maps) if is_ours(maps) else None
    ) | _chosen_frames(options)
    if entry is not None:
        result["run"] |= {
            "dataset": entry.name,
            **({"split": options.split} if options.root else {}),
        }
    return result, evaluator, []


def _recorded_model(manifest: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a manifest says of the model of its maps and how it was drawn; nothing of maps of
    another tool.
    """
    run = (manifest or {}).get("run", {})
    return {key: run[key] for key in ("base_sha256", "posterior_sha256", *SETTINGS) if key in run}


def _from_verdicts(options: EvaluateOptions, resampling: Resampling) -> Measured:
    for name in (
        "model",
        "labels",
        "anomaly_labels",
        "dataset",
        "flag",
        "plots",
        "groups",
        "components",
        "corruption",
        "fps",
        "smallest_object",
    ):
        if getattr(options, name):
            other = name.replace("_", "-")
            raise InputError(
                f"--verdicts and --{other} do not go together: verdicts are evaluated alone"
            )
    if not options.maps:
        raise InputError("--verdicts needs the maps that were reviewed", hint="add --maps DIR")
    reader = open_maps(Path(options.maps))
    files = [Path(path) for path in options.verdicts or ()]
    lists = [read_verdicts(path, run_id(reader), reader.frames) for path in files]
    verdicts = merge_verdicts(lists)
    names = matching(reader.frames, options.frames)[:: options.every]
    chosen = {*names}
    verdicts = [verdict for verdict in verdicts if verdict.frame in chosen]
    times = {name: record.get("time") for name, record in reader.records.items()}
    unit = resampled_units(options.resample, times.get)
    result, gatherer = evaluate_verdicts(verdicts, names, resampling, unit)
    result["run"] = _recorded_model(reader.manifest) | _chosen_frames(options)
    judged = result["counts"]["judged_frames"]
    notes = []
    if dates := note_on_dates([verdict for of_file in lists for verdict in of_file]):
        notes.append(dates)
    if judged < len(names):
        notes.append(
            f"{judged} of {len(names)} frames were judged; the numbers hold for all only where "
            "these were chosen by chance"
        )
    return result, gatherer, notes


def _samples(entry: DatasetEntry, options: EvaluateOptions) -> list[Sample]:
    """Return the frames of ``--split`` that are asked for."""
    samples = {sample.name: sample for sample in split_samples(entry, options)}
    return [samples[name] for name in matching(samples, options.frames)][:: options.every]


def matching(frames: Iterable[str], pattern: str | None) -> list[str]:
    """Return the names of frames that match ``--frames``, None all; InputError where none does."""
    names, regular = (
        [*frames],
        compiled(pattern or "", f"--frames '{pattern}' is no regular expression"),
    )
    if not (chosen := [name for name in names if regular.search(composed(name))]):
        raise InputError(f"--frames '{pattern}' matches no frame; the first is {names[0]}")
    return chosen


def _chosen_frames(options: EvaluateOptions) -> dict[str, Any]:
    """Return what a result records of the choice of frames; nothing where all were taken."""
    chosen = {"frames": options.frames} if options.frames else {}
    return chosen | ({"every": options.every} if options.every > 1 else {})


def _from_model(
    folder: Path,
    options: EvaluateOptions,
    entry: DatasetEntry | None,
    new: Callable[..., Evaluator],
) -> Measured:
    from segunc.core.device import flushed_denormals, threads
    from segunc.posteriors.model import default_scores, load_model
    from segunc.scores import check_scores
    from segunc.verbs.execution import choices_record, fitted_record, make_sampler

    corruption = None if options.corruption is None else Corruption.parse(options.corruption)
    if entry is None or not options.root:
        raise InputError("--model needs a data set", hint="--dataset camvid --root data/camvid")
    samples = _samples(entry, options)
    model = load_model(folder)
    scores = check_scores(options.scores or default_scores(folder))
    with flushed_denormals(), threads(options.threads):
        # msp is what calibration is made of.
        sampler = make_sampler(model, options, check_scores((*scores, CONFIDENCE)))
        run = {
            **{"dataset": entry.name, "split": options.split, **_chosen_frames(options)},
            **{"method": model.posterior.method, "base_sha256": model.sha256},
            **{"posterior_sha256": model.posterior_sha256, **fitted_record(model, sampler)},
            **{
                "draws": sampler.draws,
                "seed": sampler.seed,
                "scheme": sampler.noise.scheme,
                **choices_record(options),
            },
            **{"scope": sampler.scope, "precision": sampler.precision, "size": options.size},
            **({} if corruption is None else {"corruption": str(corruption)}),
        }
        how: dict[str, Any] = {"size": options.size, "corruption": corruption, "run": run}
        result, evaluator = evaluate_model(sampler, model, entry, samples, scores, new, **how)
    result["run"] = run
    return result, evaluator, list(sampler.report.messages)


def split_samples(entry: DatasetEntry, options: TruthOptions) -> list[Sample]:
    """Return the frames of the split in ``--root``; :data:`SELECTION` are its validation frames, or
    what stands in for them.
    """
    root = Path(options.root or "")
    selected = options.split == SELECTION
    split = options.split or entry.usual_split(root)
    return entry.training_samples(root, "val") if selected else entry.samples(root, split)


def label_sources(options: TruthOptions) -> LabelSources:
    """Return the labels of maps that options name."""
    entry = entry_of_labels(
        options.dataset, getattr(options, "label_map", None), list(options.anomaly_class)
    )
    return LabelSources(**label_arguments(options, entry))


def label_arguments(
    options: TruthOptions,
    entry: DatasetEntry | None,
    samples: Callable[[DatasetEntry, Any], Sequence[Sample]] = split_samples,
) -> dict[str, Any]:
    """Return the labels of maps as keyword arguments of their readers: ``anomaly_labels`` and
    ``anomaly_encoding``, and of options with class labels ``labels`` and ``label_map``. They are
    the folders that the options name, whose files may be named as the data set's, or with a
    ``--root`` the files of its ``samples``, whose ``images`` are given, too. InputError where both
    are given, or nothing explains the values of class labels.
    """
    layouts = entry.layouts if entry else ()
    by_class = isinstance(options, ClassTruthOptions)
    folders = [options.anomaly_labels, getattr(options, "labels", None)]
    anomalies: Labels | None
    labels: Labels | None
    anomalies, labels = (
        LabelFolder(Path(folder), layouts) if folder else None for folder in folders
    )
    images: dict[str, Path] = {}
    if options.root:
        if entry is None or any(folders):
            raise InputError(
                "--root goes with --dataset, and without --labels and --anomaly-labels"
            )
        frames = samples(entry, options)
        images = {frame.name: frame.image for frame in frames}
        anomalies = {
            frame.name: frame.anomaly for frame in frames if frame.anomaly is not None
        } or None
        labels = {
            frame.name: frame.label for frame in frames if frame.label is not None and by_class
        } or None
        if not (anomalies or labels):
            raise InputError(f"the data set {entry.name} marks no anomalies")
    if labels is not None and (entry is None or entry.labels is None):
        raise InputError(
            "nothing says which values of --labels are which classes",
            hint="add --dataset cityscapes, or --label-map CSV",
        )
    # A label map gives the labels of the data set another meaning; masks in a folder of their own
    # keep theirs.
    masks = (
        dataset_entry(options.dataset)
        if options.anomaly_labels and options.dataset and not options.anomaly_class
        else entry
    )
    arguments: dict[str, Any] = {
        "anomaly_labels": anomalies,
        "anomaly_encoding": encoding_of_masks(masks),
        "images": images,
    }
    if by_class:
        arguments |= {
            "labels": labels,
            "label_map": entry.label_map() if labels is not None and entry else None,
        }
    return arguments
