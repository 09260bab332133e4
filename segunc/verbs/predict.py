"""``segunc predict``: maps of images, folders, globs or videos."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from segunc.core.device import describe_device, flushed_denormals, threads
from segunc.core.errors import InputError, PartialFailure
from segunc.core.files import inside
from segunc.core.progress import ConsoleProgress
from segunc.core.registry import Registry
from segunc.data.images import Image
from segunc.frames.source import Frame, FrameSource, Selection, parse_time
from segunc.frames.sources import ImageSource, Input, open_source, plan_inputs
from segunc.maps.folder import OVERLAY
from segunc.maps.manifest import build_manifest, read_manifest, read_run
from segunc.maps.nearest import NearestPlaces
from segunc.maps.pipeline import DrawOverlay, FindNearest, Summary, run_pipeline
from segunc.maps.shards import Shard, all_shards, iterate_records, parse_shard
from segunc.maps.statistics import Region
from segunc.maps.store import Maps, MapsWriter
from segunc.options import PredictOptions, several, takes
from segunc.posteriors.files import load_model
from segunc.posteriors.model import Model, default_scores
from segunc.processing.frames import FrameProcess, HostMaps
from segunc.processing.means import NEEDED, Tiling
from segunc.processing.smoothing import Smoother
from segunc.sampling.sampler import Sampler
from segunc.scores import FEATURE_DISTANCE, SCORES, check_scores, first_shown
from segunc.verbs.execution import (
    Execution,
    calibration_record,
    choose_execution,
    make_sampler,
    noise_record,
)

MOST_WRITERS = 8


@dataclass(frozen=True)
class InputResult:
    """What became of one input."""

    out: Path  # its maps folder
    label: str  # how it is called where there are several
    shard: str  # the part of it that was asked for
    frames: int  # whose maps were written now
    skipped: int  # frames that were finished before
    failed: Mapping[str, str]  # frame -> why it has no maps
    seconds: float  # that the frames of now took
    how: str  # they were computed, in words
    video: Path | None = None  # of the overlays


@dataclass(frozen=True)
class PredictResult:
    """What a run did."""

    out: Path  # the maps folder, or the folder of one for each input
    inputs: tuple[InputResult, ...]  # those that came to their end
    notes: tuple[str, ...] = ()  # what a user should know
    failure: str = ""  # what went wrong meanwhile, in one line; empty where nothing did. What was finished is kept
    left_out: tuple[str, ...] = ()  # what of the inputs was taken for labels, a line for each

    @property
    def frames(self) -> int:
        """Frames whose maps were written now."""
        return sum(one.frames for one in self.inputs)

    @property
    def skipped(self) -> int:
        """Frames that were finished before."""
        return sum(one.skipped for one in self.inputs)

    @property
    def failed(self) -> dict[str, str]:
        """Frame -> why it has no maps; with several inputs, behind the input's label."""
        both = ((one.label, name, why) for one in self.inputs for name, why in one.failed.items())
        return {f"{label}/{name}" if label else name: why for label, name, why in both}

    @property
    def seconds(self) -> float:
        """That the frames of now took."""
        return sum(one.seconds for one in self.inputs)


OnInput = Callable[[InputResult], None]
OnNote = Callable[[str], None]


@takes(PredictOptions)
def predict(options: PredictOptions, on_input: OnInput | None = None, on_note: OnNote | None = None) -> PredictResult:
    """Write the maps of every input, or continue a run that was killed.

    ``on_input`` hears of each input as it ends; with ``engine="ray"`` the result tells. ``on_note`` hears of what is left out before the
    work begins; the result holds it, too.

    Raises:
        InputError: what was given cannot be predicted.
        PartialFailure: the only input came to no end; what was finished is kept.

    >>> result = predict(PredictOptions(model=abnn, input=frames, out=folder / "maps", draws=4, device="cpu"))
    >>> result.frames, result.failed
    (2, {})
    >>> len(list((result.out / "epistemic").glob("*.png")))
    2
    """
    return ENGINES[options.engine](options, on_input, on_note)


def predict_here(options: PredictOptions, on_input: OnInput | None, on_note: OnNote | None) -> PredictResult:
    """:func:`predict` in this process."""
    with read_options(options).open() as job:
        job.say_left_out(on_note)
        return _run(job, on_input)


ENGINES: Registry[Callable[[PredictOptions, OnInput | None, OnNote | None], PredictResult]] = Registry(
    "engine", "segunc.engines", {"local": predict_here, "ray": "segunc.verbs.cluster:predict_on_cluster"}
)
"""Where ``--engine`` computes."""


