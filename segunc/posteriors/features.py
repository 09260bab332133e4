"""Features of the training frames, for scores that ask whether anything similar was seen: a bank of them for ``knn``, Gaussians for
``mahalanobis``, ``relative-mahalanobis`` and ``gmm``, of the network itself or of a second encoder beside it; and what
``vim``, ``react-energy`` and ``scale-energy`` need of the input of the network's last layer, whatever the encoder.

Fine-tuning lets an encoder forget what it does not need, and no noise on it brings that back. A generic encoder that never saw the
task, the *second encoder*, still tells a zebra from a road: what is far from all that it saw in the training frames is unknown.
Frames are not augmented, and are seen at the size at which the network will predict.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from safetensors.torch import save
from torch import Tensor, nn

from segunc.affine.files import file_sha256
from segunc.core.bounds import Bound, NonNegativeInt, PositiveInt, Settings
from segunc.core.device import flushed_denormals, resolve_device
from segunc.core.errors import InputError
from segunc.core.files import write_atomically
from segunc.core.registry import Registry
from segunc.data.corruptions import Corruption
from segunc.networks.features import FeatureExtractor, SecondEncoder, deepest_layer
from segunc.networks.files import bounded, weights_bytes
from segunc.networks.network import SegmentationNetwork
from segunc.networks.smp import encoder_normalisation, load_encoder_weights
from segunc.networks.weights import load_state, read_tensors
from segunc.posteriors.fitting import fitted_on, frames_as_seen, load_for_fitting
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Attachment, Model
from segunc.sampling.density import FeatureDensity, Neighbours, Sample, places_of, unit_features
from segunc.sampling.sampler import Provider
from segunc.scores import FEATURE_DISTANCE, SCORES, check_scores
from segunc.training.config import FitConfig
from segunc.training.progress import Say, say

OWN = "own"
TENSORS = "features.safetensors"
ENCODER = "witness."
"""Prefix of the names of the second encoder's weights."""
BANK = ("bank", "origins")
"""Tensors of a map for ``knn``: features ``[N, D]`` of length 1 but for rounding, and for each ``[N, 4]`` the frame's number, row and
column as shares of its height and width, and train id (255 for none)."""
LARGEST_SIZE = 16
Take = Callable[[Iterable[str]], dict[str, Tensor]]
Percentile = Annotated[float, Bound(above=0, most=99.9)]


class FeatureFit(ABC):
    """Gathers over the training frames what some evidence of features needs, an entry of :data:`FEATURE_FITS` for each name of it. There
    is one for each map of the encoder, or with a ``prefix`` one for the frames themselves."""

    prefix: ClassVar[str] = ""  # of the names of its tensors; those of map 2 begin with ``2.``

    def __init__(self, network: SegmentationNetwork, needs: Collection[str], settings: FeaturesConfig) -> None:
        self.network, self.needs, self.settings = network, needs, settings

    def add(self, seen: Tensor, labels: Tensor) -> None:  # noqa: B027 - what needs the sample alone adds nothing
        """Take unit features ``[M, D]`` of a map with the train ids ``[M]`` of their places, or a frame ``[1, 3, h, w]`` with its own."""

    @abstractmethod
    def tensors(self, sample: Tensor, say: Say) -> dict[str, Tensor]:
        """Return what is kept. A row of the sample is a feature of the map and, in four numbers, where it was seen."""

    @staticmethod
    @abstractmethod
    def restore(take: Take, needs: Collection[str], network: SegmentationNetwork, bank: FeatureBank) -> Any:
        """Return a density of the map, see :class:`segunc.sampling.density.FeatureDensity`, or with a prefix a
        :class:`segunc.sampling.sampler.Provider`, of the tensors that ``take`` gives for their names, on the network's device."""


FEATURE_FITS: Registry[type[FeatureFit]] = Registry(
    "evidence of features", "segunc.feature_fits", {FEATURE_DISTANCE: "segunc.posteriors.features:BankFit"}
)


def fits_of(needs: Collection[str]) -> list[type[FeatureFit]]:
    """Return the fits that some evidence needs."""
    return list(dict.fromkeys(FEATURE_FITS[name] for name in FEATURE_FITS if name in needs))


def evidence_of(scores: Collection[str]) -> frozenset[str]:
    """Return the evidence that scores need of features; InputError for a score that needs none."""
    names = check_scores(scores)
    for name in names:
        if FEATURE_FITS.keys().isdisjoint(SCORES[name].needs):
            possible = [other for other, score in SCORES.items() if not FEATURE_FITS.keys().isdisjoint(score.needs)]
            raise InputError(
                f"features.scores names '{name}', which is made of no features",
                hint=f"name some of {', '.join(possible)}",
            )
    return frozenset(FEATURE_FITS).intersection(need for name in names for need in SCORES[name].needs)


