"""Which frames train, validate and test: published lists of a data set, whole sequences held out,
and what splits have in common.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path, PurePosixPath

from segunc.core.errors import InputError
from segunc.core.files import file_sha256, frame_order, open_file, read_text, reading
from segunc.core.terminal import agreeing, counted
from segunc.data.frame_names import composed, frame_stem
from segunc.data.image_files import IMAGE_SUFFIXES, is_hidden
from segunc.data.names import SPLIT_WORDS, words_of
from segunc.data.pairing import Pair

SPLITS = ("train", "val", "test")
LIST_SUFFIXES = (".txt", ".lst")
FOLLOWED_SHARE = 0.5
"""Share of the lines of lists that must name a file of the folder, so that they are followed."""
VAL_SHARE = 0.15
"""Share of the training frames that validates, if nothing says which frames do."""
SHOWN_COPIES = 3
"""Copies of images that a note names."""
COMPARED_BYTES = 4096
"""Bytes of two files of one size that are compared before both are read as a whole."""
HOLDOUT_STEP = round(1 / VAL_SHARE)
"""If there are many sequences, one in so many validates."""


@dataclass(frozen=True)
class SplitList:
    """A file that names the frames of a split, one a line, each by its image or by image and
    label.
    """

    split: str
    path: Path
    """Relative to the folder of the data."""
    lines: tuple[tuple[str, ...], ...]
    """The whole text of each line; also image and label, if its two words may be these."""


@dataclass(frozen=True)
class Listed:
    """What the lists of a folder name, in files that exist."""

    folder: Path
    """Holds the lists; relative to the folder of the data."""
    lists: tuple[SplitList, ...]
    split_of: Mapping[Path, str]
    """The split of each image."""
    label_of: Mapping[Path, Path]
    """The label of each image, of the lines that name a label."""
    unknown: tuple[str, ...]
    """Lines whose image or label does not exist."""

    @property
    def names(self) -> str:
        """The names of the lists, in words."""
        return " and ".join(split_list.path.as_posix() for split_list in self.lists)


class FileNames:
    """Find files by what lists call them.

    A list may write a path from any folder above the file, with or without the suffix.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._by_name: dict[str, set[Path]] = defaultdict(set)
        for path in files:
            parts = composed(path.as_posix()).split("/")
            for first in range(len(parts)):
                name = "/".join(parts[first:])
                self._by_name[name].add(path)
                self._by_name[_without_suffix(name)].add(path)

    def find(self, name: str, leading: int = 0) -> Path | None:
        """Return the only file of a name, None if there is none, or several.

        ``leading`` folders of the name are left out.
        """
        parts = composed(name.replace("\\", "/")).strip("/").removeprefix("./").split("/")
        wanted = "/".join(parts[leading:])
        files = self._by_name.get(wanted) or self._by_name.get(_without_suffix(wanted)) or set()
        return next(iter(files)) if len(files) == 1 else None


def _without_suffix(name: str) -> str:
    suffix = PurePosixPath(name).suffix
    return name.removesuffix(suffix) if suffix.lower() in IMAGE_SUFFIXES else name


def find_lists(root: Path) -> list[list[SplitList]]:
    """Return the lists of splits below a folder, those of one folder together.

    They are called train.txt, val.txt, test.txt, or by usual other names.
    """
    by_folder: dict[Path, list[SplitList]] = defaultdict(list)
    for path in sorted(root.rglob("*")):
        split = SPLIT_WORDS.get(path.stem.lower())
        if split is None or path.suffix.lower() not in LIST_SUFFIXES:
            continue
        if path.is_file() and not is_hidden(path, root):
            relative = path.relative_to(root)
            by_folder[relative.parent].append(SplitList(split, relative, _lines(path)))
    return list(by_folder.values())


def _lines(path: Path) -> tuple[tuple[str, ...], ...]:
    """Return each line of a list as its whole text.

    If a line has two words, which could be image and label, these follow its text.
    """
    with reading(f"list of frames {path}", "a text in UTF-8", "save it so, or move it away"):
        text = read_text(path)
    lines: list[tuple[str, ...]] = []
    for line in text.splitlines():
        whole = line.strip()
        if not whole or whole.startswith("#"):
            continue
        words = re.split(r"[\t,; ]+", whole)
        if len(words) == 2:
            lines.append((whole, *words))
        else:
            lines.append((whole,))
    return tuple(lines)


