"""The sections of a report by their names in ``assets/sections.yaml``, in the order of a model card (Mitchell et al. 2019, "Model cards for
model reporting", arXiv 1810.03993). A section is a list of blocks; it reads what was measured. The one number made here is an upper bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import beta

from segunc.core.files import flat
from segunc.evaluation.compare import format_cell, format_number
from segunc.evaluation.flagged import JUDGED_METRICS
from segunc.evaluation.parts import AREAS, titles
from segunc.evaluation.resampling import Cell, EvaluationResult
from segunc.maps.manifest import environment, tool_commit, tool_version
from segunc.reporting.inputs import Inputs, reliability_of
from segunc.scores import first_shown, title_of
from segunc.training.config import recorded_data

Block = dict[str, Any]
Row = Mapping[str, Any]
_CLASSES = {
    **{"mean IoU": "segmentation.miou", "accuracy": "segmentation.accuracy"},
    **{"ECE": "calibration.ece", "NLL": "calibration.nll", "Brier": "calibration.brier"},
}
_FLAGGED = {"share": "flagged", "precision": "precision", "recall": "recall", "regions_per_frame": "regions a frame"}
_LOSSES: Mapping[str, Callable[[Row], float | None]] = {
    "flagged-pixels": lambda row: row.get("share"),
    "missed-pixels": lambda row: None if row.get("recall") is None else 1 - row["recall"],
    "false-alarms": lambda row: row.get("regions_per_frame"),
}
"""What a result made with a threshold says of the loss that a control bounds, over all pixels or frames together."""


def text(words: str, kind: str = "text") -> Block:
    return {"kind": kind, "text": words}


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[Block]:
    """Return a table, none without rows; a cell is a text, a whole number, None, or a number as :func:`cell` gives it."""
    return (
        [{"kind": "table", "caption": caption, "columns": [*columns], "rows": [[*row] for row in rows]}] if rows else []
    )


def facts(caption: str, values: Row) -> list[Block]:
    """Return a table of names and values without those that say nothing."""
    rows = [[key, value if isinstance(value, int | dict) else str(value)] for key, value in values.items()]
    return table(caption, [], [row for row in rows if row[1] not in ("", "None")])


def cell(number: float | Cell | None, bar: bool = False) -> Any:
    """Return a number with its interval where it has one; ``bar`` also draws it as a share."""
    of = number if isinstance(number, Cell) else Cell(number)
    low, high = of.interval or (None, None)
    return None if of.value is None else {"value": of.value, "low": low, "high": high, "bar": bar}


def at(run: EvaluationResult, path: str, *more: str) -> Any:
    return cell(run.cell((*path.split("."), *more)))


def upper_bound(events: int, trials: int) -> float:
    """Return the one-sided 95 % upper bound of a share, 0..1 (Clopper & Pearson 1934); of 0 events about 3 / trials."""
    return 1.0 if events >= trials else float(beta.ppf(0.95, events + 1, trials - events))


def data_of(run: EvaluationResult) -> str:
    """Return what a run is of: its data set, split and corruption."""
    record = run.content["run"]
    corruption = f"under {record['corruption']}" if record.get("corruption") else ""
    return " ".join(filter(None, (record.get("dataset"), record.get("split"), corruption))) or "labelled frames of maps"


def with_classes(inputs: Inputs) -> list[EvaluationResult]:
    return [run for run in inputs.labelled if run.numbers.get(("segmentation", "miou")) is not None]


def with_anomalies(inputs: Inputs) -> list[tuple[EvaluationResult, str]]:
    """Return runs with anomaly numbers, each with the score that stands for it: that of a threshold, else the one that pages show."""
    pairs = []
    for run in inputs.labelled:
        scores = [of["score"] for of in inputs.thresholds.values() if of["score"] in run.content["scores"]]
        pairs.append((run, scores[0] if scores else first_shown(run.content["scores"])))
    return [(run, score) for run, score in pairs if run.numbers.get(("scores", score, "pooled", "aupr")) is not None]


def share_of_anomalies(counts: Row) -> float:
    return float(counts["anomaly_pixels"] / max(counts["anomaly_pixels"] + counts["normal_pixels"], 1))


def model_details(inputs: Inputs) -> list[Block]:
    model, network = inputs.model, inputs.model.network.description
    about = {
        "Network": f"{network.architecture} {network.encoder}".strip(),
        "Classes": ", ".join(network.classes),
        "Posterior": f"{model.posterior.method}, {model.posterior.members} member{'s' * (model.posterior.members > 1)}",
        **{f"Posterior: {key}": value for key, value in flat(model.posterior.settings()).items()},
        "Fitted on it": ", ".join(model.attachments),
        "Base network, SHA-256": model.sha256,
        "Posterior, SHA-256": model.posterior_sha256,
    }
    made = {**network.provenance, **(model.record.get("provenance") or {})}
    tools = {"segunc": f"{tool_version()} {tool_commit() or ''}".strip(), **environment()}
    return [*facts("Model", about), *facts("How it was made", made), *facts("Tools that wrote this report", tools)]


def intended_use(inputs: Inputs) -> list[Block]:
    domain = inputs.domain
    outside = f"Out of scope: {'; '.join(domain.out_of_scope)}." if domain.out_of_scope else ""
    return [text(words) for words in (domain.intended_use, domain.users and f"Users: {domain.users}", outside) if words]


def factors(inputs: Inputs) -> list[Block]:
    domain, frames = inputs.domain, inputs.test_frames()
    calibrated = sorted({name for of in inputs.thresholds.values() for name in of["frames"]})
    tested, fitted = (Counter(domain.places(names, inputs.texts).values()) for names in (frames, calibrated))
    lacking = {where: domain.minimum - tested[where] for where in domain.cells()}
    rows = [[*c, tested[c], fitted[c], f"gap: {n} more" if n > 0 else "enough"] for c, n in lacking.items()]
    columns = [*domain.axes, "test frames", "calibration frames", f"at least {domain.minimum}"]
    gaps, outside = sum(n > 0 for n in lacking.values()), len(frames) - sum(tested.values())
    words = f"{gaps} of {len(rows)} cells are gaps, with fewer than {domain.minimum} test frames. Of {len(frames)} test frames {outside} are in no cell."
    return [text(words), *table("Frames in each cell of the domain", columns, rows)] if rows else []


def evaluation_data(inputs: Inputs) -> list[Block]:
    keys = {
        "frames": "frames",
        "frames_left_out": "left out",
        "labelled_frames": "with class labels",
        "anomaly_frames": "with anomaly labels",
    }
    rows = [[r.name, data_of(r), *(r.content["counts"].get(key, 0) for key in keys)] for r in inputs.runs]
    blocks = table("Results in this report", ["result", "data", *keys.values()], rows)
    for reader in inputs.maps:
        manifest = reader.manifest or {}
        about = {"Frames": len(reader.frames), "Scores": ", ".join(reader.scores), "Device": manifest.get("device")}
        blocks += facts(f"Maps {reader.folder.name}", about | {"Manifest, SHA-256": manifest.get("sha256")})
    return blocks


def training_data(inputs: Inputs) -> list[Block]:
    of_machine = ("root", "workers", "batch_size", "eval_batch_size", "frames", "labels")
    recorded = {key: value for key, value in (recorded_data(inputs.folder) or {}).items() if key not in of_machine}
    return facts("Recorded with the model", recorded)


def segmentation(inputs: Inputs) -> list[Block]:
    runs = with_classes(inputs)
    rows = [[run.name, data_of(run), *(at(run, path) for path in _CLASSES.values())] for run in runs]
    blocks = table("Segmentation and calibration", ["result", "data", *_CLASSES], rows)
    for run in runs:
        if bins := reliability_of(run):
            ece = run.numbers["calibration", "ece"]
            blocks.append({"kind": "reliability", "title": f"{run.name}, {data_of(run)}", "ece": ece, "bins": bins})
    names = dict.fromkeys(name for run in runs for name in run.content["segmentation"]["per_class"])
    classes = [[name, *(at(run, "segmentation.per_class", name) for run in runs)] for name in names]
    return blocks + table("IoU of each class", ["class", *(run.name for run in runs)], classes)


def anomalies(inputs: Inputs) -> list[Block]:
    blocks, names = [], titles(AREAS)
    for run, _ in with_anomalies(inputs):
        counts, scores = run.content["counts"], run.content["scores"]
        every = [(p, key) for p, key in (*(("pooled", key) for key in names), ("per-image", "aupr"), ("smiyc", "aupr"))]
        columns = {(p, key): f"{names[key]}, {p}" for p, key in every if any(p in of for of in scores.values())}
        rows = [[title_of(name), *(at(run, "scores", name, *path) for path in columns)] for name in scores]
        words = f"{counts['anomaly_frames']} frames; chance has an AUPR of {format_number(share_of_anomalies(counts))}"
        blocks += table(f"{run.name}: {data_of(run)}; {words}", ["score", *columns.values()], rows)
    return blocks


def achieved(inputs: Inputs, promised: Row) -> Iterator[tuple[EvaluationResult, Row, float | None, str]]:
    """Yield each run that was made with a threshold: what it flagged, the loss that is bounded, and whether it keeps to the level."""
    for run in inputs.labelled:
        row = run.content.get("flagged", {}).get(promised["score"], {})
        if row and np.isclose(row["threshold"], promised["value"], rtol=1e-6, atol=0):
            loss = row.get("risk", _LOSSES.get(promised["control"], lambda _: None)(row))
            yield (
                run,
                row,
                loss,
                "not measured" if loss is None else "kept" if loss <= promised["level"] else "exceeded",
            )


def operating_point(inputs: Inputs) -> list[Block]:
    blocks = []
    for name, of in inputs.thresholds.items():
        about = {"Threshold": f"{of['score']} >= {of['value']:.6g}", "Control": of["control"], "Method": of["method"]}
        about |= {"Level": cell(of["level"]), "Confidence": cell(of["confidence"]), "Upper bound": cell(of["bound"])}
        units = f"{of['units']} of {of['unit']}; {of['minimum_units']} are the fewest"
        about |= {"Risk of the calibration units": cell(of["risk"]), "Calibration units": units}
        blocks += [text(of["promise"], "promise"), text(of["condition"]), *facts(f"Operating point, {name}", about)]
        rows = [
            [r.name, data_of(r), cell(x), kept, *(cell(row.get(k)) for k in _FLAGGED)]
            for r, row, x, kept in achieved(inputs, of)
        ]
        columns = ["result", "data", of["control"], f"at most {of['level']:g}", *_FLAGGED.values()]
        blocks += table(f"Achieved on other frames, {name}", columns, rows)
        blocks += (
            [] if rows else [text(f"Not measured on other frames: no result was made with --flag {name}.", "missing")]
        )
    return blocks


def missed_objects(run: EvaluationResult, score: str, kind: str) -> list[tuple[str, int, int]]:
    """Return name, objects and missed objects of each bin that has objects."""
    bins = run.content["scores"][score].get(kind, {})
    rows = [
        (name, of["objects"], of["found"]) for name, of in bins.items() if of["objects"] and of["found"] is not None
    ]
    return [(name, objects, objects - round(found * objects)) for name, objects, found in rows]


def residual_risk(inputs: Inputs) -> list[Block]:
    blocks = []
    for run, score in with_anomalies(inputs):
        for kind, unit in (("size", "pixels"), ("distance", "place in the frame")):
            bins = missed_objects(run, score, kind)
            rows = [[name, n, lost, cell(lost / n, bar=True), cell(upper_bound(lost, n))] for name, n, lost in bins]
            caption = f"{run.name}: {data_of(run)}; objects by {unit}, found by {title_of(score, capital=False)}"
            blocks += table(caption, [unit, "objects", "missed", "share missed", "upper bound"], rows)
    return blocks


def slices(inputs: Inputs) -> list[Block]:
    blocks, areas = [], titles(AREAS)
    for run, score in with_anomalies(inputs):
        counts = run.content["counts"].get("groups", {})
        numbers = {name: [at(run, "scores", score, "groups", name, "pooled", key) for key in areas] for name in counts}
        rows = [
            [name, of["anomaly_frames"], cell(share_of_anomalies(of)), *numbers[name]] for name, of in counts.items()
        ]
        columns = ["group", "frames", "share of anomalies", *areas.values()]
        blocks += table(f"{run.name}: {data_of(run)}; {title_of(score, capital=False)}", columns, rows)
    return blocks


def latency(inputs: Inputs) -> list[Block]:
    rows = []
    for reader in inputs.maps:
        if seconds := [record["seconds"] for record in reader.records.values() if "seconds" in record]:
            shares = [cell(1000 * float(share)) for share in np.percentile(seconds, (50, 95, 99))]
            rows.append([reader.folder.name, (reader.manifest or {}).get("device"), len(seconds), *shares])
    return table("Milliseconds of a frame", ["maps", "device", "frames", "p50", "p95", "p99"], rows)


def reviewers(inputs: Inputs) -> list[Block]:
    blocks = []
    for run in (run for run in inputs.runs if "verdicts" in run.content):
        counts, names, of = run.content["counts"], titles(JUDGED_METRICS), run.content["verdicts"]
        keys = [key for key in names if key in of["together"]]
        paths = {"together": ["together"], **{name: ["reviewers", name] for name in of["reviewers"]}}
        rows = [[name, *(at(run, "verdicts", *path, key) for key in keys)] for name, path in paths.items()]
        words = f"{counts['judged_frames']} of {counts['frames']} frames judged, {counts['disagreed_frames']} without agreement"
        blocks += table(f"{run.name}: {words}", ["reviewer", *(names[key] for key in keys)], rows)
    return blocks


def operation(inputs: Inputs) -> list[Block]:
    blocks, state = [], inputs.monitor
    if state is not None:
        about = {
            "Statistic": state["statistic"],
            "Frames": state["frames"],
            "Level of false alarms": cell(state["level"]),
        }
        about |= {"Martingale, log10": cell(state["martingale"]), "Fired": state["fired"] or "no"}
        blocks += facts(
            "Monitor", about | {f"Risk: {key}": cell(value) for key, value in (state["risk"] or {}).items()}
        )
    strongest = sorted(inputs.events or (), key=lambda event: -event["peak"]["value"])[:10]
    rows = [
        [str(e["id"]), e["start"]["frame"], e["end"]["frame"], e["frames"], e["largest"], cell(e["peak"]["value"])]
        for e in strongest
    ]
    caption = f"The strongest of {len(inputs.events or ())} events"
    return blocks + table(caption, ["event", "from", "to", "frames", "largest region, pixels", "peak"], rows)


def ethics(inputs: Inputs) -> list[Block]:
    return [text(inputs.domain.affected)] if inputs.domain.affected else []


def caveats(inputs: Inputs) -> list[Block]:
    items = [*inputs.domain.limits, *(of["condition"] for of in inputs.thresholds.values())]
    for run in inputs.runs:
        lost, why_none = (
            run.content["left_out"],
            Counter(run.content.get("bootstrap", {}).get("no_interval", {}).values()),
        )
        items += (
            [f"{run.name}: {len(lost)} frames could not be counted; the first: {lost[0]['reason']}."] if lost else []
        )
        items += [f"{run.name}: {number} numbers have no interval ({why})." for why, number in why_none.items()]
        items += [f"{run.name}: {run.content['unfinished']}."] if "unfinished" in run.content else []
    return [{"kind": "list", "items": items}] if items else []


def commands(inputs: Inputs) -> list[str]:
    """Return the recorded commands, and those that the settings of the other records make."""
    lines = [of["command"] for of in inputs.thresholds.values() if "command" in of]
    made = [
        ("predict --model MODEL --input FRAMES", (r.manifest or {}).get("run", {}), r.folder.name) for r in inputs.maps
    ]
    for run in inputs.runs:
        source = "--model MODEL" if "method" in run.content["run"] else "--maps MAPS"
        made.append(
            (f"evaluate {source}{' --verdicts FILE' * ('verdicts' in run.content)}", run.content["run"], run.path.name)
        )
    for start, record, out in made:
        keys = ["dataset", "split", "frames", "every"] + ["draws", "seed", "size", "corruption"] * (
            "--maps" not in start
        )
        given = {key: record[key] for key in keys if record.get(key) is not None}
        given |= {"size": "x".join(map(str, given["size"]))} if "size" in given else {}
        lines.append(" ".join(["segunc", start, *(f"--{key} {value}" for key, value in given.items()), "--out", out]))
    return lines


def summary(inputs: Inputs, gaps: Sequence[str]) -> list[Block]:
    """Return five lines on what may be trusted and what not, from the numbers of the sections; ``gaps`` are those without data."""
    lines = {"Classes": "", "Probabilities": "", "Unknown objects": "", "Operating point": ""}
    states = dict.fromkeys(lines, "measured")
    for run in with_classes(inputs)[:1]:
        by_class = run.content["segmentation"]["per_class"]
        (worst, low), *_, (best, high) = sorted(
            ((c, v) for c, v in by_class.items() if v is not None), key=lambda of: of[1]
        )
        lines["Classes"] = (
            f"Trust {best} most (IoU {format_number(high)}) and {worst} least ({format_number(low)}). Mean IoU is "
        )
        lines["Classes"] += f"{format_cell(run.cell(('segmentation', 'miou')))} on {data_of(run)}."
    calibrated = [run for run in with_classes(inputs) if run.numbers.get(("calibration", "ece")) is not None]
    errors = [f"{format_cell(run.cell(('calibration', 'ece')))} on {data_of(run)}" for run in calibrated[:3]]
    lines["Probabilities"] = (
        f"Confidence and accuracy differ on average by {', '.join(errors)} (ECE)." if errors else ""
    )
    for run, score in with_anomalies(inputs)[:1]:
        aupr, fpr95 = (run.cell(("scores", score, "pooled", key)) for key in ("aupr", "fpr95"))
        words = (
            f"{title_of(score)} finds anomaly pixels with an AUPR of {format_cell(aupr)} on {data_of(run)}; chance has "
        )
        words += f"{format_number(share_of_anomalies(run.content['counts']))}. At a recall of 95 % it flags {fpr95.value:.1%} of the normal pixels."
        if bins := missed_objects(run, score, "size"):
            objects, lost = (sum(column) for column in [*zip(*bins, strict=True)][1:])
            words += (
                f" With 5 % flagged it misses {lost} of {objects} objects: at most {upper_bound(lost, objects):.1%}."
            )
        lines["Unknown objects"] = words
    for of in inputs.thresholds.values():
        results = [*achieved(inputs, of)]
        words = [
            f"{'Not measured' if x is None else format_number(x)} on {data_of(run)}: {kept}."
            for run, _, x, kept in results
        ]
        lines["Operating point"] += " ".join([of["promise"], *(words or ["Not measured on other frames."]), ""])
        worst = "broken" if any(kept == "exceeded" for *_, kept in results) else "holds" if results else "open"
        states["Operating point"] = worst if states["Operating point"] != "broken" else "broken"
    made = [
        {"name": n, "state": states[n] if of else "open", "text": of.strip() or "Not measured."}
        for n, of in lines.items()
    ]
    words = f"Not measured: {', '.join(gaps)}." if gaps else "Every section has data."
    return [*made, {"name": "Gaps", "state": "open" if gaps else "measured", "text": words}]