@dataclass(frozen=True)
class FeatureBank(Attachment):
    """What was kept of the features of the training frames, and of which network; the posterior has no part in it."""

    file: ClassVar[str] = "features.json"
    what: ClassVar[str] = "feature bank"
    beside: ClassVar[tuple[str, ...]] = (TENSORS,)

    scores: tuple[str, ...]  # for which features were fitted
    encoder: str  # own, or timm's name of a second encoder
    layers: tuple[str, ...]  # none where only the network's last layer was looked at
    sizes: tuple[float, ...]
    upsampling: Literal["bilinear", "guided"]  # of the maps to the frame; guided by the image in earlier versions
    scale_percentile: float
    mean: tuple[float, ...]  # input normalisation of the second encoder
    std: tuple[float, ...]
    fitted_on: Mapping[str, Any]  # the data set, its split, the size that the network saw, and the date
    frames: tuple[str, ...]  # their names
    base_sha256: str
    tensors_sha256: str  # of all that was fitted and of the second encoder's weights, in the file beside this

    @property
    def gives(self) -> frozenset[str]:
        """Of scores whose package is there."""
        needs = {need for name in self.scores if name in SCORES for need in SCORES[name].needs}
        return frozenset(name for name in needs if name in FEATURE_FITS)

    def record(self) -> dict[str, Any]:
        return {"features_sha256": self.tensors_sha256}

    def providers(
        self, model: Model, needs: Collection[str], frames: Collection[str] | None = None
    ) -> Sequence[Provider]:
        """Return what gives the evidence that is needed of that which was fitted, on the network's device.

        Args:
            frames: names of the training frames whose features count in a bank, None for all.

        Raises:
            InputError: the tensors are damaged or of another fit, or the bank holds no feature of these frames.
        """
        assert model.folder is not None  # from which this was loaded, too
        path, network, needs = model.folder / TENSORS, model.network, self.gives.intersection(needs)
        tensors = read_tensors(path, "the tensors of the bank", "fit it again")
        if file_sha256(path) != self.tensors_sha256:
            raise InputError(f"{path} has changed since {self.file} was written", hint="fit the features again")
        device = next(network.parameters()).device

        def take(prefix: str, names: Iterable[str]) -> dict[str, Tensor]:
            taken = {name: tensors[prefix + name].to(device) for name in names}
            return taken if "origins" not in taken or frames is None else self._of_frames(taken, frames)

        def restored(fit: type[FeatureFit], prefix: str) -> Any:
            return fit.restore(functools.partial(take, prefix), needs, network, self)

        providers: list[Provider] = [restored(fit, fit.prefix) for fit in fits_of(needs) if fit.prefix]
        if of_maps := [fit for fit in fits_of(needs) if not fit.prefix]:
            encoder: nn.Module = network
            if self.encoder != OWN:
                weights = {k.removeprefix(ENCODER): v for k, v in tensors.items() if k.startswith(ENCODER)}
                with bounded({}, weights_bytes(weights)):
                    second = SecondEncoder(self.encoder, self.mean, self.std)
                load_state(second, weights, str(path))
                encoder = second.folded(self.layers).to(device)
            if self.upsampling != "bilinear":
                message = f"the feature maps of {model.folder} are upsampled along the edges of the image, as earlier versions could"
                raise InputError(message, hint="fit the features again")
            extractor = FeatureExtractor(encoder, self.layers, self.sizes)
            maps = range(len(self.layers) * len(self.sizes))
            densities = [[restored(fit, f"{index}.") for fit in of_maps] for index in maps]
            providers.append(FeatureDensity(extractor, densities))
        return providers

    def _of_frames(self, bank: dict[str, Tensor], frames: Collection[str]) -> dict[str, Tensor]:
        """Return the tensors of :data:`BANK` with the features of some frames alone."""
        wanted = torch.tensor([name in frames for name in self.frames], device=bank["bank"].device)
        chosen = wanted[bank["origins"][:, 0].long()]
        if not chosen.any():
            raise InputError(
                f"none of the {len(self.frames)} frames of the bank is trained on where their sequence is held out",
                hint="fit the features on the same data set",
            )
        return {name: tensor[chosen] for name, tensor in bank.items()}


