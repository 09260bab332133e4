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
from segunc.core.terminal import agreeing, counted, first_of
from segunc.core.version import now, tool_commit, tool_version
from segunc.maps.shards import MANIFEST_NAME, REPAIR, find_log, joined_state, unseal
from segunc.scores import SCORES

STATE_KEYS = ("status", "finished", "failed", "missing_shards")
"""How a run stands. In a folder of shards ``manifest.json`` holds none of them; they are joined
from the shards' records.
"""
KEPT_FRAMES = "kept"
"""Key of the record that a watch did not keep all frames: ``frames`` is one of the two below, and
``processed`` is the number of frames from which they come, or null."""
ALARMS_ONLY = "with an alarm"
ALARMS_IN_PART = "with an alarm, of some runs all"
JOINED_SHARDS = "joined_shards"
"""Key of the number of shards that a run without ``--shard`` made one."""
MAKERS = ("tool", "environment", "device", "command")
"""What made the maps; each shard records its own."""
FORMAT = "segunc-maps"
FORMAT_VERSION = 2
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


def build_manifest(  # noqa: PLR0913  each is a section of the manifest
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
    """Make the manifest of a run that is about to start.

    Args:
        run: everything that decides the values of the maps, and ``input``, the absolute input path.
        scores: that are written.
        device: on which it runs.
        command: what was asked for.
        classes: names of the class ids.
        palette: RGB colours of the class ids.
        source: of the frames, for readers.
        model: for readers.
        component_thresholds: score -> value from which on pixels form components; None takes the
            thresholds of the scores.
        measured_to: score -> value beyond which its values are extrapolated.
    """
    scores = list(scores)
    if component_thresholds is None:
        thresholds: Mapping[str, float | None] = {
            score: SCORES[score].threshold for score in scores
        }
    else:
        thresholds = component_thresholds
    maps: dict[str, dict[str, Any]] = {
        "prediction": {
            "file": "png",
            "dtype": "uint8",
            "unit": "class id",
            "range": [0, len(classes) - 1],
        }
    }
    for score in scores:
        maps[score] = _describe_score(score, compact=bool(run.get("compact")))
        if thresholds.get(score) is not None:
            maps[score]["component_threshold"] = thresholds[score]
        if measured_to is not None and score in measured_to:
            maps[score]["measured_to"] = measured_to[score]
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "tool": {"name": "segunc", "version": tool_version(), "commit": tool_commit()},
        "environment": environment(),
        "device": device,
        "command": command,
        "date": now(),
        "run": dict(run),
        "model": dict(model or {}),
        "source": dict(source or {}),
        "classes": {"names": list(classes), "palette": [list(colour) for colour in palette]},
        "maps": maps,
    }


def _describe_score(score: str, *, compact: bool) -> dict[str, Any]:
    """Describe a score map: file type, stored type, unit and range; range None is unbounded."""
    stored = SCORES[score].stored
    unit = SCORES[score].unit
    described: dict[str, Any] = {"file": "npy", "dtype": "float16", "unit": unit, "range": None}
    if stored == "unit16":
        described = {
            "file": "png",
            "dtype": "uint16",
            "value": UNIT_VALUE,
            "unit": unit,
            "range": [0.0, 1.0],
        }
    if compact:
        described["file"] = "png"
        described["dtype"] = "uint8" if stored == "unit16" else "uint16"
        described["value"] = COMPACT_VALUES[stored]
        described["pixels"] = "means of 2 x 2 of the frame's; bilinear in between"
    return described


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
    """Read the manifest of a maps folder; that of a folder in shards with their joined state.

    Returns:
        None where there is none.

    Raises:
        InputError: it is of another format or version, damaged, or names a score that no installed
            package knows.
    """
    path = inside(folder, MANIFEST_NAME)
    if not path.exists():
        return None
    manifest = read_json(path, "a manifest written by segunc")
    if manifest.get("format") != FORMAT:
        raise InputError(f"{path} is not the manifest of a maps folder")
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise InputError(
            f"{path} is of format version {version}, not {FORMAT_VERSION}",
            hint="use the segunc that wrote it, or predict into a new folder",
        )
    manifest = unseal(manifest, path)
    known_values = (None, UNIT_VALUE, *COMPACT_VALUES.values())
    for name, described in manifest["maps"].items():
        if name != "prediction" and name not in SCORES:
            raise InputError(
                f"{path} names the score '{name}', which is not known",
                hint="install the package that it comes from",
            )
        value = described.get("value")
        if value not in known_values:
            raise InputError(
                f"{path}: the values of '{name}' are {value}, which this segunc does not know"
            )
    if "shards" in manifest:
        return manifest | joined_state(folder, manifest)
    return manifest


