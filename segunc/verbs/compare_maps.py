"""``segunc compare`` of maps folders: how they differ, without labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from segunc.colours import DisplayRange
from segunc.core.errors import InputError
from segunc.core.progress import ConsoleProgress
from segunc.core.urls import is_url, local_folder, shown_url
from segunc.data.images import Image
from segunc.decisions.flags import Threshold, check_promises, read_thresholds
from segunc.evaluation.difference_tables import (
    NOT_A_JUDGEMENT,
    heading_of,
    notes_of,
    numbers_of_frame,
    summary_tables,
)
from segunc.evaluation.map_differences import MapsDifference, compare_maps, flag_frame
from segunc.evaluation.map_pairs import ComparedMaps, FrameMaps, MapsPair, SharedFrame
from segunc.frames.source import FrameSource
from segunc.gallery.colours import class_colours, page_ranges
from segunc.gallery.difference_page import (
    ShownClass,
    ShownDifference,
    ShownFrame,
    ShownPicture,
    ShownScore,
    ShownTable,
    draw_changes,
    draw_classes,
    draw_image,
    draw_score,
    joined_range,
    picture_size,
    write_difference_page,
)
from segunc.maps.labelled import open_images, open_maps, with_images
from segunc.options import CompareOptions, PathLike

RESULT_ENDING = ".json"
PAGE_ENDINGS = (".html", ".htm")


def is_folder(place: PathLike) -> bool:
    """Return whether a place is a folder of this machine, or a URL under which maps lie."""
    if is_url(place):
        return not str(place).lower().endswith(RESULT_ENDING)
    return Path(place).is_dir()


def compare_folders(options: CompareOptions) -> list[MapsDifference]:
    """Compare the baseline's maps with those of each other folder, and write the page.

    Raises:
        InputError: folders, thresholds or outputs do not fit.
    """
    _check_options(options)
    folders = _open_folders(options)
    baseline = folders[_baseline(options, folders)]
    others = [maps for maps in folders if maps is not baseline]
    pairs = [MapsPair(baseline, other, options.scores) for other in others]
    differences = [compare_maps(pair, options.top, _followed) for pair in pairs]
    if options.page:
        shown = []
        for pair, difference in zip(pairs, differences, strict=True):
            shown.append(_shown(pair, difference, options.images))
        write_difference_page(Path(options.page), shown, NOT_A_JUDGEMENT)
    return differences


def _check_options(options: CompareOptions) -> None:
    """Raise InputError for options that do not fit maps folders."""
    files = [place for place in options.results if not is_folder(place)]
    if files:
        folder = next(place for place in options.results if is_folder(place))
        raise InputError(
            f"{folder} is a maps folder and {files[0]} is a file: compare takes either maps "
            "folders, or results of segunc evaluate",
            hint=f"segunc evaluate --maps {folder} --anomaly-labels MASKS --out a.json makes a "
            "result, if there are labels",
        )
    if len(options.results) == 1:
        raise InputError(
            f"{options.results[0]} is one maps folder, and compare needs at least two",
            hint=f"segunc compare {options.results[0]} OTHER_MAPS; of one folder, segunc summary "
            f"--maps {options.results[0]} lists the frames that stand out",
        )
    if options.keys is not None:
        raise InputError(
            "--keys chooses numbers of results of segunc evaluate, and these are maps folders",
            hint="--scores chooses the scores of maps",
        )
    if options.page and Path(options.page).suffix.lower() not in PAGE_ENDINGS:
        raise InputError(
            f"--page {options.page} is not an HTML file", hint="--page differences.html"
        )
    _check_outputs(options)


def _check_outputs(options: CompareOptions) -> None:
    """Raise InputError for an output inside one of the maps folders, which hold maps alone."""
    for output in (options.out, options.page):
        for place in options.results:
            if output and Path(output).resolve().is_relative_to(local_folder(place).resolve()):
                raise InputError(
                    f"output {output} lies inside the maps folder {place}",
                    hint="write it to another folder",
                )


def check_results_options(options: CompareOptions) -> None:
    """Raise InputError for a result under a URL, and for options that only maps folders have."""
    for place in options.results:
        if is_url(place):
            raise InputError(
                f"{shown_url(str(place))} is a result under a URL, and compare reads results of "
                "this machine",
                hint="download it first; maps folders may lie under a URL",
            )
    given = {"--flag": bool(options.flag), "--page": bool(options.page)}
    given["--images"] = options.images is not None
    given["--top"] = options.top != CompareOptions.top
    for flag, is_given in given.items():
        if is_given:
            raise InputError(
                f"{flag} is for maps folders, and {options.results[0]} is a file",
                hint=f"leave out {flag}, or compare maps folders",
            )


def _open_folders(options: CompareOptions) -> list[ComparedMaps]:
    """Open the maps folders, each with its name and its thresholds."""
    paths = [local_folder(place).resolve() for place in options.results]
    for path, count in Counter(paths).items():
        if count > 1:
            raise InputError(f"{path} is given twice", hint="give two maps folders")
    names = list(options.names or _names_of(options.results))
    if len(names) != len(options.results):
        raise InputError(
            f"{len(names)} names are given for {len(options.results)} maps folders",
            hint="--names a,b",
        )
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"two maps folders are named '{name}'", hint="--names a,b")
    flags = _flags_of(options.flag, names)
    folders = []
    for name, place in zip(names, options.results, strict=True):
        maps = ComparedMaps(name, open_maps(local_folder(place)), flags[name])
        _check_promises(maps)
        folders.append(maps)
    _check_flagged_scores(folders)
    return folders


def _names_of(places: Sequence[PathLike]) -> list[str]:
    """Return the name of each folder, with the folder above it where two share one."""
    paths = []
    for place in places:
        text = shown_url(str(place)) if is_url(place) else Path(place).resolve().as_posix()
        paths.append(PurePosixPath(text))
    lasts = Counter(path.name for path in paths)
    folder_names = []
    for path in paths:
        shared = lasts[path.name] > 1
        folder_names.append(f"{path.parent.name}/{path.name}" if shared else path.name)
    return folder_names


def _flags_of(words: Sequence[str], names: Sequence[str]) -> dict[str, Mapping[str, Threshold]]:
    """Return the thresholds of each folder by its name.

    Raises:
        InputError: a threshold cannot be read.
    """
    words_of: dict[str, list[str]] = {name: [] for name in names}
    for word in words:
        name, _, own_word = word.partition(":")
        if name in words_of:
            words_of[name].append(own_word)
            continue
        for of_folder in words_of.values():
            of_folder.append(word)
    flags = {name: read_thresholds(of_folder) for name, of_folder in words_of.items()}
    return dict(flags)


def _check_flagged_scores(folders: Sequence[ComparedMaps]) -> None:
    """Raise InputError where a folder has no threshold, or no maps, of a score that is flagged in
    another folder.
    """
    flagged = dict.fromkeys(score for maps in folders for score in maps.flag)
    for score in flagged:
        for maps in folders:
            if score not in maps.reader.scores:
                raise InputError(
                    f"{maps.name} has no maps of {score}, and what is flagged is compared by a "
                    f"score of all folders; it holds {', '.join(maps.reader.scores)}",
                    hint="give each folder a threshold of one score that all of them hold",
                )
            if score not in maps.flag:
                raise InputError(
                    f"there is no threshold of {score} for {maps.name}",
                    hint=f"--flag {maps.name}:{score}=0.5 or --flag {maps.name}:threshold.json "
                    "gives it one",
                )


def _check_promises(maps: ComparedMaps) -> None:
    """Raise InputError for a threshold with a promise for another model than that of a folder."""
    try:
        check_promises(maps.flag, maps.run, maps.reader.sizes())
    except InputError as error:
        raise InputError(
            f"{maps.name}: {error.message}",
            hint="a promise holds for one model: --flag NAME:threshold.json names the folder for "
            f"which a threshold is, as in --flag {maps.name}:other.json; --flag SCORE=VALUE is for "
            "all, without a promise",
        ) from error


def _baseline(options: CompareOptions, folders: Sequence[ComparedMaps]) -> int:
    """Return the place of the baseline, which is named by its name or its folder."""
    if options.baseline is None:
        return 0
    for number, place in enumerate(options.results):
        is_path = not is_url(place) and Path(options.baseline).resolve() == Path(place).resolve()
        if options.baseline in (folders[number].name, str(place)) or is_path:
            return number
    names = ", ".join(maps.name for maps in folders)
    raise InputError(
        f"the baseline {options.baseline} is not one of the maps folders",
        hint=f"give one of {names}",
    )


def _followed(frames: Iterable[FrameMaps]) -> Iterator[FrameMaps]:
    """Pass frames on, and count them on the console."""
    with ConsoleProgress(label="compare") as progress:
        for done, maps in enumerate(frames, start=1):
            yield maps
            progress.count(done, None)


def _shown(pair: MapsPair, difference: MapsDifference, images: PathLike | None) -> ShownDifference:
    """Return what the page shows of two folders, with the pictures of the frames that differ
    most.
    """
    painter = _Painter(pair, difference)
    names = {frame.name for frame in difference.most}
    frames = {frame.first: frame for frame in pair.frames if frame.first in names}
    source, missing = _open_images(pair, list(frames.values()), images)
    drawn: dict[str, tuple[ShownPicture, ...]] = {}
    for name, image, _ in with_images(list(frames), source):
        drawn[name] = painter.draw(frames[name], image)
    shown_frames = []
    for frame in difference.most:
        numbers = numbers_of_frame(difference, frame)
        shown_frames.append(ShownFrame(frame.name, numbers, drawn[frame.name]))
    # The frames that differ most stand below with their numbers.
    tables = [ShownTable(table.title, table.rows) for table in summary_tables(difference)]
    return ShownDifference(
        heading=heading_of(difference),
        tables=tables,
        notes=notes_of(difference),
        frames_title=f"Frames that differ most, by {difference.ranked_by}",
        frames=shown_frames,
        score=painter.score,
        classes=painter.classes(),
        changes=pair.compares_classes,
        missing=f"{missing}." if missing else "",
    )


def _open_images(
    pair: MapsPair, frames: Sequence[SharedFrame], images: PathLike | None
) -> tuple[FrameSource | None, str | None]:
    """Return the source of the images of frames, as either folder records it, and a sentence
    without its full stop on missing ones.
    """
    source, missing = open_images(pair.readers[0], images, [frame.first for frame in frames])
    if missing is None:
        return source, None
    other_source, other_missing = open_images(
        pair.readers[1], images, [frame.second for frame in frames]
    )
    if other_missing is None:
        return other_source, None
    return source, missing


class _Painter:
    """Draws the pictures of a frame of both folders."""

    def __init__(self, pair: MapsPair, difference: MapsDifference) -> None:
        self.pair = pair
        self.score: ShownScore | None = None
        if difference.ranking_score:
            score = difference.ranking_score
            self.score = ShownScore(score, _range_of(pair, score), score in pair.first.flag)
        self.named = class_colours(pair.first.reader)
        self.colours = np.zeros((256, 3), np.uint8)
        for number, described in enumerate(self.named[:256]):
            self.colours[number] = described["colour"]
        self.ids: set[int] = set()  # of the classes that are shown

    def classes(self) -> list[ShownClass]:
        """Return the classes that the pictures drawn so far show, by their ids."""
        shown = []
        for number in sorted(self.ids):
            if number < len(self.named):
                described = self.named[number]
                red, green, blue = described["colour"]
                shown.append(ShownClass(described["name"], (red, green, blue)))
        return shown

    def draw(self, frame: SharedFrame, image: Image | None) -> tuple[ShownPicture, ...]:
        """Draw a frame: its image, the classes and the score of both folders."""
        maps = self.pair.read_frame(frame)
        # Frames that are left out are not among those that differ most.
        assert isinstance(maps, FrameMaps)
        size = picture_size(maps.shape)
        jpeg = b"" if image is None else draw_image(image, size)
        pictures = [ShownPicture("Image", jpeg, wide=True)]
        pictures += self._draw_classes(maps, image, size)
        pictures += self._draw_scores(maps, image, size)
        return tuple(pictures)

    def _draw_classes(
        self, maps: FrameMaps, image: Image | None, size: tuple[int, int]
    ) -> list[ShownPicture]:
        classified = maps.classified()
        if classified is None or maps.predictions is None:
            return []
        pictures = []
        for folder, ids in zip((self.pair.first, self.pair.second), maps.predictions, strict=True):
            self.ids.update(np.unique(ids).tolist())
            jpeg = draw_classes(ids, self.colours, size)
            pictures.append(ShownPicture(f"Classes in {folder.name}", jpeg))
        first, second = maps.predictions
        changed = draw_changes((first != second) & classified, image, size)
        pictures.append(ShownPicture("Class changed", changed, wide=True))
        return pictures

    def _draw_scores(
        self, maps: FrameMaps, image: Image | None, size: tuple[int, int]
    ) -> list[ShownPicture]:
        if self.score is None:
            return []
        flagged = flag_frame(self.pair, maps, self.score.name) if self.score.flagged else None
        pictures = []
        for side, folder in enumerate((self.pair.first, self.pair.second)):
            jpeg = draw_score(
                maps.scores[self.score.name].values[side],
                self.score,
                image,
                size,
                kept=maps.counted,
                regions=None if flagged is None else flagged.masks(side),
            )
            pictures.append(ShownPicture(f"{self.score.name} in {folder.name}", jpeg))
        return pictures


def _range_of(pair: MapsPair, score: str) -> DisplayRange:
    """Return the range of the colours of a score, the same for both folders."""
    first, second = (page_ranges(reader, [score])[score] for reader in pair.readers)
    return joined_range(first, second)
