"""Ensembles of trained models, and test-time augmentation of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from jsonargparse.typing import PositiveFloat

from segunc.core.errors import InputError
from segunc.networks.files import DESCRIPTION
from segunc.posteriors.mixture_files import member_folders, save_augmented, save_ensemble
from segunc.training.base import train_network
from segunc.training.progress import is_first_process, say
from segunc.training.resume import claim_checkpoints


def train_members(
    config: Namespace, seeds: Sequence[int], out: Path, *, device: str = "auto", say: Callable[[str], None] = say
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Train one network for each seed, into ``seed-N`` below ``out``; finished ones are skipped.

    Args:
        config: of ``segunc train``; its own seed plays no part.
        seeds: all different.
        out: the folder of the members' folders.
        device: ``auto``, ``cpu`` or ``cuda[:N]``.
        say: receives a line for each member.

    Yields:
        the folder and what was measured, after each training.

    Raises:
        InputError: a seed twice, or a finished member of other settings.
    """
    if len(set(seeds)) < len(seeds) or not seeds or min(seeds) < 0:
        raise InputError(f"--seeds {','.join(map(str, seeds))}", "different numbers of at least 0", "e.g. 0,1,2,3")
    for number, seed in enumerate(seeds, start=1):
        own, folder = config.clone(), out / f"seed-{seed}"
        own.seed = seed
        if (folder / DESCRIPTION).exists():
            claim_checkpoints(folder, "train", own)  # refuses what other settings made
            say(f"member {number} of {len(seeds)}: {folder} is finished")
            continue
        say(f"member {number} of {len(seeds)}: {folder}")
        yield folder, train_network(own, folder, device=device)[1]


def make_ensemble(bases: Sequence[Path], out: Path, *, say: Callable[[str], None] = say) -> None:
    """Write the model folder of an ensemble; nothing is trained.

    Args:
        bases: model folders, or one folder that holds several in ``seed-*``.
        out: the new model folder.
        say: receives a line.

    Raises:
        InputError: see :func:`segunc.posteriors.mixture_files.save_ensemble`.
    """
    folders = member_folders(bases)
    provenance = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "bases": [folder.name for folder in folders],
    }
    if is_first_process():
        save_ensemble(folders, out, provenance)
        say(f"wrote {out}: an ensemble of {', '.join(map(str, folders))}; base scores are those of the first")


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
        InputError: see :func:`segunc.posteriors.mixture_files.save_augmented`.
    """
    options = config.tta
    provenance = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "base": base.name}
    save_augmented(base, out, options.scales, options.flip, provenance)
    scales = ", ".join(f"{scale:g}" for scale in options.scales)
    say(f"wrote {out}: frames at scale {scales}{', each also mirrored' if options.flip else ''}")
