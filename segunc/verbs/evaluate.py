"""``segunc evaluate``: metrics from maps on disk, from a model in one pass, or from verdicts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from segunc.core.errors import InputError
from segunc.core.files import file_sha256, write_atomically, write_result
from segunc.core.places import without_place
from segunc.core.removal import check_result, remove_result
from segunc.core.results import VerbResult
from segunc.core.terminal import counted
from segunc.core.urls import is_url, local_folder, shown_url
from segunc.core.version import full_version, now
from segunc.data.corruptions import Corruption
from segunc.data.datasets import (
    DATA_OF_PROGRAM,
    dataset_entry,
    entry_of_labels,
    is_data_set,
    without_none_words,
)
from segunc.data.entries import DatasetEntry, Sample, encoding_of_masks
from segunc.data.frame_names import HINT_PATTERNS, LABEL_FOLDERS, compiled_pattern, composed
from segunc.data.training_frames import SELECTION
from segunc.decisions.flags import (
    CALIBRATED_ON,
    SAME_BYTES,
    Threshold,
    read_thresholds,
    smallest_object_of,
)
from segunc.decisions.guarantee import FITTED_KEYS, RISKS, SETTINGS
from segunc.evaluation.comparison import heading
from segunc.evaluation.evaluator import Evaluator, Gatherer, Measures, Result
from segunc.evaluation.from_maps import NO_LABEL, MapsSource, evaluate_maps
from segunc.evaluation.from_model import ModelSource, evaluate_model
from segunc.evaluation.from_verdicts import evaluate_verdicts
from segunc.evaluation.parts import CONFIDENCE
from segunc.evaluation.resampling import (
    Replicates,
    Resampling,
    encoded_replicates,
    is_sidecar,
    load_results,
    record_replicates,
    resampled_units,
    sidecar_path,
)
from segunc.evaluation.small_objects import small_objects_of
from segunc.evaluation.tables import exceeded, promised, unproven
from segunc.gallery.review_page import run_id
from segunc.maps.known_frames import note_on_known_maps
from segunc.maps.labelled import LabelFolder, LabelSources, open_maps
from segunc.maps.learned_frames import learned_among, learned_words
from segunc.maps.manifest import is_ours, read_manifest
from segunc.maps.shards import FrameRecords, all_shards
from segunc.maps.verdicts import (
    Verdict,
    merge_verdicts,
    note_on_changes,
    note_on_dates,
    note_on_thresholds,
    read_verdict_files,
)
from segunc.metrics.objects import ObjectBins
from segunc.options import (
    ClassTruthOptions,
    EvaluateOptions,
    TruthOptions,
    is_source,
    recorded_command,
    takes,
)
from segunc.scores import FITTED_EVIDENCE, fitted_behind
from segunc.verbs.model_cache import model_folder

if TYPE_CHECKING:  # whoever evaluates maps loads no torch
    from segunc.posteriors.model import Model
    from segunc.sampling.sampler import Sampler

OptionsOfTruth = TypeVar("OptionsOfTruth", bound=TruthOptions)
SIDECAR = "what evaluate writes beside a result"
CHOSEN_WORDS = {
    "weights": "its weights",
    "epoch": "its best epoch",
    "posterior": "its posterior",
    "calibration": "its temperature",
    "anomaly": "its anomaly score",
    "features": "its features",
    "class_sets": "its class sets",
}
"""What is chosen or fitted on frames, in words."""
FITTED_NAMES = ("calibration", *FITTED_EVIDENCE)
"""Which of these :func:`fitted_in_use` knows; everything else has a part in all scores."""
_NOT_WITH_VERDICTS = (
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
)


@dataclass(frozen=True, repr=False)
class EvaluateResult(VerbResult):
    """What was measured.

    Attributes:
        path: the JSON file; None if none was asked for.
        numbers: the content of the file.
        figures: the files of figures.
        notes: what a user should know.
        failure: how many frames could not be counted, in one line; empty where all were.
        exceeded: a line on each promise that the achieved risk exceeds.
    """

    path: Path | None
    numbers: Result
    figures: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()
    failure: str = ""
    exceeded: tuple[str, ...] = ()

    def __getitem__(self, score: str) -> SimpleNamespace:
        """The numbers of a score over all pixels: auroc, aupr, fpr95, best_f1 and threshold.

        A number that cannot be measured is None.
        """
        return SimpleNamespace(**self.numbers["scores"][score]["pooled"])


@dataclass(frozen=True)
class FrameChoice:
    """Which frames are evaluated: every N-th of those whose names match a pattern."""

    pattern: str | None = None
    every: int = 1

    def of(self, names: Iterable[str]) -> list[str]:
        """Return the chosen names.

        Raises:
            InputError: the pattern matches none, or is none.
        """
        return matching(names, self.pattern)[:: self.every]

    def of_samples(self, samples: Iterable[Sample]) -> list[Sample]:
        """Return the chosen samples of a data set, as :meth:`of` does."""
        by_name = {sample.name: sample for sample in samples}
        return [by_name[name] for name in self.of(by_name)]

    def record(self) -> dict[str, Any]:
        """Return what a result records of the choice; nothing where all frames are taken."""
        record: dict[str, Any] = {}
        if self.pattern:
            record["frames"] = self.pattern
        if self.every > 1:
            record["every"] = self.every
        return record


@dataclass(frozen=True)
class _Data:
    """The data that are evaluated.

    Attributes:
        options: with the data of the configuration or of the model's record, where nobody named
            any.
        entry: the data set that the labels belong to; None where no option names one.
        frames: that are chosen.
        notes: what a user should know of this choice.
        listed: the user's list of frames and their splits; None without one.
    """

    options: EvaluateOptions
    entry: DatasetEntry | None
    frames: FrameChoice
    notes: Sequence[str]
    listed: Path | None = None

    def record(self) -> dict[str, Any]:
        """Return what a result records of the choice of frames, and of the folders of the labels,
        which are named without their place on this machine."""
        record = self.frames.record()
        folders = _folders_of_labels(self.options)
        if folders:
            record["labels_in"] = folders
        if self.listed is not None:
            record["frames_sha256"] = file_sha256(self.listed)
        return record


def _folders_of_labels(options: TruthOptions) -> str:
    """Return the names of the folders of labels, without their place on this machine; empty where
    none is named.
    """
    class_folder = options.labels if isinstance(options, ClassTruthOptions) else None
    named = (class_folder, options.anomaly_labels, options.root)
    return " and ".join(_folder_name(folder) for folder in named if folder)


def _folder_name(folder: object) -> str:
    """Return the name of a folder, or of an address, without its place on this machine.

    A folder of a usual name, such as ``labels_masks``, is named with the one that it lies in, which
    tells data sets apart.
    """
    text = str(folder)
    if is_url(text):
        return shown_url(text)
    path = Path(text)
    is_usual = path.is_absolute() and path.name.endswith(LABEL_FOLDERS)
    return f"{path.parent.name}/{path.name}" if is_usual else without_place(text)


@dataclass(frozen=True)
class _Measured:
    """The numbers, the counts behind them, what a user should know, and whether frames have a time
    in a video.
    """

    result: Result
    gatherer: Gatherer
    notes: Sequence[str] = ()
    of_video: bool = False


@takes(EvaluateOptions)
def evaluate(options: EvaluateOptions) -> EvaluateResult:
    """Evaluate maps, a model or verdicts; write the result, its replicates and the figures.

    Raises:
        InputError: what was given cannot be evaluated.

    >>> out = folder / "metrics.json"
    >>> result = evaluate(model=abnn, dataset="toy", root=data, out=out, draws=4)
    >>> result.path.name, sorted(result.numbers["segmentation"])
    ('metrics.json', ['accuracy', 'miou', 'per_class'])
    """
    out = None if options.out is None else Path(options.out)
    if out is not None:
        check_result(sidecar_path(out), is_sidecar, SIDECAR)
    data = _data_of(options)
    measures = _measures_of(options)
    measured = _measure(data, measures)
    result = measured.result
    result["run"] |= _run_of(data.options, measures, command=recorded_command("evaluate", options))
    measured.gatherer.record_bootstrap(result, options.resample)
    replaced = ""
    if out is not None:
        earlier = _heading_of(out)
        _write(out, result, measured.gatherer.replicates())
        if earlier and earlier != _heading_of(out):
            replaced = f"replaces {out}, which was {earlier}"
    small_objects = small_objects_of(result).warning
    kept, broken = _promises(result)
    return EvaluateResult(
        path=out,
        numbers=result,
        figures=_figures(options, measured),
        notes=(
            *data.notes,
            *measured.notes,
            *([replaced] if replaced else []),
            *([small_objects] if small_objects else []),
            *_notes_on_thresholds(measures.flag, _manifest_of(options)),
            *_notes_on_groups(measures.flag, data.frames),
            *_note_on_neighbours(options, measured),
            *kept,
        ),
        failure=_failure(result),
        exceeded=tuple(broken),
    )


def _note_on_neighbours(options: EvaluateOptions, measured: _Measured) -> Iterator[str]:
    """Yield a note on intervals over the single frames of a video, which resemble each other."""
    if options.resample == "frame" and measured.of_video and measured.result["intervals"]:
        yield (
            "intervals are over single frames, and frames of one video resemble each other, so "
            "they may be too narrow; --resample 10s takes blocks of 10 seconds, --resample folder "
            "whole drives"
        )


def _measures_of(options: EvaluateOptions) -> Measures:
    """Return what is measured, whatever is evaluated."""
    if options.fps and not options.maps:
        raise InputError(
            "--fps needs --maps, because it gives times to the frames of maps",
            hint="give --maps, or leave out --fps",
        )
    resampling = Resampling(options.replicates)
    flag = read_thresholds(options.flag)
    return Measures(
        protocols=options.protocols,
        tracks=options.components or (),
        by=[ObjectBins.of(kind) for kind in options.by if kind != "none"],
        groups=options.groups,
        flag=flag,
        smallest_object=smallest_object_of(flag, options.smallest_object),
        resampling=resampling,
        resample=options.resample,
    )


def _measure(data: _Data, measures: Measures) -> _Measured:
    """Evaluate verdicts, maps or a model, whichever the options name."""
    options = data.options
    if options.verdicts:
        return _from_verdicts(data, measures)
    if options.maps and not options.model:
        return _from_maps(local_folder(options.maps), data, measures)
    if options.model and not options.maps:
        folder = model_folder(options.model, trust=options.trust)
        return _from_model(folder, data, measures)
    raise InputError("exactly one of --maps and --model says what to evaluate")


def _run_of(options: EvaluateOptions, measures: Measures, command: str) -> dict[str, Any]:
    """Return what every result records of how it was made."""
    run: dict[str, Any] = {"segunc": full_version(), "date": now(), "command": command}
    if not options.verdicts:
        run["smallest_object"] = measures.smallest_object
    if measures.flag:
        smallest = {score: threshold.smallest for score, threshold in measures.flag.items()}
        run["smallest_region"] = smallest
        run["thresholds"] = _thresholds_record(measures.flag)
    manifest = _manifest_of(options)
    source = (manifest or {}).get("run", {})
    if any(threshold.claims(source) for threshold in measures.flag.values()):
        run["calibration_input"] = True
    if options.fps:
        run["fps"] = options.fps
    if options.anomaly_class:
        run["anomaly_classes"] = list(options.anomaly_class)
    return run


def _thresholds_record(flag: Mapping[str, Threshold]) -> dict[str, dict[str, str]]:
    """Return name and SHA-256 of the file of each score's threshold; bare values have none."""
    record = {}
    for score, threshold in flag.items():
        if threshold.guarantee is not None:
            record[score] = {"file": threshold.source, "sha256": threshold.sha256}
    return record


