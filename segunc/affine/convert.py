"""Conversion: the per-channel affine of every normalisation layer of a network becomes drawable.

Such a layer is called a *site*. It keeps its class as a base, its parameters, buffers and mode.
While draws are active, it normalises with running statistics where it has them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from segunc.core.errors import InputError
from segunc.core.terminal import counted

Kind = Literal["batch", "group", "layer", "layer-2d", "rms", "instance"]
"""``layer-2d`` is a LayerNorm over axis 1 of 4-D inputs. ``batch`` are also instance norms with
running statistics.
"""
USUAL_EPS = 1e-5
"""The eps of a frozen BatchNorm that does not say its own; the comparison with its forward decides
whether it is right.
"""
ORIGIN = "segunc_origin"
"""Attribute by which the engine marks tensors, see :mod:`segunc.sampling.shortcuts`."""
FRAMES = "frames"
"""Value of :data:`ORIGIN` of a tensor with one row for each frame, the same for all draws."""
DRAWS = "draws"
"""Value of :data:`ORIGIN` of a tensor with one row for each draw and frame."""


@dataclass
class SiteState:
    """What a site reads while draws are active; it is set from outside.

    Attributes:
        kind: of the normalisation.
        scale: ``[S, C]``, or ``[1, C]`` where the draws agree; None is the layer's own affine. For
            ``batch`` it acts on the raw input, with the statistics folded in, for the other kinds
            on the normalised one.
        shift: likewise.
        reached: whether a drawn forward ever came through here.
        trained: whether the last drawn forward needs gradients of its draws.
    """

    kind: Kind
    scale: Tensor | None = None
    shift: Tensor | None = None
    reached: bool = False
    trained: bool = False


@functools.cache
def with_mixin(mixin: type, layer: type, prefix: str) -> type:
    """Return a layer's class with a mixin in front; one for each class."""

    def reduce(made: nn.Module, protocol: Any) -> tuple[Any, ...]:
        # The class has no name in a module, by which pickle would find it.
        return _empty_with_mixin, (mixin, layer, prefix), dict(vars(made))

    members = {"__module__": layer.__module__, "__reduce_ex__": reduce}
    return type(f"{prefix}{layer.__name__}", (mixin, layer), members)


def _empty_with_mixin(mixin: type, layer: type, prefix: str) -> Any:
    """Return a layer without its state, for pickle."""
    kind: Any = with_mixin(mixin, layer, prefix)
    return kind.__new__(kind)


def rows_of_a_draw(x: Tensor, draws: int, what: str) -> int:
    """Return how many rows of the draw-major ``x`` meet each draw.

    Args:
        x: a tensor whose first axis is draws times frames, or frames alone where it is marked as
            the same for all draws; then each draw meets all its rows.
        draws: their number.
        what: ``x`` is, in the message.

    Raises:
        InputError: the first axis is not a multiple of the draws.
    """
    rows = x.shape[0]
    if getattr(x, ORIGIN, None) == FRAMES:
        return rows
    if rows % draws:
        raise InputError(
            f"a {what} has a first axis of {rows}, which is not a multiple of {draws} draws: the "
            "network does not keep the batch outermost",
            hint="sample it one draw at a time, --chunk 1",
        )
    return rows // draws


class StochasticSite:
    """Mixin in front of a normalisation layer's class."""

    segunc_site: SiteState

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        state = self.segunc_site
        if state.scale is None:
            in_backward = torch._C._current_graph_task_id() != -1
            if state.trained and in_backward:  # gradient checkpointing computes it once more
                raise self._without_gradient("is called again in backward, when its draw is gone")
            return cast(Tensor, super().forward(*args, **kwargs))  # type: ignore[misc]
        x, others = layer_input(args, kwargs)
        if any(other is not None for other in others):
            raise InputError(
                f"a normalisation layer of type {type(self).__name__} is called with more than its "
                "input",
                hint="leave further arguments out",
            )
        state.reached = True
        state.trained = state.scale.requires_grad
        if state.trained and not torch.is_grad_enabled():
            raise self._without_gradient("is trained but runs where gradients are off")
        return drawn_forward(cast(nn.Module, self), state, x)

    def _without_gradient(self, reason: str) -> InputError:
        """Return the error for a layer whose affine parameters would get gradients of 0, or of
        another draw.
        """
        return InputError(
            f"a normalisation layer of type {type(self).__name__} {reason}",
            hint=(
                "switch gradient checkpointing (set_grad_checkpointing(False)) and torch.no_grad "
                "inside the network off"
            ),
        )


def layer_input(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, list[Any]]:
    """Return the input of a call of a layer, which may be given by keyword, and its further
    arguments.
    """
    x, *others = (*args, *kwargs.values())
    return x, others


