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
from segunc.maps.pipeline import DrawOverlay, Summary, run_pipeline
from segunc.maps.shards import Shard, all_shards, iterate_records, parse_shard
from segunc.maps.statistics import Region
from segunc.maps.store import Maps, MapsWriter
from segunc.options import PredictOptions, several, takes
from segunc.posteriors.files import load_model
from segunc.posteriors.model import Model, default_scores
from segunc.processing.frames import FrameProcess
from segunc.processing.tiles import NEEDED_SCORE, Tiling
from segunc.sampling.sampler import Sampler
from segunc.scores import SCORES, check_scores, first_shown
from segunc.verbs.execution import Execution, calibration_record, choose_execution, make_sampler, noise_record

MAX_WRITERS = 8
USUAL_FRAME_RATE = 25.0
"""Frames per second of a video that does not say its rate."""


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
ENGINES: Registry[Callable[[PredictOptions, OnInput | None, OnNote | None], PredictResult]] = Registry(
    "engine", "segunc.engines", {"ray": "segunc.verbs.cluster:predict_on_cluster"}
)
"""Where ``--engine`` computes, other than ``local``."""


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
    if options.engine != "local":
        return ENGINES[options.engine](options, on_input, on_note)
    results, failures, notes = [], [], dict[str, None]()
    with open_job(options) as job:
        job.say_left_out(on_note)
        for place, target in enumerate(job.inputs):
            try:
                execution = execution_of(job, place)
                summary = predict_shard(job, place, job.shard, execution)
                if isinstance(source := job.sources[place], ImageSource):
                    source.depth.warn(source.path)
                notes |= dict.fromkeys(execution.notes)
                results.append(_result(job, place, execution, summary))
                if on_input is not None:
                    on_input(results[-1])
                failure = summary.failure
            except (InputError, PartialFailure) as error:
                if len(job.inputs) == 1:
                    raise
                failure = str(error)
            if failure:
                failures.append(f"{target.label}: {failure}" if target.label else failure)
    notes |= dict.fromkeys(job.sampler.report.messages)
    failure = failures[0] if failures else ""
    if failures and len(job.inputs) > 1:
        failure = f"{len(failures)} of {len(job.inputs)} inputs failed; {'; '.join(failures)}"
    return PredictResult(Path(options.out), tuple(results), tuple(notes), failure, job.left_out)


@dataclass(frozen=True)
class Job:
    """A run that is ready to begin: its options, what those of them that are texts mean, the model and the opened inputs."""

    options: PredictOptions
    inputs: tuple[Input, ...]
    sources: tuple[FrameSource, ...]
    shard: Shard
    scores: tuple[str, ...]
    region: Region | None
    thresholds: Mapping[str, float]
    overlay: str | None  # the score
    tiling: Tiling | None
    model: Model
    sampler: Sampler
    recorded_threads: int | None  # of a run that is continued

    @property
    def left_out(self) -> tuple[str, ...]:
        """What of the inputs is left out."""
        return tuple(source.note for source in self.sources if source.note)

    def say_left_out(self, say: OnNote | None) -> None:
        if say is not None:
            for note in self.left_out:
                say(note)


@contextlib.contextmanager
def open_job(options: PredictOptions) -> Iterator[Job]:
    """Check all options, then open the inputs and load the model. Meanwhile torch computes on the threads that were asked for."""
    shard = parse_shard(options.shard) if options.shard else Shard()
    selection = Selection(options.every, *(parse_time(t) if t else None for t in (options.start, options.end)))
    region = Region(Path(options.mask)) if options.mask else None
    inputs = tuple(plan_inputs([str(spec) for spec in several(options.input)], Path(options.out)))
    tiling = _tiling(options)
    scores = tuple(check_scores(options.scores or default_scores(Path(options.model))))
    (shown,) = check_scores([options.overlay_score or first_shown(scores)])
    thresholds = _component_thresholds(options.component_threshold, scores)
    # One number of threads serves all inputs: that of the first that was begun.
    begun = () if options.overwrite else (read_run(target.out) for target in inputs)
    recorded_threads = next((run.get("threads") for run in begun if run is not None), None)
    sources = tuple(
        open_source(target.spec, out=target.out, selection=selection, all_images=options.all_images)
        for target in inputs
    )
    for source in sources:
        if isinstance(source, ImageSource):
            source.depth.bits = options.bits
        elif options.bits is not None:
            raise InputError(f"--bits is for 16-bit images, and {source.path} is a video", hint="leave --bits out")
    model = load_model(Path(options.model))
    with flushed_denormals(), threads(recorded_threads if options.threads is None else options.threads):
        sampler = make_sampler(model, options, scores if tiling is None else check_scores([*scores, NEEDED_SCORE]))
        yield Job(
            options, inputs, sources, shard, scores, region, thresholds, shown if options.overlay else None, tiling,
            model, sampler, recorded_threads,
        )  # fmt: skip