@dataclass(frozen=True)
class Request:
    """The options of a run, and what those of them that are texts mean: read and checked once."""

    options: PredictOptions
    inputs: tuple[Input, ...]
    selection: Selection
    shard: Shard
    scores: tuple[str, ...]
    region: Region | None
    thresholds: Mapping[str, float]
    overlay: str | None  # the score
    tiling: Tiling | None

    @contextlib.contextmanager
    def open(self) -> Iterator[Job]:
        """Open the inputs and load the model; what is computed meanwhile is on the threads that were asked for."""
        options, runs = self.options, (read_run(given.out) for given in self.inputs)
        # One number serves all inputs: that of the first that was begun.
        begun = (run.get("threads") for run in (() if options.overwrite else runs) if run is not None)
        recorded = next(begun, None)
        sources = tuple(
            open_source(given.spec, out=given.out, selection=self.selection, all_images=options.all_images)
            for given in self.inputs
        )
        for source in sources:
            if isinstance(source, ImageSource):
                source.depth.bits = options.bits
            elif options.bits is not None:
                raise InputError(f"--bits with the video {source.path}", "16-bit images", "leave it out")
        model = load_model(Path(options.model))
        by_means = self.tiling is not None or options.smooth is not None
        scores = check_scores([*self.scores, NEEDED]) if by_means else self.scores
        with flushed_denormals(), threads(recorded if options.threads is None else options.threads):
            yield Job(self, model, make_sampler(model, options, scores), sources, recorded)


def read_options(options: PredictOptions) -> Request:
    """Read and check all options; nothing is loaded or written."""
    shard = parse_shard(options.shard) if options.shard else Shard()
    selection = Selection(options.every, *(parse_time(t) if t else None for t in (options.start, options.end)))
    region = Region(Path(options.mask)) if options.mask else None
    inputs = plan_inputs([str(spec) for spec in several(options.input)], Path(options.out))
    tiling = None
    if options.tile is not None:
        tiling = Tiling(options.tile, min(options.tile) // 4 if options.overlap is None else options.overlap)
    elif options.overlap is not None:
        raise InputError(f"--overlap {options.overlap} without --tile", "both", "add --tile HxW")
    if options.nearest and tiling is not None:
        raise InputError("--nearest with --tile", "one of the two", "a tile's places are not those of its frame")
    if options.smooth is not None and not shard.whole:
        both = f"--smooth with --shard {shard}: each frame needs all before it"
        raise InputError(both, "one of the two", "give every process videos of its own")
    scores = check_scores(options.scores or default_scores(Path(options.model)))
    (shown,) = check_scores([options.overlay_score or first_shown(scores)])
    thresholds, overlay = _component_thresholds(options.component_threshold, scores), shown if options.overlay else None
    return Request(options, tuple(inputs), selection, shard, tuple(scores), region, thresholds, overlay, tiling)


_NO_COMMAND = ("input", "out", "verify", "overwrite", "shard", "engine", "workers", "shards", "ray_address")
"""Options of predict that decide no value of a map; the input is recorded by itself."""


def _command(options: PredictOptions) -> dict[str, Any]:
    """The options that are not the defaults and decide what the maps of an input are."""
    given = {f: getattr(options, f.name) for f in fields(options) if f.name not in _NO_COMMAND}
    changed = {f.name: value for f, value in given.items() if value != f.default}
    return {name: os.path.abspath(v) if name in ("model", "mask") else v for name, v in changed.items()}


def recorded_options(out: Path, manifest: Mapping[str, Any]) -> PredictOptions:
    """What makes the damaged maps of a folder again, by the command that its manifest records; InputError where it records none."""
    command, given = manifest.get("command"), manifest["run"].get("input")
    known = {f.name for f in fields(PredictOptions)} - set(_NO_COMMAND)
    if not (isinstance(command, dict) and isinstance(given, str) and "model" in command and command.keys() <= known):
        remedy = "run its predict command again with --verify"
        raise InputError(f"the manifest of {out} records no command", "one of this version", remedy)
    read: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in command.items()}
    return PredictOptions(**read, input=given, out=out, verify=True)


def _component_thresholds(given: Mapping[str, float], scores: Sequence[str]) -> dict[str, float]:
    unknown = sorted(set(given) - set(scores))
    if unknown:
        raise InputError(f"a threshold of '{unknown[0]}'", f"one of {', '.join(scores)}", "check the name")
    thresholds = {**{score: SCORES[score].threshold for score in SCORES if score in scores}, **given}
    return {score: value for score, value in thresholds.items() if value is not None}


