"""The page of a report, made from the content of ``report.json`` alone: one file without scripts that loads nothing; and its summary."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from segunc.decisions.guarantees import binomial_bound
from segunc.evaluation.compare import NULL, format_cell, format_number
from segunc.evaluation.flagged import JUDGED_METRICS
from segunc.evaluation.parts import AREAS, titles
from segunc.evaluation.resampling import Cell
from segunc.scores import title_of
from segunc.training.config import read_config

_ASSETS = resources.files("segunc.reporting") / "assets"


def summary_of(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return lines on what may be trusted and what not, made from the numbers: ``name``, ``state`` and ``text``."""
    lines = _environment(autoescape=False).from_string(_asset("summary.txt")).render(facts, upper_bound=binomial_bound)
    return [json.loads(line) for line in lines.splitlines() if line]


def render(facts: Mapping[str, Any], sha256: str) -> str:
    """Return the page of a report, whose file has this SHA-256; every text in it is escaped."""
    style, template, standards = (_asset(name) for name in ("report.css", "page.html", "standards.csv"))
    with resources.as_file(_ASSETS / "sections.yaml") as path:
        sections = read_config(path)
    context: dict[str, Any] = {"sections": sections, "standards": [*csv.reader(standards.splitlines())], "areas": titles(AREAS)}
    context |= {"judged": titles(JUDGED_METRICS), "style": style, "sha256": sha256}
    return _environment(autoescape=True).from_string(template).render(facts, **context)


def number(result: Mapping[str, Any], *path: str) -> str:
    """Return a number of a result with its interval, as statistics writes it."""
    value: Any = result["content"]
    for key in path:
        value = (value or {}).get(key)
    return format_cell(Cell(value, result["content"]["intervals"].get(".".join(path))))


def _environment(autoescape: bool) -> Environment:
    environment = Environment(autoescape=autoescape, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": _number, "title": title_of}
    environment.globals |= {"of": number, "chance": _chance}
    return environment


def _chance(counts: Mapping[str, int]) -> float:
    """Return the share of anomaly pixels, which is the AUPR of a random score."""
    return counts["anomaly_pixels"] / max(counts["anomaly_pixels"] + counts["normal_pixels"], 1)


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _number(value: Any) -> str:
    """Return a number as statistics writes it, whole numbers with separators, and texts as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NULL if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else format_number(value)
