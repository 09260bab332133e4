"""Built-in toy road scenes: procedural streets with pixel-exact labels, an anomaly split and a
short video.
"""

from __future__ import annotations

from segunc.toyroads.scene import Scene, ToyConfig, generate_toy, render_scene

__all__ = ["Scene", "ToyConfig", "generate_toy", "render_scene"]
