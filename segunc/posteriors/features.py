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
from segunc.data.labels import IGNORE
from segunc.networks.encoders import encoder_normalisation, load_encoder_weights
from segunc.networks.features import FeatureExtractor, Witness, deepest_layer
from segunc.networks.network import SegmentationNetwork
from segunc.networks.weights import load_state
from segunc.posteriors.fitting import Attachment, fitted_on, frames_as_seen, load_for_fitting
from segunc.posteriors.methods import Method
from segunc.sampling.density import FeatureDensity, Origin, unit_features
from segunc.training.config import FitConfig
from segunc.training.progress import Say, say

OWN = "own"
TENSORS = "features.safetensors"
BANK, ORIGINS, ENCODER = "bank.", "origins.", "witness."
"""Beginnings of names of tensors: for each map a bank, and for its rows ``[N, 4]`` the frame's number, row and column as shares of its
height and width, and train id (255 for none); the weights of the second encoder."""


@dataclass(frozen=True)
class FeatureBank(Attachment):
    """What features of the training frames were kept, and of which network; the posterior has no part in it."""

    file: ClassVar[str] = "features.json"
    what: ClassVar[str] = "feature bank"

    encoder: str  # own, or timm's name of a second encoder
    layers: tuple[str, ...]
    sizes: tuple[float, ...]
    mean: tuple[float, ...]  # input normalisation of the second encoder
    std: tuple[float, ...]
    names: tuple[str, ...]  # of the frames
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
        count = len(bank.layers) * len(bank.sizes)
        names = [f"{kind}{index}" for kind in (BANK, ORIGINS) for index in range(count)]
        if lacking := [name for name in names if name not in tensors]:
            raise InputError(f"{path} lacks {lacking[0]}", "a bank for each layer and size", "fit it again")
        classes = (*network.description.classes, *[None] * 256)
        places = tensors[f"{ORIGINS}{len(bank.layers) - 1}"].tolist()
        origins = [Origin(bank.names[int(frame)], *at, classes[int(label)]) for frame, *at, label in places]
        return FeatureDensity(
            FeatureExtractor(seen, bank.layers, bank.sizes), [tensors[name] for name in names[:count]], origins
        )


def read_features(folder: Path, base_sha256: str) -> StoredFeatures | None:
    """The bank of the folder of a model with this hash, None where there is none; InputError for one of another model."""
    content = FeatureBank.content(folder, base_sha256=base_sha256)
    if content is None:
        return None
    lists = {name: tuple(content[name]) for name in ("layers", "sizes", "mean", "std", "names")}
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


def places_of(labels: Tensor, size: tuple[int, int], extent: tuple[int, int]) -> Tensor:
    """For each place of a map of (height, width) ``size`` that covers ``extent`` pixels of a frame its centre's row and column as
    shares of the frame's height and width, and the train id of most of its labelled pixels (255 where none has most), ``[h w, 3]``
    float32. Train ids uint8 ``[H, W]``; what a network pads beyond the frame counts as its edge."""
    shares = [
        (torch.arange(n) + 0.5) / n * covered / side
        for n, covered, side in zip(size, extent, labels.shape, strict=True)
    ]
    at = torch.cartesian_prod(*(share.clamp_max(1.0) for share in shares)).view(-1, 2)
    row, column = (
        torch.arange(side) * n // covered for n, covered, side in zip(size, extent, labels.shape, strict=True)
    )
    place = (row[:, None] * size[1] + column).clamp_max(size[0] * size[1] - 1)
    counts = torch.bincount((place * 256 + labels).flatten(), minlength=size[0] * size[1] * 256).view(-1, 256)[
        :, :IGNORE
    ]
    most, label = counts.max(1)
    label[2 * most <= counts.sum(1)] = IGNORE
    return torch.cat([at, label[:, None]], 1)


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
    known, names, seen = data.dataset(settings.split).samples, list[str](), 0
    with torch.inference_mode():
        for index, image, labels in frames_as_seen(model, data, settings.split, settings.frames, METHOD.name):
            for sample, maps, extent in zip(samples, extractor(image), extractor.extents(image), strict=True):
                rows = unit_features(maps).cpu()
                places = places_of(torch.from_numpy(labels), (maps.shape[2], maps.shape[3]), extent)
                sample.add(torch.cat([rows, torch.full((len(rows), 1), len(names)), places], 1))
                seen += len(rows)
            names.append(known[index].name)
    tensors = {f"{BANK}{index}": sample.rows[:, :-4].half().contiguous() for index, sample in enumerate(samples)}
    tensors |= {f"{ORIGINS}{index}": sample.rows[:, -4:].contiguous() for index, sample in enumerate(samples)}
    mean, std = (), ()
    if isinstance(looked_at, Witness):
        tensors |= {f"{ENCODER}{name}": v.cpu().contiguous() for name, v in looked_at.state_dict().items()}
        mean, std = (tuple(v.flatten().tolist()) for v in (looked_at.mean, looked_at.std))
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / TENSORS, save(tensors))
    data_set = fitted_on(config, settings.split)
    digest = file_sha256(out / TENSORS)
    kept = FeatureBank(
        settings.encoder, layers, tuple(settings.sizes), mean, std, tuple(names), data_set, len(names),
        model.sha256, digest,
    )  # fmt: skip
    kept.attach(base, config, out, METHOD.name)
    say(
        f"wrote {out}: {sum(len(s.rows) for s in samples):,} of {seen:,} features of {len(names)} frames ({', '.join(layers)})"
    )
    return kept


METHOD = Method("features", FeaturesConfig, fit_features, finished=True)
