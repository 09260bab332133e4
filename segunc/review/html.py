"""The HTML of the review page; every text from outside is escaped, nothing is loaded from a network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import quote

from segunc.review.colormap import DisplayRange, colour_table
from segunc.review.overlay import Legend, model_line
from segunc.review.style import SCRIPT, STYLE

_COLUMNS = (("auroc", "AUROC"), ("aupr", "AUPR"), ("fpr95", "FPR95"))
_PROTOCOLS = ("pooled", "per-image", "smiyc")


@dataclass(frozen=True)
class PageFrame:
    """A frame on the page: its name, its place in the source, and mean and max of each score in real units."""

    name: str
    place: int
    mean: dict[str, float]
    peak: dict[str, float]


@dataclass
class Page:
    """All that the page says.

    Attributes:
        title: name of the maps folder.
        manifest: its manifest, empty where there is none.
        legends: the scores that are drawn, with their fixed ranges.
        scores: the scores that frames can be sorted by.
        frames: the frames shown, in their first order.
        total: frames that the maps folder holds.
        labelled: names of the frames with anomaly labels.
        video: file name of the overlay video.
        metrics: a metrics.json.
        notice: one line about what is missing.
    """

    title: str
    manifest: dict[str, Any]
    legends: list[Legend]
    scores: list[str]
    frames: list[PageFrame]
    total: int
    labelled: list[str] = field(default_factory=list)
    video: str | None = None
    metrics: dict[str, Any] | None = None
    notice: str | None = None


def render(page: Page) -> str:
    """The page as one HTML document."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(page.title)}: uncertainty review</title><style>{STYLE}</style></head><body>",
        *_header(page),
        "<main>",
        *_video(page),
        *_metrics(page.metrics),
        *_gallery(page),
        f"</main><script>{SCRIPT}</script></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _header(page: Page) -> Iterator[str]:
    yield f"<header><h1>{escape(page.title)}</h1>"
    line = model_line(page.manifest)
    if line:
        yield f'<p class="model">{escape(line)}</p>'
    facts = list(_facts(page))
    if facts:
        items = "".join(f"<div><dt>{escape(term)}</dt><dd>{escape(text)}</dd></div>" for term, text in facts)
        yield f"<dl>{items}</dl>"
    if page.notice:
        yield f'<p class="notice">{escape(page.notice)}</p>'
    failed = page.manifest.get("failed") or []
    if failed:
        count = "1 frame" if len(failed) == 1 else f"{len(failed)} frames"
        rows = "".join(f"<li><b>{escape(str(f['name']))}</b> {escape(str(f['reason']))}</li>" for f in failed)
        yield f'<details class="notice"><summary>{count} failed</summary><ul>{rows}</ul></details>'
    if page.legends:
        yield '<section class="legends" aria-label="Colour legends">'
        yield from (_legend(legend) for legend in page.legends)
        yield "</section>"
        yield '<p class="small">Ranges are fixed: one value has one colour in every frame.</p>'
    yield "</header>"


def _facts(page: Page) -> Iterator[tuple[str, str]]:
    run, tool = page.manifest.get("run", {}), page.manifest.get("tool", {})
    yield "Frames", f"{page.total}" + (f", status {page.manifest['status']}" if "status" in page.manifest else "")
    for key, term in (("input", "Input"), ("size", "Network input size"), ("dtype", "Precision")):
        if run.get(key) is not None:
            yield term, str(run[key])
    if page.manifest.get("device"):
        yield "Device", str(page.manifest["device"])
    if tool:
        commit, _, changed = str(tool.get("commit") or "").partition("-")
        made = f"{tool.get('name', '')} {tool.get('version', '')} {commit[:12]}{'-' + changed if changed else ''}"
        yield "Made with", made.strip()
    if page.labelled:
        yield "Anomaly labels", f"{len(page.labelled)} of {len(page.frames)} frames shown, outlined"


def _legend(legend: Legend) -> str:
    table = colour_table(legend.colour_map)
    stops = ", ".join("#" + "".join(f"{channel:02x}" for channel in table[row]) for row in range(0, 256, 15))
    ticks = "".join(f"<span>{escape(tick)}</span>" for tick in legend.ticks)
    return (
        f'<figure><figcaption>{escape(legend.title)}</figcaption><div class="bar" role="img" aria-label="from '
        f'{escape(legend.ticks[0])} to {escape(legend.ticks[-1])}" style="background:linear-gradient(90deg, {stops})">'
        f'</div><div class="ticks">{ticks}</div></figure>'
    )