def drawn_forward(layer: nn.Module, state: SiteState, x: Tensor) -> Tensor:
    """Return the layer with the drawn affine; see :func:`rows_of_a_draw`."""
    assert state.scale is not None
    assert state.shift is not None
    rows = rows_of_a_draw(x, state.scale.shape[0], "layer input")
    channels_last = state.kind in ("layer", "rms") or (state.kind == "layer-2d" and x.ndim != 4)
    x = _normalise(layer, state.kind, x)
    scale = _rows(state.scale, x, rows, channels_last, layer)
    shift = _rows(state.shift, x, rows, channels_last, layer)
    y = torch.addcmul(shift, x, scale)
    # timm's norm layers carry dropout and activation, in this order.
    for name in ("drop", "act"):
        follow = getattr(layer, name, None)
        if isinstance(follow, nn.Module):
            y = follow(y)
    return y


def _normalise(layer: nn.Module, kind: Kind, x: Tensor) -> Tensor:
    """Return the layer's normalisation without its affine; kinds with folded statistics return
    ``x`` itself.
    """
    module = cast(Any, layer)
    if kind == "group":
        return F.group_norm(x, module.num_groups, None, None, module.eps)
    if kind == "instance":
        return F.instance_norm(x, eps=module.eps)
    if kind == "rms":
        eps = getattr(layer, "eps", getattr(layer, "variance_epsilon", None))
        return F.rms_norm(x, module.weight.shape, None, eps)
    if kind == "layer" or (kind == "layer-2d" and x.ndim != 4):
        return F.layer_norm(x, module.normalized_shape, None, None, module.eps)
    if kind == "layer-2d":
        last = x.permute(0, 2, 3, 1)
        normalised = F.layer_norm(last, module.normalized_shape, None, None, module.eps)
        return normalised.permute(0, 3, 1, 2)
    return x


def _rows(values: Tensor, x: Tensor, rows: int, channels_last: bool, layer: nn.Module) -> Tensor:
    """Return ``[S, C]`` as ``rows`` rows a draw, one for all if S = 1, shaped to broadcast along
    the channel axis of ``x``.
    """
    values = values.to(x.dtype)
    if rows > 1 and len(values) > 1:
        values = values.repeat_interleave(rows, 0)
    if not channels_last:
        return values.view(values.shape[0], -1, *([1] * (x.ndim - 2)))
    shape = tuple(cast(Tensor, layer.weight).shape)
    axes_between = [1] * (x.ndim - 1 - len(shape))
    return values.view(values.shape[0], *axes_between, *shape)


def classify(layer: nn.Module) -> tuple[Kind | None, str]:
    """Return the kind of a normalisation layer whose affine can be drawn, else None and the reason.

    The reason is "" for a module that is not a normalisation.

    Raises:
        InputError: BatchNorm without running statistics.
    """
    kind = _kind_by_class(layer)
    if kind is None and _looks_like_batch_norm(layer):
        kind = "batch"  # somebody's own, frozen or not: its forward decides below
    if kind is None:
        reason = f"{type(layer).__name__} has no known per-channel affine"
        return None, reason if _looks_like_normalisation(layer) else ""
    obstacle = _obstacle_to_drawing(layer)
    if obstacle:
        return None, obstacle
    module = cast(Any, layer)
    if kind == "batch" and module.running_mean is None:
        message = f"{type(layer).__name__} without running statistics couples the draws of a batch"
        raise InputError(message, hint="train with track_running_stats=True, or use GroupNorm")
    if kind == "layer" and len(module.normalized_shape) == 1 and _is_drawable(layer, "layer-2d"):
        return "layer-2d", ""
    if _is_drawable(layer, kind):
        return kind, ""
    return None, f"the forward of {type(layer).__name__} is not that of a {kind} normalisation"


def _is_drawable(layer: nn.Module, kind: Kind) -> bool:
    """Return whether a layer computes what its kind says, also beyond usual clamps."""
    return _same_as_original(layer, kind, 1.0) and _same_as_original(layer, kind, 1000.0)


def _obstacle_to_drawing(layer: nn.Module) -> str:
    """Return why no draw can take the place of a normalisation layer's affine, or ""."""
    if getattr(layer, "weight", None) is None:
        return "it has no affine parameters"
    if "forward" in vars(layer):
        return "its forward was replaced on the object"
    if "weight" not in layer._parameters and "weight" not in layer._buffers:
        return "its weight is computed from other parameters (weight_norm, spectral_norm)"
    return ""


def _kind_by_class(layer: nn.Module) -> Kind | None:
    from timm.layers.norm_act import FrozenBatchNormAct2d
    from torchvision.ops import FrozenBatchNorm2d

    if isinstance(layer, _InstanceNorm):
        tracks = layer.track_running_stats and layer.running_mean is not None
        return "batch" if tracks else "instance"
    if isinstance(layer, (_BatchNorm, FrozenBatchNorm2d, FrozenBatchNormAct2d)):
        return "batch"
    if isinstance(layer, nn.GroupNorm):
        return "group"
    if isinstance(layer, nn.LayerNorm):
        return "layer"
    if "rmsnorm" in type(layer).__name__.lower():  # every library writes its own
        return "rms"
    return None


