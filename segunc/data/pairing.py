"""Which label belongs to which image of a folder.

One rule of names and one of folders hold for all pairs; they are found once over the whole set.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from segunc.core.errors import InputError
from segunc.core.files import frame_order
from segunc.core.terminal import counted
from segunc.data.images import label_rank
from segunc.data.names import (
    CLASS_WORDS,
    KIND_SHARE,
    OTHER_WORDS,
    NameRule,
    folder_words,
    name_rules,
    split_of,
    words_of,
)

CONSTANT_SHARE = 0.9
"""A folder name that this share of the images, or of the labels, has tells no frames apart."""

Signature = Callable[[Path], tuple[str, ...]]
"""Returns the words of a label's folders that tell its kind from other kinds."""


class Key(NamedTuple):
    """What an image has in common with its label."""

    split: str
    places: tuple[str, ...]
    """The folders that tell frames apart."""
    core: str
    """What the names share."""

    def without_places(self) -> Key:
        """Return the key of the name alone."""
        return self._replace(places=())


@dataclass(frozen=True)
class Pair:
    """An image and its label, relative to the folder.

    The split is empty if no folder names it.
    """

    split: str
    image: Path
    label: Path


@dataclass
class LabelKind:
    """Labels that are named and placed by one rule, at most one for an image."""

    signature: tuple[str, ...]
    """Words of the folders that tell this kind from others."""
    rule: NameRule
    label_of: dict[Path, Path] = field(default_factory=dict)
    """The label of each image that has one."""
    rivals: dict[Path, list[Path]] = field(default_factory=dict)
    """The labels of each image that has several."""

    @property
    def example(self) -> Path:
        """The first label of the kind."""
        return next(iter(self.label_of.values()))

    def rank(self, root: Path) -> tuple[int, int, bool]:
        """Return how little a kind looks like class labels.

        The words of a kind decide, then whether it is in colour, then an ending of its names.
        """
        words = {*self.signature, *words_of(self.rule.label_part)}
        if words & OTHER_WORDS:
            by_words = 2
        elif words & CLASS_WORDS:
            by_words = 0
        else:
            by_words = 1
        return by_words, label_rank(root / self.example), bool(self.rule.label_part)


def find_kinds(
    root: Path, images: Sequence[Path], labels: Sequence[Path], *, named: bool = False
) -> list[LabelKind]:
    """Return the kinds of labels, each with the label of each image that has one.

    Args:
        root: the folder that both lie in.
        images: paths relative to it.
        labels: paths relative to it, of one or several kinds.
        named: whether the user named both images and labels.

    Raises:
        InputError: no label has the name of an image, or a name fits several.
    """
    image_names = {path.stem for path in images}
    label_names = {path.stem for path in labels}
    rules = name_rules(image_names, label_names, named=named)
    by_rule = _labels_by_rule(rules, images, labels)
    kinds = _find_kinds(by_rule, images, _roles)
    if any(kind.rivals for kind in kinds):
        # Other folders may tell the kinds apart, as v1.2/labels and v2.0/labels do.
        kinds = _find_kinds(by_rule, images, _roles_and_places(images))
    for kind in kinds:
        for rivals in kind.rivals.values():
            raise _several_labels(rivals, "--labels names the folder or a pattern of the labels")
    if not kinds:
        example = images[0] if images else "none"
        hint = "give each label the name of its image"
        if not named:
            hint += ", or say which files are which, e.g. --images '*_rgb.*' --labels '*_mask.*'"
        raise InputError(
            f"no label in {root} has the name of one image alone, e.g. {labels[0]} and {example}",
            hint=hint,
        )
    largest = max(len(kind.label_of) for kind in kinds)
    return [kind for kind in kinds if len(kind.label_of) >= KIND_SHARE * largest]


def labels_by_name(images: Sequence[Path], labels: Sequence[Path]) -> list[Path]:
    """Return the labels whose names follow from those of images by a rule, wherever they lie.

    Args:
        images: the images that may have labels.
        labels: the files that may be labels; all of them where they fit images of two kinds.
    """
    try:
        rules = name_rules({path.stem for path in images}, {path.stem for path in labels})
    except InputError:
        return list(labels)
    paired: list[Path] = []
    for of_rule in _labels_by_rule(rules, images, labels).values():
        paired += of_rule
    return paired


def _roles(label: Path) -> tuple[str, ...]:
    """Return the words of a label's folders that say which kind of file it is."""
    return folder_words(label)[1]


def _roles_and_places(images: Sequence[Path]) -> Signature:
    """Return a signature of these words, and of the folders that no image has."""
    image_places: set[str] = set()
    for image in images:
        image_places.update(folder_words(image)[0])

    def signature(label: Path) -> tuple[str, ...]:
        places, roles = folder_words(label)
        of_labels_alone = [place for place in places if place not in image_places]
        return (*roles, *of_labels_alone)

    return signature


