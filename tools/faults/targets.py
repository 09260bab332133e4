"""The commands that faults happen to, each small enough for seconds, and what of their output must be equal to the byte.

What cannot be equal, and is not compared: :data:`NOT_COMPARED` (how a run went, not what it made) and the fields :data:`VOLATILE` of
records. What else differs is a failure, but for weights of a training where its record says ``"resumed": true`` (:data:`RECORDS`).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchvision

from tests.verbs.processes import Command, Finished, succeed
from tools.faults.world import SMALL, World, left_over, remove

NOT_COMPARED = re.compile(r"(^|/)(checkpoints|logs|tensorboard)/|(^|/)overlay\.(webm|mp4)$|\.(pdf|svg)$")
"""Checkpoints and logs of a training; videos and figures, into which their libraries write the moment."""
VOLATILE = re.compile(r"^(date|record_sha256|seconds|resumed|.*_seconds|frames_per_second|continued_by)$")
"""Fields of records: when and how fast, that a run was continued, and the hash that binds these, too."""
RECORDS = ("training.json", "posterior.json", "network.json")
"""Say ``"resumed": true`` of weights that a continued training gave."""
NETWORK = "lraspp_mobilenet_v3_large"
LANGEVIN = "{cycles: 2, cycle_steps: 4, exploration: 0.25, states_per_cycle: 2, effective_pixels: 1000, scope: decoder}"
TRAINED = "\ntrainer: {precision: 32-true}"
SETTINGS = {
    "abnn": "abnn: {members: 2, alpha_grid: [0.05, 0.2], alpha_frames: 2, alpha_draws: 2, epochs: 2}" + TRAINED,
    "deterministic": "deterministic: {epochs: 3}" + TRAINED,
    "decoder-ensemble": "decoder_ensemble: {heads: 3, epochs: 2}" + TRAINED,
    "laplace": "laplace: {images: 8, samples: 1, prior_scale_grid: [0.02, 0.05], selection_frames: 1, selection_draws: 2}"
    + TRAINED,
    "mc-dropout": "mc_dropout: {p_grid: [0.01, 0.05], selection_frames: 1, selection_draws: 2}" + TRAINED,
    "swag": "swag: {epochs: 3, burn_in: 0, collect_every: 1, rank: 4}" + TRAINED,
    "variational": "variational: {epochs: 3}" + TRAINED,
    "sgld": f"sgld: {LANGEVIN}",
    "sghmc": f"sghmc: {LANGEVIN}",
    "hmc": "hmc: {scope: decoder, frames: 2, effective_pixels: 300, chains: 2, warmup: 1, samples: 4, trajectory: 0.01, step_size: 0.003}",
    "temperature": "temperature: {pixels: 200, draws: 4}",
    "standardized-max-logit": "max_logit: {frames: 4}",
    "features": "features: {frames: 4, encoder: own}",
    "anomaly": "anomaly: {parts: [deterministic-energy, knn], draws: 2}\nselect: {frames: 4}",
}
"""A small run of each method of ``segunc finetune`` that has settings for a data set; ``tta`` and ``ensemble`` take none."""

Words = Sequence[object]


@dataclass(frozen=True)
class Target:
    """Commands that run at the same time and write below one folder."""

    commands: Callable[[World, Path], list[Words]]  # into the folder
    share: int  # of the kills
    needs: str = ""  # a package that it needs


def predict(world: World, out: Path, *more: object, given: Path | None = None) -> Words:
    """A prediction of the toy frames."""
    return ["predict", "--model", world.job.abnn, "--input", given or world.job.frames, "--out", out, SMALL, *more]


def finetune(method: str) -> Callable[[World, Path], list[Words]]:
    """A small run of a method, from the base that it is made of."""

    def words(world: World, out: Path) -> list[Words]:
        bases: dict[str, list[Path]] = {"ensemble": [world.job.base, second_base(world)], "anomaly": [world.fitted]}
        if method in ("temperature", "standardized-max-logit", "features"):
            bases[method] = [world.fitted]
        given: list[object] = []
        if method == "tta":
            text = "tta: {scales: [1.0, 0.75], flip: true}\n"
            given = ["--config", world.made("tta.yaml", lambda path: path.write_text(text))]
        elif method in SETTINGS:
            given = ["--config", world.config(f"kill-{method}", SETTINGS[method])]
        base = bases.get(method, [world.job.base])
        return [[f"finetune --device cpu --method {method} --base", *base, *given, "--out", out]]

    return words


def second_base(world: World) -> Path:
    """A base network of another seed."""
    words = ("train --seed 1 --device cpu --config", world.job.train_config, "--out")
    return world.made("second", lambda path: succeed(*words, path))


def imported(world: World, out: Path) -> list[Words]:
    """The import of a network of torchvision's."""

    def make(path: Path) -> None:
        torch.manual_seed(0)
        network = torchvision.models.get_model(NETWORK, weights=None, weights_backbone=None, num_classes=9)
        torch.save(network.state_dict(), path)

    weights = world.made("torchvision.pth", make)
    return [
        ["import", f"torchvision:{NETWORK}", "--weights", weights, "--classes", "toy", "--size", "64x128", "--out", out]
    ]


