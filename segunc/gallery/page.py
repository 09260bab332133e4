"""The static review page of a maps folder: the files of each frame, and the tables of what is known
of them.

A page from ``file://`` may not fetch its neighbours, and a canvas that such an image was drawn on
cannot be read back. A ``<script>`` may be loaded, so a map becomes one call with its content:
bytes, as differences to the row above modulo 256, in a zlib stream, in base64. Those of a label are
its ids, those of a score what :func:`condense` gives.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import flat, json_bytes, parse_json, read_bytes
from segunc.core.removal import Ledger
from segunc.data.images import Image, resize_nearest
from segunc.decisions.flags import Threshold, check_promises, smallest_object_of
from segunc.gallery import overlay
from segunc.gallery.alarms import Alarm, find_alarms, join_alarms
from segunc.maps import labelled
from segunc.maps.encoding import encode_jpeg, is_flagged
from segunc.maps.folder import PREDICTION
from segunc.maps.labelled import Label
from segunc.maps.manifest import tool_commit, tool_version
from segunc.maps.reader import MapsReader
from segunc.maps.regions import map_statistics, regions_of, strongest_regions
from segunc.maps.shards import STATISTICS, every_of, frame_times
from segunc.maps.verdicts import FORMAT, FORMAT_VERSION, GRAVEST, VERDICTS, Verdict
from segunc.metrics.objects import SMALLEST_OBJECT, Objects, found_up_to, no_specks
from segunc.scores import first_shown, scale_words, title_of

PAGE_NAME = "review.json"
PAGE_FORMAT = "segunc-review"
_LONGEST_FACT = 300  # characters of a value
FRAMES, THUMBNAILS, TABLES, ASSETS = "frames", "thumbnails", "data", "assets"
INDEX = "index.html"
PARTS = (INDEX, FRAMES, THUMBNAILS, TABLES, ASSETS)  # of a page; the first opens it
# What stands beside the scores and `prediction`. A score may be called anomaly, and none has a
# slash in its name.
IMAGE, ANOMALY, TRUTH = "image", "label/anomaly", "label/truth"
THUMBNAIL_WIDTH = 320
LONGEST_SIDE = 960  # pixels of the longer side of a map on the page, at most
STEPS, NO_NUMBER = 254, 255  # of a map's own range; the code of NaN and infinities
# What a verdict on a region is called where the list says that it is one on a region.
REGION_WORDS = {
    "true-alarm": "true",
    "false-alarm": "false",
    "missed": "part of a missed object",
    "unsure": "unsure",
}

Values = npt.NDArray[np.float32]


def write_review(
    maps: Path,
    out: Path,
    labels: labelled.LabelSources = overlay.NO_LABELS,
    on_frame: Callable[[int, int], None] = lambda done, total: None,
    *,
    images: str | None = None,
    scores: Sequence[str] | None = None,
    apart: float = 5.0,
    fps: float | None = None,
    limit: int | None = None,
    blind: str = "auto",
    flag: Mapping[str, Threshold] | None = None,
) -> Path:
    """Write the review page of a maps folder and return the path of its ``index.html``; an earlier
    page is replaced. ``review.json`` beside it lists notices and the problems of frames.
    ``on_frame`` is told frames done and their total; the settings are those of
    :class:`segunc.options.ReviewOptions`.

    InputError for no maps, an unknown score, no images there or an output folder of another kind;
    PartialFailure where no label belongs to a frame.
    """
    reader = labelled.open_maps(maps)
    shown = labelled.choose_scores(
        reader, None if scores == ["all"] else scores or overlay.usual_scores(reader)
    )
    rows = _choose_frames(reader, limit, fps)
    names = [row.name for row in rows]
    frame_labels = labels.find(reader, names)
    check_promises(flag := flag or {}, (reader.manifest or {}).get("run", {}))
    notices = [
        *(of.statement for of in flag.values() if of.promise),
        *_notices(reader, frame_labels, names),
    ]
    source, missing = labelled.open_images(reader, images, names)
    files = Ledger(out)
    record = _begin(reader, files) | {"scores": shown, "frames": len(rows)}
    size = (reader.manifest or {}).get("run", {}).get("size")
    longest = min(LONGEST_SIDE, max(size or [LONGEST_SIDE]))  # no more than the network has seen
    ranges = overlay.page_ranges(reader, shown)
    writer = FrameFiles(files, reader, shown, ranges, frame_labels, longest, flag)
    by_name = {row.name: row for row in rows}
    for done, (name, image, error) in enumerate(labelled.with_images(names, source), start=1):
        if error is not None:
            by_name[name].problems.append(error)
        writer.write(by_name[name], image)
        on_frame(done, len(rows))
    if missing or (without := sum(IMAGE not in row.contents for row in rows)):
        notices.append(
            missing or f"{without} of {len(rows)} frames have no image; their maps are shown alone."
        )
    rate = fps or (reader.manifest or {}).get("source", {}).get("fps")
    page = _about(reader, ranges, longest) | {
        "run": record["run"],
        "written": record["tool"],
        "classes": overlay.class_colours(reader, labels.label_map),
        "fps": rate and rate / every_of(reader.manifest),
        "apart": apart,
        "blind": {"yes": True, "no": False}.get(blind),
        "notices": notices,
    }
    # Frames that are left out, or have no times, are no sequence.
    sequence = len(rows) == len(reader.frames) and all(row.time is not None for row in rows)
    page["events"] = join_alarms(rows) if sequence else []
    page["objects"] = {"smallest": smallest_object_of(flag)}
    for score, entry in page["scores"].items():
        entry["found_share"] = flag.get(score, Threshold).found_share
        entry["smallest_region"] = flag.get(score, Threshold).smallest
        entry["region_from"] = flag[score].value if score in flag else entry["region_from"]
    write_data(files, "page", page)
    write_data(files, "frames", [asdict(row) for row in rows])
    write_verdicts(out, record["run"], [], files)
    problems = {row.name: row.problems for row in rows if row.problems}
    ended = {"status": "finished", "notices": notices, "problems": problems}
    files.write(PAGE_NAME, json_bytes(record | ended))
    return _write_assets(files, str(page["title"]))  # last, so that a page that opens is whole


def run_id(reader: MapsReader) -> str:
    """Return sixteen hexadecimal digits that name the run under review, also when it goes on: of
    its settings and model, or of folder, scores and frames of another tool's maps.
    """
    if reader.manifest is not None:
        content: Any = [
            reader.manifest.get("run"),
            reader.manifest.get("model"),
            reader.manifest.get("source"),
        ]
    else:
        content = [reader.folder.resolve().name, reader.scores, reader.frames]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _about(
    reader: MapsReader, ranges: Mapping[str, overlay.DisplayRange], longest: int
) -> dict[str, Any]:
    """Describe the model, the run, the scores and what the page carries of the maps; facts are
    pairs of dotted key and text.
    """
    manifest, title = reader.manifest or {}, reader.folder.resolve().name
    recorded = flat(
        {
            key: manifest[key]
            for key in ("model", "run", "tool", "device", "status")
            if key in manifest
        }
    )
    facts = [
        ("maps", title),
        *(
            (key, str(value)[:_LONGEST_FACT])
            for key, value in recorded.items()
            if value is not None
        ),
    ]
    facts.append(
        (
            "Maps on this page",
            f"means of pixels, at most {longest} on a side, in {STEPS} steps of each map's range",
        )
    )
    if left_out := [score for score in reader.scores if score not in ranges]:
        facts.append(("Scores left out (review --scores all)", ", ".join(left_out)))
    foreign = (
        "maps of another tool; nothing is recorded of their model"
        if reader.manifest is None
        else ""
    )
    scores: dict[str, Any] = {
        score: asdict(shown) | {"ticks": shown.ticks} for score, shown in ranges.items()
    }
    for score, entry in scores.items():
        described = manifest.get("maps", {}).get(score, {})
        entry |= {"title": title_of(score, capital=False), "words": scale_words(score)}
        entry |= {
            "unit": described.get("unit", ""),
            "region_from": described.get("component_threshold"),
        }
    return {
        "title": title,
        "line": overlay.model_words(manifest) or foreign,
        "summary": _summarise(manifest),
        "facts": facts,
        "scores": scores,
        "ranking": first_shown(ranges) or None,
        "second_encoder": manifest.get("model", {}).get("feature_encoder", "own") != "own",
        "colours": [
            int(red) << 16 | int(green) << 8 | int(blue)
            for red, green, blue in overlay.colour_table()
        ],
        "verdicts": {"frame": VERDICTS, "region": REGION_WORDS, "gravest": GRAVEST},
        "total": len(reader.frames),
        "failed": list(manifest.get("failed", [])),
    }


def _summarise(manifest: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return what a reader asks of a run first: headings, each with pairs of term and text. What
    the manifest does not record is left out."""
    model = manifest.get("model", {})
    run = manifest.get("run", {})
    tool = manifest.get("tool", {})
    size = run.get("size")
    parameters = model.get("parameters", {})
    settings = [f"{name} {value}" for name, value in parameters.items() if value is not None]
    version = " ".join(filter(None, (tool.get("version"), (tool.get("commit") or "")[:12])))
    sections = {
        "Model": {
            "Network": model.get("architecture"),
            "Method": overlay.model_words(manifest),
            "Settings of the method": ", ".join(settings),
        },
        "Run": {
            "Images": run.get("input"),
            "Size of the network's input": f"{size[1]} x {size[0]}" if size else "as the images",
            "Draws": run.get("draws"),
            "Seed": run.get("seed"),
            "Noisy layers": run.get("scope"),
            "Device": manifest.get("device"),
            "Maps written by": f"{tool.get('name', 'segunc')} {version}" if version else None,
        },
    }
    summary = []
    for heading, facts in sections.items() if manifest else ():
        known = [
            (term, str(text)[:_LONGEST_FACT])
            for term, text in facts.items()
            if text not in (None, "")
        ]
        if known:
            summary.append((heading, known))
    return summary


