"""A kind of network of somebody else's: two convolutions, the second at half the size."""

from torch import Tensor, nn

from segunc import NetworkDescription
from segunc.networks.model_folder import KINDS


class Tiny(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.head = nn.Sequential(
            nn.Conv2d(width, classes, 1), nn.Upsample(scale_factor=2, mode="bilinear")
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits


def build(description: NetworkDescription) -> tuple[nn.Module, int]:
    return Tiny(description.options["width"], description.num_classes), 2


KINDS.register("tiny", build)
