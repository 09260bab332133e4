"""Several inputs in one run: which videos and folders are meant, and which sub-folder each one's maps go to."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segunc.core.errors import InputError
from segunc.data.layout import IMAGE_SUFFIXES
from segunc.frames.sources import VIDEO_SUFFIXES


@dataclass(frozen=True)
class Input:
    """One input of a run.

    Attributes:
        spec: what :func:`segunc.frames.sources.open_source` takes.
        out: the maps folder.
        label: how it is called in progress and messages; empty where it is the only one.
    """

    spec: str
    out: Path
    label: str = ""


def plan_inputs(specs: Sequence[str], out: Path) -> list[Input]:
    """The inputs of a run and their maps folders.

    A folder or a pattern that holds videos and no image stands for its videos. A single input has ``out`` itself as its
    maps folder. Of several, each has a sub-folder with the name of the file (without its suffix) or folder; where two
    have one name, folders above it are joined in front with ``_`` until the names differ.

    Raises:
        InputError: one input is given twice, or names cannot be told apart.
    """
    expanded = [part for spec in specs for part in _expand(spec)]
    if len(expanded) == 1:
        return [Input(expanded[0], out)]
    names = _distinct_names(expanded)
    return [Input(spec, out / name, name) for spec, name in zip(expanded, names, strict=True)]


def _expand(spec: str) -> list[str]:
    path = Path(spec).expanduser()
    if path.is_dir():
        found = sorted(path.iterdir())
        if any(file.suffix.lower() in IMAGE_SUFFIXES for file in path.rglob("*")):
            return [spec]
    elif not path.exists() and glob.has_magic(str(path)):
        found = sorted(Path(match) for match in glob.glob(str(path), recursive=True))
        if any(file.suffix.lower() in IMAGE_SUFFIXES for file in found):
            return [spec]
    else:
        return [spec]
    # Where there is no video either, opening the input says what is missing.
    return [str(file) for file in found if file.suffix.lower() in VIDEO_SUFFIXES] or [spec]


def _distinct_names(specs: Sequence[str]) -> list[str]:
    paths = [Path(spec).expanduser().absolute() for spec in specs]
    for path, count in Counter(paths).items():
        if count > 1:
            raise InputError(f"input {path} is given {count} times", "every input once", "remove one")
    parts = [_parts(path) for path in paths]
    depths = [1] * len(parts)
    while True:
        names = ["_".join(part[-depth:]) for part, depth in zip(parts, depths, strict=True)]
        repeated = {name for name, count in Counter(names).items() if count > 1}
        if not repeated:
            return names
        deeper = [d + (n in repeated and d < len(p)) for d, n, p in zip(depths, names, parts, strict=True)]
        if deeper == depths:
            raise InputError(
                f"several inputs would have the maps folder '{sorted(repeated)[0]}'",
                "names that differ in more than their suffix",
                "rename one, or predict it in a run of its own",
            )
        depths = deeper


def _parts(path: Path) -> list[str]:
    """Parts of a name: wildcards, which no folder can be named by on every system, become ``x``."""
    whole = path.with_suffix("") if path.suffix.lower() in (*VIDEO_SUFFIXES, *IMAGE_SUFFIXES) else path
    return ["".join("x" if letter in '*?[]<>:"|' else letter for letter in part) for part in whole.parts[1:]]
