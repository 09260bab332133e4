"""What the fits of several methods share: the run of a fine-tuning, and records that are fitted on a finished model."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from segunc.core.device import flushed_denormals
from segunc.core.errors import InputError
from segunc.core.files import json_sha256, read_record, write_record
from segunc.core.progress import ConsoleProgress
from segunc.core.registry import Registry
from segunc.data.corruptions import Corruption
from segunc.data.images import Image, resize_nearest
from segunc.networks.network import inference_size
from segunc.sampling.frames import network_input
from segunc.training.config import FinetuneConfig, FitConfig, now, save_config
from segunc.training.data import open_data, spaced
from segunc.training.finetune_run import FinetuneRun
from segunc.training.progress import Say, no_half_folder, say

if TYPE_CHECKING:
    from segunc.data.module import SegmentationDataModule
    from segunc.posteriors.files import Model

Check = Callable[[Path, FinetuneConfig[Any], Path], None]
BOUND_TO = {
    "base_sha256": "base network with the hash",
    "posterior_sha256": "posterior with the hash",
    "features_sha256": "feature bank with the hash",
    "temperature": "model of temperature",
    "calibrator_sha256": "calibrator of the mean with the hash",
}
"""Fields of a record by which it is bound to a model, and how messages name them."""


def finetuning(
    check: Check | None = None, partial: str | None = None
) -> Callable[[Callable[[FinetuneRun[Any]], dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """Makes a :attr:`segunc.posteriors.methods.Method.fit` of what is done in a run that is open, which gives what was measured.

    A killed run continues from its last checkpoint when it is called again with the same ``out``. Denormals are taken for 0.

    Args:
        check: of the base, the configuration and the output folder, before anything is opened.
        partial: file beside the checkpoints in which the method keeps unfinished work of its own.
    """

    def fit_of(work: Callable[[FinetuneRun[Any]], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        @wraps(work)
        @flushed_denormals()
        def fit(
            base: Path, config: FinetuneConfig[Any], out: Path, *, device: str = "auto", say: Say = say
        ) -> dict[str, Any]:

            if check is not None:
                check(base, config, out)
            with no_half_folder(out):
                return work(FinetuneRun(base, config, out, device=device, say=say, partial=partial))

        return fit

    return fit_of


@dataclass(frozen=True)
class Attachment:
    """What is fitted on a finished model and stored beside it as a small JSON file, bound to the model by hashes: an entry of
    :data:`ATTACHMENTS` under the name of this file without its suffix."""

    file: ClassVar[str]
    beside: ClassVar[tuple[str, ...]] = ()  # further files of it
    what: ClassVar[str]  # it is, in messages
    bound_by: ClassVar[tuple[str, ...]] = ("base_sha256",)  # fields, see :attr:`segunc.posteriors.files.Model.hashes`
    of_others: ClassVar[bool] = False  # fitted after all others: loaded after them, and outdated by a new one of them

    @property
    def gives(self) -> frozenset[str]:
        """Names of the evidence that it has for scores."""
        return frozenset()

    def providers(self, model: Model, needs: Collection[str], frames: Collection[str] | None = None) -> Sequence[Any]:
        """Return what gives the sampler the evidence that is needed, each a :class:`segunc.sampling.sampler.Provider`; of what was seen in
        training frames that of ``frames`` alone (None: of all). By default it is one itself."""
        return (self,)

    def record(self) -> dict[str, Any]:
        """Return what decides its evidence, for the manifest of maps that need it."""
        return {f"{Path(self.file).stem}_sha256": json_sha256(asdict(self))}

    @classmethod
    def load(cls, folder: Path, model: Model) -> Self:
        """Return it from the folder of a model that has all that it is fitted after; InputError as of :meth:`content`."""
        return cls(**cls.content(folder, **{name: model.hashes[name] for name in cls.bound_by}))

    def write(self, folder: Path) -> None:
        """Into a model folder."""
        write_record(folder / self.file, asdict(self))

    def attach(self, base: Path, config: FitConfig[Any], out: Path, method: str, say: Say) -> None:
        """Write the model that it was fitted on, its configuration and the record."""
        from segunc.posteriors.files import copy_model

        copy_model(base, out)
        for kind in () if self.of_others else attachments_in(out):
            for name in (kind.file, *kind.beside) if kind.of_others else ():
                (out / name).unlink(missing_ok=True)
                say(f"removed {out / name}, which was fitted with a former {self.what}: fit it again")
        save_config(config, out, method)
        self.write(out)

    @classmethod
    def content(cls, folder: Path, **hashes: str | float | None) -> dict[str, Any]:
        """Return the fields of the record in the folder of a model with these hashes, lists as tuples.

        Raises:
            InputError: the record was changed, fields lack or are too many, or it was fitted on another model.
        """
        path = folder / cls.file
        content = read_record(path, f"the {cls.what}")
        del content["format"]
        if differing := {field.name for field in fields(cls)} ^ set(content):
            lacking = ", ".join(sorted(differing))
            raise InputError(f"{path} lacks or has too much: {lacking}", f"the fields of {cls.what}", "fit it again")
        for name, actual in hashes.items():
            if content[name] != actual:
                raise InputError(
                    f"{path} was fitted on a {BOUND_TO[name]} {str(content[name])[:12]}, the one here has "
                    f"{str(actual)[:12]}",
                    "a file beside the model that it was fitted on",
                    "fit it again on this model, or remove the file",
                )
        return {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}


ATTACHMENTS: Registry[type[Attachment]] = Registry(
    "attachment",
    "segunc.attachments",
    {
        "calibration": "segunc.posteriors.temperature:Calibration",
        "features": "segunc.posteriors.features:FeatureBank",
        "anomaly": "segunc.posteriors.anomaly:ScoreSum",
    },
)


def attachments_in(folder: Path) -> list[type[Attachment]]:
    """Return what was fitted on the model in a folder, in the order in which it is loaded; no other module is imported."""
    there = [ATTACHMENTS[name] for name in ATTACHMENTS if (folder / f"{name}.json").exists()]
    return sorted(there, key=lambda kind: kind.of_others)


def are_finite(values: Iterable[object]) -> bool:
    """Whether all values from a JSON file are finite numbers."""
    return all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)


def load_for_fitting(base: Path, config: FitConfig[Any], device: torch.device) -> tuple[Model, SegmentationDataModule]:
    """A model of either kind on its device, and the data set of its classes that something is to be fitted on."""
    from segunc.posteriors.files import load_model

    model = load_model(base)
    data = open_data(config.data, model.network.description.num_classes)
    model.place(device)
    return model, data


def frames_as_seen(
    model: Model,
    data: SegmentationDataModule,
    split: str,
    limit: int,
    label: str,
    corruptions: Sequence[Corruption] = (),
) -> Iterator[tuple[int, Tensor, npt.NDArray[np.uint8]]]:
    """Evenly spaced frames of a split as ``segunc predict`` would show them to the network.

    Args:
        model: its network decides the size, unless ``data.size`` is given.
        limit: how many frames (0: all).
        label: what is done with them, for the progress.
        corruptions: each frame comes clean and then under each of these.

    Yields:
        the frame's index, its image ``[1, 3, h, w]`` in 0..1 on the network's device, and its train ids uint8 ``[h, w]``
        (255 ignored), brought to the network's size by the nearest pixel.
    """
    frames = data.dataset(split)
    for index in ConsoleProgress(label=label).follow(spaced(len(frames), limit)):
        image, labels = frames.read(index)
        for corruption in (None, *corruptions):
            shown = corruption(image, frames.samples[index].name) if corruption else image
            yield (index, *as_seen(model, data, shown, labels))


def as_seen(
    model: Model, data: SegmentationDataModule, image: Image, labels: npt.NDArray[np.uint8]
) -> tuple[Tensor, npt.NDArray[np.uint8]]:
    """An image RGB uint8 ``[H, W, 3]`` and labels ``[H, W]`` as :func:`frames_as_seen` gives them."""
    override = None if data.size is None else (data.size[0], data.size[1])
    size = inference_size(model.network.description, (image.shape[0], image.shape[1]), override)
    labels = resize_nearest(labels, size[1], size[0])
    seen = network_input([image], size).to(next(model.network.parameters()).device)
    return seen.contiguous(memory_format=torch.channels_last), labels


def fitted_on(config: FitConfig[Any], split: str) -> dict[str, Any]:
    """On what, when and with which library something was fitted."""
    size = config.data.get("size")
    return {
        "dataset": config.data["dataset"],
        "split": split,
        "size": None if size is None else list(size),
        "date": now(),
        "torch": torch.__version__,
    }
