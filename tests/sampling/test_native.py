"""Pieces of work on several threads, also in a process that was forked."""

import ctypes
import os
import signal
from pathlib import Path

import pytest
import torch

from segunc.sampling import native
from segunc.sampling.native import Library, compiled, in_threads
from segunc.sampling.shortcuts import Upsampling
from segunc.sampling.tail_native import SOURCE, NativeTail, _declare


def pieces_of(count: int) -> list[int]:
    done: list[int] = []
    in_threads(lambda first, last: done.extend(range(first, last)), count, 2)
    return sorted(done)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
def test_every_number_is_worked_on_once(count: int) -> None:
    assert pieces_of(count) == list(range(count))


def test_what_a_thread_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda first, last: 1 // first, 10, 2)


def test_a_forked_process_has_threads_of_its_own() -> None:
    pieces_of(10)  # the threads of this process are there
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # without threads it would wait for ever
        os._exit(0 if pieces_of(10) == list(range(10)) else 1)
    assert os.waitpid(child, 0)[1] == 0


def built_here(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Library:
    """Return the tail, built into a folder of its own."""
    cache.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    library = compiled(SOURCE)
    if library.functions is None:
        pytest.skip(f"no compiled tail: {library.reason}")
    return library


def entropies(library: Library) -> torch.Tensor:
    """Return the entropies of 5 classes in 7 rows of 3 pixels, summed by a library."""
    assert library.functions is not None
    _declare(library.functions)
    logits = torch.randn(2, 5, 7, 3, generator=torch.Generator().manual_seed(0))
    entropy = torch.zeros(7, 3, dtype=torch.float64)
    tail = NativeTail(library.functions)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        tail.add_draws(logits, Upsampling.none((7, 3)), entropy)
    finally:
        torch.set_num_threads(before)
    return entropy


def test_without_openmp_the_threads_are_those_of_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usual = entropies(built_here(monkeypatch, tmp_path / "usual"))
    monkeypatch.setattr(native, "THREADS", ((),))
    library = built_here(monkeypatch, tmp_path / "without")
    assert library.functions is not None
    assert library.functions.segunc_has_threads() == 0
    assert torch.equal(entropies(library), usual)


def test_a_library_that_cannot_be_loaded_is_built_without_openmp(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    load = native._load

    def without_openmp(path: Path) -> ctypes.CDLL:
        library = load(path)
        if library.segunc_has_threads():
            raise OSError("libgomp.so.1: cannot open shared object file")
        return library

    monkeypatch.setattr(native, "_load", without_openmp)
    library = built_here(monkeypatch, tmp_path / "cache")
    assert library.functions is not None
    assert library.functions.segunc_has_threads() == 0
    assert library.reason == ""
