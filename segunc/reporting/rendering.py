"""The page of a report: one file without scripts that loads nothing, made from ``report.json``
alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape

from segunc.decisions.states import STATES
from segunc.evaluation.comparison import NULL, format_number
from segunc.evaluation.flagged import JUDGED_METRICS
from segunc.evaluation.parts import AREAS, titles
from segunc.reporting.summary_lines import (
    agreement_sentences,
    chance,
    measuring,
    not_measured,
    number,
    promise_words,
)
from segunc.scores import title_of
from segunc.training.config import read_config

NAMED_FRAMES = 40  # names of calibration frames that the page shows


def render(facts: Mapping[str, Any], sha256: str) -> str:
    """Return the page of a report; every text in it is escaped.

    Args:
        facts: the content of ``report.json``.
        sha256: of that file.
    """
    sections = read_config(Path(__file__).parent / "assets" / "sections.yaml", own=True)
    context = {
        "sections": sections,
        "areas": titles(AREAS),
        "judged": titles(JUDGED_METRICS),
        "states": STATES,
        "sha256": sha256,
    }
    return _template("page.html").render(facts, **context)


def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("segunc.reporting", "assets"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    environment.filters["title"] = title_of
    environment.filters["lowest_first"] = _lowest_first
    names = {
        "of": number,
        "chance": chance,
        "agreement": agreement_sentences,
        "not_measured": not_measured,
        "measuring": measuring,
        "promise_words": promise_words,
        "frame_names": _frame_names,
    }
    return environment.get_template(name, globals=names)


def _frame_names(names: Iterable[str]) -> str:
    """Return the names of frames, or their first ones and how many more ``report.json`` names."""
    names = list(names)
    shown = ", ".join(names[:NAMED_FRAMES])
    left = len(names) - NAMED_FRAMES
    return f"{shown} and {left} more, which report.json names" if left > 0 else shown


def _lowest_first(ious: Mapping[str, float | None]) -> Iterable[str]:
    """Return the names of classes, those that are never found first and those without IoU last."""
    return sorted(ious, key=lambda name: (ious[name] is None, ious[name] or 0.0))


def _number(value: Any) -> str:
    """Return a number as statistics writes it, whole numbers with separators, and texts as they
    are.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NULL if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else format_number(value)
