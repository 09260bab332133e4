"""Models on the Hugging Face Hub: load one by its name, and publish one with a model card.

The package ``huggingface_hub`` is imported when a name is looked up or a model is published.

**What is read.** Only files of a model folder are downloaded (:func:`chosen_names`), after a look
at their names and sizes. The client of the Hub stores them in its cache as links. This module puts
them as files into a folder beside, because no link in a model folder is followed. A repository is a
stranger's folder: nothing in it runs, and the same hashes are compared as for any other folder.

**What is written.** The files of ``Model.save`` without the places of this machine, and a card.
"""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from segunc.core.errors import InputError, NoteWarning, one_line, shortened
from segunc.core.files import (
    PARTIAL_SUFFIX,
    START_SECONDS,
    Lock,
    file_sha256,
    json_bytes,
    link_or_copy,
    read_bytes,
    read_json,
    read_record,
    safe_name,
    unlinked,
    write_atomically,
    write_json,
    write_record,
)
from segunc.core.places import is_place, shown_command, without_places
from segunc.core.version import tool_version
from segunc.networks.model_folder import DESCRIPTION, POSTERIOR
from segunc.posteriors.model_card import Card, CardOptions, make_card
from segunc.training.config import DATA, HISTORY, recorded_commands

T = TypeVar("T")
CARD = "README.md"
INSTALL = 'pip install "segunc[hub]"'
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
_DROPPED_DATA = ("root", "frames")
"""Settings of data that name places of the machine."""
_TEXTS = ("provenance", "fitted_on")
"""Keys of records that say how something came to be, and decide no map."""


class Attachment(Protocol):
    """What is fitted on a model, see :class:`segunc.posteriors.model.Attachment`."""

    file: ClassVar[str]
    beside: ClassVar[tuple[str, ...]]


class Savable(Protocol):
    """A model, see :class:`segunc.posteriors.model.Model`."""

    def save(self, folder: Path | str) -> None:
        """Write the model folder."""


@dataclass(frozen=True)
class Repository:
    """Where a model is on the Hub, and how it is fetched.

    Attributes:
        repo_id: ``owner/name``.
        revision: branch, tag or commit; None is ``main``.
        token: of the Hub; None or True takes that of ``hf auth login``, False none.
        cache_dir: of the client of the Hub; None takes its own.
        force_download: whether files are fetched that the cache holds already.
        local_files_only: whether the cache alone is read.
    """

    repo_id: str
    revision: str | None = None
    token: str | bool | None = None
    cache_dir: Path | str | None = None
    force_download: bool = False
    local_files_only: bool = False

    @property
    def cache(self) -> Path | None:
        """The folder of the cache; None is that of the client."""
        return None if self.cache_dir is None else Path(self.cache_dir).expanduser()

    def __str__(self) -> str:
        return f"'{self.repo_id}'" + (f" at {self.revision}" if self.revision else "")


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
    source: Path | str,
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
    _check_installed()
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


def _check_installed() -> None:
    """Raise InputError where the client of the Hub is missing."""
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise InputError(
            "models on the Hugging Face Hub need the package huggingface_hub, which is not "
            "installed",
            hint=INSTALL,
        ) from error


def _client(place: Repository) -> Any:
    from huggingface_hub import HfApi

    return HfApi(token=place.token, library_name="segunc", library_version=tool_version())


