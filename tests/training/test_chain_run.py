"""The run of several chains: what it collects, and that a killed one goes on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from segunc.core.errors import PartialFailure
from segunc.training.chains import ChainFailure, CyclicalSteps, LangevinChain, run_chains
from segunc.training.progress import StepProgress


class Killed(Exception):
    """Stands for a signal that ends the process."""


class Mortal(LangevinChain):
    """A chain on N(0, I) of which the whole process dies, or which fails, at a step."""

    def __init__(self, number: int, die: tuple[int, int] | None = None, fail: tuple[int, int] | None = None) -> None:
        steps = CyclicalSteps(0.1, 2, 10, 0.3, 3, "cosine")
        start = torch.zeros(4, dtype=torch.float64)
        super().__init__(lambda theta, _: theta, start, steps, seed=number, momentum=0.0, temperature=1.0)
        self.number, self._die, self._fail = number, die, fail

    def advance(self) -> bool:
        if self._die == (self.number, self.step):
            raise Killed
        if self._fail == (self.number, self.step):
            raise ChainFailure("the gradient became NaN or infinite", "lower the learning rate")
        return super().advance()

    def record(self) -> dict[str, Any]:
        return {"number": self.number}


@pytest.fixture
def always_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after every step, not only now and then."""
    step = StepProgress.step
    monkeypatch.setattr(StepProgress, "step", lambda self, text="": step(self, text) or True)


def run(tmp_path: Path, **ending: Any) -> Tensor:
    """The states of three chains."""
    last = tmp_path / "last.ckpt"
    states, records = run_chains(lambda number: Mortal(number, **ending), 3, last, resume=last.exists())
    assert records == [{"number": 0}, {"number": 1}, {"number": 2}]
    return states


def whole(tmp_path: Path) -> Tensor:
    folder = tmp_path / "whole"
    folder.mkdir()
    return run(folder)


def test_the_states_of_all_chains_in_their_order(tmp_path: Path) -> None:
    states = run(tmp_path)
    assert states.shape == (3, 6, 4)
    chain = Mortal(1)
    kept = [chain.theta.float() for _ in range(chain.total) if chain.advance()]
    assert torch.equal(states[1], torch.stack(kept))


@pytest.mark.parametrize("moment", [(0, 1), (0, 4), (0, 19), (1, 0), (1, 13), (2, 19)])
@pytest.mark.usefixtures("always_saved")
def test_killed_and_continued_gives_the_same_states(tmp_path: Path, moment: tuple[int, int]) -> None:
    with pytest.raises(Killed):
        run(tmp_path, die=moment)
    assert torch.equal(run(tmp_path), whole(tmp_path))


def test_killed_between_checkpoints_it_repeats_what_was_not_saved(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(tmp_path, die=(1, 15))
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["state"]["step"] == 1
    assert torch.equal(run(tmp_path), whole(tmp_path))


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert torch.equal(run(tmp_path, die=(0, 0)), first)


def test_a_failure_says_where_and_keeps_the_last_good_state(tmp_path: Path) -> None:
    last = tmp_path / "last.ckpt"
    with pytest.raises(PartialFailure) as caught:
        run(tmp_path, fail=(1, 8))
    text = str(caught.value)
    assert "chain 2 of 3 stopped at step 8: the gradient became NaN or infinite" in text
    assert f"8 states collected are in {last}; lower the learning rate, and give another --out" in text
    held = torch.load(last, weights_only=True)
    assert held["state"]["step"] == 8
    assert torch.isfinite(held["state"]["theta"]).all()
    assert len(held["kept"]) == 2
    assert held["finished"][0].shape == (6, 4)