def read_lists(root: Path, images: Sequence[Path], files: Sequence[Path]) -> list[Listed]:
    """Return what the lists of each folder below ``root`` name.

    Args:
        images: what a line that names one file may name, relative to ``root``.
        files: what a line of image and label may name, relative to ``root``.

    Raises:
        InputError: two lists of one folder name the same image.
    """
    image_names = FileNames(images)
    file_names = FileNames(files)
    return [_listed(lists, image_names, file_names) for lists in find_lists(root)]


def _listed(lists: Sequence[SplitList], images: FileNames, files: FileNames) -> Listed:
    """Return what the lists of one folder name."""
    leading = _leading_folders(lists, images, files)
    split_of: dict[Path, str] = {}
    label_of: dict[Path, Path] = {}
    unknown: list[str] = []
    for split_list in lists:
        for line in split_list.lines:
            named = _named_files(line, images, files, leading)
            if named is None:
                unknown.append(line[0])
                continue
            image, label = named
            first_split = split_of.setdefault(image, split_list.split)
            if first_split != split_list.split:
                raise InputError(
                    f"{image} is in {split_list.path} and in the list of {first_split}",
                    hint="take it out of one of the two lists",
                )
            if label is not None:
                label_of[image] = label
    return Listed(lists[0].path.parent, tuple(lists), split_of, label_of, tuple(unknown))


def _leading_folders(lists: Sequence[SplitList], images: FileNames, files: FileNames) -> int:
    """Return how many leading folders of the lines to leave out, so that most name a file.

    Lists may name files from a folder that does not exist here, such as /SegNet/CamVid.
    """
    lines: list[tuple[str, ...]] = []
    for split_list in lists:
        lines += split_list.lines
    best_leading = 0
    most_named = -1
    deepest = max((line[0].count("/") for line in lines), default=0)
    for leading in range(deepest + 1):
        named = [_named_files(line, images, files, leading) for line in lines]
        count = len(named) - named.count(None)
        if count > most_named:
            best_leading = leading
            most_named = count
    return best_leading


def _named_files(
    line: tuple[str, ...], images: FileNames, files: FileNames, leading: int
) -> tuple[Path, Path | None] | None:
    """Return the image that a line names, and its label if the line names one."""
    whole, *pair = line
    image = images.find(whole, leading)
    if image is not None:
        return image, None
    if not pair:
        return None
    image = files.find(pair[0], leading)
    label = files.find(pair[1], leading)
    if image is None or label is None:
        return None
    return image, label


def followed_lists(
    candidates: Sequence[Listed], labelled: Iterable[Path], notes: list[str]
) -> Listed | None:
    """Return the lists that say the splits of a folder, if any do, and note which.

    Args:
        candidates: what the lists of each folder name.
        labelled: images that have a label by their names.
        notes: what was assumed or left out; sentences are added.
    """
    has_label = set(labelled)

    def share(listed: Listed) -> float:
        """Return the share of the lines that name a labelled image."""
        useful = [
            image for image in listed.split_of if image in has_label or image in listed.label_of
        ]
        return len(useful) / max(1, len(listed.split_of) + len(listed.unknown))

    best = max(candidates, key=share, default=None)
    if best is None or share(best) < FOLLOWED_SHARE:
        for listed in candidates:
            lines = sum(len(split_list.lines) for split_list in listed.lists)
            notes.append(
                f"does not follow {listed.names}: {share(listed):.0%} of the {lines} lines "
                "name a labelled image"
            )
        return None
    notes.append(f"takes the splits from {best.names}")
    if best.unknown:
        notes.append(
            f"leaves out {counted(len(best.unknown), 'line')} of {best.names} whose files are "
            f"not there, the first is {best.unknown[0]}"
        )
    return best


def with_splits(pairs: Sequence[Pair], listed: Listed, notes: list[str]) -> list[Pair]:
    """Return the pairs that lists name, in their splits and with their labels.

    The pairs that no list names are noted.
    """
    by_image = {pair.image: pair for pair in pairs}
    kept: list[Pair] = []
    for image, split in listed.split_of.items():
        label = listed.label_of.get(image)
        if label is not None:
            kept.append(Pair(split, image, label))
        elif image in by_image:
            kept.append(replace(by_image[image], split=split))
    left_out = [pair for pair in pairs if pair.image not in listed.split_of]
    if left_out:
        notes.append(
            f"leaves out {counted(len(left_out), 'pair')} that {listed.names} do not name, "
            f"the first is {left_out[0].image}"
        )
    return kept


