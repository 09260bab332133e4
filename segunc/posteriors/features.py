"""Features of the training frames, of the network itself or of a second encoder beside it, for scores that ask whether anything similar
was seen: a bank of them for ``knn``, and what the fits of other packages make of them.

Fine-tuning lets an encoder forget what it does not need, and no noise on it brings that back. A generic encoder that never saw the
task, the *second encoder*, still tells a zebra from a road. Frames are not augmented, and are seen at the size of predictions, or whole.
"""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from safetensors.torch import save
from torch import Tensor, nn

from segunc.affine.posterior import file_sha256
from segunc.core.bounds import Bound, NonNegativeInt, PositiveInt, Settings
from segunc.core.device import flushed_denormals, resolve_device
from segunc.core.errors import InputError
from segunc.core.registry import Registry
from segunc.data.corruptions import Corruption
from segunc.data.labels import IGNORE
from segunc.networks.features import FeatureExtractor, SecondEncoder, deepest_layer
from segunc.networks.network import SegmentationNetwork
from segunc.networks.smp import encoder_normalisation, load_encoder_weights
from segunc.networks.weights import load_state, read_tensors
from segunc.posteriors.fitting import fitted_on, frames_as_seen, load_for_fitting
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Attachment, Model
from segunc.sampling.density import FeatureDensity, Neighbours, Sample, places_of, unit_features
from segunc.sampling.sampler import Provider, network_input
from segunc.scores import FEATURE_DISTANCE, SCORES, check_scores
from segunc.training.config import FitConfig
from segunc.training.progress import Say, say

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule

OWN, TENSORS = "own", "features.safetensors"
ENCODER = "witness."  # prefix of the names of the second encoder's weights
BANK = ("bank", "origins")
"""Tensors of a map for ``knn``: features ``[N, D]`` of length 1 but for rounding, and for each ``[N, 4]`` the frame's number, row and
column as shares of its height and width, and train id (255 for none)."""
NO_ORIGINS = "the bank does not say of which frames its features are"  # as of earlier versions
SCALE_PERCENTILE = 85.0  # of the activations of a place, from which on they are its largest for ``scale-energy``
LARGEST_SIZE = 16
Take = Callable[[Iterable[str]], dict[str, Tensor]]
Upsampling = Literal["bilinear", "guided"]
Resolution = Literal["network", "frame"]


class FeatureFit(ABC):
    """Gathers over the training frames what some evidence of features needs, an entry of :data:`FEATURE_FITS` under each name of it; one
    for each map of the encoder, or with a ``prefix`` one for the frames themselves."""

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


def fits_of(needs: Collection[str], *, maps: bool) -> list[type[FeatureFit]]:
    """Return the fits that some evidence needs, of maps or of the frames themselves."""
    fits = dict.fromkeys(FEATURE_FITS[name] for name in FEATURE_FITS if name in needs)
    return [fit for fit in fits if maps != bool(fit.prefix)]


