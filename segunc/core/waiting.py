"""How long threads that compute together wait for one another before they give up their cores."""

from __future__ import annotations

import os

SPIN_COUNT = "GOMP_SPINCOUNT"
TURNS = 10_000
_CHOSEN_BY_USER = (SPIN_COUNT, "OMP_WAIT_POLICY")


def wait_briefly() -> None:
    """Let threads of GNU OpenMP, which PyTorch has on Linux, give up their cores after
    :data:`TURNS` turns of waiting, which take less than a millisecond.

    By default they wait 300,000 turns. Where another process needs the core of one thread, all
    others wait for it, and keep their cores busy meanwhile: two processes beside each other took up
    to twice as long. ``docs/benchmarks.md`` has the numbers.

    OpenMP reads the setting when PyTorch is imported, so it must be made before. It holds for the
    processes that are started from this one, too, and so only the command line makes it. It changes
    no number. A user who has chosen by the environment (``GOMP_SPINCOUNT``, ``OMP_WAIT_POLICY``)
    keeps the choice.
    """
    if any(name in os.environ for name in _CHOSEN_BY_USER):
        return
    os.environ[SPIN_COUNT] = str(TURNS)
