"""Networks from their descriptions, whatever kind they are, and model folders: ``network.safetensors`` and ``network.json``."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.modules import module as registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from segunc.core.errors import InputError
from segunc.core.files import json_sha256, read_json, write_atomically, write_json
from segunc.core.registry import Registry
from segunc.networks.description import LIBRARIES, NetworkDescription
from segunc.networks.network import SegmentationNetwork
from segunc.networks.weights import check_finite, load_state, read_state

WEIGHTS, DESCRIPTION, POSTERIOR = "network.safetensors", "network.json", "posterior.json"
Build = Callable[[NetworkDescription], tuple[nn.Module, int]]
"""Makes the body with random weights (normalised images ``[N, 3, H, W]`` to logits ``[N, C, H, W]``) and says what height
and width must be divisible by (1: nothing). It loads no weights and opens no connection."""
KINDS: Registry[Build] = Registry(
    "kind of network",
    "segunc.networks",
    {name: f"segunc.networks.{name}:build" for name in LIBRARIES} | {"python": "segunc.networks.sources:build_python"},
)
"""What :attr:`NetworkDescription.kind` can name."""
SLACK = 2**29
"""Bytes of a network beyond its weights: buffers that no file holds, and classifiers that are cut off (that of VGG takes 494 MB)."""
MAX_MODULES = 30_000  # of a network; the largest of timm and transformers have a few thousand
MAX_SUM = 2**21
"""Of the whole numbers in the options of a network: sizes, counts and places. The largest vocabulary has 262,144 words."""


def build_network(description: NetworkDescription, weights: Mapping[str, Tensor] | None = None) -> SegmentationNetwork:
    """Return a network with random weights.

    The description may come from a stranger: the network may be no larger than the ``weights`` that it gets or, without any, than the
    machine can train. InputError for an unknown kind, or a description that its kind cannot build, or that asks for more.
    """
    kind = KINDS[description.kind]
    most = None if weights is None else weights_bytes(weights)
    # What a factory of the user's own makes is not bounded.
    with contextlib.nullcontext() if description.kind == "python" else bounded(description.options, most):
        body, stride = kind(description.with_all_outputs() if description.dropped_outputs else description)
    return SegmentationNetwork(body, description, math.lcm(stride, description.divisor or 1))


def weights_bytes(state: Mapping[str, Tensor]) -> int:
    """Return the bytes of a state dict; those that several names share count once."""
    storages = [tensor.untyped_storage() for tensor in state.values()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@contextlib.contextmanager
def bounded(options: Mapping[str, Any], weights: int | None) -> Iterator[None]:
    """Let a network of these options be built that is no larger than its weights (in bytes; None: than can be trained in the memory of this
    machine): a few bytes of a description may ask for one of any size.

    Counted are parameters, buffers and modules as they are registered, and each tensor before it is made.
    """
    if (total := sum(abs(n) for n in tree_leaves(options) if isinstance(n, int))) > MAX_SUM:
        raise InputError(f"the options of a network hold whole numbers of {total} in total, more than {MAX_SUM}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**36
    # Training takes gradients and two moments beside the weights; those of a file in half precision are widened.
    most = memory // 4 if weights is None else 2 * weights + SLACK
    left = {"bytes": most, "modules": MAX_MODULES}

    def take(unit: str, count: int) -> None:
        left[unit] -= count
        if left[unit] < 0:
            what = "the memory of this machine holds" if weights is None else "its weights fill"
            raise InputError(f"the description asks for a network of more {unit} than {what}")

    def tensor_comes(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        if tensor is not None and not nn.parameter.is_lazy(tensor):
            take("bytes", tensor.nbytes)

    class EachTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not func._schema.is_mutable:
                planned = None
                device = {"device": "meta"} if any(a.name == "device" for a in func._schema.arguments) else {}
                with contextlib.suppress(Exception):  # what has no shape without values is of the size of its inputs
                    inputs, named = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs or {}))
                    planned = func(*inputs, **{**named, **device})
                for tensor in tree_leaves(planned):
                    if isinstance(tensor, Tensor) and tensor.nbytes > most:
                        take("bytes", tensor.nbytes)
            return func(*args, **kwargs or {})

    with contextlib.ExitStack() as stack:
        for handle in (
            registration.register_module_parameter_registration_hook(tensor_comes),
            registration.register_module_buffer_registration_hook(tensor_comes),
            registration.register_module_module_registration_hook(lambda *_: take("modules", 1)),
        ):
            stack.callback(handle.remove)
        stack.enter_context(EachTensor())  # type: ignore[no-untyped-call]
        yield


def state_sha256(state: nn.Module | Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over a state, or a module's: names, types, shapes and bytes of all tensors in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted((state.state_dict() if isinstance(state, nn.Module) else state).items()):
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()


def network_sha256(state: nn.Module | Mapping[str, Tensor], description: NetworkDescription) -> str:
    """Return the SHA-256 over a network's state and all that decides what it says of a frame: the description but for its provenance."""
    plain = json.loads(json.dumps(description.to_json()))
    described = NetworkDescription.from_json(plain, "the network").to_json()  # as it comes back from a file
    return json_sha256([state_sha256(state), {**described, "format": 0, "provenance": {}}])


def save_network(network: SegmentationNetwork, folder: Path | str) -> str:
    """Write ``network.safetensors`` and ``network.json``, and return :func:`network_sha256`; InputError where a weight is NaN or infinite, or
    nothing says how the network is built again."""
    if not isinstance(network, SegmentationNetwork) or not network.description.architecture:
        hint = 'name the function that makes it: segunc.wrap(module, ..., factory="package.module:function")'
        raise InputError("this module could not be built again from a model folder", hint=hint)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = {k: v.detach().cpu().contiguous() for k, v in network.body.state_dict().items()}
    check_finite(state, "the network to save")
    # Tied weights are stored once per name: safetensors refuses tensors that share memory.
    write_atomically(folder / WEIGHTS, save({k: v.clone() for k, v in state.items()}))
    digest = network_sha256(network.body, network.description)
    write_json(folder / DESCRIPTION, {**network.description.to_json(), "sha256": digest})
    return digest


def load_network(folder: Path | str, *, ignore_posterior: bool = False) -> SegmentationNetwork:
    """Return the network of a model folder, in eval mode.

    Args:
        folder: holds ``network.safetensors`` and ``network.json``.
        ignore_posterior: load the base network of a Bayesian model as a deterministic one.

    Raises:
        InputError: a missing or damaged file, weights of another architecture, NaN weights, weights or a description that were changed,
            or a Bayesian model (``posterior.json`` beside it) without ``ignore_posterior``.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"model folder {folder} does not exist")
    if (folder / POSTERIOR).exists() and not ignore_posterior:
        raise InputError(f"{folder} holds a Bayesian model", hint="load it with segunc.load_model")
    content = read_json(folder / DESCRIPTION, "the description of a network")
    recorded = content.pop("sha256", None)
    description = NetworkDescription.from_json(content, str(folder / DESCRIPTION))
    # Before anything is built: a damaged description may ask for a network of any size.
    state = read_state(folder / WEIGHTS)
    digest = network_sha256(state, description)
    if recorded != digest:
        message = f"the network in {folder} has the hash {digest[:12]}, {DESCRIPTION} records {str(recorded)[:12]}"
        raise InputError(message, hint="save the network again, or restore the file")
    network = build_network(description, state)
    load_state(network.body, state, str(folder / WEIGHTS))
    network.sha256 = digest
    return network.eval()
