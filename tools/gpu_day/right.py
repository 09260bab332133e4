"""Models, maps and numbers on the GPU beside those of the CPU: toy scenes and a small network."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from segunc.cli.main import main as segunc
from segunc.maps.reader import MapsReader
from segunc.toyroads import ToyConfig, generate_toy
from tools.gpu_day.steps import Day, Row, Step

FLOAT32_BOUND = 64
"""Codes of 65,535 by which a map in float32 may differ from the CPU's: only the order of sums
differs.
"""
BFLOAT16_BOUND = 0.02
"""Mean difference of a map in bfloat16 from the CPU's in float32, as a share of its range."""
NUMBERS_BOUND = 1e-4
"""Largest difference of mIoU, NLL and ECE."""
FRAMES_BEFORE_KILL = 3
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
TINY_METHODS = ("abnn", "tta")
FITTED = {
    "temperature": "",
    "class-sets": "--class_sets.level 0.3",
    "features": "--features.encoder own --features.frames 8",
    "anomaly": "--anomaly.parts [deterministic-energy,knn] --anomaly.draws 2",
}
"""Methods that go on from a finished model, each from the one before, the first from ABNN."""
DISTIL = "--distil.frames 8 --distil.epochs 1"
"""Words of a student of test-time augmentation."""


def steps(day: Day) -> Iterator[Step]:
    """Give the steps of the part ``right``."""
    return Right(day).steps()


def verb(*words: object) -> None:
    """Run a verb in this process. A string may hold several words, with a space between.

    Raises:
        RuntimeError: it fails.
    """
    parts: list[str] = []
    for word in words:
        if isinstance(word, str):
            parts += word.split()
        else:
            parts.append(str(word))
    code = segunc(parts)
    if code:
        raise RuntimeError(f"segunc {' '.join(parts)} ended with {code}")


@dataclass(frozen=True)
class MapDifference:
    """How far maps of two folders are apart.

    Attributes:
        largest: of all codes of all maps.
        mean: of the score where it is largest, as a share of the range of its codes.
    """

    largest: int
    mean: float


def compare_maps(first: Path, second: Path) -> MapDifference:
    """Return how far the maps are apart that two folders share."""
    first_maps = MapsReader(first)
    second_maps = MapsReader(second)
    largest = 0
    means = []
    for score in sorted(set(first_maps.scores) & set(second_maps.scores)):
        for frame in first_maps.frames:
            codes = first_maps.read_stored(frame, score)
            other_codes = second_maps.read_stored(frame, score)
            gap = np.abs(codes.astype(np.float64) - other_codes.astype(np.float64))
            largest = max(largest, int(gap.max()))
            codes_of_range = 65_535.0
            if codes.dtype != np.uint16:
                codes_of_range = max(float(codes.max()), float(other_codes.max()), 1.0)
            means.append(float(gap.mean()) / codes_of_range)
    return MapDifference(largest, max(means))