class BankFit(FeatureFit):
    """Features of the training frames themselves."""

    def tensors(self, sample: Tensor, say: Say) -> dict[str, Tensor]:
        return {"bank": sample[:, :-4].half().contiguous(), "origins": sample[:, -4:].contiguous()}

    @staticmethod
    def restore(take: Take, *_: object) -> Neighbours:
        return Neighbours(take(BANK)["bank"])


@dataclass(frozen=True)
class FeaturesConfig(Settings):
    """What is kept of the features, and how.

    Args:
        scores: what they are for: knn, mahalanobis, relative-mahalanobis, gmm, vim, react-energy, scale-energy. The Gaussians of
            gmm take 4 bytes for each class and pair of channels.
        encoder: own, or timm's name of a second encoder beside the network (tf_efficientnet_lite0); the last three scores are of the
            network itself all the same.
        weights: of the second encoder: a file in the names of timm or torchvision, or imagenet, which timm downloads.
        layers: names of the modules whose outputs are the features; none for the deepest map.
        sizes: factors by which frames are resized before the encoder, a map for each.
        bank: features that are kept for knn for each layer and size, and on which the others are standardised: a random sample of all.
        react_percentile: of all activations of the training frames, at which react-energy clips them.
        scale_percentile: of the activations of a place, from which on they are its largest for scale-energy.
        split: of the data set; the one that the network was trained on.
        frames: how many evenly spaced frames (0: all).
        corruptions: NAME:STRENGTH (noise:2) each: what the frames look like under these is known, too, and is not flagged.
        seed: of the sample.
    """

    section = "features"
    scores: list[str] = field(default_factory=lambda: ["knn"])
    encoder: str = OWN
    weights: str | None = None
    layers: list[str] | None = None
    sizes: list[Annotated[float, Bound(above=0, most=LARGEST_SIZE)]] = field(default_factory=lambda: [1.0])
    bank: PositiveInt = 20_000
    react_percentile: Percentile = 90.0
    scale_percentile: Percentile = 85.0
    split: str = "train"
    frames: NonNegativeInt = 0
    corruptions: list[str] = field(default_factory=list)
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kinds()

    def kinds(self) -> list[Corruption]:
        """Return the corruptions; InputError for an unknown one."""
        return [Corruption.parse(text) for text in self.corruptions]


class MapSample:
    """A sample of the features of one map of the training frames, and what fits make of all of them."""

    def __init__(self, settings: FeaturesConfig, fits: Sequence[FeatureFit]) -> None:
        self.fits, self.count, self.sample = fits, 0, Sample(settings.bank, settings.seed)

    def add(self, maps: Tensor, labels: Tensor, extent: tuple[int, int], frame: int) -> None:
        """Take the map ``[1, D, h, w]`` of a frame, with its train ids ``[H, W]``, see :func:`segunc.sampling.density.places_of`."""
        rows = unit_features(maps).cpu()
        places = places_of(labels, (maps.shape[2], maps.shape[3]), extent)
        self.sample.add(torch.cat([rows, torch.full((len(rows), 1), frame), places], 1))
        self.count += len(rows)
        for fit in self.fits:
            fit.add(rows, places[:, 2].long())

    def tensors(self, say: Say) -> dict[str, Tensor]:
        """Return what all fits keep."""
        return {name: values for fit in self.fits for name, values in fit.tensors(self.sample.rows, say).items()}


class TrainingFeatures:
    """All fits of a run over the training frames: those of each map of an encoder, and those of the frames themselves.

    Raises:
        InputError: a layer or weights that are not there, or settings of an encoder that no score needs.
    """

    def __init__(self, network: SegmentationNetwork, settings: FeaturesConfig, say: Say) -> None:
        needs = evidence_of(settings.scores)
        kinds = fits_of(needs)
        self.of_frames = [kind(network, needs, settings) for kind in kinds if kind.prefix]
        self.encoder: nn.Module | None = None
        self.layers, self.maps = tuple[str, ...](), list[MapSample]()
        if of_maps := [kind for kind in kinds if not kind.prefix]:
            self.encoder, deepest = _open_encoder(network, settings, say)
            self.layers = tuple(settings.layers or [deepest])
            self.extractor = FeatureExtractor(self.encoder, self.layers, settings.sizes)
            for _ in range(len(self.layers) * len(settings.sizes)):
                self.maps.append(MapSample(settings, [kind(network, needs, settings) for kind in of_maps]))
        elif settings.encoder != OWN or settings.layers:
            raise InputError(
                f"features.encoder and features.layers play no part for {', '.join(settings.scores)}: these are scores of the "
                "network's last layer",
                hint="leave them out",
            )

    def add(self, image: Tensor, labels: Tensor, frame: int) -> None:
        """Take an image ``[1, 3, h, w]`` in 0..1 with its train ids ``[h, w]`` of the frame with this number."""
        if self.encoder is not None:
            extents = self.extractor.extents(image)
            for of_map, maps, extent in zip(self.maps, self.extractor(image), extents, strict=True):
                of_map.add(maps, labels, extent, frame)
        for fit in self.of_frames:
            fit.add(image, labels)

    def tensors(self, say: Say) -> dict[str, Tensor]:
        """Return all that is stored, with the weights of a second encoder."""
        once = functools.cache(say)  # all maps have the same to tell
        tensors = {f"{i}.{name}": v for i, of_map in enumerate(self.maps) for name, v in of_map.tensors(once).items()}
        for fit in self.of_frames:
            tensors |= {fit.prefix + name: v for name, v in fit.tensors(torch.empty(0), once).items()}
        if isinstance(self.encoder, SecondEncoder):
            tensors |= {f"{ENCODER}{name}": v.cpu().contiguous() for name, v in self.encoder.state_dict().items()}
        return tensors


