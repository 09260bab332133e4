"""``segunc import``: a network that others trained, as a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from segunc.affine.convert import convert
from segunc.core.errors import InputError
from segunc.core.results import VerbResult
from segunc.data.labels import label_map
from segunc.networks import NetworkDescription, build_network, save_network
from segunc.networks.import_sources import (
    SOURCES,
    Wishes,
    check_network,
    read_source,
    untrained_weights,
)
from segunc.networks.model_folder import DESCRIPTION
from segunc.networks.network import SegmentationNetwork, settle_outputs, settle_size
from segunc.networks.weights import load_foreign, read_state
from segunc.options import ImportOptions, recorded_command, takes
from segunc.training.config import record_command


@dataclass(frozen=True, repr=False)
class ImportResult(VerbResult):
    """What was imported.

    Attributes:
        out: the model folder.
        description: architecture, classes and input of the network.
        sites: which normalisation layers a posterior can draw, or why none.
        notes: what a user should know.
        takes_noise: whether a posterior can draw any layer. The folder has no noise yet.
    """

    out: Path
    description: NetworkDescription
    sites: str
    notes: tuple[str, ...]
    takes_noise: bool = False


@takes(ImportOptions)
def import_network(options: ImportOptions) -> ImportResult:
    """Write the model folder of a network that another library or a function of your own provides.

    The network is built and tried on two frames first; nothing is written when anything is wrong.

    Raises:
        InputError: an unknown source, weights that do not fit, classes or a normalisation that
            nobody says, a network that is not a function of each frame alone, or returns
            probabilities, or a model folder that exists.

    >>> source, out = "torchvision:lraspp_mobilenet_v3_large", folder / "imported"
    >>> options = ImportOptions(
    ...     source=source, weights=weights, classes="cityscapes", size=(64, 128), out=out
    ... )
    >>> result = import_network(options)
    >>> result.description.num_classes, result.description.mean
    (19, (0.485, 0.456, 0.406))
    """
    kind, colon, name = options.source.partition(":")
    if not colon or not name:
        message = f"source '{options.source}' is not SOURCE:NAME"
        raise InputError(message, hint=f"SOURCE is one of {', '.join(SOURCES)}")
    out = Path(options.out)
    if (out / DESCRIPTION).exists():
        raise InputError(f"{out} holds a network already", hint="give another --out")
    wishes = wishes_of(options)
    read = read_source(kind, name, wishes)
    untrained = ""
    if wishes.state is None and read.state is not None:
        untrained = untrained_weights(kind, name, wishes, read.state)
    description = _described(options, read.description, untrained)
    weights = read.state if wishes.state is None else wishes.state
    if weights is None:
        message = f"{options.source} has no weights of its own"
        raise InputError(message, hint="--weights FILE, a state dict")
    source = str(options.weights or options.source)
    network, notes = _tried_network(description, weights, source, options.weights_key)
    notes = [*read.notes, *notes]
    if untrained:
        notes.insert(0, untrained)
    save_network(network, out)
    record_command(out, recorded_command("import", options))
    if network.description.inference_size is None:
        notes.append(
            "the source names no size: frames keep their own size here; --size HxW sets one"
        )
    try:
        sites = str(convert(network))
        takes_noise = True
    except InputError as error:
        sites = str(error)
        takes_noise = False
    return ImportResult(out, network.description, sites, tuple(notes), takes_noise)


def wishes_of(options: ImportOptions) -> Wishes:
    """Return what the user says about the network, with the weights and classes of their files."""
    state = None if options.weights is None else read_state(Path(options.weights))
    classes: tuple[str, ...] | None = None
    palette: tuple[tuple[int, int, int], ...] = ()
    if options.classes is not None and "," in options.classes:
        classes = _class_names(options.classes)
    elif options.classes is not None:
        labels = label_map(options.classes)
        classes = labels.classes
        palette = labels.palette
    return Wishes(
        classes=classes,
        palette=palette,
        mean=options.mean,
        std=options.std,
        inference_size=options.size,
        arguments=options.arguments,
        state=state,
        trust=options.trust,
    )


def _class_names(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas; InputError where one is empty."""
    names = tuple(name.strip() for name in text.split(","))
    if "" in names:
        hint = "--classes NAME,NAME; a network of one output has two classes: background,road"
        raise InputError(f"--classes '{text}' has an empty name", hint=hint)
    return names


def _described(
    options: ImportOptions, description: NetworkDescription, untrained: str
) -> NetworkDescription:
    """Return the description of a source, with its provenance and without the outputs that are
    dropped. ``untrained`` is a sentence on its random weights, or empty.
    """
    kind, _, name = options.source.partition(":")
    # Of a file or a folder only the last part: the record must not say whose machine it was.
    imported = f"{kind}:{Path(name).name or name}" if Path(name).exists() else options.source
    # What the source says itself stays, such as the revision that it took.
    provenance: dict[str, Any] = {**description.provenance, "imported": imported}
    if untrained:
        provenance["untrained"] = untrained
    if options.weights is not None:
        provenance["weights"] = Path(options.weights).name
    description = replace(description, provenance=provenance)
    description.check_names()
    if options.drop_classes is not None:
        dropped = [name.strip() for name in options.drop_classes.split(",")]
        description = description.without(dropped)
    return description


def _tried_network(
    description: NetworkDescription, weights: Mapping[str, Tensor], source: str, key: str | None
) -> tuple[SegmentationNetwork, list[str]]:
    """Return a network with its weights that was tried on frames, and what a user should know.

    Raises:
        InputError: the weights do not fit, or the network is not a function of each frame alone to
            logits.
    """
    # With all outputs: the checks below, of probabilities for instance, hold for them together.
    network, notes = _loaded(description, weights, source, key)
    notes.append(settle_outputs(network))
    settle_size(network)
    notes += check_network(network)
    if description.dropped_outputs:
        network.description = replace(description, divisor=network.description.divisor)
    return network, [note for note in notes if note]


def _loaded(
    description: NetworkDescription, weights: Mapping[str, Tensor], source: str, key: str | None
) -> tuple[SegmentationNetwork, list[str]]:
    """Return a network with all outputs and its weights, in eval mode, and what a user should know.
    Weights of one output fit two classes, too: the library then builds a network of one output.
    """
    described = description.with_all_outputs() if description.dropped_outputs else description
    network = build_network(described)
    try:
        notes = load_foreign(network.body, weights, source, key)
    except InputError as error:
        if described.num_classes != 2:
            raise
        network = build_network(replace(described, classes=described.classes[1:], palette=()))
        try:
            notes = load_foreign(network.body, weights, source, key)
        except InputError:
            raise error from None
        network.description = described
    return network.eval(), notes
