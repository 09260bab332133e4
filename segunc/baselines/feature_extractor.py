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
from segunc.networks.network import SegmentationNetwork, channels_of
from segunc.networks.weights_packages import weights_hint

# Exactly these classes are folded: a class derived from them may do anything. timm's has dropout
# and an activation after the affine map.
NORMS = (nn.BatchNorm2d, BatchNormAct2d)


@contextlib.contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable[..., None]) -> Iterator[None]:
    """Call a hook with module, inputs and output after each call of one of the modules."""
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(hook).remove)
        yield


def _near_names(name: str, names: Collection[str]) -> list[str]:
    return difflib.get_close_matches(name, names, cutoff=0.3)


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
            near = _near_names(name, timm.list_models())
            raise InputError(
                f"timm has no encoder '{name}'", hint=f"{', '.join(near)}, or own, for instance"
            )
        self.encoder = self._create(name, pretrained)
        self.mean = nn.Buffer(torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.std = nn.Buffer(torch.tensor(std).view(3, 1, 1), persistent=False)
        patch = getattr(getattr(self.encoder, "patch_embed", None), "patch_size", (1, 1))
        self._patch = (patch, patch) if isinstance(patch, int) else patch

    @staticmethod
    def _create(name: str, pretrained: bool) -> Any:
        """Return an encoder of timm without its classifier."""
        try:
            try:
                return timm.create_model(name, pretrained, num_classes=0, dynamic_img_size=True)
            except TypeError:  # only transformers take dynamic_img_size
                return timm.create_model(name, pretrained, num_classes=0)
        except InputError:
            raise
        except Exception as error:  # the hub's client and its HTTP library have no common exception
            raise InputError(
                f"weights of {name} cannot be downloaded ({one_line(error)})",
                hint=weights_hint(name, "--features.weights") or "--features.weights FILE",
            ) from error

    @property
    def deepest(self) -> str:
        """The module that makes the last map."""
        return f"encoder.{self.encoder.feature_info[-1]['module']}"

    def folded(self, layers: Sequence[str]) -> nn.Module:
        """Return a copy without batch norms that makes the same maps of these layers
        (:func:`fold_norms`), or itself where the maps differ.
        """
        generator = torch.Generator().manual_seed(0)
        shape = self.encoder.pretrained_cfg["input_size"]
        images = torch.rand(1, *shape, generator=generator)
        quick = fold_norms(self, images, layers)
        if quick is self:
            return self
        with torch.inference_mode():
            expected = FeatureExtractor(self, layers)(images)
            features = FeatureExtractor(quick, layers)(images)
        for ours, quicks in zip(expected, features, strict=True):
            # A relative difference of 5e-6 is usual.
            if not (ours - quicks).abs().max() <= 1e-4 * ours.abs().max():
                return self
        return quick

    def forward(self, images: Tensor) -> Any:
        height, width = images.shape[-2:]
        patch_height, patch_width = self._patch
        whole = [height // patch_height * patch_height, width // patch_width * patch_width]
        if 0 in whole:
            raise _too_small(images)
        if whole != [height, width]:
            images = F.interpolate(images, whole, mode="bilinear")
        return self.encoder.forward_features((images - self.mean) / self.std)


class FeatureExtractor(nn.Module):
    """Extract feature maps ``[n, D, h, w]`` of modules of a network.

    The network, of images ``[n, 3, H, W]`` in 0..1, is run no further than the last of them.

    Args:
        layers: names of the modules; their outputs are such maps, or tokens ``[n, T, D]`` of
            patches.
        sizes: factors by each of which the images are resized (bilinearly).
    """

    def __init__(
        self, network: nn.Module, layers: Sequence[str], sizes: Sequence[float] = (1.0,)
    ) -> None:
        super().__init__()
        self.network = network.eval()
        self.layers = tuple(layers)
        self.sizes = tuple(sizes)
        modules = dict(network.named_modules())
        for layer in self.layers:
            if layer not in modules or not layer:
                near = _near_names(layer, modules) or list(modules)[-3:]
                raise InputError(
                    f"the network has no layer '{layer}'", hint=f"{', '.join(near)}, for instance"
                )

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the maps of each layer at the first size, then at the second, and so on."""
        maps = []
        for size in self.sizes:
            resized = images
            if size != 1:
                sides = [_times(side, size) for side in images.shape[-2:]]
                resized = F.interpolate(images, sides, mode="bilinear", antialias=size < 1)
            maps += self._maps(resized)
        return maps

    def extents(self, images: Tensor) -> list[tuple[int, int]]:
        """Return (height, width) in pixels of the images that each map covers: a network may pad
        what it sees below and at the right.
        """
        stride = self.network.stride if isinstance(self.network, SegmentationNetwork) else 1
        height, width = images.shape[-2:]
        extents = []
        for size in self.sizes:
            extent = (_covered(height, size, stride), _covered(width, size, stride))
            extents += [extent] * len(self.layers)
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
        for layer in self.layers:
            if layer not in outputs:
                raise InputError(f"the network never calls its layer '{layer}'")
        return [self._map(layer, outputs[layer], images) for layer in self.layers]

    def _map(self, layer: str, output: Any, images: Tensor) -> Tensor:
        """Return the output of a layer as maps ``[n, D, h, w]``."""
        if isinstance(output, tuple) and output:
            output = output[0]
        shape = tuple(getattr(output, "shape", ()))
        if len(shape) == 4:
            if 0 in shape[2:]:
                raise _too_small(images)
            features: Tensor = output
            return features
        maps = self._map_of_tokens(output, images) if len(shape) == 3 else None
        if maps is None:
            raise InputError(
                f"layer '{layer}' gives {shape or type(output).__name__} for images of "
                f"{tuple(images.shape)}, neither maps [n, D, h, w] nor tokens [n, T, D]",
                hint="name another layer",
            )
        return maps

    def _map_of_tokens(self, tokens: Tensor, images: Tensor) -> Tensor | None:
        """Return tokens ``[n, T, D]`` of square patches as maps; None where no size of patches
        fits. Class and register tokens stand before those of the patches.
        """
        height, width = images.shape[-2:]
        prefixes = set()
        for module in self.network.modules():
            count = getattr(module, "num_prefix_tokens", None)
            if isinstance(count, int):
                prefixes.add(count)
        for side in range(4, 65):
            rows = height // side
            columns = width // side
            prefix = tokens.shape[1] - rows * columns
            if prefix in (prefixes or (0, 1)):
                patches = tokens[:, prefix:].transpose(1, 2)
                return patches.reshape(*patches.shape[:2], rows, columns)
        return None


def _times(side: int, size: float) -> int:
    """Return a side of an image that is resized; of whole factors by whole numbers, as a graph of
    frames of any size has them.
    """
    return side * int(size) if size == int(size) else max(1, round(side * size))


def _covered(side: int, size: float, stride: int) -> int:
    """Return how many pixels of a side a map covers, rounded, after resizing by ``size`` and
    padding to a multiple of ``stride``.
    """
    resized = _times(side, size)
    padded = resized + -resized % stride
    return (2 * side * padded + resized) // (2 * resized)


class _Complete(Exception):
    """All layers have been called."""


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
    outputs: list[tuple[str, Any]] = []

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        outputs.append((names[module], output))

    device = next(encoder.parameters()).device
    images = torch.zeros(1, channels_of(network), 64, 64, device=device)
    with hooked(encoder.modules(), keep), torch.inference_mode():
        last = encoder.eval()(images)[-1]
    makers = [name for name, output in outputs if output is last]
    if not makers:
        raise InputError(
            f"the deepest layer of {type(encoder).__name__} is unknown",
            hint="name it: --features.layers",
        )
    return min(makers, key=len)


class _Pairs:
    """Convolutions and the batch norms that are called with their very outputs, seen in a pass."""

    def __init__(self, network: nn.Module) -> None:
        self.calls: Counter[nn.Module] = Counter()
        self.pairs: list[tuple[Any, Any]] = []  # convolution and batch norm
        # By the id of an output. The output is kept, so that no other tensor gets its id.
        self._makers: dict[int, tuple[nn.Module, Tensor]] = {}
        self._norms: set[nn.Module] = set()
        self.modules: list[nn.Module] = []
        for module in network.modules():
            if type(module) in NORMS and module.running_mean is not None:
                self._norms.add(module)
                self.modules.append(module)
            elif isinstance(module, nn.Conv2d):
                self.modules.append(module)

    def see(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        """Take a call, as a forward hook of ``modules``."""
        self.calls[module] += 1
        if module not in self._norms:
            self._makers[id(output)] = (module, output)
        elif id(inputs[0]) in self._makers:
            conv, _ = self._makers[id(inputs[0])]
            self.pairs.append((conv, module))

    def foldable(self) -> list[tuple[Any, Any]]:
        """Return the pairs whose two modules are called once, for each other."""
        uses = Counter(conv for conv, _ in self.pairs)
        foldable = []
        for conv, norm in self.pairs:
            if self.calls[conv] == self.calls[norm] == uses[conv] == 1:
                foldable.append((conv, norm))
        return foldable


def _within(name: str, outer: str) -> bool:
    return f"{name}.".startswith(f"{outer}.")


def fold_norms(network: nn.Module, images: Tensor, keep: Collection[str] = ()) -> nn.Module:
    """Return a copy in eval mode whose convolutions do what the batch norms after them did, as is
    seen on ``images``.

    A pair stays where one of the two is called more than once, and where a module named in ``keep``
    holds the convolution and not the norm.
    """
    if not any(type(module) in NORMS for module in network.modules()):
        return network.eval()
    folded = copy.deepcopy(network).eval()
    names = {module: name for name, module in folded.named_modules()}
    pairs = _Pairs(folded)
    with hooked(pairs.modules, pairs.see), torch.inference_mode():
        folded(images)
    for conv, norm in pairs.foldable():
        conv_name = names[conv]
        norm_name = names[norm]
        if any(_within(conv_name, layer) and not _within(norm_name, layer) for layer in keep):
            continue
        folded.set_submodule(conv_name, fuse_conv_bn_eval(conv, norm))
        folded.set_submodule(norm_name, nn.Sequential(OrderedDict(norm.named_children())))
    return folded