def _several_labels(labels: Sequence[Path], hint: str) -> InputError:
    some = ", ".join(path.as_posix() for path in labels[:3])
    return InputError(f"an image has {counted(len(labels), 'label')}: {some}", hint=hint)


def _labels_by_rule(
    rules: Sequence[NameRule], images: Sequence[Path], labels: Sequence[Path]
) -> dict[NameRule, list[Path]]:
    """Return the labels of each rule by which they have the name of an image.

    Of several rules, the one that cuts least off a name counts.
    """
    cautious_first = sorted(rules, key=lambda rule: len(rule.label_part))
    image_cores: set[str | None] = set()
    for rule in rules:
        image_cores.update(rule.image_core(path.stem) for path in images)
    image_cores.discard(None)
    by_rule: dict[NameRule, list[Path]] = defaultdict(list)
    for path in sorted(labels, key=lambda path: frame_order(path.as_posix())):
        for rule in cautious_first:
            if rule.label_core(path.stem) in image_cores:
                by_rule[rule].append(path)
                break
    return by_rule


def _find_kinds(
    by_rule: Mapping[NameRule, Sequence[Path]], images: Sequence[Path], signature: Signature
) -> list[LabelKind]:
    """Return the kinds of labels that ``signature`` tells apart and that belong to any image."""
    labels_of_kind: dict[tuple[NameRule, tuple[str, ...]], list[Path]] = defaultdict(list)
    for rule, labels in by_rule.items():
        for path in labels:
            labels_of_kind[rule, signature(path)].append(path)
    kinds: list[LabelKind] = []
    for (rule, words), labels in labels_of_kind.items():
        kind = LabelKind(words, rule)
        for image, labels_of_image in Pairing(rule, images, labels).labels_by_image().items():
            kind.label_of[image] = labels_of_image[0]
            if len(labels_of_image) > 1:
                kind.rivals[image] = labels_of_image
        if kind.label_of:
            kinds.append(kind)
    return kinds


class Pairing:
    """Pairs images and labels whose names follow one rule."""

    def __init__(self, rule: NameRule, images: Sequence[Path], labels: Sequence[Path]) -> None:
        images_tell = any(split_of(path) for path in images)
        splits_tell = images_tell and any(split_of(path) for path in labels)
        self._image_keys = _keys(images, labels, rule.image_core, with_split=splits_tell)
        self._label_keys = _keys(labels, images, rule.label_core, with_split=splits_tell)

    def labels_by_image(self) -> dict[Path, list[Path]]:
        """Return the labels of each image that has any.

        Either all are paired by name and folders, or, if that pairs less than half as many, all by
        name alone.

        Raises:
            InputError: a label fits several images.
        """
        by_folders = self._by_folders()
        by_name = self._by_name()
        images_of_label = by_folders if 2 * len(by_folders) >= len(by_name) else by_name
        labels: dict[Path, list[Path]] = defaultdict(list)
        for label, images in images_of_label.items():
            if len(images) > 1:
                raise InputError(
                    f"label {label} fits the images {images[0]} and {images[1]}",
                    hint="--images names the folder or a pattern of the images",
                )
            labels[images[0]].append(label)
        return labels

    def _by_folders(self) -> dict[Path, list[Path]]:
        """Return the images with the name and the folders of each label that has any."""
        return _by_key(self._image_keys, self._label_keys)

    def _by_name(self) -> dict[Path, list[Path]]:
        """Return the images with the name of each label that has any.

        A label in the folder of another drive belongs to no image, so names alone count only where
        images or labels have no folders.
        """
        images_are_flat = all(not key.places for key in self._image_keys.values())
        image_keys = {path: key.without_places() for path, key in self._image_keys.items()}
        label_keys: dict[Path, Key] = {}
        for path, key in self._label_keys.items():
            if images_are_flat or not key.places:
                label_keys[path] = key.without_places()
        return _by_key(image_keys, label_keys)


def _keys(
    paths: Sequence[Path],
    others: Sequence[Path],
    core_of: Callable[[str], str | None],
    *,
    with_split: bool,
) -> dict[Path, Key]:
    """Return by what each image is known to its label, or the other way round.

    Folders that nearly all ``paths`` have and none of the ``others`` are left out, since they are
    part of the layout.
    """
    constant = _constant_places(paths, others)
    keys: dict[Path, Key] = {}
    for path in paths:
        core = core_of(path.stem)
        if core is None:
            continue
        split = split_of(path) if with_split else ""
        places = tuple(place for place in folder_words(path)[0] if place not in constant)
        keys[path] = Key(split, places, core)
    return keys


