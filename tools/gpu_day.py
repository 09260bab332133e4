"""What this package does on a GPU, right and fast: every step beside the CPU or a bound, one JSON
and one table.

    python -m tools.gpu_day --out gpu-day --seconds 1500
    python -m tools.gpu_day --out rehearsal --device cpu --tiny    # the same steps at toy sizes

Two parts, of which --parts names some:

right   toy scenes and a small network: train, every method of finetune, each model's maps in
        float32 and bfloat16 against the CPU's in float32, the schemes of draws, evaluate, doctor,
        a killed and continued predict, two processes at once
fast    networks of random weights: the best pass (eager or compiled, channels last, bfloat16) to
        low-resolution logits, maps of 24 draws over 24 such passes, memory above that of a plain
        pass, and a loop over deep copies with torch-uncertainty's layer; a student beside its
        network

A step that fails is a row with its reason, and the others run. Every finished step is on disk at
once: the same command goes on behind it. After --seconds no step begins. The exit code is 1 where a
step failed or missed its bound.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import gc
import importlib.util
import json
import os
import re
import runpy
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from segunc import ABNNPosterior, AffineLayout, Sampler, convert
from segunc.baselines.distil import LogitLayer, Student, StudentPosterior, make_head
from segunc.cli.main import build_parser, main as segunc
from segunc.cli.parser import parsed
from segunc.core.device import resolve_device
from segunc.core.files import write_json
from segunc.maps.reader import MapsReader
from segunc.options import PredictOptions
from segunc.posteriors.model import Model
from segunc.sampling.sampler import CUDA_CHUNK_PIXELS
from segunc.toyroads import ToyConfig, generate_toy
from segunc.verbs.execution import open_job
from tools.bench_predict import Bench
from tools.bench_sampler import ALPHA, by_hand, hand_written_norms, job, make_network
from tools.measuring import provenance

Step = Callable[[], dict[str, Any]]
FLOAT32_BOUND = 64
"""Codes of 65,535 by which a map in float32 may differ from the CPU's: only the order of sums
differs.
"""
BFLOAT16_BOUND = 0.02
"""Mean difference of a map in bfloat16 from the CPU's in float32, as a share of its range."""
NETWORKS = (("DeepLabV3Plus", "resnet50"), ("Segformer", "mit_b2"), ("Unet", "resnet34"))
SIZES = ((512, 1024), (1024, 2048))
MAPS_OVER_LIMIT, LOOP_OVER_MAPS, EXTRA_GIB, STUDENT_PASSES, PREDICT_OVER_ALONE = (
    1.15,
    10.0,
    1.0,
    1.1,
    0.9,
)
SMALL = {
    "abnn": "--abnn.members 2 --abnn.epochs 1",
    "hmc": "--hmc.frames 2 --hmc.chains 2 --hmc.warmup 1 --hmc.samples 3 --hmc.scope decoder",
    "laplace": "--laplace.images 8",
    "mc-dropout": "--mc_dropout.sites norm --mc_dropout.p 0.02",
    "mcbn": "--mcbn.batches 2 --mcbn.batch_size 2",
    "sghmc": "--sghmc.cycles 1 --sghmc.cycle_steps 6 --sghmc.states_per_cycle 3",
    "sgld": "--sgld.cycles 1 --sgld.cycle_steps 6 --sgld.states_per_cycle 3",
    "swag": "--swag.epochs 2 --swag.burn_in 2 --swag.collect_every 1 --swag.rank 3",
    "variational": "--variational.epochs 1",
    "tta": "--tta.scales [1.0,0.75]",
}
"""Methods that make a model of the base, with a small run of each."""
FITTED = {
    "temperature": "",
    "class-sets": "--class_sets.level 0.3",
    "features": "--features.encoder own --features.frames 8",
    "anomaly": "--anomaly.parts [deterministic-energy,knn] --anomaly.draws 2",
    "distil": "--distil.frames 8 --distil.epochs 1",
}
"""Methods that go on from a finished model, each from the one before; a student from test-time
augmentation.
"""


