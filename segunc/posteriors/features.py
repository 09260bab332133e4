"""Features of the training frames, for scores that ask whether anything like it was seen: a bank of them for ``knn``, Gaussians for
``mahalanobis``, ``relative-mahalanobis`` and ``gmm``, of the network itself or of a second encoder beside it; and what
``vim``, ``react-energy`` and ``scale-energy`` need of the input of the network's last layer, whatever the encoder.

Fine-tuning lets an encoder forget what it does not need, and no noise on it brings that back. A generic encoder that never saw the
task, the *witness*, still tells a zebra from a road; what is far from everything that it saw in the training frames is unknown.
Frames are not augmented, and are seen at the size at which the network will predict.
"""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args

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
from segunc.networks.build import bounded, weights_bytes
from segunc.networks.encoders import encoder_normalisation, load_encoder_weights
from segunc.networks.features import FeatureExtractor, Witness, candidate_layers, deepest_layer
from segunc.networks.network import SegmentationNetwork
from segunc.networks.weights import load_state, read_tensors
from segunc.posteriors.fitting import fitted_on, frames_as_seen, load_for_fitting
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Attachment, Model
from segunc.posteriors.pasted import Frames, gather_pixels, mean_precision
from segunc.sampling.density import FeatureDensity, Neighbours, Sample, places_of, unit_features
from segunc.sampling.sampler import Provider
from segunc.scores import FEATURE_DISTANCE, SCORES, check_scores
from segunc.training.config import FitConfig, SelectConfig
from segunc.training.progress import Say, say

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule

OWN, AUTO = "own", "auto"
MOST_LAYERS = 3
"""That are chosen."""
TENSORS = "features.safetensors"
ENCODER = "witness."
"""How names of the second encoder's weights begin."""
BANK = {"bank": "ND", "origins": "N4"}
"""Tensors of a map for ``knn``: features of length 1 but for rounding, and for each the frame's number, row and column as shares of its
height and width, and train id (255 for none)."""
MOST, LARGEST = 64, 16
"""Of sizes in a record, and a size."""
Take = Callable[[Iterable[str]], dict[str, Tensor]]
Upsampling = Literal["bilinear", "guided"]
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
        """Return a :class:`segunc.sampling.density.Density` of the map, or with a prefix a :class:`segunc.sampling.sampler.Provider`, of the
        tensors that ``take`` gives for their names, on the network's device."""


FEATURE_FITS: Registry[type[FeatureFit]] = Registry(
    "evidence of features", "segunc.feature_fits", {FEATURE_DISTANCE: "segunc.posteriors.features:BankFit"}
)


def fits_of(needs: Collection[str]) -> list[type[FeatureFit]]:
    """Return those that some evidence needs."""
    return list(dict.fromkeys(FEATURE_FITS[name] for name in FEATURE_FITS if name in needs))


def evidence_of(scores: Collection[str]) -> frozenset[str]:
    """What scores of features need of them; InputError for a score that needs nothing of features."""
    names = check_scores(scores)
    for name in names:
        if FEATURE_FITS.keys().isdisjoint(SCORES[name].needs):
            known = [other for other, score in SCORES.items() if not FEATURE_FITS.keys().isdisjoint(score.needs)]
            raise InputError(f"features.scores with '{name}'", f"some of {', '.join(known)}", "leave it out")
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

    @classmethod
    def load(cls, folder: Path, model: Model) -> Self:
        found = super().load(folder, model)
        if len(found.sizes) > MOST or max(found.sizes) > LARGEST:  # a few bytes would take any memory
            given = f"{folder / cls.file}: {len(found.sizes)} sizes up to {max(found.sizes):g}"
            raise InputError(given, f"at most {MOST} of up to {LARGEST}", "fit it again")
        return found

    def providers(
        self, model: Model, needs: Collection[str], frames: Collection[str] | None = None
    ) -> Sequence[Provider]:
        """Ready on the network's device, for those kinds of evidence that are needed of those that were fitted; of a bank the features of
        ``frames`` alone (None: of all). InputError where the tensors are damaged or of another bank, or no feature is of these frames."""
        assert model.folder is not None  # from which this was loaded, too
        path, network, needs = model.folder / TENSORS, model.network, self.gives.intersection(needs)
        tensors = read_tensors(path, "the tensors of the bank", "fit it again")
        if file_sha256(path) != self.tensors_sha256:
            given = f"{path} has changed since {self.file} was written"
            raise InputError(given, "both files of one fit", "fit it again")
        device = next(network.parameters()).device

        def take(prefix: str, names: Iterable[str]) -> dict[str, Tensor]:
            found = {name: tensors[prefix + name].to(device) for name in names}
            return of_frames(found, self.frames, frames) if "origins" in found else found

        def restored(fit: type[FeatureFit], prefix: str) -> Any:
            return fit.restore(functools.partial(take, prefix), needs, network, self)

        found: list[Provider] = [restored(fit, fit.prefix) for fit in fits_of(needs) if fit.prefix]
        if of_maps := [fit for fit in fits_of(needs) if not fit.prefix]:
            seen: nn.Module = network
            if self.encoder != OWN:
                weights = {k.removeprefix(ENCODER): v for k, v in tensors.items() if k.startswith(ENCODER)}
                with bounded({}, weights_bytes(weights)):
                    witness = Witness(self.encoder, self.mean, self.std)
                load_state(witness, weights, str(path))
                seen = witness.folded(self.layers).to(device)
            extractor = FeatureExtractor(seen, self.layers, self.sizes)
            maps = range(len(self.layers) * len(self.sizes))
            densities = [[restored(fit, f"{index}.") for fit in of_maps] for index in maps]
            found.append(FeatureDensity(extractor, densities, guided=self.upsampling == "guided"))
        return found