class Right:
    """The steps; models and maps lie below the folder of the day."""

    def __init__(self, day: Day) -> None:
        self.day = day
        self.folder = day.out
        self.data = day.out / "toy"
        self.frames = self.data / "leftImg8bit" / "anomaly"
        self.on_device = f"--device {day.device_name}"

    def steps(self) -> Iterator[Step]:
        yield Step("train", self.train)
        methods = TINY_METHODS if self.day.tiny else tuple(SMALL)
        for method in methods:
            yield Step(f"finetune {method}", partial(self.finetune, method, "base", SMALL[method]))
        yield Step("finetune ensemble", self.ensemble)
        base = "abnn"
        for method, words in FITTED.items():
            yield Step(f"finetune {method}", partial(self.finetune, method, base, words))
            base = method
        yield Step("finetune distil", partial(self.finetune, "distil", "tta", DISTIL))
        for model in ("base", *methods, "ensemble", *FITTED, "distil"):
            yield Step(f"maps of {model}", partial(self.maps, model))
        for scheme in ("independent", "antithetic"):
            yield Step(f"maps, {scheme} draws", partial(self.maps, "abnn", f"--scheme {scheme}"))
        for model in ("abnn", "ensemble", "tta"):
            yield Step(f"compiled maps of {model}", partial(self.maps, model, "--compile"))
        yield Step("evaluate", self.evaluate)
        yield Step("doctor", self.doctor)
        yield Step("killed and continued", self.killed)
        yield Step("two processes", self.two_processes)

    def train(self) -> Row:
        generate_toy(self.data, ToyConfig(train=32, val=8, test=8, anomaly=4, video_frames=0))
        words = "train --config configs/toy.yaml --trainer.max_epochs 2 --data.root"
        verb(words, self.data, self.on_device, "--out", self.folder / "base")
        return {}

    def finetune(self, method: str, base: str, words: str) -> Row:
        data: list[object] = []
        if method != "tta":  # which learns nothing
            config = Path(f"configs/toy_{method.replace('-', '_')}.yaml")
            data = ["--config", config, "--data.root", self.data]
        command = f"finetune --method {method} --base"
        out = self.folder / method
        verb(command, self.folder / base, *data, self.on_device, words, "--out", out)
        return {}

    def ensemble(self) -> Row:
        words = "train --config configs/toy.yaml --seed 1 --trainer.max_epochs 1 --data.root"
        first = self.folder / "base"
        second = self.folder / "base-1"
        verb(words, self.data, self.on_device, "--out", second)
        verb("finetune --method ensemble --base", first, second, "--out", self.folder / "ensemble")
        return {}

    def doctor(self) -> Row:
        verb("doctor --model", self.folder / "abnn", self.on_device)
        return {}

    def predict(self, model: str, device: str, precision: str, name: str, more: str) -> Path:
        """Make maps of 4 draws, and return their folder.

        Args:
            model: folder of the model below that of the day.
            device: as ``--device``.
            precision: as ``--precision``.
            name: of the maps.
            more: further words of ``predict``.
        """
        out = self.folder / "maps" / f"{model}-{name}-{precision}{more.replace(' ', '')}"
        words = f"--device {device} --precision {precision} --draws 4 {more}"
        verb("predict --model", self.folder / model, "--input", self.frames, words, "--out", out)
        return out

    def maps(self, model: str, more: str = "") -> Row:
        """Compare maps with those of the CPU in float32, which are not compiled."""
        device = self.day.device_name
        name = device.replace(":", "")
        not_compiled = more.replace("--compile", "")
        reference = self.predict(model, "cpu", "float32", "reference", not_compiled)
        of_float32 = compare_maps(reference, self.predict(model, device, "float32", name, more))
        row: Row = {
            "float32: largest, codes": of_float32.largest,
            "float32: mean": of_float32.mean,
            "met": of_float32.largest <= FLOAT32_BOUND,
        }
        if not self.day.on_gpu and not torch.cpu._is_avx512_bf16_supported():
            # Such a CPU emulates bfloat16, thirty times slower.
            row["bfloat16: mean"] = "not measured on this CPU"
            return row
        rough = compare_maps(reference, self.predict(model, device, "bfloat16", name, more))
        row["bfloat16: mean"] = rough.mean
        row["met"] = row["met"] and rough.mean <= BFLOAT16_BOUND
        return row

    def evaluate(self) -> Row:
        on_cpu = self.numbers_of("cpu")
        on_device = self.numbers_of(self.day.device_name)
        gap = max(abs(a - b) for a, b in zip(on_cpu, on_device, strict=True))
        return {"largest difference of mIoU, NLL, ECE": gap, "met": gap < NUMBERS_BOUND}

    def numbers_of(self, device: str) -> list[float]:
        """Return mIoU, NLL and ECE of the toy test frames."""
        out = self.folder / f"evaluate-{device.replace(':', '')}.json"
        words = (
            f"--device {device} --precision float32 --draws 4 --replicates 0 --dataset toy"
            " --split test --root"
        )
        verb("evaluate --model", self.folder / "abnn", words, self.data, "--out", out)
        result = json.loads(out.read_text(encoding="utf-8"))
        calibration = result["calibration"]
        return [result["segmentation"]["miou"], calibration["nll"], calibration["ece"]]

    def start_predict(self, out: Path) -> subprocess.Popen[bytes]:
        """Start ``predict`` of all toy scenes in a process of its own."""
        command: list[object] = [sys.executable, "-m", "segunc", "predict"]
        command += ["--model", self.folder / "abnn", "--input", self.data / "leftImg8bit"]
        command += f"{self.on_device} --precision float32 --draws 4".split()
        command += ["--out", out]
        return subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)

    def has_whole_maps(self, out: Path) -> bool:
        """Return whether the maps of a folder have the bytes of a run that was not disturbed."""
        whole = self.folder / "whole"
        if not whole.exists() and self.start_predict(whole).wait():
            raise RuntimeError("predict failed")
        paths = sorted(path.relative_to(whole) for path in whole.rglob("*.png"))
        if not paths:
            return False
        return all((whole / path).read_bytes() == (out / path).read_bytes() for path in paths)

    def killed(self) -> Row:
        """Kill ``predict`` after a few frames, and let the same command go on."""
        out = self.folder / "killed"
        log = out / "frames.jsonl"
        running = self.start_predict(out)
        while running.poll() is None and _lines(log) < FRAMES_BEFORE_KILL:
            time.sleep(0.02)
        running.kill()
        running.wait()
        frames = _lines(log)
        if self.start_predict(out).wait():
            raise RuntimeError("the second predict failed")
        return {"frames before the kill": frames, "met": self.has_whole_maps(out)}

    def two_processes(self) -> Row:
        outs = [self.folder / "first", self.folder / "second"]
        running = [self.start_predict(out) for out in outs]
        codes = [process.wait() for process in running]
        return {"met": not any(codes) and all(self.has_whole_maps(out) for out in outs)}


def _lines(log: Path) -> int:
    """Return how many lines a file has; 0 where there is none."""
    return len(log.read_bytes().splitlines()) if log.exists() else 0
