"""Test-time augmentation of a finished model: ``segunc finetune --method tta``, which trains nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from jsonargparse import Namespace
from jsonargparse.typing import PositiveFloat

from segunc.bayes.mixture_files import save_augmented
from segunc.training.progress import say


@dataclass
class TtaConfig:
    """Which transforms the frames go through.

    Args:
        scales: factors of both sides of the frame.
        flip: also mirror the frame.
    """

    scales: list[PositiveFloat] = field(default_factory=lambda: [1.0])
    flip: bool = True


def augment_model(base: Path, config: Namespace, out: Path, *, say: Callable[[str], None] = say) -> None:
    """Write a model with test-time augmentation over it.

    Args:
        base: a model folder of any kind.
        config: with ``tta``, a :class:`TtaConfig`.
        out: the new model folder.
        say: receives a line.

    Raises:
        InputError: see :func:`segunc.bayes.mixture_files.save_augmented`.
    """
    options = config.tta
    provenance = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "base": base.name}
    save_augmented(base, out, options.scales, options.flip, provenance)
    scales = ", ".join(f"{scale:g}" for scale in options.scales)
    say(f"wrote {out}: frames at scale {scales}{', each also mirrored' if options.flip else ''}")
