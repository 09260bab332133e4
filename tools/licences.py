"""The licences of the default install: a page of them, and whether one is copyleft that is not named here with its reason.

    python -m tools.licences > docs/licences.md
    python -m tools.licences --check

`--check` ends with 1 where a package or something inside a wheel has a licence that is neither permissive nor named in licences.toml, or where
a licence is not known. It reads the environment it runs in (see tools/default_install.py); it is no lawyer's opinion.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tools.default_install import NOT_STATED, Inside, Package, default_install, installed

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PERMISSIVE = {"Apache-2.0 WITH LLVM-exception", *TABLES["permissive"].split()}
LIBRARIES = {name: licence for licence, names in TABLES["libraries"].items() for name in names.split()}
WORDS_AND_WHY = [(*words.split(" | "), why) for words, why in TABLES["named"].items()]
NAMED = {(name, licence): why for names, licence, why in WORDS_AND_WHY for name in names.split()}
BY_LICENCE, READ = TABLES["by_licence"], TABLES["read"]
WORDS = re.compile(
    r"GNU (?:Affero |Lesser |Library )?General Public|\b[AL]?GPL|Mozilla Public|\bMPL|\bEPL\b|\bCDDL\b|\bEUPL\b",
    re.IGNORECASE,
)
TEXTS = re.compile(r"licen[cs]e|copying|notice|copyright|3rd|third", re.IGNORECASE)


def permissive(licence: str) -> bool:
    """Whether an SPDX expression leaves a choice of permissive licences for each part. Brackets are left out, which never asks for less."""
    parts = licence.replace("(", "").replace(")", "").split(" AND ")
    return all(any(choice in PERMISSIVE for choice in part.split(" OR ")) for part in parts)


def licence_of(inside: Inside) -> str:
    """What the metadata of something inside a wheel say, or the list here."""
    return inside.licence or LIBRARIES.get(inside.name, NOT_STATED)


def reason(name: str, licence: str) -> str | None:
    """Why something may stay, ``""`` where its licence is permissive, None where nothing speaks for it."""
    return "" if permissive(licence) else NAMED.get((name, licence), BY_LICENCE.get(licence))


def texts(name: str) -> list[str]:
    """Licences and notices among the files of a package that name a copyleft licence, as paths from site-packages."""
    if name == "segunc":
        return []
    paths = [
        path
        for path in installed(name).files or []
        if TEXTS.search(str(path)) and path.suffix in ("", ".txt", ".md", ".rst")
    ]
    return [str(path) for path in paths if WORDS.search(path.read_binary().decode(errors="replace"))]


def found_in(name: str) -> str | None:
    """What reading the texts of a package has found, None for one that nobody has read."""
    return next(
        (found for start, found in READ.items() if name == start or (start.endswith("-") and name.startswith(start))),
        None,
    )


def refused(packages: dict[str, Package]) -> Iterator[str]:
    """A line for each package, and for each thing inside one, that may not stay."""
    for package in packages.values():
        if reason(package.name, package.licence) is None or (
            "GPL-" in package.licence and not permissive(package.licence)
        ):
            yield f"{package.name} {package.version}: {package.licence}"
        if found_in(package.name) is None:
            yield from (
                f"{text} of {package.name} {package.version}: names a copyleft licence; read it"
                for text in texts(package.name)
            )
        for inside in package.inside:
            if reason(inside.name, licence_of(inside)) is None:
                yield f"{inside.path} in {package.name} {package.version}: {licence_of(inside)}"


def environment() -> str:
    """The kind of environment that a page is of: other packages belong to another one."""
    return f"{platform.system()} {platform.machine()}, Python {platform.python_version().rpartition('.')[0]}"


def page(packages: dict[str, Package]) -> str:
    """Both tables as Markdown: the packages, and what their wheels carry; of several equal files of a wheel, one."""
    own = [f"| {p.name} | {p.version} | {p.licence} | {reason(p.name, p.licence)} |" for p in packages.values()]
    carried = {
        f"| {p.name} | {i.name} | {i.version} | {licence_of(i)} | {reason(i.name, licence_of(i))} |": None
        for p in packages.values()
        for i in p.inside
    }
    return "\n".join(
        [
            "# Licences of the default install",
            "",
            f"Made by `make licences`: {environment()}, the versions of requirements.lock, without extras. What it means, and what it",
            "cannot see, is in [supply-chain.md](supply-chain.md). `LicenseRef-BSD`: the metadata say BSD, the clauses are in the wheel's file.",
            "",
            "| package | version | licence as its metadata state it | where not permissive: why it may stay |",
            "|---|---|---|---|",
            *own,
            "",
            "What the wheels carry inside:",
            "",
            "| package | carries | version | licence | where not permissive: why it may stay |",
            "|---|---|---|---|---|",
            *carried,
            "",
            "Packages whose own licences and notices name a copyleft licence, and what reading them has found:",
            "",
            "| package | found |",
            "|---|---|",
            *(f"| {p.name} | {found_in(p.name)} |" for p in packages.values() if texts(p.name)),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="say what may not stay, and end with 1 where there is any")
    check, packages = parser.parse_args().check, default_install()
    if not check:
        print(page(packages), end="")
        return 0
    bad = list(refused(packages))
    carried = sum(len(package.inside) for package in packages.values())
    print(
        "\n".join(bad)
        or f"{len(packages)} packages and {carried} files inside them: permissive, or named with a reason"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
