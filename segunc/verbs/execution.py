"""How a run computes: its sampler, and how many draws and frames are in a batch. Chosen before its first frame, and recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from segunc.affine.draws import AffineLayout, in_scope
from segunc.affine.noise import DEFAULT_SCHEME
from segunc.affine.posterior import branches_of
from segunc.core.device import choose_precision, resolve_device
from segunc.core.errors import InputError
from segunc.frames.source import FrameSource
from segunc.networks.description import NetworkDescription
from segunc.networks.network import SegmentationNetwork, inference_size
from segunc.options import PredictOptions, SamplingOptions
from segunc.posteriors.abnn import ABNNPosterior
from segunc.posteriors.model import Model
from segunc.processing.tiles import Tiling
from segunc.sampling.sampler import Sampler, frames_at_once
from segunc.scores import DEFAULT_SCORES

Size = tuple[int, int]


def make_sampler(model: Model, options: SamplingOptions, scores: Sequence[str] = DEFAULT_SCORES) -> Sampler:
    """Place a model on its device and return its sampler."""
    device = resolve_device(options.device)
    if options.scope is not None:
        _check_scope(options.scope, model)
    posterior = model.posterior
    if options.alpha is not None:
        if not isinstance(posterior, ABNNPosterior):
            raise InputError(f"--alpha is of an ABNN, and the model is a {posterior.method}", hint="leave --alpha out")
        posterior = posterior.with_alpha(options.alpha)
    model.place(device)
    precision = choose_precision(options.precision, device, model.network)
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
    """Return what a run records of noise that was asked for in place of the model's own."""
    return {} if options.alpha is None else {"alpha": options.alpha}


def calibration_record(sampler: Sampler) -> dict[str, Any]:
    """Return what a run records of how probabilities are calibrated: T of the logits, and the calibrator of the mean, if any."""
    calibrator = sampler.calibrator
    of_mean = {"calibrator": str(calibrator), "calibrator_sha256": calibrator.sha256} if calibrator else {}
    return {"temperature": sampler.temperature, **of_mean}


def _check_scope(scope: str, model: Model) -> None:
    """Raise InputError for a scope that does not fit the model, before each frame does."""
    drawn = [branch for branch in branches_of(model.network, model.posterior) if branch.stochastic]
    if not model.bayesian or not drawn:
        kind = f"its method is {model.posterior.method}" if model.bayesian else "it is deterministic"
        raise InputError(f"--scope {scope} has no effect on this model: {kind}", hint="leave --scope out")
    for branch in drawn:
        layout = AffineLayout(branch.network)
        in_scope(scope, layout.dropout_names or layout.names)


@dataclass(frozen=True)
class Execution:
    """How a run computes, and what a user should know of it."""

    chunk: int  # draws in a batch
    group: int  # frames in a batch
    compiled: bool  # whole chunks of draws over whole groups
    notes: tuple[str, ...] = ()


def choose_execution(
    options: PredictOptions,
    tiling: Tiling | None,
    sampler: Sampler,
    source: FrameSource,
    recorded: Mapping[str, Any] | None,
) -> Execution:
    """Take what is asked for, else what an earlier run of the same folder recorded, else what suits the first frame.

    The source is the whole input, whatever a shard takes of it; ``recorded`` is the ``run`` part of the manifest of a run that is
    continued. InputError where no frame can be read.
    """
    run, notes, group = recorded or {}, [], options.frames_at_once
    network = sampler.network
    assert isinstance(network, SegmentationNetwork)

    @cache
    def largest_input() -> Size:
        image = next((frame.image for frame in source.frames() if frame.image is not None), None)
        if image is None:
            raise InputError(f"no frame of {source.path} can be read", hint="check the files")
        return max(input_sizes(network.description, image.shape, options.size, tiling), key=math.prod)

    if tiling is not None or options.redraw:
        if group not in (None, 1):
            notes.append("frames with --tile or --redraw are computed one at a time")
        group = 1
    group = group or run.get("group") or frames_at_once(sampler.device, largest_input(), sampler.draws)
    chunk = options.chunk or run.get("chunk")
    if chunk is None:
        chunk = sampler.chunk_for(group, largest_input(), network.description.num_classes)
    compiled = run.get("compiled", False) if options.compile is None else options.compile == "on"
    return Execution(chunk, group, compiled, tuple(notes))


def input_sizes(
    description: NetworkDescription, frame: tuple[int, ...], size: Size | None, tiling: Tiling | None
) -> list[Size]:
    """Return the (height, width) of all that the network sees of a frame ``[H, W, ...]``: the whole, or each of its tiles.

    Frames are brought to ``size``, or where it is None to the description's (with tiles to the frame's own).
    """
    if tiling is None:
        return [inference_size(description, (frame[0], frame[1]), size)]
    tiles = tiling.tiles(*(size or frame[:2]))
    return [(rows.end - rows.start, columns.end - columns.start) for rows, columns in tiles]
