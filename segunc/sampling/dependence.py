"""What the code of a network does with values that depend on the frame or on the draw, found in one
watched pass.

Shortcuts of the sampler are sound only where another frame, or another draw, takes the same way
through the network's code. Function modes of torch see each call of Python code, but not what runs
inside TorchScript or compiled extensions. A mark on a tensor object is lost there, and also by
``.data`` or a deep copy. So this module follows three things that do not get lost:

* **Memory.** A value depends on the frame where its storage was written from dependent values.
  Views, detached tensors and ``.data`` share their storage, whatever object they come as. Memory
  that was allocated and not filled counts as dependent, because a kernel that is not seen may fill
  it: fused kernels of TorchScript and Triton do.
* **Operators.** A dispatch mode sees every operator, also of scripted code. An operator that hands
  a dependent value to the host is a read: torch tags those whose result, or whose shape, depends on
  values. Any other way out of a tensor into Python (``numpy``, ``tolist``, ``repr``, a pointer) is
  a function that returns no tensor and is not in :data:`METADATA`.
* **What no function mode saw.** An operator that arrives while no function of torch runs comes from
  code that function modes cannot follow. The sampler then shares nothing between draws, because
  sharing replaces results of functions.

Version counters of tensors would not do in place of the operators: tensors made in inference mode
have none.

What stays unknown: an extension that takes a pointer without any function of torch, and values that
Python keeps between calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

METADATA = {
    "__get__",
    "__hash__",
    "__len__",
    "__dlpack_device__",
    "__set__",
    "can_cast",
    "dense_dim",
    "dim",
    "dim_order",
    "element_size",
    "get_device",
    "ndimension",
    "nelement",
    "numel",
    "result_type",
    "size",
    "sparse_dim",
    "storage_offset",
    "storage_type",
    "stride",
    "type",
}
"""Functions that return no tensor and look at no value. Further ones are those whose names begin
with ``is_``.
"""
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_TRAINING_ARGUMENTS = ("training", "train")


class Memory:
    """A set of storages, held weakly: it keeps no memory alive."""

    def __init__(self) -> None:
        # The weak reference keeps the address of a storage that is gone from being used again.
        self._storages: dict[int | None, StorageWeakRef] = {}

    def add(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            address = _storage_address(tensor)
            if address is not None and address not in self._storages:
                reference: Any = StorageWeakRef
                self._storages[address] = reference(tensor.untyped_storage())

    def __bool__(self) -> bool:
        return bool(self._storages)

    def remove(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._storages.pop(_storage_address(tensor), None)

    def holds(self, tensors: Iterable[Tensor]) -> bool:
        """Return whether one of some tensors lies in it; one without a storage (sparse, oneDNN)
        counts as if it does.
        """
        addresses = [_storage_address(tensor) for tensor in tensors]
        return any(address is None or address in self._storages for address in addresses)


def _storage_address(tensor: Tensor) -> int | None:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


class DependenceWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what depends on the frame or the draw through the operators of a pass, while it is
    open.

    Attributes:
        reads: whether code of the network read dependent values, so that another frame or draw may
            take another branch.
        unseen: the module in which an operator ran that no function mode saw, or "".
        training: the module and the operator that computed as in training (dropout, batch
            statistics), or "".
        random: the module and the operator that drew random numbers, or "".
        written: the memory of ``guarded`` tensors was changed, or used by code that function modes
            do not see.
        rewritten: the memory of ``weights`` was changed, so that they are computed in each pass.
        unread: the memory of affines whose values no function has read that a function mode saw. A
            thread of the network's own reads without being seen, by this mode, too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dependent = Memory()
        self.guarded = Memory()
        self.weights = Memory()
        self.unread = Memory()
        self.reads = False
        self.written = False
        self.rewritten = False
        self.unseen = ""
        self.training = ""
        self.random = ""
        self._functions = 0  # functions of torch that run at the moment, one within the other
        self._composites = 0  # operators made of others that run at the moment, likewise

    @contextmanager
    def function(self) -> Iterator[None]:
        """While open, a function runs that a function mode saw."""
        self._functions += 1
        try:
            yield
        finally:
            self._functions -= 1

    @contextmanager
    def _composite(self) -> Iterator[None]:
        """While open, an operator runs that is made of others."""
        self._composites += 1
        try:
            with self.function():
                yield
        finally:
            self._composites -= 1

    def after_function(self, func: Callable[..., Any], inputs: list[Tensor], output: Any) -> None:
        """Take what a function that a function mode saw made of its inputs."""
        if not _is_metadata(func.__name__) and func.__name__ != "__get__":
            self.unread.remove(inputs)
        if func is torch.addcmul:
            self.unread.add([output])
        if not self.dependent.holds(inputs):
            return
        outputs = list(tensors_in([output]))
        self.dependent.add(outputs)
        name = func.__name__
        if not outputs and output is not None and not _is_metadata(name):
            self.reads = True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            inputs = list(tensors_in((*args, *kwargs.values())))
            depends = self.dependent.holds(inputs)
            if self._functions == 0:
                self.unseen = self.unseen or running_module()
                self.written |= self.guarded.holds(inputs)
            self._look_at_chance(func, arguments_of(func, args, kwargs), depends=depends)
            if _is_composite(func):
                # In inference mode such an operator arrives whole; what it is made of may read
                # values.
                with self._composite(), self:
                    output = func._op_dk(_COMPOSITE, *args, **kwargs)
            else:
                output = func(*args, **kwargs)
                self.reads |= depends and self._is_read(func, args)
            self._follow(func, args, kwargs, output, depends=depends)
        return output

    def _look_at_chance(self, func: Any, named: dict[str, Any], *, depends: bool) -> None:
        """Note whether an operator computes as in training, or draws random numbers."""
        # What an operator is made of may be told to train: an instance norm calls a batch norm so.
        asked_for = depends and self._composites == 0
        if asked_for and _computes_as_in_training(named):
            self.training = self.training or f"{running_module()}, {func.overloadpacket}"
        elif torch.Tag.nondeterministic_seeded in func.tags and not _is_switched_off(named):
            self.random = self.random or f"{running_module()}, {func.overloadpacket}"

    def _is_read(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Return whether an operator hands values, or a shape that depends on them, to the host."""
        if torch.Tag.data_dependent_output in func.tags:
            return True
        if torch.Tag.dynamic_output_shape in func.tags:
            if func.overloadpacket is not torch.ops.aten.index:
                return True
            indices = tensors_in([args[1]])
            masks = [index for index in indices if index.dtype in (torch.bool, torch.uint8)]
            return self.dependent.holds(masks)
        if func.namespace in ("aten", "prim"):
            return False
        # Operators of other libraries have no tags.
        returned = [str(result.type) for result in func._schema.returns]
        return bool(returned) and not any("Tensor" in kind for kind in returned)

    def _follow(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
        *,
        depends: bool,
    ) -> None:
        """Take what an operator wrote, and what it returned, to the dependent memory."""
        changed: list[Tensor] = []
        if func._schema.is_mutable:
            named = arguments_of(func, args, kwargs)
            for argument in func._schema.arguments:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    changed += tensors_in([named.get(argument.name)])
        self.written |= bool(changed) and self.guarded.holds(changed)
        self.rewritten |= bool(changed) and self.weights.holds(changed)
        name = func.overloadpacket.__name__
        uninitialised = "empty" in name or name.startswith("resize")
        if depends or uninitialised:
            self.dependent.add(changed)
            self.dependent.add(tensors_in([output]))


