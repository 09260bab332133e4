"""Built-in toy road scenes: procedural streets with pixel-exact labels, an anomaly split and a short video."""

from segunc.data.toy.generate import ToyConfig, generate_toy
from segunc.data.toy.scene import Scene, render_scene

__all__ = ["Scene", "ToyConfig", "generate_toy", "render_scene"]
