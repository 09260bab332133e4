"""What `pip install` of this checkout brings, without extras: packages, their licences, and what their wheels carry inside.

Read from the metadata of the running environment, by the requirements of pyproject.toml and the markers of this platform. What the
wheels carry are the files that their own lists name: shared libraries, programs, and Python packages with metadata. Code that was
linked statically, or copied without its metadata, is not seen.
"""

from __future__ import annotations

import base64
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import Parser
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
NOT_STATED = "not stated"
SHORT = {
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "LicenseRef-BSD",
    "BSD License": "LicenseRef-BSD",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "LGPLv3": "LGPL-3.0-only",
    "MIT License": "MIT",
    "NVIDIA Proprietary Software": "LicenseRef-NVIDIA-Proprietary",
    "Python Software Foundation License": "PSF-2.0",
}
"""Licences as older metadata name them. One that says BSD and not which is told so: its file has the clauses."""
EXTENSION = re.compile(r"\.cpython-|\.abi3\.|\.pyd$")  # modules of Python, which are a package's own code
LIBRARY = re.compile(r"^(?P<name>\w+).*?\.(?:so|dylib|dll)(?:\.(?P<version>.+))?$")
OWN = {
    "torch": ("libc10", "libcaffe2", "libshm", "libtorch", "torch_shm_manager"),
    "torchvision": ("_C_stable", "image_stable"),
    "triton": ("libGPUInstrumentation", "libMLIR", "libTriton", "libproton", "libtriton"),
}
"""Libraries and programs that are the package itself, by the beginnings of their names; those of nvidia-* all are."""


@dataclass(frozen=True)
class Inside:
    """Something that a wheel carries: ``name`` without the hash that repairing the wheel put into it, ``version`` ``""``
    where the file name has none, ``path`` from site-packages, ``sha256`` in hexadecimal as the wheel's list has it.
    ``licence`` is None for a library or a program, whose file says nothing."""

    name: str
    version: str
    path: str
    sha256: str
    licence: str | None


@dataclass(frozen=True)
class Package:
    """An installed package: canonical ``name``, ``licence`` as an SPDX expression or NOT_STATED, ``needs`` the names of packages."""

    name: str
    version: str
    licence: str
    needs: tuple[str, ...]
    inside: tuple[Inside, ...]


def project() -> dict[str, object]:
    """The table ``project`` of pyproject.toml: what is asked for now, and not when the environment was made."""
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])


@cache
def default_install() -> dict[str, Package]:
    """All packages of the default install, ours first and the others by name.

    Raises:
        SystemExit: one is not installed here.
    """
    ours = project()
    extras: dict[str, set[str]] = {}
    needs: dict[str, tuple[str, ...]] = {}
    lines = [Requirement(str(line)) for line in ours["dependencies"]]  # type: ignore[attr-defined]
    needs["segunc"] = tuple(sorted(canonicalize_name(line.name) for line in lines))
    waiting = [(canonicalize_name(line.name), set(line.extras)) for line in lines]
    while waiting:
        name, asked = waiting.pop()
        if name in extras and asked <= extras[name]:
            continue
        extras.setdefault(name, set()).update(asked)
        lines = [line for line in map(Requirement, installed(name).requires or []) if _holds(line, extras[name])]
        needs[name] = tuple(sorted({canonicalize_name(line.name) for line in lines} - {name}))
        waiting += [(canonicalize_name(line.name), set(line.extras)) for line in lines]
    packages = {"segunc": Package("segunc", str(ours["version"]), str(ours["license"]), needs["segunc"], ())}
    for name in sorted(extras):
        found = installed(name)
        packages[name] = Package(name, found.version, licence(found.metadata), needs[name], tuple(_inside(name, found)))
    return packages


def _holds(line: Requirement, extras: set[str]) -> bool:
    return line.marker is None or any(line.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def installed(name: str) -> Distribution:
    """An installed package.

    Raises:
        SystemExit: it is not here.
    """
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise SystemExit(f"{name} is not installed here; make the environment again from requirements.lock") from None


def licence(metadata: object) -> str:
    """The licence that a package's metadata name, as an SPDX expression: its expression, else its short name, else its classifiers."""
    every = metadata.get_all  # type: ignore[attr-defined]
    stated = [*every("License-Expression", []), *every("License", [])]
    classes = [line.rpartition(" :: ")[2] for line in every("Classifier", []) if line.startswith("License :: ")]
    for text in [*stated, " AND ".join(SHORT.get(name, name) for name in sorted(classes))]:
        try:
            return str(canonicalize_license_expression(SHORT.get(text, text)))
        except InvalidLicenseExpression:  # the whole text of a licence, for one
            continue
    return NOT_STATED


def _inside(owner: str, found: Distribution) -> Iterator[Inside]:
    """Shared libraries and programs of others, and Python packages with metadata of their own, in the order of their paths."""
    for path in sorted(found.files or []):
        place, digest = PurePosixPath(path), path.hash
        sha256 = base64.urlsafe_b64decode(digest.value + "==").hex() if digest else ""
        if place.name == "METADATA" and len(place.parts) > 2:
            metadata = Parser().parsestr(path.read_text(encoding="utf-8"))
            yield Inside(metadata["Name"], metadata["Version"], str(place), sha256, licence(metadata))
        elif (
            (binary := _binary(place))
            and not owner.startswith("nvidia-")
            and not binary[0].startswith(OWN.get(owner, ("/",)))
        ):
            yield Inside(*binary, str(place), sha256, None)


def _binary(place: PurePosixPath) -> tuple[str, str] | None:
    """Name and version of a shared library, or of a program in a folder ``bin`` of a package; None for other files."""
    if place.parent.name == "bin" and ".." not in place.parts:
        return place.name, ""
    match = None if EXTENSION.search(place.name) else LIBRARY.match(place.name)
    return (match["name"].rstrip("_"), match["version"] or "") if match else None


@cache
def locked() -> dict[tuple[str, str], tuple[str, ...]]:
    """SHA-256 of every file that requirements.lock lets in, by name and version."""
    hashes: dict[tuple[str, str], tuple[str, ...]] = {}
    for block in re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text(encoding="utf-8")):
        name, version = re.split(r"[ ;\\]", block, maxsplit=1)[0].split("==")
        hashes[name, version] = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", block))
    return hashes
