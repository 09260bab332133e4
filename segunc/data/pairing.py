"""Which label belongs to which image of a folder: one rule of names and one of folders for all
pairs, found once over the whole set.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.files import frame_order
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
"""Share of the images, or of the labels, that lie in a folder of one name, from which on the folder
tells no frames apart.
"""

Signature = Callable[[Path], tuple[str, ...]]
Key = tuple[str, tuple[str, ...], str]  # split, folders that tell frames apart, name


@dataclass(frozen=True)
class Pair:
    """An image and its label, relative to the folder, and the split they belong to (empty: no
    folder says so).
    """

    split: str
    image: Path
    label: Path


@dataclass
class LabelKind:
    """Labels that are named and placed by one rule, at most one for an image."""

    signature: tuple[str, ...]  # words of the folders that tell this kind from others
    rule: NameRule
    label_of: dict[Path, Path] = field(default_factory=dict)  # by image
    rivals: dict[Path, list[Path]] = field(default_factory=dict)  # labels of an image with several

    @property
    def example(self) -> Path:
        """The first label of the kind."""
        return next(iter(self.label_of.values()))

    def rank(self, root: Path) -> tuple[int, int, bool]:
        """Return how little a kind looks like class labels: by its words, by whether it is in
        colour, and by an ending of its names.
        """
        words = {*self.signature, *words_of(self.rule.label_part)}
        if words & OTHER_WORDS:
            by_words = 2
        elif words & CLASS_WORDS:
            by_words = 0
        else:
            by_words = 1
        return by_words, label_rank(root / self.example), bool(self.rule.label_part)


def find_kinds(root: Path, images: Sequence[Path], labels: Sequence[Path]) -> list[LabelKind]:
    """Return the kinds of labels, each with the label of each image that has one.

    Args:
        root: the folder that both lie in.
        images: paths relative to it.
        labels: paths relative to it, of one or several kinds.

    Raises:
        InputError: no label has the name of an image, or a name fits several.
    """
    rules = name_rules({path.stem for path in images}, {path.stem for path in labels})
    by_rule = _by_rule(rules, images, labels)
    kinds = _match(by_rule, images, lambda path: folder_words(path)[1])
    if any(kind.rivals for kind in kinds):  # as in v1.2/labels and v2.0/labels
        image_places = {place for path in images for place in folder_words(path)[0]}

        def signature(path: Path) -> tuple[str, ...]:
            places, roles = folder_words(path)
            of_labels_alone = [place for place in places if place not in image_places]
            return (*roles, *of_labels_alone)

        kinds = _match(by_rule, images, signature)
    for kind in kinds:
        for rivals in kind.rivals.values():
            raise _several_labels(rivals, "--labels names the folder or a pattern of the labels")
    if not kinds:
        example = f"e.g. {labels[0]} and {images[0] if images else 'none'}"
        raise InputError(
            f"no label in {root} has the name of one image alone, {example}",
            hint="--images and --labels name the folders or patterns; or name labels as images",
        )
    most = max(len(kind.label_of) for kind in kinds)
    return [kind for kind in kinds if len(kind.label_of) >= KIND_SHARE * most]


def _several_labels(labels: Sequence[Path], hint: str) -> InputError:
    some = ", ".join(path.as_posix() for path in labels[:3])
    return InputError(f"an image has {len(labels)} labels: {some}", hint=hint)


def _by_rule(
    rules: Sequence[NameRule], images: Sequence[Path], labels: Sequence[Path]
) -> dict[NameRule, list[Path]]:
    """Return the labels of each rule by which they have the name of an image; what is cut off a
    name is as little as possible.
    """
    cautious_first = sorted(rules, key=lambda rule: len(rule.label_part))
    image_cores = {rule.image_core(path.stem) for rule in rules for path in images} - {None}
    by_rule: dict[NameRule, list[Path]] = defaultdict(list)
    for path in sorted(labels, key=lambda path: frame_order(path.as_posix())):
        for rule in cautious_first:
            if rule.label_core(path.stem) in image_cores:
                by_rule[rule].append(path)
                break
    return by_rule


def _match(
    by_rule: dict[NameRule, list[Path]], images: Sequence[Path], signature: Signature
) -> list[LabelKind]:
    """Return the kinds of labels that ``signature`` tells apart and that belong to any image."""
    groups: dict[tuple[NameRule, tuple[str, ...]], list[Path]] = defaultdict(list)
    for rule, labels in by_rule.items():
        for path in labels:
            groups[rule, signature(path)].append(path)
    kinds: list[LabelKind] = []
    for (rule, words), labels in groups.items():
        kind = LabelKind(words, rule)
        for image, of_image in _labels_of_images(rule, images, labels).items():
            kind.label_of[image] = of_image[0]
            if len(of_image) > 1:
                kind.rivals[image] = of_image
        if kind.label_of:
            kinds.append(kind)
    return kinds


def _labels_of_images(
    rule: NameRule, images: Sequence[Path], labels: Sequence[Path]
) -> dict[Path, list[Path]]:
    """Return the labels of each image that has any, either all by name and folders, or all by name
    alone.
    """
    splits_tell = any(map(split_of, images)) and any(map(split_of, labels))
    image_keys = _keys(images, labels, rule.image_core, with_split=splits_tell)
    label_keys = _keys(labels, images, rule.label_core, with_split=splits_tell)
    by_folders = _claims(image_keys, label_keys)
    flat_images = all(not places for _, places, _ in image_keys.values())
    # A label in the folder of another drive is no image's: names alone count where one side has no
    # folders.
    by_name = _claims(
        {path: (split, (), core) for path, (split, _, core) in image_keys.items()},
        {
            path: (split, (), core)
            for path, (split, places, core) in label_keys.items()
            if flat_images or not places
        },
    )
    chosen = by_folders if 2 * len(by_folders) >= len(by_name) else by_name
    claimed: dict[Path, list[Path]] = defaultdict(list)
    for label, claimants in chosen.items():
        if len(claimants) > 1:
            raise InputError(
                f"label {label} fits the images {claimants[0]} and {claimants[1]}",
                hint="--images names the folder or a pattern of the images",
            )
        claimed[claimants[0]].append(label)
    return claimed


def _keys(
    paths: Sequence[Path],
    others: Sequence[Path],
    core_of: Callable[[str], str | None],
    *,
    with_split: bool,
) -> dict[Path, Key]:
    """Return by what each image is known to its label, or the other way round: folders that nearly
    all ``paths`` have and none of the ``others`` are left out, since they are part of the layout.
    """
    places = {path: folder_words(path)[0] for path in paths}
    of_others = {place for path in others for place in folder_words(path)[0]}
    counts = Counter(place for own in places.values() for place in set(own))
    constant = {
        place
        for place, count in counts.items()
        if count >= CONSTANT_SHARE * len(paths) and place not in of_others
    }
    keys: dict[Path, Key] = {}
    for path in paths:
        core = core_of(path.stem)
        if core is not None:
            kept = tuple(place for place in places[path] if place not in constant)
            keys[path] = (split_of(path) if with_split else "", kept, core)
    return keys


def _claims(images: dict[Path, Key], labels: dict[Path, Key]) -> dict[Path, list[Path]]:
    """Return the images with the key of each label that has any."""
    by_key: dict[Key, list[Path]] = defaultdict(list)
    for path, key in images.items():
        by_key[key].append(path)
    return {label: by_key[key] for label, key in labels.items() if key in by_key}


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
    """Return one kind of all whose names follow one rule and that label no image twice; None where
    that is not so.
    """
    merged = LabelKind(kinds[0].signature, kinds[0].rule)
    for kind in kinds:
        if kind.rule != merged.rule or merged.label_of.keys() & kind.label_of.keys():
            return None
        merged.label_of |= kind.label_of
    return merged


def pattern_of(kind: LabelKind, kinds: Iterable[LabelKind]) -> str:
    """Return what ``--labels`` takes to choose a kind and none of the other ``kinds``; the folder
    of its first label where nothing shorter does.
    """
    labels = set(kind.label_of.values())
    every_label = {path for other in kinds for path in other.label_of.values()} | labels
    for pattern in _patterns(kind):
        if {path for path in every_label if is_chosen(path, pattern)} == labels:
            return f"'{pattern}'" if "*" in pattern else pattern
    return kind.example.parent.as_posix()


def _patterns(kind: LabelKind) -> Iterator[str]:
    folders = kind.example.parts[:-1]
    for length in range(1, len(folders) + 1):
        for first in range(len(folders) - length + 1):
            yield "/".join(folders[first : first + length])
    if kind.rule.label_part:
        yield f"*{kind.rule.label_part}{kind.example.suffix}"


def is_chosen(path: Path, pattern: str) -> bool:
    """Return whether a path relative to the folder lies in a folder that a pattern names, or
    matches it as a glob pattern. The folder may be written from the top, or by its last names:
    ``SegmentationClass``, ``v2.0/labels``.
    """
    wanted = Path(pattern).parts
    folders = path.parts[:-1]
    for first in range(len(folders) - len(wanted) + 1):
        if folders[first : first + len(wanted)] == wanted:
            return True
    return path == Path(pattern) or path.match(pattern)
