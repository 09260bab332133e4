"""The house as ``docs/design.md`` draws it: imports go down, and none of them form a circle."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import segunc

PACKAGE = Path(segunc.__file__).parent
FLOORS = (
    {"core"},
    {"scores", "uncertainty", "data", "networks"},
    {"toyroads", "affine", "frames", "colours", "figure_style"},
    {"sampling", "maps", "metrics"},
    {"decisions", "processing", "training"},
    {"posteriors"},
    {"baselines", "evaluation", "exporting", "gallery"},
    {"plots", "reporting"},
    {"lightning"},
    {"options"},
    {"verbs"},
    {"__init__"},
    {"cli"},
    {"__main__"},
)
"""From the ground up. A room imports rooms of lower floors and, where these import nothing of it,
of its own.
"""


@cache
def modules() -> dict[str, Path]:
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return names


def imported(source: str) -> Iterator[str]:
    """Modules of ours that a file imports anywhere: inside a function and for types alone, too."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] == "segunc"
        ):
            place = node.module.removeprefix("segunc").removeprefix(".")
            for alias in node.names:
                name = f"{place}.{alias.name}".removeprefix(".")
                yield name if name in modules() else place or "__init__"
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names if alias.name.split(".")[0] == "segunc")
            yield from (name.partition(".")[2] or "__init__" for name in names)


@cache
def arrows() -> dict[str, set[str]]:
    """What each module imports."""
    sources = {module: path.read_text(encoding="utf-8") for module, path in modules().items()}
    return {module: set(imported(source)) - {module} for module, source in sources.items()}


def room(module: str) -> str:
    return module.partition(".")[0]


def test_every_room_has_a_floor_and_no_arrow_goes_up() -> None:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    assert {room(module) for module in modules()} == set(floor)
    up = [
        f"{module} -> {target}"
        for module, targets in arrows().items()
        for target in targets
        if floor[room(target)] > floor[room(module)]
    ]
    assert up == []


def test_no_circle() -> None:
    """Neither of files nor of rooms."""
    assert circles(arrows()) == []
    rooms: dict[str, set[str]] = {}
    for module, targets in arrows().items():
        rooms.setdefault(room(module), set()).update(
            {room(target) for target in targets} - {room(module)}
        )
    assert circles(rooms) == []


def test_gallery_and_evaluation_stand_side_by_side() -> None:
    """What both need of thresholds lies below them, in ``decisions``."""
    rooms = ("evaluation", "gallery")
    sideways = [
        f"{module} -> {target}"
        for module, targets in arrows().items()
        for target in targets
        if room(module) in rooms and room(target) in rooms and room(module) != room(target)
    ]
    assert sideways == []


def test_nothing_but_entry_points_names_the_baselines() -> None:
    """Neither an import nor a table of ``module:name``, but that of the public names; the entry
    points of this package's own ``pyproject.toml`` are there and installed.
    """
    named = ("baselines", "__init__")
    others = (path for module, path in modules().items() if room(module) not in named)
    assert [path for path in others if "segunc.baselines" in path.read_text(encoding="utf-8")] == []
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    for group, declared in project["entry-points"].items():
        installed = {point.name: point.value for point in entry_points(group=group)}
        assert declared.items() <= installed.items(), "install the package again: pip install -e ."
        assert all(place.startswith("segunc.baselines.") for place in declared.values())


def circles(arrows: dict[str, set[str]]) -> list[str]:
    """What is left when everything that imports nothing, or only what is gone, has been taken away
    again and again.
    """
    left = dict(arrows)
    while gone := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in gone:
            del left[name]
    return sorted(left)
