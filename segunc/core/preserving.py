"""Leave a training as it was, whatever is computed in the middle of it: modes, tensors, gradients
and random numbers.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from segunc.core.modes import kept_modes

Restore = Callable[[], object]


@contextmanager
def preserve_training(*objects: Any) -> Iterator[None]:
    """Leave a training as it was when the block ends, also after an error.

    In the middle of a training loop, a model can be fitted and evaluated in this block. The
    training goes on bit for bit as if the block had not been there. Kept are:

    - of each network: the mode of every module, the parameters and buffers (values, device and
      memory layout), the gradients, and ``requires_grad``;
    - the random numbers of Python, NumPy and PyTorch (CPU, and CUDA where it is in use);
    - every random generator that an object holds, also in its attributes: the ``generator`` of a
      ``DataLoader`` or of its sampler, and those of the transforms of its data set;
    - autocast, the grad mode, and settings of the process such as the number of threads.

    Inside, gradients are enabled and autocast is off, and no parameter has a gradient (``grad`` is
    None). The values of the networks are held twice meanwhile. The position of an
    ``IterableDataset`` and the generators in persistent workers of a ``DataLoader`` cannot be kept:
    give the block another loader in their place.

    Args:
        objects: networks, data loaders, data sets and generators of the training.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> import segunc
        >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)).train()
        >>> before = torch.get_rng_state()
        >>> with segunc.preserve_training(net):
        ...     model = segunc.ABNN(alpha=0.1).fit(segunc.wrap(net, ["road", "other"]))
        ...     noise = torch.rand(8)
        >>> net.training
        True
        >>> torch.equal(torch.get_rng_state(), before)
        True
    """
    networks = [thing for thing in objects if isinstance(thing, nn.Module)]
    restores = [*_random_numbers(), *_settings_of_the_process()]
    restores += [_restore_of(source) for source in random_sources(objects)]
    tensors = _tensors_of(networks)
    restores += [_Kept(tensor).restore for tensor in tensors]
    for network in networks:
        restores += [restore_of_members(module) for module in network.modules()]
    with ExitStack() as stack:
        for restore in restores:
            stack.callback(restore)
        # The modes come back before the values: a module may change its weights with its mode.
        stack.enter_context(kept_modes(networks))
        for tensor in tensors:
            tensor.grad = None
        stack.enter_context(plain_computation())
        yield


@contextmanager
def plain_computation() -> Iterator[None]:
    """Compute with gradients, outside of inference mode and without autocast while open."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def kept_random_numbers() -> Iterator[None]:
    """Give the random numbers of Python, NumPy and PyTorch back as they were, also after an
    error.
    """
    with ExitStack() as stack:
        for restore in _random_numbers():
            stack.callback(restore)
        yield


class _Kept:
    """What a parameter or buffer was."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.memory = tensor.data
        self.values = tensor.detach().clone()
        self.gradient = tensor.grad
        self.requires_grad = tensor.requires_grad

    def restore(self) -> None:
        """Give the tensor its memory, values, gradient and ``requires_grad`` back."""
        # Another device or layout gave the tensor other memory.
        if self.tensor.data_ptr() != self.memory.data_ptr():
            self.tensor.data = self.memory
        # Without a new version of the tensor, which a graph of the training may hold. NaN is
        # unequal to itself, and is then written as it was.
        if not torch.equal(self.memory, self.values):
            self.memory.copy_(self.values)
        self.tensor.requires_grad_(self.requires_grad)
        self.tensor.grad = self.gradient


def _tensors_of(networks: Iterable[nn.Module]) -> list[Tensor]:
    """Return the parameters and buffers of networks that have values, each once."""
    tensors: dict[int, Tensor] = {}
    for network in networks:
        for tensor in (*network.parameters(), *network.buffers()):
            if not is_lazy(tensor):
                tensors[id(tensor)] = tensor
    return list(tensors.values())


def restore_of_members(module: nn.Module) -> Restore:
    """Return what gives a module its parameters and buffers back, where others took their names."""
    parameters = dict(module._parameters)
    buffers = dict(module._buffers)

    def restore() -> None:
        module._parameters.update(parameters)
        module._buffers.update(buffers)

    return restore


def _random_numbers() -> list[Restore]:
    """Return what restores the random numbers of the process."""
    restores: list[Restore] = [
        functools.partial(random.setstate, random.getstate()),
        # The transforms of users draw from it.
        functools.partial(np.random.set_state, np.random.get_state()),  # noqa: NPY002
        functools.partial(torch.set_rng_state, torch.get_rng_state()),
    ]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states = torch.cuda.get_rng_state_all()
        restores.append(functools.partial(torch.cuda.set_rng_state_all, states))
    return restores


def _settings_of_the_process() -> list[Restore]:
    """Return what restores the settings of PyTorch that hold for the whole process."""
    cudnn: Any = torch.backends.cudnn
    precision = torch.get_float32_matmul_precision()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return [
        functools.partial(torch.set_default_dtype, torch.get_default_dtype()),
        functools.partial(torch.set_num_threads, torch.get_num_threads()),
        functools.partial(torch.set_float32_matmul_precision, precision),
        functools.partial(
            torch.use_deterministic_algorithms, is_deterministic, warn_only=warns_only
        ),
        functools.partial(setattr, cudnn, "benchmark", cudnn.benchmark),
        functools.partial(setattr, cudnn, "deterministic", cudnn.deterministic),
    ]


RandomSource = random.Random | np.random.Generator | np.random.RandomState | torch.Generator
_PLAIN = (str, bytes, int, float, complex, type(None), type, ModuleType, Tensor, np.ndarray)
"""Types whose values hold no random generator of their own; they are most of what a data set
holds.
"""


def random_sources(objects: Iterable[Any]) -> list[RandomSource]:
    """Return the random generators that objects hold, also in attributes, lists and functions that
    were given arguments; each once.
    """
    found: list[RandomSource] = []
    seen: dict[int, Any] = {}  # holds the objects, so that no other takes their identity
    waiting = list(objects)
    while waiting:
        thing = waiting.pop()
        if isinstance(thing, _PLAIN) or id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, RandomSource):
            found.append(thing)
        else:
            waiting += _held_by(thing)
    return found


def _held_by(thing: Any) -> list[Any]:
    """Return what an object holds."""
    # Other mappings may read each value from a file.
    if isinstance(thing, dict):
        return list(thing.values())
    if isinstance(thing, list | tuple | set | frozenset):
        return list(thing)
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, MethodType):
        return [thing.__self__]
    if isinstance(thing, FunctionType):
        return list(inspect.getclosurevars(thing).nonlocals.values())
    return list(getattr(thing, "__dict__", {}).values())


def _restore_of(source: RandomSource) -> Restore:
    """Return what gives a random generator its state back."""
    if isinstance(source, random.Random):
        return functools.partial(source.setstate, source.getstate())
    if isinstance(source, np.random.RandomState):
        return functools.partial(source.set_state, source.get_state())
    if isinstance(source, np.random.Generator):
        state = source.bit_generator.state
        return functools.partial(setattr, source.bit_generator, "state", state)
    return functools.partial(source.set_state, source.get_state())


def seed_random_sources(objects: Iterable[Any], seed: int) -> None:
    """Start every random generator that objects hold from a seed, see :func:`random_sources`."""
    for source in random_sources(objects):
        if isinstance(source, torch.Generator):
            source.manual_seed(seed)
        elif isinstance(source, np.random.Generator):
            kind: Any = type(source.bit_generator)
            source.bit_generator.state = kind(seed).state
        else:
            source.seed(seed)
