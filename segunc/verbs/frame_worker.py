"""A process on any machine that makes the files of frames: it gets a model and decoded frames, and
returns encoded files. It needs no model, input or output on a disk.
"""

from __future__ import annotations

import contextlib
import platform
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from segunc.core.device import flushed_denormals, threads
from segunc.core.errors import InputError, one_line
from segunc.core.files import write_file
from segunc.core.memory import keep_freed_memory
from segunc.core.version import code_sha256, full_version
from segunc.decisions.flags import Threshold
from segunc.frames.source import Frame
from segunc.maps.manifest import environment
from segunc.maps.pipeline import DrawOverlay, encode_maps
from segunc.maps.store import EncodedFrame, FrameEncoder
from segunc.options import PredictOptions
from segunc.posteriors.model import load_model
from segunc.processing import FrameProcess
from segunc.verbs.execution import make_sampler, overlay_drawer


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs to make the sampler of a run.

    Attributes:
        files: content of each file of the model by its path in the model's folder.
        options: of the run, with the device and the precision that were chosen.
        scores: that are written.
        thread_count: number of CPU threads of the network.
        overlay: the score that overlays draw; None for no overlays.
        flag: thresholds of that score.
    """

    files: Mapping[str, bytes]
    options: PredictOptions
    scores: Sequence[str]
    thread_count: int
    overlay: str | None
    flag: Mapping[str, Threshold]


@dataclass(frozen=True)
class InputSetup:
    """What a worker needs for the frames of one input: its number, the number of draws in a batch,
    the manifest and the encoder of its maps folder."""

    number: int
    chunk: int
    manifest: Mapping[str, Any]
    encoder: FrameEncoder


class FrameWorker:
    """The model in a process of the cluster."""

    def __init__(self) -> None:
        # A local run computes in one thread, too, and encodes in others.
        self._computing = ThreadPoolExecutor(1, "compute")
        self._inputs: dict[int, tuple[FrameProcess, DrawOverlay | None]] = {}

    def open(self, expected: Mapping[str, str], setups: Sequence[Any]) -> InputError | None:
        """Load the model, if this node is like the machine that began the run.

        Args:
            expected: :func:`facts_of_node` of that machine.
            setups: a list of the reference of the :class:`WorkerSetup`, which another version of
                this package could not read.

        Returns:
            How the node differs; None where it does not.
        """
        facts = facts_of_node("GPU" in expected)
        for name, value in expected.items():
            if facts.get(name) != value:
                return InputError(
                    f"node {platform.node()} has {name} {facts.get(name)}, "
                    f"and this machine has {value}",
                    hint="--ray takes nodes with the same versions and processors as this machine",
                )
        self._computing.submit(self._load, setups[0]).result()
        return None

    def _load(self, setup: Any) -> None:
        import ray

        self._setup: WorkerSetup = ray.get(setup)
        keep_freed_memory()
        self._settings_of_thread = contextlib.ExitStack()  # until this process ends
        self._settings_of_thread.enter_context(flushed_denormals())
        self._settings_of_thread.enter_context(threads(self._setup.thread_count))
        with tempfile.TemporaryDirectory(prefix="segunc-model-") as folder:
            for name, content in self._setup.files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, content)
            model = load_model(folder)
            # What was fitted on the model opens its tensors only here.
            self._sampler = make_sampler(model, self._setup.options, self._setup.scores)

    def make(self, frame: Frame, setup: InputSetup) -> tuple[EncodedFrame | InputError, list[str]]:
        """Return the files of a frame, or why it has none, and notes for the user."""
        maps = self._computing.submit(self._compute, frame, setup).result()
        made: EncodedFrame | InputError
        try:
            if isinstance(maps, Exception):
                raise maps
            made = encode_maps(setup.encoder, frame, maps, self._inputs[setup.number][1])
        except (InputError, MemoryError) as error:
            made = error if isinstance(error, InputError) else InputError(one_line(error))
        return made, list(self._sampler.report.messages)

    def _compute(self, frame: Frame, setup: InputSetup) -> Any:
        if setup.number not in self._inputs:
            sampler = self._sampler.with_chunk(setup.chunk)
            options = self._setup.options
            draw_overlay = None
            if self._setup.overlay:
                region = setup.encoder.region
                manifest = dict(setup.manifest)
                draw_overlay = overlay_drawer(
                    self._setup.overlay, manifest, self._setup.flag, region
                )
            process = FrameProcess(sampler, self._setup.scores, size=options.size)
            self._inputs[setup.number] = (process, draw_overlay)
        return self._inputs[setup.number][0](frame)


def facts_of_node(on_gpu: bool) -> dict[str, str]:
    """Return what decides the values of maps: versions and processor by name."""
    facts = {"segunc": full_version(), "code of segunc": code_sha256(), **environment()}
    del facts["platform"]
    if on_gpu:
        facts["GPU"] = torch.cuda.get_device_name()
    else:
        amx = " with AMX" if torch.cpu._is_amx_tile_supported() else ""
        facts["CPU"] = f"{torch.backends.cpu.get_cpu_capability()}{amx}"
    return facts
