"""An entry of the table of data sets: where its frames lie, which label belongs to which frame, and
what labels and anomaly masks mean.

A network must not have seen its anomaly, so a frame that holds a pixel of a declared one is left
out of training altogether: ignoring the pixels alone would show the network their surroundings, and
what a border to them looks like.
"""

from __future__ import annotations

import os
import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import read_rows, reading, safe_name
from segunc.data.images import label_rank, read_label_image
from segunc.data.labels import (
    IGNORE,
    LabelMap,
    compact_ranges,
    label_map,
    label_values,
    mixed_masks,
    recode,
)

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
"""File name endings that are read as images (any case)."""
LOSSY_SUFFIXES = (".jpg", ".jpeg", ".webp")  # of photographs, which are no labels
FRAME_ENDINGS = (
    "_leftImg8bit",
    "_rgb_anon",
    "_image",
    "_rgb",
)  # endings of frame names that label names do not carry
LABEL_ENDINGS = (
    *(
        "_gtFine_labelIds",
        "_gtCoarse_labelIds",
        "_gt_labelTrainIds",
        "_labelIds",
        "_leftLabel",
        "_train_id",
    ),
    *(
        "_gtFine_labellevel3Ids",
        "_labels_semantic",
        "_anomaly",
        "_labels",
        "_label",
        "_mask",
        "_gt",
    ),
)
"""Endings of label names that frame names do not carry."""
LABEL_FOLDERS = (
    "labels",
    "labels_masks",
    "masks",
    "annotations",
    "annot",
    "gtFine",
    "gtCoarse",
    "gtAnomaly",
)
"""Usual names of folders that hold labels, or endings of these names."""


def frame_stem(name: str) -> str:
    """Return the part of a frame's or label's name that both share: known endings removed, folders
    kept.
    """
    for ending in (*LABEL_ENDINGS, *FRAME_ENDINGS):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def list_images(folder: Path) -> list[Path]:
    """Return all image files below a folder, sorted by relative path; raise InputError where it is
    missing or holds none.
    """
    return _files(folder, "", f"image names end in {', '.join(IMAGE_SUFFIXES)}")


def image_files(folder: Path) -> list[Path]:
    """Return all image files below a folder but hidden ones, sorted by relative path; none where
    there is no such folder.
    """
    files = (
        path for path in folder.rglob("*") if is_image_file(path) and not is_hidden(path, folder)
    )
    return sorted(files, key=lambda path: path.relative_to(folder).as_posix())


def is_hidden(path: Path, folder: Path) -> bool:
    """Return whether a path below a folder is hidden, such as the file ``._NAME`` that a Mac writes
    beside NAME on a foreign disk.
    """
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def is_image_file(path: Path) -> bool:
    """Return whether a path is a file that is named as an image."""
    return (
        path.suffix.lower() in IMAGE_SUFFIXES and not path.is_dir()
    )  # a broken link raises an error when it is read


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


def composed(name: str) -> str:
    """Return a name in the composed form of Unicode (NFC): a Mac writes an accent as a character of
    its own.
    """
    return unicodedata.normalize("NFC", name)


def frame_name(folder: Path, path: Path) -> str:
    """Return a frame's or label's name: the path relative to the folder, without suffix,
    :func:`composed`.
    """
    return composed(path.relative_to(folder).with_suffix("").as_posix())


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
        for path in _files(images, self.image_ending, described):
            # Road Anomaly has the labels of NAME.jpg in a folder NAME.labels beside it.
            if path.parent.suffix == ".labels":
                continue
            other = paths.setdefault(name := frame_name(images, path), path)
            if other != path:
                raise InputError(f"{other} and {path} are both frame '{name}'", hint="remove one")
        files = _files(labels, self.label_ending, described)
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


def _files(folder: Path, ending: str, described: str) -> list[Path]:
    """Return the image files of a folder whose stem ends in ``ending``; raise InputError where
    there are none.
    """
    files = [path for path in image_files(folder) if path.stem.endswith(ending)]
    if not files:
        lack = f"holds no image *{ending}.png|jpg|..." if folder.is_dir() else "does not exist"
        raise InputError(f"folder {folder} {lack}", hint=described)
    return files


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


