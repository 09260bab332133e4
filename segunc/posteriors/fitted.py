"""What is fitted on a finished model and stored beside it: its temperature, and statistics of its max logits.

Both are small JSON files that carry the hashes of what they were fitted on. Beside another model they are refused: a
temperature of another posterior would change every probability without a word.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from segunc.core.errors import InputError
from segunc.core.files import read_json, write_json

CALIBRATION = "calibration.json"
MAX_LOGIT_STATISTICS = "max_logit_statistics.json"
FORMAT = 1


@dataclass(frozen=True)
class Calibration:
    """A temperature, with how it was found (Guo et al., ICML 2017, arXiv 1706.04599).

    Attributes:
        temperature: T > 0, by which logits are divided before the softmax.
        fitted_on: the data set, its split, the size that the network saw, and the date.
        frames, pixels: how many frames, and how many pixels of them all together.
        nll_before, nll_after: their mean negative log-likelihood in nats at T = 1 and at T.
        seed: of the draws and of the choice of pixels.
        draws: S, 1 for a deterministic network.
        base_sha256, posterior_sha256: of the model; None for the posterior of a deterministic network.
    """

    temperature: float
    fitted_on: Mapping[str, Any]
    frames: int
    pixels: int
    nll_before: float
    nll_after: float
    seed: int
    draws: int
    base_sha256: str
    posterior_sha256: str | None

    def write(self, folder: Path) -> None:
        """Write ``calibration.json`` into a model folder."""
        write_json(folder / CALIBRATION, {"format": FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: Path, base_sha256: str, posterior_sha256: str | None) -> Self | None:
        """The calibration in the folder of a model with these hashes, None where there is none.

        Raises:
            InputError: it is damaged, or was fitted on other weights or another posterior.
        """
        content = _content(folder / CALIBRATION, cls, "calibration")
        if content is None:
            return None
        path = folder / CALIBRATION
        _check_hash(path, "base network", content["base_sha256"], base_sha256)
        _check_hash(path, "posterior", content["posterior_sha256"], posterior_sha256)
        temperature = content["temperature"]
        if not (_finite([temperature]) and temperature > 0):
            raise InputError(f"{path}: temperature {temperature}", "a positive number", "fit it again")
        return cls(**content)


@dataclass(frozen=True)
class MaxLogitStatistics:
    """How large the max logit of a pixel is where the base network predicts each class (Jung et al., arXiv 2107.11264).

    Attributes:
        mean, std: of the max logit for each class, std above 0. A class that is predicted for too few pixels has those of
            all pixels together.
        pixels: how many pixels each class was predicted for.
        fitted_on: the data set, its split, the size that the network saw, and the date.
        frames: how many frames.
        base_sha256: of the base network; the posterior has no part in them.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    pixels: tuple[int, ...]
    fitted_on: Mapping[str, Any]
    frames: int
    base_sha256: str

    @property
    def sha256(self) -> str:
        """Over the numbers that decide the score."""
        return hashlib.sha256(json.dumps([self.mean, self.std]).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write ``max_logit_statistics.json`` into a model folder."""
        write_json(folder / MAX_LOGIT_STATISTICS, {"format": FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: Path, base_sha256: str, classes: int) -> Self | None:
        """The statistics in the folder of a model of ``classes`` classes with this hash, None where there are none.

        Raises:
            InputError: they are damaged, or were fitted on other weights.
        """
        path = folder / MAX_LOGIT_STATISTICS
        content = _content(path, cls, "max-logit statistics")
        if content is None:
            return None
        _check_hash(path, "base network", content["base_sha256"], base_sha256)
        for name in ("mean", "std", "pixels"):
            values = content[name]
            if not (isinstance(values, list) and len(values) == classes and _finite(values)):
                raise InputError(f"{path}: {name} is damaged", f"{classes} numbers", "fit them again")
            content[name] = tuple(values)
        if min(content["std"]) <= 0:
            raise InputError(f"{path}: a standard deviation of {min(content['std'])}", "more than 0", "fit them again")
        return cls(**content)


def _content(path: Path, kind: type[Calibration] | type[MaxLogitStatistics], what: str) -> dict[str, Any] | None:
    """The fields of a record, checked to be all there; None where the file is not."""
    if not path.exists():
        return None
    content = read_json(path, what)
    if content.pop("format", None) != FORMAT:
        raise InputError(f"{path} is not of format {FORMAT}", "a file that this version wrote", "fit it again")
    names = {field.name for field in fields(kind)}
    if set(content) != names:
        differing = sorted(names ^ set(content))
        raise InputError(
            f"{path} lacks or has too much: {', '.join(differing)}", f"the fields of {what}", "fit it again"
        )
    return content


def _check_hash(path: Path, what: str, recorded: object, actual: str | None) -> None:
    if recorded != actual:
        raise InputError(
            f"{path} was fitted on a {what} with the hash {str(recorded)[:12]}, the one here has {str(actual)[:12]}",
            "a file beside the model that it was fitted on",
            "fit it again on this model, or remove the file",
        )


def _finite(values: list[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)
