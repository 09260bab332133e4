"""Fits from one model folder to another, as ``segunc finetune`` does them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import segunc
from segunc.baselines.mixtures import Ensemble
from segunc.posteriors.fit_run import FitRun, silent
from segunc.posteriors.model import Model
from segunc.posteriors.settings import MethodSettings
from segunc.training.config import FitConfig
from segunc.training.fit_data import data_source


def fit_folder(
    settings: MethodSettings,
    base: Path,
    out: Path,
    data: Mapping[str, Any] | None = None,
    **options: Any,
) -> Model:
    """Fit a method on the model in a folder, write the new one, and return it as it was made."""
    model = settings.fit(segunc.load(base), data, device="cpu", **options)
    model.save(out)
    return model


def ensemble_of(folders: Sequence[Path], out: Path) -> Model:
    """Write the ensemble of the models in some folders."""
    model = Ensemble().fit([segunc.load(folder) for folder in folders])
    model.save(out)
    return model


def open_fit(model: Model, settings: MethodSettings, data: Any) -> FitRun[Any]:
    """A fit under way on a model."""
    return FitRun(model, FitConfig(settings), data_source(data), say=silent, quiet=True)
