"""``segunc demo``: the whole job on the built-in toy road scenes, with the same verbs that a user would type."""

from __future__ import annotations

import argparse
import json
import time
from importlib import resources
from pathlib import Path

from segunc.core.errors import PartialFailure
from segunc.toyroads import ToyConfig, generate_toy


def run(arguments: argparse.Namespace) -> None:
    """Toy data, base, ABNN, maps, metrics, video and page; ends with the path of the page."""
    from segunc.cli.main import build_parser

    out = Path(arguments.out)
    start = time.monotonic()
    parser = build_parser()
    common = ["--device", arguments.device] + (["--debug"] if arguments.debug else [])

    def step(title: str, *words: str | Path) -> None:
        import importlib

        command = [str(word) for word in words]
        print(f"\n== {title} ({time.monotonic() - start:.0f} s)\n$ segunc {' '.join(command)}", flush=True)
        parsed, rest = parser.parse_known_args([*command[:1], *common, *command[1:]])
        parsed.overrides = rest
        importlib.import_module(f"segunc.verbs.{parsed.verb}").run(parsed)

    data, base, abnn = out / "data", out / "base", out / "abnn"
    frames = data / "leftImg8bit" / "anomaly"
    masks = data / "gtAnomaly" / "anomaly"
    print(f"== toy road scenes in {data}", flush=True)
    generate_toy(data, ToyConfig(seed=arguments.seed), progress=lambda text: print(text, flush=True))
    configs = resources.files("segunc.verbs")
    with (
        resources.as_file(configs / "demo_train.yaml") as train_config,
        resources.as_file(configs / "demo_finetune.yaml") as tune_config,
    ):
        overrides = ["--data.root", str(data)]
        step("train a base network", "train", "--config", train_config, "--out", base, *overrides)
        step(
            "convert and fine-tune it (ABNN)",
            "finetune",
            "--base",
            base,
            "--config",
            tune_config,
            "--out",
            abnn,
            *overrides,
        )
    step("is the uncertainty alive", "doctor", "--model", abnn, "--dataset", "toy", "--root", data)
    step("maps of the anomaly split", "predict", "--model", abnn, "--input", frames, "--out", out / "maps", "--overlay")
    step(
        "anomaly metrics of the maps",
        "evaluate",
        "--maps",
        out / "maps",
        "--anomaly-labels",
        masks,
        "--out",
        out / "anomaly.json",
    )
    for name, model in (("base", base), ("abnn", abnn)):
        step(
            f"segmentation and calibration of the {name} network on the test split",
            *("evaluate", "--model", model, "--dataset", "toy", "--root", data, "--out", out / f"test-{name}.json"),
        )
    video = data / "video" / "crossing.webm"
    step(
        "maps and overlay video of the crossing",
        "predict",
        "--model",
        abnn,
        "--input",
        video,
        "--out",
        out / "video",
        "--overlay",
    )
    step(
        "a page to look at",
        *(
            "review",
            "--maps",
            out / "maps",
            "--anomaly-labels",
            masks,
            "--metrics",
            out / "anomaly.json",
            "--out",
            out / "review",
        ),
    )
    step(
        "a page of the video",
        *(
            "review",
            "--maps",
            out / "video",
            "--anomaly-labels",
            data / "video" / "crossing_anomaly",
            "--out",
            out / "review-video",
        ),
    )
    _summary(out, time.monotonic() - start)


def _summary(out: Path, seconds: float) -> None:
    anomaly = json.loads((out / "anomaly.json").read_text(encoding="utf-8"))["scores"]
    auroc = {name: anomaly[name]["pooled"]["auroc"] for name in ("deterministic-msp", "entropy", "epistemic")}
    if any(value is None for value in auroc.values()):
        raise PartialFailure(f"the demo has no anomaly score: {auroc}")
    print(f"\n== done in {seconds:.0f} s")
    print("anomaly AUROC, pooled: " + ", ".join(f"{name} {value:.3f}" for name, value in auroc.items()))
    print(f"overlay video: {out / 'video' / 'overlay.webm'}")
    print(f"open {(out / 'review' / 'index.html').resolve()} in a browser")
