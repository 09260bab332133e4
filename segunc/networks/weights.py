"""Weights from files: read without unpickling, and brought to a module by their names."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from segunc.core.errors import InputError, one_line
from segunc.core.files import open_file

COUNTER = "num_batches_tracked"
EXTRA_STATE = "_extra_state"  # of ``nn.Module.get_extra_state``, under which torch stores it
DERIVED = ("relative_position_index", "relative_coords_table", "attn_mask", "position_ids")
"""Last parts of the names of buffers that networks make of their sizes alone; newer versions of a
network no longer store them.
"""


def tensor_state(module: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a module without what modules store beside tensors
    (``get_extra_state``), which no model folder holds.
    """
    state = module.state_dict()
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def check_finite(state: Mapping[str, Tensor], source: str) -> None:
    """Raise InputError for weights that hold NaN or infinite values."""
    for name, tensor in state.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise InputError(
                f"{source}: {name} holds NaN or infinite values", hint="take an earlier checkpoint"
            )


def read_checkpoint(path: Path) -> Any:
    """Return what a ``.safetensors`` file or a PyTorch checkpoint holds, without executing anything
    (``weights_only``); InputError where the file is missing, damaged, or holds more than plain
    data.
    """
    if not path.is_file():
        raise InputError(f"checkpoint {path} does not exist")
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        with open_file(path) as file, warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # torch warns of a pickle protocol right before it refuses the file
            return torch.load(file, map_location="cpu", weights_only=True)
    except (
        Exception
    ) as error:  # what a damaged file makes torch raise depends on where it is damaged
        if isinstance(error, pickle.UnpicklingError):
            classes = "".join(
                f" ({name})" for name in sorted(set(re.findall(r"GLOBAL ([\w.]+)", str(error))))[:1]
            )
            message = f"checkpoint {path} is damaged or holds more than tensors{classes}, which could execute code"
            save = "torch.save(torch.load(FILE, weights_only=False).state_dict(), NEW)"
            raise InputError(
                message, hint=f"if you trust it, save its state_dict where its code is: {save}"
            ) from error
        raise InputError(
            f"checkpoint {path} is damaged ({one_line(error)})", hint="copy or save it again"
        ) from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file. Of tied weights ``safetensors.torch.save_model`` stores one,
    and notes the others in the metadata, as name -> name of the one that is stored.
    """
    state: dict[str, Tensor] = load_file(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
    stored = set(state)
    for name, same in metadata.items():
        if same in stored and name not in stored:
            state[name] = state[same]
    return state


def read_state(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a file under dotted names: ``{"net": {"conv.weight": t}}`` gives
    ``net.conv.weight``. InputError as of :func:`read_checkpoint`, and where there is no tensor.
    """
    content = read_checkpoint(path)
    state: dict[str, Tensor] = {}
    _flatten(content, "", state, set())
    if not state:
        keys = (
            f" (it has the keys {', '.join(map(str, list(content)[:5]))})"
            if isinstance(content, dict)
            else ""
        )
        raise InputError(
            f"checkpoint {path} holds no state dict{keys}",
            hint="save the state_dict of the network",
        )
    return state


def _flatten(content: Any, name: str, state: dict[str, Tensor], seen: set[int]) -> None:
    """Add the tensors in nested dictionaries and lists; what stands at several places of a file (or
    in itself) counts once.
    """
    if isinstance(content, Tensor):
        state[name] = content
    elif (
        isinstance(content, dict | list | tuple) and id(content) not in seen and len(seen) < 100_000
    ):
        seen.add(id(content))
        items = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in items:
            _flatten(value, f"{name}.{key}" if name else str(key), state, seen)


