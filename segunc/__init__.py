"""How far to trust a segmentation network, pixel by pixel.

The public names are imported when they are first used, so that ``import segunc`` and the command
line are instant. Every verb of the command line is a function of its options, and returns what it
did::

    segunc.predict("runs/abnn", "drive.mp4", out="maps", draws=8).frames
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from segunc import lightning as lightning, metrics as metrics, options as options
    from segunc.affine.convert import convert as convert
    from segunc.affine.draws import AffineLayout as AffineLayout
    from segunc.baselines.anomaly import Anomaly as Anomaly
    from segunc.baselines.class_sets import PredictionSets as PredictionSets
    from segunc.baselines.distil import Student as Student
    from segunc.baselines.dynamics import HMC as HMC, SGHMC as SGHMC, SGLD as SGLD
    from segunc.baselines.features import FeatureDensity as FeatureDensity
    from segunc.baselines.laplace import Laplace as Laplace
    from segunc.baselines.mc_dropout import MCDropout as MCDropout
    from segunc.baselines.mcbn import MCBN as MCBN
    from segunc.baselines.mixtures import TTA as TTA, Ensemble as Ensemble
    from segunc.baselines.swag import SWAG as SWAG
    from segunc.baselines.temperature import Temperature as Temperature
    from segunc.baselines.variational import Variational as Variational
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
    from segunc.posteriors.image_maps import BatchMaps as BatchMaps, ImageMaps as ImageMaps
    from segunc.posteriors.model import (
        Model as Model,
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
    from segunc.verbs.model_cache import load as load
    from segunc.verbs.monitor import monitor as monitor
    from segunc.verbs.overlay import overlay as overlay
    from segunc.verbs.predict import predict as predict
    from segunc.verbs.report import report as report
    from segunc.verbs.review import review as review
    from segunc.verbs.score import (
        AnomalyResult as AnomalyResult,
        ClassResult as ClassResult,
        score as score,
    )
    from segunc.verbs.summary import summary as summary
    from segunc.verbs.threshold import threshold as threshold
    from segunc.verbs.training import finetune as finetune, train as train
    from segunc.verbs.watch import watch as watch

_NAMES = {
    "load and wrap a model": {
        "load": "verbs.model_cache",
        "wrap": "posteriors.model",
        "Model": "posteriors.model",
        "load_model": "posteriors.model",
        "build_network": "networks",
        "load_network": "networks",
        "save_network": "networks",
        "NetworkDescription": "networks",
        "SegmentationNetwork": "networks",
        "import_network": "verbs.import_network",
    },
    "fit a method": {
        "ABNN": "posteriors.abnn",
        "MCDropout": "baselines.mc_dropout",
        "MCBN": "baselines.mcbn",
        "SWAG": "baselines.swag",
        "Laplace": "baselines.laplace",
        "Variational": "baselines.variational",
        "SGLD": "baselines.dynamics",
        "SGHMC": "baselines.dynamics",
        "HMC": "baselines.dynamics",
        "Ensemble": "baselines.mixtures",
        "TTA": "baselines.mixtures",
        "Student": "baselines.distil",
        "Temperature": "baselines.temperature",
        "FeatureDensity": "baselines.features",
        "Anomaly": "baselines.anomaly",
        "PredictionSets": "baselines.class_sets",
        "ABNNPosterior": "posteriors.abnn",
        "preserve_training": "core.preserving",
        "init": "verbs.init",
        "train": "verbs.training",
        "finetune": "verbs.training",
        "doctor": "verbs.doctor",
    },
    "maps of images": {
        "ImageMaps": "posteriors.image_maps",
        "BatchMaps": "posteriors.image_maps",
        "predict": "verbs.predict",
        "Sampler": "sampling",
        "convert": "affine.convert",
        "AffineLayout": "affine.draws",
        "decode_unit": "maps.encoding",
    },
    "numbers": {
        "score": "verbs.score",
        "AnomalyResult": "verbs.score",
        "ClassResult": "verbs.score",
        "evaluate": "verbs.evaluate",
        "compare": "verbs.compare",
    },
    "decide": {
        "threshold": "verbs.threshold",
        "monitor": "verbs.monitor",
        "watch": "verbs.watch",
    },
    "look": {
        "review": "verbs.review",
        "overlay": "verbs.overlay",
        "summary": "verbs.summary",
        "report": "verbs.report",
        "demo": "verbs.demo",
    },
    "deploy": {
        "export": "verbs.export",
    },
    "errors": {
        "InputError": "core.errors",
        "PartialFailure": "core.errors",
    },
}
"""The module of each public name, by the job that it is for, as ``docs/reference/api.md`` has them.

A name stands a second time above, where type checkers find it.
"""

_MODULES = ("lightning", "metrics", "options")
"""Modules that are used by their names, such as ``segunc.options``."""

_HOMES = {name: f"segunc.{module}" for names in _NAMES.values() for name, module in names.items()}
__all__ = list(_HOMES)


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])


if not TYPE_CHECKING:  # to type checkers, any name would be there

    def __getattr__(name: str) -> object:
        import importlib

        if name == "__version__":
            from importlib.metadata import version

            return version("segunc")
        if name in _MODULES:
            return importlib.import_module(f"segunc.{name}")
        if name not in _HOMES:
            from segunc.core.errors import nearest

            raise AttributeError(
                f"module 'segunc' has no attribute '{name}'{nearest(name, __dir__())}"
            )
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
