"""What a frame of each row of a study costs, in passes of its base network.

    python -m tools.study_price --plan configs/study/registered.yaml --out runs/registered --size
    352x640

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
from collections.abc import Callable
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
from tools.study.plan import read_plan
from tools.study.report import PRICE_FILE


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
    plan, device = read_plan(arguments.plan), resolve_device(arguments.device)
    study = Study(plan, plan.rows, arguments.out, arguments.device)
    torch.manual_seed(0)
    image = torch.rand(1, 3, *arguments.size, device=device).contiguous(
        memory_format=torch.channels_last
    )
    work: dict[str, Callable[[], object]] = {}
    lacking = []
    for row in plan.rows:
        cell = study.cell(plan.protocols_of(row)[0], row, plan.seeds_of(row)[0])
        if all(
            path.name != DESCRIPTION for path in model_files(cell.model)
        ):  # of an ensemble they are its members'
            lacking.append(row.label)
            continue
        model = load_model(cell.model)
        model.place(device)
        precision = choose_precision("auto", device, model.network)
        if row.label == plan.baseline:
            engine = Engine(model.network, precision)
            work[""] = lambda engine=engine: engine.logits(image, None, None)  # type: ignore[misc]
        scores = row.scores or DEFAULT_SCORES
        draws = int({**plan.evaluate, **row.evaluate}.get("draws", 24))
        posterior = model.posterior if model.bayesian else None
        given = model.fitted(scores)
        sampler = Sampler(
            model.network, posterior, draws=draws, precision=precision, scores=scores, fitted=given
        )
        work[row.label] = lambda sampler=sampler: sampler(image)  # type: ignore[misc]
    if "" not in work:
        raise InputError(
            f"the network of the baseline '{plan.baseline}' is not made", hint="run the study first"
        )
    times: dict[str, list[float]] = {label: [] for label in work}
    with torch.inference_mode():
        for done in range(arguments.rounds + 1):
            for label, run in work.items():
                start = time.perf_counter()
                run()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                if done:
                    times[label].append(time.perf_counter() - start)
    milliseconds = {label: 1000 * statistics.median(found) for label, found in times.items()}
    base = milliseconds.pop("")
    passes = {label: round(found / base, 2) for label, found in milliseconds.items()}
    about = {"size": list(arguments.size), "rounds": arguments.rounds, **provenance(device)}
    write_json(arguments.out / PRICE_FILE, {"pass_ms": round(base, 1), "passes": passes, **about})
    print("\n".join(f"{label}: {found:g} passes" for label, found in passes.items()))
    for label in lacking:
        print(f"{label} is not made")
    return int(bool(lacking))


if __name__ == "__main__":
    sys.exit(main())
