"""``segunc export``: one file that gives prediction and score maps of a frame without this package."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from segunc.core.errors import InputError, one_line
from segunc.core.files import read_bytes, replacing, write_json
from segunc.decisions.threshold import read_threshold
from segunc.exporting import graph
from segunc.exporting.check import MAX_CODES, ROUNDING, check_frames, compare
from segunc.maps.manifest import tool_version
from segunc.options import ExportOptions, SamplingOptions, takes
from segunc.posteriors.model import Model, default_scores, load_model
from segunc.sampling.sampler import Sampler
from segunc.scores import EVIDENCE, SCORES, check_scores
from segunc.verbs.execution import calibration_record, make_sampler

IN_GRAPH = {"draws", "base", "constant"}  # sources of evidence that the graph has


class ExportResult(NamedTuple):
    """What was written."""

    path: Path  # of the model file
    record: Path  # model.json
    codes: Mapping[str, int]  # largest difference of each score from the sampler, in codes of the 16-bit map
    line: str  # the check in one line
    notes: tuple[str, ...]  # what a user should know


@takes(ExportOptions)
def export(options: ExportOptions) -> ExportResult:
    """Write a model as one file, after it was run and compared with the sampler.

    Raises:
        InputError: a network or a score that no graph holds, or a file whose maps are not the sampler's.

    >>> export(model=abnn, to="pt2", out=folder / "exported", draws=2, size=(64, 96)).path.name
    'model.pt2'
    """
    if options.to == "onnx":
        graph.require_packages()
    folder, out = Path(options.model), Path(options.out)
    chosen = check_scores(options.scores or default_scores(folder))
    scores = [name for name in chosen if SCORES[name].sources <= IN_GRAPH]
    if options.scores and (other := [name for name in chosen if name not in scores]):
        needs = ", ".join(need for need in SCORES[other[0]].needs if EVIDENCE[need].source not in IN_GRAPH)
        raise InputError(f"score {other[0]} needs {needs}, which a graph does not have", hint=f"--scores {','.join(scores or ['entropy'])}")
    model = load_model(folder)
    description = model.network.description
    size = options.size or description.inference_size
    if size is None:
        raise InputError(f"the network in {folder} has no size of its own, and a graph has one fixed size", hint="--size 512x1024")
    sampler = make_sampler(model, SamplingOptions(device="cpu", draws=options.draws, seed=options.seed, precision="float32"), scores)
    about = _about(options, model, sampler, size)
    frames = check_frames(size)
    try:
        sampler(frames[0])
    except RuntimeError as error:
        message = f"the network takes no frame of {size[0]}x{size[1]} ({one_line(error)})"
        raise InputError(message, hint="--size HxW with sides that it takes") from error
    program = graph.trace(sampler, frames[0])
    metadata = {key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in about.items()}
    path, record = out / f"model.{options.to}", out / "model.json"
    out.mkdir(parents=True, exist_ok=True)
    write, run = (graph.write_onnx, graph.open_onnx) if options.to == "onnx" else (graph.write_pt2, graph.open_pt2)
    with replacing(path) as file:
        write(program, file, metadata)
        file.flush()
        found = compare(run(Path(file.name)), sampler, frames, path.name)
        digest = hashlib.sha256(read_bytes(Path(file.name))).hexdigest()
    found["bound"] = {"codes": MAX_CODES, "or_share": ROUNDING}
    write_json(record, {**about, "file": path.name, "sha256": digest, "check": found})
    codes, share = {name: of["codes"] for name, of in found["scores"].items()}, max(of["share"] for of in found["scores"].values())
    line = f"checked against the sampler: at most {max(codes.values())} codes ({max(codes, key=lambda name: codes[name])}), {share:.1e} of a largest value"
    left = [f"{name} is left out: a graph does not have what it needs" for name in chosen if name not in scores]
    return ExportResult(path, record, codes, line, (*left, *sampler.report.messages))


def _about(options: ExportOptions, model: Model, sampler: Sampler, size: tuple[int, int]) -> dict[str, Any]:
    """Return what a file says of itself."""
    description = model.network.description
    run = {
        **{"base_sha256": model.sha256, "posterior_sha256": model.posterior_sha256, **calibration_record(sampler)},
        **{"draws": sampler.draws, "seed": sampler.seed, "scheme": sampler.noise.scheme, "precision": sampler.precision},
    }
    about: dict[str, Any] = {
        **{"kind": "segunc export", "version": 1, "segunc": tool_version(), "torch": torch.__version__},
        "input": {"name": "image", "type": "float32", "shape": [1, 3, *size], "channels": "RGB", "range": [0, 1]},
        **{key: list(getattr(description, key)) for key in ("classes", "palette", "mean", "std")},
        "scores": {
            name: {key: getattr(SCORES[name], key) for key in ("meaning", "unit", "lower", "upper", "stored")} for name in sampler.scores
        },
        **{"method": model.posterior.method, "alpha": model.posterior.settings().get("alpha"), **run},
    }
    if options.threshold is not None:
        made = read_threshold(Path(options.threshold))
        if made.score not in sampler.scores:
            raise InputError(f"{options.threshold} is a threshold of {made.score}, which is not exported", hint=f"--scores {made.score}")
        # Maps without --size are of the inference size, or of the frame's own: the graph is for frames of its size.
        seen, asked = tuple(made.settings.get("size") or description.inference_size or size), made.settings.get("size")
        made.check_run(run | {"size": asked if seen == size else list(size)}, str(options.threshold))
        about["threshold"] = {key: value for key, value in asdict(made).items() if key not in ("frames", "settings")}
    return about
