"""What a page says of a run, and statistics of its frames."""

from __future__ import annotations

import colorsys
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.data.labels import LabelMap
from segunc.maps.manifest import tool_commit, tool_version
from segunc.maps.reader import MapsReader
from segunc.review.colormap import DEFAULT_COLOUR_MAP, DisplayRange, colour_table
from segunc.review.overlay import model_line, score_unit

STATISTICS = ("mean", "p99", "max")
"""Statistics of a score over a frame: arithmetic mean, 99th percentile (the smallest value that at least 99 % of
the pixels do not exceed), largest value."""
SHARES = {"any": 0.0, "tenth": 0.1, "half": 0.5, "most": 0.9}
"""Which share of an object's pixels must reach the threshold for it to be found; ``any`` is one pixel."""
SMALLEST_OBJECT = 10
"""Pixels below which a labelled region is taken for a speck of the labelling, unless a frame has no larger one."""

Pixels = npt.NDArray[np.intp]


def frame_statistics(values: npt.NDArray[np.float32]) -> dict[str, float]:
    """:data:`STATISTICS` of a map ``[H, W]`` in its own unit; empty where a value is not finite."""
    if not np.isfinite(values).all():
        return {}
    found = (values.mean(dtype=np.float64), np.percentile(values, 99, method="inverted_cdf"), values.max())
    return {name: rounded(float(value)) for name, value in zip(STATISTICS, found, strict=True)}


def recorded_statistics(record: Mapping[str, Any], score: str) -> dict[str, float]:
    """Every statistic of a score that a line of ``frames.jsonl`` holds as ``{statistic: {score: number}}``."""
    return {
        name: float(entry[score])
        for name, entry in record.items()
        if isinstance(entry, dict) and isinstance(entry.get(score), int | float) and math.isfinite(entry[score])
    }


def labelled_objects(anomaly: npt.NDArray[np.uint8]) -> list[Pixels]:
    """Flat pixel indices of each labelled object: 8-connected regions of label 1 in ``[H, W]``."""
    count, regions = cv2.connectedComponents((anomaly == 1).astype(np.uint8), connectivity=8)
    order = np.argsort(regions, axis=None, kind="stable")
    ends = np.cumsum(np.bincount(regions.ravel(), minlength=count))
    objects = [order[ends[i - 1] : ends[i]] for i in range(1, count)]
    return [pixels for pixels in objects if len(pixels) >= SMALLEST_OBJECT] or objects


def found_up_to(values: npt.NDArray[np.float32], objects: Sequence[Pixels]) -> dict[str, float]:
    """The highest threshold at which every object is found, for each of :data:`SHARES`.

    An object is found at threshold t where at least the share of its pixels have a value >= t. So a frame's objects
    are all found exactly at the thresholds up to the number given here.

    Args:
        values: the score ``[H, W]`` in its own unit.
        objects: :func:`labelled_objects`; at least one.
    """
    flat = values.ravel()
    descending = [np.sort(flat[pixels])[::-1] for pixels in objects]
    return {
        name: float(min(pixels[max(math.ceil(share * len(pixels)), 1) - 1] for pixels in descending))
        for name, share in SHARES.items()
    }


def rounded(value: float) -> float:
    """A statistic with nine digits, which hold a float32."""
    return float(f"{value:.9g}")


_PROTOCOLS = ("pooled", "per-image", "smiyc")
_COLUMNS = {"auroc": "AUROC", "aupr": "AUPR", "fpr95": "FPR95"}
_SINGLE_NUMBERS = (
    ("segmentation", "miou", "mIoU"),
    ("calibration", "ece", "ECE"),
    ("calibration", "nll", "NLL"),
    ("calibration", "brier", "Brier score"),
)
LONGEST_LIST = 4
"""Values of a list that are written out."""
_TURN = 0.618034
"""The golden section of the colour circle: neighbouring class ids get distant hues."""


