"""A noise scale for each normalisation layer, learnt on labelled frames of known classes by
gradient steps on the NLL of the mean over draws. No label of an anomaly is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.draws import AffineDraws, AffineLayout
from segunc.affine.noise import DEFAULT_SCHEME, NoiseSource, mix_seed
from segunc.affine.posterior import Posterior
from segunc.core.errors import InputError
from segunc.core.progress import ConsoleProgress
from segunc.core.terminal import counted
from segunc.data.images import resize_nearest
from segunc.data.labels import IGNORE
from segunc.networks.gradients import run_with_gradients
from segunc.networks.network import inference_size
from segunc.posteriors.finetune_run import FinetuneRun
from segunc.sampling.sampler import network_input
from segunc.training.batches import spaced

LEARNING_RATE = 0.1  # of Adam, on ln(alpha): a step changes an alpha by at most about 10 %
BETAS = (0.9, 0.99)
DRAWS = 4  # whose mean a step looks at; each step has others
DRAWS_HELD_OUT = 8
LARGEST_FACTOR = 10.0  # an alpha lies between a hundredth and ten times the one that it starts from
SMALLEST_FACTOR = 0.01


class LabelledImage(NamedTuple):
    """A frame as the network sees it."""

    name: str
    image: Tensor  # float32 [1, 3, h, w] in 0..1, on the device of the network
    labels: Tensor  # int64 [1, h, w], 255 ignored, likewise


@dataclass(frozen=True)
class LayerAlphas:
    """What was learnt.

    Attributes:
        alpha: ``[L]`` of the normalisation layers, or the number that they started from, where the
            learnt ones are not better on the frames that were held out.
        nll_before: NLL in nats on these frames with one alpha.
        nll_after: the same with the learnt ones.
        frames: the names of the frames, first those that the alphas were learnt on.
    """

    alpha: Tensor | float
    nll_before: float
    nll_after: float
    frames: tuple[str, ...]

    @property
    def kept(self) -> bool:
        """Whether the learnt ones are kept."""
        return isinstance(self.alpha, Tensor)

    def record(self) -> dict[str, Any]:
        """Return how the alphas were found, for the record of the model."""
        return {
            "kept": self.kept,
            "nll_one_alpha": self.nll_before,
            "nll_layers": self.nll_after,
            "frames": list(self.frames),
        }


def validation_images(run: FinetuneRun[Any], count: int) -> list[LabelledImage]:
    """Return evenly spaced labelled validation frames, as ``segunc predict`` shows them to the
    network.

    Args:
        run: the fit that looks at them; the frames go to the device of its network.
        count: most frames.

    Raises:
        InputError: there are fewer than two frames, or one without a labelled pixel.
    """
    frames = run.data.dataset("val")
    description = run.network.description
    device = next(run.network.parameters()).device
    override = None if run.data.size is None else (run.data.size[0], run.data.size[1])
    images = []
    for index in spaced(len(frames), count):
        original, original_labels = frames.read(index)
        height, width = original.shape[:2]
        size = inference_size(description, (height, width), override)
        labels = torch.from_numpy(resize_nearest(original_labels, size[1], size[0])).long()
        name = frames.samples[index].name if hasattr(frames, "samples") else f"frame {index}"
        if bool((labels != IGNORE).any()):
            image = network_input([original], size).to(device)
            image = image.contiguous(memory_format=torch.channels_last)
            images.append(LabelledImage(name, image, labels[None].to(device)))
    if len(images) < 2:
        raise InputError(
            f"{counted(len(images), 'labelled validation frame', 'is')} too few to learn alphas "
            "from",
            hint="raise abnn.alpha_frames, or give a data set with more validation frames",
        )
    return images


def learn_layer_alphas(
    network: nn.Module,
    posterior_of: Callable[[float | Tensor], Posterior],
    alpha: float,
    images: Sequence[LabelledImage],
    *,
    steps: int,
    seed: int,
    quiet: bool = True,
) -> LayerAlphas:
    """Learn a noise scale for each layer on the first half of some frames, and compare it with the
    one scale on the second half, with the same noise.

    Args:
        network: converted; its parameters stay as they are.
        posterior_of: makes the posterior of one alpha, or of ``[L]`` of the layers.
        alpha: one alpha above 0, from which all layers start.
        images: at least two.
        steps: number of gradient steps, at least 1; each takes one frame.
        seed: of the noise.
        quiet: whether no progress is shown.
    """
    half = len(images) // 2
    learnt = _descend(network, posterior_of, alpha, images[:half], steps, seed, quiet=quiet)
    held_out = images[half:]
    noise = mix_seed(seed, steps)  # no step had it
    before = mean_nll(network, posterior_of(alpha), held_out, DRAWS_HELD_OUT, noise)
    after = mean_nll(network, posterior_of(learnt), held_out, DRAWS_HELD_OUT, noise)
    names = tuple(image.name for image in images)
    return LayerAlphas(learnt if after < before else alpha, before, after, names)


def _descend(
    network: nn.Module,
    posterior_of: Callable[[float | Tensor], Posterior],
    alpha: float,
    images: Sequence[LabelledImage],
    steps: int,
    seed: int,
    *,
    quiet: bool,
) -> Tensor:
    """Return ``[L]``: the geometric mean of the alphas over the second half of the steps, which
    evens out the noise of single steps.
    """
    layout = AffineLayout(network)
    start = math.log(alpha)
    log_alpha = torch.full((len(layout.names),), start, requires_grad=True)
    optimizer = torch.optim.Adam([log_alpha], LEARNING_RATE, BETAS)
    total = torch.zeros(len(layout.names))
    progress = ConsoleProgress(label="alpha", quiet=quiet)
    for step in progress.follow(range(steps)):
        posterior = posterior_of(log_alpha.exp())
        image = images[step % len(images)]
        noise = mix_seed(seed, step)
        log_alpha.grad = nll_gradient(
            network, layout, posterior, log_alpha, image, draws=DRAWS, seed=noise
        )
        optimizer.step()
        with torch.no_grad():
            log_alpha.clamp_(start + math.log(SMALLEST_FACTOR), start + math.log(LARGEST_FACTOR))
            if step >= steps // 2:
                total += log_alpha
    return (total / (steps - steps // 2)).exp()


def nll_gradient(
    network: nn.Module,
    layout: AffineLayout,
    posterior: Posterior,
    parameter: Tensor,
    image: LabelledImage,
    *,
    draws: int,
    seed: int,
) -> Tensor:
    """Return the gradient of the NLL of the mean over draws in what the posterior is made of.

    With ``p_s`` the probability of a label under draw s, the gradient of ``-ln sum_s p_s`` is that
    of ``-sum_s w_s ln p_s`` with the constants ``w_s = p_s / sum_t p_t``. So each draw runs twice,
    and the activations of only one draw are in memory.

    Args:
        network: converted, its parameters without gradients.
        layout: of the network.
        posterior: differentiable in ``parameter``.
        parameter: the gradient has its shape.
        image: a frame with labels.
        draws: number of draws.
        seed: of their noise.
    """
    made = posterior.affine(layout, range(draws), _noise(seed, draws))
    gamma = made.weight.detach()
    beta = made.bias.detach()
    with torch.no_grad():
        log_likelihood = _log_likelihoods(network, layout, gamma, beta, image)
    labelled = image.labels != IGNORE
    weights = log_likelihood.softmax(0) * labelled / labelled.sum()
    slopes = []
    for draw in range(draws):
        row = slice(draw, draw + 1)
        affine = (gamma[row].requires_grad_(), beta[row].requires_grad_())
        of_draw = _log_likelihoods(network, layout, *affine, image)
        loss = -(weights[row] * of_draw).sum()
        slopes.append(torch.stack(torch.autograd.grad(loss, affine)))
    outputs = torch.stack([made.weight, made.bias])
    (gradient,) = torch.autograd.grad(outputs, parameter, torch.cat(slopes, 1))
    return gradient


@torch.no_grad()
def mean_nll(
    network: nn.Module,
    posterior: Posterior,
    images: Sequence[LabelledImage],
    draws: int,
    seed: int,
) -> float:
    """Return the NLL in nats of the mean over draws: the mean over the labelled pixels of each
    frame, and then over the frames.
    """
    layout = AffineLayout(network)
    made = posterior.affine(layout, range(draws), _noise(seed, draws))
    total = 0.0
    for image in images:
        log_likelihood = _log_likelihoods(network, layout, made.weight, made.bias, image)
        of_mean = log_likelihood.logsumexp(0) - math.log(draws)
        total -= float(of_mean[image.labels[0] != IGNORE].mean())
    return total / len(images)


def _noise(seed: int, draws: int) -> NoiseSource:
    """Return the noise of draws as ``segunc predict`` makes them."""
    return NoiseSource(seed, DEFAULT_SCHEME, draws)


def _log_likelihoods(
    network: nn.Module, layout: AffineLayout, gamma: Tensor, beta: Tensor, image: LabelledImage
) -> Tensor:
    """Return ``ln p`` of the label of each pixel under some draws, ``[S, h, w]``; any number where
    a pixel has no label.
    """
    targets = image.labels.masked_fill(image.labels == IGNORE, 0)
    rows = []
    for weight, bias in zip(gamma, beta, strict=True):
        with layout.active(AffineDraws(weight[None], bias[None])):
            logits = run_with_gradients(network, image.image).float()
        rows.append(-F.cross_entropy(logits, targets, reduction="none"))
    return torch.cat(rows)
