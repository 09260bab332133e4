"""What the names of image and label files say.

Here are the words in them, and the one rule by which a label's name follows from its image's.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Literal

from segunc.core.errors import InputError
from segunc.data.frame_names import FRAME_ENDINGS, LABEL_FOLDERS, composed

IMAGE_WORDS = frozenset(
    {
        "images",
        "image",
        "imgs",
        "img",
        "leftimg8bit",
        "rgb",
        "anon",
        "frame",
        "frames",
        "jpegimages",
        "photos",
        "camera",
        "data",
    }
)
LABEL_WORDS = frozenset(
    {
        *(folder.lower() for folder in LABEL_FOLDERS),
        *("label", "labeled", "labelled", "labelids", "labelid", "labeltrainids", "leftlabel"),
        *("mask", "annotation", "annots", "ann", "gt", "groundtruth"),
        *("seg", "sem", "semantic", "segmentation", "segmentations"),
        *("instance", "instances", "panoptic", "depth", "disparity"),
    }
)
"""Words of labels, also of labels that hold no classes."""
LAST_LABEL_WORDS = LABEL_WORDS | {"color", "colors", "colour", "colours", "instanceids"}
"""Words that mark a label at the end of its file's name."""
CAMVID_ENDING = "L"
"""CamVid's own labels are NAME_L.png; NAME_l.png may be a left camera."""
CLASS_WORDS = frozenset(
    {"labelids", "labelid", "id", "ids", "class", "classes", "sem", "semantic", "cls"}
)
"""Words of labels that hold classes, if there are other labels, too."""
OTHER_WORDS = frozenset(
    {
        *("instance", "instances", "instanceids", "inst", "ins", "object", "objects"),
        *("panoptic", "pan", "color", "colors", "colour", "colours", "colormap", "colormaps"),
        *("rgb", "vis", "viz", "visualization", "human", "overlay", "depth", "disparity"),
        *("boundary", "edge", "edges", "confidence", "invgray"),
    }
)
"""Words of labels that hold no classes, or show them in colours for people."""
_ROLE_WORDS = IMAGE_WORDS | LABEL_WORDS | CLASS_WORDS | OTHER_WORDS
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
MAX_WORDS = 3
"""Words of the part by which the names of image and label differ."""
MIN_PART_SHARE = 0.05
"""Share of all names that a part must have to be looked at."""
KIND_SHARE = 0.1
"""Share of the images of the best rule that another rule must pair to be a kind."""

Place = Literal["start", "middle", "end", "all"]
_GAP = "\0"
"""Stands in a name for the part that was cut out; no file's name holds it."""


@lru_cache(maxsize=100_000)
def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case.

    ``trainannot``, ``train_labels`` and ``CameraSeg`` are two words each, ``gtFine`` is one.
    """
    words: list[str] = []
    for part in re.split(r"[\W_]+", name):
        words += _parts_of_word(part)
    return tuple(words)


def _parts_of_word(word: str) -> list[str]:
    """Return the words of which a word consists.

    A word that says image or label may have a number, as in ``masks2``.
    """
    if word.lower() in _ROLE_WORDS:
        return [word.lower()]
    numbered = re.fullmatch(r"(\D+)(\d+)", word.lower())
    if numbered and numbered[1] in _ROLE_WORDS:
        return [numbered[1], numbered[2]]
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", word).lower()
    return re.sub(r"(annot)$", r" \1", spaced).split()


def is_named_as_label(path: PurePath) -> bool:
    """Return whether a folder of a file, or the last word of its name, says that it is a label."""
    for folder in path.parts[:-1]:
        if LABEL_WORDS.intersection(words_of(folder)):
            return True
    name = _words_as_written(path)
    if not name:
        return False
    last = set(words_of(name[-1]))
    if last & LABEL_WORDS:
        return True
    return len(name) > 1 and (name[-1] == CAMVID_ENDING or bool(last & LAST_LABEL_WORDS))


def is_label_folder(name: str) -> bool:
    """Return whether the name of a folder begins as that of labels, as ``labels_colour`` does.

    ``labelled_drives`` may hold images that have labels, and ``seg_12`` may be a drive.
    """
    first, *rest = words_of(name) or ("",)
    is_numbered = bool(rest) and all(word.isdigit() for word in rest)
    return first in LABEL_WORDS - {"labelled", "labeled"} and not is_numbered


def begins_as_label(path: PurePath) -> bool:
    """Return whether the first word of a file's name says label, as in ``mask_0001.png``."""
    name = _words_as_written(path)
    return len(name) > 1 and bool(LABEL_WORDS.intersection(words_of(name[0])))


