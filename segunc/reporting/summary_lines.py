"""The first lines of a report: what may be trusted and what not, made from its numbers alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from segunc.core.terminal import agreeing, counted
from segunc.data.training_frames import epoch_words
from segunc.decisions.guarantee import RISKS, unit_words
from segunc.decisions.risks import OF_CLASSES, binomial_bound
from segunc.decisions.states import (
    BROKEN,
    HOLDS,
    LIMITED,
    MEASURED,
    OPEN,
    STATED,
    STATES,
    UNPROVEN,
)
from segunc.evaluation.comparison import differing_settings, format_cell, format_number
from segunc.evaluation.resampling import Cell
from segunc.maps.encoding import threshold_text
from segunc.scores import title_of

Line = dict[str, str]
Row = Mapping[str, Any]
TEST = "test"  # frames that nothing was chosen on
_MAX_SHOWN = 3  # data sets of one kind in a line
_MAX_SHIFT_NUMBERS = 6  # in a line
VALIDATION_SPLITS = ("val", "valid", "validation", "selection")
"""Names of splits on which epochs are usually chosen."""
FEW_UNITS = 10
"""Number of resampled units below which an interval is not to be relied on."""
_NEEDED = {
    "missed-pixels": "labelled anomaly pixel",
    "flagged-pixels": "labelled normal pixel",
    "missed-objects": "labelled object that counts",
    "errors-kept": "pixel with a class label",
}
"""What a frame needs for a value of each risk; without any, the risk is not measured."""
_STATED_SECTIONS = ("intended use", "ethics")
"""Sections that an operator states, and that have no line of their own."""
_LINE_OF_SECTION = {"shift": "under shift", "factors": "operating domain"}
"""Lines that have another name than their section."""
STATEMENT = "statement"
MEASUREMENT = "measurement"


def summary_of(facts: Row) -> list[Line]:
    """Return the lines of the summary.

    Args:
        facts: the content of ``report.json``.

    Returns:
        ``name``, ``state`` (a key of :data:`segunc.decisions.states.STATES`) and ``text`` of each
        line; promises that do not hold come first. A line of which nothing was given names in
        ``lacks`` what that would be: a statement of the operator, or a measurement. ``lead`` is
        the beginning of a text that is read first.
    """
    lines = [
        _classes(facts),
        _probabilities(facts),
        _unknown_objects(facts),
        *_operating_points(facts),
        *_edits(facts),
        *_settings(facts),
        *_labels(facts),
        *_images(facts),
        _shift(facts),
        _training_data(facts),
        _stated(facts, "Independence", "independence"),
        _stated(facts, "Label quality", "label_quality"),
        _reviewers(facts),
        _operation(facts),
        _domain(facts),
        _gaps(facts),
        _approval(facts),
    ]
    return sorted(lines, key=lambda line: line["state"] != BROKEN)


def number(result: Row, *path: str) -> str:
    """Return a number of a result with its interval, as statistics writes it."""
    value: Any = result["content"]
    for key in path:
        value = (value or {}).get(key)
    interval = result["content"]["intervals"].get(".".join(path))
    return format_cell(Cell(value, interval))


def chance(counts: Row) -> str:
    """Return the share of anomaly pixels, which is the AUPR of a random score."""
    pixels = counts["anomaly_pixels"] + counts["normal_pixels"]
    return format_number(counts["anomaly_pixels"] / max(pixels, 1))


def share(part: int, whole: int) -> str:
    """Return a share of objects with its upper bound (one-sided, 95 %, Clopper and Pearson)."""
    bound = binomial_bound(part, whole)
    words = "95 %, if objects are independent of each other"
    return f"{percent(part / whole, 0)} of all objects, upper bound {percent(bound, 0)} ({words})"


def resampled(result: Row) -> str:
    """Return what the intervals of a result are over, such as ``2 folders``, and that few units
    give no interval to rely on; empty where none were made.
    """
    bootstrap = result["content"].get("bootstrap", {})
    units = bootstrap.get("units")
    if units is None or not result["content"]["intervals"]:
        return ""
    words = counted(units, unit_words(bootstrap["unit"]))
    if bootstrap["unit"] == "folder":
        words += " (of frames, such as drives)"
    if units < FEW_UNITS:
        words += ": too few, so its intervals are not to be relied on"
    return words


def _few_units(result: Row) -> str:
    """Return a sentence on intervals over few units; empty for nothing."""
    units = result["content"].get("bootstrap", {}).get("units")
    if units is None or units >= FEW_UNITS:
        return ""
    words = resampled(result)
    return f"Intervals of {result['name']} are over {words}." if words else ""


def percent(value: float, digits: int = 1) -> str:
    """Return a share as the report writes it, ``58.5 %``."""
    return f"{100 * value:.{digits}f} %"


def _line(name: str, state: str, *sentences: str) -> Line:
    return {"name": name, "state": state, "text": " ".join(filter(None, sentences))}


def _missing(name: str, lacks: str, text: str) -> Line:
    """Return a line of which nothing was given."""
    return {**_line(name, OPEN, text), "lacks": lacks}


def _classes(facts: Row) -> Line:
    result = _best_result([result for result in facts["results"] if result["segmented"]])
    if result is None:
        return _missing("Classes", MEASUREMENT, "Not measured.")
    per_class = result["content"]["segmentation"]["per_class"]
    classes = {name: iou for name, iou in per_class.items() if iou is not None}
    never = _never_found(result)
    unlabelled = [name for name in classes if name in _unlabelled(result)]
    predicted = [name for name in classes if name not in {*never, *unlabelled}]
    worst_first = sorted(predicted, key=classes.__getitem__)
    sentences = []
    if never:
        sentences.append(f"{_are(never)} never found (IoU 0).")
    if worst_first:
        worst = worst_first[0]
        best = worst_first[-1]
        sentences.append(f"Trust {best} most (IoU {format_number(classes[best])})")
        sentences.append(f"and {worst} least ({format_number(classes[worst])}).")
    miou = number(result, "segmentation", "miou")
    sentences.append(f"Mean IoU is {miou} on {result['labelled']}.")
    if unlabelled:
        sentences.append(
            f"{_are(unlabelled)} predicted and not in these labels; the mean counts IoU 0."
        )
    return _line("Classes", MEASURED, *sentences, _few_units(result))


def _best_result(results: Sequence[Row]) -> Row | None:
    """Return the result that says most of new frames: of clean images before corrupted ones, and
    of test frames before those of a validation, by their role and the name of their split.
    """

    def doubt(result: Row) -> tuple[bool, bool, bool]:
        run = result["content"]["run"]
        is_validation = result.get("role", TEST) != TEST
        return bool(run.get("corruption")), is_validation, run.get("split") in VALIDATION_SPLITS

    return min(results, key=doubt, default=None)


def _never_found(result: Row) -> list[str]:
    """Return the classes of labelled pixels of which none is predicted right."""
    per_class = result["content"]["segmentation"]["per_class"]
    unlabelled = _unlabelled(result)
    return [name for name, iou in per_class.items() if iou == 0 and name not in unlabelled]


def _unlabelled(result: Row) -> list[str]:
    """Return the classes of which no pixel is labelled; results of earlier versions name none."""
    names: list[str] = result["content"]["counts"].get("unlabelled_classes", [])
    return names


def _are(names: Sequence[str]) -> str:
    return f"{_listed(names)} {agreeing('is', len(names))}"


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _probabilities(facts: Row) -> Line:
    by_data: dict[str, str] = {}
    for result in facts["results"]:
        if result["segmented"] and result["content"]["calibration"].get("ece") is not None:
            ece = number(result, "calibration", "ece")
            by_data.setdefault(result["labelled"], f"{ece} on {result['labelled']}")
    if not by_data:
        return _missing("Probabilities", MEASUREMENT, "Not measured.")
    shown = [*by_data.values()][:_MAX_SHOWN]
    text = f"Confidence and accuracy differ on average by {'; '.join(shown)} (ECE)."
    return _line("Probabilities", MEASURED, text)


def _unknown_objects(facts: Row) -> Line:
    result = _best_result([result for result in facts["results"] if result["score"]])
    if result is None:
        return _missing("Unknown objects", MEASUREMENT, "Not measured.")
    content = result["content"]
    score = result["score"]
    aupr = number(result, "scores", score, "pooled", "aupr")
    flagged = content["scores"][score]["pooled"]["fpr95"]
    sentences = [
        f"The score {title_of(score, capital=False)} finds anomaly pixels with an AUPR of {aupr}",
        f"on {result['with_anomalies']}; chance has {chance(content['counts'])}.",
        f"At a recall of 95 % it flags {percent(flagged)} of the normal pixels.",
        *_scores_of_thresholds(facts, result),
    ]
    rows = result["missed"]["size"]
    if rows:
        objects = sum(row[1] for row in rows)
        missed = sum(row[2] for row in rows)
        missed_by = title_of(result.get("missed_score", score), capital=False)
        sentences.append(
            f"{result['found']} the score {missed_by} misses {missed} of all {objects} objects:"
        )
        sentences.append(f"{share(missed, objects)}.")
        if result.get("small_objects"):
            sentences.append(f"{result['small_objects']}.")
    return _line("Unknown objects", MEASURED, *sentences, _few_units(result))


def _scores_of_thresholds(facts: Row, result: Row) -> Iterator[str]:
    """Yield a sentence on the score of each threshold, where one is on another score than the
    headline's.
    """
    thresholds = facts["thresholds"]
    if all(threshold["score"] == result["score"] for threshold in thresholds):
        return
    for threshold in thresholds:
        score = threshold["score"]
        text = f"The threshold {threshold['file']} is on the score {title_of(score, capital=False)}"
        if score not in result["content"]["scores"]:
            text += ", which was not evaluated there"
        elif score != result["score"]:
            text += f", which has an AUPR of {number(result, 'scores', score, 'pooled', 'aupr')}"
        yield f"{text}."


def _operating_points(facts: Row) -> Iterator[Line]:
    if not facts["thresholds"]:
        yield _missing("Operating point", MEASUREMENT, "Not measured.")
    for threshold in facts["thresholds"]:
        achieved = threshold["achieved"]
        verdicts = [_verdict(row, achieved) for row in achieved]
        sentences = [*verdicts, threshold["promise"]]
        sentences += [_achieved(row, threshold) for row in achieved]
        if not achieved:
            sentences += [*not_measured(threshold), f"To measure it: {measuring(threshold)}."]
        sentences.append(threshold["condition"])
        if threshold.get("chosen"):
            sentences.append(f"Of the calibration: {threshold['chosen']}.")
        line = _line("Operating point", _state_of(achieved), *sentences)
        yield {**line, "lead": " ".join(verdicts)} if verdicts else line


def not_measured(threshold: Row) -> list[str]:
    """Return why nothing is known of a threshold on other frames than those of its calibration: no
    result was made with it, and with which ones results were made instead.
    """
    operating_point = f"{threshold['score']} >= {threshold_text(threshold['value'])}"
    sentences = [
        "Not measured on other frames: no result was made with "
        f"{threshold['file']} ({operating_point})."
    ]
    for other in threshold.get("others", ()):
        value = f"{other['score']} >= {threshold_text(other['value'])}"
        if other.get("same"):
            sentences.append(
                f"The result {other['name']} was made with another file of the same promise and "
                "value, which may have been calibrated on other frames."
            )
        elif other["control"]:
            risk = f"{other['control']} of at most {format_number(other['level'])}"
            sentences.append(
                f"The result {other['name']} was made with another threshold: {value}, for {risk}."
            )
        else:
            sentences.append(f"The result {other['name']} was made with a bare value: {value}.")
    return sentences


def measuring(threshold: Row) -> str:
    """Return the command that measures a threshold on other frames, with the labels that its risks
    need.
    """
    controls = {threshold["control"], *threshold.get("also", ())}
    words = ["segunc evaluate --maps MAPS"]
    if OF_CLASSES & controls:
        words.append("--labels LABELS --config CONFIG")
    if controls - OF_CLASSES:
        words.append("--anomaly-labels MASKS")
    words.append(f"--flag {threshold['file']} --out metrics.json")
    return " ".join(words)


def _edits(facts: Row) -> Iterator[Line]:
    """Yield a line on files in which nothing shows an edit."""
    names = facts.get("unsealed", ())
    if names:
        holds = "holds no hash of itself" if len(names) == 1 else "hold no hash of themselves"
        text = f"{_listed(names)} {holds}, so a later edit cannot be noticed. Make it again."
        yield _line("Edits", OPEN, text)


def _settings(facts: Row) -> Iterator[Line]:
    """Yield a line on settings that differ between the files of this report."""
    sentences = differing_settings(facts.get("settings", ()))
    if sentences:
        start = "These files were not made with the same settings, so their numbers differ."
        yield _line("Settings", OPEN, start, *sentences)


def _labels(facts: Row) -> Iterator[Line]:
    """Yield a line on results of frames of the same names with other labels."""
    sentences = [
        f"{first} and {second} are of frames of the same names with other labels: their numbers "
        "cannot be compared."
        for first, second in facts.get("other_labels", ())
    ]
    if sentences:
        yield _line("Labels", OPEN, *sentences)


def _images(facts: Row) -> Iterator[Line]:
    """Yield a line on results of other images under the same names of frames."""
    sentences = _words_on_images(facts)
    if sentences:
        yield _line("Images", OPEN, *sentences)


def _words_on_images(facts: Row) -> list[str]:
    sentences = [
        f"The images of {result} are others than those of {earlier} under the same names."
        for result, earlier in facts.get("other_images", ())
    ]
    for row in facts.get("some_other_images", ()):
        have = "has another image" if row["changed"] == 1 else "have other images"
        sentences.append(
            f"{row['changed']} of the {row['shared']} frames that {row['result']} and "
            f"{row['earlier']} both name {have}."
        )
    for result in facts["results"]:
        namesakes = result.get("namesakes_of_calibrated", 0)
        if namesakes:
            have = "has the name of a calibration frame and another image"
            if namesakes > 1:
                have = "have the names of calibration frames and other images"
            sentences.append(f"{counted(namesakes, 'frame')} of {result['file']} {have}.")
        if result.get("may_be_calibrated"):
            sentences.append(
                f"{result['file']} names no frames, so it may hold frames of a calibration, which "
                "are no test; evaluate without --replicates 0, and keep the .npz file beside it."
            )
    return sentences


def _state_of(achieved: Sequence[Row]) -> str:
    """Return whether a promise was kept on clean and on corrupted images."""
    clean = {row["kept"] for row in achieved if not row["shifted"]}
    shifted = {row["kept"] for row in achieved if row["shifted"]}
    if "exceeded" in clean:
        return BROKEN
    if "exceeded" in shifted:
        return LIMITED if "kept" in clean else BROKEN
    if any(_is_unproven(row) for row in achieved if not row["shifted"]):
        return UNPROVEN
    return HOLDS if "kept" in clean else OPEN


def _verdict(row: Row, achieved: Sequence[Row]) -> str:
    """Return in few words what a result achieved, what was promised, and whether that was kept.

    Args:
        row: of the result.
        achieved: the rows of all results, among which it is named.
    """
    control: str = row["control"]
    risk = RISKS.get(control, control).capitalize()
    level = row.get("level")
    promised = "" if level is None else f", promised {format_number(level)}"
    source = f" in {row['file']}" if len(achieved) > 1 and row.get("file") else ""
    if row["loss"] is None:
        return f"{risk} were not measured{source}{promised}."
    return f"{risk} {format_number(row['loss'])}{source}{promised}: {promise_words(row)}."


def _is_unproven(row: Row) -> bool:
    """Return whether a promise was kept by so few units that its risk may be above the level."""
    level = row.get("level")
    return bool(row["kept"] == "kept" and level is not None and (row.get("upper") or 0.0) > level)


def promise_words(row: Row) -> str:
    """Return whether one result kept a promise, as the table of the results says it."""
    return STATES[UNPROVEN] if _is_unproven(row) else str(row["kept"])


def _achieved(row: Row, threshold: Row) -> str:
    """Return what a result achieved. Its risk is a mean over units, so it may differ much from the
    share of all objects or pixels together.
    """
    if row["loss"] is None:
        lacking = _NEEDED.get(row["control"], "label that the risk needs")
        price = _price(row, threshold["control"])
        return (
            f"Not measured on {row.get('of', row['data'])}: no frame there has a {lacking}{price}."
        )
    units = ""
    if row["units"] is not None:
        unit = unit_words(threshold.get("unit", ""))
        units = f", mean over {counted(row['units'], unit)}"
    upper = ""
    if row.get("upper") is not None:  # of few units it is far above what was achieved
        upper = f", at most {format_number(row['upper'])} with 95 % confidence"
    text = (
        f"{format_number(row['loss'])}{units} on {row.get('of', row['data'])}{upper}: {row['kept']}"
    )
    if _is_unproven(row):
        text += f" here, but the bound is above {format_number(row['level'])}"
    text += _price(row, threshold["control"])
    if row.get("same_input"):
        text += ". These frames come from the input of the calibration; another drive tests more"
    if row.get("size_note"):
        text += f". {row['size_note']}"
    return f"{text}."


def _price(row: Row, control: str) -> str:
    """Return what is flagged for a promise: of normal pixels, and for errors of right pixels, with
    the wrong ones, which should be flagged; empty where it is not known.
    """
    flagged = row["flagged"]
    if row["control"] in OF_CLASSES:
        right = row.get("right_flagged")
        wrong = row.get("wrong_flagged")
        if right is not None and wrong is not None:
            shares = f"{percent(right)} of the right and {percent(wrong)} of the wrong pixels"
            return f", with {shares} flagged"
        # A result of an earlier version does not tell them apart.
        share_of_all = flagged.get("share")
        if share_of_all is None:
            return ""
        return f", with {percent(share_of_all)} of all labelled pixels flagged, right or wrong"
    price = flagged.get("normal_share", flagged.get("share"))
    if row["control"] != control or price is None:
        return ""
    return f", with {percent(price)} of the normal pixels flagged"


def _shift(facts: Row) -> Line:
    rows = [row for row in facts["shift"] if row["clean"] is not None]
    if not rows and facts["shift"]:
        alone = list(dict.fromkeys(row["name"] for row in facts["shift"]))
        text = (
            f"{_listed(alone)} of corrupted images cannot be compared, because no result here is "
            "of the same frames without the corruption: evaluate them with the same --every and "
            "split."
        )
        return _line("Under shift", OPEN, text)
    if not rows:
        text = "Not measured on corrupted images."
        others = [result for result, _ in facts.get("other_images", ())]
        if others:
            holds = "is a result" if len(others) == 1 else "are results"
            text += (
                f" {_listed(others)} {holds} of other images under the same names; the numbers "
                "stand with the other results, in the tables of the quantitative analyses."
            )
            return _line("Under shift", OPEN, text)
        return _missing("Under shift", MEASUREMENT, text)
    sentences = []
    for row in rows[:_MAX_SHIFT_NUMBERS]:
        value = format_number(row["value"])
        clean = format_number(row["clean"])
        score = f" of the score {title_of(row['score'], capital=False)}" if row["score"] else ""
        text = f"Under {row['shift']}, {row['number']}{score} is {value}; without it {clean}"
        sentences.append(f"{text} ({row['data']}).")
    for result in facts["results"]:
        corruption = result["content"]["run"].get("corruption")
        never = _never_found(result) if corruption and result["segmented"] else []
        if never:
            sentences.append(f"Under {corruption}, {_are(never)} never found.")
    return _line("Under shift", MEASURED, *sentences)


def _frames_of_training(trained: Row, frames: Row) -> str:
    """Return how many frames a network was trained on, in parentheses; empty where the record does
    not say it.
    """
    if "train" not in frames:
        return ""
    words = counted(frames["train"], "frame")
    if frames.get("left_out"):
        classes = trained.get("anomaly_class")
        if isinstance(classes, list):
            classes = " or ".join(classes)
        words += f"; {frames['left_out']} that hold {classes} were left out"
    return f" ({words})"


def _training_data(facts: Row) -> Line:
    trained = facts["trained"]
    sources = dict.fromkeys(facts.get("fitted_on", ()))
    if trained:
        sources = dict.fromkeys([str(trained.get("dataset")), *sources])
    saw = f"What was fitted on it here saw {_listed(list(sources))}." if sources else ""
    if not trained:
        return _line("Training data", OPEN, "The model records none.", *([saw] if saw else []))
    if facts.get("imported"):
        return _line(
            "Training data",
            OPEN,
            "segunc did not train the network, so nothing records what it was trained on.",
            saw,
        )
    fitted = [saw] if len(sources) > 1 else []
    frames = facts.get("training_frames", {})
    data = _data_as_frames(str(trained.get("dataset")))
    text = f"Trained on {data}{_frames_of_training(trained, frames)}"
    if trained.get("validation"):
        text += f"; {epoch_words(trained['validation'], frames)}"
    changed = facts.get("splits_changed")
    if changed:
        return _line(
            "Training data",
            OPEN,
            f"{text}.",
            *fitted,
            f"The list of frames has changed since, so {', '.join(changed)} may hold frames that "
            "it was trained on.",
        )
    return _line("Training data", STATED, f"{text}.", *fitted)


def _data_as_frames(data: str) -> str:
    """Return data in words as frames of a folder: a network is trained on more than labels."""
    return data.replace("labels in", "the frames of", 1) if data.startswith("labels in") else data


def _stated(facts: Row, name: str, key: str) -> Line:
    """Return a line in the operator's words: no command can measure it."""
    words = facts["domain"][key]
    if words:
        return _line(name, STATED, words)
    return _missing(name, STATEMENT, "Nobody stated it.")


