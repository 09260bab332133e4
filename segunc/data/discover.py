"""Look at a folder of images and labels in any usual layout: which label belongs to which image, which split to which pair, and which
values or colours the labels hold."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError
from segunc.core.files import read_bytes
from segunc.data.entry import LABEL_ENDINGS, LABEL_FOLDERS, frame_stem, image_files
from segunc.data.images import Colour, decode_labels, label_rank, palette_of
from segunc.data.labels import IGNORE

PAIRS_PICTURE, FRAMES_LIST = "pairs.jpg", "frames.csv"  # endings of what segunc init writes
IMAGE_WORDS = {
    "images",
    "image",
    "imgs",
    "img",
    "leftimg8bit",
    "rgb",
    "anon",
    "frames",
    "jpegimages",
    "photos",
    "data",
}
LABEL_WORDS = {word.lower() for word in LABEL_FOLDERS} | {
    *("label", "mask", "annotation", "annots", "gt", "groundtruth"),
    *("segmentation", "segmentations", "segmentationclass"),
    *("seg", "semantic", "labelids", "leftlabel", "ann"),
}
SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
LABEL_WORD_ENDINGS = (
    *LABEL_ENDINGS,
    *("_L", "_color", "_instanceIds", "_seg", "_GT", "-label", "-mask", ".label", ".mask"),
)
VAL_SHARE = 0.15  # of the training frames, where no folder holds validation frames
MAX_CLASSES = (
    150  # of which no public label map of roads has more; more values are those of something else
)
SAMPLED, SECONDS = 200, 6.0  # labels that are looked at, and for how long at most

Value = int | Colour  # an id, or a colour


@dataclass(frozen=True)
class Pair:
    """An image and its label, relative to the folder, and the split they belong to (empty: no folder says so)."""

    split: str
    image: Path
    label: Path


@dataclass
class Found:
    """What a folder holds."""

    root: Path
    pairs: list[Pair]
    pixels: Counter[Value] = field(
        default_factory=Counter
    )  # of each id or colour, in the labels that were looked at
    kind: str = "ids"  # or colours
    palette: dict[int, Colour] = field(
        default_factory=dict
    )  # the colours of ids that a palette has
    looked_at: int = 0
    notes: list[str] = field(default_factory=list)  # what was assumed or left out, each a sentence

    def counts(self) -> Counter[str]:
        """Return the number of pairs of each split."""
        return Counter(pair.split for pair in self.pairs)


def discover(
    root: Path, images: str | None = None, labels: str | None = None, *, labelled_only: bool = False
) -> Found:
    """Return the pairs, the splits and the label values of a folder; the arguments are those of :class:`segunc.options.InitOptions`.
    InputError for no images or labels, images without a label or with several, and labels of two kinds or of too many values."""
    files = [path.relative_to(root) for path in image_files(root) if not is_pairs_picture(path)]
    if not files:
        raise InputError(
            f"{root} holds no images", hint="name the folder that holds images and labels"
        )
    found = Found(root, [])
    label_files = _chosen(root, files, labels, "--labels") or _label_files(root, files, found)
    others = [path for path in files if path not in set(label_files)]
    image_list = (
        _chosen(root, files, images, "--images")
        or [p for p in others if not _named_as_label(p)]
        or others
    )
    _pair(found, image_list, label_files, labelled_only)
    _look_at_labels(found)
    _divide(found)
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
    chosen = [path for path in files if path.is_relative_to(below) or path.match(str(below))]
    if not chosen:
        fact = f"{flag} {pattern} matches no image file in {root}"
        raise InputError(fact, hint="a folder or a pattern below it, e.g. masks or *_L.png")
    return chosen


def _words(folder: str) -> list[str]:
    """Return the words of a folder's name in lower case: ``trainannot`` and ``train_labels`` are two."""
    words = re.split(r"[\W_]+", folder.lower())
    parts = [re.sub(r"(annot)$", r" \1", word).split() for word in words]
    return [word for each in parts for word in each]


def _named_as_label(path: Path) -> bool:
    words = [word for folder in path.parts[:-1] for word in _words(folder)]
    return bool(LABEL_WORDS.intersection(words)) or path.stem.endswith(LABEL_WORD_ENDINGS)


def _label_files(root: Path, files: Sequence[Path], found: Found) -> list[Path]:
    labels = [path for path in files if _named_as_label(path)]
    # Photographs may lie among the labels.
    ranks = {path: label_rank(root / path) for path in labels}
    if labels and len(labels) < len(files):
        return [path for path in labels if ranks[path] < 2] or labels
    ranks = {path: label_rank(root / path) for path in files}
    labels = [path for path in files if ranks[path] < 2]
    if labels and len(labels) < len(files):
        found.notes.append(
            f"assumes that the {len(labels)} PNG files are labels and the photographs are images"
        )
        return labels
    lack = f"{root} holds {len(files)} images, but no file or folder is named as labels (such as labels, masks or NAME_label.png)"
    raise InputError(lack, hint="--labels FOLDER names the folder of the labels")


