"""Calls a verb's function and prints what it returns; a failure of the result is raised once all is printed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import segunc
from segunc import options as opts
from segunc.cli.parser import command_line
from segunc.core.errors import PartialFailure
from segunc.core.terminal import say, visible

if TYPE_CHECKING:
    from segunc.verbs.predict import InputResult
    from segunc.verbs.training import TrainedNetwork


def demo(options: opts.DemoOptions) -> None:
    start = time.monotonic()

    def step(title: str, verb: str, asked: Any) -> None:
        words = command_line(asked, but="device")
        say(f"\n== {title} ({time.monotonic() - start:.0f} s)\n$ segunc {verb} {words}", flush=True)
        globals()[verb](asked)

    say(f"== toy road scenes in {Path(options.out) / 'data'}", flush=True)
    done = segunc.demo(options, step, say=lambda text: say(text, flush=True))
    say(f"\n== done in {done.seconds:.0f} s")
    say("anomaly AUROC, pooled: " + ", ".join(f"{name} {value:.3f}" for name, value in done.auroc.items()))
    say(f"overlay video: {done.video}")
    say(f"open {done.page} in a browser")


def import_network(options: opts.ImportOptions) -> None:
    result = segunc.import_network(options)
    description = result.description
    _notes(result.notes)
    say(
        f"{description.kind}:{description.architecture}, {description.num_classes} classes: {', '.join(description.classes)}"
    )
    say(f"input: mean {description.mean}, std {description.std}, size {description.inference_size or 'of each frame'}")
    say(result.sites)
    say(f"wrote {result.out}")


def train(options: opts.TrainOptions) -> None:
    from segunc.training.progress import is_first_process

    def tell(network: TrainedNetwork) -> None:
        measured = network.measured
        if not is_first_process():
            return
        if measured["epochs"] == 0:
            say(f"took over the weights into {network.path}")
            return
        miou = "not measured" if measured["val_miou"] is None else f"{measured['val_miou']:.4f}"
        trained = f"trained {measured['epochs']} epochs ({measured['steps']} steps) in {measured['seconds']:.0f} s"
        say(f"{trained}: validation mIoU {miou}; wrote {network.path}")

    out = segunc.train(options, tell).out
    if options.seeds is not None and is_first_process():
        say(f"{len(options.seeds)} networks in {out}; as one model: segunc finetune --method ensemble --base {out}")


def finetune(options: opts.FinetuneOptions) -> None:
    from segunc.training.progress import is_first_process
    from segunc.training.progress import say as say_first

    measured = segunc.finetune(options, say_first).measured
    if measured and is_first_process():
        selected = [key.removesuffix("_nll") for key in measured if key.endswith("_nll")]
        parts = [f", of which the selection of {name} {measured[f'{name}_seconds']:.0f} s" for name in selected]
        say(f"fine-tuning took {measured['seconds']:.0f} s{''.join(parts)}")


def predict(options: opts.PredictOptions) -> None:
    local = options.engine == "local"

    def tell(done: InputResult) -> None:
        shard = f" (shard {done.shard})" if done.shard else ""
        rate = f" ({done.frames / done.seconds if done.seconds > 0 else 0.0:.2f} frames/s)" if local else ""
        say(
            f"{done.frames + done.skipped} frames in {done.out}{shard}: {done.frames} in {done.seconds:.1f} s{rate}, "
            f"{done.skipped} were finished before; {done.how}"
        )
        if done.video is not None:
            say(f"overlay video: {done.video}")

    result = segunc.predict(options, tell, lambda note: _notes([note]))
    _notes(result.notes)
    if not local:
        for one in result.inputs:
            tell(one)
    _raise(result.failure)


def evaluate(options: opts.EvaluateOptions) -> None:
    from segunc.evaluation.report import format_metrics

    result = segunc.evaluate(options)
    _notes(result.notes)
    say(format_metrics(result.numbers))
    if result.path is not None:
        say(f"wrote {result.path}")
    if options.plots:
        say(f"wrote {len(result.figures)} files of figures to {options.plots}")
    if "unfinished" in result.numbers:
        say(f"note: {result.numbers['unfinished']}")
    _raise(result.failure)


def review(options: opts.ReviewOptions) -> None:
    result = segunc.review(options)
    if result.verdicts:
        say(result.verdicts)
    if result.path is not None:
        say(f"wrote {result.path}; the page shows these verdicts")
    _notes(result.notes)
    if result.page is not None:
        say(f"open {result.page} in a browser")
    _raise(result.failure)


def summary(options: opts.SummaryOptions) -> None:
    from segunc.frames.source import format_time

    result = segunc.summary(options)
    _notes(result.notes)
    apart = f", {result.apart}" if result.apart else ""
    bald = " (BALD)" if result.label_statistic == "epistemic.mean" else ""
    for title, moments in (
        (f"worst moments by {result.statistic}{apart}", result.moments),
        (f"frames to label first by {result.label_statistic}{bald}{apart}", result.label),
    ):
        say(title)
        for rank, moment in enumerate(moments, start=1):
            root = Path(options.maps)
            folder = "" if moment.folder == root else f"{moment.folder.relative_to(root)}/"
            at = "" if moment.time is None else f"{format_time(moment.time)}  "
            say(f"{rank:4d}  {at}{moment.value:<12.6g}{folder}{moment.name}")
    if result.path is not None:
        say(f"wrote {options.out}")
    _raise(result.failure)


def overlay(options: opts.OverlayOptions) -> None:
    result = segunc.overlay(options)
    _notes(result.notes)
    for folder, pictures in result.pictures.items():
        say(f"{len(pictures)} pictures in {folder}")
        if folder in result.videos:
            say(f"video: {result.videos[folder]}")
    _raise(result.failure)


def export(options: opts.ExportOptions) -> None:
    result = segunc.export(options)
    _notes(result.notes)
    what = f" of '{options.score}'"
    say(f"{result.written} of {result.total} frames{what} in {result.folder}")
    _raise(result.failure)


def compare(options: opts.CompareOptions) -> None:
    result = segunc.compare(options)
    say(result.text)
    for path in result.paths:
        say(f"wrote {path}")


def doctor(options: opts.DoctorOptions) -> None:
    result = segunc.doctor(options)
    say("\n".join(result.about))
    for finding in result.findings:
        say(f"{finding.status:>4}  {finding.check}: {finding.text}")
    _raise(result.failure)
    say(result.verdict)


def _notes(notes: Sequence[str]) -> None:
    for note in notes:
        say(f"note: {visible(note)}", flush=True)


def _raise(failure: str) -> None:
    if failure:
        raise PartialFailure(failure)
