"""Networks and boards that a CPU is too slow for: registered plans of ``configs/study``.

Data and networks come from variables of the environment, as the header of each plan says:
SEGUNC_DATA, BOARDS, NETWORKS, WITNESS, and LITE2 for trainings. A step whose variables are not set
is not measured. Trainings and studies stop after ``--study-seconds``, and the same command goes on.
"""

from __future__ import annotations

import copy
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from segunc.toyroads import ToyConfig, generate_toy
from tools.gpu_day.fast import random_model
from tools.gpu_day.networks import TINY_NETWORKS
from tools.gpu_day.steps import Day, NotMeasured, Row, Step
from tools.study.cells import Study
from tools.study.plan import read_plan
from tools.study.report import report

BOARDS_IDD = Path("configs/study/boards-large-idd.yaml")
FULL_SIZE = Path("configs/study/boards-full-size.yaml")
IDD_SEEDS = (0, 1, 2, 3)
NOISE_SEEDS = 8
TOY_CLASSES = 9
VARIABLE = re.compile(r"\$([A-Z][A-Z0-9_]*)")
SECONDS_TO_STOP = 20
"""So long a training may take to end after it was asked to."""


def steps(day: Day) -> Iterator[Step]:
    """Give the steps of the part ``studies``."""
    for seed in IDD_SEEDS[:1] if day.tiny else IDD_SEEDS:
        yield Step(f"network {seed} of IDD-lite", partial(train_idd, day, seed))
    yield Step("boards of IDD-lite at full frames", partial(study_idd, day))
    yield Step("boards at 1024x2048", partial(study_full_size, day))


def train_idd(day: Day, seed: int) -> Row:
    """Train a base of ``boards-large-idd.yaml``; a rehearsal trains on toy scenes."""
    words = toy_training(day, seed) if day.tiny else idd_training(seed)
    words += ["--device", day.device_name, "--seed", str(seed)]
    run_within([sys.executable, "-m", "segunc", "train", *words], seconds_left(day))
    return {"seed": seed}


def idd_training(seed: int) -> list[str]:
    """Return the words of ``train`` in the header of ``boards-large-idd.yaml``."""
    require_variables({"SEGUNC_DATA", "NETWORKS", "LITE2"})
    data = Path(os.environ["SEGUNC_DATA"]) / "idd_lite"
    words = ["--config", "configs/idd_lite0.yaml"]
    words += ["--network.encoder", "tu-tf_efficientnet_lite2"]
    words += ["--network.encoder_weights", os.environ["LITE2"]]
    words += ["--data.root", str(data), "--data.crop", "[224,320]"]
    words += ["--data.batch_size", "16", "--data.workers", "2"]
    words += ["--trainer.precision", "bf16-mixed", "--trainer.max_epochs", "25"]
    words += ["--out", str(Path(os.environ["NETWORKS"]) / f"idd-{seed}")]
    return words


def toy_training(day: Day, seed: int) -> list[str]:
    """Return the words of ``train`` for a rehearsal, and make its scenes."""
    data = day.out / "study-toy"
    generate_toy(data, ToyConfig(train=8, val=2, test=2, anomaly=2, video_frames=0))
    words = ["--config", "configs/toy.yaml", "--trainer.max_epochs", "1"]
    words += ["--data.root", str(data), "--out", str(day.out / f"study-idd-{seed}")]
    return words


def require_variables(names: set[str]) -> None:
    """Raise NotMeasured where variables of the environment are not set."""
    unset = sorted(name for name in names if not os.environ.get(name))
    if unset:
        raise NotMeasured(f"set {' and '.join(unset)}")


def seconds_left(day: Day) -> float:
    """Return how long a training or a study may take."""
    return max(0.0, min(day.study_seconds, day.end - time.monotonic()))


