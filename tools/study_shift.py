"""Under shift: mIoU, ECE, NLL and AURC of models on corrupted frames, five corruptions of five strengths and none.

    python -m tools.study_shift --model base=runs/camvid --model ABNN=runs/camvid-abnn --data data/camvid \
        --every 4 --draws 12 --json shift.json --plot shift

Every cell is `segunc evaluate --corruption NAME:N` on every N-th frame of the split. AURC is that of msp. Finished cells are kept in
the JSON file, so the same command continues a killed study, and more models or strengths can be added. Prints the means over
the corruptions for each strength, and each corruption at the middle one, as Markdown.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from segunc.core.device import choose_precision, resolve_device
from segunc.core.errors import InputError
from segunc.core.files import read_json, write_json
from segunc.data.corruptions import CORRUPTIONS, STRENGTHS, Corruption
from segunc.data.datasets import dataset_entry
from segunc.data.entry import DatasetEntry, Sample
from segunc.evaluation.compare import ARROWS, NULL, format_number, higher_is_better, markdown_table
from segunc.evaluation.evaluator import EvaluationOptions
from segunc.evaluation.models import evaluate_model
from segunc.options import whole_numbers
from segunc.plots.charts import Line, save_figure, series_figure
from segunc.posteriors.files import Model, load_model
from segunc.sampling.sampler import Sampler
from tools.measuring import provenance

NUMBERS = {"miou": ("segmentation",), "ece": ("calibration",), "nll": ("calibration",), "aurc": ("selective", "msp")}
TITLES = {"miou": "mIoU", "ece": "ECE", "nll": "NLL", "aurc": "AURC (msp)"}
CLEAN = "none:0"
ALL_STRENGTHS = tuple(range(1, STRENGTHS + 1))
Cells = dict[str, dict[str, dict[str, float | None]]]
"""Model -> corruption -> number."""


def named_model(text: str) -> tuple[str, Path]:
    """``NAME=DIR``, or ``DIR`` named by its folder."""
    name, equals, folder = text.rpartition("=")
    return (name if equals else Path(folder).name), Path(folder)


def shifts(strengths: Sequence[int]) -> list[Corruption | None]:
    """No corruption, then all of these strengths."""
    return [None, *(Corruption(name, strength) for name in CORRUPTIONS for strength in strengths)]


def make_sampler(model: Model, options: argparse.Namespace) -> Sampler:
    """One for all cells of a model: it checks itself once."""
    device = next(model.network.parameters()).device
    return Sampler(
        model.network,
        model.posterior if model.bayesian else None,
        draws=options.draws,
        seed=options.seed,
        precision=choose_precision(options.precision, device, model.network)[0],
        scores=("msp",),
        **model.fitted(("msp",)),
    )


def measure(
    sampler: Sampler, model: Model, entry: DatasetEntry, samples: Sequence[Sample], corruption: Corruption | None
) -> dict[str, float | None]:
    """The numbers of one cell."""
    asked = EvaluationOptions(("msp",), ())
    result = evaluate_model(sampler, model, entry, samples, asked, corruption=corruption).result
    found: dict[str, float | None] = {}
    for number, place in NUMBERS.items():
        held = result
        for key in place:
            held = held[key]
        found[number] = held[number]
    return found


def mean_over_corruptions(cells: dict[str, dict[str, float | None]], strength: int, number: str) -> float | None:
    """The mean of a number over all corruptions of a strength, None while one lacks; strength 0 is the clean one."""
    names = [CLEAN] if strength == 0 else [f"{name}:{strength}" for name in CORRUPTIONS]
    values = [cells.get(name, {}).get(number) for name in names]
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def markdown(cells: Cells, strengths: Sequence[int]) -> str:
    """The two kinds of tables, for each number."""
    parts = []
    columns, shown = (0, *strengths), strengths[len(strengths) // 2]
    for number, title in TITLES.items():
        arrow = ARROWS[higher_is_better((number,))]
        rows = [[f"{title}{arrow}, mean over corruptions", *(f"strength {s}" for s in columns)]]
        for model, held in cells.items():
            rows.append([model, *(_text(mean_over_corruptions(held, s, number)) for s in columns)])
        parts.append(markdown_table(rows))
        rows = [[f"{title}{arrow}, strength {shown}", *CORRUPTIONS]]
        for model, held in cells.items():
            rows.append([model, *(_text(held.get(f"{n}:{shown}", {}).get(number)) for n in CORRUPTIONS)])
        parts.append(markdown_table(rows))
    return "\n\n".join(parts)


def _text(value: float | None) -> str:
    return NULL if value is None else format_number(value)


def draw(cells: Cells, strengths: Sequence[int], path: Path) -> list[Path]:
    """Means over the corruptions along the strengths, a panel for each number."""
    panels = []
    for number, title in TITLES.items():
        lines = []
        for place, (model, held) in enumerate(cells.items()):
            points = [(s, v) for s in (0, *strengths) if (v := mean_over_corruptions(held, s, number)) is not None]
            x, y = (np.array([point[i] for point in points], float) for i in (0, 1))
            lines.append(Line(model, x, y, place=place))
        panels.append((title, lines))
    return save_figure(series_figure(panels, "strength, mean over corruptions (0: none)"), path)


def study(options: argparse.Namespace) -> Cells:
    """Measure what the JSON file does not hold yet, writing it after each cell."""
    models = dict(options.model)
    if len(models) < len(options.model):
        raise InputError("two models of one name", "different names", "give them as NAME=DIR")
    device = resolve_device(options.device)
    entry = dataset_entry(options.dataset)
    samples = entry.samples(options.data, options.split)[:: options.every]
    settings = {
        "dataset": options.dataset,
        **{key: getattr(options, key) for key in ("split", "every", "draws", "seed", "precision")},
        "frames": len(samples),
    }
    held = read_json(options.json, "the result of this study") if options.json.exists() else {}
    if held and held["settings"] != settings:
        raise InputError(f"{options.json} holds {held['settings']}", str(settings), "give another --json")
    content = {"about": provenance(device), "settings": settings, "models": held.get("models", {})}
    content["cells"] = cells = held.get("cells", {})
    for name, folder in models.items():
        model = load_model(folder)
        model.place(device)
        identity = {"base_sha256": model.sha256, "posterior_sha256": model.posterior_sha256, "T": model.temperature}
        identity |= {"calibrator": model.calibrator.sha256} if model.calibrator else {}
        if content["models"].setdefault(name, identity) != identity:
            raise InputError(f"{options.json} holds another model as '{name}'", "the same one", "give another name")
        sampler = make_sampler(model, options)
        for corruption in shifts(options.strengths):
            key = CLEAN if corruption is None else str(corruption)
            if key in cells.setdefault(name, {}):
                continue
            cells[name][key] = measure(sampler, model, entry, samples, corruption)
            write_json(options.json, content)
            print(f"{name}, {key}: {cells[name][key]}", flush=True)
    return {name: cells[name] for name in models}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=named_model, required=True, action="append", metavar="[NAME=]DIR")
    parser.add_argument("--dataset", default="camvid")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th frame (default all)")
    parser.add_argument(
        "--strengths", type=whole_numbers, default=ALL_STRENGTHS, metavar="A,B", help="of the corruptions (default all)"
    )
    parser.add_argument("--draws", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="without suffix: PDF, SVG and PNG are written")
    options = parser.parse_args()
    if options.every < 1:
        parser.error(f"--every {options.every}: expected at least 1")
    strengths = options.strengths = tuple(sorted(set(options.strengths)))
    if not set(strengths) <= set(ALL_STRENGTHS):
        parser.error(f"--strengths {','.join(map(str, strengths))}: expected numbers from 1 to {STRENGTHS}")
    torch.set_flush_denormal(True)
    try:
        cells = study(options)
    except InputError as error:
        print(f"study_shift: {error}", file=sys.stderr)
        return 2
    print(f"\n{markdown(cells, strengths)}")
    if options.plot:
        draw(cells, strengths, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
