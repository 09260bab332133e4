"""``segunc predict``: maps of images, folders, globs or a video."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from segunc.bayes.files import Model, load_model
from segunc.commands.device import describe_device, make_sampler
from segunc.commands.execution import Execution, choose_execution, writer_threads
from segunc.commands.run_overlays import overlay_drawer, write_overlay_video
from segunc.errors import InputError, PartialFailure
from segunc.maps.inputs import Input, plan_inputs
from segunc.maps.manifest import build_manifest, read_manifest, read_run
from segunc.maps.pipeline import DrawOverlay, Summary, run_pipeline
from segunc.maps.progress import ConsoleProgress
from segunc.maps.region import Region
from segunc.maps.selection import Selection, parse_time
from segunc.maps.shards import Shard, parse_shard
from segunc.maps.sources import FrameSource, open_source
from segunc.maps.statistics import COMPONENT_THRESHOLDS
from segunc.maps.store import MapsWriter
from segunc.processing.frames import FrameProcess
from segunc.processing.means import NEEDED
from segunc.processing.smoothing import Smoother, check_time_constant
from segunc.processing.tiles import Tiling
from segunc.sampling.prediction import DEFAULT_SCORES, STANDARDIZED_MAX_LOGIT, check_scores
from segunc.sampling.sampler import Sampler


@dataclass
class Job:
    """What all inputs of a run share, opened and checked."""

    model: Model
    sampler: Sampler
    scores: Sequence[str]
    region: Region | None
    inputs: Sequence[tuple[Input, FrameSource]]


def run(arguments: argparse.Namespace) -> None:
    """Write the maps of every input, or continue a run that was killed."""
    if arguments.engine == "ray":
        from segunc.commands.predict_cluster import run as run_on_cluster

        run_on_cluster(arguments)
        return
    shard = parse_shard(arguments.shard) if arguments.shard else Shard()
    job = prepare(arguments, shard)
    failures = []
    for given, source in job.inputs:
        try:
            _predict_input(arguments, job, given, source, shard)
        except (InputError, PartialFailure) as error:
            if len(job.inputs) == 1:
                raise
            failures.append(f"{given.label}: {error}")
    for message in job.sampler.report.messages:
        print(f"note: {message}")
    if failures:
        raise PartialFailure(f"{len(failures)} of {len(job.inputs)} inputs failed; {'; '.join(failures)}")


def prepare(arguments: argparse.Namespace, shard: Shard) -> Job:
    """Open the inputs, load the model and check the settings; nothing is written.

    Raises:
        InputError: what was given cannot be predicted.
    """
    selection = Selection(arguments.every, *(parse_time(t) if t else None for t in (arguments.start, arguments.end)))
    region = Region(Path(arguments.mask)) if arguments.mask else None
    inputs = plan_inputs(arguments.input, Path(arguments.out))
    _take_recorded(arguments, inputs)
    _check_processing(arguments, shard)
    scores = check_scores(arguments.scores or DEFAULT_SCORES)
    check_scores([arguments.overlay_score])
    sources = [open_source(given.spec, out=given.out, selection=selection) for given in inputs]
    model = load_model(Path(arguments.model))
    by_means = arguments.tile is not None or arguments.smooth is not None
    sampler = make_sampler(model, arguments, check_scores([*scores, NEEDED]) if by_means else scores)
    return Job(model, sampler, scores, region, list(zip(inputs, sources, strict=True)))


def _check_processing(arguments: argparse.Namespace, shard: Shard) -> None:
    """Refuse settings of tiles and smoothing that cannot work, before anything is loaded."""
    _tiling(arguments)
    if arguments.smooth is None:
        return
    check_time_constant(arguments.smooth)
    if not shard.whole:
        raise InputError(
            f"--smooth with --shard {shard}: each frame needs all before it",
            "one of the two",
            "give every process videos of its own",
        )


def _tiling(arguments: argparse.Namespace) -> Tiling | None:
    if arguments.tile is None:
        if arguments.overlap is not None:
            raise InputError(f"--overlap {arguments.overlap} without --tile", "both", "add --tile HxW")
        return None
    default = min(arguments.tile) // 4
    return Tiling(arguments.tile, default if arguments.overlap is None else arguments.overlap)


def _smoother(arguments: argparse.Namespace, given: Input, source: FrameSource) -> Smoother | None:
    if arguments.smooth is None:
        return None
    return Smoother(arguments.smooth, given.out, interval=source.selection.every / (source.fps or 25.0))


def _take_recorded(arguments: argparse.Namespace, inputs: Sequence[Input]) -> None:
    """The thread count, which holds for the whole process, is that of the first input that was begun."""
    if arguments.threads is None and not arguments.overwrite:
        runs = (read_run(given.out) for given in inputs)
        arguments.threads = next((run.get("threads") for run in runs if run is not None), None)


def run_manifest(arguments: argparse.Namespace, job: Job, source: FrameSource, execution: Execution) -> dict[str, Any]:
    """The manifest of an input's maps; brings the sampler to the seed and the execution that it names."""
    model, sampler, scores, region = job.model, job.sampler, job.scores, job.region
    sampler.reseed(arguments.seed)
    execution.apply(sampler)
    return build_manifest(
        _run_settings(arguments, model, sampler, source, scores, execution)
        | {"mask_sha256": None if region is None else region.sha256},
        scores,
        device=describe_device(sampler.device),
        classes=model.network.description.classes,
        palette=model.network.description.palette,
        source=source.describe(),
        model={
            "architecture": f"{model.network.description.architecture} {model.network.description.encoder}",
            "method": model.posterior.method,
            "members": model.posterior.members,
            "parameters": model.posterior.settings(),
            "provenance": model.record.get("provenance"),
            "calibration": None if model.calibration is None else asdict(model.calibration),
        },
        component_thresholds=_component_thresholds(arguments, scores),
    ) | {"compilation": execution.compilation.reason}


