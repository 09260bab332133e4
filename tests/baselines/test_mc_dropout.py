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


@torch.no_grad()
def drawn(made: nn.Sequential, draws: list[int], frames: int = 2, p: float | None = None) -> Tensor:
    """``[len(draws), frames, 8, 6, 5]`` of an input of ones."""
    convert(made)
    trained = convert_dropout(made)
    posterior = OwnDropout(trained if p is None else dict.fromkeys(trained, p))
    layout = AffineLayout(made)
    with layout.active(posterior.affine(layout, draws, 3)):
        out: Tensor = made(torch.ones(len(draws) * frames, 8, 6, 5))
    return out.view(len(draws), frames, 8, 6, 5)


@pytest.mark.parametrize("layer", [nn.Dropout, nn.Dropout2d])
def test_masks_are_the_same_for_all_frames_and_others_for_each_draw(
    layer: type[nn.Dropout] | type[nn.Dropout2d],
) -> None:
    values = drawn(network(layer(0.5)), [0, 1])
    assert set(values.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(values[:, 0], values[:, 1])
    assert not torch.equal(values[0], values[1])


def test_masks_are_of_elements_or_of_channels() -> None:
    elements = drawn(network(nn.Dropout(0.5)), [0, 1])
    assert not torch.equal(elements, elements[..., :1, :1].expand_as(elements))
    channels = drawn(network(nn.Dropout2d(0.5)), [0, 1])
    assert torch.equal(channels, channels[..., :1, :1].expand_as(channels))


@settings(max_examples=20, deadline=None)
@given(p=st.floats(0.05, 0.8), draws=st.lists(st.integers(0, 1000), min_size=1, max_size=4))
def test_a_draw_depends_on_its_number_alone_and_larger_p_drops_more(
    p: float, draws: list[int]
) -> None:
    together = drawn(network(nn.Dropout(0.5)), draws, p=p)
    for row, draw in enumerate(draws):
        assert torch.equal(together[row], drawn(network(nn.Dropout(0.5)), [draw], p=p)[0])
    more = drawn(network(nn.Dropout(0.5)), draws, p=min(0.9, p + 0.1))
    assert bool(((together == 0) <= (more == 0)).all())


def test_one_layer_in_two_places_drops_anew() -> None:
    layer = nn.Dropout(0.5)
    first = drawn(network(layer, layer), [0, 1])
    again = drawn(network(layer, layer), [0, 1])
    # Two independent masks keep a quarter; one mask twice would keep a half.
    assert 0.15 < float((first > 0).float().mean()) < 0.35
    assert torch.equal(first, again)
    assert torch.equal(first[1], drawn(network(layer, layer), [1])[0])


def test_a_layer_drops_only_while_it_is_drawn() -> None:
    made = network(nn.Dropout(0.5))
    images = torch.rand(2, 8, 6, 5)
    expected = made(images)
    drawn(made, [0, 1])
    assert torch.equal(made(images), expected)
    assert isinstance(made[1], nn.Dropout)
    assert isinstance(made[1], DropoutSite)


def test_layers_with_p_above_0_are_found() -> None:
    layers = (nn.Dropout(0.1), nn.Dropout(0.0), nn.Dropout2d(0.2), nn.AlphaDropout(0.3))
    assert convert_dropout(network(*layers)) == {"1": 0.1, "3": 0.2}


def test_a_network_without_dropout_is_refused() -> None:
    with pytest.raises(InputError, match=r"no dropout layer of its own.*mc_dropout\.sites norm"):
        convert_dropout(network(nn.Dropout(0.0)))


def test_dropout_of_everything_is_refused() -> None:
    with pytest.raises(InputError, match=r"probability p 1\.0"):
        OwnDropout(convert_dropout(network(nn.Dropout(1.0))))
