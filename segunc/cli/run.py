"""Call a verb's function and print what it returns."""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

import segunc
from segunc import options as opts
from segunc.core.errors import PartialFailure
from segunc.core.terminal import agreeing, counted, say, visible
from segunc.core.urls import is_url, local_folder

FUNCTIONS = {"import": "import_network"}  # functions of verbs whose name is a word of Python


def run(verb: str, options: Any, as_json: TextIO | None = None) -> None:
    """Do what a verb's options ask for, and print what a user should know.

    Args:
        verb: its name on the command line.
        options: its options.
        as_json: stream that gets the result as one line of JSON.

    Raises:
        PartialFailure: a part of the work failed; the result is printed before.
    """
    name = FUNCTIONS.get(verb, verb)
    function = getattr(segunc, name)
    result = function(options, *BESIDE_OPTIONS.get(verb, ()))
    for note in getattr(result, "notes", ()):
        say(f"note: {visible(note)}", flush=True)
    for line in SHOWN[name](result, options):
        say(line)
    if as_json is not None:
        say(json.dumps(plain(result), ensure_ascii=True), stream=as_json)
    failure = getattr(result, "failure", "")
    if failure:
        raise PartialFailure(failure)


def plain(value: Any) -> Any:
    """Return a result as JSON can hold it.

    Paths become texts, objects become their fields, numbers that are not finite become null, and
    anything else becomes the text that Python prints of it.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str | int | float | bool | None):
        return value
    return str(value)


def _tell_step(title: str, verb: Any, options: Any) -> None:
    """Print a step of the demo with its command, and run it."""
    command = opts.command_line(options, leave_out="device")
    say(f"\n== {title}\n$ segunc {verb.__name__} {command}", flush=True)
    run(verb.__name__, options)


def _tell_line(line: str) -> None:
    """Print a line of a training above its progress bar."""
    from segunc.training.lightning_runs import say as say_first

    say_first(line)


MOST_PROCESSES = 8  # that draw the scenes of the demo
BESIDE_OPTIONS: dict[str, tuple[Any, ...]] = {
    "demo": (_tell_step, say, min(os.cpu_count() or 1, MOST_PROCESSES)),
    "finetune": (_tell_line,),
}
"""What a verb receives beside its options: functions for what it tells while it is at work, and of
the demo the number of processes.
"""


def _show_demo(result: Any, options: opts.DemoOptions) -> Iterator[str]:
    areas = ", ".join(f"{name} {value:.3f}" for name, value in result.auroc.items())
    yield f"\n== done in {result.seconds:.0f} s"
    yield f"anomaly AUROC, pooled: {areas}"
    yield f"overlay video: {result.video}"
    yield f"open {result.page} in a browser"


def _show_init(result: Any, options: opts.InitOptions) -> Iterator[str]:
    yield from result.about
    written = [] if result.config in result.kept else [str(result.config)]
    if result.kept:
        were = "it was" if len(result.kept) == 1 else "they were"
        yield f"kept {' and '.join(str(path) for path in result.kept)} as {were}"
    if result.label_map is not None and result.label_map not in result.kept:
        written.append(f"{result.label_map} (edit names there, and colours where labels hold ids)")
    if result.frames is not None:
        written.append(str(result.frames))
    *first, last = written
    yield f"wrote {', '.join(first)} and {last}" if first else f"wrote {last}"
    yield f"look at {result.picture}: labels must lie on their images"
    if result.first:
        yield f"first: {result.first}"
    yield f"then: {result.then}"


def _show_import_network(result: Any, options: opts.ImportOptions) -> Iterator[str]:
    from segunc.posteriors.abnn import FROZEN

    description = result.description
    network = f"{description.kind}:{description.architecture}"
    classes = ", ".join(description.classes)
    size = description.inference_size or "of each frame"
    yield f"{network}, {description.num_classes} classes: {classes}"
    yield f"input: mean {description.mean}, std {description.std}, size {size}"
    yield result.sites
    yield f"wrote {result.out}, which has no noise yet: predict runs each frame once"
    if result.takes_noise:
        words = ["--base", str(result.out), *FROZEN.split(), "--out", str(_beside(result.out))]
        yield "the next command adds noise without training"
        yield f"then: segunc finetune {shlex.join(words)}"


def _show_train(result: Any, options: opts.TrainOptions) -> Iterable[str]:
    for network in result.networks:
        _tell_line(f"{_training_in_words(network.measured)}; wrote {network.path}")
    if options.seeds is not None:
        _tell_line(
            f"{counted(len(options.seeds), 'network')} in {result.out};"
            f" as one model: segunc finetune --method ensemble --base {result.out}"
        )
    else:
        _tell_line(f"then: {_finetuning_of(result.out, options)}")
    return ()


def _finetuning_of(base: Path, options: opts.TrainOptions) -> str:
    """Return the command that makes a model with ABNN noise of a network that was trained, with the
    same data.
    """
    words = ["--config", str(options.config), "--base", str(base), "--out", str(_beside(base))]
    return f"segunc finetune {shlex.join([*words, *_data_words(options.settings)])}"


def _beside(base: Path) -> Path:
    """Return a folder beside a network that is free for its model with noise."""
    if not base.name:  # the working folder
        base = base.resolve()
    out = base.with_name("abnn")
    # Beside other things than models, "abnn" would not say of which network it is.
    is_in_current_folder = base.parent == Path()
    is_unclear = is_in_current_folder or out.exists()
    return base.with_name(f"{base.name}-abnn") if is_unclear else out


def _data_words(settings: Any) -> list[str]:
    """Return the words of typed settings that name data."""
    words = []
    typed = iter(opts.words_of_settings(settings))
    for word in typed:
        value = [] if "=" in word else [next(typed, "")]
        if word.startswith("--data."):
            words += [word, *value]
    return words


def _training_in_words(measured: Mapping[str, Any]) -> str:
    """Return how long one network was trained, and how good it is."""
    epochs = measured["epochs"]
    if not epochs:
        return "took over the weights"
    miou = "not measured" if measured["val_miou"] is None else f"{measured['val_miou']:.4f}"
    if measured["best_epoch"] is not None and epochs > 1:
        miou += (
            f" of epoch {measured['best_epoch']} of {epochs}, the best measured, whose weights are "
            "kept"
        )
    return (
        f"trained {counted(epochs, 'epoch')} ({counted(measured['steps'], 'step')})"
        f" in {measured['seconds']:.0f} s: validation mIoU {miou}"
    )


def _show_finetune(result: Any, options: opts.FinetuneOptions) -> Iterable[str]:
    if result.measured:
        _tell_line(f"fine-tuning took {result.measured['seconds']:.0f} s")
    _tell_line(f"then: {_step_after_finetune(result.out, options)}")
    return ()


def _step_after_finetune(model: Path, options: opts.FinetuneOptions) -> str:
    """Return the command that comes after a fine-tuning.

    Features need the anomaly score that is made of them; another temperature has removed it. Where
    the configuration or the data speak of anomalies, this score comes next, because it finds
    unknown objects best. Another model is calibrated by a temperature, and a calibrated model is
    evaluated. Without data, only maps can be made.
    """
    from segunc.posteriors.model import default_scores
    from segunc.training.config import recorded_data
    from segunc.verbs.init_update import CALIBRATIONS, free_result

    has_data = recorded_data(model) is not None
    data_words = _data_words(options.settings)
    in_place = ["--base", str(model), "--out", str(model)]
    config = [] if options.config is None else ["--config", str(options.config)]
    has_features = (model / "features.json").exists()
    has_anomaly = "anomaly" in default_scores(model)
    lacks_sum = has_features and not has_anomaly
    if options.method == "features" or (options.method == "temperature" and lacks_sum):
        as_before, repeated = _as_fitted_before(model, "anomaly", config)
        words = [*as_before, "--method", "anomaly", *in_place, *data_words, *repeated]
        if not has_data and "--anomaly.images" not in repeated:
            words += ["--anomaly.images", "IMAGES"]
        return f"segunc finetune {shlex.join(words)}"
    if not has_data:
        return f"segunc predict {shlex.join(['--model', str(model)])} --input IMAGES --out maps"
    method = ""
    if not (has_features or has_anomaly) and options.method != "class-sets":
        method = _method_for_anomalies(model, options)
    if not method and options.method not in CALIBRATIONS:
        method = "temperature"
    if method:
        words = [*config, "--method", method, *in_place, *data_words]
        return f"segunc finetune {shlex.join(words)}"
    # Data that were typed stand in the record of the model, not in the configuration.
    if data_words or not _names_data(options.config):
        config = []
    words = [*config, "--model", str(model), "--out", free_result()]
    return f"segunc evaluate {shlex.join(words)}"


def _as_fitted_before(
    model: Path, method: str, config: Sequence[str]
) -> tuple[Sequence[str], list[str]]:
    """Return the words of the configuration and of the settings of the last fit of a method that
    the model records, so that a fit after it makes the same score.

    A file or a folder that is not here, as of a model that others made, is a word in capitals
    instead.

    Args:
        model: the model folder.
        method: as ``segunc finetune`` calls it.
        config: the words of the configuration that was typed now, which counts before the recorded.
    """
    from segunc.training.config import recorded_commands

    settings: list[str] = []
    recorded: list[str] = []
    for entry in recorded_commands(model):
        words: list[str] = []
        for word in shlex.split(entry["command"]):
            words += word.split("=", 1) if word.startswith("--") else [word]
        pairs = list(pairwise(words))
        if ("--method", method) not in pairs:
            continue
        settings = []
        recorded = []
        for name, value in pairs:
            if name == "--config":
                recorded = [name, _here(value, "CONFIG")]
            elif name in _PLACES:
                settings += [name, _here(value, _PLACES[name])]
            elif name.startswith(f"--{method}."):
                settings += [name, value]
    return config or recorded, settings


_PLACES = {"--anomaly.images": "IMAGES", "--anomaly.encoder_weights": "FILE"}
"""Settings that name a file or a folder, and what stands for one that is not here."""


def _here(place: str, stands_for: str) -> str:
    """Return a place that a command names, or a word in capitals where nothing is there."""
    dataset, colon, folder = place.rpartition(":")
    is_there = is_url(place) or Path(folder if colon and dataset else place).exists()
    return place if is_there else stands_for


def _method_for_anomalies(model: Path, options: opts.FinetuneOptions) -> str:
    """Return the first method of an anomaly score for a model without features; empty if nothing
    says that unknown objects are looked for.
    """
    from segunc.core.files import read_json
    from segunc.networks.description import COLOUR
    from segunc.networks.model_folder import DESCRIPTION
    from segunc.training.config import read_config, recorded_data

    sections = set() if options.config is None else read_config(Path(options.config)).keys()
    for method in ("features", "anomaly"):
        if method in sections:
            return method
    if not (recorded_data(model) or {}).get("anomaly_class"):
        return ""
    # The second encoder of the packaged bank, which the score takes here, sees colours.
    description = read_json(model / DESCRIPTION, "the description of a network")
    return "anomaly" if len(description.get("mean", ())) == COLOUR else ""


def _names_data(config: Path | str | None) -> bool:
    """Return whether a configuration says which data set lies where."""
    from segunc.training.config import read_config

    if config is None:
        return False
    data = read_config(Path(config)).get("data")
    return isinstance(data, dict) and bool(data.get("dataset") and data.get("root"))


def _show_predict(result: Any, options: opts.PredictOptions) -> Iterator[str]:
    for done in result.inputs:
        finished = done.summary.finished
        skipped = done.summary.skipped
        seconds = done.summary.seconds
        rate = finished / max(seconds, 1e-9)
        yield (
            f"{counted(finished + skipped, 'frame')} in {done.out}:"
            f" {finished} in {seconds:.1f} s ({rate:.2f} frames/s),"
            f" {skipped} {agreeing('was', skipped)} finished before; {done.how}"
        )
        if done.video is not None:
            yield f"overlay video: {done.video}"
    if result.hint:
        yield f"next: {result.hint}"


def _show_evaluate(result: Any, options: opts.EvaluateOptions) -> Iterator[str]:
    from segunc.evaluation.tables import format_metrics

    yield format_metrics(result.numbers)
    if result.path is not None:
        yield f"wrote {result.path}"
    if options.plots:
        yield f"wrote {counted(len(result.figures), 'file')} of figures to {options.plots}"
    if "unfinished" in result.numbers:
        yield f"note: {result.numbers['unfinished']}"
    yield from result.exceeded


def _show_threshold(result: Any, options: opts.ThresholdOptions) -> Iterator[str]:
    from segunc.decisions.guarantee import MOST_OF, RISKS
    from segunc.maps.encoding import threshold_text

    threshold = result.threshold
    yield threshold.promise
    yield threshold.condition
    score = threshold.preparation.name_of(threshold.score)
    yield (
        f"threshold: {score} >= {threshold_text(threshold.value)}, from "
        f"{counted(threshold.units, 'unit')}"
        f" ({threshold.method}; {threshold.minimum_units} are the fewest)"
    )
    for control, risk in result.price.items():
        largest = MOST_OF.get(control, "")  # the risk that the threshold was chosen by
        yield f"  {RISKS[control]}: {risk:.3g}, mean over these units{largest}"
    if threshold.right_flagged is not None and threshold.wrong_flagged is not None:
        yield f"  flagged right pixels: {threshold.right_flagged:.3g} of all right ones"
        yield f"  flagged wrong pixels: {threshold.wrong_flagged:.3g} of all wrong ones"
    yield f"  false regions: {result.regions:.3g} a frame, of at least {threshold.smallest} pixels"
    for group, record in threshold.groups.items():
        value = threshold_text(record["value"])
        yield f"  group {group}: {score} >= {value}, from {counted(record['units'], 'unit')}"
    yield f"wrote {result.path}; give it to --flag"


def _show_review(result: Any, options: opts.ReviewOptions) -> Iterator[str]:
    if result.verdicts:
        yield result.verdicts
    if result.path is not None:
        shown = "" if options.tags else "; the page shows these verdicts"
        yield f"wrote {result.path}{shown}"
    if result.dataset:
        yield f"open the data set {result.dataset} with `fiftyone app launch {result.dataset}`"
    if result.page is not None:
        yield f"open {result.page} in a browser"


def _show_summary(result: Any, options: opts.SummaryOptions) -> Iterator[str]:
    apart = f", {result.apart}" if result.apart else ""
    yield f"worst moments by {result.statistic}{apart}"
    yield from _lines_of_moments(result.moments, local_folder(options.maps))
    bald = " (BALD)" if result.label_statistic == "epistemic.mean" else ""
    yield f"frames to label first by {result.label_statistic}{bald}{apart}"
    yield from _lines_of_moments(result.label, local_folder(options.maps))
    if result.events:
        brief = sum(event.frames == 1 for event in result.events)
        yield f"events: {len(result.events)}, {brief} of them in one frame alone; the strongest"
    elif options.events:
        yield "events: no event was found"
    yield from _lines_of_events(result.events, options.top)
    if not options.flag and result.percentile is not None:
        score = result.statistic.rpartition(".")[0]
        yield (
            f"--flag {score}={result.percentile:.3g} lists regions: it flags about 1 % of the "
            "pixels of a typical frame, and promises nothing"
        )
    if options.out:
        is_named_csv = str(options.out).lower().endswith(".csv")
        yield f"wrote {options.out}" if is_named_csv else f"wrote {options.out} as CSV"
    if options.events:
        from segunc.decisions.events import format_of

        yield f"wrote {options.events}: {format_of(Path(options.events))}"


def _lines_of_moments(moments: Iterable[Any], root: Path) -> Iterator[str]:
    """Yield one line for each moment: its rank, time and value, and its frame below the root."""
    from segunc.frames.source import format_time

    for rank, moment in enumerate(moments, start=1):
        folder = "" if moment.folder == root else f"{moment.folder.relative_to(root)}/"
        time = "" if moment.time is None else f"{format_time(moment.time)}  "
        yield f"{rank:4d}  {time}{moment.value:<12.6g}{folder}{moment.name}"


def _lines_of_events(events: Iterable[Any], top: int) -> Iterator[str]:
    """Yield one line for each of the ``top`` strongest events."""
    from segunc.frames.source import format_time

    strongest = sorted(events, key=lambda event: -event.peak["strength"])[:top]
    for event in strongest:
        span = f"{format_time(event.start['time'])} to {format_time(event.end['time'])}"
        peak = f"peak {event.peak['frame']}"
        extent = f"{counted(event.frames, 'frame')}, at most {event.largest} px"
        yield (f"{event.id:4d}  {span}  {event.score} {event.peak['value']:<10.6g}{extent}, {peak}")


def _show_monitor(result: Any, options: opts.MonitorOptions) -> Iterator[str]:
    yield result.line
    for path in result.paths:
        yield f"wrote {path}"


DROPPED_WORDS = {
    "newer": "replaced by newer ones",
    "late": "too old",
    "damaged": "damaged",
    "size": "of another size",
    "failed": "refused by the network",
    "end": "still waiting at the end",
}
"""Why frames of a watch have no result, in the words of its last line."""


def _show_watch(result: Any, options: opts.WatchOptions) -> Iterator[str]:
    """Print the lines of a watch as they come, and the last one also where it is interrupted."""
    from segunc.core.files import json_line

    is_printed = options.out is None
    if not is_printed:
        say(f"alarms are written to {result.path}", flush=True)
    last: Any = {}
    try:
        for last in result:
            if is_printed:
                say(json_line(last), flush=True)
            elif last["kind"] == "note":
                say(f"note: {visible(last['text'])}", flush=True)
    finally:
        result.close("interrupted")
        if is_printed and result.end and last != result.end:
            say(json_line(result.end), flush=True)
    if not is_printed:
        end = result.end
        dropped = ", ".join(
            f"{count} {DROPPED_WORDS[reason]}" for reason, count in end["dropped"].items() if count
        )
        yield (
            f"{counted(end['read'], 'frame')}: {end['processed']} processed, "
            f"{dropped or 'none dropped'}; "
            f"{end['alarms']} with an alarm"
        )
        yield f"wrote {result.path}"
        kept = result.path.parent / "maps"
        if options.keep != "none" and kept.is_dir():
            # Kept maps do not hold the threshold of the watch, so the page needs it.
            words = shlex.join(["--maps", str(kept), "--flag", ",".join(options.flag)])
            yield f"look at the kept frames: segunc review {words} --out review"


def _show_overlay(result: Any, options: opts.OverlayOptions) -> Iterator[str]:
    for folder, pictures in result.pictures.items():
        yield f"{len(pictures)} pictures in {folder}"
        if folder in result.videos:
            yield f"video: {result.videos[folder]}"
    if result.recording is not None:
        megabytes = result.recording.stat().st_size / 1e6
        yield (
            f"wrote {megabytes:.0f} MB; --score A,B takes fewer scores, and --frames fewer frames"
        )
        yield f"open {result.recording} with `rerun {result.recording}`"


def _show_compare(result: Any, options: opts.CompareOptions) -> Iterator[str]:
    yield result.text
    for path in result.paths:
        yield f"wrote {path}"
    if result.page is not None:
        yield f"open {result.page} in a browser"


def _show_report(result: Any, options: opts.ReportOptions) -> Iterator[str]:
    yield from result.summary
    yield f"wrote {result.path}, SHA-256 {result.sha256}"
    yield f"open {result.page} in a browser, or print it"


def _show_export(result: Any, options: opts.ExportOptions) -> Iterator[str]:
    yield result.line
    yield f"wrote {result.path} and {result.record}"
    if result.condition:
        yield result.condition


def _show_doctor(result: Any, options: opts.DoctorOptions) -> Iterator[str]:
    yield from result.about
    for finding in result.findings:
        yield f"{finding.status:>4}  {finding.check}: {finding.text}"
    if not result.failure:
        yield "the uncertainty is alive"


SHOWN: dict[str, Callable[[Any, Any], Iterable[str]]] = {
    "demo": _show_demo,
    "init": _show_init,
    "import_network": _show_import_network,
    "train": _show_train,
    "finetune": _show_finetune,
    "predict": _show_predict,
    "evaluate": _show_evaluate,
    "threshold": _show_threshold,
    "review": _show_review,
    "summary": _show_summary,
    "monitor": _show_monitor,
    "watch": _show_watch,
    "overlay": _show_overlay,
    "compare": _show_compare,
    "report": _show_report,
    "export": _show_export,
    "doctor": _show_doctor,
}
"""What is printed of the result of each verb's function, line by line."""
