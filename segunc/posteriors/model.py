"""A network with its posterior and what was fitted on it: in memory, and as a model folder.

The folder holds ``posterior.safetensors``, ``posterior.json`` and records of what was fitted,
beside their base network.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, overload

import torch
from torch import Tensor, nn

from segunc.affine.convert import ConversionReport, convert, is_converted
from segunc.affine.posterior import Deterministic, Posterior
from segunc.core.errors import InputError, NoteWarning, one_line
from segunc.core.files import (
    file_sha256,
    is_record,
    is_whole_record,
    json_sha256,
    link_or_copy,
    plain_record,
    read_json,
    read_record,
    unlinked,
    write_atomically,
    write_file,
    write_json,
    write_record,
)
from segunc.core.registry import Registry
from segunc.core.removal import remove_result
from segunc.core.terminal import counted
from segunc.core.trust import agree, find_code
from segunc.data.image_arrays import (
    ImageBatch,
    ImageLike,
    ValueRange,
    batches_of,
    check_value_range,
    read_images,
)
from segunc.data.images import AnyImage
from segunc.networks.copies import copy_network
from segunc.networks.description import (
    COLOUR,
    IMAGENET_MEAN,
    IMAGENET_STD,
    NetworkDescription,
)
from segunc.networks.import_sources import check_network
from segunc.networks.model_folder import (
    DESCRIPTION,
    POSTERIOR,
    WEIGHTS,
    check_factory,
    load_network,
    network_sha256,
    refuse_weights,
    save_network,
)
from segunc.networks.network import (
    SegmentationNetwork,
    check_parameters,
    settle_outputs,
    settle_size,
)
from segunc.networks.weights import read_checkpoint
from segunc.posteriors.image_maps import BatchMaps, ImageMaps
from segunc.posteriors.map_records import (
    Sampling,
    check_sampling,
    model_record,
    origin_of,
    sample_image,
)
from segunc.posteriors.methods import METHODS
from segunc.posteriors.saving import TENSORS, save_posterior
from segunc.sampling.branches import AnyPosterior, branches_of
from segunc.sampling.sampler import (
    CALLS,
    Fitted,
    Provider,
    Sampler,
    caller_level,
    stamp_of_tensor,
    stamp_of_tensors,
)
from segunc.scores import DEFAULT_SCORES, OF_DRAWS, SCORES, check_scores, with_parts
from segunc.training.config import (
    DATA,
    HISTORY,
    Config,
    data_to_record,
    dump_config,
    recorded_data,
)
from segunc.uncertainty import Calibrator

SeenSize = tuple[int, int] | Literal["dynamic"] | None
"""(height, width) at which a network sees frames; None is its own size, and "dynamic" any size."""
MEMBERS = "members"
"""Folder of an ensemble's members, each a model folder named by its number."""


@dataclass(frozen=True)
class Attachment:
    """What is fitted on a finished model, and stored beside it as a small JSON file that is bound
    to the model by hashes.

    It is an entry of :data:`ATTACHMENTS` under the name of this file without its suffix. A file may
    have more fields than its class.

    Attributes:
        file: its record.
        beside: further files of it.
        what: it is, in messages.
        bound_by: fields of the record, see :attr:`Model.hashes`.
        of_others: whether it is fitted after all others: it is loaded after them, and outdated by a
            new one of them.
    """

    file: ClassVar[str]
    beside: ClassVar[tuple[str, ...]] = ()
    what: ClassVar[str]
    bound_by: ClassVar[tuple[str, ...]] = ("base_sha256",)
    of_others: ClassVar[bool] = False

    @property
    def gives(self) -> frozenset[str]:
        """Names of the evidence that it has for scores."""
        return frozenset()

    def providers(
        self, model: Model, needs: Collection[str], frames: Collection[str] | None = None
    ) -> Sequence[Any]:
        """Return what gives the sampler the evidence that is needed. By default it is the
        attachment itself.

        Args:
            model: that it was fitted on.
            needs: names of evidence.
            frames: names of frames of the training set: only what was seen in these counts; None
                takes all.

        Returns:
            Each a :class:`segunc.sampling.sampler.Provider`.
        """
        return (self,)

    def check_tensors(self, folder: Path) -> None:
        """Raise InputError where a further file in a model folder is not the one of this fit. Its
        record is checked where it is loaded.
        """

    def check_sampler(self, sampler: Sampler) -> None:
        """Raise InputError where maps of this sampler are not those that it was fitted for."""

    def size_note(self, size: SeenSize, network_size: tuple[int, int] | None) -> str:
        """Return what a user should know where the network sees frames at another size than those
        that it was fitted on; empty where nothing.

        Args:
            size: (height, width) that was asked for; None takes that of the network, and "dynamic"
                is any size.
            network_size: (height, width) of the network; None where frames keep their own.
        """
        return ""

    def record(self) -> dict[str, Any]:
        """Return what decides its evidence, for the manifest of maps that need it."""
        return {f"{Path(self.file).stem}_sha256": json_sha256(asdict(self))}

    def exported_record(self) -> dict[str, Any]:
        """Return what an exported file says of it: the record of maps, and what voids a promise."""
        return self.record()

    @classmethod
    def load(cls, folder: Path, model: Model) -> Self:
        """Return it from the folder of a model that has all that it is fitted after."""
        return cls(**cls.content(folder, model))

    def keep(self, beside: Mapping[str, bytes]) -> None:
        """Keep the contents of its further files in memory until it is written."""
        object.__setattr__(self, "_kept", dict(beside))

    @property
    def kept(self) -> Mapping[str, bytes]:
        """The contents of its further files by name; empty of one that was loaded."""
        contents: Mapping[str, bytes] = vars(self).get("_kept", {})
        return contents

    def write(self, folder: Path) -> None:
        """Write it into the folder of its model."""
        for name, content in self.kept.items():
            write_atomically(folder / name, content)
        write_record(folder / self.file, asdict(self))

    @classmethod
    def content(cls, folder: Path, model: Model) -> dict[str, Any]:
        """Return the fields of the record in the folder of a model, lists as tuples.

        Raises:
            InputError: it was fitted on another model.
        """
        path = folder / cls.file
        content = read_record(path, f"the {cls.what}")
        for name in cls.bound_by:
            if content[name] != model.hashes[name]:
                recorded = str(content[name])[:12]
                actual = str(model.hashes[name])[:12]
                raise InputError(
                    f"{path} was fitted on another model, whose {name} is {recorded} and not "
                    f"{actual}",
                    hint="fit it again on this model, or remove the file",
                )
        values = {}
        for field_of_record in fields(cls):
            name = field_of_record.name
            if name in content:
                value = content[name]
                values[name] = tuple(value) if isinstance(value, list) else value
        return values


