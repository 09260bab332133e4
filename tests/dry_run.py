"""A GPU that is not here: PyTorch's fake tensors on a CUDA device, and every place where the host
waits for it.

A GPU is waited for where a number is read back, and by a copy that is not queued: to the device
from memory that is not pinned, or to the host. Such places are written down by file and function of
the package, and the run goes on with a made-up number.
"""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import segunc

PACKAGE = Path(segunc.__file__).parent
CUDA = torch.device("cuda", 0)
Place = tuple[str, str]
"""A file of the package, and a function in it."""
ANSWERS: Mapping[Place, Any] = {
    ("affine/draws.py", "AffineLayout._agreeing_sites"): False,
    ("networks/network.py", "softmax_output"): False,
    ("networks/network.py", "_kind_of"): False,
    ("training/losses.py", "check_labels"): False,
}
"""What is read back where it matters: draws differ, logits are no probabilities. Elsewhere flags
are set, and numbers are 0.
"""


class Waits(TorchDispatchMode):
    """Writes down where the host waits for a fake GPU: ``places`` with their lines."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[Place, set[int]] = {}

    def taken(self) -> dict[Place, set[int]]:
        """The places so far, which are forgotten."""
        found, self.places = self.places, {}
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        # Compound operations arrive whole in inference mode, and so does `to` of a tensor that was
        # made there.
        if func.namespace == "aten" and (torch.is_inference_mode_enabled() or name == "to"):
            with self:
                output = func.decompose(*args, **kwargs)
            if output is not NotImplemented:
                return output
        if name in ("_to_copy", "copy_") and not self._queued(name, args, kwargs):
            self._note()
        elif any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in tree_leaves((args, kwargs))):
            if name in ("item", "_local_scalar_dense"):
                return ANSWERS.get(self._note(), args[0].dtype == torch.bool)
            if name == "equal":
                return bool(self._note())
            if _waits_inside(name, args):
                self._note()
            masks = (
                [i for i in args[1] if i is not None and i.dtype == torch.bool]
                if name == "index"
                else []
            )
            if masks:  # how many are chosen; here all
                return args[0].flatten(0, masks[0].dim() - 1).clone()
        elif name in ("item", "_local_scalar_dense"):
            return args[0].dtype == torch.bool  # of the host's own memory
        return func(*args, **kwargs)

    @staticmethod
    def _queued(name: str, args: Any, kwargs: Any) -> bool:
        """Whether a copy does not wait: within one device; from pinned memory; or to the host, into
        memory that PyTorch pins itself.
        """
        source, target = (
            (args[0], kwargs.get("device")) if name == "_to_copy" else (args[1], args[0].device)
        )
        if target is None or source.device.type == torch.device(target).type:
            return True
        asked = kwargs.get("non_blocking") or (name == "copy_" and args[2:] == (True,))
        return bool(asked) and (
            getattr(source, "pinned", False) or (source.is_cuda and name == "_to_copy")
        )

    def _note(self) -> Place:
        frame: Any = sys._getframe(1)
        wrappers = ("__torch_function__", "_call")
        while (
            not frame.f_code.co_filename.startswith(str(PACKAGE))
            or frame.f_code.co_name in wrappers
        ):
            frame = frame.f_back
        name = frame.f_code.co_qualname.partition(".<locals>")[0]
        place = Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix(), name
        self.places.setdefault(place, set()).add(frame.f_lineno)
        return place


def _waits_inside(name: str, args: Any) -> bool:
    """Whether PyTorch itself reads a number back, or copies an index from the host, for an
    operation on a GPU.
    """
    if name in ("index", "index_put", "index_put_"):
        chosen = [index for index in args[1] if index is not None]
        filled = (
            name != "index" and args[2].numel() == 1 and not args[2].is_cuda
        )  # becomes masked_fill
        return any(
            not index.is_cuda or (index.dtype == torch.bool and not filled) for index in chosen
        )
    if name in ("masked_fill", "masked_fill_"):
        return isinstance(args[2], Tensor) and args[2].is_cuda
    return name == "_linalg_check_errors"


class Unordered:
    """A stream or an event that orders nothing."""

    def __init__(self, *_: Any) -> None: ...
    def wait_stream(self, other: Any) -> None: ...
    def record_event(self) -> "Unordered":
        return self

    def synchronize(self) -> None: ...


def _pinned(tensor: Tensor) -> Tensor:
    copied: Any = tensor.clone()
    copied.pinned = True
    return copied  # type: ignore[no-any-return]


WITHOUT_DEVICE = {
    (torch.cuda, "Stream"): Unordered,
    (torch.cuda, "Event"): Unordered,
    (torch.cuda, "current_stream"): Unordered,
    (torch.cuda, "stream"): lambda stream: contextlib.nullcontext(),
    (torch.cuda, "device_of"): lambda tensor: contextlib.nullcontext(),
    (torch.cuda, "is_bf16_supported"): lambda: True,
    (torch.cuda.amp.common, "amp_definitely_not_available"): lambda: False,  # autocast
    (torch.cuda, "mem_get_info"): lambda device: (1 << 33, 1 << 34),
    (torch.cuda, "memory_reserved"): lambda device: 0,
    (torch.cuda, "memory_allocated"): lambda device: 0,
    (Tensor, "record_stream"): lambda tensor, stream: None,
    (Tensor, "pin_memory"): _pinned,
}
"""All that needs a driver and is left out: the order of streams, pinned memory, what the device can
do and how much memory is free.
"""


@contextlib.contextmanager
def fake_gpu() -> Iterator[Waits]:
    """Meanwhile every tensor that is made is a fake one."""
    with pytest.MonkeyPatch.context() as patch:
        for (owner, name), stand_in in WITHOUT_DEVICE.items():
            patch.setattr(owner, name, stand_in)
        with FakeTensorMode(allow_non_fake_inputs=True), Waits() as waits:
            yield waits


def on_gpu(given: Any) -> Any:
    """Tensors, or modules (changed in place, what they share stays shared), made on the CPU, as
    fakes on a CUDA device.
    """
    if isinstance(given, Tensor):
        moved = torch.empty_like(given, device=CUDA)
        return (
            nn.Parameter(moved, given.requires_grad) if isinstance(given, nn.Parameter) else moved
        )
    if isinstance(given, Mapping):
        return {name: on_gpu(value) for name, value in given.items()}
    held: dict[int, Tensor] = {}
    for module in (
        module
        for one in (given if isinstance(given, list) else [given])
        for module in one.modules()
    ):
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and not tensor.is_cuda:
                    tensors[name] = held.setdefault(id(tensor), on_gpu(tensor))
    return given
