"""The model card of a model folder, the README.md that the Hugging Face Hub shows. Its numbers come
from ``report.json``; without a report the card says that nothing was measured.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError, nearest, shortened
from segunc.core.files import file_sha256, is_record, read_json, read_text
from segunc.core.places import without_place
from segunc.core.version import tool_version
from segunc.data.datasets import data_words
from segunc.data.training_frames import epoch_words, frames_record
from segunc.decisions.states import STATES
from segunc.networks.description import COLOUR, NetworkDescription
from segunc.networks.model_folder import DESCRIPTION, POSTERIOR, WEIGHTS, read_description
from segunc.training.config import DATA, HISTORY, data_of_network, recorded_data

REPORT = "report.json"
_REPORT_KIND = "segunc report"
_REPORT_KEYS = ("model", "summary", "results", "gaps", "domain", "files", "made")
TASK = "image-segmentation"
HEADER = (
    *("license", "license_name", "license_link", "language", "tags", "datasets", "base_model"),
    "model_name",
)
"""Keys of the header of a card that a user can give."""
TEXTS = ("model_description", "repo_url", "paper_url", "docs_url")
"""Texts of a card that a user can give, in Markdown."""
_UNMEASURED = (
    "how often its classes are right",
    "whether its probabilities are calibrated",
    "whether its scores find unknown objects",
    "what it does under fog, night and other changes of the images",
    "how long it takes",
)
"""What a card without a report says."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]|#])")
"""Characters that Markdown may take for more than text."""
_ELSEWHERE = ("Gaps", "Approval")
"""Lines of a report that a card has as a section, or that are of its printed page."""
_OF_NO_MAP = (DESCRIPTION, DATA, HISTORY)
"""Files of a model whose bytes may differ from those of a report. The description of a network has
a hash of its own, which leaves its provenance out.
"""
_MAX_CLASSES = 40  # whose names are listed


@dataclass(frozen=True)
class CardOptions:
    """What the user says of a card.

    Attributes:
        report: ``report.json`` of the model, or its folder; None where there is none.
        license: identifier of the licence, such as ``mit``; None leaves it out.
        words: further keys of :data:`HEADER` and :data:`TEXTS`.
    """

    report: Path | str | None = None
    license: str | None = None
    words: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Result:
    """One number of a report, as the header of a card has it.

    Attributes:
        metric: its type on the Hub, e.g. ``mean_iou``.
        title: what readers call it.
        value: a fraction of 1.
        dataset: name of the data set.
        split: of the data set; None for labelled frames of maps.
        frames: which frames they are, in words.
        run: name of the result in the report.
    """

    metric: str
    title: str
    value: float
    dataset: str
    split: str | None
    frames: str
    run: str


@dataclass(frozen=True)
class Card:
    """What a model card says.

    Attributes:
        header: keys of the YAML header.
        tags: further tags of the header.
        results: numbers of the header; empty where nothing was measured.
        values: of the template, by name; only ``repo_id`` is missing.
    """

    header: Mapping[str, Any]
    tags: tuple[str, ...]
    values: Mapping[str, Any]
    results: tuple[Result, ...] = field(default=())


def read_template() -> str:
    """Return the Jinja template of a card."""
    return read_text(Path(__file__).parent / "model_card.template")


def make_card(folder: Path, name: str, options: CardOptions) -> Card:
    """Return the card of a model folder.

    Args:
        folder: of the model.
        name: title of the card.
        options: what the user says of it.

    Raises:
        InputError: an unknown key, or a report of another model.
    """
    words = options.words or {}
    _check_words(words)
    header = {key: words[key] for key in HEADER if key in words}
    if options.license is not None:
        header["license"] = options.license
    report = None if options.report is None else _report_path(Path(options.report))
    facts = None if report is None else _read_report(report, folder)
    network, digest = _described(folder)
    posterior = _posterior_json(folder)
    results = () if facts is None else tuple(_results(facts))
    links = [(key.removesuffix("_url"), words[key]) for key in TEXTS[1:] if words.get(key)]
    values = {
        "title": _cell(header.get("model_name") or name),
        "opening": _opening(network, posterior),
        "model_description": words.get("model_description", ""),
        "needs_network": not network.architecture,
        "image": _image(network),
        "how_to_load": _how_to_load(folder, network),
        "facts": [*_facts(folder, network, posterior), ("SHA-256 of the network", digest)],
        "licence": _licence(header),
        "links": links,
        **_measured(facts),
    }
    if facts is not None and report is not None:
        values["report_sha256"] = file_sha256(report)
        values["report_made"] = _cell(facts["made"])
    method = str(posterior.get("method", "")).strip()
    tags = [*_list_of(header.pop("tags", [])), *([method] if method else [])]
    return Card(header, tuple(tags), values, results)