def evidence_of(scores: Collection[str]) -> frozenset[str]:
    """Return the evidence that scores need of features."""
    names = check_scores(scores)
    for name in names:
        if FEATURE_FITS.keys().isdisjoint(SCORES[name].needs):
            raise InputError(f"features.scores names '{name}', which is made of no features", hint="name knn")
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
    upsampling: Upsampling
    scale_percentile: float  # for scale-energy
    mean: tuple[float, ...]  # input normalisation of the second encoder
    std: tuple[float, ...]
    fitted_on: Mapping[str, Any]  # the data set, its split, the size that the network saw, and the date
    frames: tuple[str, ...]  # their names
    base_sha256: str
    tensors_sha256: str  # of all that was fitted and of the second encoder's weights, in the file beside this
    resolution: Resolution = "network"

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
        """InputError where the tensors are damaged or of another fit, or the bank holds no feature of the frames."""
        (tensors, encoder), network, needs = self.stored(model), model.network, self.gives.intersection(needs)
        device = next(network.parameters()).device

        def restored(fit: type[FeatureFit], prefix: str) -> Any:
            def take(names: Iterable[str]) -> dict[str, Tensor]:
                taken = {name: tensors[prefix + name].to(device) for name in names if prefix + name in tensors}
                return taken if "bank" not in taken or frames is None else self._of_frames(taken, frames)

            return fit.restore(take, needs, network, self)

        providers: list[Provider] = [restored(fit, fit.prefix) for fit in fits_of(needs, maps=False)]
        if of_maps := fits_of(needs, maps=True):
            if isinstance(encoder, SecondEncoder):
                encoder = encoder.folded(self.layers).to(device)
            extractor = FeatureExtractor(encoder, self.layers, self.sizes)
            maps = range(len(self.layers) * len(self.sizes))
            densities = [[restored(fit, f"{index}.") for fit in of_maps] for index in maps]
            how = {"guided": self.upsampling == "guided", "whole": self.resolution == "frame"}
            providers.append(FeatureDensity(extractor, densities, **how))
        return providers

    def stored(self, model: Model) -> tuple[dict[str, Tensor], nn.Module]:
        """Return the tensors beside the model and the module that makes the features; InputError where these are damaged or of another fit."""
        assert model.folder is not None  # from which this was loaded, too
        path = model.folder / TENSORS
        tensors = read_tensors(path, "the tensors of the bank", "fit it again")
        if file_sha256(path) != self.tensors_sha256:
            raise InputError(f"{path} has changed since {self.file} was written", hint="fit the features again")
        if self.encoder == OWN:
            return tensors, model.network
        second = SecondEncoder(self.encoder, self.mean, self.std)
        weights = {k.removeprefix(ENCODER): v for k, v in tensors.items() if k.startswith(ENCODER)}
        load_state(second, weights, str(path))
        return tensors, second

    def _of_frames(self, bank: dict[str, Tensor], frames: Collection[str]) -> dict[str, Tensor]:
        """Return the tensors of :data:`BANK` with the features of some frames alone."""
        if "origins" not in bank:
            raise InputError(NO_ORIGINS, hint="fit the features again")
        wanted = torch.tensor([name in frames for name in self.frames], device=bank["bank"].device)
        chosen = wanted[bank["origins"][:, 0].long()]
        if not chosen.any():
            message = f"all {len(self.frames)} frames of the bank are left out, as they are compared with it"
            raise InputError(message, hint="fit the features on more frames")
        return {name: tensor[chosen] for name, tensor in bank.items()}


class BankFit(FeatureFit):
    """Features of the training frames themselves."""

    def tensors(self, sample: Tensor, say: Say) -> dict[str, Tensor]:
        return {"bank": sample[:, :-4].half().contiguous(), "origins": sample[:, -4:].contiguous()}

    @staticmethod
    def restore(take: Take, needs: Collection[str], network: SegmentationNetwork, bank: FeatureBank) -> Neighbours:
        tensors = take(BANK)  # of earlier files without the origins
        numbers = tensors["origins"][:, 0].long().tolist() if "origins" in tensors else ()
        return Neighbours(tensors["bank"], [bank.frames[number] for number in numbers])


