"""Maps to disk, so that a run killed at any moment can be continued to the same bytes: every file
of a frame appears whole, and only then the frame's line in ``frames.jsonl``. The state of a run is
those lines and nothing else.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from segunc.core.errors import InputError, NoteWarning
from segunc.core.files import (
    START_SECONDS,
    Lock,
    difference_words,
    differing_keys,
    inside,
    make_output,
    safe_name,
)
from segunc.core.removal import MOVE, check_free, remove_partials
from segunc.core.terminal import agreeing, counted, first_of
from segunc.data.images import Image
from segunc.frames.source import FrameSource
from segunc.maps.encoding import (
    Array,
    class_ids,
    encode_compact,
    encode_jpeg,
    encode_npy,
    encode_png,
    encode_score,
)
from segunc.maps.folder import (
    OVERLAY,
    OVERLAY_VIDEO,
    PREDICTION,
    START_LOCK,
    as_one_run,
    begun_files,
    clear_folder,
    is_whole,
    refuse_foreign,
    write_map,
)
from segunc.maps.manifest import (
    COMPACT_VALUES,
    JOINED_SHARDS,
    MAKERS,
    STATE_KEYS,
    Manifest,
    read_manifest,
)
from segunc.maps.regions import MASK_NAME, Region, map_statistics, strongest_regions
from segunc.maps.shards import (
    FRAMES_NAME,
    LOCK_STEM,
    STATISTICS,
    FrameLog,
    Record,
    Shard,
    Sum,
    file_sum,
    read_state,
    write_state,
)
from segunc.scores import SCORES

WHOLE = Shard()
# Files that are listed as begun. A longer list is shortened to the files that have no line yet.
MAX_BEGUN_FILES = 4096
Reasons = Callable[[list[tuple[int, int]]], list[dict[str, Any]]]
"""Returns of pixels (x, y) what made each of them, see :class:`segunc.sampling.sampler.Reasons`."""
Maps = Mapping[str, Array]
"""The maps of one frame by name: ``prediction`` as class ids, scores as real values or in their
stored form.
"""
_MODEL_KEYS = {"base_sha256": "network", "posterior_sha256": "posterior"}
"""Settings that tell one model from another, and the words for what they are hashes of."""
_OF_SCORES = ("maps", "anomaly", "features_sha256", "class_sets", "component_thresholds")
"""Settings that follow from the scores that are written, by the first part of their key."""
_OF_OVERLAYS = ("overlay", "flag", "flag_preparation")
"""Settings that change overlays and no map, by the first part of their key."""
_OF_OPTIONS = (
    *("draws", "seed", "alpha", "scope", "size", "precision", "compiled", "chunk", "threads"),
    *("device", "compact", "every", "start", "end", *_OF_OVERLAYS, "mask_sha256"),
)
"""Settings that are options of the command, by the first part of their key."""
_OF_MACHINES = {"precision", "compiled", "chunk", "threads", "device"}
"""Options that a run chooses by its machine, unless they are typed."""
_MAX_SHOWN_DIFFERENCES = 3  # in a message
_MAX_SHOWN_SCORES = 4
_HASH_LENGTH = 12  # characters of a SHA-256 that a message shows


@dataclass(frozen=True)
class EncodedFrame:
    """The files of one frame that are not written yet.

    Attributes:
        record: the frame's line to come, with the sums of the files.
        files: name of each file relative to the folder, and its bytes, by its map.
    """

    record: Record
    files: Mapping[str, tuple[str, bytes]]


@dataclass(frozen=True)
class FrameEncoder:
    """Makes the files of a frame from its maps. It needs no folder, so a process on another machine
    can do it.

    Attributes:
        described: the section ``maps`` of the manifest.
        region: the pixels that count; others are read as 0, and no statistic knows them.
    """

    described: Mapping[str, Mapping[str, Any]]
    region: Region | None = None

    @cached_property
    def thresholds(self) -> dict[str, float | None]:
        """Score -> value from which on pixels form components, None without components."""
        return {
            name: described.get("component_threshold")
            for name, described in self.described.items()
            if name != PREDICTION
        }

    def visible(self, maps: Maps) -> Maps:
        """Return the maps of a frame with 0 outside of the region.

        Raises:
            InputError: the region does not fit the frame.
        """
        return maps if self.region is None else self.region.clear(maps)

    def encode(
        self, name: str, maps: Maps, overlay: Image | None = None, *, place: int
    ) -> EncodedFrame:
        """Return the files of one frame and its record.

        Args:
            name: of the frame.
            maps: see :data:`Maps`. Those with ``reasons`` have their peaks recorded.
            overlay: RGB uint8 ``[h, w, 3]``, where there is one.
            place: of the frame in its source.
        """
        whole = self._stored_form(name, maps)
        stored = self.visible(whole)
        files = self._files_of(name, whole, stored, overlay)
        record: Record = {
            "name": name,
            "index": place,
            "size": list(maps[PREDICTION].shape),
            "files": {score: file for score, (file, _) in files.items()},
            "sums": {score: file_sum(data) for score, (_, data) in files.items()},
        }
        self._add_statistics(record, stored)
        # Reasons of pixels (x, y), see segunc.sampling.sampler.Reasons.
        reasons = getattr(maps, "reasons", None)
        if reasons:
            self._add_peaks(record, stored, reasons)
        return EncodedFrame(record, files)

    def sums(self, name: str, maps: Maps) -> dict[str, Sum]:
        """Return the sum of each file of a frame's maps."""
        whole = self._stored_form(name, maps)
        files = self._files_of(name, whole, self.visible(whole), None)
        return {score: file_sum(data) for score, (_, data) in files.items()}

    def _stored_form(self, name: str, maps: Maps) -> dict[str, Array]:
        """Return the maps of a frame in their stored form."""
        self._check_maps(name, maps)
        scores = {score: encode_score(score, maps[score]) for score in self.thresholds}
        return {PREDICTION: class_ids(maps[PREDICTION], name), **scores}

    def _check_maps(self, name: str, maps: Maps) -> None:
        """Raise InputError where a frame lacks a map, or its maps differ in size."""
        expected = {PREDICTION, *self.thresholds}
        if set(maps) != expected:
            raise InputError(f"frame {name} has the maps {sorted(maps)}, not {sorted(expected)}")
        height, width = maps[PREDICTION].shape
        for score, values in maps.items():
            if values.shape != (height, width):
                raise InputError(
                    f"map {score} of frame {name} is {values.shape}, not {(height, width)}"
                )

    def _files_of(
        self, name: str, whole: Maps, stored: Maps, overlay: Image | None
    ) -> dict[str, tuple[str, bytes]]:
        """Return the file of each map of a frame, relative to the folder, with its bytes.

        Args:
            name: of the frame.
            whole: the maps in their stored form.
            stored: the same with 0 outside of the region.
            overlay: RGB uint8 ``[h, w, 3]``, where there is one.
        """
        encoded: dict[str, tuple[str, bytes]] = {}
        for score, visible in stored.items():
            values = visible
            if self.described[score].get("value") in COMPACT_VALUES.values():
                # A mean with the 0 from outside of the region would change pixels inside; readers
                # clear what is outside.
                values = encode_compact(whole[score])
            if values.dtype == np.float16:
                encoded[score] = (f"{score}/{name}.npy", encode_npy(values))
            else:
                encoded[score] = (f"{score}/{name}.png", encode_png(values))
        if overlay is not None:
            encoded[OVERLAY] = (f"{OVERLAY}/{name}.jpg", encode_jpeg(overlay))
        return encoded

    def _add_statistics(self, record: Record, stored: Maps) -> None:
        """Add the statistics of the stored maps to the record of their frame."""
        height, width = record["size"]
        kept = None if self.region is None else self.region.at(height, width)
        for statistic in STATISTICS:
            record[statistic] = {}
        for score, threshold in self.thresholds.items():
            numbers = map_statistics(stored[score], threshold, kept)
            for statistic in STATISTICS:
                if statistic in numbers:
                    record[statistic][score] = numbers[statistic]

    def _add_peaks(self, record: Record, stored: Maps, reasons: Reasons) -> None:
        """Add the reasons of the strongest regions of each sum of scores to the record of their
        frame."""
        height, width = record["size"]
        kept = None if self.region is None else self.region.at(height, width)
        for score, threshold in self.thresholds.items():
            if threshold is None or "scores" not in SCORES[score].sources:
                continue
            regions = strongest_regions(stored[score], threshold, kept=kept)
            peaks = reasons([region.peak for region in regions])
            for peak, region in zip(peaks, regions, strict=True):
                peak["at"] = list(region.peak)
                peak["area"] = region.area
                peak["strength"] = float(f"{region.strength:.9g}")
            record.setdefault("peaks", {})[score] = peaks


