"""The settings of methods, each an object with ``fit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from segunc.core.bounds import Settings
from segunc.core.errors import InputError
from segunc.posteriors.fitting import fit_model
from segunc.posteriors.model import Model
from segunc.training.config import load_settings, save_settings


class MethodSettings(Settings):
    """The settings of a method, which make a model of another one.

    ``method`` is its name in :data:`METHODS`. Where ``needs_data`` is False, a fit without data is
    possible, too.
    """

    method: ClassVar[str]
    needs_data: ClassVar[bool] = True

    def settled(self, *, has_data: bool) -> Self:
        """Return the settings of a fit, with a value for each default that depends on the data."""
        return self

    def fit(
        self,
        model: Model,
        data: Any = None,
        *,
        device: str = "auto",
        trainer: Mapping[str, Any] | None = None,
        checkpoints: Path | str | None = None,
        say: Callable[[str], None] | None = None,
    ) -> Model:
        """Return a model that this method makes of another one, which is not changed.

        ``segunc finetune`` calls it, too: the same settings and data make the same model. The
        global random numbers are left as they were.

        Args:
            model: of :func:`segunc.load` or :func:`segunc.wrap`. Methods that make a posterior take
                a deterministic one.
            data: a ``DataLoader`` or another iterable of batches ``(image, label)``, or of
                dictionaries with these keys: float images ``[N, K, H, W]`` in 0..1 and class ids
                ``[N, H, W]`` or ``[N, 1, H, W]``, 255 ignored; a Lightning data module; the path of
                a configuration; ``NAME:FOLDER`` of a data set, or its settings as a mapping; for
                methods that need no labels also images uint8 ``[H, W, K]``. None takes the data
                that the model was made with, where the method needs some. A single loader serves
                as every split. A loader that never ends needs ``max_steps`` of the settings, which
                only methods that train have.
            device: ``auto``, ``cpu`` or ``cuda[:N]``. A network that gets a posterior is left
                there.
            trainer: settings of Lightning's Trainer, for a method that trains; how long it trains
                is a setting of the method.
            checkpoints: folder in which a training keeps its checkpoints, so that it continues
                there after it was stopped; None keeps none.
            say: receives a line for each step; None shows none, and no progress either.

        Raises:
            InputError: the model, the data and the settings do not fit together.
            PartialFailure: a training broke off; its checkpoints stay.
        """
        _check_trainer(trainer)
        return fit_model(
            self, model, data, device=device, trainer=trainer, checkpoints=checkpoints, say=say
        )

    def save(self, path: Path | str) -> None:
        """Write the settings as a YAML file, which ``load`` and ``segunc finetune --config`` read.

        Args:
            path: of the file; one that is there is replaced.
        """
        save_settings(self, Path(path))

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Return the settings in a YAML file; what it does not name has its default.

        Raises:
            InputError: the file cannot be read, or has an unknown key or a wrong value.
        """
        return load_settings(cls, Path(path))


def _check_trainer(trainer: Mapping[str, Any] | None) -> None:
    """Raise InputError for a length of the training that is not the method's."""
    for name in ("max_epochs", "max_steps"):
        if name in (trainer or {}):
            raise InputError(
                f"trainer gives {name}, but a method has its own length of training",
                hint="give epochs or max_steps to the settings: segunc.ABNN(epochs=2)",
            )
