"""Models by the source of their network: what stands behind ``--model SOURCE:NAME`` and
``segunc.load("SOURCE:NAME")``.

A source is imported once, into an entry of a cache, and kept. The name of an entry ends in a hash
of all that decides its network, so that a source that has changed gets an entry of its own. An
entry is made whole beside its place and then renamed. It holds:

* ``network/``: the model folder that ``segunc import`` writes.
* ``model/``: the same network with noise: ABNN with its defaults, which trains nothing.
* ``source.json``: the source, the date, and the size and hash of each of these files.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segunc.core.errors import InputError, NoteWarning, PartialFailure, one_line
from segunc.core.files import (
    CACHE_VARIABLE,
    PARTIAL_SUFFIX,
    Lock,
    cache_place,
    file_sha256,
    json_sha256,
    read_record,
    write_record,
)
from segunc.core.removal import files_below, move_own, remove_partial_folder
from segunc.core.trust import find_code, is_noted, settle_trust
from segunc.core.version import tool_version
from segunc.options import ImportOptions, PathLike, is_source

if TYPE_CHECKING:
    from torch import nn

    from segunc.posteriors.model import Model

FOLDER = "models"
"""Folder of the entries, in the cache of this package."""
RECORD = "source.json"
FORMAT = 1
"""Of an entry. Entries of another format are not used."""
LOCK_SECONDS = 900.0
"""How long a run waits for another one that imports the same source."""
HASH_DIGITS = 12
"""Hexadecimal digits of the hash in the name of an entry."""
MAX_NAME = 60
"""Characters of the source in the name of an entry."""

_OPTION = re.compile(r"--[a-z_]+ [^\s-]\S*")
"""An option with its value, in a hint."""


@dataclass(frozen=True)
class Entry:
    """A source in the cache.

    Attributes:
        folder: of the entry.
        record: the content of its ``source.json``.
    """

    folder: Path
    record: Mapping[str, Any]

    @property
    def model(self) -> Path:
        """The model folder: Bayesian, unless the network has no normalisation layer."""
        return self.folder / "model"

    @property
    def network(self) -> Path:
        """The model folder of the deterministic network."""
        return self.folder / "network"

    @property
    def untrained(self) -> str:
        """A sentence on random weights of the network, empty if there are none."""
        return str(self.record["provenance"].get("untrained", ""))


def load(
    folder: Path | str,
    network: nn.Module | Model | Sequence[nn.Module | Model] | None = None,
    *,
    trust: bool = False,
) -> Model:
    """Return the model in a folder, or that of a network by its source.

    A source is imported into a cache when it is first loaded, with the noise of ABNN and without
    training. Later calls take it from there, and a :class:`segunc.core.errors.NoteWarning` says so.
    ``segunc import`` does the same into a folder of your own, and takes classes and normalisation
    where the source does not give them.

    Args:
        folder: of a model, or a source of ``segunc import``, such as ``torchvision:NAME`` or
            ``python:package.module:function``. A folder of that name comes first.
        network: the module of a folder that holds no network, see :func:`segunc.load_model`.
        trust: allow the code of a ``python:`` source to run, now and whenever this machine loads
            the network.

    Returns:
        The model, with all that was fitted on it.

    Raises:
        InputError: no such folder or source; a source that does not give its classes or its
            normalisation; code that nobody agreed to; a damaged file; or a cache that cannot be
            written.

    >>> import segunc
    >>> segunc.load("there/is/none")
    Traceback (most recent call last):
    segunc.core.errors.InputError: model folder there/is/none does not exist. Hint: ...
    """
    from segunc.posteriors.model import load_model

    return load_model(model_folder(folder, trust=trust), network)


def model_folder(place: PathLike, *, trust: bool = False, deterministic: bool = False) -> Path:
    """Return the model folder that a user names: a folder, or a source, which is imported into the
    cache if it is not there.

    A note says which entry of the cache is used.

    Args:
        place: the folder, which is returned as it is, or the source.
        trust: see :func:`load`.
        deterministic: return the network without noise.

    Raises:
        InputError: see :func:`load`.
    """
    if not is_source(place):
        return Path(place)
    entry = _entry_of(str(place), trust=trust)
    return entry.network if deterministic else entry.model


def cache_folder() -> Path:
    """Return the folder of all entries.

    Raises:
        InputError: the user has no home, and :data:`CACHE_VARIABLE` is not set.
    """
    cache = cache_place()
    if cache is None:
        raise InputError(
            "this user has no home folder, so nothing is cached", f"set {CACHE_VARIABLE}"
        )
    return cache / FOLDER


def _entry_of(source: str, *, trust: bool) -> Entry:
    """Return the entry of a source, which is imported if it is not there, and say which it is."""
    from segunc.networks.import_sources import SOURCES

    kind, _, name = source.partition(":")
    if kind not in SOURCES:
        message = f"'{source}' is neither a model folder nor a source of networks"
        raise InputError(message, hint=f"sources are {', '.join(SOURCES)}: give SOURCE:NAME")
    if kind == "python":
        settle_trust(name, trust)
    with _hint_as_command(source):
        identity = _identity(kind, name)
    shown = identity["source"]
    folder = cache_folder() / _entry_name(shown, json_sha256(identity))
    if os.path.lexists(folder):
        entry = _read(folder)
        _tell(entry, f"{shown} is taken from {folder}, imported {entry.record['imported']}")
        return entry
    with _reported(source, folder.parent), _locked(folder, shown):
        # Another run may have imported it meanwhile.
        if not os.path.lexists(folder):
            _make(source, identity, folder)
    entry = _read(folder)
    for note in entry.record["notes"]:
        if note != entry.untrained:
            warnings.warn(note, NoteWarning, stacklevel=4)
    _tell(entry, f"{shown} was imported into {folder}: {entry.record['noise']}")
    return entry


def _identity(kind: str, name: str) -> dict[str, Any]:
    """Return all that decides the network of a source, as JSON knows it.

    For a file or a folder that is its content, wherever it lies. For code of the user's own it is
    the code, and what it states of the network and the weights that it makes, because it may read
    both from anywhere.
    For any other name it is the name: a source of this kind says itself which revision it took.
    """
    path = Path(name).expanduser()
    identity: dict[str, Any] = {"format": FORMAT, "segunc": tool_version()}
    if kind == "python":
        identity["source"] = f"{kind}:{name}"
        identity["files"] = _code_sha256(name)
        identity.update(_network_identity(kind, name))
    elif path.exists():
        identity["source"] = f"{kind}:{path.resolve().name}"
        identity["files"] = _content_sha256(path)
    else:
        identity["source"] = f"{kind}:{name}"
    return identity


def _content_sha256(path: Path) -> dict[str, str]:
    """Return the SHA-256 of a file, or of each file in a folder that is not hidden, by name."""
    paths = sorted(path.iterdir()) if path.is_dir() else [path]
    visible = [path for path in paths if path.is_file() and not path.name.startswith(".")]
    return {path.name: file_sha256(path) for path in visible}


def _code_sha256(name: str) -> dict[str, str]:
    """Return the SHA-256 of the module or of each file of the package that holds a factory."""
    module = name.partition(":")[0].partition(".")[0]
    folder = Path(find_code(name).folder)
    package = folder / module
    if not package.is_dir():
        return _content_sha256(folder / f"{module}.py")
    files = [file for file in files_below(package) if file.endswith(".py")]
    return {file: file_sha256(package / file) for file in files}


def _network_identity(kind: str, name: str) -> dict[str, Any]:
    """Return the description that a source gives now, and the SHA-256 of the weights that it has.
    Weights that it draws at random are the same each time, because the random numbers are seeded.
    """
    from segunc.networks.import_sources import read_source
    from segunc.networks.model_folder import state_sha256
    from segunc.verbs.import_network import wishes_of

    wishes = wishes_of(ImportOptions(source=f"{kind}:{name}", out="."))
    found = read_source(kind, name, wishes)
    weights = None if found.state is None else state_sha256(found.state)
    return {"description": found.description.to_json(), "weights": weights}


def _entry_name(source: str, digest: str) -> str:
    """Return the name of the folder of an entry."""
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", source)[:MAX_NAME].strip(".-")
    return f"{readable}-{digest[:HASH_DIGITS]}"


@contextmanager
def _reported(source: str, cache: Path) -> Iterator[None]:
    """Make the folder of the cache, and say in one sentence why nothing can be written there."""
    hint = f"{CACHE_VARIABLE}=DIR names another folder"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if not os.access(cache, os.W_OK | os.X_OK):
            raise PermissionError(f"no right to write in {cache}")
    except OSError as error:
        message = f"the cache {cache} cannot be written ({error.strerror or error})"
        raise InputError(message, hint=f"{hint}; segunc import {source} --out MODEL") from error
    try:
        yield
    except OSError as error:
        message = f"{source} was not imported into the cache {cache}"
        raise PartialFailure(f"{message}: {error.strerror or error}; {hint}") from error


@contextmanager
def _locked(folder: Path, source: str) -> Iterator[None]:
    """Hold the lock of an entry; where another run imports it, say who that is and wait."""
    path = folder.with_name(f".{folder.name}.lock")
    what = f"the entry of {source} in the cache"
    try:
        lock = _lock_at_once(path, what) or Lock(path, what, LOCK_SECONDS)
    except InputError as error:
        hint = f"wait for it; if that run is gone, remove {path}"
        raise InputError(error.message, hint=hint) from error
    with lock:
        yield


def _lock_at_once(path: Path, what: str) -> Lock | None:
    """Return a lock that nobody else holds; else say whom the run waits for, and return None."""
    try:
        return Lock(path, what)
    except InputError as error:
        minutes = f"{LOCK_SECONDS / 60:.0f} minutes"
        line = f"{error.message}: waiting for it, at most {minutes}"
        warnings.warn(line, NoteWarning, stacklevel=6)
        return None


def _make(source: str, identity: Mapping[str, Any], folder: Path) -> None:
    """Import a source and write its entry, which appears whole or not at all."""
    partial = folder.with_name(f".{folder.name}{PARTIAL_SUFFIX}")
    remove_partial_folder(partial)  # of a run that was killed
    try:
        record = _import(source, identity, Entry(partial, {}))
        write_record(partial / RECORD, record)
        move_own(partial, folder)
    except BaseException:
        remove_partial_folder(partial)
        raise


def _import(source: str, identity: Mapping[str, Any], entry: Entry) -> dict[str, Any]:
    """Write the two model folders of an entry, and return its record."""
    from segunc.posteriors.abnn import ABNN
    from segunc.posteriors.model import load_model
    from segunc.training.config import record_command
    from segunc.verbs.import_network import import_network

    start = time.perf_counter()
    options = ImportOptions(source=source, out=entry.network)
    with _hint_as_command(source):
        imported = import_network(options)
    shown = identity["source"]
    command = f"segunc.load({shown!r})"
    record_command(entry.network, command)
    base = load_model(entry.network)
    try:
        model = ABNN().fit(base, device="cpu")
        model.record = _with_source(model.record, shown)
        noise = f"{imported.sites}; noise of alpha {ABNN.alpha:g}, nothing is trained"
    except InputError as error:  # it has no normalisation layer
        model = base
        noise = f"no noise, so all draws are alike ({one_line(error)})"
    model.write(entry.model)
    record_command(entry.model, command)
    provenance = dict(imported.description.provenance)
    return {
        "kind": "segunc source",
        "source": shown,
        "identity": dict(identity),
        "imported": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "seconds": round(time.perf_counter() - start, 1),
        "provenance": provenance,
        "noise": noise,
        "notes": list(imported.notes),
        "files": {name: file_sha256(entry.folder / name) for name in files_below(entry.folder)},
    }


@contextmanager
def _hint_as_command(source: str) -> Iterator[None]:
    """Give an error of an import whose hint names options of ``segunc import`` a hint with the
    whole command. It has ``--trust`` where the user agreed to the code by the environment alone,
    which may be another one when the command is typed."""
    try:
        yield
    except InputError as error:
        options = [option.rstrip(",;") for option in _OPTION.findall(error.hint)]
        if not options:
            raise
        kind, _, name = source.partition(":")
        if kind == "python" and not is_noted(name):
            options.insert(0, "--trust")
        command = " ".join(["segunc import", source, *options, "--out MODEL"])
        if kind == "python":
            command += (
                "; add --weights FILE if the function does not load its weights, and "
                "--arguments NAME=VALUE if it needs any"
            )
        raise InputError(error.message, hint=command) from error


def _with_source(record: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the record of a posterior whose provenance names the source."""
    provenance = {**(record.get("provenance") or {}), "source": source}
    return {**record, "provenance": provenance}