def _reviewers(facts: Row) -> Line:
    sentences: list[str] = []
    for result in facts["results"]:
        if "verdicts" in result["content"]:
            sentences += _judged(result["content"]["counts"])
    if not sentences:
        return _missing("Reviewers", MEASUREMENT, "No verdicts were evaluated.")
    return _line("Reviewers", MEASURED, *sentences)


def _judged(counts: Row) -> Iterator[str]:
    """Yield sentences on the frames that reviewers judged, and on how far they agree."""
    frames = f"{counts['judged_frames']} of {counts['frames']} frames were judged"
    several = counts.get("judged_by_several", 0)
    if several:
        frames += f"; reviewers disagree on {counts['disagreed_frames']}"
        frames += f" of {several} that two or more judged"
    yield f"{frames}."
    by_regions = []
    for name, judged in counts.get("verdicts", {}).items():
        # A result of an earlier version does not count them.
        if judged.get("by_regions"):
            by_regions.append(f"{name} judged {judged['by_regions']} of {judged['frames']}")
    if by_regions:
        yield f"By verdicts on regions alone, {_listed(by_regions)} frames."
    yield from agreement_sentences(counts)


def agreement_sentences(counts: Row) -> Iterator[str]:
    """Yield how far each two reviewers agree on the frames and on the regions that both judged."""
    for key, unit in (("agreement", "frames"), ("region_agreement", "regions")):
        for pair in counts.get(key, ()):
            who = _listed([name or "no name" for name in pair["reviewers"]])
            both = f"{pair[unit]} {unit} that both judged"
            if not pair[unit]:
                yield f"{who} judged none of the same {unit}."
            elif pair["kappa"] is None:
                yield f"{who} gave the same verdict on all {both}, so Cohen's kappa has no value."
            else:
                yield f"Cohen's kappa of {who} is {pair['kappa']:.2f}, over {both}."