ATTACHMENTS = Registry[type[Attachment]](
    "attachment", "segunc.attachments", {}, ("features", "anomaly", "calibration", "class_sets")
)


def attachments_in(folder: Path) -> list[type[Attachment]]:
    """Return what was fitted on the model in a folder, in the order in which it is loaded; no other
    module is imported.
    """
    kinds = [ATTACHMENTS[name] for name in ATTACHMENTS if (folder / f"{name}.json").exists()]
    return sorted(kinds, key=lambda kind: kind.of_others)


@dataclass
class Model:
    """A network with its posterior, ready for the sampler.

    >>> import numpy as np
    >>> import torch
    >>> import segunc
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> model = segunc.ABNN(alpha=0.1).fit(segunc.wrap(net, ("road", "other")))
    >>> maps = model(np.zeros((32, 48, 3), np.uint8), draws=4)
    >>> maps.entropy.shape
    (32, 48)

    Attributes:
        network: converted when its own posterior draws; member 0 of an ensemble.
        posterior: makes the draws.
        sha256: of the base network: weights and description.
        posterior_sha256: of tensors, settings and members' networks; None for a deterministic
            network.
        report: what the conversion did; None for a deterministic network.
        record: the content of ``posterior.json``; empty for a deterministic network.
        folder: that it was loaded from; None of a model that is only in memory, or whose posterior
            is.
        attachments: what was fitted on it, by the names of :data:`ATTACHMENTS`.
        base_folder: a model folder that holds the base network.
        fresh: names of the attachments that were fitted since it was loaded.
        documents: further files that :meth:`save` writes, by name: a text, or what JSON knows.
        parts: the models that it was made of: of an ensemble, or under test-time augmentation.
        measured: what its last fit measured: steps and seconds of a training, for instance.
        summary: of its last fit, in a line.
    """

    network: SegmentationNetwork
    posterior: AnyPosterior
    sha256: str
    posterior_sha256: str | None
    report: ConversionReport | None
    record: Mapping[str, Any]
    folder: Path | None = None
    attachments: dict[str, Any] = field(default_factory=dict)
    base_folder: Path | None = None
    fresh: frozenset[str] = frozenset()
    documents: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Model, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""
    _samplers: dict[Any, Sampler] = field(default_factory=dict, repr=False)  # of the last call
    # What these were made of. It is held, so that nothing else can come by its id.
    _sampled_parts: list[Any] = field(default_factory=list, repr=False)
    _sampled_stamp: list[Any] = field(default_factory=list, repr=False)
    # The notes of its samplers that were given as warnings.
    _warned: set[str] = field(default_factory=set, repr=False)
    # The tensors after the last call, see :func:`stamp_of_tensors`, and ``sha256`` of them; None
    # where they are not those of a fit any more.
    _stamp: list[Any] = field(default_factory=list, repr=False)
    _present_sha256: str | None = field(default=None, repr=False)
    # Of the posterior that ``posterior_sha256`` is of, see :func:`_stamp_of_posterior`.
    _posterior_stamp: list[Any] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        # A copy with another posterior has the stamp of the one that was fitted.
        if not self._posterior_stamp:
            self._posterior_stamp = _stamp_of_posterior(self.posterior)

    def __repr__(self) -> str:
        """Return a few lines: the method, the classes, what was fitted, and the folder."""
        method = self.posterior.method if self.bayesian else "deterministic"
        lines = [f"Model: {method}, {self.network.description.num_classes} classes"]
        lines.append(f"  network: {type(self.network.body).__name__}, hash {self.sha256[:12]}")
        if self.summary:
            lines.append(f"  last fit: {self.summary}")
        if self.attachments:
            lines.append(f"  fitted on it: {', '.join(sorted(self.attachments))}")
        if self.folder is not None:
            lines.append(f"  folder: {self.folder}")
        return "\n".join(lines)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the samplers out of copies and pickles: they hold what they know of the network by
        the identity of its modules and tensors.
        """
        state = {**vars(self), "_samplers": {}, "_stamp": []}
        state |= {"_sampled_parts": [], "_sampled_stamp": []}
        if not self._has_other_posterior:
            state["_posterior_stamp"] = []  # the copy has a posterior object of its own
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    @property
    def bayesian(self) -> bool:
        return not isinstance(self.posterior, Deterministic)

    @property
    def temperature(self) -> float:
        """T, by which logits are divided before the softmax; 1 for a model that was not calibrated,
        or whose mean is.
        """
        calibration = self.attachments.get("calibration")
        if calibration is None or calibration.applies != "logits":
            return 1.0
        return calibration.temperature or 1.0

    @property
    def calibrator(self) -> Calibrator | None:
        """Of the mean over the draws; None for a model that was not calibrated, or whose logits
        are.
        """
        calibration = self.attachments.get("calibration")
        return None if calibration is None else calibration.calibrator

    @property
    def hashes(self) -> dict[str, Any]:
        """What can bind a record to it."""
        features = self.attachments.get("features")
        calibrator = self.calibrator
        return {
            "base_sha256": self.sha256,
            "posterior_sha256": self.posterior_sha256,
            "features_sha256": None if features is None else features.tensors_sha256,
            "temperature": self.temperature,
            "calibrator_sha256": None if calibrator is None else calibrator.sha256,
        }

    @property
    def networks(self) -> list[SegmentationNetwork]:
        """The network, and those of all members of an ensemble."""
        members = [branch.network for branch in branches_of(self.network, self.posterior)]
        networks = {}
        for network in (self.network, *members):
            if isinstance(network, SegmentationNetwork):
                networks[id(network)] = network
        return list(networks.values())

    def needs(self, scores: Iterable[str]) -> frozenset[str]:
        """Return the evidence that scores need, with that of the parts of sums."""
        needs: set[str] = set()
        for name in with_parts(check_scores(scores), self.attachments.values()):
            needs.update(SCORES[name].needs)
        return frozenset(needs)

    def used(self, scores: Iterable[str]) -> list[Attachment]:
        """Return what was fitted on it and gives some of this evidence."""
        needs = self.needs(scores)
        return [attachment for attachment in self.attachments.values() if attachment.gives & needs]

    def fitted(self, scores: Sequence[str], frames: Collection[str] | None = None) -> Fitted:
        """Return what was fitted on it, as the sampler takes it for some scores, see
        :meth:`Attachment.providers`.
        """
        needs = self.needs(scores)
        providers: list[Provider] = []
        for attachment in self.used(scores):
            providers += attachment.providers(self, needs, frames)
        return Fitted(self.temperature, self.calibrator, providers)

    def place(self, device: torch.device) -> None:
        """Put all networks on a device, channels last."""
        for network in self.networks:
            network.to(device).to(memory_format=torch.channels_last)

    @overload
    def __call__(
        self,
        image: Sequence[ImageLike],
        *,
        draws: int = 8,
        seed: int = 0,
        scores: Sequence[str] | None = None,
        value_range: ValueRange | None = None,
    ) -> BatchMaps: ...
    @overload
    def __call__(
        self,
        image: ImageLike,
        *,
        draws: int = 8,
        seed: int = 0,
        scores: Sequence[str] | None = None,
        value_range: ValueRange | None = None,
    ) -> ImageMaps: ...
    def __call__(
        self,
        image: ImageLike | Sequence[ImageLike],
        *,
        draws: int = 8,
        seed: int = 0,
        scores: Sequence[str] | None = None,
        value_range: ValueRange | None = None,
    ) -> ImageMaps:
        """Return the maps of an image, at its own size, computed where the network is; or those of
        a batch or a list of images, each of which has the bits of a call of its own.

        The first call of a size takes longer, because the sampler checks itself. The network runs
        in eval mode, and every module has its own mode back at the end. What a user should know of
        the network is a :class:`segunc.core.errors.NoteWarning`, each note once. Calls from several
        threads take turns.

        Args:
            image: RGB or grey, one image or several; of a network of K other channels, images of
                exactly K channels instead of 3. NumPy has channels last: ``[H, W, 3]``,
                ``[H, W]``, ``[N, H, W, 3]``. Torch, on any device, has them first: ``[3, H, W]``,
                ``[1, H, W]``, ``[N, 3, H, W]``. Or a PIL image, which is read as its file is. Or a
                list of images, whose sizes may differ.
            draws, seed: see :class:`segunc.sampling.sampler.Sampler`.
            scores: names of scores; None takes :attr:`default_scores`.
            value_range: the values of black and white. None takes what the type says: uint8 is
                0..255, uint16 is 0..65535, floats are 0..1. Floats keep their precision, and those
                of k / 255 give the maps of uint8 k.

        Returns:
            The maps of one image, or :class:`BatchMaps` of a list or a batch.

        Raises:
            InputError: an image of another type, shape or range of values, or fewer draws than
                members.
            NotFiniteError: the network or a draw returns NaN or infinite values.
        """
        sampling = check_sampling(draws, seed, self.default_scores if scores is None else scores)
        batch = _read_images(image, value_range, self.network.description.channels)
        maps = [self._maps_of(frame, sampling) for frame in batch.images]
        return BatchMaps(maps) if batch.several else maps[0]

    def maps(
        self,
        batches: Iterable[Any],
        *,
        draws: int = 8,
        seed: int = 0,
        scores: Sequence[str] | None = None,
        value_range: ValueRange | None = None,
    ) -> Iterator[ImageMaps]:
        """Return an iterator over the maps of one image after the other, in the memory of one
        batch.

        Args:
            batches: a ``DataLoader``, a data set or another iterable. Each element is an image or a
                batch; a tuple or list with it in front, whose other parts (labels) are passed over;
                or a dictionary that has it as ``image``.
            draws, seed, scores, value_range: see :meth:`__call__`.

        Raises:
            InputError: as there; or an element that holds no image, or may hold several.

        >>> loader = [(image[None], "a label"), {"image": image}]
        >>> [maps.prediction.shape == image.shape[:2] for maps in model.maps(loader, draws=4)]
        [True, True]
        """
        sampling = check_sampling(draws, seed, self.default_scores if scores is None else scores)
        check_value_range(value_range)
        frames = _frames_of(batches, value_range, self.network.description.channels)
        return (self._maps_of(frame, sampling) for frame in frames)

    def _maps_of(self, image: AnyImage, sampling: Sampling) -> ImageMaps:
        """Return the maps of one image."""
        settings = (sampling, next(self.network.parameters()).device)
        with CALLS:  # another thread may ask for other settings
            self._forget_outdated_samplers()
            if settings not in self._samplers:
                sampler = Sampler(
                    self.network,
                    self.posterior,
                    draws=sampling.draws,
                    seed=sampling.seed,
                    scores=sampling.scores,
                    fitted=self.fitted(sampling.scores),
                )
                sampler.warned = self._warned
                self._samplers = {settings: sampler}
            sampler = self._samplers[settings]
            self._hash_present_weights()
            origin = None
            if self._present_sha256 is not None:
                used = self.used(sampler.scores)
                provenance = self.record.get("provenance")
                about = model_record(self.network, self.posterior, provenance, self.attachments)
                hashes = {**self.hashes, "base_sha256": self._present_sha256}
                origin = origin_of(sampler, used, hashes, about)
            try:
                return sample_image(sampler, image, origin)
            finally:
                self._stamp = self._stamp_now()  # a call may write buffers

    def _forget_outdated_samplers(self) -> None:
        """Forget the samplers that were made of another network, posterior or attachment than the
        model has now.
        """
        parts = [self.network, self.posterior, *self.attachments.values()]
        stamp = [*map(id, parts), *_stamp_of_posterior(self.posterior)]
        if stamp != self._sampled_stamp:
            self._samplers = {}
            self._sampled_stamp = stamp
            self._sampled_parts = parts

    @property
    def _has_other_posterior(self) -> bool:
        """Whether its posterior is not the one that was fitted any more."""
        return _stamp_of_posterior(self.posterior) != self._posterior_stamp

    def _stamp_now(self) -> list[Any]:
        """Return what differs as soon as the weights of a network, or the posterior, are not those
        of before.
        """
        stamp: list[Any] = _stamp_of_posterior(self.posterior)
        for network in self.networks:
            for module in network.modules():
                stamp += stamp_of_tensors(module)
        return stamp

    def _hash_present_weights(self) -> None:
        """Find the hash of the weights of a call, again only where they may have changed since the
        last one. A note says if they have changed since something was fitted on them, or the
        posterior since it was fitted.
        """
        if self._stamp and self._stamp == self._stamp_now():
            return
        try:
            self._present_sha256 = self.with_present_weights().sha256
        except InputError as error:
            self._present_sha256 = None
            note = f"{error.message}: these maps are not those of a fit, and cannot be saved"
            if note not in self._warned:
                self._warned.add(note)
                warnings.warn(f"{note}; {error.hint}", NoteWarning, stacklevel=caller_level())

    @property
    def default_scores(self) -> tuple[str, ...]:
        """The scores that are computed where none are named: those that every model has, and
        ``anomaly`` if it was fitted on this one.
        """
        if "anomaly" in self.attachments:
            return (*DEFAULT_SCORES, "anomaly")
        return DEFAULT_SCORES

    @property
    def records_data(self) -> bool:
        """Whether it is known which data set it was made with."""
        if DATA in self.documents:
            return True
        return self.folder is not None and recorded_data(self.folder) is not None

    def with_attachment(
        self, attachment: Attachment, documents: Mapping[str, Any], summary: str
    ) -> Model:
        """Return the model with what was fitted on it. What was fitted with a former one of it is
        left out.

        Args:
            attachment: what was fitted.
            documents: further files for :meth:`save`, by name.
            summary: of the fit, in a line.
        """
        name = Path(attachment.file).stem
        attachments = dict(self.attachments)
        for other, fitted in self.attachments.items():
            if fitted.of_others and not attachment.of_others:
                del attachments[other]
        attachments[name] = attachment
        return replace(
            self,
            attachments=attachments,
            fresh=self.fresh & attachments.keys() | {name},
            documents={**self.documents, **documents},
            measured={},
            summary=summary,
            _samplers={},
            _warned=set(),
            _stamp=[],
        )

    def save(self, folder: Path | str) -> None:
        """Write the model folder for all verbs.

        Of a network without ``factory``, the folder holds what was fitted and the hash of the
        network: :func:`segunc.load` opens it with ``network``.

        What was fitted on another model that the folder held is removed, which a
        :class:`segunc.core.errors.NoteWarning` says.

        Raises:
            InputError: the folder holds a model of another kind; the network has changed since
                something was fitted on it, or the posterior since it was fitted; or the folder that
                the model was loaded from has gone or holds another one.
        """
        for removed in self.write(Path(folder)):
            warnings.warn(removed, NoteWarning, stacklevel=2)

    def write(self, folder: Path) -> list[str]:
        """Write the model folder as :meth:`save` does, and return a line for each file that was
        removed from it.
        """
        present = self.with_present_weights()
        present.save_posterior(folder)
        # A network that was trained on is no longer that of the folder.
        self.sha256 = present.sha256
        self.folder = present.folder
        self.base_folder = present.base_folder
        for name in sorted(self.fresh):
            self.attachments[name].write(folder)
        for name, content in self.documents.items():
            if isinstance(content, str):
                write_file(folder / name, content.encode())
            else:
                write_json(folder / name, content)
        return self._remove_outdated(folder) + self._remove_strangers(folder)

    def save_posterior(self, folder: Path, *, fitted: bool = True) -> None:
        """Write the network and its posterior.

        Args:
            folder: the model folder.
            fitted: also copy what was fitted on a model that was loaded.
        """
        if self.folder is not None:
            self._check_folder(self.folder)
            copy_model(self.folder, folder, fitted=fitted)
            return
        method = METHODS.get(self.posterior.method) if self.bayesian else None
        if method is not None and method.store is not None:
            method.store(self, folder)
            return
        _refuse_bayesian(folder, self)
        self._save_base(folder)
        if isinstance(self.posterior, Posterior) and self.bayesian:
            save_posterior(self.posterior, dict(self.record), folder)

    def _save_base(self, folder: Path) -> None:
        """Write the base network, or link (or copy) it from a folder that holds it."""
        if self.base_folder is not None and _recorded_network(self.base_folder) == self.sha256:
            link_network(self.base_folder, folder)
        else:
            save_network(self.network, folder)

    def with_present_weights(self) -> Model:
        """Return the model of the network as it is now: itself, unless the weights have changed.

        Raises:
            InputError: they have changed since something was fitted on the network, or the
                posterior since it was fitted.
        """
        if self._has_other_posterior:
            raise InputError(
                "the posterior of the model is not the one that was fitted any more",
                hint="fit another one: segunc.ABNN(alpha=0.2).fit(base)",
            )
        digest = self.sha256
        if self.parts:
            if any(part.with_present_weights() is not part for part in self.parts):
                digest = ""
        else:
            network: SegmentationNetwork = getattr(self.posterior, "plain", self.network)
            digest = network_sha256(network.body, network.description)
        if digest == self.sha256:
            return self
        if self.bayesian or self.attachments:
            raise InputError(
                "the weights of the network have changed since something was fitted on it",
                hint="fit it again",
            )
        return replace(
            self,
            sha256=digest,
            folder=None,
            base_folder=None,
            _samplers={},
            _warned=set(),
            _stamp=[],
        )

    def _check_folder(self, folder: Path) -> None:
        """Raise InputError where the folder that the model was loaded from no longer holds it."""
        hint = "restore the folder, or save the model before it is removed"
        if not folder.is_dir():
            raise InputError(f"{folder}, which the model was loaded from, has gone", hint=hint)
        holds = _recorded_network(folder) in (self.sha256, None)  # an ensemble has no network there
        if (folder / POSTERIOR).exists():
            record = read_record(folder / POSTERIOR, "the description of a posterior")
            holds &= record == dict(self.record)
        else:
            holds &= not self.bayesian
        if not holds or not model_files(folder):
            raise InputError(f"{folder} holds another model than was loaded from it", hint=hint)

    def _remove_outdated(self, folder: Path) -> list[str]:
        """Remove from a model folder what was fitted with a former one of what is now there."""
        fitted = [self.attachments[name] for name in sorted(self.fresh)]
        new = [attachment.what for attachment in fitted if not attachment.of_others]
        if not new:
            return []
        removed = []
        for kind in attachments_in(folder):
            if kind.of_others and Path(kind.file).stem not in self.attachments:
                former = f"with a former {' and '.join(new)}"
                removed.append(_remove_attachment(folder, kind, former))
        return removed

    def _remove_strangers(self, folder: Path) -> list[str]:
        """Remove from a model folder what was fitted on another model that it held."""
        hashes = self.hashes
        removed = []
        for kind in attachments_in(folder):
            if Path(kind.file).stem in self.attachments:
                continue
            content = read_json(folder / kind.file, f"the {kind.what}")
            if any(content.get(name) != hashes[name] for name in kind.bound_by):
                removed.append(_remove_attachment(folder, kind, "on another model"))
        return removed

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: Path | str,
        *,
        network: nn.Module | Sequence[nn.Module] | None = None,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: Path | str | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
    ) -> Model:
        """Load a model from a folder, or from the Hugging Face Hub by its name.

        Nothing of the repository runs, see ``SECURITY.md``. Only files of a model folder are
        downloaded. :attr:`folder` is then in the cache of ``huggingface_hub``, and
        ``model.network.description.provenance["hub"]`` names repository and commit.

        Args:
            pretrained_model_name_or_path: a model folder, or ``owner/name``. A folder of that name
                comes first.
            network: the torch module of a model that was saved without a factory; of an ensemble,
                one for each member.
            force_download: download files again that are in the cache.
            token: of the Hub; None or True takes that of ``hf auth login``, False none.
            cache_dir: cache of ``huggingface_hub``; None takes its own.
            local_files_only: read the cache and open no connection.
            revision: branch, tag or commit hash; None is ``main``.

        Raises:
            InputError: no such folder or repository; no access; no model; a damaged file; a network
                of somebody's code without your agreement; or ``huggingface_hub`` is missing.

        >>> segunc.Model.from_pretrained("owner/roads").posterior.members
        2
        """
        from segunc.networks.hub_client import Repository
        from segunc.posteriors.hub_download import load_pretrained

        arguments: dict[str, Any] = {} if network is None else {"network": network}
        return load_pretrained(
            pretrained_model_name_or_path,
            lambda name: Repository(
                name, revision, token, cache_dir, force_download, local_files_only
            ),
            ATTACHMENTS,
            lambda folder: load_model(folder, **arguments),
        )

    def save_pretrained(
        self,
        save_directory: Path | str,
        *,
        report: Path | str | None = None,
        license: str | None = None,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        model_card_kwargs: Mapping[str, Any] | None = None,
        **push_to_hub_kwargs: Any,
    ) -> str | None:
        """Write what :meth:`push_to_hub` uploads into a folder: the model and its card README.md.

        Args:
            save_directory: the folder. A README.md in it stays as it is.
            report, license, model_card_kwargs: see :meth:`push_to_hub`.
            repo_id: name on the Hub; None takes that of the folder.
            push_to_hub: also publish the model.
            push_to_hub_kwargs: further arguments of :meth:`push_to_hub`.

        Returns:
            The address of the commit, None without ``push_to_hub``.
        """
        from segunc.posteriors import hub_upload
        from segunc.posteriors.model_card import CardOptions

        options = CardOptions(report, license, model_card_kwargs)
        hub_upload.save_pretrained(self, save_directory, repo_id, ATTACHMENTS, options)
        if not push_to_hub:
            return None
        return self.push_to_hub(
            repo_id or Path(save_directory).resolve().name,
            report=report,
            license=license,
            model_card_kwargs=model_card_kwargs,
            **push_to_hub_kwargs,
        )

    def push_to_hub(  # noqa: PLR0913 - the arguments of the mixin of huggingface_hub
        self,
        repo_id: str,
        *,
        report: Path | str | None = None,
        license: str | None = None,
        commit_message: str = "Push model using huggingface_hub.",
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        create_pr: bool | None = None,
        allow_patterns: list[str] | str | None = None,
        ignore_patterns: list[str] | str | None = None,
        delete_patterns: list[str] | str | None = None,
        model_card_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Publish the model on the Hugging Face Hub with a model card.

        The files are those of :meth:`save` without configurations. Absolute paths in them are
        shortened to their last names, and ``data.json`` loses the folder of the data. Files of a
        former model in the repository are removed, others stay.

        Args:
            repo_id: ``owner/name``, or ``name`` for the owner of the token.
            report: ``report.json`` of ``segunc report``, or its folder. Without it the card says
                that nothing was measured.
            license: identifier of the licence, such as ``mit``. Without it the card says that none
                is stated.
            commit_message: first line of the commit.
            private: whether the repository is private; None leaves that to the Hub.
            token: of the Hub; None takes that of ``hf auth login``.
            branch: to commit to; it is made where it is missing. None is ``main``.
            create_pr: open a pull request in place of a commit.
            allow_patterns: upload only files that match one of these patterns.
            ignore_patterns: do not upload files that match one of these patterns.
            delete_patterns: remove files of the repository that match one of these patterns.
            model_card_kwargs: further keys of the card's header (``language``, ``tags``,
                ``datasets``, ``base_model``, ``model_name``, ``license_name``, ``license_link``)
                and texts in Markdown (``model_description``, ``repo_url``, ``paper_url``,
                ``docs_url``).

        Returns:
            The address of the commit.

        Raises:
            InputError: a model that cannot be saved; a report of another model; a path that decides
                what the model is; no access; or ``huggingface_hub`` is missing.

        >>> segunc.load(abnn).push_to_hub("owner/roads", license="mit").startswith("http")
        True
        """
        from segunc.posteriors.hub_upload import Upload, push
        from segunc.posteriors.model_card import CardOptions

        upload = Upload(
            commit_message=commit_message,
            private=private,
            token=token,
            branch=branch,
            create_pr=create_pr,
            allow_patterns=allow_patterns,
            ignore_patterns=ignore_patterns,
            delete_patterns=delete_patterns,
        )
        options = CardOptions(report, license, model_card_kwargs)
        return push(self, repo_id, upload, ATTACHMENTS, options)


