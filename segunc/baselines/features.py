"""Features of the training frames, of the network itself or of a generic *second encoder* beside
it: a bank of them for the score ``knn``. Frames are not augmented, and are seen at the size of
predictions, or whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from safetensors.torch import load as load_tensors, save
from torch import Tensor, nn

from segunc.baselines.density import (
    FeatureDistances,
    Neighbours,
    Sample,
    place_levels,
    places_of,
    unit_features,
    usual_distances,
)
from segunc.baselines.feature_extractor import FeatureExtractor, SecondEncoder, deepest_layer
from segunc.baselines.fitted import frames_as_seen, frames_of
from segunc.core.bounds import Bound, NonNegativeFloat, NonNegativeInt, PositiveInt
from segunc.core.errors import InputError
from segunc.core.files import file_sha256
from segunc.data.corruptions import Corruption
from segunc.data.labels import IGNORE
from segunc.networks.network import SegmentationNetwork
from segunc.networks.smp import encoder_normalisation, load_encoder_weights
from segunc.networks.weights import load_state, read_checkpoint
from segunc.posteriors.fit_run import FitRun, Say
from segunc.posteriors.methods import Method
from segunc.posteriors.model import Attachment, Model
from segunc.posteriors.settings import MethodSettings
from segunc.sampling.sampler import Provider, network_input
from segunc.scores import FEATURE_DISTANCE

OWN = "own"  # the encoder of the network itself
TENSORS = "features.safetensors"
ENCODER = "witness."  # prefix of the names of the second encoder's weights
# Tensors of a map for ``knn``: features ``[N, D]`` of length 1 up to rounding, and for each ``[N,
# 4]`` the frame's number, row and column as shares of its height and width, and train id (255 for
# none).
BANK = ("bank", "origins")
# Tensor of a map with ``features.by_place``: ``[M, 4]`` of :func:`usual_distances`.
USUAL = "usual"
SCORES = ("knn",)
MIN_FEATURES = 10  # of each map, on normal pixels of one's own frames
Resolution = Literal["network", "frame"]


@dataclass(frozen=True)
class FeatureBank(Attachment):
    """The features of the training frames that were kept, and of which network; the posterior has
    no part in it.
    """

    file: ClassVar[str] = "features.json"
    what: ClassVar[str] = "feature bank"
    beside: ClassVar[tuple[str, ...]] = (TENSORS,)

    scores: tuple[str, ...]  # knn; earlier versions fitted features for other scores, too
    encoder: str  # own, or timm's name of a second encoder
    layers: tuple[str, ...]
    sizes: tuple[float, ...]
    upsampling: str  # of the maps to the frame: bilinear; earlier versions had another
    mean: tuple[float, ...]  # input normalisation of the second encoder
    std: tuple[float, ...]
    # The data set, its split, the size that the network saw, and the date.
    fitted_on: Mapping[str, Any]
    frames: tuple[str, ...]  # their names
    base_sha256: str
    tensors_sha256: str  # of TENSORS: the features and the second encoder's weights
    resolution: Resolution = "network"
    by_place: bool = False  # whether distances are relative to what is usual at their place
    smoothing: float = 0.0  # standard deviation of the Gaussian filter, in pixels

    gives = frozenset({FEATURE_DISTANCE})

    @classmethod
    def load(cls, folder: Path, model: Model) -> Self:
        bank = super().load(folder, model)
        if (bank.scores, bank.upsampling) != (SCORES, "bilinear"):
            raise InputError(
                f"{folder / cls.file} was fitted for {', '.join(bank.scores)} with "
                f"{bank.upsampling} upsampling, and this version knows knn with bilinear "
                "upsampling alone",
                hint="fit the features again",
            )
        return bank

    def record(self) -> dict[str, Any]:
        return {"features_sha256": self.tensors_sha256}

    def providers(
        self, model: Model, needs: Collection[str], frames: Collection[str] | None = None
    ) -> Sequence[Provider]:
        """Return the provider of the distances from the features of some training frames (None: of
        all).

        Raises:
            InputError: the tensors are damaged or of another fit, or the bank holds no feature of
                the frames.
        """
        tensors, encoder = self.stored(model)
        device = next(model.network.parameters()).device
        if isinstance(encoder, SecondEncoder):
            encoder = encoder.folded(self.layers).to(device)
        banks = []
        levels = []
        for index in range(len(self.layers) * len(self.sizes)):
            bank = {}
            for name in BANK:
                stored_name = f"{index}.{name}"
                if stored_name in tensors:  # earlier files have no origins
                    bank[name] = tensors[stored_name].to(device)
            if frames is not None:
                bank = self._of_frames(bank, frames)
            names: list[str] = []
            if "origins" in bank:
                names = [self.frames[number] for number in bank["origins"][:, 0].long().tolist()]
            banks.append(Neighbours(bank["bank"], names))
            if self.by_place:
                usual = self._usual(tensors[f"{index}.{USUAL}"].to(device), frames)
                levels.append(place_levels(usual))
        distances = FeatureDistances(
            FeatureExtractor(encoder, self.layers, self.sizes),
            banks,
            whole=self.resolution == "frame",
            levels=levels,
            smoothing=self.smoothing,
        )
        return [distances]

    def stored(self, model: Model) -> tuple[dict[str, Tensor], nn.Module]:
        """Return the tensors beside the model and the module that makes the features; InputError
        where they are of another fit.
        """
        path = Path(TENSORS)
        if self.kept:
            tensors: dict[str, Tensor] = load_tensors(self.kept[TENSORS])
        else:
            assert model.folder is not None  # from which this was loaded, too
            path = model.folder / TENSORS
            tensors = read_checkpoint(path)
            if file_sha256(path) != self.tensors_sha256:
                raise InputError(
                    f"{path} has changed since {self.file} was written",
                    hint="fit the features again",
                )
        if self.encoder == OWN:
            return tensors, model.network
        second = SecondEncoder(self.encoder, self.mean, self.std)
        weights = {}
        for name, tensor in tensors.items():
            if name.startswith(ENCODER):
                weights[name.removeprefix(ENCODER)] = tensor
        load_state(second, weights, str(path))
        return tensors, second

    def _of_frames(self, bank: dict[str, Tensor], frames: Collection[str]) -> dict[str, Tensor]:
        """Return the tensors of :data:`BANK` with the features of some frames alone."""
        if "origins" not in bank:  # as of earlier versions
            raise InputError(
                "the bank does not say of which frames its features are",
                hint="fit the features again",
            )
        wanted = torch.tensor([name in frames for name in self.frames], device=bank["bank"].device)
        chosen = wanted[bank["origins"][:, 0].long()]
        if not chosen.any():
            raise InputError(
                f"all {len(self.frames)} frames of the bank are left out, as they are compared "
                "with it",
                hint="fit the features on more frames",
            )
        return {name: tensor[chosen] for name, tensor in bank.items()}

    def _usual(self, usual: Tensor, frames: Collection[str] | None) -> Tensor:
        """Return the usual distances ``[M, 4]`` of features of some training frames alone (None: of
        all).
        """
        if frames is None:
            return usual
        wanted = torch.tensor([name in frames for name in self.frames], device=usual.device)
        return usual[wanted[usual[:, 0].long()]]


@dataclass(frozen=True)
class FeatureDensity(MethodSettings):
    """Which features are kept, and how.

    Args:
        encoder: own for the encoder of the network, or the name of a second encoder in timm, e.g.
            tf_efficientnet_lite0.
        weights: weights of the second encoder: a file of timm or torchvision, or imagenet, which
            timm downloads.
        layers: names of the modules whose outputs are the features; none for the deepest map.
        sizes: factors by which frames are resized before the encoder; each gives a map.
        resolution: size to which frames are brought before the factors of sizes. network is the
            size that the network sees; frame keeps the frame's own size, which shows more to a
            second encoder.
        bank: number of features that are kept for each layer and size: a random sample of all.
        frames: number of evenly spaced frames (0: all).
        corruptions: corruptions NAME:STRENGTH, e.g. noise:2. Features of corrupted frames are
            stored too, so that such corruptions count as normal.
        seed: random seed of the sample.
        by_place: whether a distance counts relative to what is usual at its place of the frame.
            What is usual is measured by comparing the training frames with each other, on a grid of
            12 x 12 places. It finds more objects on the road and has fewer false alarms beside it,
            if all frames come from cameras that are mounted alike.
        smoothing: standard deviation, in pixels of the frames that the encoder sees before sizes,
            of a Gaussian filter over the distances; 0 filters nothing. 12 suits frames of about
            2000 x 1000 pixels.
        images ([DATASET:]FOLDER): frames of your own road instead of the training set; they need no
            labels. If there are anomaly labels, places that they mark are left out. They come from
            the data set, or from a folder labels or labels_masks beside the frames (0 normal, 1
            anomaly, 255 ignored).

    >>> import torch
    >>> import segunc
    >>> _ = torch.manual_seed(0)
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> base = segunc.wrap(net, ("road", "other"))
    >>> images = torch.rand(4, 3, 64, 64)
    >>> labels = (images.mean(1) > 0.5).long()
    >>> batches = [(images[:2], labels[:2]), (images[2:], labels[2:])]
    >>> model = segunc.FeatureDensity(layers=["body.1"]).fit(base, batches)
    >>> model.attachments["features"].layers
    ('body.1',)
    """

    section = "features"
    method = "features"
    without_data: ClassVar[str] = "--features.images FOLDER"
    encoder: str = OWN
    weights: str | None = None
    layers: list[str] | None = None
    sizes: list[Annotated[float, Bound(above=0, most=16)]] = field(default_factory=lambda: [1.0])
    bank: PositiveInt = 20_000
    frames: NonNegativeInt = 0
    corruptions: list[str] = field(default_factory=list)
    seed: NonNegativeInt = 0
    images: str | None = None
    resolution: Resolution = "network"
    by_place: bool = False
    smoothing: NonNegativeFloat = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kinds()
        if self.layers == []:
            raise InputError("features.layers is empty", hint="leave it out for the deepest map")

    def kinds(self) -> list[Corruption]:
        """Return the corruptions; InputError for an unknown one."""
        return [Corruption.parse(text) for text in self.corruptions]


class TrainingFeatures:
    """A sample of the features of the training frames for each map of the encoder that the settings
    name.
    """

    def __init__(self, network: SegmentationNetwork, settings: FeatureDensity, say: Say) -> None:
        encoder, deepest = _open_encoder(network, settings, say)
        self.settings = settings
        self.encoder = encoder.to(next(network.parameters()).device)
        self.layers = (deepest,) if settings.layers is None else tuple(settings.layers)
        self.count = 0
        self.extractor = FeatureExtractor(self.encoder, self.layers, settings.sizes)
        maps = len(self.layers) * len(settings.sizes)
        self.maps = [Sample(settings.bank, settings.seed) for _ in range(maps)]

    def gather(self, run: FitRun[FeatureDensity]) -> list[str]:
        """Take the training frames and return their names; of images without class labels only
        places of normal pixels.
        """
        settings = self.settings
        corruptions = settings.kinds()
        names: list[str] = []
        for frame in frames_as_seen(run, frames_of(run), "train", settings.frames, corruptions):
            if frame.name not in names[-1:]:
                names.append(frame.name)
            image = frame.image
            labels = frame.labels
            if settings.resolution == "frame":
                image = network_input([frame.original]).to(image.device)
                labels = frame.original_labels
            self.add(image, torch.from_numpy(labels), len(names) - 1)
        if settings.images and self.count < MIN_FEATURES * len(self.maps):
            raise InputError(
                f"{self.count} features of {settings.images} are of normal pixels, fewer than "
                f"{MIN_FEATURES} a map",
                hint="give more frames, or check their anomaly labels",
            )
        return names

    def add(self, image: Tensor, labels: Tensor, frame: int) -> None:
        """Take a frame.

        Args:
            image: ``[1, 3, h, w]`` in 0..1, as the encoder sees it.
            labels: train ids ``[h, w]``.
            frame: its number.
        """
        extents = self.extractor.extents(image)
        for sample, maps, extent in zip(self.maps, self.extractor(image), extents, strict=True):
            features = unit_features(maps).cpu()
            places = places_of(labels, (maps.shape[2], maps.shape[3]), extent)
            if self.settings.images:
                normal = places[:, 2] != IGNORE
                features = features[normal]
                places = places[normal]
            numbers = torch.full((len(features), 1), frame)
            sample.add(torch.cat([features, numbers, places], 1))
            self.count += len(features)

    def tensors(self) -> dict[str, Tensor]:
        """Return all that is stored, with the weights of a second encoder."""
        tensors: dict[str, Tensor] = {}
        for index, sample in enumerate(self.maps):
            tensors[f"{index}.bank"] = sample.rows[:, :-4].half().contiguous()
            tensors[f"{index}.origins"] = sample.rows[:, -4:].contiguous()
            if self.settings.by_place:
                usual = usual_distances(sample.rows[:, :-4], sample.rows[:, -4:])
                tensors[f"{index}.{USUAL}"] = usual
        if isinstance(self.encoder, SecondEncoder):
            for name, tensor in self.encoder.state_dict().items():
                tensors[f"{ENCODER}{name}"] = tensor.cpu().contiguous()
        return tensors


def _open_encoder(
    network: SegmentationNetwork, settings: FeatureDensity, say: Say
) -> tuple[nn.Module, str]:
    """Return the module that makes the features, and the name of its deepest layer."""
    if settings.encoder == OWN:
        if settings.layers is not None:
            return network, ""
        return network, _deepest_own(network)
    if settings.weights is None:
        raise InputError(
            f"features.encoder {settings.encoder} has no weights",
            hint="--features.weights FILE, or imagenet",
        )
    mean, std = encoder_normalisation(settings.encoder)
    pretrained = settings.weights == "imagenet"
    second = SecondEncoder(settings.encoder, mean, std, pretrained=pretrained)
    if not pretrained:
        for note in load_encoder_weights(second.encoder, settings.encoder, settings.weights):
            say(f"note: {note}")
    return second.requires_grad_(False), second.deepest


def _deepest_own(network: SegmentationNetwork) -> str:
    """Return the name of the deepest layer of a network's own encoder."""
    encoder = getattr(network.body, "encoder", None)
    if isinstance(encoder, nn.Module):
        return deepest_layer(network, encoder)
    names = [name for name, _ in network.named_modules()]
    raise InputError(
        f"a {type(network.body).__name__} has no part named encoder whose deepest layer could be "
        "taken",
        hint=("name modules with --features.layers, for instance some of " + ", ".join(names[-3:])),
    )


