"""Networks that a function of the user's own makes: ``python:package.module:build``.

Such a network runs code, so nothing is run that the user did not agree to on this machine: ``segunc import --trust`` notes the
factory and the hash of its module's source, the model folder records both, and loading compares the three. A folder that came
from elsewhere is refused with the line that says how to agree; machines without the note (of a cluster, say) read the names of
trusted factories from the environment variable ``SEGUNC_TRUST``.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from segunc.core.errors import InputError, one_line
from segunc.core.files import read_bytes, read_json, user_folder, write_json
from segunc.networks.description import NetworkDescription
from segunc.networks.sources import Found, Wishes

KIND = "python"
TRUST = "SEGUNC_TRUST"
"""Names of trusted factories, separated by commas: for machines on which nobody imports by hand."""


def build(description: NetworkDescription) -> tuple[nn.Module, int]:
    """The body as the factory makes it, and its stride (``stride`` among the options, 1 if it is not given).

    Raises:
        InputError: the factory is not trusted on this machine, has changed since the import, or fails.
    """
    name, options = description.architecture, description.options
    digest = source_sha256(name)
    if digest != options.get("source_sha256"):
        raise InputError(
            f"the module of {name} has changed since the network was imported ({digest[:12]} now, "
            f"{str(options.get('source_sha256'))[:12]} then)",
            "the source that the weights were made with",
            "restore it, or import the network again",
        )
    if name not in _environment() and _trusted().get(name) != digest:
        raise InputError(
            f"the network runs code of {name}, which nobody agreed to on this machine",
            "a module that you know",
            f"if you trust it: segunc import python:{name} --trust ..., or {TRUST}={name} in the environment",
        )
    return run(name, options.get("arguments", {})), int(options.get("stride", 1))


def read(name: str, wishes: Wishes) -> Found:
    """A network by the name of its factory, which gets the arguments and returns a module; see the module's text."""
    digest = source_sha256(name)
    if not wishes.trust:
        raise InputError(f"python:{name} runs code of yours", "your agreement, once", "--trust")
    if (place := _place()) is None:
        given = "this user has no home folder, so trust cannot be noted"
        raise InputError(given, "XDG_CONFIG_HOME in the environment", "set it to a folder of yours")
    place.parent.mkdir(parents=True, exist_ok=True)
    write_json(place, {**_trusted(), name: digest})
    arguments = dict(wishes.arguments)
    stride = int(arguments.pop("stride", 1))
    options = {"arguments": arguments, "stride": stride, "source_sha256": digest}
    description = wishes.description(KIND, name, options=options)
    return Found(description, None if wishes.state is not None else run(name, arguments).state_dict())


def run(name: str, arguments: dict[str, Any]) -> nn.Module:
    """What the factory makes of its arguments.

    Raises:
        InputError: it is not in its module, raises, or makes no module.
    """
    module, _, attribute = name.partition(":")
    try:
        with _working_folder():
            factory: Callable[..., Any] | None = getattr(importlib.import_module(module), attribute, None)
            made = factory(**arguments) if callable(factory) else None
    except Exception as error:  # whatever the user's code raises
        given = f"{name} raises {one_line(error)}"
        raise InputError(given, "a function that makes the network", "repair it") from error
    if not isinstance(made, nn.Module):
        what = f"makes {type(made).__name__}" if callable(factory) else "is no function of its module"
        raise InputError(f"{name} {what}", "a function that returns a torch module", "package.module:function")
    return made


def source_sha256(name: str) -> str:
    """SHA-256 of the source file in which a factory ``package.module:function`` stands; its module is not run for it.

    Raises:
        InputError: another form, or no source of the module where Python looks for modules.
    """
    module, colon, attribute = name.partition(":")
    if not colon or not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise InputError(f"factory '{name}'", "package.module:function", "e.g. python:my_networks.unet:build")
    parts = module.split(".")
    path: Any = None
    spec = None
    with _working_folder():
        for end in range(1, len(parts) + 1):  # importlib.util.find_spec would run the packages above the module
            full = ".".join(parts[:end])
            found = (finder.find_spec(full, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
            spec = next((one for one in found if one is not None), None)
            path = spec and spec.submodule_search_locations
            if spec is None or (path is None and end < len(parts)):
                spec = None
                break
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise InputError(
            f"no source of the module {module}", "a module where Python looks for it", "add its folder to PYTHONPATH"
        )
    return hashlib.sha256(read_bytes(Path(spec.origin))).hexdigest()


@contextlib.contextmanager
def _working_folder() -> Iterator[None]:
    """Modules are looked for in the working folder last, as a console command does not by itself."""
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.reverse()
        sys.path.remove(here)  # the last one
        sys.path.reverse()


def _place() -> Path | None:
    """The user's note of what they trust; None where the user has no home."""
    folder = user_folder("XDG_CONFIG_HOME", ".config")
    return folder and folder / "trusted.json"


def _trusted() -> dict[str, Any]:
    place = _place()
    return read_json(place, "the note of trusted factories") if place is not None and place.is_file() else {}


def _environment() -> set[str]:
    return {name.strip() for name in os.environ.get(TRUST, "").split(",")}
