"""Exponential averaging of the means along a video, with states on disk from which a killed run goes on exactly."""

from __future__ import annotations

import contextlib
import io
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from segunc.core.errors import InputError
from segunc.core.files import inside, read_arrays, read_bytes, write_file
from segunc.frames.source import Frame
from segunc.maps.folder import SMOOTHING_FOLDER, SMOOTHING_STATE
from segunc.processing.means import FrameMeans

EVERY = 64
"""Frames between two states on disk. Far more than are on their way through the pipeline at once, so that the last but one
state is always older than the first unfinished frame."""


class _State(NamedTuple):
    sequence: str
    place: int
    time: float | None
    probabilities: Tensor
    aleatoric: Tensor


class Smoother:
    """``m_t = a f_t + (1 - a) m_{t-1}`` with ``a = 1 - exp(-dt / tau)`` for the mean probabilities and the mean entropy f.

    dt is the time between two frames in seconds (so a variable frame rate and ``--every`` are accounted for), for images the
    number of frames. The first frame of a sequence is taken as it is; another folder of images, or another size, begins a
    new sequence. A frame that failed leaves a gap in time, nothing else. Other scores are not smoothed.

    Epistemic of averaged means, ``H(m) - mean entropy``, also holds how much successive frames disagree: where the scene
    moves, it is several times that of a frame alone, and then says less about the network than without smoothing.

    Args:
        tau: time constant above 0, in seconds for videos and in frames for images.
        out: the maps folder, where states are kept until the run has finished.
        interval: seconds between two frames where time stamps do not advance.

    InputError for states elsewhere, behind a link.
    """

    def __init__(self, tau: float, out: Path, interval: float = 1.0) -> None:
        self.tau, self.interval, self._folder = tau, interval, inside(out, SMOOTHING_FOLDER)
        self._state: _State | None = None

    def update(self, frame: Frame, means: FrameMeans) -> FrameMeans:
        """The smoothed means of the next frame."""
        state, sequence = self._state, frame.name.rpartition("/")[0]
        probabilities, aleatoric = means.probabilities, means.aleatoric
        if state is not None and state.sequence == sequence and state.probabilities.shape == probabilities.shape:
            passed = float(max(1, frame.index - state.place))
            if frame.time is not None and state.time is not None:
                passed = frame.time - state.time if frame.time > state.time else self.interval
            weight = -math.expm1(-passed / self.tau)
            probabilities = torch.lerp(state.probabilities.to(probabilities.device), probabilities, weight)
            aleatoric = torch.lerp(state.aleatoric.to(aleatoric.device), aleatoric, weight)
        self._state = _State(sequence, frame.index, frame.time, probabilities, aleatoric)
        if (frame.index + 1) % EVERY == 0:
            self._save(self._state)
        return FrameMeans(probabilities, aleatoric, means.others)

    def resume(self, place: int) -> int:
        """Take up the last state before a place; returns the first place to compute from there, 0 without a state."""
        states = self._states()
        older = [path for path in states if int(path.stem) < place]
        for path in states[len(older) :]:  # made from frames that are computed again now
            path.unlink()
        if not older:
            return 0
        try:
            data = read_bytes(older[-1])
            saved = read_arrays(data, len(data))  # which were not compressed
            place, time = int(older[-1].stem), None if np.isnan(saved["time"]) else float(saved["time"])
            probabilities, aleatoric = (torch.from_numpy(saved[name]) for name in ("probabilities", "aleatoric"))
            self._state = _State(str(saved["sequence"]), place, time, probabilities, aleatoric)
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            given = f"{older[-1]} holds no state of a video ({error})"
            raise InputError(given, "what --smooth kept there", "begin anew with --overwrite") from error
        return place + 1

    def finish(self) -> None:
        """Remove the states; call it when the run has finished."""
        for path in self._states():
            path.unlink()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _save(self, state: _State) -> None:
        sequence, time = np.array(state.sequence), np.array(math.nan if state.time is None else state.time)
        probabilities, aleatoric = state.probabilities.cpu().numpy(), state.aleatoric.cpu().numpy()
        buffer = io.BytesIO()
        np.savez(buffer, sequence=sequence, time=time, probabilities=probabilities, aleatoric=aleatoric)
        write_file(self._folder / f"{state.place:012d}.npz", buffer.getvalue())
        for path in self._states()[:-2]:
            path.unlink()

    def _states(self) -> list[Path]:
        found = sorted(self._folder.glob("*.npz")) if self._folder.is_dir() else []
        return [path for path in found if SMOOTHING_STATE.fullmatch(path.name)]
