"""Look at a folder of images and labels in any usual layout: which label belongs to which image,
which split to which pair, and which values or colours the labels hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from segunc.core.errors import InputError
from segunc.data.census import Census, Value, take_census
from segunc.data.image_files import image_files
from segunc.data.images import Colour, label_rank
from segunc.data.labels import IGNORE, LabelMap
from segunc.data.names import begins_as_label, is_named_as_label, split_of
from segunc.data.pairing import (
    LabelKind,
    Pair,
    choose_kind,
    find_kinds,
    is_chosen,
)
from segunc.data.splits import Divider, followed_lists, read_lists, with_splits

PAIRS_PICTURE = "pairs.jpg"  # ending of the picture that init writes beside a configuration
FRAMES_LIST = "frames.csv"  # ending of the list of frames, likewise


@dataclass
class Found:
    """What a folder holds."""

    root: Path
    pairs: list[Pair]
    census: Census = field(default_factory=Census)  # of the labels that were looked at
    notes: list[str] = field(default_factory=list)  # what was assumed or left out, each a sentence

    @property
    def pixels(self) -> Counter[Value]:
        """The pixels of each id or colour."""
        return self.census.pixels

    @property
    def kind(self) -> str:
        """What the labels hold: ids or colours."""
        return self.census.kind

    @property
    def palette(self) -> dict[int, Colour]:
        """The colours of ids that a palette has."""
        return self.census.palette

    @property
    def looked_at(self) -> int:
        """The number of labels that were looked at."""
        return self.census.looked_at

    def counts(self) -> Counter[str]:
        """Return the number of pairs of each split."""
        return Counter(pair.split for pair in self.pairs)


def discover(
    root: Path,
    images: str | None = None,
    labels: str | None = None,
    *,
    labelled_only: bool = False,
    label_map: LabelMap | None = None,
    allow_mixed: bool = False,
) -> Found:
    """Return the pairs, the splits and the label values of a folder.

    Args:
        root: the folder.
        images, labels: folder or pattern of the images and of the labels below it, as of
            :class:`segunc.options.InitOptions`.
        labelled_only: leave images without a label out.
        label_map: what the labels mean, where that is known.
        allow_mixed: take masks of 0 and 1 beside masks of 0 and 255 as they are.

    Raises:
        InputError: there are no images or labels, images without a label or with several, or labels
            of two kinds or of too many values.
    """
    files = [path.relative_to(root) for path in image_files(root) if not is_pairs_picture(path)]
    if not files:
        raise InputError(
            f"{root} holds no images", hint="name the folder that holds images and labels"
        )
    found = Found(root, [])
    label_files = _chosen(root, files, labels, "--labels") or _label_files(root, files, found)
    image_list = _chosen(root, files, images, "--images") or _images(files, label_files)
    kinds = find_kinds(root, image_list, label_files)
    kind = choose_kind(root, kinds, found.notes)
    pairs = [
        Pair(split_of(image) or split_of(label), image, label)
        for image, label in kind.label_of.items()
    ]
    candidates = read_lists(root, image_list, files)
    lists = followed_lists(candidates, kind.label_of, found.notes)
    if lists:
        pairs = with_splits(pairs, lists, found.notes)
        image_list = list(lists.split_of)
    else:
        pairs, image_list = _in_splits(found, pairs, image_list)
    _check_missing(found, pairs, image_list, kinds, labelled_only=labelled_only)
    _note_alone(found, pairs, label_files, kinds)
    found.census = take_census(root, pairs, allow_mixed=allow_mixed)
    pairs = _with_classes(found, pairs, label_map)
    found.pairs = Divider(root, kind.rule.image_part, found.notes).divide(pairs)
    return found


def is_pairs_picture(path: Path) -> bool:
    """Return whether an image is the picture of pairs that ``segunc init`` wrote, beside the list
    of frames that it wrote with it."""
    stem, ending, rest = path.name.rpartition(f"-{PAIRS_PICTURE}")
    return bool(ending) and not rest and path.with_name(f"{stem}-{FRAMES_LIST}").exists()


def _chosen(root: Path, files: Sequence[Path], pattern: str | None, flag: str) -> list[Path]:
    if pattern is None:
        return []
    below = Path(pattern)
    if below.is_absolute() or (not (root / below).exists() and below.exists()):
        below = below.resolve()
        below = below.relative_to(root.resolve()) if below.is_relative_to(root.resolve()) else below
    chosen = [path for path in files if path.is_relative_to(below)]
    chosen = chosen or [path for path in files if is_chosen(path, str(below))]
    if not chosen:
        fact = f"{flag} {pattern} matches no image file in {root}"
        raise InputError(fact, hint="a folder or a pattern below it, e.g. masks or *_L.png")
    return chosen


def _images(files: Sequence[Path], labels: Sequence[Path]) -> list[Path]:
    """Return the files that are no labels; those that are named as labels of another kind are no
    images, either.
    """
    taken = set(labels)
    others = [path for path in files if path not in taken]
    return [path for path in others if not is_named_as_label(path)] or others


def _label_files(root: Path, files: Sequence[Path], found: Found) -> list[Path]:
    """Return the files that are labels by their names, or else by what they hold."""
    ranks = {path: label_rank(root / path) for path in files}
    for is_named in (is_named_as_label, begins_as_label):
        labels = [path for path in files if is_named(path)]
        if labels and len(labels) < len(files):
            # Photographs may lie among the labels.
            return [path for path in labels if ranks[path] < 2] or labels
    labels = [path for path in files if ranks[path] < 2]
    if labels and len(labels) < len(files):
        found.notes.append(
            f"assumes that the {len(labels)} PNG files are labels and the photographs are images"
        )
        return labels
    lack = f"{root} holds {len(files)} images, but no file or folder is named as labels"
    raise InputError(
        f"{lack} (such as labels, masks or NAME_label.png)",
        hint="--labels FOLDER names the folder of the labels",
    )


def _in_splits(
    found: Found, pairs: list[Pair], images: Sequence[Path]
) -> tuple[list[Pair], list[Path]]:
    """Return the pairs and the images of the splits that hold labels, where folders name splits,
    and note the others.
    """
    left_out: set[Path] = set()
    outside = [pair for pair in pairs if not pair.split]
    if outside and len(outside) < len(pairs):
        note = f"leaves out {len(outside)} pairs outside of the folders train, val and test"
        example = f"the first is {outside[0].image}"
        found.notes.append(f"{note}, {example}; --images and --labels choose others")
        left_out |= {pair.image for pair in outside}
        pairs = [pair for pair in pairs if pair.split]
    labelled = {pair.split for pair in pairs}
    paired = {pair.image for pair in pairs}
    without_label = [path for path in images if path not in paired | left_out]
    closed = [path for path in without_label if split_of(path) not in labelled]
    if closed:
        splits = sorted({split_of(path) or "folders that name no split" for path in closed})
        found.notes.append(
            f"leaves out {len(closed)} images of {' and '.join(splits)}, where none has a label"
        )
    left_out |= set(closed)
    return pairs, [path for path in images if path not in left_out]


def _check_missing(
    found: Found,
    pairs: Sequence[Pair],
    images: Sequence[Path],
    kinds: Sequence[LabelKind],
    *,
    labelled_only: bool,
) -> None:
    """Raise InputError for images without a label of the chosen kind, or note them where they are
    left out.
    """
    paired = {pair.image for pair in pairs}
    missing = [path for path in images if path not in paired]
    if not missing:
        return
    others = [kind.label_of[path] for path in missing for kind in kinds if path in kind.label_of]
    other_kind = f"; {len(others)} have one of another kind, such as {others[0]}" if others else ""
    if not labelled_only:
        some = ", ".join(str(path) for path in missing[:3])
        share = f"{len(missing)} of {len(pairs) + len(missing)} images in {found.root}"
        raise InputError(
            f"{share} have no label, the first are {some}{other_kind}",
            hint="--labelled-only leaves them out; --images names the images, if these are none",
        )
    found.notes.append(
        f"leaves out {len(missing)} images without a label, the first is {missing[0]}{other_kind}"
    )


def _note_alone(
    found: Found, pairs: Sequence[Pair], labels: Sequence[Path], kinds: Sequence[LabelKind]
) -> None:
    """Note the labels that belong to no image."""
    paired = {pair.label for pair in pairs}
    for kind in kinds:
        paired |= set(kind.label_of.values())
    alone = [path for path in labels if path not in paired]
    if alone:
        found.notes.append(
            f"leaves out {len(alone)} labels without an image, the first is {alone[0]}"
        )


def _with_classes(found: Found, pairs: list[Pair], labels: LabelMap | None) -> list[Pair]:
    """Return the pairs of the splits whose labels hold a class: published test labels may be
    dummies. Without a label map a split whose labels hold few of the values is noted alone.
    """
    train = found.census.values_of("train")
    kept = pairs
    for split in dict.fromkeys(pair.split for pair in pairs):
        values = found.census.values_of(split)
        if labels is not None and not _holds_class(values, labels):
            of_split = [pair for pair in kept if pair.split == split]
            if len(of_split) == len(kept):
                continue
            found.notes.append(
                f"leaves out {len(of_split)} pairs of {split or 'no split'}, whose labels hold no class "
                f"of label map {labels.name}: dummies, as of a published test set"
            )
            kept = [pair for pair in kept if pair.split != split]
        elif labels is None and split != "train" and 0 < 2 * len(values) < len(train):
            found.notes.append(
                f"the labels of {split} hold {len(values)} of the {len(train)} values of train: "
                f"where they are dummies, remove the lines of {split} from the list of frames"
            )
    return kept


def _holds_class(values: Collection[Value], labels: LabelMap) -> bool:
    """Return whether any id or colour is a class of a label map, or is unknown to it, which is
    another fault than a dummy's.
    """
    colours = labels.colours or {}
    for value in values:
        raw = value if isinstance(value, int) else colours.get(value, -1)
        if labels.raw_to_train.get(raw, 0) != IGNORE:
            return True
    return False
