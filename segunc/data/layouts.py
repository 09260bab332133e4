"""Where the frames and the labels of a data set lie below a folder, and which label belongs to
which frame.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from segunc.core.errors import InputError
from segunc.core.terminal import counted
from segunc.data.frame_names import LABEL_ENDINGS, LABEL_FOLDERS, composed, frame_name, frame_stem
from segunc.data.image_files import (
    LOSSY_SUFFIXES,
    check_names,
    image_files,
    images_ending_in,
    list_images,
)
from segunc.data.images import label_rank
from segunc.data.labels import LabelMap, label_map, label_values
from segunc.data.names import is_label_folder
from segunc.data.pairing import find_kinds, labels_by_name

MIN_PAIRED_SHARE = 0.5
"""Share of the files of a folder that images must have for the folder to hold labels."""


def without_labels(
    root: Path, files: Sequence[Path], rank: Callable[[Path], int] = label_rank
) -> list[Path]:
    """Return the image files below a root that are frames.

    A file is a label if its name has one of the :data:`~segunc.data.frame_names.LABEL_ENDINGS`, if
    it lies in one of the :data:`~segunc.data.frame_names.LABEL_FOLDERS`, if it has one channel and
    lies beside a photograph of its name, or if its folder is named as labels, such as
    ``labels_colour``, and another folder holds their images. Where every file would be a label, all
    are frames.

    Args:
        root: a folder.
        files: the image files below it.
        rank: returns how likely a file holds label values, as :func:`label_rank` does.
    """
    photographs = {path.with_suffix("") for path in files if path.suffix.lower() in LOSSY_SUFFIXES}

    def is_label(path: Path) -> bool:
        if path.stem.endswith(LABEL_ENDINGS):
            return True
        folders = path.relative_to(root).parts[:-1]
        if any(folder.endswith(LABEL_FOLDERS) for folder in folders):
            return True
        is_photograph = path.suffix.lower() in LOSSY_SUFFIXES
        has_photograph = path.with_suffix("") in photographs
        return has_photograph and not is_photograph and rank(path) == 0

    frames = [path for path in files if not is_label(path)]
    labels = _in_label_folders(root, frames)
    return [path for path in frames if path not in labels] or list(files)


def _in_label_folders(root: Path, files: Sequence[Path]) -> set[Path]:
    """Return the files below a root that lie in a folder named as labels whose images another
    folder holds. Photographs are no labels.
    """
    images: list[Path] = []
    files_of_folder: dict[Path, list[Path]] = defaultdict(list)
    for path in files:
        folders = path.relative_to(root).parts[:-1]
        named = [depth for depth, folder in enumerate(folders) if is_label_folder(folder)]
        if named and path.suffix.lower() not in LOSSY_SUFFIXES:
            folder = Path(*folders[: named[0] + 1])
            files_of_folder[folder].append(path)
        elif not named:
            images.append(path)
    labels: set[Path] = set()
    for candidates in files_of_folder.values():
        paired = labels_by_name(images, candidates)
        if images and len(paired) >= MIN_PAIRED_SHARE * len(candidates):
            labels.update(candidates)
    return labels


def possible_labels(folder: Path) -> list[Path]:
    """Return the image files of a folder that may hold label values.

    Files of one channel are taken, or files in colour where there are no others. Photographs may
    lie beside them.
    """
    ranks = {path: label_rank(path) for path in list_images(folder)}
    lowest = min(ranks.values())
    if lowest == 2:
        return []
    return [path for path, rank in ranks.items() if rank == lowest]


def find_labels(
    folder: Path,
    frames: Collection[str],
    layouts: Iterable[Layout] = (),
    is_frame: Callable[[Path], bool] = lambda path: False,
) -> dict[str, Path]:
    """Return the label file of each frame that has one in a folder.

    A frame that has no label but a photograph of its name gets the photograph, so that whoever
    reads it says what is wrong: a damaged label must not pass for one that nobody drew.

    Args:
        folder: holds the labels, and possibly frames.
        frames: names of the frames.
        layouts: the first that finds any label decides; without one, the usual endings do, and
            where these find none, an ending or a beginning that all labels have, as for ``init``.
        is_frame: whether a file is a frame and so no label.
    """
    files_of_rank: dict[int, list[Path]] = defaultdict(list)
    for path in list_images(folder):
        if not is_frame(path):
            files_of_rank[label_rank(path)].append(path)
    for layout in (*layouts, Layout({})):
        labels: dict[str, Path] = {}
        for rank in sorted(files_of_rank):
            candidates = [
                path for path in files_of_rank[rank] if path.stem.endswith(layout.label_ending)
            ]
            unlabelled = [name for name in frames if name not in labels]
            labels |= match_labels(folder, candidates, unlabelled, layout.label_stem)
        if labels:
            return labels
    best_files = files_of_rank[min(files_of_rank)] if files_of_rank else []
    return _labels_of_one_rule(folder, best_files, frames)


def _labels_of_one_rule(
    folder: Path, files: Iterable[Path], frames: Collection[str]
) -> dict[str, Path]:
    """Return the label file of each frame by a rule of names that is learnt from all of them, as
    ``segunc init`` learns it; none where there is no such rule or a choice of several.
    """
    frame_of = {Path(f"{composed(frame)}.png"): frame for frame in frames}
    labels = [path.relative_to(folder) for path in files]
    if not frame_of or not labels:
        return {}
    try:
        kinds = find_kinds(folder, list(frame_of), labels, named=True)
    except InputError:
        return {}
    if len(kinds) > 1:
        return {}
    return {frame_of[image]: folder / label for image, label in kinds[0].label_of.items()}


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
    image apart (:func:`find_labels` learns them where there is one kind). Here each frame stands
    for itself, so two labels of one frame are an error.

    Args:
        folder: that of the labels.
        files: the label files below it.
        frames: names of the frames.
        label_stem: returns what a label's path relative to ``folder``, without suffix, shares with
            its frame's name.

    Raises:
        InputError: two files claim one frame, or two frames one file.
    """
    name_of = {frame: composed(frame) for frame in frames}
    candidates_of = _Candidates(folder, files, name_of.values(), label_stem)
    labels: dict[str, Path] = {}
    owner_of: dict[Path, str] = {}
    for frame, name in name_of.items():
        candidates = candidates_of(name)
        if not candidates:
            continue
        if len(candidates) > 1:
            first = ", ".join(path.relative_to(folder).as_posix() for path in candidates[:3])
            raise InputError(
                f"frame {frame} has {counted(len(candidates), 'label')} in {folder}: {first}",
                hint="remove or rename the others",
            )
        label = candidates[0]
        owner = owner_of.setdefault(label, frame)
        if owner != frame:
            raise InputError(
                f"label {label} fits the frames {owner} and {frame}",
                hint="give each label the whole name of its frame",
            )
        labels[frame] = label
    return labels


