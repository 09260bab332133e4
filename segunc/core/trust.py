"""Run code that is not part of this package only where its user agreed to it on this machine.

``--trust`` notes an agreement in ``trusted.json`` of the user's configuration folder: the name ``package.module:attribute``, the folder in
which Python finds the package, and one SHA-256 over the code in it. Later runs compare all three before they import anything. Where nobody
types ``--trust``, as on a cluster, the environment variable ``SEGUNC_TRUST=NAME@FOLDER,...`` agrees.

An agreement binds all source and compiled files of the top-level package, by relative path and content; of a module that is in no package,
those of its folder and below, or where it is installed, its file alone. Other modules that the code imports are not bound.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, all_suffixes
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from segunc.core.errors import InputError
from segunc.core.files import read_bytes, read_json, user_folder, write_json

TRUST = "SEGUNC_TRUST"
CODE = (*all_suffixes(), ".so", ".pyd", ".dll", ".dylib", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp")
"""Endings of files that Python imports, or that are compiled when a module is imported."""
MAX_ENTRIES = 100_000
"""Files and folders that are looked through for code: a module may lie in a folder of anything."""


class Code(NamedTuple):
    """What an agreement binds."""

    name: str  # package.module:attribute
    folder: str  # in which Python finds the top-level package or module
    sha256: str  # over the relative paths and the contents of all bound files
    files: int
    source: Path  # of the module itself
    single: bool  # the module is in no package

    @property
    def note(self) -> dict[str, Any]:
        return {"folder": self.folder, "sha256": self.sha256, "files": self.files}


def find_code(name: str) -> Code:
    """Return the code that ``package.module:attribute`` names; nothing of it is imported.

    Raises:
        InputError: another form of name, no such module where Python looks for modules and in the working folder, or a module that lies in
            a folder of more than :data:`MAX_ENTRIES` entries.
    """
    module, colon, attribute = name.partition(":")
    parts = module.split(".")
    if not colon or not all(part.isidentifier() for part in (*parts, attribute)):
        raise InputError(f"'{name}' is no package.module:function", hint="e.g. python:my_networks.unet:build")
    first = spec = _find_spec(parts[0], None) or PathFinder.find_spec(parts[0], [os.getcwd()])
    for end in range(2, len(parts) + 1):  # importlib.util.find_spec would run the packages above the module
        path = spec and spec.submodule_search_locations
        spec = _find_spec(".".join(parts[:end]), path) if path else None
    source = Path(str(spec and spec.origin)).resolve()
    if first is None or source.suffix != ".py" or not source.is_file():
        raise InputError(f"Python finds no source of the module {module}", hint="add its folder to PYTHONPATH")
    single = first.submodule_search_locations is None
    roots = [Path(root).resolve() for root in first.submodule_search_locations or [str(source.parent)]]
    folder = roots[0] if single else roots[0].parent
    installed = single and folder in {Path(place).resolve() for place in sysconfig.get_paths().values()}
    bound = {source.name: source} if installed else _code_files(name, roots, folder)
    hashes = ((relative, hashlib.sha256(read_bytes(path)).hexdigest()) for relative, path in sorted(bound.items()))
    text = "".join(f"{digest} {relative}\n" for relative, digest in hashes)
    return Code(name, str(folder), hashlib.sha256(text.encode()).hexdigest(), len(bound), source, single)


def agree(code: Code) -> None:
    """Note that the user agrees to run this code on this machine."""
    if (path := _note()) is None:
        raise InputError("this user has no home folder, so trust cannot be noted", hint="set XDG_CONFIG_HOME")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**_agreements(), code.name: code.note})


def check_agreed(code: Code, how: str) -> None:
    """Raise InputError, which says ``how`` to agree, unless the user agreed to this code, as it is now and where it is now."""
    noted, entry = _agreements().get(code.name), f"{code.name}@{code.folder}"
    variable = (text.strip().rpartition("@") for text in os.environ.get(TRUST, "").split(","))
    if noted == code.note or (code.name, code.folder) in {(name, os.path.realpath(path)) for name, _, path in variable}:
        return
    reason = (
        "nobody agreed to it on this machine"
        if noted is None
        else f"it is not what you agreed to ({noted.get('folder')})"
    )
    raise InputError(
        f"the code of {code.name} ({code.files} files in {code.folder}) does not run, as {reason}",
        hint=f"if you trust it: {how}, or {TRUST}={entry} in the environment",
    )


@contextlib.contextmanager
def imported(code: Code) -> Iterator[Any]:
    """Import the module and yield the attribute that the name says, or None; in the working folder only the bound files are found.

    Compiled copies in ``__pycache__`` are not read, because nothing binds them.
    """
    module, _, attribute = code.name.partition(":")

    def find_spec(name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        ours = path is None and (code.single or name == module.partition(".")[0])
        return PathFinder.find_spec(name, [code.folder]) if ours else None

    finder: Any = SimpleNamespace(find_spec=find_spec)
    prefix, sys.pycache_prefix = sys.pycache_prefix, os.devnull
    sys.meta_path.append(finder)
    try:
        yield getattr(importlib.import_module(module), attribute, None)
    finally:
        sys.meta_path.remove(finder)
        sys.pycache_prefix = prefix


def _find_spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    specs = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in specs if spec is not None), None)


def _code_files(name: str, roots: Sequence[Path], folder: Path) -> dict[str, Path]:
    """Return the files of code below some folders, by their paths relative to ``folder``. No module is in a folder whose name is no
    identifier."""
    files, entries = dict[str, Path](), 0
    for root in roots:
        for place, folders, names in os.walk(root, followlinks=True):
            if (entries := entries + len(folders) + len(names)) > MAX_ENTRIES:
                raise InputError(
                    f"{name} is in {root}, a folder of more than {MAX_ENTRIES} entries",
                    hint="move the module into a folder with an __init__.py",
                )
            folders[:] = [part for part in folders if part.isidentifier() and part != "__pycache__"]
            paths = [Path(place, part) for part in names if part.endswith(CODE)]
            files |= {os.path.relpath(path, folder): path for path in paths if path.is_file()}
    return files


def _note() -> Path | None:
    folder = user_folder("XDG_CONFIG_HOME", ".config")
    return folder and folder / "trusted.json"


def _agreements() -> dict[str, Any]:
    path = _note()
    return read_json(path, "the note of what you trust") if path is not None and path.is_file() else {}