@contextmanager
def _answers(place: Repository) -> Iterator[None]:
    """Turn what the client of the Hub raises into an InputError; it has no common type."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise _refusal(error, place) or _unreachable(error, place) from error


def _refusal(error: Exception, place: Repository) -> InputError | None:
    """Return what the Hub answered as an InputError; None where there was no answer."""
    from huggingface_hub import errors

    if isinstance(error, errors.HFValidationError):
        return InputError(
            f"{place} is no name on the Hub ({one_line(error)})", hint="write it as owner/name"
        )
    if isinstance(error, errors.GatedRepoError):
        return InputError(
            f"the owner of {place} gives access on request, and this token has none",
            hint="ask for it on the page of the model, then log in with hf auth login",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return InputError(
            f"there is no folder and no model {place} on the Hub, or it is private and this token "
            "may not read it",
            hint="check the name, log in with hf auth login, or give `token`",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError(
            f"{place.repo_id} has no revision '{place.revision or 'main'}'",
            hint="give a branch, a tag or a whole commit hash",
        )
    if isinstance(error, errors.LocalTokenNotFoundError):
        return InputError("there is no token of the Hub", hint="hf auth login")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return InputError(
            f"the Hub refuses this token for {place} (status {status})",
            hint="give a token with the right to do this, or log in with hf auth login",
        )
    if isinstance(error, errors.HfHubHTTPError) and status is not None and status < 500:
        return InputError(f"the Hub refuses the request for {place} ({one_line(error)})")
    return None


def _unreachable(error: Exception, place: Repository) -> InputError:
    if isinstance(error, OSError) and error.errno is not None:
        return InputError(
            f"the files of {place} cannot be written ({error.strerror})", hint="give `cache_dir`"
        )
    return InputError(
        f"the Hub cannot be reached for {place} ({one_line(error)})",
        hint="check the connection, or try again",
    )


def _listed(place: Repository) -> Listing | None:
    """Return what a repository holds; None, with a note, where the Hub cannot be reached."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    try:
        info = _client(place).model_info(
            place.repo_id, revision=place.revision, files_metadata=True
        )
    except Exception as error:  # what the client of the Hub raises has no common type
        refusal = _refusal(error, place)
        if refusal is not None:
            raise refusal from error
        if place.force_download:
            raise _unreachable(error, place) from error
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
        raise InputError(f"{place} on the Hub has {len(names)} files, more than {MAX_FILES}")
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

    with _answers(place):
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

    with _answers(place):
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
    with _answers(place):
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
        return _without_folders(content)
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
    partial = target.with_name(f".{target.name}{PARTIAL_SUFFIX}")
    link_or_copy(file, partial)
    os.replace(partial, target)


