"""Features of named modules of a network, for scores that ask how near a frame is to the training
frames.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from segunc.core.errors import InputError, one_line
from segunc.networks.network import SegmentationNetwork

NORMS = (nn.BatchNorm2d, BatchNormAct2d)
"""The classes, not those derived from them, which may do anything: an affine map, and in timm's
dropout and an activation after it.
"""


@contextlib.contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable[..., None]) -> Iterator[None]:
    """Call a hook with the module, the inputs and the output of each call of some modules."""
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(hook).remove)
        yield


class SecondEncoder(nn.Module):
    """The second encoder, one of timm beside the network, of images ``[n, 3, H, W]`` in 0..1; it is
    never trained. Weights are random, or ``pretrained`` ones that timm downloads.
    """

    encoder: Any  # timm's networks have more than a Module

    def __init__(
        self, name: str, mean: Sequence[float], std: Sequence[float], *, pretrained: bool = False
    ) -> None:
        super().__init__()
        if not timm.is_model(name) or ":" in name or "/" in name:
            near = difflib.get_close_matches(name, timm.list_models(), cutoff=0.3)
            raise InputError(
                f"timm has no encoder '{name}'", hint=f"{', '.join(near)}, or own, for instance"
            )
        try:
            try:
                self.encoder = timm.create_model(
                    name, pretrained, num_classes=0, dynamic_img_size=True
                )
            except TypeError:  # of transformers alone
                self.encoder = timm.create_model(name, pretrained, num_classes=0)
        except InputError:
            raise
        except Exception as error:  # the hub's client and its HTTP library have no common exception
            message = f"weights of {name} cannot be downloaded ({one_line(error)})"
            raise InputError(message, hint="--features.weights FILE") from error
        self.mean, self.std = (
            nn.Buffer(torch.tensor(v).view(3, 1, 1), persistent=False) for v in (mean, std)
        )
        patch = getattr(getattr(self.encoder, "patch_embed", None), "patch_size", (1, 1))
        self._patch = (patch, patch) if isinstance(patch, int) else patch

    @property
    def deepest(self) -> str:
        """The module that makes the last map."""
        return f"encoder.{self.encoder.feature_info[-1]['module']}"

    def folded(self, layers: Sequence[str]) -> nn.Module:
        """Return a copy without batch norms that makes the same maps of these layers
        (:func:`fold_norms`), or itself where it would not.
        """
        images = torch.rand(
            1,
            *self.encoder.pretrained_cfg["input_size"],
            generator=torch.Generator().manual_seed(0),
        )
        quick = fold_norms(self, images, layers)
        if quick is self:
            return self
        with torch.inference_mode():
            pairs = zip(
                *(FeatureExtractor(network, layers)(images) for network in (self, quick)),
                strict=True,
            )
            same = all(
                (a - b).abs().max() <= 1e-4 * a.abs().max() for a, b in pairs
            )  # 5e-6 is usual
        return quick if same else self

    def forward(self, images: Tensor) -> Any:
        whole = [
            side // patch * patch
            for side, patch in zip(images.shape[-2:], self._patch, strict=True)
        ]
        if 0 in whole:
            raise _too_small(images)
        if whole != list(images.shape[-2:]):
            images = F.interpolate(images, whole, mode="bilinear")
        return self.encoder.forward_features((images - self.mean) / self.std)


class FeatureExtractor(nn.Module):
    """Extract feature maps ``[n, D, h, w]`` of modules of a network of images ``[n, 3, H, W]`` in
    0..1, which is run no further than the last of them. Outputs of ``layers`` are such maps, or
    tokens ``[n, T, D]`` of patches; images are resized (bilinearly) by each of ``sizes``.
    """

    def __init__(
        self, network: nn.Module, layers: Sequence[str], sizes: Sequence[float] = (1.0,)
    ) -> None:
        super().__init__()
        self.network, self.layers, self.sizes = network.eval(), tuple(layers), tuple(sizes)
        modules = dict(network.named_modules())
        for layer in self.layers:
            if layer not in modules or not layer:
                near = difflib.get_close_matches(layer, modules, cutoff=0.3) or list(modules)[-3:]
                raise InputError(
                    f"the network has no layer '{layer}'", hint=f"{', '.join(near)}, for instance"
                )

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the maps of each layer at the first size, then at the second, and so on."""
        maps = []
        for size in self.sizes:
            sides = [_times(side, size) for side in images.shape[-2:]]
            resized = (
                images
                if size == 1
                else F.interpolate(images, sides, mode="bilinear", antialias=size < 1)
            )
            maps += self._maps(resized)
        return maps

    def extents(self, images: Tensor) -> list[tuple[int, int]]:
        """Return (height, width) in pixels of the images that each map covers: a network may pad
        what it sees below and at the right.
        """
        stride = self.network.stride if isinstance(self.network, SegmentationNetwork) else 1
        extents = []
        for size in self.sizes:
            seen = ((side, _times(side, size)) for side in images.shape[-2:])
            height, width = (
                (2 * side * (n + -n % stride) + n) // (2 * n) for side, n in seen
            )  # rounded
            extents += [(height, width)] * len(self.layers)
        return extents

    def _maps(self, images: Tensor) -> list[Tensor]:
        outputs: dict[str, Any] = {}
        names = {
            module: name for name, module in self.network.named_modules() if name in self.layers
        }

        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            outputs.setdefault(names[module], output)
            if len(outputs) == len(names):
                raise _Complete

        with contextlib.suppress(_Complete), hooked(names, keep):
            self.network(images)
        if lacking := [name for name in self.layers if name not in outputs]:
            raise InputError(f"the network never calls its layer '{lacking[0]}'")
        return [self._map(name, outputs[name], images) for name in self.layers]

    def _map(self, name: str, output: Any, images: Tensor) -> Tensor:
        if isinstance(output, tuple) and output:
            output = output[0]
        shape = tuple(getattr(output, "shape", ()))
        features: Tensor = output
        if len(shape) == 4:
            if 0 in shape[2:]:
                raise _too_small(images)
            return features
        if len(shape) == 3:  # class and register tokens stand before those of the patches
            height, width = images.shape[-2:]
            counts = [
                getattr(module, "num_prefix_tokens", None) for module in self.network.modules()
            ]
            prefixes = {count for count in counts if isinstance(count, int)}
            for side in range(4, 65):
                rows, columns = height // side, width // side
                if shape[1] - rows * columns in (prefixes or (0, 1)):
                    patches = features[:, shape[1] - rows * columns :].transpose(1, 2)
                    return patches.reshape(*patches.shape[:2], rows, columns)
        message = f"layer '{name}' gives {shape or type(output).__name__} for images of {tuple(images.shape)}"
        raise InputError(
            f"{message}, neither maps [n, D, h, w] nor tokens [n, T, D]", hint="name another layer"
        )


