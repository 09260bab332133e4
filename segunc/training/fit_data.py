"""What a fit looks at: a data set by its settings, or what a program hands over: loaders, batches,
images.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, default_collate

from segunc.core.bounds import from_plain
from segunc.core.errors import InputError
from segunc.data.datasets import name_and_folder, without_none_words
from segunc.data.images import Image, Labels
from segunc.data.labels import IGNORE, class_shares
from segunc.networks.description import COLOUR, NetworkDescription
from segunc.networks.network import inference_size
from segunc.training.batches import (
    Batch,
    check_repeatable,
    checked_batch,
    count_batches,
    no_batch,
    open_data,
)
from segunc.training.config import plain_values, read_config, recorded_data, with_own_paths

if TYPE_CHECKING:
    from segunc.data.module import DataConfig, SegmentationDataModule

MAX_COUNTED_FRAMES = 400
"""Frames whose labels say how frequent the classes are."""
_SEPARATORS = re.compile(r"[\s_-]+")
_NUMBER_NAME = re.compile(r"(class|label)?\d+")
MAX_SIZE_FACTOR = 1.05
"""Factor up to which two sizes of a frame count as alike."""


class FitData(Protocol):
    """What methods need of the data that they are fitted on, as
    :class:`segunc.data.module.SegmentationDataModule` has it.
    """

    seed: int
    size: tuple[int, int] | None
    validation: str

    def dataset(self, split: str) -> Any:
        """Return the frames of a split: they have a length and ``read(index)``, which gives an
        image ``[H, W, K]`` and train ids uint8 ``[H, W]``, 255 ignored.
        """

    def folds(self) -> Sequence[Any]:
        """Return data whose ``val`` is held out of their ``train``."""


class FrameName(NamedTuple):
    """A frame without a file."""

    name: str


class CheckedBatches:
    """The batches of a loader as :func:`segunc.training.batches.checked_batch` returns them.

    Args:
        loader: gives the batches.
        classes: number of classes of the network.
        channels: number of channels of its images.
    """

    def __init__(self, loader: Iterable[Any], classes: int, channels: int = COLOUR) -> None:
        self._loader = loader
        self._classes = classes
        self._channels = channels

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._loader:
            yield checked_batch(batch, self._classes, self._channels)

    @cached_property
    def frames(self) -> int:
        """How many frames a pass gives; the loader is gone through where it does not say so.

        Raises:
            InputError: none.
        """
        told = frames_of_loader(self._loader)
        frames = sum(len(images) for images, _ in self) if told is None else told
        if not frames:
            raise no_batch()
        return frames


def frames_of_loader(loader: Iterable[Any]) -> int | None:
    """Return how many frames a pass of a ``DataLoader`` gives, by its sampler; None where only the
    pass tells.
    """
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return None
    batches = loader.batch_sampler
    # Another function may make a batch of more or fewer frames.
    if type(batches) is not BatchSampler or loader.collate_fn is not default_collate:
        return None
    try:
        frames = len(batches.sampler)  # type: ignore[arg-type]
    except TypeError:  # a sampler without a length
        return None
    if batches.drop_last:
        frames -= frames % batches.batch_size
    return frames


class LoaderFrames:
    """The frames of the batches of a loader, read one after the other.

    They have no names of their own: :func:`content_name` tells them apart, in every loader alike.

    Args:
        batches: of the loader.
    """

    def __init__(self, batches: CheckedBatches) -> None:
        self._batches = batches
        self._next = 0  # number of the frame that `_reading` gives next
        self._reading: Iterator[tuple[Tensor, Tensor]] | None = None
        self._kept: list[dict[str, Tensor]] = []

    def __len__(self) -> int:
        return self._batches.frames

    def _tensors(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield image ``[K, H, W]`` and labels ``[H, W]`` of each frame of a pass."""
        for images, labels in self._batches:
            yield from zip(images, labels, strict=True)

    def read(self, index: int) -> tuple[Any, Labels]:
        """Return an image ``[H, W, K]`` and train ids uint8 ``[H, W]``; frames are best read in
        their order, because a former one begins a new pass.

        The image is uint8 where all values are those of 8 bits divided by 255, else float32.
        """
        if self._reading is None or index < self._next:
            self._reading = self._tensors()
            self._next = 0
        for image, labels in self._reading:
            self._next += 1
            if self._next > index:
                if self._next == len(self):
                    self._reading = None  # which ends the loader's processes
                return as_image(image), as_labels(labels)
        raise InputError(
            f"the loader gave {self._next} frames, and {len(self)} in an earlier pass",
            hint="give a loader whose passes have the same number of frames",
        )

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return ``image`` float32 ``[K, H, W]`` and ``label`` int64 ``[H, W]`` of any frame; all
        frames are kept in memory for it.
        """
        if not self._kept:
            self._kept = [{"image": image, "label": label} for image, label in self._tensors()]
        return self._kept[index]


def as_image(image: Tensor) -> npt.NDArray[Any]:
    """Return ``[K, H, W]`` in 0..1 as ``[H, W, K]``: uint8 where nothing is lost by it."""
    values = image.detach().cpu().permute(1, 2, 0).contiguous().float()
    codes = (values * 255).round().clamp(0, 255).to(torch.uint8)
    if bool((codes.float() / 255 == values).all()):
        return np.asarray(codes.numpy())
    return np.asarray(values.numpy())


def as_labels(labels: Tensor) -> Labels:
    """Return int64 class ids, 0..255, as uint8."""
    return np.asarray(labels.cpu().numpy().astype(np.uint8))


class CountedLoader:
    """A loader whose number of batches is known.

    Args:
        loader: gives the batches.
        batches: of a pass.
    """

    def __init__(self, loader: Iterable[Any], batches: int) -> None:
        self._loader = loader
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._loader):
            if number == self._batches:
                return
            yield batch


def note_on_processes(batches: Any, processes: int) -> str:
    """Return what a user should know of a training by several processes; empty for nothing.

    Args:
        batches: what the Trainer takes its batches from, in each process.
        processes: that train.
    """
    if processes == 1 or not isinstance(batches, CountedLoader):
        return ""
    return (
        f"each of the {processes} processes trains on all batches of the loader, because only the "
        "frames of a data set are shared out; give each process a loader of its own frames"
    )


@dataclass
class LoaderData:
    """Loaders of a program, in the form of :class:`FitData`.

    Args:
        loaders: by the name of their split.
        classes: number C of the network's classes.
        max_batches: of a pass over a loader that does not say its length; 0 counts all.
        of_module: whether they are those of a data module; else the only one serves every split.
        channels: number K of channels of the network's images.
    """

    loaders: Mapping[str, Iterable[Any]]
    classes: int
    max_batches: int = 0
    of_module: bool = False
    channels: int = COLOUR
    seed: int = 0
    workers: int = 0
    size: tuple[int, int] | None = None
    validation: str = "val"
    _batches: dict[int, CheckedBatches] = field(default_factory=dict)
    _frames: dict[int, LoaderFrames] = field(default_factory=dict)

    def loader(self, split: str) -> Iterable[Any]:
        """Return the loader of a split.

        Raises:
            InputError: there is none, or several, or it gives its batches only once.
        """
        if not self.of_module and len(self.loaders) == 1:
            (loader,) = self.loaders.values()
        elif split in self.loaders:
            loader = self.loaders[split]
        else:
            raise InputError(
                f"the data module has no split {split}",
                hint=f"it has {', '.join(self.loaders)}; or give one loader",
            )
        if self.of_module:
            loader = only_loader(loader, split)
        check_repeatable(loader)
        return loader

    def batches(self, split: str) -> CheckedBatches:
        """Return the batches of a split."""
        loader = self.loader(split)
        if id(loader) not in self._batches:
            self._batches[id(loader)] = CheckedBatches(loader, self.classes, self.channels)
        return self._batches[id(loader)]

    def dataset(self, split: str, *, augment: bool = False) -> LoaderFrames:
        batches = self.batches(split)
        if id(batches) not in self._frames:
            self._frames[id(batches)] = LoaderFrames(batches)
        return self._frames[id(batches)]

    def folds(self) -> list[LoaderData]:
        return [self]

    @cached_property
    def batch_size(self) -> int:
        """Frames of the first batch."""
        for images, _ in self.batches("train"):
            return len(images)
        raise no_batch()

    def prepare_data(self, *, selects: bool = True) -> None:
        """Check the first batch before the work.

        Raises:
            InputError: it is no batch.
        """
        self.train_dataloader()
        _ = self.batch_size

    def train_dataloader(self) -> CountedLoader:
        return CountedLoader(self.batches("train"), self._train_batches)

    @cached_property
    def _train_batches(self) -> int:
        """Number of batches of a pass over the training loader."""
        return count_batches(self.loader("train"), self.max_batches)

    def class_frequencies(self, limit: int = MAX_COUNTED_FRAMES) -> list[float]:
        """Return the share of the labelled pixels of each class, in the first frames of a pass, see
        :func:`segunc.data.labels.class_shares`.

        Args:
            limit: most frames to read.
        """
        counts = torch.zeros(IGNORE + 1, dtype=torch.int64)
        frames = 0
        is_sample = False
        for images, labels in self.batches("train"):
            is_sample = frames >= limit
            if is_sample:
                break
            ids = torch.from_numpy(as_labels(labels)).flatten().long()
            counts += ids.bincount(minlength=IGNORE + 1)
            frames += len(images)
        return class_shares(counts[: self.classes].numpy(), is_sample=is_sample)


@dataclass
class GivenImages:
    """Images without labels of a program: each is held out in turn, and the others are ``train``.

    Args:
        images: uint8 ``[H, W, K]``.
        held_out: the number of the image that is ``val``.
    """

    images: Sequence[Image]
    held_out: int | None = None
    seed: int = 0
    size: tuple[int, int] | None = None
    validation: str = "leave-frame-out"
    has_labels: ClassVar[bool] = False

    @cached_property
    def samples(self) -> list[FrameName]:
        return [FrameName(content_name(image)) for image in self.images]

    def __len__(self) -> int:
        return len(self.images)

    def dataset(self, split: str) -> GivenImages:
        chosen = []
        for number, image in enumerate(self.images):
            if (number == self.held_out) == (split == "val"):
                chosen.append(image)
        return replace(self, images=chosen, held_out=None)

    def folds(self) -> list[GivenImages]:
        return [replace(self, held_out=number) for number in range(len(self.images))]

    def read(self, index: int) -> tuple[Image, Labels]:
        """Return an image and its labels: all pixels are normal (0)."""
        image = self.images[index]
        return image, np.zeros(image.shape[:2], np.uint8)


def content_name(image: npt.NDArray[Any]) -> str:
    """Return a name of an image that its values and its shape decide."""
    digest = hashlib.sha256(f"{image.dtype}{image.shape}".encode())
    digest.update(np.ascontiguousarray(image).tobytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class DataSource:
    """Where a fit takes its frames from.

    Args:
        settings: of a data set, by the names of :class:`segunc.data.module.DataConfig`; empty where
            a program hands over the data.
        handed_over: opens what a program hands over, for a network; None for a data set.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    handed_over: Callable[[NetworkDescription], Any] | None = None

    def __bool__(self) -> bool:
        return bool(self.settings) or self.handed_over is not None

    def open_for(self, network: NetworkDescription) -> Any:
        """Return the :class:`FitData` for a network."""
        if self.handed_over is not None:
            return self.handed_over(network)
        module = open_data(self.settings, network.num_classes)
        _check_classes(module, network)
        fit_to_network(module, network)
        return module


