"""Read networks that others trained: what stands behind ``segunc import SOURCE:NAME``. A source
makes a description and, where it holds them, the weights; nothing is guessed that it does not say.
An entry of :data:`segunc.networks.model_folder.KINDS` builds the network.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from segunc.core.errors import InputError, NoteWarning, one_line
from segunc.core.registry import Registry
from segunc.core.trust import Code, check_agreed, find_code, imported, settle_trust
from segunc.networks.description import LIBRARIES, NetworkDescription
from segunc.networks.endings import last_function
from segunc.networks.network import SegmentationNetwork, check_logits, note_on_outputs
from segunc.networks.weights import tensor_state
from segunc.uncertainty import relative_difference

NEEDED = {
    "classes": ("class names", "--classes NAME|CSV"),
    "mean": ("mean of the input normalisation", "--mean R,G,B"),
    "std": ("std of the input normalisation", "--std R,G,B"),
}
"""Attributes that no description lacks: what they are, and the option that gives them."""

STATED = {"classes": "classes", "mean": "mean", "std": "std", "size": "inference_size"}
"""What a factory can state of its network: the attribute of the description of each."""

MAX_NAMED = 5
"""Functions and classes of a module that a message names."""


@dataclass(frozen=True)
class Wishes:
    """What the user says about a network; None where they leave it to the source."""

    classes: tuple[str, ...] | None = None  # names in the order of the logits
    palette: tuple[tuple[int, int, int], ...] = ()  # their colours 0..255, or none
    # Input normalisation of images in 0..1, a number for each channel.
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    inference_size: tuple[int, int] | None = None  # (height, width)
    arguments: Mapping[str, Any] = field(default_factory=dict)  # for the factory
    state: Mapping[str, Tensor] | None = None  # the weights of a file, by name
    trust: bool = False  # whether the user agrees now that a factory of their own is run

    def description(self, kind: str, architecture: str, **source_values: Any) -> NetworkDescription:
        """Return the description of a network.

        Args:
            kind: of :data:`segunc.networks.model_folder.KINDS`.
            architecture: the network's name there.
            source_values: further attributes of the description, as the source has them; None where
                it says nothing. What the user says comes before them.

        Raises:
            InputError: neither knows the classes or the input normalisation.
        """
        values = {name: value for name, value in source_values.items() if value is not None}
        self._note_order(f"{kind}:{architecture}", values.get("classes"))
        for name in ("classes", "mean", "std", "inference_size"):
            wish = getattr(self, name)
            if wish is not None:
                values[name] = wish
        if self.classes is not None:  # the source's colours are those of its own classes
            values["palette"] = self.palette
        missing = [name for name in NEEDED if name not in values]
        if missing:
            meanings = ", ".join(NEEDED[name][0] for name in missing)
            options = " ".join(NEEDED[name][1] for name in missing)
            raise InputError(f"{kind}:{architecture} does not give its {meanings}", hint=options)
        encoder = values.pop("encoder", "")
        description = NetworkDescription(architecture, encoder, kind=kind, **values)
        if max(description.std) > 1:
            raise InputError(
                f"input std {description.std} is of images in 0..255, not 0..1",
                hint="divide mean and std by 255",
            )
        return description

    def _note_order(self, source: str, source_classes: Any) -> None:
        """Note classes that the user names in another order than the source
        (:class:`NoteWarning`): each output would then have the name of another one.
        """
        if self.classes is None or source_classes is None:
            return
        theirs = [str(name).casefold() for name in source_classes]
        wanted = [name.casefold() for name in self.classes]
        if theirs == wanted or sorted(theirs) != sorted(wanted):
            return
        pairs = zip(source_classes, self.classes, theirs, wanted, strict=True)
        first, named = next((own, name) for own, name, left, right in pairs if left != right)
        warnings.warn(
            f"{source} names its outputs in another order than --classes, which names the output "
            f"'{first}' '{named}': leave --classes out, unless the source is wrong",
            NoteWarning,
            stacklevel=2,
        )


class Found(NamedTuple):
    """A network as its source describes it."""

    description: NetworkDescription
    state: Mapping[str, Tensor] | None = None  # None where the source holds no weights
    notes: tuple[str, ...] = ()  # what a user should know, and what the source assumes


Source = Callable[[str, Wishes], Found]
"""From what stands behind the colon and what the user says, to the network; raises InputError."""
SOURCES: Registry[Source] = Registry(
    "source of networks",
    "segunc.sources",
    {name: f"segunc.networks.{name}:read" for name in LIBRARIES}
    | {
        "python": "segunc.networks.import_sources:read_python",
        "hf": "segunc.networks.transformers:read",
    },
)


def read_source(kind: str, name: str, wishes: Wishes, *, seed: int = 0) -> Found:
    """Return a network by its source.

    Args:
        kind: of :data:`SOURCES`.
        name: what stands behind the colon.
        wishes: what the user says.
        seed: of torch's random numbers meanwhile, so that the same seed gives the same weights even
            to a network that was never trained.

    Raises:
        InputError: there is no such source or network, or it does not give what is needed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return SOURCES[kind](name, wishes)