def _heading_of(path: Path) -> str:
    """Return what the result in a file is of; empty where there is no file."""
    if not path.exists():
        return ""
    try:
        return heading(load_results([path], ["a result of"])[0])
    except InputError:
        return "no result that can be read"


def _write(out: Path, result: Result, replicates: Replicates) -> None:
    """Write a result, and its replicates beside it; the result gets the hash of their file."""
    encoded = None
    if replicates.paths:
        encoded = encoded_replicates(replicates)
        record_replicates(result, encoded)
    # Those of an earlier result would pass for this one's, also after a kill in between.
    remove_result(sidecar_path(out), is_sidecar, SIDECAR)
    write_result(out, result)
    if encoded is not None:
        write_atomically(sidecar_path(out), encoded)


def _figures(options: EvaluateOptions, measured: _Measured) -> tuple[Path, ...]:
    """Draw the figures that are asked for, named like the result or what was evaluated."""
    if not options.plots:
        return ()
    from segunc.plots import write_plots

    if options.out is not None:
        name = Path(options.out).stem
    else:
        evaluated = Path(str(options.model)) if options.model else local_folder(options.maps or "")
        name = evaluated.resolve().name
    return tuple(write_plots(measured.gatherer, measured.result, Path(options.plots), name))


def _manifest_of(options: EvaluateOptions) -> Mapping[str, Any] | None:
    """Return the manifest of the maps; None of a model, and of maps of another tool."""
    if options.maps and is_ours(local_folder(options.maps)):
        return read_manifest(local_folder(options.maps))
    return None


