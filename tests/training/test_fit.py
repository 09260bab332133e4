"""How a fit ends that Lightning, a frame or the user breaks off."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from segunc.core.errors import InputError, PartialFailure
from segunc.training.lightning_runs import fit

UNREADABLE = InputError("frame a.png cannot be read")


def broken(error: BaseException, *, step: int = 0, interrupted: bool = False) -> Any:
    """A trainer whose ``fit`` raises an error after so many steps."""

    def raise_error(*_: object, **__: object) -> None:
        raise error

    return trainer(raise_error, step=step, interrupted=interrupted)


def trainer(fits: Callable[..., None], *, step: int, interrupted: bool) -> Any:
    """A trainer of one process."""
    return SimpleNamespace(
        fit=fits, global_step=step, interrupted=interrupted, num_devices=1, num_nodes=1
    )


def run(of: Any) -> None:
    task: Any = None
    fit(of, task, None)


def test_a_frame_that_cannot_be_read_refuses_the_run_before_its_first_step() -> None:
    with pytest.raises(InputError, match=r"^frame a\.png cannot be read$"):
        run(broken(UNREADABLE))


def test_a_frame_that_cannot_be_read_stops_a_run_at_its_step() -> None:
    with pytest.raises(PartialFailure, match=r"^stopped at step 3: frame a\.png cannot be read; "):
        run(broken(UNREADABLE, step=3))


def test_the_traceback_of_a_loader_process_is_left_out() -> None:
    error = InputError("Traceback of a worker\nInputError: frame a.png cannot be read")
    with pytest.raises(InputError, match=r"^frame a\.png cannot be read$"):
        run(broken(error))


def test_an_error_that_a_run_does_not_know_passes() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        run(broken(ValueError("shapes differ")))


def test_a_process_that_ends_itself_ends() -> None:
    with pytest.raises(SystemExit):
        run(broken(SystemExit(3)))


def test_a_process_that_was_interrupted_says_so() -> None:
    with pytest.raises(KeyboardInterrupt):
        run(broken(SystemExit(1), interrupted=True))


def test_a_fit_that_was_interrupted_and_returned_says_so() -> None:
    with pytest.raises(KeyboardInterrupt):
        run(trainer(lambda *_, **__: None, step=3, interrupted=True))