@dataclass(frozen=True)
class Job:
    """A request with its model loaded and its inputs opened; ``recorded_threads`` are those of a run that is continued."""

    request: Request
    model: Model
    sampler: Sampler
    sources: tuple[FrameSource, ...]
    recorded_threads: int | None

    @property
    def left_out(self) -> tuple[str, ...]:
        """What of the inputs is left out."""
        return tuple(source.note for source in self.sources if source.note)

    def say_left_out(self, say: OnNote | None) -> None:
        if say is not None:
            for note in self.left_out:
                say(note)


def _run(job: Job, on_input: OnInput | None) -> PredictResult:
    results, failures, notes = [], [], dict[str, None]()
    for place, given in enumerate(job.request.inputs):
        try:
            execution = execution_of(job, place)
            summary = predict_shard(job, place, job.request.shard, execution)
            if isinstance(source := job.sources[place], ImageSource):
                source.depth.warn(source.path)
            notes |= dict.fromkeys(execution.notes)
            result = _result(job, place, execution, summary)
            results.append(result)
            if on_input is not None:
                on_input(result)
            failure = summary.failure
        except (InputError, PartialFailure) as error:
            if len(job.sources) == 1:
                raise
            failure = str(error)
        if failure:
            failures.append(f"{given.label}: {failure}" if given.label else failure)
    notes |= dict.fromkeys(job.sampler.report.messages)
    failure = failures[0] if failures else ""
    if failures and len(job.sources) > 1:
        failure = f"{len(failures)} of {len(job.sources)} inputs failed; {'; '.join(failures)}"
    return PredictResult(Path(job.request.options.out), tuple(results), tuple(notes), failure, job.left_out)


def _result(job: Job, place: int, execution: Execution, done: Summary) -> InputResult:
    given, sampler, shard = job.request.inputs[place], job.sampler, job.request.shard
    compiled = "compiled, " if execution.compilation.compiled else ""
    how = f"{sampler.draws} draws, chunk {execution.chunk}, {sampler.precision}, {compiled}{describe_device(sampler.device)}"
    video = overlay_video(job, place) if done.finished + done.skipped else None
    part = "" if shard.whole else str(shard)
    return InputResult(given.out, given.label, part, done.finished, done.skipped, done.failed, done.seconds, how, video)


def execution_of(job: Job, place: int) -> Execution:
    """How an input's maps are computed: as asked for, else as its maps folder was begun, else as suits this machine."""
    recorded = None if job.request.options.overwrite else read_run(job.request.inputs[place].out)
    return choose_execution(job.request.options, job.request.tiling, job.sampler, job.sources[place], recorded)


def predict_shard(job: Job, place: int, shard: Shard, execution: Execution) -> Summary:
    """Write the maps of the input at a place, or of a shard of it; frames that fail are in the summary."""
    request, given, source = job.request, job.request.inputs[place], job.sources[place]
    options = request.options
    sampler = job.sampler.with_execution(
        chunk=execution.chunk, group=execution.group, compiled=execution.compilation.compiled
    )
    manifest = run_manifest(job, place, execution)
    overlay = overlay_drawer(request.overlay, manifest, not options.no_caption) if request.overlay else None
    find = nearest_finder(job) if options.nearest else None
    smoother = None
    if options.smooth is not None:
        smoother = Smoother(options.smooth, given.out, interval=source.selection.every / (source.fps or 25.0))
    kept: dict[str, Any] = {"overwrite": options.overwrite, "verify": options.verify}
    writer = MapsWriter(given.out, manifest, shard=shard, region=request.region, source=source, **kept)
    how: dict[str, Any] = {"size": options.size, "tiling": request.tiling, "redraw": options.redraw}
    nearest = sampler.provider(FEATURE_DISTANCE) if options.nearest else None
    process = FrameProcess(sampler, request.scores, smoother=smoother, nearest=nearest, **how)
    with ConsoleProgress(label=given.label) as show:
        return run_pipeline(
            source,
            process,
            writer,
            group=execution.group,
            writers=writer_threads(sampler.device),
            draw_overlay=overlay,
            find_nearest=find,
            on_progress=show,
            on_note=show.say,
            sequence=smoother,
        )


def writer_threads(device: torch.device) -> int:
    """Threads that encode and write maps: few beside a network on the CPU's cores, most cores beside one on a GPU."""
    return 2 if device.type == "cpu" else max(2, min(MOST_WRITERS, (os.cpu_count() or 4) - 2))


