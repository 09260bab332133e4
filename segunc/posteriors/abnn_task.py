"""ABNN for a Lightning Trainer; a file of its own, because it imports Lightning."""

from __future__ import annotations

from segunc.posteriors.abnn import ABNNPosterior, ABNNTuner
from segunc.training.affine_task import AffineTask


class ABNNTask(ABNNTuner, AffineTask[ABNNPosterior]):
    """An :class:`ABNNTuner` for a Lightning Trainer: give it to ``fit`` in place of your own module, then ask :meth:`posterior`.
    Batches are ``(image, label)`` pairs or dictionaries with these keys; the arguments are those of the tuner."""
