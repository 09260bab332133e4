"""Bayesian models on disk: ``posterior.safetensors`` and ``posterior.json`` beside their base network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from segunc.affine.branches import AnyPosterior, branches_of
from segunc.affine.convert import ConversionReport, convert
from segunc.affine.draws import AffineLayout
from segunc.affine.files import TENSORS, file_sha256, save_posterior
from segunc.affine.posterior import Deterministic, Posterior, PreparesNetwork
from segunc.core.errors import InputError, one_line
from segunc.core.files import is_record, link_or_copy, read_record
from segunc.data.images import Image
from segunc.networks.files import DESCRIPTION, POSTERIOR, WEIGHTS, load_network, save_network
from segunc.networks.network import SegmentationNetwork
from segunc.networks.weights import check_finite, read_tensors
from segunc.posteriors.fitting import ATTACHMENTS, Attachment, attachments_in
from segunc.posteriors.methods import METHODS
from segunc.sampling.sampler import Sampler, sample_frames
from segunc.scores import DEFAULT_SCORES, SCORES, check_scores, with_parts
from segunc.uncertainty import Calibrator

MEMBERS = "members"
"""Folder of an ensemble's members, each a model folder named by its number."""


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
        found = self.attachments.get("calibration")
        return found.temperature or 1.0 if found and found.applies == "logits" else 1.0

    @property
    def calibrator(self) -> Calibrator | None:
        """Of the mean over the draws; None for a model that was not calibrated, or whose logits are."""
        found = self.attachments.get("calibration")
        return None if found is None else found.calibrator

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
        found = {id(network): network for network in (self.network, *members)}
        return [network for network in found.values() if isinstance(network, SegmentationNetwork)]

    def needs(self, scores: Iterable[str]) -> frozenset[str]:
        """The evidence that scores need, with that of the parts of sums."""
        names = with_parts(check_scores(scores), self.attachments.values())
        return frozenset(need for name in names for need in SCORES[name].needs)

    def used(self, scores: Iterable[str]) -> list[Attachment]:
        """What was fitted on it and gives some of this evidence."""
        needs = self.needs(scores)
        return [attachment for attachment in self.attachments.values() if attachment.gives & needs]

    def fitted(self, scores: Sequence[str], frames: Collection[str] | None = None) -> dict[str, Any]:
        """What was fitted on it, as the sampler takes it for some scores; features are read only where one needs them, and of a bank
        those of ``frames`` (None: of all)."""
        needs = self.needs(scores)
        providers = [one for attachment in self.used(scores) for one in attachment.providers(self, needs, frames)]
        return {"temperature": self.temperature, "calibrator": self.calibrator, "fitted": providers}

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
            given = f"an image of type {type(image).__name__}, shape {getattr(image, 'shape', None)}"
            raise InputError(given, "a NumPy array RGB uint8 [H, W, 3]", "check the axes and the type")
        asked = (draws, seed, tuple(scores))
        if asked not in self._samplers:
            fitted = self.fitted(scores)
            sampler = Sampler(self.network, self.posterior, draws=draws, seed=seed, scores=scores, **fitted)
            self._samplers = {asked: sampler}
        found = sample_frames(self._samplers[asked], [np.ascontiguousarray(image)])
        maps = {name: values[0].cpu().numpy() for name, values in found.scores.items()}
        return ImageMaps(found.prediction[0].cpu().numpy(), maps)

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
    """The files that make the model of a folder, which may not be there: those of an ensemble's members included, and, if
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
        given = f"{folder} holds a Bayesian model, {source} a deterministic one"
        raise InputError(given, "a folder of its own", "give another --out")
    for path in model_files(source, fitted=fitted):
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(path, target)


def load_model(folder: Path | str) -> Model:
    """A model folder of either kind: deterministic, or Bayesian with its network converted.

    Raises:
        InputError: a missing or damaged file, a posterior that belongs to another base network, or what was fitted on another
            model, or is of a kind that nothing here knows.
    """
    folder = Path(folder)
    model = load_posterior(folder)
    model.folder = folder
    for path in sorted(folder.glob("*.json")):
        if path.stem not in ATTACHMENTS and path.name != POSTERIOR and is_record(path):
            given = f"{path} was fitted on this model by a package that is not installed"
            raise InputError(given, f"one of {', '.join(ATTACHMENTS)}", "install the package, or remove the file")
    for kind in attachments_in(folder):
        model.attachments[Path(kind.file).stem] = kind.load(folder, model)
    return model


def load_posterior(folder: Path) -> Model:
    """Return the network in a folder and its posterior, without what was fitted on them."""
    if not (folder / POSTERIOR).exists():
        if (folder / TENSORS).exists():
            given = f"{folder} holds {TENSORS} without {POSTERIOR}"
            raise InputError(given, "both files of a Bayesian model", "restore the file")
        return load_recorded(folder, None)
    record = read_record(folder / POSTERIOR, "the description of a posterior")
    try:
        return load_recorded(folder, record)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        fault = (
            f"lacks {error}" if isinstance(error, KeyError) else f"holds a value of the wrong type ({one_line(error)})"
        )
        raise InputError(f"{folder / POSTERIOR} {fault}", "the record of a posterior", "make it again") from error


def load_recorded(folder: Path, record: Mapping[str, Any] | None) -> Model:
    """Return the model in a folder as a record describes it; None is the network itself."""
    if record is None:
        network = load_network(folder, ignore_posterior=True)
        return Model(network, Deterministic(), network.sha256, None, None, {})
    method = METHODS.get(str(record.get("method")))
    if method is None or method.load is None:
        return _load_single(folder, record)
    loaded: Model = method.load(folder, record)
    return loaded


def load_base(folder: Path, record: Mapping[str, Any]) -> tuple[SegmentationNetwork, dict[str, Tensor], str]:
    """Return the base network, the tensors beside it, and the hash of their file; InputError where they do not fit the record."""
    network = load_network(folder, ignore_posterior=True)
    check_base(folder, record, network.sha256)
    tensors = read_tensors(folder / TENSORS, "the tensors of the posterior", "restore the file")
    actual = file_sha256(folder / TENSORS)
    if actual != record.get("tensors_sha256"):
        given = f"{folder / TENSORS} has changed since {POSTERIOR} was written"
        raise InputError(given, "both files of one run", "restore them")
    check_finite(tensors, str(folder / TENSORS))
    return network, tensors, actual


def _load_single(folder: Path, record: Mapping[str, Any]) -> Model:
    """A posterior over one network."""
    network, tensors, actual = load_base(folder, record)
    report = convert(network.body)
    posterior = restore_posterior(record, tensors, folder / POSTERIOR)
    if isinstance(posterior, PreparesNetwork):
        posterior.prepare(network)
    recorded = [(s["name"], s["channels"]) for s in record["conversion"]["sites"]]
    if recorded != [(s.name, s.channels) for s in report.sites]:
        raise InputError(
            f"{folder}: the posterior has {len(recorded)} norm sites, this conversion finds {len(report.sites)}",
            "the same sites",
            "a library has changed the network; use the versions in posterior.json or fine-tune again",
        )
    return Model(network, posterior, network.sha256, posterior_hash(actual, posterior), report, record)


def restore_posterior(record: Mapping[str, Any], tensors: Mapping[str, Tensor], source: Path) -> Posterior:
    """The posterior over one network of the content of ``posterior.json``, the file ``source``, and the tensors beside it;
    InputError for an unknown method or kind, or a record that lacks something."""
    name = str(record.get("method"))
    restore = METHODS[name].restore if name in METHODS else None
    if restore is None:
        given = f"posterior method '{name}' in {source.parent}"
        remedy = "a newer version or another package may know it"
        raise InputError(given, ", ".join(METHODS), remedy)
    try:
        return restore(tensors, record)
    except InputError as error:
        raise InputError(f"{source}: {error.given}", error.expected, error.remedy) from error
    except Exception as error:  # what methods raise for values of the wrong type or shape has no common type
        fault = f"lacks {error}" if isinstance(error, KeyError) else f"cannot be restored ({one_line(error)})"
        raise InputError(f"{source} {fault}", "the record of a posterior", "make it again") from error


def check_base(folder: Path, record: Mapping[str, Any], digest: str) -> None:
    """Raise an InputError where a record is not of the base network with this hash."""
    if record.get("base_sha256") != digest:
        raise InputError(
            f"the posterior in {folder} belongs to a base network with the hash {str(record.get('base_sha256'))[:12]}, "
            f"the network beside it has {digest[:12]}",
            "a posterior beside its own base",
            "fine-tune this base, or restore the other",
        )


def posterior_hash(inner: str | None, posterior: AnyPosterior) -> str:
    """Return a hash of all that decides the draws: what is stored, whose hash is ``inner``, and the settings; the same members with another
    alpha are another posterior."""
    content = [inner, posterior.method, posterior.settings()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