def predict_shard(
    arguments: argparse.Namespace,
    job: Job,
    given: Input,
    source: FrameSource,
    shard: Shard,
    execution: Execution | None = None,
) -> Summary:
    """Write the maps of an input, or of a shard of it; frames that fail are in the summary.

    Args:
        arguments: of the verb.
        job: with the sampler.
        given: one of its inputs.
        source: the whole of it.
        shard: of the source.
        execution: how it is computed, if that was decided elsewhere.

    Raises:
        InputError: the maps folder, the input or a setting does not fit.
        PartialFailure: a file could not be written; what was finished is kept.
    """
    execution = execution or execution_of(arguments, job, given, source)
    manifest = run_manifest(arguments, job, source, execution)
    overlay = overlay_drawer(arguments.overlay_score, manifest) if arguments.overlay else None
    smoother = _smoother(arguments, given, source)
    writer = MapsWriter(
        given.out, manifest, overwrite=arguments.overwrite, shard=shard, region=job.region, source=source
    )
    process = FrameProcess(
        job.sampler,
        job.scores,
        size=arguments.size,
        tiling=_tiling(arguments),
        smoother=smoother,
        redraw=arguments.redraw,
    )
    return predict_frames(process, source, writer, group=execution.group, draw_overlay=overlay, label=given.label)


def _predict_input(arguments: argparse.Namespace, job: Job, given: Input, source: FrameSource, shard: Shard) -> None:
    sampler = job.sampler
    summary = predict_shard(arguments, job, given, source, shard)
    done = summary.finished + summary.skipped
    print(
        f"{done} frames in {given.out}{'' if shard.whole else f' (shard {shard})'}: {summary.finished} in "
        f"{summary.seconds:.1f} s ({summary.frames_per_second:.2f} frames/s), "
        f"{summary.skipped} were finished before; {sampler.draws} draws, chunk {sampler.chunk}, {sampler.precision}, "
        f"{'compiled, ' if sampler.compiled else ''}"
        f"{describe_device(sampler.device)}"
    )
    if (
        arguments.overlay
        and source.kind == "video"
        and done
        and (read_manifest(given.out) or {})["status"] == "finished"
    ):
        print(f"overlay video: {write_overlay_video(given.out, source)}")
    summary.raise_failures()


def predict_frames(
    process: FrameProcess,
    source: FrameSource,
    writer: MapsWriter,
    *,
    group: int = 1,
    draw_overlay: DrawOverlay | None = None,
    label: str = "",
) -> Summary:
    """Compute and write the maps of every unfinished frame of a source, in groups of so many frames."""
    with ConsoleProgress(label=label) as show:
        return run_pipeline(
            source,
            process,
            writer,
            group=group,
            writers=writer_threads(process.sampler.device),
            draw_overlay=draw_overlay,
            on_progress=show,
            raise_failures=False,
            sequence=process.smoother,
        )


def execution_of(arguments: argparse.Namespace, job: Job, given: Input, source: FrameSource) -> Execution:
    """How an input's maps are computed: as given, else as its maps folder was begun, else as suits this machine."""
    before = None if arguments.overwrite else read_run(given.out)
    job.sampler.chunk = None
    return choose_execution(arguments, job.sampler, source, _tiling(arguments), before)


def _run_settings(
    arguments: argparse.Namespace,
    model: Model,
    sampler: Sampler,
    source: FrameSource,
    scores: Sequence[str],
    execution: Execution,
) -> dict[str, Any]:
    statistics = sampler.max_logit_statistics
    return {
        **source.identity(),
        "base_sha256": model.sha256,
        "posterior_sha256": model.posterior_sha256,
        "temperature": sampler.temperature,
        "max_logit_statistics_sha256": statistics.sha256 if statistics and STANDARDIZED_MAX_LOGIT in scores else None,
        "draws": sampler.draws,
        "seed": sampler.seed,
        "scheme": sampler.noise.scheme,
        "scope": sampler.scope,
        "size": None if arguments.size is None else list(arguments.size),
        "tile": None if (tiling := _tiling(arguments)) is None else [*tiling.size, tiling.overlap],
        "smooth": arguments.smooth,
        "store": "png",  # of earlier versions, which knew another one
        "redraw": arguments.redraw,
        "precision": sampler.precision,
        "compiled": execution.compilation.compiled,
        "chunk": execution.chunk,
        "group": execution.group,
        "threads": torch.get_num_threads(),
        "device": sampler.device.type,
        "maps": list(scores),
        "overlay": arguments.overlay_score if arguments.overlay else None,
        "component_thresholds": _component_thresholds(arguments, scores),
    }


def _component_thresholds(arguments: argparse.Namespace, scores: Sequence[str]) -> dict[str, float]:
    given: dict[str, float] = arguments.component_threshold
    unknown = sorted(set(given) - set(scores))
    if unknown:
        raise InputError(f"a threshold of '{unknown[0]}'", f"one of {', '.join(scores)}", "check the name")
    return {score: value for score, value in {**COMPONENT_THRESHOLDS, **given}.items() if score in scores}
