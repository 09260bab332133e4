"""A student beside its network, in the package as it is and with a host that asks later whether
logits are finite.

The sampler waits for the GPU behind the pass of the base network and behind each further one, to
raise NotFiniteError before anything is made of such logits. While it waits, nothing is queued. With
:class:`LaterChecks` it queues the question, and waits for the answer when the next pass is queued
or the maps are. This was in the package with commit c12846db, and left it unmeasured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from segunc.baselines.distil import LogitLayer, Student, StudentPosterior, make_head
from segunc.sampling import sampler as sampler_module
from segunc.sampling.engine import require_finite
from segunc.sampling.sampler import Prediction, Sampler
from tools.bench_sampler import make_network
from tools.cost_table import in_turns
from tools.gpu_day.networks import NetworkName, arguments_of, networks_of, sizes_of
from tools.gpu_day.steps import Day, Row, Step
from tools.gpu_day.timing import kernel_seconds, prepare, seconds_of

STUDENT_OVER_BASE = 1.1
"""Goal: the seconds of a student beside those of its network."""
WORTH_TAKING = 0.05
"""Share of a student's seconds that the later question has to save to come into the package."""
ROUNDS = 30
TINY_ROUNDS = 2
Check = Callable[[], None]


def steps(day: Day) -> Iterator[Step]:
    """Give the steps of the part ``waits``."""
    for name in networks_of(day):
        yield Step(f"waits of a student of {name.words}", partial(measure_waits, day, name))


class Case:
    """A student whose head has random weights, and its network, both compiled.

    Attributes:
        base: returns the entropy map of the network alone.
        student: returns entropy and epistemic of the student.
    """

    def __init__(self, day: Day, name: NetworkName) -> None:
        size = sizes_of(day)[0]
        network = make_network(arguments_of(day, name, size))
        layer = LogitLayer(network).module
        head = make_head(layer, Student.head_channels).to(day.device)
        posterior = StudentPosterior(network, head, layer)
        settings: dict[str, Any] = {"precision": day.precision, "compiled": True}
        base = Sampler(network, scores=("deterministic-entropy",), **settings)
        student = Sampler(posterior.network, posterior, scores=("entropy", "epistemic"), **settings)
        images = torch.rand(1, 3, *size, device=day.device)
        self.base = partial(base, images)
        self.student = partial(student, images)


def measure_student(day: Day, name: NetworkName) -> Row:
    """Return what a student takes beside its network, in the package as it is."""
    case = Case(day, name)
    base = prepare(case.base, day.device)
    student = prepare(case.student, day.device)
    with day.turns:
        ratio = seconds_of(student, day.device) / seconds_of(base, day.device)
        base_kernels = kernel_seconds(base, day.device)
        student_kernels = kernel_seconds(student, day.device)
    row: Row = {"student over base": ratio}
    if base_kernels and student_kernels:
        row["in kernels"] = student_kernels / base_kernels
    row["met"] = ratio <= STUDENT_OVER_BASE
    return row


class LaterChecks:
    """Makes the sampler ask later whether logits are finite, as long as ``on`` is true.

    It replaces ``require_finite`` in the module of the sampler. It has to be in force for a whole
    call of a sampler. A check that is still open is done before the sampler returns.
    """

    def __init__(self) -> None:
        self.on = False
        self.asked = 0
        self._open: list[Check] = []
        self._at_once = require_finite
        self._predict = Sampler._predict
        self._patches = (
            patch.object(sampler_module, "require_finite", self._require_finite),
            patch.object(Sampler, "_predict", self._predict_and_check()),
        )

    def __enter__(self) -> LaterChecks:
        for one in self._patches:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._patches:
            one.stop()

    def _require_finite(self, logits: Tensor, *words: str) -> None:
        """Do the check before this one, once the question of this one is queued."""
        # With words it is the last question of a call, about the draws of a posterior.
        if not self.on or words or get_proxy_mode() is not None:
            self._at_once(logits, *words)
            return
        earlier = self._open
        self._open = [self._queued(logits)]
        for check in earlier:
            check()

    def _queued(self, logits: Tensor) -> Check:
        """Queue the question whether logits are finite, and return what waits for the answer."""
        self.asked += 1
        zero = (logits.detach() * 0).sum().to("cpu", non_blocking=True)  # or NaN
        copied = None
        if logits.is_cuda:
            copied = torch.cuda.current_stream(logits.device).record_event()

        def check() -> None:
            if copied is not None:
                copied.synchronize()
            self._at_once(zero)

        return check

    def _predict_and_check(self) -> Callable[..., Any]:
        """Return ``Sampler._predict`` with the last check at its end."""

        def predict(sampler: Sampler, *arguments: Any) -> Any:
            self._open = []  # those of a call that failed
            prediction = self._predict(sampler, *arguments)
            for check in self._open:
                check()
            return prediction

        return predict


def have_same_bits(first: Prediction, second: Prediction) -> bool:
    """Return whether all maps of two results are the same."""
    if not torch.equal(first.prediction, second.prediction):
        return False
    return all(torch.equal(values, second.scores[score]) for score, values in first.scores.items())


def measure_waits(day: Day, name: NetworkName) -> Row:
    """Return what a student takes beside its network, with both ways of asking in turns.

    The later question comes into the package if it keeps every bit of the maps and saves the share
    WORTH_TAKING of the student's seconds.
    """
    case = Case(day, name)
    prepare(case.base, day.device)
    prepare(case.student, day.device)
    with LaterChecks() as checks:

        def timed(run: Callable[[], Any], on: bool) -> Any:
            checks.on = on
            return run()

        at_once = timed(case.student, False)
        later = timed(case.student, True)
        same = have_same_bits(at_once, later)
        checks.asked = 0
        timed(case.student, True)
        asked = checks.asked
        runs = {
            "base": partial(timed, case.base, False),
            "student": partial(timed, case.student, False),
            "base, asked later": partial(timed, case.base, True),
            "student, asked later": partial(timed, case.student, True),
        }
        with day.turns:
            ms = in_turns(runs, TINY_ROUNDS if day.tiny else ROUNDS, day.device)
    ratio = ms["student, asked later"] / ms["base, asked later"]
    saved = 1.0 - ms["student, asked later"] / ms["student"]
    row: Row = {f"{run}, ms": value for run, value in ms.items()}
    row["questions a frame"] = asked
    row["student over base"] = ms["student"] / ms["base"]
    row["student over base, asked later"] = ratio
    row["saved"] = saved
    row["maps have the same bits"] = same
    row["take it into the package"] = "yes" if same and saved >= WORTH_TAKING else "no"
    row["met"] = same and ratio <= STUDENT_OVER_BASE
    return row
