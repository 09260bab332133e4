"""Networks on disk: ``network.safetensors`` and ``network.json``; foreign checkpoints by path. Nothing is unpickled."""

from __future__ import annotations

import hashlib
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from segunc.core.errors import InputError
from segunc.core.files import read_json, write_atomically, write_json
from segunc.networks.build import build_network
from segunc.networks.description import NetworkDescription
from segunc.networks.network import SegmentationNetwork

WEIGHTS, DESCRIPTION, POSTERIOR = "network.safetensors", "network.json", "posterior.json"
PREFIXES = ("module.", "model.", "net.", "network.", "body.")
"""Wrappers that training frameworks put before every key."""


def state_sha256(module: nn.Module) -> str:
    """SHA-256 over a module's state: names, types, shapes and bytes of all tensors in the order of their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return digest.hexdigest()


def check_finite(state: dict[str, Tensor], source: str) -> None:
    """Refuse weights that hold NaN or infinite values."""
    for name, tensor in state.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise InputError(
                f"{source}: {name} holds NaN or infinite values", "finite weights", "take an earlier checkpoint"
            )


def save_network(network: SegmentationNetwork, folder: Path | str) -> str:
    """Write ``network.safetensors`` and ``network.json``; returns the SHA-256 of the state.

    Raises:
        InputError: a weight is NaN or infinite.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = {k: v.detach().cpu().contiguous() for k, v in network.body.state_dict().items()}
    check_finite(state, "the network to save")
    # Tied weights are stored once per name: safetensors refuses tensors that share memory.
    write_atomically(folder / WEIGHTS, save({k: v.clone() for k, v in state.items()}))
    digest = state_sha256(network.body)
    write_json(folder / DESCRIPTION, {**network.description.to_json(), "sha256": digest})
    return digest


def load_network(folder: Path | str, *, ignore_posterior: bool = False) -> SegmentationNetwork:
    """The network of a model folder, in eval mode.

    Args:
        folder: holds ``network.safetensors`` and ``network.json``.
        ignore_posterior: load the base network of a Bayesian model as a deterministic one.

    Raises:
        InputError: a missing or damaged file, weights of another architecture, NaN weights, or a Bayesian model
            (``posterior.json`` beside it) without ``ignore_posterior``.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(
            f"model folder {folder} does not exist", f"a folder with {WEIGHTS} and {DESCRIPTION}", "check the path"
        )
    if (folder / POSTERIOR).exists() and not ignore_posterior:
        raise InputError(
            f"{folder} holds a Bayesian model", "a deterministic network", "load it with segunc.load_model"
        )
    content = read_json(folder / DESCRIPTION, "the description of a network")
    recorded = content.pop("sha256", None)
    description = NetworkDescription.from_json(content, str(folder / DESCRIPTION))
    network = build_network(description)
    load_weights(network.body, folder / WEIGHTS, strip=False)
    actual = state_sha256(network.body)
    if recorded != actual:
        raise InputError(
            f"{folder / WEIGHTS} has the hash {actual[:12]}, {DESCRIPTION} records {str(recorded)[:12]}",
            "weights that belong to their description",
            "save the network again, or restore the file",
        )
    return network.eval()


def read_state(path: Path) -> dict[str, Tensor]:
    """The state dict in a ``.safetensors`` file or a PyTorch checkpoint (``weights_only``: nothing is executed).

    Raises:
        InputError: missing, damaged, or without a state dict of tensors.
    """
    if not path.is_file():
        raise InputError(
            f"checkpoint {path} does not exist", "a .safetensors, .pt, .pth or .ckpt file", "check the path"
        )
    try:
        if path.suffix == ".safetensors":
            content: Any = load_file(path)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of a pickle protocol right before it refuses the file
                content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"checkpoint {path} is damaged or holds more than tensors, which could execute code",
            "a file of tensors only",
            "save its state_dict again, as .safetensors for instance",
        ) from error
    except Exception as error:  # what a damaged file makes torch raise depends on where it is damaged
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(
            f"checkpoint {path} is damaged ({reason})", "a whole file of tensors", "copy or save it again"
        ) from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise InputError(
            f"checkpoint {path} holds no state dict", "names with tensors", "save the state_dict of the network"
        )
    return content


def load_weights(module: nn.Module, path: Path, *, strip: bool = True) -> None:
    """Load a state dict into a module; every key and shape must match.

    Args:
        module: receives the weights; half-precision weights are widened to its own type.
        path: see :func:`read_state`.
        strip: remove prefixes such as ``module.`` that all keys share.

    Raises:
        InputError: another architecture (names or shapes differ), or NaN weights.
    """
    state = read_state(path)
    own = module.state_dict()
    while strip and not set(state) & set(own):
        prefix = next((p for p in PREFIXES if any(k.startswith(p) for k in state)), None)
        if prefix is None:
            break
        # Keys outside the wrapper (a criterion's class weights, say) do not belong to the network.
        state = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    # Old checkpoints lack these counters; nothing reads them in eval mode.
    optional = {k for k in own if k.endswith("num_batches_tracked")}
    missing = [k for k in own if k not in state and k not in optional]
    unexpected = [k for k in state if k not in own]
    shapes = [k for k in own if k in state and own[k].shape != state[k].shape]
    if missing or unexpected or shapes:
        detail = []
        if shapes:
            k = shapes[0]
            detail.append(
                f"{len(shapes)} of another shape (e.g. {k}: {tuple(state[k].shape)} instead of {tuple(own[k].shape)})"
            )
        if missing:
            detail.append(f"{len(missing)} missing (e.g. {missing[0]})")
        if unexpected:
            detail.append(f"{len(unexpected)} unknown (e.g. {unexpected[0]})")
        raise InputError(
            f"weights in {path} do not fit the network: {', '.join(detail)}",
            "weights of the same architecture, encoder, options and number of classes",
            "check the configuration",
        )
    check_finite(state, str(path))
    module.load_state_dict({**{k: own[k] for k in optional}, **state})
