"""The client of the Hugging Face Hub: which repository it is asked for, and what its errors mean.

The package ``huggingface_hub`` is an extra, and is imported when it is first needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from segunc.core.errors import InputError, one_line
from segunc.core.version import tool_version

INSTALL = 'pip install "segunc[hub]"'


class Attachment(Protocol):
    """What is fitted on a model, see :class:`segunc.posteriors.model.Attachment`."""

    file: ClassVar[str]
    beside: ClassVar[tuple[str, ...]]


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


def check_installed() -> None:
    """Raise InputError where the client of the Hub is missing."""
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise InputError(
            "models on the Hugging Face Hub need the package huggingface_hub, which is not "
            "installed",
            hint=INSTALL,
        ) from error


def client_of(place: Repository) -> Any:
    from huggingface_hub import HfApi

    return HfApi(token=place.token, library_name="segunc", library_version=tool_version())


@contextmanager
def answers(place: Repository) -> Iterator[None]:
    """Turn what the client of the Hub raises into an InputError; it has no common type."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise refusal_of(error, place) or unreachable(error, place) from error


def refusal_of(error: Exception, place: Repository) -> InputError | None:
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
            hint="check the name, log in with hf auth login, or set the variable HF_TOKEN",
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


def unreachable(error: Exception, place: Repository) -> InputError:
    """Return what kept the client from the Hub, or from its own cache, as an InputError."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE:
        return InputError(
            f"{place} is not in the cache of the Hub's client, and HF_HUB_OFFLINE is set",
            hint="unset HF_HUB_OFFLINE, or fetch it once with a connection",
        )
    if isinstance(error, OSError) and error.errno is not None:
        return InputError(
            f"the files of {place} cannot be written ({error.strerror})", hint="give `cache_dir`"
        )
    return InputError(
        f"the Hub cannot be reached for {place} ({one_line(error)})",
        hint="check the connection, or try again",
    )