class _Candidates:
    """The label files of a folder that may belong to a frame, by the frame's name."""

    def __init__(
        self,
        folder: Path,
        files: Iterable[Path],
        frames: Collection[str],
        label_stem: Callable[[str], str],
    ) -> None:
        self._frames = set(frames)
        self._frames_of_bare_stem = Counter(_without_folders(frame_stem(name)) for name in frames)
        self._name_of = {path: frame_name(folder, path) for path in files}
        self._by_stem: dict[str, list[Path]] = defaultdict(list)
        self._by_bare_stem: dict[str, list[Path]] = defaultdict(list)
        for path, name in self._name_of.items():
            stem = label_stem(name)
            self._by_stem[stem].append(path)
            self._by_bare_stem[_without_folders(stem)].append(path)

    def __call__(self, frame: str) -> list[Path]:
        """Return the files that fit a frame: those of exactly its name, else those of its stem."""
        of_stem = self._of_stem(frame_stem(frame))
        exact = [path for path in of_stem if self._name_of[path] == frame]
        if exact:
            return exact
        # A label that has exactly the name of a frame belongs to no other frame.
        return [path for path in of_stem if self._name_of[path] not in self._frames]

    def _of_stem(self, stem: str) -> list[Path]:
        if stem in self._by_stem:
            return self._by_stem[stem]
        bare_stem = _without_folders(stem)
        # Two frames of one name in different folders must not share the one label of that name.
        if self._frames_of_bare_stem[bare_stem] > 1:
            return []
        return self._by_bare_stem.get(bare_stem, [])


