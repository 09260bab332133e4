"""Record what a checkout does through its command line, and compare two recordings.

    python tools/golden.py record --checkout . --out GOLDEN
    python tools/golden.py compare OLD NEW

A recording takes a few minutes on one core and is a few small JSON files. A comparison prints a
line for each difference and ends with exit code 1 if there is any.

Nothing of the package is imported here, so one version of this tool records checkouts before and
after a refactoring. Recordings are comparable on one machine in one environment: other libraries
and CPUs round differently.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml

MAKE_TOY = """
from pathlib import Path
try:
    from segunc.toyroads import ToyConfig, generate_toy
except ImportError:  # before the rooms were rebuilt
    from segunc.data.toy import ToyConfig, generate_toy
sizes = {"train": 8, "val": 4, "test": 2, "anomaly": 3, "video_frames": 6}
generate_toy(Path("toy"), ToyConfig(seed=3, size=(64, 128), **sizes))
"""
"""The only code that names modules of the package."""

HOST = """
import atexit, gc, importlib, json, os, runpy, sys, threading, traceback
for name in ("albumentations", "torch", "torch._dynamo", "torchvision", "torchmetrics", "lightning",
             "segmentation_models_pytorch", "cv2", "h5py", "matplotlib.pyplot"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
gc.collect()
gc.freeze()
for line in sys.stdin:
    child = os.fork()
    if not child:
        new = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open("stdout", new, 0o644), 1)
        os.dup2(os.open("stderr", new, 0o644), 2)
        sys.argv, code = ["segunc", *json.loads(line)], 0
        try:
            runpy.run_module("segunc", run_name="__main__", alter_sys=True)
        except SystemExit as error:
            code = error.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without the three seconds in which torch and triton are taken down
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""
"""Runs ``python -m segunc WORDS`` for each line, in a fork that has the foreign libraries: their
import takes 8 s.
"""

DATA = "data: {dataset: toy, root: toy, crop: [64, 64], batch_size: 4}\n"
LANGEVIN = (
    "{cycles: 2, cycle_steps: 4, exploration: 0.25, states_per_cycle: 2, effective_pixels: 1000,"
    " scope: decoder}"
)
SECTIONS = {
    "abnn": (
        "abnn: {members: 2, alpha: 0.05, epochs: 1, lr: 0.005, random_classes: 3, statistics:"
        " frozen}"
    ),
    "variational": "variational: {epochs: 1}",
    "swag": "swag: {epochs: 3, burn_in: 0, collect_every: 1, rank: 4}",
    "laplace": "laplace: {images: 8, samples: 1, prior_scale: 0.01}",
    "mc-dropout": "mc_dropout: {p: 0.1}",
    "mcbn": "mcbn: {batches: 2, batch_size: 4}",
    "sgld": f"sgld: {LANGEVIN}",
    "sghmc": f"sghmc: {LANGEVIN}",
    "hmc": (
        "hmc: {scope: decoder, frames: 2, effective_pixels: 300, chains: 2, warmup: 1, samples: 4,"
        " trajectory: 0.01, step_size: 0.003}"
    ),
    "temperature": "temperature: {pixels: 200, draws: 4}",
    "tta": "tta: {scales: [1.0, 0.75], flip: true}",
    "class-sets": "class_sets: {level: 0.3, draws: 4}",
    "features": "features: {encoder: own, frames: 4}",
    "distil": "distil: {frames: 4, epochs: 1, crop: 1.0, lr: 0.003}",
}
"""The smallest run of each method; ``ensemble`` has no settings."""
TRAIN = """seed: 0
network:
  architecture: FPN
  encoder: mobilenet_v2
  options: {decoder_pyramid_channels: 32, decoder_segmentation_channels: 32}
optimisation: {lr: 0.003}
trainer: {max_epochs: 10, check_val_every_n_epoch: 10, precision: 32-true}
"""
"""Ten epochs, as a temperature is refused where the logits tell nothing about the labels."""
TRAINED = ("abnn", "variational", "swag", "laplace", "mc-dropout")
"""Methods that take Lightning's settings."""
PLACES = {
    "CPU": "--device cpu",
    "FAST": "--device cpu --precision float32 --draws 4 --seed 0 --threads 1 --chunk 4",
    "FRAMES": "toy/leftImg8bit/anomaly",
    "MASKS": "toy/gtAnomaly/anomaly",
    "CLASSES": "toy/gtFine/anomaly",
    "VIDEO": "toy/video/crossing.webm",
    "ALL": (
        "msp,entropy,aleatoric,epistemic,deterministic-max-logit,deterministic-energy,deterministic-msp,deterministic-entropy"
    ),
    "ON_ABNN": "predict --model abnn --input toy/leftImg8bit/anomaly",
    "TUNE": "finetune --device cpu --base base --out",
    "BAD": "predict --device cpu --model abnn --input toy/leftImg8bit/anomaly --out bad",
    "BAD_TRAIN": "train --device cpu --config train.yaml --out bad",
    "BAD_TUNE": "finetune --device cpu --base base --config abnn.yaml --out bad",
    "BAD_EVALUATE": "evaluate --maps maps/all --out bad.json",
}
"""Words of the commands that stand for others."""
COMMANDS = Path(__file__).with_suffix(".txt")
"""One command a line, in this order; the last block holds bad input."""
VERBS = (
    "init import train finetune predict evaluate threshold monitor export report review summary"
    " overlay compare doctor demo"
)
LARGEST_CONTENT = 60_000
"""Characters of normalised JSON up to which a file's content is kept beside its hash."""
DIFFERENCES = 20
"""Differences of one file that are printed; the others are counted."""
VARYING = re.compile(
    r"^(date|commit|environment|versions?|segunc|record_sha256|input_hash|.*seconds|.*_per_second|mtime.*|modified.*)$"
)
"""Keys whose values are another in every run or on every checkout."""