def _open_encoder(network: SegmentationNetwork, settings: FeaturesConfig, say: Say) -> tuple[nn.Module, str]:
    """Return the module that makes the features, on the network's device, and the name of its deepest layer."""
    if settings.encoder == OWN:
        if settings.weights is not None:
            raise InputError(
                f"features.weights {settings.weights} belongs to a second encoder, but features.encoder is the network's own",
                hint="name the encoder with --features.encoder",
            )
        if settings.layers is not None:
            return network, ""
        encoder = getattr(network.body, "encoder", None)
        if not isinstance(encoder, nn.Module):
            names = ", ".join([name for name, _ in network.named_modules()][-3:])
            raise InputError(
                f"a {type(network.body).__name__} has no part named encoder whose deepest layer could be taken",
                hint=f"name modules with --features.layers, for instance some of {names}",
            )
        return network, deepest_layer(network, encoder)
    if settings.weights is None:
        raise InputError(
            f"features.encoder {settings.encoder} has no weights, and random features know nothing",
            hint="--features.weights FILE, or imagenet",
        )
    mean, std = encoder_normalisation(settings.encoder)
    pretrained = settings.weights == "imagenet"
    second = SecondEncoder(settings.encoder, mean, std, pretrained=pretrained)
    for note in () if pretrained else load_encoder_weights(second.encoder, settings.encoder, settings.weights):
        say(f"note: {note}")
    return second.to(next(network.parameters()).device).requires_grad_(False), second.deepest


@flushed_denormals()
def fit_features(
    base: Path, config: FitConfig[FeaturesConfig], out: Path, *, device: str = "auto", say: Say = say
) -> FeatureBank:
    """Gather the features and write the same model with them; a posterior plays no part, and ``out`` may be ``base``.

    See :class:`segunc.posteriors.methods.Method`; InputError for a layer or weights that are not there, too few features for a
    covariance, or a network without the last layer that a score is of.
    """
    settings = config.settings
    model, data = load_for_fitting(base, config, resolve_device(device))
    features = TrainingFeatures(model.network, settings, say)
    samples, names = data.dataset(settings.split).samples, list[str]()
    with torch.inference_mode():
        seen = frames_as_seen(model, data, settings.split, settings.frames, METHOD.name, settings.kinds())
        for index, image, labels in seen:
            if samples[index].name not in names[-1:]:
                names.append(samples[index].name)
            features.add(image, torch.from_numpy(labels), len(names) - 1)
    tensors = features.tensors(say)
    mean, std = (), ()
    if isinstance(features.encoder, SecondEncoder):
        mean, std = (tuple(v.flatten().tolist()) for v in (features.encoder.mean, features.encoder.std))
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / TENSORS, save(tensors))
    scores = check_scores(settings.scores)
    bank = FeatureBank(
        scores, settings.encoder, features.layers, tuple(settings.sizes), "bilinear", settings.scale_percentile,
        mean, std, fitted_on(config, settings.split), tuple(names), model.sha256, file_sha256(out / TENSORS),
    )  # fmt: skip
    bank.attach(base, config, out, METHOD.name, say)
    counted = f"{sum(of_map.count for of_map in features.maps):,} features of " if features.maps else ""
    where = f" ({', '.join(features.layers)})" if features.maps else ""
    say(f"wrote {out}: {', '.join(scores)}, fitted on {counted}{len(names)} frames{where}")
    return bank


METHOD = Method("features", FeaturesConfig, fit_features, finished=True)