def _without_folders(name: str) -> str:
    return name.rsplit("/", 1)[-1]


class EmptySplitError(InputError):
    """The folders of a split are there, but none of their frames is of the split."""


@dataclass(frozen=True)
class Part:
    """A folder of images and the folder of their labels; a split consists of one or more."""

    images: str
    """Relative to the root of the data set."""
    labels: str
    """Relative to the root of the data set."""
    prefix: str = ""
    """Stands before the names of the frames, where a split has several parts."""
    holds: Callable[[frozenset[int]], bool] | None = None
    """Whether a frame whose label has these raw values is of the split; reads all labels."""
    label_map: str | None = None
    """The label map by which ``holds`` reads labels in colour; None where colours mean nothing."""
    names: tuple[str, ...] = ()
    """Beginnings of the file names of its frames; empty for all files."""
    left_out: tuple[str, ...] = ()
    """Beginnings of the file names of frames that are not of the split."""

    def with_labels(self, labels: str) -> Part:
        """Return the part of a set whose labels are those of another label map. A rule that another
        package wrote stays as it is.
        """
        if self.holds is None:
            return self
        with_labels = getattr(self.holds, "with_labels", None)
        holds = self.holds if with_labels is None else with_labels(labels)
        return replace(self, holds=holds, label_map=labels)

    def has(self, frame: str) -> bool:
        """Return whether a frame is of the split by its file name."""
        name = _without_folders(frame)
        if self.names and not name.startswith(self.names):
            return False
        return not name.startswith(self.left_out)


@dataclass(frozen=True)
class Layout:
    """One published way in which a data set lies on disk."""

    splits: Mapping[str, tuple[Part, ...]]
    image_ending: str = ""
    """Only images whose stem ends so are frames."""
    label_ending: str = ""
    """Only files whose stem ends so are labels."""
    label_stem: Callable[[str], str] = frame_stem
    """What a label's name shares with its frame's, see :func:`match_labels`."""
    labelled_only: bool = False
    """Whether images without a label are left out, as of a folder that holds another set, too."""

    def with_labels(self, labels: str) -> Layout:
        """Return the layout of a set whose labels are those of another label map."""
        splits: dict[str, tuple[Part, ...]] = {}
        for split, parts in self.splits.items():
            splits[split] = tuple(part.with_labels(labels) for part in parts)
        return replace(self, splits=splits)

    def describe(self, split: str) -> str:
        """Return how the files of a split lie, in words."""
        images = f"**/*{self.image_ending}.*"
        labels = f"**/*{self.label_ending}.png"
        return " and ".join(
            f"ROOT/{part.images}/{images} with ROOT/{part.labels}/{labels}"
            for part in self.splits[split]
        )

    def folders_in(self, root: Path, split: str) -> int:
        """Return how many folders of a split exist."""
        count = 0
        for part in self.splits[split]:
            count += bool(folders_of(root, part.images))
            count += bool(folders_of(root, part.labels))
        return count

    def frames(self, root: Path, split: str, described: str) -> list[tuple[str, Path, Path]]:
        """Return name, image and label of each frame of a split, sorted by name within each part.

        Raises:
            InputError: images and labels do not belong together; the hint is ``described``.
        """
        frames: dict[str, tuple[str, Path, Path]] = {}
        for part in self.splits[split]:
            for name, image, label in self._frames_of(root, part, described):
                frames[name] = name, image, label
        if not frames:
            raise EmptySplitError(
                f"split '{split}' in {root} is empty: no labelled image belongs to it",
                hint=described,
            )
        return list(frames.values())

    def _frames_of(
        self, root: Path, part: Part, described: str
    ) -> Iterator[tuple[str, Path, Path]]:
        """Yield name, image and label of each frame of a part."""
        images = root / _fixed(part.images)
        labels = root / _fixed(part.labels)
        image_of = self._images_by_name(root, part.images, described)
        label_files = _files_of(root, part.labels, self.label_ending, described)
        label_of = match_labels(labels, label_files, image_of, self.label_stem)
        frames = [name for name in image_of if part.has(name)]
        if self.labelled_only and label_of:
            frames = [name for name in frames if name in label_of]
        missing = [name for name in frames if name not in label_of]
        if missing:
            raise InputError(
                f"{len(missing)} of {len(frames)} images in {images} have no label in {labels}, "
                f"the first is {missing[0]}",
                hint=described,
            )
        unclaimed = self._without_image(label_files, label_of.values())
        if unclaimed:
            raise InputError(
                f"{len(unclaimed)} of {len(label_files)} labels in {labels} have no image in "
                f"{images}, the first is {unclaimed[0].relative_to(labels).as_posix()}",
                hint=described,
            )
        colours = label_map(part.label_map) if part.label_map is not None else None
        for name in frames:
            if part.holds is None or _holds(label_of[name], part.holds, colours):
                yield f"{part.prefix}{name}", image_of[name], label_of[name]

    def _images_by_name(self, root: Path, pattern: str, described: str) -> dict[str, Path]:
        """Return the images of the folders of a part by the names of their frames."""
        image_of: dict[str, Path] = {}
        folder = root / _fixed(pattern)
        for path in _files_of(root, pattern, self.image_ending, described):
            # Road Anomaly has the labels of NAME.jpg in a folder NAME.labels beside it.
            if path.parent.suffix == ".labels":
                continue
            name = frame_name(folder, path)
            other = image_of.setdefault(name, path)
            if other != path:
                raise InputError(f"{other} and {path} are both frame '{name}'", hint="remove one")
        return image_of

    def _without_image(self, label_files: Iterable[Path], claimed: Collection[Path]) -> list[Path]:
        """Return the labels that no image has, sorted, except labels of instances.

        IDD-lite has labels of instances and of classes with the same ending.
        """
        of_instances = f"_inst{self.label_ending}"
        unclaimed = set(label_files) - set(claimed)
        return sorted(path for path in unclaimed if not path.stem.endswith(of_instances))


