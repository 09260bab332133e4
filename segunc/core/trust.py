"""Run code that is not part of this package only where its user agreed to it on this machine.

``--trust`` notes the agreement, a name and the folder of its package, in ``trusted.json`` of the
user's configuration folder; the environment variable ``SEGUNC_TRUST=NAME@FOLDER,...`` agrees, too,
for folders that are absolute paths. No content is bound: whoever may write in that folder changes
what runs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from segunc.core.errors import InputError
from segunc.core.files import read_json, user_folder, write_json

TRUST = "SEGUNC_TRUST"
"""The environment variable of agreements."""
NOTE = "trusted.json"
"""The file of agreements."""


class Code(NamedTuple):
    """What an agreement binds."""

    name: str
    """``package.module:attribute``."""
    folder: str
    """Where Python finds the top-level package or module."""


def find_code(name: str) -> Code:
    """Return the code of a name; nothing is imported.

    It is looked for where Python looks for modules, and in the working folder.

    Raises:
        InputError: the name has another form, or no source is found.
    """
    module, colon, attribute = name.partition(":")
    parts = module.split(".")
    if not colon or not all(part.isidentifier() for part in (*parts, attribute)):
        raise InputError(
            f"'{name}' is not of the form package.module:function",
            hint="e.g. python:my_networks.unet:build",
        )
    top = parts[0]
    spec = importlib.util.find_spec(top) or PathFinder.find_spec(top, [os.getcwd()])
    if spec is None:
        source = None
    elif spec.submodule_search_locations:
        source = Path(next(iter(spec.submodule_search_locations))).resolve()
    else:
        source = Path(str(spec.origin)).resolve()
    if source is None or not source.exists():
        raise InputError(
            f"Python finds no source of the module {module}", hint="add its folder to PYTHONPATH"
        )
    return Code(name, str(source.parent))


def agree(code: Code) -> None:
    """Note that the user agrees to run this code on this machine."""
    folder = user_folder("XDG_CONFIG_HOME", ".config")
    if folder is None:
        raise InputError(
            "this user has no home folder, so trust cannot be noted", hint="set XDG_CONFIG_HOME"
        )
    folders = _agreed_folders(code.name)
    if code.folder not in folders:
        folders.append(code.folder)
    write_json(folder / NOTE, {**_agreements(), code.name: {"folders": folders}})


def settle_trust(name: str, trust: bool) -> Code:
    """Return the code of a name, which the user agrees to now or agreed to before.

    Args:
        name: ``package.module:attribute``.
        trust: whether the user agrees to it by ``--trust``, which is noted.

    Raises:
        InputError: nobody agreed to it, or see :func:`find_code`.
    """
    code = find_code(name)
    if trust:
        agree(code)
    else:
        check_agreed(code, "the same command with --trust")
    return code


def is_noted(name: str) -> bool:
    """Return whether the user agreed to a name for good, where Python finds it now: ``--trust``
    noted it, so that no later command needs it.

    Raises:
        InputError: see :func:`find_code`.
    """
    return find_code(name).folder in _agreed_folders(name)


def check_agreed(code: Code, how: str) -> None:
    """Raise InputError unless the user agreed to this name in this folder.

    Args:
        code: the name and the folder.
        how: what the user types to agree, for the hint.
    """
    if code in _agreements_of_environment():
        return
    if code.folder in _agreed_folders(code.name):
        return
    raise InputError(
        f"the code of {code.name} in {code.folder} does not run, "
        f"as nobody agreed to it on this machine{_relative_agreement(code.name)}",
        hint=f"if you trust it: {how}, or {TRUST}={code.name}@{code.folder}",
    )


def _entries_of_environment() -> Iterator[tuple[str, str]]:
    """Yield name and folder of each entry of the environment variable."""
    for text in os.environ.get(TRUST, "").split(","):
        name, _, folder = text.strip().rpartition("@")
        yield name, folder


def _agreements_of_environment() -> set[tuple[str, str]]:
    """Return the names with the folders, as absolute paths, that the environment agrees to."""
    agreed: set[tuple[str, str]] = set()
    for name, folder in _entries_of_environment():
        if os.path.isabs(folder):
            agreed.add((name, os.path.realpath(folder)))
    return agreed


def _relative_agreement(wanted: str) -> str:
    """Return a clause on the last entry for a name whose folder is relative; empty if none is."""
    clause = ""
    for name, folder in _entries_of_environment():
        if name == wanted and not os.path.isabs(folder):
            clause = (
                f"; the folder '{folder}' in {TRUST} is not an absolute path, so it agrees to none"
            )
    return clause


@contextlib.contextmanager
def imported(code: Code) -> Iterator[Any]:
    """Import the module and yield the attribute that the name says, or None.

    What lies beside the code can be imported meanwhile.
    """
    module, _, attribute = code.name.partition(":")
    sys.path.append(code.folder)  # the last: it replaces no module that is installed
    try:
        yield getattr(importlib.import_module(module), attribute, None)
    finally:
        sys.path.remove(code.folder)


def _agreements() -> dict[str, Any]:
    """Return what the user agreed to on this machine, by name."""
    folder = user_folder("XDG_CONFIG_HOME", ".config")
    if folder is None or not (folder / NOTE).is_file():
        return {}
    return read_json(folder / NOTE, "the note of what you trust")


def _agreed_folders(name: str) -> list[str]:
    """Return the folders in which the user agreed to a name on this machine.

    Notes of earlier versions have one ``folder`` for a name.
    """
    entry = _agreements().get(name, {})
    return list(entry.get("folders", [entry["folder"]] if "folder" in entry else []))