def fit_features(run: FitRun[FeatureDensity]) -> Model:
    """Return the model with the features of training frames.

    Raises:
        InputError: a layer is not there.
    """
    settings = run.settings
    model = run.model
    features = TrainingFeatures(model.network, settings, run.say)
    with torch.inference_mode():
        names = features.gather(run)
    content = save(features.tensors())
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    if isinstance(features.encoder, SecondEncoder):
        mean = tuple(features.encoder.mean.flatten().tolist())
        std = tuple(features.encoder.std.flatten().tolist())
    bank = FeatureBank(
        scores=SCORES,
        encoder=settings.encoder,
        layers=features.layers,
        sizes=tuple(settings.sizes),
        upsampling="bilinear",
        mean=mean,
        std=std,
        fitted_on=run.fitted_on("train"),
        frames=tuple(names),
        base_sha256=model.sha256,
        tensors_sha256=hashlib.sha256(content).hexdigest(),
        resolution=settings.resolution,
        by_place=settings.by_place,
        smoothing=settings.smoothing,
    )
    layers = ", ".join(features.layers)
    count = f"{features.count:,} features of {len(names)} frames"
    return run.attach(bank, f"knn, fitted on {count} ({layers})", {TENSORS: content})


METHOD = Method("features", FeatureDensity, fit_features, finished=True)
