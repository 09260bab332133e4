"""A bank of features of the training frames, for the score ``knn``: of the network itself, or of a second encoder beside it.

Fine-tuning lets an encoder forget what it does not need, and no noise on it brings that back. A generic encoder that never saw the
task, the *witness*, still tells a zebra from a road; what is far from everything that it saw in the training frames is unknown.
Frames are not augmented, and are seen at the size at which the network will predict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from segunc.affine.files import file_sha256
from segunc.core.bounds import NonNegativeInt, PositiveFloat, PositiveInt, Settings
from segunc.core.device import flushed_denormals, resolve_device
from segunc.core.errors import InputError
from segunc.core.files import write_atomically
from segunc.networks.encoders import encoder_normalisation, load_encoder_weights
from segunc.networks.features import FeatureExtractor, Witness, deepest_layer
from segunc.networks.network import SegmentationNetwork
from segunc.networks.weights import load_state
from segunc.posteriors.fitting import Attachment, fitted_on, frames_as_seen, load_for_fitting
from segunc.posteriors.methods import Method
from segunc.sampling.density import FeatureDensity, unit_features
from segunc.training.config import FitConfig
from segunc.training.progress import Say, say

OWN = "own"
TENSORS = "features.safetensors"
BANK, ENCODER = "bank.", "witness."
"""Beginnings of names of tensors: a bank for each map, and the weights of the second encoder."""


@dataclass(frozen=True)
class FeatureBank(Attachment):
    """What features of the training frames were kept, and of which network; the posterior has no part in it."""

    file: ClassVar[str] = "features.json"
    what: ClassVar[str] = "feature bank"
    outdates: ClassVar[tuple[str, ...]] = ("anomaly.json",)

    encoder: str  # own, or timm's name of a second encoder
    layers: tuple[str, ...]
    sizes: tuple[float, ...]
    mean: tuple[float, ...]  # input normalisation of the second encoder
    std: tuple[float, ...]
    fitted_on: Mapping[str, Any]  # the data set, its split, the size that the network saw, and the date
    frames: int
    base_sha256: str
    tensors_sha256: str  # of the banks and of the second encoder's weights, in the file beside this


class StoredFeatures(NamedTuple):
    """The bank of a model folder, whose tensors are read when they are needed."""

    bank: FeatureBank
    folder: Path

    def density(self, network: SegmentationNetwork) -> FeatureDensity:
        """Ready for the sampler, on the network's device; InputError where the tensors are damaged or of another bank."""
        bank, path = self.bank, self.folder / TENSORS
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path} cannot be read ({error})", "the tensors of the bank", "fit it again") from error
        if file_sha256(path) != bank.tensors_sha256:
            given = f"{path} has changed since {bank.file} was written"
            raise InputError(given, "both files of one fit", "fit it again")
        seen: nn.Module = network
        if bank.encoder != OWN:
            seen = Witness(bank.encoder, bank.mean, bank.std)
            weights = {k.removeprefix(ENCODER): v for k, v in tensors.items() if k.startswith(ENCODER)}
            load_state(seen, weights, str(path))
            seen.to(next(network.parameters()).device)
        names = [f"{BANK}{index}" for index in range(len(bank.layers) * len(bank.sizes))]
        if lacking := [name for name in names if name not in tensors]:
            raise InputError(f"{path} lacks {lacking[0]}", "a bank for each layer and size", "fit it again")
        return FeatureDensity(FeatureExtractor(seen, bank.layers, bank.sizes), [tensors[name] for name in names])


def read_features(folder: Path, base_sha256: str) -> StoredFeatures | None:
    """The bank of the folder of a model with this hash, None where there is none; InputError for one of another model."""
    content = FeatureBank.content(folder, base_sha256=base_sha256)
    if content is None:
        return None
    lists = {name: tuple(content[name]) for name in ("layers", "sizes", "mean", "std")}
    return StoredFeatures(FeatureBank(**content | lists), folder)


@dataclass(frozen=True)
class FeaturesConfig(Settings):
    """How the bank is made.

    Args:
        encoder: own, or timm's name of a second encoder beside the network (tf_efficientnet_lite0).
        weights: of the second encoder: a file in the names of timm or torchvision, or imagenet, which timm downloads.
        layers: names of the modules whose outputs are the features; none for the deepest map.
        sizes: factors by which frames are resized before the encoder, a map and a bank for each.
        bank: features that are kept for each layer and size, a random sample of all.
        split: of the data set; the one that the network was trained on.
        frames: how many evenly spaced frames (0: all).
        seed: of the sample.
    """

    section = "features"
    encoder: str = OWN
    weights: str | None = None
    layers: list[str] | None = None
    sizes: list[PositiveFloat] = field(default_factory=lambda: [1.0])
    bank: PositiveInt = 20_000
    split: str = "train"
    frames: NonNegativeInt = 0
    seed: NonNegativeInt = 0


