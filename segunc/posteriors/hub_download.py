"""Load a model from the Hugging Face Hub by its name.

Only files of a model folder are downloaded (:func:`chosen_names`), after a look at their names and
sizes. The client of the Hub stores them in its cache as links. This module puts them as files into
a folder beside, because no link in a model folder is followed. A repository is a stranger's folder:
nothing in it runs, and the same hashes are compared as for any other folder.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from segunc.core.errors import InputError, NoteWarning, one_line, shortened
from segunc.core.files import (
    START_SECONDS,
    Lock,
    file_sha256,
    json_bytes,
    link_or_copy,
    read_bytes,
    read_json,
    safe_name,
    write_atomically,
)
from segunc.core.terminal import counted
from segunc.core.version import tool_version
from segunc.networks.hub_client import (
    Attachment,
    Repository,
    answers,
    check_installed,
    client_of,
    refusal_of,
    unreachable,
)
from segunc.networks.model_folder import DESCRIPTION, POSTERIOR
from segunc.posteriors.hub_records import without_folders
from segunc.training.config import DATA

T = TypeVar("T")
FOLDER = "segunc"
"""Folder of the model folders, in the cache of a repository."""
MAX_RECORD_BYTES = 64 << 20
"""Bytes of a JSON file of a repository, which is read whole."""
MAX_FILES = 1000
"""Files of one model, members of an ensemble included."""
_MEMBER = r"(?:members/[0-9]{1,4}/)"
_FILES = re.compile(
    rf"{_MEMBER}?(?:network|posterior)\.(?:json|safetensors)|{_MEMBER}?(?:data|history)\.json"
)
"""The files that every model folder may hold, and those of the members of an ensemble."""
_RECORD = re.compile(r"[A-Za-z0-9][\w.-]*\.json", re.ASCII)
"""The record of what was fitted on a model."""


@dataclass(frozen=True)
class Listing:
    """What a repository holds at one commit.

    Attributes:
        commit: its hash.
        sizes: bytes of each file by name; None where the Hub does not say.
    """

    commit: str
    sizes: Mapping[str, int | None]


def load_pretrained(
    source: Any,
    repository: Callable[[str], Repository],
    attachments: Mapping[str, type[Attachment]],
    load: Callable[[Path], T],
) -> T:
    """Return the model in a folder, or in a repository of the Hub.

    Args:
        source: the folder, or ``owner/name``. A folder of that name comes first.
        repository: makes the repository of a name.
        attachments: what can be fitted on a model, by the name of its record without suffix.
        load: reads a model folder.

    Raises:
        InputError: there is no such folder and no such repository, or it holds no model.
    """
    if not isinstance(source, str | Path):
        raise InputError(
            f"{source!r} is neither a folder nor a name on the Hub",
            hint="give a folder, or a name as owner/name",
        )
    if os.path.isdir(source):
        if repository(str(source)).revision is not None:
            raise InputError(
                f"{source} is a folder, which has no revisions", hint="leave `revision` out"
            )
        return load(Path(source))
    if not _may_be_name(source):
        raise InputError(
            f"there is no model folder {source}", hint="give a folder, or a name as owner/name"
        )
    place = repository(str(source))
    folder = fetch_model(place, attachments)
    try:
        return load(folder)
    except InputError as error:
        raise error.within(f"{place} on the Hub") from error


def _may_be_name(source: Path | str) -> bool:
    """Return whether something may be a name on the Hub, not a path."""
    if not isinstance(source, str) or source.count("/") > 1:
        return False
    return bool(source) and source[0] not in "./~" and "\\" not in source


def fetch_model(place: Repository, attachments: Mapping[str, type[Attachment]]) -> Path:
    """Return a folder with the model of a repository, all of whose files are files of its own.

    Where the Hub cannot be reached, the cache is read, and a :class:`NoteWarning` says so.
    ``provenance`` in ``network.json`` of the folder names repository and commit.

    Args:
        place: the repository.
        attachments: what can be fitted on a model.

    Raises:
        InputError: the repository is missing, private or gated, has no such revision, or holds no
            model; or the Hub cannot be reached and the cache does not hold it.
    """
    check_installed()
    listing = None if place.local_files_only else _listed(place)
    if listing is None:
        return _cached(place, attachments)
    names = chosen_names(listing.sizes, attachments)
    _check_listing(place, listing, names)
    snapshot = _download(place, names)
    if snapshot.name != listing.commit:
        raise InputError(
            f"the repository {place} changed while it was read", hint="load the model again"
        )
    for name in names:
        size = listing.sizes[name]
        path = snapshot / name
        if not path.exists() or (size is not None and path.stat().st_size != size):
            raise InputError(
                f"{name} of {place} is incomplete in the cache",
                hint="load the model with force_download=True",
            )
    return _as_folder(place, snapshot, attachments)


def _listed(place: Repository) -> Listing | None:
    """Return what a repository holds; None, with a note, where the Hub cannot be reached."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        info = client_of(place).model_info(
            place.repo_id, revision=place.revision, files_metadata=True
        )
    except Exception as error:  # what the client of the Hub raises has no common type
        refusal = refusal_of(error, place)
        if refusal is not None:
            raise refusal from error
        if place.force_download:
            raise unreachable(error, place) from error
        if not isinstance(error, OfflineModeIsEnabled):
            note = f"the Hub cannot be reached for {place}, so the cache is read"
            warnings.warn(f"{note} ({one_line(error)})", NoteWarning, stacklevel=5)
        return None
    sizes = {str(file.rfilename): file.size for file in info.siblings or ()}
    return Listing(str(info.sha), sizes)