def _notices(
    reader: MapsReader, labels: labelled.ReviewLabels, names: Sequence[str]
) -> Iterator[str]:
    """Yield what the page says above its frames."""
    if reader.unfinished:
        yield f"This page shows what was finished: {reader.unfinished}."
    if len(names) < len(reader.frames):
        yield f"The page carries the worst {len(names)} of {len(reader.frames)} frames."
    if reader.region is not None:
        yield "A mask was left out of these maps: its pixels are 0 in every map and ignored in every label."
    yield from labels.gaps(len(names))


def _choose_frames(reader: MapsReader, limit: int | None, fps: float | None) -> list[FrameRow]:
    """Return rows for all frames, or for the ``limit`` worst frames, in source order."""
    times = frame_times(reader.frames, reader.records, reader.manifest, fps)
    rows = [
        FrameRow(name, place, time)
        for place, (name, time) in enumerate(zip(reader.frames, times, strict=True))
    ]
    score = first_shown(reader.scores)
    threshold = FrameFiles.region_from(reader, score) if score else None

    def strength(row: FrameRow) -> tuple[float, float]:
        """Of the strongest region, and the mean for frames without one, as the page sorts them."""
        recorded = reader.records.get(row.name, {})
        region, mean = (recorded.get(name, {}).get(score) for name in ("region", "mean"))
        if reader.has(row.name, score) and (
            mean is None or (region is None and threshold is not None)
        ):
            values = reader.read(row.name, score)
            mean = values.mean(dtype="float64")
            if threshold is not None:
                region = max(regions_of(values, threshold)[2].tolist(), default=0.0)
        mean = -math.inf if mean is None else float(mean)
        return (mean if region is None else float(region)), mean

    worst = rows if limit is None else sorted(rows, key=strength, reverse=True)[:limit]
    return sorted(worst, key=lambda row: row.place)


