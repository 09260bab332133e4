"""What the fits of several methods share: the run of a fine-tuning."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from segunc.core.device import flushed_denormals
from segunc.training.config import FinetuneConfig
from segunc.training.finetune_run import FinetuneRun
from segunc.training.progress import Say, no_half_folder, say

Check = Callable[[Path, FinetuneConfig[Any], Path], None]
Work = Callable[[FinetuneRun[Any]], dict[str, Any]]


def finetuning(check: Check | None = None) -> Callable[[Work], Callable[..., Any]]:
    """Makes a :attr:`segunc.posteriors.methods.Method.fit` of what is done in a run that is open, which gives what was measured. ``check``
    sees base, configuration and output folder before."""

    def fit_of(work: Work) -> Callable[..., Any]:
        @wraps(work)
        @flushed_denormals()
        def fit(base: Path, config: FinetuneConfig[Any], out: Path, *, device: str = "auto", say: Say = say) -> Any:
            if check is not None:
                check(base, config, out)
            with no_half_folder(out):
                return work(FinetuneRun(base, config, out, device=device, say=say))

        return fit

    return fit_of