def chosen_names(names: Collection[str], attachments: Mapping[str, type[Attachment]]) -> list[str]:
    """Return which files of a repository belong to a model folder, in the order in which they are
    put there: the description of the model comes last.

    These are the files of network and posterior, of the members of an ensemble, JSON at the top,
    and the further files of what was fitted on the model. No other file is downloaded.
    """
    beside: set[str] = set()
    for name in names:
        stem = name.removesuffix(".json")
        if name.endswith(".json") and "/" not in stem and stem in attachments:
            beside.update(attachments[stem].beside)
    chosen = [
        safe_name(name, "a file of the repository")
        for name in names
        if _FILES.fullmatch(name) or _RECORD.fullmatch(name) or name in beside
    ]
    return sorted(chosen, key=lambda name: (name == DESCRIPTION, name == POSTERIOR, name))


def _check_listing(place: Repository, listing: Listing, names: Sequence[str]) -> None:
    """Raise InputError where a repository holds no model, or one of unreasonable size."""
    if not {DESCRIPTION, f"members/0/{DESCRIPTION}"} & set(names):
        shown = ", ".join(sorted(listing.sizes)[:5]) or "no file"
        raise InputError(
            f"{place} on the Hub is no model of segunc: it has no {DESCRIPTION}",
            hint=f"it holds {shortened(shown, 200)}",
        )
    if len(names) > MAX_FILES:
        raise InputError(
            f"{place} on the Hub has {counted(len(names), 'file')}, more than {MAX_FILES}"
        )
    for name in names:
        size = listing.sizes[name] or 0
        if name.endswith(".json") and size > MAX_RECORD_BYTES:
            raise InputError(
                f"{name} of {place} on the Hub has {size:,} bytes; a record of segunc has at most "
                f"{MAX_RECORD_BYTES:,}"
            )


def _download(place: Repository, names: Sequence[str]) -> Path:
    """Return the snapshot of a repository in the cache, which holds these files."""
    from huggingface_hub import snapshot_download

    with answers(place):
        snapshot = snapshot_download(
            place.repo_id,
            revision=place.revision,
            cache_dir=place.cache,
            token=place.token,
            force_download=place.force_download,
            allow_patterns=list(names),
            library_name="segunc",
            library_version=tool_version(),
        )
    return Path(snapshot)


def _cached(place: Repository, attachments: Mapping[str, type[Attachment]]) -> Path:
    """Return the folder of a model that the cache holds."""
    from huggingface_hub import snapshot_download

    with answers(place):
        snapshot = _complete_snapshot(place)
        if snapshot is None:
            try:
                found = snapshot_download(
                    place.repo_id,
                    revision=place.revision,
                    cache_dir=place.cache,
                    local_files_only=True,
                )
            except FileNotFoundError as error:  # of the client: nothing there, or not all
                raise InputError(
                    f"there is no folder {place}, and the cache of the Hub does not hold the whole "
                    "model",
                    hint="load it once with a connection, without local_files_only",
                ) from error
            snapshot = Path(found)
    return _as_folder(place, snapshot, attachments)