def _read(folder: Path) -> Entry:
    """Return an entry whose files are as they were written.

    Raises:
        InputError: a file of it is missing or has changed.
    """
    hint = f"rm -r {folder}; the same command then imports it again"
    try:
        record = read_record(folder / RECORD, "the record of an imported source")
        for name, digest in record["files"].items():
            if file_sha256(folder / name) != digest:
                raise InputError(f"{name} has changed since it was imported")
    except InputError as error:
        message = f"the entry {folder} of the cache is damaged: {error.message}"
        raise InputError(message, hint=hint) from error
    except OSError as error:
        message = f"the entry {folder} of the cache cannot be read ({one_line(error)})"
        raise InputError(message, hint=hint) from error
    return Entry(folder, record)


def _tell(entry: Entry, line: str) -> None:
    """Say which entry is used, which revision it is, and loudly that weights are random."""
    provenance = entry.record["provenance"]
    revision = provenance.get("commit") or provenance.get("revision")
    if revision and "@" not in entry.record["source"]:
        line += (
            f"; it is fixed to revision {str(revision)[:HASH_DIGITS]}, and"
            f" rm -r {entry.folder} lets the next run take the newest"
        )
    warnings.warn(line, NoteWarning, stacklevel=5)
    if entry.untrained:
        warnings.warn(entry.untrained, NoteWarning, stacklevel=5)
