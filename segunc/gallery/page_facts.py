"""What the review page says of the maps it shows: their model, run and scores, and its notices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from segunc.colours import DisplayRange, colour_table
from segunc.core.files import flat
from segunc.decisions.flags import Threshold, ranking_score
from segunc.gallery.condensed import STEPS
from segunc.gallery.drawing import model_words
from segunc.gallery.frame_files import region_threshold
from segunc.maps import labelled
from segunc.maps.known_frames import note_on_known_maps
from segunc.maps.reader import MapsReader
from segunc.maps.verdicts import GRAVEST, VERDICTS
from segunc.scores import SCORES, scale_words, title_of

MAX_FACT_LENGTH = 300  # characters of a value
FOREIGN = "maps of another tool; nothing is recorded of their model"
RECORDED = ("model", "run", "tool", "device", "status")  # keys of a manifest that the page lists
# What a verdict on a region is called where the list says that it is one on a region.
REGION_WORDS = {
    "true-alarm": "true",
    "false-alarm": "false",
    "missed": "part of a missed object",
    "unsure": "unsure",
}

Fact = tuple[str, str]


def facts_of(
    reader: MapsReader,
    ranges: Mapping[str, DisplayRange],
    longest: int,
    flag: Mapping[str, Threshold],
) -> dict[str, Any]:
    """Describe the model, the run, the scores and what the page carries of the maps.

    Args:
        reader: the maps.
        ranges: of the colours of each score that is shown.
        longest: pixels of the longer side of a map on the page.
        flag: thresholds of scores, in place of those that the maps record.
    """
    manifest = reader.manifest or {}
    return {
        "title": reader.folder.resolve().name,
        "date": str(manifest.get("date", ""))[:10],  # of the maps; empty where it is not recorded
        "line": model_words(manifest) or (FOREIGN if reader.manifest is None else ""),
        "summary": summarise(manifest),
        "facts": _recorded_facts(reader, ranges, longest),
        "scores": {
            score: _score_facts(reader, score, shown, flag.get(score))
            for score, shown in ranges.items()
        },
        "ranking": ranking_score(ranges, flag) or None,
        "bank": bool(manifest.get("run", {}).get("features_sha256")),
        "second_encoder": manifest.get("model", {}).get("feature_encoder", "own") != "own",
        "colours": [
            int(red) << 16 | int(green) << 8 | int(blue) for red, green, blue in colour_table()
        ],
        "verdicts": {"frame": VERDICTS, "region": REGION_WORDS, "gravest": GRAVEST},
        "total": len(reader.frames),
        "failed": list(manifest.get("failed", [])),
    }


def _recorded_facts(
    reader: MapsReader, ranges: Mapping[str, DisplayRange], longest: int
) -> list[Fact]:
    """Return what the maps record, as pairs of dotted key and text."""
    manifest = reader.manifest or {}
    facts = [("maps", reader.folder.resolve().name)]
    recorded = {key: manifest[key] for key in RECORDED if key in manifest}
    for key, value in flat(recorded).items():
        if value is not None:
            facts.append((key, str(value)[:MAX_FACT_LENGTH]))
    carried = f"means of pixels, at most {longest} on a side, in {STEPS} steps of each map's range"
    facts.append(("Maps on this page", carried))
    left_out = [score for score in reader.scores if score not in ranges]
    if left_out:
        facts.append(("Scores left out (review --scores all)", ", ".join(left_out)))
    return facts


def _score_facts(
    reader: MapsReader, score: str, shown: DisplayRange, threshold: Threshold | None
) -> dict[str, Any]:
    """Describe a score: its words, its colours, and what is flagged by it."""
    described = (reader.manifest or {}).get("maps", {}).get(score, {})
    facts = asdict(shown)
    facts["ticks"] = shown.ticks
    facts["title"] = title_of(score, capital=False)
    prepared = "" if threshold is None else threshold.preparation.scale
    facts["words"] = prepared or scale_words(score)
    facts["preparation"] = "" if threshold is None else threshold.preparation.options
    facts["unit"] = "" if prepared else described.get("unit", "")
    entry = SCORES.get(score)
    facts["fixed_high"] = entry.colours[1] if entry is not None and entry.colours else None
    if threshold is None:
        facts["region_from"] = region_threshold(reader, score)
        facts["found_share"] = Threshold.found_share
        facts["smallest_region"] = Threshold.smallest
    else:
        facts["region_from"] = threshold.value
        facts["found_share"] = threshold.found_share
        facts["smallest_region"] = threshold.smallest
    return facts


def summarise(manifest: Mapping[str, Any]) -> list[tuple[str, list[Fact]]]:
    """Return what a reader asks of a run first: headings, each with pairs of term and text. What
    the manifest does not record is left out.
    """
    if not manifest:
        return []
    summary = []
    for heading, facts in (("Model", _model_facts(manifest)), ("Run", _run_facts(manifest))):
        recorded = [
            (term, str(value)[:MAX_FACT_LENGTH])
            for term, value in facts.items()
            if value not in (None, "")
        ]
        if recorded:
            summary.append((heading, recorded))
    return summary


def _model_facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    model = manifest.get("model", {})
    parameters = model.get("parameters", {})
    settings = [f"{name} {value}" for name, value in parameters.items() if value is not None]
    return {
        "Network": model.get("architecture"),
        "Method": model_words(manifest),
        "Settings of the method": ", ".join(settings),
    }


def _run_facts(manifest: Mapping[str, Any]) -> dict[str, Any]:
    run = manifest.get("run", {})
    tool = manifest.get("tool", {})
    version = version_words(tool.get("version"), tool.get("commit"))
    return {
        "Images": run.get("input"),
        "Size of the network's input": _input_size(manifest),
        "Draws": run.get("draws"),
        "Seed": run.get("seed"),
        "Noisy layers": run.get("scope"),
        "Device": manifest.get("device"),
        "Maps written by": f"{tool.get('name', 'segunc')} {version}" if version else None,
    }


def _input_size(manifest: Mapping[str, Any]) -> str:
    """Return the size at which the network saw the frames, as far as it is recorded."""
    size = manifest.get("run", {}).get("size")
    model = manifest.get("model", {})
    if size:
        return f"{size[1]} x {size[0]}"
    if "inference_size" not in model:
        # An earlier version recorded no size of the model.
        return "the size of the model"
    if model["inference_size"] is None:
        return "as the images"
    height, width = model["inference_size"]
    return f"about {width} x {height}, the size of the model; a frame keeps its aspect ratio"


def version_words(version: str | None, commit: str | None) -> str:
    """Return a version and the first digits of its commit, as far as they are known."""
    words = []
    if version:
        words.append(version)
    if commit:
        words.append(commit[:12])
    return " ".join(words)


def notices(
    reader: MapsReader, labels: labelled.ReviewLabels, names: Sequence[str]
) -> Iterator[str]:
    """Yield what the page says above its frames."""
    if reader.unfinished:
        yield f"This page shows what is there: {reader.unfinished}."
    if len(names) < len(reader.frames):
        yield f"The page carries the worst {len(names)} of {len(reader.frames)} frames."
    known = note_on_known_maps(reader.manifest, reader.records)
    if known:
        yield f"{known}."
    if reader.region is not None:
        yield (
            "A mask was left out of these maps: its pixels have no value and are ignored in every "
            "label."
        )
    yield from labels.gaps(len(names))