def recorded_input(folder: Path) -> str | None:
    """Return the input of the maps in a folder; None where no manifest says it."""
    if not (folder / MANIFEST_NAME).is_file():
        return None
    with contextlib.suppress(InputError):
        return input_in(read_manifest(folder) or {})
    return None


def input_in(manifest: Mapping[str, Any]) -> str | None:
    """Return the input of the maps that a manifest describes; None where it does not say it."""
    found: str | None = manifest.get("moved_to") or manifest.get("run", {}).get("input")
    return found


def what_is_missing(place: str, manifest: Manifest, lines: int) -> str | None:
    """Return in one line what a maps folder lacks: its run has not ended, lines were lost, its
    shards saw other lists of frames, or only frames with an alarm were kept. None where nothing is
    missing.

    Args:
        place: of the maps, for the line.
        manifest: of the maps.
        lines: number of its finished frames.
    """
    parts = [_what_a_run_lacks(place, manifest, lines), _kept_words(place, manifest, lines)]
    return "; ".join(part for part in parts if part) or None


def chosen_by_alarms(manifest: Mapping[str, Any] | None) -> bool:
    """Return whether alarms of :func:`segunc.watch` chose frames of a maps folder.

    Args:
        manifest: of the maps; None for another tool.
    """
    return KEPT_FRAMES in (manifest or {})


def _kept_words(place: str, manifest: Manifest, lines: int) -> str:
    """Return that only frames with an alarm were kept, and of how many; empty where all were."""
    if not chosen_by_alarms(manifest):
        return ""
    kept = manifest[KEPT_FRAMES]
    held = f"{place} holds only frames with an alarm"
    if kept["frames"] != ALARMS_ONLY:
        held = f"{place} holds, of some runs of watch, only frames with an alarm"
    if kept.get("processed") is not None:
        held += f", {lines} of the {kept['processed']} that were processed"
    return f"{held} (watch --keep alarms), so it does not say how often an alarm comes"


def _what_a_run_lacks(place: str, manifest: Manifest, lines: int) -> str | None:
    """Return in one line which frames of a run are not there; None where all are.

    Args:
        place, manifest, lines: see :func:`what_is_missing`.
    """
    status = manifest.get("status", "unknown")
    if status != "finished":
        so_far = counted(lines, "frame")
        missing = manifest.get("missing_shards")
        if missing:
            shards = "shard" if len(missing) == 1 else "shards"
            return (
                f"{place} is not whole: {shards} {first_of(missing)} "
                f"{agreeing('has', len(missing))} not finished ({so_far} so far)"
            )
        return f"the run that writes {place} has not finished (status {status}, {so_far} so far)"
    lost = manifest["finished"] - lines
    if lost > 0:
        return f"{place} has lost the lines of {counted(lost, 'finished frame')}; {REPAIR}"
    source = manifest.get("source", {})
    listed = source.get("frames")
    done = manifest["finished"] + len(manifest["failed"])
    # The number of frames of a video is an expectation.
    if "shards" in manifest and source.get("kind") != "video" and listed not in (None, done):
        return (
            f"the shards of {place} saw different lists of frames, the first of which saw "
            f"{counted(listed, 'frame')}, and all together saw {done}: some may be missing"
        )
    return None


def is_ours(folder: Path) -> bool:
    """Return whether a folder's ``manifest.json`` is to be read as this tool's.

    It is, unless it is an object of another format and no lines of frames lie beside it: a damaged
    manifest must not turn our maps into another tool's, whose values are decoded otherwise.
    """
    path = folder / MANIFEST_NAME
    if not path.exists():
        return False
    if find_log(folder):
        return True
    with contextlib.suppress(OSError, ValueError):
        content = parse_json(read_bytes(path))
        return not isinstance(content, dict) or content.get("format") == FORMAT
    return True
