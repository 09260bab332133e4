"""``segunc report``: what is known of a model as ``report.json``, and as one page that is made from
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import file_sha256, read_json, write_file, write_json
from segunc.core.results import VerbResult
from segunc.core.urls import local_folder
from segunc.options import ReportOptions, is_source, several, takes
from segunc.reporting.facts import KIND, facts_of
from segunc.reporting.failures import failures
from segunc.reporting.inputs import GIVEN, Inputs
from segunc.reporting.rendering import render
from segunc.reporting.summary_lines import summary_of
from segunc.training.config import list_of_frames, recorded_data
from segunc.verbs.evaluate import label_sources
from segunc.verbs.model_cache import model_folder


@dataclass(frozen=True, repr=False)
class ReportResult(VerbResult):
    """What was written.

    Attributes:
        path: the file report.json.
        page: the page, to open in a browser or to print.
        summary: the lines of the summary.
        sha256: the SHA-256 of report.json.
        notes: what a user should know.
    """

    path: Path
    page: Path
    summary: tuple[str, ...]
    sha256: str
    notes: tuple[str, ...] = ()


@takes(ReportOptions)
def report(options: ReportOptions) -> ReportResult:
    """Gather what was measured of a model, and write ``report.json`` and the page made from it.

    Raises:
        InputError: inputs of different models or another version, or none.

    >>> report(model=abnn, runs=[metrics], out=folder / "report").page.name
    'index.html'
    """
    out = Path(options.out)
    path = out / "report.json"
    page = out / "index.html"
    if page.exists() and not _is_report(path):
        raise InputError(f"{out} holds another page", hint="give a new folder as --out")
    paths_by_option = {}
    for name in GIVEN:
        paths = several(getattr(options, name) or ())
        paths_by_option[name] = [Path(path) for path in paths]
    paths_by_option["maps"] = [local_folder(path) for path in several(options.maps or ())]
    folder = model_folder(options.model, trust=options.trust)
    source = str(options.model) if is_source(options.model) else ""
    inputs = Inputs(folder, paths_by_option, source)
    labels = label_sources(options)
    unlabelled: list[str] = []
    facts = facts_of(inputs, failures(inputs, labels, unlabelled))
    write_json(path, facts | {"summary": summary_of(facts)})
    content = read_json(path, "a report")
    sha256 = file_sha256(path)
    write_file(page, render(content, sha256).encode())
    return ReportResult(
        path=path,
        page=page.resolve(),
        summary=tuple(f"{line['name']}: {line['text']}" for line in content["summary"]),
        sha256=sha256,
        notes=(
            *labels.notes,
            *unlabelled,
            *_note_on_list(inputs),
            *(reader.unfinished for reader in inputs.maps if reader.unfinished),
        ),
    )


def _note_on_list(inputs: Inputs) -> Iterator[str]:
    """Yield a note if the list of frames is not as it was when the network was trained."""
    data = recorded_data(inputs.folder) or {}
    trained = inputs.model.network.description.provenance.get("frames_sha256")
    now = list_of_frames(data).get("frames_sha256")
    if trained and now and trained != now:
        yield (
            f"{data['frames']} is not the list of frames that the network was trained with: it has "
            "changed since, or is another one, so results with it may be of training frames"
        )


def _is_report(path: Path) -> bool:
    """Return whether a file is the record of an earlier report."""
    if not path.exists():
        return False
    kind: object = read_json(path, "a report").get("kind")
    return kind == KIND
