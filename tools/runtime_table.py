"""Networks by runtime and precision: megabytes, milliseconds, and how far the maps are from those
of the float32 file in ONNX Runtime.

    python -m tools.runtime_table make OUT NAME MODEL HxW CALIBRATION CHECK
    python -m tools.runtime_table time OUT
    python -m tools.runtime_table choices OUT/NAME CALIBRATION

`make` exports the model folder MODEL for frames of HxW with 4 draws, and writes `OUT/NAME.json` and
its files: ranges from frames of CALIBRATION, prices from frames of CHECK. `time` measures all
networks below OUT, one thread, the median of five frames, and prints the table. `choices` prints
what INT8 costs with other operators and with ranges of fewer frames.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import segunc
from segunc.core.device import Precision
from segunc.exporting import graph, lower_precision
from segunc.exporting.calibration import FrameSet, InputForm, read_frames
from segunc.exporting.graph import Maps
from segunc.exporting.lower_precision import (
    BIN,
    ONNX,
    XML,
    LowerFile,
    open_onnx,
    open_openvino,
)
from segunc.exporting.placement import Placement
from segunc.exporting.price import measure_price
from tools.measuring import provenance

SCORES = ("msp", "entropy", "epistemic")
DRAWS = 4
FRAMES = 16
TIMED = 5  # frames behind one that is not timed
Run = Callable[[Tensor], Maps]


def runs_of(folder: Path) -> Iterator[tuple[str, Run, int]]:
    """Yield runtime and precision in words, what runs it, and the bytes of its files."""
    about = json.loads((folder / "about.json").read_text())
    weights = Path(about["model"]) / "network.safetensors"
    of_torch: tuple[Precision, ...] = ("float32", "bfloat16")
    for torch_precision in of_torch:
        run = sampler_run(Path(about["model"]), torch_precision)
        yield f"PyTorch, {torch_precision}", run, weights.stat().st_size
    if segunc.load(about["model"]).bayesian:
        # What no file can be blamed for: the maps of the same model from other draws.
        run = sampler_run(Path(about["model"]), "float32", seed=1)
        yield "PyTorch, float32, another seed", run, weights.stat().st_size
    for precision in ("float32", "float16", "int8"):
        contents = (folder / f"onnx-{precision}" / "model.onnx").read_bytes()
        yield f"ONNX Runtime, {precision}", open_onnx(contents), len(contents)
    float32_file = folder / "onnx-float32" / "model.onnx"
    yield "OpenVINO, float32", graph.open_openvino(float32_file), float32_file.stat().st_size
    for precision in ("float16", "int8"):
        place = folder / f"openvino-{precision}"
        files = {name: (place / name).read_bytes() for name in (XML, BIN)}
        size = sum(len(content) for content in files.values())
        if precision == "float16":
            yield "OpenVINO, weights in float16", open_openvino(files), size
            yield "OpenVINO, bfloat16", open_openvino(files, precision_hint="bf16"), size
        else:
            yield "OpenVINO, int8", open_openvino(files), size


def sampler_run(folder: Path, precision: Precision, seed: int = 0) -> Run:
    """Return what runs the sampler of a model folder."""
    model = segunc.load(folder)
    sampler = segunc.Sampler(
        model.network,
        model.posterior if model.bayesian else None,
        draws=DRAWS if model.bayesian else 1,
        seed=seed,
        precision=precision,
        scores=SCORES,
        fitted=model.fitted(SCORES),
    )

    def run(frame: Tensor) -> Maps:
        prediction = sampler(frame)
        maps = {name: values.numpy() for name, values in prediction.scores.items()}
        return {"prediction": prediction.prediction.numpy(), **maps}

    return run


def frames_of(about: dict[str, Any], place: str, count: int) -> FrameSet:
    """Return frames as the files of a network take them."""
    model = segunc.load(about["model"])
    height, width = about["size"]
    form = InputForm(model.network.description, Placement((height, width)))
    return read_frames(place, count, form, "CHECK")


def make(out: Path, name: str, model: str, size: str, calibration: str, check: str) -> None:
    """Export a model in every precision, and write what each costs."""
    folder = out / name
    height, width = map(int, size.split("x"))
    if folder.exists():
        sys.exit(f"{folder} exists; remove it, or give another OUT")
    folder.mkdir(parents=True)
    about = {"model": model, "size": [height, width], "check": check}
    (folder / "about.json").write_text(json.dumps(about))
    shared: dict[str, Any] = {
        "model": model,
        "size": (height, width),
        "draws": DRAWS,
        "scores": SCORES,
    }
    of_lower: dict[str, Any] = {
        **shared,
        "check_frames": check,
        "calibration_frames": FRAMES,
        "max_changed": 1.0,
    }
    segunc.export(to="onnx", out=folder / "onnx-float32", **shared)
    for to in ("onnx", "openvino"):
        for precision in ("float16", "int8"):
            words = dict(of_lower)
            if precision == "int8":
                words["calibration"] = calibration
            segunc.export(to=to, precision=precision, out=folder / f"{to}-{precision}", **words)
    parent = open_onnx((folder / "onnx-float32" / "model.onnx").read_bytes())
    frames = frames_of(about, check, FRAMES)
    prices: dict[str, Any] = {}
    for words_of_run, run, _ in runs_of(folder):
        price = measure_price(run, parent, frames, len(frames))
        prices[words_of_run] = asdict(price)
        print(words_of_run, price.sentence(""), flush=True)
    (folder / "prices.json").write_text(json.dumps({"prices": prices, **provenance()}))


def milliseconds(run: Run, frames: Iterable[Tensor]) -> float:
    """Return the median of the milliseconds of frames, of which the first is not timed."""
    seconds: list[float] = []
    for frame in frames:
        start = time.perf_counter()
        run(frame)
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds[1 : TIMED + 1])


def measure(out: Path) -> None:
    """Print the table of all networks below a folder."""
    print(json.dumps(provenance()))
    print(
        "| network | runtime, precision | MB | ms | predictions changed "
        "| entropy off by > 1, > 65 codes; lowest rank correlation |"
    )
    print("|---|---|---|---|---|---|")
    for folder in sorted(path.parent for path in out.glob("*/prices.json")):
        prices = json.loads((folder / "prices.json").read_text())["prices"]
        about = json.loads((folder / "about.json").read_text())
        frames = frames_of(about, about["check"], 8)
        for words, run, size in runs_of(folder):
            found = price_cells(prices[words])
            cells = [
                folder.name,
                words,
                f"{size / 1e6:.1f}",
                f"{milliseconds(run, frames):.0f}",
                found.changed,
                found.entropy,
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


@dataclass(frozen=True)
class PriceCells:
    """The last columns of the table.

    Attributes:
        changed: share of the pixels whose predicted class is another one.
        entropy: shares of the pixels that are off by more than 1 and than 65 codes, and the lowest
            rank correlation of a score.
    """

    changed: str
    entropy: str


def price_cells(price: dict[str, Any]) -> PriceCells:
    """Return the cells of a :class:`segunc.exporting.price.Price`, as its record holds it."""
    entropy = price["scores"]["entropy"]
    codes = f"{100 * entropy['over_next_code']:.3g} %, {100 * entropy['over_many_codes']:.3g} %"
    ranks: dict[str, float] = {}
    for name, score in price["scores"].items():
        if score["rank_correlation"] is not None:
            ranks[name] = score["rank_correlation"]
    if ranks:
        worst = min(ranks, key=lambda name: ranks[name])
        codes += f"; {ranks[worst]:.3f} ({worst})"
    return PriceCells(f"{100 * price['changed']:.2g} %", codes)


def choices(folder: Path, calibration: str) -> None:
    """Print what INT8 costs by operators and by the number of calibration frames."""
    import openvino

    print(json.dumps(provenance()))
    about = json.loads((folder / "about.json").read_text())
    source = folder / "onnx-float32" / "model.onnx"
    parent = open_onnx(source.read_bytes())
    frames = frames_of(about, about["check"], FRAMES)
    ranges = frames_of(about, calibration, FRAMES)

    def show(words: str, made: LowerFile) -> None:
        contents = made.contents
        run = open_openvino(contents) if XML in contents else open_onnx(contents[ONNX])
        price = measure_price(run, parent, frames, len(frames))
        ranks = {name: score.rank_correlation for name, score in price.scores.items()}
        print(f"| {folder.name} | {words} | {100 * price.changed:.2g} % | {ranks} |", flush=True)

    for count in (1, 2, 4, 8, 16):
        fewer = replace(ranges, pixels=ranges.pixels[:: FRAMES // count])
        made = lower_precision.lower_onnx(source, "int8", fewer, {})
        show(f"ONNX Runtime, ranges of {len(fewer)} frames", made)
    with patch.object(lower_precision, "depthwise_nodes", lambda model: []):
        made = lower_precision.lower_onnx(source, "int8", ranges, {})
    show("ONNX Runtime, depthwise convolutions in INT8, too", made)
    made = lower_precision.lower_openvino(source, "int8", ranges, {})
    show("OpenVINO, convolutions", made)
    operators = openvino.Core().read_model(source).get_ops()
    kinds = frozenset(operator.get_type_name() for operator in operators)
    with patch.object(lower_precision, "CONVOLUTIONS", kinds):
        made = lower_precision.lower_openvino(source, "int8", ranges, {})
    show("OpenVINO, all operators that NNCF chooses", made)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), *sys.argv[3:])
    elif sys.argv[1] == "choices":
        choices(Path(sys.argv[2]), sys.argv[3])
    else:
        measure(Path(sys.argv[2]))