def _looks_like_normalisation(layer: nn.Module) -> bool:
    """Return whether a layer that is of no known class is built or named like a normalisation with
    parameters or buffers of its own.
    """
    other_kinds = (nn.modules.conv._ConvNd, nn.Linear, nn.Bilinear, nn.Embedding)
    if isinstance(layer, other_kinds) or next(layer.children(), None) is not None:
        return False
    name = type(layer).__name__
    named_so = "norm" in name.lower() or "BN" in name
    if named_so and any(True for _ in layer.parameters(recurse=False)):
        return True
    return (
        _has_channel_values(layer, "weight", "bias")
        or _has_channel_values(layer, "gamma", "beta")
        or _has_running_statistics(layer)
    )


def _has_running_statistics(layer: nn.Module) -> bool:
    return _has_channel_values(layer, "running_mean", "running_var")


def _looks_like_batch_norm(layer: nn.Module) -> bool:
    return _has_running_statistics(layer) and _has_channel_values(layer, "weight", "bias")


def _has_channel_values(layer: nn.Module, *names: str) -> bool:
    """Return whether a layer has parameters or buffers of these names, each with one number for
    each of the same channels.
    """
    # By these two methods, because those of a scripted layer are no dictionaries.
    tensors: dict[str, Tensor] = dict(layer.named_parameters(recurse=False))
    tensors |= dict(layer.named_buffers(recurse=False))
    sizes = set()
    for name in names:
        tensor = tensors.get(name)
        if tensor is None or tensor.ndim == 0 or tensor.numel() != max(tensor.shape):
            return False
        sizes.add(tensor.numel())
    return len(sizes) == 1