def _key(path: Path, stem: str) -> tuple[str, str]:
    """Return the split and what an image and its label have in common: the words of their folders that say neither, and the stem."""
    split, kept = "", []
    for folder in path.parts[:-1]:
        words = _words(folder)
        split = next((SPLIT_WORDS[word] for word in words if word in SPLIT_WORDS), split)
        kept += [
            "".join(
                word for word in words if word not in IMAGE_WORDS | LABEL_WORDS | SPLIT_WORDS.keys()
            )
        ]
    return split, "/".join([split, *filter(None, kept), stem])


def _pair(
    found: Found, images: Sequence[Path], labels: Sequence[Path], labelled_only: bool
) -> None:
    by_key: dict[str, Path] = {}
    splits: dict[Path, str] = {}
    for path in images:
        split, key = _key(path, frame_stem(path.stem))
        if (other := by_key.setdefault(key, path)) != path:
            fact = f"{other} and {path} in {found.root} are one frame by their names"
            raise InputError(fact, hint="--images names the folder of the images")
        splits[path] = split
    by_image: dict[Path, dict[str, Path]] = defaultdict(dict)
    alone: list[Path] = []
    for path in labels:
        stem, ending = path.stem, ""
        while (key := _key(path, frame_stem(stem))[1]) not in by_key and re.search(
            r"[_.-][^_.-]+$", stem
        ):
            stem = re.sub(r"[_.-][^_.-]+$", "", stem)
            ending = path.stem[len(stem) :]
        if key in by_key:
            kind = f"{'/'.join(part for part in path.parts[:-1] if LABEL_WORDS.intersection(_words(part)))}*{ending}"
            by_image[by_key[key]][kind] = path
        else:
            alone.append(path)
    if not by_image:
        lack = f"no label in {found.root} has the name of an image, e.g. {labels[0]} and {images[0] if images else 'none'}"
        raise InputError(lack, hint="give labels the names of their images")
    several = next((each for each in by_image.values() if len(each) > 1), None)
    chosen = None
    if several:
        ids = [kind for kind in several if kind.lower().endswith("labelids")]
        preferred = ids or [kind for kind in several if kind.endswith("*")]
        if len(preferred) != 1:
            first, *_ = paths = [*several.values()]
            choice = (
                first.parts[0] if len(first.parts) > 1 else f"'*{first.stem[-8:]}{first.suffix}'"
            )
            fact = f"an image has {len(several)} labels: {', '.join(map(str, paths[:3]))}"
            raise InputError(
                fact, hint=f"choose one kind by a folder or a pattern, e.g. --labels {choice}"
            )
        (chosen,) = preferred
        found.notes.append(
            f"takes the labels {chosen}.png of {len(several)} kinds; --labels PATTERN takes others"
        )
    pairs = [
        Pair(splits[image], image, each[chosen or next(iter(each))])
        for image, each in by_image.items()
        if chosen is None or chosen in each
    ]
    if any(pair.split for pair in pairs) and (
        outside := [pair for pair in pairs if not pair.split]
    ):
        note = f"leaves out {len(outside)} pairs outside of the folders train, val and test, e.g. {outside[0].image}"
        found.notes.append(f"{note}; --images and --labels choose others")
        pairs = [pair for pair in pairs if pair.split]
    labelled = {pair.split for pair in pairs}
    missing = [path for path in images if path not in by_image]
    if closed := [path for path in missing if splits[path] not in labelled]:
        found.notes.append(
            f"leaves out {len(closed)} images of {splits[closed[0]] or 'folders'} without any label"
        )
        missing = [path for path in missing if splits[path] in labelled]
    if missing and not labelled_only:
        some = ", ".join(str(path) for path in missing[:3])
        share = f"{len(missing)} of {len(pairs) + len(missing)} images in {found.root}"
        raise InputError(
            f"{share} have no label, the first are {some}", hint="--labelled-only leaves them out"
        )
    if missing:
        found.notes.append(
            f"leaves out {len(missing)} images without a label, the first is {missing[0]}"
        )
    if alone:
        found.notes.append(
            f"leaves out {len(alone)} labels without an image, the first is {alone[0]}"
        )
    found.pairs = sorted(pairs, key=lambda pair: (pair.split, pair.image.as_posix()))


