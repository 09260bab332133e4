"""The network's own dropout layers: which are found, and their masks."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.baselines.mc_dropout import DropoutSite, OwnDropout, convert_dropout
from segunc.core.errors import InputError


def network(*layers: nn.Module) -> nn.Sequential:
    """A norm layer without effect, then the layers: what comes out of a one is the masks."""
    norm = nn.BatchNorm2d(8, eps=1e-12)  # torch 2.11 refuses 0
    return nn.Sequential(norm, *layers).eval()


FRAMES = 2
SEED = 3


@torch.no_grad()
def drawn(made: nn.Sequential, draws: list[int], p: float | None = None) -> Tensor:
    """Return ``[len(draws), FRAMES, 8, 6, 5]`` of an input of ones; ``p`` replaces each p."""
    convert(made)
    probabilities = convert_dropout(made)
    if p is not None:
        probabilities = dict.fromkeys(probabilities, p)
    posterior = OwnDropout(probabilities)
    layout = AffineLayout(made)
    images = torch.ones(len(draws) * FRAMES, 8, 6, 5)
    with layout.active(posterior.affine(layout, draws, SEED)):
        out: Tensor = made(images)
    return out.view(len(draws), FRAMES, 8, 6, 5)


def one_layer() -> nn.Sequential:
    return network(nn.Dropout(0.5))


@pytest.fixture(params=[nn.Dropout, nn.Dropout2d])
def two_draws(request: pytest.FixtureRequest) -> Tensor:
    layer = request.param(0.5)
    return drawn(network(layer), [0, 1])


def test_what_is_kept_is_scaled(two_draws: Tensor) -> None:
    assert set(two_draws.unique().tolist()) == {0.0, 2.0}


def test_masks_are_the_same_for_all_frames(two_draws: Tensor) -> None:
    assert torch.equal(two_draws[:, 0], two_draws[:, 1])


def test_each_draw_has_other_masks(two_draws: Tensor) -> None:
    assert not torch.equal(two_draws[0], two_draws[1])


def of_first_pixel(values: Tensor) -> Tensor:
    """Return the values of the first pixel of each channel, at every pixel."""
    return values[..., :1, :1].expand_as(values)


def test_dropout_masks_elements() -> None:
    elements = drawn(one_layer(), [0, 1])
    assert not torch.equal(elements, of_first_pixel(elements))


def test_dropout_2d_masks_channels() -> None:
    channels = drawn(network(nn.Dropout2d(0.5)), [0, 1])
    assert torch.equal(channels, of_first_pixel(channels))


probabilities = st.floats(0.05, 0.8)
draw_numbers = st.lists(
    st.integers(0, 1000),
    min_size=1,
    max_size=4,
)


@settings(max_examples=20, deadline=None)
@given(p=probabilities, draws=draw_numbers)
def test_a_draw_depends_on_its_number_alone(p: float, draws: list[int]) -> None:
    together = drawn(one_layer(), draws, p=p)
    for row, draw in enumerate(draws):
        alone = drawn(one_layer(), [draw], p=p)
        assert torch.equal(together[row], alone[0])


@settings(max_examples=20, deadline=None)
@given(p=probabilities, draws=draw_numbers)
def test_a_larger_p_drops_the_same_and_more(p: float, draws: list[int]) -> None:
    dropped = drawn(one_layer(), draws, p=p) == 0
    dropped_by_more = drawn(one_layer(), draws, p=min(0.9, p + 0.1)) == 0
    assert bool((dropped <= dropped_by_more).all())


def test_one_layer_in_two_places_drops_anew() -> None:
    layer = nn.Dropout(0.5)
    values = drawn(network(layer, layer), [0, 1])
    # Two independent masks keep a quarter; one mask twice would keep a half.
    kept = (values > 0).float().mean()
    assert 0.15 < float(kept) < 0.35


def test_one_layer_in_two_places_drops_the_same_again() -> None:
    layer = nn.Dropout(0.5)
    first = drawn(network(layer, layer), [0, 1])
    again = drawn(network(layer, layer), [0, 1])
    alone = drawn(network(layer, layer), [1])
    assert torch.equal(first, again)
    assert torch.equal(first[1], alone[0])


def test_a_layer_drops_only_while_it_is_drawn() -> None:
    made = one_layer()
    images = torch.rand(2, 8, 6, 5)
    expected = made(images)
    drawn(made, [0, 1])
    assert torch.equal(made(images), expected)


def test_a_converted_layer_is_still_a_dropout_layer() -> None:
    made = one_layer()
    drawn(made, [0, 1])
    assert isinstance(made[1], nn.Dropout)
    assert isinstance(made[1], DropoutSite)


def test_layers_with_p_above_0_are_found() -> None:
    made = network(
        nn.Dropout(0.1),
        nn.Dropout(0.0),
        nn.Dropout2d(0.2),
        nn.AlphaDropout(0.3),
    )
    assert convert_dropout(made) == {"1": 0.1, "3": 0.2}


class Doubling(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_dropout_layer_with_a_forward_of_its_own_stays_as_it_is() -> None:
    made = network(Doubling(0.5), nn.Dropout2d(0.5))
    assert set(drawn(made, [0, 1]).unique().tolist()) == {0.0, 4.0}
    assert convert_dropout(made) == {"2": 0.5}


def test_a_dropout_layer_whose_forward_was_replaced_stays_as_it_is() -> None:
    replaced = nn.Dropout(0.5)
    replaced.forward = lambda x: 3 * x  # type: ignore[method-assign]
    made = network(replaced, nn.Dropout2d(0.5))
    assert set(drawn(made, [0, 1]).unique().tolist()) == {0.0, 6.0}
    assert convert_dropout(made) == {"2": 0.5}


def test_a_network_with_dropout_of_its_own_alone_is_refused() -> None:
    with pytest.raises(InputError, match="1 has a forward of its own"):
        convert_dropout(network(Doubling(0.5)))


def test_a_network_without_dropout_is_refused() -> None:
    made = network(nn.Dropout(0.0))
    with pytest.raises(InputError, match=r"no dropout layer of its own.*mc_dropout\.sites norm"):
        convert_dropout(made)


def test_dropout_of_everything_is_refused() -> None:
    everything = convert_dropout(network(nn.Dropout(1.0)))
    with pytest.raises(InputError, match=r"probability p 1\.0"):
        OwnDropout(everything)