def _begin(reader: MapsReader, files: Ledger) -> dict[str, Any]:
    """Make the folder without what an earlier page left, and return the record of the page, written
    there.
    """
    out = files.folder
    foreign, place, maps = reader.manifest is None, out.resolve(), reader.folder.resolve()
    if place == maps or (foreign and place.is_relative_to(maps)):
        # Pictures of a page inside of another tool's maps would be taken for maps the next time.
        raise InputError(
            f"output {out} is or lies inside the maps folder {reader.folder}",
            hint="give another --out",
        )
    ours = page_of(out) is not None
    if out.is_dir() and any(out.iterdir()) and not ours:
        raise InputError(
            f"output {out} holds other files", hint="give an empty or new folder as --out"
        )
    if ours and not files.listed:
        raise InputError(
            f"{out} holds a review page of an earlier version, which lists none of its files",
            hint=f"give another --out, or remove {out} yourself",
        )
    out.mkdir(parents=True, exist_ok=True)
    files.check([*PARTS, PAGE_NAME])
    files.clear(PARTS)
    files.forget(but=[PAGE_NAME])
    tool = " ".join(filter(None, ("segunc", tool_version(), (tool_commit() or "")[:12])))
    record = {
        "format": PAGE_FORMAT,
        "format_version": 1,
        "run": run_id(reader),
        "tool": tool,
        "maps": str(reader.folder),
    }
    files.write(PAGE_NAME, json_bytes(record | {"status": "being written"}))
    return record


