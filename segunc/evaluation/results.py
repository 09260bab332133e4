"""Results of ``segunc evaluate``, read back from disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from segunc.core.errors import InputError
from segunc.core.files import read_json
from segunc.evaluation.resampling import NumberPath, Replicates, load_replicates, sidecar_path

ABOUT = ("counts", "run", "bootstrap")
"""Sections whose numbers are about the evaluation; every other section holds numbers of a table."""


@dataclass(frozen=True)
class Cell:
    """A number, its 95 % interval where there is one, and why it is None or has no interval."""

    value: float | None
    interval: tuple[float, float] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class EvaluationResult:
    """One ``metrics.json``."""

    name: str  # in a table
    path: Path
    content: Mapping[str, Any]
    numbers: Mapping[NumberPath, float | None]  # all of its numbers
    replicates: Replicates | None  # of its sidecar, None where there is none

    def cell(self, path: NumberPath) -> Cell:
        value, dotted = self.numbers.get(path), ".".join(path)
        if value is None:
            return Cell(None, reason=str(self.content.get("reasons", {}).get(dotted, "no reason is given")))
        bounds = self.content.get("intervals", {}).get(dotted)
        why_none = self.content.get("bootstrap", {}).get("no_interval", {}).get(dotted)
        return Cell(value, (float(bounds[0]), float(bounds[1])) if bounds else None, why_none)


class _Bootstrap(BaseModel):
    no_interval: dict[str, str] = {}


class _ResultFile(BaseModel):
    model_config = ConfigDict(strict=True)
    scores: dict[str, Any]
    counts: dict[str, Any]
    intervals: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]] = {}
    reasons: dict[str, Any] = {}
    forms: dict[str, Any] = {}
    run: dict[str, Any] = {}
    bootstrap: _Bootstrap = _Bootstrap()
    left_out: list[dict[str, Any]] = []


def load_results(paths: Sequence[Path], names: Sequence[str] | None = None) -> list[EvaluationResult]:
    """Read results of ``segunc evaluate`` with their sidecars; ``names`` None takes the stem of each file, with its folder where two
    files share one. InputError where a file cannot be read or is no result, or names lack or repeat."""
    stems = Counter(path.stem for path in paths)
    names = names or [f"{p.resolve().parent.name}/{p.stem}" if stems[p.stem] > 1 else p.stem for p in paths]
    if len(names) != len(paths):
        raise InputError(f"{len(names)} names are given for {len(paths)} results", hint="--names a,b")
    repeated = [name for name, number in Counter(names).items() if number > 1]
    if repeated:
        raise InputError(f"two results are named '{repeated[0]}'", hint="--names a,b")
    return [_load(path, name) for path, name in zip(paths, names, strict=True)]


def _load(path: Path, name: str) -> EvaluationResult:
    content = read_json(path, "a result of segunc evaluate")
    try:
        _ResultFile.model_validate(content)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise InputError(f"{path} is no result of segunc evaluate: {where} ({fault['msg']})") from error
    sidecar = sidecar_path(path)
    replicates = load_replicates(sidecar) if sidecar.is_file() else None
    sections = [section for section in content if section not in ABOUT]
    numbers = {path: value for section in sections for path, value in _numbers(content[section], (section,))}
    return EvaluationResult(name, path, content, numbers, replicates)


def _numbers(content: Any, prefix: NumberPath) -> Iterator[tuple[NumberPath, float | None]]:
    """Yield the numbers and nulls of nested objects; lists are no numbers of a table."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _numbers(value, (*prefix, str(key)))
    elif len(prefix) > 1 and (content is None or (isinstance(content, int | float) and not isinstance(content, bool))):
        yield prefix, None if content is None else float(content)
