"""How a run computes, chosen before its first frame and recorded: its sampler, how many draws are
in a batch, its manifest.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from segunc.affine.draws import AffineLayout, in_scope
from segunc.affine.noise import DEFAULT_SCHEME, NoiseSource
from segunc.core.device import (
    choose_precision,
    describe_device,
    flushed_denormals,
    resolve_device,
    threads,
)
from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import inside
from segunc.core.progress import ConsoleProgress
from segunc.core.results import VerbResult
from segunc.core.terminal import counted
from segunc.core.urls import is_url, shown_url
from segunc.data.channels import shown_colours
from segunc.data.images import AnyImage, Image
from segunc.decisions.flags import Threshold, check_promises, read_thresholds
from segunc.frames.listing import fixed_part
from segunc.frames.source import Frame, FrameSource, Selection, parse_time
from segunc.frames.sources import Input, is_other_label, open_source, plan_inputs
from segunc.maps.folder import (
    OVERLAY,
    OVERLAY_VIDEO,
    PREDICTION,
    begin_video,
    check_video,
    note_video,
)
from segunc.maps.known_frames import note_on_known_frames
from segunc.maps.manifest import build_manifest, read_manifest, recorded_input
from segunc.maps.pipeline import DrawOverlay, Process, Summary, run_pipeline
from segunc.maps.regions import Region
from segunc.maps.shards import FrameRecords, Shard, all_shards, parse_shard, sizes_of
from segunc.maps.store import FrameEncoder, Maps, MapsWriter
from segunc.maps.uploads import fetch_maps, finish_upload, uploaded_inputs, uploading
from segunc.networks.network import SegmentationNetwork, inference_size
from segunc.options import (
    PathLike,
    PredictOptions,
    SamplingOptions,
    is_source,
    recorded_command,
    several,
)
from segunc.posteriors.abnn import ABNNPosterior, alpha_words
from segunc.posteriors.map_records import (
    channels_record,
    component_thresholds,
    extrapolated_beyond,
    model_record,
    sampler_record,
)
from segunc.posteriors.model import Model, SeenSize, channels_in, default_scores, load_model
from segunc.processing import FrameProcess
from segunc.sampling.branches import branches_of
from segunc.sampling.sampler import Sampler
from segunc.scores import DEFAULT_SCORES, SCORES, check_scores, first_shown
from segunc.verbs.compilation import check_compile_option, decide, recorded_choice
from segunc.verbs.model_cache import model_folder
from segunc.verbs.output_folders import holds_pictures_of_maps

MAX_WRITERS = 8
PREFETCH = 4  # frames that are decoded ahead, and that may wait for being written
THREADS_OF_WORKER = 4  # of a process of --ray on CPUs, unless --threads or an earlier run says it
USUAL_FRAME_RATE = 25.0  # frames per second of a video that does not say its rate


def make_sampler(
    model: Model,
    options: SamplingOptions,
    scores: Sequence[str] = DEFAULT_SCORES,
    sizes: Sequence[SeenSize] = (),
) -> Sampler:
    """Place a model on its device and return its sampler.

    Args:
        model: on any device.
        options: how it is sampled.
        scores: that are computed.
        sizes: at which the network sees frames, in place of the size of the options. What was
            fitted on the model has a note if it belongs to none of them.

    Raises:
        InputError: the options do not suit the model; whether passes are compiled is open.
    """
    if options.compile == "auto":
        raise InputError(
            "--compile auto decides by the number of frames, which only predict does",
            hint="--compile, or leave it out",
        )
    device = resolve_device(options.device)
    if options.scope is not None:
        _check_scope(options.scope, model)
    posterior = model.posterior
    if options.alpha is not None:
        if not isinstance(posterior, ABNNPosterior):
            message = f"--alpha is of an ABNN, and the model is a {posterior.method}"
            raise InputError(message, hint="leave --alpha out")
        _check_alpha(options.alpha, posterior.alpha, model, scores)
        posterior = posterior.with_alpha(options.alpha)
    model.place(device)
    channels = model.network.description.channels
    precision = choose_precision(options.precision, device, model.network, channels)
    sampler = Sampler(
        model.network,
        posterior if model.bayesian else None,
        draws=options.draws,
        seed=NoiseSource(options.seed, options.scheme or DEFAULT_SCHEME, options.draws),
        scope=options.scope,
        chunk=options.chunk,
        precision=precision,
        scores=scores,
        fitted=model.fitted(scores),
        compiled=bool(options.compile),
    )
    sampler.warns = False  # verbs show the messages of its report
    if not model.bayesian and options.draws not in (1, SamplingOptions.draws):
        sampler.report.messages.append(
            f"--draws {options.draws} has no effect: the model is one network, which runs once"
        )
    for attachment in model.used(scores):
        attachment.check_sampler(sampler)
        network_size = model.network.description.inference_size
        notes = [attachment.size_note(size, network_size) for size in sizes or (options.size,)]
        if all(notes):
            sampler.report.messages.append(notes[0])
    return sampler


def choices_record(options: SamplingOptions) -> dict[str, Any]:
    """Return what a run records where it was asked for: a noise scale in place of the model's own,
    compiled passes.
    """
    record: dict[str, Any] = {}
    if options.alpha is not None:
        record["alpha"] = options.alpha
    if options.compile:
        record["compiled"] = True
    return record


def fitted_record(model: Model, sampler: Sampler) -> dict[str, Any]:
    """Return what a run records of what was fitted on its model: T of the logits, the calibrator of
    the mean, and what scores are made of.
    """
    return sampler_record(sampler, model.used(sampler.scores))


def _check_alpha(
    alpha: float, own_alpha: float | Tensor, model: Model, scores: Sequence[str]
) -> None:
    """Raise InputError for a noise scale other than the model's own, or for one in the place of
    those of the layers, where what is used was fitted on its draws. A calibration always is.
    """
    if not isinstance(own_alpha, Tensor) and alpha == own_alpha:
        return
    used = list(model.used(scores))
    if "calibration" in model.attachments:
        used.insert(0, model.attachments["calibration"])
    for attachment in used:
        if "posterior_sha256" in attachment.bound_by:
            message = (
                f"{attachment.file} was fitted on draws of {alpha_words(own_alpha)}, "
                f"and --alpha {alpha:g} makes others"
            )
            hint = "leave --alpha out, or fit it again on a model of that alpha"
            raise InputError(message, hint=hint)


def _check_scope(scope: str, model: Model) -> None:
    """Raise InputError for a scope that does not fit the model, before each frame does."""
    drawn = [branch for branch in branches_of(model.network, model.posterior) if branch.stochastic]
    if not model.bayesian or not drawn:
        message = (
            f"--scope {scope} has no effect on this model: its method is {model.posterior.method}"
        )
        raise InputError(message, hint="leave --scope out")
    for branch in drawn:
        layout = AffineLayout(branch.network)
        names = layout.dropout_names or layout.names
        in_scope(getattr(branch.posterior, "scope", "all"), names, scope)


def choose_chunk(
    options: PredictOptions,
    sampler: Sampler,
    source: FrameSource,
    recorded: Mapping[str, Any] | None,
) -> int:
    """Return how many draws are in a batch: what is asked for, else what an earlier run of the same
    folder recorded, else what suits the first frame of the whole input.

    Args:
        options: of the run.
        sampler: which runs the draws.
        source: the input.
        recorded: the settings of the earlier run, or None.

    Raises:
        InputError: no frame can be read.
    """
    chunk = options.chunk or (recorded or {}).get("chunk")
    if chunk:
        return int(chunk)
    image = next((frame.image for frame in source.frames() if frame.image is not None), None)
    if image is None:
        raise InputError(f"no frame of {source.path} can be read", hint="check the files")
    assert isinstance(sampler.network, SegmentationNetwork)
    description = sampler.network.description
    seen = inference_size(description, (image.shape[0], image.shape[1]), options.size)
    return sampler.chunk_for(1, seen, description.num_classes)


class Job(NamedTuple):
    """A run that is ready to begin: its options, what their texts mean, the model and the opened
    inputs.
    """

    options: PredictOptions
    inputs: tuple[Input, ...]
    sources: tuple[FrameSource, ...]
    shard: Shard
    scores: tuple[str, ...]
    region: Region | None
    overlay: str | None  # the score
    flag: Mapping[str, Threshold]
    model: Model
    sampler: Sampler


@contextlib.contextmanager
def open_job(options: PredictOptions) -> Iterator[Job]:
    """Check all options, then open the inputs and load the model. Meanwhile torch computes on the
    threads that were asked for.
    """
    shard = parse_shard(options.shard) if options.shard else Shard()
    region = Region(Path(options.mask)) if options.mask else None
    inputs = tuple(plan_outputs([str(spec) for spec in several(options.input)], options))
    # Before the model, which may be imported first.
    channels = None if is_source(options.model) else channels_in(Path(options.model))
    sources = _open_sources(inputs, options, channels)
    folder = model_folder(options.model, trust=options.trust)
    if channels is None:
        sources = _open_sources(inputs, options, channels_in(folder))
    if not options.all_images:
        for source in sources:
            _check_images(source)
    _check_places(inputs, sources, options.out)
    scores = tuple(check_scores(options.scores or default_scores(folder)))
    flag = read_thresholds(options.flag)
    overlay = None
    if options.overlay:
        overlay = _overlay_score(scores, flag)
    elif flag:
        raise InputError("--flag outlines pixels in overlays", hint="add --overlay")
    check_compile_option(options)
    options = _with_recorded_precision(options, inputs)
    thread_count = _thread_count(options, inputs)
    for source in sources:
        for note in source.notes:
            warnings.warn(note, NoteWarning, stacklevel=2)
    model = load_model(folder)
    with flushed_denormals(), threads(thread_count):
        options, sampler = _with_compilation(model, options, scores, inputs, sources)
        yield Job(
            options=options,
            inputs=inputs,
            sources=sources,
            shard=shard,
            scores=scores,
            region=region,
            overlay=overlay,
            flag=flag,
            model=model,
            sampler=sampler,
        )


def _with_compilation(
    model: Model,
    options: PredictOptions,
    scores: Sequence[str],
    inputs: Sequence[Input],
    sources: Sequence[FrameSource],
) -> tuple[PredictOptions, Sampler]:
    """Return the options in which it is settled whether passes are compiled, and the sampler.

    ``auto`` takes what an earlier run of the same maps recorded, and measures only where there is
    none.
    """

    def sampler_of(compiled: bool) -> Sampler:
        return make_sampler(model, replace(options, compile=compiled), scores)

    if options.compile != "auto":
        return options, sampler_of(bool(options.compile))
    recorded = None if options.overwrite else _recorded_settings(inputs)
    if recorded is not None:
        compiled = recorded_choice(recorded)
        return replace(options, compile=compiled), sampler_of(compiled)

    def sampler_in_batches(compiled: bool) -> Sampler:
        sampler = sampler_of(compiled)
        return sampler.with_chunk(choose_chunk(options, sampler, sources[0], None))

    decision = decide(sampler_in_batches, options, sources)
    if decision.reason:
        decision.sampler.report.messages.append(decision.reason)
    return replace(options, compile=decision.compiled), decision.sampler


def _open_sources(
    inputs: Sequence[Input], options: PredictOptions, channels: int | None
) -> tuple[FrameSource, ...]:
    """Open the inputs of a run for a network of so many channels, None if that is not known."""
    selection = _selection(options)
    sources: list[FrameSource] = []
    for target in inputs:
        source = open_source(
            target.spec,
            out=target.out,
            selection=selection,
            all_images=options.all_images,
            channels=channels,
        )
        sources.append(source)
    return tuple(sources)


def _check_images(source: FrameSource) -> None:
    """Raise InputError where images of a folder or of a pattern are maps or overlays."""
    if source.kind not in ("folder", "glob") or is_url(source.path):
        return
    path = Path(source.path)
    root = path if source.kind == "folder" else fixed_part(path)
    places = {
        (source.file_of(index) or "").rpartition("/")[0] for index in range(source.length or 0)
    }
    folders = {root, root.parent}
    for place in places:
        folder = root / place
        folders.update((folder, *folder.parents[: len(folder.relative_to(root).parts)]))
    for folder in sorted(folders):
        if holds_pictures_of_maps(folder):
            raise InputError(
                f"pictures of {source.path} are maps or overlays: {folder} was written by segunc",
                hint="give the folder of the images (--all-images takes them nevertheless)",
            )


def _check_places(inputs: Sequence[Input], sources: Sequence[FrameSource], out: PathLike) -> None:
    """Raise InputError where earlier maps of an input lie in another folder than the one that these
    inputs give it. They would not be continued, and readers of all folders would count them twice.
    """
    if len(inputs) == 1:
        return
    url = str(out).rstrip("/") if is_url(out) else ""
    shown = shown_url(url) if url else str(Path(out))
    earlier_inputs = uploaded_inputs(url) if url else _inputs_below(Path(out))
    single = earlier_inputs.pop("", None)
    if single is not None:
        hint = "give another --out"
        for target, source in zip(inputs, sources, strict=True):
            if single == str(source.path):
                hint = f"move its files into {target.shown_out}, and the run goes on; or {hint}"
        raise InputError(
            f"{shown} holds the maps of one input, and each of {len(inputs)} inputs has a folder "
            "of its own there",
            hint=hint,
        )
    for target, source in zip(inputs, sources, strict=True):
        is_begun = target.label in earlier_inputs if url else target.out.exists()
        if is_begun:
            continue
        for label, earlier_input in earlier_inputs.items():
            if earlier_input == str(source.path) and is_other_label(label, target.label):
                earlier = f"{shown}/{label}"
                rename = f"move {earlier} to {target.shown_out}"
                if not url:
                    rename = f"rename {earlier} to {target.label}"
                raise InputError(
                    f"maps of {source.path} are in {earlier}, and with these inputs their folder "
                    f"is {target.shown_out}",
                    hint=f"{rename}, and the run goes on; or give another --out",
                )


def _inputs_below(folder: Path) -> dict[str, str | None]:
    """Return the input of the maps in a folder, by "", and in each folder below it, by its name."""
    inputs = {"": recorded_input(folder)}
    for below in folder.iterdir() if folder.is_dir() else ():
        inputs[below.name] = recorded_input(below)
    return inputs


def _thread_count(options: PredictOptions, inputs: Sequence[Input]) -> int | None:
    """Return the number of CPU threads of the network; None is torch's own choice.

    What the user gives comes first, then what an earlier run of the same maps recorded.
    """
    if options.threads is not None:
        return options.threads
    if not options.overwrite:
        recorded = _recorded_settings(inputs) or {}
        recorded_threads: int | None = recorded.get("threads")
        if recorded_threads is not None:
            return recorded_threads
    if options.ray and resolve_device(options.device).type == "cpu":
        return min(THREADS_OF_WORKER, torch.get_num_threads())
    return None


def _with_recorded_precision(options: PredictOptions, inputs: Sequence[Input]) -> PredictOptions:
    """Return the options with the precision that an earlier run of the same maps recorded, if the
    user leaves it open: another machine may choose another one.
    """
    if options.precision != "auto" or options.overwrite:
        return options
    recorded = _recorded_settings(inputs) or {}
    return replace(options, precision=recorded.get("precision", "auto"))


def plan_outputs(specs: Sequence[str], options: PredictOptions) -> list[Input]:
    """Return the inputs of a run with their maps folders; those under a URL are fetched.

    Raises:
        InputError: the maps folders cannot be made or fetched.
    """
    url = str(options.out)
    if not is_url(url):
        return plan_inputs(specs, Path(options.out))
    for name, is_given in (("--shard", options.shard), ("--overwrite", options.overwrite)):
        if is_given:
            raise InputError(
                f"{name} and an --out under a URL do not go together",
                hint=f"leave {name} out, or give --out a folder of this machine",
            )
    for spec in specs:
        if is_url(spec) and f"{url}/".startswith(f"{spec.rstrip('/')}/"):
            raise InputError(
                f"output {url} lies inside the input {spec}, so its maps would be taken for frames",
                hint="give another --out",
            )
    # Names of several inputs; the folders themselves depend on their URLs.
    planned = plan_inputs(specs, Path("maps"))
    targets: list[Input] = []
    for target in planned:
        address = f"{url.rstrip('/')}/{target.label}".rstrip("/")
        targets.append(replace(target, url=address, out=fetch_maps(address)))
    return targets


def _selection(options: PredictOptions) -> Selection:
    """Return which frames of its inputs a run takes."""
    start = parse_time(options.start) if options.start else None
    end = parse_time(options.end) if options.end else None
    return Selection(options.every, start, end)


def _overlay_score(scores: Sequence[str], flag: Mapping[str, Threshold]) -> str:
    """Return the score that overlays draw: that of the threshold, else the first shown.

    Raises:
        InputError: thresholds are of several scores, or of one that is not written.
    """
    if not flag:
        return first_shown(scores)
    if len(flag) > 1:
        raise InputError(
            f"--flag has thresholds of {len(flag)} scores ({', '.join(flag)}); overlays draw one",
            hint="give one; segunc overlay draws the others",
        )
    (score,) = flag
    if score not in scores:
        raise InputError(
            f"--flag has a threshold of '{score}', which is not written",
            hint=f"add it: --scores {','.join([*scores, score])}",
        )
    return score


def _recorded_settings(inputs: Sequence[Input]) -> Mapping[str, Any] | None:
    """Return the settings of the first input that was begun, which serve all, or None."""
    for target in inputs:
        manifest = read_manifest(target.out)
        if manifest is not None:
            settings: Mapping[str, Any] = manifest["run"]
            return settings
    return None


@dataclass(frozen=True, repr=False)
class InputResult(VerbResult):
    """What became of one input.

    Attributes:
        out: its maps folder, or the URL of it.
        label: its name if there are several inputs.
        summary: how many frames were finished, skipped or failed.
        how: draws, chunk, precision and device of the run, in words.
        video: the video of the overlays; None if there is none.
    """

    out: Path | str
    label: str
    summary: Summary
    how: str
    video: Path | None = None


class Cluster(Protocol):
    """Workers on other machines that make the files of frames."""

    workers: int
    """How many there are."""
    frames_at_once: int
    """How many frames they take at the same time."""
    notes: list[str]
    """What a user should know."""

    def begin(self) -> None:
        """Be ready for frames.

        Raises:
            InputError: there is no worker.
        """
        ...

    def process(self, chunk: int, manifest: Mapping[str, Any], encoder: FrameEncoder) -> Process:
        """Return what hands the frames of one input to the workers.

        Args:
            chunk: number of draws in a batch.
            manifest: of the input's maps.
            encoder: of its maps folder.
        """
        ...

    def stop(self) -> None:
        """End the work on all frames; what waits for one raises CancelledError."""
        ...


def predict_input(job: Job, place: int, cluster: Cluster | None = None) -> InputResult:
    """Write the maps of the input at a place, or of a shard of it; frames that fail are in the
    summary.

    Args:
        job: the run.
        place: of the input in the job.
        cluster: computes the maps; None is this process.
    """
    options = job.options
    target = job.inputs[place]
    source = job.sources[place]
    recorded = None if options.overwrite else read_manifest(target.out)
    if recorded is not None and job.overlay and source.kind == "video":
        check_video(target.out, recorded)
    chunk = choose_chunk(options, job.sampler, source, recorded and recorded["run"])
    sampler = job.sampler.with_chunk(chunk)
    manifest = run_manifest(job, place, chunk)
    draw_overlay = (
        overlay_drawer(job.overlay, manifest, job.flag, job.region) if job.overlay else None
    )
    if cluster is not None:
        cluster.begin()
    writer = MapsWriter(
        target.out,
        manifest,
        shard=job.shard,
        region=job.region,
        overwrite=options.overwrite,
        verify=options.verify,
    )
    writers = writer_threads(sampler.device)
    if cluster is None:
        process: Process = FrameProcess(sampler, job.scores, size=options.size)
    else:
        process = cluster.process(chunk, manifest, writer.encoder)
        # A thread waits for each frame that a worker has, and others write what has come back.
        writers += cluster.frames_at_once
    with uploading(target.out, target.url), ConsoleProgress(label=target.label) as progress:
        summary = run_pipeline(
            source,
            process,
            writer,
            prefetch=PREFETCH if cluster is None else max(PREFETCH, writers),
            writers=writers,
            draw_overlay=draw_overlay,
            on_progress=progress.count,
            on_note=progress.say,
            on_stop=None if cluster is None else cluster.stop,
        )
    if source.depth is not None:
        source.depth.warn(source.path)
    _warn_of_frames(job, target.out)
    how = _how_computed(sampler, chunk, cluster)
    video = overlay_video(job, place)
    if target.url:
        finish_upload(target.out, target.url)
    return InputResult(target.shown_out, target.label, summary, how, video)


def _warn_of_frames(job: Job, folder: Path) -> None:
    """Warn of frames in a maps folder that the bank of features seems to hold, and of a size that a
    threshold was not calibrated on.
    """
    manifest = read_manifest(folder) or {}
    # Another process may be writing the lines of another shard.
    records = FrameRecords(folder, [job.shard])
    if job.overlay:
        check_promises(job.flag, manifest["run"], sizes_of(records))
    if "features" in job.model.attachments:
        note = note_on_known_frames(records)
        if note:
            warnings.warn(note, NoteWarning, stacklevel=3)


def _how_computed(sampler: Sampler, chunk: int, cluster: Cluster | None) -> str:
    """Return how maps were computed, in a few words for the last line of a run."""
    precision = f"{sampler.precision}, compiled" if sampler.compiled else sampler.precision
    draws = counted(sampler.draws, "draw")
    words = f"{draws}, chunk {chunk}, {precision}, {describe_device(sampler.device)}"
    if cluster is not None:
        words += f", {counted(cluster.workers, 'Ray worker')}"
    return words


def writer_threads(device: torch.device) -> int:
    """Return how many threads encode and write maps: few beside a network on the CPU's cores, most
    cores beside one on a GPU.
    """
    if device.type == "cpu":
        return 2
    cores = os.cpu_count() or 4
    return max(2, min(MAX_WRITERS, cores - 2))


def run_manifest(job: Job, place: int, chunk: int) -> dict[str, Any]:
    """Return the manifest of an input's maps."""
    model = job.model
    sampler = job.sampler
    source = job.sources[place]
    description = model.network.description
    thresholds = component_thresholds(job.scores)
    return build_manifest(
        _run_settings(job, source, chunk, thresholds),
        job.scores,
        device=describe_device(sampler.device),
        command=recorded_command("predict", job.options),
        classes=description.classes,
        palette=description.palette,
        source=source.describe(),
        model=model_record(
            model.network, model.posterior, model.record.get("provenance"), model.attachments
        ),
        component_thresholds=thresholds,
        measured_to=extrapolated_beyond(model.attachments.values()),
    )