def run_manifest(job: Job, place: int, execution: Execution) -> dict[str, Any]:
    """The manifest of an input's maps."""
    request, options, model, sampler = job.request, job.request.options, job.model, job.sampler
    description, tiling = model.network.description, request.tiling
    calibration = model.attachments.get("calibration")
    settings = {
        **job.sources[place].identity(),
        "base_sha256": model.sha256,
        "posterior_sha256": model.posterior_sha256,
        **calibration_record(sampler),
        "max_logit_statistics_sha256": None,  # of earlier versions, which recorded their absence
        **{key: value for one in model.used(request.scores) for key, value in one.record().items()},
        "draws": sampler.draws,
        "seed": sampler.seed,
        "scheme": sampler.noise.scheme,
        **noise_record(options),
        "scope": sampler.scope,
        "size": None if options.size is None else list(options.size),
        "tile": None if tiling is None else [*tiling.size, tiling.overlap],
        "smooth": options.smooth,
        "store": "png",
        "redraw": options.redraw,
        **({"nearest": True} if options.nearest else {}),
        **({"compact": True} if options.compact else {}),
        **({"captions": False} if request.overlay and options.no_caption else {}),
        "precision": sampler.precision,
        "compiled": execution.compilation.compiled,
        "chunk": execution.chunk,
        "group": execution.group,
        "threads": torch.get_num_threads(),
        "device": sampler.device.type,
        "maps": list(request.scores),
        "overlay": request.overlay,
        "component_thresholds": dict(request.thresholds),
        "mask_sha256": None if request.region is None else request.region.sha256,
    }
    return build_manifest(
        settings,
        request.scores,
        device=describe_device(sampler.device),
        classes=description.classes,
        palette=description.palette,
        source=job.sources[place].describe(),
        model={
            "architecture": f"{description.architecture} {description.encoder}",
            "method": model.posterior.method,
            "members": model.posterior.members,
            "parameters": model.posterior.settings(),
            "provenance": model.record.get("provenance"),
            "calibration": calibration and asdict(calibration),
        },
        component_thresholds=dict(request.thresholds),
    ) | {"compilation": execution.compilation.reason, "command": _command(options)}


def overlay_drawer(score: str, manifest: dict[str, Any], captions: bool = True) -> DrawOverlay:
    """Draws the overlay of a frame, of a score that is written and has a fixed range."""
    from segunc.gallery.colormap import display_range
    from segunc.gallery.overlay import Legend, draw_overlay, frame_caption

    if score not in manifest["maps"]:
        raise InputError(f"--overlay-score {score}", "one of the maps that are written", "add it to --scores")
    if SCORES[score].colours is None:
        fixed = ", ".join(name for name in SCORES if SCORES[name].colours)
        raise InputError(f"--overlay-score {score}", f"a score with a fixed range: {fixed}", "")
    legend = Legend.of(manifest, score, display_range(score))

    def draw(frame: Frame, maps: Maps) -> Image:
        assert frame.image is not None
        caption = frame_caption(frame.name, frame.time) if captions else ""
        return draw_overlay(frame.image, np.asarray(maps[score]), legend, caption=caption).picture()

    return draw


def nearest_finder(job: Job) -> FindNearest:
    """Says of a frame what of the training frames each place is most like, where scores of features are written."""
    density, bank = job.sampler.provider(FEATURE_DISTANCE), job.model.attachments.get("features")
    if density is None or bank is None:
        given = f"--nearest without a score of nearest features ({', '.join(job.request.scores)})"
        raise InputError(given, "knn, or an anomaly that has it as a part", "add knn to --scores")

    def find(frame: Frame, maps: Maps) -> NearestPlaces:
        assert isinstance(maps, HostMaps)
        assert maps.nearest is not None
        rows, distances, extent = maps.nearest
        return NearestPlaces(bank.fitted_on["dataset"], density.origins, rows.numpy(), distances.numpy(), extent)

    return find


def overlay_video(job: Job, place: int) -> Path | None:
    """Write ``overlay.webm`` of the overlays of a finished video, each at its time."""
    from segunc.gallery.video import write_video

    out, source = job.request.inputs[place].out, job.sources[place]
    manifest = read_manifest(out) or {}
    if not job.request.overlay or source.kind != "video" or manifest.get("status") != "finished":
        return None
    records = iterate_records(out, all_shards(manifest))
    shown = [(inside(out, record["files"][OVERLAY]), record.get("time")) for record in records]
    rate = (source.fps or 25.0) / source.selection.every
    return write_video([path for path, _ in shown], out / f"{OVERLAY}.webm", rate, [time for _, time in shown])