def _check_words(words: Mapping[str, Any]) -> None:
    """Raise InputError for a word that no card has."""
    known = (*HEADER, *TEXTS)
    for key in words:
        if key not in known:
            raise InputError(
                f"model_card_kwargs has the unknown key '{key}'{nearest(key, known)}",
                hint=f"the keys are {', '.join(known)}",
            )


def _list_of(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) else list(value)


def _cell(value: Any) -> str:
    """Return a value as text of one line that Markdown shows as it is."""
    text = " ".join(without_place(str(value)).split())
    return _SPECIAL.sub(r"\\\1", html.escape(text, quote=False))


def _described(folder: Path) -> tuple[NetworkDescription, str]:
    """Return the description of the network and its hash, of an ensemble those of its first
    member.
    """
    for path in (folder / DESCRIPTION, folder / "members" / "0" / DESCRIPTION):
        if path.exists():
            description, digest, _ = read_description(path)
            return description, str(digest)
    raise InputError(f"model folder {folder} holds no {DESCRIPTION}", hint="save the model again")


def _posterior_json(folder: Path) -> dict[str, Any]:
    """Return the record of the posterior; empty for a deterministic network."""
    path = folder / POSTERIOR
    return read_json(path, "the description of a posterior") if path.exists() else {}


def _opening(network: NetworkDescription, posterior: Mapping[str, Any]) -> str:
    kind = "A Bayesian" if posterior else "A"
    classes = network.num_classes
    return (
        f"{kind} semantic segmentation network of {classes} classes that says for each pixel how "
        f"far its prediction can be trusted. This card was written by segunc {tool_version()}."
    )


def _how_to_load(folder: Path, network: NetworkDescription) -> list[str]:
    """Return what a reader must know of a network whose code is not part of a library."""
    if not network.architecture:
        held = "neither code nor weights"
        needed = "torch module with the weights that have the SHA-256 below"
        if (folder / WEIGHTS).exists():
            held = "the weights and no code"
            needed = "torch module that these weights belong to"
        return [f"The repository holds {held} of the network. `net` is the {needed}."]
    if network.kind != "python":
        return []
    name = network.architecture
    return [
        f"The network is made by the function `{name}`, whose code is not in this repository. "
        "It runs only after you agreed to it on your machine: "
        f"`segunc import python:{name} --trust`."
    ]


def _facts(
    folder: Path, network: NetworkDescription, posterior: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield name and value of what the model folder says of its model."""
    architecture = f"{network.architecture} {network.encoder}".strip()
    yield "network", _cell(architecture or "a torch module without a name")
    if posterior:
        members = posterior.get("members")
        of_members = "" if members is None else f", members: {members}"
        yield "posterior", _cell(f"{posterior.get('method')}{of_members}")
    else:
        yield "posterior", "none: the network is deterministic"
    fitted = [path.stem for path in sorted(folder.glob("*.json")) if _is_fitted(path)]
    yield "fitted on it", _cell(", ".join(fitted) or "nothing")
    names = network.classes
    more = f", and {len(names) - _MAX_CLASSES} more" if len(names) > _MAX_CLASSES else ""
    yield "classes", _cell(f"{len(names)}: {', '.join(names[:_MAX_CLASSES])}{more}")
    size = network.inference_size
    shown = f"{size[0]} x {size[1]} (height x width)" if size else "as the frame has it"
    yield "size of the network's input", _cell(shown)
    yield "training data", _cell(_training_data(folder, network))
    source = network.provenance.get("hub")
    if source:
        yield "loaded from", _cell(f"{source['repository']} at {source['revision']}")


def _image(network: NetworkDescription) -> str:
    """Return what images the model takes, in words."""
    if network.channels == COLOUR:
        return "RGB uint8 [H, W, 3]"
    return f"uint8 [H, W, {network.channels}], channels in the order of mean and std"


def _is_fitted(path: Path) -> bool:
    """Return whether a file is the record of what was fitted on the model."""
    others = (DESCRIPTION, POSTERIOR, DATA, HISTORY)
    return path.name not in others and "base_sha256" in read_json(path, "a record")


def _training_data(folder: Path, network: NetworkDescription) -> str:
    recorded = recorded_data(folder) or {}
    trained = data_of_network(network.provenance, recorded)
    name = trained.get("dataset") or network.provenance.get("dataset")
    if not name:
        return "not recorded"
    root = recorded.get("root") if recorded.get("dataset") == name else None
    name = data_words(name, folder=without_place(str(root)) if root else "")
    # An imported network has no record of its training: here it was only converted with these data.
    if trained.get("validation") and "epochs" in network.provenance:
        words = epoch_words(trained["validation"], frames_record(network.provenance))
        return f"{name}; {words}"
    return name


def _licence(header: Mapping[str, Any]) -> str:
    """Return the sentence on the licence."""
    if not header.get("license"):
        return "The author states no licence. Ask the author before you use the model."
    name = header.get("license_name") or header["license"]
    link = header.get("license_link")
    return f"{_cell(name)}{f': {link}' if link else ''}"


def _report_path(path: Path) -> Path:
    return path / REPORT if path.is_dir() else path


def _read_report(path: Path, folder: Path) -> dict[str, Any]:
    """Return the content of a report; InputError where it is of another model than the folder's."""
    facts = read_json(path, "a report")
    whole = facts.get("kind") == _REPORT_KIND and set(_REPORT_KEYS) <= facts.keys()
    if not whole:
        raise InputError(f"{path} is not a report of segunc", hint="make it with segunc report")
    theirs = {}
    for name, digest in facts["files"].items():
        if name.startswith("MODEL/") and name.rpartition("/")[2] not in _OF_NO_MAP:
            theirs[name.removeprefix("MODEL/")] = digest
    ours = {}
    for file in folder.rglob("*"):
        name = file.relative_to(folder).as_posix()
        if name in theirs or file.suffix == ".safetensors" or is_record(file):
            ours[name] = file_sha256(file)
    same_base = facts["model"].get("base_sha256") == _described(folder)[1]
    if same_base and theirs == ours:
        return facts
    differing = sorted(
        name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)
    ) or [DESCRIPTION]
    raise InputError(
        f"{path} is of another model: {differing[0]} differs",
        hint="make the report again of the model that is pushed",
    )