def folders_of(root: Path, pattern: str) -> list[Path]:
    """Return the folders of a part that exist; a ``*`` in the pattern stands for any folder."""
    if "*" in pattern:
        return sorted(path for path in root.glob(pattern) if path.is_dir())
    folder = root / pattern
    return [folder] if folder.is_dir() else []


def _fixed(pattern: str) -> str:
    """Return the part of a folder pattern before its first ``*``; names are relative to it."""
    if "*" not in pattern:
        return pattern
    return pattern.partition("*")[0].rpartition("/")[0]


def _files_of(root: Path, pattern: str, ending: str, described: str) -> list[Path]:
    """Return the image files of the folders of a part whose stem ends in ``ending``.

    Raises:
        InputError: there are none; the hint is ``described``.
    """
    if "*" not in pattern:
        files = images_ending_in(root / pattern, ending, described)
        check_names(files)
        return files
    folders = folders_of(root, pattern)
    if not folders:
        raise InputError(f"folder {root / pattern} does not exist", hint=described)
    files = []
    for folder in folders:
        files += [path for path in image_files(folder) if path.stem.endswith(ending)]
    check_names(files)
    if not files:
        kind = f"image whose name ends in '{ending}'" if ending else "image"
        raise InputError(f"folders {root / pattern} hold no {kind}", hint=described)
    return files


def _holds(label: Path, rule: Callable[[frozenset[int]], bool], colours: LabelMap | None) -> bool:
    """Return what a rule says of the values of a label.

    A label that cannot be read gives True, so that whoever reads the frame names the file.

    Args:
        label: the file.
        rule: from raw values to whether the frame is of the split.
        colours: says which colour stands for which value, for a file in colour.
    """
    try:
        return rule(label_values(label, colours))
    except InputError:
        return True


def same_folders(
    images: str, labels: str, splits: Iterable[str] | Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[Part, ...]]:
    """Return splits whose folders differ in the words that stand for ``{}``.

    Args:
        images: folder of the images, with a ``{}`` for each word.
        labels: folder of the labels, likewise.
        splits: the words of each split, or names of splits, which are then their only words.
    """
    words_of = splits if isinstance(splits, Mapping) else {split: (split,) for split in splits}
    parts: dict[str, tuple[Part, ...]] = {}
    for split, words in words_of.items():
        parts[split] = (Part(images.format(*words), labels.format(*words)),)
    return parts
