"""Where the frames and the labels of a data set lie below a folder, and which label belongs to which
frame.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from segunc.core.errors import InputError
from segunc.data.frame_names import LABEL_ENDINGS, LABEL_FOLDERS, composed, frame_name, frame_stem
from segunc.data.image_files import LOSSY_SUFFIXES, images_ending_in, list_images
from segunc.data.images import label_rank
from segunc.data.labels import label_values


def without_labels(root: Path, files: Sequence[Path]) -> list[Path]:
    """Return the image files below a root that are frames: not those with one of the
    :data:`LABEL_ENDINGS` or in one of the :data:`LABEL_FOLDERS`, nor a file of one channel beside a
    photograph of its name; all of them where every one is named so.
    """
    photographs = {path.with_suffix("") for path in files if path.suffix.lower() in LOSSY_SUFFIXES}

    def is_label(path: Path) -> bool:
        folders = path.relative_to(root).parts[:-1]
        if path.stem.endswith(LABEL_ENDINGS):
            return True
        if any(folder.endswith(LABEL_FOLDERS) for folder in folders):
            return True
        beside = path.with_suffix("") in photographs and path.suffix.lower() not in LOSSY_SUFFIXES
        return beside and label_rank(path) == 0

    return [path for path in files if not is_label(path)] or list(files)


def possible_labels(folder: Path) -> list[Path]:
    """Return the image files of a folder that may hold label values, colours where nothing else:
    photographs may lie beside labels.
    """
    ranks = {path: label_rank(path) for path in list_images(folder)}
    lowest = min(ranks.values())
    return [path for path, rank in ranks.items() if rank == lowest < 2]


def find_labels(
    folder: Path,
    frames: Collection[str],
    layouts: Iterable[Layout] = (),
    is_frame: Callable[[Path], bool] = lambda path: False,
) -> dict[str, Path]:
    """Return the label file of each frame that has one in a folder, by the first of the ``layouts``
    that finds any, else by the usual endings; files that ``is_frame`` are no labels. A frame that
    has no label but a picture gets the picture, so that whoever reads it says what it is: a damaged
    label must not pass for one that nobody drew.
    """
    files = [path for path in list_images(folder) if not is_frame(path)]
    ranks = {path: label_rank(path) for path in files}
    for layout in (*layouts, Layout({})):
        labels: dict[str, Path] = {}
        for rank in (0, 1, 2):
            candidates = [
                p for p in files if ranks[p] == rank and p.stem.endswith(layout.label_ending)
            ]
            without = [name for name in frames if name not in labels]
            labels |= match_labels(folder, candidates, without, layout.label_stem)
        if labels:
            return labels
    return {}


def match_labels(
    folder: Path,
    files: Iterable[Path],
    frames: Iterable[str],
    label_stem: Callable[[str], str] = frame_stem,
) -> dict[str, Path]:
    """Return the label file of each frame that has one.

    A label of frame ``a/b_leftImg8bit`` is ``a/b_leftImg8bit.png``, or ``a/b`` with any known
    ending, or, where that is unambiguous on both sides, the same name in any other folder below
    ``folder``.

    Where this pairs names by known endings, ``segunc init`` (:mod:`segunc.data.pairing`) makes the
    same pairs. It looks at the whole set first and reports what it took, so it also learns endings
    that are not known here, beginnings such as ``mask_``, and tells several kinds of labels of one
    image apart. Here each frame stands for itself, so two labels of one frame are an error.

    Args:
        folder: that of the labels.
        files: the label files below it.
        frames: names of the frames.
        label_stem: returns what a label's path relative to ``folder``, without suffix, shares with
            its frame's name.

    Raises:
        InputError: two files claim one frame, or two frames one file.
    """
    names = {path: frame_name(folder, path) for path in files}
    by_stem: dict[str, list[Path]] = defaultdict(list)
    by_bare_stem: dict[str, list[Path]] = defaultdict(list)
    for path, name in names.items():
        stem = label_stem(name)
        by_stem[stem].append(path)
        by_bare_stem[_bare(stem)].append(path)
    frames = {frame: composed(frame) for frame in frames}
    frame_names = set(frames.values())
    # Two frames of one name in different folders must not share the one label of that name.
    bearers = Counter(_bare(frame_stem(name)) for name in frames.values())
    labels: dict[str, Path] = {}
    owners: dict[Path, str] = {}
    for frame, name in frames.items():
        stem = frame_stem(name)
        candidates = by_stem.get(stem) or (
            by_bare_stem.get(_bare(stem), []) if bearers[_bare(stem)] == 1 else []
        )
        exact = [path for path in candidates if names[path] == name]
        # A label of exactly a frame's name is no other frame's.
        candidates = exact or [path for path in candidates if names[path] not in frame_names]
        if len(candidates) > 1:
            some = ", ".join(path.relative_to(folder).as_posix() for path in candidates[:3])
            labelled = f"{len(candidates)} labels in {folder}: {some}"
            raise InputError(f"frame {frame} has {labelled}", hint="remove or rename the others")
        for path in candidates:
            if (owner := owners.setdefault(path, frame)) != frame:
                both = f"the frames {owner} and {frame}"
                raise InputError(
                    f"label {path} fits {both}", hint="give each label the whole name of its frame"
                )
            labels[frame] = path
    return labels


def _bare(name: str) -> str:
    return name.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Part:
    """A folder of images and the folder of their labels, relative to the root; a split has one or
    more.
    """

    images: str
    labels: str
    prefix: str = ""  # of the frames' names, where a split has several parts
    holds: Callable[[frozenset[int]], bool] | None = (
        None  # whether a frame of such raw values is of the split; reads all labels
    )


@dataclass(frozen=True)
class Layout:
    """One published way in which a data set lies on disk."""

    splits: Mapping[str, tuple[Part, ...]]
    image_ending: str = ""  # only images whose stem ends so are frames
    label_ending: str = ""  # only label files whose stem ends so count
    label_stem: Callable[[str], str] = frame_stem  # see :func:`match_labels`

    def describe(self, split: str) -> str:
        """Return how the files of a split lie, in words."""
        images, labels = f"**/*{self.image_ending}.*", f"**/*{self.label_ending}.png"
        return " and ".join(
            f"ROOT/{p.images}/{images} with ROOT/{p.labels}/{labels}" for p in self.splits[split]
        )

    def folders_in(self, root: Path, split: str) -> int:
        """Return how many folders of a split are there."""
        return sum(
            (root / folder).is_dir()
            for part in self.splits[split]
            for folder in (part.images, part.labels)
        )

    def frames(self, root: Path, split: str, described: str) -> list[tuple[str, Path, Path]]:
        """Return name, image and label of each frame of a split, sorted by name within each part;
        InputError, whose hint is ``described``, where images and labels do not belong together.
        """
        frames = {
            frame[0]: frame
            for part in self.splits[split]
            for frame in self._frames_of(root, part, described)
        }
        if not frames:
            raise InputError(
                f"split '{split}' in {root} is empty: no labelled image belongs to it",
                hint=described,
            )
        return list(frames.values())

    def _frames_of(
        self, root: Path, part: Part, described: str
    ) -> Iterator[tuple[str, Path, Path]]:
        images, labels = root / part.images, root / part.labels
        paths: dict[str, Path] = {}
        for path in images_ending_in(images, self.image_ending, described):
            # Road Anomaly has the labels of NAME.jpg in a folder NAME.labels beside it.
            if path.parent.suffix == ".labels":
                continue
            other = paths.setdefault(name := frame_name(images, path), path)
            if other != path:
                raise InputError(f"{other} and {path} are both frame '{name}'", hint="remove one")
        files = images_ending_in(labels, self.label_ending, described)
        label_of = match_labels(labels, files, paths, self.label_stem)
        if missing := [name for name in paths if name not in label_of]:
            lack = f"{len(missing)} of {len(paths)} images in {images} have no label in {labels}, the first is {missing[0]}"
            raise InputError(lack, hint=described)
        instances = f"_inst{self.label_ending}"  # of the same name, in IDD-lite
        if unclaimed := sorted(
            path
            for path in set(files) - set(label_of.values())
            if not path.stem.endswith(instances)
        ):
            lack = f"{len(unclaimed)} of {len(files)} labels in {labels} have no image in {images}"
            raise InputError(
                f"{lack}, the first is {unclaimed[0].relative_to(labels).as_posix()}",
                hint=described,
            )
        for name in paths:
            if part.holds is None or _holds(label_of[name], part.holds):
                yield f"{part.prefix}{name}", paths[name], label_of[name]


def _holds(label: Path, rule: Callable[[frozenset[int]], bool]) -> bool:
    """Return what the rule says of a label; True where it cannot be read, so that whoever reads the
    frame names it.
    """
    try:
        return rule(label_values(label))
    except InputError:
        return True


def same_folders(
    images: str, labels: str, splits: Iterable[str] | Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[Part, ...]]:
    """Return splits whose folders have words of their own at ``{}``: those that a mapping gives, or
    else the split's name.
    """
    words = splits if isinstance(splits, Mapping) else {split: (split,) for split in splits}
    return {
        split: (Part(images.format(*each), labels.format(*each)),) for split, each in words.items()
    }