@dataclass(frozen=True)
class AnomalyEncoding:
    """The raw values 0..255 of an anomaly mask and what they mean."""

    name: str
    normal: frozenset[int]
    anomaly: frozenset[int]
    ignored: frozenset[int] = frozenset()  # no metric counts these pixels
    labels: LabelMap | None = None  # by whose colours files may say their values

    def read(self, path: Path) -> npt.NDArray[np.uint8]:
        """Return the mask of a file as :meth:`encode` does."""
        return self.encode(
            self.labels.read_ids(path) if self.labels else read_label_image(path),
            f"anomaly label {path}",
        )

    def encode(
        self, raw: npt.NDArray[np.integer], source: str = "anomaly label"
    ) -> npt.NDArray[np.uint8]:
        """Return uint8 ``[H, W]`` with 0 normal, 1 anomaly, 255 ignored of a raw mask; InputError
        for an unknown value.
        """
        codes = (
            dict.fromkeys(self.normal, 0)
            | dict.fromkeys(self.anomaly, 1)
            | dict.fromkeys(self.ignored, IGNORE)
        )
        known_values = f"those of the anomaly encoding '{self.name}' ({self})"
        return recode(
            raw, codes, source, known_values, "name the --dataset that the masks belong to"
        )

    def __str__(self) -> str:
        parts = (("normal", self.normal), ("anomaly", self.anomaly), ("ignored", self.ignored))
        return ", ".join(f"{compact_ranges(values)} = {word}" for word, values in parts if values)


BINARY = AnomalyEncoding("binary", frozenset({0}), frozenset({1}), frozenset({IGNORE}))
"""0 normal, 1 anomaly, 255 ignored: Fishyscapes, SegmentMeIfYouCan and this project's own sets."""
WHITE_ANOMALIES = "folder-255"  # the data set of one's own files whose masks are black and white
ROAD_ANOMALY = AnomalyEncoding("road-anomaly", frozenset({0}), frozenset({2}))
"""Road Anomaly (Lis et al., ICCV 2019): 2 is the anomaly."""


def check_masks(files: Iterable[Path], encoding: AnomalyEncoding) -> None:
    """Raise InputError where no mask of a set holds a value but 0 and 255, and the encoding ignores
    255: many tools write 255 for the anomaly, and then every anomaly would be left out. Warn where
    some masks do so, and others hold 1 (:class:`NoteWarning`).
    """
    if IGNORE not in encoding.ignored or 0 not in encoding.normal:
        return
    values_of: dict[Path, frozenset[int]] = {}
    for file in files:
        with suppress(InputError):  # whoever reads its frame says what is wrong
            values_of[file] = label_values(file, encoding.labels)
            if not values_of[file] <= {0, 1, IGNORE} or values_of[file] >= {1, IGNORE}:
                return
    mixed = mixed_masks(values_of)
    if mixed:
        warnings.warn(
            f"anomaly mask {mixed[0]} holds 0 and 1, and {mixed[1]} 0 and 255, which is ignored: "
            "if 255 marks anomalies there, they are left out; write these masks alike",
            NoteWarning,
            stacklevel=2,
        )
    values = frozenset[int]().union(*values_of.values())
    if values == {0, IGNORE}:
        fact = f"no anomaly mask, the last is {file}, holds a value but 0 and 255, and 255 is ignored, so nothing is an anomaly"
        raise InputError(
            fact, hint=f"--dataset {WHITE_ANOMALIES} if 255 marks the anomalies, else give no masks"
        )


@dataclass(frozen=True)
class Sample:
    """One frame of a data set, by a name that is unique in it, and its labels; both may be the same
    file.
    """

    name: str
    image: Path
    label: Path | None  # the class label, or None where its classes are not asked about
    anomaly: Path | None = (
        None  # the label that marks anomalies, or None where they are not asked about
    )


FRAME_COLUMNS = ("split", "image", "label")  # of a list of frames
DISJOINT_SPLITS = ("train", "val", "validation", "test")  # no frame may be in two of them
LOOKED_AT = 20  # labels of a split, spread over it, that show whether the split has classes
# Frames of ``train`` that stand in for ``val`` where every frame of ``val`` holds an anomaly.
HOLDOUT = 30


def _check_names(listed: Path, rows: Iterable[Sequence[str]]) -> None:
    """Raise InputError where two rows of a list of frames have images of one name in one split."""
    image_of: dict[tuple[str, str], str] = {}  # by split and name of the frame
    for split, image, _ in rows:
        name = split, os.path.splitext(_normal(image))[0]
        if name in image_of:
            other = image_of[name]
            both = f"{image} twice" if other == image else f"{other} and {image}"
            raise InputError(
                f"{listed} has {both} in split {split}, which is one frame by its name",
                hint="remove one of the two rows",
            )
        image_of[name] = image


def _in_two_splits(listed: Path, rows: Iterable[Sequence[str]]) -> str:
    """Return a sentence on the images that are in two of the :data:`DISJOINT_SPLITS` of a list of
    frames; empty where none is.
    """
    split_of: dict[str, str] = {}
    shared: list[str] = []
    for split, image, _ in rows:
        if split in DISJOINT_SPLITS:
            other = split_of.setdefault(_normal(image), split)
            if other != split:
                shared.append(f"{image} is both in {other} and in {split}")
    if not shared:
        return ""
    return f"{listed} has {len(shared)} images in two splits: {shared[0]}"


