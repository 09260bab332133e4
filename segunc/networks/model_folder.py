"""Build networks of any kind from their descriptions; save and load model folders
(``network.safetensors`` and ``network.json``).
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import json_sha256, read_json, write_file, write_json
from segunc.core.registry import Registry
from segunc.networks.answers import OTHER_MACHINE, ROUNDING, Answer, answer_of
from segunc.networks.copies import copy_network
from segunc.networks.description import LIBRARIES, NetworkDescription
from segunc.networks.network import SegmentationNetwork
from segunc.networks.weights import check_finite, load_state, read_state, tensor_state

WEIGHTS = "network.safetensors"
DESCRIPTION = "network.json"
POSTERIOR = "posterior.json"
MAX_TIMES_THE_FILE = 2  # weights that a description may ask for, as a multiple of those in its file
Build = Callable[[NetworkDescription], tuple[nn.Module, int]]
"""Makes the body with random weights (normalised images ``[N, 3, H, W]`` to logits ``[N, C, H,
W]``) and says what height and width must be divisible by (1: nothing). It loads no weights and
opens no connection.
"""
KINDS: Registry[Build] = Registry(
    "kind of network",
    "segunc.networks",
    {name: f"segunc.networks.{name}:build" for name in LIBRARIES}
    | {
        "python": "segunc.networks.import_sources:build_python",
        "transformers": "segunc.networks.transformers:build",
    },
)
"""What :attr:`NetworkDescription.kind` can name."""


def build_network(description: NetworkDescription) -> SegmentationNetwork:
    """Return a network with random weights.

    Args:
        description: architecture, encoder and classes, and how images are normalised.

    Returns:
        A network from images ``[N, 3, H, W]`` in 0..1 to logits ``[N, C, H, W]``, in training mode.

    Raises:
        InputError: an unknown kind, or a description that its kind cannot build.

    >>> import segunc
    >>> description = segunc.NetworkDescription("FPN", "mobilenet_v2", ("road", "car"))
    >>> network = segunc.build_network(description)
    >>> network.description.num_classes, network.stride
    (2, 32)
    """
    body, stride = KINDS[description.kind](description.with_all_outputs())
    return SegmentationNetwork(body, description, math.lcm(stride, description.divisor or 1))


def check_factory(network: SegmentationNetwork) -> None:
    """Raise InputError where the factory of a network, with the network's weights, makes another
    one: a model folder would hold that.
    """
    description = network.description
    factory = description.architecture
    with torch.random.fork_rng(devices=[]):  # its random weights are replaced
        built = build_network(description)
    fault = f"{factory} makes another network than the module"
    try:
        load_state(built.body, tensor_state(network.body), "the module")
    except InputError as error:
        hint = "give the arguments that the module was made with"
        raise InputError(f"{fault}: {error.message}", hint=hint) from error
    built.to(network.mean.device)
    actual = answer_of(network)
    rebuilt = answer_of(built)
    if actual is None or rebuilt is None or actual.distance(rebuilt) <= ROUNDING:
        return
    raise InputError(
        f"{fault}: with the same weights, its logits differ by {actual.distance(rebuilt):.1g} of "
        "their mean",
        hint="change in the factory what was changed in the module, such as eps, or leave it out",
    )


def state_sha256(state: nn.Module | Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over a state, or a module's: names, types, shapes and bytes of all tensors
    in the order of their names.
    """
    digest = hashlib.sha256()
    tensors = tensor_state(state) if isinstance(state, nn.Module) else state
    for name, tensor in sorted(tensors.items()):
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        if value.numel():
            digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def network_sha256(state: nn.Module | Mapping[str, Tensor], description: NetworkDescription) -> str:
    """Return the SHA-256 over a network's state and all that decides what it says of a frame: the
    description without its provenance.
    """
    # As it comes back from a file.
    plain = json.loads(json.dumps(description.to_json()))
    described = NetworkDescription.from_json(plain, "the network").to_json()
    return json_sha256([state_sha256(state), {**described, "format": 0, "provenance": {}}])


