"""Batch norms taken into the convolutions before them, for networks that are evaluated alone."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

NORMS = (nn.BatchNorm2d, BatchNormAct2d)
"""The classes, not those derived from them, which may do anything: an affine map, and in timm's dropout and an activation after it."""


@contextlib.contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable[..., None]) -> Iterator[None]:
    """Call a hook with the module, the inputs and the output of each call of some modules."""
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(hook).remove)
        yield


def fold_norms(network: nn.Module, images: Tensor, keep: Collection[str] = ()) -> nn.Module:
    """Return a copy in eval mode whose convolutions do what the batch norms after them did, so that maps are read and written less often;
    the network itself where it has none.

    Which norm follows which convolution is seen on ``images``. A pair stays where one of the two is called more than once, and where
    a module named in ``keep``, whose outputs are wanted, holds the convolution and not the norm. Compare what the two networks give: a
    network may use the outputs of a convolution otherwise, too.
    """
    if not any(type(module) in NORMS for module in network.modules()):
        return network.eval()
    folded = copy.deepcopy(network).eval()
    names = {module: name for name, module in folded.named_modules()}
    norms = {module for module in names if type(module) in NORMS and module.running_mean is not None}
    calls, made = Counter[nn.Module](), dict[int, tuple[nn.Module, Tensor]]()
    pairs = list[tuple[Any, Any]]()

    def seen(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        calls[module] += 1
        if module not in norms:
            made[id(output)] = module, output  # with the output, whose number no other may get
        elif id(inputs[0]) in made:
            pairs.append((made[id(inputs[0])][0], module))

    with hooked([m for m in names if m in norms or isinstance(m, nn.Conv2d)], seen), torch.inference_mode():
        folded(images)
    of_conv = Counter(conv for conv, _ in pairs)
    for conv, norm in pairs:
        cut = any(f"{names[conv]}.".startswith(f"{k}.") and not f"{names[norm]}.".startswith(f"{k}.") for k in keep)
        if calls[conv] == calls[norm] == of_conv[conv] == 1 and not cut:
            folded.set_submodule(names[conv], fuse_conv_bn_eval(conv, norm))
            folded.set_submodule(names[norm], nn.Sequential(OrderedDict(norm.named_children())))
    return folded