def _tiling(options: PredictOptions) -> Tiling | None:
    if options.tile is None:
        if options.overlap is not None:
            raise InputError(f"--overlap {options.overlap} without --tile", hint="add --tile HxW")
        return None
    return Tiling(options.tile, min(options.tile) // 4 if options.overlap is None else options.overlap)


def _component_thresholds(asked: Mapping[str, float], scores: Sequence[str]) -> dict[str, float]:
    for name in asked:
        if name not in scores:
            raise InputError(
                f"--component-threshold names '{name}', which is not written", hint=f"name one of {', '.join(scores)}"
            )
    thresholds = {**{score: SCORES[score].threshold for score in SCORES if score in scores}, **asked}
    return {score: value for score, value in thresholds.items() if value is not None}


_NOT_RECORDED = ("input", "out", "verify", "overwrite", "shard", "engine", "workers", "shards", "ray_address")
"""Options of predict that decide no value of a map; the input is recorded by itself."""


def _command(options: PredictOptions) -> dict[str, Any]:
    """Return the options that are not the defaults and decide what the maps of an input are."""
    asked = {f: getattr(options, f.name) for f in fields(options) if f.name not in _NOT_RECORDED}
    changed = {f.name: value for f, value in asked.items() if value != f.default}
    return {name: os.path.abspath(v) if name in ("model", "mask") else v for name, v in changed.items()}


def recorded_options(out: Path, manifest: Mapping[str, Any]) -> PredictOptions:
    """Return what makes the damaged maps of a folder again, from the command that its manifest records; InputError where this version
    does not know that command."""
    command, spec = manifest.get("command"), manifest["run"].get("input")
    options = {f.name for f in fields(PredictOptions)} - set(_NOT_RECORDED)
    if not (isinstance(command, dict) and isinstance(spec, str) and "model" in command and command.keys() <= options):
        raise InputError(
            f"the manifest of {out} records no command of this version of segunc",
            hint="run its predict command again with --verify",
        )
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in command.items()
    }
    return PredictOptions(**values, input=spec, out=out, verify=True)


def _result(job: Job, place: int, execution: Execution, summary: Summary) -> InputResult:
    target, sampler, part = job.inputs[place], job.sampler, "" if job.shard.whole else str(job.shard)
    compiled = "compiled, " if execution.compiled else ""
    how = f"{sampler.draws} draws, chunk {execution.chunk}, {sampler.precision}, {compiled}{describe_device(sampler.device)}"
    video = overlay_video(job, place) if summary.finished + summary.skipped else None
    counts = (summary.finished, summary.skipped, summary.failed, summary.seconds)
    return InputResult(target.out, target.label, part, *counts, how, video)


def execution_of(job: Job, place: int) -> Execution:
    """Choose how an input's maps are computed: as asked for, else as its maps folder was begun, else as suits this machine."""
    recorded = None if job.options.overwrite else read_run(job.inputs[place].out)
    return choose_execution(job.options, job.tiling, job.sampler, job.sources[place], recorded)


