"""A kind of network of another package: two convolutions, the second at half the size."""

from torch import Tensor, nn

from segunc import NetworkDescription


class Tiny(nn.Module):
    """Turn images ``[N, 3, H, W]`` into logits ``[N, C, H, W]``."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, kernel_size=3, stride=2, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )
        self.head = nn.Sequential(
            nn.Conv2d(width, classes, kernel_size=1),
            nn.Upsample(scale_factor=2, mode="bilinear"),
        )

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits


def build(description: NetworkDescription) -> tuple[nn.Module, int]:
    """Return the network of a description, and the stride that sizes of frames must divide by."""
    network = Tiny(width=description.options["width"], classes=description.num_classes)
    stride = 2
    return network, stride
