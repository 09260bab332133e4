"""Call a verb's function and print what it returns."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TextIO

import segunc
from segunc import options as opts
from segunc.core.errors import PartialFailure
from segunc.core.terminal import say, visible

FUNCTIONS = {"import": "import_network"}  # functions of verbs whose name is a word of Python


def run(verb: str, options: Any, as_json: TextIO | None = None) -> None:
    """Do what a verb's options ask for, and print what a user should know, to ``as_json`` the
    result as one line; a failure of the result is raised once all is printed.
    """
    name = FUNCTIONS.get(verb, verb)
    result = getattr(segunc, name)(options, *LISTENERS.get(verb, ()))
    for note in getattr(result, "notes", ()):
        say(f"note: {visible(note)}", flush=True)
    for line in SHOWN[name](result, options):
        say(line)
    if as_json is not None:
        say(json.dumps(plain(result), ensure_ascii=True), stream=as_json)
    if failure := getattr(result, "failure", ""):
        raise PartialFailure(failure)


def plain(value: Any) -> Any:
    """Return a result as JSON knows it: paths are texts, objects are their fields, and what has
    neither is left as it is printed.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _tell_step(title: str, verb: Any, options: Any) -> None:
    say(
        f"\n== {title}\n$ segunc {verb.__name__} {opts.command_line(options, but='device')}",
        flush=True,
    )
    run(verb.__name__, options)


def _tell_line(line: str) -> None:
    from segunc.training.lightning_runs import say as say_first

    say_first(line)


LISTENERS = {
    "demo": (_tell_step, say),
    "finetune": (_tell_line,),
}  # what verbs tell while they are at work


def _show_demo(result: Any, options: opts.DemoOptions) -> Iterator[str]:
    yield f"\n== done in {result.seconds:.0f} s"
    yield "anomaly AUROC, pooled: " + ", ".join(
        f"{name} {value:.3f}" for name, value in result.auroc.items()
    )
    yield f"overlay video: {result.video}"
    yield f"open {result.page} in a browser"


def _show_init(result: Any, options: opts.InitOptions) -> Iterator[str]:
    yield from result.about
    yield f"wrote {result.config}, {result.label_map} (edit names there, and colours where labels hold ids) and {result.frames}"
    yield f"look at {result.picture}: labels must lie on their images"
    yield f"then: segunc train --config {result.config} --out runs/base"


def _show_import_network(result: Any, options: opts.ImportOptions) -> Iterator[str]:
    description = result.description
    classes = ", ".join(description.classes)
    yield f"{description.kind}:{description.architecture}, {description.num_classes} classes: {classes}"
    size = description.inference_size or "of each frame"
    yield f"input: mean {description.mean}, std {description.std}, size {size}"
    yield result.sites
    yield f"wrote {result.out}"


def _show_train(result: Any, options: opts.TrainOptions) -> Iterator[str]:
    for network in result.networks:
        measured, trained = network.measured, "took over the weights"
        if measured["epochs"]:
            miou = "not measured" if measured["val_miou"] is None else f"{measured['val_miou']:.4f}"
            trained = f"trained {measured['epochs']} epochs ({measured['steps']} steps) in {measured['seconds']:.0f} s"
            trained += f": validation mIoU {miou}"
        _tell_line(f"{trained}; wrote {network.path}")
    if options.seeds is not None:
        made = f"{len(options.seeds)} networks in {result.out}"
        _tell_line(f"{made}; as one model: segunc finetune --method ensemble --base {result.out}")
    yield from ()


def _show_finetune(result: Any, options: opts.FinetuneOptions) -> Iterator[str]:
    if result.measured:
        _tell_line(f"fine-tuning took {result.measured['seconds']:.0f} s")
    yield from ()


def _show_predict(result: Any, options: opts.PredictOptions) -> Iterator[str]:
    for done in result.inputs:
        now, before, seconds = done.summary.finished, done.summary.skipped, done.summary.seconds
        speed = f"{now} in {seconds:.1f} s ({now / max(seconds, 1e-9):.2f} frames/s)"
        yield f"{now + before} frames in {done.out}: {speed}, {before} were finished before; {done.how}"
        if done.video is not None:
            yield f"overlay video: {done.video}"