def _times(side: int, size: float) -> int:
    """Return a side of an image that is resized; of whole factors by whole numbers, as a graph of
    frames of any size has them.
    """
    return side * int(size) if size == int(size) else max(1, round(side * size))


class _Complete(Exception):
    pass


def _too_small(images: Tensor) -> InputError:
    height, width = images.shape[-2:]
    return InputError(
        f"an image of {height} x {width} is smaller than the stride of the encoder",
        hint="enlarge it",
    )


def deepest_layer(network: nn.Module, encoder: nn.Module) -> str:
    """Return the name in ``network`` of the module that makes the last and deepest map of an
    encoder of smp.
    """
    names = {module: name for name, module in network.named_modules()}
    made: list[tuple[str, Any]] = []
    device = next(encoder.parameters()).device
    with (
        hooked(encoder.modules(), lambda m, _, output: made.append((names[m], output))),
        torch.inference_mode(),
    ):
        last = encoder.eval()(torch.zeros(1, 3, 64, 64, device=device))[-1]
    same = [name for name, output in made if output is last]
    if not same:
        raise InputError(
            f"the deepest layer of {type(encoder).__name__} is unknown",
            hint="name it: --features.layers",
        )
    return min(same, key=len)


def fold_norms(network: nn.Module, images: Tensor, keep: Collection[str] = ()) -> nn.Module:
    """Return a copy in eval mode whose convolutions do what the batch norms after them did, as is
    seen on ``images``. A pair stays where one of the two is called more than once, and where a
    module named in ``keep`` holds the convolution and not the norm.
    """
    if not any(type(module) in NORMS for module in network.modules()):
        return network.eval()
    folded = copy.deepcopy(network).eval()
    names = {module: name for name, module in folded.named_modules()}
    norms = {
        module for module in names if type(module) in NORMS and module.running_mean is not None
    }
    calls, made = Counter[nn.Module](), dict[int, tuple[nn.Module, Tensor]]()
    pairs = list[tuple[Any, Any]]()

    def seen(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        calls[module] += 1
        if module not in norms:
            made[id(output)] = module, output  # with the output, whose number no other may get
        elif id(inputs[0]) in made:
            pairs.append((made[id(inputs[0])][0], module))

    with (
        hooked([m for m in names if m in norms or isinstance(m, nn.Conv2d)], seen),
        torch.inference_mode(),
    ):
        folded(images)
    of_conv = Counter(conv for conv, _ in pairs)
    for conv, norm in pairs:
        cut = any(
            f"{names[conv]}.".startswith(f"{k}.") and not f"{names[norm]}.".startswith(f"{k}.")
            for k in keep
        )
        if calls[conv] == calls[norm] == of_conv[conv] == 1 and not cut:
            folded.set_submodule(names[conv], fuse_conv_bn_eval(conv, norm))
            folded.set_submodule(names[norm], nn.Sequential(OrderedDict(norm.named_children())))
    return folded