def save_network(
    network: SegmentationNetwork, folder: Path | str, *, keeps_weights: bool = False
) -> str:
    """Write ``network.safetensors`` and ``network.json``.

    Of a module that nothing could build again only ``network.json`` is written, with the hash of
    the module, which is given when the folder is opened.

    Args:
        network: any network.
        folder: the model folder; files of an earlier network are replaced.
        keeps_weights: also write the weights of such a module: they are not those that its owner
            has.

    Returns:
        The SHA-256 over the weights and all that decides what the network says of a frame.

    Raises:
        InputError: a weight that is not finite, or a module without a description.

    >>> import tempfile
    >>> import segunc
    >>> description = segunc.NetworkDescription("FPN", "mobilenet_v2", ("road", "car"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sha256 = segunc.save_network(segunc.build_network(description), folder)
    ...     network = segunc.load_network(folder)
    >>> network.sha256 == sha256, network.training
    (True, False)
    """
    if not isinstance(network, SegmentationNetwork):
        raise InputError(
            f"a {type(network).__name__} has no description",
            hint="segunc.wrap(module, classes=[...]) makes a model of it",
        )
    folder = Path(folder)
    if not network.description.architecture and not keeps_weights:
        check_finite(tensor_state(network.body), "the network to save")
        refuse_weights(folder)
        return _write_description(network, folder)
    _note_extra_state(network.body)
    state: dict[str, Tensor] = {}
    for name, tensor in tensor_state(network.body).items():
        # Tied weights are stored once per name: safetensors refuses tensors that share memory.
        state[name] = tensor.detach().cpu().contiguous().clone()
    check_finite(state, "the network to save")
    write_file(folder / WEIGHTS, save(state))
    return _write_description(network, folder)


def refuse_weights(folder: Path) -> None:
    """Raise InputError where a folder holds weights, which a network without them would be given
    when the folder is opened.
    """
    if (folder / WEIGHTS).exists():
        raise InputError(
            f"{folder} holds the weights of another network ({WEIGHTS})",
            hint="give another folder, or remove the file",
        )


def _write_description(network: SegmentationNetwork, folder: Path) -> str:
    """Write ``network.json``, and return the hash in it."""
    digest = network_sha256(network.body, network.description)
    record = {**network.description.to_json(), "sha256": digest}
    answer = answer_of(network) if network.description.kind == "python" else None
    if answer is not None:
        record["answer"] = answer.to_json()
    write_json(folder / DESCRIPTION, record)
    return digest


def read_description(path: Path) -> tuple[NetworkDescription, str | None, Any]:
    """Return what a ``network.json`` holds: the description, the hash of the network, and the
    record of its answer (:mod:`segunc.networks.answers`), each None where there is none.
    """
    content = read_json(path, "the description of a network")
    digest = content.pop("sha256", None)
    answer = content.pop("answer", None)
    return NetworkDescription.from_json(content, str(path)), digest, answer


def _check_answer(network: SegmentationNetwork, recorded: Any, folder: Path) -> None:
    """Raise InputError where a network of somebody's own code does not say what the network said
    that was saved. Earlier versions recorded nothing of it.
    """
    if recorded is None:
        return
    expected = Answer.from_json(recorded, str(folder / DESCRIPTION))
    actual = answer_of(network)
    if actual is None or expected.distance(actual) <= OTHER_MACHINE:
        return
    factory = network.description.architecture
    raise InputError(
        f"{factory or 'the module given as network'} gives other logits than the network that was "
        f"saved in {folder}, by {expected.distance(actual):.1g} of their mean, with the same "
        "weights",
        hint="undo what was changed in its code or its settings since, such as eps",
    )


def _note_extra_state(body: nn.Module) -> None:
    """Say what a model folder does not hold of a module."""
    tensors = tensor_state(body)
    extra = [name for name in body.state_dict() if name not in tensors]
    if extra:
        note = (
            f"the network stores more than tensors ({extra[0]}), which a model folder does not "
            "hold; its factory has to make that again"
        )
        warnings.warn(note, NoteWarning, stacklevel=3)


