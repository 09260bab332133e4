"""Weights from files: read without unpickling, and brought to a module by their names."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from segunc.core.errors import InputError, one_line
from segunc.core.files import open_file
from segunc.core.terminal import counted

COUNTER = "num_batches_tracked"
EXTRA_STATE = "_extra_state"  # of ``nn.Module.get_extra_state``, under which torch stores it
MAX_CONTAINERS = 100_000  # dictionaries and lists of a file that are looked into
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
        raise InputError(f"checkpoint {path} does not exist", hint="check the path")
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        with open_file(path) as file, warnings.catch_warnings():
            # torch warns of a pickle protocol right before it refuses the file.
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        classes = sorted(set(re.findall(r"GLOBAL ([\w.]+)", str(error))))
        first_class = f" ({classes[0]})" if classes else ""
        message = (
            f"checkpoint {path} is damaged or holds more than tensors{first_class}, "
            "which could execute code"
        )
        save = "torch.save(torch.load(FILE, weights_only=False).state_dict(), NEW)"
        hint = f"if you trust it, save its state_dict where its code is: {save}"
        raise InputError(message, hint=hint) from error
    except Exception as error:  # which one depends on where a file is damaged
        message = f"checkpoint {path} is damaged ({one_line(error)})"
        raise InputError(message, hint="copy or save it again") from error


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
        keys = ""
        if isinstance(content, dict):
            first_keys = [str(key) for key in list(content)[:5]]
            keys = f" (it has the keys {', '.join(first_keys)})"
        message = f"checkpoint {path} holds no state dict{keys}"
        raise InputError(message, hint="save the state_dict of the network")
    return state


def _flatten(content: Any, name: str, state: dict[str, Tensor], seen: set[int]) -> None:
    """Add the tensors in nested dictionaries and lists to a state, under dotted names. What stands
    at several places of a file (or in itself) counts once.
    """
    if isinstance(content, Tensor):
        state[name] = content
        return
    if not isinstance(content, dict | list | tuple):
        return
    if id(content) in seen or len(seen) >= MAX_CONTAINERS:
        return
    seen.add(id(content))
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        _flatten(value, f"{name}.{key}" if name else str(key), state, seen)


def load_state(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Load a state dict whose names and shapes are the module's; half-precision weights are
    widened. Counters of batches may be missing, as nothing reads them in eval mode.

    Raises:
        InputError: another architecture, quantised or sparse weights, or NaN weights.
    """
    own = tensor_state(module)
    _check_fit(state, own, source)
    _check_types(state, own, source)
    check_finite(state, source)
    # What torch asks for beside the weights stays as the module has it.
    counters = _counters(own)
    everything = module.state_dict()
    kept = {n: value for n, value in everything.items() if n not in own or n in counters}
    module.load_state_dict({**kept, **state})


def _counters(own: Mapping[str, Tensor]) -> set[str]:
    """Return the names of the counters of batches, which nothing reads in eval mode."""
    return {name for name in own if name.endswith(COUNTER)}


def _check_fit(state: Mapping[str, Tensor], own: Mapping[str, Tensor], source: str) -> None:
    """Raise InputError where names or shapes of a state dict are not those of a module."""
    counters = _counters(own)
    other_shapes: list[str] = []
    missing: list[str] = []
    for name, tensor in own.items():
        if name not in state:
            if name not in counters:
                missing.append(name)
        elif state[name].shape != tensor.shape:
            there = tuple(state[name].shape)
            other_shapes.append(f"{name}: {there} instead of {tuple(tensor.shape)}")
    unknown = [name for name in state if name not in own]
    details: list[str] = []
    for names, fault in (
        (other_shapes, "of another shape"),
        (missing, "missing"),
        (unknown, "unknown"),
    ):
        if names:
            details.append(f"{len(names)} {fault} (e.g. {', '.join(names[:3])})")
    if details:
        message = f"weights in {source} do not fit the network: {', '.join(details)}"
        hint = "check architecture, encoder, options and the number of classes"
        raise InputError(message, hint=hint)


