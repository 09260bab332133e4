"""What a page says of a run: its model, its scores, its classes, its metrics."""

from __future__ import annotations

import colorsys
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from segunc.data.labels import LabelMap
from segunc.gallery.colormap import kept_apart
from segunc.gallery.overlay import model_line
from segunc.maps.reader import MapsReader

_PROTOCOLS = ("pooled", "per-image", "smiyc")
_COLUMNS = {"auroc": "AUROC", "aupr": "AUPR", "fpr95": "FPR95"}
_OBJECTS = {**_COLUMNS, "found": "found"}
_FLAGGED = {
    **{"threshold": "threshold", "share": "share of known pixels", "regions_per_frame": "regions a frame"},
    **{"precision": "precision", "recall": "recall"},
}
_SINGLE_NUMBERS = (
    ("segmentation", "miou", "mIoU"),
    ("calibration", "ece", "ECE"),
    ("calibration", "nll", "NLL"),
    ("calibration", "brier", "Brier score"),
)
_LONGEST_LIST = 4  # values of a list that are written out
_TURN = 0.618034  # the golden section of the colour circle: neighbouring class ids get distant hues


def run_id(reader: MapsReader) -> str:
    """Sixteen hexadecimal digits that name the run under review, also when it goes on: of its settings and model, or of folder, scores
    and frames of another tool's maps."""
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
    recorded = model.get("parameters") or {}
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
        (run, "alpha", "Noise in place of the posterior's own"),
        (run, "scope", "Scope"),
        (run, "input", "Data"),
        (run, "size", "Network input size"),
        (run, "temperature", "Temperature of the logits"),
        (run, "calibrator", "Calibration of the mean"),
        (run, "precision", "Precision"),
        (manifest, "device", "Device"),
        (run, "base_sha256", "SHA-256 of the network"),
        (run, "posterior_sha256", "SHA-256 of the posterior"),
    ):
        if values.get(key) is not None:
            facts.append((term, str(values[key])))
    if tool:
        made = [str(tool[key]) for key in ("name", "version", "commit") if tool.get(key)]
        facts.append(("Maps made with", " ".join(made)))
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
            short = len(value) <= _LONGEST_LIST and not any(isinstance(one, Mapping) for one in value)
            parts.append(f"{name} {' '.join(map(_word, value))}" if short else f"{len(value)} {name}")
        else:
            parts.append(f"{name} {_word(value)}")
    return ", ".join(parts)


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_classes(reader: MapsReader, label_map: LabelMap | None) -> list[dict[str, Any]]:
    """Name and colour of each class id: of the manifest, else of the label map, else numbers in distant hues; kept apart for every eye."""
    recorded = (reader.manifest or {}).get("classes", {})
    names, palette = list(recorded.get("names", [])), list(recorded.get("palette", []))
    if label_map is not None and not names:
        names, palette = list(label_map.classes), [list(colour) for colour in label_map.palette]
    if not names:
        names = [f"class {index}" for index in range(255)]
    for index in range(len(palette), len(names)):
        rgb = colorsys.hls_to_rgb(index * _TURN % 1, 0.45 + 0.2 * (index % 2), 0.6)
        palette.append([round(255 * channel) for channel in rgb])
    colours = kept_apart(palette[: len(names)])
    return [{"name": str(name), "colour": list(colour)} for name, colour in zip(names, colours, strict=True)]


def metrics_tables(metrics: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Tables of a metrics.json: title, column heads, and rows of a name and numbers with reasons where they are null."""
    if metrics is None:
        return []
    reasons: Mapping[str, str] = metrics.get("reasons") or {}

    def row(name: str, values: Mapping[str, Any], keys: Iterable[str], path: str) -> dict[str, Any]:
        return {"name": name, "cells": [_cell(values.get(key), reasons, f"{path}.{key}") for key in keys]}

    tables = []
    scores: Mapping[str, Any] = metrics.get("scores") or {}
    for protocol in _PROTOCOLS:
        named = {name: (entry or {}).get(protocol) for name, entry in scores.items()}
        rows = [row(name, v, _COLUMNS, f"scores.{name}.{protocol}") for name, v in named.items() if v is not None]
        tables.append((f"Anomaly detection, {protocol} pixels", list(_COLUMNS.values()), rows))
    for kind, columns in (("size", _OBJECTS), ("distance", _OBJECTS), ("groups", _COLUMNS)):
        parts = dict.fromkeys(part for entry in scores.values() for part in (entry or {}).get(kind, ()))
        rows = [
            row(f"{part}, {name}", v.get("pooled", v), columns, f"scores.{name}.{kind}.{part}")
            for part in parts
            for name, v in ((name, ((entry or {}).get(kind) or {}).get(part, {})) for name, entry in scores.items())
            if v and v.get("objects") != 0
        ]
        tables.append((f"Anomaly detection by {kind}", list(columns.values()), rows))
    alarms = [row(name, v, _FLAGGED, f"flagged.{name}") for name, v in (metrics.get("flagged") or {}).items()]
    tables.append(("Flagged at a threshold", list(_FLAGGED.values()), alarms))
    groups = {group: metrics.get(group) or {} for group, _, _ in _SINGLE_NUMBERS}
    single = [row(label, groups[group], [key], group) for group, key, label in _SINGLE_NUMBERS if key in groups[group]]
    tables.append(("Segmentation and calibration", ["value"], single))
    return [{"title": title, "heads": heads, "rows": rows} for title, heads, rows in tables if rows]


def _cell(value: Any, reasons: Mapping[str, str], path: str) -> dict[str, Any]:
    if isinstance(value, int | float):
        return {"value": value}
    # The reason may be given for the number itself or for a part above it.
    steps = path.split(".")
    reason = next((reasons[p] for p in (".".join(steps[:n]) for n in range(len(steps), 0, -1)) if p in reasons), "")
    return {"value": None, "reason": str(reason) or "not computed"}
