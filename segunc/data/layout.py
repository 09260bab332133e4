"""Where the frames of a data set lie, and which label belongs to which frame."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segunc.core.errors import InputError
from segunc.data.images import flat_values, label_rank, png_head
from segunc.data.labels import label_values

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
"""File name endings that are read as images (any case)."""
FRAME_ENDINGS = ("_leftImg8bit", "_rgb_anon", "_image", "_rgb")
"""Endings of frame names that label names do not carry."""
LABEL_ENDINGS = (
    *("_gtFine_labelIds", "_gtCoarse_labelIds", "_gt_labelTrainIds", "_labelIds", "_leftLabel", "_train_id"),
    *("_gtFine_labellevel3Ids", "_labels_semantic", "_anomaly", "_labels", "_label", "_mask", "_gt"),
)
"""Endings of label names that frame names do not carry."""


LABEL_BITS = 2
"""A PNG of labels takes fewer bits a pixel, nearly every one of a camera more."""
MOSTLY = 0.9  # share of a group
LOOKED_AT, MOST_FOLDERS = 16, 64  # files of a group that are decoded; names of folders beyond which they make no groups


def frame_stem(name: str) -> str:
    """The part of a frame's or label's name that both share: known endings removed, folders kept."""
    for ending in (*LABEL_ENDINGS, *FRAME_ENDINGS):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def list_images(folder: Path) -> list[Path]:
    """All image files below ``folder``, sorted by relative path; InputError where it is missing or holds none."""
    if not folder.is_dir():
        raise InputError(f"folder {folder} does not exist", "a folder of images", "check the path")
    found = image_files(folder)
    if not found:
        expected = f"files ending in {', '.join(IMAGE_SUFFIXES)}"
        raise InputError(f"folder {folder} holds no image", expected, "check the path")
    return found


def image_files(folder: Path) -> list[Path]:
    """All image files below ``folder`` but hidden ones, sorted by relative path; none where there is no such folder."""
    found = (path for path in folder.rglob("*") if is_image_file(path) and not is_hidden(path, folder))
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def is_hidden(path: Path, folder: Path) -> bool:
    """Whether a path below a folder is hidden: systems keep things of their own so, a Mac on a foreign disk ``._NAME`` of NAME."""
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def is_image_file(path: Path) -> bool:
    """Whether a path is a file that is named as an image."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.is_dir()  # a broken link raises an error when it is read


