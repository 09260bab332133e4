"""Each image of a batch is trained with its own draw, wherever the network keeps the batch;
compared with plain torch, image by image.
"""

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.affine.noise import draw_noise, mix_seed
from segunc.affine.rows import row_difference
from segunc.baselines.laplace import FisherSum
from segunc.core.errors import NoteWarning
from tests.affine.networks import Pixelwise, SequenceFirst, WindowFolding, randomise
from tests.training.fitting import abnn_task


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


IMAGES = torch.rand(2, 3, 4, 8, generator=seeded(3))
LABELS = torch.randint(0, 4, (2, 4, 8), generator=seeded(4))


class TilesFirst(nn.Module):
    """Cuts images into halves, and puts the left ones of all images before the right ones."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.norm(torch.cat(x.chunk(2, -1))).chunk(2)
        return torch.cat([left, right], -1)


OTHER_ORDERS: dict[str, type[nn.Module]] = {"sequence": SequenceFirst, "tiles": TilesFirst}


def network(layer: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    made = Pixelwise(layer)
    made.norm.norm = randomise(made.norm.norm)  # type: ignore[union-attr, assignment]
    return made.eval().requires_grad_(False)


def plain_logits(plain: nn.Module, gamma: Tensor, beta: Tensor, row: int) -> Tensor:
    """Logits ``[1, 4, H, W]`` of one image alone, by the network before its conversion."""
    affine = {"norm.norm.weight": gamma, "norm.norm.bias": beta}
    image = IMAGES[row : row + 1]
    return torch.func.functional_call(plain, affine, (image,))


@pytest.mark.parametrize("order", OTHER_ORDERS)
@pytest.mark.filterwarnings("ignore::segunc.core.errors.NoteWarning")
def test_the_gradient_is_that_of_each_image_with_its_own_draw(order: str) -> None:
    converted = network(OTHER_ORDERS[order]())
    plain = copy.deepcopy(converted)
    task = abnn_task(converted, members=1, alpha=0.3)
    task.loss(IMAGES, LABELS, 0).backward()
    noise = draw_noise(mix_seed(0, 0, 0), range(2), 8)
    norm = plain.norm.norm  # type: ignore[union-attr]
    gamma = norm.weight.clone().requires_grad_()
    beta = norm.bias.clone().requires_grad_()
    logits = []
    for row in (0, 1):
        drawn = gamma * (1 + 0.3 * noise[row])
        logits.append(plain_logits(plain, drawn, beta, row))
    F.cross_entropy(torch.cat(logits), LABELS).backward()
    trained = task.trained
    torch.testing.assert_close(trained.gamma[0].grad, gamma.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(trained.beta[0].grad, beta.grad, rtol=1e-4, atol=1e-6)


def plain_fisher(plain: nn.Module, row: int, uniform: Tensor) -> Tensor:
    """Return the squared gradients ``[2, 8]`` of one image for labels that are sampled.

    Args:
        plain: the network before its conversion.
        row: the number of the image.
        uniform: the random numbers that sample the labels, ``[1, 1, H, W]``.
    """
    norm = plain.norm.norm  # type: ignore[union-attr]
    gamma = norm.weight.clone().requires_grad_()
    beta = norm.bias.clone().requires_grad_()
    logits = plain_logits(plain, gamma, beta, row)
    below = logits.detach().softmax(1).cumsum(1) < uniform
    sampled = below.sum(1).clamp_max(3)
    loss = F.cross_entropy(logits, sampled, reduction="sum")
    gradients = torch.autograd.grad(loss, [gamma, beta])
    return torch.stack(gradients).double().square()


@pytest.mark.parametrize("order", OTHER_ORDERS)
@pytest.mark.filterwarnings("ignore::segunc.core.errors.NoteWarning")
def test_the_fisher_is_that_of_each_image_alone(order: str) -> None:
    converted = network(OTHER_ORDERS[order]())
    plain = copy.deepcopy(converted)
    convert(converted)
    fisher = FisherSum(converted, AffineLayout(converted).affine, "diagonal")
    fisher.add(IMAGES, LABELS, 7)
    uniform = torch.rand((2, 1, 4, 8), generator=seeded(mix_seed(7, 0)))
    first = plain_fisher(plain, 0, uniform[:1])
    second = plain_fisher(plain, 1, uniform[1:])
    torch.testing.assert_close(fisher.total, first + second, rtol=1e-3, atol=1e-8)


def passes(task: Any, images: Tensor) -> int:
    """Return in how many passes of the network the loss of a step is made, once it is known how."""
    calls: list[int] = []
    labels = torch.zeros(len(images), *images.shape[2:], dtype=torch.int64)
    task.loss(images, labels, 0)
    handle = task.network.register_forward_hook(lambda *_: calls.append(1))
    task.loss(images, labels, 1)
    handle.remove()
    return len(calls)


def test_a_network_of_another_order_runs_image_by_image_and_says_so() -> None:
    task = abnn_task(network(SequenceFirst()))
    with pytest.warns(NoteWarning, match=r"differ by .* the images run one by one"):
        assert passes(task, IMAGES) == 2


def test_a_network_of_another_order_says_so_once() -> None:
    task = abnn_task(network(SequenceFirst()))
    with pytest.warns(NoteWarning):
        passes(task, IMAGES)
    larger = torch.rand(2, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoteWarning)
        assert passes(task, larger) == 2


def test_tokens_that_the_draws_do_not_divide_run_image_by_image() -> None:
    task = abnn_task(network(SequenceFirst()))
    three_images = torch.rand(3, 3, 4, 4)
    with pytest.warns(NoteWarning, match="cannot be computed"):
        assert passes(task, three_images) == 3


def test_a_network_that_keeps_the_batch_outermost_runs_it_as_one() -> None:
    task = abnn_task(network(WindowFolding()))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoteWarning)
        assert passes(task, IMAGES) == 1


class OtherOrderWhenLarge(SequenceFirst):
    """Keeps the batch outermost for images below 8 rows only."""

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] < 8:
            return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return super().forward(x)


def test_each_size_is_looked_at() -> None:
    task = abnn_task(network(OtherOrderWhenLarge()))
    small = torch.rand(2, 3, 4, 8)
    large = torch.rand(2, 3, 8, 8)
    assert passes(task, small) == 1
    with pytest.warns(NoteWarning, match="one by one"):
        assert passes(task, large) == 2


def test_layers_outside_of_the_scope_do_not_count() -> None:
    """Their affine is the same for all images, so no order of theirs can be wrong."""
    converted = nn.Sequential(
        network(SequenceFirst()),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 1),
    )
    convert(converted.eval())
    layout = AffineLayout(converted)
    assert row_difference(converted, layout, IMAGES, "all") > 1e-2
    assert row_difference(converted, layout, IMAGES, "last:1") < 1e-5


def test_a_layer_whose_gamma_is_zero_counts() -> None:
    """Residual blocks often begin with gamma 0, which training changes."""
    converted = nn.Sequential(network(SequenceFirst()), nn.BatchNorm2d(4)).eval()
    norm = converted[0].norm.norm
    nn.init.zeros_(norm.weight)
    nn.init.zeros_(norm.bias)
    convert(converted)
    layout = AffineLayout(converted)
    assert row_difference(converted, layout, IMAGES, "all") > 1e-2


def test_half_precision_is_no_other_order() -> None:
    """Half precision rounds by the size of the batch, which is no other order."""
    made = network(WindowFolding()).bfloat16()
    convert(made)
    layout = AffineLayout(made)
    difference = row_difference(made, layout, IMAGES.bfloat16(), "all")
    assert difference < 8 * torch.finfo(torch.bfloat16).eps


class DrawsInEvalMode(nn.Module):
    """Drops features in eval mode, too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.norm(x), 0.5, training=True)


def test_a_network_that_draws_in_eval_mode_runs_one_by_one_and_the_note_says_why() -> None:
    task = abnn_task(network(DrawsInEvalMode()), members=1, alpha=0.3)
    with pytest.warns(NoteWarning, match="draws random numbers in eval mode.* one by one"):
        task.loss(IMAGES, LABELS, 0)