def run_id(reader: MapsReader) -> str:
    """Sixteen hexadecimal digits that name the run under review: of its settings and model, where they are recorded.

    A run that goes on keeps its id. Maps of another tool are named by their folder, scores and frames.
    """
    if reader.manifest is not None:
        known: Any = [reader.manifest.get("run"), reader.manifest.get("model"), reader.manifest.get("source")]
    else:
        known = [reader.folder.resolve().name, reader.scores, reader.frames]
    text = json.dumps(known, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe_model(reader: MapsReader) -> dict[str, Any]:
    """Title, one line on the model, and the facts of a maps folder as pairs of term and text."""
    manifest = reader.manifest or {}
    run, model, tool = manifest.get("run", {}), manifest.get("model", {}), manifest.get("tool", {})
    if "scope" in run and run["scope"] is None:
        run = {**run, "scope": "every stochastic site of the posterior"}
    recorded = model.get("parameters") or {key: model[key] for key in ("alpha",) if model.get(key) is not None}
    made_with = (model.get("provenance") or {}).get("settings") or {}
    # What the posterior itself records is what holds; a setting of its making may have been selected since.
    made_with = {key: value for key, value in made_with.items() if key not in recorded}
    model = {**model, "parameters": setting_words(recorded) or None, "training": setting_words(made_with) or None}
    facts = [("Maps", reader.folder.resolve().name)]
    for values, key, term in (
        (model, "architecture", "Network"),
        (model, "method", "Posterior"),
        (model, "members", "Members"),
        (model, "parameters", "Parameters"),
        (model, "training", "Made with"),
        (run, "draws", "Draws"),
        (run, "seed", "Seed"),
        (run, "scope", "Scope"),
        (run, "input", "Data"),
        (run, "size", "Network input size"),
        (run, "temperature", "Temperature of the logits"),
        (run, "precision", "Precision"),
        (manifest, "device", "Device"),
        (run, "base_sha256", "SHA-256 of the network"),
        (run, "posterior_sha256", "SHA-256 of the posterior"),
    ):
        if values.get(key) is not None:
            facts.append((term, str(values[key])))
    if tool:
        made = (str(tool.get("name") or ""), str(tool.get("version") or ""), str(tool.get("commit") or ""))
        facts.append(("Maps made with", " ".join(part for part in made if part)))
    if "status" in manifest:
        facts.append(("Status of the run", str(manifest["status"])))
    line = model_line({**manifest, "run": run})
    if not line and reader.manifest is None:
        line = "maps of another tool; nothing is recorded of their model"
    return {"title": reader.folder.resolve().name, "line": line, "facts": facts}


def setting_words(settings: Mapping[str, Any]) -> str:
    """``alpha 0.1, scope all``: settings in words, long lists as their length, those within others in brackets."""
    parts = []
    for key, value in settings.items():
        name = key.replace("_", " ")
        if value is None:
            continue
        if isinstance(value, Mapping):
            parts.append(f"{name} ({setting_words(value)})")
        elif isinstance(value, list):
            short = len(value) <= LONGEST_LIST and not any(isinstance(one, Mapping) for one in value)
            parts.append(f"{name} {' '.join(map(_word, value))}" if short else f"{len(value)} {name}")
        else:
            parts.append(f"{name} {_word(value)}")
    return ", ".join(parts)


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_tool() -> str:
    """Name, version and commit of this tool."""
    commit = tool_commit()
    return f"segunc {tool_version()}" + (f" {commit[:12]}" if commit else "")


def describe_scores(reader: MapsReader, ranges: Mapping[str, DisplayRange], scores: Sequence[str]) -> dict[str, Any]:
    """Unit, range and tick labels of each score, by name."""
    described = {}
    for score in scores:
        shown = ranges[score]
        middle = f"{(shown.low + shown.high) / 2:g}"
        described[score] = {
            "unit": score_unit(reader.manifest, score),
            "low": shown.low,
            "high": shown.high,
            "ticks": [shown.low_text, middle, shown.high_text],
        }
    return described


def describe_colours() -> list[int]:
    """The colour table of all scores, 256 colours as 0xRRGGBB."""
    table = colour_table(DEFAULT_COLOUR_MAP).astype(int)
    return [int(red) << 16 | int(green) << 8 | int(blue) for red, green, blue in table]


def describe_classes(reader: MapsReader, label_map: LabelMap | None) -> list[dict[str, Any]]:
    """Name and colour of each class id: of the manifest, else of the label map, else numbers in distant hues."""
    recorded = (reader.manifest or {}).get("classes", {})
    names, palette = list(recorded.get("names", [])), list(recorded.get("palette", []))
    if label_map is not None and not names:
        names, palette = list(label_map.classes), [list(colour) for colour in label_map.palette]
    if not names:
        names = [f"class {index}" for index in range(255)]
    for index in range(len(palette), len(names)):
        rgb = colorsys.hls_to_rgb(index * _TURN % 1, 0.45 + 0.2 * (index % 2), 0.6)
        palette.append([round(255 * channel) for channel in rgb])
    return [{"name": str(name), "colour": palette[index]} for index, name in enumerate(names)]


def describe_shares() -> dict[str, Any]:
    """The rules by which an object counts as found."""
    return {"shares": SHARES, "smallest": SMALLEST_OBJECT}


def metrics_tables(metrics: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Tables of a metrics.json: title, column heads, and rows of a name and numbers with reasons where they are null."""
    if metrics is None:
        return []
    reasons: Mapping[str, str] = metrics.get("reasons") or {}
    scores = metrics.get("scores") or {}
    tables = []
    for protocol in _PROTOCOLS:
        named = {name: (entry or {}).get(protocol) for name, entry in scores.items()}
        rows = [
            {
                "name": name,
                "cells": [_cell(values.get(key), reasons, f"scores.{name}.{protocol}.{key}") for key in _COLUMNS],
            }
            for name, values in named.items()
            if values is not None
        ]
        if rows:
            heads = list(_COLUMNS.values())
            tables.append({"title": f"Anomaly detection, {protocol} pixels", "heads": heads, "rows": rows})
    single = [
        {"name": label, "cells": [_cell(metrics[group][key], reasons, f"{group}.{key}")]}
        for group, key, label in _SINGLE_NUMBERS
        if key in (metrics.get(group) or {})
    ]
    if single:
        tables.append({"title": "Segmentation and calibration", "heads": ["value"], "rows": single})
    return tables


def _cell(value: Any, reasons: Mapping[str, str], path: str) -> dict[str, Any]:
    if isinstance(value, int | float):
        return {"value": value}
    # The reason may be given for the number itself or for a part above it.
    steps = path.split(".")
    reason = next((reasons[p] for p in (".".join(steps[:n]) for n in range(len(steps), 0, -1)) if p in reasons), "")
    return {"value": None, "reason": str(reason) or "not computed"}