class Divider:
    """Divides pairs into splits, and looks whether splits share a sequence.

    Args:
        root: the folder of the data.
        image_part: what image names end in and labels do not, such as ``_windshield_vis``.
        notes: what was assumed; sentences are added.
    """

    def __init__(self, root: Path, image_part: str, notes: list[str]) -> None:
        self._root = root
        self._image_part = image_part
        self._notes = notes

    def divide(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Return the pairs, each in a split.

        If nothing says which frames validate, whole sequences of the training frames do.

        Raises:
            InputError: there is one frame to train on and none to validate.
        """
        pairs = [replace(pair, split=pair.split or "train") for pair in pairs]
        splits = {pair.split for pair in pairs}
        if "train" not in splits:
            names = " and ".join(sorted(splits))
            note = f"assumes that the split {names} is all there is, and trains on a part of it"
            self._notes.append(note)
            pairs = [replace(pair, split="train") for pair in pairs]
            splits = {"train"}
        if "val" not in splits:
            pairs = self._with_validation(pairs)
        else:
            self._notes += self._shared_sequences(pairs)
        return sorted(pairs, key=_by_split_and_number)

    def sequence(self, path: Path) -> str:
        """Return what the frames of one drive have in common.

        That is their folders, without words that name a split, and their name without its last
        number.
        """
        folders = [
            folder for folder in path.parts[:-1] if not SPLIT_WORDS.keys() >= set(words_of(folder))
        ]
        return "/".join([*folders, re.sub(r"\d+$", "", self._stem(path))])

    def _stem(self, path: Path) -> str:
        return frame_stem(path.stem.removesuffix(self._image_part))

    def _with_validation(self, pairs: Sequence[Pair]) -> list[Pair]:
        train = [pair for pair in pairs if pair.split == "train"]
        if len(train) < 2:
            raise InputError(
                f"{self._root} holds one labelled image to train on, and none to validate",
                hint="label at least one more",
            )
        held_out, which = self._held_out(train)
        self._notes.append(
            f"holds out {len(held_out)} of {len(train)} training frames to validate: {which}"
        )
        divided: list[Pair] = []
        for pair in pairs:
            if pair.image in held_out:
                divided.append(replace(pair, split="val"))
            else:
                divided.append(pair)
        return divided

    def _held_out(self, train: Sequence[Pair]) -> tuple[set[Path], str]:
        """Return the images of about :data:`VAL_SHARE` of the frames, and which these are in words.

        Whole sequences are held out, because neighbouring frames resemble one another.
        """
        ordered = sorted((pair.image for pair in train), key=self._by_sequence)
        sequences = [list(images) for _, images in groupby(ordered, self.sequence)]
        wanted = max(1, round(VAL_SHARE * len(train)))
        if len(sequences) == 1 or len(train) < 4:
            last = ordered[len(ordered) - wanted :]
            return set(last), "the last of the only sequence, by their numbers"
        if len(sequences) < 10:
            chosen = [min(sequences, key=lambda images: abs(len(images) - wanted))]
        else:
            chosen = sequences[HOLDOUT_STEP // 2 :: HOLDOUT_STEP]
        held_out: set[Path] = set()
        for images in chosen:
            held_out.update(images)
        names = ", ".join(self.sequence(images[0]) for images in chosen[:3])
        more = ", ..." if len(chosen) > 3 else ""
        return held_out, f"{len(chosen)} of {len(sequences)} sequences ({names}{more})"

    def _by_sequence(self, path: Path) -> tuple[object, object]:
        return frame_order(self.sequence(path)), frame_order(path.as_posix())

    def _shared_sequences(self, pairs: Sequence[Pair]) -> Iterator[str]:
        """Yield a note for frames that train and frames that do not, if they share a sequence."""
        # The last numbers of the frames, by split and sequence.
        numbers: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for pair in pairs:
            number = re.search(r"\d+$", self._stem(pair.image))
            if number:
                numbers[pair.split][self.sequence(pair.image)].append(int(number[0]))
        for split in SPLITS[1:]:
            shared: list[str] = []
            for name, frames in numbers[split].items():
                if _is_one_sequence(name, numbers["train"].get(name, []), frames):
                    shared.append(name)
            if shared:
                yield (
                    f"train and {split} have frames whose names differ in the last number alone, "
                    f"the first are {shared[0]}*: if these are of one drive, results on {split} "
                    "are too good"
                )


def _by_split_and_number(pair: Pair) -> tuple[int, object]:
    """Return what sorts pairs: train, val and test first, then splits that a user named."""
    rank = SPLITS.index(pair.split) if pair.split in SPLITS else len(SPLITS)
    return rank, frame_order(pair.image.as_posix())


def _is_one_sequence(name: str, train: Sequence[int], others: Sequence[int]) -> bool:
    """Return whether frames of two splits whose sequences have one name are of one sequence.

    Splits that number their frames each from the start have numbers in common. If one numbering was
    divided, there are none.

    Args:
        name: of the sequence.
        train: numbers of its frames that train.
        others: numbers of its frames of the other split.
    """
    if not train or set(train) & set(others):
        return False
    has_own_name = name != "" and not name.endswith("/")
    return has_own_name or (min(others) < max(train) and min(train) < max(others))


@dataclass(frozen=True)
class Copies:
    """Images that are byte for byte an earlier image, each with that image, in the order of their
    splits and names.
    """

    across: tuple[tuple[Pair, Pair], ...]
    """Copies of an image of another split."""
    within: tuple[tuple[Pair, Pair], ...]
    """Copies of an image of the same split."""

    def note_on_splits(self) -> str:
        """Return a sentence on copies in another split; empty if there is none."""
        if not self.across:
            return ""
        copy, original = self.across[0]
        images = counted(len(self.across), "image", "has")
        return (
            f"{images} the bytes of an image of another split, the first is {copy.image} "
            f"({copy.split}), as {original.image} ({original.split}): results on copies are too "
            "good; remove them, or give both one split in the list of frames"
        )

    def note_on_repeats(self) -> str:
        """Return a sentence on copies in the same split; empty if there is none."""
        if not self.within:
            return ""
        count = len(self.within)
        images = counted(count, "image", "has")
        return f"{images} the bytes of another image of the same split: {_shown(self.within)}"

    def note_on_new(self, new: Collection[Path]) -> str:
        """Return a sentence on new images that are copies of images in the same split; empty if
        there is none.
        """
        copies = [both for both in self.within if both[0].image in new]
        if not copies:
            return ""
        have = agreeing("has", len(copies))
        frames = counted(len(new), "new frame")
        return (
            f"{len(copies)} of the {frames} {have} the bytes of frames that are there already: "
            f"{_shown(copies)}"
        )


def _shown(copies: Sequence[tuple[Pair, Pair]]) -> str:
    """Return the first copies, each with its original, as text."""
    shown = [f"{copy.image} is {original.image}" for copy, original in copies[:SHOWN_COPIES]]
    if len(copies) > SHOWN_COPIES:
        shown.append("...")
    return ", ".join(shown)


def find_copies(root: Path, pairs: Iterable[Pair], new: Collection[Path] = ()) -> Copies:
    """Return the images that are copies of others.

    Only files that have their size and some bytes in common are read as a whole.

    Args:
        root: the folder of the data.
        pairs: images and labels, each with its split.
        new: images that came after the others, so that they are the copies.
    """

    def place(pair: Pair) -> tuple[bool, tuple[int, object]]:
        return pair.image in new, _by_split_and_number(pair)

    pairs_of_size: dict[int, list[Pair]] = defaultdict(list)
    for pair in sorted(pairs, key=place):
        pairs_of_size[(root / pair.image).stat().st_size].append(pair)
    across: list[tuple[Pair, Pair]] = []
    within: list[tuple[Pair, Pair]] = []
    for size, pairs_of_one_size in pairs_of_size.items():
        for alike in _alike(root, pairs_of_one_size, size):
            for originals, pair in _with_originals(root, alike):
                same_split = originals.get(pair.split)
                if same_split is not None:
                    within.append((pair, same_split))
                first = next(iter(originals.values()), pair)
                if first.split != pair.split:
                    across.append((pair, first))
    return Copies(
        across=tuple(sorted(across, key=lambda both: _by_split_and_number(both[0]))),
        within=tuple(sorted(within, key=lambda both: _by_split_and_number(both[0]))),
    )


def _alike(root: Path, pairs: Sequence[Pair], size: int) -> Iterator[list[Pair]]:
    """Yield those images of one size that have the bytes in the middle in common, because images
    without compression are all of one size.
    """
    if len(pairs) < 2:
        return
    pairs_of_bytes: dict[bytes, list[Pair]] = defaultdict(list)
    for pair in pairs:
        with open_file(root / pair.image) as file:
            file.seek(size // 2)
            pairs_of_bytes[file.read(COMPARED_BYTES)].append(pair)
    yield from (alike for alike in pairs_of_bytes.values() if len(alike) > 1)


def _with_originals(root: Path, pairs: Iterable[Pair]) -> Iterator[tuple[dict[str, Pair], Pair]]:
    """Yield each image with the earlier ones of its bytes: the first of each split."""
    originals_of_hash: dict[str, dict[str, Pair]] = defaultdict(dict)
    for pair in pairs:
        originals = originals_of_hash[file_sha256(root / pair.image)]
        yield dict(originals), pair
        originals.setdefault(pair.split, pair)
