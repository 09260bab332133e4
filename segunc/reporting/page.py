"""The page of a report, made from the content of ``report.json`` alone: one file without scripts that loads nothing."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined

from segunc.evaluation.compare import NULL, format_number
from segunc.evaluation.flagged import JUDGED_METRICS
from segunc.evaluation.parts import AREAS, titles
from segunc.reporting.facts import chance, number
from segunc.scores import title_of
from segunc.training.config import read_config

_ASSETS = resources.files("segunc.reporting") / "assets"


def render(facts: Mapping[str, Any], sha256: str) -> str:
    """Return the page of a report, whose file has this SHA-256; every text in it is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": _number, "title": title_of}
    style, template, standards = (_asset(name) for name in ("report.css", "page.html", "standards.csv"))
    with resources.as_file(_ASSETS / "sections.yaml") as path:
        sections = read_config(path)
    context: dict[str, Any] = {"sections": sections, "standards": [*csv.reader(standards.splitlines())], "areas": titles(AREAS)}
    context |= {"of": number, "chance": chance, "judged": titles(JUDGED_METRICS), "style": style, "sha256": sha256}
    return environment.from_string(template).render(facts, **context)


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _number(value: Any) -> str:
    """Return a number as statistics writes it, whole numbers with separators, and texts as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NULL if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else format_number(value)