def own_affine(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the layer's own gamma and beta, flat ``[C]`` float32 (beta 0 where it has none)."""
    gamma = cast(Tensor, layer.weight).detach().float().flatten()
    bias = getattr(layer, "bias", None)
    beta = torch.zeros_like(gamma) if bias is None else bias.detach().float().flatten()
    return gamma, beta


def statistics(layer: nn.Module, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return (mean, 1 / s) by which gamma and beta fold onto the raw input, ``[C]`` float32; (0, 1)
    where nothing folds.
    """
    module = cast(Any, layer)
    if kind != "batch":
        zeros = torch.zeros(module.weight.numel(), device=module.weight.device, dtype=torch.float32)
        return zeros, zeros + 1.0
    eps = getattr(layer, "eps", USUAL_EPS)
    inverse = torch.rsqrt(module.running_var.detach().float().flatten() + eps)
    return module.running_mean.detach().float().flatten(), inverse


def fold(weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and shift on the raw input of ``weight * (x - mean) * inverse + bias``; ``[...,
    C]`` each.
    """
    scale = weight * inverse
    return scale, bias - mean * scale


def _probe_input(layer: nn.Module, kind: Kind) -> Tensor:
    weight = cast(Tensor, layer.weight)
    channels = weight.numel()
    if kind in ("layer", "rms"):
        shape: tuple[int, ...] = (2, 3, *weight.shape)
    elif isinstance(layer, (nn.BatchNorm1d, nn.InstanceNorm1d)):
        shape = (2, channels, 5)
    elif isinstance(layer, (nn.BatchNorm3d, nn.InstanceNorm3d)):
        shape = (2, channels, 2, 3, 2)
    else:
        shape = (2, channels, 3, 5 if channels != 5 else 7)
    generator = torch.Generator().manual_seed(channels)
    return torch.randn(shape, generator=generator).to(weight.device, weight.dtype)


def _same_as_original(layer: nn.Module, kind: Kind, magnitude: float) -> bool:
    """Return whether the drawn path with the layer's own affine reproduces its forward on a random
    input, channel by channel.
    """
    training = layer.training
    probe = _probe_input(layer, kind) * magnitude
    layer.eval()
    try:
        with torch.no_grad():
            return _reproduces_forward(layer, kind, probe)
    except (RuntimeError, ValueError, AssertionError, AttributeError, TypeError, LookupError):
        return False
    finally:
        layer.train(training)


def _reproduces_forward(layer: nn.Module, kind: Kind, probe: Tensor) -> bool:
    """Return the same for one input of a layer in eval mode; any error says that it does not."""
    probe_copy = probe.clone()
    expected = layer(probe_copy)
    if not torch.equal(probe_copy, probe):  # in place: the network may go on with its input
        return False
    scale, shift = fold(*own_affine(layer), *statistics(layer, kind))
    actual = drawn_forward(layer, SiteState(kind, scale[None], shift[None]), probe)
    if actual.shape != expected.shape:
        return False
    # Large means over tiny variances cancel: the terms of each channel, and not the result, bound
    # its rounding.
    channels_last = kind in ("layer", "rms")
    factor = _rows(scale[None], probe, 1, channels_last, layer)
    offset = _rows(shift[None], probe, 1, channels_last, layer)
    terms = (_normalise(layer, kind, probe) * factor).abs() + offset.abs()
    precision = torch.finfo(probe.dtype)
    tolerance = max(1e-4, 8 * precision.eps)
    return bool(((actual - expected).abs() <= tolerance * terms + precision.tiny).all())


@dataclass(frozen=True)
class SiteInfo:
    """One converted layer."""

    name: str
    layer: str
    kind: str
    channels: int


@dataclass(frozen=True)
class LeftLayer:
    """A normalisation layer that was left as it is, and why."""

    name: str
    layer: str
    reason: str


@dataclass(frozen=True)
class ConversionReport:
    """What :func:`convert` did.

    Attributes:
        sites: the layers whose affine can be drawn, in the order of ``named_modules``.
        left: the normalisation layers that keep their own affine.
    """

    sites: tuple[SiteInfo, ...]
    left: tuple[LeftLayer, ...]

    @property
    def channels(self) -> int:
        """Number of channels over all sites."""
        return sum(site.channels for site in self.sites)

    def __str__(self) -> str:
        text = (
            f"{counted(len(self.sites), 'normalisation layer')} with {self.channels:,} channels "
            "can take noise"
        )
        if self.left:
            reasons = sorted({layer.reason for layer in self.left})
            layers = counted(len(self.left), "normalisation layer", "was")
            what = f"{layers} left, e.g. {self.left[0].name}"
            text += f"; {what} ({'; '.join(reasons)})"
        return text

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "channels": self.channels}


def is_converted(network: nn.Module) -> bool:
    """Return whether the affine of some layer of the network can be drawn."""
    return any(isinstance(module, StochasticSite) for module in network.modules())


def takes_noise(network: nn.Module) -> bool:
    """Return whether :func:`convert` finds a layer in a network whose affine can be drawn."""
    try:
        return any(classify(module)[0] is not None for module in network.modules())
    except InputError:
        return False


def convert(network: nn.Module) -> ConversionReport:
    """Make the affine of a network's normalisation layers drawable, in place. With no draws active,
    and with draws at ``alpha = 0``, the network computes what it computed before.

    Args:
        network: any module with normalisation layers.

    Returns:
        The layers that were converted, and those that were left with the reason.

    Raises:
        InputError: nothing to convert, converted already, or BatchNorm without running statistics.

    >>> import segunc
    >>> from torch import nn
    >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    >>> report = segunc.convert(network)
    >>> [(site.name, site.channels) for site in report.sites]
    [('1', 8)]
    """
    if isinstance(network, torch.jit.ScriptModule):
        raise InputError(
            "a TorchScript module holds no layers of Python", hint="convert what it was made of"
        )
    if is_converted(network):
        raise InputError("the network is converted already", hint="convert it once")
    sites: list[SiteInfo] = []
    left: list[LeftLayer] = []
    kinds: list[tuple[nn.Module, Kind]] = []
    for name, module in network.named_modules():
        try:
            kind, reason = classify(module)
        except InputError as error:
            raise error.within(name) from None
        layer_type = type(module).__name__
        if kind is not None:
            channels = cast(Tensor, module.weight).numel()
            sites.append(SiteInfo(name, layer_type, kind, channels))
            kinds.append((module, kind))
        elif reason:
            left.append(LeftLayer(name, layer_type, reason))
    if not sites:
        raise _no_layer_to_convert(network, left)
    # Only now, so that an error above leaves the network untouched.
    for module, kind in kinds:
        module.__class__ = with_mixin(StochasticSite, cast(Any, type(module)), "Stochastic")
        cast(StochasticSite, module).segunc_site = SiteState(kind)
    return ConversionReport(tuple(sites), tuple(left))


def _no_layer_to_convert(network: nn.Module, left: Sequence[LeftLayer]) -> InputError:
    """Return the error for a network without a layer whose affine can be drawn."""
    why = f" ({left[0].name}: {left[0].reason})" if left else ""
    return InputError(
        f"{type(network).__name__} has no normalisation layer with affine parameters{why}, which "
        "draws are made of",
        hint="use a network with BatchNorm, GroupNorm, LayerNorm or InstanceNorm layers",
    )


def revert(network: nn.Module) -> None:
    """Undo :func:`convert`, in place."""
    for module in network.modules():
        if isinstance(module, StochasticSite):
            del module.segunc_site
            module.__class__ = type(module).__mro__[2]