def _constant_places(paths: Sequence[Path], others: Sequence[Path]) -> set[str]:
    """Return the folders that nearly all ``paths`` have and none of the ``others``."""
    counts: Counter[str] = Counter()
    for path in paths:
        counts.update(set(folder_words(path)[0]))
    of_others: set[str] = set()
    for path in others:
        of_others.update(folder_words(path)[0])
    least = CONSTANT_SHARE * len(paths)
    return {place for place, count in counts.items() if count >= least and place not in of_others}


def _by_key(images: Mapping[Path, Key], labels: Mapping[Path, Key]) -> dict[Path, list[Path]]:
    """Return the images with the key of each label that has any."""
    images_of_key: dict[Key, list[Path]] = defaultdict(list)
    for path, key in images.items():
        images_of_key[key].append(path)
    return {label: images_of_key[key] for label, key in labels.items() if key in images_of_key}


def choose_kind(root: Path, kinds: Sequence[LabelKind], notes: list[str]) -> LabelKind:
    """Return the kind of labels that looks most like class labels, and note the choice.

    Raises:
        InputError: two kinds look alike; the hint names one of them.
    """
    ranks = [kind.rank(root) for kind in kinds]
    best = [kind for kind, rank in zip(kinds, ranks, strict=True) if rank == min(ranks)]
    pattern = pattern_of(best[0], kinds)
    merged = _merged(best)
    if merged is None:
        examples = _labels_of_one_image(best) or [kind.example for kind in best]
        raise _several_labels(
            examples, f"choose one kind by a folder or a pattern, e.g. --labels {pattern}"
        )
    if len(best) > 1:
        folders = " and ".join(kind.example.parent.as_posix() for kind in best)
        notes.append(f"takes the labels in folders such as {folders} as one kind")
    elif len(kinds) > 1:
        notes.append(
            f"takes the labels {pattern} of {len(kinds)} kinds; --labels PATTERN takes others"
        )
    return merged


def _labels_of_one_image(kinds: Sequence[LabelKind]) -> list[Path]:
    """Return the labels of the first image that several kinds label."""
    for image in kinds[0].label_of:
        labels = [kind.label_of[image] for kind in kinds if image in kind.label_of]
        if len(labels) > 1:
            return labels
    return []


def _merged(kinds: Sequence[LabelKind]) -> LabelKind | None:
    """Return one kind of all kinds whose names follow one rule.

    None if their rules differ, or if two of them label one image.
    """
    merged = LabelKind(kinds[0].signature, kinds[0].rule)
    for kind in kinds:
        if kind.rule != merged.rule or merged.label_of.keys() & kind.label_of.keys():
            return None
        merged.label_of |= kind.label_of
    return merged


def pattern_of(kind: LabelKind, kinds: Iterable[LabelKind]) -> str:
    """Return what ``--labels`` takes to choose a kind and none of the other ``kinds``.

    If nothing shorter does, that is the folder of its first label.
    """
    labels = set(kind.label_of.values())
    every_label = set(labels)
    for other in kinds:
        every_label.update(other.label_of.values())
    for pattern in _patterns(kind):
        chosen = {path for path in every_label if is_chosen(path, pattern)}
        if chosen == labels:
            return f"'{pattern}'" if "*" in pattern else pattern
    return kind.example.parent.as_posix()


def _patterns(kind: LabelKind) -> Iterator[str]:
    """Yield patterns that may choose a kind: folders, the shortest first, then an ending."""
    folders = kind.example.parts[:-1]
    for length in range(1, len(folders) + 1):
        for first in range(len(folders) - length + 1):
            yield "/".join(folders[first : first + length])
    if kind.rule.label_part:
        yield f"*{kind.rule.label_part}{kind.example.suffix}"


def is_chosen(path: Path, pattern: str) -> bool:
    """Return whether a path lies in a folder that a pattern names, or matches it as a glob pattern.

    The path is relative to the folder of the data. The folder of the pattern may be written from
    the top, or by its last names: ``SegmentationClass``, ``v2.0/labels``.
    """
    wanted = Path(pattern).parts
    folders = path.parts[:-1]
    for first in range(len(folders) - len(wanted) + 1):
        if folders[first : first + len(wanted)] == wanted:
            return True
    return path == Path(pattern) or path.match(pattern)


def lies_in_matching_folder(path: Path, pattern: str) -> bool:
    """Return whether a path lies in a folder that a glob pattern matches, such as
    ``drive_*/camera``.

    The path is relative to the folder of the data. The pattern may be written from the top, or by
    the last names of the folder.
    """
    wanted = Path(pattern).parts
    folders = path.parts[:-1]
    for first in range(len(folders) - len(wanted) + 1):
        names = folders[first : first + len(wanted)]
        if all(fnmatchcase(name, part) for name, part in zip(names, wanted, strict=True)):
            return True
    return False