def _data_of(options: EvaluateOptions) -> _Data:
    """Return the data that options name, or else a configuration or the record of a model."""
    truth = _truth_of(options)
    options = truth.options
    entry = truth.entry
    notes = list(truth.notes)
    if options.root and entry and options.split is None:
        options = replace(options, split=entry.usual_split(Path(options.root)))
        notes.append(f"split {options.split} of {entry.name} is evaluated; --split names another")
    choice = FrameChoice(options.frames, options.every)
    return _Data(options, entry, choice, notes, truth.listed)


@dataclass(frozen=True)
class _Truth(Generic[OptionsOfTruth]):
    """The data that labels belong to.

    Attributes:
        options: of a verb, with the data of the configuration or of the model's record, where no
            option names any.
        entry: the data set that the labels belong to; None where nothing names one.
        listed: the user's list of frames and their splits; None without one.
        notes: what a user should know of the data.
    """

    options: OptionsOfTruth
    entry: DatasetEntry | None
    listed: Path | None
    notes: Sequence[str]


def _truth_of(options: OptionsOfTruth) -> _Truth[OptionsOfTruth]:
    """Return the data that the labels of a verb belong to."""
    notes: list[str] = []
    listed = None
    label_map = None
    declared = _declared_data(options)
    if declared is not None and _is_in_folders(options):
        if _explains_classes(options, declared):
            label_map = declared.content.get("labels")
        options = _with_declared_classes(options, declared, notes)
    elif declared is not None:
        options = _with_declared(options, declared.content)
        label_map = declared.content.get("labels")
        if options.dataset == declared.content.get("dataset"):
            listed = declared.content.get("frames")
        notes.append(f"data: {options.dataset} in {options.root}, from {declared.source}")
    if isinstance(options, ClassTruthOptions):
        label_map = options.label_map
    classes = list(options.anomaly_class)
    entry = entry_of_labels(options.dataset, label_map, classes, listed)
    return _Truth(options, entry, None if listed is None else Path(listed), notes)


def _is_in_folders(options: TruthOptions) -> bool:
    """Return whether options name the folders that hold the labels of maps."""
    if isinstance(options, EvaluateOptions) and not options.maps:
        return False
    if isinstance(options, ClassTruthOptions) and options.labels:
        return True
    return bool(options.anomaly_labels)


@dataclass(frozen=True)
class _DeclaredData:
    """The section ``data`` of a configuration or of a model's record, and where it stands."""

    content: Mapping[str, Any]
    source: str