def untrained_weights(kind: str, name: str, wishes: Wishes, state: Mapping[str, Tensor]) -> str:
    """Return a sentence on weights that a source draws at random, empty if there are none.

    Such weights differ if the network is read again with another seed.

    Args:
        kind, name, wishes: see :func:`read_source`.
        state: the weights as :func:`read_source` gives them.
    """
    again = read_source(kind, name, wishes, seed=1).state or {}
    drawn = []
    for tensor_name, tensor in state.items():
        if tensor_name not in again or not torch.equal(tensor, again[tensor_name]):
            drawn.append(tensor_name)
    if not drawn:
        return ""
    return (
        f"UNTRAINED: {len(drawn)} of {len(state)} tensors of {kind}:{name} are random numbers, "
        f"such as {drawn[0]}, so its prediction and its maps mean nothing; "
        "give the trained weights by segunc import --weights FILE"
    )


SMALL = (128, 192)  # (height, width) of a frame, which strides of 64 divide
BATCH_ROUNDING = 1e-2
"""Share of the largest logit by which those of a frame may depend on its batch: kernels for another
batch size differ by rounding, the more the deeper the network.
"""


# Without inference mode: what a network keeps of its first pass may be trained later.
@torch.no_grad()
def check_network(network: SegmentationNetwork) -> list[str]:
    """Try a network on frames before anything is made of it, in no more memory than it takes to
    predict one frame.

    Returns:
        notes on what was taken for the logits, and on log-probabilities or outputs in 0..1.

    Raises:
        InputError: it is not a function of each frame alone, from ``[N, K, H, W]`` to finite logits
            ``[N, C, H, W]``.
    """
    size = network.description.inference_size or SMALL
    network.eval()
    channels = network.description.channels
    frames = _random_frames(1, channels, size)
    try:
        logits = network(frames)
    except InputError:
        raise
    except Exception as error:  # whatever somebody else's forward raises
        message = f"the network fails on a frame of {size[0]} x {size[1]} ({one_line(error)})"
        hint = "give the size it was made for: --size HxW"
        taken = _channels_taken(network.body)
        if taken not in (None, channels):
            hint = f"give mean and std {taken} numbers each, one for each channel"
        raise InputError(message, hint=hint) from error
    if not torch.isfinite(logits).all():
        raise InputError("the network gives logits that are not finite")
    _check_batches(network, size)
    notes = [note_on_outputs(network, frames)]
    notes.append(check_logits(network, logits, frames))
    _refuse_probabilities(network, frames)
    return [note for note in notes if note]


def _channels_taken(body: nn.Module) -> int | None:
    """Return the number of channels that the first convolution of a network takes; None where it
    has no convolution.
    """
    for layer in body.modules():
        if isinstance(layer, nn.Conv2d):
            return layer.in_channels
    return None