def _check_weights(
    description: NetworkDescription, state: Mapping[str, Tensor], folder: Path
) -> None:
    """Raise InputError where a description asks for far more weights than its file holds. Where a
    file lacks a few, :func:`load_state` names them.

    The network is built on torch's meta device, which keeps shapes and takes no memory. Code of the
    user's own, which may look at values, is not built there: it runs only after ``--trust``.
    """
    if description.kind == "python":
        return
    try:
        with torch.device("meta"):
            body = build_network(description).body
    except Exception:  # whatever a network raises that needs values while it is built
        return
    asked = sum(tensor.numel() for tensor in tensor_state(body).values())
    there = sum(tensor.numel() for tensor in state.values())
    if asked > MAX_TIMES_THE_FILE * there:
        message = (
            f"{folder / DESCRIPTION} describes a network of {asked:,} weights, "
            f"and {WEIGHTS} holds {there:,}"
        )
        raise InputError(message, hint="restore both files, or save the network again")


def load_network(
    folder: Path | str, *, ignore_posterior: bool = False, module: nn.Module | None = None
) -> SegmentationNetwork:
    """Return the network of a model folder, in eval mode.

    Args:
        folder: holds ``network.safetensors`` and ``network.json``.
        ignore_posterior: load the base network of a Bayesian model as a deterministic one.
        module: what no folder could build again, from normalised images to logits.

    Returns:
        The network, from images ``[N, 3, H, W]`` in 0..1 to logits ``[N, C, H, W]``.

    Raises:
        InputError: a missing or damaged file, weights of another architecture, NaN weights, weights
            or a description that were changed, or a Bayesian model (``posterior.json`` beside it)
            without ``ignore_posterior``.

    >>> import segunc
    >>> segunc.load_network("there/is/none")
    Traceback (most recent call last):
    segunc.core.errors.InputError: model folder there/is/none does not exist. Hint: ...
    """
    folder = Path(folder)
    if not (folder / POSTERIOR).exists() and not (folder / DESCRIPTION).exists():
        fault = "holds no model" if folder.is_dir() else "does not exist"
        hint = "give the --out of train, finetune or import"
        raise InputError(f"model folder {folder} {fault}", hint=hint)
    if (folder / POSTERIOR).exists() and not ignore_posterior:
        raise InputError(
            f"{folder} holds a Bayesian model, but a deterministic network is needed here",
            hint="give the folder of its base; segunc.load opens a Bayesian model in Python",
        )
    description, recorded, answer = read_description(folder / DESCRIPTION)
    if description.num_classes == 1:
        message = f"{folder / DESCRIPTION} has one class, whose probability is 1 everywhere"
        hint = "import the network again: one output is read as that of two classes"
        raise InputError(message, hint=hint)
    if module is None and not description.architecture:
        raise InputError(
            f"{folder} was saved without a factory, so it holds no network",
            hint="give the module: segunc.load(folder, network=module)",
        )
    if module is not None and not (folder / WEIGHTS).exists():
        digest = network_sha256(module, description)
        _check_hash(digest, recorded, "the module given as network")
        network = SegmentationNetwork(module, description, description.divisor or 1)
        network.sha256 = digest
        _check_answer(network, answer, folder)
        return network.eval()
    # Before anything is built: a damaged description may ask for a network of any size.
    state = read_state(folder / WEIGHTS)
    digest = network_sha256(state, description)
    _check_hash(digest, recorded, f"the network in {folder}")
    if module is not None:
        network = SegmentationNetwork(module, description, description.divisor or 1)
        network = copy_network(network)  # it gets the weights of the folder
    else:
        _check_weights(description, state, folder)
        with torch.random.fork_rng(devices=[]):  # its random weights are replaced
            network = build_network(description)
    load_state(network.body, state, str(folder / WEIGHTS))
    network.sha256 = digest
    _check_answer(network, answer, folder)
    return network.eval()


def _check_hash(actual: str, recorded: str | None, what: str) -> None:
    """Raise InputError where a network is not the one that a model folder records."""
    if actual == recorded:
        return
    hint = "save the network again, or restore the file"
    if what.startswith("the module"):
        hint = "give the module with the weights that it had when the folder was saved"
    raise InputError(
        f"{what} has the hash {actual[:12]}, {DESCRIPTION} records {str(recorded)[:12]}",
        hint=hint,
    )
