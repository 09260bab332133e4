"""Laplace from a configuration: a Fisher that is interrupted, and one taken after a fine-tuning."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from segunc.core.errors import InputError
from segunc.posteriors.files import load_model
from segunc.posteriors.laplace import Laplace
from segunc.training import finetune_laplace as laplace
from segunc.training.config import parse_finetune_config
from segunc.training.finetune_laplace import FisherSum, LaplaceConfig, finetune_laplace
from segunc.training.progress import StepProgress
from tests.conftest import Job


def run(job: Job, out: Path, settings: str = "") -> Laplace:
    """Twelve crops in three batches."""
    config = out.parent / "laplace.yaml"
    config.write_text(
        f"data: {{dataset: toy, root: {job.data}, crop: [64, 64], batch_size: 4}}\n"
        f"laplace: {{images: 12, samples: 1, prior_scale_grid: []{settings}}}\ntrainer: {{precision: 32-true}}\n",
        encoding="utf-8",
    )
    parsed = parse_finetune_config(config, [], "laplace", LaplaceConfig)
    finetune_laplace(job.base, parsed, out, device="cpu", say=lambda text: None)
    posterior = load_model(out).posterior
    assert isinstance(posterior, Laplace)
    return posterior


def test_an_interrupted_fisher_is_continued_to_the_same_numbers(
    trained: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(trained, tmp_path / "whole")
    added: list[int] = []
    add = FisherSum.add

    def interrupted(self: FisherSum, *arguments: Any) -> None:
        if len(added) == 2:
            raise KeyboardInterrupt
        add(self, *arguments)
        added.append(self.pixels)

    monkeypatch.setattr(laplace, "StepProgress", partial(StepProgress, every=0.0))
    monkeypatch.setattr(FisherSum, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(trained, tmp_path / "stopped")
    assert len(added) == 2
    with pytest.raises(InputError, match=r"laplace.samples 1 there, 3 asked for"):
        run(trained, tmp_path / "stopped", ", samples: 3")

    def counted(self: FisherSum, *arguments: Any) -> None:
        add(self, *arguments)
        added.append(self.pixels)

    monkeypatch.setattr(FisherSum, "add", counted)
    continued = run(trained, tmp_path / "stopped")
    assert len(added) == 3, "what was summed before is not summed again"
    assert torch.equal(continued.fisher, whole.fisher)
    assert torch.equal(run(trained, tmp_path / "stopped").fisher, whole.fisher)
    assert len(added) == 3, "nor is anything of a finished run"


def test_a_finetuning_before_moves_the_mean(trained: Job, tmp_path: Path) -> None:
    base, tuned = run(trained, tmp_path / "base"), run(trained, tmp_path / "tuned", ", epochs: 1")
    assert float((tuned.mean - base.mean).abs().max()) > 1e-4
    assert not torch.equal(tuned.fisher, base.fisher)


def test_a_full_fisher_of_the_last_site(trained: Job, tmp_path: Path) -> None:
    posterior = run(trained, tmp_path / "full", ", structure: full, scope: 'last:1'")
    assert posterior.index is not None
    assert posterior.fisher.shape == (len(posterior.index), len(posterior.index))
    assert float(torch.linalg.eigvalsh(posterior.fisher.double())[-1]) > 0
