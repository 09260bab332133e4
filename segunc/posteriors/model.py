"""A network with its posterior and what was fitted on it, as it is used; :mod:`segunc.posteriors.files` loads it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch

from segunc.affine.branches import AnyPosterior, branches_of
from segunc.affine.convert import ConversionReport
from segunc.affine.draws import AffineLayout
from segunc.affine.files import TENSORS, save_posterior
from segunc.affine.posterior import Deterministic, Posterior
from segunc.core.errors import InputError
from segunc.core.files import json_sha256, link_or_copy, read_record, write_record
from segunc.core.registry import Registry
from segunc.data.images import Image
from segunc.networks.files import DESCRIPTION, POSTERIOR, WEIGHTS, save_network
from segunc.networks.network import SegmentationNetwork
from segunc.sampling.sampler import Fitted, Sampler, sample_frames
from segunc.scores import DEFAULT_SCORES, SCORES, check_scores, with_parts
from segunc.training.config import FitConfig, save_config
from segunc.training.progress import Say
from segunc.uncertainty import Calibrator

MEMBERS = "members"
"""Folder of an ensemble's members, each a model folder named by its number."""


BOUND_TO = {
    "base_sha256": "base network with the hash",
    "posterior_sha256": "posterior with the hash",
    "features_sha256": "feature bank with the hash",
    "temperature": "model of temperature",
    "calibrator_sha256": "calibrator of the mean with the hash",
}
"""Fields of a record by which it is bound to a model, and how messages name them."""


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
            names = ", ".join(sorted(differing))
            raise InputError(f"{path} lacks fields of a {cls.what}, or has too many: {names}", hint="fit it again")
        for name, actual in hashes.items():
            if content[name] != actual:
                raise InputError(
                    f"{path} was fitted on a {BOUND_TO[name]} {str(content[name])[:12]}, the one here has "
                    f"{str(actual)[:12]}",
                    hint="fit it again on this model, or remove the file",
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


@dataclass(frozen=True)
class ImageMaps:
    """The maps of one image. Each score is an attribute, too: ``maps.entropy``, ``maps.deterministic_energy``.

    Attributes:
        prediction: class ids uint8 ``[H, W]``.
        scores: float32 ``[H, W]`` by name; entropies are shares of ln C, 0..1.
    """

    prediction: npt.NDArray[np.uint8]
    scores: Mapping[str, npt.NDArray[np.float32]]

    def __getattr__(self, name: str) -> npt.NDArray[np.float32]:
        scores: Mapping[str, npt.NDArray[np.float32]] = vars(self).get("scores", {})  # empty while it is unpickled
        try:
            return scores[name.replace("_", "-")]
        except KeyError:
            raise AttributeError(f"no score '{name}'; there are {', '.join(scores)}") from None


@dataclass
class Model:
    """A network with its posterior, ready for the sampler."""

    network: SegmentationNetwork  # in eval mode; converted when its own posterior draws; member 0 of an ensemble
    posterior: AnyPosterior
    sha256: str  # of the base network: weights and description
    posterior_sha256: str | None  # of tensors, settings and members' networks; None for a deterministic network
    report: ConversionReport | None  # what the conversion did; None for a deterministic network
    record: Mapping[str, Any]  # the content of ``posterior.json``, empty for a deterministic network
    folder: Path | None = None  # that it was loaded from
    attachments: dict[str, Any] = field(default_factory=dict)  # what was fitted on it, by the names of ATTACHMENTS
    _samplers: dict[Any, Sampler] = field(default_factory=dict, repr=False)  # of the last call

    @property
    def bayesian(self) -> bool:
        return not isinstance(self.posterior, Deterministic)

    @property
    def temperature(self) -> float:
        """T, by which logits are divided before the softmax; 1 for a model that was not calibrated, or whose mean is."""
        calibration = self.attachments.get("calibration")
        return calibration.temperature or 1.0 if calibration and calibration.applies == "logits" else 1.0

    @property
    def calibrator(self) -> Calibrator | None:
        """Of the mean over the draws; None for a model that was not calibrated, or whose logits are."""
        calibration = self.attachments.get("calibration")
        return None if calibration is None else calibration.calibrator

    @property
    def hashes(self) -> dict[str, Any]:
        """What can bind a record to it, by the names of :data:`segunc.posteriors.fitting.BOUND_TO`."""
        features = self.attachments.get("features")
        return {
            "base_sha256": self.sha256,
            "posterior_sha256": self.posterior_sha256,
            "features_sha256": features and features.tensors_sha256,
            "temperature": self.temperature,
            "calibrator_sha256": self.calibrator and self.calibrator.sha256,
        }

    @property
    def networks(self) -> list[SegmentationNetwork]:
        """The network, and those of all members of an ensemble."""
        members = [branch.network for branch in branches_of(self.network, self.posterior)]
        networks = {id(network): network for network in (self.network, *members)}
        return [network for network in networks.values() if isinstance(network, SegmentationNetwork)]

    def needs(self, scores: Iterable[str]) -> frozenset[str]:
        """Return the evidence that scores need, with that of the parts of sums."""
        names = with_parts(check_scores(scores), self.attachments.values())
        return frozenset(need for name in names for need in SCORES[name].needs)

    def used(self, scores: Iterable[str]) -> list[Attachment]:
        """Return what was fitted on it and gives some of this evidence."""
        needs = self.needs(scores)
        return [attachment for attachment in self.attachments.values() if attachment.gives & needs]

    def fitted(self, scores: Sequence[str], frames: Collection[str] | None = None) -> Fitted:
        """Return what was fitted on it, as the sampler takes it for some scores; features are read only where one needs them, and of a bank
        those of ``frames`` (None: of all)."""
        needs = self.needs(scores)
        providers = [one for attachment in self.used(scores) for one in attachment.providers(self, needs, frames)]
        return Fitted(self.temperature, self.calibrator, providers)

    def place(self, device: torch.device) -> None:
        """Put all networks on a device, channels last."""
        for network in self.networks:
            network.to(device).to(memory_format=torch.channels_last)

    def __call__(
        self, image: Image, *, draws: int = 24, seed: int = 0, scores: Sequence[str] = DEFAULT_SCORES
    ) -> ImageMaps:
        """Return the maps of an image RGB uint8 ``[H, W, 3]``, at its own size, computed where the network is.

        Args:
            image: the first call of a size takes longer, because the sampler checks itself.
            draws, seed, scores: see :class:`segunc.sampling.sampler.Sampler`.

        Raises:
            InputError: an image of another type or shape, or fewer draws than members.
        """
        if getattr(image, "dtype", None) != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            what = f"of type {type(image).__name__} and shape {getattr(image, 'shape', None)}"
            raise InputError(
                f"an image {what} is no NumPy array RGB uint8 [H, W, 3]", hint="check its axes and its type"
            )
        settings = (draws, seed, tuple(scores), next(self.network.parameters()).device)
        if settings not in self._samplers:
            fitted = self.fitted(scores)
            sampler = Sampler(self.network, self.posterior, draws=draws, seed=seed, scores=scores, fitted=fitted)
            self._samplers = {settings: sampler}
        result = sample_frames(self._samplers[settings], [np.ascontiguousarray(image)])
        maps = {name: values[0].cpu().numpy() for name, values in result.scores.items()}
        return ImageMaps(result.prediction[0].cpu().numpy(), maps)

    def save(self, folder: Path | str) -> None:
        """Write the model folder for all verbs: of a model that was loaded, what it was loaded from.

        Raises:
            InputError: a network that no folder could build again, see :func:`segunc.wrap`.
        """
        folder = Path(folder)
        if self.folder is not None:
            copy_model(self.folder, folder)
            return
        self.sha256 = save_network(self.network, folder)
        if isinstance(self.posterior, Posterior) and self.report is not None:
            layout, made = AffineLayout(self.network.cpu()), self.record
            save_posterior(
                self.posterior, layout, self.report, folder, folder, seed=made["seed"], provenance=made["provenance"]
            )


def default_scores(folder: Path) -> tuple[str, ...]:
    """Written of the model in a folder where nobody names any: those that every model has and its sum of scores, if it has one."""
    return (*DEFAULT_SCORES, *(["anomaly"] if (folder / "anomaly.json").exists() else []))


def model_files(folder: Path, *, fitted: bool = True) -> list[Path]:
    """Return the files that make the model of a folder, which may not be there: those of an ensemble's members included, and, if
    ``fitted``, what was fitted on the model as a whole."""
    of_whole = [name for kind in attachments_in(folder) for name in (kind.file, *kind.beside)] if fitted else []
    names = [WEIGHTS, DESCRIPTION, TENSORS, POSTERIOR, *of_whole]
    own = [folder / name for name in names if (folder / name).exists()]
    members = sorted(folder.glob(f"{MEMBERS}/*/"))
    return own + [path for member in members for path in model_files(member, fitted=False)]


def copy_model(source: Path, folder: Path, *, fitted: bool = True) -> None:
    """Link (or copy) all :func:`model_files` into another folder; what is fitted on the model may then be added there.
    InputError where the model is deterministic and the folder holds a Bayesian one."""
    if folder.resolve() == source.resolve():
        return
    if (folder / POSTERIOR).exists() and not (source / POSTERIOR).exists():
        raise InputError(f"{folder} holds a Bayesian model, {source} a deterministic one", hint="give another --out")
    for path in model_files(source, fitted=fitted):
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(path, target)