def load_state(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load a state dict whose names and shapes are the module's; half-precision weights are
    widened. Counters of batches may be missing, as nothing reads them in eval mode. InputError for
    another architecture, quantised or sparse weights, or NaN weights.
    """
    own = tensor_state(module)
    counters = {name for name in own if name.endswith(COUNTER)}
    shapes = {n: (tuple(state[n].shape), tuple(own[n].shape)) for n in own if n in state}
    parts = {
        "of another shape": [
            f"{n}: {there} instead of {here}"
            for n, (there, here) in shapes.items()
            if there != here
        ],
        "missing": [name for name in own if name not in state and name not in counters],
        "unknown": [name for name in state if name not in own],
    }
    if any(parts.values()):
        detail = [
            f"{len(names)} {what} (e.g. {', '.join(names[:3])})"
            for what, names in parts.items()
            if names
        ]
        hint = "check architecture, encoder, options and the number of classes"
        raise InputError(
            f"weights in {source} do not fit the network: {', '.join(detail)}", hint=hint
        )
    for name, tensor in state.items():
        # load_state_dict would convert whole numbers, which are weights only together with their
        # scale, without a word.
        if tensor.layout != torch.strided or not (
            name in counters or _converts(tensor.dtype, own[name].dtype)
        ):
            what = tensor.dtype if tensor.layout == torch.strided else tensor.layout
            message = (
                f"{source}: {name} is of type {what}, in the network of type {own[name].dtype}"
            )
            raise InputError(
                message, hint="take the checkpoint from before quantisation or pruning"
            )
    check_finite(state, source)
    # What torch asks for beside the weights stays as the module has it.
    kept = {n: v for n, v in module.state_dict().items() if n not in own or n in counters}
    module.load_state_dict({**kept, **state})


def _converts(theirs: torch.dtype, ours: torch.dtype) -> bool:
    """Return whether numbers of one type are the same weights in the other, up to rounding; float8
    needs a scale of its own.
    """
    if ours.is_floating_point:
        return theirs in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return theirs == ours or not (theirs.is_floating_point or theirs.is_complex or ours.is_complex)


class Match(NamedTuple):
    weights: dict[str, Tensor]  # that the module has
    others: dict[str, Tensor]  # further ones under the same prefix
    prefix: str = ""  # before the names in the file, which the module's have not
    wrapper: str = ""  # before the module's names, which those in the file have not


def match_names(
    state: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    source: str = "the file",
    key: str | None = None,
) -> Match:
    """Return the part of a foreign state dict that fits ``own``, in the names of ``own``. Training
    frameworks put a prefix before every name, wrappers do the same to the names of ``own``, and
    timm's encoders join the first parts of a name by an underscore, which counts only where names
    as they are do not fit. Names and shapes decide, never the order. InputError where several sets
    of weights fit and differ, and ``key`` chooses none; or where nothing lies under ``key``.
    """
    unwrapped = {_unwrapped(name): tensor for name, tensor in state.items()}
    if len(unwrapped) == len(state):
        state, key = unwrapped, key and _unwrapped(key)
    if key and not any(name.startswith(f"{key}.") for name in state):
        groups = ", ".join(dict.fromkeys(name.partition(".")[0] for name in state))
        raise InputError(
            f"{source} holds no weights under '{key}', but under {groups}", hint="--weights-key KEY"
        )
    counters = {name for name in own if name.endswith(COUNTER)}

    def fitting(match: Match) -> set[str]:
        return {name for name, tensor in match.weights.items() if tensor.shape == own[name].shape}

    best = Match({}, dict(state))
    for spell in (_unwrapped, _flat):
        matches = [
            m
            for m in _matches(state, own, spell)
            if key is None or f"{m.prefix}.".startswith(f"{key}.")
        ]
        whole = [match for match in matches if counters.union(fitting(match)) == own.keys()]
        whole = [match for match in whole if match.prefix == key] or whole
        # A set that is there twice, under two keys, is no question.
        needed = own.keys() - counters
        if any(
            not torch.equal(match.weights[n], whole[0].weights[n])
            for match in whole[1:]
            for n in needed
        ):
            keys = ", ".join(f"'{match.prefix}'" for match in whole)
            message = f"{source} holds {len(whole)} sets of weights that fit the network: {keys}"
            raise InputError(
                message, hint=f"choose one, e.g. --weights-key {whole[0].prefix or whole[1].prefix}"
            )
        if whole:
            return whole[0]
        best = max([best, *matches], key=lambda match: (len(fitting(match)), len(match.weights)))
    return best


def _matches(
    state: Mapping[str, Tensor], own: Mapping[str, Tensor], spell: Callable[[str], str]
) -> Iterator[Match]:
    """Yield the ways to take names under one prefix of ``state``, with or without the first part
    that all names of ``own`` share.
    """
    targets = {spell(name): name for name in own}
    if len(targets) < len(own):
        return
    below: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        parts = name.split(".")
        for depth in range(len(parts)):
            below.setdefault(".".join(parts[:depth]), {})[".".join(parts[depth:])] = tensor
    first = next(iter(own)).partition(".")[0] + "."
    for prefix in sorted(below, key=lambda prefix: (prefix.count("."), prefix)):
        for wrapper in ("", first) if all(name.startswith(first) for name in own) else ("",):
            renamed = {
                targets.get(spell(wrapper + n), wrapper + n): tensor
                for n, tensor in below[prefix].items()
            }
            weights = {name: tensor for name, tensor in renamed.items() if name in own}
            if weights and len(renamed) == len(below[prefix]):
                others = {name: tensor for name, tensor in renamed.items() if name not in own}
                yield Match(weights, others, prefix, wrapper)


_NEW_WEIGHT_NORM = re.compile(r"\bparametrizations\.(\w+)\.original([01])$")
"""``parametrizations.weight.original0`` is ``weight_g``, and 1 ``weight_v``
(torch.nn.utils.parametrizations.weight_norm).
"""


def _flat(name: str) -> str:
    return _unwrapped(name).replace(".", "_")


def _unwrapped(name: str) -> str:
    """Return a name without the parts that torch.compile and DataParallel put into it, and with
    those of the older weight norm in the place of the newer one's.
    """
    plain = ".".join(part for part in name.split(".") if part not in ("module", "_orig_mod"))
    return _NEW_WEIGHT_NORM.sub(lambda match: f"{match[1]}_{'gv'[int(match[2])]}", plain)


def load_foreign(
    module: nn.Module, state: Mapping[str, Tensor], source: str, key: str | None = None
) -> list[str]:
    """Do :func:`load_state` by the names that :func:`match_names` finds, and return what a user
    should know, a line each. What a file holds under the same prefix inside parts that the network
    has makes it another network (a deeper one, say), and is refused; in parts that it has not, such
    as an auxiliary head or a classifier, it is left out and counted.
    """
    own = tensor_state(module)
    match = match_names(state, own, source, key)
    wrapper = match.wrapper or ("model." if all(name.startswith("model.") for name in own) else "")
    names, inside, left = [_flat(name) for name in own], dict[str, Tensor](), list[str]()
    for name, tensor in match.others.items():
        part = name.removeprefix(wrapper).partition(".")[0]
        if _is_derived(name, tensor, module, source):
            left.append(name)
        elif part.isdigit() or any(mine.startswith(_flat(f"{wrapper}{part}.")) for mine in names):
            inside[name] = tensor
        else:
            left.append(name)
    load_state(
        module, match.weights | {n: t for n, t in inside.items() if not n.endswith(COUNTER)}, source
    )
    if match.prefix:
        left += [
            name
            for name in state
            if not _unwrapped(name).startswith(f"{_unwrapped(match.prefix)}.")
        ]
    if not left:
        return []
    where = f" under '{match.prefix}'" if match.prefix else ""
    return [
        f"{source}: took the weights{where}; left out {len(left)} tensors, e.g. {', '.join(left[:3])}"
    ]


def _is_derived(name: str, tensor: Tensor, module: nn.Module, source: str) -> bool:
    """Return whether a tensor that a module does not store is what the module makes itself: extra
    state, or a buffer with these values.

    Raises:
        InputError: the module's buffer has other values, so that the file is of another network.
    """
    if EXTRA_STATE in name.split("."):
        return True
    buffer = dict(module.named_buffers()).get(name)
    if buffer is None:
        return name.rpartition(".")[2] in DERIVED
    values = tensor.to(buffer) if tensor.shape == buffer.shape else None
    if values is None or not torch.allclose(values, buffer, rtol=1e-3, atol=1e-6, equal_nan=True):
        message = f"{source}: {name} differs from the one that the network makes itself"
        raise InputError(message, hint="check the sizes that the network is built with")
    return True


def load_weights(module: nn.Module, path: Path) -> list[str]:
    """Do :func:`load_foreign` with the weights of a file."""
    return load_foreign(module, read_state(path), str(path))