class Sample:
    """A uniform sample without replacement of at most ``size`` rows of a stream, in constant memory: those of the smallest random
    keys. It depends on the seed and the stream alone, not on how the stream is cut."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self._generator = size, torch.Generator().manual_seed(seed)
        self._keys, self.rows = torch.empty(0, dtype=torch.float64), torch.empty(0)

    def add(self, rows: Tensor) -> None:
        """Rows ``[M, D]``."""
        keys = torch.cat([self._keys, torch.rand(len(rows), generator=self._generator, dtype=torch.float64)])
        rows = torch.cat([self.rows, rows]) if len(self.rows) else rows
        kept = keys.argsort()[: self.size]
        self._keys, self.rows = keys[kept], rows[kept]


def _opened(network: SegmentationNetwork, settings: FeaturesConfig, say: Say) -> tuple[nn.Module, str]:
    """What is looked at, on the network's device, and its deepest layer."""
    if settings.encoder == OWN:
        if settings.weights is not None:
            given = f"features.weights {settings.weights} for the network's own features"
            raise InputError(given, "features.encoder", "name the encoder that they belong to")
        encoder = getattr(network.body, "encoder", None)
        if settings.layers is None and not isinstance(encoder, nn.Module):
            given = f"a network of type {type(network.body).__name__} without features.layers"
            names = [name for name, _ in network.named_modules()][-3:]
            raise InputError(given, "names of its modules", f"{', '.join(names)}, for instance")
        return network, deepest_layer(network, encoder) if isinstance(encoder, nn.Module) else ""
    if settings.weights is None:
        given = f"features.encoder {settings.encoder} without features.weights"
        raise InputError(given, "pretrained weights: a file, or imagenet", "random features know nothing")
    mean, std = encoder_normalisation(settings.encoder)
    if settings.weights == "imagenet":
        witness = Witness(settings.encoder, mean, std, pretrained=True)
    else:
        witness = Witness(settings.encoder, mean, std)
        for note in load_encoder_weights(witness.encoder, settings.encoder, settings.weights):
            say(f"note: {note}")
    return witness.to(next(network.parameters()).device).requires_grad_(False), witness.deepest


@flushed_denormals()
def fit_features(
    base: Path, config: FitConfig[FeaturesConfig], out: Path, *, device: str = "auto", say: Say = say
) -> FeatureBank:
    """Gather the features and write the same model with them; a posterior plays no part, and ``out`` may be ``base``.

    See :class:`segunc.posteriors.methods.Method`; InputError for a layer or weights that are not there.
    """
    settings = config.settings
    model, data = load_for_fitting(base, config, resolve_device(device))
    network = model.network
    looked_at, deepest = _opened(network, settings, say)
    layers = tuple(settings.layers or [deepest])
    extractor = FeatureExtractor(looked_at, layers, settings.sizes)
    samples = [Sample(settings.bank, settings.seed) for _ in range(len(layers) * len(settings.sizes))]
    frames = seen = 0
    with torch.inference_mode():
        for _, image, _ in frames_as_seen(model, data, settings.split, settings.frames, METHOD.name):
            for sample, maps in zip(samples, extractor(image), strict=True):
                rows = unit_features(maps)
                sample.add(rows.cpu())
                seen += len(rows)
            frames += 1
    tensors = {f"{BANK}{index}": sample.rows.half().contiguous() for index, sample in enumerate(samples)}
    mean, std = (), ()
    if isinstance(looked_at, Witness):
        tensors |= {f"{ENCODER}{name}": v.cpu().contiguous() for name, v in looked_at.state_dict().items()}
        mean, std = (tuple(v.flatten().tolist()) for v in (looked_at.mean, looked_at.std))
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / TENSORS, save(tensors))
    data_set = fitted_on(config, settings.split)
    digest = file_sha256(out / TENSORS)
    kept = FeatureBank(
        settings.encoder, layers, tuple(settings.sizes), mean, std, data_set, frames, model.sha256, digest
    )
    kept.attach(base, config, out, METHOD.name, say)
    say(
        f"wrote {out}: {sum(len(s.rows) for s in samples):,} of {seen:,} features of {frames} frames ({', '.join(layers)})"
    )
    return kept


METHOD = Method("features", FeaturesConfig, fit_features, finished=True)