PROGRESS = re.compile(
    r" (frames|steps|parts)/s|^(train|finetune): epoch|^finetune: (Fisher|chain)| frames$"
)
"""Lines of standard error that come by the clock."""
ABSENT = "(absent)"


def clean(text: str, work: str, checkout: str) -> str:
    """Text without what differs between two recordings of one checkout: places, host, clock and
    versions.
    """
    for place, name in (
        (work, "<work>"),
        (checkout, "<checkout>"),
        (socket.gethostname(), "<host>"),
    ):
        text = text.replace(place, name)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?", "<date>", text)
    text = re.sub(r"\b\d+(\.\d+)? (s|frames/s|images/s|ms|s/frame)\b", r"<n> \2", text)
    text = re.sub(r"segunc \d[\w.+]*( [0-9a-f]{12}(-dirty)?)?", "segunc <version>", text)
    text = re.sub(
        r"\b(?=[0-9]*[a-f])[0-9a-f]{16}\b", "<run>", text
    )  # hash of a manifest with its dates and places
    return re.sub(r"\b[0-9a-f]{40}(-dirty)?\b", "<commit>", text)


def normal(value: Any, work: str, checkout: str) -> Any:
    """A JSON value without what differs between two recordings of one checkout."""
    if isinstance(value, dict):
        found = {clean(str(key), work, checkout): item for key, item in value.items()}
        return {
            k: f"<{k}>" if VARYING.match(k) else normal(item, work, checkout)
            for k, item in found.items()
        }
    if isinstance(value, list):
        return [normal(item, work, checkout) for item in value]
    return clean(value, work, checkout) if isinstance(value, str) else value


def parse(path: Path, text: str) -> Any:
    """The content of a text file as JSON values: documents by key, others by line; None where only
    the hash is of use.
    """
    if path.suffix == ".js":
        # A page's tables are JSON in a string of a script, so that the page opens from disk; maps
        # are packed there.
        table = re.search(r'JSON\.parse\(("(?:[^"\\]|\\.)*")\)', text)
        with contextlib.suppress(ValueError):
            return json.loads(json.loads(table[1])) if table else None
        return None
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix == ".jsonl":
        return [parse_line(path, line) for line in text.splitlines()]
    if path.suffix == ".yaml":
        return yaml.safe_load(text)
    return text.splitlines() if path.suffix in (".csv", ".md", ".txt") else None


def parse_line(path: Path, line: str) -> Any:
    """Return the JSON value of a line of a log, or the line itself where it is none."""
    try:
        return json.loads(line)
    except ValueError:
        print(f"golden: {path} has a line that is not JSON: {line[:80]!r}", file=sys.stderr)
        return line


