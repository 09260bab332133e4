"""Build, save and load segmentation networks."""

from __future__ import annotations

from segunc.networks.description import NetworkDescription
from segunc.networks.model_folder import build_network, load_network, save_network
from segunc.networks.network import SegmentationNetwork

__all__ = [
    "NetworkDescription",
    "SegmentationNetwork",
    "build_network",
    "load_network",
    "save_network",
]
