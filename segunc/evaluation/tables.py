"""The result of an evaluation as tables for the terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

from segunc.core.terminal import counted, first_of
from segunc.decisions.guarantee import RISKS
from segunc.evaluation import flagged, parts
from segunc.evaluation.comparison import NULL, format_cell, markdown_table
from segunc.evaluation.flagged import AT_LEAST, AT_MOST, DISPUTED, FalseAlarms, Hits
from segunc.evaluation.from_verdicts import NO_NAME
from segunc.evaluation.over_time import FoundObjects, OverTime
from segunc.evaluation.parts import titles
from segunc.evaluation.patches import Patches
from segunc.evaluation.ranked_frames import FRAME_METRICS
from segunc.evaluation.resampling import ABOUT, Cell, numbers_below
from segunc.evaluation.small_objects import small_objects_of
from segunc.maps.encoding import threshold_text
from segunc.metrics.objects import KINDS, NO_OBJECT

_AREAS = titles(parts.AREAS)
_VERDICTS = titles(flagged.JUDGED_METRICS)
_FLAGGED = titles((parts.Metric("threshold", "threshold"), *FalseAlarms.metrics, *Hits.metrics))
_MAX_REASONS = 8  # reasons of frames that are left out; the others are in the file
_NUMBER_SECTIONS = (
    "scores",
    "segmentation",
    "calibration",
    "selective",
    "sets",
    "frames",
    "flagged",
    "verdicts",
)
_OTHER_SECTIONS = (*ABOUT, "intervals", "reasons", "forms", "left_out", "unfinished")

Result = Mapping[str, Any]  # the content of metrics.json
Numbers = Mapping[str, Any]  # key -> number, as one part placed them
SIMULATED_UNITS = 30
"""The largest number of units for which intervals of FPR95 were simulated."""


@dataclass(frozen=True)
class Table:
    """A table with its title; the first row is the header."""

    title: str
    rows: Sequence[Sequence[str]]


class Promise(NamedTuple):
    """A promise that these units say something of.

    Attributes:
        score: whose threshold has the promise.
        control: the bounded risk, a key of ``RISKS``.
        numbers: ``risk``, ``level``, ``upper`` and ``units`` of the result.
    """

    score: str
    control: str
    numbers: Numbers


def format_metrics(result: Result) -> str:
    """Write the result as tables of fractions of 1, without a line break at its end."""
    tables = _verdict_tables(result) if "verdicts" in result else _label_tables(result)
    corruption = result.get("run", {}).get("corruption")
    texts: list[str] = []
    for table in tables:
        if len(table.rows) < 2:
            continue
        title = table.title
        if corruption and str(corruption) not in title:
            title += f"; images corrupted by {corruption}"
        texts.append(f"{title}\n\n{markdown_table(table.rows)}")
    return "\n\n".join([*texts, *_notes(result)])


def promised(result: Result) -> list[Promise]:
    """Return each promise that these units say something of, those that are exceeded first."""
    promises = []
    for score, of_score in result.get("flagged", {}).items():
        for control in RISKS:
            is_main = control == of_score.get("control")
            numbers = of_score if is_main else of_score.get(control, {})
            if numbers.get("risk") is not None:
                promises.append(Promise(score, control, numbers))
    return sorted(promises, key=lambda promise: not exceeded(promise.numbers))


def exceeded(numbers: Numbers) -> bool:
    """Return whether the achieved risk is above the promised level.

    A mean that differs from the level by rounding alone is not: three units that lose a tenth each
    have a mean of 0.10000000000000002.
    """
    is_level = math.isclose(numbers["risk"], numbers["level"], rel_tol=1e-9)
    return bool(numbers["risk"] > numbers["level"]) and not is_level


def unproven(numbers: Numbers) -> bool:
    """Return whether the upper bound of the achieved risk is above the promised level: these units
    are too few to show that the promise holds.
    """
    upper = numbers.get("upper")
    return upper is not None and bool(upper > numbers["level"])


def _promises(result: Result) -> Table:
    """Return what was promised and what is achieved, exceeded promises first."""
    # The mean over units may differ much from the share of all objects in the other tables.
    achieved = "achieved (mean over units)"
    rows = [["score", "risk", achieved, "promised", "upper bound", "units", "promise"]]
    for score, control, numbers in promised(result):
        cells = [_number(numbers[key]) for key in ("risk", "level", "upper", "units")]
        kept = "kept here, not proven" if unproven(numbers) else "kept"
        if exceeded(numbers):
            kept = "EXCEEDED"
        rows.append([score, RISKS[control], *cells, kept])
    return Table("Promised and achieved; upper bound: of the risk, 95 %", rows)


def _label_tables(result: Result) -> Iterator[Table]:
    """Yield the tables of a result that was counted against labels."""
    yield _promises(result)
    yield from _detection_tables(result)
    yield _object_table(result, "size", "their pixels")
    yield _object_table(result, "distance", "their place in the frame")
    yield _group_table(result)
    yield from _component_tables(result)
    if result["segmentation"]["per_class"]:
        yield _segmentation_table(result)
        yield _calibration_table(result)
    yield Table(
        "Sets of classes, means over frames", _column("number", "value", result.get("sets", {}))
    )
    yield Table(
        "Selective prediction and failure detection, over the same pixels",
        _rows(result["selective"], titles((*parts.Selective.metrics, *Patches.metrics))),
    )
    yield _frame_table(result)
    yield from _alarm_tables(result)
    yield from _foreign_tables(result)
    yield _intervals(result)


def _detection_tables(result: Result) -> Iterator[Table]:
    """Yield the pooled numbers of each protocol."""
    counts = result["counts"]
    pixels = (
        f"{counts['pixels']:,} pixels of {counted(counts['anomaly_frames'], 'frame')}, "
        f"{_anomaly_share(counts)}"
    )
    for protocol in parts.PROTOCOLS:
        rows = {}
        for score, sections in result["scores"].items():
            if protocol in sections:
                rows[score] = sections[protocol]
        over = pixels
        if protocol == "per-image":
            frames = counted(counts["anomaly_frames_with_both_classes"], "frame")
            over = f"mean over {frames} with anomalous and normal pixels"
        title = f"Anomaly scores, {protocol}: {over}"
        yield Table(title, _rows(rows, titles(parts.DETECTION)))


def _object_table(result: Result, kind: str, unit: str) -> Table:
    """Return the numbers of objects by the bins of a kind, which sorts them by ``unit``."""
    rows = {}
    for score, sections in result["scores"].items():
        for bin_name, numbers in sections.get(kind, {}).items():
            if numbers["objects"]:
                rows[f"{bin_name}, {score}"] = numbers
    title = (
        f"Anomalous objects by {unit}, against all normal pixels; "
        "found: half of their pixels are above what flags 5 % of the normal ones"
    )
    return Table(
        f"{title}{_small_objects(result)}",
        _rows(rows, titles(parts.ByObject.metrics) | {"objects": "objects"}),
    )


def _small_objects(result: Result) -> str:
    """Return the end of a title of objects: that some of them are small; empty where none is."""
    share = small_objects_of(result).share
    return f"; {share}" if share else ""


def _group_table(result: Result) -> Table:
    """Return the pooled numbers of each group of frames."""
    groups = result["counts"].get("groups", {})
    rows = {}
    for group in groups:
        for score, sections in result["scores"].items():
            rows[f"{group}, {score}"] = sections["groups"][group]["pooled"]
    shares = "; ".join(f"{group}: {_anomaly_share(counts)}" for group, counts in groups.items())
    return Table(f"Anomaly scores by group of frames, pooled ({shares})", _rows(rows, _AREAS))


def _component_tables(result: Result) -> Iterator[Table]:
    """Yield the numbers of each component track."""
    tracks: dict[str, None] = {}
    for sections in result["scores"].values():
        tracks |= dict.fromkeys(sections.get("components", {}))
    for track in tracks:
        rows = {}
        for score, sections in result["scores"].items():
            rows[score] = sections["components"][track] or {}
        title = f"Components, {track}, at the best-F1 threshold of smiyc"
        yield Table(title, _rows(rows, titles(parts.Components.metrics)))


def _segmentation_table(result: Result) -> Table:
    segmentation = result["segmentation"]
    counts = result["counts"]
    iou = {
        **segmentation["per_class"],
        "mean IoU": segmentation["miou"],
        "pixel accuracy": segmentation["accuracy"],
    }
    pixels = (
        f"{counts['labelled_pixels']:,} pixels of {counted(counts['labelled_frames'], 'frame')}"
    )
    title = f"Segmentation, over {pixels}"
    unlabelled = [name for name in counts.get("unlabelled_classes", []) if iou[name] is not None]
    if unlabelled:
        title += f"; predicted and not in these labels: {', '.join(unlabelled)}"
    return Table(title, _column("class", "IoU", iou))


def _calibration_table(result: Result) -> Table:
    metrics = (*parts.ConfidenceCalibration.metrics, *parts.ProbabilityCalibration.metrics)
    numbers = {title: result["calibration"].get(key) for key, title in titles(metrics).items()}
    return Table("Calibration, over the same pixels", _column("number", "value", numbers))


def _frame_table(result: Result) -> Table:
    """Return how scores rank whole frames, without aggregates that have no number."""
    rows = {}
    for score, aggregates in result.get("frames", {}).items():
        for name, numbers in aggregates.items():
            if {*numbers.values()} != {None}:
                rows[f"{name} of {score}"] = numbers
    title = "Frames as a whole: those with an anomaly, and AURC of 1 - mIoU"
    return Table(title, _rows(rows, titles(FRAME_METRICS)))


def _alarm_tables(result: Result) -> Iterator[Table]:
    """Yield what thresholds flag: pixels and regions, classes, objects, and objects over time."""
    run = result.get("run", {})
    corruption = run.get("corruption")
    images = f", images corrupted by {corruption}" if corruption else ""
    alarms: Mapping[str, Any] = result.get("flagged", {})
    title = f"Flagged at or above a threshold{images}"
    for frames in _frames_of_alarms(result):
        title += f"; {frames}"
    smallest = dict.fromkeys(run.get("smallest_region", {}).values())
    if smallest:
        sizes = " or ".join(f"{pixels}" for pixels in smallest)
        title += f"; regions: of at least {sizes} pixels"
    yield Table(title, _rows(alarms, _FLAGGED))
    yield _class_alarm_table(alarms, images)
    for kind in (*KINDS, "group"):
        yield _found_object_table(alarms, kind, f"{images}{_small_objects(result)}")
    yield _over_time_table(alarms, images)


def _frames_of_alarms(result: Result) -> Iterator[str]:
    """Yield which numbers of flagged pixels are of the frames with labels of each kind."""
    counts = result["counts"]
    alarms: Mapping[str, Any] = result.get("flagged", {})
    keys = {key for numbers in alarms.values() for key in numbers}
    if "share" in keys:
        frames = counted(counts.get("labelled_frames", 0), "frame")
        yield (
            f"share, regions/frame, frames with one: of the known pixels of {frames} with class "
            "labels"
        )
    if "normal_share" in keys:
        frames = counted(counts.get("anomaly_frames", 0), "frame")
        yield f"precision, recall, of normal pixels: of {frames} with anomaly labels"


def _class_alarm_table(alarms: Mapping[str, Any], images: str) -> Table:
    rows = {}
    classes: dict[str, str] = {}
    for score, numbers in alarms.items():
        if "by_class" in numbers:
            rows[score] = numbers["by_class"]
            classes |= {name: name for name in numbers["by_class"]}
    return Table(f"Flagged share of the pixels of each class{images}", _rows(rows, classes))


def _found_object_table(alarms: Mapping[str, Any], kind: str, images: str) -> Table:
    rows = {}
    for score, sections in alarms.items():
        for bin_name, numbers in sections.get(kind, {}).items():
            if numbers["objects"]:
                rows[f"{bin_name}, {score}"] = numbers
    title = f"Labelled objects at the threshold by {kind}{images}"
    return Table(title, _rows(rows, titles(FoundObjects.metrics)))


def _over_time_table(alarms: Mapping[str, Any], images: str) -> Table:
    rows = {}
    for score, sections in alarms.items():
        over_time = sections.get("over_time", {})
        if over_time.get("tracks"):
            rows[score] = over_time
    title = (
        f"Objects over time{images}, of those labelled in several frames; "
        "flicker: how often it changes whether one is found"
    )
    return Table(title, _rows(rows, titles(OverTime.metrics)))


def _foreign_tables(result: Result) -> Iterator[Table]:
    """Yield a table of each section that another package adds to ``metrics.json``.

    A section without any number is left out: the reasons stand below the tables.
    """
    for section, content in result.items():
        if section in _NUMBER_SECTIONS or section in _OTHER_SECTIONS:
            continue
        values = dict(numbers_below(content, (section,)))
        if any(value is not None for value in values.values()):
            title = f"{section}, a section that another package adds"
            yield Table(title, _foreign_rows(result, section, [*values]))


def _foreign_rows(
    result: Result, section: str, paths: Sequence[tuple[str, ...]]
) -> list[list[str]]:
    metric_titles = _foreign_titles(section)
    rows = [["number", "value"]]
    for path in paths:
        *names, key = path[1:]
        title = ", ".join([*names, metric_titles.get(key, key)])
        value: Any = reduce(getitem, path, result)
        dotted = ".".join(path)
        cell = _cell(result, value, dotted) if dotted in result["intervals"] else _number(value)
        rows.append([title, cell])
    return rows


def _foreign_titles(section: str) -> dict[str, str]:
    """Return the titles of the metrics of all parts of a section, by their keys."""
    of_section: dict[str, str] = {}
    for part in parts.example_parts():
        if part.section[0] == section:
            of_section |= titles(part.metrics)
    return of_section


def _verdict_tables(result: Result) -> Iterator[Table]:
    """Yield the numbers of all reviewers together, and of each of them.

    Each number stands with its interval, the frames or regions that it is a share of, and how far
    reviewers agree.
    """
    counts = result["counts"]
    reviewers = counts["verdicts"]
    kappa = _kappa(counts["agreement"])
    yield Table(_verdict_title(counts), _verdict_rows(result, ("together",), "frames", kappa))
    for name, judged in reviewers.items():
        reviewer = "" if name == NO_NAME else name
        pairs = [pair for pair in counts["agreement"] if reviewer in pair["reviewers"]]
        if len(reviewers) > 1:
            rows = _verdict_rows(result, ("reviewers", name), "frames", _kappa(pairs))
            # A result of an earlier version does not count frames that were judged by regions.
            by_regions = judged.get("by_regions", 0)
            how = f", {by_regions} of them by verdicts on regions alone" if by_regions else ""
            yield Table(f"{name}: {counted(judged['frames'], 'frame')}{how}", rows)
        if judged["regions"]:
            # A result of an earlier version compares no regions.
            compared = [
                pair
                for pair in counts.get("region_agreement", ())
                if pair["regions"] and reviewer in pair["reviewers"]
            ]
            section = ("reviewers", name, "regions")
            rows = _verdict_rows(result, section, "regions", _kappa(compared))
            title = f"{name}: regions, {judged['regions']} in number"
            yield Table(f"{title}{_shared_regions(reviewer, compared)}", rows)


def _shared_regions(reviewer: str, pairs: Sequence[Mapping[str, Any]]) -> str:
    """Return how many regions of a reviewer each other one judged, too: kappa is of these."""
    words = []
    for pair in pairs:
        (other,) = [name for name in pair["reviewers"] if name != reviewer]
        same = " with the same verdict throughout" if pair["kappa"] is None else ""
        words.append(f"{pair['regions']} also judged by {other or NO_NAME}{same}")
    return f"; {', '.join(words)}" if words else ""


def _verdict_title(counts: Mapping[str, Any]) -> str:
    several = counts["judged_by_several"]
    disagreed = counts["disagreed_frames"]
    title = f"Verdicts on {counted(counts['judged_frames'], 'frame')} of {counts['frames']}"
    if several:
        title += f"; reviewers disagree on {disagreed} of {several} that two or more judged"
        title += f", a disputed share of {disagreed / several:.1%}"
    if disagreed:
        title += "; at least: each disputed verdict lowers the number; at most: each raises it"
    if any(judged["regions"] for judged in counts["verdicts"].values()):
        title += "; a frame without a verdict of its own has the gravest of its regions"
    return title


def _verdict_rows(
    result: Result, section_path: tuple[str, ...], unit: str, kappa: str | None
) -> list[list[str]]:
    """Return the rows of one table of verdicts.

    A number on which reviewers disagree has two rows, its bounds. Where no two reviewers can be
    compared, ``kappa`` is None and there is no column of it.
    """
    section = reduce(getitem, section_path, result["verdicts"])
    names: list[tuple[str, ...]] = [(key,) for key in _VERDICTS if key in section]
    names += [("share", kind) for kind in section.get("share", {})]
    rows = [["number", "value", unit]]
    if kappa is not None:
        rows[0].append("kappa")
    for name in names:
        dotted = ".".join(("verdicts", *section_path, *name))
        fewest, most = result["counts"]["rests_on"].get(dotted, (0, 0))
        units = f"{most}" if fewest == most else f"{fewest} to {most}"
        if name == ("missed_per_frame",):
            units = counted(most, "frame")  # in a column of regions
        title = _VERDICTS.get(name[0], " ".join(name))
        shown = {title: name}
        if result["reasons"].get(dotted) == DISPUTED:
            shown = {f"{title}, at least": (AT_LEAST, *name), f"{title}, at most": (AT_MOST, *name)}
        for row_title, path in shown.items():
            value = reduce(getitem, path, section)
            cell = _cell(result, value, ".".join(("verdicts", *section_path, *path)))
            rows.append([row_title, cell, units])
            if kappa is not None:
                rows[-1].append(kappa)
    return rows


def _kappa(pairs: Sequence[Mapping[str, Any]]) -> str | None:
    """Return Cohen's kappa of pairs of reviewers: the smallest and the largest of several; None
    where there is no pair."""
    if not pairs:
        return None
    values = sorted(pair["kappa"] for pair in pairs if pair["kappa"] is not None)
    if not values:
        return NULL
    smallest = format_cell(Cell(values[0]))
    if len(values) == 1:
        return smallest
    return f"{smallest} to {format_cell(Cell(values[-1]))}"


def _intervals(result: Result) -> Table:
    """Return the intervals of the numbers that are read first; all of them are in the file."""
    bootstrap = result.get("bootstrap", {})
    effective = bootstrap.get("effective_units", {})
    rows = [["number", "interval", "effective units"]]
    for path, title in _numbers_read_first(result).items():
        dotted = ".".join(path)
        if dotted in result["intervals"]:
            value: Any = reduce(getitem, path, result)
            rows.append([title, _cell(result, value, dotted), str(effective.get(dotted, NULL))])
    units = result["counts"]["resampled_units"]
    title = (
        f"95 % intervals, of {bootstrap.get('replicates', '')} Poisson bootstrap replicates "
        f"over {units} resampled units"
    )
    return Table(title, rows)


def _note_on_fpr95(result: Result) -> Iterator[str]:
    """Yield what to know of intervals of FPR95 over few units: how often they hold the truth was
    simulated (``docs/checks.md``).
    """
    paths = [("scores", score, "pooled", "fpr95") for score in result["scores"]]
    has_interval = any(".".join(path) in result["intervals"] for path in paths)
    if has_interval and result["counts"]["resampled_units"] <= SIMULATED_UNITS:
        yield (
            "Intervals of FPR95 over so few units are too narrow where a few objects decide it: in "
            "simulations, 87 to 89 % of them held the truth, not 95 %"
        )


def _numbers_read_first(result: Result) -> dict[tuple[str, ...], str]:
    """Return the title of each number whose interval is shown, by its path."""
    shown: dict[tuple[str, ...], str] = {
        ("segmentation", "miou"): "mIoU",
        ("calibration", "ece"): "ECE",
        ("calibration", "nll"): "NLL",
    }
    for score in result["scores"]:
        for key, title in _AREAS.items():
            shown["scores", score, "pooled", key] = f"{score} {title}"
    for score in result.get("flagged", {}):
        shown["flagged", score, "share"] = f"{score} flagged"
    return shown


def _notes(result: Result) -> Iterator[str]:
    """Yield what is not there, things of one reason on one line: intervals, numbers, frames."""
    yield from _by_reason("No interval", result.get("bootstrap", {}).get("no_interval", {}))
    yield from _note_on_fpr95(result)
    yield from _by_reason("Not available", _missing_numbers(result))
    left_out = result["left_out"]
    title = f"Left out: {len(left_out)} of {counted(result['counts']['frames'], 'frame')}"
    yield from _by_reason(title, _reasons_of_frames(left_out))


def _missing_numbers(result: Result) -> dict[str, str]:
    """Return why numbers are None, by their paths, of the labels that were asked about."""
    has_classes = bool(result.get("segmentation", {}).get("per_class"))
    asked = {
        "scores": bool(result["scores"]),
        "segmentation": has_classes,
        "calibration": has_classes,
    }
    missing = {}
    for path, reason in result["reasons"].items():
        section = path.split(".")[0]
        if asked.get(section, True) and reason not in (NO_OBJECT, DISPUTED):
            missing[path] = reason
    return missing


def _reasons_of_frames(left_out: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return why frames are left out, by their names: the most frequent reasons first."""
    frequency = Counter(entry["reason"] for entry in left_out)
    frames: dict[str, str] = {}
    for reason, _ in frequency.most_common(_MAX_REASONS):
        for entry in left_out:
            if entry["reason"] == reason:
                frames[entry["frame"]] = reason
    return frames


