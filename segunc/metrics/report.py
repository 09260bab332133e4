"""The result of an evaluation as ``metrics.json`` and as a table for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from segunc.files import write_json

_COLUMNS = {"auroc": "AUROC", "aupr": "AUPR", "fpr95": "FPR95", "best_f1": "best F1", "threshold": "threshold"}
_MISSING = "-"


def write_metrics(result: Mapping[str, Any], path: Path) -> None:
    """Write a result as JSON; the file appears whole, by atomic rename, and its folder is made if missing.

    Raises:
        ValueError: the result holds NaN or infinity, which JSON does not know.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, result)


def format_metrics(result: Mapping[str, Any]) -> str:
    """The result as a plain table of fractions of 1, without a line break at its end."""
    parts = [_scores(result), _segmentation(result), _calibration(result), _missing(result), _left_out(result)]
    return "\n\n".join(part for part in parts if part)


def _scores(result: Mapping[str, Any]) -> str:
    counts, scores = result["counts"], result["scores"]
    if not scores:
        return ""
    pixels = counts["pixels"]
    title = f"Anomaly scores, pooled over {pixels:,} pixels of {_frames(counts['anomaly_frames'])}"
    if pixels:
        # The AUPR of a random score is this share, so no AUPR can be read without it.
        title += f"; share of anomaly pixels {counts['anomaly_pixels'] / pixels:.4f}"
    rows = [["score", *_COLUMNS.values()]]
    rows += [
        [name, *(_number(values["pooled"][key], ".4g" if key == "threshold" else ".4f") for key in _COLUMNS)]
        for name, values in scores.items()
    ]
    return f"{title}\n{_table(rows)}"


def _segmentation(result: Mapping[str, Any]) -> str:
    values, counts = result["segmentation"], result["counts"]
    if not values["per_class"]:
        return ""
    title = f"Segmentation, over {counts['labelled_pixels']:,} pixels of {_frames(counts['labelled_frames'])}"
    rows = [["class", "IoU"], *([name, _number(iou)] for name, iou in values["per_class"].items())]
    rows += [["mean IoU", _number(values["miou"])], ["pixel accuracy", _number(values["accuracy"])]]
    return f"{title}\n{_table(rows, rule_before_last=2)}"


def _calibration(result: Mapping[str, Any]) -> str:
    values = result["calibration"]
    if not result["segmentation"]["per_class"]:
        return ""
    rows = [["ECE (15 bins)", "NLL (nats)", "Brier"], [_number(values[key]) for key in ("ece", "nll", "brier")]]
    return f"Calibration, over the same pixels\n{_table(rows)}"


def _missing(result: Mapping[str, Any]) -> str:
    """Numbers that are null, those of one reason on one line."""
    by_reason: dict[str, list[str]] = {}
    asked = {"scores": bool(result["scores"])} | dict.fromkeys(
        ("segmentation", "calibration"), bool(result["segmentation"]["per_class"])
    )
    for path, why in result["reasons"].items():
        if asked.get(path.split(".")[0], True):  # what nobody asked for stays in the file
            by_reason.setdefault(why, []).append(path)
    lines = [f"  {_shorten(paths)}: {why}" for why, paths in by_reason.items()]
    return "\n".join(["Not available", *lines]) if lines else ""


def _left_out(result: Mapping[str, Any]) -> str:
    entries = result["left_out"]
    if not entries:
        return ""
    numbers = Counter(entry["reason"] for entry in entries)
    first = {entry["reason"]: entry["frame"] for entry in reversed(entries)}
    lines = [
        f"  {first[why]}{f' and {number - 1} more' if number > 1 else ''}: {why}"
        for why, number in numbers.most_common(8)
    ]
    if len(numbers) > 8:
        lines.append(f"  and {len(numbers) - 8} more reasons, all in the file")
    return "\n".join([f"Left out: {len(entries)} of {_frames(result['counts']['frames'])}", *lines])


def _frames(number: int) -> str:
    return f"{number:,} frame{'' if number == 1 else 's'}"


def _number(value: float | None, form: str = ".4f") -> str:
    return _MISSING if value is None else format(value, form)


def _shorten(paths: Sequence[str], limit: int = 3) -> str:
    return ", ".join(paths[:limit]) + (f" and {len(paths) - limit} more" if len(paths) > limit else "")


def _table(rows: Sequence[Sequence[str]], rule_before_last: int = 0) -> str:
    """Rows with a header, the first column to the left where it holds names, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  "
        + "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    rule = "  " + "-" * (len(lines[0]) - 2)
    lines.insert(1, rule)
    if rule_before_last:
        lines.insert(len(lines) - rule_before_last, rule)
    return "\n".join(line.rstrip() for line in lines)
