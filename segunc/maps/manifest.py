"""The manifest of a maps folder: what made the maps, with which settings, in which units, and what failed.

Its ``run`` part holds everything that decides the maps' values. A later run continues a folder only where that part
is the same.
"""

from __future__ import annotations

import contextlib
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.core.files import differing_keys, inside, parse_json, read_bytes
from segunc.maps.shards import MANIFEST_NAME, Shard, all_shards, find_log, joined_state
from segunc.maps.sums import unseal
from segunc.scores import SCORES

STATE_KEYS = ("status", "finished", "failed", "missing_shards")
"""How a run stands. In a folder of shards ``manifest.json`` holds none of them; they are joined from the shards' records."""
MAKERS = ("tool", "environment", "device")
"""What made the maps; each shard records its own."""
FORMAT = "segunc-maps"
FORMAT_VERSION = 2
UNIT_VALUE = "(code / 65535)^2"
"""What ``maps.SCORE.value`` says of uint16 codes of a score in 0..1."""
COMPACT_VALUES = {
    "unit16": "(code / 255)^2",
    "float16": "float16 whose bits are code - 32768 from code 32768 on, else 65535 - code",
}
"""What it says of compact maps (:func:`segunc.maps.encoding.encode_compact`), by the form in which a score is stored otherwise.
A reader that does not know them refuses the folder."""
VALUES = (UNIT_VALUE, *COMPACT_VALUES.values())
HALF_SIZE = "means of 2 x 2 of the frame's; bilinear in between"
"""What ``maps.SCORE.pixels`` says of them."""
_PACKAGES = ("numpy", "opencv-python-headless", "av", "torch", "torchvision", "segmentation-models-pytorch", "timm")

Manifest = dict[str, Any]


def build_manifest(
    run: Mapping[str, Any],
    scores: Iterable[str],
    *,
    device: str,
    classes: Sequence[str],
    palette: Sequence[tuple[int, int, int]],
    source: Mapping[str, Any] | None = None,
    model: Mapping[str, Any] | None = None,
    component_thresholds: Mapping[str, float] | None = None,
) -> Manifest:
    """The manifest of a run that is about to start.

    Args:
        run: everything that decides the values of the maps: model hashes, draws, seed, scope, size, dtype, chunk,
            frame grouping, threads, maps, ``input``, the absolute input path, and ``compact``, true for compact maps.
        scores: names of the score maps.
        device: in words.
        classes: names in the order of their ids; ``palette`` has their colours as (red, green, blue).
        source: :meth:`segunc.frames.sources.FrameSource.describe`; ``model`` likewise is for readers.
        component_thresholds: score -> the value from which on its pixels form components; None for those of the scores.
    """
    scores = list(scores)
    thresholds = {n: SCORES[n].threshold for n in scores} if component_thresholds is None else component_thresholds
    compact = bool(run.get("compact"))
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "tool": {"name": "segunc", "version": tool_version(), "commit": tool_commit()},
        "environment": environment(),
        "device": device,
        "run": dict(run),
        "model": dict(model or {}),
        "source": dict(source or {}),
        "classes": {"names": list(classes), "palette": [list(colour) for colour in palette]},
        "maps": {"prediction": {"file": "png", "dtype": "uint8", "unit": "class id", "range": [0, len(classes) - 1]}}
        | {score: describe_score(score, thresholds.get(score), compact=compact) for score in scores},
    }


def describe_score(score: str, component_threshold: float | None, *, compact: bool = False) -> dict[str, Any]:
    """File type, stored type, unit and range of a score map; range None is unbounded."""
    unit, components = SCORES[score].unit, {"component_threshold": component_threshold}
    described: dict[str, Any] = {"file": "npy", "dtype": "float16", "unit": unit, "range": None}
    if codes := SCORES[score].stored == "unit16":
        described = {"file": "png", "dtype": "uint16", "value": UNIT_VALUE, "unit": unit, "range": [0.0, 1.0]}
    if compact:
        dtype, value = "uint8" if codes else "uint16", COMPACT_VALUES[SCORES[score].stored]
        described |= {"file": "png", "dtype": dtype, "value": value, "pixels": HALF_SIZE}
    return described if component_threshold is None else described | components