def _run_settings(
    job: Job, source: FrameSource, chunk: int, thresholds: Mapping[str, float]
) -> dict[str, Any]:
    """Return what decides the maps of an input: only a run with the same settings continues it."""
    options = job.options
    sampler = job.sampler
    settings: dict[str, Any] = {
        **source.identity(),
        **sampling_settings(job.model, sampler, options),
    }
    settings.update(channels_record(job.model.network.description))
    if options.compact:
        settings["compact"] = True
    settings.update(
        precision=sampler.precision,
        chunk=chunk,
        # Frames in a batch; folders of earlier versions may have more, and are not continued.
        group=1,
        threads=torch.get_num_threads(),
        device=sampler.device.type,
        maps=list(job.scores),
        overlay=job.overlay,
    )
    settings.update(flag_settings(job.flag))
    settings["component_thresholds"] = thresholds
    settings["mask_sha256"] = None if job.region is None else job.region.sha256
    return settings


def sampling_settings(model: Model, sampler: Sampler, options: SamplingOptions) -> dict[str, Any]:
    """Return what decides the maps of a frame: the model and how it is sampled."""
    return {
        "base_sha256": model.sha256,
        "posterior_sha256": model.posterior_sha256,
        **fitted_record(model, sampler),
        "draws": sampler.draws,
        "seed": sampler.seed,
        "scheme": sampler.noise.scheme,
        **choices_record(options),
        "scope": sampler.scope,
        "size": None if options.size is None else list(options.size),
        "store": "png",
    }


