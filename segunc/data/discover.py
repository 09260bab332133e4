"""Look at a folder of images and labels in any usual layout.

It is found which label belongs to which image, which split to which pair, and which values or
colours the labels hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.terminal import counted
from segunc.data.census import Census, Value, take_census
from segunc.data.image_files import check_names, image_files, is_image_file
from segunc.data.images import Colour, label_rank
from segunc.data.labels import IGNORE, LabelMap
from segunc.data.names import begins_as_label, is_named_as_label, split_of
from segunc.data.pairing import (
    LabelKind,
    Pair,
    choose_kind,
    find_kinds,
    is_chosen,
    lies_in_matching_folder,
)
from segunc.data.splits import Divider, followed_lists, read_lists, with_splits

PAIRS_PICTURE = "pairs.jpg"
"""Ending of the picture that ``segunc init`` writes beside a configuration."""
FRAMES_LIST = "frames.csv"
"""Ending of the list of frames that it writes there."""


class NoLabelsError(InputError):
    """No file of a folder is a label, by its name or by what it holds."""


@dataclass
class Found:
    """What a folder holds."""

    root: Path
    pairs: list[Pair]
    census: Census = field(default_factory=Census)
    """Of the labels that were looked at."""
    notes: list[str] = field(default_factory=list)
    """What was assumed or left out, each a sentence."""

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
    is_output_folder: Callable[[Path], bool] = lambda folder: False,
) -> Found:
    """Return the pairs, the splits and the label values of a folder.

    Args:
        root: the folder.
        images, labels: folder or pattern of the images and of the labels below it, as of
            :class:`segunc.options.InitOptions`.
        labelled_only: leave images without a label out.
        label_map: what the labels mean, where that is known.
        allow_mixed: take masks of 0 and 1 beside masks of 0 and 255 as they are.
        is_output_folder: whether a command of this package made a folder, such as one of maps. The
            files in it are neither images nor labels, unless ``images`` or ``labels`` names them.

    Raises:
        InputError: there are no images or labels, images without a label or with several, or labels
            of two kinds or of too many values.
    """
    all_files = [path.relative_to(root) for path in image_files(root) if not is_pairs_picture(path)]
    found = Found(root, [])
    files = _without_outputs(found, all_files, is_output_folder)
    check_names(root / path for path in files)
    if not files and not (images and labels):
        raise InputError(
            f"{root} holds no images", hint="name the folder that holds images and labels"
        )
    if labels is None:
        label_files = _label_files(root, files, found)
    else:
        label_files = _chosen(root, files, all_files, labels, "--labels")
    if images is None:
        image_list = _images(files, label_files)
    else:
        image_list = _chosen(root, files, all_files, images, "--images")
    both_named = images is not None and labels is not None
    kinds = find_kinds(root, image_list, label_files, named=both_named)
    kind = choose_kind(root, kinds, found.notes)
    pairs: list[Pair] = []
    for image, label in kind.label_of.items():
        pairs.append(Pair(split_of(image) or split_of(label), image, label))
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


def labels_beside(root: Path) -> Path | None:
    """Return the first folder beside a folder that is named as labels and holds image files, or the
    folder itself if it is named so and other image files lie beside it; None if there is none.

    Its path begins as that of the folder does: ``drive/labels`` for ``drive/camera``.
    """
    parent = root.parent
    if root.name in ("", ".."):  # of . and of a path that ends in ..
        parent = root / ".."
    try:
        siblings = sorted(path for path in parent.iterdir() if not path.samefile(root))
    except OSError:  # a folder that nobody may list, or a broken link
        return None
    of_labels: list[Path] = []
    others: list[Path] = []
    for sibling in siblings:
        if any(is_image_file(path) for path in sibling.rglob("*")):
            is_named = is_named_as_label(Path(sibling.name, "file"))
            (of_labels if is_named else others).append(sibling)
    own_name = root.resolve().name
    if others and is_named_as_label(Path(own_name, "file")):
        return parent / own_name
    return of_labels[0] if of_labels else None


def is_pairs_picture(path: Path) -> bool:
    """Return whether an image is the picture of pairs that ``segunc init`` wrote.

    The list of frames that it wrote with the picture lies beside it.
    """
    stem, ending, rest = path.name.rpartition(f"-{PAIRS_PICTURE}")
    return bool(ending) and not rest and path.with_name(f"{stem}-{FRAMES_LIST}").exists()


def _without_outputs(
    found: Found, files: Sequence[Path], is_output_folder: Callable[[Path], bool]
) -> list[Path]:
    """Return the files that lie in no folder that a command of this package made, and note the
    others.

    The folder of the data itself is never passed over.
    """
    output_of_folder: dict[Path, Path | None] = {Path(): None}

    def output_of(folder: Path) -> Path | None:
        """Return the outermost output folder that holds a folder, or is it; None if none does."""
        if folder not in output_of_folder:
            output = output_of(folder.parent)
            if output is None and is_output_folder(found.root / folder):
                output = folder
            output_of_folder[folder] = output
        return output_of_folder[folder]

    kept = [path for path in files if output_of(path.parent) is None]
    outputs = sorted({output for output in output_of_folder.values() if output is not None})
    if outputs:
        number = counted(len(outputs), "folder")
        first = "" if len(outputs) == 1 else "the first is "
        found.notes.append(
            f"passes over {number} that segunc made, {first}{outputs[0]}; --images and --labels "
            "name files there"
        )
    return kept


def _chosen(
    root: Path, files: Sequence[Path], all_files: Sequence[Path], pattern: str, flag: str
) -> list[Path]:
    """Return the files that an option names by a folder or a pattern.

    Those of ``all_files`` that are not among ``files`` count only if nothing else is named.
    """
    below = path_below(root, Path(pattern))
    chosen: list[Path] = []
    for candidates in (files, all_files):
        if not chosen:
            chosen = [path for path in candidates if path.is_relative_to(below)]
        if not chosen:
            chosen = [path for path in candidates if is_chosen(path, str(below))]
        if not chosen:
            chosen = [path for path in candidates if lies_in_matching_folder(path, str(below))]
    if not chosen:
        raise InputError(
            f"{flag} {pattern} matches no image file in {root}",
            hint="a folder or a pattern below it, e.g. masks or *_L.png",
        )
    return chosen


def path_below(root: Path, path: Path) -> Path:
    """Return a path or a pattern that a user typed relative to the root, if it leads below the
    root.
    """
    is_below_root = not path.is_absolute() and ((root / path).exists() or not path.exists())
    if is_below_root:
        return path
    whole = path.resolve()
    if whole.is_relative_to(root.resolve()):
        return whole.relative_to(root.resolve())
    return whole


def _images(files: Sequence[Path], labels: Sequence[Path]) -> list[Path]:
    """Return the files that are not labels.

    Files that are named as labels of another kind are not images, either.
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
    raise NoLabelsError(
        f"{root} holds {counted(len(files), 'image')}, but no file or folder is named as labels "
        "(such as labels, masks or NAME_label.png)",
        hint="--labels FOLDER names the folder of the labels",
    )


