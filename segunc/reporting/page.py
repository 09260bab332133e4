"""The page of a report, made from the content of ``report.json`` alone: one file without scripts that loads nothing."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

from segunc.evaluation.compare import NULL, format_cell, format_number
from segunc.evaluation.resampling import Cell

SHORT = 24  # rows of a table that print keeps on one page
SIDE = 240  # of a reliability diagram in its own units
_STATES = {"measured": "measured", "holds": "holds", "broken": "does not hold", "open": "open"}
_ASSETS = resources.files("segunc.reporting") / "assets"


def render(report: Mapping[str, Any], checksum: str) -> str:
    """Return the page of a report, whose file has this SHA-256."""
    sections = [_section(section) for section in report["sections"]]
    contents = [f'<li class="level{s["level"]}"><a href="#{s["key"]}">{_text(s["title"])}</a></li>' for s in report["sections"]]
    lines = "".join(
        f'<div class="line {s["state"]}"><dt>{_text(s["name"])} <span>{_STATES[s["state"]]}</span></dt><dd>{_text(s["text"])}</dd></div>'
        for s in report["summary"]
    )
    parts = {"title": _text(report["title"]), "subtitle": _text(report["subtitle"]), "checksum": checksum, "summary": lines}
    parts |= {"contents": "".join(contents), "sections": "".join(sections), "style": _asset("report.css")}
    page = _asset("page.html")
    for name, part in parts.items():
        page = page.replace(f"{{{{{name}}}}}", part, 1)
    return page


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _text(words: object) -> str:
    return html.escape(str(words))


def _section(section: Mapping[str, Any]) -> str:
    level, key = section["level"], section["key"]
    blocks = "".join(_BLOCKS[block["kind"]](block) for block in section["blocks"])
    note = f'<p class="note">{_text(section["note"])}</p>' if section.get("note") else ""
    return f'<section id="{key}"><h{level}>{_text(section["title"])}</h{level}>{blocks}{note}</section>'


def _paragraph(block: Mapping[str, Any]) -> str:
    command = f" <code>{_text(block['command'])}</code>" if block.get("command") else ""
    return f'<p class="{block["kind"]}">{_text(block["text"])}{command}</p>'


def _list(block: Mapping[str, Any]) -> str:
    return f"<ul>{''.join(f'<li>{_text(item)}</li>' for item in block['items'])}</ul>"


def _commands(block: Mapping[str, Any]) -> str:
    return "".join(f"<pre>$ {_text(line)}</pre>" for line in block["items"])


def _table(block: Mapping[str, Any]) -> str:
    columns, rows = block["columns"], block["rows"]
    numeric = [all(not isinstance(row[i], str) for row in rows) for i in range(len(rows[0]))]
    kinds = [' class="number"' if is_number else "" for is_number in numeric]
    head = "".join(f'<th scope="col"{kind}>{_text(name)}</th>' for name, kind in zip(columns, kinds, strict=False))
    body = "".join(
        f'<tr><th scope="row">{_cell(first)}</th>'
        + "".join(f"<td{kind}>{_cell(value)}</td>" for value, kind in zip(rest, kinds[1:], strict=True))
        + "</tr>"
        for first, *rest in rows
    )
    size = "short" if len(rows) <= SHORT else "long"
    head = f"<thead><tr>{head}</tr></thead>" if columns else ""
    table = f'<table class="{size}"><caption>{_text(block["caption"])}</caption>{head}<tbody>{body}</tbody></table>'
    return f'<div class="table" role="region" tabindex="0" aria-label="{_text(block["caption"])}">{table}</div>'


def _cell(value: Any) -> str:
    if not isinstance(value, dict):
        return NULL if value is None else f"{value:,}" if isinstance(value, int) else _text(value)
    low, high = value["low"], value["high"]
    words = format_cell(Cell(value["value"], None if low is None else (low, high)))
    bar = f'<i class="bar" style="width:{100 * value["value"]:.1f}%"></i>' if value["bar"] else ""
    return f'<span class="cell">{_text(words)}{bar}</span>'


def _reliability(block: Mapping[str, Any]) -> str:
    """Draw accuracy over confidence, the area of a dot as its share of the pixels, so that empty corners carry no weight."""
    most = max(n for *_, n in block["bins"])
    points = [(SIDE * x, SIDE * (1 - y), 2 + 7 * math.sqrt(n / most)) for x, y, n in block["bins"]]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>' for x, y, r in points)
    ticks = "".join(
        f'<text x="{SIDE * t}" y="{SIDE + 16}" text-anchor="middle">{t:g}</text>'
        f'<text x="-8" y="{SIDE * (1 - t) + 4}" text-anchor="end">{t:g}</text>'
        for t in (0, 0.5, 1)
    )
    words = f"ECE {format_number(block['ece'])}, {len(block['bins'])} bins"
    return (
        f'<figure class="chart"><svg viewBox="-44 -12 300 302" role="img" aria-label="Reliability diagram, {_text(block["title"])}: {words}">'
        f'<rect width="{SIDE}" height="{SIDE}"/><path d="M0 {SIDE}L{SIDE} 0"/><polyline points="{line}"/>{dots}{ticks}'
        f'<text x="{SIDE / 2}" y="{SIDE + 34}" text-anchor="middle">confidence</text>'
        f'<text transform="translate(-34 {SIDE / 2}) rotate(-90)" text-anchor="middle">accuracy</text></svg>'
        f"<figcaption>{_text(block['title'])}: {words}</figcaption></figure>"
    )


def _pictures(block: Mapping[str, Any]) -> str:
    figures = (
        f'<figure><img alt="{_text(of["line"])}" src="data:image/jpeg;base64,{of["jpeg"]}">'
        f"<figcaption><b>{_text(of['title'])}</b> {_text(of['line'])}</figcaption></figure>"
        for of in block["items"]
    )
    return f'<div class="pictures">{"".join(figures)}</div>'


_BLOCKS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    **dict.fromkeys(("text", "promise", "missing"), _paragraph),
    **{"list": _list, "commands": _commands, "table": _table, "reliability": _reliability, "pictures": _pictures},
}
