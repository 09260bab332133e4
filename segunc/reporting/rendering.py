"""The page of a report: one file without scripts that loads nothing, made from ``report.json``
alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape

from segunc.colours import colour_table
from segunc.core.terminal import counted
from segunc.decisions.states import STATES
from segunc.evaluation.comparison import NULL, format_number
from segunc.evaluation.flagged import JUDGED_METRICS
from segunc.evaluation.parts import AREAS, titles
from segunc.maps.encoding import threshold_text
from segunc.metrics.prediction import BINS
from segunc.reporting.failures import CONFIDENT_ERROR, FALSE_ALARM, MISSED
from segunc.reporting.summary_lines import (
    agreement_sentences,
    chance,
    folded,
    measuring,
    not_measured,
    number,
    promise_words,
    resampled,
)
from segunc.scores import title_of
from segunc.training.config import read_config

_NO_BREAK = "\u00a0"  # a space at which no line ends
_PART = re.compile(r".[^._/]*[._/]*", re.DOTALL)
_INTERVAL = re.compile(r"\[[^\[\], ]+, [^\[\], ]+\]")
_PERCENT = re.compile(r"(?<=\d) %")
_FRAMED = {
    f"{MISSED}.": "the labelled object that was missed",
    f"{FALSE_ALARM}.": "the flagged region of a false alarm",
    f"{CONFIDENT_ERROR}.": "the pixels of a confident error, wrong and not flagged",
}
"""What the frame in a picture encloses, by the title of the picture."""
RAMP_STOPS = 16  # colours of the bar of a score
NAMED_FRAMES = 40  # names of calibration frames that the page shows


def render(facts: Mapping[str, Any], sha256: str) -> str:
    """Return the page of a report; every text in it is escaped.

    Args:
        facts: the content of ``report.json``.
        sha256: of that file.
    """
    sections = read_config(Path(__file__).parent / "assets" / "sections.yaml", own=True)
    shown, missing, missing_words = folded(facts["summary"], facts["gaps"])
    context = {
        "sections": sections,
        "shown": shown,
        "missing": missing,
        "missing_words": missing_words,
        "areas": titles(AREAS),
        "judged": titles(JUDGED_METRICS),
        "bins_of_confidence": BINS,
        "states": STATES,
        "colours": _ramp(),
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
    environment.filters["threshold"] = threshold_text
    environment.filters["framed"] = _FRAMED.__getitem__
    environment.filters["parts"] = _parts
    environment.filters["unbroken"] = _unbroken
    environment.filters["title"] = title_of
    environment.filters["lowest_first"] = _lowest_first
    names = {
        "of": number,
        "chance": chance,
        "agreement": agreement_sentences,
        "not_measured": not_measured,
        "measuring": measuring,
        "promise_words": promise_words,
        "resampled": resampled,
        "shown_failures": _shown_failures,
        "frame_names": _frame_names,
    }
    return environment.get_template(name, globals=names)


def _parts(key: str) -> list[str]:
    """Return the parts of a key or of the name of a file, between which a line may end: each but
    the last ends in a dot, a slash or an underscore.
    """
    return _PART.findall(key)


def _ramp() -> str:
    """Return the colours of scores from low to high, as the stops of a gradient of CSS."""
    stops = colour_table()[:: 255 // (RAMP_STOPS - 1)]
    return ", ".join(f"rgb({red},{green},{blue})" for red, green, blue in stops.tolist())


def _unbroken(text: str) -> str:
    """Return a text in which no line ends within an interval or before a percent sign."""
    text = _INTERVAL.sub(lambda interval: interval[0].replace(" ", _NO_BREAK), text)
    return _PERCENT.sub(f"{_NO_BREAK}%", text)


def _frame_names(names: Iterable[str]) -> str:
    """Return the names of frames, or their first ones and how many more ``report.json`` names."""
    names = list(names)
    shown = ", ".join(names[:NAMED_FRAMES])
    left = len(names) - NAMED_FRAMES
    return f"{shown} and {left} more, which report.json names" if left > 0 else shown


def _shown_failures(pictures: Iterable[Mapping[str, str]], found: Mapping[str, int]) -> list[str]:
    """Return of each kind how many of the failures that were found are shown, and from how many
    frames.

    Args:
        pictures: that are shown.
        found: number of failures by their title, see
            :class:`segunc.reporting.failures.Failures`.
    """
    pictures = list(pictures)
    words = []
    for title, number_found in found.items():
        frames = [picture["frame"] for picture in pictures if picture["title"] == title]
        from_frames = f"from {counted(len(set(frames)), 'frame')}"
        if title == f"{MISSED}.":
            words.append(
                f"{len(frames)} of {counted(number_found, 'missed object')}, {from_frames}"
            )
        else:
            kind = title.rstrip(".").lower()
            words.append(
                f"{len(frames)} of {counted(number_found, 'frame')} with a {kind}, of each its "
                f"{'strongest' if title == f'{FALSE_ALARM}.' else 'largest'}"
            )
    return words


def _lowest_first(ious: Mapping[str, float | None]) -> Iterable[str]:
    """Return the names of classes, those that are never found first and those without IoU last."""
    return sorted(ious, key=lambda name: (ious[name] is None, ious[name] or 0.0))


def _number(value: Any) -> str:
    """Return a number as statistics writes it, whole numbers with separators, and texts as they
    are.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NULL if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else format_number(value)