def _write_assets(files: Ledger, title: str) -> Path:
    assets = resources.files("segunc.gallery") / "assets"
    for asset in assets.iterdir():
        if asset.name.endswith((".js", ".css")):
            files.write(f"{ASSETS}/{asset.name}", asset.read_bytes())
    template = (assets / INDEX).read_text(encoding="utf-8")
    files.write(INDEX, template.replace("{{title}}", html.escape(title)).encode())
    return files.folder / INDEX


def write_verdicts(
    out: Path, run: str, verdicts: Sequence[Verdict], files: Ledger | None = None
) -> Path:
    """Write the script through which a page shows imported verdicts, and return its path; ``files``
    lists those of the page in ``out``."""
    content = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "run": run,
        "verdicts": [asdict(one) for one in verdicts],
    }
    files = files or Ledger(out)
    # A page of an earlier version lists no files, and still takes verdicts.
    return write_data(files, "verdicts", content, replace=not files.listed)


def page_of(out: Path) -> dict[str, Any] | None:
    """Return the record of a page's folder; None for any other folder."""
    try:
        content = parse_json(read_bytes(out / PAGE_NAME))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and content.get("format") == PAGE_FORMAT else None


def condense(
    values: Values | Label, longest: int, threshold: float | None = None
) -> tuple[npt.NDArray[np.uint8], dict[str, float]]:
    """Return a map as codes of one byte, and what turns codes into values again.

    A value is ``low + (code + shift) / 254 * (high - low)``, cut to ``low..high``; it differs from
    the map by half a step at most. A map that is shrunk holds means of pixels.

    Args:
        values: a score ``[H, W]``, or a label, uint8, whose codes are its ids.
        longest: pixels of the longer side of the codes, at most.
        threshold: a step ends there: values at or above it never share a code with values below.

    Returns:
        The codes, 255 where a value is not finite, and ``low``, ``high`` and ``shift`` (steps).
    """
    if values.dtype == np.uint8:
        height, width = _fitting(values.shape, longest)
        return resize_nearest(values.astype(np.uint8), width, height), {}
    small = _shrink(values, longest)
    finite = np.isfinite(small)
    low, high = (
        (float(small[finite].min()), float(small[finite].max())) if finite.any() else (0.0, 0.0)
    )
    steps = (np.where(finite, small, low) - low) * (STEPS / (high - low) if high > low else 0)
    shift = 0.0
    first_flagged = 0
    if threshold is not None and low < threshold <= high:
        steps_below = (threshold - low) / (high - low) * STEPS
        first_flagged = math.ceil(steps_below)
        shift = steps_below - (first_flagged - 0.5)
    codes = np.clip(np.rint(steps - np.float32(shift)), 0, STEPS)
    if threshold is not None and first_flagged:
        # Float32 may round a value that lies next to the threshold to the wrong side.
        flagged = is_flagged(small, threshold)
        codes = np.where(
            flagged, np.maximum(codes, first_flagged), np.minimum(codes, first_flagged - 1)
        )
    ends = {"low": low, "high": high, "shift": shift}
    return np.where(finite, codes, NO_NUMBER).astype(np.uint8), ends


def write_data(files: Ledger, key: str, content: Any, *, replace: bool = False) -> Path:
    """Write a table as a script that hands it to the page under ``key``, and return its path: a
    browser parses JSON in a string several times faster than the same text as an expression.
    ``replace`` is that of :meth:`segunc.core.removal.Ledger.write`."""
    text = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    script = f"segunc.receive({json.dumps(key)}, JSON.parse({json.dumps(text)}));\n"
    name = f"{TABLES}/{key}.js"
    files.write(name, script.encode(), replace=replace)
    return files.folder / name