def _normal(image: str) -> str:
    """Return the path of an image in one spelling."""
    return composed(os.path.normpath(image))


@dataclass(frozen=True)
class DatasetEntry:
    """A data set by name.

    With ``declared`` anomalies training sees the frames of ``train`` without one, and selection
    those of ``val``; where ``val`` has none, the last :data:`HOLDOUT` training frames by name:
    frames of one drive resemble their neighbours, and a block at the end has these on one side
    only. Evaluation, of any split: a frame with an anomaly gives its anomaly label, one without
    gives its class labels. Sets with anomaly classes of their own give both labels of every frame,
    as their protocols do.
    """

    name: str
    layouts: tuple[
        Layout, ...
    ]  # how the files lie below the root; the first whose folders are there is read
    labels: str | None = (
        None  # name or CSV path of the class label map, None where the set has no class labels
    )
    anomaly_classes: tuple[
        str, ...
    ] = ()  # classes of ``labels`` that no network is trained on and that are anomalies
    anomaly_masks: AnomalyEncoding | None = (
        None  # the encoding of masks that mark anomalies and no classes
    )
    declared: tuple[
        str, ...
    ] = ()  # classes of ``labels`` that the user declares anomalies beside these
    source: str = "see docs/data-sets.md"  # where the data come from
    listed: Path | None = (
        # A CSV of split,image,label in the place of the layouts, its paths relative to the root.
        None
    )

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have labels."""
        if self.listed is not None:
            return tuple(dict.fromkeys(split for split, _, _ in self._rows()))
        return tuple(self.layouts[0].splits)

    def _rows(self) -> list[list[str]]:
        """Return split, image and label of each frame of the list."""
        assert self.listed is not None
        with reading(
            f"list of frames {self.listed}", "a CSV file in UTF-8", "segunc init writes it"
        ):
            header, *rows = read_rows(self.listed) or [[]]
        if (
            tuple(header) != FRAME_COLUMNS
            or not rows
            or any(len(row) != len(header) for row in rows)
        ):
            shown = f"{self.listed} does not hold rows of {','.join(FRAME_COLUMNS)} under that line"
            raise InputError(shown, hint="write it again with segunc init")
        for _, image, label in rows:
            for path in (image, label):
                self._check_below_root(path)
        _check_names(self.listed, rows)
        return rows

    def _check_below_root(self, path: str) -> None:
        """Raise InputError for a path of the list that is absolute or leads above the root: the
        list may be a stranger's."""
        # ./a.png is a path below the root, as a.png is.
        below = PurePosixPath(path).as_posix()
        try:
            safe_name(below, f"a file of the list of frames {self.listed}")
        except InputError as error:
            hint = "write paths below the root with /, and give a root that holds all files"
            raise InputError(error.message, hint=hint) from error

    def usual_split(self, root: Path) -> str:
        """Return the split that is evaluated where nobody names one: the first of test, val,
        validation and all, or else of the others, that has labels and a folder below the root.
        """
        usual = [name for name in ("test", "val", "validation", "all") if name in self.splits]
        names = [
            *usual,
            *(name for name in self.splits if name not in (*usual, "train")),
            *self.splits,
        ]
        for name in names:
            if self.listed is None:
                if any(layout.folders_in(root, name) for layout in self.layouts):
                    return name
            elif self._has_classes(root, name):
                return name
            else:
                warnings.warn(
                    f"split {name} of {self.listed} is left aside: the labels of it that were looked at hold no class",
                    NoteWarning,
                    stacklevel=2,
                )
        return names[0]

    def _has_classes(self, root: Path, split: str) -> bool:
        """Return whether labels that are spread over a split of the list hold any class; True where
        that cannot be read, so that whoever reads the frames says why. Published labels of test
        frames may be dummies.
        """
        if self.labels is None:
            return True
        labels = label_map(self.labels)
        files = [root / label for name, _, label in self._rows() if name == split]
        places = np.linspace(0, len(files) - 1, min(LOOKED_AT, len(files))).astype(int)
        for place in places.tolist():
            try:
                values = label_values(files[place], labels)
            except InputError:
                return True
            if any(labels.raw_to_train.get(value, 0) != IGNORE for value in values):
                return True
        return False

    @property
    def anomalies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.anomaly_classes, *self.declared]))

    @cached_property
    def anomaly_encoding(self) -> AnomalyEncoding | None:
        """What the values of :attr:`Sample.anomaly` files mean, or None where the set marks no
        anomalies.
        """
        if self.labels is None or not self.anomalies:
            return self.anomaly_masks
        labels = label_map(self.labels)
        anomaly = labels.raw_ids(self.anomalies)
        ignored = frozenset(raw for raw, train in labels.raw_to_train.items() if train == IGNORE)
        normal = frozenset(labels.raw_to_train) - anomaly - ignored
        return AnomalyEncoding(
            f"{labels.name}: {', '.join(self.anomalies)}", normal, anomaly, ignored, labels
        )

    def label_map(self) -> LabelMap:
        """Return the class label map: anomaly classes are ignored, the others numbered without a
        gap.
        """
        if self.labels is None:
            lack = f"data set {self.name} has no class labels"
            raise InputError(lack, hint="give a --label-map, or another data set")
        return label_map(self.labels).without(self.anomalies)

    def samples(self, root: Path, split: str) -> list[Sample]:
        """Return the labelled frames of one split for evaluation, each with the labels that it is
        asked about.
        """
        samples = self._every_sample(root, split)
        if self.listed is not None and (fact := _in_two_splits(self.listed, self._rows())):
            warnings.warn(
                f"{fact}, so a network that was trained with this list has seen it",
                NoteWarning,
                stacklevel=2,
            )
        if not self.declared or self.anomaly_classes:
            return samples
        asked = []
        for sample in samples:
            anomalous = False
            with suppress(
                InputError
            ):  # an unreadable label must cost its own frame, which whoever reads it reports
                anomalous = self._holds_anomaly(sample)
            asked.append(
                replace(sample, label=None) if anomalous else replace(sample, anomaly=None)
            )
        return asked

    def training_samples(self, root: Path, split: str) -> list[Sample]:
        """Return the frames of split ``train``, or of ``val`` to select hyper-parameters on."""
        self.label_map()  # InputError where there are no class labels to train on
        if self.listed is not None and (fact := _in_two_splits(self.listed, self._rows())):
            raise InputError(fact, hint="remove one of the two rows of each")
        if not self.declared:
            return self._every_sample(root, split)

        def known(split: str) -> list[Sample]:
            return [
                sample
                for sample in self._every_sample(root, split)
                if not self._holds_anomaly(sample)
            ]

        val = known("val") if "val" in self.splits else []
        if split == "val" and val:
            return val
        train, needed = known("train"), 0 if val else HOLDOUT
        if len(train) <= needed:
            few = (
                f"{len(train)} frames of train in {root} are without {' or '.join(self.anomalies)}"
            )
            raise InputError(
                f"{few}, and {needed} are held out to select on",
                hint="declare another class the anomaly",
            )
        first = len(train) - needed
        return train[:first] if split == "train" else train[first:]

    def _every_sample(self, root: Path, split: str) -> list[Sample]:
        if split not in self.splits:
            message = f"data set {self.name} has no split '{split}' with public labels"
            raise InputError(message, hint=f"one of {', '.join(self.splits)}")
        if self.listed is not None:
            rows = [
                (root / image, root / label) for name, image, label in self._rows() if name == split
            ]
            if gone := [path for pair in rows for path in pair if not path.exists()]:
                lack = (
                    f"{len(gone)} files of {self.listed} are not in {root}, the first is {gone[0]}"
                )
                hint = "--data.root (or --root) is the folder that segunc init was given; or run it again"
                raise InputError(lack, hint=hint)
            frames = [(frame_name(root, image), image, label) for image, label in rows]
        else:
            described = " or ".join(layout.describe(split) for layout in self.layouts)
            described = f"data set {self.name} lies as {described} ({self.source})"
            # Where no layout is complete, the one that has come the farthest says what it lacks.
            best_layout = max(self.layouts, key=lambda layout: layout.folders_in(root, split))
            there = [
                name
                for name in self.splits
                if any(layout.folders_in(root, name) for layout in self.layouts)
            ]
            if there and split not in there:
                raise InputError(
                    f"{root} has no split '{split}', but {', '.join(there)}", hint=described
                )
            frames = best_layout.frames(root, split, described)
        classes, anomalies = self.labels is not None, self.anomaly_encoding is not None
        return [
            Sample(name, image, label if classes else None, label if anomalies else None)
            for name, image, label in frames
        ]

    def _holds_anomaly(self, sample: Sample) -> bool:
        assert sample.label is not None
        assert self.anomaly_encoding is not None
        return not self.anomaly_encoding.anomaly.isdisjoint(
            label_values(sample.label, self.anomaly_encoding.labels)
        )


def encoding_of_masks(entry: DatasetEntry | None) -> AnomalyEncoding:
    """Return what the values of anomaly masks mean: as in a data set that has such masks, else
    :data:`BINARY`.
    """
    return (entry and entry.anomaly_encoding) or BINARY
