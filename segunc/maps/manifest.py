"""The manifest of a maps folder: what made the maps, with which settings, in which units, and what
failed. Its ``run`` part holds everything that decides the maps' values; a later run continues a
folder only where that is the same.
"""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import inside, parse_json, read_bytes, read_json
from segunc.core.version import tool_commit, tool_version
from segunc.maps.shards import MANIFEST_NAME, REPAIR, find_log, joined_state, unseal
from segunc.scores import SCORES

STATE_KEYS = ("status", "finished", "failed", "missing_shards")
"""How a run stands. In a folder of shards ``manifest.json`` holds none of them; they are joined
from the shards' records.
"""
MAKERS = (
    "tool",
    "environment",
    "device",
    "command",
)  # what made the maps; each shard records its own
FORMAT, FORMAT_VERSION = "segunc-maps", 2
UNIT_VALUE = "(code / 65535)^2"  # what ``maps.SCORE.value`` says of uint16 codes of a score in 0..1
COMPACT_VALUES = {
    "unit16": "(code / 255)^2",
    "float16": "float16 whose bits are code - 32768 from code 32768 on, else 65535 - code",
}
"""What it says of compact maps (:func:`segunc.maps.encoding.encode_compact`), by the form in which
a score is stored otherwise.
"""
_PACKAGES = (
    "numpy",
    "opencv-python-headless",
    "av",
    "torch",
    "torchvision",
    "segmentation-models-pytorch",
    "timm",
)

Manifest = dict[str, Any]


def build_manifest(
    run: Mapping[str, Any],
    scores: Iterable[str],
    *,
    device: str,
    command: str = "",
    classes: Sequence[str],
    palette: Sequence[tuple[int, int, int]],
    source: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    component_thresholds: Mapping[str, float] | None = None,
    measured_to: Mapping[str, float] | None = None,
) -> Manifest:
    """Make the manifest of a run that is about to start. ``run`` is everything that decides the
    values of the maps, and ``input``, the absolute input path; ``command`` is what was asked for;
    ``source`` and ``model`` are for readers. Pixels form components from the
    ``component_thresholds`` on, else those of the scores. Values of a score beyond its
    ``measured_to`` are extrapolated.
    """
    scores = list(scores)
    thresholds = (
        {n: SCORES[n].threshold for n in scores}
        if component_thresholds is None
        else component_thresholds
    )
    compact, limits = bool(run.get("compact")), measured_to or {}
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "tool": {"name": "segunc", "version": tool_version(), "commit": tool_commit()},
        "environment": environment(),
        "device": device,
        "command": command,
        "run": dict(run),
        "model": dict(model or {}),
        "source": dict(source or {}),
        "classes": {"names": list(classes), "palette": [list(colour) for colour in palette]},
        "maps": {
            "prediction": {
                "file": "png",
                "dtype": "uint8",
                "unit": "class id",
                "range": [0, len(classes) - 1],
            }
        }
        | {
            score: _describe_score(score, thresholds.get(score), limits.get(score), compact)
            for score in scores
        },
    }


def _describe_score(
    score: str, threshold: float | None, measured_to: float | None, compact: bool
) -> dict[str, Any]:
    """Describe a score map: file type, stored type, unit and range; range None is unbounded."""
    codes, unit = SCORES[score].stored == "unit16", SCORES[score].unit
    described: dict[str, Any] = {"file": "npy", "dtype": "float16", "unit": unit, "range": None}
    if codes:
        described = {
            "file": "png",
            "dtype": "uint16",
            "value": UNIT_VALUE,
            "unit": unit,
            "range": [0.0, 1.0],
        }
    if compact:
        dtype, value = "uint8" if codes else "uint16", COMPACT_VALUES[SCORES[score].stored]
        described |= {"file": "png", "dtype": dtype, "value": value}
        described["pixels"] = "means of 2 x 2 of the frame's; bilinear in between"
    limits = {"component_threshold": threshold, "measured_to": measured_to}
    return described | {name: value for name, value in limits.items() if value is not None}


def environment() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages that decide the maps' values."""
    versions = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
    }
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def read_manifest(folder: Path) -> Manifest | None:
    """Read the manifest of a maps folder, None where there is none; that of a folder in shards with
    their joined state.
    """
    path = inside(folder, MANIFEST_NAME)
    if not path.exists():
        return None
    manifest = read_json(path, "a manifest written by segunc")
    if manifest.get("format") != FORMAT:
        raise InputError(f"{path} is no manifest of a maps folder")
    if (version := manifest.get("format_version")) != FORMAT_VERSION:
        raise InputError(
            f"{path} is of format version {version}, not {FORMAT_VERSION}",
            hint="use the segunc that wrote it, or predict into a new folder",
        )
    manifest = unseal(manifest, path)
    for name, described in manifest["maps"].items():
        if name != "prediction" and name not in SCORES:
            message = f"{path} names the score '{name}', which is not known"
            raise InputError(message, hint="install the package that it comes from")
        if (value := described.get("value")) not in (None, UNIT_VALUE, *COMPACT_VALUES.values()):
            raise InputError(
                f"{path}: the values of '{name}' are {value}, which this segunc does not know"
            )
    return manifest | joined_state(folder, manifest) if "shards" in manifest else manifest


def what_is_missing(folder: Path, manifest: Manifest, lines: int) -> str | None:
    """Return in one line what a maps folder with so many finished frames lacks: its run has not
    ended, lines were lost, or its shards saw other lists of frames. None where nothing is
    missing."""
    status = manifest.get("status", "unknown")
    if status != "finished":
        stands = f"status {status}, {lines} frames so far"
        return f"the run that writes {folder} has not finished ({stands})"
    lost = manifest["finished"] - lines
    if lost > 0:
        return f"{folder} has lost the lines of {lost} finished frames; {REPAIR}"
    source = manifest.get("source", {})
    listed = source.get("frames")
    done = manifest["finished"] + len(manifest["failed"])
    # The number of frames of a video is an expectation.
    if "shards" in manifest and source.get("kind") != "video" and listed not in (None, done):
        counts = f"the first of which saw {listed} frames, and all together saw {done}"
        return (
            f"the shards of {folder} saw different lists of frames, {counts}: some may be missing"
        )
    return None


def is_ours(folder: Path) -> bool:
    """Return whether a folder's ``manifest.json`` is to be read as this tool's: unless it is an
    object of another format beside no lines of frames, for a damaged manifest must not turn our
    maps into another tool's, whose values are decoded otherwise.
    """
    path = folder / MANIFEST_NAME
    if path.exists() and not find_log(folder):
        with contextlib.suppress(OSError, ValueError):
            content = parse_json(read_bytes(path))
            return not isinstance(content, dict) or content.get("format") == FORMAT
    return path.exists()
