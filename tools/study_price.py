"""What a frame of each row of a study costs, in passes of its base network.

    python -m tools.study_price --plan configs/study/registered.yaml --out runs/registered \\
        --size 352x640

Of each row that is made: the model of its first seed, with the draws and the scores of its
evaluations, from an image of random pixels to maps. All rows are timed in turns, one round after
the other, so that a busy machine slows all of them; a row's milliseconds are the median of its
rounds, and its passes those over the base network's pass to logits at the frame's size. Writes
price.json into ``--out``, where ``tools.study_methods --stage report`` finds it. Rows of one price
(those of one model and draws that are evaluated on other frames) are measured each.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from segunc.core.device import choose_precision, resolve_device
from segunc.core.errors import InputError
from segunc.core.files import write_json
from segunc.networks.model_folder import DESCRIPTION
from segunc.options import image_size
from segunc.posteriors.model import load_model, model_files
from segunc.sampling.engine import Engine
from segunc.sampling.sampler import Sampler
from segunc.scores import DEFAULT_SCORES
from tools.measuring import provenance
from tools.study.cells import Study
from tools.study.plan import Plan, read_plan
from tools.study.report import PRICE_FILE

BASE_PASS = ""
"""Stands for the base network's pass beside the labels of the rows, none of which is empty."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", type=Path, required=True, metavar="YAML")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="of the study")
    parser.add_argument(
        "--size",
        type=image_size,
        default=(352, 640),
        metavar="HxW",
        help="the network sees (default 352x640)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=7,
        metavar="N",
        help="timed ones, after one that is not (default 7)",
    )
    parser.add_argument("--device", default="auto")
    try:
        return measure(parser.parse_args())
    except InputError as error:
        print(f"study_price: {error}", file=sys.stderr)
        return 2


def measure(arguments: argparse.Namespace) -> int:
    """Time the rows that are made and write their prices; 1 where one is not."""
    torch.set_flush_denormal(True)
    plan = read_plan(arguments.plan)
    device = resolve_device(arguments.device)
    runs, lacking = runs_of(plan, arguments, device)
    times = timed_in_turns(runs, arguments.rounds, device)
    milliseconds = {label: 1000 * statistics.median(seconds) for label, seconds in times.items()}
    base = milliseconds.pop(BASE_PASS)
    passes = {label: round(duration / base, 2) for label, duration in milliseconds.items()}
    price = {
        "pass_ms": round(base, 1),
        "passes": passes,
        "size": list(arguments.size),
        "rounds": arguments.rounds,
        **provenance(device),
    }
    write_json(arguments.out / PRICE_FILE, price)
    for label, count in passes.items():
        print(f"{label}: {count:g} passes")
    for label in lacking:
        print(f"{label} is not made")
    return int(bool(lacking))


def runs_of(
    plan: Plan, arguments: argparse.Namespace, device: torch.device
) -> tuple[dict[str, Callable[[], object]], list[str]]:
    """Return what computes one frame of each row, the base network's pass among them, and the
    labels of rows that are not made.
    """
    study = Study(plan, plan.rows, arguments.out, arguments.device)
    torch.manual_seed(0)
    image = torch.rand(1, 3, *arguments.size, device=device)
    image = image.contiguous(memory_format=torch.channels_last)
    runs: dict[str, Callable[[], object]] = {}
    lacking = []
    for row in plan.rows:
        cell = study.cell(plan.protocols_of(row)[0], row, plan.seeds_of(row)[0])
        # The networks of an ensemble are its members'.
        if all(path.name != DESCRIPTION for path in model_files(cell.model)):
            lacking.append(row.label)
            continue
        model = load_model(cell.model)
        model.place(device)
        precision = choose_precision("auto", device, model.network)
        if row.label == plan.baseline:
            engine = Engine(model.network, precision)
            runs[BASE_PASS] = partial(engine.logits, image, None, None)
        scores = row.scores or DEFAULT_SCORES
        sampler = Sampler(
            model.network,
            model.posterior if model.bayesian else None,
            draws=int({**plan.evaluate, **row.evaluate}.get("draws", 24)),
            precision=precision,
            scores=scores,
            fitted=model.fitted(scores),
        )
        runs[row.label] = partial(sampler, image)
    if BASE_PASS not in runs:
        raise InputError(
            f"the network of the baseline '{plan.baseline}' is not made", hint="run the study first"
        )
    return runs, lacking


def timed_in_turns(
    runs: Mapping[str, Callable[[], object]], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Return the seconds of each run in each round but the first, which warms up."""
    times: dict[str, list[float]] = {label: [] for label in runs}
    with torch.inference_mode():
        for number in range(rounds + 1):
            for label, run in runs.items():
                start = time.perf_counter()
                run()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                if number > 0:
                    times[label].append(time.perf_counter() - start)
    return times


if __name__ == "__main__":
    sys.exit(main())