def _check_types(state: Mapping[str, Tensor], own: Mapping[str, Tensor], source: str) -> None:
    """Raise InputError for quantised or sparse weights: load_state_dict would convert whole numbers
    without a word, which are weights only together with their scale.
    """
    counters = _counters(own)
    for name, tensor in state.items():
        if tensor.layout != torch.strided:
            kind = str(tensor.layout)
        elif name in counters or _converts(tensor.dtype, own[name].dtype):
            continue
        else:
            kind = str(tensor.dtype)
        message = f"{source}: {name} is of type {kind}, in the network of type {own[name].dtype}"
        hint = "take the checkpoint from before quantisation or pruning"
        raise InputError(message, hint=hint)


def _converts(theirs: torch.dtype, ours: torch.dtype) -> bool:
    """Return whether numbers of one type are the same weights in the other, up to rounding; float8
    needs a scale of its own.
    """
    if ours.is_floating_point:
        return theirs in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return theirs == ours or not (theirs.is_floating_point or theirs.is_complex or ours.is_complex)


class Match(NamedTuple):
    """The part of a state dict that fits a module, in the names of the module."""

    weights: dict[str, Tensor]  # that the module has
    others: dict[str, Tensor]  # further ones under the same prefix
    prefix: str = ""  # before the names in the file, which the module's have not
    wrapper: str = ""  # before the module's names, which those in the file have not

    def fitting(self, own: Mapping[str, Tensor]) -> set[str]:
        """Return the names of the weights that have the shape of the module's."""
        return {name for name, tensor in self.weights.items() if tensor.shape == own[name].shape}

    def is_below(self, key: str | None) -> bool:
        """Return whether the weights lie under a key of the file; True where that is None."""
        return key is None or f"{self.prefix}.".startswith(f"{key}.")


def match_names(
    state: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    source: str = "the file",
    key: str | None = None,
) -> Match:
    """Return the part of a foreign state dict that fits a module.

    Training frameworks put a prefix before every name, wrappers do the same to the names of the
    module, and timm's encoders join the first parts of a name by an underscore, which counts only
    where names as they are do not fit. Names and shapes decide, never the order.

    Args:
        state: tensors by the names of the file.
        own: the tensors of the module by their names.
        source: the file, for messages.
        key: take only weights under this prefix; None for any.

    Raises:
        InputError: several sets of weights fit and differ, and ``key`` chooses none; or nothing
            lies under ``key``.
    """
    unwrapped = {_unwrapped(name): tensor for name, tensor in state.items()}
    if len(unwrapped) == len(state):
        state = unwrapped
        key = _unwrapped(key) if key else key
    if key and not any(name.startswith(f"{key}.") for name in state):
        groups = dict.fromkeys(name.partition(".")[0] for name in state)
        message = f"{source} holds no weights under '{key}', but under {', '.join(groups)}"
        raise InputError(message, hint="--weights-key KEY")
    needed = own.keys() - _counters(own)
    best = Match({}, dict(state))
    for spell in (_unwrapped, _flat):
        matches = [match for match in _matches(state, own, spell) if match.is_below(key)]
        whole = [match for match in matches if needed <= match.fitting(own)]
        # The key itself comes before what lies below it.
        whole = [match for match in whole if match.prefix == key] or whole
        if whole:
            _refuse_different(whole, needed, source)
            return whole[0]
        best = max(
            [best, *matches], key=lambda match: (len(match.fitting(own)), len(match.weights))
        )
    return best


def _refuse_different(whole: list[Match], needed: Set[str], source: str) -> None:
    """Raise InputError where several sets of weights fit a module and differ. A set that is there
    twice, under two keys, is no question.
    """
    first, *others = whole
    for other in others:
        if all(torch.equal(other.weights[name], first.weights[name]) for name in needed):
            continue
        keys = ", ".join(f"'{match.prefix}'" for match in whole)
        message = f"{source} holds {len(whole)} sets of weights that fit the network: {keys}"
        hint = f"choose one, e.g. --weights-key {first.prefix or whole[1].prefix}"
        raise InputError(message, hint=hint)


