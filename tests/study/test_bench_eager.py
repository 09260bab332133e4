"""The number by which eager maps are judged where a machine's speed wanders."""

from __future__ import annotations

import numpy as np
import pytest

from tools.bench_eager import by_turn


def test_two_lucky_passes_do_not_make_equal_work_look_slower():
    # All three do the same work; the machine's speed wanders by a factor of two from run to run.
    speeds = np.random.default_rng(0).uniform(1, 2, (3, 2001)).tolist()
    rows = dict(zip(("8 passes compiled x2", "4 passes compiled x4", "maps"), speeds, strict=True))
    assert by_turn(rows)["maps"] == pytest.approx(1, abs=0.03)


def test_the_faster_batch_is_the_limit():
    rows = {
        "8 passes compiled x2": [2.0, 4.0, 8.0],
        "4 passes compiled x4": [1.0, 2.0, 4.0],
        "maps": [1.1, 2.2, 4.8],
    }
    assert by_turn(rows) == {"maps": pytest.approx(1.1)}