def _stamp_of_posterior(posterior: AnyPosterior) -> list[Any]:
    """Return what differs as soon as a posterior is not the one of before: the object, its settings
    and its tensors.
    """
    stamp: list[Any] = [id(posterior), json.dumps(posterior.settings(), sort_keys=True)]
    for name, value in vars(posterior).items():
        if isinstance(value, Tensor):
            stamp.append((name, *stamp_of_tensor(value)))
    return stamp


def _remove_attachment(folder: Path, kind: type[Attachment], why: str) -> str:
    """Remove what was fitted from a model folder, and return a line that says so."""
    remove_result(folder / kind.file, is_whole_record, f"a {kind.what} that was fitted")
    return f"removed {folder / kind.file}, which was fitted {why}: fit it again"


def _recorded_network(folder: Path) -> str | None:
    """Return the hash that a model folder records of its network; None where it has none."""
    if not (folder / DESCRIPTION).exists():
        return None
    sha256: str | None = read_json(folder / DESCRIPTION, "the description of a network").get(
        "sha256"
    )
    return sha256


def link_network(source: Path, folder: Path) -> None:
    """Link (or copy) the files of a network into another model folder."""
    if folder.resolve() == source.resolve():
        return
    if not (source / WEIGHTS).exists():
        refuse_weights(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (WEIGHTS, DESCRIPTION):
        if (source / name).exists():
            link_or_copy(source / name, folder / name)


def configuration_documents(config: Config, name: str, base: Path | None = None) -> dict[str, Any]:
    """Return the files of a model folder that say how a fit was done, by name.

    Args:
        config: the configuration of the fit.
        name: of its file, without suffix.
        base: the folder of the model that it began with.
    """
    documents: dict[str, Any] = {f"{name}.yaml": dump_config(config.plain())}
    data = data_to_record(getattr(config, "data", {}), base)
    if data:
        documents[DATA] = data
    return documents


def posterior_method(folder: Path) -> str | None:
    """Return the method of the posterior in a model folder; None where it has none."""
    if not (folder / POSTERIOR).exists():
        return None
    method: str | None = read_json(folder / POSTERIOR, "a record").get("method")
    return method


def _refuse_bayesian(folder: Path, model: Model) -> None:
    """Raise InputError where a deterministic model would be written over a Bayesian one, or a model
    of one network over an ensemble.
    """
    if (folder / MEMBERS).is_dir():
        raise InputError(f"{folder} holds an ensemble", hint="give another folder")
    if (folder / POSTERIOR).exists() and not model.bayesian:
        raise InputError(
            f"{folder} holds a Bayesian model, and the one to save is deterministic",
            hint="give another folder",
        )


def _read_images(
    image: ImageLike | Sequence[ImageLike], value_range: ValueRange | None, channels: int
) -> ImageBatch:
    """Return what a model was called with as images; notes on their values are warnings."""
    batch = read_images(image, value_range, channels)
    for note in batch.notes:
        warnings.warn(note, NoteWarning, stacklevel=caller_level())
    return batch


def _frames_of(
    batches: Iterable[Any], value_range: ValueRange | None, channels: int
) -> Iterator[AnyImage]:
    """Yield the images of all batches of a loader."""
    for images in batches_of(batches):
        yield from _read_images(images, value_range, channels).images


def channels_in(folder: Path) -> int:
    """Return the number of channels of the images that the model in a folder takes, without loading
    it: 3 where the folder does not say it, which whoever loads the model reports.
    """
    members = sorted((folder / MEMBERS).glob("*/"))
    for place in (folder, *members):
        if (place / DESCRIPTION).exists():
            mean = read_json(place / DESCRIPTION, "the description of a network").get("mean", ())
            return len(mean) if isinstance(mean, list) and mean else COLOUR
    return COLOUR


def default_scores(folder: Path) -> tuple[str, ...]:
    """Return the scores that are written of the model in a folder where none are named: those that
    every model has and its sum of scores, if it has one.

    The draws of a deterministic network are all the same, so it has no epistemic, and its aleatoric
    is its entropy.
    """
    draws_differ = (folder / POSTERIOR).exists()
    scores = [name for name in DEFAULT_SCORES if draws_differ or name not in OF_DRAWS]
    if (folder / "anomaly.json").exists():
        scores.append("anomaly")
    return tuple(scores)


def model_files(folder: Path, *, fitted: bool = True) -> list[Path]:
    """Return the files that make the model of a folder, with an ensemble's members.

    Args:
        fitted: also return what was fitted on the model.
    """
    names = [WEIGHTS, DESCRIPTION, TENSORS, POSTERIOR]
    if fitted:
        for kind in attachments_in(folder):
            names += [kind.file, *kind.beside]
    names += [DATA, HISTORY]
    files = []
    for name in names:
        path = unlinked(folder, name)
        if path.exists():
            files.append(path)
    for member in sorted(unlinked(folder, MEMBERS).glob("*/")):
        files += model_files(unlinked(folder, f"{MEMBERS}/{member.name}"), fitted=False)
    return files


def copy_model(source: Path, folder: Path, *, fitted: bool = True) -> None:
    """Link (or copy) all :func:`model_files` into another folder.

    Raises:
        InputError: the model is deterministic, and the other folder holds a Bayesian one.
    """
    if folder.resolve() == source.resolve():
        return
    if (folder / POSTERIOR).exists() and not (source / POSTERIOR).exists():
        raise InputError(
            f"{folder} holds a Bayesian model, {source} a deterministic one",
            hint="give another --out",
        )
    if (source / DESCRIPTION).exists() and not (source / WEIGHTS).exists():
        refuse_weights(folder)
    for path in model_files(source, fitted=fitted):
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        link_or_copy(path, target)


def wrap(
    module: nn.Module,
    classes: Sequence[str],
    *,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    palette: Sequence[tuple[int, int, int]] = (),
    inference_size: tuple[int, int] | None = None,
    factory: str = "",
    arguments: Mapping[str, Any] | None = None,
) -> Model:
    """Return a model of a module of one's own, which is not changed except that it is in eval mode.

    Args:
        module: from normalised images ``[N, K, H, W]`` to logits ``[N, C, H, W]``. Of a module of
            ``torch.compile``, the module that was compiled is taken.
        classes: the C class names in the order of the logits. A module of one output z has the
            logits (0, z) of two classes; where one name is given, the first class is "background".
        mean, std: input normalisation of images in 0..1, a number for each of the K channels of the
            images, in their order. The default is of colour images.
        palette: one (red, green, blue) in 0..255 a class.
        inference_size: (height, width) of the frames that it was made for, or None for any.
        factory: ``package.module:function`` that makes the module from ``arguments``, so that a
            model folder is whole; this call is your agreement that its code runs on this machine.
            It runs once, and what it makes is compared with the module. Without it,
            :func:`segunc.load` needs the module.
        arguments: keyword arguments of the factory.

    Returns:
        The deterministic model, of which methods make others.

    Raises:
        InputError: the module fails on frames, mixes those of a batch, or returns no dense logits
            or probabilities; or the factory makes another network.

    >>> import torch
    >>> import segunc
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> segunc.wrap(net, ("road", "other")).bayesian
    False
    """
    if isinstance(classes, str):
        raise InputError(
            f"classes is the text '{classes}', not a list of class names",
            hint='classes=["road", "car", ...]',
        )
    module = _uncompiled(module)
    options: dict[str, Any] = {"arguments": dict(arguments or {}), "stride": 1}
    if factory:
        agree(find_code(factory))
    description = NetworkDescription(
        factory,
        "",
        tuple(classes),
        tuple(_plain(colour) for colour in _plain(palette)),
        options,
        tuple(_plain(mean)),
        tuple(_plain(std)),
        None if inference_size is None else tuple(_plain(inference_size)),
        kind="python",
    )
    check_parameters(module)
    description.check_names()
    network = SegmentationNetwork(module, description, stride=1).eval()
    notes = [settle_outputs(network)]
    settle_size(network)
    notes += check_network(network)
    for note in notes:
        if note:
            warnings.warn(note, NoteWarning, stacklevel=2)
    if factory:
        check_factory(network)
    network.sha256 = network_sha256(module, network.description)
    return Model(network, Deterministic(), network.sha256, None, None, {})


def _plain(values: Any) -> Any:
    """Return the numbers of an array or a tensor as plain ones, a list as a tuple, and anything
    else as it is.
    """
    numbers = values.tolist() if hasattr(values, "tolist") else values
    return tuple(numbers) if isinstance(numbers, list) else numbers


def _uncompiled(module: Any) -> Any:
    """Return the module that ``torch.compile`` was given, which has the names of the weights; any
    other value as it is.
    """
    return getattr(module, "_orig_mod", module)


Network = nn.Module | Model
"""What stands for a network that no folder can build: its module, or a model of it."""


class GivenNetworks:
    """The modules that a program gives for networks that no folder can build, in the order of the
    members of an ensemble.
    """

    def __init__(self, given: Network | Sequence[Network] | None = None) -> None:
        self._modules: list[nn.Module] = []
        for network in _networks_of(given):
            given_body = network.body if isinstance(network, SegmentationNetwork) else network
            body = _uncompiled(given_body)
            if not isinstance(body, nn.Module):
                raise InputError(
                    f"the network is of type {type(body).__name__}, not a torch module",
                    hint="give the module that was wrapped",
                )
            if is_converted(body):
                raise InputError(
                    "the network is that of a fitted model, which is a converted copy",
                    hint="give the module that was wrapped, or the model of segunc.wrap",
                )
            self._modules.append(body)
        self._taken = 0

    def take(self) -> nn.Module | None:
        """Return the module of the next network; None where none was given.

        Raises:
            InputError: there are fewer modules than networks.
        """
        if not self._modules:
            return None
        if self._taken == len(self._modules):
            raise InputError(
                f"network gives {len(self._modules)} modules, and the folder holds more networks",
                hint="give one module for each member",
            )
        self._taken += 1
        return self._modules[self._taken - 1]

    def check_all_taken(self) -> None:
        """Raise InputError where there are more modules than networks."""
        if self._taken < len(self._modules):
            raise InputError(
                f"network gives {len(self._modules)} modules, and the folder has use for "
                f"{self._taken}",
                hint="give one module for each member",
            )


def _networks_of(given: Network | Sequence[Network] | None) -> list[Any]:
    """Return what a caller gives as networks; of a model all of its networks."""
    listed = [given] if isinstance(given, nn.Module | Model) else [*(given or ())]
    networks: list[Any] = []
    for network in listed:
        networks += network.networks if isinstance(network, Model) else [network]
    return networks


def load_model(folder: Path | str, network: Network | Sequence[Network] | None = None) -> Model:
    """Return the model in a folder, deterministic, or Bayesian with its network converted.

    Args:
        folder: of a model.
        network: the module that was wrapped, or a model of it, for a folder that holds no network
            because it was saved without ``factory``; of an ensemble, one for each member. It is put
            into eval mode and not changed otherwise. Its weights have to be those that were saved
            with the folder, or those of then.

    Returns:
        The model, with all that was fitted on it.

    Raises:
        InputError: a missing or damaged file, a posterior of another base network, what was fitted
            on another model, or is of a kind that nothing here knows; a network of another hash.

    >>> import tempfile
    >>> import torch
    >>> import segunc
    >>> first = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> net = torch.nn.Sequential(first, torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 2, 1))
    >>> model = segunc.ABNN(alpha=0.1).fit(segunc.wrap(net, ("road", "other")))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(folder)
    ...     again = segunc.load(folder, network=net)
    >>> again.posterior_sha256 == model.posterior_sha256
    True
    """
    folder = Path(folder)
    model_files(folder)  # none of them is a link
    networks = GivenNetworks(network)
    model = load_posterior(folder, networks)
    networks.check_all_taken()
    for path in sorted(folder.glob("*.json")):
        if path.stem not in ATTACHMENTS and path.name != POSTERIOR and is_record(path):
            message = f"{path} was fitted on this model by a package that is not installed"
            raise InputError(message, hint="install the package, or remove the file")
    for kind in attachments_in(folder):
        model.attachments[Path(kind.file).stem] = kind.load(folder, model)
    return model


def load_posterior(folder: Path, networks: GivenNetworks | None = None) -> Model:
    """Return the network in a folder and its posterior, without what was fitted on them."""
    networks = networks or GivenNetworks()
    model = _load_posterior(folder, networks)
    model.folder = folder
    if (folder / DESCRIPTION).exists():
        model.base_folder = folder
    return model


def _load_posterior(folder: Path, networks: GivenNetworks) -> Model:
    if not (folder / POSTERIOR).exists():
        if (folder / TENSORS).exists():
            raise InputError(
                f"{folder} holds {TENSORS} without {POSTERIOR}", hint=f"restore {POSTERIOR}"
            )
        return load_recorded(folder, None, networks)
    record = read_record(folder / POSTERIOR, "the description of a posterior")
    try:
        return load_recorded(folder, record, networks)
    except InputError:
        raise
    except Exception as error:
        # What methods raise for values of the wrong type or shape has no common type.
        message = f"{folder / POSTERIOR} describes no posterior that this version reads"
        hint = "fine-tune the model again"
        raise InputError(f"{message} ({one_line(error)})", hint=hint) from error


def load_recorded(
    folder: Path, record: Mapping[str, Any] | None, networks: GivenNetworks | None = None
) -> Model:
    """Return the model in a folder as a record describes it; None is the network itself."""
    networks = networks or GivenNetworks()
    if record is None:
        network = load_network(folder, ignore_posterior=True, module=networks.take())
        return Model(network, Deterministic(), network.sha256, None, None, {})
    name = str(record.get("method"))
    method = METHODS.get(name)
    if method is not None and method.load is not None:
        loaded: Model = method.load(folder, record, networks)
        return loaded
    if method is None or method.restore is None:
        message = (
            f"{folder / POSTERIOR} is of the method '{name}', which no installed package knows"
        )
        raise InputError(message, hint="install a newer version, or the package that made it")
    network, tensors, actual = load_base(folder, record, networks)
    report = convert(network.body)
    check_sites(folder, record, report)
    return _with_posterior(network, method.restore(tensors, record), actual, report, record)


def _with_posterior(
    network: SegmentationNetwork,
    posterior: Posterior,
    tensors_sha256: str,
    report: ConversionReport | None,
    record: Mapping[str, Any],
) -> Model:
    """Return a converted network with a posterior over it."""
    prepare = getattr(posterior, "prepare", None)
    if prepare is not None:
        prepare(network)
    posterior_sha256 = posterior_hash(tensors_sha256, posterior)
    base_sha256: str = record["base_sha256"]
    return Model(network, posterior, base_sha256, posterior_sha256, report, record)


def restored(
    network: SegmentationNetwork,
    posterior: Posterior,
    report: ConversionReport | None,
    record: Mapping[str, Any],
) -> Model:
    """Return the model that a folder with this posterior and record would give.

    Args:
        network: converted.
        posterior: that was fitted.
        report: of the conversion.
        record: of the posterior, see :func:`segunc.posteriors.saving.posterior_record`.
    """
    method = METHODS[posterior.method]
    plain = plain_record(record)
    tensors = {}
    for name, tensor in posterior.tensors().items():
        tensors[name] = tensor.detach().cpu().clone()
    if method.restore is not None:
        posterior = method.restore(tensors, plain)
    return _with_posterior(network, posterior, plain["tensors_sha256"], report, plain)


def check_sites(folder: Path, record: Mapping[str, Any], report: ConversionReport) -> None:
    """Raise an InputError where a posterior was made over other normalisation layers than this
    version draws.
    """
    conversion = record.get("conversion")
    if conversion is None:
        return
    recorded = [site["name"] for site in conversion["sites"]]
    drawn = [site.name for site in report.sites]
    others = sorted({*recorded} ^ {*drawn})
    if others:
        raise InputError(
            f"the posterior in {folder} has "
            f"{counted(len(recorded), 'normalisation layer')}, this version "
            f"draws {len(drawn)} (e.g. {others[0]})",
            hint="fine-tune the base again",
        )


def load_base(
    folder: Path, record: Mapping[str, Any], networks: GivenNetworks
) -> tuple[SegmentationNetwork, dict[str, Tensor], str]:
    """Return the base network, the tensors beside it, and the hash of their file."""
    given = networks.take()
    network = load_network(folder, ignore_posterior=True, module=given)
    check_base(folder, record, network.sha256)
    if given is not None:
        network = copy_network(network)  # it will be converted
    tensors: dict[str, Tensor] = read_checkpoint(folder / TENSORS)
    actual = file_sha256(folder / TENSORS)
    if actual != record.get("tensors_sha256"):
        message = f"{folder / TENSORS} has changed since {POSTERIOR} was written"
        raise InputError(message, hint="restore both files of one run")
    return network, tensors, actual


def check_base(folder: Path, record: Mapping[str, Any], digest: str) -> None:
    """Raise an InputError where a record is not of the base network with this hash."""
    if record.get("base_sha256") != digest:
        recorded = str(record.get("base_sha256"))[:12]
        raise InputError(
            f"the posterior in {folder} belongs to a base network with the hash {recorded}, not to "
            "the one beside it",
            hint="fine-tune this base, or restore the other",
        )


def posterior_hash(inner: str | None, posterior: AnyPosterior) -> str:
    """Return a hash of all that decides the draws.

    Args:
        inner: the hash of what is stored; None where nothing is.
        posterior: gives its method and its settings.
    """
    content = [inner, posterior.method, posterior.settings()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
