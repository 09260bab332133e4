"""What ``segunc init --update`` takes from an earlier ``init`` and from models made since then:
patterns, splits, and the command that comes next.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from segunc.core.files import read_text, reading, write_file
from segunc.core.terminal import counted
from segunc.data.discover import path_below
from segunc.data.frame_lists import FrameRow, one_spelling
from segunc.data.pairing import Pair
from segunc.options import InitOptions

RUNS = "runs"
"""The folder in which the commands that come next write their models."""
CALIBRATIONS = ("temperature", "anomaly", "class-sets")
"""Methods that are fitted on validation frames, in the order in which they build on each other."""
_METHOD_IN_WORDS = {
    "abnn": "ABNN",
    "features": "features (the bank of training frames)",
    "class-sets": "class sets",
}
"""How a sentence calls methods of ``segunc finetune`` that are not called by their names."""
_CHOICE = re.compile(r"^#   --(images|labels|labelled-only) (.+)$", re.MULTILINE)
"""A line of a configuration with an option of its init, as :func:`lines_of_choices` writes it."""

_CHOICES = "# `segunc init --update` takes these options again, unless others are typed:"
_NO_CHOICES = "# Its `segunc init` was given no --images, --labels or --labelled-only."


def lines_of_choices(root: Path, options: InitOptions) -> str:
    """Return the comments of a configuration that say which files an update takes, or that the
    user has not said it, which a configuration of an earlier version does not say.

    Patterns are relative to the folder of the data, so that an update may run in another folder.
    """
    choices = _choices(root, options)
    if not choices:
        return f"{_NO_CHOICES}\n"
    lines = [_CHOICES]
    # JSON in ASCII, because the name of a folder may hold what ends a line.
    lines += [f"#   --{name} {json.dumps(value)}" for name, value in choices.items()]
    return "".join(f"{line}\n" for line in lines)


def _choices(root: Path, options: InitOptions) -> dict[str, Any]:
    """Return the options that say which files an update takes, by their names."""
    choices: dict[str, Any] = {}
    if options.images is not None:
        choices["images"] = path_below(root, Path(options.images)).as_posix()
    if options.labels is not None:
        choices["labels"] = path_below(root, Path(options.labels)).as_posix()
    if options.labelled_only:
        choices["labelled-only"] = True
    return choices


def record_choices(root: Path, options: InitOptions, typed: InitOptions, notes: list[str]) -> bool:
    """Write the options that were typed at an update into the comments of its configuration that
    the next update reads, and note it. Return whether that changed the configuration.

    Other lines stay as they are. The comments of a configuration of an earlier version, which has
    none, come before its first setting.

    Args:
        root: the folder of the data.
        options: those of the update, with those that the configuration records.
        typed: those that were typed.
        notes: get a line.
    """
    if not (typed.images or typed.labels or typed.labelled_only):
        return False
    config = Path(options.out)
    text = _text_of(config)
    ending = "\r" if "\r\n" in text else ""
    lines = text.split("\n")
    before = [line for line in lines if _is_of_choices(line)]
    now = [f"{line}{ending}" for line in lines_of_choices(root, options).splitlines()]
    if before == now:
        return False
    if before:
        place = lines.index(before[0])
    else:
        settings = (number for number, line in enumerate(lines) if not line.startswith("#"))
        place = next(settings, len(lines))
    others_before = [line for line in lines[:place] if not _is_of_choices(line)]
    others_after = [line for line in lines[place:] if not _is_of_choices(line)]
    write_file(config, "\n".join([*others_before, *now, *others_after]).encode())
    shown = _words_of_choices(_choices(root, options))
    notes.append(f"records {shown} in {config}, so the next update takes them again")
    return True


def _words_of_choices(choices: Mapping[str, Any]) -> str:
    """Return options as they are typed."""
    words: list[str] = []
    for name, value in choices.items():
        words.append(f"--{name}")
        if isinstance(value, str):
            words.append(shlex.quote(value))
    return " ".join(words)


def _is_of_choices(line: str) -> bool:
    """Return whether a line of a configuration is one that :func:`lines_of_choices` wrote."""
    if line.rstrip("\r") in (_CHOICES, _NO_CHOICES):
        return True
    choice = _CHOICE.match(line)
    if choice is None:
        return False
    with suppress(ValueError):
        json.loads(choice[2])
        return True
    return False  # a comment that somebody wrote


def with_earlier_choices(options: InitOptions, notes: list[str]) -> InitOptions:
    """Return the options of an update with those that the configuration records and the user has
    not typed, and note them.
    """
    config = Path(options.out)
    text = _text_of(config)
    taken: dict[str, Any] = {}
    for name, shown in _CHOICE.findall(text):
        key = name.replace("-", "_")
        try:
            value = json.loads(shown)
        except ValueError:
            continue  # a comment that somebody wrote
        is_of_option = isinstance(value, bool if key == "labelled_only" else str)
        if is_of_option and value and not getattr(options, key):
            taken[key] = value
    if not taken:
        return options
    words = _words_of_choices({key.replace("_", "-"): value for key, value in taken.items()})
    notes.append(f"takes {words} of the earlier init, from {config}")
    return replace(options, **taken)


def note_on_no_record(options: InitOptions) -> str:
    """Return what a user should know of a configuration of an earlier version, which does not say
    which options its init was given; empty for another, and where the user types some of them.
    """
    if options.images or options.labels or options.labelled_only:
        return ""
    config = Path(options.out)
    text = _text_of(config)
    if _CHOICE.search(text) or _NO_CHOICES in text:
        return ""
    return (
        f"{config} does not record whether its init was given --images, --labels or "
        "--labelled-only, so if it was, give them again with --update"
    )


def _text_of(config: Path) -> str:
    """Return the text of a configuration."""
    with reading(f"configuration {config}", "a YAML file in UTF-8"):
        return read_text(config)


def with_earlier_splits(
    root: Path,
    pairs: Sequence[Pair],
    before: Sequence[FrameRow],
    config: Path,
    notes: list[str],
    *,
    keep_labels: bool = True,
) -> tuple[list[Pair], Counter[str]]:
    """Return pairs with the splits of an earlier list, and the number of new frames by split. A new
    frame gets the split of its folder.

    A folder that the list does not name, or whose frames are in several splits, trains.

    Args:
        root: the folder of the data.
        pairs: what was found there.
        before: the earlier list.
        config: the configuration.
        notes: get lines.
        keep_labels: keep labels that somebody wrote into the list in place of those that are found.
    """
    frame_of = {one_spelling(frame.image): frame for frame in before}
    split_of_folder = _splits_of_folders(before)
    updated: list[Pair] = []
    kept_labels: list[Path] = []
    added: Counter[str] = Counter()
    for pair in pairs:
        image = one_spelling(pair.image.as_posix())
        earlier = frame_of.pop(image, None)
        if earlier is None:
            split = split_of_folder.get(os.path.dirname(image), "train")
            added[split] += 1
            updated.append(replace(pair, split=split))
            continue
        label = pair.label
        if keep_labels and _is_label_of_user(root, earlier, pair):
            label = Path(earlier.label)
            kept_labels.append(label)
        updated.append(replace(pair, split=earlier.split, label=label))
    # These say that splits were held out or found, which the earlier list overrules.
    notes[:] = [note for note in notes if not note.startswith("holds out ")]
    notes += _notes_on_added(added, len(updated), config)
    if kept_labels:
        notes.append(
            f"keeps {counted(len(kept_labels), 'label')} of the list of frames where another one "
            f"is found by its name, the first is {kept_labels[0]}; with --labels typed, those "
            "found are taken"
        )
    notes += _notes_on_missing(root, [frame.image for frame in frame_of.values()])
    return updated, added


def _splits_of_folders(frames: Iterable[FrameRow]) -> dict[str, str]:
    """Return the split of each folder whose frames are all in one split."""
    splits: dict[str, set[str]] = {}
    for frame in frames:
        folder = os.path.dirname(one_spelling(frame.image))
        splits.setdefault(folder, set()).add(frame.split)
    return {folder: min(names) for folder, names in splits.items() if len(names) == 1}


def _notes_on_added(added: Counter[str], total: int, config: Path) -> Iterator[str]:
    """Yield which frames are new, and what has to be done so that they count.

    Args:
        added: the number of new frames by split.
        total: the number of frames of the updated list.
        config: the configuration, whose newest model names its methods.
    """
    if not added:
        yield f"no new frames; all {total} keep the split that the list of frames gives them"
        return
    shown = ", ".join(f"{count} {split}" for split, count in added.items())
    yield f"new frames: {shown}; the {total - added.total()} others keep their split"
    yield f"to use the new frames: {steps_with(added, _methods_made(config))}"


def _is_label_of_user(root: Path, earlier: FrameRow, found: Pair) -> bool:
    """Return whether an earlier list has another label than the one found, and it is there."""
    if one_spelling(earlier.label) == one_spelling(found.label.as_posix()):
        return False
    return (root / earlier.label).is_file()


def _notes_on_missing(root: Path, images: Iterable[str]) -> Iterator[str]:
    """Yield what became of images of an earlier list that an update does not take."""
    there: list[str] = []
    gone: list[str] = []
    for image in images:
        of_kind = there if (root / image).exists() else gone
        of_kind.append(image)
    if gone:
        frames = counted(len(gone), "frame")
        yield f"{frames} of the earlier list have no image any more, the first is {gone[0]}"
    if there:
        frames = counted(len(there), "frame")
        yield (
            f"{frames} of the earlier list are left out although their images are there, the first "
            f"is {there[0]}: --images and --labels do not name them. To take them again, give "
            "patterns that do"
        )


def steps_with(added: Mapping[str, int], made: Sequence[str] = ()) -> str:
    """Return what has to be done again so that new frames of some splits count.

    Args:
        added: the number of new frames by split.
        made: the methods that made the model, in the order in which they build on each other; empty
            if nothing records them, which names the usual ones.
    """
    steps = []
    if added.get("train"):
        steps.append("train again, with the options that you gave before (history.json has them)")
        methods = in_words(made or ("abnn", "features", *CALIBRATIONS))
        as_made = "" if made else ", as far as you made them"
        steps.append(f"finetune again, in this order{as_made}: {methods}")
    elif added.get("val"):
        fitted: Sequence[str] = CALIBRATIONS
        if made:
            fitted = [method for method in made if method in CALIBRATIONS]
        if fitted:
            steps.append(f"fit {in_words(fitted)} again")
    if added.get("train") or added.get("val"):
        steps.append("predict the calibration frames and find thresholds again")
    steps.append("evaluate again")
    return ", then ".join(steps)


def in_words(methods: Sequence[str]) -> str:
    """Return the methods of ``segunc finetune`` as a list in a sentence."""
    names = [_METHOD_IN_WORDS.get(method, method) for method in methods]
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _methods_made(config: Path) -> list[str]:
    """Return the methods that made the newest model with a configuration in :data:`RUNS`, in the
    order in which they build on each other; none if no model was fine-tuned.
    """
    model = _newest_model(config)
    if model is None:
        return []
    made: list[str] = []
    for words in model.commands:
        if words[:2] == ["segunc", "finetune"]:
            named = [value for flag, value in pairwise(words) if flag == "--method"]
            made += named or ["abnn"]
    fitted = [method for method in ("features", *CALIBRATIONS) if method in made]
    posteriors = [method for method in made if method not in fitted]
    return [*dict.fromkeys(posteriors), *fitted]


def step_after_update(config: Path, added: Mapping[str, int], notes: list[str]) -> str:
    """Return the command that comes after an update, and note what it has of earlier ones.

    Args:
        config: the configuration.
        added: the number of new frames by split. New frames of other splits than ``train`` need no
            training.
        notes: get a line.
    """
    if added and not added.get("train"):
        model = _newest_model(config)
        if model is not None:
            notes.append(
                f"the command below is for {model.folder}, the newest model in {RUNS} with this "
                "configuration"
            )
        if added.get("val"):
            return _fit_again(config, model)
        return _evaluation(config, model)
    earlier = _earlier_training(config)
    if earlier is not None:
        where = str(earlier.folder)
        if earlier.is_of_base:
            where = f"the training that made the base of {earlier.folder}"
        notes.append(
            f"the command below has the options of {where}, the newest training in {RUNS} with "
            "this configuration"
        )
    if not added:
        notes.append(
            "if you moved frames into or out of train, or removed some there, train again with the "
            "command below; if you moved or removed frames of other splits alone, "
            f"{steps_with({'val': 1}, _methods_made(config))}; otherwise the frames need nothing"
        )
    notes.append(
        "a training is not continued with other frames, so the next one writes a new folder"
    )
    return _training_with_new_frames(config, earlier)


@dataclass(frozen=True)
class _RecordedModel:
    """A model folder and the commands that made it.

    Attributes:
        folder: the model folder.
        commands: the words of each, in their order.
        date: of the last command, in UTC.
    """

    folder: Path
    commands: Sequence[Sequence[str]]
    date: str

    def fits(self) -> list[Sequence[str]]:
        """Return the last command of each calibration, in the order of :data:`CALIBRATIONS`."""
        command_of: dict[str, Sequence[str]] = {}
        for words in self.commands:
            for flag, value in pairwise(words):
                if words[:2] == ["segunc", "finetune"] and flag == "--method":
                    command_of[value] = words
        return [command_of[method] for method in CALIBRATIONS if method in command_of]


def _newest_model(config: Path) -> _RecordedModel | None:
    """Return the newest model with a configuration in :data:`RUNS`: one that was fine-tuned if
    there is any, else one that was trained. None if there is neither.
    """
    from segunc.training.config import HISTORY, recorded_commands

    models: list[_RecordedModel] = []
    for record in sorted(Path(RUNS).glob(f"*/{HISTORY}")):
        with suppress(ValueError):  # a damaged record names no model
            entries = recorded_commands(record.parent)
            commands = [_words_of(entry["command"]) for entry in entries]
            if any(_has_config(words, config) for words in commands):
                date = entries[-1].get("date", "")
                models.append(_RecordedModel(record.parent, commands, date))

    def newest_fine_tuned(model: _RecordedModel) -> tuple[bool, str]:
        return model.commands[-1][:2] == ["segunc", "finetune"], model.date

    return max(models, key=newest_fine_tuned, default=None)


def _fit_again(config: Path, model: _RecordedModel | None) -> str:
    """Return the commands that fit a model again on its validation frames: those that are recorded,
    or a temperature; of a network that was only trained, its evaluation.
    """
    if model is not None and model.fits():
        return " && ".join(shlex.join(words) for words in model.fits())
    if model is not None and model.commands[-1][:2] != ["segunc", "finetune"]:
        return _evaluation(config, model)
    folder = "MODEL" if model is None else str(model.folder)
    words = ["--config", str(config), "--method", "temperature", "--base", folder, "--out", folder]
    return f"segunc finetune {shlex.join(words)}"


def free_result() -> str:
    """Return the name of a result that no file in the working directory has."""
    return str(_free_path(Path("metrics.json")))


def _free_path(wanted: Path) -> Path:
    """Return a path, or where something is there already the first free one with a number."""
    path = wanted
    number = 2
    while path.exists():
        path = wanted.with_stem(f"{wanted.stem}-{number}")
        number += 1
    return path


def _evaluation(config: Path, model: _RecordedModel | None) -> str:
    """Return the command that evaluates a model."""
    folder = "MODEL" if model is None else str(model.folder)
    words = ["--config", str(config), "--model", folder, "--out", free_result()]
    return f"segunc evaluate {shlex.join(words)}"


@dataclass(frozen=True)
class _EarlierTraining:
    """A training that a model folder records.

    Attributes:
        folder: the model folder.
        words: the words of its command after ``segunc train``.
        date: when it ended, in UTC.
        is_of_base: whether the model folder was made of the trained network by later commands.
    """

    folder: Path
    words: Sequence[str]
    date: str
    is_of_base: bool


def _earlier_training(config: Path) -> _EarlierTraining | None:
    """Return the newest training with a configuration that a folder in ``runs`` records; None if
    there is none.

    The commands that ``init`` proposes write there. Other folders would have to be searched for.
    """
    from segunc.training.config import HISTORY, recorded_commands

    trainings: list[_EarlierTraining] = []
    runs = Path(RUNS)
    for record in sorted([*runs.glob(f"*/{HISTORY}"), *runs.glob(f"*/seed-*/{HISTORY}")]):
        with suppress(ValueError):  # a damaged record names no training
            commands = recorded_commands(record.parent)
            for entry in commands[:1]:
                words = _words_of(entry["command"])
                training = _EarlierTraining(
                    folder=record.parent,
                    words=words[2:],
                    date=entry.get("date", ""),
                    is_of_base=len(commands) > 1 and not _writes_to(words, record.parent),
                )
                if words[:2] == ["segunc", "train"] and _has_config(training.words, config):
                    trainings.append(training)

    def newest_of_its_own(training: _EarlierTraining) -> tuple[str, bool]:
        return training.date, not training.is_of_base

    return max(trainings, key=newest_of_its_own, default=None)


def _writes_to(words: Sequence[str], folder: Path) -> bool:
    """Return whether a command writes a model folder, or one of several seeds there."""
    folders = (folder.resolve(), folder.parent.resolve())
    return any(
        flag == "--out" and Path(value).resolve() in folders for flag, value in pairwise(words)
    )


def _words_of(command: str) -> list[str]:
    """Return the words of a command, in which ``--name=value`` is two words."""
    words = []
    for word in shlex.split(command):
        if word.startswith("--"):
            name, *value = word.split("=", 1)
            words += [name, *value]
        else:
            words.append(word)
    return words


def _has_config(words: Sequence[str], config: Path) -> bool:
    """Return whether a command names a configuration."""
    return any(
        flag == "--config" and Path(value).resolve() == config.resolve()
        for flag, value in pairwise(words)
    )


def _training_with_new_frames(config: Path, earlier: _EarlierTraining | None) -> str:
    """Return the command of a training after an update, with the options of an earlier one, into a
    folder that is not there yet.
    """
    first = Path(RUNS, "base")
    out = first
    if earlier is not None or first.exists():
        out = _free_path(Path(RUNS, "updated"))
    words = ["--config", str(config), "--out", str(out)]
    if earlier is not None:
        words = list(earlier.words)
        words[words.index("--config") + 1] = str(config)
        words[words.index("--out") + 1] = str(out)
    return f"segunc train {shlex.join(words)}"
