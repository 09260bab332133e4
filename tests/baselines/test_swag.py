"""SWAG: its statistics against numpy over the recorded trajectory, its schedule, and too few snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from segunc.affine.draws import AffineLayout
from segunc.baselines.swag import SwagConfig, Trajectory
from segunc.core.errors import InputError
from segunc.training.affine_task import AffineTask
from tests.affine.networks import small_network
from tests.training.fitting import fit, swag_task


class Recorded(AffineTask[Any]):
    """Keeps the parameters after every step."""

    def on_train_batch_end(self, *arguments: Any) -> None:
        if not hasattr(self, "trajectory"):
            self.trajectory: dict[int, np.ndarray] = {}
            self.rates: list[float] = []
        self.trajectory[self.global_step] = self.trained.affine.detach().double().numpy().copy()
        self.rates.append(float(self.trainer.optimizers[0].param_groups[0]["lr"]))
        super().on_train_batch_end(*arguments)


def test_the_statistics_are_those_of_the_snapshots(tmp_path: Path) -> None:
    config = SwagConfig(warmup_steps=3, burn_in=5, collect_every=2, rank=3, lr=0.02)
    task = Recorded(small_network(), 4, lambda layout: Trajectory(layout, config), config)
    fit(task, tmp_path, 4)  # 16 steps
    taken = np.stack([task.trajectory[n] for n in (7, 9, 11, 13, 15)])
    posterior = task.trained.gaussian()
    np.testing.assert_allclose(posterior.mean, taken.mean(0), rtol=1e-6)
    np.testing.assert_allclose(posterior.variance, taken.var(0), rtol=1e-5, atol=1e-14)
    running = taken.cumsum(0) / np.arange(1, 6)[:, None, None]
    np.testing.assert_allclose(posterior.deviations, (taken - running)[-3:], rtol=1e-4, atol=1e-8)
    assert int(task.trained.snapshots) == 5
    # The rate of step n, read after it: a linear rise over the warm-up, then constant.
    assert task.rates == pytest.approx([0.01, 0.015, *[0.02] * 14])


def test_accumulated_gradients_give_one_snapshot_a_step_and_each_below_the_rank_a_column(tmp_path: Path) -> None:
    task = swag_task(small_network(), burn_in=0, collect_every=1, rank=10)
    fit(task, tmp_path, 2, accumulate_grad_batches=2)
    assert int(task.trained.snapshots) == 4
    assert task.trained.gaussian().deviations.shape == (4, 2, 16)


def test_one_snapshot_is_one_clear_line(tmp_path: Path) -> None:
    task = swag_task(small_network(), burn_in=10, collect_every=4)
    said = "at least 2 snapshots, and 16 steps give 1 with burn_in 10 and collect_every 4"
    with pytest.raises(InputError, match=said):
        fit(task, tmp_path, 4)
    assert int(task.trained.snapshots) == 0, "said before the first step"
    task.trained.collect(AffineLayout(task.network))
    with pytest.raises(InputError, match="at least 2 snapshots, not 1"):
        task.trained.gaussian()


def test_the_mean_moves_and_outside_of_the_scope_nothing_varies(tmp_path: Path) -> None:
    task = swag_task(small_network(), burn_in=2, collect_every=1, rank=4, scope="decoder", lr=0.02)
    fit(task, tmp_path, 3)
    posterior = task.trained.gaussian()
    base = task.layout.affine
    torch.testing.assert_close(posterior.mean[:, :8], base[:, :8], rtol=1e-6, atol=0)
    assert float(posterior.variance[:, :8].max()) < 1e-12
    assert float(posterior.variance[:, 8:].max()) > 1e-5
