"""Whether the passes of a run are compiled, where ``--compile auto`` leaves that to the run.

It is decided before the first frame whose maps are kept, and recorded as if the user had said it.
So all maps of a folder are made in one way, and a run that goes on takes the recorded way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from segunc.core.errors import InputError
from segunc.core.terminal import counted
from segunc.data.images import AnyImage
from segunc.frames.source import FrameSource
from segunc.options import PredictOptions
from segunc.sampling.sampler import Sampler, sample_frames

SHORTEST_RUN = 600.0
"""Seconds that a run has to take without compiled passes before one is compiled for a trial, which
takes tens of seconds itself.
"""
LEAST_GAIN = 0.95
"""Share of the plain time of a frame that compiled passes must stay below: less is lost in what
machines differ from one minute to the next.
"""
TIMED_FRAMES = 2  # of which the faster one counts


@dataclass(frozen=True)
class Decision:
    """Whether passes are compiled, and why.

    Attributes:
        sampler: of the run.
        compiled: whether its passes are compiled.
        reason: in one line for the user; empty where nothing was measured.
    """

    sampler: Sampler
    compiled: bool
    reason: str = ""


def check_compile_option(options: PredictOptions) -> None:
    """Raise InputError where several processes would decide for themselves."""
    if options.compile != "auto":
        return
    for name, value in (("--shard", options.shard), ("--ray", options.ray)):
        if value:
            raise InputError(
                f"--compile auto and {name} do not go together: each process would decide for "
                "itself, and maps of one folder would differ by rounding",
                hint="--compile, or leave it out",
            )


def recorded_choice(recorded: Mapping[str, Any]) -> bool:
    """Return whether the passes of a run were compiled.

    Args:
        recorded: its settings, of the manifest.
    """
    return bool(recorded.get("compiled", False))


def frames_to_come(sources: Sequence[FrameSource]) -> int | None:
    """Return how many frames inputs have; None where one does not say it."""
    total = 0
    for source in sources:
        length = source.length or source.length_hint
        if length is None:
            return None
        total += length
    return total


def decide(
    make_sampler: Callable[[bool], Sampler],
    options: PredictOptions,
    sources: Sequence[FrameSource],
) -> Decision:
    """Measure the first frame, and compiled passes of it where the run is long enough for a trial.

    Args:
        make_sampler: makes a sampler, with compiled passes or without.
        options: of the run.
        sources: its inputs.

    Returns:
        The decision. Plain passes are taken where the number or the size of frames is unknown.
    """
    frames = frames_to_come(sources)
    plain = make_sampler(False)
    if frames is None:
        reason = "--compile auto: not compiled, because an input does not say how long it is"
        return Decision(plain, False, reason)
    if options.size is None and any(source.kind != "video" for source in sources):
        reason = (
            "--compile auto: not compiled, because images may have different sizes, and each would "
            "be compiled; --size says that they have one"
        )
        return Decision(plain, False, reason)
    image = next((frame.image for frame in sources[0].frames() if frame.image is not None), None)
    if image is None:
        return Decision(plain, False)  # the run says what is wrong with its frames
    seconds = seconds_of_frame(plain, image, options.size)
    if frames * seconds < SHORTEST_RUN:
        reason = (
            f"--compile auto: not compiled, because {counted(frames, 'frame')} of {seconds:.2g} s "
            f"{'takes' if frames == 1 else 'take'} less than {SHORTEST_RUN / 60:.0f} minutes"
        )
        return Decision(plain, False, reason)
    compiled = make_sampler(True)
    compiled_seconds = seconds_of_frame(compiled, image, options.size)
    times = f"a frame takes {compiled_seconds:.2g} s in place of {seconds:.2g} s"
    if compiled_seconds < LEAST_GAIN * seconds:
        return Decision(compiled, True, f"--compile auto: compiled, {times}")
    return Decision(plain, False, f"--compile auto: not compiled, compiled {times}")


def seconds_of_frame(sampler: Sampler, image: AnyImage, size: tuple[int, int] | None) -> float:
    """Return the seconds that a frame takes once all is prepared: its self-check is done, its
    passes are compiled.
    """
    sample_frames(sampler, [image], size=size)
    times = []
    for _ in range(TIMED_FRAMES):
        start = time.perf_counter()
        prediction = sample_frames(sampler, [image], size=size)
        if prediction.prediction.is_cuda:
            torch.cuda.synchronize(prediction.prediction.device)
        times.append(time.perf_counter() - start)
    return min(times)
