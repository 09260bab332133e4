"""Publish a model on the Hugging Face Hub: the files of ``Model.save`` without the places of this
machine, and a model card.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import unlinked
from segunc.networks.hub_client import (
    Attachment,
    Repository,
    answers,
    check_installed,
    client_of,
)
from segunc.posteriors.hub_download import chosen_names
from segunc.posteriors.hub_records import strip_places
from segunc.posteriors.model_card import Card, CardOptions, make_card
from segunc.training.config import DATA, HISTORY

CARD = "README.md"


class Savable(Protocol):
    """A model, see :class:`segunc.posteriors.model.Model`."""

    def save(self, folder: Path | str) -> None:
        """Write the model folder."""


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
def _prepared(
    model: Savable, name: str, attachments: Mapping[str, type[Attachment]], options: CardOptions
) -> Iterator[tuple[Path, list[str], Card]]:
    """Save a model into a temporary folder, and yield the folder, the names of the files that are
    published, and the card.

    A configuration beside a model is not published: :func:`segunc.Model.from_pretrained` does not
    read it, and it names folders of this machine.
    """
    with tempfile.TemporaryDirectory(prefix="segunc-hub-") as temporary:
        folder = Path(temporary) / "model"
        model.save(folder)
        card = make_card(folder, name.rpartition("/")[2], options)
        strip_places(folder)
        files = [path for path in folder.rglob("*") if path.is_file()]
        names = [path.relative_to(folder).as_posix() for path in files]
        yield folder, chosen_names(names, attachments), card


def save_pretrained(
    model: Savable,
    folder: Path | str,
    repo_id: str | None,
    attachments: Mapping[str, type[Attachment]],
    options: CardOptions,
) -> None:
    """Write what :func:`push` would upload into a folder.

    Args:
        model: the model.
        folder: the new folder. A README.md in it stays, and a note says so.
        repo_id: name on the Hub; None takes that of the folder.
        attachments: what can be fitted on a model.
        options: what the user says of the card.

    Raises:
        InputError: the folder holds files of another model.
    """
    check_installed()
    from segunc.posteriors.hub_mixin import HubModel

    target = Path(folder)
    if unlinked(target, CARD).exists():
        note = f"{target / CARD} is kept, and may describe another model"
        warnings.warn(note, NoteWarning, stacklevel=3)
    name = repo_id or target.resolve().name
    with _prepared(model, name, attachments, options) as (source, names, card):
        _check_target(names, target)
        HubModel.of(source, names, card, name).save_pretrained(target)


def _check_target(names: Sequence[str], target: Path) -> None:
    """Raise InputError where a folder holds files of another model, which would stay, or
    ``config.json``, which the mixin removes.
    """
    kept = {name.partition("/")[0] for name in names}
    for path in sorted(target.glob("*")):
        is_of_models = path.suffix in (".json", ".safetensors") or path.name == "members"
        if is_of_models and path.name not in kept:
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
    check_installed()
    from segunc.posteriors.hub_mixin import HubModel

    place = Repository(repo_id, upload.branch, upload.token)
    prepared = _prepared(model, repo_id, attachments, options)
    with prepared as (source, names, card), answers(place):
        full_name = _open_repository(place, upload)
        commit = HubModel.of(source, names, card, full_name).push_to_hub(
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
    client = client_of(place)
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