def _look_at_labels(found: Found) -> None:
    """Count the pixels of each value in labels spread over the folder, and say what they are."""
    examples: dict[str, Path] = {}
    counts, grey = (
        {"ids": Counter[Value](), "colours": Counter[Value]()},
        Counter[int](),
    )  # grey may be either
    start, order = (
        time.monotonic(),
        np.linspace(0, len(found.pairs) - 1, min(SAMPLED, len(found.pairs))).astype(int),
    )
    for index in dict.fromkeys(
        [*order[::10].tolist(), *order.tolist()]
    ):  # the whole range first, should time end
        path = found.root / found.pairs[index].label
        try:
            pixels = decode_labels(data := read_bytes(path))
        except Exception as error:  # Pillow's decoders have no common exception
            hint = (
                "write labels as PNG: JPEG changes their values"
                if label_rank(path) == 2
                else "repair or remove it"
            )
            raise InputError(f"label {path} cannot be read ({error})", hint=hint) from error
        if pixels.ndim == 3 and (pixels == pixels[..., :1]).all():
            grey.update(_counted(pixels[..., 0]))
        else:
            kind = "ids" if pixels.ndim == 2 else "colours"
            codes = (
                pixels if kind == "ids" else pixels.astype(np.int64) @ (1 << np.array([16, 8, 0]))
            )
            for code, count in _counted(codes).items():
                counts[kind][
                    code if kind == "ids" else (code >> 16, code >> 8 & 255, code & 255)
                ] += count
            examples.setdefault(kind, path)
            if kind == "ids":
                own = palette_of(data)
                for value in own.keys() & _counted(pixels).keys():
                    if found.palette.setdefault(value, own[value]) != own[value]:
                        fact = f"label {path} shows {value} in another colour than labels before it, so values are no ids"
                        raise InputError(
                            fact, hint="write the labels again as RGB, or all with one palette"
                        )
        found.looked_at += 1
        if time.monotonic() - start > SECONDS:
            break
    where, hint = (
        f"the labels in {found.root}",
        "--labels names the folder or a pattern of the class labels",
    )
    if len(examples) == 2:
        first, second = (examples[kind].relative_to(found.root) for kind in ("ids", "colours"))
        raise InputError(
            f"{where} are of two kinds: {first} holds ids and {second} colours", hint=hint
        )
    ids, colours = (counts[kind] for kind in ("ids", "colours"))
    found.kind, found.pixels = ("colours", colours) if colours else ("ids", ids)
    for value, count in grey.items():
        found.pixels[value if found.kind == "ids" else (value, value, value)] += count
    largest = max((value for value in found.pixels if isinstance(value, int)), default=0)
    if largest > IGNORE:
        what = f"{where} hold values up to {largest}, but class ids are 0 to 255"
        raise InputError(f"{what}: these look like instances or depths", hint=hint)
    if (number := len(found.pixels)) > MAX_CLASSES:
        most = sum(pixels for _, pixels in found.pixels.most_common(30)) / found.pixels.total()
        why = "edges were smoothed when labels were resized or compressed"
        why = (
            f"30 cover {most:.0%} of the pixels: {why}"
            if most > 0.5
            else "these look like photographs or instances"
        )
        raise InputError(f"{where} hold {number} {found.kind}; {why}", hint=hint)


def _counted(pixels: npt.NDArray[np.generic]) -> dict[int, int]:
    values, counts = np.unique(pixels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _divide(found: Found) -> None:
    """Give each pair a split: where no folder says which frames validate, whole sequences of the training frames do."""
    pairs = [Pair(pair.split or "train", pair.image, pair.label) for pair in found.pairs]
    splits = {pair.split for pair in pairs}
    if "train" not in splits:
        names = " and ".join(sorted(splits))
        found.notes.append(
            f"assumes that the split {names} is all there is, and trains on a part of it"
        )
        pairs, splits = [Pair("train", pair.image, pair.label) for pair in pairs], {"train"}
    if "val" not in splits:
        train = [pair for pair in pairs if pair.split == "train"]
        if len(train) < 2:
            raise InputError(
                f"{found.root} holds one labelled image to train on, and none to validate",
                hint="label at least one more",
            )
        held_out, words = _held_out(train)
        pairs = [Pair("val", p.image, p.label) if p.image in held_out else p for p in pairs]
        found.notes.append(
            f"holds out {len(held_out)} of {len(train)} training frames to validate: {words}"
        )
    found.pairs = sorted(
        pairs, key=lambda pair: (("train", "val", "test").index(pair.split), pair.image.as_posix())
    )


def sequence_of(path: Path) -> str:
    """Return what the frames of one drive have in common: their folder and their name without its last number."""
    name = re.sub(r"\d+$", "", frame_stem(path.stem))
    return f"{path.parent.as_posix()}/{name}"


def _held_out(train: Sequence[Pair]) -> tuple[set[Path], str]:
    """Return the images of about :data:`VAL_SHARE` of the frames, in whole sequences, since neighbouring frames resemble one another,
    and say which in words."""
    ordered = sorted(
        (pair.image for pair in train), key=lambda path: (sequence_of(path), path.as_posix())
    )
    sequences = [list(frames) for _, frames in groupby(ordered, sequence_of)]
    wanted = max(1, round(VAL_SHARE * len(train)))
    if len(sequences) == 1 or len(train) < 4:
        return set(
            ordered[len(ordered) - wanted :]
        ), "the last of the only sequence, by their names"
    nearest = min(sequences, key=lambda frames: abs(len(frames) - wanted))
    step = round(1 / VAL_SHARE)
    chosen = [nearest] if len(sequences) < 10 else sequences[step // 2 :: step]
    names = ", ".join(sequence_of(frames[0]).removeprefix("./") for frames in chosen[:3])
    words = (
        f"{len(chosen)} of {len(sequences)} sequences ({names}{', ...' if len(chosen) > 3 else ''})"
    )
    return {path for frames in chosen for path in frames}, words