def data_source(data: Any, folder: Path | None = None, *, max_batches: int = 0) -> DataSource:
    """Return the source of the data that a caller of a fit gives.

    Args:
        data: None for the data set that the model was made with; settings of a data set as a
            mapping or a :class:`segunc.data.module.DataConfig`; the path of a YAML file with the
            section ``data``; ``NAME:FOLDER`` of a data set; a data module; a loader or another
            iterable of batches ``(image, label)``; images uint8 ``[H, W, K]`` without labels.
        folder: that the model was loaded from.
        max_batches: of a loader that does not say its length; 0 counts all.

    Raises:
        InputError: the data are none of these.
    """
    from segunc.data.module import DataConfig, SegmentationDataModule

    if data is None:
        recorded = None if folder is None else recorded_data(folder)
        return DataSource(_settings(recorded) if recorded else {})
    if isinstance(data, DataSource):
        return data
    if isinstance(data, DataConfig):
        return DataSource(plain_values(asdict(data)))
    if isinstance(data, Mapping):
        return DataSource(_settings(data))
    if isinstance(data, str | Path):
        return DataSource(_settings(_named_data(str(data))))
    if isinstance(data, SegmentationDataModule):
        settings = plain_values(asdict(data.config))
        return DataSource(settings, lambda network: _checked(data, network))
    if callable(getattr(data, "train_dataloader", None)):
        return DataSource(handed_over=lambda network: _of_module(data, network, max_batches))
    images = _given_images(data)
    if images is not None:
        return DataSource(handed_over=lambda network: _checked_images(images, network.channels))
    if isinstance(data, Iterable):
        return DataSource(
            handed_over=lambda network: _of_loaders({"train": data}, network, max_batches)
        )
    raise InputError(
        f"data of type {type(data).__name__} hold no batches",
        hint="give a DataLoader, a data module, settings of a data set, or the path of a "
        "configuration",
    )


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a data set, checked."""
    from segunc.data.module import DataConfig

    config: DataConfig = from_plain(DataConfig, without_none_words(values), DataConfig.section)
    return asdict(config)


def _named_data(text: str) -> Mapping[str, Any]:
    """Return the settings in a configuration, or of a data set as ``NAME:FOLDER``.

    Raises:
        InputError: the text is neither.
    """
    path = Path(text)
    if path.suffix in (".yaml", ".yml"):
        values = read_config(path)
        section = values.get("data", values)
        if not isinstance(section, dict):
            raise InputError(f"configuration {path}: data is {section!r}, not keys with values")
        return with_own_paths(section, path)
    named = name_and_folder(text)
    if named is None:
        raise InputError(
            f"data '{text}' is neither a YAML file nor NAME:FOLDER of a data set",
            hint="for instance cityscapes:/data/cityscapes",
        )
    name, folder = named
    return {"dataset": name, "root": folder}


def _check_classes(data: Any, network: NetworkDescription) -> None:
    """Raise InputError where a data set has other classes than a network, or the same ones in
    another order. Capitals and separators do not count, nor do names of the network that are
    numbers.
    """
    classes = data.label_map.classes
    names = [_plain_name(name) for name in classes]
    outputs = [_plain_name(name) for name in network.classes]
    if names == outputs or all(_NUMBER_NAME.fullmatch(output) for output in outputs):
        return
    first = next(number for number, name in enumerate(names) if name != outputs[number])
    dataset = data.config.dataset
    if sorted(names) == sorted(outputs):
        raise InputError(
            f"data set {dataset} has the classes of the network in another order: class "
            f"{first} is '{classes[first]}', and the network's is '{network.classes[first]}'",
            hint="give data.labels with train ids in the order of the network's classes",
        )
    raise InputError(
        f"data set {dataset} has other classes than the network: class {first} is "
        f"'{classes[first]}', and the network's is '{network.classes[first]}'",
        hint="give the data set of its training; or, if both mean the same, data.labels with the "
        "names of the network",
    )


def _plain_name(name: str) -> str:
    """Return the name of a class without capitals and separators."""
    return _SEPARATORS.sub("", name.casefold())


def _checked(data: Any, network: NetworkDescription) -> Any:
    """Return a copy of a data module of this package for a network; InputError where it has another
    number of classes.
    """
    classes = network.num_classes
    count = data.label_map.num_classes
    if count != classes:
        raise InputError(
            f"data set {data.config.dataset} has {count} classes, but the network has {classes}",
            hint="give the data set of its training, or data.labels with its classes",
        )
    _check_classes(data, network)
    module = copy(data)
    fit_to_network(module, network)
    return module


def fit_to_network(data: SegmentationDataModule, network: NetworkDescription) -> None:
    """Let a data set give its frames as ``predict`` shows them to a network: with as many channels,
    and at the same size unless ``data.size`` says otherwise.
    """
    data.channels = network.channels
    data.network_size = partial(inference_size, network)
    data.forget_frames()


def size_note(
    data: Any, network: NetworkDescription, *, crops: bool, trains_network: bool = False
) -> str:
    """Return a note where a data set shows frames at another size than ``predict`` does without
    ``--size``; empty where both are alike. The first training frame stands for all.

    Args:
        data: a data set that :func:`fit_to_network` took, or other data, of which nothing is said.
        network: that sees the frames.
        crops: whether crops of training frames are seen; else whole frames.
        trains_network: whether the network itself is trained, so that its size is still open.
    """
    if not hasattr(data, "network_size") or (data.size is None and not crops):
        return ""
    image, _ = data.dataset("train").read(0)
    own = (image.shape[0], image.shape[1])
    shown = data.size or own
    seen = inference_size(network, own)
    factors = (shown[0] / seen[0], shown[1] / seen[1])
    if max(factors) <= MAX_SIZE_FACTOR and min(factors) >= 1 / MAX_SIZE_FACTOR:
        return ""
    what = "training crops are of frames at" if crops else "frames are shown at"
    if data.size is None:
        remedy = f"--data.size [{seen[0]},{seen[1]}]"
    elif trains_network:
        remedy = f"--network.inference_size [{shown[0]},{shown[1]}]"
    else:
        remedy = f"--data.size none, or predict --size {shown[0]}x{shown[1]}"
    return (
        f"{what} {shown[0]}x{shown[1]}, but predict shows such frames to the network at "
        f"{seen[0]}x{seen[1]}, where objects have another size. To have one size: {remedy}"
    )


def _of_loaders(
    loaders: Mapping[str, Any],
    network: NetworkDescription,
    max_batches: int,
    *,
    of_module: bool = False,
) -> LoaderData:
    """Return loaders as the data of a network."""
    return LoaderData(
        loaders, network.num_classes, max_batches, of_module=of_module, channels=network.channels
    )


def _of_module(data: Any, network: NetworkDescription, max_batches: int) -> LoaderData:
    """Return the loaders of a LightningDataModule of one's own, or of what has its methods."""
    if callable(getattr(data, "prepare_data", None)):
        data.prepare_data()
    if callable(getattr(data, "setup", None)):
        data.setup("fit")
    loaders = {"train": data.train_dataloader()}
    validation = _validation_loader(data)
    if validation is not None:
        loaders["val"] = validation
    return _of_loaders(loaders, network, max_batches, of_module=True)