def run_within(command: list[str], seconds: float) -> None:
    """Run a command that goes on with what an earlier call began.

    Raises:
        NotMeasured: it has not ended after so many seconds, and was stopped.
        RuntimeError: it failed.
    """
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as running:
        try:
            _, errors = running.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            running.terminate()
            try:
                running.communicate(timeout=SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                running.kill()
            raise NotMeasured(
                f"not finished after {seconds:.0f} s; the same command goes on"
            ) from None
    if running.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no message"]
        raise RuntimeError(f"ended with {running.returncode} ({lines[-1]})")


def study_idd(day: Day) -> Row:
    """Work on the boards of four converged bases of IDD-lite."""
    if day.tiny:
        return run_study(day, tiny_plan(day), day.out / "study-boards-idd")
    return run_study(day, BOARDS_IDD, day.out / "boards-large-idd")


def study_full_size(day: Day) -> Row:
    """Work on the public networks at 1024 x 2048, with eight seeds of the draws of noise."""
    path = day.out / "boards-full-size.yaml"
    content = yaml.safe_load(FULL_SIZE.read_text(encoding="utf-8"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(with_noise_seeds(content, NOISE_SEEDS)), encoding="utf-8")
    if day.tiny:
        path = tiny_plan(day)
        return run_study(day, path, day.out / "study-full-size")
    return run_study(day, path, day.out / "boards-full-size")


def with_noise_seeds(content: Mapping[str, Any], seeds: int) -> dict[str, Any]:
    """Return a plan that also has further seeds of its row ``noise``, and lines of their mean.

    Args:
        content: of the file of a plan, with rows ``noise`` and ``noise, seed 1``.
        seeds: how many there are then, seed 0 of ``noise`` among them.
    """
    changed = copy.deepcopy(dict(content))
    study = changed["study"]
    rows = {row["label"]: row for row in study["rows"]}
    labels = ["noise"]
    for seed in range(1, seeds):
        label = f"noise, seed {seed}"
        labels.append(label)
        if label not in rows:
            row = copy.deepcopy(rows["noise, seed 1"])
            study["rows"].append({**row, "label": label, "evaluate": {"seed": seed}})
    mean = f"noise, {seeds} seeds"
    study["means"][mean] = labels
    for table in study["tables"]:
        table["lines"] = [*table["lines"], f"{mean}: entropy", f"{mean}: epistemic"]
    return changed


def run_study(day: Day, path: Path, out: Path) -> Row:
    """Make the results of a plan that are not there yet, one by one, and write its tables.

    Between two results it looks at the clock, so it ends a result later than its time.

    Raises:
        NotMeasured: the plan needs variables that are not set or networks that are not there, or
            its time is over.
        RuntimeError: a result failed.
    """
    require_variables(variables_of(path))
    end = time.monotonic() + seconds_left(day)
    plan = read_plan(path)
    study = Study(plan, plan.rows, out, day.device_name)
    require_bases(study)
    all_results = 0
    for cell in study.cells():
        all_results += len(plan.evaluations_of(cell.row, cell.protocol))
    results = 0
    for cell in study.cells():
        for name, options in plan.evaluations_of(cell.row, cell.protocol).items():
            if time.monotonic() > end:
                write_tables(study, out)
                raise NotMeasured(
                    f"{results} of {all_results} results are there; the same command goes on"
                )
            outcome = study.run(cell, {name: options})
            if outcome not in ("made", "kept"):
                raise RuntimeError(f"{cell.name}, {name}: {outcome}")
            results += 1
    write_tables(study, out)
    return {"results": results, "endpoints and tables": f"{out.name}/study.md"}


def variables_of(path: Path) -> set[str]:
    """Return the variables of the environment that a plan uses outside of its comments."""
    names: set[str] = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.lstrip().startswith("#"):
            names.update(VARIABLE.findall(line))
    return names


def require_bases(study: Study) -> None:
    """Raise NotMeasured where the base network of a seed is not there."""
    for cell in study.cells():
        if cell.row.of is not None:
            continue
        for base in cell.bases:
            if not base.exists():
                raise NotMeasured(f"the network {base.name} is not there")


def write_tables(study: Study, out: Path) -> None:
    """Write what all finished results say."""
    out.mkdir(parents=True, exist_ok=True)
    report(study)


def tiny_plan(day: Day) -> Path:
    """Write the plan of a rehearsal, with its network and its scenes, and return its file."""
    path = day.out / "study-plan.yaml"
    data = day.out / "study-scenes"
    network = day.out / "study-network-0"
    if path.exists():
        return path
    size = (64, 128)
    generate_toy(data, ToyConfig(train=4, val=2, test=2, anomaly=2, video_frames=0, size=size))
    random_model(network, TINY_NETWORKS[0], TOY_CLASSES)
    content = {
        "seeds": [0],
        "baseline": "base",
        "evaluate": {"draws": 2, "replicates": 0, "by": "none", "precision": "float32"},
        "protocols": {
            "toy": {
                "base": str(network.with_name("study-network-{seed}-base")),
                "data": {"dataset": "toy", "root": str(data)},
                "evaluations": {
                    "anomaly": {
                        "dataset": "toy-anomaly",
                        "split": "anomaly",
                        "root": str(data),
                        "protocols": "pooled",
                    }
                },
            }
        },
        "rows": [
            {"label": "base", "scores": ["deterministic-entropy"]},
            {
                "label": "noise",
                "method": "abnn",
                "settings": {"members": 1, "epochs": 0, "alpha": 0.1, "statistics": "frozen"},
                "scores": ["entropy"],
            },
        ],
        "tables": [
            {
                "title": "Toy",
                "evaluation": "toy/anomaly",
                "numbers": ["pooled.aupr"],
                "lines": ["base: deterministic-entropy", "noise: entropy"],
                "baseline_score": "deterministic-entropy",
            }
        ],
    }
    path.write_text(yaml.safe_dump({"study": content}), encoding="utf-8")
    return path
