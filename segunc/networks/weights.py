"""Weights from files: read without unpickling, and brought to a module by their names."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from segunc.core.errors import InputError, one_line
from segunc.core.files import open_file, require_file

COUNTER = "num_batches_tracked"


def check_finite(state: Mapping[str, Tensor], source: str) -> None:
    """Refuse weights that hold NaN or infinite values."""
    for name, tensor in state.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise InputError(
                f"{source}: {name} holds NaN or infinite values", "finite weights", "take an earlier checkpoint"
            )


def read_checkpoint(path: Path) -> Any:
    """What a ``.safetensors`` file or a PyTorch checkpoint holds (``weights_only``: nothing is executed); InputError where it is missing,
    damaged, or holds more than plain data."""
    if not path.is_file():
        raise InputError(
            f"checkpoint {path} does not exist", "a .safetensors, .pt, .pth or .ckpt file", "check the path"
        )
    try:
        if path.suffix == ".safetensors":
            require_file(path)
            return load_file(path)
        with open_file(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a pickle protocol right before it refuses the file
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"checkpoint {path} is damaged or holds more than tensors, which could execute code",
            "a file of tensors only",
            "save its state_dict again, as .safetensors for instance",
        ) from error
    except Exception as error:  # what a damaged file makes torch raise depends on where it is damaged
        raise InputError(
            f"checkpoint {path} is damaged ({one_line(error)})", "a whole file of tensors", "copy or save it again"
        ) from error


def read_state(path: Path) -> dict[str, Tensor]:
    """The state dict in what :func:`read_checkpoint` reads; InputError where it is none of tensors."""
    content = read_checkpoint(path)
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise InputError(
            f"checkpoint {path} holds no state dict", "names with tensors", "save the state_dict of the network"
        )
    return content


def read_tensors(path: Path, what: str, remedy: str) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` file; InputError, which says ``what`` they are, where it is missing or damaged."""
    try:
        require_file(path)
        return load_file(path)
    except Exception as error:  # an unknown type raises another error than a damaged header
        raise InputError(f"{path} cannot be read ({one_line(error)})", what, remedy) from error


def load_state(module: nn.Module, state: Mapping[str, Tensor], source: str, fit: str = "") -> None:
    """Load a state dict whose names are the module's; every name and shape must match.

    Args:
        module: receives the weights; half-precision weights are widened to its own type.
        state: by name; counters of batches may be missing, as nothing reads them in eval mode.
        source: of the weights, for messages.
        fit: how the names were matched, likewise.

    Raises:
        InputError: another architecture (names or shapes differ), or NaN weights.
    """
    own = module.state_dict()
    optional = {name for name in own if name.endswith(COUNTER)}
    missing = [name for name in own if name not in state and name not in optional]
    unknown = [name for name in state if name not in own]
    differing = [name for name in own if name in state and own[name].shape != state[name].shape]
    if missing or unknown or differing:
        shapes = [f"{name}: {tuple(state[name].shape)} instead of {tuple(own[name].shape)}" for name in differing]
        parts = (("of another shape", shapes), ("missing", missing), ("unknown", unknown))
        detail = [f"{len(names)} {what} (e.g. {', '.join(names[:3])})" for what, names in parts if names]
        alike = all(state[name].shape[1:] == own[name].shape[1:] for name in differing)
        outputs = {(state[name].shape[:1].numel(), own[name].shape[:1].numel()) for name in differing}
        if alike and len(outputs) == 1 and not missing:
            detail.append("it has {} outputs instead of {}: other classes".format(*outputs.pop()))
        raise InputError(
            f"weights in {source} do not fit the network: {', '.join(filter(None, [*detail, fit]))}",
            "weights of the same architecture, encoder, options and number of classes",
            "check the configuration",
        )
    check_finite(state, source)
    module.load_state_dict({**{name: own[name] for name in optional}, **state})


class Match(NamedTuple):
    """A foreign state dict in the names of a module."""

    found: dict[str, Tensor]  # the tensors that the module has
    others: dict[str, Tensor]  # further ones under the same prefix, renamed
    fit: str = ""  # what was done to the names, in words


def match_names(state: Mapping[str, Tensor], own: Iterable[str]) -> Match:
    """A foreign state dict in the names of ``own``, by the one change of prefixes after which most names agree.

    Training frameworks put ``module.``, ``model.`` or more before every name, wrappers do the same to the names of ``own``, and
    timm's encoders join the first parts of a name by an underscore. Names alone decide, never the order of the tensors. What
    lies outside the prefix (a criterion's class weights, the decoder of a whole network whose encoder is wanted) is left out.
    """
    targets = {flat_name(name): name for name in own}
    best = Match({}, dict(state), "no name fits under any prefix")
    for taken in _prefixes(state, 2):
        inside = {name.removeprefix(taken): tensor for name, tensor in state.items() if name.startswith(taken)}
        for put in _prefixes(targets.values(), 1):
            renamed = {targets.get(flat_name(put + name), put + name): tensor for name, tensor in inside.items()}
            found = {name: tensor for name, tensor in renamed.items() if flat_name(name) in targets}
            if len(found) > len(best.found):
                others = {name: tensor for name, tensor in renamed.items() if name not in found}
                change = " and ".join([f"without '{taken}'"] * bool(taken) + [f"with '{put}' before them"] * bool(put))
                fit = f"most names fit {change or 'as they are'}, {len(found)} of the network's {len(targets)}"
                best = Match(found, others, fit)
    return best


def flat_name(name: str) -> str:
    return name.replace(".", "_")


def _prefixes(names: Iterable[str], depth: int) -> list[str]:
    """The beginnings of dotted names, of up to ``depth`` parts, the shortest first."""
    parts = [name.split(".") for name in names]
    found = {"".join(f"{part}." for part in name[:n]) for name in parts for n in range(min(depth + 1, len(name)))}
    return sorted(found, key=lambda prefix: (prefix.count("."), prefix))


def load_foreign(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """:func:`load_state` of names with other prefixes."""
    found, others, fit = match_names(state, module.state_dict())
    kept = {name: tensor for name, tensor in others.items() if not name.endswith(COUNTER)}
    load_state(module, found | kept, source, fit)


def load_weights(module: nn.Module, path: Path) -> None:
    """Load the state dict of a file into a module, whatever prefix its names have; see :func:`load_state`."""
    load_foreign(module, read_state(path), str(path))
