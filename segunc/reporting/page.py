"""The page of a report, made from the content of ``report.json`` alone: one file without scripts that loads nothing; and its summary."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape

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
    lines = _template("summary.txt").render(facts, upper_bound=binomial_bound)
    return [json.loads(line) for line in lines.splitlines() if line]


def render(facts: Mapping[str, Any], sha256: str) -> str:
    """Return the page of a report, whose file has this SHA-256; every text in it is escaped."""
    standards = [*csv.reader((_ASSETS / "standards.csv").read_text(encoding="utf-8").splitlines())]
    with resources.as_file(_ASSETS / "sections.yaml") as path:
        sections = read_config(path)
    context = {"sections": sections, "standards": standards, "areas": titles(AREAS), "judged": titles(JUDGED_METRICS), "sha256": sha256}
    return _template("page.html").render(facts, **context)


def number(result: Mapping[str, Any], *path: str) -> str:
    """Return a number of a result with its interval, as statistics writes it."""
    value: Any = result["content"]
    for key in path:
        value = (value or {}).get(key)
    return format_cell(Cell(value, result["content"]["intervals"].get(".".join(path))))


def _template(name: str) -> Template:
    settings: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=PackageLoader("segunc.reporting", "assets"), autoescape=select_autoescape(), **settings)
    environment.filters |= {"number": _number, "title": title_of}
    return environment.get_template(name, globals={"of": number})


def _number(value: Any) -> str:
    """Return a number as statistics writes it, whole numbers with separators, and texts as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NULL if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else format_number(value)