def labelled_objects(
    anomaly: Label, smallest: int = SMALLEST_OBJECT
) -> tuple[Objects, npt.NDArray[np.bool_]]:
    """Return the objects of an anomaly label ``[H, W]``, and which of them count, ``[N]``: those
    that are no specks, or else all.
    """
    objects = Objects.of(anomaly)
    return objects, no_specks(objects.pixels, smallest)


@dataclass
class FrameRow:
    """What the page's table holds of a frame."""

    name: str
    place: int  # in the order of the source, names the frame's folder
    time: float | None = None  # seconds from the start of a video
    size: tuple[int, ...] | None = None  # height and width of its maps in pixels
    contents: list[str] = field(default_factory=list)  # image, prediction, scores, anomaly, truth
    statistics: dict[str, dict[str, float]] = field(
        default_factory=dict
    )  # score -> statistic -> value
    objects: int | None = None  # labelled ones; None without an anomaly label
    # score -> found_up_to of each labelled object that counts
    found: dict[str, list[float]] = field(default_factory=dict)
    # score -> peak and area (pixels) of its strongest region; none where nothing is flagged
    strongest: dict[str, dict[str, float]] = field(default_factory=dict)
    alarms: list[Alarm] = field(default_factory=list)  # of the score that ranks the frames
    problems: list[str] = field(
        default_factory=list
    )  # a line on each thing that could not be shown

    def attempt(self, read: Callable[..., Any], *which: Any) -> Any:
        """Return what ``read`` gives, or None with a note of the problem where it raises
        InputError.
        """
        try:
            return read(*which)
        except InputError as error:
            self.problems.append(str(error))
            return None


