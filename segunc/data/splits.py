"""Which frames train, validate and test: published lists of a data set, whole sequences held out,
and what splits have in common.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path, PurePosixPath

from segunc.core.errors import InputError
from segunc.core.files import frame_order, read_text, reading
from segunc.data.frame_names import composed, frame_stem
from segunc.data.image_files import IMAGE_SUFFIXES, is_hidden
from segunc.data.names import SPLIT_WORDS, words_of
from segunc.data.pairing import Pair

SPLITS = ("train", "val", "test")
LIST_SUFFIXES = (".txt", ".lst")
FOLLOWED_SHARE = (
    0.5  # of the lines of lists that must name a file of the folder, so that the lists are followed
)
VAL_SHARE = 0.15  # of the training frames, where nothing says which frames validate


@dataclass(frozen=True)
class SplitList:
    """A file that names the frames of a split, one a line, each by its image or by image
    and label.
    """

    split: str
    path: Path  # relative to the folder of the data
    lines: tuple[tuple[str, ...], ...]  # of each line the whole text, or image and label


@dataclass(frozen=True)
class Listed:
    """What the lists of a folder name, in files that are there."""

    folder: Path  # that holds the lists, relative to the folder of the data
    lists: tuple[SplitList, ...]
    split_of: Mapping[Path, str]  # by image
    label_of: Mapping[Path, Path]  # by image, of the lines that name a label
    unknown: tuple[str, ...]  # lines whose image or label is not there

    @property
    def names(self) -> str:
        """The names of the lists, in words."""
        return " and ".join(one.path.as_posix() for one in self.lists)


class FileNames:
    """Find files by what lists call them: a path from any folder above the file, with or without
    the suffix.
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
        """Return the only file of a name, without ``leading`` folders of it; None where there is
        none, or several.
        """
        parts = composed(name.replace("\\", "/")).strip("/").removeprefix("./").split("/")
        wanted = "/".join(parts[leading:])
        files = self._by_name.get(wanted) or self._by_name.get(_without_suffix(wanted)) or set()
        return next(iter(files)) if len(files) == 1 else None


def _without_suffix(name: str) -> str:
    suffix = PurePosixPath(name).suffix
    return name.removesuffix(suffix) if suffix.lower() in IMAGE_SUFFIXES else name