def environment() -> dict[str, str]:
    """Versions of Python, the platform and the packages that decide the maps' values."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "machine": platform.machine()}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def tool_version() -> str:
    """The version of this package, ``unknown`` where it runs without being installed."""
    try:
        return metadata.version("segunc")
    except metadata.PackageNotFoundError:
        return "unknown"


def tool_commit() -> str | None:
    """The commit of the checkout this package runs from (``-dirty`` with uncommitted changes), None when installed."""
    package = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        # A virtual environment inside somebody's own repository must not report that repository's commit.
        if Path(git("rev-parse", "--show-toplevel")).resolve() != package.parent:
            return None
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a maps folder, None where there is none; that of a folder in shards with their joined state.
    InputError: the file is there but is no manifest of this tool, was changed, is of another version of the format, or names a
    score or a form of values that nothing here knows."""
    path = inside(folder, MANIFEST_NAME)
    try:
        text = read_bytes(path)
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise InputError(f"{folder} is a file", "a folder", "check the path") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", "a manifest written by segunc", "") from error
    try:
        manifest = parse_json(text)
    except ValueError as error:
        raise InputError(f"{path} is no JSON ({error})", "a manifest written by segunc", "remove the folder") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(f"{path} is no manifest of a maps folder", f'"format": "{FORMAT}"', "give another folder")
    if (version := manifest.get("format_version")) != FORMAT_VERSION:
        remedy = "use the segunc that wrote it, or predict into a new folder"
        raise InputError(f"{path} is of format version {version}", f"version {FORMAT_VERSION}", remedy)
    manifest = unseal(manifest, path)
    for name, described in manifest["maps"].items():
        if name != "prediction" and name not in SCORES:
            remedy = "install the package that the score comes from"
            raise InputError(f"{path}: score '{name}'", f"one of {', '.join(SCORES)}", remedy)
        if (value := described.get("value")) not in (None, *VALUES):
            given = f"{path}: the values of '{name}' are {value}"
            raise InputError(given, f"{', '.join(VALUES)}, or none", "use the segunc that wrote it")
    return manifest | joined_state(folder, manifest) if "shards" in manifest else manifest


def is_ours(folder: Path) -> bool:
    """Whether a folder's ``manifest.json`` is to be read as this tool's; False where there is none, or another tool's.
    Only a JSON object of another format beside no lines of frames is another tool's: a damaged manifest of ours must
    not turn our maps into foreign ones, whose values are decoded otherwise."""
    path = folder / MANIFEST_NAME
    if not path.exists() or find_log(folder):
        return path.exists()
    try:
        content = parse_json(read_bytes(path))
    except (OSError, ValueError):
        return True
    return not isinstance(content, dict) or content.get("format") == FORMAT


def read_run(folder: Path) -> dict[str, Any] | None:
    """The ``run`` part of an existing maps folder, None where there is none."""
    manifest = read_manifest(folder)
    return None if manifest is None else dict(manifest.get("run", {}))


def continued_manifest(folder: Path, before: Manifest | None, manifest: Mapping[str, Any], shard: Shard) -> Manifest:
    """The manifest to write: the first run's, with a note of every environment that continued it with other versions.
    InputError where the folder was begun in another number of shards or with other settings."""
    if before is None:
        return dict(manifest)
    count = len(all_shards(before))
    if count == 1 < shard.count:
        raise InputError(f"{folder} was begun without shards", "the same command without --shard", "give another --out")
    if count != shard.count:
        missing = ", ".join(before["missing_shards"]) or "none"
        given = f"{folder} was begun in {count} shards (now {shard})"
        raise InputError(given, f"--shard 1/{count} to {count}/{count}", f"not finished: {missing}")
    refuse_other_run(folder, before.get("run", {}), manifest.get("run", {}))
    first, now = ({key: made.get(key) for key in MAKERS} for made in (before, manifest))
    later = before.get("continued_by", [])
    return dict(before) if now in (first, *later) else {**before, "continued_by": [*later, now]}


def refuse_other_run(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise InputError where a folder's run and the run about to start differ, naming the settings."""
    different = differing_keys(old, new)
    if different:
        shown = ", ".join(f"{key} = {before!r} (now {after!r})" for key, before, after in different[:3])
        more = f" and {len(different) - 3} more" if len(different) > 3 else ""
        given = f"{folder} was written with {shown}{more}"
        raise InputError(given, "the same settings, to continue it", "give another --out, or --overwrite")