def _in_splits(
    found: Found, pairs: list[Pair], images: Sequence[Path]
) -> tuple[list[Pair], list[Path]]:
    """Return the pairs and the images of the splits that hold labels, where folders name splits.

    The others are left out and noted.
    """
    inside = [pair for pair in pairs if pair.split]
    outside = [pair for pair in pairs if not pair.split]
    left_out: set[Path] = set()
    if inside and outside:
        found.notes.append(
            f"leaves out {counted(len(outside), 'pair')} outside of the folders train, val and "
            f"test, the first is {outside[0].image}; --images and --labels choose others"
        )
        left_out.update(pair.image for pair in outside)
        pairs = inside
    unlabelled = _in_unlabelled_splits(pairs, [path for path in images if path not in left_out])
    if unlabelled:
        splits = sorted({split_of(path) or "folders that name no split" for path in unlabelled})
        found.notes.append(
            f"leaves out {counted(len(unlabelled), 'image')} of {' and '.join(splits)}, where "
            "none has a label"
        )
        left_out.update(unlabelled)
    return pairs, [path for path in images if path not in left_out]


def _in_unlabelled_splits(pairs: Sequence[Pair], images: Sequence[Path]) -> list[Path]:
    """Return the images of splits that have no pair."""
    labelled_splits = {pair.split for pair in pairs}
    paired = {pair.image for pair in pairs}
    without_label = [path for path in images if path not in paired]
    return [path for path in without_label if split_of(path) not in labelled_splits]