def _computes_as_in_training(named: dict[str, Any]) -> bool:
    """Return whether arguments of an operator ask for dropout or for statistics of the batch."""
    if named.get("dropout_p", 0.0) != 0.0:
        return True
    share = named.get("dropout_p", named.get("p"))
    in_training = any(named.get(name) is True for name in _TRAINING_ARGUMENTS)
    return in_training and share != 0.0


def _is_switched_off(named: dict[str, Any]) -> bool:
    """Return whether arguments of an operator that may draw random numbers say that it does not."""
    switches = (*_TRAINING_ARGUMENTS, "dropout_p", "p")
    return any(name in named and not named[name] for name in switches)


def arguments_of(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of an operator by the names of its schema, with their defaults."""
    names = []
    defaults = {}
    for argument in operator._schema.arguments:
        names.append(argument.name)
        if argument.has_default_value():
            defaults[argument.name] = argument.default_value
    return defaults | dict(zip(names, args, strict=False)) | kwargs


def _is_composite(func: Any) -> bool:
    """Return whether an operator is made of others; those of TorchScript alone (``prim``) have no
    kernels to ask for.
    """
    if func.namespace == "prim":
        return False
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE)


def _is_metadata(name: str) -> bool:
    return name in METADATA or (name.startswith(("is_", "_is_")) and name != "is_nonzero")


def running_module() -> str:
    """Return the type of the innermost module whose code runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module):
            return str(getattr(module, "original_name", type(module).__name__))
        frame = frame.f_back
    return "network"


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among some values and in lists, tuples and dictionaries of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())
