"""Pieces of work on several threads, also in a process that was forked."""

import os
import signal

import pytest
import torch

from segunc.sampling.native import in_threads


@pytest.fixture(autouse=True)
def two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield None
    torch.set_num_threads(before)


def pieces_of(count: int) -> list[int]:
    done: list[int] = []
    in_threads(lambda first, last: done.extend(range(first, last)), count)
    return sorted(done)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
def test_every_number_is_worked_on_once(count: int) -> None:
    assert pieces_of(count) == list(range(count))


def test_what_a_thread_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda first, last: 1 // first, 10)


def test_a_forked_process_has_threads_of_its_own() -> None:
    pieces_of(10)  # the threads of this process are there
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # without threads it would wait for ever
        os._exit(0 if pieces_of(10) == list(range(10)) else 1)
    assert os.waitpid(child, 0)[1] == 0
