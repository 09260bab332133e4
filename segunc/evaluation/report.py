"""The result of an evaluation as tables for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

from segunc.decisions.guarantee import RISKS
from segunc.evaluation import flagged, parts
from segunc.evaluation.compare import NULL, first_of, format_cell, markdown_table
from segunc.evaluation.flagged import AT_LEAST, AT_MOST, DISPUTED, FalseAlarms, Hits
from segunc.evaluation.frames import FRAME_METRICS
from segunc.evaluation.maps import NO_NAME
from segunc.evaluation.over_time import FoundObjects, OverTime
from segunc.evaluation.parts import titles
from segunc.evaluation.resampling import Cell
from segunc.metrics.objects import KINDS, NO_OBJECT

Table = tuple[str, Sequence[Sequence[str]]]  # a title, and rows with a header

_AREAS, _VERDICTS = titles(parts.AREAS), titles(flagged.JUDGED_METRICS)
_FLAGGED = titles((parts.Metric("threshold", "threshold"), *FalseAlarms.metrics, *Hits.metrics))
_MAX_REASONS = 8  # reasons of frames that are left out; the others are in the file


def format_metrics(result: Mapping[str, Any]) -> str:
    """Write the result as tables of fractions of 1, without a line break at its end."""
    tables = _verdict_tables(result) if "verdicts" in result else _tables(result)
    texts = [f"{title}\n\n{markdown_table(rows)}" for title, rows in tables if len(rows) > 1]
    return "\n\n".join([*texts, *_notes(result)])


def promised(result: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return score, control and numbers of each promise that these units say something of, those
    that are exceeded first."""
    rows = []
    for score, numbers in result.get("flagged", {}).items():
        for control in RISKS:
            of = numbers if control == numbers.get("control") else numbers.get(control, {})
            if of.get("risk") is not None:
                rows.append((score, control, of))
    return sorted(rows, key=lambda row: not exceeded(row[2]))


def exceeded(numbers: Mapping[str, Any]) -> bool:
    """Return whether the achieved risk is above the promised level."""
    return bool(numbers["risk"] > numbers["level"])


def _promises(result: Mapping[str, Any]) -> Table:
    """What was promised and what is achieved, exceeded promises first."""
    rows = [["score", "risk", "achieved", "promised", "upper bound", "units", "promise"]]
    for score, control, of in promised(result):
        numbers = [_number(of[key]) for key in ("risk", "level", "upper", "units")]
        kept = "EXCEEDED" if exceeded(of) else "kept"
        rows.append([score, RISKS[control], *numbers, kept])
    return "Promised and achieved; upper bound: of the risk, 95 %", rows