class BankFit(FeatureFit):
    """Features of the training frames themselves."""

    def tensors(self, sample: Tensor, say: Say) -> dict[str, Tensor]:
        return {"bank": sample[:, :-4].half().contiguous(), "origins": sample[:, -4:].contiguous()}

    @staticmethod
    def restore(take: Take, *_: object) -> Neighbours:
        return Neighbours(take(BANK)["bank"])


def of_frames(fitted: dict[str, Tensor], names: Sequence[str], frames: Collection[str] | None) -> dict[str, Tensor]:
    """The tensors of :data:`BANK` with the features of some frames alone; InputError where there are none."""
    if frames is None:
        return fitted
    wanted = torch.tensor([name in frames for name in names], device=fitted["bank"].device)
    kept = wanted[fitted["origins"][:, 0].long()]
    if not kept.any():
        given = f"a bank of {len(names)} frames, none of which is trained on where their sequence is held out"
        raise InputError(given, "the data set that the bank was fitted on", "fit it again")
    return {name: tensor[kept] for name, tensor in fitted.items()}


@dataclass(frozen=True)
class FeaturesConfig(Settings):
    """What is kept of the features, and how.

    Args:
        scores: what they are for: knn, mahalanobis, relative-mahalanobis, gmm, vim, react-energy, scale-energy. The Gaussians of
            gmm take 4 bytes for each class and pair of channels.
        encoder: own, or timm's name of a second encoder beside the network (tf_efficientnet_lite0); the last three scores are of the
            network itself all the same.
        weights: of the second encoder: a file in the names of timm or torchvision, or imagenet, which timm downloads.
        layers: names of the modules whose outputs are the features; auto for those of the encoder (and of the network's own decoder)
            whose distances find the anomalies that select pastes; none for the deepest map.
        sizes: factors by which frames are resized before the encoder, a map for each.
        bank: features that are kept for knn for each layer and size, and on which the others are standardised: a random sample of all.
        upsampling: of the maps to the frame: bilinear, or guided by the edges of the grey image (He et al. 2013); none for bilinear, or
            with layers auto for what finds more.
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
    layers: list[str] | str | None = None
    sizes: list[Annotated[float, Bound(above=0, most=LARGEST)]] = field(default_factory=lambda: [1.0])
    bank: PositiveInt = 20_000
    upsampling: Upsampling | None = None
    react_percentile: Percentile = 90.0
    scale_percentile: Percentile = 85.0
    split: str = "train"
    frames: NonNegativeInt = 0
    corruptions: list[str] = field(default_factory=list)
    seed: NonNegativeInt = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kinds()
        if isinstance(self.layers, str) and self.layers != AUTO:
            raise InputError(f"layers {self.layers}", f"names in brackets, or {AUTO}", f"e.g. [{self.layers}]")

    def kinds(self) -> list[Corruption]:
        """The corruptions; InputError for an unknown one."""
        return [Corruption.parse(text) for text in self.corruptions]


class MapSample:
    """A sample of the features of one map of the training frames, and what fits make of all of them."""

    def __init__(self, settings: FeaturesConfig, fits: Sequence[FeatureFit]) -> None:
        self.fits, self.seen, self.sample = fits, 0, Sample(settings.bank, settings.seed)

    def add(self, maps: Tensor, labels: Tensor, extent: tuple[int, int], frame: int) -> None:
        """The map ``[1, D, h, w]`` of a frame, with its train ids ``[H, W]``, see :func:`segunc.sampling.density.places_of`."""
        rows = unit_features(maps).cpu()
        places = places_of(labels, (maps.shape[2], maps.shape[3]), extent)
        self.sample.add(torch.cat([rows, torch.full((len(rows), 1), frame), places], 1))
        self.seen += len(rows)
        for fit in self.fits:
            fit.add(rows, places[:, 2].long())

    def tensors(self, say: Say) -> dict[str, Tensor]:
        """What all fits keep."""
        return {name: values for fit in self.fits for name, values in fit.tensors(self.sample.rows, say).items()}


def _opened(network: SegmentationNetwork, settings: FeaturesConfig, say: Say) -> tuple[nn.Module, str]:
    """What is looked at, on the network's device, and its deepest layer."""
    if settings.encoder == OWN:
        if settings.weights is not None:
            given = f"features.weights {settings.weights} for the network's own features"
            raise InputError(given, "features.encoder", "name the encoder that they belong to")
        if settings.layers is not None:
            return network, ""
        encoder = getattr(network.body, "encoder", None)
        if not isinstance(encoder, nn.Module):
            given = f"a network of type {type(network.body).__name__} without features.layers"
            names = [name for name, _ in network.named_modules()][-3:]
            raise InputError(given, "names of its modules", f"{', '.join(names)}, for instance")
        return network, deepest_layer(network, encoder)
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