def _operation(facts: Row) -> Line:
    monitor = facts["monitor"]
    if "operation" in facts["gaps"]:
        if monitor is None:
            return _missing("Operation", MEASUREMENT, "No monitor was run.")
        frames = counted(monitor["frames"], "frame", "is")
        why = f"Not measured: {frames} too few to raise an alarm."
        return _line("Operation", OPEN, why)
    if monitor["fired"]:
        text = f"The monitor fired at {monitor['fired']}, the frames are no longer like before."
        # A state of an earlier version records no condition.
        condition = monitor.get("condition", "")
        return _line("Operation", BROKEN, f"{text} {condition}".rstrip())
    if monitor.get("alarms"):
        return _line("Operation", BROKEN, f"Alarm: {'; '.join(monitor['alarms'])}.")
    # A state of an earlier version may not record what these frames could have shown.
    power = (monitor.get("power") or {}).get("line") or "few frames show only large changes"
    text = f"The monitor found no change in {counted(monitor['frames'], 'frame')}; {power}."
    return _line("Operation", MEASURED, text)


def _domain(facts: Row) -> Line:
    domain = facts["domain"]
    if not domain["cells"]:
        return _missing("Operating domain", STATEMENT, "No cells of the domain are given.")
    gaps = domain["gaps"]
    cells = len(domain["cells"])
    have = agreeing("has", gaps)
    text = f"{gaps} of {counted(cells, 'cell')} {have} fewer than {domain['minimum']} test frames."
    return _line("Operating domain", OPEN if gaps else MEASURED, text)


