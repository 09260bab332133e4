"""What the fits of several methods share: the run of a fine-tuning."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from segunc.core.device import flushed_denormals
from segunc.posteriors.finetune_run import FinetuneRun
from segunc.training.config import FinetuneConfig
from segunc.training.lightning_runs import Say, no_half_folder, say

Work = Callable[[FinetuneRun[Any]], dict[str, Any]]


def finetuning(work: Work) -> Callable[..., Any]:
    """Return a :attr:`segunc.posteriors.methods.Method.fit` that opens a run and does its work.

    Args:
        work: from an open run to what was measured.
    """

    @wraps(work)
    @flushed_denormals()
    def fit(
        base: Path, config: FinetuneConfig[Any], out: Path, *, device: str = "auto", say: Say = say
    ) -> Any:
        with no_half_folder(out):
            return work(FinetuneRun(base, config, out, device=device, say=say))

    return fit