def verb(*words: object) -> None:
    """Run a verb in this process; a RuntimeError where it fails."""
    told = [
        part
        for word in words
        for part in (word.split(" ") if isinstance(word, str) else [str(word)])
        if part
    ]
    if code := segunc(told):
        raise RuntimeError(f"segunc {' '.join(told)} ended with {code}")


def compared(first: Path, second: Path) -> tuple[int, float]:
    """Largest and mean difference of the codes of all maps that two folders share, the mean as a
    share of their range.
    """
    a, b = MapsReader(first), MapsReader(second)
    largest, means = 0, []
    for score in sorted(set(a.scores) & set(b.scores)):
        for frame in a.frames:
            x, y = (reader.read_stored(frame, score) for reader in (a, b))
            gap = np.abs(x.astype(np.float64) - y.astype(np.float64))
            largest, top = max(largest, int(gap.max())), max(float(x.max()), float(y.max()), 1.0)
            means.append(float(gap.mean()) / (65_535 if x.dtype == np.uint16 else top))
    return largest, max(means)


class Right:
    """Steps of the part ``right``; models and maps lie below ``folder``."""

    def __init__(self, folder: Path, device: str, tiny: bool) -> None:
        self.folder, self.device, self.tiny = folder, device, tiny
        self.data, self.frames = folder / "toy", folder / "toy/leftImg8bit/anomaly"
        self.on = f"--device {device}"

    def steps(self) -> Iterator[tuple[str, Step]]:
        yield "train", self.train
        models = ["base", *(("abnn", "tta") if self.tiny else SMALL)]
        for method in models[1:]:
            yield f"finetune {method}", lambda m=method: self.finetune(m, "base", SMALL[m])  # type: ignore[misc]
        yield "finetune ensemble", self.ensemble
        before = "abnn"
        for method, words in FITTED.items():
            base = "tta" if method == "distil" else before
            yield f"finetune {method}", lambda m=method, b=base, w=words: self.finetune(m, b, w)  # type: ignore[misc]
            before = method if method != "distil" else before
        for model in [*models, "ensemble", *FITTED]:
            yield f"maps of {model}", lambda m=model: self.maps(m)  # type: ignore[misc]
        for scheme in ("independent", "antithetic"):
            yield f"maps, {scheme} draws", lambda s=scheme: self.maps("abnn", f"--scheme {s}")  # type: ignore[misc]
        for model in ("abnn", "ensemble", "tta"):
            yield f"compiled maps of {model}", lambda m=model: self.maps(m, "--compile")  # type: ignore[misc]
        yield "evaluate", self.evaluate
        yield "doctor", lambda: verb("doctor --model", self.folder / "abnn", self.on) or {}  # type: ignore[func-returns-value]
        yield "killed and continued", self.killed
        yield "two processes", self.two

    def train(self) -> dict[str, Any]:
        generate_toy(self.data, ToyConfig(train=32, val=8, test=8, anomaly=4, video_frames=0))
        words = "train --config configs/toy.yaml --trainer.max_epochs 2 --data.root"
        verb(words, self.data, self.on, "--out", self.folder / "base")
        return {}

    def finetune(self, method: str, base: str, words: str) -> dict[str, Any]:
        config = Path(f"configs/toy_{method.replace('-', '_')}.yaml")
        there = ["--config", config, "--data.root", self.data] if method != "tta" else []
        told = (f"finetune --method {method} --base", self.folder / base, *there, self.on, words)
        verb(*told, "--out", self.folder / method)
        return {}

    def ensemble(self) -> dict[str, Any]:
        words = "train --config configs/toy.yaml --seed 1 --trainer.max_epochs 1 --data.root"
        base, second = self.folder / "base", self.folder / "base-1"
        verb(words, self.data, self.on, "--out", second)
        verb("finetune --method ensemble --base", base, second, "--out", self.folder / "ensemble")
        return {}

    def predict(
        self, model: str, device: str, precision: str, more: str = "", tag: str = ""
    ) -> Path:
        out = (
            self.folder
            / "maps"
            / f"{model}-{tag or device.replace(':', '')}-{precision}{more.replace(' ', '')}"
        )
        words = f"--device {device} --precision {precision} --draws 4 {more}"
        verb("predict --model", self.folder / model, "--input", self.frames, words, "--out", out)
        return out

    def maps(self, model: str, more: str = "") -> dict[str, Any]:
        truth = self.predict(model, "cpu", "float32", more.replace("--compile", ""), "reference")
        largest, mean = compared(truth, self.predict(model, self.device, "float32", more))
        found = {
            "float32: largest, codes": largest,
            "float32: mean": mean,
            "met": largest <= FLOAT32_BOUND,
        }
        if (
            self.device == "cpu" and not torch.cpu._is_avx512_bf16_supported()
        ):  # it emulates bfloat16, thirty times slower
            return found | {"bfloat16: mean": "not measured on this CPU"}
        _, rough = compared(truth, self.predict(model, self.device, "bfloat16", more))
        return found | {"bfloat16: mean": rough, "met": found["met"] and rough <= BFLOAT16_BOUND}

    def evaluate(self) -> dict[str, Any]:
        results = []
        for device in ("cpu", self.device):
            out = self.folder / f"evaluate-{device.replace(':', '')}.json"
            words = (
                f"--device {device} --precision float32 --draws 4 --replicates 0 --dataset toy"
                " --split test --root"
            )
            verb("evaluate --model", self.folder / "abnn", words, self.data, "--out", out)
            result = json.loads(out.read_text(encoding="utf-8"))
            results.append(
                (
                    result["segmentation"]["miou"],
                    result["calibration"]["nll"],
                    result["calibration"]["ece"],
                )
            )
        gap = max(abs(a - b) for a, b in zip(*results, strict=True))
        return {"largest difference of mIoU, NLL, ECE": gap, "met": gap < 1e-4}

    def predicting(self, out: Path) -> subprocess.Popen[bytes]:
        words = f"{self.on} --precision float32 --draws 4 --out".split()
        told = ["-m", "segunc", "predict", "--model"]
        command = [
            sys.executable,
            *told,
            self.folder / "abnn",
            "--input",
            self.data / "leftImg8bit",
        ]
        return subprocess.Popen([*map(str, command), *words, str(out)], stdout=subprocess.DEVNULL)

    def same(self, out: Path) -> bool:
        whole = self.folder / "whole"
        if not whole.exists() and self.predicting(whole).wait():
            raise RuntimeError("predict failed")
        paths = sorted(path.relative_to(whole) for path in whole.rglob("*.png"))
        return bool(paths) and all(
            (whole / path).read_bytes() == (out / path).read_bytes() for path in paths
        )

    def killed(self) -> dict[str, Any]:
        out, log = self.folder / "killed", self.folder / "killed" / "frames.jsonl"
        first = self.predicting(out)
        while first.poll() is None and (not log.exists() or len(log.read_bytes().splitlines()) < 3):
            time.sleep(0.02)
        first.kill()
        first.wait()
        done = len(log.read_bytes().splitlines())
        if self.predicting(out).wait():
            raise RuntimeError("the second predict failed")
        return {"frames before the kill": done, "met": self.same(out)}

    def two(self) -> dict[str, Any]:
        outs = [self.folder / "first", self.folder / "second"]
        codes = [running.wait() for running in [self.predicting(out) for out in outs]]
        return {"met": not any(codes) and all(map(self.same, outs))}