def _complete_snapshot(place: Repository) -> Path | None:
    """Return the snapshot of a revision, if its model folder was completed before; None else."""
    from huggingface_hub import try_to_load_from_cache

    for name in (DESCRIPTION, POSTERIOR):
        path = try_to_load_from_cache(
            place.repo_id, name, cache_dir=place.cache, revision=place.revision
        )
        if isinstance(path, str):
            snapshot = Path(path).parent
            if (_folder_of(snapshot) / name).exists():  # it was put there last
                return snapshot
    return None


def _folder_of(snapshot: Path) -> Path:
    """Return the model folder of a snapshot. It is removed with the cache of its repository."""
    return snapshot.parent.parent / FOLDER / snapshot.name


def _as_folder(
    place: Repository, snapshot: Path, attachments: Mapping[str, type[Attachment]]
) -> Path:
    """Put the files of a model, which are links in a snapshot, as files into the model folder.

    Args:
        place: the repository.
        snapshot: its folder in the cache, named by the commit.
        attachments: what can be fitted on a model.

    Raises:
        InputError: a link leads out of the cache, or the folder holds a record that is not of the
            repository.
    """
    there = [path for path in snapshot.rglob("*") if not path.is_dir()]
    sizes: dict[str, int | None] = {}
    for path in there:
        sizes[path.relative_to(snapshot).as_posix()] = path.stat().st_size
    names = chosen_names(sizes, attachments)
    _check_listing(place, Listing(snapshot.name, sizes), names)
    folder = _folder_of(snapshot)
    for path in folder.glob("*.json"):
        if path.name not in names:
            raise InputError(
                f"{path} was written into the cache and is not part of {place}",
                hint="move it away, and save models elsewhere",
            )
    with answers(place):
        files = {name: _file_of(place, snapshot, name) for name in names}
        if not all(_is_in_place(file, folder / name) for name, file in files.items()):
            folder.mkdir(parents=True, exist_ok=True)
            # Processes of one training load the same model at the same time.
            with Lock(folder.with_suffix(".lock"), f"the model folder {folder}", START_SECONDS):
                for name, file in files.items():
                    _put(file, folder / name)
    return folder


def _file_of(place: Repository, snapshot: Path, name: str) -> Path | bytes:
    """Return a file of a snapshot, or the content that is put in its place.

    Raises:
        InputError: the link leads out of the cache.
    """
    source = Path(os.path.realpath(snapshot / name))
    cache = snapshot.parents[2]
    if not source.is_relative_to(os.path.realpath(cache)):
        raise InputError(
            f"{snapshot / name} leads out of the cache {cache}",
            hint="remove the link, and load the model again",
        )
    if name.rpartition("/")[2] in (DESCRIPTION, DATA):
        return json_bytes(_own_words(place, snapshot, source, name))
    return source


def _own_words(place: Repository, snapshot: Path, source: Path, name: str) -> dict[str, Any]:
    """Return a JSON file of a repository as it is put into the model folder.

    It says where it comes from. It names no folder of data: a stranger's may exist here, too.
    """
    content = read_json(source, f"{name} of {place}")
    if name.endswith(DATA):
        return without_folders(content)
    provenance = content.get("provenance")
    kept = provenance if isinstance(provenance, dict) else {}
    origin = {"repository": place.repo_id, "revision": snapshot.name}
    return {**content, "provenance": {**kept, "hub": origin}}


def _is_in_place(file: Path | bytes, target: Path) -> bool:
    """Return whether a file of a snapshot, or a content, is in the model folder already."""
    if not target.exists():
        return False
    if isinstance(file, bytes):
        return read_bytes(target) == file
    if os.path.samefile(file, target):
        return True
    same_size = file.stat().st_size == target.stat().st_size
    return same_size and file_sha256(file) == file_sha256(target)  # a copy: no hard links here


def _put(file: Path | bytes, target: Path) -> None:
    """Put a file, as a hard link or a copy, or a content in the place of another."""
    if _is_in_place(file, target):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(file, bytes):
        write_atomically(target, file)
        return
    link_or_copy(file, target)