def _choose_layers(
    model: Model,
    data: SegmentationDataModule,
    extractor: FeatureExtractor,
    fitted: Sequence[dict[str, Tensor]],
    names: Sequence[str],
    settings: FeaturesConfig,
    select: SelectConfig,
    say: Say,
) -> tuple[tuple[int, ...], Upsampling]:
    """The layers, by their places, at most :data:`MOST_LAYERS`, and the upsampling whose mean distance finds the pasted anomalies."""
    forms = (settings.upsampling,) if settings.upsampling else get_args(Upsampling)
    count = len(extractor.layers)

    def of_fold(trained_on: Frames) -> Callable[[Tensor], Tensor]:
        banks = [[Neighbours(of_frames(one, names, trained_on)["bank"])] for one in fitted]
        densities = [FeatureDensity(extractor, banks, guided=form == "guided") for form in forms]

        def values(image: Tensor) -> Tensor:
            maps, extents = extractor(image), extractor.extents(image)
            found = [
                density.of_map(bank[0], features, extent, image, {FEATURE_DISTANCE})[FEATURE_DISTANCE][0]
                for density in densities
                for bank, features, extent in zip(banks, maps, extents, strict=True)
            ]
            # Of each form and layer the mean over the sizes.
            return torch.stack(found).view(len(forms), -1, count, *image.shape[2:]).mean(1).flatten(0, 1)

        return values

    with torch.inference_mode():
        pixels, _ = gather_pixels(model, data, select, settings.seed, of_fold)
    found = {
        (places, form): mean_precision(pixels.values[[index * count + place for place in places]].mean(0), pixels.size)
        for number in range(1, min(count, MOST_LAYERS) + 1)
        for index, form in enumerate(forms)
        for places in itertools.combinations(range(count), number)
    }
    for (places, form), value in sorted(found.items(), key=lambda one: -one[1])[:5]:
        say(
            f"average precision {value:.3f} on pasted anomalies: {', '.join(extractor.layers[place] for place in places)}, {form}"
        )
    return max(found, key=lambda candidate: found[candidate])


