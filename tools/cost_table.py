"""What each score costs: passes of the base network, milliseconds and memory; and what a bank of
features costs by its size.

    python -m tools.cost_table --model runs/camvid-second --size 352x640 --video drive.mp4 \\
        --json cost.json

One frame of random pixels, on the device. The rows of all tables but the last are timed in turns,
one round after the other, so that a busy machine slows all of them; times are medians of the rounds
after the first. Memory is the peak of a process that does nothing but the row, above that of a
process that does a pass. The tables:

scores     a pass to logits at the frame's size, and from image to maps each score for which the
           model has what it needs: those of the draws are of --draws of them
features   by the factor by which the frame is resized: the forward pass of what features are taken
           of, and the search for their nearest in banks of random features, each as large for
           every layer
encoders   of timm with random weights, their deepest layer and a bank of 20,000: speed alone,
           quality not measured
video      milliseconds a frame of `segunc predict` without the second encoder, of that alone with
           the frames in memory, and of `predict` with it; share_of_sum is the sum of the first two
           over the last
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from segunc.baselines.density import FeatureDistances, Neighbours, unit_features
from segunc.baselines.feature_extractor import FeatureExtractor, SecondEncoder
from segunc.core.device import choose_precision, resolve_device
from segunc.core.errors import InputError
from segunc.core.files import write_json
from segunc.networks.network import gives_logarithms
from segunc.networks.smp import encoder_normalisation
from segunc.options import PredictOptions, image_size
from segunc.posteriors.model import load_model
from segunc.sampling.engine import Engine
from segunc.sampling.sampler import Sampler
from segunc.scores import CLASS_SCORES, EVIDENCE, FEATURE_DISTANCE, SCORES, with_parts
from segunc.verbs.execution import open_job
from tools.bench_predict import Bench
from tools.measuring import in_own_process, peak_bytes, provenance

PASS = "pass"
SIZES = ("1", "1.5", "2")
BANKS = (10_000, 100_000, 1_000_000)
ENCODERS = ("vit_small_patch14_dinov2", "vit_base_patch16_clip_224")
ENCODER_BANK = 20_000
WITHOUT, WITH = ("entropy", "epistemic"), ("entropy", "epistemic", "anomaly")
"""Scores of the video."""
SHARE = "share_of_sum"


class Costs:
    """The rows of a model, by the words of the command line."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.manual_seed(0)
        torch.set_flush_denormal(True)
        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        self.arguments, self.device = arguments, resolve_device(arguments.device)
        self.model = load_model(arguments.model)
        self.model.place(self.device)
        self.precision = choose_precision(arguments.precision, self.device, self.model.network)
        image = torch.rand(1, 3, *arguments.size, device=self.device)
        self.image = image.contiguous(memory_format=torch.channels_last)

    @functools.cached_property
    def density(self) -> FeatureDistances | None:
        """Of the model's features of layers; a process that measures the memory of something else
        does without it.
        """
        stored = self.model.attachments.get("features")
        found = stored.providers(self.model, stored.gives) if stored else ()
        return next((one for one in found if isinstance(one, FeatureDistances)), None)

    def needs(self, score: str) -> frozenset[str] | None:
        """The evidence of a score, with that of its parts; None where the model lacks some."""
        attachments = self.model.attachments.values()
        there = {
            name for name, evidence in EVIDENCE.items() if evidence.source in ("draws", "base")
        }
        if not gives_logarithms(self.model.network):
            there.remove(CLASS_SCORES)
        needs = frozenset(
            need for name in with_parts([score], attachments) for need in SCORES[name].needs
        )
        return needs if needs <= there.union(*(one.gives for one in attachments)) else None

    def draws(self, score: str) -> int:
        """Passes with noise that a score needs."""
        of_draws = any(EVIDENCE[need].source == "draws" for need in self.needs(score) or ())
        return self.arguments.draws if self.model.bayesian and of_draws else 0

    def rows(self) -> list[str]:
        """Names of all rows."""
        found = [PASS, *(f"score {name}" for name in SCORES if self.needs(name))]
        for size in SIZES if self.density else ():
            found += [
                f"features {size}",
                *(f"search {size} {count}" for count in self.arguments.banks),
            ]
        return found + [
            f"{what} {name}" for name in self.arguments.encoders for what in ("encoder", "places")
        ]

    def run(self, row: str) -> Callable[[], object]:
        """What a row does."""
        kind, _, rest = row.partition(" ")
        model, image = self.model, self.image
        if kind == PASS:
            engine = Engine(model.network, self.precision)
            return lambda: engine.logits(image, None, None)
        if kind == "score":
            draws = self.draws(rest)
            sampler = Sampler(
                model.network,
                model.posterior if draws else None,
                draws=max(draws, model.posterior.members),
                precision=self.precision,
                scores=[rest],
                fitted=model.fitted([rest]),
            )
            return lambda: sampler(image)
        if kind in ("encoder", "places"):
            second = SecondEncoder(rest, *encoder_normalisation(rest)).to(self.device)
            extractor, count = FeatureExtractor(second, [second.deepest]), str(ENCODER_BANK)
        else:
            assert self.density is not None
            size, _, count = rest.partition(" ")
            extractor = FeatureExtractor(
                self.density.extractor.network, self.density.extractor.layers, [float(size)]
            )
        if kind in ("features", "encoder"):
            return lambda: extractor(image)
        with torch.inference_mode():
            places = [unit_features(maps) for maps in extractor(image)]
        banks = [self.bank(int(count), rows.shape[1]) for rows in places]
        return lambda: [bank(rows) for bank, rows in zip(banks, places, strict=True)]

    @functools.cache  # noqa: B019 - one for the life of the process
    def bank(self, count: int, width: int) -> Neighbours:
        """Random features."""
        return Neighbours(torch.randn(count, width, device=self.device))

    def megabytes(self, count: int) -> float:
        """Of banks of so many features on disk: halves, and four float32 that say where each was
        seen.
        """
        assert self.density
        return sum(count * (2 * bank.channels + 16) for bank in self.density.banks) / 1e6