def _check_missing(
    found: Found,
    pairs: Sequence[Pair],
    images: Sequence[Path],
    kinds: Sequence[LabelKind],
    *,
    labelled_only: bool,
) -> None:
    """Raise InputError for images without a label of the chosen kind.

    With ``labelled_only`` they are left out and noted.
    """
    paired = {pair.image for pair in pairs}
    missing = [path for path in images if path not in paired]
    if not missing:
        return
    of_other_kinds = _labels_of(missing, kinds)
    other_kind = ""
    if of_other_kinds:
        other_kind = (
            f"; {len(of_other_kinds)} have one of another kind, such as {of_other_kinds[0]}"
        )
    if not labelled_only:
        total = len(pairs) + len(missing)
        first = ", ".join(str(path) for path in missing[:3])
        raise InputError(
            f"{len(missing)} of {total} images in {found.root} have no label, "
            f"the first are {first}{other_kind}",
            hint="--labelled-only leaves them out; --images names the images, if these are none",
        )
    found.notes.append(
        f"leaves out {counted(len(missing), 'image')} without a label, the first is "
        f"{missing[0]}{other_kind}"
    )


def _labels_of(images: Sequence[Path], kinds: Sequence[LabelKind]) -> list[Path]:
    """Return the labels of all kinds that images have."""
    labels: list[Path] = []
    for image in images:
        labels += [kind.label_of[image] for kind in kinds if image in kind.label_of]
    return labels


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
            f"leaves out {counted(len(alone), 'label')} without an image, the first is {alone[0]}"
        )


def _with_classes(found: Found, pairs: list[Pair], labels: LabelMap | None) -> list[Pair]:
    """Return the pairs of the splits whose labels hold a class.

    Published labels of test frames may be dummies. Without a label map, a split whose labels hold
    few of the values of train is only noted.
    """
    splits = dict.fromkeys(pair.split for pair in pairs)
    if labels is None:
        _note_few_values(found, splits)
        return pairs
    kept = pairs
    for split in splits:
        if _holds_class(found.census.values_of(split), labels):
            continue
        others = [pair for pair in kept if pair.split != split]
        if not others:
            continue
        found.notes.append(
            f"leaves out {counted(len(kept) - len(others), 'pair')} of {split or 'no split'}, "
            f"whose labels hold no class of label map {labels.name}: dummies, as of a published "
            "test set"
        )
        kept = others
    return kept


def _note_few_values(found: Found, splits: Iterable[str]) -> None:
    """Note the splits whose labels hold fewer than half of the values of train."""
    train = found.census.values_of("train")
    for split in splits:
        values = found.census.values_of(split)
        if split != "train" and 0 < 2 * len(values) < len(train):
            found.notes.append(
                f"the labels of {split} hold {len(values)} of the {len(train)} values of train: "
                f"where they are dummies, remove the lines of {split} from the list of frames"
            )


def _holds_class(values: Collection[Value], labels: LabelMap) -> bool:
    """Return whether any id or colour is a class of a label map, or is unknown to it.

    An unknown value is another fault than that of a dummy.
    """
    colours = labels.colours or {}
    for value in values:
        raw = value if isinstance(value, int) else colours.get(value, -1)
        if labels.raw_to_train.get(raw, 0) != IGNORE:
            return True
    return False