def _by_reason(title: str, reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield one text with a line for each reason; nothing where there is none."""
    names_of_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names_of_reason.setdefault(reason, []).append(name)
    if not names_of_reason:
        return
    lines = [title]
    for reason, names in names_of_reason.items():
        lines.append(f"  {first_of(names)}: {reason}")
    yield "\n".join(lines)


def _rows(rows: Mapping[str, Numbers], columns: Mapping[str, str]) -> list[list[str]]:
    """Return a row for each score below a header; columns that no row has are left out."""
    held = {key for numbers in rows.values() for key in numbers}
    present = {key: title for key, title in columns.items() if key in held}
    cells = [["score", *present.values()]]
    for name, numbers in rows.items():
        cells.append([name, *(_number_of(key, numbers) for key in present)])
    return cells


def _number_of(key: str, numbers: Numbers) -> str:
    """Write one number of a row; a threshold so that a user can copy it."""
    value = numbers.get(key)
    if key == "threshold" and value is not None:
        return threshold_text(value)
    return _number(value)


def _column(name: str, value: str, numbers: Mapping[str, float | None]) -> list[list[str]]:
    """Return a row for each number below a header of two cells."""
    rows = [[name, value]]
    for title, number in numbers.items():
        rows.append([title, _number(number)])
    return rows


def _number(value: int | float | None) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return format_cell(Cell(value))


def _cell(result: Result, value: float | None, path: str) -> str:
    """Write a number with its interval, if it has one."""
    return format_cell(Cell(value, result["intervals"].get(path)))


def _anomaly_share(counts: Mapping[str, int]) -> str:
    """Write the share of anomaly pixels.

    The AUPR of a random score is this share, so no AUPR can be read without it.
    """
    pixels = counts["anomaly_pixels"] + counts["normal_pixels"]
    return f"a share of {counts['anomaly_pixels'] / max(pixels, 1):.2g} anomaly pixels"