def _declared_data(options: TruthOptions) -> _DeclaredData | None:
    """Return the data of the configuration, or of the model's record where no option names any."""
    if options.config:
        from segunc.training.config import read_config, with_own_paths

        config = Path(options.config)
        section = read_config(config).get("data")
        if not isinstance(section, dict):
            raise InputError(
                f"{options.config} has no section data", hint="data: {dataset: NAME, root: DIR}"
            )
        content = without_none_words(with_own_paths(section, config))
        return _DeclaredData(content, str(options.config)) if content else None
    if not isinstance(options, EvaluateOptions):
        return None
    named = (
        options.dataset,
        options.root,
        options.labels,
        options.anomaly_labels,
        options.label_map,
    )
    if options.model and not is_source(options.model) and not any(named):
        from segunc.training.config import recorded_data

        recorded = recorded_data(Path(options.model))
        return _DeclaredData(recorded, "the record of the model") if recorded else None
    return None


def _with_declared_classes(
    options: OptionsOfTruth, declared: _DeclaredData, notes: list[str]
) -> OptionsOfTruth:
    """Return options that name the folders of labels, completed with the meaning of class labels.

    Masks of anomalies say themselves what they mean, so nothing declared is of use for them alone.
    """
    if not _names_classes(options):
        notes.append(
            f"{declared.source} is not used, because --anomaly-labels names the labels of the maps"
        )
        return options
    if not _explains_classes(options, declared):
        return options
    completed = replace(options, dataset=declared.content.get("dataset"))
    if not isinstance(completed, ClassTruthOptions):
        return completed
    anomaly_classes = completed.anomaly_class
    if not completed.anomaly_labels:
        anomaly_classes = [*anomaly_classes] or _declared_anomalies(declared.content)
    return replace(
        completed, label_map=declared.content.get("labels"), anomaly_class=anomaly_classes
    )


def _names_classes(options: TruthOptions) -> bool:
    """Return whether the folders of labels that options name hold classes."""
    holds_classes = isinstance(options, ClassTruthOptions) and bool(options.labels)
    return holds_classes or bool(options.anomaly_class)


def _explains_classes(options: TruthOptions, declared: _DeclaredData) -> bool:
    """Return whether declared data say what the values of class labels in folders mean."""
    if not _names_classes(options) or options.dataset:
        return False
    return not (isinstance(options, ClassTruthOptions) and options.label_map)


def _declared_anomalies(content: Mapping[str, Any]) -> list[str]:
    """Return the classes that declared data hold out as anomalies."""
    classes = content.get("anomaly_class") or []
    if isinstance(classes, str):
        return [name.strip() for name in classes.split(",")]
    return [*classes]


def _with_declared(options: OptionsOfTruth, content: Mapping[str, Any]) -> OptionsOfTruth:
    """Return options completed with declared data: what an option names stays."""
    completed = replace(
        options,
        dataset=options.dataset or content.get("dataset"),
        root=options.root or content.get("root"),
        anomaly_class=[*options.anomaly_class] or _declared_anomalies(content),
    )
    if isinstance(completed, ClassTruthOptions):
        return replace(completed, label_map=completed.label_map or content.get("labels"))
    return completed


def _notes_on_thresholds(
    flag: Mapping[str, Threshold], manifest: Mapping[str, Any] | None
) -> Iterator[str]:
    """Yield what a user should know of thresholds with a promise.

    One may have been calibrated on the input of these maps. For one of an earlier version, labelled
    regions of any size are objects.
    """
    for threshold in flag.values():
        if threshold.claims((manifest or {}).get("run", {})):
            yield (
                f"{threshold.source} was calibrated on frames of the same input, "
                "so these frames resemble those; another drive tests its promise better"
            )
        if threshold.guarantee and not threshold.guarantee.smallest_object:
            yield (
                f"{threshold.source} counts labelled regions of any size as objects; "
                "so does this result"
            )


def _notes_on_groups(flag: Mapping[str, Threshold], frames: FrameChoice) -> Iterator[str]:
    """Yield a note on each threshold of one group of frames, unless the user chose frames: no
    record says which frames are of the group.
    """
    if frames.pattern is not None:
        return
    for threshold in flag.values():
        if threshold.group:
            yield (
                f"{threshold.source}:{threshold.group} promises something of frames of the group "
                f"{threshold.group} alone, and the achieved risk counts all frames here; --frames "
                "chooses those of the group"
            )


def _promises(result: Result) -> tuple[list[str], list[str]]:
    """Return a line on each promise that these units keep, and on each that they exceed."""
    kept = []
    broken = []
    for score, control, numbers in promised(result):
        risk = RISKS[control]
        units = f"mean over {counted(numbers['units'], 'other unit')}"
        achieved = f"{numbers['risk']:.3g}"
        level = f"{numbers['level']:.3g}"
        if exceeded(numbers):
            line = (
                f"PROMISE EXCEEDED: by {score}, {risk} are {achieved}, {units}, "
                f"and {level} was promised"
            )
            small_objects = small_objects_of(result).share
            if control == "missed-objects" and small_objects:
                line += f"; {small_objects}"
            broken.append(line)
        else:
            promise = numbers.get("promise", f"{risk}, of at most {level}.")
            line = (
                f"promised: {promise} Achieved, {units}: {achieved}, of {level}; "
                f"{numbers['upper']:.3g} at most, with 95 % confidence"
            )
            if unproven(numbers):
                line += f". That is above {level}, so these units do not prove the promise"
            kept.append(line)
    return kept, broken


