"""How far to trust a segmentation network, pixel by pixel.

The public names are imported when they are first used, so that ``import segunc`` and the command line are instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segunc.affine.convert import ConversionReport, convert
    from segunc.affine.draws import AffineLayout
    from segunc.affine.files import save_posterior
    from segunc.core.errors import InputError
    from segunc.maps.encoding import decode_unit, encode_unit
    from segunc.networks import NetworkDescription, SegmentationNetwork, build_network, load_network, save_network
    from segunc.posteriors.abnn import ABNN
    from segunc.posteriors.abnn_task import ABNNTask
    from segunc.posteriors.files import load_model
    from segunc.sampling import Prediction, Sampler

_HOMES = {
    "ABNN": "segunc.posteriors.abnn",
    "ABNNTask": "segunc.posteriors.abnn_task",
    "AffineLayout": "segunc.affine.draws",
    "ConversionReport": "segunc.affine.convert",
    "InputError": "segunc.core.errors",
    "NetworkDescription": "segunc.networks",
    "Prediction": "segunc.sampling",
    "Sampler": "segunc.sampling",
    "SegmentationNetwork": "segunc.networks",
    "build_network": "segunc.networks",
    "convert": "segunc.affine.convert",
    "decode_unit": "segunc.maps.encoding",
    "encode_unit": "segunc.maps.encoding",
    "load_model": "segunc.posteriors.files",
    "load_network": "segunc.networks",
    "save_network": "segunc.networks",
    "save_posterior": "segunc.affine.files",
}

__all__ = [
    "ABNN",
    "ABNNTask",
    "AffineLayout",
    "ConversionReport",
    "InputError",
    "NetworkDescription",
    "Prediction",
    "Sampler",
    "SegmentationNetwork",
    "build_network",
    "convert",
    "decode_unit",
    "encode_unit",
    "load_model",
    "load_network",
    "save_network",
    "save_posterior",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'segunc' has no attribute '{name}'")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