def _show_evaluate(result: Any, options: opts.EvaluateOptions) -> Iterator[str]:
    from segunc.evaluation.report import format_metrics

    yield format_metrics(result.numbers)
    if result.path is not None:
        yield f"wrote {result.path}"
    if options.plots:
        yield f"wrote {len(result.figures)} files of figures to {options.plots}"
    if "unfinished" in result.numbers:
        yield f"note: {result.numbers['unfinished']}"
    yield from result.exceeded


def _show_threshold(result: Any, options: opts.ThresholdOptions) -> Iterator[str]:
    from segunc.decisions.guarantee import RISKS

    made = result.threshold
    yield from (made.promise, made.condition)
    yield f"threshold: {made.score} >= {made.value:.6g}, from {made.units} units ({made.method}; {made.minimum_units} are the fewest)"
    for control, risk in result.price.items():
        yield f"  {RISKS[control]}: {risk:.3g} on these units"
    for group, own in made.groups.items():
        yield f"  group {group}: {made.score} >= {own['value']:.6g}, from {own['units']} units"
    yield f"wrote {result.path}; give it to --flag"


def _show_review(result: Any, options: opts.ReviewOptions) -> Iterator[str]:
    if result.verdicts:
        yield result.verdicts
    if result.path is not None:
        yield f"wrote {result.path}; the page shows these verdicts"
    if result.page is not None:
        yield f"open {result.page} in a browser"


def _show_summary(result: Any, options: opts.SummaryOptions) -> Iterator[str]:
    from segunc.frames.source import format_time

    apart = f", {result.apart}" if result.apart else ""
    bald = " (BALD)" if result.label_statistic == "epistemic.mean" else ""
    for title, moments in (
        (f"worst moments by {result.statistic}{apart}", result.moments),
        (f"frames to label first by {result.label_statistic}{bald}{apart}", result.label),
    ):
        yield title
        for rank, moment in enumerate(moments, start=1):
            root = Path(options.maps)
            folder = "" if moment.folder == root else f"{moment.folder.relative_to(root)}/"
            at = "" if moment.time is None else f"{format_time(moment.time)}  "
            yield f"{rank:4d}  {at}{moment.value:<12.6g}{folder}{moment.name}"
    if result.events:
        yield f"events: {len(result.events)}, {sum(event.frames == 1 for event in result.events)} of them in one frame alone; the strongest"
    for event in sorted(result.events, key=lambda event: -event.peak["strength"])[: options.top]:
        span = f"{format_time(event.start['time'])} to {format_time(event.end['time'])}"
        about = f"{event.frames} frames, at most {event.largest} px, peak {event.peak['frame']}"
        yield f"{event.id:4d}  {span}  {event.score} {event.peak['value']:<10.6g}{about}"
    yield from (f"wrote {path}" for path in (options.out, options.events) if path)


def _show_monitor(result: Any, options: opts.MonitorOptions) -> Iterator[str]:
    yield from (result.line, *(f"wrote {path}" for path in result.paths))


def _show_overlay(result: Any, options: opts.OverlayOptions) -> Iterator[str]:
    for folder, pictures in result.pictures.items():
        yield f"{len(pictures)} pictures in {folder}"
        if folder in result.videos:
            yield f"video: {result.videos[folder]}"


def _show_compare(result: Any, options: opts.CompareOptions) -> Iterator[str]:
    yield result.text
    yield from (f"wrote {path}" for path in result.paths)


def _show_report(result: Any, options: opts.ReportOptions) -> Iterator[str]:
    yield from (
        *result.summary,
        f"wrote {result.path}, SHA-256 {result.sha256}",
        f"open {result.page} in a browser, or print it",
    )


def _show_export(result: Any, options: opts.ExportOptions) -> Iterator[str]:
    yield from (result.line, f"wrote {result.path} and {result.record}")


def _show_doctor(result: Any, options: opts.DoctorOptions) -> Iterator[str]:
    yield from result.about
    yield from (
        f"{finding.status:>4}  {finding.check}: {finding.text}" for finding in result.findings
    )
    if not result.failure:
        yield "the uncertainty is alive"


SHOWN = {
    name.removeprefix("_show_"): show
    for name, show in list(globals().items())
    if name.startswith("_show_")
}
"""What is printed of each verb's result."""