@dataclass(frozen=True)
class FeaturesConfig(Settings):
    """What is kept of the features, and how.

    Args:
        scores: what they are for: knn, mahalanobis, relative-mahalanobis, gmm, vim, react-energy, scale-energy. The Gaussians of
            gmm take 4 bytes for each class and pair of channels.
        encoder: own, or timm's name of a second encoder beside the network (tf_efficientnet_lite0), for all but the last three scores.
        weights: of the second encoder: a file in the names of timm or torchvision, or imagenet, which timm downloads.
        layers: names of the modules whose outputs are the features; none for the deepest map.
        sizes: factors by which frames are resized before the encoder, a map for each.
        resolution: of the frames before that: network, as the network sees them, or frame, their own, which shows a second encoder more.
        bank: features that are kept for knn for each layer and size, and on which the others are standardised: a random sample of all.
        upsampling: of the maps to the frame: bilinear, or guided by the edges of the grey image (He et al. 2013).
        frames: how many evenly spaced frames (0: all).
        corruptions: NAME:STRENGTH (noise:2) each: what the frames look like under these is known, too, and is not flagged.
        seed: of the sample.
        images ([DATASET:]FOLDER): frames of your own road in the place of the training set; they need no labels. Anomaly labels keep
            places out: those of a data set, or in folders named labels or labels_masks beside them (0 normal, 1 anomaly, 255 ignored).
    """

    section = "features"
    without_data: ClassVar[str] = "--features.images FOLDER"
    scores: list[str] = field(default_factory=lambda: ["knn"])
    encoder: str = OWN
    weights: str | None = None
    layers: list[str] | None = None
    sizes: list[Annotated[float, Bound(above=0, most=LARGEST_SIZE)]] = field(default_factory=lambda: [1.0])
    bank: PositiveInt = 20_000
    upsampling: Upsampling = "bilinear"
    frames: NonNegativeInt = 0
    corruptions: list[str] = field(default_factory=list)
    seed: NonNegativeInt = 0
    images: str | None = None
    resolution: Resolution = "network"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kinds()

    def kinds(self) -> list[Corruption]:
        """Return the corruptions; InputError for an unknown one."""
        return [Corruption.parse(text) for text in self.corruptions]


class TrainingFeatures:
    """All fits of a run over the training frames: those of each map with a sample of its features, and those of the frames themselves.
    They are made by ``encoder``, by default the one that the settings name."""

    def __init__(
        self, network: SegmentationNetwork, settings: FeaturesConfig, say: Say, encoder: nn.Module | None = None
    ) -> None:
        needs, self.settings = evidence_of(settings.scores), settings
        self.of_frames = [kind(network, needs, settings) for kind in fits_of(needs, maps=False)]
        self.encoder: nn.Module | None = None
        self.layers, self.count = tuple[str, ...](), 0
        self.maps: list[tuple[Sample, list[FeatureFit]]] = []
        if of_maps := fits_of(needs, maps=True):
            opened, deepest = (encoder, "") if encoder else _open_encoder(network, settings, say)
            self.encoder = opened.to(next(network.parameters()).device)
            self.layers = tuple(settings.layers or [deepest])
            self.extractor = FeatureExtractor(self.encoder, self.layers, settings.sizes)
            for _ in range(len(self.layers) * len(settings.sizes)):
                fits = [kind(network, needs, settings) for kind in of_maps]
                self.maps.append((Sample(settings.bank, settings.seed), fits))

    def gather(self, model: Model, data: SegmentationDataModule) -> list[str]:
        """Take the training frames and return their names. Of images without class labels places are left out where no pixel is normal, or
        one is of an anomaly; InputError where too little is left."""
        samples, names, settings = data.dataset("train").samples, list[str](), self.settings
        shown = frames_as_seen(model, data, "train", settings.frames, METHOD.name, settings.kinds())
        for index, image, labels, frame, own in shown:
            if samples[index].name not in names[-1:]:
                names.append(samples[index].name)
            for fit in self.of_frames:
                fit.add(image, torch.from_numpy(labels))
            if settings.resolution == "frame":
                image, labels = network_input([frame]).to(image.device), own
            self.add(image, torch.from_numpy(labels), len(names) - 1)
        if settings.images and self.count < 10 * len(self.maps):
            message = f"{self.count} features of {settings.images} are of normal pixels, fewer than 10 a map"
            raise InputError(message, hint="give more frames, or check their anomaly labels")
        return names

    def add(self, image: Tensor, labels: Tensor, frame: int) -> None:
        """Take an image ``[1, 3, h, w]`` in 0..1, as the encoder sees it, with its train ids ``[h, w]`` and its number."""
        if self.encoder is not None:
            extents = self.extractor.extents(image)
            for (sample, fits), maps, extent in zip(self.maps, self.extractor(image), extents, strict=True):
                rows = unit_features(maps).cpu()
                places = places_of(labels, (maps.shape[2], maps.shape[3]), extent)
                if self.settings.images:
                    rows, places = (part[places[:, 2] != IGNORE] for part in (rows, places))
                sample.add(torch.cat([rows, torch.full((len(rows), 1), frame), places], 1))
                self.count += len(rows)
                for fit in fits:
                    fit.add(rows, places[:, 2].long())

    def tensors(self, say: Say) -> dict[str, Tensor]:
        """Return all that is stored, with the weights of a second encoder."""
        once = functools.cache(say)  # all maps have the same to tell
        parts = [(f"{i}.", fit, sample.rows) for i, (sample, fits) in enumerate(self.maps) for fit in fits]
        parts += [(fit.prefix, fit, torch.empty(0)) for fit in self.of_frames]
        tensors = {prefix + name: v for prefix, fit, rows in parts for name, v in fit.tensors(rows, once).items()}
        if isinstance(self.encoder, SecondEncoder):
            tensors |= {f"{ENCODER}{name}": v.cpu().contiguous() for name, v in self.encoder.state_dict().items()}
        return tensors


