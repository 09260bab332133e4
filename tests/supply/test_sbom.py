"""The bill of materials: the same bytes every time, nothing of the machine in it, and complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.licenses import canonicalize_license_expression

from tools import sbom
from tools.default_install import ROOT, default_install, locked


def make(out: Path, seed: str) -> bytes:
    command = [sys.executable, "-m", "tools.sbom", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True)
    return out.read_bytes()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("sbom")
    first = make(folder / "a.json", "1")
    assert make(folder / "below" / "b.json", "2") == first
    assert str(ROOT).encode() not in first
    return dict(json.loads(first))


def every(components: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for component in components:
        yield component
        yield from every(component.get("components", []))


def test_it_says_neither_when_nor_which_time_it_was_made(made: dict[str, Any]) -> None:
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert "serialNumber" not in made
    assert "timestamp" not in made["metadata"]


def test_every_package_has_version_url_licence_and_the_hashes_of_the_lock(made: dict[str, Any]) -> None:
    packages = default_install()
    assert [component["name"] for component in made["components"]] == [name for name in packages if name != "segunc"]
    for component in made["components"]:
        name, version = component["name"], component["version"]
        assert component["purl"] == f"pkg:pypi/{name}@{version}"
        (files,) = component["externalReferences"]
        assert {one["content"] for one in files["hashes"]} == set(locked()[name, version])
    without = [component["name"] for component in made["components"] if "licenses" not in component]
    assert set(without) <= {"cuda-toolkit"}
    for component in every(made["components"]):
        for one in component.get("licenses", []):
            assert canonicalize_license_expression(one["expression"]) == one["expression"]


def test_names_in_the_document_are_unique_and_arrows_lead_to_them(made: dict[str, Any]) -> None:
    names = [component["bom-ref"] for component in every([made["metadata"]["component"], *made["components"]])]
    assert len(set(names)) == len(names)
    assert all({line["ref"], *line["dependsOn"]} <= set(names) for line in made["dependencies"])
    (ours,) = (line for line in made["dependencies"] if line["ref"].startswith("pkg:pypi/segunc@"))
    assert any(name.startswith("pkg:pypi/torch@") for name in ours["dependsOn"])


def test_a_version_that_is_not_locked_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbom, "locked", dict)
    with pytest.raises(SystemExit, match=r"and not in requirements\.lock; make the environment again"):
        sbom.document(default_install())
