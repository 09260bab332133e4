"""Read data sets from a table: a YAML file that holds a few lines for each.

``data_sets.yaml`` beside this file is the table of the package. A user's own file has the same
lines. YAML is the language of the configurations, so nobody has to learn a second one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError, nearest, shortened
from segunc.core.files import read_text, reading
from segunc.core.yaml_text import parse_yaml
from segunc.data.entries import DatasetEntry
from segunc.data.frame_names import frame_stem
from segunc.data.labels import IGNORE, label_map
from segunc.data.layouts import Layout, Part
from segunc.data.masks import AnomalyEncoding

ENTRY_KEYS = (
    "title",
    "layouts",
    "splits",
    "labels",
    "encoding",
    "anomaly_classes",
    "masks",
    "recognised_by",
    "source",
    "licence",
    "rule",
)
LAYOUT_KEYS = ("images", "labels", "rename", "labelled_only")
SPLIT_KEYS = ("folders", "names", "left_out", "holds")
MASK_KEYS = ("normal", "anomaly", "ignored")
ENCODINGS = ("ids", "colours")
"""What published label files hold; files in the other form are read, too."""
HOLDS = ("anomaly", "no anomaly", "not only ignored")
"""What a split can ask of the labels of its frames."""
SEE = "docs/data-sets.md explains the lines of a table"
OWN_ENTRY = re.compile(r"(?P<file>.+\.ya?ml):(?P<name>[^:/\\]+)")
"""How a user names an entry of a table of their own: ``mine.yaml:NAME``."""


@dataclass(frozen=True)
class LabelStem:
    """What the name of a label shares with the name of its frame, see :func:`match_labels`.

    The ending of labels is replaced by that of images, and then each expression by its text.
    """

    image_ending: str
    label_ending: str
    rename: tuple[tuple[str, str], ...] = ()

    def __call__(self, label: str) -> str:
        name = label
        if self.label_ending and name.endswith(self.label_ending):
            name = name.removesuffix(self.label_ending) + self.image_ending
        if self.rename:
            name = name.removesuffix(self.image_ending)
            for expression, text in self.rename:
                name = re.sub(expression, text, name)
        return frame_stem(name)


@dataclass(frozen=True)
class HoldsAnomaly:
    """Whether a label with some raw values holds an anomaly class, or holds none."""

    labels: str
    """Name of the label map."""
    classes: tuple[str, ...]
    """Its anomaly classes."""
    wanted: bool
    """False for frames without any."""

    def __call__(self, values: frozenset[int]) -> bool:
        holds = not values.isdisjoint(self._anomaly_ids)
        return holds == self.wanted

    def with_labels(self, labels: str) -> HoldsAnomaly:
        """Return the rule for labels of another label map."""
        return replace(self, labels=labels)

    @cached_property  # The label map of a table is read once, and not on import.
    def _anomaly_ids(self) -> frozenset[int]:
        return label_map(self.labels).raw_ids(self.classes)


@dataclass(frozen=True)
class HoldsMore:
    """Whether a label with some raw values holds any value beside the ignored ones."""

    ignored: frozenset[int]

    def __call__(self, values: frozenset[int]) -> bool:
        return not values <= self.ignored

    def with_labels(self, labels: str) -> HoldsMore:
        """Return the rule for labels of another label map."""
        return HoldsMore(_ignored_ids(labels))


def _ignored_ids(labels: str) -> frozenset[int]:
    """Return the raw ids that a label map ignores."""
    train_ids = label_map(labels).raw_to_train
    return frozenset(raw for raw, train in train_ids.items() if train == IGNORE)


def read_table(path: Path) -> dict[str, DatasetEntry]:
    """Return the data sets of a table by their names, in the order of the file.

    Raises:
        InputError: the file is not such a table; the message names the entry and the key.
    """
    with reading(f"table of data sets {path}", "a YAML file in UTF-8", SEE):
        content = parse_yaml(read_text(path), hint=SEE)
    if not isinstance(content, dict) or not content:
        raise InputError(f"table of data sets {path} holds no data sets", hint=SEE)
    entries: dict[str, DatasetEntry] = {}
    for name, lines in content.items():
        where = f"{path}: data set '{name}'"
        entries[str(name)] = _entry(str(name), lines, where, path.parent)
    return entries


def own_entry(text: str) -> DatasetEntry | None:
    """Return the data set that ``mine.yaml:NAME`` means, None if a text is not of this form.

    Raises:
        InputError: the file is no table, or has no such entry.
    """
    match = OWN_ENTRY.fullmatch(text)
    if match is None:
        return None
    entries = read_table(Path(match["file"]))
    name = match["name"]
    if name not in entries:
        raise InputError(
            f"{match['file']} has no data set '{name}'{nearest(name, entries)}",
            hint=f"one of {', '.join(entries)}",
        )
    return entries[name]


def _entry(name: str, lines: Any, where: str, folder: Path) -> DatasetEntry:
    """Return the entry that some lines describe.

    Args:
        name: what the user writes.
        lines: the content of the entry.
        where: begins messages.
        folder: that of the table, which the path of an own label map is relative to.
    """
    keys = _keys(lines, ENTRY_KEYS, where, needed=("layouts", "splits"))
    labels = _optional_text(keys, "labels", where)
    if labels is not None and labels.endswith(".csv"):
        labels = str(folder / labels)
    masks = _masks(name, keys["masks"], where) if "masks" in keys else None
    if (labels is None) == (masks is None):
        amount = "neither labels nor masks" if labels is None else "both labels and masks"
        raise InputError(
            f"{where} has {amount}",
            hint="labels: LABEL_MAP for class labels, or masks: {normal: 0, anomaly: 1}",
        )
    anomaly_classes = _texts(keys.get("anomaly_classes", ()), f"{where}: anomaly_classes")
    if labels is None and anomaly_classes:
        raise InputError(f"{where} has anomaly_classes, but no labels", hint=SEE)
    encoding = _optional_text(keys, "encoding", where) or ENCODINGS[0]
    if encoding not in ENCODINGS:
        raise InputError(
            f"{where}: encoding '{encoding}' is none", hint=f"one of {', '.join(ENCODINGS)}"
        )
    rules = _Rules(labels, anomaly_classes, masks)
    splits = _splits(keys["splits"], f"{where}: splits")
    if not isinstance(keys["layouts"], list) or not keys["layouts"]:
        raise InputError(f"{where}: layouts is not a list of images and labels", hint=SEE)
    layouts: list[Layout] = []
    for number, layout in enumerate(keys["layouts"], start=1):
        layouts.append(_layout(layout, splits, rules, f"{where}: layout {number}"))
    return DatasetEntry(
        name=name,
        layouts=tuple(layouts),
        labels=labels,
        encoding=encoding,
        anomaly_classes=anomaly_classes,
        anomaly_masks=masks,
        title=_optional_text(keys, "title", where) or name,
        recognised_by=_texts(keys.get("recognised_by", ()), f"{where}: recognised_by"),
        source=_optional_text(keys, "source", where) or "see the table that names it",
        licence=_optional_text(keys, "licence", where) or "see the source",
        rule=_optional_text(keys, "rule", where) or "",
    )


@dataclass(frozen=True)
class _Rules:
    """What decides which frames a split takes by their labels."""

    labels: str | None
    anomaly_classes: tuple[str, ...]
    masks: AnomalyEncoding | None

    def holds(self, text: str, where: str) -> HoldsAnomaly | HoldsMore:
        """Return the rule of a text of :data:`HOLDS`."""
        if text == "not only ignored":
            return HoldsMore(self._ignored())
        if self.labels is None or not self.anomaly_classes:
            raise InputError(f"{where}: holds {text}, but there are no anomaly_classes", hint=SEE)
        return HoldsAnomaly(self.labels, self.anomaly_classes, wanted=text == "anomaly")

    def _ignored(self) -> frozenset[int]:
        if self.masks is not None:
            return self.masks.ignored
        assert self.labels is not None
        return _ignored_ids(self.labels)


@dataclass(frozen=True)
class _Split:
    """The lines of a split."""

    folders: tuple[str, ...] = ("",)
    """The words of each part of it, with spaces between."""
    names: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    holds: str | None = None
    has_prefix: bool = False
    """Whether names of frames begin with the words of their part."""


def _splits(lines: Any, where: str) -> dict[str, _Split]:
    """Return the splits that a list of names, or a mapping of names to folders, describes."""
    if isinstance(lines, list):
        return {name: _Split(folders=(name,)) for name in _texts(lines, where)}
    if not isinstance(lines, dict) or not lines:
        raise InputError(f"{where} names no split", hint="splits: [train, val]")
    splits: dict[str, _Split] = {}
    for name, content in lines.items():
        splits[str(name)] = _split(content, f"{where}: {name}")
    return splits


def _split(content: Any, where: str) -> _Split:
    """Return a split of a folder, of a list of folders, or of keys."""
    if not isinstance(content, dict):
        content = {"folders": content}
    keys = _keys(content, SPLIT_KEYS, where)
    folders = keys.get("folders", "")
    holds = _optional_text(keys, "holds", where)
    if holds is not None and holds not in HOLDS:
        raise InputError(f"{where}: holds '{holds}' is no rule", hint=f"one of {', '.join(HOLDS)}")
    return _Split(
        folders=_texts(folders, f"{where}: folders"),
        names=_texts(keys.get("names", ()), f"{where}: names"),
        left_out=_texts(keys.get("left_out", ()), f"{where}: left_out"),
        holds=holds,
        has_prefix=isinstance(folders, list),
    )


def _layout(lines: Any, splits: Mapping[str, _Split], rules: _Rules, where: str) -> Layout:
    """Return a layout whose patterns are ``FOLDER/*ENDING``."""
    keys = _keys(lines, LAYOUT_KEYS, where, needed=("images", "labels"))
    image_folder, image_ending = _pattern(keys["images"], f"{where}: images")
    label_folder, label_ending = _pattern(keys["labels"], f"{where}: labels")
    rename = _rename(keys.get("rename", {}), f"{where}: rename")
    parts: dict[str, tuple[Part, ...]] = {}
    for name, split in splits.items():
        holds = None if split.holds is None else rules.holds(split.holds, where)
        of_split: list[Part] = []
        for folder in split.folders:
            part = Part(
                images=_filled(image_folder, folder, where),
                labels=_filled(label_folder, folder, where),
                prefix=f"{folder.replace(' ', '/')}/" if split.has_prefix else "",
                holds=holds,
                label_map=None if holds is None else rules.labels,
                names=split.names,
                left_out=split.left_out,
            )
            of_split.append(part)
        parts[name] = tuple(of_split)
    return Layout(
        splits=parts,
        image_ending=image_ending,
        label_ending=label_ending,
        label_stem=LabelStem(image_ending, label_ending, rename),
        labelled_only=_truth_value(keys.get("labelled_only", False), f"{where}: labelled_only"),
    )


def _pattern(value: Any, where: str) -> tuple[str, str]:
    """Return folder and ending of a pattern ``FOLDER/*ENDING``."""
    folder, slash, ending = _text(value, where).rpartition("/*")
    if not slash or "*" in ending or "/" in ending or folder.startswith("/") or ".." in folder:
        raise InputError(
            f"{where}: '{shortened(str(value))}' is not FOLDER/*ENDING without a suffix",
            hint='for instance images: "images/{}/*_rgb", where {} stands for the split',
        )
    return folder, ending


def _filled(folder: str, words: str, where: str) -> str:
    """Return a folder with the words of a split in the place of its ``{}``."""
    try:
        return folder.format(*words.split(" "))
    except (IndexError, KeyError, ValueError) as error:
        raise InputError(
            f"{where}: the folder {folder} has more places {{}} than '{words}' has words",
            hint="give the split a word for each place, e.g. train: train training",
        ) from error


def _rename(value: Any, where: str) -> tuple[tuple[str, str], ...]:
    """Return pairs of a regular expression and the text that replaces what it finds."""
    if not isinstance(value, dict):
        raise InputError(f"{where} is not {{EXPRESSION: TEXT}}", hint=SEE)
    pairs: list[tuple[str, str]] = []
    for expression, text in value.items():
        try:
            re.sub(str(expression), str(text), "")
        except re.error as error:
            raise InputError(
                f"{where}: '{expression}' is not a regular expression ({error})", hint=SEE
            ) from error
        pairs.append((str(expression), str(text)))
    return tuple(pairs)


def _masks(name: str, value: Any, where: str) -> AnomalyEncoding:
    """Return what the values of masks mean."""
    keys = _keys(value, MASK_KEYS, f"{where}: masks", needed=("normal", "anomaly"))
    values = {key: _values(keys.get(key, []), f"{where}: masks: {key}") for key in MASK_KEYS}
    for first, second in (("normal", "anomaly"), ("normal", "ignored"), ("anomaly", "ignored")):
        both = values[first] & values[second]
        if both:
            raise InputError(
                f"{where}: the value {min(both)} of masks is {first} and {second}",
                hint="give each value one meaning",
            )
    return AnomalyEncoding(name, values["normal"], values["anomaly"], values["ignored"])


def _values(value: Any, where: str) -> frozenset[int]:
    """Return the values that numbers and ranges such as ``2-200`` name."""
    items = value if isinstance(value, list) else [value]
    named: set[int] = set()
    for item in items:
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", str(item))
        first = int(match[1]) if match else -1
        last = int(match[2] or match[1]) if match else -1
        if isinstance(item, bool) or not 0 <= first <= last <= 255:
            raise InputError(f"{where}: {item!r} is not a value", hint="0 to 255, or a range 2-200")
        named.update(range(first, last + 1))
    return frozenset(named)


def _keys(
    value: Any, allowed: Collection[str], where: str, needed: Collection[str] = ()
) -> dict[str, Any]:
    """Return keys and values, all of which are allowed and none of the needed ones missing."""
    if not isinstance(value, dict):
        raise InputError(
            f"{where} is {shortened(repr(value))}, not keys with values",
            hint=f"the keys are {', '.join(allowed)}",
        )
    for key in value:
        if key not in allowed:
            raise InputError(
                f"{where}: unknown key '{key}'{nearest(str(key), allowed)}",
                hint=f"the keys are {', '.join(allowed)}",
            )
    for key in needed:
        if key not in value:
            raise InputError(f"{where} has no key '{key}'", hint=SEE)
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(
            f"{where}: {shortened(repr(value))} is not a text", hint='write it in quotes: "..."'
        )
    return value


def _truth_value(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(
            f"{where}: {shortened(repr(value))} is no truth value", hint="write true or false"
        )
    return value


def _optional_text(keys: Mapping[str, Any], key: str, where: str) -> str | None:
    return _text(keys[key], f"{where}: {key}") if key in keys else None


def _texts(value: Any, where: str) -> tuple[str, ...]:
    """Return the texts of a list, or the one text."""
    items = value if isinstance(value, list | tuple) else [value]
    return tuple(_text(item, where) for item in items)