def _open_encoder(network: SegmentationNetwork, settings: FeaturesConfig, say: Say) -> tuple[nn.Module, str]:
    """Return the module that makes the features, and the name of its deepest layer."""
    if settings.encoder == OWN:
        if settings.layers is not None:
            return network, ""
        encoder = getattr(network.body, "encoder", None)
        if not isinstance(encoder, nn.Module):
            names = ", ".join([name for name, _ in network.named_modules()][-3:])
            message = f"a {type(network.body).__name__} has no part named encoder whose deepest layer could be taken"
            raise InputError(message, hint=f"name modules with --features.layers, for instance some of {names}")
        return network, deepest_layer(network, encoder)
    if settings.weights is None:
        message = f"features.encoder {settings.encoder} has no weights"
        raise InputError(message, hint="--features.weights FILE, or imagenet")
    mean, std = encoder_normalisation(settings.encoder)
    pretrained = settings.weights == "imagenet"
    second = SecondEncoder(settings.encoder, mean, std, pretrained=pretrained)
    for note in () if pretrained else load_encoder_weights(second.encoder, settings.encoder, settings.weights):
        say(f"note: {note}")
    return second.requires_grad_(False), second.deepest


@flushed_denormals()
def fit_features(
    base: Path, config: FitConfig[FeaturesConfig], out: Path, *, device: str = "auto", say: Say = say
) -> FeatureBank:
    """Gather the features and write the same model with them; ``out`` may be ``base``. InputError for a layer or weights that are not
    there, or too few features."""
    settings = config.settings
    model, data = load_for_fitting(base, config, resolve_device(device))
    features = TrainingFeatures(model.network, settings, say)
    with torch.inference_mode():
        names = features.gather(model, data)
    tensors = features.tensors(say)
    mean, std = (), ()
    if isinstance(features.encoder, SecondEncoder):
        mean, std = (tuple(v.flatten().tolist()) for v in (features.encoder.mean, features.encoder.std))
    scores, content = check_scores(settings.scores), save(tensors)
    bank = FeatureBank(
        scores, settings.encoder, features.layers, tuple(settings.sizes), settings.upsampling, SCALE_PERCENTILE,
        mean, std, fitted_on(config, "train"), tuple(names), model.sha256, hashlib.sha256(content).hexdigest(), settings.resolution,
    )  # fmt: skip
    bank.attach(base, config, out, METHOD.name, say, {TENSORS: content})
    counted = f"{features.count:,} features of " if features.maps else ""
    where = f" ({', '.join(features.layers)})" if features.maps else ""
    say(f"wrote {out}: {', '.join(scores)}, fitted on {counted}{len(names)} frames{where}")
    return bank


METHOD = Method("features", FeaturesConfig, fit_features, finished=True)