def in_turns(
    runs: Mapping[str, Callable[[], object]], rounds: int, device: torch.device
) -> dict[str, float]:
    """Median milliseconds of each."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, run in runs.items():
            _wait(device)
            start = time.perf_counter()
            run()
            _wait(device)
            if turn:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def video(arguments: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """The milliseconds a frame of the last table, medians of rounds in turns."""
    with contextlib.ExitStack() as stack:
        benches = []
        for scores in (WITHOUT, WITH):
            options = PredictOptions(
                model=arguments.model,
                input=arguments.video,
                out="unused",
                scores=scores,
                draws=arguments.draws,
                size=arguments.size,
                end=arguments.end,
                device=arguments.device,
                precision=arguments.precision,
                threads=arguments.threads,
            )
            benches.append(Bench(stack.enter_context(open_job(options))))
        without, both = benches
        sampler, inputs = both.sampler, [images for images, _ in both.inputs()]
        density = next(
            provider for provider in sampler.fitted.providers if FEATURE_DISTANCE in provider.gives
        )
        assert isinstance(density, FeatureDistances)

        def second_encoder() -> float:
            _wait(device)
            start = time.perf_counter()
            for images in inputs:
                density(images, density.gives, sampler.precision)
            _wait(device)
            return sum(map(len, inputs)) / (time.perf_counter() - start)

        rates = [
            (without.predict(), second_encoder(), both.predict())
            for _ in range(arguments.rounds + 1)
        ]
    parts = [1e3 / statistics.median(one) for one in zip(*rates[1:], strict=True)]
    names = ("predict without", "second encoder", "predict with")
    return dict(zip(names, parts, strict=True)) | {SHARE: (parts[0] + parts[1]) / parts[2]}


def tables(costs: Costs, rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Markdown."""

    def line(what: str, row: str) -> str:
        memory = rows[row].get("mib_above_a_pass")
        above = "not measured" if memory is None else f"{memory:.0f}"
        return f"| {what} | {rows[row]['base_passes']:.2f} | {rows[row]['ms']:.1f} | {above} |"

    heads = {
        PASS: "score | draws",
        "features": "features | frame | MB on disk",
        "encoder": "encoder, quality not measured",
    }
    lines = list[str]()
    for row in rows:
        kind, *words = row.split()
        if columns := heads.pop(kind, None):
            lines += [
                "",
                f"| {columns} | base passes | ms | MiB above a pass |",
                "|---" * (columns.count("|") + 4) + "|",
            ]
        match kind, *words:
            case "score", name:
                what = f"{name} | {costs.draws(name) or ''}"
            case "features", size:
                what = f"forward pass | x {size} |"
            case "search", size, count:
                what = f"search in {int(count):,} | x {size} | {rows[row]['megabytes']:.1f}"
            case "places", _:
                what = f"its search in {ENCODER_BANK:,}"
            case _:
                what = "a pass |" if row == PASS else words[0]
        lines.append(line(what, row))
    return lines[1:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR")
    parser.add_argument("--size", type=image_size, default=(352, 640), metavar="HxW")
    parser.add_argument("--draws", type=int, default=12, metavar="S")
    parser.add_argument("--video", metavar="FILE", help="measure the last table on it")
    parser.add_argument("--end", metavar="TIME", help="moment of the video to stop before")
    parser.add_argument("--banks", type=int, nargs="*", default=BANKS, metavar="N")
    parser.add_argument("--encoders", nargs="*", default=ENCODERS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--no-memory", action="store_true", help="no processes of their own for the peaks of memory"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    costs = Costs(arguments)
    if arguments.row:
        with torch.inference_mode():
            costs.run(arguments.row)()
        print(json.dumps({"peak_bytes": peak_bytes(costs.device)}))
        return
    found = measure(costs)
    print("\n".join(tables(costs, found["rows"])))
    if found["video"]:
        print("\n| a frame of the video | ms |\n|---|---|")
        print(
            "\n".join(
                f"| {name} | {value:.1f} |"
                for name, value in found["video"].items()
                if name != SHARE
            )
        )
        print(
            f"\nsum of the parts over predict with the second encoder: {found['video'][SHARE]:.2f}"
        )
    if arguments.json:
        write_json(arguments.json, found)


def measure(costs: Costs) -> dict[str, Any]:
    """All numbers, with where they come from."""
    arguments, runs = costs.arguments, dict[str, Callable[[], object]]()
    for row in costs.rows():
        try:
            runs[row] = costs.run(row)
        except InputError as error:  # an encoder that this version of timm has not
            print(f"{row}: {error}", file=sys.stderr)
    with torch.inference_mode():
        rows = {
            row: {"ms": value}
            for row, value in in_turns(runs, arguments.rounds, costs.device).items()
        }
    runs.clear()
    for row in () if arguments.no_memory else rows:
        rows[row] |= in_own_process(__file__, [*sys.argv[1:], "--row", row], row)
    for row, found in rows.items():
        found["base_passes"] = found["ms"] / rows[PASS]["ms"]
        if "peak_bytes" in found and "peak_bytes" in rows[PASS]:
            found["mib_above_a_pass"] = (found["peak_bytes"] - rows[PASS]["peak_bytes"]) / 2**20
        if row.startswith("search "):
            found["megabytes"] = costs.megabytes(int(row.split()[2]))
    return {
        "about": provenance(costs.device) | {
            "size": list(arguments.size), "draws": arguments.draws, "precision": costs.precision,
            "features": list(costs.density.extractor.layers) if costs.density else [],
        },
        "rows": rows,
        "video": video(arguments, costs.device) if arguments.video else {},
    }  # fmt: skip


if __name__ == "__main__":
    main()
