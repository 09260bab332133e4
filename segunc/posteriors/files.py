"""Bayesian models on disk: ``posterior.safetensors`` and ``posterior.json`` beside their base network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from segunc.affine.branches import AnyPosterior
from segunc.affine.convert import convert
from segunc.affine.files import TENSORS, file_sha256
from segunc.affine.posterior import Deterministic, Posterior, PreparesNetwork
from segunc.core.errors import InputError, one_line
from segunc.core.files import is_record, read_record
from segunc.core.trust import agree, find_code
from segunc.networks.description import IMAGENET_MEAN, IMAGENET_STD, NetworkDescription
from segunc.networks.files import POSTERIOR, load_network, network_sha256
from segunc.networks.network import SegmentationNetwork, settle_size
from segunc.networks.sources import check_network
from segunc.networks.weights import check_finite, read_tensors
from segunc.posteriors.methods import METHODS
from segunc.posteriors.model import ATTACHMENTS, Model, attachments_in


def wrap(
    module: nn.Module,
    classes: Sequence[str],
    *,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
    palette: Sequence[tuple[int, int, int]] = (),
    inference_size: tuple[int, int] | None = None,
    factory: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> Model:
    """Return a model of a module of one's own, which is not changed but for eval mode.

    Args:
        module: from normalised images ``[N, 3, H, W]`` to logits ``[N, C, H, W]``.
        classes: the C class names in the order of the logits.
        mean, std: input normalisation of images in 0..1, per channel.
        palette: one (red, green, blue) in 0..255 a class.
        inference_size: (height, width) of the frames that it was made for, or None for any.
        factory: ``package.module:function`` that makes the module from ``arguments``. A model folder builds the network with it, and this call
            is your agreement that its code runs on this machine; without it the model cannot be saved.

    Raises:
        InputError: the module fails on two frames, mixes them, or returns no dense logits or probabilities.
    """
    options: dict[str, Any] = {"arguments": dict(arguments or {}), "stride": 1}
    if factory:
        agree(find_code(factory))
    names, colours = tuple(classes), tuple(palette)
    description = NetworkDescription(factory, "", names, colours, options, mean, std, inference_size, kind="python")
    network = SegmentationNetwork(module, description, stride=1).eval()
    settle_size(network)
    check_network(network)
    network.sha256 = network_sha256(module, network.description)
    return Model(network, Deterministic(), network.sha256, None, None, {})


def load_model(folder: Path | str) -> Model:
    """Return the model in a folder, deterministic, or Bayesian with its network converted.

    Raises:
        InputError: a missing or damaged file, a posterior that belongs to another base network, or what was fitted on another
            model, or is of a kind that nothing here knows.
    """
    folder = Path(folder)
    model = load_posterior(folder)
    model.folder = folder
    for path in sorted(folder.glob("*.json")):
        if path.stem not in ATTACHMENTS and path.name != POSTERIOR and is_record(path):
            raise InputError(
                f"{path} was fitted on this model by a package that is not installed",
                hint="install the package, or remove the file",
            )
    for kind in attachments_in(folder):
        model.attachments[Path(kind.file).stem] = kind.load(folder, model)
    return model


def load(folder: Path | str) -> Model:
    """Return the model in a folder, deterministic or Bayesian; see :func:`segunc.posteriors.files.load_model`."""
    return load_model(folder)


def load_posterior(folder: Path) -> Model:
    """Return the network in a folder and its posterior, without what was fitted on them."""
    if not (folder / POSTERIOR).exists():
        if (folder / TENSORS).exists():
            raise InputError(f"{folder} holds {TENSORS} without {POSTERIOR}", hint=f"restore {POSTERIOR}")
        return load_recorded(folder, None)
    record = read_record(folder / POSTERIOR, "the description of a posterior")
    try:
        return load_recorded(folder, record)
    except InputError:
        raise
    except Exception as error:  # what methods raise for values of the wrong type or shape has no common type
        raise InputError(
            f"{folder / POSTERIOR} describes no posterior that this version reads ({one_line(error)})",
            hint="fine-tune the model again",
        ) from error


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
        raise InputError(
            f"{folder / TENSORS} has changed since {POSTERIOR} was written", hint="restore both files of one run"
        )
    check_finite(tensors, str(folder / TENSORS))
    return network, tensors, actual


def _load_single(folder: Path, record: Mapping[str, Any]) -> Model:
    """Return the model of a posterior over one network."""
    network, tensors, actual = load_base(folder, record)
    report = convert(network.body)
    posterior = restore_posterior(record, tensors, folder / POSTERIOR)
    if isinstance(posterior, PreparesNetwork):
        posterior.prepare(network)
    recorded = [(s["name"], s["channels"]) for s in record["conversion"]["sites"]]
    if recorded != [(s.name, s.channels) for s in report.sites]:
        raise InputError(
            f"{folder}: the posterior has {len(recorded)} normalisation layers, and the network {len(report.sites)}, or of other "
            "names: a library has changed the network",
            hint="use the versions in posterior.json, or fine-tune again",
        )
    return Model(network, posterior, network.sha256, posterior_hash(actual, posterior), report, record)


def restore_posterior(record: Mapping[str, Any], tensors: Mapping[str, Tensor], source: Path) -> Posterior:
    """Return the posterior over one network of the content of ``posterior.json``, the file ``source``, and the tensors beside it;
    InputError for an unknown method or kind."""
    name = str(record.get("method"))
    restore = METHODS[name].restore if name in METHODS else None
    if restore is None:
        raise InputError(
            f"{source} is of the method '{name}', which no installed package knows; known are {', '.join(METHODS)}",
            hint="install a newer version, or the package that made it",
        )
    try:
        return restore(tensors, record)
    except InputError as error:
        raise error.within(str(source)) from error


def check_base(folder: Path, record: Mapping[str, Any], digest: str) -> None:
    """Raise an InputError where a record is not of the base network with this hash."""
    if record.get("base_sha256") != digest:
        raise InputError(
            f"the posterior in {folder} belongs to a base network with the hash {str(record.get('base_sha256'))[:12]}, "
            f"the network beside it has {digest[:12]}",
            hint="fine-tune this base, or restore the other",
        )


def posterior_hash(inner: str | None, posterior: AnyPosterior) -> str:
    """Return a hash of all that decides the draws: what is stored, whose hash is ``inner``, and the settings; the same members with another
    alpha are another posterior."""
    content = [inner, posterior.method, posterior.settings()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
