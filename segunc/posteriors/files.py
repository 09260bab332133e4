"""Bayesian models on disk: ``posterior.safetensors`` and ``posterior.json`` beside their base network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from segunc.affine.branches import AnyPosterior, Branch, branches_of
from segunc.affine.convert import ConversionReport, convert
from segunc.affine.dropout_sites import convert_dropout
from segunc.affine.files import TENSORS, file_sha256
from segunc.affine.posterior import Deterministic, Posterior
from segunc.core.errors import InputError, one_line
from segunc.core.files import inside, is_record, link_or_copy, read_record
from segunc.networks.files import DESCRIPTION, POSTERIOR, WEIGHTS, load_network
from segunc.networks.network import SegmentationNetwork
from segunc.networks.weights import check_finite, read_tensors
from segunc.posteriors.decoder_ensemble import DecoderEnsemble
from segunc.posteriors.ensemble import Ensemble
from segunc.posteriors.fitting import ATTACHMENTS, Attachment, attachments_in
from segunc.posteriors.mc_dropout import OwnDropout
from segunc.posteriors.methods import METHODS
from segunc.posteriors.tta import TestTimeAugmentation
from segunc.scores import DEFAULT_SCORES, SCORES, check_scores, with_parts
from segunc.uncertainty import Calibrator

MEMBERS = "members"
"""Folder of an ensemble's members, each a model folder named by its number."""


@dataclass
class Model:
    """A network with its posterior, ready for the sampler."""

    network: SegmentationNetwork  # in eval mode; converted when its own posterior draws; member 0 of an ensemble
    posterior: AnyPosterior
    sha256: str  # of the base network: weights and description
    posterior_sha256: str | None  # of tensors, settings and members' networks; None for a deterministic network
    report: ConversionReport | None  # what the conversion did; None for a deterministic network
    record: dict[str, Any]  # the content of ``posterior.json``, empty for a deterministic network
    folder: Path = Path()  # that it was loaded from
    attachments: dict[str, Any] = field(default_factory=dict)  # what was fitted on it, by the names of ATTACHMENTS

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
    model = _load_posterior(folder)
    model.folder = folder
    for path in sorted(folder.glob("*.json")):
        if path.stem not in ATTACHMENTS and path.name != POSTERIOR and is_record(path):
            given = f"{path} was fitted on this model by a package that is not installed"
            raise InputError(given, f"one of {', '.join(ATTACHMENTS)}", "install the package, or remove the file")
    for kind in attachments_in(folder):
        model.attachments[Path(kind.file).stem] = kind.load(folder, model)
    return model


def _load_posterior(folder: Path) -> Model:
    """The network and its posterior, without what was fitted on them."""
    if not (folder / POSTERIOR).exists():
        if (folder / TENSORS).exists():
            given = f"{folder} holds {TENSORS} without {POSTERIOR}"
            raise InputError(given, "both files of a Bayesian model", "restore the file")
        return _load_recorded(folder, None)
    record = read_record(folder / POSTERIOR, "the description of a posterior")
    try:
        return _load_recorded(folder, record)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
        fault = (
            f"lacks {error}" if isinstance(error, KeyError) else f"holds a value of the wrong type ({one_line(error)})"
        )
        raise InputError(f"{folder / POSTERIOR} {fault}", "the record of a posterior", "make it again") from error


def _load_recorded(folder: Path, record: dict[str, Any] | None) -> Model:
    """The model in a folder as a record describes it; None is the network itself."""
    if record is None:
        network = load_network(folder, ignore_posterior=True)
        return Model(network, Deterministic(), network.sha256, None, None, {})
    if record.get("method") == Ensemble.method:
        return _load_ensemble(folder, record)
    if record.get("method") == DecoderEnsemble.method:
        network, digest, tensors, actual = _load_base(folder, record)
        decoders = DecoderEnsemble.from_tensors(network, tensors, record, str(folder / TENSORS))
        sha256 = _hash(actual, decoders.method, decoders.settings())
        return Model(network, decoders, digest, sha256, None, record)
    if record.get("method") == TestTimeAugmentation.method:
        model = _load_recorded(folder, record["inner"])
        _check_base(folder, record, model.sha256)
        posterior = TestTimeAugmentation(model.posterior, record["scales"], record["flip"])
        digest = _hash(model.posterior_sha256, posterior.method, posterior.settings())
        return Model(model.network, posterior, model.sha256, digest, model.report, record)
    return _load_single(folder, record)


def _load_base(folder: Path, record: dict[str, Any]) -> tuple[SegmentationNetwork, str, dict[str, Tensor], str]:
    """The base network with its hash, and the tensors beside it with the hash of their file."""
    network = load_network(folder, ignore_posterior=True)
    digest = network.sha256
    _check_base(folder, record, digest)
    tensors = read_tensors(folder / TENSORS, "the tensors of the posterior", "restore the file")
    actual = file_sha256(folder / TENSORS)
    if actual != record.get("tensors_sha256"):
        given = f"{folder / TENSORS} has changed since {POSTERIOR} was written"
        raise InputError(given, "both files of one run", "restore them")
    check_finite(tensors, str(folder / TENSORS))
    return network, digest, tensors, actual


def _load_ensemble(folder: Path, record: dict[str, Any]) -> Model:
    models = []
    for part in record["parts"]:
        member = inside(folder, part["folder"])
        model = _load_posterior(member)
        if (model.sha256, model.posterior_sha256) != (part["base_sha256"], part["posterior_sha256"]):
            given = f"{member} has changed since {POSTERIOR} was written"
            raise InputError(given, "the members of the ensemble", "make it again")
        models.append(model)
    members = [Branch(m.network, m.posterior) for m in models if isinstance(m.posterior, Posterior)]
    if len(members) < len(models):
        raise InputError(f"{folder}: a member is a mixture itself", "members of one network each", "make it again")
    posterior = Ensemble(members)
    hashes = [[m.sha256, m.posterior_sha256] for m in models]
    digest = _hash(json.dumps(hashes), posterior.method, posterior.settings())
    return Model(models[0].network, posterior, models[0].sha256, digest, models[0].report, record)


def _load_single(folder: Path, record: dict[str, Any]) -> Model:
    """A posterior over one network."""
    network, digest, tensors, actual = _load_base(folder, record)
    report = convert(network.body)
    posterior = restore_posterior(record, tensors, folder / POSTERIOR)
    if isinstance(posterior, OwnDropout):
        convert_dropout(network)
    recorded = [(s["name"], s["channels"]) for s in record["conversion"]["sites"]]
    if recorded != [(s.name, s.channels) for s in report.sites]:
        raise InputError(
            f"{folder}: the posterior has {len(recorded)} norm sites, this conversion finds {len(report.sites)}",
            "the same sites",
            "a library has changed the network; use the versions in posterior.json or fine-tune again",
        )
    # Over all that decides the draws: the same members with another alpha are another posterior.
    sha256 = _hash(actual, posterior.method, posterior.settings())
    return Model(network, posterior, digest, sha256, report, record)


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


def _check_base(folder: Path, record: Mapping[str, Any], digest: str) -> None:
    if record.get("base_sha256") != digest:
        raise InputError(
            f"the posterior in {folder} belongs to a base network with the hash {str(record.get('base_sha256'))[:12]}, "
            f"the network beside it has {digest[:12]}",
            "a posterior beside its own base",
            "fine-tune this base, or restore the other",
        )


def _hash(inner: str | None, method: str, settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([inner, method, settings], sort_keys=True).encode()).hexdigest()
