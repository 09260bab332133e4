"""``segunc report``: what is known of a model as ``report.json``, and as one page that is made from it."""

from __future__ import annotations

import csv
import hashlib
import io
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from segunc.core.errors import InputError
from segunc.core.files import read_bytes, read_json, write_file, write_json
from segunc.data.datasets import entry_of_labels
from segunc.maps.labelled import LabelSources
from segunc.maps.manifest import tool_version
from segunc.options import ReportOptions, takes
from segunc.posteriors.model import model_files
from segunc.reporting import sections
from segunc.reporting.failures import failures
from segunc.reporting.inputs import Inputs
from segunc.reporting.page import render
from segunc.training.config import now, read_config
from segunc.verbs.evaluate import label_arguments

KIND = "segunc report"


class ReportResult(NamedTuple):
    """What was written."""

    path: Path  # of report.json
    page: Path  # to open in a browser, or to print
    summary: tuple[str, ...]  # its five lines
    sha256: str  # of report.json


@takes(ReportOptions)
def report(options: ReportOptions) -> ReportResult:
    """Gather what was measured of a model, and write ``report.json`` and the page made from it.

    Raises:
        InputError: inputs of different models or another version, or none.

    >>> report(model=abnn, runs=[metrics], out=folder / "report").page.name
    'index.html'
    """
    out, folder = Path(options.out), Path(options.model)
    path, page = out / "report.json", out / "index.html"
    if page.exists() and not (path.exists() and read_json(path, "a report").get("kind") == KIND):
        raise InputError(f"{out} holds another page", hint="give a new folder as --out")
    runs, maps, thresholds = ([Path(name) for name in given or ()] for given in (options.runs, options.maps, options.threshold))
    monitor, events, domain = (name and Path(name) for name in (options.monitor, options.events, options.domain))
    inputs = Inputs(folder, runs, maps, thresholds, monitor, events, domain)
    content = build(inputs, options)
    out.mkdir(parents=True, exist_ok=True)
    write_json(path, content)
    written = read_bytes(path)
    sha256 = hashlib.sha256(written).hexdigest()
    write_file(page, render(read_json(path, "a report"), sha256).encode())
    return ReportResult(path, page.resolve(), tuple(f"{of['name']}: {of['text']}" for of in content["summary"]), sha256)


def build(inputs: Inputs, options: ReportOptions) -> dict[str, Any]:
    """Return the content of ``report.json``."""
    assets = resources.files("segunc.reporting") / "assets"
    with resources.as_file(assets / "sections.yaml") as words:
        titles = read_config(words)
    entry = entry_of_labels(options.dataset, options.label_map, list(options.anomaly_class))
    labels = LabelSources(**label_arguments(options, entry))
    given = labels.labels is not None or labels.anomaly_labels is not None
    pictures = [of for reader in inputs.maps if given for of in failures(reader, labels, inputs.thresholds)]
    header, *rows = csv.reader(io.StringIO((assets / "standards.csv").read_text(encoding="utf-8")))
    files = {path.relative_to(inputs.folder).as_posix(): path for path in model_files(inputs.folder)}
    files |= {path.name: path for path in inputs.files}
    hashes = [[name, hashlib.sha256(read_bytes(path)).hexdigest()] for name, path in files.items()]
    special = {
        "analyses": [],
        "failures": [{"kind": "pictures", "items": pictures}] if pictures else [],
        "provenance": [{"kind": "commands", "items": sections.commands(inputs)}, *sections.table("Files", ["file", "SHA-256"], hashes)],
        "standards": sections.table("Questions that a section helps to answer", header, rows),
    }
    made, gaps = [], []
    for key, about in titles.items():
        blocks = special[key] if key in special else getattr(sections, key)(inputs)
        if not blocks and "missing" in about:
            blocks = [{"kind": "missing", "text": f"Not measured: {about['missing']}.", "command": about.get("command", "")}]
            gaps.append(about["title"].partition(":")[0].lower())
        made.append({"key": key, "title": about["title"], "level": about["level"], "blocks": blocks, "note": about.get("note", "")})
    title = f"Report on the model {inputs.folder.resolve().name}"
    about_tool = f"segunc {tool_version()}, {now()}"
    return {"kind": KIND, "version": 1, "title": title, "subtitle": about_tool, "summary": sections.summary(inputs, gaps), "sections": made}
