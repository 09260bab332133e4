"""How an eager pass on a CPU computes the same numbers in less time: feature maps stay channels
last, and the weights of convolutions are arranged for the CPU once.

Convolutions of a CPU are fastest where the channels of a pixel lie side by side. torch keeps this
order from layer to layer, but cannot tell the order of a map of one pixel, and takes the other one
for all that follows. oneDNN rearranges the weights of a convolution in each call, unless they come
as it wants them. Depthwise convolutions with a wide dilation are computed by their phases
(:mod:`segunc.sampling.phases`), and drawn affines together with what follows them
(:mod:`segunc.sampling.deferred`). All are found by the calls of a pass, not by the names of
networks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.overrides import TorchFunctionMode

from segunc.sampling.deferred import DeferredAffines
from segunc.sampling.phases import phases_of

_JOINS = (torch.cat, torch.concat, torch.concatenate)
_Settings = tuple[list[int], list[int], list[int], int]
"""Padding, stride, dilation and groups of a convolution."""


class ArrangedWeights:
    """The weights of a network's convolutions as oneDNN wants them; made where a pass first meets
    them, and kept as long as the network does not change.
    """

    def __init__(self) -> None:
        # The parameter is held, so that no other can come by its id.
        self._arranged: dict[tuple[Any, ...], tuple[nn.Parameter, Tensor]] = {}

    def __len__(self) -> int:
        return len(self._arranged)

    def of(self, weight: nn.Parameter, shape: torch.Size, settings: _Settings) -> Tensor:
        """Return a weight for a convolution.

        Args:
            weight: ``[O, I / groups, kh, kw]``.
            shape: of the images that it meets first, by which oneDNN chooses.
            settings: padding, stride, dilation and groups of the convolution.

        Raises:
            RuntimeError: oneDNN has no arrangement for such a convolution.
        """
        key = (id(weight), str(settings))
        if key not in self._arranged:
            padding, stride, dilation, groups = settings
            made = torch.ops.mkldnn._reorder_convolution_weight(
                weight.detach(), padding, stride, dilation, groups, list(shape)
            )
            self._arranged[key] = (weight, made)
        return self._arranged[key][1]


def is_served(device: torch.device) -> bool:
    """Return whether :class:`ChannelsLast` may follow the pass that begins: on a CPU with oneDNN,
    without gradients, and not while a graph is traced.
    """
    if device.type != "cpu" or torch.is_grad_enabled() or get_proxy_mode() is not None:
        return False
    onednn: Any = torch.backends.mkldnn
    return bool(onednn.is_available() and onednn.enabled)


class ChannelsLast(TorchFunctionMode):
    """Follows a pass, and keeps its feature maps channels last.

    Every function that it replaces gives the numbers of the original; only the order in memory of
    what it returns may be another.

    Args:
        weights: of the network, arranged.
        affines: what may wait for the function that follows it; None lets nothing wait.
    """

    def __init__(self, weights: ArrangedWeights, affines: DeferredAffines | None = None) -> None:
        super().__init__()
        self._weights = weights
        self._affines = affines

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if self._affines is not None:
            self._affines.settle()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._affines is not None:
            result = self._affines.call(func, args, kwargs)
            if result is not None:
                return result
        if func is F.conv2d and not kwargs:
            return self._convolve(args)
        if args and func is F.interpolate:
            args = (_one_pixel_channels_last(args[0]), *args[1:])
        elif args and func in _JOINS:
            args = (_alike(args[0]), *args[1:])
        return func(*args, **kwargs)

    def _convolve(self, args: tuple[Any, ...]) -> Tensor:
        """Return a convolution of arguments in their order."""
        images, weight, bias, settings = _convolution(args)
        if settings is None or not _may_be_arranged(images, weight, settings):
            return F.conv2d(*args)
        try:
            convolved = self._arranged(images, weight, bias, settings)
        except (RuntimeError, AttributeError):
            # What is wrong with the call, torch's own function says.
            return F.conv2d(*args)
        return convolved

    def _arranged(
        self, images: Tensor, weight: nn.Parameter, bias: Tensor | None, settings: _Settings
    ) -> Tensor:
        """Return a convolution with the arranged weight, by its phases where that is faster."""
        padding, stride, dilation, groups = settings
        phases = phases_of(images, weight, padding, stride, dilation, groups)
        if phases is None:
            return self._convolved(images, weight, bias, settings)
        same_size = [side // 2 for side in weight.shape[2:]]
        of_phase: _Settings = (same_size, stride, [1, 1], groups)
        return phases.convolve(images, lambda parts: self._convolved(parts, weight, bias, of_phase))

    def _convolved(
        self, images: Tensor, weight: nn.Parameter, bias: Tensor | None, settings: _Settings
    ) -> Tensor:
        """Return a convolution with the arranged weight."""
        convolved: Tensor = torch.ops.mkldnn._convolution_pointwise(
            images.contiguous(memory_format=torch.channels_last),
            self._weights.of(weight, images.shape, settings),
            bias,
            *settings,
            "none",
            [],
            "",
        )
        return convolved


def _convolution(
    args: tuple[Any, ...],
) -> tuple[Any, Any, Tensor | None, _Settings | None]:
    """Return images, weight, bias and settings (padding, stride, dilation, groups) of a call of
    ``conv2d``; None in place of the settings where the padding is a word.
    """
    defaults: tuple[Any, ...] = (None, 1, 0, 1, 1)
    images, weight, bias, stride, padding, dilation, groups = (*args, *defaults[len(args) - 2 :])
    if isinstance(padding, str):
        return images, weight, bias, None
    return images, weight, bias, (_pair(padding), _pair(stride), _pair(dilation), groups)


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


def _may_be_arranged(images: Tensor, weight: Tensor, settings: _Settings) -> bool:
    """Return whether images ``[n, C, H, W]`` meet a weight that may be arranged once: a parameter,
    because others may be computed anew in each pass.
    """
    if not isinstance(weight, nn.Parameter) or images.dtype != weight.dtype:
        return False
    if weight.dtype == torch.bfloat16:
        is_multiplied = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    else:
        is_multiplied = weight.dtype == torch.float32
    groups = settings[3]
    fits = images.ndim == 4 and images.shape[1] == weight.shape[1] * groups
    return is_multiplied and fits and images.numel() > 0


def _one_pixel_channels_last(images: Any) -> Any:
    """Return images ``[n, C, 1, 1]`` in the memory that they have, called channels last; others as
    they are.
    """
    if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[2:] != (1, 1):
        return images
    channels = images.shape[1]
    contiguous = images.contiguous()
    return contiguous.as_strided(contiguous.shape, (channels, 1, channels, channels))


def _alike(joined: Any) -> Any:
    """Return tensors that are joined, all channels last where one of them is."""
    if not isinstance(joined, list | tuple):
        return joined
    if not any(_is_channels_last(feature_map) for feature_map in joined):
        return joined
    alike = []
    for feature_map in joined:
        if feature_map.ndim == 4:
            alike.append(feature_map.contiguous(memory_format=torch.channels_last))
        else:
            alike.append(feature_map)
    return alike


def _is_channels_last(feature_map: Tensor) -> bool:
    """Return whether a tensor ``[n, C, H, W]`` is channels last and not both at once."""
    if feature_map.ndim != 4 or feature_map.is_contiguous():
        return False
    return feature_map.is_contiguous(memory_format=torch.channels_last)