def _random_frames(count: int, channels: int, size: tuple[int, int]) -> Tensor:
    """Return the same frames ``[count, channels, H, W]`` float32 in 0..1 in every call."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, channels, *size, generator=generator, dtype=torch.float32)


def _check_batches(network: SegmentationNetwork, size: tuple[int, int]) -> None:
    """Raise InputError where the logits of a frame depend on the other frames of its batch.

    Two small frames are tried. Two of ``size`` need twice the memory of one, so they are tried only
    where the network does not take small ones.
    """
    for height, width in (SMALL, size):
        frames = _random_frames(2, network.description.channels, (height, width))
        try:
            both = network(frames)
            single = network(frames[1:])
        except Exception as error:  # whatever somebody else's forward raises
            if (height, width) != size:
                continue
            message = f"the network fails on two frames of {height} x {width} ({one_line(error)})"
            raise InputError(message, hint="let it take batches of any number of frames") from error
        difference = relative_difference(both[1:], single)
        if difference > BATCH_ROUNDING:
            message = (
                "the logits of a frame depend on the other frames of its batch "
                f"(by {difference:.0%} of the largest)"
            )
            hint = "put it into eval mode inside its factory, or remove what mixes the batch"
            raise InputError(message, hint=hint)
        return


def _refuse_probabilities(network: SegmentationNetwork, frames: Tensor) -> None:
    """Raise InputError where the body of a network ends in a sigmoid or softmax, whatever the
    values are.
    """
    function = last_function(network.body, network.prepared(frames))
    if not function:
        return
    message = f"{type(network.body).__name__} ends in a {function}: its outputs are not logits"
    if "sigmoid" not in function:
        raise InputError(message, hint="leave its last softmax out")
    if network.description.binary:
        hint = "leave its last sigmoid out: one logit z is read as (0, z)"
    else:
        hint = (
            "leave its last sigmoid out, of a network that was trained with a softmax; "
            "several classes a pixel have no one prediction"
        )
    raise InputError(message, hint=hint)


def build_python(description: NetworkDescription) -> tuple[nn.Module, int]:
    """Return the body as the factory makes it, and its stride (``stride`` among the options, 1 if
    it is not given).
    """
    name = description.architecture
    options = description.options
    code = find_code(name)
    check_agreed(code, f"segunc import python:{name} --trust ...")
    body = _run(code, options.get("arguments", {}))
    return body, int(options.get("stride", 1))


def read_python(name: str, wishes: Wishes) -> Found:
    """Return a network by the name of its factory, which gets the arguments and returns a module.

    The factory can state what the user would have to say otherwise, by an attribute ``segunc``: a
    mapping with some of :data:`STATED`.
    """
    code = settle_trust(name, wishes.trust)
    arguments = dict(wishes.arguments)
    stride = int(arguments.pop("stride", 1))
    options = {"arguments": arguments, "stride": stride}
    description = wishes.description("python", name, options=options, **_stated(code))
    if wishes.state is not None:
        return Found(description)
    return Found(description, tensor_state(_run(code, arguments)))


def _stated(code: Code) -> dict[str, Any]:
    """Return what a factory states of its network, as attributes of a description.

    Raises:
        InputError: it states something else, or a value of another type.
    """
    try:
        with imported(code) as factory:
            stated = getattr(factory, "segunc", {})
    except Exception as error:  # whatever the user's code raises
        raise InputError(f"{code.name} raises {one_line(error)}") from error
    _check_callable(code, factory)
    if not isinstance(stated, Mapping) or not STATED.keys() >= stated.keys():
        message = f"{code.name}.segunc is {str(stated)[:80]}, not a mapping of {', '.join(STATED)}"
        raise InputError(message, hint=f'{code.name}.segunc = {{"classes": ["road", "car"]}}')
    values = {}
    for key, value in stated.items():
        try:
            values[STATED[key]] = tuple(value)
        except TypeError as error:
            message = f"{code.name}.segunc has {key} {value!r}, which is no list"
            raise InputError(message, hint="see segunc import --help") from error
    return values


def _run(code: Code, arguments: dict[str, Any]) -> nn.Module:
    """Return what the factory makes of its arguments."""
    name = code.name
    try:
        with imported(code) as factory:
            made = factory(**arguments) if callable(factory) else None
    except Exception as error:  # whatever the user's code raises
        raise InputError(f"{name} raises {one_line(error)}") from error
    _check_callable(code, factory)
    if not isinstance(made, nn.Module):
        raise InputError(
            f"{name} makes {type(made).__name__}, not a torch module",
            hint="name it as package.module:function",
        )
    return made


def _check_callable(code: Code, factory: Any) -> None:
    """Raise InputError where a factory is not a function or class of its module.

    Args:
        code: the name of the factory, whose module is imported.
        factory: what the module has under that name; None for nothing.
    """
    if callable(factory):
        return
    module, _, attribute = code.name.partition(":")
    fault = f"the module {module} has no function '{attribute}'"
    if factory is not None:
        fault = f"{code.name} is of type {type(factory).__name__}, not a function or class"
    names = _defined_in(module)
    if not names:
        raise InputError(
            f"{fault}, and defines no other one", hint="name it as package.module:function"
        )
    alike = get_close_matches(attribute, names)
    names = [*alike, *(name for name in names if name not in alike)]
    shown = ", ".join(names[:MAX_NAMED])
    if len(names) > MAX_NAMED:
        shown += f" and {len(names) - MAX_NAMED} more"
    raise InputError(f"{fault}, but {shown}", hint=f"python:{module}:{names[0]}")


def _defined_in(module: str) -> list[str]:
    """Return the names of the public functions and classes that an imported module, or a module
    below it, defines.
    """
    names = []
    for name, value in vars(sys.modules[module]).items():
        if name.startswith("_") or not isinstance(value, type | FunctionType):
            continue
        if f"{value.__module__}.".startswith(f"{module}."):
            names.append(name)
    return names
