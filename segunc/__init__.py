"""How far to trust a segmentation network, pixel by pixel.

The public names are imported when they are first used, so that ``import segunc`` and the command
line are instant. Every verb of the command line is a function of its options, and returns what it
did::

    segunc.predict("runs/abnn", "drive.mp4", out="maps", draws=8).frames
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segunc.affine.convert import convert as convert
    from segunc.affine.draws import AffineLayout as AffineLayout
    from segunc.core.errors import InputError as InputError, PartialFailure as PartialFailure
    from segunc.core.preserving import preserve_training as preserve_training
    from segunc.maps.encoding import decode_unit as decode_unit
    from segunc.networks import (
        NetworkDescription as NetworkDescription,
        SegmentationNetwork as SegmentationNetwork,
        build_network as build_network,
        load_network as load_network,
        save_network as save_network,
    )
    from segunc.posteriors.abnn import ABNN as ABNN, ABNNPosterior as ABNNPosterior
    from segunc.posteriors.model import (
        Model as Model,
        load as load,
        load_model as load_model,
        wrap as wrap,
    )
    from segunc.sampling import Sampler as Sampler
    from segunc.verbs.compare import compare as compare
    from segunc.verbs.demo import demo as demo
    from segunc.verbs.doctor import doctor as doctor
    from segunc.verbs.evaluate import evaluate as evaluate
    from segunc.verbs.export import export as export
    from segunc.verbs.import_network import import_network as import_network
    from segunc.verbs.init import init as init
    from segunc.verbs.monitor import monitor as monitor
    from segunc.verbs.overlay import overlay as overlay
    from segunc.verbs.predict import predict as predict
    from segunc.verbs.report import report as report
    from segunc.verbs.review import review as review
    from segunc.verbs.summary import summary as summary
    from segunc.verbs.threshold import threshold as threshold
    from segunc.verbs.training import finetune as finetune, train as train

_NAMES = {
    "affine.convert": "convert",
    "affine.draws": "AffineLayout",
    "core.errors": "InputError PartialFailure",
    "core.preserving": "preserve_training",
    "maps.encoding": "decode_unit",
    "networks": "NetworkDescription SegmentationNetwork build_network load_network save_network",
    "posteriors.abnn": "ABNN ABNNPosterior",
    "posteriors.model": "Model load load_model wrap",
    "sampling": "Sampler",
    "verbs.compare": "compare",
    "verbs.demo": "demo",
    "verbs.doctor": "doctor",
    "verbs.evaluate": "evaluate",
    "verbs.export": "export",
    "verbs.import_network": "import_network",
    "verbs.init": "init",
    "verbs.monitor": "monitor",
    "verbs.overlay": "overlay",
    "verbs.predict": "predict",
    "verbs.report": "report",
    "verbs.review": "review",
    "verbs.summary": "summary",
    "verbs.threshold": "threshold",
    "verbs.training": "finetune train",
}
"""The public names of each module of the package."""


def _modules_of_names() -> dict[str, str]:
    """Return the full name of the module of each public name."""
    modules = {}
    for module, names in _NAMES.items():
        for name in names.split():
            modules[name] = f"segunc.{module}"
    return modules


_HOMES = _modules_of_names()
__all__ = sorted(_HOMES)
_ROOMS = ("lightning",)
"""Public modules, which are imported when they are first used, as the names are."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("segunc")
    if name in _ROOMS:
        import importlib

        return importlib.import_module(f"segunc.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'segunc' has no attribute '{name}'")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