TARGETS: dict[str, Target] = {
    "predict, folder": Target(lambda w, out: [predict(w, out, "--overlay --frames-at-once 2")], 14),
    "predict, compact": Target(lambda w, out: [predict(w, out, "--compact")], 6),
    "predict, video": Target(lambda w, out: [predict(w, out, "--overlay", given=w.job.video)], 14),
    "predict, smoothed video": Target(lambda w, out: [predict(w, out, "--smooth 0.2", given=w.job.video)], 8),
    "predict, two shards at once": Target(
        lambda w, out: [predict(w, out, f"--shard {number}/2", given=w.job.video) for number in (1, 2)], 14
    ),
    "predict, Ray": Target(
        lambda w, out: [predict(w, out, "--engine ray --workers 2 --shards 2", given=w.job.video)], 4, needs="ray"
    ),
    "train": Target(
        lambda w, out: [["train --device cpu --trainer.max_epochs 3 --config", w.job.train_config, "--out", out]], 14
    ),
    **{f"finetune, {method}": Target(finetune(method), 6) for method in (*SETTINGS, "tta", "ensemble")},
    "evaluate, maps": Target(
        lambda w, out: [
            [
                "evaluate --replicates 40 --maps",
                w.job.maps,
                "--anomaly-labels",
                w.job.masks,
                "--out",
                out / "metrics.json",
            ]
        ],
        8,
    ),
    "evaluate, model": Target(
        lambda w, out: [
            [
                f"evaluate --replicates 40 --dataset toy {SMALL} --model",
                w.job.abnn,
                "--root",
                w.job.data,
                "--out",
                out / "m.json",
            ]
        ],
        6,
    ),
    "review": Target(lambda w, out: [["review --maps", w.job.maps, "--anomaly-labels", w.job.masks, "--out", out]], 8),
    "import": Target(imported, 6),
    "overlay": Target(lambda w, out: [["overlay --panel --maps", w.job.maps, "--out", out]], 4),
    "export": Target(
        lambda w, out: [["export --to smiyc --method M --dataset D --score entropy --maps", w.job.maps, "--out", out]],
        4,
    ),
    "summary": Target(lambda w, out: [["summary --maps", w.job.maps, "--out", out / "moments.csv"]], 2),
}
"""Everything that writes, in the order of the table; ``demo`` has a part of its own."""


def start(target: Target, world: World, out: Path, **more: Any) -> list[Command]:
    """All commands of a target."""
    return [Command(*words, **more) for words in target.commands(world, out)]


def run(target: Target, world: World, out: Path, timeout: float = 600.0, **more: Any) -> list[Finished]:
    """All commands of a target, to their ends."""
    return [command.wait(timeout) for command in start(target, world, out, **more)]


@dataclass(frozen=True)
class Unbroken:
    """What a run that nothing happened to has written, and how long it took."""

    files: dict[str, str]
    seconds: float
    size: int  # bytes of everything, also of what is not compared


def whole_run(target: Target, world: World, out: Path, timeout: float = 600.0) -> Unbroken:
    """One run of a target in a new folder, to its end."""
    renew(out)
    begun = time.monotonic()
    failed = [done.stderr for done in run(target, world, out, timeout) if done.code != 0]
    seconds = time.monotonic() - begun
    if failed:
        raise RuntimeError(f"an unbroken run failed: {failed[0][-500:]}")
    return Unbroken(written(out), seconds, sum(path.stat().st_size for path in out.rglob("*") if path.is_file()))


def unbroken(target: Target, world: World, out: Path) -> Unbroken:
    """Run a target twice into a new folder, which is removed again: others run in its place, so that paths in files are the same.
    Both must write the same, or nothing could be said of broken runs; the second tells the time, for the first may import and compile."""
    target.commands(world, out)  # makes what it needs
    first, second = whole_run(target, world, out), whole_run(target, world, out)
    files = first.files.keys() | second.files.keys()
    if differing := [name for name in files if first.files.get(name) != second.files.get(name)]:
        raise RuntimeError(f"two unbroken runs differ in {', '.join(differing[:5])}")
    renew(out)
    return second


def renew(out: Path) -> None:
    """An empty folder."""
    remove(out)
    out.mkdir(parents=True)


def written(out: Path) -> dict[str, str]:
    """A hash of each file that is compared; of records without their volatile fields."""
    found: dict[str, str] = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.is_file() and not NOT_COMPARED.search(name):
            data = path.read_bytes()
            if path.suffix == ".json":
                data = json.dumps(_plain(json.loads(data)), sort_keys=True).encode()
            found[name] = hashlib.sha256(data).hexdigest()
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if not VOLATILE.match(key)}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def verdict(out: Path, whole: Unbroken, again: Sequence[Finished]) -> tuple[str, str]:
    """How it ended: ``equal`` or ``said`` in the first place; else the cause of a failure, and a line about it."""
    now = written(out)
    for done in again:
        refused = (
            done.code == 2 and now == whole.files
        )  # the run had ended before it was killed, and does not begin anew
        if not (done.code == 0 or refused) or "Traceback" in done.stderr:
            return f"the same command again ends with {done.code}", done.stderr[-400:]
    if names := left_over(out):
        return "temporary files or locks stay", ", ".join(names[:5])
    if lost := [name for name in whole.files if name not in now]:
        return "files are missing", ", ".join(lost[:5])
    if added := [name for name in now if name not in whole.files]:
        return "files are left over", ", ".join(added[:5])
    if differing := [name for name, digest in whole.files.items() if now[name] != digest]:
        if resumed(out):
            return "said", ""
        return "other bytes", ", ".join(differing[:5])
    return "equal", ""


def resumed(out: Path) -> bool:
    """Whether a record in the folder says that a training was continued."""
    for path in (path for name in RECORDS for path in out.rglob(name)):
        content = json.loads(path.read_text(encoding="utf-8"))
        if (content if "resumed" in content else content.get("provenance", {})).get("resumed") is True:
            return True
    return False