def _gaps(facts: Row) -> Line:
    if facts["gaps"]:
        text = f"Not measured: {', '.join(facts['gaps'])}."
        return _missing("Gaps", MEASUREMENT, text)
    return _line("Gaps", MEASURED, "Every section has data.")


def _approval(facts: Row) -> Line:
    roles = facts["domain"]["approvers"]
    who = f" by {_listed(roles)}" if roles else ""
    text = f"Not signed{who}: sign a print of this page with its SHA-256."
    return _line("Approval", OPEN, text) if roles else _missing("Approval", STATEMENT, text)


def folded(lines: Sequence[Line], gaps: Sequence[str] = ()) -> tuple[list[Line], list[Line], str]:
    """Return the lines of which something is known, the others, and a text in place of the others
    that names them and what would fill them.

    Args:
        lines: of the summary.
        gaps: names of the sections without data, which the line on gaps names, too.
    """
    others = [line for line in lines if line.get("lacks")]
    sentences = []
    stated = [line["name"].lower() for line in others if line["lacks"] == STATEMENT]
    stated += [name for name in gaps if name in _STATED_SECTIONS and name not in stated]
    if stated:
        sentences.append(
            f"Nobody stated: {', '.join(stated)}. A file for --domain states them; the guide "
            "docs/guides/reporting.md shows one."
        )
    unmeasured = [
        line["name"].lower()
        for line in others
        if line["lacks"] == MEASUREMENT and line["name"] != "Gaps"
    ]
    named = {*stated, *unmeasured}
    unmeasured += [name for name in gaps if _LINE_OF_SECTION.get(name, name) not in named]
    if unmeasured:
        sentences.append(
            f"Not measured: {', '.join(unmeasured)}. The section of each below names the command."
        )
    return [line for line in lines if not line.get("lacks")], others, " ".join(sentences)