def _tables(result: Mapping[str, Any]) -> Iterator[Table]:
    yield _promises(result)
    counts, scores = result["counts"], result["scores"]
    share = _share(counts)
    pixels = f"{counts['pixels']:,} pixels of {_frames(counts['anomaly_frames'])}, {share}"
    for protocol in parts.PROTOCOLS:
        rows = {name: values[protocol] for name, values in scores.items() if protocol in values}
        yield f"Anomaly scores, {protocol}: {pixels}", _rows(rows, titles(parts.DETECTION))
    for kind, unit in (("size", "their pixels"), ("distance", "their place in the frame")):
        rows = {
            f"{name}, {score}": numbers
            for score, values in scores.items()
            for name, numbers in values.get(kind, {}).items()
            if numbers["objects"]
        }
        title = f"Anomalous objects by {unit}, against all normal pixels; found: half of their pixels are above what flags 5 %"
        yield title, _rows(rows, titles(parts.ByObject.metrics) | {"objects": "objects"})
    groups = counts.get("groups", {})
    rows = {
        f"{group}, {name}": v["groups"][group]["pooled"]
        for group in groups
        for name, v in scores.items()
    }
    shares = "; ".join(f"{group}: {_share(n)}" for group, n in groups.items())
    yield f"Anomaly scores by group of frames, pooled ({shares})", _rows(rows, _AREAS)
    for track in dict.fromkeys(
        track for values in scores.values() for track in values.get("components", {})
    ):
        rows = {name: values["components"][track] or {} for name, values in scores.items()}
        yield (
            f"Components, {track}, at the best-F1 threshold of smiyc",
            _rows(rows, titles(parts.Components.metrics)),
        )
    if result["segmentation"]["per_class"]:
        segmentation, over = result["segmentation"], f"over {counts['labelled_pixels']:,} pixels"
        iou = {
            **segmentation["per_class"],
            "mean IoU": segmentation["miou"],
            "pixel accuracy": segmentation["accuracy"],
        }
        yield (
            f"Segmentation, {over} of {_frames(counts['labelled_frames'])}",
            _column("class", "IoU", iou),
        )
        metrics = titles(
            (*parts.ConfidenceCalibration.metrics, *parts.ProbabilityCalibration.metrics)
        )
        numbers = {title: result["calibration"].get(key) for key, title in metrics.items()}
        yield "Calibration, over the same pixels", _column("number", "value", numbers)
    yield "Sets of classes, means over frames", _column("number", "value", result.get("sets", {}))
    title = "Selective prediction and failure detection, over the same pixels"
    yield title, _rows(result["selective"], titles(parts.Selective.metrics))
    of_frames = (
        (f"{name} of {score}", v)
        for score, of in result.get("frames", {}).items()
        for name, v in of.items()
    )
    rows = {name: numbers for name, numbers in of_frames if {*numbers.values()} != {None}}
    yield (
        "Frames as a whole: those with an anomaly, and AURC of 1 - mIoU",
        _rows(rows, titles(FRAME_METRICS)),
    )
    corruption = result.get("run", {}).get("corruption")
    images = f", images corrupted by {corruption}" if corruption else ""
    alarms: Mapping[str, Any] = result.get("flagged", {})
    regions = result.get("run", {}).get("smallest_region", {})
    sizes = " or ".join(f"{size}" for size in dict.fromkeys(regions.values()))
    title = f"Flagged at or above a threshold{images}; share: of known pixels"
    if sizes:
        title += f"; regions: of at least {sizes} pixels"
    yield title, _rows(alarms, _FLAGGED)
    by_class = {name: values["by_class"] for name, values in alarms.items() if "by_class" in values}
    classes = {name: name for values in by_class.values() for name in values}
    yield f"Flagged share of the pixels of each class{images}", _rows(by_class, classes)
    for kind in (*KINDS, "group"):
        found = (
            (score, group, n)
            for score, values in alarms.items()
            for group, n in values.get(kind, {}).items()
        )
        rows = {f"{group}, {score}": n for score, group, n in found if n["objects"]}
        yield (
            f"Labelled objects at the threshold by {kind}{images}",
            _rows(rows, titles(FoundObjects.metrics)),
        )
    rows = {
        score: values["over_time"]
        for score, values in alarms.items()
        if values.get("over_time", {}).get("tracks")
    }
    title = f"Objects over time{images}, of those labelled in several frames; flicker: how often it changes whether one is found"
    yield title, _rows(rows, titles(OverTime.metrics))
    yield _intervals(result)


def _verdict_tables(result: Mapping[str, Any]) -> Iterator[Table]:
    """Each number of all reviewers together and of each of them, with its interval, the frames or
    regions that it is a share of, and how far reviewers agree."""
    counts, reviewers = result["counts"], result["counts"]["verdicts"]
    several, disagreed = counts["judged_by_several"], counts["disagreed_frames"]
    title = f"Verdicts on {_frames(counts['judged_frames'])} of {counts['frames']}"
    if several:
        title += f"; reviewers disagree on {disagreed} of {several} that two or more judged"
        title += f", a disputed share of {disagreed / several:.1%}"
    if disagreed:
        title += "; at least: each disputed verdict lowers the number; at most: each raises it"
    yield title, _verdict_rows(result, ("together",), "frames", _kappa(counts["agreement"]))
    for name, number in reviewers.items():
        reviewer = "" if name == NO_NAME else name
        pairs = [pair for pair in counts["agreement"] if reviewer in pair["reviewers"]]
        if len(reviewers) > 1:
            rows = _verdict_rows(result, ("reviewers", name), "frames", _kappa(pairs))
            yield f"{name}: {_frames(number['frames'])}", rows
        if number["regions"]:
            rows = _verdict_rows(result, ("reviewers", name, "regions"), "regions", NULL)
            yield f"{name}: regions, {number['regions']} in number", rows


def _verdict_rows(
    result: Mapping[str, Any], path: tuple[str, ...], unit: str, kappa: str
) -> list[list[str]]:
    """Return the rows of one table of verdicts. A number on which reviewers disagree has two rows,
    its bounds."""
    section = reduce(getitem, path, result["verdicts"])
    names: list[tuple[str, ...]] = [(key,) for key in _VERDICTS if key in section]
    names += [("share", kind) for kind in section.get("share", {})]
    rows = [["number", "value", unit, "kappa"]]
    for name in names:
        title = _VERDICTS.get(name[0], " ".join(name))
        dotted = ".".join(("verdicts", *path, *name))
        fewest, most = result["counts"]["rests_on"].get(dotted, (0, 0))
        rest = [f"{most}" if fewest == most else f"{fewest} to {most}", kappa]
        shown = {title: name}
        if result["reasons"].get(dotted) == DISPUTED:
            shown = {f"{title}, at least": (AT_LEAST, *name), f"{title}, at most": (AT_MOST, *name)}
        for words, number in shown.items():
            value = reduce(getitem, number, section)
            cell = _cell(result, value, ".".join(("verdicts", *path, *number)))
            rows.append([words, cell, *rest])
    return rows


