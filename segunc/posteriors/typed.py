"""The way in from Python: a module of one's own as a model, and a module that is stochastic for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from segunc.affine.convert import convert, revert
from segunc.affine.draws import AffineLayout
from segunc.affine.posterior import Deterministic
from segunc.core.trust import agree, find_code
from segunc.networks.description import IMAGENET_MEAN, IMAGENET_STD, NetworkDescription
from segunc.networks.files import network_sha256
from segunc.networks.network import SegmentationNetwork
from segunc.networks.sizes import settle_size
from segunc.networks.sources import check_network
from segunc.posteriors.abnn import ABNNPosterior
from segunc.posteriors.files import load_model
from segunc.posteriors.model import Model
from segunc.sampling.sampler import Sampler
from segunc.scores import DEFAULT_SCORES


def load(folder: Path | str) -> Model:
    """Return the model in a folder, deterministic or Bayesian; see :func:`segunc.posteriors.files.load_model`."""
    return load_model(folder)


def wrap(
    module: nn.Module,
    classes: Sequence[str],
    *,
    mean: tuple[float, float, float] = IMAGENET_MEAN,
    std: tuple[float, float, float] = IMAGENET_STD,
    palette: Sequence[tuple[int, int, int]] = (),
    inference_size: tuple[int, int] | None = None,
    factory: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> Model:
    """Return a model of a module of one's own, which is not changed but for eval mode.

    Args:
        module: from normalised images ``[N, 3, H, W]`` to logits ``[N, C, H, W]``.
        classes: the C class names in the order of the logits.
        mean, std: input normalisation of images in 0..1, per channel.
        palette: one (red, green, blue) in 0..255 a class.
        inference_size: (height, width) of the frames that it was made for, or None for any.
        factory: ``package.module:function`` that makes the module from ``arguments``. A model folder builds the network with it, and this call
            is your agreement that its code runs on this machine; without it the model cannot be saved.

    Raises:
        InputError: the module fails on two frames, mixes them, or returns no dense logits or probabilities.
    """
    options: dict[str, Any] = {"arguments": dict(arguments or {}), "stride": 1}
    if factory:
        code = find_code(factory)
        agree(code)
        options["code_sha256"] = code.sha256
    names, colours = tuple(classes), tuple(palette)
    description = NetworkDescription(factory, "", names, colours, options, mean, std, inference_size, kind="python")
    network = SegmentationNetwork(module, description, stride=1).eval()
    settle_size(network)
    check_network(network)
    network.sha256 = network_sha256(module, network.description)
    return Model(network, Deterministic(), network.sha256, None, None, {})


@contextmanager
def stochastic(
    module: nn.Module, alpha: float = 0.1, *, draws: int = 24, seed: int = 0, scores: Sequence[str] = DEFAULT_SCORES
) -> Iterator[Sampler]:
    """Convert a module, give a sampler of it with noise of scale ``alpha``, and give the module back as it was.

    Args:
        module: from images ``[N, 3, H, W]`` to logits ``[N, C, H, W]``, with normalisation layers.
        alpha: noise scale of ABNN.
        draws, seed, scores: see :class:`segunc.sampling.sampler.Sampler`.

    Raises:
        InputError: the module has no normalisation layer that can be drawn, or is converted already.

    >>> with stochastic(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4)), draws=4) as sampler:
    ...     sampler(torch.rand(1, 3, 8, 8)).scores["epistemic"].shape
    torch.Size([1, 8, 8])
    """
    modes = [(part, part.training) for part in module.modules()]
    convert(module)
    try:
        yield Sampler(module, ABNNPosterior.around(AffineLayout(module), alpha), draws=draws, seed=seed, scores=scores)
    finally:
        revert(module)
        for part, training in modes:
            part.training = training
