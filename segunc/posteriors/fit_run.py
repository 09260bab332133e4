"""A fit under way: what its method is given, and what it hands back."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Generic, cast

import torch

from segunc.core.errors import InputError, NoteWarning
from segunc.core.version import now
from segunc.data.datasets import DATA_OF_PROGRAM
from segunc.data.training_frames import SEEN_SPLITS, SELECTION, note_on_epoch_frames
from segunc.posteriors.map_records import chosen_on
from segunc.posteriors.model import Attachment, Model, configuration_documents
from segunc.sampling.sampler import caller_level
from segunc.training.config import (
    DATA,
    FinetuneConfig,
    FitConfig,
    S,
    images_of,
    list_of_frames,
    settings_of_training,
)
from segunc.training.fit_data import DataSource, size_note

Say = Callable[[str], None]  # receives a line for each step of a fit


def silent(line: str) -> None:
    """Show nothing."""


class FitRun(Generic[S]):
    """A fit on a finished model, which stays as it is.

    Args:
        model: that it begins with, on the device of the fit.
        config: the settings, and those of the data set.
        source: of the data.
        say: receives a line for each step.
        quiet: whether no progress is shown.
    """

    def __init__(
        self,
        model: Model,
        config: FitConfig[S] | FinetuneConfig[S],
        source: DataSource,
        *,
        say: Say,
        quiet: bool = False,
    ) -> None:
        self.model = model
        self.config = config
        self.settings = config.settings
        self.source = source
        self.say = say
        self.quiet = quiet

    @property
    def method(self) -> str:
        """Its name."""
        name: str = cast(Any, self.settings).method
        return name

    @cached_property
    def data(self) -> Any:
        """The :class:`segunc.training.fit_data.FitData` that the method looks at.

        Raises:
            InputError: there are none.
        """
        if not self.source:
            needs = getattr(self.settings, "uses_data", {"": f"the method {self.method}"})
            raise InputError(
                f"{' and '.join(needs.values())} needs data",
                hint="give a loader, a data module or the settings of a data set",
            )
        data = self.source.open_for(self.model.network.description)
        self._tell_frames(data)
        self.tell_size(data, crops=False)
        return data

    def check_labels(self) -> None:
        """Raise InputError where the data are images without labels."""
        if not getattr(self.data, "has_labels", True):
            raise InputError(
                f"the method {self.method} needs labels, and a list of images has none",
                hint="give batches (image, label), such as a DataLoader",
            )

    def chosen_on(self, split: str | None) -> list[str]:
        """Return what of the model was chosen or fitted on a split of its data set, as far as it is
        recorded: ``weights``, ``epoch``, ``posterior`` or names of attachments.

        Args:
            split: of the data set; None for any frames.
        """
        provenance = self.model.network.description.provenance
        of_posterior = self.model.record.get("provenance")
        records = chosen_on(provenance, self.model.attachments, of_posterior)
        if split is None:
            return list(dict.fromkeys(entry["what"] for entry in records))
        place = (str(self.config.data.get("dataset")), self._recorded_split(split))
        return [entry["what"] for entry in records if (entry["dataset"], entry["split"]) == place]

    def note_epoch_frames(self, names: Iterable[str]) -> None:
        """Note frames that chose the epoch of the base and are trained on now, as far as the base
        records them (:class:`NoteWarning`).

        Args:
            names: of the frames of a data set that are trained on.
        """
        settings = self.source.settings
        provenance = self.model.network.description.provenance
        before = provenance.get("data") or {}
        now = settings_of_training(settings)
        if before and before.get("dataset") != now.get("dataset"):
            return  # other frames may have the same names
        is_plain = not before.get("anomaly_class") and not now.get("anomaly_class")
        is_same_list = provenance.get("frames_sha256") == list_of_frames(settings).get(
            "frames_sha256"
        )
        validations = {before.get("validation"), now.get("validation")}
        note = note_on_epoch_frames(
            provenance,
            names,
            str(self.model.folder or "the network"),
            is_same_split=validations == {"val"} and is_plain and is_same_list,
        )
        if note:
            warnings.warn(note, NoteWarning, stacklevel=caller_level())

    def _tell_frames(self, data: Any) -> None:
        """Say which frames of a data set are left out of what the method looks at, if any."""
        needs = getattr(self.settings, "uses_data", {"train": "what is trained"})
        if "train" not in needs or not hasattr(data, "training_frames"):
            return
        try:
            note = data.training_frames(selects=False).note()
        except InputError:
            return  # whoever reads the frames says what is wrong, and what needs them
        if note:
            self.say(f"note: {note}")

    def tell_size(self, data: Any, *, crops: bool) -> None:
        """Say where the method sees frames at another size than ``predict`` shows them.

        Args:
            data: that it looks at.
            crops: whether it sees crops of training frames; else whole frames.
        """
        try:
            note = size_note(data, self.model.network.description, crops=crops)
        except InputError:
            return  # whoever reads the frames says what is wrong, and what needs them
        if note:
            self.say(f"note: {note}")

    def _recorded_split(self, split: str) -> str:
        """Return the split that a record names: of frames of ``train`` that stand in for ``val``
        another one than ``val``.
        """
        if split != "val" or not self.source or images_of(self.settings):
            return split
        selects_on_train = getattr(self.data, "selects_on_train", None)
        return SELECTION if selects_on_train is not None and selects_on_train() else split

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.model.network.parameters()).device

    def fitted_on(self, split: str) -> dict[str, Any]:
        """Return a record of the frames, the date and the version of torch."""
        images = getattr(self.settings, "images", None)
        # Frames of images are seen at the size of the network.
        size = None if images else self.config.data.get("size")
        dataset = images or self.config.data.get("dataset")
        return {
            "dataset": dataset or DATA_OF_PROGRAM,
            "split": self._recorded_split(split),
            "size": None if size is None else list(size),
            "date": now(),
            "torch": torch.__version__,
        }

    def data_record(self) -> dict[str, Any]:
        """Return what the record of a posterior says of the frames of its fit: the data set, and
        with :data:`SEEN_SPLITS` the data set and the split of the frames that were looked at.

        Of images without a data set it names their folder. Data of a program have no name, so that
        nothing knows later which frames they were.
        """
        dataset = self.config.data.get("dataset")
        # A student learns from the frames of its input.
        images = images_of(self.settings) or getattr(self.settings, "input", None)
        if images:
            return {"dataset": dataset, SEEN_SPLITS: [{"dataset": str(images), "split": "train"}]}
        needs = getattr(self.settings, "uses_data", {"train": "what is trained"})
        if not needs or not self.source:
            return {"dataset": dataset, SEEN_SPLITS: []}
        named = str(dataset or DATA_OF_PROGRAM)
        seen = [{"dataset": named, "split": self._recorded_split(split)} for split in needs]
        return {"dataset": named, SEEN_SPLITS: seen}

    def attach(
        self, attachment: Attachment, summary: str, beside: Mapping[str, bytes] | None = None
    ) -> Model:
        """Return the model with what was fitted on it.

        Args:
            attachment: what was fitted.
            summary: of it, for the user.
            beside: the contents of its further files by name.
        """
        attachment.keep(beside or {})
        documents = configuration_documents(self.config, self.method)
        if self.model.records_data:
            documents.pop(DATA, None)  # that of the training stays
        return self.model.with_attachment(attachment, documents, summary)