def flag_settings(flag: Mapping[str, Threshold]) -> dict[str, Any]:
    """Return what a run records of its thresholds; nothing where it has none."""
    if not flag:
        return {}
    settings: dict[str, Any] = {"flag": {name: flag[name].value for name in flag}}
    if any(threshold.preparation for threshold in flag.values()):
        settings["flag_preparation"] = {
            name: asdict(threshold.preparation) for name, threshold in flag.items()
        }
    return settings


def overlay_drawer(
    score: str,
    manifest: dict[str, Any],
    flag: Mapping[str, Threshold],
    region: Region | None = None,
) -> DrawOverlay:
    """Return what draws the overlay of a frame, of a score that has a fixed range, with what a
    threshold flags.
    """
    from segunc.colours import display_range, up_to_measured
    from segunc.gallery.colours import measured_to
    from segunc.gallery.drawing import Legend, draw_overlay, frame_caption

    if SCORES[score].colours is None:
        message = f"--overlay of {score}, which has no fixed range of colours"
        raise InputError(message, hint="add entropy to --scores")
    check_promises(flag, manifest["run"])
    shown = up_to_measured(display_range(score), measured_to(manifest, score))
    legend = Legend.of(manifest, score, shown, flag.get(score))

    def draw(frame: Frame, maps: Maps) -> Image:
        values = np.asarray(maps[score])
        return draw_overlay(
            shown_colours(cast(AnyImage, frame.image)),
            values,
            legend,
            prediction=np.asarray(maps[PREDICTION], np.uint8),
            kept=None if region is None else region.at(*values.shape),
            caption=frame_caption(frame.name, frame.time),
        )

    return draw


def overlay_video(job: Job, place: int) -> Path | None:
    """Write ``overlay.webm`` of the overlays of a finished video, each at its time."""
    from segunc.gallery.pictures import write_video

    out = job.inputs[place].out
    source = job.sources[place]
    manifest = read_manifest(out) or {}
    if not job.overlay or source.kind != "video" or manifest.get("status") != "finished":
        return None
    pictures: list[Path] = []
    times: list[float | None] = []
    for record in FrameRecords(out, all_shards(manifest)).values():
        pictures.append(inside(out, record["files"][OVERLAY]))
        times.append(record.get("time"))
    if not pictures:
        return None
    rate = (source.fps or USUAL_FRAME_RATE) / source.selection.every
    check_video(out, manifest)
    made = write_video(
        pictures,
        out / OVERLAY_VIDEO,
        rate,
        times,
        on_whole=lambda video: begin_video(out, video),
    )
    note_video(out, manifest)
    return made
