"""How a run computes: its sampler, draws and frames in a batch, compiled or not. Chosen before its first frame, and recorded."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from segunc.affine.branches import branches_of
from segunc.affine.draws import AffineLayout, in_scope
from segunc.affine.noise import DEFAULT_SCHEME
from segunc.core.bounds import Count, check_value
from segunc.core.device import choose_precision, resolve_device
from segunc.core.errors import InputError
from segunc.data.images import Image, load_image
from segunc.frames.source import FrameSource
from segunc.networks.description import NetworkDescription
from segunc.networks.network import SegmentationNetwork, inference_size
from segunc.options import PredictOptions, SamplingOptions
from segunc.posteriors.abnn import ABNNPosterior
from segunc.posteriors.model import Model
from segunc.processing.means import Tiling
from segunc.sampling.compilation import Decision, Workload, decide
from segunc.sampling.sampler import Sampler, frames_at_once
from segunc.scores import DEFAULT_SCORES

LOOKED_AT = 16  # frames, evenly spaced, whose sizes stand for those of all

Size = tuple[int, int]
FrameInputs = Callable[[int], Sequence[Sequence[Size]]]
"""For at most so many evenly spaced frames the (height, width) of all that the network sees of each."""


def make_sampler(model: Model, options: SamplingOptions, scores: Sequence[str] = DEFAULT_SCORES) -> Sampler:
    """The sampler of a model, which is placed on its device.

    ``compile`` ``auto`` is off until the caller knows how much there is to compute.
    """
    device = resolve_device(options.device)
    if options.scope is not None:
        _check_scope(options.scope, model)
    posterior = model.posterior
    if options.alpha is not None:
        if not isinstance(posterior, ABNNPosterior):
            given = f"--alpha with a model of the method {posterior.method}"
            raise InputError(given, "an ABNN", "leave --alpha out")
        posterior = posterior.with_alpha(options.alpha)
    model.place(device)
    precision = choose_precision(options.precision, device)
    sampler = Sampler(
        model.network,
        posterior if model.bayesian else None,
        draws=options.draws,
        seed=options.seed,
        scheme=options.scheme or DEFAULT_SCHEME,
        scope=options.scope,
        chunk=options.chunk,
        precision=precision,
        compiled=options.compile == "on",
        scores=scores,
        **model.fitted(scores),
    )
    return sampler


def noise_record(options: SamplingOptions) -> dict[str, Any]:
    """The noise that was asked for in place of the model's own, for records; empty where none was."""
    return {} if options.alpha is None else {"alpha": options.alpha}


def calibration_record(sampler: Sampler) -> dict[str, Any]:
    """What a run records of how probabilities are calibrated: T of the logits, and which calibrator acts on the mean, if any."""
    calibrator = sampler.calibrator
    of_mean = {"calibrator": str(calibrator), "calibrator_sha256": calibrator.sha256} if calibrator else {}
    return {"temperature": sampler.temperature, **of_mean}


def _check_scope(scope: str, model: Model) -> None:
    """Fail here, not at every frame."""
    if not model.bayesian:
        raise InputError(f"--scope {scope} with a deterministic model", "a Bayesian model", "leave --scope out")
    drawn = [branch for branch in branches_of(model.network, model.posterior) if branch.stochastic]
    if not drawn:
        given = f"--scope {scope} with the method {model.posterior.method} of networks without noise"
        raise InputError(given, "a posterior over the affine parameters", "leave --scope out")
    for branch in drawn:
        layout = AffineLayout(branch.network)
        in_scope(scope, layout.dropout_names or layout.names)


@dataclass(frozen=True)
class Execution:
    """How a run computes, and what a user should know of it."""

    chunk: int  # draws in a batch
    group: int  # frames in a batch
    compilation: Decision  # of whole chunks of draws over whole groups
    notes: tuple[str, ...] = ()