@dataclass(frozen=True)
class FrameFiles:
    """Writes frames, one at a time: the maps of one model or two, their labels, pictures and
    thumbnails.
    """

    files: Ledger  # of the page
    reader: MapsReader
    scores: list[str]
    ranges: dict[str, overlay.DisplayRange]  # of the thumbnails
    labels: labelled.ReviewLabels
    longest: int  # pixels of a map's longer side
    flag: Mapping[str, Threshold]  # of scores, in place of what the maps record

    def write(self, row: FrameRow, image: Image | None) -> None:
        """Write all files of a frame and fill in its row; a file that cannot be read is noted there
        and left out.
        """
        anomaly = row.attempt(self.labels.anomaly, row.name)
        truth = row.attempt(self.labels.classes, row.name)
        objects, counted = labelled_objects(
            np.zeros((1, 1), np.uint8) if anomaly is None else anomaly,
            smallest_object_of(self.flag),
        )
        maps: dict[str, Values] = {}
        for score, values in self._write_maps(row):
            maps[score] = values
            small = np.nan_to_num(_shrink(values, THUMBNAIL_WIDTH), nan=self.ranges[score].low)
            self._write_thumbnail(row, score, overlay.colourise(small, self.ranges[score]))
            share = self.flag.get(score, Threshold).found_share  # by default that of the class
            if counted.any() and objects.number.shape == values.shape and row.statistics[score]:
                up_to = found_up_to(values[objects.number > 0], objects, share)
                row.found[score] = [float(value) for value in up_to[counted]]
        ranking = first_shown(maps)
        if ranking and (threshold := self._threshold(ranking)) is not None:
            prediction = self.reader.prediction(row.name) if PREDICTION in row.contents else None
            peaks = self.reader.records.get(row.name, {}).get("peaks", {}).get(ranking, [])
            smallest = self.flag.get(ranking, Threshold).smallest
            row.alarms = find_alarms(maps, ranking, threshold, prediction, smallest, peaks)
        for content, kind, label in ((ANOMALY, "anomaly", anomaly), (TRUTH, "class", truth)):
            if label is not None and label.shape == (row.size or label.shape):
                self._write_map(row, content, label)
            elif label is not None and row.size is not None:
                size = f"{label.shape[1]} x {label.shape[0]} and the maps are {row.size[1]} x {row.size[0]}"
                row.problems.append(f"the {kind} label is {size}, so it is not shown")
        row.objects = int(counted.sum()) if ANOMALY in row.contents else None
        picture = None if image is None else row.attempt(encode_jpeg, image, 80)
        if image is not None and picture is not None:
            # A script, too: what a page from disk loads as a picture it may not save.
            key = f"{FRAMES}/{row.place:06d}/{IMAGE}"
            script = _call(key, "{}", base64.b64encode(picture).decode())
            self.files.write(f"{key}.js", script)
            self._write_thumbnail(row, IMAGE, _shrink(image, THUMBNAIL_WIDTH))
            row.contents.append(IMAGE)
            row.size = row.size or image.shape[:2]

    def _write_maps(self, row: FrameRow) -> Iterator[tuple[str, Values]]:
        """Write the prediction and the scores of a frame; yields each score in its own unit."""
        reader = self.reader
        if reader.has(row.name, PREDICTION):
            prediction = row.attempt(reader.prediction, row.name)
            if prediction is not None:
                self._write_map(row, PREDICTION, prediction)
        record = reader.records.get(row.name, {})
        for score in self.scores:
            values = (
                row.attempt(reader.read, row.name, score) if reader.has(row.name, score) else None
            )
            if values is None:
                continue
            self._write_map(row, score, values)
            recorded = {
                name: record[name][score] for name in STATISTICS if score in record.get(name, {})
            }
            if score in self.flag:  # the regions of the run are of another threshold
                recorded = {
                    name: value
                    for name, value in recorded.items()
                    if name not in ("region", "component")
                }
            row.statistics[score] = recorded or (
                map_statistics(values) if np.isfinite(values).all() else {}
            )
            threshold = self._threshold(score)
            if recorded and "region" not in recorded and threshold is not None:
                recorded["region"] = float(
                    max(regions_of(values, threshold)[2].tolist(), default=0.0)
                )
            if threshold is not None:
                self._describe_strongest(row, score, values, threshold)
            if not row.statistics[score]:
                row.problems.append(
                    f"{score} holds NaN or infinite values, so it has no statistics"
                )
            yield score, values

    def _describe_strongest(
        self, row: FrameRow, score: str, values: Values, threshold: float
    ) -> None:
        """Note the peak and the area of the strongest region of a frame that is large enough to be
        listed; a sum of excesses alone means nothing to a reader."""
        smallest = self.flag.get(score, Threshold).smallest
        for region in strongest_regions(values, threshold, smallest=smallest, most=1):
            x, y = region.peak
            row.strongest[score] = {"peak": float(values[y, x]), "area": region.area}

    def _threshold(self, score: str) -> float | None:
        return (
            self.flag[score].value if score in self.flag else self.region_from(self.reader, score)
        )

    @staticmethod
    def region_from(reader: MapsReader, score: str) -> float | None:
        """Return the value from which on pixels belong to a region; None of maps that
        record none.
        """
        threshold: float | None = (
            (reader.manifest or {}).get("maps", {}).get(score, {}).get("component_threshold")
        )
        return threshold

    def _write_map(self, row: FrameRow, content: str, values: Values | Label) -> None:
        """Write a map or label as a script, of a score with the ends of its range."""
        key = f"{FRAMES}/{row.place:06d}/{content}"
        threshold = self._threshold(content) if content in self.ranges else None
        codes, ends = condense(values, self.longest, threshold)
        differences = codes.copy()
        differences[1:] -= codes[:-1]
        # Level 6 of zlib takes three times as long for 5 % less.
        text = base64.b64encode(zlib.compress(differences.tobytes(), 1)).decode()
        head = json.dumps({"height": codes.shape[0], "width": codes.shape[1], **ends})
        self.files.write(f"{key}.js", _call(key, head, text))
        row.contents.append(content)
        row.size = row.size or values.shape

    def _write_thumbnail(self, row: FrameRow, content: str, picture: Image) -> None:
        self.files.write(f"{THUMBNAILS}/{row.place:06d}/{content}.jpg", encode_jpeg(picture))


def _call(key: str, head: str, text: str) -> bytes:
    """Return the script that hands a text to the page under ``key``."""
    return f'segunc.receive({json.dumps(key)}, {head}, "{text}");\n'.encode()


def _fitting(shape: tuple[int, ...], longest: int) -> tuple[int, int]:
    """Return height and width scaled down to at most ``longest`` pixels on the longer side."""
    height, width = shape[:2]
    scale = min(1.0, longest / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def _shrink(picture: Any, longest: int) -> Any:
    """Scale a picture or map down to at most ``longest`` pixels on a side, each the mean of those
    it stands for.
    """
    height, width = _fitting(picture.shape, longest)
    if (height, width) == picture.shape[:2]:
        return picture
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
