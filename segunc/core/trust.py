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

TRUST, NOTE = "SEGUNC_TRUST", "trusted.json"


class Code(NamedTuple):
    """What an agreement binds: ``package.module:attribute``, and the folder in which Python finds
    the top-level package or module.
    """

    name: str
    folder: str


def find_code(name: str) -> Code:
    """Return the code of a name, where Python looks for modules or in the working folder, or raise
    InputError; nothing is imported.
    """
    module, colon, attribute = name.partition(":")
    parts = module.split(".")
    if not colon or not all(part.isidentifier() for part in (*parts, attribute)):
        raise InputError(
            f"'{name}' is no package.module:function", hint="e.g. python:my_networks.unet:build"
        )
    spec = importlib.util.find_spec(parts[0]) or PathFinder.find_spec(parts[0], [os.getcwd()])
    package = spec and spec.submodule_search_locations
    source = Path(next(iter(package)) if package else str(spec and spec.origin)).resolve()
    if not source.exists():
        raise InputError(
            f"Python finds no source of the module {module}", hint="add its folder to PYTHONPATH"
        )
    return Code(name, str(source.parent))


def agree(code: Code) -> None:
    """Note that the user agrees to run this code on this machine."""
    if (folder := user_folder("XDG_CONFIG_HOME", ".config")) is None:
        raise InputError(
            "this user has no home folder, so trust cannot be noted", hint="set XDG_CONFIG_HOME"
        )
    write_json(folder / NOTE, {**_agreements(), code.name: {"folder": code.folder}})


def check_agreed(code: Code, how: str) -> None:
    """Raise InputError, which says ``how`` to agree, unless the user agreed to this name in this
    folder.
    """
    agreed = set()
    relative = ""
    for text in os.environ.get(TRUST, "").split(","):
        name, _, folder = text.strip().rpartition("@")
        if os.path.isabs(folder):
            agreed.add((name, os.path.realpath(folder)))
        elif name == code.name:
            relative = (
                f"; the folder '{folder}' in {TRUST} is no absolute path, so it agrees to none"
            )
    if code not in agreed and _agreements().get(code.name, {}).get("folder") != code.folder:
        lack = "does not run, as nobody agreed to it on this machine"
        message = f"the code of {code.name} in {code.folder} {lack}{relative}"
        raise InputError(
            message, hint=f"if you trust it: {how}, or {TRUST}={code.name}@{code.folder}"
        )


@contextlib.contextmanager
def imported(code: Code) -> Iterator[Any]:
    """Import the module and yield the attribute that the name says, or None; what lies beside the
    code can be imported meanwhile.
    """
    module, _, attribute = code.name.partition(":")
    sys.path.append(code.folder)  # the last: it replaces no module that is installed
    try:
        yield getattr(importlib.import_module(module), attribute, None)
    finally:
        sys.path.remove(code.folder)


def _agreements() -> dict[str, Any]:
    folder = user_folder("XDG_CONFIG_HOME", ".config")
    path = folder and folder / NOTE
    return (
        read_json(path, "the note of what you trust") if path is not None and path.is_file() else {}
    )