class MapsWriter:
    """Writes a maps folder or a shard of one, or continues it.

    A folder is continued where the ``run`` part of its manifest is the same.

    Attributes:
        encoder: makes the files of a frame from its maps.
        forgotten: how many frames of an earlier run are made again: their maps or lines are
            missing or damaged, or their images are others.
        failed: name -> reason of the frames that failed in this run; the manifest lists them, and
            the next run tries them again.
        was_complete: the folder (or shard) had been finished without a failure before this run.
    """

    def __init__(
        self,
        out: Path,
        manifest: Mapping[str, Any],
        *,
        overwrite: bool = False,
        shard: Shard = WHOLE,
        region: Region | None = None,
        verify: bool = False,
    ) -> None:
        """Open the folder, and hold its lock until :meth:`close`.

        Args:
            out: the folder, which may not exist yet.
            manifest: of the run to come, see :func:`segunc.maps.manifest.build_manifest`.
            overwrite: see :class:`segunc.options.PredictOptions`.
            shard: the part of the frames that this run makes.
            region: the pixels that count; others are read as 0, and no statistic knows them.
            verify: see :class:`segunc.options.PredictOptions`.

        Raises:
            InputError: the folder holds other files or maps of another run, or is in use.
        """
        self.out = out
        self.shard = shard
        self.failed: dict[str, str] = {}
        self.was_complete = False
        self.forgotten = 0
        self._region = region
        self._verify = verify
        self._log = FrameLog(inside(out, shard.file(FRAMES_NAME)))
        self._begun_files = begun_files(out, shard)
        self._begun_before: list[str] = []
        self._begun_frames: dict[str, list[str]] = {}  # name -> files that have no line yet
        self._finished_before = 0
        self._given_up = 0  # lines whose frames are made again
        self._begun = False
        self._closed = False
        self._continues = False
        self._source = manifest.get("source", {})
        self._maker = {key: manifest.get(key) for key in MAKERS}
        self._first_maker = self._maker  # what began the shard
        self._moved = False  # whether the input lies at another place than it did
        if overwrite and not shard.whole:
            raise InputError(
                "one shard cannot overwrite a folder", hint=f"remove {out} before the first shard"
            )
        if read_manifest(out) is None:
            refuse_foreign(out)
        make_output(out)
        locked = f"output {out}" if shard.whole else f"shard {shard} of output {out}"
        self._lock = Lock(out / shard.file(LOCK_STEM), locked)
        try:
            with Lock(out / START_LOCK, f"output {out}", START_SECONDS):
                self._start(manifest, overwrite)
        except BaseException:
            self._lock.release()
            raise
        self.encoder = FrameEncoder(self.manifest["maps"], region)

    @property
    def lines(self) -> FrameLog:
        """The finished frames by their place in the source, with those of earlier runs."""
        if not self._begun:
            self.begin()
        return self._log

    def begin(self, source: FrameSource | None = None) -> None:
        """Take up what an earlier run left, except frames that the source has changed since. Call
        it before the first frame.

        Raises:
            InputError: the source no longer holds a finished frame, or somebody's file has the
                name of a map to come; no map and no line is changed.
        """
        try:
            self.forgotten = self._log.recover(
                keeps=lambda record: self._keeps_line(record, source),
                check=lambda damaged: self._check_coming(source, damaged),
            )
        except BaseException:
            self._closed = True
            self._lock.release()
            raise
        self._begun = True
        if self._moved and self.shard.whole and not self._log:
            # Nothing is left of the frames of the earlier input.
            self.manifest["run"] = self.manifest["run"] | {"input": self.manifest.pop("moved_to")}
            self.manifest["source"] = self._source
        lost = self._finished_before - len(self._log)  # whole lines may be gone
        self.forgotten = max(self.forgotten, lost)
        self.was_complete = self.was_complete and not self.forgotten
        self._write_state("running", self._finished_before)

    def store(
        self, name: str, maps: Maps, overlay: Image | None = None, *, place: int | None = None
    ) -> Record:
        """Write the files of one frame and return its record.

        Several threads may call it at once for different frames.

        Args:
            name: of the frame.
            maps: see :data:`Maps`. Those with ``reasons`` have their peaks recorded.
            overlay: RGB uint8 ``[h, w, 3]``, where there is one.
            place: of the frame in its source; None is the next one.

        Returns:
            The record; its statistics are of the values before they become compact.
        """
        place = len(self.lines) if place is None else place
        return self.store_encoded(self.encoder.encode(name, maps, overlay, place=place))

    def store_encoded(self, encoded: EncodedFrame) -> Record:
        """Write the files of a frame that :attr:`encoder` or a copy of it encoded, and return its
        record. Several threads may call it at once for different frames.

        Raises:
            InputError: one of the files would replace somebody's file; then none is written.
        """
        record = encoded.record
        for score, (file, _) in encoded.files.items():
            check_free(self.out, file, self._is_recorded, content=record["sums"][score])
        begun: list[str] = []
        self._begun_frames[record["name"]] = begun
        for file, data in encoded.files.values():
            begun.append(file)
            write_map(self.out, file, data, self._begun_files)
        return record

    def _is_recorded(self, file: str) -> bool:
        """Return whether a run of this folder began to write a file, or a line that is given up
        listed it."""
        return file in self._begun_files.listed

    def commit(self, record: Record) -> None:
        """Append a stored frame's line; call it in source order, from one thread."""
        self.lines.append(record)
        self._begun_frames.pop(record["name"], None)
        self.failed.pop(record["name"], None)
        if len(self._begun_files.listed) > MAX_BEGUN_FILES + len(self._begun_before):
            self._begun_files.forget(but=self._without_line())

    def _without_line(self) -> Iterator[str]:
        """Yield the files that may be there without a line: those of frames being written, and of
        a run that was killed before this one.

        Nothing is added to the list of begun files while this is asked, and a file is noted in
        ``_begun_frames`` before it is added to that list.
        """
        yield from self._begun_before
        for files in [*self._begun_frames.values()]:
            yield from [*files]

    def write(self, name: str, maps: Maps) -> None:
        """:meth:`store` and :meth:`commit` in one step."""
        self.commit(self.store(name, maps))

    def close(self, status: str = "finished") -> None:
        """End the run: bring the lines into source order, and write the manifest.

        Args:
            status: ``finished`` or ``interrupted``.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.lines.close()
            self._write_state(status, len(self._log))
            if status == "finished" and not (self._begun_frames or self.failed):
                # A video of the overlays may wait for its note in the manifest.
                self._begun_files.forget(but=[OVERLAY_VIDEO])
        finally:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close("finished" if kind is None else "interrupted")

    def _start(self, manifest: Mapping[str, Any], overwrite: bool) -> None:
        """Continue the folder's earlier run, or begin a new one with this manifest."""
        before = read_manifest(self.out)
        if before is not None and overwrite:
            clear_folder(self.out, before)
            before = None
        if before is not None:
            self._check_continuation(before, manifest)
            if self.shard.whole:
                before = as_one_run(self.out, before)
        self._continues = before is not None
        self.manifest: Manifest = dict(before or manifest)
        if self._moved:
            # The run keeps its record of the input, by which verdicts know it.
            self.manifest["moved_to"] = manifest["run"]["input"]
        self._note_maker()
        if self._continues and self.shard.whole:  # other shards may be writing
            remove_partials(self.out)
        if self._region is not None:
            self._write_region(self._region)
        self._begun_before = [*self._begun_files.listed]
        state = self._state_before(before)
        self.was_complete = state.get("status") == "finished" and not state.get("failed")
        self._finished_before = int(state.get("finished", 0))
        if not self._continues:
            self._write_state("running", 0)  # else once it is known that the run can go on

    def _check_continuation(self, before: Manifest, manifest: Mapping[str, Any]) -> None:
        """Raise InputError where a run cannot continue the folder that an earlier one began."""
        self._check_shards(before)
        recorded = dict(before["run"])
        asked = manifest["run"]
        self._moved = recorded.get("input") != asked.get("input")
        if self._moved:  # whether its frames are the same is compared image by image
            recorded["input"] = asked.get("input")
        different = differing_keys(recorded, asked)
        if different:
            raise InputError(
                f"{self.out} was written {_differences_words(different)}",
                hint=self._hint_of_differences(different),
            )
        if not self.shard.whole:
            self._check_list(before, manifest)

    def _check_shards(self, before: Manifest) -> None:
        """Raise InputError where a folder was begun in other shards.

        A run without shards takes up shards that have all ended.
        """
        count = before.get("shards", 1)
        if count == self.shard.count:
            return
        missing = before.get("missing_shards", ())
        if count == 1:
            joined = before.get(JOINED_SHARDS)
            fact = f"{self.out} was begun without --shard"
            if joined is not None:
                fact = f"{self.out} was begun in {joined} shards, and went on without --shard"
            raise InputError(fact, hint="leave --shard out, or give another --out")
        if self.shard.whole and not missing:
            return
        fact = f"{self.out} was begun in {count} shards"
        if not self.shard.whole:
            fact += f", not in {self.shard.count}"
        if not missing:
            hint = "leave --shard out, because all shards have ended, or give another --out"
            raise InputError(fact, hint=hint)
        raise InputError(
            f"{fact}, and {first_of(missing)} {agreeing('has', len(missing))} not finished",
            hint=f"finish --shard {missing[0]} first, or give another --out",
        )

    def _hint_of_differences(self, different: Sequence[tuple[str, Any, Any]]) -> str:
        """Return what to do where the settings of an earlier run differ from those of this one."""
        settings = {key: (before, now) for key, before, now in different}
        if settings.keys() <= _OF_MACHINES:
            typed = [_typed_words(key, before) for key, before, _ in different]
            return f"{' and '.join(typed)} the run goes on; or give another --out, or --overwrite"
        _, asked = settings.get("overlay", (None, None))
        if asked is None or not _is_of_overlays(different):
            return "give another --out, or --overwrite"
        flag = " --flag THRESHOLD" if any(key.startswith("flag") for key in settings) else ""
        pictures = self.out.with_name(f"{self.out.name}-overlay")
        command = f"--maps {shlex.quote(str(self.out))} --score {asked}{flag}"
        return (
            f"segunc overlay {command} --out {shlex.quote(str(pictures))} draws overlays of these "
            "maps; leave --overlay out here, or give another --out, or --overwrite"
        )

    def _note_maker(self) -> None:
        """Add what makes the coming maps to the manifest, if nothing like it made maps before, and
        warn where it may compute them otherwise.
        """
        first = {key: self.manifest.get(key) for key in MAKERS}
        continued_by = [*self.manifest.get("continued_by", ())]
        if self._maker != first and self._maker not in continued_by:
            self.manifest["continued_by"] = [*continued_by, self._maker]
        words = _other_maker_words(first, self._maker)
        if words:
            warnings.warn(
                f"{self.out} was begun with {words}, so its maps may not all be computed alike",
                NoteWarning,
                stacklevel=4,
            )

    def _write_region(self, region: Region) -> None:
        """Describe the region in the manifest, and write its mask into the folder."""
        self.manifest["mask"] = {
            "file": MASK_NAME,
            "sha256": region.sha256,
            "kept": float(region.kept.mean()),
            "outside": "read as 0, in no statistic",
        }
        mask = np.where(region.kept, 255, 0).astype(np.uint8)
        write_map(self.out, MASK_NAME, encode_png(mask))

    def _state_before(self, before: Manifest | None) -> Mapping[str, Any]:
        """Return how the earlier run stood, empty where there was none. A shard writes the
        manifest of the whole folder, and finds the state of its own earlier run."""
        if self.shard.whole:
            return before or {}
        self.manifest["shards"] = self.shard.count
        state = read_state(self.out, self.shard) or {}
        # As the manifest of a folder, the record of a shard keeps what began it.
        self._first_maker = {key: state.get(key, self._maker[key]) for key in MAKERS}
        common = {key: value for key, value in self.manifest.items() if key not in STATE_KEYS}
        write_state(self.out, WHOLE, common)
        return state

    def _check_list(self, before: Manifest, manifest: Mapping[str, Any]) -> None:
        """Raise InputError where the source lists other frames than when the first shard began.
        Frames are dealt out by their places in the list, so with another list some frames would
        belong to no shard, or to two."""
        recorded = before.get("source", {})
        current = manifest.get("source", {})
        # Folders that earlier versions began record the number alone.
        keys = [key for key in ("frames", "names_sha256") if recorded.get(key) is not None]
        if all(recorded[key] == current.get(key) for key in keys):
            return
        source = manifest["run"].get("input")
        other_names = " of other names" if current.get("frames") == recorded.get("frames") else ""
        hint = "leave --shard out, because all shards have ended: a run of all images goes on"
        if before.get("missing_shards"):
            hint = (
                "move the new images away until all shards have ended, and then go on over all "
                "images without --shard; or begin all shards again in another --out"
            )
        raise InputError(
            f"{self.out} was begun in shards when {source} listed "
            f"{counted(recorded.get('frames', 0), 'frame')}, "
            f"and it now lists {current.get('frames')}{other_names}",
            hint=hint,
        )

    def _keeps_line(self, record: Record, source: FrameSource | None) -> bool:
        """Return whether the frame of a line is finished. The files of one that is not are listed
        as begun, because its line goes and they stay until they are made again."""
        if self._keeps(record, source):
            return True
        self._given_up += 1
        sums = record["sums"]
        files = record["files"]
        self._begun_files.note_all({file: [sums[key]] for key, file in files.items()})
        self._begun_before += files.values()
        return False

    def _check_coming(self, source: FrameSource | None, damaged: int) -> None:
        """Raise InputError where somebody's file has the name of a map that is still to come. The
        frames of images are known; those of a video are looked at one by one as they come.

        Where lines are damaged or lost, their files are in no record, and a file of the run cannot
        be told from somebody's before the map is made again. Then each is compared with the bytes
        that are to be written there.
        """
        if source is None or source.length is None or not self._continues:
            return
        if damaged or self._finished_before > len(self._log) + self._given_up:
            return
        for place in range(source.length):
            if place in self._log or not self.shard.owns(place):
                continue
            name = source.name_of(place)
            if name is None or not _is_safe(name):  # such a frame fails alone, by its name
                continue
            for file in self._files_of(name):
                check_free(self.out, file, self._is_recorded, hint=self._hint_of_taken())

    def _files_of(self, name: str) -> Iterator[str]:
        """Yield the files that a frame will have, relative to the folder."""
        for score, described in self.manifest["maps"].items():
            yield f"{score}/{name}.{described['file']}"
        if self.manifest["run"].get("overlay"):
            yield f"{OVERLAY}/{name}.jpg"

    def _hint_of_taken(self) -> str:
        """Return what to do about a file that has the name of a map to come."""
        if self._begun_before:
            return MOVE
        # Earlier versions kept no list of what they began.
        return f"{MOVE}; a run of an earlier version that was killed may have left it"

    def _keeps(self, record: Record, source: FrameSource | None) -> bool:
        """Return whether the frame of a line is finished: its maps are whole, and its image was not
        replaced.

        Raises:
            InputError: the source no longer holds the frame, or an input that was moved has
                another picture in its place.
        """
        if not is_whole(self.out, record, verify=self._verify):
            return False
        if source is None:
            return True
        index = record["index"]
        name = record["name"]
        if source.name_of(index) != name:
            self._check_earlier(record, source)
            raise InputError(
                f"{self.out} holds maps of frame {name} as number {index} of {source.path}, "
                "where it no longer is",
                hint="restore it (--all-images, where it looks like a label), "
                "give another --out, or --overwrite",
            )
        same = source.stamp(index) == record.get("stamp")
        if self._moved and not same:
            raise InputError(
                f"{self.out} was written of {self.manifest['run']['input']}, "
                f"and frame {name} of {source.path} is another picture",
                hint="give another --out, or --overwrite",
            )
        return same

    def _check_earlier(self, record: Record, source: FrameSource) -> None:
        """Raise InputError where new frames stand before a finished one, which is still there."""
        index = record["index"]
        name = record["name"]
        places = range(source.length or 0)
        now = next((place for place in places if source.name_of(place) == name), None)
        if now is None or now < index:
            return
        raise InputError(
            f"{self.out} holds maps of frame {name} as number {index} of {source.path}, where it "
            f"is now number {now}: new images stand before it",
            hint="move new images away, or name them so that they come last; or give another "
            "--out, or --overwrite",
        )

    def _write_state(self, status: str, finished: int) -> None:
        """Write how the run stands: into the manifest, or into the record of the shard."""
        failed = [{"name": name, "reason": reason} for name, reason in sorted(self.failed.items())]
        state = {"status": status, "finished": finished, "failed": failed}
        if self.shard.whole:
            self.manifest = self.manifest | state
            write_state(self.out, self.shard, self.manifest)
            return
        record = {
            "format": "segunc-maps-shard",
            "shard": [self.shard.number, self.shard.count],
            **state,
        }
        record.update(self._first_maker)
        write_state(self.out, self.shard, record)


