"""No copyleft in the default install but what is named with its reason, and the page that lists it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from packaging.licenses import canonicalize_license_expression

from tools import licences
from tools.default_install import NOT_STATED, ROOT, Inside, Package, default_install
from tools.licences import environment, licence_of, page, permissive, refused, texts

PAGE = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
MADE_IN = re.search(r"`make licences`: (.+?), the versions", PAGE)
listed = pytest.mark.skipif(
    not MADE_IN or MADE_IN[1] != environment(),
    reason="wheels of other platforms carry other things; the page names its own",
)


def alone(licence: str, *inside: Inside) -> list[str]:
    return list(refused({"tqdm": Package("tqdm", "1", licence, (), inside)}))


@listed
def test_nothing_is_refused() -> None:
    assert list(refused(default_install())) == []


@listed
def test_nothing_is_named_that_is_not_there() -> None:
    packages = default_install()
    inside = [one for package in packages.values() for one in package.inside]
    assert set(licences.LIBRARIES) <= {one.name for one in inside if one.licence is None}
    assert {name for name, _ in licences.NAMED} <= {one.name for one in [*packages.values(), *inside]}
    named = [name for name in packages if texts(name)]
    assert all(any(name.startswith(start) for name in named) for start in licences.READ)


@listed
def test_the_page_is_of_these_packages() -> None:
    assert page(default_install()) == PAGE


@pytest.mark.parametrize(
    "licence",
    [
        "GPL-3.0-only",
        "AGPL-3.0-only",
        "LGPL-2.1-or-later",
        "GPL-3.0-or-later WITH GCC-exception-3.1",
        "MIT AND GPL-2.0-only",
    ],
)
def test_a_package_of_the_gpl_family_is_refused_though_its_name_is_known(licence: str) -> None:
    assert alone(licence) == [f"tqdm 1: {licence}"]


def test_what_is_known_by_name_passes_and_what_is_not_does_not() -> None:
    one = Inside("libavcodec", "1", "a.libs/libavcodec.so.1", "", None)
    assert alone("MPL-2.0 AND MIT", one) == []
    assert alone("MPL-2.0") == ["tqdm 1: MPL-2.0"]  # not the licence that was looked at
    unknown = "a.libs/libnew.so in tqdm 1: not stated"
    assert alone("MIT", replace(one, name="libnew", path="a.libs/libnew.so")) == [unknown]
    assert alone("MIT", replace(one, name="vendored", licence="GPL-3.0-only")) != []


@pytest.mark.parametrize(
    ("licence", "passes"),
    [
        ("MIT", True),
        ("FTL OR GPL-2.0-or-later", True),
        ("MIT AND (Apache-2.0 OR GPL-2.0-only)", True),
        ("(MIT AND GPL-2.0-only) OR Apache-2.0", True),
        ("(MIT AND GPL-2.0-only) OR GPL-3.0-only", False),
        ("(GPL-2.0-only OR MPL-2.0) AND MIT", False),
        ("MPL-2.0", False),
        (NOT_STATED, False),
    ],
)
def test_a_choice_needs_one_permissive_licence_and_a_sum_needs_all(licence: str, passes: bool) -> None:
    assert permissive(licence) == passes


def test_every_licence_named_here_is_an_spdx_expression() -> None:
    for licence in {*licences.PERMISSIVE, *licences.LIBRARIES.values()}:
        assert canonicalize_license_expression(licence) == licence


def test_what_is_only_in_an_extra_is_left_out() -> None:
    assert {"torch", "setuptools", "tqdm"} < set(default_install())
    assert not {"ray", "pytest", "wandb", "hypothesis"} & set(default_install())


@listed
def test_libraries_inside_wheels_are_found() -> None:
    found = {(one.name, licence_of(one)) for one in default_install()["opencv-python-headless"].inside}
    assert {("libavcodec", "LGPL-2.1-or-later"), ("libssl", "OpenSSL")} < found
    assert ("autocommand", "LGPL-3.0-only") in {
        (one.name, one.licence) for one in default_install()["setuptools"].inside
    }