def find_lists(root: Path) -> list[list[SplitList]]:
    """Return the lists of splits below a folder, those of one folder together: train.txt, val.txt,
    test.txt, and usual other names.
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
    """Return each line as its whole text, or, where two words of it could be image and label, as
    these and the whole text.
    """
    with reading(f"list of frames {path}", "a text in UTF-8", "save it so, or move it away"):
        text = read_text(path)
    lines: list[tuple[str, ...]] = []
    for line in text.splitlines():
        whole = line.strip()
        if whole and not whole.startswith("#"):
            words = re.split(r"[\t,; ]+", whole)
            lines.append((whole, *words) if len(words) == 2 else (whole,))
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
    lines = [line for one in lists for line in one.lines]
    deepest = max((line[0].count("/") for line in lines), default=0)

    def found(leading: int) -> int:
        return sum(_named_files(line, images, files, leading) is not None for line in lines)

    # Lists may name files from a folder that is not here, such as /SegNet/CamVid.
    leading = max(range(deepest + 1), key=lambda count: (found(count), -count))
    split_of: dict[Path, str] = {}
    label_of: dict[Path, Path] = {}
    unknown: list[str] = []
    for one in lists:
        for line in one.lines:
            named = _named_files(line, images, files, leading)
            if named is None:
                unknown.append(line[0])
                continue
            image, label = named
            if split_of.setdefault(image, one.split) != one.split:
                raise InputError(
                    f"{image} is in {one.path} and in the list of {split_of[image]}",
                    hint="take it out of one of the two lists",
                )
            if label is not None:
                label_of[image] = label
    return Listed(lists[0].path.parent, tuple(lists), split_of, label_of, tuple(unknown))


def _named_files(
    line: tuple[str, ...], images: FileNames, files: FileNames, leading: int
) -> tuple[Path, Path | None] | None:
    """Return the image that a line names, and its label where it names one."""
    whole, *pair = line
    image = images.find(whole, leading)
    if image is not None:
        return image, None
    if not pair:
        return None
    image = files.find(pair[0], leading)
    label = files.find(pair[1], leading)
    return (image, label) if image is not None and label is not None else None


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
            lines = sum(len(one.lines) for one in listed.lists)
            notes.append(
                f"does not follow {listed.names}: {share(listed):.0%} of the {lines} lines name a labelled image"
            )
        return None
    notes.append(f"takes the splits from {best.names}")
    if best.unknown:
        notes.append(
            f"leaves out {len(best.unknown)} lines of {best.names} whose files are not there, "
            f"the first is {best.unknown[0]}"
        )
    return best


def with_splits(pairs: Sequence[Pair], listed: Listed, notes: list[str]) -> list[Pair]:
    """Return the pairs that lists name, in their splits and with their labels; note the pairs that
    no list names.
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
            f"leaves out {len(left_out)} pairs that {listed.names} do not name, the first is {left_out[0].image}"
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
        """Return the pairs, each in a split: where nothing says which frames validate, whole
        sequences of the training frames do.

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
        """Return what the frames of one drive have in common: their folders, but for words that
        name a split, and their name without its last number.
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
        held_out, words = self._held_out(train)
        self._notes.append(
            f"holds out {len(held_out)} of {len(train)} training frames to validate: {words}"
        )
        return [replace(pair, split="val") if pair.image in held_out else pair for pair in pairs]

    def _held_out(self, train: Sequence[Pair]) -> tuple[set[Path], str]:
        """Return the images of about :data:`VAL_SHARE` of the frames, in whole sequences, since
        neighbouring frames resemble one another, and say which in words.
        """
        ordered = sorted((pair.image for pair in train), key=self._by_sequence)
        sequences = [list(frames) for _, frames in groupby(ordered, self.sequence)]
        wanted = max(1, round(VAL_SHARE * len(train)))
        if len(sequences) == 1 or len(train) < 4:
            last = ordered[len(ordered) - wanted :]
            return set(last), "the last of the only sequence, by their numbers"
        nearest = min(sequences, key=lambda frames: abs(len(frames) - wanted))
        step = round(1 / VAL_SHARE)
        chosen = [nearest] if len(sequences) < 10 else sequences[step // 2 :: step]
        names = ", ".join(self.sequence(frames[0]) for frames in chosen[:3])
        more = ", ..." if len(chosen) > 3 else ""
        held_out = {path for frames in chosen for path in frames}
        return held_out, f"{len(chosen)} of {len(sequences)} sequences ({names}{more})"

    def _by_sequence(self, path: Path) -> tuple[object, object]:
        return frame_order(self.sequence(path)), frame_order(path.as_posix())

    def _shared_sequences(self, pairs: Sequence[Pair]) -> Iterator[str]:
        """Yield a note where frames that train and frames that validate or test are of one
        sequence.
        """
        numbers: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for pair in pairs:
            number = re.search(r"\d+$", self._stem(pair.image))
            if number:
                numbers[pair.split][self.sequence(pair.image)].append(int(number[0]))
        for split in SPLITS[1:]:
            shared = [
                name
                for name, frames in numbers[split].items()
                if _is_one_sequence(name, numbers["train"].get(name, []), frames)
            ]
            if shared:
                yield (
                    f"train and {split} have frames whose names differ in the last number alone, the first are "
                    f"{shared[0]}*: if these are of one drive, results on {split} are too good"
                )


def _by_split_and_number(pair: Pair) -> tuple[int, object]:
    return SPLITS.index(pair.split), frame_order(pair.image.as_posix())


def _is_one_sequence(name: str, train: Sequence[int], others: Sequence[int]) -> bool:
    """Return whether frames of two splits whose sequences have one name are of one sequence. Splits
    that number their frames each from the start have numbers in common; where one numbering was
    divided, there are none.
    """
    if not train or set(train) & set(others):
        return False
    has_own_name = name != "" and not name.endswith("/")
    return has_own_name or (min(others) < max(train) and min(train) < max(others))
