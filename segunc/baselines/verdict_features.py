"""Verdicts of reviewers as changes of a bank of features.

Regions that a reviewer called false alarms enter the bank. Regions that were called true, or part
of a missed object, stay out, and the features of the bank within them are removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from segunc.baselines.density import Neighbours, places_of, unit_features
from segunc.baselines.feature_extractor import FeatureExtractor
from segunc.core.device import full_float32
from segunc.core.errors import InputError
from segunc.core.files import file_sha256
from segunc.core.places import names_apart, without_place
from segunc.core.terminal import counted
from segunc.data.frame_names import composed
from segunc.data.images import AnyImage
from segunc.data.labels import IGNORE
from segunc.gallery.review_page import run_id
from segunc.maps.labelled import open_images, open_maps
from segunc.maps.learned_frames import named
from segunc.maps.reader import MapsReader
from segunc.maps.verdicts import (
    JudgedRegion,
    Verdict,
    merge_verdicts,
    note_on_dates,
    read_verdict_files,
)
from segunc.networks.network import SegmentationNetwork, inference_size
from segunc.sampling.sampler import network_input

FALSE_ALARM = "false-alarm"
STAY_OUT = ("true-alarm", "missed")
"""Verdicts on regions that show what should be found."""
SAME_FEATURE = 1e-3
"""Distance up to which a stored feature is that of a place itself. Storing it in 16 bits moves it
by about 2e-4.
"""
HELD_DISTANCE = 0.05
"""Mean distance over the maps up to which the bank holds what a region shows. Objects that the bank
does not hold had .44 to .62 on frames of Lost and Found, with blocks 5 and 6 of lite0.
"""
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class JudgedFrame:
    """The regions of one frame that reviewers judged."""

    name: str
    false_alarms: tuple[JudgedRegion, ...]
    to_find: tuple[JudgedRegion, ...]  # called true, or part of a missed object


@dataclass(frozen=True)
class JudgedRun:
    """The maps that verdicts are on, and the regions that were judged."""

    reader: MapsReader
    run: str  # id of the run
    files: Mapping[str, str]  # name of each file of verdicts -> SHA-256, see names_apart
    frames: tuple[JudgedFrame, ...]
    notes: tuple[str, ...]

    @property
    def false_alarms(self) -> int:
        """Number of regions that were called false alarms."""
        return sum(len(frame.false_alarms) for frame in self.frames)

    @property
    def to_find(self) -> int:
        """Number of regions that were called true, or part of a missed object."""
        return sum(len(frame.to_find) for frame in self.frames)

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width to which ``predict --size`` resized the frames; None without it."""
        size = self.settings.get("size")
        return None if size is None else (int(size[0]), int(size[1]))

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the maps record of their run."""
        record: Mapping[str, Any] = (self.reader.manifest or {}).get("run", {})
        return record

    @property
    def images(self) -> str:
        """The folder or the video of the frames, without the place on this machine."""
        return without_place(str(self.settings.get("input") or ""))

    def flagged_by(self) -> tuple[str, float, str] | None:
        """Return the score, the threshold and the preparation of the map that flagged most of the
        false alarms; None where all were drawn by hand. A preparation that is not recorded is none.
        """
        flags: Counter[tuple[str, float, str]] = Counter()
        for frame in self.frames:
            for region in frame.false_alarms:
                if region.score is not None and region.threshold is not None:
                    flags[region.score, region.threshold, region.preparation or ""] += 1
        return flags.most_common(1)[0][0] if flags else None

    def check_model(self, base_sha256: str, features_sha256: str) -> None:
        """Raise InputError where the maps are of another network or of another bank."""
        maps = self.reader.folder
        recorded = self.settings.get("base_sha256")
        if recorded != base_sha256:
            raise InputError(
                f"{maps} holds maps of the network {str(recorded)[:12]}, and the base has the "
                f"network {base_sha256[:12]}",
                hint="give the model that made these maps as --base",
            )
        features = self.settings.get("features_sha256")
        if features not in (None, features_sha256):
            raise InputError(
                f"{maps} holds maps made with the feature bank {features[:12]}, and the base has "
                f"the bank {features_sha256[:12]}",
                hint="give the model that made these maps as --base, or predict with the base and "
                "review these maps",
            )


def read_judged(files: Sequence[Path], maps: str | None) -> JudgedRun:
    """Return the regions that reviewers judged.

    Args:
        files: of verdicts, which review pages of one run exported as JSON.
        maps: the maps folder of the run.

    Raises:
        InputError: no maps, maps of another tool, or verdicts of another run.
    """
    if maps is None:
        raise InputError(
            "features.verdicts says nothing of the run that the verdicts are on",
            hint="--features.maps MAPS, the folder that was reviewed",
        )
    reader = open_maps(Path(maps))
    if reader.manifest is None:
        raise InputError(
            f"{reader.place} holds maps of another tool, which do not say of which network",
            hint="give maps of segunc predict",
        )
    run = run_id(reader)
    on_images = read_verdict_files(files, run, reader)
    verdicts = merge_verdicts(on_images.lists)
    notes = on_images.notes
    dates = note_on_dates(verdicts)
    if dates:
        notes.append(dates)
    of_frames = sum(verdict.region is None and verdict.verdict != "" for verdict in verdicts)
    if of_frames:
        notes.append(
            f"{counted(of_frames, 'verdict', 'is')} on whole frames, which have no place in the "
            "bank"
        )
    false_alarms = _regions(verdicts, [FALSE_ALARM])
    to_find = _regions(verdicts, STAY_OUT)
    disputed = false_alarms.keys() & to_find.keys()
    if disputed:
        notes.append(
            f"{_counted(len(disputed), 'region')} called false by one reviewer and true or missed "
            "by another: out of the bank"
        )
    for key in disputed:
        del false_alarms[key]
    return JudgedRun(
        reader=reader,
        run=run,
        files={name: file_sha256(file) for name, file in names_apart(files).items()},
        frames=_by_frame(false_alarms, to_find),
        notes=tuple(notes),
    )


RegionKey = tuple[str, str | None, tuple[int, ...]]  # frame, score and box


def _regions(verdicts: Sequence[Verdict], kinds: Sequence[str]) -> dict[RegionKey, JudgedRegion]:
    """Return the regions with a verdict of some kinds, each once however many reviewers gave it."""
    regions: dict[RegionKey, JudgedRegion] = {}
    for verdict in verdicts:
        region = verdict.region
        if region is not None and verdict.verdict in kinds:
            regions[verdict.frame, region.score, region.box] = region
    return regions


def _by_frame(
    false_alarms: Mapping[RegionKey, JudgedRegion], to_find: Mapping[RegionKey, JudgedRegion]
) -> tuple[JudgedFrame, ...]:
    """Return the judged regions of each frame that has one."""
    frames = []
    for name in dict.fromkeys(key[0] for key in (*false_alarms, *to_find)):
        of_frame = [region for key, region in false_alarms.items() if key[0] == name]
        shown = [region for key, region in to_find.items() if key[0] == name]
        frames.append(JudgedFrame(name, tuple(of_frame), tuple(shown)))
    return tuple(frames)


def images_of(
    reader: MapsReader, names: Sequence[str], images: str | None
) -> Iterator[tuple[str, AnyImage]]:
    """Yield frames of a run with their images, one image in memory at a time.

    Args:
        reader: of the maps.
        names: of the frames.
        images: where the images are now; None takes the place that the maps record.

    Raises:
        InputError: a frame has no image, or not the one that was predicted.
    """
    hint = "--features.images FOLDER|VIDEO, where the frames of the maps are now"
    source, missing = open_images(reader, images, names)
    waiting = {composed(name): name for name in names}
    if source is not None:
        for frame in source.frames(lambda _, name: composed(name) not in waiting):
            name = waiting.pop(composed(frame.name), None)
            if name is None:
                continue
            if frame.image is None:
                raise InputError(f"frame '{name}' cannot be read: {frame.error}", hint=hint)
            stamp = reader.image_hash(name)
            if stamp is not None and frame.stamp is not None and stamp != frame.stamp:
                raise InputError(
                    f"frame '{name}' in {images} is not the image that was predicted", hint=hint
                )
            yield name, frame.image
            if not waiting:
                return
    if waiting:
        first = next(iter(waiting.values()))
        reason = f": {missing}" if missing and source is None else ""
        raise InputError(
            f"{counted(len(waiting), 'frame')} with verdicts "
            f"{'lacks' if len(waiting) == 1 else 'lack'} an image, first "
            f"'{first}'{reason}",
            hint=hint,
        )


def mask_of(region: JudgedRegion) -> Mask:
    """Return the pixels of a region as bool ``[H, W]``."""
    height, width = region.size
    mask = np.zeros(height * width, bool)
    for start, length in zip(region.mask[::2], region.mask[1::2], strict=True):
        mask[start : start + length] = True
    return mask.reshape(height, width)


def pixels_of(regions: Sequence[JudgedRegion], shape: tuple[int, int]) -> Mask:
    """Return the pixels of all regions as bool ``[H, W]``."""
    pixels = np.zeros(shape, bool)
    for region in regions:
        pixels |= mask_of(region)
    return pixels


def _check_size(region: JudgedRegion, name: str, shape: tuple[int, int]) -> None:
    """Raise InputError for a region of a frame of another size than its image ``[H, W]``."""
    if tuple(region.size) != shape:
        rows, columns = region.size
        raise InputError(
            f"a region of frame '{name}' was judged on {columns} x {rows} pixels, and the image "
            f"has {shape[1]} x {shape[0]}",
            hint="export the verdicts of this run from its page again",
        )


def _with_neighbours(places: Tensor) -> Tensor:
    """Return places ``[h, w]`` and those beside them, whose features have seen them, too."""
    return F.max_pool2d(places[None, None].float(), 3, 1, 1)[0, 0] > 0


@dataclass
class GrownMap:
    """The bank of one layer and size while verdicts change it."""

    bank: Tensor  # float16 [N, D]
    origins: Tensor  # [N, 4]: number of the frame, row, column, train id
    added: list[Tensor] = field(default_factory=list)
    added_origins: list[Tensor] = field(default_factory=list)

    def add(self, features: Tensor, frame: int, places: Tensor) -> None:
        """Add features ``[M, D]`` of a frame at places ``[M, 3]``."""
        numbers = torch.full((len(features), 1), float(frame))
        self.added.append(features.half())
        self.added_origins.append(torch.cat([numbers, places], 1))

    def remove(self, frame: int, seen: SeenMap, places: Tensor, shape: tuple[int, int]) -> int:
        """Remove the features of a frame at some places, and return their number. A frame of the
        bank that only has the same name keeps its features.

        Args:
            frame: its number in the bank.
            seen: the feature map of the frame.
            places: where to remove features, bool ``[h, w]``.
            shape: height and width of the frame.
        """
        of_frame = (self.origins[:, 0] == frame).nonzero().flatten()
        if not places.any() or not len(of_frame):
            return 0
        stored = F.normalize(self.bank[of_frame].float(), dim=1)
        if Neighbours(seen.features)(stored).min() > SAME_FEATURE:
            return 0
        rows, columns = seen.size
        row_shares = self.origins[of_frame, 1] * shape[0] / seen.covered[0]
        column_shares = self.origins[of_frame, 2] * shape[1] / seen.covered[1]
        row = (row_shares * rows).long().clamp_max(rows - 1)
        column = (column_shares * columns).long().clamp_max(columns - 1)
        kept = torch.ones(len(self.bank), dtype=torch.bool)
        kept[of_frame[places[row, column]]] = False
        self.bank = self.bank[kept]
        self.origins = self.origins[kept]
        return int((~kept).sum())

    def finish(self) -> None:
        """Put what was added behind the other features."""
        self.bank = torch.cat([self.bank, *self.added])
        self.origins = torch.cat([self.origins, *self.added_origins])
        self.added = []
        self.added_origins = []


@dataclass(frozen=True)
class RegionToFind:
    """A region that should be found, and how far its features are from the bank."""

    frame: str
    distance: float  # mean over the maps of the distance of its farthest place
    nearest: str  # frame of the bank whose feature is nearest to that place


@dataclass(frozen=True)
class Growth:
    """What verdicts changed in a bank."""

    maps: tuple[GrownMap, ...]
    frames: tuple[str, ...]  # names of all frames of the bank
    added: int  # features
    removed: int  # features
    to_find: tuple[RegionToFind, ...]
    learned: tuple[str, ...]  # frames whose features entered or were removed

    def tensors(self) -> dict[str, Tensor]:
        """Return ``N.bank`` and ``N.origins`` of each map N."""
        tensors = {}
        for index, grown in enumerate(self.maps):
            tensors[f"{index}.bank"] = grown.bank.contiguous()
            tensors[f"{index}.origins"] = grown.origins.contiguous()
        return tensors

    def record(self, judged: JudgedRun) -> dict[str, Any]:
        """Return what the record of the bank says of this round of verdicts."""
        return {
            "run": judged.run,
            "files": dict(judged.files),
            "false_alarms": judged.false_alarms,
            "to_find": judged.to_find,
            "frames": len(judged.frames),
            "added": self.added,
            "removed": self.removed,
            "images": judged.images,
            "learned": {name: judged.reader.image_hash(name) for name in self.learned},
        }

    def note_on_tests(self, judged: JudgedRun) -> str:
        """Return that the frames of the verdicts test the model no more."""
        of_images = f" of {judged.images}" if judged.images else ""
        return (
            f"numbers on the {_counted(len(self.learned), 'frame')}{of_images} that changed the "
            f"bank ({named(self.learned)}) are too good from now on: test this model on other "
            "frames"
        )

    def sentences(self, judged: JudgedRun) -> list[str]:
        """Return what a reviewer should know of the new bank."""
        frames = sum(bool(frame.false_alarms) for frame in judged.frames)
        sentences = [
            f"Into the bank: {_counted(judged.false_alarms, 'false alarm')} on "
            f"{_counted(frames, 'frame')}, with {_counted(self.added, 'feature')}.",
        ]
        if judged.to_find:
            sentences.append(
                f"Out of the bank: {_counted(judged.to_find, 'region')} called true or missed, "
                f"with {_counted(self.removed, 'feature')} that it held."
            )
        held = [region for region in self.to_find if region.distance <= HELD_DISTANCE]
        if held:
            worst = min(held, key=lambda region: region.distance)
            sentences.append(
                f"The bank holds what should be found: {len(held)} of {len(self.to_find)} regions "
                f"called true or missed, first on frame {worst.frame}, look like frame "
                f"{worst.nearest} of the bank (distance {worst.distance:.3f}). Make a bank without "
                "that frame, or label the object in it."
            )
        return sentences


def _counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


@dataclass(frozen=True)
class BankBefore:
    """A bank before verdicts change it."""

    tensors: Mapping[str, Tensor]  # N.bank [M, D] and N.origins [M, 4] of each map N
    frames: tuple[str, ...]  # names of its frames
    whole: bool  # whether the encoder sees frames at their own size


@dataclass(frozen=True)
class SeenMap:
    """A feature map of a frame, and which part of the frame it covers."""

    features: Tensor  # [h w, D] of length 1
    size: tuple[int, int]  # h and w
    covered: tuple[int, int]  # height and width in pixels of the frame

    def places_with(self, pixels: Mask) -> Tensor:
        """Return which places hold some of the pixels ``[H, W]`` of the frame, bool ``[h, w]``."""
        labels = np.where(pixels, np.uint8(0), np.uint8(IGNORE))
        places = places_of(torch.from_numpy(labels), self.size, self.covered)
        return (places[:, 2] == 0).view(self.size)

    def centres(self, shape: tuple[int, int]) -> Tensor:
        """Return row and column of each place as shares of the frame's height and width, and the
        train id of no class, ``[h w, 3]``.
        """
        labels = torch.full(shape, IGNORE, dtype=torch.uint8)
        return places_of(labels, self.size, self.covered)


class BankGrowth:
    """Changes a bank by verdicts, one frame after the other.

    Args:
        network: that the features belong to.
        extractor: of the features.
        before: the bank.
        size: (height, width) to which frames are resized for the network; None is its inference
            size.
    """

    def __init__(
        self,
        network: SegmentationNetwork,
        extractor: FeatureExtractor,
        before: BankBefore,
        size: tuple[int, int] | None,
    ) -> None:
        self.network = network
        self.extractor = extractor
        self.before = before
        self.size = size
        self.frames = list(before.frames)
        self.removed = 0
        self.learned: list[str] = []
        self.maps = []
        # For each region that should be found: its frame, and its features in each map.
        self._to_find: list[tuple[str, list[Tensor]]] = []
        for index in range(len(extractor.layers) * len(extractor.sizes)):
            if f"{index}.origins" not in before.tensors:
                raise InputError(
                    "the bank was made by an earlier version and does not say of which frames its "
                    "features are",
                    hint="fit the features again",
                )
            bank = before.tensors[f"{index}.bank"]
            self.maps.append(GrownMap(bank, before.tensors[f"{index}.origins"]))

    @torch.inference_mode()
    @full_float32()
    def take(self, frame: JudgedFrame, image: AnyImage) -> None:
        """Take the judged regions of a frame.

        Raises:
            InputError: a region is of a frame of another size.
        """
        shape = (image.shape[0], image.shape[1])
        for region in (*frame.false_alarms, *frame.to_find):
            _check_size(region, frame.name, shape)
        maps = self._seen(image)
        for region in frame.to_find:
            pixels = mask_of(region)
            of_maps = [seen.features[seen.places_with(pixels).flatten()] for seen in maps]
            self._to_find.append((frame.name, of_maps))
        known = frame.name in self.before.frames
        if frame.name not in self.frames and frame.false_alarms:
            self.frames.append(frame.name)
        number = self.frames.index(frame.name) if frame.name in self.frames else -1
        false_pixels = pixels_of(frame.false_alarms, shape)
        pixels_to_find = pixels_of(frame.to_find, shape)
        changed = 0
        for grown, seen in zip(self.maps, maps, strict=True):
            stay_out = _with_neighbours(seen.places_with(pixels_to_find))
            if known:
                removed = grown.remove(number, seen, stay_out, shape)
                self.removed += removed
                changed += removed
            enter = (seen.places_with(false_pixels) & ~stay_out).flatten()
            grown.add(seen.features[enter], number, seen.centres(shape)[enter])
            changed += int(enter.sum())
        if changed:
            self.learned.append(frame.name)

    def _seen(self, image: AnyImage) -> list[SeenMap]:
        """Return the feature maps of an image ``[H, W, K]``."""
        height, width = image.shape[:2]
        size = None
        if not self.before.whole:
            size = inference_size(self.network.description, (height, width), self.size)
        inputs = network_input([image], size).to(next(self.network.parameters()).device)
        seen = []
        extents = self.extractor.extents(inputs)
        for maps, (rows, columns) in zip(self.extractor(inputs), extents, strict=True):
            # A map covers pixels of what the encoder saw; regions are of the frame itself.
            covered = (
                round(rows * height / inputs.shape[2]),
                round(columns * width / inputs.shape[3]),
            )
            features = unit_features(maps).cpu()
            seen.append(SeenMap(features, (maps.shape[2], maps.shape[3]), covered))
        return seen

    def finish(self) -> Growth:
        """Return the changed bank, and how far from it the regions are that should be found."""
        added = 0
        for grown in self.maps:
            added += sum(map(len, grown.added))
            grown.finish()
        return Growth(
            maps=tuple(self.maps),
            frames=tuple(self.frames),
            added=added,
            removed=self.removed,
            to_find=tuple(self._regions_to_find()),
            learned=tuple(self.learned),
        )

    def _regions_to_find(self) -> Iterator[RegionToFind]:
        if not self._to_find or not all(len(grown.bank) for grown in self.maps):
            return
        banks = []
        for grown in self.maps:
            names = [self.frames[number] for number in grown.origins[:, 0].long().tolist()]
            banks.append(Neighbours(grown.bank, names))
        for name, of_maps in self._to_find:
            farthest = []
            for features, bank in zip(of_maps, banks, strict=True):
                if len(features):
                    farthest.append(max(bank.nearest(features)))
            if farthest:
                distance = sum(far for far, _ in farthest) / len(farthest)
                yield RegionToFind(name, distance, min(farthest)[1])


def grow(
    network: SegmentationNetwork,
    judged: JudgedRun,
    extractor: FeatureExtractor,
    before: BankBefore,
    images: str | None,
) -> Growth:
    """Return a bank as verdicts change it.

    Args:
        network: that the features belong to.
        judged: the verdicts.
        extractor: of the features.
        before: the bank.
        images: where the frames of the run are now; None takes the place that the maps record.

    Raises:
        InputError: a frame without its image, or verdicts that change nothing.
    """
    growth = BankGrowth(network, extractor, before, judged.size)
    by_name = {frame.name: frame for frame in judged.frames}
    for name, image in images_of(judged.reader, list(by_name), images):
        growth.take(by_name[name], image)
    grown = growth.finish()
    if not grown.added and not grown.removed:
        reason = "no region that was called a false alarm"
        if judged.false_alarms:
            reason = "only false alarms that touch regions called true or missed"
        raise InputError(
            f"{', '.join(judged.files)} holds {reason}, so nothing enters the bank",
            hint="judge regions in the list of alarms (key s); a verdict on a frame has no place",
        )
    return grown
