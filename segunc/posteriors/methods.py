"""The methods of ``segunc finetune``, and through them the posteriors that model folders hold. The
module of a method does not import Lightning at its top, because reading a stored posterior imports
it; its fit does that inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segunc.core.bounds import Settings
from segunc.core.registry import Registry

if TYPE_CHECKING:  # the command line reads the names, and is to start at once
    from torch import Tensor

    from segunc.affine.posterior import Posterior


@dataclass(frozen=True)
class Method:
    """One way from a model to another.

    Attributes:
        name: on the command line and in records.
        config: the dataclass of its settings, see
            :class:`segunc.posteriors.settings.MethodSettings`.
        fit: ``fit(run)`` returns the new model. ``run`` is a
            :class:`segunc.posteriors.fit_run.FitRun` where the method is made of a finished model,
            else a :class:`segunc.posteriors.finetune_run.FinetuneRun`; with ``several`` it is
            ``fit(settings, models)``.
        restore: makes the stored posterior of its tensors and its record, with a KeyError for what
            they lack; None where :attr:`load` does it, or none is stored.
        load: ``load(folder, record, networks)`` makes the
            :class:`segunc.posteriors.model.Model` in a folder by its record, where it is not one
            posterior over the converted network there. ``networks`` gives the modules of networks
            that no folder can build, see :func:`segunc.posteriors.model.load_recorded`.
        store: ``store(model, folder)`` writes such a model.
        finished: whether it is made of a finished model of any kind; the others make a model from a
            deterministic base.
        data: whether it looks at data; without, a configuration need not be given.
        several: whether it is made of several models.
        own_network: whether it writes a network of its own, not the base's.
    """

    name: str
    config: type[Settings]
    fit: Callable[..., Any]
    restore: Callable[[Mapping[str, Tensor], Mapping[str, Any]], Posterior] | None = None
    load: Callable[..., Any] | None = None
    store: Callable[[Any, Path], None] | None = None
    finished: bool = False
    data: bool = True
    several: bool = False
    own_network: bool = False

    @property
    def key(self) -> str:
        """The name of its section in a configuration."""
        return self.config.section


_OF_MODELS = ("features", "anomaly", "temperature", "class-sets", "ensemble", "tta", "distil")
_OF_BASES = ("hmc", "laplace", "mc-dropout", "mcbn", "sghmc", "sgld", "swag", "variational")
_OWN = {"abnn": "segunc.posteriors.abnn:METHOD"}
METHODS: Registry[Method] = Registry("method", "segunc.posteriors", _OWN, (*_OF_MODELS, *_OF_BASES))
"""What ``--method`` can name."""