def _results(facts: Mapping[str, Any]) -> Iterator[Result]:
    """Yield the numbers of a report that the header of a card has."""
    for result in facts["results"]:
        record = result["content"]["run"]
        for metric, title, value, frames in _numbers(result):
            if value is not None:
                yield Result(
                    metric=metric,
                    title=title,
                    value=value,
                    dataset=record.get("dataset") or "labelled-frames",
                    split=record.get("split"),
                    frames=without_place(frames),
                    run=without_place(result["name"]),
                )


def _numbers(result: Mapping[str, Any]) -> Iterator[tuple[str, str, float | None, str]]:
    """Yield type, title, value and frames of the numbers of one result."""
    content = result["content"]
    if result["segmented"]:
        yield "mean_iou", "mean IoU", content["segmentation"]["miou"], result["labelled"]
        yield "ece", "ECE", content["calibration"].get("ece"), result["labelled"]
    score = result["score"]
    if score:
        pooled = content["scores"][score]["pooled"]
        frames = result["with_anomalies"]
        yield "average_precision", f"AUPR of {score}", pooled.get("aupr"), frames
        yield "roc_auc", f"AUROC of {score}", pooled.get("auroc"), frames
        yield "fpr95", f"FPR95 of {score}", pooled.get("fpr95"), frames


def _measured(facts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the card says of measurements."""
    if facts is None:
        return {"lines": [], "rows": [], "gaps": _UNMEASURED, "words": []}
    lines = []
    for line in facts["summary"]:
        if line["name"] in _ELSEWHERE:
            continue
        state = STATES.get(line["state"], line["state"])
        lines.append(
            {"name": _cell(line["name"]), "state": _cell(state), "text": _cell(line["text"])}
        )
    rows = [_row(result) for result in facts["results"] if result["segmented"] or result["score"]]
    gaps = [_cell(gap) for gap in facts["gaps"]] or ["Every section of the report has data."]
    return {"lines": lines, "rows": rows, "gaps": gaps, "words": _operator_words(facts["domain"])}


def _row(result: Mapping[str, Any]) -> list[str]:
    """Return the cells of one result: frames, mean IoU, ECE, score, AUPR, FPR95."""
    score = result["score"]
    frames = result["labelled"] if result["segmented"] else result["with_anomalies"]
    of_score = ["-", "-", "-"]
    if score:
        pooled = ("scores", score, "pooled")
        of_score = [
            _cell(score),
            _number(result, (*pooled, "aupr")),
            _number(result, (*pooled, "fpr95")),
        ]
    return [
        _cell(frames),
        _number(result, ("segmentation", "miou")),
        _number(result, ("calibration", "ece")),
        *of_score,
    ]


def _number(result: Mapping[str, Any], path: Sequence[str]) -> str:
    """Return a number of a result with its interval, or a dash where it was not measured."""
    value: Any = result["content"]
    for key in path:
        value = (value or {}).get(key)
    if value is None:
        return "-"
    interval = result["content"]["intervals"].get(".".join(path))
    shown = f"{value:.3g}"
    return f"{shown} ({interval[0]:.3g} to {interval[1]:.3g})" if interval else shown


def _operator_words(domain: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return heading and lines of what the operator says of the use of the model."""
    headings = {
        "Intended use": [domain.get("intended_use"), domain.get("users")],
        "Out of scope": domain.get("out_of_scope") or [],
        "Limits": domain.get("limits") or [],
        "Who can be harmed by an error": [domain.get("affected")],
    }
    words = []
    for heading, items in headings.items():
        shown = [_cell(shortened(str(item), 2000)) for item in items if item]
        if shown:
            words.append((heading, shown))
    return words