def numbers(path: Path) -> dict[str, Any]:
    """Type, shape, smallest, largest and mean value of a map, a picture or all tensors of a file:
    to judge a difference.
    """
    if path.suffix == ".safetensors":
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        tensors = {k: v for k, v in json.loads(data[8:start]).items() if k != "__metadata__"}
        names = hashlib.sha256(
            json.dumps(sorted((k, v["dtype"], v["shape"]) for k, v in tensors.items())).encode()
        )
        parts = []
        for tensor in tensors.values():
            if tensor["dtype"] == "F32":
                first, last = tensor["data_offsets"]
                parts.append(data[start + first : start + last])
        values = np.frombuffer(b"".join(parts), np.float32)
        kind = {"tensors": len(tensors), "names": names.hexdigest()}
    else:
        picture = path.suffix in (".png", ".jpg")
        found = cv2.imread(str(path), cv2.IMREAD_UNCHANGED) if picture else np.load(path)
        if found is None:
            return {}
        values, kind = found, {"dtype": str(found.dtype), "shape": list(found.shape)}
    values = values.astype(np.float64)
    if not values.size:
        return kind
    return kind | {
        k: f"{v:.6g}"
        for k, v in (("min", values.min()), ("max", values.max()), ("mean", values.mean()))
    }


def frames(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The decoded pictures of a video one after another, and their number, shape and rate."""
    video, pictures = cv2.VideoCapture(str(path)), []
    while True:
        found, picture = video.read()
        if not found:
            break
        pictures.append(picture)
    shape = [len(pictures), *pictures[0].shape] if pictures else [0]
    return b"".join(p.tobytes() for p in pictures), {
        "shape": shape,
        "fps": f"{video.get(cv2.CAP_PROP_FPS):.6g}",
    }


def describe(path: Path, work: str, checkout: str) -> tuple[dict[str, Any], Any]:
    """The record of a file, and its normalised content where that is small."""
    # A checkpoint pickles module names, an exported program traces of the code; the list of a
    # page's files holds hashes of what varies.
    if path.suffix in (".ckpt", ".pt2") or path.name == ".segunc-files.jsonl":
        return {"present": True}, None
    data, content = path.read_bytes(), None
    if path.suffix in (
        ".json",
        ".jsonl",
        ".yaml",
        ".js",
        ".csv",
        ".md",
        ".txt",
        ".html",
        ".svg",
        ".css",
    ):
        text = data.decode()
        content = normal(parse(path, text), work, checkout)
        data = (
            clean(text, work, checkout).encode()
            if content is None
            else json.dumps(content).encode()
        )
    if path.suffix in (
        ".webm",
        ".mp4",
    ):  # FFmpeg numbers every file by chance: what is compared are its pictures
        data, shown = frames(path)
        return {"sha256": hashlib.sha256(data).hexdigest(), **shown}, None
    record = {"sha256": hashlib.sha256(data).hexdigest()}
    if path.suffix in (".npy", ".png", ".jpg", ".safetensors"):
        record |= numbers(path)
    return record, content if len(data) <= LARGEST_CONTENT else None


def prepare(work: Path) -> None:
    """Configurations and the small inputs that are no toy scenes."""
    (work / "train.yaml").write_text(TRAIN + DATA)
    for method, section in SECTIONS.items():
        trainer = "trainer: {precision: 32-true}\n" if method in TRAINED else ""
        if method == "tta":
            data = ""
        elif method in (*TRAINED, "sgld", "sghmc", "hmc"):
            data = DATA
        else:
            data = DATA.replace(", crop: [64, 64], batch_size: 4", "")
        (work / f"{method}.yaml").write_text(f"{data}{section}\n{trainer}")
    mask = np.full((64, 128), 255, np.uint8)
    mask[48:] = 0
    cv2.imwrite(str(work / "mask.png"), mask)


def record(checkout: Path, out: Path) -> None:
    """Run every command of this file in an empty folder with the package of ``checkout``, and write
    what came of it.
    """
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        work, source = Path(folder).resolve(), str(checkout.resolve())
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        fixed = {
            "COLUMNS": "100",
            "SOURCE_DATE_EPOCH": "0",
            "NO_ALBUMENTATIONS_UPDATE": "1",
            "MPLBACKEND": "agg",
        }
        environment = (
            os.environ | threads | fixed | {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
        )
        prepare(work)
        subprocess.run([sys.executable, "-c", MAKE_TOY], cwd=work, env=environment, check=True)
        lines = [
            *COMMANDS.read_text(encoding="utf-8").splitlines(),
            *(f"{verb} --help" for verb in VERBS.split()),
        ]
        commands = dict(run(filter(None, lines), work, source, environment))
        known = re.search(
            r"--method\s+\{([\w,-]+)\}", "\n".join(commands["finetune --help"]["stdout"])
        )
        for method in set(known[1].split(",") if known else []) - {*SECTIONS, "ensemble"}:
            print(
                f"golden: the method {method} is not recorded; give it a section here",
                file=sys.stderr,
            )
        files, contents = {}, {}
        for path in sorted(
            path
            for path in work.rglob("*")
            if path.is_file()
            and path.name not in ("stdout", "stderr")
            and ".tfevents." not in path.name  # named by clock and process
        ):
            name = path.relative_to(work).as_posix()
            files[name], content = describe(path, str(work), source)
            contents |= {} if content is None else {name: content}
    out.mkdir(parents=True, exist_ok=True)
    for name, table in (("commands", commands), ("files", files), ("contents", contents)):
        # A line for each command or file keeps the recordings small and readable.
        rows = (
            f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
            for key, value in table.items()
        )
        (out / f"{name}.json").write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    print(f"{len(commands)} commands, {len(files)} files, {len(contents)} contents in {out}")


def run(
    lines: Iterable[str], work: Path, checkout: str, environment: dict[str, str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run commands one after another; yields each line with its exit code and its normalised
    streams.
    """
    seen: dict[str, int] = {}
    with subprocess.Popen(
        [sys.executable, "-c", HOST],
        cwd=work,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        for line in lines:
            words = [part for word in line.split() for part in shlex.split(PLACES.get(word, word))]
            if "--import" in words:
                write_verdicts(work)
            start = time.monotonic()
            print(json.dumps(words), file=host.stdin, flush=True)
            code = int(host.stdout.readline())
            streams = {
                name: clean((work / name).read_text(), str(work), checkout)
                for name in ("stdout", "stderr")
            }
            # How many progress lines there are depends on the clock.
            errors = [row for row in streams["stderr"].splitlines() if not PROGRESS.search(row)]
            said = f"  ({errors[-1]})" if code and errors else ""
            print(
                f"{time.monotonic() - start:6.1f} s  exit code {code}  {line}{said}",
                file=sys.stderr,
                flush=True,
            )
            seen[line] = seen.get(line, 0) + 1
            key = line if seen[line] == 1 else f"{line} (again)"
            yield key, {"code": code, "stdout": streams["stdout"].splitlines(), "stderr": errors}


def write_verdicts(work: Path) -> None:
    """Verdicts on the page of all maps, as its export would hold them; they must name the run,
    which has a varying id.
    """
    page = "".join(path.read_text() for path in sorted((work / "pages/all").rglob("*.js*")))
    found = re.search(r'"run": ?"([0-9a-f]{16})"', page)
    log = work / "maps/all/frames.jsonl"
    frame = json.loads(log.read_text().splitlines()[0])["name"] if log.exists() else ""
    row = f"{found[1] if found else ''},{frame},missed,a note,2026-01-01T00:00:00.000Z"
    (work / "verdicts.csv").write_text(f"run,frame,verdict,note,time\r\n{row}\r\n")


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a JSON value with their dotted paths."""
    if isinstance(value, dict | list) and value:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def compare(old: Path, new: Path) -> int:
    """Print a line for each difference of two recordings; returns how many there are."""
    total = 0
    for table in ("commands", "files", "contents"):
        first, second = (
            json.loads((folder / f"{table}.json").read_text(encoding="utf-8"))
            for folder in (old, new)
        )
        for name in [*first, *(name for name in second if name not in first)]:
            before, after = (
                dict(flat(side[name])) if name in side else None for side in (first, second)
            )
            if before is None or after is None:
                found = [f"only in {old if after is None else new}"]
            else:
                keys = [key for key in [*before, *(k for k in after if k not in before)]
                        if before.get(key, ABSENT) != after.get(key, ABSENT)]  # fmt: skip
                found = [
                    f"{key}: {show(before.get(key, ABSENT))} -> {show(after.get(key, ABSENT))}"
                    for key in keys
                ]
            more = len(found) - DIFFERENCES
            shown = found[:DIFFERENCES] + ([f"... and {more} more"] if more > 0 else [])
            total += len(found)
            for text in shown:
                print(f"{table}: {name}: {text}")
    print(f"{total} differences" if total else "no difference")
    return total


def show(value: Any) -> str:
    """A value on one line of limited length."""
    text = value if value is ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:157]}..."


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record", help="what a checkout does")
    recording.add_argument(
        "--checkout", type=Path, required=True, help="folder that holds the package"
    )
    recording.add_argument("--out", type=Path, required=True, help="folder of the recording")
    comparison = verbs.add_parser("compare", help="two recordings")
    comparison.add_argument("old", type=Path)
    comparison.add_argument("new", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "compare":
        return 1 if compare(arguments.old, arguments.new) else 0
    record(arguments.checkout, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