def _failure(result: Result) -> str:
    """Return how many frames could not be counted, in one line; empty where all were."""
    # A frame without a label was not asked about, and one of a calibration must not be counted; any
    # other that is missing from the numbers is a failure.
    expected = (NO_LABEL, CALIBRATED_ON, SAME_BYTES)
    failed = [entry for entry in result["left_out"] if entry["reason"] not in expected]
    if not failed:
        return ""
    first = failed[0]
    return (
        f"{len(failed)} of {result['counts']['frames']} frames could not be counted, "
        f"first {first['frame']} ({first['reason']}); "
        "the numbers are of the others, with every reason under left_out"
    )


def _from_maps(maps: Path, data: _Data, measures: Measures) -> _Measured:
    options = data.options
    if options.corruption is not None:
        raise InputError(
            "--corruption needs --model, because maps on disk cannot be corrupted afterwards",
            hint="--model DIR instead of --maps",
        )
    if not (options.root or options.labels or options.anomaly_labels):
        raise InputError(
            "--maps needs labels",
            hint="give --config, --labels, --anomaly-labels, or --dataset with --root",
        )
    labels = _labels_of(options, data.entry, data.frames.of_samples)

    def choose(names: Sequence[str]) -> Sequence[str]:
        if not options.root:
            return data.frames.of(names)
        # The samples of the data set were chosen; of others, whose names may be longer, none is
        # said to lack a label.
        searched = compiled_pattern(options.frames or "")
        return [name for name in names if searched.search(composed(name))] or names

    source = MapsSource(maps, options.scores, choose, options.fps)
    result, evaluator = evaluate_maps(source, labels, measures)
    run = _recorded_model(_manifest_of(options)) | data.record()
    run["maps_in"] = _folder_name(options.maps)
    if data.entry is not None:
        run["dataset"] = data.entry.name
        if options.root:
            run["split"] = options.split
    if labels.anomaly_labels is not None:
        run["mask_values"] = str(labels.anomaly_encoding)
    result["run"] = run
    manifest = _manifest_of(options) or {}
    model = manifest.get("model") or {}
    used = fitted_in_use(model, run, _measured_scores(result, evaluator))
    notes = [
        *_note_on_copies(evaluator),
        *_notes_on_choices(model, used, data),
        *_notes_on_learned(model, used, run, evaluator, images_of_run(manifest)),
        *_notes_on_known(used, manifest, maps, evaluator),
    ]
    of_video = any(evaluator.time_of(frame) is not None for frame in evaluator.images)
    return _Measured(result, evaluator, notes, of_video)


def _notes_on_known(
    used: Collection[str], manifest: Mapping[str, Any], maps: Path, evaluator: Evaluator
) -> Iterator[str]:
    """Yield a note on frames that the bank of features seems to hold, where it has a part in the
    scores.

    Args:
        used: see :func:`fitted_in_use`.
        manifest: of the maps; empty for maps of another tool.
        maps: the folder.
        evaluator: of the frames.
    """
    if "features" not in used or not manifest:
        return
    all_records = FrameRecords(maps, all_shards(dict(manifest)))
    records = {name: all_records.get(name, {}) for name in evaluator.images}
    note = note_on_known_maps(manifest, records)
    if note:
        yield note