def _video(page: Page) -> Iterator[str]:
    if page.video:
        source = escape(quote(page.video))
        yield '<section><h2>Video</h2><video controls preload="metadata" playsinline '
        yield f'aria-label="Overlay video of all frames" src="{source}"></video></section>'


def _metrics(metrics: dict[str, Any] | None) -> Iterator[str]:
    scores = (metrics or {}).get("scores") or {}
    if metrics is None:
        return
    reasons: dict[str, str] = metrics.get("reasons") or {}
    protocols = [p for p in _PROTOCOLS if any(p in (entry or {}) for entry in scores.values())]
    yield "<section><h2>Metrics</h2>"
    if protocols:
        heads = "".join(f'<th colspan="{len(_COLUMNS)}" scope="colgroup">{p}</th>' for p in protocols)
        columns = "".join(f'<th scope="col">{label}</th>' for _ in protocols for _, label in _COLUMNS)
        yield f'<div class="scroll"><table><thead><tr><th rowspan="2" scope="col">score</th>{heads}</tr>'
        yield f"<tr>{columns}</tr></thead><tbody>"
        for score, entry in scores.items():
            cells = "".join(
                _number(((entry or {}).get(p) or {}).get(key), reasons, f"scores.{score}.{p}.{key}")
                for p in protocols
                for key, _ in _COLUMNS
            )
            yield f'<tr><th scope="row">{escape(str(score))}</th>{cells}</tr>'
        yield "</tbody></table></div>"
    single = [
        (label, (metrics.get(group) or {}).get(key), f"{group}.{key}")
        for group, key, label in (
            ("segmentation", "miou", "mIoU"),
            ("calibration", "ece", "ECE"),
            ("calibration", "nll", "NLL"),
            ("calibration", "brier", "Brier score"),
        )
        if key in (metrics.get(group) or {})
    ]
    if single:
        heads = "".join(f'<th scope="col">{label}</th>' for label, _, _ in single)
        cells = "".join(_number(value, reasons, path) for _, value, path in single)
        yield f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody><tr>{cells}</tr></tbody></table></div>'
    yield '<p class="small">Fractions of 1. A dash has its reason as a tooltip and in metrics.json.</p></section>'


def _number(value: Any, reasons: dict[str, str], path: str) -> str:
    if isinstance(value, int | float) and math.isfinite(value):
        return f"<td>{value:.4f}</td>"
    # The reason may be given for the number itself or for a part above it.
    steps = path.split(".")
    reason = next((reasons[p] for p in (".".join(steps[:n]) for n in range(len(steps), 0, -1)) if p in reasons), "")
    return f'<td title="{escape(str(reason) or "not computed")}">–</td>'


def _gallery(page: Page) -> Iterator[str]:
    some = f"the worst {len(page.frames)} of {page.total}" if len(page.frames) < page.total else f"all {page.total}"
    yield f"<section><h2>Frames <small>({some})</small></h2>"
    yield '<nav aria-label="Order of frames">Sort by'
    for index, score in enumerate(page.scores):
        for statistic in ("mean", "max"):
            yield f'<button type="button" data-key="{statistic}{index}">{statistic} {escape(score)}</button>'
    yield '<button type="button" data-key="place">source order</button></nav><div id="frames">'
    ranges = {legend.score: legend.shown for legend in page.legends}
    for frame in page.frames:
        data = f' data-place="{frame.place}"' + "".join(
            f' data-mean{i}="{frame.mean[s]!r}" data-max{i}="{frame.peak[s]!r}"'
            for i, s in enumerate(page.scores)
            if s in frame.mean and s in frame.peak
        )
        name, link = escape(frame.name), escape(quote(frame.name))
        facts = ", ".join(f"mean {s} {frame.mean[s]:.3f}" for s in page.scores if s in frame.mean)
        meters = "".join(
            f'<span class="meter"><span>{escape(s)}</span><i><b style="width:{_share(frame.mean[s], ranges[s]):.1f}%">'
            f"</b></i><span>{frame.mean[s]:.3f}</span></span>"
            for s in page.scores
            if s in frame.mean and s in ranges
        )
        yield (
            f'<article{data}><a href="frames/{link}.jpg"><img loading="lazy" src="thumbnails/{link}.jpg" '
            f'alt="Frame {name}: {escape(facts)}"></a><h3>{name}</h3><div class="meters">{meters}</div></article>'
        )
    yield "</div></section>"


def _share(value: float, shown: DisplayRange) -> float:
    return 100.0 * min(1.0, max(0.0, (value - shown.low) / (shown.high - shown.low)))