def _words_as_written(path: PurePath) -> list[str]:
    return [word for word in re.split(r"[\W_]+", path.stem) if word]


def split_of(path: PurePath) -> str:
    """Return the split that the folders of a file name, empty if none does.

    If several do, the innermost decides.
    """
    return _last_split(path.parts[:-1])


@lru_cache(maxsize=100_000)
def _last_split(folders: tuple[str, ...]) -> str:
    split = ""
    for folder in folders:
        for word in words_of(folder):
            split = SPLIT_WORDS.get(word, split)
    return split


@dataclass(frozen=True)
class NameRule:
    """The words by which the names of an image and of its label differ.

    All else in the two names is the same.
    """

    image_part: str
    """Such as _leftImg8bit; empty if the label's name holds the image's."""
    label_part: str
    """Such as _gtFine_labelIds."""
    place: Place = "end"
    """Where both parts stand in the names."""

    def image_core(self, stem: str) -> str | None:
        """Return what an image's name shares with its label's; None for a name without the part."""
        return _core(stem, self.image_part, self.place)

    def label_core(self, stem: str) -> str | None:
        """Return what a label's name shares with its image's; None for a name without the part."""
        return _core(stem, self.label_part, self.place)


def _core(stem: str, part: str, place: Place) -> str | None:
    stem = composed(stem)
    # Nearly all names differ in the end, which is found much faster.
    if place == "end":
        return stem.removesuffix(part) + _GAP if stem.endswith(part) else None
    for core, cut in _cuts(stem):
        if cut == part and _place_of(core) == place:
            return core
    return None


def _place_of(core: str) -> Place:
    if core == _GAP:
        return "all"
    if core.endswith(_GAP):
        return "end"
    return "start" if core.startswith(_GAP) else "middle"


def _cuts(stem: str) -> Iterator[tuple[str, str]]:
    """Yield each part of at most :data:`MAX_WORDS` words that may be cut out of a name.

    Yields:
        What is left of the name, with a gap, and the part.
    """
    yield stem + _GAP, ""
    yield _GAP + stem, ""
    pieces = re.split(r"([\W_]+)", stem)  # words, and between them what separates them
    for first in range(0, len(pieces), 2):
        for last in range(first, min(len(pieces), first + 2 * MAX_WORDS), 2):
            if not _is_word(pieces[last]):
                break
            part_start = max(0, first - 1)  # with the separator before it
            before = "".join(pieces[:part_start])
            after = "".join(pieces[last + 1 :])
            part = "".join(pieces[part_start : last + 1])
            yield before + _GAP + after, part
            if first == 0 and last + 1 < len(pieces):
                separator = pieces[last + 1]
                yield _GAP + after.removeprefix(separator), part + separator


def _is_word(piece: str) -> bool:
    """Return whether a piece of a name is a word.

    A number is none, nor is a word with a number, which tells frames apart.
    """
    return any(letter.isalpha() for letter in piece) and not re.search(r"\d\d$", piece)