def _recorded_model(manifest: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a manifest says of the model of its maps and how it was drawn.

    Maps of another tool have no manifest and say nothing.
    """
    run = (manifest or {}).get("run", {})
    kept = ("base_sha256", "posterior_sha256", *SETTINGS, *FITTED_KEYS)
    return {key: run[key] for key in kept if key in run}


def _reviewed_maps(options: EvaluateOptions) -> Path:
    """Return the folder of the maps that verdicts are on; refuse what does not go with verdicts."""
    for name in _NOT_WITH_VERDICTS:
        if getattr(options, name):
            other = name.replace("_", "-")
            raise InputError(
                f"--verdicts and --{other} do not go together: verdicts are evaluated alone"
            )
    if not options.maps:
        raise InputError("--verdicts needs the maps that were reviewed", hint="add --maps DIR")
    return local_folder(options.maps)


def _from_verdicts(data: _Data, measures: Measures) -> _Measured:
    options = data.options
    reader = open_maps(_reviewed_maps(options))
    files = [Path(path) for path in options.verdicts or ()]
    on_images = read_verdict_files(files, run_id(reader), reader)
    names = data.frames.of(reader.frames)
    chosen = {*names}
    verdicts = [verdict for verdict in merge_verdicts(on_images.lists) if verdict.frame in chosen]
    if on_images.left_out and not any(verdict.verdict for verdict in verdicts):
        raise InputError(
            f"no verdict counts: {on_images.notes[0]}",
            hint="make the review page again, judge the new images, then export",
        )
    times = {name: record.get("time") for name, record in reader.records.items()}
    unit = resampled_units(measures.resample, times.get)
    result, gatherer = evaluate_verdicts(
        verdicts,
        names,
        measures.resampling,
        unit,
        stamp_of=reader.image_hash,
        video=(reader.manifest or {}).get("run", {}).get("input_hash"),
    )
    result["run"] = _recorded_model(reader.manifest) | data.record()
    result["run"]["maps_in"] = _folder_name(options.maps)
    # The command names the files, and a file of the same name may be another one later.
    result["run"]["verdict_files"] = [
        {"file": path.name, "sha256": file_sha256(path)} for path in files
    ]
    judged = result["counts"]["judged_frames"]
    notes = on_images.notes + _notes_on_verdicts(on_images.lists, verdicts, judged, len(names))
    of_video = any(times[frame] is not None for frame in gatherer.images)
    return _Measured(result, gatherer, notes, of_video)


def _notes_on_verdicts(
    lists: Sequence[Sequence[Verdict]], evaluated: Sequence[Verdict], judged: int, frames: int
) -> list[str]:
    """Return what a user should know of verdicts.

    Args:
        lists: the verdicts of each file.
        evaluated: the merged ones that are evaluated.
        judged: number of frames that were judged.
        frames: number of frames that could be.
    """
    notes: list[str] = []
    every_verdict: list[Verdict] = []
    for verdicts in lists:
        every_verdict += verdicts
    told = (
        note_on_dates(every_verdict),
        note_on_changes(every_verdict),
        note_on_thresholds(evaluated),
    )
    notes += [note for note in told if note]
    if judged < frames:
        notes.append(
            f"{judged} of {frames} frames were judged; the numbers hold for all only where "
            "these were chosen by chance"
        )
    return notes


def matching(frames: Iterable[str], pattern: str | None) -> list[str]:
    """Return the names of frames that match ``--frames``; None matches all.

    Raises:
        InputError: the pattern matches none, or is none.
    """
    names = list(frames)
    if pattern is None:
        return names
    searched = compiled_pattern(pattern)
    chosen = [name for name in names if searched.search(composed(name))]
    if not chosen:
        raise InputError(
            f"--frames '{pattern}' matches no frame; the first frame is named {names[0]}",
            hint=HINT_PATTERNS,
        )
    return chosen


def _from_model(folder: Path, data: _Data, measures: Measures) -> _Measured:
    from segunc.core.device import flushed_denormals, threads
    from segunc.posteriors.map_records import model_record
    from segunc.posteriors.model import default_scores, load_model
    from segunc.scores import check_scores
    from segunc.verbs.execution import make_sampler

    options = data.options
    corruption = None
    if options.corruption is not None:
        corruption = Corruption.parse(options.corruption)
    if data.entry is None or not options.root:
        hint = "--dataset camvid --root data/camvid, or --config with the file of segunc init"
        if options.anomaly_labels or options.labels:
            hint += "; labels in a folder of their own need maps: segunc predict, then --maps MAPS"
        raise InputError("--model needs a data set", hint=hint)
    samples = data.frames.of_samples(split_samples(data.entry, options))
    model = load_model(folder)
    if corruption is not None:
        model.network.description.check_colour("--corruption")
    scores = check_scores(options.scores or default_scores(folder))
    with flushed_denormals(), threads(options.threads):
        # The calibration is made of the score msp.
        sampler = make_sampler(model, options, check_scores((*scores, CONFIDENCE)))
        run = {
            "dataset": data.entry.name,
            "split": options.split,
            **data.record(),
            **_run_of_sampler(model, sampler, options),
        }
        if corruption is not None:
            run["corruption"] = str(corruption)
        source = ModelSource(model, sampler, scores, options.size, corruption, run)
        result, evaluator = evaluate_model(source, data.entry, samples, measures)
    result["run"] = run
    provenance = model.record.get("provenance")
    record = model_record(model.network, model.posterior, provenance, model.attachments)
    used = fitted_in_use(record, run, _measured_scores(result, evaluator))
    notes = [
        *_note_on_splits(model, data),
        *_note_on_copies(evaluator),
        *_notes_on_choices(record, used, data),
        *_notes_on_learned(record, used, run, evaluator),
        *sampler.report.messages,
    ]
    return _Measured(result, evaluator, notes)


def _note_on_splits(model: Model, data: _Data) -> Iterator[str]:
    """Yield a note if the list of frames has changed since the network was trained with it."""
    trained = model.network.description.provenance.get("frames_sha256")
    if data.listed is not None and trained not in (None, file_sha256(data.listed)):
        yield (
            f"{data.listed} has changed since the network was trained: frames of this split "
            "may be frames that it was trained on"
        )


def fitted_in_use(
    model: Mapping[str, Any], run: Mapping[str, Any], scores: Iterable[str]
) -> frozenset[str]:
    """Return which of what was fitted on a model has a part in scores.

    Args:
        model: what a manifest records of it.
        run: what the manifest, or a result, records of its run.
        scores: that are evaluated, or that a threshold is on.
    """
    calibration = model.get("calibration") or {}
    return fitted_behind(
        scores,
        (run.get("anomaly") or {}).get("parts"),
        calibrates=calibration.get("applies", "logits"),
    )


def _records_of_choices(
    model: Mapping[str, Any], used: Collection[str]
) -> Iterator[Mapping[str, Any]]:
    """Yield the records of what was chosen or fitted on which frames, without what has no part in
    the scores; ``used`` is of :func:`fitted_in_use`.
    """
    records = model.get("chosen_on")
    if records is None:  # maps of earlier versions
        fitted_on = (model.get("calibration") or {}).get("fitted_on", {})
        records = [{"what": "calibration", **fitted_on}]
    for record in records:
        unused = record["what"] in FITTED_NAMES and record["what"] not in used
        if not unused:
            yield record


def chosen_words(model: Mapping[str, Any], used: Collection[str], dataset: str, split: str) -> str:
    """Return what a model owes to a split of a data set, in the beginning of a sentence; empty
    where no record says so.

    Args:
        model: what a manifest records of it.
        used: see :func:`fitted_in_use`.
        dataset: the data set of the frames.
        split: their split; ``selection`` are frames of train that stand in for val.
    """
    # Earlier versions recorded the substitute as val.
    splits = (SELECTION, "val") if split == SELECTION else (split,)
    named = ""
    chosen = []
    for record in _records_of_choices(model, used):
        if record.get("dataset") != dataset or record.get("split") not in splits:
            continue
        named = SELECTION if SELECTION in (named, record["split"]) else record["split"]
        name = record["what"]
        chosen.append(CHOSEN_WORDS.get(name, name))
    if not chosen:
        return ""
    if named == SELECTION:
        return (
            f"these frames of the split train of the data set {dataset} stand in for val, and on "
            f"them the model got {' and '.join(chosen)}"
        )
    return (
        f"these frames are of the split {named} of the data set {dataset}, on which the model got "
        f"{' and '.join(chosen)}"
    )


def unrecorded_words(model: Mapping[str, Any], used: Collection[str], *, of_split: bool) -> str:
    """Return what was fitted on frames of which no record says whether they are those that are
    measured, in the beginning of a sentence; empty where nothing was.

    Those are frames that a program handed over, frames of images without a data set, and of the
    split of a data set where the measured frames are of no known split.

    Args:
        model: what a manifest records of it.
        used: see :func:`fitted_in_use`.
        of_split: whether the measured frames are those of a split of a data set.
    """
    fitted: dict[str, list[str]] = {}
    for record in _records_of_choices(model, used):
        name = record["what"]
        if "images" in record:
            place = f"frames of {record['images']}"
        else:
            dataset = record.get("dataset") or ""
            is_of_program = dataset == DATA_OF_PROGRAM
            is_of_split = is_data_set(dataset) and bool(record.get("split"))
            is_left_out = of_split or name not in FITTED_NAMES or not is_of_split
            if is_left_out and not is_of_program:
                continue
            place = f"the split {record['split']} of the data set {without_place(dataset)}"
            if is_of_program:
                place = "frames that a program handed over"
        fitted.setdefault(place, []).append(CHOSEN_WORDS.get(name, name))
    if not fitted:
        return ""
    parts = [f"{' and '.join(names)} on {place}" for place, names in fitted.items()]
    return (
        f"the model got {', '.join(parts)}; whether the frames here are among them is not recorded"
    )


def _note_on_copies(evaluator: Evaluator) -> Iterator[str]:
    """Yield a sentence on frames whose image is that of another one, if there are any."""
    if evaluator.copies:
        are = counted(evaluator.copies, "frame", "has")
        yield (
            f"{are} the bytes of another frame; numbers and intervals count each as a frame of its "
            "own; --frames leaves them out"
        )


def _notes_on_choices(
    model: Mapping[str, Any], used: Collection[str], data: _Data
) -> Iterator[str]:
    """Yield a note if something was chosen or fitted on the frames that are evaluated.

    Args:
        model: what a manifest records of it.
        used: see :func:`fitted_in_use`.
        data: that are evaluated.
    """
    options = data.options
    of_split = data.entry is not None and bool(options.root)
    unrecorded = unrecorded_words(model, used, of_split=of_split)
    if unrecorded:
        yield f"{unrecorded}; on other frames, numbers may be worse"
    if data.entry is None or not options.root:
        return
    words = chosen_words(model, used, str(options.dataset), _split_of(options, data.entry))
    if words:
        yield f"{words}; on frames that nothing was chosen on, numbers may be worse"


def _measured_scores(result: Result, evaluator: Evaluator) -> tuple[str, ...]:
    """Return the scores that the numbers of a result are made of: the evaluated ones, and the one
    of which the calibration is made where it has numbers.
    """
    of_calibration = result["calibration"].get("ece") is not None
    return (*evaluator.score_names, *((CONFIDENCE,) if of_calibration else ()))


def images_of_run(manifest: Mapping[str, Any]) -> str:
    """Return the folder or the video that maps are of, without the place on this machine."""
    return without_place(str(manifest.get("run", {}).get("input") or ""))


def _notes_on_learned(
    model: Mapping[str, Any],
    used: Collection[str],
    run: dict[str, Any],
    evaluator: Evaluator,
    images: str = "",
) -> Iterator[str]:
    """Yield notes on frames on which verdicts changed the bank of features, and record how many
    there are; nothing where the bank has no part in the scores.

    Args:
        model: what a manifest records of it.
        used: see :func:`fitted_in_use`.
        run: what the result records; gets ``learned_frames``.
        evaluator: of the frames.
        images: see :func:`learned_among`.
    """
    if "features" not in used or not run.get("features_sha256"):
        return
    rounds = model.get("verdicts") or []
    among = learned_among(rounds, evaluator.images, images)
    if among:
        run["learned_frames"] = len(among)
    for words in learned_words(rounds, among, len(evaluator.images)):
        yield f"{words}; numbers on such frames are too good"


def _split_of(options: TruthOptions, entry: DatasetEntry) -> str:
    """Return the name of the split in ``--root``; :data:`SELECTION` for frames of ``train`` that
    stand in for ``val``.
    """
    root = Path(options.root or "")
    split = options.split or entry.usual_split(root)
    if split != SELECTION:
        return split
    return SELECTION if entry.selects_on_train(root) else "val"


def _run_of_sampler(model: Model, sampler: Sampler, options: EvaluateOptions) -> dict[str, Any]:
    """Return what a result records of a model and how it was drawn."""
    from segunc.verbs.execution import choices_record, fitted_record

    return {
        "method": model.posterior.method,
        "base_sha256": model.sha256,
        "posterior_sha256": model.posterior_sha256,
        **fitted_record(model, sampler),
        "draws": sampler.draws,
        "seed": sampler.seed,
        "scheme": sampler.noise.scheme,
        **choices_record(options),
        "scope": sampler.scope,
        "precision": sampler.precision,
        "size": options.size,
    }


def split_samples(entry: DatasetEntry, options: TruthOptions) -> list[Sample]:
    """Return the frames of the split in ``--root``.

    :data:`SELECTION` are its validation frames, or what stands in for them.
    """
    root = Path(options.root or "")
    if options.split == SELECTION:
        return entry.training_samples(root, "val")
    return entry.samples(root, options.split or entry.usual_split(root))


def label_sources(options: TruthOptions) -> LabelSources:
    """Return the labels of maps that options name, or a configuration."""
    truth = _truth_of(options)
    named = truth.options
    notes = list(truth.notes)
    if named.config and named.root and truth.entry and named.split is None:
        named = replace(named, split=truth.entry.usual_split(Path(named.root)))
        if not _has_labels_to_show(named, truth.entry):
            notes.append(f"{named.config} names no anomaly masks, and only anomalies are outlined")
            return LabelSources(notes=tuple(notes))
        notes.append(f"labels are those of the split {named.split}; --split names another")
    labels = _labels_of(named, truth.entry)
    if named.root and truth.entry:
        split = _split_of(named, truth.entry)
        labels = replace(labels, dataset=str(named.dataset), split=split)
    return replace(labels, notes=tuple(notes), place=_folders_of_labels(named))


def _has_labels_to_show(options: TruthOptions, entry: DatasetEntry) -> bool:
    """Return whether a verb shows any of the labels of a data set: some show anomalies alone."""
    if isinstance(options, ClassTruthOptions):
        return True
    return any(sample.anomaly is not None for sample in split_samples(entry, options))


def _labels_of(
    options: TruthOptions,
    entry: DatasetEntry | None,
    choose: Callable[[Sequence[Sample]], Sequence[Sample]] = list,
) -> LabelSources:
    """Return the labels of maps: those in the folders that options name, or with ``--root`` those
    of a data set.

    Args:
        options: with or without class labels.
        entry: the data set that the labels belong to. The files of folders may be named as its
            files are.
        choose: returns the samples of the data set that are taken.

    Raises:
        InputError: both folders and ``--root`` are given, or nothing explains the values of class
            labels.
    """
    by_class = isinstance(options, ClassTruthOptions)
    class_folder = options.labels if isinstance(options, ClassTruthOptions) else None
    if options.root:
        if entry is None or options.anomaly_labels or class_folder:
            raise InputError(
                "--root goes with --dataset, and without --labels and --anomaly-labels"
            )
        samples = choose(split_samples(entry, options))
        labels = _labels_of_samples(entry, samples, by_class=by_class)
    else:
        labels = LabelSources(
            anomaly_labels=_label_folder(options.anomaly_labels, entry),
            labels=_label_folder(class_folder, entry),
        )
        if class_folder and not options.anomaly_labels and entry is not None and entry.declared:
            # As of a data set, a frame with an anomaly gives its anomaly label, others their
            # classes.
            labels = replace(
                labels, anomaly_labels=labels.labels, holds_anomaly=entry.holds_anomaly
            )
    label_map = None
    if labels.labels is not None:
        if entry is None or entry.labels is None:
            raise InputError(
                "nothing says which values of --labels are which classes",
                hint="add --dataset cityscapes, --label-map CSV, or --config with the file of "
                "segunc init",
            )
        label_map = entry.label_map()
    masks = entry
    if options.anomaly_labels and options.dataset and not options.anomaly_class:
        # A label map gives the labels of the data set another meaning; masks in a folder of their
        # own keep theirs.
        masks = dataset_entry(options.dataset)
    return replace(labels, anomaly_encoding=encoding_of_masks(masks), label_map=label_map)


def _label_folder(folder: str | Path | None, entry: DatasetEntry | None) -> LabelFolder | None:
    if not folder:
        return None
    return LabelFolder(local_folder(folder), entry.layouts if entry else (), str(folder))


def _labels_of_samples(
    entry: DatasetEntry, samples: Sequence[Sample], *, by_class: bool
) -> LabelSources:
    """Return the label files of samples, with the images that they belong to.

    Class labels are left out unless ``by_class``.
    """
    anomalies: dict[str, Path] = {}
    labels: dict[str, Path] = {}
    for sample in samples:
        if sample.anomaly is not None:
            anomalies[sample.name] = sample.anomaly
        if sample.label is not None and by_class:
            labels[sample.name] = sample.label
    if not anomalies and not labels:
        raise InputError(
            f"the data set {entry.name} marks no anomalies, and only anomalies are drawn",
            hint="name masks with --anomaly-labels, or leave the data set out",
        )
    return LabelSources(
        anomaly_labels=anomalies or None,
        labels=labels or None,
        images={sample.name: sample.image for sample in samples},
    )
