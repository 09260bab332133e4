"""What a page says of a run: its model and its classes."""

from __future__ import annotations

import colorsys
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from segunc.core.files import flat
from segunc.data.labels import LabelMap
from segunc.gallery.overlay import model_line
from segunc.maps.reader import MapsReader

_LONGEST_FACT = 300  # characters of a value
_TURN = 0.618034  # the golden section of the colour circle: neighbouring class ids get distant hues


def run_id(reader: MapsReader) -> str:
    """Return sixteen hexadecimal digits that name the run under review, also when it goes on: of its settings and model, or
    of folder, scores and frames of another tool's maps."""
    if reader.manifest is not None:
        known: Any = [reader.manifest.get("run"), reader.manifest.get("model"), reader.manifest.get("source")]
    else:
        known = [reader.folder.resolve().name, reader.scores, reader.frames]
    text = json.dumps(known, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe_model(reader: MapsReader) -> dict[str, Any]:
    """Return a title, one line on the model, and the facts of a maps folder as pairs of dotted key and text."""
    manifest = reader.manifest or {}
    recorded = flat({key: manifest[key] for key in ("model", "run", "tool", "device", "status") if key in manifest})
    facts = [("maps", reader.folder.resolve().name)]
    facts += [(key, str(value)[:_LONGEST_FACT]) for key, value in recorded.items() if value is not None]
    line = model_line(manifest)
    if not line and reader.manifest is None:
        line = "maps of another tool; nothing is recorded of their model"
    return {"title": reader.folder.resolve().name, "line": line, "facts": facts}


def describe_classes(reader: MapsReader, label_map: LabelMap | None) -> list[dict[str, Any]]:
    """Return name and colour of each class id: of the manifest, else of the label map, else numbers in distant hues."""
    recorded = (reader.manifest or {}).get("classes", {})
    names: Sequence[str] = recorded.get("names", [])
    palette: list[Sequence[int]] = list(recorded.get("palette", []))
    if label_map is not None and not names:
        names, palette = label_map.classes, list(label_map.palette)
    names = names or [f"class {index}" for index in range(255)]
    for index in range(len(palette), len(names)):
        rgb = colorsys.hls_to_rgb(index * _TURN % 1, 0.45 + 0.2 * (index % 2), 0.6)
        palette.append([round(255 * channel) for channel in rgb])
    return [{"name": str(name), "colour": list(colour)} for name, colour in zip(names, palette, strict=False)]