def _kappa(pairs: Sequence[Mapping[str, Any]]) -> str:
    """Return Cohen's kappa of pairs of reviewers, the smallest and the largest of several."""
    values = sorted(pair["kappa"] for pair in pairs if pair["kappa"] is not None)
    if not values:
        return NULL
    ends = [format_cell(Cell(value)) for value in (values[0], values[-1])]
    return ends[0] if len(values) == 1 else " to ".join(ends)


def _intervals(result: Mapping[str, Any]) -> Table:
    """The intervals of the numbers that are read first; all of them are in the file."""
    shown: dict[tuple[str, ...], str] = {
        ("segmentation", "miou"): "mIoU",
        ("calibration", "ece"): "ECE",
        ("calibration", "nll"): "NLL",
    }
    for name in result["scores"]:
        shown |= {
            ("scores", name, "pooled", key): f"{name} {title}" for key, title in _AREAS.items()
        }
    shown |= {("flagged", name, "share"): f"{name} flagged" for name in result.get("flagged", {})}
    bootstrap, units = result.get("bootstrap", {}), result["counts"]["resampled_units"]
    effective = bootstrap.get("effective_units", {})
    rows = []
    for path, title in shown.items():
        if (dotted := ".".join(path)) in result["intervals"]:
            value: Any = reduce(getitem, path, result)
            rows.append([title, _cell(result, value, dotted), str(effective.get(dotted, NULL))])
    replicates = bootstrap.get("replicates", "")
    title = (
        f"95 % intervals, of {replicates} Poisson bootstrap replicates over {units} resampled units"
    )
    return title, [["number", "interval", "effective units"], *rows]


def _notes(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is not there, things of one reason on one line: intervals, numbers, frames."""
    yield from _by_reason("No interval", result.get("bootstrap", {}).get("no_interval", {}))
    classes = bool(result.get("segmentation", {}).get("per_class"))
    asked = {"scores": bool(result["scores"]), "segmentation": classes, "calibration": classes}
    missing = {
        path: why
        for path, why in result["reasons"].items()
        if asked.get(path.split(".")[0], True) and why not in (NO_OBJECT, DISPUTED)
    }
    yield from _by_reason("Not available", missing)
    entries = result["left_out"]
    reasons = [
        reason
        for reason, _ in Counter(entry["reason"] for entry in entries).most_common(_MAX_REASONS)
    ]
    frames = {
        entry["frame"]: reason
        for reason in reasons
        for entry in entries
        if entry["reason"] == reason
    }
    yield from _by_reason(
        f"Left out: {len(entries)} of {_frames(result['counts']['frames'])}", frames
    )


def _by_reason(title: str, reasons: Mapping[str, str]) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for name, why in reasons.items():
        by_reason.setdefault(why, []).append(name)
    if by_reason:
        yield "\n".join(
            [title, *(f"  {first_of(names)}: {why}" for why, names in by_reason.items())]
        )


def _rows(rows: Mapping[str, Mapping[str, Any]], columns: Mapping[str, str]) -> list[list[str]]:
    """Return a row for each score below a header; columns that no row has are left out."""
    present = {
        key: title
        for key, title in columns.items()
        if any(key in values for values in rows.values())
    }
    cells = [
        [name, *(_number(values.get(key)) for key in present)] for name, values in rows.items()
    ]
    return [["score", *present.values()], *cells]


def _column(name: str, value: str, numbers: Mapping[str, float | None]) -> list[list[str]]:
    return [[name, value], *([title, _number(number)] for title, number in numbers.items())]


def _number(value: float | None) -> str:
    return f"{value:,}" if isinstance(value, int) else format_cell(Cell(value))


def _cell(result: Mapping[str, Any], value: float | None, path: str) -> str:
    return format_cell(Cell(value, result["intervals"].get(path)))


def _share(counts: Mapping[str, int]) -> str:
    """The AUPR of a random score is this share, so no AUPR can be read without it."""
    pixels = counts["anomaly_pixels"] + counts["normal_pixels"]
    return f"a share of {counts['anomaly_pixels'] / max(pixels, 1):.2g} anomaly pixels"


def _frames(number: int) -> str:
    return f"{number:,} frame{'' if number == 1 else 's'}"