def without_labels(root: Path, files: Sequence[Path]) -> list[Path]:
    """Those of the image files below a root that are frames: not in a folder ``NAME.labels``, and not of a group that looks like labels.

    A group is the PNG files of one mode and one known ending in folders of one name, or of one name where each is alone in its
    folder. It is judged as a whole, so that the frame of a covered lens is not lost: nearly all take few bits a pixel, which their heads
    tell, and some that stand for all, which are decoded, hold few values in such large areas as no camera gives, and not one alone
    (:func:`segunc.data.images.flat_values`). Of nothing else than labels nothing is left out.
    """
    labels = {path for path in files if any(part.endswith(".labels") for part in path.relative_to(root).parts[:-1])}
    heads = {path: head for path in files if path not in labels and (head := png_head(path))}
    kinds = {path: (path.stem[len(frame_stem(path.stem)) :], colour) for path, (colour, _) in heads.items()}
    alike = Counter((path.parent, kind) for path, kind in kinds.items())
    several = len({folder.name for folder, _ in alike}) <= MOST_FOLDERS
    groups: dict[Any, list[Path]] = defaultdict(list)
    for path, kind in kinds.items():
        alone = alike[path.parent, kind] == 1
        groups[kind, path.name if alone else path.parent.name if several else None, alone].append(path)
    for group in groups.values():
        sparse = [path for path in group if heads[path][1] < LABEL_BITS]
        if len(sparse) >= MOSTLY * len(group):
            values = [flat_values(path) for path in sparse[:: -(-len(sparse) // LOOKED_AT)]]
            if min(values) > 0 and max(values) > 1:
                labels.update(group)
    return [path for path in files if path not in labels] or list(files)


def possible_labels(folder: Path) -> list[Path]:
    """The files of :func:`list_images` that may hold label values, colours where nothing else: photographs may lie beside labels."""
    ranks = {path: label_rank(path) for path in list_images(folder)}
    lowest = min(ranks.values())
    return [path for path, rank in ranks.items() if rank == lowest < 2]


def find_labels(
    folder: Path,
    frames: Collection[str],
    layouts: Iterable[Layout] = (),
    is_frame: Callable[[Path], bool] = lambda path: False,
) -> dict[str, Path]:
    """The label file of each frame that has one: :func:`match_labels` of :func:`possible_labels` that are no frame themselves, as the
    first of a data set's ``layouts`` names them that finds any, else by the usual endings. A frame that has none but a picture gets that,
    for whoever reads it to say what it is: a label that was damaged must not pass for one that nobody drew."""
    files = [path for path in list_images(folder) if not is_frame(path)]
    ranks = {path: label_rank(path) for path in files}
    for layout in (*layouts, Layout({})):
        found: dict[str, Path] = {}
        for rank in (0, 1, 2):
            named = [p for p in files if ranks[p] == rank and p.stem.endswith(layout.label_ending)]
            found |= match_labels(folder, named, [name for name in frames if name not in found], layout.label_stem)
        if found:
            return found
    return {}


def match_labels(
    folder: Path, files: Iterable[Path], frames: Iterable[str], label_stem: Callable[[str], str] = frame_stem
) -> dict[str, Path]:
    """The label file, of ``files`` below ``folder``, of each frame that has one; InputError where two files claim one frame.

    A label of frame ``a/b_leftImg8bit`` is ``a/b_leftImg8bit.png``, or ``a/b`` with any known ending, or, where
    that is unambiguous on both sides, the same name in any other folder below ``folder``. ``label_stem`` gives what a
    label's path relative to ``folder``, without suffix, shares with its frame's name.
    """
    by_path: dict[str, list[Path]] = defaultdict(list)
    by_stem: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        stem = label_stem(frame_name(folder, path))
        by_path[stem].append(path)
        by_stem[_bare(stem)].append(path)
    labels: dict[str, Path] = {}
    owners: dict[Path, str] = {}
    frames = list(frames)
    # A label of exactly a frame's name is no other frame's.
    named = {frame_name(folder, path) for paths in by_path.values() for path in paths} & {*map(composed, frames)}
    # Two frames of one name in different folders must not share the one label of that name.
    bearers = Counter(_bare(frame_stem(composed(frame))) for frame in frames)
    for frame in frames:
        stem = frame_stem(name := composed(frame))
        candidates = by_path.get(stem) or (by_stem.get(_bare(stem), []) if bearers[_bare(stem)] == 1 else [])
        candidates = [
            path
            for path in candidates
            if (label := frame_name(folder, path)) == name or not (name in named or label in named)
        ]
        if len(candidates) > 1:
            names = ", ".join(p.relative_to(folder).as_posix() for p in candidates[:3])
            given = f"frame {frame} has {len(candidates)} labels in {folder}: {names}"
            raise InputError(given, "one label for each frame", "remove or rename the others")
        for path in candidates:
            if path in owners:
                given = f"label {path} fits the frames {owners[path]} and {frame}"
                raise InputError(given, "one frame for each label", "give each label the whole name of its frame")
            labels[frame], owners[path] = path, frame
    return labels


def composed(name: str) -> str:
    """Return a name in the composed form of Unicode (NFC). A Mac writes an accent as a character of its own, other systems do not, and
    both are one name to whoever reads it."""
    return unicodedata.normalize("NFC", name)


def frame_name(folder: Path, path: Path) -> str:
    """A frame's or label's name: the path relative to the folder, without suffix, :func:`composed`."""
    return composed(path.relative_to(folder).with_suffix("").as_posix())


def _bare(name: str) -> str:
    return name.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Part:
    """A folder of images and the folder of their labels, relative to the root; a split has one or more."""

    images: str
    labels: str
    prefix: str = ""  # of the frames' names, where a split has several parts
    keep: Callable[[str], bool] | None = None  # whether a frame of this name (no folders, no suffix) is of the split
    holds: Callable[[frozenset[int]], bool] | None = None  # the same by its label's raw values; reads every label file


@dataclass(frozen=True)
class Layout:
    """One published way in which a data set lies on disk."""

    splits: Mapping[str, tuple[Part, ...]]
    image_ending: str = ""  # only images whose stem ends so are frames
    label_ending: str = ""  # only label files whose stem ends so count
    label_stem: Callable[[str], str] = frame_stem  # see :func:`match_labels`
    flat: bool = False  # frames lie in the image folder itself and not deeper
    labels_choose: bool = False  # frames are the images that have a label; the folder may hold others

    def describe(self, split: str) -> str:
        """Return how the files of a split lie, in words."""
        images, labels = f"**/*{self.image_ending}.*", f"**/*{self.label_ending}.png"
        return " and ".join(f"ROOT/{p.images}/{images} with ROOT/{p.labels}/{labels}" for p in self.splits[split])

    def folders_in(self, root: Path, split: str) -> int:
        """How many folders of a split are there."""
        return sum((root / folder).is_dir() for part in self.splits[split] for folder in (part.images, part.labels))

    def frames(self, root: Path, split: str, described: str) -> list[tuple[str, Path, Path]]:
        """Name, image and label of each frame of a split, sorted by name within each part.

        InputError, which says how the files must lie as ``described``: a folder is missing or holds no file of its kind, an image
        has no label, a label has no image, two images bear one name, or no frame belongs to the split.
        """
        found = {frame[0]: frame for part in self.splits[split] for frame in self._frames_of(root, part, described)}
        if not found:
            given = f"split '{split}' in {root} is empty: no labelled image there belongs to it"
            raise InputError(given, described, "check the root and the split")
        return list(found.values())

    def _frames_of(self, root: Path, part: Part, described: str) -> Iterator[tuple[str, Path, Path]]:
        images, labels = root / part.images, root / part.labels
        paths = _by_name(images, _files(images, "image", self.image_ending, described, flat=self.flat))
        files = _files(labels, "label", self.label_ending, described)
        found = match_labels(labels, files, paths, self.label_stem)
        # A folder may hold more than the split, frames whose labels a benchmark keeps to itself for instance.
        belong = [name for name in paths if part.keep is None or part.keep(_bare(name).removesuffix(self.image_ending))]
        missing = [name for name in belong if name not in found]
        if missing and not (self.labels_choose and found):
            none = f"{len(missing)} of {len(belong)} images in {images} have no label in {labels}, the first is {missing[0]}"
            raise InputError(none, f"a label for each image of {described}", "add the labels or remove the images")
        if unclaimed := sorted(set(files) - set(found.values())):
            first = unclaimed[0].relative_to(labels).as_posix()
            none = (
                f"{len(unclaimed)} of {len(files)} labels in {labels} have no image in {images}, the first is {first}"
            )
            raise InputError(none, f"an image for each label of {described}", "add the images or remove the labels")
        for name in belong:
            if name in found and (part.holds is None or _holds(found[name], part.holds)):
                yield f"{part.prefix}{name}", paths[name], found[name]


def _holds(label: Path, rule: Callable[[frozenset[int]], bool]) -> bool:
    """What the rule says of a label; yes where it cannot be read, for whoever reads the frame to name it."""
    try:
        return rule(label_values(label))
    except InputError:
        return True


def _files(folder: Path, kind: str, ending: str, described: str, *, flat: bool = False) -> list[Path]:
    """The image files of a folder whose stem ends in ``ending``."""
    if not folder.is_dir():
        raise InputError(f"{kind} folder {folder} does not exist", described, "check the root")
    files = [path for path in image_files(folder) if path.stem.endswith(ending) and (path.parent == folder or not flat)]
    if not files:
        suffixes = "png" if kind == "label" else "|".join(suffix[1:] for suffix in IMAGE_SUFFIXES)
        raise InputError(f"{folder} holds no {kind} (*{ending}.{suffixes})", described, "check the root")
    return files


def _by_name(folder: Path, files: Iterable[Path]) -> dict[str, Path]:
    """The files by their frame names."""
    named: dict[str, Path] = {}
    for path in files:
        other = named.setdefault(name := frame_name(folder, path), path)
        if other != path:
            given = f"{other} and {path} are both frame '{name}'"
            raise InputError(given, "one image for each name", "remove one")
    return named


def same_folders(
    images: str, labels: str, splits: Iterable[str] | Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[Part, ...]]:
    """Splits that differ by words in their folders' names, ``{}`` in ``images`` and ``labels``: the words that a mapping gives, or
    else the split's own name."""
    words = splits if isinstance(splits, Mapping) else {split: (split,) for split in splits}
    return {split: (Part(images.format(*each), labels.format(*each)),) for split, each in words.items()}
