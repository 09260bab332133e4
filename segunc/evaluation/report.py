"""The result of an evaluation as a table for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

from segunc.core.terminal import visible
from segunc.evaluation import flagged, judged, parts
from segunc.evaluation.breakdown import ByObject
from segunc.evaluation.compare import first_of
from segunc.evaluation.parts import titles
from segunc.metrics.objects import NO_OBJECT

_PIXELS, _COMPONENTS = titles(parts.DETECTION), titles(parts.Components.metrics)
_CALIBRATION = titles((*parts.ConfidenceCalibration.metrics, *parts.ProbabilityCalibration.metrics))
_SELECTIVE = titles((*parts.Selective.metrics, *parts.Patches.metrics))
_OBJECTS, _FLAGGED, _VERDICTS = titles(ByObject.metrics), titles(flagged.METRICS), titles(judged.METRICS)
_SAME, _MISSING = "over the same pixels", "-"


def format_metrics(result: Mapping[str, Any]) -> str:
    """The result as a plain table of fractions of 1, without a line break at its end."""
    if "verdicts" in result:
        return _verdicts(result)
    parts = [
        *_protocols(result),
        _objects(result, "size", "size in pixels or % of the frame"),
        _objects(result, "distance", "place in the frame"),
        _groups(result),
        *_components(result),
        *_classes(result),
        _columns(f"Selective prediction and failure detection, {_SAME}", result["selective"], _SELECTIVE),
        *_flagged(result),
        *(_intervals(result), _missing(result), _left_out(result)),
    ]
    return "\n\n".join(part for part in parts if part)


def _protocols(result: Mapping[str, Any]) -> Iterator[str]:
    counts, scores = result["counts"], result["scores"]
    pixels = f"{counts['pixels']:,} pixels of {_frames(counts['anomaly_frames'])}"
    share = counts["anomaly_pixels"] / max(counts["pixels"], 1)
    both = f"mean over {_frames(counts['anomaly_frames_with_both_classes'])} with both classes"
    of = {"pooled": f"{pixels}; share of anomaly pixels {share:.4f}", "per-image": both, "smiyc": pixels}
    for protocol, what in of.items():
        rows = {name: values[protocol] for name, values in scores.items() if protocol in values}
        yield _columns(f"Anomaly scores, {protocol}: {what}", rows, _PIXELS)


def _components(result: Mapping[str, Any]) -> Iterator[str]:
    for track in dict.fromkeys(track for values in result["scores"].values() for track in values.get("components", {})):
        rows = {name: values["components"][track] or {} for name, values in result["scores"].items()}
        title = f"Components, {track}, mode {result['component_mode']}, at the best-F1 threshold of smiyc"
        yield _columns(title, rows, _COMPONENTS)


def _objects(result: Mapping[str, Any], kind: str, what: str) -> str:
    rows: dict[str, dict[str, Any]] = {}
    columns = dict(_OBJECTS)
    for score, values in result["scores"].items():
        for name, numbers in values.get(kind, {}).items():
            # Of distance, components hold nothing.
            tracks = {
                track: found[kind][name]["siou_gt"]
                for track, found in values.get("components", {}).items()
                if found and kind in found
            }
            columns |= {track: f"sIoU_gt, {track}" for track in tracks}
            rows.setdefault(score, {})[name] = numbers | tracks
    # The objects are the same for all scores; a bin without one has no numbers.
    blocks = {
        f"{name}: {values['objects']:,} objects, {_share(values['pixels'], result['counts']['normal_pixels'])}": {
            score: numbers[name] for score, numbers in rows.items()
        }
        for name, values in next(iter(rows.values()), {}).items()
        if values["objects"]
    }
    title = (
        f"Anomalous objects by {what}, their pixels against all normal pixels\n"
        "  found: share of objects, half of whose pixels are above what flags 5 % of normal pixels"
    )
    return _blocks(title, blocks, columns)


def _groups(result: Mapping[str, Any]) -> str:
    columns = {key: _PIXELS[key] for key in ("auroc", "aupr", "fpr95")}
    blocks: dict[str, dict[str, Mapping[str, Any]]] = {}
    for group, counts in result["counts"].get("groups", {}).items():
        share = _share(counts["anomaly_pixels"], counts["normal_pixels"])
        block = blocks.setdefault(f"{group}: {_frames(counts['anomaly_frames'])}, {share}", {})
        for name, values in result["scores"].items():
            numbers = values["groups"][group]
            tracks = {track: found["mean_f1"] for track, found in numbers.get("components", {}).items()}
            columns |= {track: f"mean F1, {track}" for track in tracks}
            block[name] = numbers["pooled"] | tracks
    return _blocks("Anomaly scores by group of frames, pooled", blocks, columns)


def _share(anomalous: int, normal: int) -> str:
    """The AUPR of a random score is this share, so no AUPR can be read without it."""
    return f"{anomalous:,} anomaly pixels, a share of {anomalous / max(anomalous + normal, 1):.2g}"


def _flagged(result: Mapping[str, Any]) -> Iterator[str]:
    rows: Mapping[str, Any] = result.get("flagged", {})
    corruption = result.get("run", {}).get("corruption")
    of = f", images corrupted by {corruption}" if corruption else ""
    text = _columns(f"Flagged pixels, at or above a threshold{of}", rows, _FLAGGED)
    if by_class := {name: values["by_class"] for name, values in rows.items() if "by_class" in values}:
        smallest = result["flagged_regions_from"]
        text += f"\n  share: of known pixels; regions: flagged ones of at least {smallest} pixels"
        table = [["class", *by_class]]
        table += [[c, *(_number(v[c]) for v in by_class.values())] for c in next(iter(by_class.values()))]
        text += f"\n\nFlagged share of the pixels of each class{of}\n{_table(table)}"
    yield text


def _classes(result: Mapping[str, Any]) -> list[str]:
    """Segmentation and calibration."""
    values, counts = result["segmentation"], result["counts"]
    if not values["per_class"]:
        return []
    title = f"Segmentation, over {counts['labelled_pixels']:,} pixels of {_frames(counts['labelled_frames'])}"
    rows = [["class", "IoU"], *([name, _number(iou)] for name, iou in values["per_class"].items())]
    rows += [["mean IoU", _number(values["miou"])], ["pixel accuracy", _number(values["accuracy"])]]
    errors = [[*_CALIBRATION.values()], [_number(result["calibration"].get(key)) for key in _CALIBRATION]]
    calibration = f"Calibration, {_SAME}\n{_table(errors)}"
    return [f"{title}\n{_table(rows, rule_before_last=2)}", calibration]


def _verdicts(result: Mapping[str, Any]) -> str:
    """Each number of all reviewers together and of each of them, with its interval."""
    counts, reviewers = result["counts"], result["counts"]["verdicts"]
    disagreed = f"; {counts['disagreed_frames']} on which they disagree are left out" * (len(reviewers) > 1)
    titles: dict[tuple[str, ...], str] = {}
    titles["together",] = f"Verdicts on {_frames(counts['judged_frames'])} of {counts['frames']}{disagreed}"
    for name, number in reviewers.items():
        if len(reviewers) > 1:
            titles["reviewers", name] = f"{name}: {_frames(number['frames'])}"
        if number["regions"]:
            titles["reviewers", name, "regions"] = f"{name}: regions, {number['regions']} in number"
    parts, bootstrap = [], result.get("bootstrap", {})
    for place, title in titles.items():
        rows = [["number", "value", "95 % interval"]]
        numbers = reduce(getitem, place, result["verdicts"])
        values = {key: numbers[key] for key in _VERDICTS if key in numbers}
        for name, value in {**values, **{f"share.{kind}": v for kind, v in numbers.get("share", {}).items()}}.items():
            bounds = result["intervals"].get(".".join(("verdicts", *place, name)))
            words = _VERDICTS.get(name, name.replace(".", " "))
            rows.append([words, _number(value), "[{:.4f}, {:.4f}]".format(*bounds) if bounds else _MISSING])
        parts.append(f"{title}\n{_table(rows)}")
    whys = dict.fromkeys(bootstrap.get("no_interval", {}).values())
    return "\n\n".join([*parts, *(f"No interval: {why}" for why in whys)])


def _intervals(result: Mapping[str, Any]) -> str:
    """The intervals of the numbers that are read first; all of them are in the file."""
    shown: list[tuple[tuple[str, ...], str]] = [(("segmentation", "miou"), "mIoU")]
    shown += [(("calibration", "ece"), "ECE"), (("calibration", "nll"), "NLL")]
    for name in result["scores"]:
        shown += [(("scores", name, "pooled", key), f"{name} {_PIXELS[key]}") for key in ("auroc", "aupr", "fpr95")]
    shown += [(("flagged", name, "share"), f"{name} flagged") for name in result.get("flagged", {})]
    bootstrap, intervals = result.get("bootstrap", {}), result["intervals"]
    effective, without = bootstrap.get("effective_units", {}), bootstrap.get("no_interval", {})
    rows, whys = [["number", "value", "interval", "effective units"]], dict[str, list[str]]()
    for path, what in shown:
        dotted = ".".join(path)
        if dotted in intervals:
            value, bounds = reduce(getitem, path, result), "[{:.4f}, {:.4f}]".format(*intervals[dotted])
            rows.append([what, f"{value:.4f}", bounds, f"{effective.get(dotted, _MISSING)}"])
        elif dotted in without:
            whys.setdefault(without[dotted], []).append(what)
    of = f"{bootstrap.get('replicates', '')} replicates over {result['counts']['resampled_units']} resampled units".strip()
    parts = [f"95 % intervals (Poisson bootstrap, {of})\n{_table(rows)}"] if rows[1:] else []
    lines = [f"  {first_of(names)}: {why}" for why, names in whys.items()]
    return "\n".join([*parts, *(["No interval", *lines] if lines else [])])


def _columns(title: str, rows: Mapping[str, Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """A title and a row for each score; columns that no row has are left out. Empty without a row."""
    return f"{title}\n{_table(_cells(rows.items(), columns))}" if rows else ""


def _cells(rows: Collection[tuple[str, Mapping[str, Any]]], columns: Mapping[str, str]) -> list[list[str]]:
    present = {key: title for key, title in columns.items() if any(key in values for _, values in rows)}
    forms = {key: ".4g" if key == "threshold" else ".4f" for key in present}
    cells = [[name, *(_number(values.get(key), form) for key, form in forms.items())] for name, values in rows]
    return [["score", *present.values()], *cells]


def _blocks(title: str, blocks: Mapping[str, Mapping[str, Mapping[str, Any]]], columns: Mapping[str, str]) -> str:
    """One table in blocks, each below its heading, with a row for each score; empty without a block."""
    if not blocks:
        return ""
    rows = [(f"  {name}", values) for block in blocks.values() for name, values in block.items()]
    lines, place = _table(_cells(rows, columns)).splitlines(), 2
    for head, block in blocks.items():
        lines.insert(place, f"  {head}")
        place += len(block) + 1
    return "\n".join([title, *lines])


def _missing(result: Mapping[str, Any]) -> str:
    """Numbers that are null, those of one reason on one line."""
    by_reason: dict[str, list[str]] = {}
    classes = bool(result["segmentation"]["per_class"])
    asked = {"scores": bool(result["scores"]), "segmentation": classes, "calibration": classes}
    for path, why in result["reasons"].items():
        # What nobody asked for, and objects that are not there, stay in the file.
        if asked.get(path.split(".")[0], True) and why != NO_OBJECT:
            by_reason.setdefault(why, []).append(path)
    lines = [f"  {first_of(paths)}: {why}" for why, paths in by_reason.items()]
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
    # Shares of small things and of rare alarms would be left with one digit.
    form = ".1e" if value and form == ".4f" and abs(value) < 1e-3 else form
    return _MISSING if value is None else format(value, form)


def _table(rows: Sequence[Sequence[str]], rule_before_last: int = 0) -> str:
    """Rows with a header, the first column to the left where it holds names, numbers to the right."""
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    rule = "  " + "-" * (len(lines[0]) - 2)
    lines.insert(1, rule)
    if rule_before_last:
        lines.insert(len(lines) - rule_before_last, rule)
    return "\n".join(line.rstrip() for line in lines)
