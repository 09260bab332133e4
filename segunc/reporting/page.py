"""What a report says: the content of ``report.json``, the records that it is made of and what follows from their counts without measuring
anything again; and, made from this content alone, its summary and its page, one file without scripts that loads nothing."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape

from segunc.core.files import file_sha256, flat
from segunc.decisions.risks import binomial_bound
from segunc.decisions.threshold import GuaranteedThreshold
from segunc.evaluation.compare import NULL, format_cell, format_number
from segunc.evaluation.flagged import JUDGED_METRICS
from segunc.evaluation.parts import AREAS, titles
from segunc.evaluation.resampling import Cell, EvaluationResult
from segunc.maps.manifest import environment, tool_commit, tool_version
from segunc.maps.reader import MapsReader
from segunc.metrics.objects import KINDS
from segunc.posteriors.model import model_files
from segunc.reporting.inputs import Inputs
from segunc.scores import first_shown, title_of
from segunc.training.config import now, read_config, recorded_data

KIND = "segunc report"
Facts = dict[str, Any]
Row = Mapping[str, Any]
# Keys of records that say something of the machine, or nothing to a reader.
_LEFT_OUT = (
    *("root", "frames", "labels", "workers", "batch_size", "eval_batch_size"),
    *("threads", "seconds", "resumed", "trained"),
)


def facts_of(inputs: Inputs, pictures: Sequence[Mapping[str, str]]) -> Facts:
    """Return what is known of a model, with the pictures of failures; ``gaps`` are the sections without data."""
    domain, trained, results = (
        inputs.domain,
        _plain(recorded_data(inputs.folder) or {}),
        [_result(inputs, run) for run in inputs.results],
    )
    thresholds = [
        {**asdict(of), "file": name, "achieved": [*_achieved(results, of)]}
        for name, of in inputs.thresholds.items()
    ]
    facts: Facts = {
        "kind": KIND,
        "version": 1,
        "made": now(),
        "name": inputs.folder.resolve().name,
        "model": _model(inputs),
    }
    facts |= {
        "tools": {"segunc": f"{tool_version()} {tool_commit() or ''}".strip(), **environment()},
        "trained": trained,
    }
    facts |= {
        "domain": _domain(inputs),
        "results": results,
        "maps": [_maps(reader) for reader in inputs.maps],
        "latency": inputs.latency,
    }
    facts |= {"thresholds": thresholds, "monitor": inputs.monitor, "failures": list(pictures)}
    files = {
        f"MODEL/{path.relative_to(inputs.folder).as_posix()}": path
        for path in model_files(inputs.folder)
    } | inputs.files
    facts["files"] = {name: file_sha256(path) for name, path in files.items()}
    data: Facts = {
        "intended use": domain.intended_use,
        "factors": domain.axes,
        "evaluation data": results,
    }
    data |= {"training data": trained, "segmentation": any(of["segmented"] for of in results)}
    data |= {"anomalies": any(of["score"] for of in results), "operating point": thresholds}
    data |= {
        "residual risk": any(of["missed"]["size"] or of["missed"]["distance"] for of in results)
    }
    data |= {
        "slices": any(of["content"]["counts"].get("groups") for of in results),
        "failures": pictures,
        "latency": inputs.latency,
    }
    data |= {
        "operation": inputs.monitor,
        "reviewers": any("verdicts" in of["content"] for of in results),
        "ethics": domain.affected,
    }
    return facts | {"gaps": [name for name, there in data.items() if not there]}


def _plain(values: Row) -> Facts:
    return {
        key: value
        for key, value in values.items()
        if key not in _LEFT_OUT and value not in (None, "")
    }


def _model(inputs: Inputs) -> Facts:
    model, network = inputs.model, inputs.model.network.description
    members = f"{model.posterior.members} member{'s' * (model.posterior.members > 1)}"
    records = (("base", network.provenance), ("posterior", model.record.get("provenance")))
    made = flat({name: _plain(record) for name, record in records if record})
    about: Facts = {
        "network": f"{network.architecture} {network.encoder}".strip(),
        "classes": list(network.classes),
    }
    about |= {
        "posterior": f"{model.posterior.method}, {members}",
        "settings": flat(model.posterior.settings()),
    }
    about |= {
        "base_sha256": model.sha256,
        "posterior_sha256": model.posterior_sha256,
        "made": made,
        "fitted": list(model.attachments),
    }
    sets = model.attachments.get("class_sets")
    return about | {"sets": sets and f"{sets.promise} {sets.condition}"}


def _domain(inputs: Inputs) -> Facts:
    """Return the domain with its cells: the values of the axes, test frames, calibration frames, and test frames that lack."""
    # The frames of results that resample frames; those of the maps where no result says them.
    runs = [
        run for run in inputs.results if run.content.get("bootstrap", {}).get("unit") == "frame"
    ]
    names = {name for run in runs if run.replicates for name in run.replicates.units}
    domain, frames = (
        inputs.domain,
        sorted(names or {name for reader in inputs.maps for name in reader.frames}),
    )
    calibrated = sorted({name for of in inputs.thresholds.values() for name in of.frames})
    tested, fitted = (Counter(domain.places(names).values()) for names in (frames, calibrated))
    cells: list[list[Any]] = [
        [*c, tested[c], fitted[c], max(domain.minimum - tested[c], 0)]
        for c in product(*domain.axes.values())
        if c
    ]
    gaps, outside = sum(bool(of[-1]) for of in cells), len(frames) - tested.total()
    return {
        **asdict(domain),
        "cells": cells,
        "gaps": gaps,
        "frames": len(frames),
        "outside": outside,
    }


def _result(inputs: Inputs, run: EvaluationResult) -> Facts:
    """Return a result: its content, what it is of, and by size, distance and group missed objects with their upper bounds."""
    content, record = run.content, run.content["run"]
    corruption = f"under {record['corruption']}" if record.get("corruption") else ""
    score = next(
        (of.score for of in inputs.thresholds.values() if of.score in content["scores"]),
        first_shown(content["scores"]),
    )
    flagged = content.get("flagged", {}).get(score, {})
    at_threshold = "promise" in flagged and any(flagged.get(kind) for kind in KINDS)
    bins = flagged if at_threshold else content["scores"].get(score, {})
    missed = {kind: _missed(bins.get(kind, {})) for kind in (*KINDS, "group")}
    data = (
        " ".join(filter(None, (record.get("dataset"), record.get("split"), corruption)))
        or "labelled frames of maps"
    )
    kept = {key: value for key, value in content.items() if key not in ("reasons", "forms")}
    detected = content["scores"].get(score, {}).get("pooled", {}).get("aupr") is not None
    about: Facts = {
        "name": run.name,
        "file": run.path.name,
        "data": data,
        "score": score if detected else None,
    }
    about["found"] = "At the threshold" if at_threshold else "With 5 % of the normal pixels flagged"
    about["segmented"] = content.get("segmentation", {}).get("miou") is not None
    return {**about, "missed": missed, "content": kept}


def _missed(bins: Row) -> list[list[Any]]:
    shares = [
        (n, of["objects"], of["found"])
        for n, of in bins.items()
        if of["objects"] and of["found"] is not None
    ]
    counts = [(name, objects, objects - round(share * objects)) for name, objects, share in shares]
    return [
        [name, objects, missed, binomial_bound(missed, objects)] for name, objects, missed in counts
    ]


def _achieved(results: Sequence[Facts], promised: GuaranteedThreshold) -> Iterator[Facts]:
    """Yield of each result that was made with a threshold, and of each risk that it bounds, the mean loss of the units and whether that keeps
    to the level. A result knows its threshold by the promise: what a bare value flags is no such loss."""
    for result in results:
        row = result["content"].get("flagged", {}).get(promised.score, {})
        made = row.get("promise") == promised.promise and math.isclose(
            row["threshold"], promised.value
        )
        for control, level in promised.levels.items() if made else ():
            loss = (row if control == promised.control else row.get(control, {})).get("risk")
            kept = "not measured" if loss is None else "kept" if loss <= level else "exceeded"
            about = {
                "name": result["name"],
                "data": result["data"],
                "control": control,
                "level": level,
            }
            yield {
                **about,
                "loss": loss,
                "kept": kept,
                "shifted": "corruption" in result["content"]["run"],
                "flagged": row,
            }


def _maps(reader: MapsReader) -> Facts:
    manifest, asked = reader.manifest or {}, ("every", "draws", "seed", "size")
    run = {key: value for key, value in manifest.get("run", {}).items() if key in asked}
    return {
        "name": reader.folder.name,
        "frames": len(reader.frames),
        "scores": reader.scores,
        "device": manifest.get("device"),
        "run": run,
    }


def summary_of(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return lines on what may be trusted and what not, made from the numbers: ``name``, ``state`` and ``text``."""
    lines = _template("summary.txt").render(facts, upper_bound=binomial_bound)
    return [json.loads(line) for line in lines.splitlines() if line]


