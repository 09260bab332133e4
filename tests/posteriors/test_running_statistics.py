"""Running statistics that are averaged again are those that the layer itself keeps."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from segunc.affine.convert import convert
from segunc.affine.draws import AffineLayout
from segunc.core.errors import InputError
from segunc.posteriors.abnn import ABNNPosterior, reestimate


def batches() -> list[Tensor]:
    """Three batches whose frames differ in brightness and in contrast."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(3):
        contrast = torch.rand(4, 1, 1, 1, generator=generator)
        made.append(contrast * torch.rand(4, 3, 6, 6, generator=generator))
    return made


class Keyword(nn.Sequential):
    """Calls its normalisation layer by the name of its argument."""

    def forward(self, images: Tensor) -> Tensor:
        return self[1](input=self[0](images))


def reestimated(network: nn.Module) -> tuple[Tensor, Tensor]:
    convert(network.eval())
    posterior = ABNNPosterior.around(AffineLayout(network), 0.0)
    return reestimate(network, posterior, 0, batches())


def settled(layer: Any) -> Any:
    """A layer whose running statistics are those of all frames, by torch itself."""
    layer.momentum = 1.0
    with torch.no_grad():
        layer.train()(torch.cat(batches()))
    return layer.eval()


def test_instance_norm_averages_what_is_within_frames() -> None:
    """The base's statistics are torch's own over the same frames, so nothing changes."""
    layer = settled(nn.InstanceNorm2d(3, affine=True, track_running_stats=True))
    rescale, reshift = reestimated(nn.Sequential(nn.Identity(), layer))
    torch.testing.assert_close(rescale, torch.ones(3), rtol=1e-4, atol=0)
    torch.testing.assert_close(reshift, torch.zeros(3), rtol=0, atol=1e-4)


def test_instance_norm_on_one_value_a_frame_is_refused() -> None:
    layer = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)
    with pytest.raises(InputError, match="no variance within a frame"):
        reestimated(nn.Sequential(nn.AdaptiveAvgPool2d(1), layer))


def test_a_layer_that_is_called_by_keyword_is_averaged_as_any_other() -> None:
    by_keyword = reestimated(Keyword(nn.Identity(), nn.BatchNorm2d(3)))
    plain = reestimated(nn.Sequential(nn.Identity(), nn.BatchNorm2d(3)))
    assert torch.equal(by_keyword[0], plain[0])
    assert torch.equal(by_keyword[1], plain[1])
    assert float((plain[0] - 1).abs().min()) > 0.1