def _without_folders(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of data without the folders and files that they name."""
    kept = {key: value for key, value in data.items() if key not in _DROPPED_DATA}
    labels = str(kept.get("labels") or "")
    if labels.endswith(".csv") or is_place(labels):
        del kept["labels"]
    return dict(without_places(kept))


def strip_places(folder: Path) -> None:
    """Take the places of this machine out of the JSON files of a model folder.

    In what says how a model came to be, an absolute path becomes its last name. ``data.json`` loses
    ``root``, ``frames`` and the file of ``labels``. A record is sealed again.

    Raises:
        InputError: a path stands where it decides what the model is, so that it cannot be left out.
    """
    for path in sorted(folder.rglob("*.json")):
        content = read_json(path, "a record")
        if path.name == DATA:
            plain = _without_folders(content)
        elif path.name == HISTORY:
            plain = {**content, "commands": _shown_commands(path.parent)}
        else:
            plain = _without_places_in_texts(content)
            _check_no_place(path.relative_to(folder), plain)
        if plain == content:
            continue
        if "record_sha256" in content:
            read_record(path, "a record")  # whole, before it is sealed again
            plain.pop("record_sha256")
            plain.pop("format")
            write_record(path, plain)
        else:
            write_json(path, plain)


def _shown_commands(folder: Path) -> list[dict[str, str]]:
    """Return the commands that made a model without the places of the machine."""
    commands = []
    for entry in recorded_commands(folder):
        try:
            command = shown_command(entry["command"])
        except ValueError:  # no command that a shell would read
            command = ""
        commands.append({**without_places(entry), "command": command})
    return commands


def _without_places_in_texts(value: Any) -> Any:
    """Return JSON whose :data:`_TEXTS`, at any depth, name no place of the machine."""
    if isinstance(value, list):
        return [_without_places_in_texts(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {}
    for key, item in value.items():
        clean = without_places if key in _TEXTS else _without_places_in_texts
        plain[key] = clean(item)
    return plain


def _check_no_place(name: Path, content: Any) -> None:
    """Raise InputError where a record still names a place of the machine."""
    pending = [content]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, str) and is_place(value):
            raise InputError(
                f"{name} names '{shortened(value)}', a place of this machine, and cannot do "
                "without it",
                hint="make the model without this path, e.g. let the factory find the file itself",
            )


@dataclass(frozen=True)
class Upload:
    """How a model is published; the names are those of ``huggingface_hub``.

    Attributes:
        commit_message: first line of the commit.
        private: whether the repository is private; None leaves that to the Hub.
        token: of the Hub; None takes that of ``hf auth login``.
        branch: to commit to; it is made where it is missing. None is ``main``.
        create_pr: whether a pull request is opened in place of a commit.
        allow_patterns: only files that match one are uploaded.
        ignore_patterns: files that match one are not uploaded.
        delete_patterns: files of the repository that match one are removed.
    """

    commit_message: str = "Push model using huggingface_hub."
    private: bool | None = None
    token: str | None = None
    branch: str | None = None
    create_pr: bool | None = None
    allow_patterns: list[str] | str | None = None
    ignore_patterns: list[str] | str | None = None
    delete_patterns: list[str] | str | None = None

    def deleted(self, attachments: Mapping[str, type[Attachment]]) -> list[str] | str | None:
        """Return patterns of files of the repository that the commit removes: without patterns of
        the user, those of a former model that the new one does not have.
        """
        if self.allow_patterns or self.ignore_patterns:
            return self.delete_patterns
        own = self.delete_patterns or []
        patterns = [own] if isinstance(own, str) else list(own)
        for stem in ("network", "posterior"):
            patterns += [f"{stem}.json", f"{stem}.safetensors"]
        patterns += [DATA, HISTORY, "members/*"]
        for kind in attachments.values():
            patterns += [kind.file, *kind.beside]
        return patterns


@contextmanager
def _prepared(model: Savable, name: str, options: CardOptions) -> Iterator[tuple[Path, Card]]:
    """Save a model into a temporary folder, and yield the folder and its card."""
    with tempfile.TemporaryDirectory(prefix="segunc-hub-") as temporary:
        folder = Path(temporary) / "model"
        model.save(folder)
        card = make_card(folder, name.rpartition("/")[2], options)
        strip_places(folder)
        yield folder, card


def save_pretrained(
    model: Savable, folder: Path | str, repo_id: str | None, options: CardOptions
) -> None:
    """Write what :func:`push` would upload into a folder.

    Args:
        model: the model.
        folder: the new folder. A README.md in it stays, and a note says so.
        repo_id: name on the Hub; None takes that of the folder.
        options: what the user says of the card.

    Raises:
        InputError: the folder holds files of another model.
    """
    _check_installed()
    from segunc.posteriors.hub_mixin import HubModel

    target = Path(folder)
    if unlinked(target, CARD).exists():
        note = f"{target / CARD} is kept, and may describe another model"
        warnings.warn(note, NoteWarning, stacklevel=3)
    name = repo_id or target.resolve().name
    with _prepared(model, name, options) as (source, card):
        _check_target(source, target)
        HubModel.of(source, card, name).save_pretrained(target)


def _check_target(source: Path, target: Path) -> None:
    """Raise InputError where a folder holds files of another model, which would stay, or
    ``config.json``, which the mixin removes.
    """
    for path in sorted(target.glob("*")):
        is_of_models = path.suffix in (".json", ".safetensors") or path.name == "members"
        if is_of_models and not (source / path.name).exists():
            raise InputError(
                f"{target} holds {path.name}, which the model does not have",
                hint="give a new folder",
            )


def push(
    model: Savable,
    repo_id: str,
    upload: Upload,
    attachments: Mapping[str, type[Attachment]],
    options: CardOptions,
) -> str:
    """Publish a model, and return the address of the commit. Everything is checked before a
    repository is made.

    Args:
        model: the model.
        repo_id: ``owner/name``, or ``name`` for the owner of the token.
        upload: how it is published.
        attachments: what can be fitted on a model.
        options: what the user says of the card.

    Raises:
        InputError: the model cannot be saved, the report is of another model, the Hub refuses, or a
            repository that should be private is public.
    """
    _check_installed()
    from segunc.posteriors.hub_mixin import HubModel

    place = Repository(repo_id, upload.branch, upload.token)
    with _prepared(model, repo_id, options) as (source, card), _answers(place):
        full_name = _open_repository(place, upload)
        commit = HubModel.of(source, card, full_name).push_to_hub(
            full_name,
            commit_message=upload.commit_message,
            private=upload.private,
            token=upload.token,
            branch=upload.branch,
            create_pr=upload.create_pr,
            allow_patterns=upload.allow_patterns,
            ignore_patterns=upload.ignore_patterns,
            delete_patterns=upload.deleted(attachments),
        )
    return str(commit)


def _open_repository(place: Repository, upload: Upload) -> str:
    """Make repository and branch where they are missing, and return ``owner/name``.

    Raises:
        InputError: the repository is there, and is public although it should be private.
    """
    client = _client(place)
    repo_id = str(client.create_repo(place.repo_id, private=upload.private, exist_ok=True).repo_id)
    if upload.private and not client.model_info(repo_id).private:
        raise InputError(
            f"{repo_id} is there already and is public, although `private` is True",
            hint="make it private on its page, or give another name",
        )
    branch = upload.branch
    if branch and branch != "main" and not branch.startswith("refs/"):
        client.create_branch(repo_id, branch=branch, exist_ok=True)
    return repo_id