class Turns:
    """Lets processes that share a folder begin together, when all of so many have come or a time is
    over, and then go one by one.
    """

    def __init__(self, folder: Path | None, processes: int, end: float) -> None:
        self.folder, self.processes, self.end, self.lock = folder, processes, end, -1

    def __enter__(self) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / str(os.getpid())).touch()
        while len(list(self.folder.iterdir())) < self.processes and time.monotonic() < self.end:
            time.sleep(0.2)
        self.lock = os.open(self.folder, os.O_RDONLY)
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        if self.lock >= 0:
            os.close(self.lock)


class Fast:
    """Steps of the part ``fast``."""

    def __init__(self, device: str, tiny: bool, folder: Path, turns: Turns) -> None:
        self.device, self.tiny, self.folder, self.draws, self.turns = (
            device,
            tiny,
            folder,
            2 if tiny else 24,
            turns,
        )

    def steps(self) -> Iterator[tuple[str, Step]]:
        networks = (("FPN", "resnet18"),) if self.tiny else NETWORKS
        for network in networks:
            for size in ((64, 128),) if self.tiny else SIZES:
                words = " ".join([*network, f"{size[0]}x{size[1]}"])
                yield words, lambda n=network, s=size: self.network(n, s)  # type: ignore[misc]
        for network in networks:
            yield f"student of {' '.join(network)}", lambda n=network: self.one_pass(n)  # type: ignore[misc]
        for more in ((), ("--compile",)):
            yield " ".join(["predict over a clip", *more]), lambda m=more: self.clip(*m)  # type: ignore[misc]

    def network(self, names: tuple[str, str], size: tuple[int, int]) -> dict[str, Any]:
        """All rows of a network: prepared beside other processes, timed while none of these does
        anything.
        """
        asked, double = self.asked(names, size), max(1, CUDA_CHUNK_PIXELS // (size[0] * size[1]))
        whole = argparse.Namespace(**vars(asked), compiled=True)
        rows = {
            "eager pass": ("pass eager x1", asked),
            "pass": ("pass compiled x4", asked),
            "deterministic": ("deterministic", asked),
        }
        rows |= {"maps": ("maps", asked), "compiled maps": ("maps", whole)}
        rows["double batches"] = ("maps", argparse.Namespace(**vars(whole), chunk=double))
        jobs = {name: self.prepared(*job(*row)) for name, row in rows.items()}
        if (loop := self.loop(asked)) is not None:
            jobs["loop"] = self.prepared(loop)
        with self.turns:
            ms = {name: 1e3 * self.seconds(*ready) for name, (*ready, _) in jobs.items()}
            kernels = {
                f"{name}, ms of kernels": 1e3 * self.kernels(*ready)
                for name, (*ready, _) in jobs.items()
            }
        found: dict[str, Any] = {f"{name}, ms": value for name, value in ms.items()} | kernels
        for name in ("compiled maps", "double batches"):
            found[f"{name}, over limit"] = ms[name] / (self.draws * ms["pass"])
            found[f"{name}, extra GiB"] = (jobs[name][2] - jobs["deterministic"][2]) / 2**30
        found["loop over maps"] = ms["loop"] / ms["compiled maps"] if "loop" in ms else None
        fast, small = (
            found["compiled maps, over limit"] <= MAPS_OVER_LIMIT,
            found["compiled maps, extra GiB"] <= EXTRA_GIB,
        )
        return found | {"met": fast and small and (found["loop over maps"] or 99) >= LOOP_OVER_MAPS}

    def asked(self, names: tuple[str, str], size: tuple[int, int]) -> argparse.Namespace:
        precision = "float32" if self.device == "cpu" else "bfloat16"
        of_network = {"network": names[0], "encoder": names[1], "size": size, "classes": 19}
        return argparse.Namespace(
            **of_network, device=self.device, draws=self.draws, precision=precision
        )

    @torch.no_grad()
    def prepared(
        self, run: Callable[[], object], images: int = 1
    ) -> tuple[Callable[[], object], int, int]:
        """A job that has run three times, how many images one run is worth, and the most memory
        that it held beside earlier jobs.
        """
        on_gpu, held = self.device != "cpu", 0
        for again in range(3):
            if on_gpu and again != 1:
                gc.collect()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                held = held or torch.cuda.memory_reserved()
            run()
        most = torch.cuda.max_memory_reserved() - held if on_gpu else 0
        torch.cuda.empty_cache()  # for the processes beside this one
        return run, images, most

    @torch.no_grad()
    def seconds(self, run: Callable[[], object], images: int = 1) -> float:
        """Median seconds an image."""
        device, times = resolve_device(self.device), list[float]()
        while len(times) < 3 or (len(times) < 15 and sum(times) < 0.6):
            _wait(device)
            start = time.perf_counter()
            run()
            _wait(device)
            times.append(time.perf_counter() - start)
        return statistics.median(times) / images

    def kernels(self, run: Callable[[], object], images: int = 1) -> float:
        """Seconds an image of the kernels of one run, which a busy host does not lengthen; 0 on a
        CPU.
        """
        with torch.no_grad(), torch.profiler.profile() as profiler:
            run()
            _wait(resolve_device(self.device))
        return (
            sum(
                e.self_device_time_total
                for e in profiler.key_averages()
                if e.device_type.name == "CUDA"
            )
            / 1e6
            / images
        )

    def loop(self, asked: argparse.Namespace) -> Callable[[], object] | None:
        """A loop over deep copies with torch-uncertainty's own layer in float32; None where it is
        not installed.
        """
        if (layer := their_layer()) is None:
            return None
        network = make_network(asked)
        hand_written_norms(network, layer)
        copies = [copy.deepcopy(network).eval() for _ in range(self.draws)]
        images = torch.rand(1, 3, *asked.size, device=resolve_device(self.device))
        return lambda: by_hand(lambda draw: copies[draw](images), self.draws)

    def one_pass(self, names: tuple[str, str]) -> dict[str, Any]:
        """A student, whose head has random weights, beside its network."""
        asked = self.asked(names, (64, 128) if self.tiny else SIZES[0])
        network, device = make_network(asked), resolve_device(self.device)
        words: dict[str, Any] = {"precision": asked.precision, "compiled": True}
        images, layer = torch.rand(1, 3, *asked.size, device=device), LogitLayer(network).module
        student = StudentPosterior(
            network, make_head(layer, Student.head_channels, asked.classes).to(device), layer
        )
        base = Sampler(network, scores=("deterministic-entropy",), **words)
        samplers = base, Sampler(student.network, student, scores=("entropy", "epistemic"), **words)
        runs = [self.prepared(partial(sampler, images))[0] for sampler in samplers]
        with self.turns:
            seconds, kernels = list(map(self.seconds, runs)), list(map(self.kernels, runs))
        ratio = seconds[1] / seconds[0]
        return {
            "student over base": ratio,
            "in kernels": kernels[1] / max(kernels[0], 1e-9),
            "met": ratio <= STUDENT_PASSES,
        }

    def clip(self, *more: str) -> dict[str, Any]:
        """`predict` of 24 draws over a toy video, beside the sampler alone."""
        size, names = ((64, 128), ("FPN", "resnet18")) if self.tiny else (SIZES[0], NETWORKS[0])
        folder = self.folder / "clip"
        network = make_network(
            argparse.Namespace(network=names[0], encoder=names[1], device="cpu", classes=19)
        )
        report = convert(network.body)
        posterior = ABNNPosterior.around(AffineLayout(network), ALPHA)
        Model(network, posterior, "", None, report, {"seed": 0, "provenance": {}}).save(
            folder / "model"
        )
        generate_toy(
            folder / "toy",
            ToyConfig(
                train=0, val=0, test=0, anomaly=0, video_frames=8 if self.tiny else 48, size=size
            ),
        )
        words = [
            "--model",
            folder / "model",
            "--input",
            folder / "toy/video/crossing.webm",
            "--draws",
            self.draws,
            *more,
        ]
        words += [
            "--device",
            self.device,
            "--size",
            f"{size[0]}x{size[1]}",
            "--scores",
            "entropy,epistemic",
            "--out",
            "unused",
        ]
        with open_job(
            parsed(PredictOptions, build_parser().parse_args(["predict", *map(str, words)]))
        ) as job:
            bench = Bench(job)
            rates = {"frames/s decoded": bench.decode()}
            inputs = bench.inputs()
            for _ in range(2):
                bench.process(bench.frames[0])
            _wait(resolve_device(self.device))
            with self.turns:
                rates |= {
                    "alone": bench.alone(inputs),
                    "predict": bench.predict(),
                    "written by one thread": bench.store(),
                }
        return rates | {"met": rates["predict"] / rates["alone"] >= PREDICT_OVER_ALONE}


def their_layer() -> Callable[[nn.BatchNorm2d], nn.Module] | None:
    """torch-uncertainty's layer of ABNN in the place of a batch norm; its package imports more than
    a machine with a GPU may have.
    """
    spec = importlib.util.find_spec("torch_uncertainty")
    if spec is None or not spec.submodule_search_locations:
        return None
    theirs = runpy.run_path(f"{spec.submodule_search_locations[0]}/layers/bayesian/abnn.py")[
        "BatchNormAdapter2d"
    ]

    def make(norm: nn.BatchNorm2d) -> nn.Module:
        layer: nn.Module = theirs(norm.num_features, alpha=0.1, device=norm.weight.device)
        layer.load_state_dict(norm.state_dict())
        return layer

    return make


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def table(rows: dict[str, dict[str, Any]]) -> str:
    """All steps as Markdown."""
    lines = ["| step | seconds | met | what was found |", "|---|---|---|---|"]
    for name, row in rows.items():
        numbers = {
            key: value for key, value in row.items() if key not in ("seconds", "met", "failed")
        }
        words = row.get("failed") or ", ".join(
            f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in numbers.items()
        )
        lines.append(
            f"| {name} | {row['seconds']:.1f} |"
            f" {'yes' if row.get('met', 'failed' not in row) else 'no'} | {words} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", default="right,fast")
    parser.add_argument("--seconds", type=float, default=1500)
    parser.add_argument("--only", default="", metavar="PATTERN", help="steps whose names match it")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument(
        "--turns",
        type=Path,
        metavar="DIR",
        help="networks are timed in turns with the other processes of this folder",
    )
    parser.add_argument(
        "--beside", type=int, default=1, metavar="N", help="processes of the folder"
    )
    asked = parser.parse_args()
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured", file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    began, path = time.monotonic(), asked.out / "gpu_day.json"
    turns = Turns(asked.turns, asked.beside, began + asked.seconds)
    right, fast = (
        Right(asked.out, asked.device, asked.tiny),
        Fast(asked.device, asked.tiny, asked.out, turns),
    )
    parts = {"right": right.steps, "fast": fast.steps}
    result = {**provenance(resolve_device(asked.device)), "rows": {}}
    if path.exists():
        result["rows"] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    for name, step in (
        (name, step) for part in asked.parts.split(",") for name, step in parts[part]()
    ):
        if (
            name in result["rows"]
            or not re.search(asked.only, name)
            or time.monotonic() - began > asked.seconds
        ):
            continue
        start = time.monotonic()
        try:
            row = step()
        except Exception as error:  # a row of the table: what is behind it is still worth measuring
            row = {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        result["rows"][name] = {**row, "seconds": time.monotonic() - start}
        torch._dynamo.reset()
        write_json(path, result)
        print(f"{time.monotonic() - began:6.0f} s  {name}: {result['rows'][name]}", flush=True)
    (asked.out / "gpu_day.md").write_text(table(result["rows"]) + "\n", encoding="utf-8")
    print(table(result["rows"]))
    return int(not all(row.get("met", "failed" not in row) for row in result["rows"].values()))


if __name__ == "__main__":
    sys.exit(main())
