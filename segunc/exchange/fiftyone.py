"""A maps folder for FiftyOne (https://docs.voxel51.com): images, the prediction as segmentation masks, scores as heatmaps, ground
truth as masks too.

In the documented layout of FiftyOne's type ``ImageSegmentationDirectory``, ``data/`` and ``labels/``, with folders of heatmaps
for each score and of ground truth beside it. It is written without FiftyOne, whose own export needs a running database.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from segunc.core.errors import InputError
from segunc.core.files import inside, read_json, write_file, write_json
from segunc.data.labels import IGNORE
from segunc.exchange.export import ExportResult
from segunc.exchange.viewers import ViewerFrame, ViewerMaps
from segunc.gallery.colormap import DisplayRange, levels
from segunc.gallery.description import describe_classes
from segunc.maps.encoding import encode_jpeg, encode_png
from segunc.maps.shards import STATISTICS

if TYPE_CHECKING:
    import fiftyone

INDEX_NAME = "segunc.json"
FORMAT = "segunc-fiftyone"
DATA, LABELS, HEATMAPS = "data", "labels", "heatmaps"
GROUND_TRUTH, ANOMALY_TRUTH = "ground_truth", "anomaly_truth"  # fields, and the folders of their masks
FIRST_CLASS = 1  # mask value of class 0: FiftyOne draws nothing where a mask is 0, nor counts it where 0 is no target
ANOMALY_TARGETS = {1: "anomaly", IGNORE: "ignored"}


def export_fiftyone(
    content: ViewerMaps, out: Path, *, overwrite: bool = False, on_frame: Callable[[int, int], None] | None = None
) -> ExportResult:
    """Write maps as ``data/F.jpg``, ``labels/F.png``, ``heatmaps/SCORE/F.png`` and ``segunc.json``; ground truth, of frames that
    have it, as ``ground_truth/F.png`` and ``anomaly_truth/F.png``.

    Masks hold the class id plus 1, those of the ground truth 0 where it is ignored; anomaly masks hold 0 normal, 1 anomaly, 255
    ignored. Heatmaps are uint8, 0..255 over the fixed range of the score, which the index names
    with the classes and the statistics of each frame. A frame without an image has no place in FiftyOne and fails.
    ``overwrite`` removes an earlier export in ``out`` first; ``on_frame`` is told the frames done and their total.
    InputError where ``out`` holds something else.
    """
    _prepare(out, overwrite=overwrite)
    samples: list[dict[str, Any]] = []
    summary = content.export(out, lambda frame: samples.append(_write_frame(out, frame, content.ranges)), on_frame)
    classes = {
        str(i + FIRST_CLASS): entry["name"]
        for i, entry in enumerate(describe_classes(content.reader, content.label_map))
    }
    ranges = {score: [shown.low, shown.high] for score, shown in content.ranges.items()}
    write_json(out / INDEX_NAME, {"format": FORMAT, "classes": classes, "ranges": ranges, "samples": samples})
    summary.notes.append(f"in Python: segunc.exchange.fiftyone.load_fiftyone('{out}', 'a name')")
    return summary


def load_fiftyone(folder: str | Path, name: str) -> fiftyone.Dataset:
    """A FiftyOne data set, under a name that FiftyOne does not have, of what :func:`export_fiftyone` wrote: segmentations
    ``prediction``, ``ground_truth`` and ``anomaly_truth``, a heatmap for each score, statistics.

    Raises:
        InputError: FiftyOne is not installed, or the folder is no such export.
    """
    samples, classes = fiftyone_samples(Path(folder))
    import fiftyone

    dataset = fiftyone.Dataset(name, persistent=True)
    dataset.default_mask_targets = classes
    dataset.mask_targets = {ANOMALY_TRUTH: ANOMALY_TARGETS}
    dataset.add_samples(samples)
    return dataset


def fiftyone_samples(folder: Path) -> tuple[list[fiftyone.Sample], dict[int, str]]:
    """The samples of an exported folder, in its order, and mask value -> class name, as :func:`load_fiftyone`; needs no database."""
    os.environ.setdefault("FIFTYONE_DO_NOT_TRACK", "true")
    try:
        import fiftyone
    except ImportError as error:
        remedy = "pip install 'segunc[fiftyone]'"
        raise InputError(f"a data set without FiftyOne ({error})", "the extra 'fiftyone'", remedy) from error
    index = read_json(folder / INDEX_NAME, "the index of an export to FiftyOne")
    if index.get("format") != FORMAT:
        raise InputError(f"{folder / INDEX_NAME} is no index of an export", f'"format": "{FORMAT}"', "export again")
    root = folder.resolve()
    samples = []
    for entry in index["samples"]:
        sample = fiftyone.Sample(filepath=str(inside(root, entry["image"])), frame=entry["frame"], time=entry["time"])
        for field in ("prediction", GROUND_TRUTH, ANOMALY_TRUTH):
            if entry.get(field):
                sample[field] = fiftyone.Segmentation(mask_path=str(inside(root, entry[field])))
        for score, path in entry["heatmaps"].items():
            name = "".join(c if c.isalnum() else "_" for c in score)  # names of fields are identifiers
            sample[name] = fiftyone.Heatmap(map_path=str(inside(root, path)), range=[0, 255])
            for statistic, value in entry["statistics"][score].items():
                sample[f"{name}_{statistic}"] = value
        samples.append(sample)
    return samples, {int(value): text for value, text in index["classes"].items()}


def _prepare(out: Path, *, overwrite: bool) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        ours = (out / INDEX_NAME).is_file()
        if not (ours and overwrite):
            remedy = "--overwrite removes it" if ours else "give another --out"
            raise InputError(f"output {out} holds {'an export' if ours else 'files'}", "an empty or new folder", remedy)
        for folder in (DATA, LABELS, HEATMAPS, GROUND_TRUTH, ANOMALY_TRUTH):
            shutil.rmtree(out / folder, ignore_errors=True)
    # Written first too, so that a killed export can be told from other folders and written again.
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / INDEX_NAME, {"format": FORMAT, "classes": {}, "ranges": {}, "samples": []})


def _write_frame(out: Path, frame: ViewerFrame, ranges: dict[str, DisplayRange]) -> dict[str, Any]:
    """Write the files of a frame; returns its entry in the index."""
    if frame.image is None:
        raise InputError(f"frame {frame.name} has no image", "its image", "--images gives their place")
    image = f"{DATA}/{frame.name}.jpg"
    entry: dict[str, Any] = {"frame": frame.name, "time": frame.time, "image": image, "prediction": None}
    entry["heatmaps"] = {score: f"{HEATMAPS}/{score}/{frame.name}.png" for score in frame.scores}
    entry["statistics"] = {
        score: {s: frame.record[s][score] for s in STATISTICS if score in frame.record.get(s, {})}
        for score in frame.scores
    }
    if frame.prediction is not None:
        if frame.prediction.max(initial=0) == 255:
            raise InputError(f"frame {frame.name} holds class 255", "class ids below 255", "masks hold the id plus 1")
        entry["prediction"] = f"{LABELS}/{frame.name}.png"
        write_file(out / entry["prediction"], encode_png(frame.prediction + np.uint8(FIRST_CLASS)))
    for field, label in ((GROUND_TRUTH, frame.classes), (ANOMALY_TRUTH, frame.anomaly)):
        if label is not None:
            if label.shape != frame.image.shape[:2]:
                size = "{} x {} and the image {} x {}".format(*label.shape[::-1], *frame.image.shape[1::-1])
                raise InputError(f"the label of frame {frame.name} is {size}", "labels of the size of the images")
            entry[field] = f"{field}/{frame.name}.png"
            # Of whole numbers of eight bits 255, ignored, comes to 0.
            shown = label + np.uint8(FIRST_CLASS) if field == GROUND_TRUTH else label
            write_file(out / entry[field], encode_png(shown))
    for score, values in frame.scores.items():
        write_file(out / entry["heatmaps"][score], encode_png(levels(values, ranges[score])))
    write_file(out / image, encode_jpeg(frame.image))
    return entry