def choose_execution(
    options: PredictOptions,
    tiling: Tiling | None,
    sampler: Sampler,
    source: FrameSource,
    recorded: Mapping[str, Any] | None,
) -> Execution:
    """What is asked for, else what an earlier run of the same folder recorded, else what suits the whole input.

    The source is the whole input, whatever a shard takes of it; ``recorded`` the ``run`` part of the manifest of a run that is continued.
    InputError: no frame can be read where one has to be looked at, or a recorded number is none.
    """
    known, notes, group = recorded or {}, [], options.frames_at_once
    for name in ("chunk", "group"):
        check_value(f"the recorded {name}", known.get(name), Count | None, "predict again into a new folder")
    network = sampler.network
    assert isinstance(network, SegmentationNetwork)
    inputs = _inputs_of_source(source, network.description, options.size, tiling)
    if tiling is not None or options.smooth is not None or options.redraw:  # and cannot share a batch
        if group not in (None, 1):
            notes.append("frames with --tile, --smooth or --redraw are computed one at a time")
        group = 1
    group = group or known.get("group") or frames_at_once(sampler.device, _largest(inputs), sampler.draws)
    chunk = options.chunk or known.get("chunk")
    if chunk is None:
        chunk = sampler.chunk_for(group, _largest(inputs), network.description.num_classes)
    if options.compile == "auto" and "compiled" in known:
        compilation = Decision(bool(known["compiled"]), "")
    else:
        compilation = choose_compilation(options.compile, sampler, source.length or source.length_hint, inputs)
    if compilation.said:
        notes.append(compilation.reason)
    return Execution(chunk, group, compilation, tuple(notes))


def choose_compilation(choice: str, sampler: Sampler, frames: int | None, inputs: FrameInputs) -> Decision:
    """``on``, ``off``, or for ``auto`` what :func:`segunc.sampling.compilation.decide` says.

    ``frames`` are those of the whole input, None where unknown. More than one input is looked at only where one says that
    compiling pays.
    """
    decision = Decision(choice == "on", "as asked for")
    draws, forms = sampler.drawn_forms()
    for looked_at in (1, LOOKED_AT) if choice == "auto" else ():
        seen = inputs(looked_at)
        pixels = sum(height * width for of_frame in seen for height, width in of_frame) // max(1, len(seen))
        sizes = len({size for of_frame in seen for size in of_frame})
        work = Workload(frames, draws, pixels, max(1, sizes), forms, torch.get_num_threads())
        decision = decide(work, sampler.device.type)
        if not decision.compiled:
            break
    return decision


def inputs_of_images(files: Sequence[Path], description: NetworkDescription, size: Size | None) -> FrameInputs:
    """The network's inputs of some of these image files; files that cannot be read are passed over."""

    def look(count: int) -> list[list[Size]]:
        found = []
        for file in files[:: -(-len(files) // count)]:
            with contextlib.suppress(InputError):
                found.append(input_sizes(description, load_image(file).shape, size, None))
        return found

    return look


def input_sizes(
    description: NetworkDescription, frame: tuple[int, ...], size: Size | None, tiling: Tiling | None
) -> list[Size]:
    """(height, width) of all that the network sees of a frame ``[H, W, ...]``: the whole, or each of its tiles.

    Frames are brought to ``size``, or where it is None to the description's (with tiles to the frame's own).
    """
    if tiling is None:
        return [inference_size(description, (frame[0], frame[1]), size)]
    tiles = tiling.tiles(*(size or frame[:2]))
    return [(rows.end - rows.start, columns.end - columns.start) for rows, columns in tiles]


def _inputs_of_source(
    source: FrameSource, description: NetworkDescription, size: Size | None, tiling: Tiling | None
) -> FrameInputs:
    """The network's inputs of some frames of a source."""

    def of(image: Image) -> list[Size]:
        return input_sizes(description, image.shape, size, tiling)

    @cache
    def first() -> list[Size]:
        image = next((frame.image for frame in source.frames() if frame.image is not None), None)
        if image is None:
            raise InputError(f"no frame of {source.path} can be read", "at least one readable image", "check the files")
        return of(image)

    def look(count: int) -> list[list[Size]]:
        if count == 1 or source.kind == "video":  # frames of a video have one size
            return [first()]
        step = -(-(source.length or 1) // count)
        frames = source.frames(lambda index, name: index % step != 0)
        return [of(frame.image) for frame in frames if frame.image is not None] or [first()]

    return look


def _largest(inputs: FrameInputs) -> Size:
    """The largest input of the first frame."""
    return max(inputs(1)[0], key=math.prod)