def _other_maker_words(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return in which versions, code and processor two makers of maps differ; empty where they do
    not.
    """
    makers = []
    for maker in (before, now):
        content = {key: maker.get(key) for key in ("tool", "environment", "device")}
        content["environment"] = {**(content["environment"] or {}), "platform": None}
        # One GPU is like the next one of its name.
        content["device"] = str(content["device"]).partition(" (cuda")[0]
        makers.append(content)
    words = []
    for key, old, new in differing_keys(*makers)[:_MAX_SHOWN_DIFFERENCES]:
        name = key.replace("tool.", "segunc ").rpartition(".")[2]
        words.append(difference_words(name, old, new))
    return ", ".join(words)


def _is_safe(name: str) -> bool:
    """Return whether files of a frame can have its name."""
    try:
        safe_name(name, "a frame")
    except InputError:
        return False
    return True


def _differences_words(different: Sequence[tuple[str, Any, Any]]) -> str:
    """Return how the settings of an earlier run differ from those of this one, to follow "was
    written".

    Another model comes first, and alone: what was fitted on it differs, too. Then come options of
    the command, the scores before others, without what follows from other scores.

    Args:
        different: keys with the earlier and the present value.
    """
    models = []
    for key, before, now in different:
        if key in _MODEL_KEYS:
            models.append(f"{_MODEL_KEYS[key]} {_short(before)} (now {_short(now)})")
    if models:
        return f"with another model: {', '.join(models)}"
    if len(different) == 1 and different[0][:2] == ("overlay", None):
        return "without --overlay"
    words: list[str] = []
    others = sorted(different, key=lambda setting: _part(setting[0]) not in _OF_OPTIONS)
    for key, before, now in different:
        if key == "maps":
            words.append(f"--scores {_scores_words(before)} (now {_scores_words(now)})")
            others = [setting for setting in others if _part(setting[0]) not in _OF_SCORES]
    words += [difference_words(*setting) for setting in others]
    more = len(words) - _MAX_SHOWN_DIFFERENCES
    shown = ", ".join(words[:_MAX_SHOWN_DIFFERENCES])
    return f"with {shown} and {more} more" if more > 0 else f"with {shown}"


def _is_of_overlays(different: Sequence[tuple[str, Any, Any]]) -> bool:
    """Return whether settings that differ change overlays alone, and no map."""
    return all(_part(key) in _OF_OVERLAYS for key, _, _ in different)


def _typed_words(key: str, value: Any) -> str:
    """Return how one of the options of machines is typed, so that it has a value."""
    if key == "compiled":
        return "with --compile" if value else "without --compile"
    return f"with --{key} {value}"


def _part(key: str) -> str:
    """Return the first part of a dotted key."""
    return key.partition(".")[0]


def _scores_words(scores: Sequence[str] | None) -> str:
    """Return the scores of a run as they are typed, or how many there are."""
    scores = scores or ()
    if len(scores) > _MAX_SHOWN_SCORES:
        return f"{len(scores)} scores, {','.join(scores[:_MAX_SHOWN_SCORES])},..."
    return ",".join(scores) or "none"


def _short(sha256: str | None) -> str:
    """Return the beginning of a hash."""
    return "not recorded" if sha256 is None else sha256[:_HASH_LENGTH]