@flushed_denormals()
def fit_features(
    base: Path, config: FitConfig[FeaturesConfig], out: Path, *, device: str = "auto", say: Say = say
) -> FeatureBank:
    """Gather the features and write the same model with them; a posterior plays no part, and ``out`` may be ``base``.

    See :class:`segunc.posteriors.methods.Method`; InputError for a layer or weights that are not there, too few features for a
    covariance, or a network without the last layer that a score is of.
    """
    settings, select = config.settings, config.select or SelectConfig()
    needs, auto = evidence_of(settings.scores), settings.layers == AUTO
    if auto and select.anomalies == "none":
        raise InputError("features.layers auto with select.anomalies none", "cut-paste", "or name the layers")
    model, data = load_for_fitting(base, config, resolve_device(device))
    network = model.network
    of_images = [fit(network, needs, settings) for fit in fits_of(needs) if fit.prefix]
    layers, extractor, witness, samples = tuple[str, ...](), None, None, list[MapSample]()
    if any(not fit.prefix for fit in fits_of(needs)):
        looked_at, deepest = _opened(network, settings, say)
        witness = looked_at if isinstance(looked_at, Witness) else None
        if auto:
            image = torch.zeros(1, 3, 256, 256, device=next(network.parameters()).device)
            layers = tuple(candidate_layers(looked_at, ("encoder", "body.encoder", "body.decoder"), image))
            if not layers:
                given = f"features.layers auto of {settings.encoder}, which makes no maps at strides of 8 to 32"
                raise InputError(given, "an encoder of maps", "name the layers")
        else:
            layers = tuple(settings.layers or [deepest])
        extractor = FeatureExtractor(looked_at, layers, settings.sizes)
        gathered = needs | {FEATURE_DISTANCE} if auto else needs
        of_maps = [fit for fit in fits_of(gathered) if not fit.prefix]
        samples = [
            MapSample(settings, [fit(network, gathered, settings) for fit in of_maps])
            for _ in range(len(layers) * len(settings.sizes))
        ]
    elif settings.encoder != OWN or settings.layers:
        given = f"features.encoder or features.layers for {', '.join(settings.scores)} alone"
        raise InputError(
            given, "a score of an encoder's features", "leave them out: these are of the network's last layer"
        )
    known, names = data.dataset(settings.split).samples, list[str]()
    with torch.inference_mode():
        seen = frames_as_seen(model, data, settings.split, settings.frames, METHOD.name, settings.kinds())
        for index, image, labels in seen:
            if known[index].name not in names[-1:]:
                names.append(known[index].name)
            if extractor:
                for sample, maps, extent in zip(samples, extractor(image), extractor.extents(image), strict=True):
                    sample.add(maps, torch.from_numpy(labels), extent, len(names) - 1)
            for fit in of_images:
                fit.add(image, torch.from_numpy(labels))
    once = functools.cache(say)  # of many maps there is one thing to tell
    fitted = [sample.tensors(once) for sample in samples]
    upsampling = settings.upsampling or "bilinear"
    if auto and extractor:
        chosen, upsampling = _choose_layers(model, data, extractor, fitted, names, settings, select, say)
        count = len(layers)
        layers = tuple(layers[place] for place in chosen)
        fitted = [fitted[size * count + place] for size in range(len(settings.sizes)) for place in chosen]
    left_out = () if FEATURE_DISTANCE in needs else BANK
    tensors = {
        f"{index}.{name}": v
        for index, of_map in enumerate(fitted)
        for name, v in of_map.items()
        if name not in left_out
    }
    for fit in of_images:
        tensors |= {fit.prefix + name: v for name, v in fit.tensors(torch.empty(0), once).items()}
    mean, std = (), ()
    if witness:
        tensors |= {f"{ENCODER}{name}": v.cpu().contiguous() for name, v in witness.state_dict().items()}
        mean, std = (tuple(v.flatten().tolist()) for v in (witness.mean, witness.std))
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / TENSORS, save(tensors))
    kept = FeatureBank(
        check_scores(settings.scores), settings.encoder, layers, tuple(settings.sizes), upsampling,
        settings.scale_percentile, mean, std, fitted_on(config, settings.split), tuple(names), model.sha256,
        file_sha256(out / TENSORS),
    )  # fmt: skip
    kept.attach(base, config, out, METHOD.name, say)
    of = f"{sum(sample.seen for sample in samples):,} features of {len(names)} frames ({', '.join(layers)})"
    say(f"wrote {out}: {', '.join(kept.scores)}, fitted on {of if samples else f'{len(names)} frames'}")
    return kept


METHOD = Method("features", FeaturesConfig, fit_features, finished=True, selects=True)