def render(facts: Mapping[str, Any], sha256: str) -> str:
    """Return the page of a report, whose file has this SHA-256; every text in it is escaped."""
    sections = read_config(Path(__file__).parent / "assets" / "sections.yaml", own=True)
    context = {
        "sections": sections,
        "areas": titles(AREAS),
        "judged": titles(JUDGED_METRICS),
        "sha256": sha256,
    }
    return _template("page.html").render(facts, **context)


def number(result: Mapping[str, Any], *path: str) -> str:
    """Return a number of a result with its interval, as statistics writes it."""
    value: Any = result["content"]
    for key in path:
        value = (value or {}).get(key)
    return format_cell(Cell(value, result["content"]["intervals"].get(".".join(path))))


def _template(name: str) -> Template:
    settings: dict[str, Any] = {
        "undefined": StrictUndefined,
        "trim_blocks": True,
        "lstrip_blocks": True,
    }
    environment = Environment(
        loader=PackageLoader("segunc.reporting", "assets"),
        autoescape=select_autoescape(),
        **settings,
    )
    environment.filters |= {
        "number": _number,
        "title": title_of,
        "word": lambda value: shlex.quote(str(value)),
    }
    return environment.get_template(name, globals={"of": number})


def _number(value: Any) -> str:
    """Return a number as statistics writes it, whole numbers with separators, and texts as they are."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NULL if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else format_number(value)