def _validation_loader(data: Any) -> Any:
    """Return the validation loader of a data module; None where it has none."""
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    if not callable(getattr(data, "val_dataloader", None)):
        return None
    try:
        loader = data.val_dataloader()
    except MisconfigurationException:  # of Lightning's own method, which a module overrides
        return None
    is_empty = isinstance(loader, list | tuple | Mapping) and not loader
    return None if is_empty else loader


def only_loader(loader: Any, split: str) -> Any:
    """Return the loader of a split of a data module, which may be in a list or a dictionary.

    Raises:
        InputError: there are several, or none.
    """
    if not isinstance(loader, list | tuple | Mapping):
        return loader
    loaders = [*(loader.values() if isinstance(loader, Mapping) else loader)]
    if all(isinstance(batch, Mapping | tuple) for batch in loaders):
        return loader  # a list of batches
    if len(loaders) != 1:
        raise InputError(
            f"the data module has {len(loaders)} loaders of the split {split}",
            hint="give one loader in its place",
        )
    return loaders[0]


def _given_images(data: Any) -> list[Image] | None:
    """Return images without labels; None where the data are something else."""
    if not isinstance(data, list | tuple) or not data:
        return None
    images = []
    for image in data:
        if not isinstance(image, np.ndarray) or image.ndim != 3:
            return None
        images.append(image)
    return images


def _checked_images(images: Sequence[Image], channels: int) -> GivenImages:
    """Return images without labels as data; InputError for other images than the network takes."""
    for image in images:
        if image.dtype != np.uint8 or image.shape[2] != channels:
            colours = "RGB " if channels == COLOUR else ""
            raise InputError(
                f"an image has the dtype {image.dtype} and the shape {image.shape}; expected "
                f"{colours}uint8 [H, W, {channels}]",
                hint="check its axes and its dtype",
            )
    return GivenImages(images)
