"""What the default install is made of, as a CycloneDX 1.6 document (JSON).

    python -m tools.sbom --out dist/segunc.cdx.json

Packages with licences and dependencies come from the running environment (tools/default_install.py), the SHA-256 of their files from
requirements.lock, which must have the same versions; libraries inside wheels stand below their package. There is no time, no random
number and no path of the machine in it: the same commit and the same kind of environment give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tools.default_install import NOT_STATED, Inside, Package, default_install, locked
from tools.licences import environment, licence_of


def licences(text: str) -> dict[str, Any]:
    """The field ``licenses`` of a component: none where none is stated."""
    return {} if text == NOT_STATED else {"licenses": [{"expression": text}]}


def reference(package: Package) -> str:
    """The package URL, which is its name in the document as well."""
    return f"pkg:pypi/{package.name}@{package.version}"


def carried(owner: Package, inside: Inside) -> dict[str, Any]:
    """A component inside a wheel, with the SHA-256 of its file."""
    return {
        "type": "library",
        "bom-ref": f"{reference(owner)}#{inside.path}",
        "name": inside.name,
        **({"version": inside.version} if inside.version else {}),
        **({"hashes": [{"alg": "SHA-256", "content": inside.sha256}]} if inside.sha256 else {}),
        **licences(licence_of(inside)),
        "properties": [{"name": "segunc:path", "value": inside.path}],
    }


def component(package: Package) -> dict[str, Any]:
    """A package as it is installed.

    Raises:
        SystemExit: requirements.lock has another version.
    """
    hashes = locked().get((package.name, package.version))
    if hashes is None:
        raise SystemExit(
            f"{package.name} {package.version} is installed, and not in requirements.lock; make the environment again"
        )
    files = [{"alg": "SHA-256", "content": digest} for digest in hashes]
    return {
        "type": "library",
        "bom-ref": reference(package),
        "name": package.name,
        "version": package.version,
        **licences(package.licence),
        "purl": reference(package),
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{package.name}/{package.version}/",
                "comment": "one of these files, by platform",
                "hashes": files,
            }
        ],
        **({"components": [carried(package, inside) for inside in package.inside]} if package.inside else {}),
    }


def document(packages: dict[str, Package]) -> dict[str, Any]:
    """The whole document; the first package is its subject."""
    ours, *others = packages.values()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": reference(ours),
                "name": ours.name,
                "version": ours.version,
                **licences(ours.licence),
                "purl": reference(ours),
            },
            "properties": [{"name": "segunc:environment", "value": environment()}],
        },
        "components": [component(package) for package in others],
        "dependencies": [
            {"ref": reference(package), "dependsOn": [reference(packages[name]) for name in package.needs]}
            for package in packages.values()
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    out, made = parser.parse_args().out, document(default_install())
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{out}: {len(made['components'])} packages of the default install, {environment()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