def _matches(
    state: Mapping[str, Tensor], own: Mapping[str, Tensor], spell: Callable[[str], str]
) -> Iterator[Match]:
    """Yield the ways to take names under one prefix of ``state``, with or without the first part
    that all names of ``own`` share. Names are equal where ``spell`` writes them alike.
    """
    targets = {spell(name): name for name in own}
    if len(targets) < len(own):
        return
    wrappers = [""]
    first_part = next(iter(own)).partition(".")[0] + "."
    if all(name.startswith(first_part) for name in own):
        wrappers.append(first_part)
    below = _below_prefixes(state)
    for prefix in sorted(below, key=lambda prefix: (prefix.count("."), prefix)):
        for wrapper in wrappers:
            renamed: dict[str, Tensor] = {}
            for name, tensor in below[prefix].items():
                wrapped = wrapper + name
                renamed[targets.get(spell(wrapped), wrapped)] = tensor
            weights = {name: tensor for name, tensor in renamed.items() if name in own}
            is_unique = len(renamed) == len(below[prefix])
            if weights and is_unique:
                others = {name: tensor for name, tensor in renamed.items() if name not in own}
                yield Match(weights, others, prefix, wrapper)


def _below_prefixes(state: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return for each prefix of dotted names, also for none, the tensors by the rest of their
    names.
    """
    below: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        parts = name.split(".")
        for depth in range(len(parts)):
            prefix = ".".join(parts[:depth])
            rest = ".".join(parts[depth:])
            below.setdefault(prefix, {})[rest] = tensor
    return below


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
    """Load a state dict whose names another framework chose, by :func:`match_names`.

    What a file holds under the same prefix inside parts that the network has makes it another
    network (a deeper one, say), and is refused. In parts that the network has not, such as an
    auxiliary head or a classifier, it is left out and counted.

    Args:
        module: gets the weights.
        state: tensors by the names of the file.
        source: the file, for messages.
        key: as of :func:`match_names`.

    Returns:
        what a user should know, a line each.

    Raises:
        InputError: as of :func:`load_state` and :func:`match_names`.
    """
    own = tensor_state(module)
    match = match_names(state, own, source, key)
    inside, left_out = _sort_others(match, module, source)
    unknown = {name: tensor for name, tensor in inside.items() if not name.endswith(COUNTER)}
    load_state(module, {**match.weights, **unknown}, source)
    if match.prefix:
        prefix = f"{_unwrapped(match.prefix)}."
        left_out += [name for name in state if not _unwrapped(name).startswith(prefix)]
    if not left_out:
        return []
    where = f" under '{match.prefix}'" if match.prefix else ""
    examples = ", ".join(left_out[:3])
    note = f"took the weights{where}; left out {counted(len(left_out), 'tensor')}, e.g. {examples}"
    return [f"{source}: {note}"]


def _sort_others(
    match: Match, module: nn.Module, source: str
) -> tuple[dict[str, Tensor], list[str]]:
    """Return what a file holds beside the weights of a module: the tensors inside parts that the
    module has, and the names of all others.
    """
    state = tensor_state(module)
    wrapper = match.wrapper
    if not wrapper and all(name.startswith("model.") for name in state):
        wrapper = "model."
    flat_names = [_flat(name) for name in state]
    inside: dict[str, Tensor] = {}
    left_out: list[str] = []
    for name, tensor in match.others.items():
        part = name.removeprefix(wrapper).partition(".")[0]
        flat_part = _flat(f"{wrapper}{part}.")
        in_own_part = part.isdigit() or any(
            own_name.startswith(flat_part) for own_name in flat_names
        )
        if _is_derived(name, tensor, module, source) or not in_own_part:
            left_out.append(name)
        else:
            inside[name] = tensor
    return inside, left_out


def _is_derived(name: str, tensor: Tensor, module: nn.Module, source: str) -> bool:
    """Return whether a module makes a tensor itself that it does not store: extra state, or a
    buffer with these values.

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