def predict_shard(job: Job, place: int, shard: Shard, execution: Execution) -> Summary:
    """Write the maps of the input at a place, or of a shard of it; frames that fail are in the summary."""
    options, target, source = job.options, job.inputs[place], job.sources[place]
    sampler = job.sampler.with_execution(chunk=execution.chunk, compiled=execution.compiled)
    manifest = run_manifest(job, place, execution)
    overlay = overlay_drawer(job.overlay, manifest) if job.overlay else None
    kept: dict[str, Any] = {"overwrite": options.overwrite, "verify": options.verify}
    writer = MapsWriter(target.out, manifest, shard=shard, region=job.region, **kept)
    process = FrameProcess(sampler, job.scores, size=options.size, tiling=job.tiling, redraw=options.redraw)
    with ConsoleProgress(label=target.label) as show:
        return run_pipeline(
            source,
            process,
            writer,
            group=execution.group,
            writers=writer_threads(sampler.device),
            draw_overlay=overlay,
            on_progress=show,
            on_note=show.say,
        )


def writer_threads(device: torch.device) -> int:
    """Return how many threads encode and write maps: few beside a network on the CPU's cores, most cores beside one on a GPU."""
    return 2 if device.type == "cpu" else max(2, min(MAX_WRITERS, (os.cpu_count() or 4) - 2))


def run_manifest(job: Job, place: int, execution: Execution) -> dict[str, Any]:
    """Return the manifest of an input's maps."""
    options, model, sampler, tiling = job.options, job.model, job.sampler, job.tiling
    description, calibration = model.network.description, model.attachments.get("calibration")
    settings = {
        **job.sources[place].identity(),
        "base_sha256": model.sha256,
        "posterior_sha256": model.posterior_sha256,
        **calibration_record(sampler),
        "max_logit_statistics_sha256": None,  # of earlier versions, which recorded their absence
        **{key: value for one in model.used(job.scores) for key, value in one.record().items()},
        "draws": sampler.draws,
        "seed": sampler.seed,
        "scheme": sampler.noise.scheme,
        **noise_record(options),
        "scope": sampler.scope,
        "size": None if options.size is None else list(options.size),
        "tile": None if tiling is None else [*tiling.size, tiling.overlap],
        "smooth": None,  # earlier versions could average along a video; such a run is not continued
        "store": "png",
        "redraw": options.redraw,
        **({"compact": True} if options.compact else {}),
        "precision": sampler.precision,
        "compiled": execution.compiled,
        "chunk": execution.chunk,
        "group": execution.group,
        "threads": torch.get_num_threads(),
        "device": sampler.device.type,
        "maps": list(job.scores),
        "overlay": job.overlay,
        "component_thresholds": dict(job.thresholds),
        "mask_sha256": None if job.region is None else job.region.sha256,
    }
    return build_manifest(
        settings,
        job.scores,
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
        component_thresholds=dict(job.thresholds),
    ) | {"command": _command(options)}


def overlay_drawer(score: str, manifest: dict[str, Any]) -> DrawOverlay:
    """Return what draws the overlay of a frame, of a score that is written and has a fixed range."""
    from segunc.gallery.overlay import Legend, display_range, draw_overlay, frame_caption

    if score not in manifest["maps"]:
        raise InputError(f"--overlay-score {score} is not among the maps that are written", hint="add it to --scores")
    if SCORES[score].colours is None:
        fixed = ", ".join(name for name in SCORES if SCORES[name].colours)
        raise InputError(f"--overlay-score {score} has no fixed range of colours", hint=f"use one of {fixed}")
    legend = Legend.of(manifest, score, display_range(score))

    def draw(frame: Frame, maps: Maps) -> Image:
        assert frame.image is not None
        caption = frame_caption(frame.name, frame.time)
        return draw_overlay(frame.image, np.asarray(maps[score]), legend, caption=caption)

    return draw


def overlay_video(job: Job, place: int) -> Path | None:
    """Write ``overlay.webm`` of the overlays of a finished video, each at its time."""
    from segunc.gallery.pictures import write_video

    out, source = job.inputs[place].out, job.sources[place]
    manifest = read_manifest(out) or {}
    if not job.overlay or source.kind != "video" or manifest.get("status") != "finished":
        return None
    records = iterate_records(out, all_shards(manifest))
    shown = [(inside(out, record["files"][OVERLAY]), record.get("time")) for record in records]
    rate = (source.fps or USUAL_FRAME_RATE) / source.selection.every
    return write_video([path for path, _ in shown], out / f"{OVERLAY}.webm", rate, [time for _, time in shown])