def name_rules(
    images: Collection[str], labels: Collection[str], *, named: bool = False
) -> list[NameRule]:
    """Return the rules by which the names of images and labels belong together.

    They are found once over all names.

    Args:
        images: file names without suffix.
        labels: file names without suffix, of one or several kinds of labels.
        named: the user said which files are images and which are labels, so their names may end in
            any words.

    Returns:
        Rules with one part of the images' names in common, the one that pairs most images first;
        nothing if no names belong together. More than one rule means that there are several kinds
        of labels.

    Raises:
        InputError: labels fit images of two kinds alike, such as those of a left and of a right
            camera.
    """
    paired = _paired_images(images, labels, named=named)
    if not paired:
        return []

    def quality(rule: NameRule) -> tuple[int, bool, int]:
        is_known = rule.image_part in ("", *FRAME_ENDINGS)
        return len(paired[rule]), is_known, -len(rule.image_part + rule.label_part)

    ordered = sorted(paired, key=quality, reverse=True)
    best = ordered[0]
    for rule in ordered[1:]:
        same_labels = rule.label_part == best.label_part and rule.place == best.place
        if same_labels and quality(rule)[:2] == quality(best)[:2]:
            raise InputError(
                f"labels *{best.label_part} fit images *{best.image_part} and *{rule.image_part}",
                hint=f"--images chooses one kind, e.g. --images '*{best.image_part}.*'",
            )
    rules: list[NameRule] = []
    for rule in ordered:
        enough = len(paired[rule]) >= KIND_SHARE * len(paired[best])
        if rule.image_part == best.image_part and enough:
            rules.append(rule)
    return rules


def _paired_images(
    images: Collection[str], labels: Collection[str], *, named: bool
) -> dict[NameRule, set[str]]:
    """Return which images each possible rule pairs."""
    image_cuts = _frequent_cuts(images)
    label_cuts = _frequent_cuts(labels)
    paired: dict[NameRule, set[str]] = defaultdict(set)
    for core in image_cuts.keys() & label_cuts.keys():
        label_parts = {part for _, part in label_cuts[core]}
        for stem, image_part in image_cuts[core]:
            for label_part in label_parts:
                rule = NameRule(image_part, label_part, _place_of(core))
                if _is_possible(rule) or (named and rule.place == "end"):
                    paired[rule].add(stem)
    return dict(paired)


def _frequent_cuts(stems: Collection[str]) -> dict[str, list[tuple[str, str]]]:
    """Return (name, part that is cut out) by what is left.

    Only parts that enough of the names have are cut out.
    """
    cuts_of = {stem: list(_cuts(composed(stem))) for stem in stems}
    counts: Counter[str] = Counter()
    for stem_cuts in cuts_of.values():
        counts.update({part for _, part in stem_cuts})
    least = MIN_PART_SHARE * len(stems)
    cuts: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for stem, stem_cuts in cuts_of.items():
        for core, part in stem_cuts:
            if counts[part] >= least:
                cuts[core].append((stem, part))
    return cuts


def _is_possible(rule: NameRule) -> bool:
    """Return whether an image's name may have one part if its label's has the other.

    Two cameras differ by a word, too, so a word of the image is replaced only by one that says
    label.
    """
    label_says_so = bool(LAST_LABEL_WORDS.intersection(words_of(rule.label_part)))
    image_says_so = bool(IMAGE_WORDS.intersection(words_of(rule.image_part)))
    if rule.place == "all":  # the names have nothing in common, so their folders must
        return label_says_so and image_says_so
    if rule.place != "end":
        return label_says_so and (image_says_so or not rule.image_part)
    if not rule.image_part:
        return True
    return label_says_so or (image_says_so and not rule.label_part)


def folder_words(path: PurePath) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what the folders of a file say: what tells frames apart, and the kind of the file.

    ``labels/train/drive_1/x.png`` has the first ``("drive1",)`` and the second ``("labels",)``:
    words that name a split are in neither.
    """
    return _sorted_words(path.parts[:-1])


@lru_cache(maxsize=100_000)
def _sorted_words(folders: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    places: list[str] = []
    roles: list[str] = []
    for folder in folders:
        words = [word for word in words_of(composed(folder)) if word not in SPLIT_WORDS]
        role_words = LABEL_WORDS
        if LABEL_WORDS.intersection(words):
            role_words = LABEL_WORDS | CLASS_WORDS | OTHER_WORDS
        place: list[str] = []
        for word in words:
            if word in role_words:
                roles.append(word)
            elif word not in IMAGE_WORDS:
                place.append(word)
        if place:
            places.append("".join(place))
    return tuple(places), tuple(roles)
